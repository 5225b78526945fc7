//! The byte ring against a `VecDeque` of bytes.

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::fabric::FabricRegion;
use super::{Rng, cases, contents, portion};
use crate::shared::ring::{ByteReader, ByteRing, ByteWriter, RingFault};

pub(super) const BYTES_AT: usize = 4096;
/// Offsets of the two positions.
pub(super) const WRITTEN: usize = 0;
pub(super) const READ: usize = 64;

#[derive(Clone, Copy, Debug)]
enum RingOp {
    Write(usize),
    Read(usize),
}

pub(super) fn region(bytes: usize) -> FabricRegion {
    FabricRegion::new(BYTES_AT + bytes)
}

pub(super) fn ring(region: &FabricRegion, bytes: usize) -> ByteRing<'_> {
    ByteRing::new(region.payload(BYTES_AT, bytes), region.word(WRITTEN), region.word(READ)).unwrap()
}

struct Pipe<'a> {
    writer: ByteWriter<'a>,
    reader: ByteReader<'a>,
    size: usize,
    between: VecDeque<u8>,
    salt: u64,
}

impl<'a> Pipe<'a> {
    fn new(region: &'a FabricRegion, size: usize) -> Self {
        let ring = ring(region, size);
        let (writer, reader) = (ByteWriter::new(ring), ByteReader::new(ring));
        Self { writer, reader, size, between: VecDeque::new(), salt: 0 }
    }

    fn apply(&mut self, op: RingOp) {
        match op {
            RingOp::Write(len) => {
                self.salt += 1;
                let bytes = contents(self.salt, len);
                let count = self.writer.write(&bytes).unwrap();
                assert_eq!(count, len.min(self.size - self.between.len()));
                self.between.extend(&bytes[..count]);
            }
            RingOp::Read(len) => {
                let mut to = vec![0xee; len];
                let count = self.reader.read(&mut to).unwrap();
                assert_eq!(count, len.min(self.between.len()));
                let expected: Vec<u8> = self.between.drain(..count).collect();
                assert_eq!(to[..count], expected);
                assert!(to[count..].iter().all(|&byte| byte == 0xee));
            }
        }
    }
}

fn op() -> impl Strategy<Value = RingOp> {
    prop_oneof![(0..80usize).prop_map(RingOp::Write), (0..80usize).prop_map(RingOp::Read)]
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn bytes_are_read_as_written(shift in 3u32..=6, ops in prop::collection::vec(op(), 0..300)) {
        let region = region(1 << shift);
        let mut pipe = Pipe::new(&region, 1 << shift);
        for op in ops {
            pipe.apply(op);
        }
    }
}

#[test]
fn byte_ring_agrees_with_the_oracle_for_long() {
    for seed in 0..portion(8) {
        let mut rng = Rng::new(seed);
        let size = 8 << (seed % 4);
        let region = region(size);
        let mut pipe = Pipe::new(&region, size);
        for _ in 0..5000 {
            let len = rng.below(size + 3);
            pipe.apply(if rng.one_in(2) { RingOp::Write(len) } else { RingOp::Read(len) });
        }
    }
}

#[test]
fn ring_of_a_wrong_size_is_refused() {
    let region = region(4096);
    for (bytes, good) in
        [(0, false), (4, false), (7, false), (8, true), (24, false), (4095, false), (4096, true)]
    {
        let ring = ByteRing::new(region.payload(BYTES_AT, bytes), region.word(WRITTEN), region.word(READ));
        assert_eq!(ring.is_some(), good, "{bytes} bytes");
    }
}

#[test]
fn full_ring_takes_nothing_and_empty_ring_gives_nothing() {
    let region = region(8);
    let mut pipe = Pipe::new(&region, 8);
    for op in [
        RingOp::Read(1),
        RingOp::Write(8),
        RingOp::Write(1),
        RingOp::Read(3),
        RingOp::Write(4),
        RingOp::Read(8),
        RingOp::Read(1),
    ] {
        pipe.apply(op);
    }
}

#[test]
fn impossible_positions_are_faults() {
    let region = region(8);
    let mut pipe = Pipe::new(&region, 8);
    pipe.apply(RingOp::Write(8));
    region.word(READ).store_relaxed(9);
    assert_eq!(pipe.writer.write(&[1]), Err(RingFault::Position { found: 9, low: 0, high: 8 }));
    region.word(READ).store_relaxed(0);
    pipe.apply(RingOp::Read(8));
    pipe.apply(RingOp::Write(2));
    region.word(WRITTEN).store_relaxed(17);
    assert_eq!(pipe.reader.read(&mut [0; 4]), Err(RingFault::Position { found: 17, low: 8, high: 16 }));
    region.word(WRITTEN).store_relaxed(7);
    assert_eq!(pipe.reader.read(&mut [0; 4]), Err(RingFault::Position { found: 7, low: 8, high: 16 }));
}

#[test]
fn corrupted_byte_rings_never_panic() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let region = region(32);
        let mut pipe = Pipe::new(&region, 32);
        let mut to = [0; 40];
        for _ in 0..500 {
            let len = rng.below(40);
            match rng.below(4) {
                0 => region.corrupt(&mut rng, WRITTEN, WRITTEN + 8),
                1 => region.corrupt(&mut rng, READ, READ + 8),
                2 => assert!(pipe.writer.write(&to[..len]).map_or(true, |count| count <= len), "seed {seed}"),
                _ => assert!(
                    pipe.reader.read(&mut to[..len]).map_or(true, |count| count <= len),
                    "seed {seed}"
                ),
            }
        }
    }
}
