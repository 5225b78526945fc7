//! One-sided operations and active messages under way: what each rank has exposed, started and handled.

use std::collections::VecDeque;

use crate::shape::region_bytes;
use crate::world::{Order, RequestHandle};

/// An operation on another rank, or an active message to it.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) order: Order,
    /// The bytes that the target has taken, and whether it has executed everything.
    pub(crate) taken: usize,
    pub(crate) done: bool,
    /// The bytes that the origin must get.
    pub(crate) answer: Vec<u8>,
}

/// A request under way.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) handle: RequestHandle,
    pub(crate) number: usize,
}

/// What one rank has exposed, started and handled.
#[derive(Debug)]
pub(crate) struct RemoteState {
    /// The required contents of its region, and the required number of notifications.
    pub(crate) model: Vec<u8>,
    pub(crate) notified: u64,
    pub(crate) open: Vec<Open>,
    /// Requests that wait for a number of notifications.
    pub(crate) awaits: Vec<(RequestHandle, u64)>,
    /// Fences that may take a slot.
    pub(crate) fences: usize,
    /// Messages to itself that are not handled yet, and operations on its own region that wait behind them.
    pub(crate) own: VecDeque<usize>,
    /// Messages that it must have handled and has not reported, and the number of those without a handler.
    pub(crate) due: VecDeque<(u32, usize)>,
    pub(crate) unhandled: u64,
}

impl RemoteState {
    fn new(ranks: u32) -> Self {
        Self {
            model: vec![0; region_bytes(ranks)],
            notified: 0,
            open: Vec::new(),
            awaits: Vec::new(),
            fences: 0,
            own: VecDeque::new(),
            due: VecDeque::new(),
            unhandled: 0,
        }
    }

    /// Returns the least and the largest number of requests that take a slot.
    pub(crate) fn slots(&self) -> (usize, usize) {
        let open = self.open.iter().filter(|open| open.handle.is_kept()).count() + self.awaits.len();
        (open, open + self.fences)
    }
}

/// The one-sided part of a world.
#[derive(Debug)]
pub(crate) struct Remotes {
    pub(crate) sides: Vec<RemoteState>,
    pub(crate) operations: Vec<Remote>,
    /// By origin and target: started and unfinished operations, in order.
    pub(crate) under_way: Vec<Vec<VecDeque<usize>>>,
    /// The same, of what the target had not executed when it closed.
    pub(crate) lost: Vec<Vec<VecDeque<usize>>>,
}

impl Remotes {
    pub(crate) fn new(ranks: u32) -> Self {
        let count = ranks as usize;
        Self {
            sides: std::iter::repeat_with(|| RemoteState::new(ranks)).take(count).collect(),
            operations: Vec::new(),
            under_way: vec![vec![VecDeque::new(); count]; count],
            lost: vec![vec![VecDeque::new(); count]; count],
        }
    }

    /// Removes a rank that is gone: it no longer waits and no longer acts.
    pub(crate) fn forget(&mut self, rank: u32, finished: bool) {
        let side = &mut self.sides[rank as usize];
        side.open.clear();
        side.awaits.clear();
        for (under_way, lost) in self.under_way.iter_mut().zip(&mut self.lost) {
            let never = std::mem::take(&mut under_way[rank as usize]);
            // The effects of the last call of a rank that died are unknown.
            if finished {
                lost[rank as usize] = never;
            }
        }
    }

    /// Resets a rank whose next process has started.
    pub(crate) fn restart(&mut self, rank: u32) {
        let ranks = self.sides.len() as u32;
        self.sides[rank as usize] = RemoteState::new(ranks);
        for all in [&mut self.under_way, &mut self.lost] {
            all[rank as usize].iter_mut().for_each(VecDeque::clear);
            all.iter_mut().for_each(|from| from[rank as usize].clear());
        }
    }

    /// Whether some rank has started something on this one that it has not executed.
    pub(crate) fn is_asked(&self, rank: u32) -> bool {
        self.under_way.iter().any(|from| !from[rank as usize].is_empty())
    }

    pub(crate) fn queue(&mut self, from: u32, to: u32) -> &mut VecDeque<usize> {
        &mut self.under_way[from as usize][to as usize]
    }

    /// Returns whether nothing is under way from a rank to these, or from these to it.
    pub(crate) fn is_idle(&self, rank: u32, others: &[u32]) -> bool {
        let RemoteState { open, own, .. } = &self.sides[rank as usize];
        let empty = |from: u32, to: u32| self.under_way[from as usize][to as usize].is_empty();
        open.is_empty() && own.is_empty() && others.iter().all(|&it| empty(rank, it) && empty(it, rank))
    }
}
