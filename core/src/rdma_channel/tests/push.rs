//! The push alternative of the zero-copy design.

use std::vec;

use super::port::PipeRecord::{Read, Write};
use super::port::{TestEnd, ends, shape};
use crate::rdma_channel::chunk::{ChunkHeader, ChunkKind};
use crate::rdma_channel::shape::RING_AT;
use crate::rdma_channel::{Design, PipeError, RunCounts};

/// The bytes written for a chunk with so many bytes of payload.
const fn chunk(len: u32) -> u32 {
    24 + len + 8
}

fn pair() -> [TestEnd; 2] {
    ends(shape(Design::ZeroCopyPush))
}

#[test]
fn a_put_writes_into_the_buffer_that_a_get_has_advertised() {
    let [mut a, mut b] = pair();
    let (long, mut into) = (vec![9; 5000], vec![0; 5000]);
    assert_eq!((b.get(&mut into), b.recorded()), (Ok(0), vec![Write(chunk(32))]));
    // The bytes belong to the caller again when the port no longer reads them.
    assert_eq!(a.put(&long), Ok(0));
    assert_eq!(a.recorded(), [Write(5000), Write(chunk(8))]);
    assert_eq!((a.put(&long), a.recorded()), (Ok(5000), vec![]));
    // Nothing is read, copied or acknowledged.
    assert_eq!((b.get(&mut into), into == long, b.recorded()), (Ok(5000), true, vec![]));
    assert_eq!(a.pipe.run_counts(), RunCounts { pushed: 1, ..RunCounts::default() });
    assert_eq!(b.pipe.run_counts(), RunCounts { advertised: 1, ..RunCounts::default() });
}

#[test]
fn a_buffer_is_withdrawn_if_the_put_came_first() {
    let [mut a, mut b] = pair();
    let (long, mut into) = (vec![9; 4992], vec![0; 5000]);
    assert_eq!((b.get(&mut into), a.put(&[1; 8])), (Ok(0), Ok(8)));
    b.recorded();
    a.recorded();
    assert_eq!((b.get(&mut into), &into[..8]), (Ok(8), &[1; 8][..]));
    // The run is not advertised again, and its old advertisement is not used.
    assert_eq!((b.get(&mut into[8..]), b.recorded()), (Ok(0), vec![]));
    assert_eq!((a.put(&long), a.recorded()), (Ok(0), vec![Write(chunk(24))]));
    assert_eq!((b.get(&mut into[8..]), b.recorded()), (Ok(0), vec![Read(4992)]));
    assert_eq!((b.get(&mut into[8..]), into[8..] == long, a.put(&long)), (Ok(4992), true, Ok(4992)));
    assert_eq!(b.pipe.run_counts(), RunCounts { advertised: 1, withdrawn: 1, ..RunCounts::default() });
    assert_eq!(a.pipe.run_counts(), RunCounts { exposed: 1, ..RunCounts::default() });
}

#[test]
fn only_as_many_bytes_are_pushed_as_the_buffer_has() {
    let [mut a, mut b] = pair();
    let (long, mut into) = (vec![9; 5000], vec![0; 2000]);
    assert_eq!((b.get(&mut into), a.put(&long)), (Ok(0), Ok(0)));
    assert_eq!(a.recorded(), [Write(2000), Write(chunk(8))]);
    assert_eq!((b.get(&mut into), into == [9; 2000]), (Ok(2000), true));
    // The next get is earlier than the next put, too.
    let mut rest = vec![0; 3000];
    b.recorded();
    assert_eq!((b.get(&mut rest), a.put(&long)), (Ok(0), Ok(2000)));
    assert_eq!(a.recorded(), [Write(3000), Write(chunk(8))]);
    assert_eq!((a.put(&long[2000..]), b.get(&mut rest), rest == [9; 3000]), (Ok(3000), Ok(3000), true));
}

#[test]
fn a_list_may_have_the_buffer_in_parts() {
    let [mut a, mut b] = pair();
    let (long, mut into) = (vec![9; 5000], vec![0; 5000]);
    assert_eq!((b.get(&mut into), a.put(&long)), (Ok(0), Ok(0)));
    assert_eq!((b.get(&mut into[..100]), &into[..100]), (Ok(100), &[9; 100][..]));
    assert_eq!((b.get(&mut into[100..4999]), b.get(&mut into[4999..])), (Ok(4899), Ok(1)));
    a.recorded();
    assert_eq!((into == long, a.put(&long), b.pipe.failure()), (true, Ok(5000), None));
    // The next bytes do not count as those.
    assert_eq!((a.put(&[1; 8]), b.get(&mut into[..8]), &into[..8]), (Ok(8), Ok(8), &[1; 8][..]));
}

#[test]
fn bytes_are_announced_when_all_of_their_writes_are_posted() {
    let [mut a, mut b] = pair();
    let (long, mut into) = (vec![9; 5000], vec![0; 5000]);
    assert_eq!(b.get(&mut into), Ok(0));
    a.port.queue_is_full = true;
    assert_eq!((a.put(&long), a.recorded()), (Ok(0), vec![]));
    assert_eq!(b.get(&mut into), Ok(0));
    a.port.queue_is_full = false;
    assert_eq!((a.put(&long), a.recorded()), (Ok(0), vec![Write(5000), Write(chunk(8))]));
    assert_eq!((b.get(&mut into), into == long, a.put(&long)), (Ok(5000), true, Ok(5000)));
}

/// Writes the first chunk of the peer into an end's inbox.
fn forge(end: &TestEnd, kind: ChunkKind, payload: &[u8]) {
    let len = payload.len() as u32;
    let header = ChunkHeader { len, kind, inverted: false, more: false, tail: 0, number: 1 };
    assert!(end.inbox.write(RING_AT, &header.to_bytes()));
    assert!(end.inbox.write(RING_AT + 24, payload));
    let flag = (24 + u64::from(len)).next_multiple_of(8);
    assert!(end.inbox.write(RING_AT + flag, &1_u64.to_le_bytes()));
}

#[test]
fn bytes_that_were_not_advertised_fail_the_pipe() {
    for (advertised, pushed) in [(0, 1), (5000, 5001), (5000, u64::MAX), (5000, 0)] {
        let [_, mut b] = pair();
        let mut into = vec![0; 5000];
        if advertised > 0 {
            assert_eq!(b.get(&mut into), Ok(0));
        }
        forge(&b, ChunkKind::Pushed, &pushed.to_le_bytes());
        let violated = PipeError::Violated { what: "bytes pushed", found: pushed, limit: advertised };
        assert_eq!((b.get(&mut into), into.iter().max()), (Err(violated), Some(&0)));
    }
    let [_, mut b] = pair();
    forge(&b, ChunkKind::Pushed, &[0; 9]);
    let error = b.get(&mut [0; 100]);
    assert!(
        matches!(error, Err(PipeError::Violated { what: "length of a special packet", .. })),
        "{error:?}"
    );
}

#[test]
fn an_advertisement_that_no_receiver_makes_fails_the_pipe() {
    for (position, address, len) in [(1, 0, 8), (u64::MAX, 0, 8), (0, 0, 0), (0, u64::MAX, 8)] {
        let [mut a, _] = pair();
        forge(&a, ChunkKind::Advertised, &[position, address, len, 5_u64].map(u64::to_le_bytes).concat());
        let (put, again) = (a.put(&[1; 500]), a.put(&[1; 500]));
        assert!(put == Ok(0) && matches!(again, Err(PipeError::Violated { .. })), "{put:?}, {again:?}");
        assert_eq!(a.recorded(), []);
    }
}

#[test]
fn another_list_than_the_advertised_one_is_refused() {
    let [mut a, mut b] = pair();
    let (long, mut into, mut other) = (vec![9; 500], vec![0; 500], vec![0; 500]);
    assert_eq!((b.get(&mut into), a.put(&long)), (Ok(0), Ok(0)));
    assert_eq!(b.get(&mut other), Err(PipeError::List { found: 0, needed: 500 }));
}
