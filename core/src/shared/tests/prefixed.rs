//! Packets that begin with words: the ends of a fastbox, and ports.

use std::vec;

use super::contents;
use super::fabric::{Fabric, FabricRegion, TestPort, WorldShape};
use crate::payload::{BorrowedRecv, RecvBuf};
use crate::port::{PacketPieces, PacketPort, PeerId, Polled, ShortPath as _};
use crate::shared::fastbox::{FastboxReceiver, FastboxSender, FastboxSlot};
use crate::shared::layout::Line;
use crate::wire::prefix::PrefixWords;
use crate::wire::{Envelope, Kind};

const SLOTS: usize = 64;
const SLOTS_AT: usize = 4096;
/// The kinds with one word and with two.
const KINDS: [Kind; 4] = [Kind::EagerImmediate, Kind::EagerAcknowledged, Kind::EagerBoth, Kind::Fin];

fn words(kind: Kind, tag: u64) -> PrefixWords {
    let first = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    PrefixWords::of(kind, [first, !first]).unwrap()
}

/// Returns words and body of a packet, as they lie behind each other.
fn joined(words: PrefixWords, body: &[u8]) -> vec::Vec<u8> {
    [&words.encode()[..words.bytes()], body].concat()
}

#[test]
fn fastbox_carries_words_and_body_of_every_length() {
    let region = FabricRegion::new(SLOTS_AT + SLOTS * size_of::<FastboxSlot>());
    let ack = &region.view::<Line>(0, 1)[0].word;
    let slots = region.view::<FastboxSlot>(SLOTS_AT, SLOTS);
    let (mut sender, mut receiver) = (FastboxSender::new(slots, ack), FastboxReceiver::new(slots, ack));
    let (mut sequence, mut quick) = (1_u64, 0);
    for len in (0..=300).chain(0..=300) {
        for kind in KINDS {
            let (words, body) = (words(kind, sequence), contents(sequence, len));
            let whole = joined(words, &body);
            let envelope = Envelope { kind, context: 3, tag: sequence, total: whole.len() as u64 };
            let pushed = sender.push_prefixed(sequence, &envelope, words, &body);
            quick += u32::from(pushed);
            if !pushed {
                assert_eq!(sender.push(sequence, &envelope, &whole), Ok(true), "{len} bytes");
            }
            let packet = receiver.peek().unwrap().unwrap();
            assert_eq!(
                (packet.sequence, packet.envelope, packet.len),
                (sequence as u16, envelope, whole.len())
            );
            assert_eq!(PrefixWords::of(kind, receiver.words()), Some(words), "{len} bytes");
            let mut got = vec![0xee; len];
            receiver.read_behind(packet.len, words.bytes(), &mut got);
            assert_eq!(got, body, "{len} bytes");
            let mut got = vec![0xee; whole.len()];
            receiver.read(packet.len, 0, &mut got);
            assert_eq!(got, whole, "{len} bytes");
            receiver.advance(packet.len);
            sequence += 1;
        }
    }
    assert!(quick > 1600, "most packets leave by the critical path: {quick} of {}", sequence - 1);
}

/// Takes the next packet by the critical path if `quick`, and else by a poll. Returns its envelope, words and body.
fn take(port: &mut TestPort<'_>, quick: bool, room: usize) -> Option<(Envelope, PrefixWords, vec::Vec<u8>)> {
    let mut got = vec![0xee; room];
    if quick {
        // SAFETY: the memory outlives the buffer.
        let mut buf = unsafe { RecvBuf::from_raw(got.as_mut_ptr(), got.len()) };
        let taken = port.take_prefixed(|_, _, _| true, &mut BorrowedRecv::new(&mut buf));
        let (_, envelope, words) = taken?;
        got.truncate(envelope.total as usize - words.bytes());
        return Some((envelope, words, got));
    }
    let arrival = (0..10_000).find_map(|_| match port.poll() {
        Polled::Packet(arrival) => Some(arrival),
        _ => None,
    })?;
    let mut whole = vec![0; arrival.len];
    assert!(port.read(&arrival, 0, &mut whole));
    port.release(arrival);
    let mut head = [0; 16];
    let count = whole.len().min(16);
    head[..count].copy_from_slice(&whole[..count]);
    let head = u128::from_le_bytes(head);
    let words = PrefixWords::of(arrival.envelope.kind, [head as u64, (head >> 64) as u64])?;
    Some((arrival.envelope, words, whole.split_off(words.bytes())))
}

#[test]
fn ports_carry_words_and_body_by_either_path_in_order() {
    let shape = WorldShape { peers: 2, cells: 16, cell_bytes: 1024, fastbox_slots: 32 };
    let fabric = Fabric::new(shape);
    let (mut zero, mut one) = (fabric.port(0), fabric.port(1));
    let (mut tag, mut sent_quickly, mut taken_quickly) = (0, 0, 0);
    let mut pass =
        |(zero, one): (&mut TestPort<'_>, &mut TestPort<'_>), to: PeerId, len: usize, kind: Kind| {
            tag += 1;
            let (words, body) = (words(kind, tag), contents(tag, len));
            let whole = joined(words, &body);
            let envelope = Envelope { kind, context: 3, tag, total: whole.len() as u64 };
            let quick = tag % 3 != 0 && zero.send_prefixed(to, &envelope, words, &body);
            sent_quickly += u32::from(quick);
            assert!(quick || zero.send(to, &envelope, PacketPieces::Whole(&whole)).unwrap());
            assert!(len == 0 || take(one, true, len - 1).is_none(), "the packet does not fit");
            let taken = if tag % 4 != 0 { take(one, true, len + 8) } else { None };
            taken_quickly += u32::from(taken.is_some());
            let taken = taken.or_else(|| take(one, false, 0)).unwrap();
            assert_eq!(taken, (envelope, words, body), "{len} bytes");
        };
    for len in (0..1000).step_by(7).chain(0..100) {
        for kind in KINDS {
            pass((&mut zero, &mut one), 1, len, kind);
            pass((&mut one, &mut zero), 0, len, kind);
        }
    }
    assert!(sent_quickly > 900 && taken_quickly > 900, "{sent_quickly} and {taken_quickly} of {tag}");
}
