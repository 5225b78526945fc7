//! The stores for cells of a page and more, learned cell by cell: plain or non-temporal ones.
//!
//! A copy into such a cell takes long enough to be timed by itself, and so does the copy out of it. One cell of
//! [`ONE_OF`] is measured on both sides. Its receiver returns it with the *pace* of its copy, in four bits of the entry
//! ([`crate::wire`]), so the owner knows what both copies cost after a few cells, and no third copy has to be right
//! before. Seldom a measured cell is filled by the other stores. (The idea is in none of the papers.)
//!
//! Each copy counts once, because a message that is waited for takes both of them, and the longer one counts twice
//! more, because a stream takes as long as that one, and its loss would be the greater. On a Zen 3, 16 KiB took by
//! plain stores 580 and 550 ns between near cores, and 2,400 and 1,450 ns between distant ones; by non-temporal
//! stores 340 and 2,500 ns, and 360 and 1,400 ns. So the time of the sender's copy alone is no measure.
#![forbid(unsafe_code)]

use crate::port::{PeerId, Stores};
use crate::sync::PayloadMut;

/// One cell of so many is measured, by its number: sender and receiver agree about it. Two readings of the clock take
/// less than a tenth of the copy of a page.
const ONE_OF: u32 = 4;
/// The size classes: from 4, 8, 16 and 32 KiB on.
pub(super) const CLASSES: usize = 4;
/// The smallest such cell, in bytes.
pub(super) const LEAST: usize = 4096;
/// Of so many measured cells, and one more, one is filled by the other stores: of fewer, until both are known, and of
/// more, if the other stores cost more than twice as much.
const TRY: u8 = 16;
const SOON: u8 = 3;
const SELDOM: u8 = 64;
/// The other stores must cost less than so many sixteenths.
const BETTER: u32 = 15;

/// The bit of an entry behind the number of its cell, and the mask of that number: a pool has at most 4,096 cells.
pub(super) const PACE_AT: u32 = 12;
pub(super) const CELL_MASK: u32 = (1 << PACE_AT) - 1;
/// The longest pace, so that sums do not overflow.
const MOST: u32 = u32::MAX >> 4;
/// Bounds of the paces, in sixteenths of a tick for each KiB: a third of an octave apart. At 2.45 GHz they reach from
/// 100 to 4 GB/s.
const BOUNDS: [u32; 15] =
    [384, 484, 610, 768, 968, 1219, 1536, 1935, 2438, 3072, 3871, 4877, 6144, 7741, 9753];

/// Returns whether the copies of this cell are measured.
#[inline(always)]
pub(super) const fn is_measured(cell: u32) -> bool {
    cell.is_multiple_of(ONE_OF)
}

/// Stands for no measured cell, and no pace.
pub(super) const NOT_MEASURED: (u64, u32) = (u64::MAX, 0);

/// Returns the number by which a measured cell of a peer is remembered until it is returned: cells of several peers
/// have one number.
#[inline(always)]
pub(super) const fn measured_cell(peer: PeerId, cell: u32) -> u64 {
    (peer as u64) << 32 | cell as u64
}

/// Returns the ticks of a copy of `len` bytes, not 0, in sixteenths for each KiB.
pub(super) fn pace(ticks: u64, len: usize) -> u32 {
    let scaled = ticks.saturating_mul(16 << 10) / len.max(1) as u64;
    scaled.clamp(1, u64::from(MOST)) as u32
}

/// Returns the code of a pace, not 0.
pub(super) fn code(pace: u32) -> u32 {
    BOUNDS.iter().filter(|bound| **bound <= pace).count().max(1) as u32
}

/// Returns the pace in the middle of those with this code. `None` for 0: nothing was measured.
fn decoded(code: u32) -> Option<u32> {
    let bound = BOUNDS.get((code as usize).checked_sub(1)?)?;
    Some(bound + bound / 8)
}

/// A measured cell: its size class, and the stores that filled it. 0 in the record of a cell that was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MeasuredFill(u8);

impl MeasuredFill {
    pub(super) const NONE: Self = Self(0);

    const fn of(class: usize, kind: usize) -> Self {
        Self((1 + 2 * class + kind) as u8)
    }

    const fn parts(self) -> Option<(usize, usize)> {
        let Some(at) = self.0.checked_sub(1) else { return None };
        Some((at as usize / 2, at as usize % 2))
    }

    /// Returns the mark as a cell's record holds it.
    pub(super) const fn to_bits(self) -> u8 {
        self.0
    }

    pub(super) const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }
}

/// The last two paces of the copies by some stores; 0 if there was none. The lower one counts: the
/// other may be the time of a process that had lost its core.
#[derive(Clone, Copy, Debug, Default)]
struct Paces {
    fill: [u32; 2],
    read: [u32; 2],
}

impl Paces {
    fn push(last: &mut [u32; 2], pace: u32) {
        *last = [pace, last[0]];
    }

    fn typical(last: [u32; 2]) -> u32 {
        if last[1] == 0 { last[0] } else { last[0].min(last[1]) }
    }

    /// Returns the cost; `None` if it is not known.
    fn cost(&self) -> Option<u32> {
        let (fill, read) = (Self::typical(self.fill), Self::typical(self.read));
        (fill > 0 && read > 0).then(|| fill + read + 2 * fill.max(read))
    }
}

/// What was learned about cells of one size class.
#[derive(Clone, Copy, Debug, Default)]
struct PaceClass {
    /// By plain stores, and by non-temporal ones.
    paces: [Paces; 2],
    preferred: usize,
    /// Measured cells until the other stores are tried.
    wait: u8,
}

impl PaceClass {
    /// Returns which stores fill the next measured cell.
    fn next(&mut self) -> usize {
        let other = 1 - self.preferred;
        if self.wait > 0 {
            self.wait -= 1;
            return self.preferred;
        }
        let [preferred_cost, other_cost] = [self.preferred, other].map(|kind| self.paces[kind].cost());
        self.wait = match (preferred_cost, other_cost) {
            // What the receiver reports comes back some cells later.
            (None, _) | (_, None) => SOON,
            (Some(usual), Some(cost)) if cost > 2 * usual => SELDOM,
            _ => TRY,
        };
        other
    }

    fn decide(&mut self) {
        let other = 1 - self.preferred;
        if let (Some(usual), Some(cost)) = (self.paces[self.preferred].cost(), self.paces[other].cost())
            && 16 * u64::from(cost) < u64::from(BETTER) * u64::from(usual)
        {
            self.preferred = other;
        }
    }
}

/// What was learned about the cells to one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CellPaces([PaceClass; CLASSES]);

impl CellPaces {
    fn class(len: usize) -> usize {
        ((len / LEAST).max(1).ilog2() as usize).min(CLASSES - 1)
    }

    /// Returns the plain stores for cells of a page and more: a write prefetch comes before them unless they write
    /// whole lines.
    pub(super) fn plain() -> Stores {
        if PayloadMut::writes_whole_lines(LEAST) { Stores::Cached } else { Stores::Prefetched }
    }

    /// Returns the stores for a cell of `len` bytes, and its mark if it is measured.
    pub(super) fn stores(&mut self, len: usize, measured: bool) -> (Stores, MeasuredFill) {
        let at = Self::class(len);
        let class = &mut self.0[at];
        let kind = if measured { class.next() } else { class.preferred };
        let mark = if measured { MeasuredFill::of(at, kind) } else { MeasuredFill::NONE };
        (if kind == 0 { Self::plain() } else { Stores::NonTemporal }, mark)
    }

    /// Records how long it took to fill a measured cell.
    pub(super) fn filled(&mut self, mark: MeasuredFill, pace: u32) {
        let Some((class, kind)) = mark.parts() else { return };
        let Some(class) = self.0.get_mut(class) else { return };
        Paces::push(&mut class.paces[kind].fill, pace);
        class.decide();
    }

    /// Records how long it took the peer to read a measured cell. The peer may have reported any code.
    pub(super) fn read(&mut self, mark: MeasuredFill, code: u32) {
        let (Some((class, kind)), Some(pace)) = (mark.parts(), decoded(code)) else { return };
        let Some(class) = self.0.get_mut(class) else { return };
        Paces::push(&mut class.paces[kind].read, pace);
        class.decide();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends cells of `len` bytes whose copies take so many ticks for each KiB, by plain and by non-temporal stores; a
    /// cell comes back when 32 others were filled. Returns the ticks of the pipe, and the cells that were filled by
    /// non-temporal stores.
    fn send(paces: &mut CellPaces, count: u32, len: usize, ticks: [[u64; 2]; 2]) -> (u64, u32) {
        let mut under_way = std::collections::VecDeque::new();
        let (mut spent, mut past) = (0, 0);
        for cell in 0..count {
            let (how, mark) = paces.stores(len, is_measured(cell));
            let kind = usize::from(how == Stores::NonTemporal);
            past += u32::from(kind == 1);
            let [fill, read] = ticks[kind].map(|ticks| ticks * len as u64 / 1024);
            paces.filled(mark, pace(fill, len));
            spent += fill.max(read);
            under_way.push_back((mark, code(pace(read, len))));
            if under_way.len() > 32
                && let Some((mark, code)) = under_way.pop_front()
            {
                paces.read(mark, code);
            }
        }
        (spent, past)
    }

    /// Near and far on a Zen 3, a third case between them, and two that hardly differ.
    const MACHINES: [[[u64; 2]; 2]; 5] = [
        [[88, 84], [52, 380]],
        [[367, 220], [55, 214]],
        [[250, 240], [52, 380]],
        [[100, 100], [90, 100]],
        [[100, 100], [110, 100]],
    ];

    fn best(len: usize, count: u64, ticks: [[u64; 2]; 2]) -> u64 {
        ticks.map(|[fill, read]| fill.max(read)).into_iter().min().unwrap() * len as u64 / 1024 * count
    }

    #[test]
    fn what_is_learned_costs_at_most_115_percent_of_the_best_stores_over_1000_cells() {
        for ticks in MACHINES {
            for len in [4096, 5000, 16384, 33000] {
                let (spent, past) = send(&mut CellPaces::default(), 1000, len, ticks);
                let best = best(len, 1000, ticks);
                assert!(100 * spent <= 115 * best, "{spent} of {best}: {ticks:?}, {len} bytes, {past} past");
            }
        }
    }

    #[test]
    fn processes_that_move_to_other_cores_are_noticed() {
        for (before, after) in [(0, 1), (1, 0), (2, 1), (1, 2)] {
            let mut paces = CellPaces::default();
            send(&mut paces, 2000, 16384, MACHINES[before]);
            let (spent, past) = send(&mut paces, 4000, 16384, MACHINES[after]);
            let best = best(16384, 4000, MACHINES[after]);
            assert!(100 * spent <= 125 * best, "{spent} of {best}, {past} past: {before} to {after}");
        }
    }

    #[test]
    fn a_single_slow_copy_changes_nothing() {
        let mut paces = CellPaces::default();
        send(&mut paces, 1000, 16384, MACHINES[0]);
        let (_, mark) = paces.stores(16384, true);
        paces.filled(mark, MOST);
        paces.read(mark, 15);
        assert_eq!(paces.stores(16384, false).0, CellPaces::plain());
    }

    #[test]
    fn the_stores_that_nobody_measures_are_plain_and_any_report_is_harmless() {
        let mut paces = CellPaces::default();
        for code in 0..100 {
            paces.read(MeasuredFill::NONE, code);
            paces.read(MeasuredFill::from_bits(u8::MAX), code);
            paces.read(MeasuredFill::of(1, 1), code);
        }
        assert!((0..100).all(|_| paces.stores(9000, false) == (CellPaces::plain(), MeasuredFill::NONE)));
    }

    #[test]
    fn codes_are_within_an_eighth_of_the_pace() {
        for pace in BOUNDS[0]..BOUNDS[14] * 5 / 4 {
            let found = decoded(code(pace)).unwrap();
            assert!(8 * pace.abs_diff(found) <= pace + 8, "{pace} became {found}");
        }
        assert_eq!((decoded(0), decoded(16), code(1), code(u32::MAX)), (None, None, 1, 15));
        assert_eq!((pace(0, 4096), pace(u64::MAX, 1), pace(100, 1024)), (1, MOST, 1600));
        assert!(code(u32::MAX) << PACE_AT <= 0xffff);
    }
}
