use std::string::String;

use super::*;
use crate::link::offers::{
    InterfaceOffer, LinkOffer, MOST_OFFER_BYTES, OfferList, PairsOffer, PipeOffer, SegmentsOffer, StreamOffer,
};

const TO: u64 = 0x1122_3344_5566_7788;
const FROM: u64 = 0x99aa_bbcc_ddee_ff00;

fn message(body: LinkBody<'_>) -> LinkMessage<'_> {
    let header = LinkHeader { version: LINK_VERSION, service: LinkService::Engine, to: TO, from: FROM };
    LinkMessage { header, body }
}

fn segments() -> LinkOffer {
    let (geometry, processors) = ([1, 2, 3], [4, 5, 6, 7, 8, 9, 10, u64::MAX]);
    LinkOffer::Segments(SegmentsOffer { geometry, flags: 11, stamp: 12, processors, credit: 13 })
}

fn pairs(count: u8) -> LinkOffer {
    let mut pairs = [[0; 2]; 4];
    (0..count).for_each(|at| pairs[usize::from(at)] = [100 + u32::from(at), 0xff_fff0]);
    LinkOffer::Pairs(PairsOffer { mtu: 5, reads: 16, receives: 64, lid: 3, gid: [0xfe; 16], pairs, count })
}

fn stream() -> LinkOffer {
    LinkOffer::Stream(StreamOffer { version: 4, streams: 2, receives: 256, port: 7000, token: 11 })
}

fn interface(is_call: bool) -> LinkOffer {
    let addresses = is_call.then_some([[1; 72], [2; 72]]);
    let (flags, reliability, transfer, quality, number) = (3, 2, 1 << 32, 5, 6);
    LinkOffer::Interface(InterfaceOffer { flags, reliability, transfer, quality, number, addresses })
}

fn pipe() -> LinkOffer {
    LinkOffer::Pipe(PipeOffer { design: 3, ring_bytes: 1 << 20, shape: 9, key: [8; 24] })
}

fn list(offers: &[LinkOffer]) -> OfferList {
    let mut all = OfferList::EMPTY;
    assert!(offers.iter().all(|offer| all.add(offer)));
    all
}

fn call(offers: LinkOffers<'_>) -> LinkBody<'_> {
    LinkBody::Call(LinkCall {
        call: 1 << 40 | 7,
        incarnation: 2,
        number: 3,
        packet_bytes: 8192,
        challenge: 5,
        instance: 0x00ab_cdef,
        nonce: u64::MAX - 1,
        address: MaskedAddress(core::array::from_fn(|at| at as u8)),
        offers,
        proof: Proof([0xee; 16]),
    })
}

fn answer(offers: LinkOffers<'_>) -> LinkBody<'_> {
    let (calls, incarnation, number, packet_bytes, word, chosen) = (9, 1, 4, 4096, 77, 2);
    let proof = Proof([0xdd; 16]);
    LinkBody::Answer(LinkAnswer { calls, incarnation, number, packet_bytes, word, chosen, offers, proof })
}

fn departure() -> LinkBody<'static> {
    let (manner, address) = (LeaveManner::Closed, MaskedAddress([7; 64]));
    LinkBody::Departure(LinkDeparture { manner, address, nonce: 9, proof: Proof([1; 16]) })
}

/// Calls the function with one message of each form.
fn each_message(mut run: impl FnMut(&LinkMessage<'_>)) {
    let text = LinkText::new("no place", MOST_REFUSAL_TEXT);
    let refuse = |is_passing| {
        LinkBody::Refuse(LinkRefuse { code: RefusalCode::Full, is_passing, values: [1, 2], text })
    };
    let confirm = LinkConfirm { chosen: 2, reason: LinkText::new("RTR failed", 64), proof: Proof([3; 16]) };
    for body in [
        LinkBody::Ask,
        LinkBody::Challenge(Challenge { number: 6, random: [0x5a; 16] }),
        LinkBody::Confirm(confirm),
        LinkBody::Confirm(LinkConfirm { reason: LinkText::EMPTY, ..confirm }),
        LinkBody::Welcome,
        refuse(true),
        refuse(false),
        LinkBody::Leave(LeaveManner::Closed),
        LinkBody::Leave(LeaveManner::Disconnected),
        LinkBody::Leave(LeaveManner::Dropped),
        departure(),
        LinkBody::Hold,
        LinkBody::Done,
    ] {
        run(&message(body));
    }
    let calls = [
        list(&[]),
        list(&[segments()]),
        list(&[pairs(4), LinkOffer::Manager(None), stream()]),
        list(&[pipe(), pairs(1)]),
        list(&[interface(true), pairs(1), stream()]),
    ];
    calls.iter().for_each(|offers| run(&message(call(offers.get(true)))));
    let place = LinkOffer::Manager(Some((4242, [0xfd; 16])));
    let answers =
        [list(&[segments()]), list(&[pairs(2), place, stream()]), list(&[pipe()]), list(&[interface(false)])];
    answers.iter().for_each(|offers| run(&message(answer(offers.get(false)))));
}

#[test]
fn messages_survive_their_bytes() {
    let mut kinds = [0; 11];
    each_message(|message| {
        let bytes = message.encode();
        let decoded = LinkMessage::decode(bytes.get(), LINK_VERSION);
        assert_eq!(decoded, Ok(*message));
        let header = bytes.get().first_chunk().unwrap();
        assert_eq!((length_of(header), receiver_of(bytes.get())), (Ok(bytes.get().len()), TO));
        kinds[usize::from(bytes.get()[3])] += 1;
    });
    assert!(kinds[1..].iter().all(|count| *count > 0), "a kind has no message: {kinds:?}");
}

#[test]
fn changed_bytes_are_another_message_or_a_fault() {
    each_message(|message| {
        let bytes = message.encode();
        for at in 0..bytes.get().len() {
            let mut changed = bytes.get().to_vec();
            changed[at] ^= 0x80;
            match LinkMessage::decode(&changed, LINK_VERSION) {
                Ok(other) => assert!(other != *message && other.encode().get() == changed, "byte {at}"),
                Err(LinkFault::Version { .. }) => assert_eq!(at, 2),
                Err(_) => {}
            }
        }
        for len in 0..bytes.get().len() {
            assert!(LinkMessage::decode(&bytes.get()[..len], LINK_VERSION).is_err(), "{len} bytes");
        }
    });
}

#[test]
fn sizes_are_those_of_the_page() {
    let bytes_of = |body: LinkBody<'_>| message(body).encode().get().len();
    let engine = list(&[pairs(1), LinkOffer::Manager(None), stream()]);
    let streams = list(&[pairs(4), stream()]);
    let longest = list(&[interface(true), pairs(1), stream()]);
    assert_eq!(bytes_of(call(list(&[]).get(true))), 144);
    assert_eq!(bytes_of(call(list(&[segments()]).get(true))), 248);
    assert_eq!(bytes_of(call(engine.get(true))), 200);
    assert_eq!(bytes_of(call(streams.get(true))), 216);
    assert_eq!(bytes_of(call(list(&[pipe(), pairs(1)]).get(true))), 216);
    assert_eq!(bytes_of(call(longest.get(true))), MOST_LINK_BYTES);
    assert_eq!(longest.get(true).bytes().len(), MOST_OFFER_BYTES);
    assert_eq!(bytes_of(answer(list(&[]).get(false))), 80);
    assert_eq!([LinkBody::Ask, LinkBody::Hold, departure()].map(bytes_of), [48, 24, 120]);
    let text = "x".repeat(500);
    let text = LinkText::new(&text, MOST_REFUSAL_TEXT);
    let refuse = LinkRefuse { code: RefusalCode::Path, is_passing: false, values: [0; 2], text };
    assert_eq!(bytes_of(LinkBody::Refuse(refuse)), 204);
}

/// Compares the bytes of a message with those that version 1 has for ever. Groups of zeros are not written out.
fn golden(body: LinkBody<'_>, expected: &str) {
    let hex: String = message(body).encode().get().iter().map(|byte| std::format!("{byte:02x}")).collect();
    let expected = expected.replace([' ', '\n'], "");
    assert_eq!(hex, std::format!("{expected:0<len$}", len = hex.len()));
}

#[test]
fn bytes_are_golden() {
    let numbers = "8877665544332211 00ffeeddccbbaa99";
    let with = |head: &str, rest: &str| std::format!("{head} {numbers} {rest}");
    golden(LinkBody::Ask, &with("4c4e 02 01 3000 01 00", ""));
    let challenge = LinkBody::Challenge(Challenge { number: 6, random: [0x5a; 16] });
    golden(challenge, &with("4c4e 02 02 3000 01 00", &std::format!("06000000 {}", "5a".repeat(16))));
    let address: String = (0..64).map(|at| std::format!("{at:02x}")).collect();
    let fixed = "0700000000010000 0200000000000000 03000000 00200000 05000000";
    let nonce = "feffffffffffffff";
    let offers = "02040200 0001 581b 0b00000000000000";
    let proof = "ee".repeat(16);
    let bytes = std::format!("{fixed} 01 efcdab {nonce} {address} {offers} {proof}");
    golden(call(list(&[stream()]).get(true)), &with("4c4e 02 03 a000 01 00", &bytes));
    let fixed = "0900000000000000 0100000000000000 04000000 00100000 4d00000000000000 02000000 01000000";
    let pair = "03010510 4000 0300 fefefefefefefefefefefefefefefefe 64000000 f0ffff00";
    let bytes = std::format!("{fixed} {pair} {}", "dd".repeat(16));
    golden(answer(list(&[pairs(1)]).get(false)), &with("4c4e 02 04 7000 01 00", &bytes));
    let confirm = LinkConfirm { chosen: 2, reason: LinkText::new("why", 64), proof: Proof([3; 16]) };
    let bytes = std::format!("02 03 000000000000 776879 {}", "03".repeat(16));
    golden(LinkBody::Confirm(confirm), &with("4c4e 02 05 3300 01 00", &bytes));
    golden(LinkBody::Welcome, &with("4c4e 02 06 1800 01 00", ""));
    let (code, text) = (RefusalCode::Shape, LinkText::new("no", 9));
    let refuse = LinkRefuse { code, is_passing: true, values: [1, 2], text };
    let bytes = "0600 01 02 0100000000000000 0200000000000000 6e6f";
    golden(LinkBody::Refuse(refuse), &with("4c4e 02 07 2e00 01 00", bytes));
    golden(LinkBody::Leave(LeaveManner::Disconnected), &with("4c4e 02 08 2000 01 00", "01"));
    let bytes = std::format!("00000000 00000000 {} 0900000000000000 {}", "07".repeat(64), "01".repeat(16));
    golden(departure(), &with("4c4e 02 08 7800 01 00", &bytes));
    golden(LinkBody::Hold, &with("4c4e 02 09 1800 01 00", ""));
    golden(LinkBody::Done, &with("4c4e 02 0a 1800 01 00", ""));
}

#[test]
fn offers_are_golden() {
    let hex = |offer: LinkOffer, is_call: bool| -> String {
        list(&[offer]).get(is_call).bytes().iter().map(|byte| std::format!("{byte:02x}")).collect()
    };
    let words: String = [4_u64, 5, 6, 7, 8, 9, 10, u64::MAX, 13]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .map(|byte| std::format!("{byte:02x}"))
        .collect();
    let head = "010000000b000000010000000200000003000000000000000c00000000000000";
    assert_eq!(hex(segments(), true), std::format!("{head}{words}"));
    assert_eq!(hex(LinkOffer::Manager(None), true), "0400000000000000");
    let place = LinkOffer::Manager(Some((0x1092, [0xfd; 16])));
    assert_eq!(hex(place, false), std::format!("0400921000000000{}", "fd".repeat(16)));
    assert_eq!(hex(pipe(), true), std::format!("05030000000010000900000000000000{}", "08".repeat(24)));
    let fields = "060302000000000000000000010000000500000000000000 0600000000000000".replace(' ', "");
    assert_eq!(hex(interface(false), false), fields);
    assert_eq!(hex(interface(true), true), std::format!("{fields}{}{}", "01".repeat(72), "02".repeat(72)));
}

#[test]
fn faults_name_what_is_wrong() {
    let bytes = message(LinkBody::Welcome).encode();
    let with = |at: usize, byte: u8| {
        let mut bytes = bytes.get().to_vec();
        bytes[at] = byte;
        LinkMessage::decode(&bytes, LINK_VERSION).map(|_| ()).unwrap_err()
    };
    assert_eq!(with(0, 0), LinkFault::Mark);
    assert_eq!(with(2, 9), LinkFault::Version { theirs: 9, ours: LINK_VERSION, from: FROM });
    assert_eq!(with(3, 77), LinkFault::Kind(77));
    assert_eq!(with(4, 25), LinkFault::Length { kind: 6, bytes: 24 });
    assert_eq!(with(6, 5), LinkFault::Service(5));
    assert_eq!(with(7, 1), LinkFault::Field(6));
    assert_eq!(LinkMessage::decode(b"GET / HTTP/1.1\r\n\r\n", LINK_VERSION), Err(LinkFault::Mark));
    let twice = [list(&[stream()]).get(true).bytes(); 2].concat();
    let fault = |bytes: &[u8], count| LinkOffers::new(bytes, count, true).unwrap_err();
    assert_eq!(fault(&twice, 2), OfferFault::Twice(2));
    assert_eq!(fault(&twice[..16], 2), OfferFault::Count { said: 2, found: 1 });
    assert_eq!(fault(&twice[..7], 1), OfferFault::Short(2));
    assert_eq!(fault(&[9; 8], 1), OfferFault::Code(9));
    assert_eq!(fault(&[3, 5, 0, 0], 1), OfferFault::Field(3));
    assert_eq!(fault(&[2, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 1), OfferFault::Field(2));
}

#[test]
fn a_refusal_is_read_by_every_version() {
    let text = LinkText::new("version 3 here", MOST_REFUSAL_TEXT);
    let refuse = LinkRefuse { code: RefusalCode::Version, is_passing: false, values: [3, 2], text };
    let other = LinkMessage {
        header: LinkHeader { version: 3, ..message(LinkBody::Ask).header },
        body: LinkBody::Refuse(refuse),
    };
    assert_eq!(LinkMessage::decode(other.encode().get(), LINK_VERSION), Ok(other));
    let welcome = LinkMessage { body: LinkBody::Welcome, ..other };
    let fault = LinkFault::Version { theirs: 3, ours: LINK_VERSION, from: FROM };
    assert_eq!(LinkMessage::decode(welcome.encode().get(), LINK_VERSION), Err(fault));
}

#[test]
fn a_text_is_printable_and_short() {
    assert_eq!(LinkText::new("one\ntwo", 99).get(), "one");
    assert_eq!(LinkText::new("caf\u{e9}", 99).get(), "caf");
    assert_eq!(LinkText::new("longer", 4).get(), "long");
}
