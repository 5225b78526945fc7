//! The cell pool and the return ring against lists.

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::fabric::FabricRegion;
use super::{Rng, cases, contents};
use crate::shared::end_mark::EndMark;
use crate::shared::pool::{
    CellHeader, CellPool, CellRecord, CellState, PeerPool, ReturnFault, ReturnReceiver, ReturnSender,
    ReturnSlot, ReuseOrder,
};
use crate::sync::Word64;
use crate::wire::rendezvous::Stores;
use crate::wire::{Envelope, Kind, SEQUENCE_MASK};

const CELL_BYTES: usize = 256;
const PAYLOAD_AT: usize = 4096;

#[derive(Clone, Copy, Debug)]
enum PoolOp {
    Take(u32),
    GiveBack(u32, u32, ReuseOrder),
    Reclaim(u32),
}

const REUSE_ORDERS: [ReuseOrder; 3] = [ReuseOrder::First, ReuseOrder::Second, ReuseOrder::Last];

fn pool(region: &FabricRegion, cells: usize) -> CellPool<'_, Vec<CellRecord>> {
    let payload = region.payload(PAYLOAD_AT, cells * CELL_BYTES);
    let records = vec![CellRecord::default(); cells];
    CellPool::new(region.view(0, cells), payload, CELL_BYTES, records).unwrap()
}

fn region(cells: usize) -> FabricRegion {
    FabricRegion::new(PAYLOAD_AT + cells * CELL_BYTES)
}

/// The pool, and the expected holder of each cell.
struct Owned<'a> {
    pool: CellPool<'a, Vec<CellRecord>>,
    holders: Vec<Option<u32>>,
    /// Free cells; the last one is taken first.
    free: Vec<u32>,
}

impl<'a> Owned<'a> {
    fn new(region: &'a FabricRegion, cells: usize) -> Self {
        let free = (0..cells as u32).rev().collect();
        Self { pool: pool(region, cells), holders: vec![None; cells], free }
    }

    fn apply(&mut self, op: PoolOp) {
        match op {
            PoolOp::Take(holder) => {
                let cell = self.free.pop();
                assert_eq!(self.pool.take(holder), cell);
                if let Some(cell) = cell {
                    self.holders[cell as usize] = Some(holder);
                }
            }
            PoolOp::GiveBack(cell, holder, turn) => {
                let held = self.holders.get(cell as usize) == Some(&Some(holder));
                let expected = if held { Ok(()) } else { Err(ReturnFault { cell }) };
                assert_eq!(self.pool.give_back(cell, holder, turn), expected);
                if held {
                    self.free_cell(cell, turn);
                }
            }
            PoolOp::Reclaim(holder) => {
                let held: Vec<u32> = (0u32..)
                    .zip(&self.holders)
                    .filter(|(_, it)| **it == Some(holder))
                    .map(|(cell, _)| cell)
                    .collect();
                assert_eq!(self.pool.reclaim(holder), held.len());
                for cell in held {
                    self.free_cell(cell, ReuseOrder::First);
                }
            }
        }
        assert_eq!(self.pool.free(), self.free.len());
        assert_eq!(self.pool.first(), self.free.last().copied());
    }

    fn free_cell(&mut self, cell: u32, turn: ReuseOrder) {
        self.holders[cell as usize] = None;
        let at = match turn {
            ReuseOrder::First => self.free.len(),
            ReuseOrder::Second => self.free.len().saturating_sub(1),
            ReuseOrder::Last => 0,
        };
        self.free.insert(at, cell);
    }
}

fn turn() -> impl Strategy<Value = ReuseOrder> {
    (0..REUSE_ORDERS.len()).prop_map(|at| REUSE_ORDERS[at])
}

fn op() -> impl Strategy<Value = PoolOp> {
    prop_oneof![
        4 => (0..4u32).prop_map(PoolOp::Take),
        6 => (0..20u32, 0..4u32, turn()).prop_map(|(cell, holder, turn)| PoolOp::GiveBack(cell, holder, turn)),
        1 => (any::<u32>(), 0..4u32, turn()).prop_map(|(cell, holder, turn)| PoolOp::GiveBack(cell, holder, turn)),
        1 => (0..4u32).prop_map(PoolOp::Reclaim),
    ]
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn cells_go_only_to_and_from_their_holders(
        shift in 2u32..=4, ops in prop::collection::vec(op(), 0..300),
    ) {
        let cells = 1 << shift;
        let region = region(cells);
        let mut owned = Owned::new(&region, cells);
        for op in ops {
            owned.apply(op);
        }
    }

    #[test]
    fn inspect_returns_the_fields_of_the_header(
        kind in 0..14u64, len in 0..600u64, me in 0..3u16, to in 0..3u16,
        ahead in -3..4i64,
        expected in prop_oneof![Just(1), Just(9), Just(SEQUENCE_MASK), Just(SEQUENCE_MASK + 1)],
    ) {
        let sequence = (expected as i64 + ahead) as u64 & SEQUENCE_MASK;
        prop_assume!(sequence != 0);
        let region = region(4);
        region.word(8).store_relaxed(len | kind << 32 | 7 << 48);
        region.word(16).store_relaxed(99);
        region.word(0).store_relaxed(sequence << 16 | u64::from(to));
        let seen = peer_pool(&region, 4).inspect(0, me, expected);
        let good = (1..=11).contains(&kind) && len <= 256;
        match seen {
            CellState::Other => prop_assert!(me != to || ahead < 0),
            CellState::Early => prop_assert!(me == to && ahead > 0),
            CellState::Malformed => prop_assert!(me == to && ahead == 0 && !good),
            CellState::Due { envelope, len: seen } => {
                prop_assert!(me == to && ahead == 0 && good);
                prop_assert_eq!((envelope.kind as u64, seen as u64, envelope.total), (kind, len, len));
                prop_assert_eq!((envelope.context, envelope.tag), (7, 99));
            }
        }
    }
}

static NOT_WITHDRAWN: Word64 = Word64::new(0);

fn peer_pool(region: &FabricRegion, cells: usize) -> PeerPool<'_> {
    let payload = region.read_only(PAYLOAD_AT, cells * CELL_BYTES);
    PeerPool::new(region.view(0, cells), payload, CELL_BYTES, EndMark::new(&NOT_WITHDRAWN))
}

#[test]
fn pool_agrees_with_the_lists_for_long() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let cells = 4 << (seed % 3);
        let region = region(cells);
        let mut owned = Owned::new(&region, cells);
        for _ in 0..5000 {
            let holder = rng.below(4) as u32;
            owned.apply(match rng.below(20) {
                0 => PoolOp::Reclaim(holder),
                1..=7 => PoolOp::Take(holder),
                10 => PoolOp::GiveBack(rng.next() as u32, holder, rng.pick(&REUSE_ORDERS)),
                _ => PoolOp::GiveBack(rng.below(cells + 1) as u32, holder, rng.pick(&REUSE_ORDERS)),
            });
        }
    }
}

#[test]
fn cell_is_not_given_back_twice() {
    let region = region(4);
    let mut pool = pool(&region, 4);
    let cell = pool.take(2).unwrap();
    assert_eq!(pool.give_back(cell, 2, ReuseOrder::First), Ok(()));
    assert_eq!(pool.give_back(cell, 2, ReuseOrder::First), Err(ReturnFault { cell }));
    assert_eq!(pool.free(), 4);
}

#[test]
fn cell_is_not_given_back_by_another_or_out_of_range() {
    let region = region(4);
    let mut pool = pool(&region, 4);
    let cell = pool.take(2).unwrap();
    for (cell, holder) in [(cell, 1), (cell + 1, 2), (4, 2), (0xffff, 2), (u32::MAX, 2)] {
        assert_eq!(pool.give_back(cell, holder, ReuseOrder::First), Err(ReturnFault { cell }));
    }
    assert_eq!(pool.free(), 3);
}

#[test]
fn cells_of_a_dead_peer_are_reclaimed_and_others_stay() {
    let region = region(8);
    let mut pool = pool(&region, 8);
    let taken: Vec<u32> = (0..8).map(|turn| pool.take(turn % 2).unwrap()).collect();
    assert_eq!(pool.take(0), None);
    assert_eq!(pool.reclaim(1), 4);
    assert_eq!(pool.reclaim(1), 0);
    assert_eq!(pool.give_back(taken[1], 1, ReuseOrder::First), Err(ReturnFault { cell: taken[1] }));
    assert_eq!(pool.give_back(taken[0], 0, ReuseOrder::First), Ok(()));
}

#[test]
fn pool_that_does_not_fit_its_memory_is_refused() {
    let region = region(4);
    let headers: &[CellHeader] = region.view(0, 4);
    let make = |records: usize, bytes: usize, cell_bytes: usize| {
        let payload = region.payload(PAYLOAD_AT, bytes);
        CellPool::new(headers, payload, cell_bytes, vec![CellRecord::default(); records]).is_some()
    };
    assert!(make(4, 1024, 256));
    assert!(!make(3, 1024, 256) && !make(5, 1024, 256));
    assert!(!make(4, 1023, 256) && !make(4, 1024, usize::MAX));
}

#[test]
fn pool_without_cells_returns_none() {
    let region = region(1);
    let mut pool = pool(&region, 0);
    assert_eq!((pool.free(), pool.take(0)), (0, None));
}

#[test]
fn published_cell_is_read_back_whole_and_in_parts() {
    let region = region(4);
    let mut pool = pool(&region, 4);
    let peer = peer_pool(&region, 4);
    let ways = [Stores::Cached, Stores::Prefetched, Stores::NonTemporal];
    let lens = [0usize, 1, 47, 48, 255, 256];
    let each = ways.iter().flat_map(|how| lens.map(|len| (*how, len)));
    for (sequence, (how, len)) in (1u64..).zip(each) {
        let bytes = contents(sequence, len);
        let envelope = Envelope { kind: Kind::Eager, context: 0xffff, tag: u64::MAX, total: len as u64 };
        let cell = pool.take(3).unwrap();
        assert!(pool.fill(cell, [&bytes, &[]], how));
        pool.publish(cell, 3, sequence, &envelope);
        assert_eq!(peer.inspect(cell, 3, sequence), CellState::Due { envelope, len });
        assert_eq!(peer.find(3, sequence), Some(cell));
        assert_eq!(peer.find(3, sequence + 1), None);
        for at in 0..=len {
            let mut got = vec![0; len - at];
            assert!(peer.read(cell, at, &mut got));
            assert_eq!(got, bytes[at..]);
        }
        pool.give_back(cell, 3, ReuseOrder::First).unwrap();
    }
}

#[test]
fn nothing_beyond_a_cell_is_written_or_read() {
    let region = region(4);
    let mut pool = pool(&region, 4);
    let cell = pool.take(0).unwrap();
    assert!(!pool.fill(cell, [&[1; 257], &[]], Stores::NonTemporal));
    assert!(!pool.fill(4, [&[1; 8], &[]], Stores::Prefetched));
    let peer = peer_pool(&region, 4);
    assert_eq!(peer.inspect(cell, 0, 1), CellState::Other, "a refused cell was published");
    assert_eq!(peer.inspect(4, 0, 1), CellState::Other);
    assert_eq!(peer.inspect(u32::MAX, 0, 1), CellState::Other);
    assert!(!peer.read(cell, 1, &mut [0; 256]));
    assert!(!peer.read(4, 0, &mut [0; 1]));
    assert!(peer.read(3, 256, &mut []));
}

#[test]
fn only_free_cells_are_write_prefetched() {
    let region = region(4);
    let mut pool = pool(&region, 4);
    assert!(region.payload(PAYLOAD_AT, 4 * CELL_BYTES).write(0, &[7; 4 * CELL_BYTES]));
    let held = pool.take(0).unwrap();
    for (cell, at, len) in [
        (held, 0, 1),
        (held, 0, 0),
        (4, 0, 1),
        (u32::MAX, 0, 1),
        (1, 256, 1),
        (1, 0, 257),
        (1, 64, usize::MAX),
    ] {
        assert!(!pool.prefetch(cell, at, len), "{len} bytes of cell {cell} from {at} on");
    }
    assert!(pool.prefetch(1, 64, 65) && pool.prefetch(2, 192, 64) && pool.prefetch(3, 256, 0));
    let mut bytes = [0; 4 * CELL_BYTES];
    assert!(region.payload(PAYLOAD_AT, 4 * CELL_BYTES).as_read().read(0, &mut bytes));
    let changed: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at] != 7).collect();
    assert_eq!(changed, [256 + 64, 256 + 128, 512 + 192]);
}

#[test]
fn cell_that_was_never_sent_has_no_receiver() {
    let region = region(4);
    let peer = peer_pool(&region, 4);
    for expected in [1, 2, 0x8000, SEQUENCE_MASK] {
        assert_eq!(peer.inspect(0, 0, expected), CellState::Other, "expected {expected}");
    }
}

/// Pushes `count` cells through a return ring, never more at once than it has slots.
fn return_ring(slots: usize, count: u32, rng: &mut Rng) {
    let region = FabricRegion::new(slots * size_of::<ReturnSlot>());
    let slots_view: &[ReturnSlot] = region.view(0, slots);
    let (mut sender, mut receiver) = (ReturnSender::new(slots_view), ReturnReceiver::new(slots_view));
    let mut between = VecDeque::new();
    let mut pushed = 0;
    while pushed < count || !between.is_empty() {
        if pushed < count && between.len() < slots && rng.one_in(2) {
            let cell = rng.below(1 << 16) as u32;
            sender.push(cell);
            between.push_back(cell);
            pushed += 1;
        } else {
            assert_eq!(receiver.pop(), between.pop_front());
        }
    }
    assert_eq!(receiver.pop(), None);
}

#[test]
fn returned_cells_arrive_once_and_in_order() {
    let mut rng = Rng::new(7);
    for slots in [1, 2, 4, 64, 4096] {
        return_ring(slots, 10_000, &mut rng);
    }
}

#[test]
fn return_ring_survives_the_wrap_of_its_laps() {
    return_ring(4, 4 * 65_536 + 4 * 100, &mut Rng::new(8));
    return_ring(1, 3 * 65_536, &mut Rng::new(9));
}

#[test]
fn corrupted_headers_and_returns_never_panic() {
    for seed in 0..50 {
        let mut rng = Rng::new(seed);
        let region = region(4);
        let peer = peer_pool(&region, 4);
        let returns = FabricRegion::new(64);
        let mut receiver = ReturnReceiver::new(returns.view(0, 16));
        for _ in 0..500 {
            region.corrupt(&mut rng, 0, 256);
            returns.corrupt(&mut rng, 0, 64);
            let (cell, expected) = (rng.below(5) as u32, rng.pick(&[1, 2, 1 << 47, SEQUENCE_MASK]));
            if let CellState::Due { envelope, len } = peer.inspect(cell, rng.below(3) as u16, expected) {
                assert!(len <= CELL_BYTES && len as u64 == envelope.total, "seed {seed}");
            }
            peer.find(0, expected);
            if let Some(cell) = receiver.pop() {
                assert!(cell < 1 << 16, "seed {seed}");
            }
        }
    }
}
