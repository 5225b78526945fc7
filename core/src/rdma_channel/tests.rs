//! Each design over ports that place at once: the operations that the paper counts, and values that no peer sends.

mod port;
mod push;

use std::vec;
use std::vec::Vec;

use super::chunk::{ChunkHeader, ChunkKind};
use super::{Design, PastWrite, PipeArrival, PipeError};
use crate::port::memory::{Completion, MemoryKey, MemoryPort as _};
use port::PipeRecord::{Read, Send, Write};
use port::{TestEnd, ends, shape};

#[test]
fn a_put_and_its_get_of_the_basic_design_are_three_writes() {
    let [mut a, mut b] = ends(shape(Design::Basic));
    assert_eq!(a.put(&[1; 40]), Ok(40));
    assert_eq!(a.recorded(), [Write(40), Write(8)]);
    let mut bytes = [0; 64];
    assert_eq!((b.get(&mut bytes), &bytes[..40]), (Ok(40), &[1; 40][..]));
    assert_eq!(b.recorded(), [Write(8)]);
}

#[test]
fn a_put_at_the_end_of_the_ring_goes_on_at_its_beginning() {
    let [mut a, mut b] = ends(shape(Design::Basic));
    let mut bytes = [0; 256];
    assert_eq!((a.put(&[1; 200]), b.get(&mut bytes)), (Ok(200), Ok(200)));
    a.recorded();
    assert_eq!(a.put(&[2; 300]), Ok(256));
    assert_eq!(a.recorded(), [Write(56), Write(200), Write(8)]);
    assert_eq!((b.get(&mut bytes), bytes), (Ok(256), [2; 256]));
}

#[test]
fn a_put_that_can_do_nothing_asks_the_port_nothing() {
    for design in Design::ALL {
        let [mut a, _] = ends(shape(design));
        // Until the ring is full and everything is published.
        while a.put(&[7; 16]) == Ok(16) || !a.recorded().is_empty() {}
        for _ in 0..3 {
            assert_eq!((a.put(&[7; 16]), a.recorded()), (Ok(0), vec![]), "{design:?}");
        }
    }
}

#[test]
fn piggyback_writes_once_for_a_short_put_and_delays_the_tail() {
    for design in [Design::Piggyback, Design::Pipelined, Design::ZeroCopy] {
        let [mut a, mut b] = ends(shape(design));
        let mut bytes = [0; 64];
        // Header of 24 bytes, payload, flag of 8 bytes.
        for (put, tails) in [(1, 0), (2, 0), (3, 1), (4, 0), (5, 0), (6, 1)] {
            assert_eq!(a.put(&[put; 8]), Ok(8));
            assert_eq!(a.recorded(), [Write(40)], "{design:?}");
            assert_eq!((b.get(&mut bytes), bytes[..8] == [put; 8]), (Ok(8), true));
            assert_eq!(b.recorded(), vec![Write(8); tails], "{design:?} after put {put}");
        }
    }
}

#[test]
fn traffic_of_the_other_direction_carries_the_tail() {
    let [mut a, mut b] = ends(shape(Design::Piggyback));
    let mut bytes = [0; 8];
    for _ in 0..50 {
        assert_eq!((a.put(&[1; 8]), b.get(&mut bytes)), (Ok(8), Ok(8)));
        assert_eq!((b.put(&[2; 8]), a.get(&mut bytes)), (Ok(8), Ok(8)));
        assert_eq!((a.recorded(), b.recorded()), (vec![Write(40)], vec![Write(40)]));
    }
}

#[test]
fn piggyback_reads_a_put_when_all_of_it_has_arrived() {
    for (design, found) in [(Design::Piggyback, 0), (Design::Pipelined, 32)] {
        let [mut a, mut b] = ends(shape(design));
        let mut bytes = [0; 96];
        assert_eq!(a.put(&[3; 96]), Ok(96));
        // The last chunk's header has not arrived.
        let at = super::shape::RING_AT + 2 * 64 + super::chunk::NUMBER_AT;
        let mut number = [0; 8];
        assert!(b.inbox.read(at, &mut number) && b.inbox.write(at, &[0; 8]));
        assert_eq!(b.get(&mut bytes), Ok(2 * found), "{design:?}");
        assert!(b.inbox.write(at, &number));
        assert_eq!(b.get(&mut bytes), Ok(96 - 2 * found));
    }
}

#[test]
fn a_long_buffer_counts_only_when_the_peer_has_read_it() {
    let [mut a, mut b] = ends(shape(Design::ZeroCopy));
    let (long, mut into) = (vec![9; 5000], vec![0; 5000]);
    assert_eq!((a.put(&long), a.put(&long)), (Ok(0), Ok(0)));
    assert_eq!(a.recorded(), [Write(24 + 24 + 8)]);
    assert_eq!((b.get(&mut into), a.put(&long)), (Ok(0), Ok(0)));
    assert_eq!(b.recorded(), [Read(5000)]);
    assert_eq!((b.get(&mut into), into == long), (Ok(5000), true));
    assert_eq!(b.recorded(), [Write(8)]);
    assert_eq!(a.put(&long), Ok(5000));
}

#[test]
fn short_buffers_of_the_receiver_are_filled_by_way_of_the_bounce_buffer() {
    let [mut a, mut b] = ends(shape(Design::ZeroCopy));
    let (long, mut into) = (vec![9; 130], [0; 50]);
    assert_eq!((a.put(&long), b.get(&mut into), b.recorded()), (Ok(0), Ok(0), vec![Read(64)]));
    let mut moved = [0; 50];
    assert_eq!((b.get(&mut moved), moved), (Ok(50), [9; 50]));
    assert_eq!((b.get(&mut into), b.recorded()), (Ok(14), vec![Read(64)]));
    assert_eq!((b.get(&mut into), a.put(&long)), (Ok(50), Ok(0)));
}

#[test]
fn where_nothing_can_be_polled_pointers_travel_as_messages() {
    for design in [Design::Basic, Design::Piggyback, Design::Pipelined] {
        let [mut a, mut b] = ends(super::PipeShape { arrival: PipeArrival::Announced, ..shape(design) });
        let mut bytes = [0; 8];
        assert_eq!(a.put(&[1; 8]), Ok(8));
        let [Write(_), Send] = a.recorded()[..] else { unreachable!("a write and its message") };
        // The bytes are placed, and the flags too, but the message was not seen.
        assert_eq!(b.get(&mut bytes), Ok(0));
        b.drain();
        assert_eq!((b.get(&mut bytes), bytes), (Ok(8), [1; 8]));
    }
}

#[test]
fn bytes_that_wait_for_room_in_the_queue_are_posted_by_a_get() {
    for design in [Design::Basic, Design::Piggyback, Design::Pipelined, Design::ZeroCopy] {
        let [mut a, mut b] = ends(shape(design));
        let mut bytes = [0; 8];
        a.port.queue_is_full = true;
        assert_eq!((a.put(&[1; 8]), a.recorded(), a.pipe.is_sent()), (Ok(8), vec![], false));
        a.port.queue_is_full = false;
        assert_eq!(a.get(&mut bytes), Ok(0));
        assert_eq!((b.get(&mut bytes), bytes), (Ok(8), [1; 8]), "{design:?}");
        a.drain();
        assert!(a.pipe.is_sent());
    }
}

#[test]
fn pointers_beyond_the_possible_fail_the_pipe_and_stale_ones_do_not() {
    let [mut a, mut b] = ends(shape(Design::Basic));
    let mut bytes = [0; 8];
    assert_eq!((a.put(&[1; 8]), b.get(&mut bytes)), (Ok(8), Ok(8)));
    assert!(b.inbox.write(0, &3_u64.to_le_bytes()));
    assert_eq!(b.get(&mut bytes), Ok(0));
    assert!(b.inbox.write(0, &(8_u64 + 257).to_le_bytes()));
    let violated = Err(PipeError::Violated { what: "head", found: 265, limit: 264 });
    assert_eq!((b.get(&mut bytes), b.get(&mut bytes)), (violated, violated));
    // The sender: more was taken than was ever written.
    assert!(a.inbox.write(super::shape::LINE, &1000_u64.to_le_bytes()));
    let error = (0..9).find_map(|_| a.put(&[1; 64]).err());
    assert!(matches!(error, Some(PipeError::Violated { what: "tail", found: 1000, .. })), "{error:?}");
}

#[test]
fn chunks_beyond_the_published_tail_wait_for_it() {
    for design in [Design::Piggyback, Design::Pipelined, Design::ZeroCopy] {
        let [_, mut b] = ends(shape(design));
        let forge = |inbox: &crate::payload::LentMemory, number: u64| {
            let header =
                ChunkHeader { len: 8, kind: ChunkKind::Data, inverted: false, more: false, tail: 0, number };
            let at = super::shape::RING_AT + (number - 1) % 4 * 64;
            assert!(inbox.write(at, &header.to_bytes()));
            assert!(inbox.write(at + 32, &number.to_le_bytes()));
        };
        let mut bytes = [0; 16];
        (1..=2).for_each(|number| forge(&b.inbox, number));
        assert_eq!((b.get(&mut bytes), b.recorded()), (Ok(16), vec![]));
        // The sender was not sent a tail, so it may write only two more.
        (3..=6).for_each(|number| forge(&b.inbox, number));
        for _ in 0..4 {
            assert!(b.get(&mut [0; 4]).is_ok(), "{design:?}");
        }
    }
}

#[test]
fn bytes_that_arrived_before_the_connection_was_lost_can_be_read() {
    for design in Design::ALL {
        let [mut a, mut b] = ends(shape(design));
        let (mut bytes, lost) = ([0; 8], crate::port::memory::LostError::Closed);
        assert_eq!(a.put(&[1; 8]), Ok(8));
        b.pipe.on_lost(lost);
        assert_eq!((b.get(&mut bytes), bytes), (Ok(8), [1; 8]));
        let error = Err(PipeError::Lost(lost));
        assert_eq!((b.get(&mut bytes), b.put(&[1])), (error, error), "{design:?}");
    }
}

#[test]
fn an_announced_end_is_told_from_a_loss_and_follows_the_bytes() {
    for (design, arrival) in Design::ALL
        .into_iter()
        .flat_map(|design| [PipeArrival::Polled, PipeArrival::Announced].map(|arrival| (design, arrival)))
    {
        let [mut a, mut b] = ends(super::PipeShape { arrival, ..shape(design) });
        let (mut bytes, lost) = ([0; 8], crate::port::memory::LostError::Closed);
        assert_eq!(a.put(&[1; 8]), Ok(8));
        a.pipe.finish();
        assert_eq!(a.pipe.push(&mut a.port), Ok(()));
        b.drain();
        // It is no end yet.
        assert_eq!((b.get(&mut bytes), b.get(&mut bytes), bytes), (Ok(8), Ok(0), [1; 8]));
        b.pipe.on_lost(lost);
        let error = Err(PipeError::Ended);
        assert_eq!((b.get(&mut bytes), b.put(&[1])), (error, error), "{design:?} {arrival:?}");
        a.pipe.on_lost(lost);
        let error = Err(PipeError::Lost(lost));
        assert_eq!((a.get(&mut bytes), a.put(&[1])), (error, error), "{design:?} {arrival:?}");
    }
}

#[test]
fn a_rendezvous_writes_past_the_pipe_and_what_follows_arrives_after_it() {
    for design in Design::ALL {
        let [mut a, mut b] = ends(shape(design));
        let (long, mut into, mut bytes) = (vec![9; 5000], vec![0; 6000], [0; 24]);
        let (region, key) = b.admit(&mut into);
        // The key goes through the pipe.
        assert_eq!((b.put(&key.to_bytes()), a.get(&mut bytes)), (Ok(24), Ok(24)));
        a.recorded();
        b.recorded();
        a.port.queue_is_full = true;
        assert_eq!(a.write_past(&long, key), Ok(PastWrite::Waiting), "{design:?}");
        a.port.queue_is_full = false;
        // Another message waits until this one is posted.
        assert_eq!(a.write_past(&[1; 8], key), Ok(PastWrite::Waiting));
        assert_eq!(a.write_past(&long, key), Ok(PastWrite::Posted));
        assert_eq!(a.put(&[3]), Ok(1));
        assert_eq!(a.recorded()[0], Write(5000));
        assert_eq!(a.write_past(&long, key), Ok(PastWrite::Done));
        assert_eq!((b.get(&mut bytes), bytes[0]), (Ok(1), 3));
        assert!(into[..5000] == long && into[5000..] == [0; 1000]);
        assert!(b.port.deregister(region).is_ok());
    }
}

/// Nine messages: eight are written at the same time. Completions come in the order of the writes.
#[test]
fn several_messages_are_written_past_the_pipe_at_the_same_time() {
    let [mut a, mut b] = ends(shape(Design::Basic));
    let from: Vec<Vec<u8>> = (1..=9).map(|byte| vec![byte; 100 * usize::from(byte)]).collect();
    let mut into = vec![vec![0_u8; 900]; 9];
    let keys: Vec<MemoryKey> = into.iter_mut().map(|into| b.admit(into).1).collect();
    let write = |a: &mut TestEnd, at: usize| a.write_past(&from[at], keys[at]);
    for at in 0..8 {
        assert_eq!(write(&mut a, at), Ok(PastWrite::Posted));
    }
    assert_eq!(write(&mut a, 8), Ok(PastWrite::Waiting));
    // The first three are written.
    for _ in 0..3 {
        let mut done = [Completion::EMPTY];
        assert_eq!(a.port.poll(&mut done), 1);
        assert_eq!(a.pipe.on_completion(&mut a.port, &done[0]), Ok(()));
    }
    let progress = [0, 2, 3, 7].map(|at| write(&mut a, at));
    assert_eq!(progress, [PastWrite::Done, PastWrite::Done, PastWrite::Posted, PastWrite::Posted].map(Ok));
    assert_eq!(write(&mut a, 8), Ok(PastWrite::Posted));
    a.drain();
    let progress = [1, 3, 4, 5, 6, 7, 8].map(|at| write(&mut a, at));
    assert_eq!(progress, [Ok(PastWrite::Done); 7]);
    for (from, into) in from.iter().zip(&into) {
        assert!(into.starts_with(from) && into[from.len()..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_write_past_the_pipe_that_does_not_fit_is_refused() {
    let [mut a, mut b] = ends(shape(Design::Pipelined));
    let (_, key) = b.admit(&mut [0; 10]);
    assert_eq!(a.write_past(&[1; 11], key), Ok(PastWrite::Refused));
    assert_eq!(a.write_past(&[], key), Ok(PastWrite::Refused));
    let wraps = MemoryKey { address: u64::MAX - 3, ..key };
    assert_eq!(a.write_past(&[1; 8], wraps), Ok(PastWrite::Refused));
    assert_eq!(a.recorded(), vec![]);
}
