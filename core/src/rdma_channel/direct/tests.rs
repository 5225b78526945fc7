//! Two ends in one thread against the stream that they carry.

use std::vec;
use std::vec::Vec;

use super::layout::{DIRECT_RING_AT, DIRECT_SLOTS, DIRECT_SLOTS_AT, direct_bytes};
use super::{DirectPipe, PipeError};
use crate::payload::{Gather, RecvBuf, Scatter, Segment, SendBuf};
use crate::port::memory::LostError;
use crate::rdma_channel::DIRECT_RECORD_BYTES;
use crate::shared::fastbox::{FastboxReceiver, FastboxSender, FastboxSlot};
use crate::shared::ring::{ByteReader, ByteRing, ByteWriter};
use crate::shared::tests::fabric::FabricRegion;
use crate::shared::tests::{Rng, contents};

const RING: usize = 8192;

fn region() -> FabricRegion {
    FabricRegion::new(2 * direct_bytes(RING))
}

fn ends(region: &FabricRegion) -> [DirectPipe<'_>; 2] {
    let direction = |at: usize| {
        let slots = region.view::<FastboxSlot>(at + DIRECT_SLOTS_AT, DIRECT_SLOTS);
        let ring = region.payload(at + DIRECT_RING_AT, RING);
        let ring = ByteRing::new(ring, region.word(at + 128), region.word(at + 256)).unwrap();
        let out = (FastboxSender::new(slots, region.word(at)), ByteWriter::new(ring));
        (out, (FastboxReceiver::new(slots, region.word(at)), ByteReader::new(ring)))
    };
    let ((out, arrivals), (back, returns)) = (direction(0), direction(direct_bytes(RING)));
    [DirectPipe::new(out, returns, RING as u64), DirectPipe::new(back, arrivals, RING as u64)]
}

/// Puts from a list of entries of these lengths.
fn put(pipe: &mut DirectPipe<'_>, bytes: &[u8], lens: &[usize]) -> Result<usize, PipeError> {
    let mut at = 0;
    let list: Vec<Segment> = lens
        .iter()
        .map(|&len| {
            at += len;
            Segment { base: bytes[at - len..].as_ptr().cast_mut(), len }
        })
        .collect();
    // SAFETY: the list and the bytes outlive the call, and nothing writes them.
    let from = unsafe { SendBuf::from_list(list.as_ptr(), list.len()) }.unwrap();
    pipe.put(&mut Gather::new(from))
}

fn get(pipe: &mut DirectPipe<'_>, len: usize) -> Result<Vec<u8>, PipeError> {
    let mut bytes = vec![0xee; len];
    // SAFETY: the bytes outlive the call, and nothing else uses them.
    let into = unsafe { RecvBuf::from_raw(bytes.as_mut_ptr(), len) };
    let count = pipe.get(&mut Scatter::new(into))?;
    bytes.truncate(count);
    Ok(bytes)
}

fn lens(rng: &mut Rng) -> Vec<usize> {
    (0..1 + rng.below(4))
        .map(|_| match rng.below(6) {
            0 => 0,
            1 => 8,
            2 => 40,
            3 => rng.below(DIRECT_RECORD_BYTES + 9),
            4 => rng.below(RING / 2),
            _ => rng.below(3 * RING),
        })
        .collect()
}

#[test]
fn lists_cut_anywhere_arrive_as_one_stream() {
    for seed in 0..40 {
        let (region, mut rng) = (region(), Rng::new(seed));
        let mut pipes = ends(&region);
        let (mut sent, mut pending) = ([0; 2], [vec![], vec![]]);
        for step in 0..400 {
            let from = rng.below(2);
            if rng.one_in(2) {
                let lens = lens(&mut rng);
                let bytes = contents(step, lens.iter().sum());
                let count = put(&mut pipes[from], &bytes, &lens).unwrap();
                pending[from].extend_from_slice(&bytes[..count]);
                sent[from] += count;
            } else {
                let len = lens(&mut rng)[0];
                let got = get(&mut pipes[1 - from], len).unwrap();
                let rest = pending[from].split_off(got.len());
                assert_eq!(got, pending[from], "seed {seed}, step {step}");
                pending[from] = rest;
            }
        }
        for (from, pending) in pending.iter().enumerate() {
            let mut got = vec![];
            while got.len() < pending.len() {
                let _ = pipes[from].push().unwrap();
                got.extend(get(&mut pipes[1 - from], pending.len() - got.len()).unwrap());
            }
            assert!(got == *pending && pipes[from].is_sent() && sent[from] > RING);
        }
    }
}

#[test]
fn a_full_pipe_takes_nothing_more() {
    for len in [8, 40, DIRECT_RECORD_BYTES + 1, RING] {
        let region = region();
        let [mut a, mut b] = ends(&region);
        let bytes = vec![7; len];
        let mut total = 0;
        while let count @ 1.. = put(&mut a, &bytes, &[len]).unwrap() {
            total += count;
        }
        assert_eq!((put(&mut a, &bytes, &[len]), total >= 1000), (Ok(0), true), "{len}");
        while total > 0 {
            total -= get(&mut b, 100).unwrap().len();
            let _ = a.push().unwrap();
        }
        assert!(put(&mut a, &bytes, &[len]).unwrap() > 0);
    }
}

#[test]
fn anything_that_a_peer_writes_fails_its_pipe_and_nothing_else() {
    let mut violated = 0;
    for seed in 0..2000 {
        let (region, mut rng) = (region(), Rng::new(seed));
        let mut pipes = ends(&region);
        for _ in 0..60 {
            if rng.one_in(3) {
                region.corrupt(&mut rng, 0, 2 * direct_bytes(RING));
                region.corrupt(&mut rng, 0, 256 + 8);
                region.corrupt(&mut rng, DIRECT_SLOTS_AT, DIRECT_SLOTS_AT + 256);
            }
            let at = rng.below(2);
            let lens = lens(&mut rng);
            let bytes = vec![1; lens.iter().sum()];
            let results = [
                put(&mut pipes[at], &bytes, &lens).map(|_| ()),
                get(&mut pipes[1 - at], lens[0]).map(|_| ()),
            ];
            violated += usize::from(results.iter().any(Result::is_err));
        }
    }
    assert!(violated > 1000, "{violated}");
}

#[test]
fn bytes_that_arrived_before_the_peer_was_gone_can_be_read() {
    let region = region();
    let [mut a, mut b] = ends(&region);
    assert_eq!((put(&mut a, &[1; 40], &[40]), put(&mut a, &[2; 999], &[999])), (Ok(40), Ok(999)));
    let _ = a.push().unwrap();
    b.on_lost(LostError::Closed);
    let error = Err(PipeError::Lost(LostError::Closed));
    assert_eq!(get(&mut b, 2000), Ok([vec![1; 40], vec![2; 999]].concat()));
    assert_eq!((get(&mut b, 1).map(|_| 0), put(&mut b, &[1], &[1])), (error, error));
}
