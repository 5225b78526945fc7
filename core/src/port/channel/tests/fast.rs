//! Rings: what is written into them, what is taken out of them, and what a peer may not do.

use std::vec::Vec;

use super::script::{TestChannel, enter, fast_channel, hello, packet, settle};
use super::{FastPath, OFFER_AFTER};
use crate::flow::posted::{FIRST, LEAST, Stamp};
use crate::port::memory::{Connection, WorkOutcome};
use crate::port::{PacketPieces, PacketPort as _, PeerId, Polled, PortFault};
use crate::wire::channel::{HEADER_BYTES, Header, Numbered, PacketKind, RingNotice};
use crate::wire::ring::{ArrivedSlot, RingOffer, RingShape, SLOT_PAYLOAD, SlotHeader, TRAILER_BYTES};
use crate::wire::{Envelope, Kind};

/// Writes something invalid into the ring of an offer.
type Corrupt<'a> = &'a dyn Fn(&mut TestChannel, RingOffer);

const SLOTS: u32 = 4;
const FAST: FastPath = FastPath { rings: 1, slots: SLOTS };

fn shape() -> RingShape {
    RingShape::new(SLOTS).unwrap()
}

/// Returns the next packet's tag and payload.
fn next(channel: &mut TestChannel) -> Option<(u64, Vec<u8>)> {
    match channel.poll() {
        Polled::Packet(arrival) => {
            let mut bytes = std::vec![0; arrival.len];
            assert!(channel.read(&arrival, 0, &mut bytes));
            let tag = arrival.envelope.tag;
            channel.release(arrival);
            Some((tag, bytes))
        }
        Polled::Idle => None,
        Polled::Fault(fault) => panic!("{fault:?}"),
    }
}

/// Completes all sends, and returns their headers with the payloads.
fn said(channel: &mut TestChannel) -> Vec<(Header, Vec<u8>)> {
    let sent = core::mem::take(&mut channel.port_mut().sent);
    let headers = sent.iter().map(|(_, _, bytes)| {
        (Header::decode(bytes.first_chunk().unwrap()).unwrap(), bytes[HEADER_BYTES..].to_vec())
    });
    let headers = headers.collect();
    for (connection, id, _) in sent {
        let completion = crate::port::memory::Completion { id, connection, outcome: WorkOutcome::Done };
        channel.port_mut().done.push_back(completion);
    }
    headers
}

/// Returns a packet about a ring.
fn notice(number: u32, kind: RingNotice, slots: u32, payload: &[u8]) -> Vec<u8> {
    let kind = PacketKind::Ring(kind);
    let packet = Some(Numbered { kind, context: 0, tag: 0, sequence: FIRST.wrapping_add(number) });
    let stamp = Stamp { posted: FIRST.wrapping_add(LEAST + 40), target: LEAST };
    let mut bytes = Header { packet, stamp, units: 0, waited: false, slots }.encode().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

/// Lets rank 0 send small packets until it gets a ring. Returns its connection, and the offer.
fn offered(channel: &mut TestChannel, peer: PeerId) -> (Connection, RingOffer) {
    let connection = enter(channel, &hello(peer, 0));
    for number in 0..OFFER_AFTER {
        channel.port_mut().arrive(connection, &packet(number, number + 20, b"small"));
        assert_eq!(next(channel), Some((number.into(), b"small".to_vec())));
    }
    assert_eq!(next(channel), None);
    let said = said(channel);
    let offer = said.iter().find_map(|(header, payload)| {
        let kind = header.packet?.kind;
        (kind == PacketKind::Ring(RingNotice::Open)).then(|| payload.first_chunk().copied().unwrap())
    });
    (connection, RingOffer::decode(&offer.expect("an offer")).unwrap())
}

/// What the trailer of a packet with a whole header says.
const fn whole(len: usize) -> ArrivedSlot {
    ArrivedSlot { len, is_cached: false }
}

/// Writes a packet with a cached header as packet `at` of the ring of a peer.
fn write_cached(channel: &mut TestChannel, offer: RingOffer, at: u32, cached: u64, payload: &[u8]) {
    let said = ArrivedSlot { len: payload.len(), is_cached: true };
    let trailer = shape().trailer(at, said).to_le_bytes();
    let bytes = [&cached.to_le_bytes()[..], payload, &trailer].concat();
    channel.port_mut().place(offer.key, shape().end(at) - bytes.len() as u64, &bytes);
}

/// Writes packet `number` of the peer as packet `at` of its ring, and of its trailer only so many bytes.
fn write(
    channel: &mut TestChannel,
    offer: RingOffer,
    (at, number): (u32, u32),
    payload: &[u8],
    placed: usize,
) {
    let bytes = packet(number, 20, payload);
    let end = shape().end(at) - TRAILER_BYTES as u64;
    channel.port_mut().place(offer.key, end - bytes.len() as u64, &bytes);
    let trailer = shape().trailer(at, whole(payload.len())).to_le_bytes();
    channel.port_mut().place(offer.key, end, &trailer[..placed]);
}

#[test]
fn packets_in_a_ring_are_delivered_when_their_last_byte_is_there() {
    let mut channel = fast_channel(3, 1, 64, FAST);
    let (_, offer) = offered(&mut channel, 0);
    // Three laps.
    for at in 0..3 * SLOTS {
        let (number, payload) = (OFFER_AFTER + at, std::vec![at as u8; 7 * at as usize]);
        for placed in 0..TRAILER_BYTES {
            write(&mut channel, offer, (at, number), &payload, placed);
            assert_eq!(next(&mut channel), None, "packet {at}, {placed} bytes of the trailer");
        }
        write(&mut channel, offer, (at, number), &payload, TRAILER_BYTES);
        assert_eq!(next(&mut channel), Some((number.into(), payload)));
        assert_eq!(next(&mut channel), None);
    }
    assert_eq!(channel.report(0).taken, u64::from(3 * SLOTS));
    // The slots were reported although nothing was sent, as long as the script's peer had receives.
    let reported: Vec<_> = said(&mut channel).iter().map(|(header, _)| header.slots).collect();
    assert!(reported.is_sorted() && reported.last() > Some(&(2 * SLOTS)), "{reported:?}");
    let most = reported.windows(2).map(|two| two[1] - two[0]).max();
    assert_eq!(most, Some(SLOTS / 2), "{reported:?}");
}

#[test]
fn packets_of_both_paths_are_delivered_in_order() {
    let mut channel = fast_channel(3, 1, 64, FAST);
    let (connection, offer) = offered(&mut channel, 0);
    let first = OFFER_AFTER;
    write(&mut channel, offer, (0, first + 1), b"second", TRAILER_BYTES);
    write(&mut channel, offer, (1, first + 3), b"fourth", TRAILER_BYTES);
    assert_eq!(next(&mut channel), None);
    channel.port_mut().arrive(connection, &packet(first + 2, 20, b"third"));
    assert_eq!(next(&mut channel), None);
    channel.port_mut().arrive(connection, &packet(first, 20, b"first"));
    for expected in [&b"first"[..], b"second", b"third", b"fourth"] {
        assert_eq!(next(&mut channel).map(|(_, bytes)| bytes).as_deref(), Some(expected));
    }
}

#[test]
fn a_cached_header_is_that_of_the_packet_before_with_the_next_number() {
    let mut channel = fast_channel(3, 1, 64, FAST);
    let (_, offer) = offered(&mut channel, 0);
    write(&mut channel, offer, (0, OFFER_AFTER), b"whole", TRAILER_BYTES);
    // It reports one more receive and unit.
    write_cached(&mut channel, offer, 1, 1 | 1 << 16, b"cached");
    write_cached(&mut channel, offer, 2, 0, b"");
    write(&mut channel, offer, (3, OFFER_AFTER + 3), b"whole again", TRAILER_BYTES);
    // In these tests the tag of a whole header is its number.
    for (after, expected) in [(0, &b"whole"[..]), (0, b"cached"), (0, b""), (3, b"whole again")] {
        assert_eq!(next(&mut channel), Some(((OFFER_AFTER + after).into(), expected.to_vec())));
    }
    assert_eq!(next(&mut channel), None);
}

#[test]
fn nonsense_in_a_ring_fails_its_peer_and_no_other() {
    let trailer = |len| shape().trailer(0, whole(len)).to_le_bytes();
    let end = shape().end(0) - TRAILER_BYTES as u64;
    let wrong: [(&str, Corrupt<'_>); 6] = [
        ("too long", &|channel, offer| channel.port_mut().place(offer.key, end, &trailer(SLOT_PAYLOAD + 1))),
        ("longer than packets", &|channel, offer| channel.port_mut().place(offer.key, end, &trailer(300))),
        ("no header", &|channel, offer| channel.port_mut().place(offer.key, end, &trailer(9))),
        ("a cached header without one before", &|channel, offer| write_cached(channel, offer, 0, 0, b"")),
        ("a cached header with a reserved bit", &|channel, offer| {
            write(channel, offer, (0, OFFER_AFTER), b"", TRAILER_BYTES);
            write_cached(channel, offer, 1, 1 << 48, b"");
        }),
        ("an old number", &|channel, offer| write(channel, offer, (0, 0), b"", TRAILER_BYTES)),
    ];
    for (what, place) in wrong {
        let mut channel = fast_channel(3, 1, 64, FAST);
        let (_, offer) = offered(&mut channel, 0);
        let other = enter(&mut channel, &hello(2, 0));
        if what == "no header" {
            channel.port_mut().place(offer.key, 0, &[0xff; 500]);
        }
        place(&mut channel, offer);
        if what.ends_with("reserved bit") {
            assert_eq!(next(&mut channel), Some((OFFER_AFTER.into(), Vec::new())));
        }
        let Polled::Fault(fault) = channel.poll() else { panic!("{what}") };
        let is_expected = matches!(fault.fault, PortFault::Header | PortFault::Sequence { .. });
        assert!(fault.peer == 0 && is_expected, "{what}: {fault:?}");
        channel.port_mut().arrive(other, &packet(0, 0, b"fine"));
        assert_eq!(next(&mut channel), Some((0, b"fine".to_vec())), "{what}");
    }
}

#[test]
fn a_ring_that_is_given_to_another_peer_is_empty_and_has_another_key() {
    let mut channel = fast_channel(3, 1, 64, FAST);
    let (_, former) = offered(&mut channel, 0);
    write(&mut channel, former, (0, OFFER_AFTER + 9), b"left behind", TRAILER_BYTES);
    channel.close(0);
    settle(&mut channel);
    let (_, offer) = offered(&mut channel, 2);
    assert_ne!(offer.key, former.key);
    assert_eq!(next(&mut channel), None);
    write(&mut channel, offer, (0, OFFER_AFTER), b"new", TRAILER_BYTES);
    assert_eq!(next(&mut channel).map(|(_, bytes)| bytes), Some(b"new".to_vec()));
}

#[test]
fn a_process_sleeps_when_its_peers_have_stopped() {
    let mut channel = fast_channel(3, 1, 64, FAST);
    assert!(channel.quiet_rings());
    let (connection, offer) = offered(&mut channel, 0);
    assert!(!channel.quiet_rings());
    let asked = said(&mut channel);
    let kinds: Vec<_> = asked.iter().filter_map(|(header, _)| Some(header.packet?.kind)).collect();
    assert_eq!(kinds, [PacketKind::Ring(RingNotice::Stop)]);
    // A packet that was written before the answer.
    write(&mut channel, offer, (0, OFFER_AFTER), b"before", TRAILER_BYTES);
    channel.port_mut().arrive(connection, &notice(OFFER_AFTER + 1, RingNotice::Stopped, 0, b""));
    assert!(!channel.quiet_rings());
    assert_eq!(next(&mut channel).map(|(_, bytes)| bytes), Some(b"before".to_vec()));
    assert_eq!(next(&mut channel), None);
    assert!(channel.quiet_rings());
    // An answer that was not asked for.
    channel.port_mut().arrive(connection, &notice(OFFER_AFTER + 2, RingNotice::Stopped, 0, b""));
    let Polled::Fault(fault) = channel.poll() else { panic!("it was accepted") };
    assert_eq!((fault.peer, fault.fault), (0, PortFault::Header));
}

fn send(channel: &mut TestChannel, tag: u64) -> bool {
    let envelope = Envelope { kind: Kind::Eager, context: 1, tag, total: 3 };
    channel.send(0, &envelope, PacketPieces::Whole(b"abc")).unwrap()
}

#[test]
fn small_packets_are_written_while_slots_are_free_and_sent_otherwise() {
    let mut channel = fast_channel(3, 1, 64, FAST);
    let connection = enter(&mut channel, &hello(0, 0));
    let ring = RingOffer { address: 1 << 20, key: 77, shape: shape() };
    assert!(send(&mut channel, 0));
    assert_eq!(channel.port().written.len(), 0);
    channel.port_mut().arrive(connection, &notice(0, RingNotice::Open, 0, &ring.encode()));
    settle(&mut channel);
    said(&mut channel);
    for tag in 1..=5 {
        assert!(send(&mut channel, tag));
    }
    let written = core::mem::take(&mut channel.port_mut().written);
    assert_eq!(written.len(), SLOTS as usize);
    for (at, (to, bytes)) in (0..).zip(&written) {
        let (end, len) = (ring.address + shape().end(at), HEADER_BYTES + 3 + TRAILER_BYTES);
        assert_eq!((to.key, to.address + len as u64, bytes.len()), (77, end, len));
        assert_eq!(bytes[len - TRAILER_BYTES..], shape().trailer(at, whole(3)).to_le_bytes());
        let header = Header::decode(bytes.first_chunk().unwrap()).unwrap();
        assert_eq!(header.packet.unwrap().sequence, FIRST.wrapping_add(1 + at));
    }
    // The fifth is sent, with the next number.
    let overflow = said(&mut channel);
    let numbers: Vec<_> = overflow.iter().filter_map(|(header, _)| Some(header.packet?.sequence)).collect();
    assert_eq!((numbers, channel.report(0).overflows), (std::vec![FIRST.wrapping_add(5)], 1));
    // The peer reports free slots; it asks this process to stop, which answers and writes no more.
    channel.port_mut().arrive(connection, &notice(1, RingNotice::Stop, 2, b""));
    settle(&mut channel);
    assert_eq!(channel.report(0).in_ring, 2);
    let answers: Vec<_> =
        said(&mut channel).iter().filter_map(|(header, _)| Some(header.packet?.kind)).collect();
    assert_eq!(answers, [PacketKind::Ring(RingNotice::Stopped)]);
    assert!(send(&mut channel, 6));
    assert_eq!(channel.port().written.len(), 0);
    // The counters outlive the connection.
    channel.close(0);
    channel.port_mut().flush(connection);
    settle(&mut channel);
    let report = channel.report(0);
    assert_eq!((report.rails, report.overflows, report.written), (0, 1, u64::from(SLOTS)));
}

#[test]
fn a_packet_like_the_one_before_in_its_ring_has_a_cached_header() {
    let mut channel = fast_channel(3, 1, 64, FAST);
    let connection = enter(&mut channel, &hello(0, 0));
    let ring = RingOffer { address: 1 << 20, key: 77, shape: shape() };
    channel.port_mut().arrive(connection, &notice(0, RingNotice::Open, 0, &ring.encode()));
    settle(&mut channel);
    // Another tag needs a whole header, and so does a packet behind one that was sent.
    for tag in [7, 7, 8, 8] {
        assert!(send(&mut channel, tag));
    }
    assert!(send(&mut channel, 8), "the ring is full, so this one is sent");
    let stamp = Stamp { posted: FIRST.wrapping_add(LEAST + 40), target: LEAST };
    let update = Header { packet: None, stamp, units: 0, waited: false, slots: 3 };
    channel.port_mut().arrive(connection, &update.encode());
    settle(&mut channel);
    for tag in [8, 8] {
        assert!(send(&mut channel, tag));
    }
    let written = core::mem::take(&mut channel.port_mut().written);
    let whole = |bytes: &[u8]| bytes.len() == HEADER_BYTES + 3 + TRAILER_BYTES;
    let forms: Vec<_> = written.iter().map(|(_, bytes)| whole(bytes)).collect();
    assert_eq!(forms, [true, false, true, false, true, false]);
    assert_eq!((channel.report(0).written, channel.report(0).cached), (6, 3));
    let mut before: Option<Header> = None;
    for ((at, sequence), (to, bytes)) in (0..).zip([0, 1, 2, 3, 5, 6]).zip(&written) {
        assert_eq!(to.address + bytes.len() as u64, ring.address + shape().end(at));
        let said = ArrivedSlot { len: 3, is_cached: !whole(bytes) };
        assert_eq!(bytes[bytes.len() - TRAILER_BYTES..], shape().trailer(at, said).to_le_bytes());
        let header = match said.is_cached {
            true => SlotHeader::Cached(*bytes.first_chunk().unwrap()),
            false => SlotHeader::Whole(*bytes.first_chunk().unwrap()),
        };
        before = header.decode(before.as_ref());
        assert_eq!(before.unwrap().packet.unwrap().sequence, FIRST.wrapping_add(sequence));
    }
}

#[test]
fn a_peer_does_not_free_slots_that_were_not_written_or_open_a_ring_twice() {
    let ring = RingOffer { address: 1 << 20, key: 77, shape: shape() }.encode();
    let mut invalid = ring;
    invalid[16] = 3;
    let wrong = [
        notice(0, RingNotice::Open, 1, &ring),
        notice(0, RingNotice::Open, 0, &invalid),
        notice(0, RingNotice::Open, 0, &ring[..20]),
        notice(0, RingNotice::Stop, 0, b""),
        notice(0, RingNotice::Stop, 0, b"payload"),
    ];
    for bytes in wrong {
        let mut channel = fast_channel(3, 1, 64, FAST);
        let connection = enter(&mut channel, &hello(0, 0));
        channel.port_mut().arrive(connection, &bytes);
        let Polled::Fault(fault) = channel.poll() else { panic!("{bytes:?}") };
        assert_eq!(fault.fault, PortFault::Header);
    }
    let mut channel = fast_channel(3, 1, 64, FAST);
    let connection = enter(&mut channel, &hello(0, 0));
    channel.port_mut().arrive(connection, &notice(0, RingNotice::Open, 0, &ring));
    channel.port_mut().arrive(connection, &notice(1, RingNotice::Open, 0, &ring));
    let Polled::Fault(fault) = channel.poll() else { panic!("it was opened twice") };
    assert_eq!(fault.fault, PortFault::Header);
}

#[test]
fn a_ring_takes_its_slots_from_the_places_of_the_window_which_the_rails_share() {
    assert_eq!((FastPath::OFF.receives(64, 1), FastPath::OFF.receives(64, 4)), (64, 16));
    assert_eq!(
        (FAST.receives(64, 1), FAST.receives(64, 4), FAST.receives(SLOTS as usize - 1, 1)),
        (60, 15, 0)
    );
}
