//! The record ring against a `VecDeque` of records.

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::fabric::FabricRegion;
use super::ring::{BYTES_AT, READ, WRITTEN, region, ring};
use super::{Rng, cases, contents, portion};
use crate::shared::ring::{RecordReader, RecordWriter, RingFault};

#[derive(Clone, Copy, Debug)]
enum RecordOp {
    Push(usize),
    /// Takes a record into a buffer of this size.
    Pop(usize),
}

struct Records<'a> {
    writer: RecordWriter<'a>,
    reader: RecordReader<'a>,
    size: usize,
    between: VecDeque<Vec<u8>>,
    salt: u64,
}

impl<'a> Records<'a> {
    fn new(region: &'a FabricRegion, size: usize) -> Self {
        let ring = ring(region, size);
        let (writer, reader) = (RecordWriter::new(ring), RecordReader::new(ring));
        Self { writer, reader, size, between: VecDeque::new(), salt: 0 }
    }

    fn apply(&mut self, op: RecordOp) {
        match op {
            RecordOp::Push(len) => {
                self.salt += 1;
                let record = contents(self.salt, len);
                let used: usize = self.between.iter().map(|record| record.len() + 4).sum();
                assert_eq!(self.writer.push(&record).unwrap(), used + len + 4 <= self.size);
                if used + len + 4 <= self.size {
                    self.between.push_back(record);
                }
            }
            RecordOp::Pop(room) => {
                let mut to = vec![0xee; room];
                let popped = self.reader.pop(&mut to).unwrap();
                let record = self.between.pop_front();
                assert_eq!(popped, record.as_ref().map(Vec::len));
                let record = record.unwrap_or_default();
                let copied = record.len().min(room);
                assert_eq!(to[..copied], record[..copied]);
                assert!(to[copied..].iter().all(|&byte| byte == 0xee));
            }
        }
    }
}

fn op() -> impl Strategy<Value = RecordOp> {
    prop_oneof![(0..70usize).prop_map(RecordOp::Push), (0..70usize).prop_map(RecordOp::Pop)]
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn records_keep_their_boundaries(shift in 3u32..=6, ops in prop::collection::vec(op(), 0..300)) {
        let region = region(1 << shift);
        let mut records = Records::new(&region, 1 << shift);
        for op in ops {
            records.apply(op);
        }
    }
}

#[test]
fn record_ring_agrees_with_the_oracle_for_long() {
    for seed in 0..portion(8) {
        let mut rng = Rng::new(seed);
        let size = 8 << (seed % 4);
        let region = region(size);
        let mut records = Records::new(&region, size);
        for _ in 0..5000 {
            let len = if rng.one_in(3) { rng.below(3) } else { rng.below(size) };
            records.apply(if rng.one_in(2) { RecordOp::Push(len) } else { RecordOp::Pop(len) });
        }
    }
}

#[test]
fn largest_record_fits_exactly() {
    let region = region(16);
    let mut records = Records::new(&region, 16);
    assert_eq!(records.writer.max_record(), 12);
    for op in [
        RecordOp::Push(13),
        RecordOp::Push(12),
        RecordOp::Push(0),
        RecordOp::Pop(12),
        RecordOp::Push(0),
        RecordOp::Pop(0),
        RecordOp::Push(12),
    ] {
        records.apply(op);
    }
}

#[test]
fn record_beyond_the_published_bytes_is_a_fault() {
    for (published, length) in [(1u64, 0u32), (3, 0), (4, 1), (8, 5), (16, u32::MAX)] {
        let region = region(16);
        let mut records = Records::new(&region, 16);
        region.word(BYTES_AT).store_relaxed(u64::from(length));
        region.word(WRITTEN).store_relaxed(published);
        let fault = records.reader.pop(&mut [0; 16]).unwrap_err();
        assert!(matches!(fault, RingFault::Record { published: found, .. } if found == published), "{fault}");
    }
}

#[test]
fn corrupted_record_rings_never_panic() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let region = region(32);
        let mut records = Records::new(&region, 32);
        let mut to = [0; 40];
        for _ in 0..500 {
            let len = rng.below(40);
            match rng.below(6) {
                0 => region.corrupt(&mut rng, WRITTEN, WRITTEN + 8),
                1 => region.corrupt(&mut rng, READ, READ + 8),
                2 => region.corrupt(&mut rng, BYTES_AT, BYTES_AT + 32),
                3 => {
                    let _ = records.writer.push(&to[..len]);
                }
                _ => {
                    let _ = records.reader.pop(&mut to[..len]);
                }
            }
        }
    }
}
