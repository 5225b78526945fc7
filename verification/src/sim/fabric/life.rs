//! Processes that die, disconnect, sleep and wake.

use std::collections::VecDeque;

use super::{Fabric, FabricPair, Process};

impl Fabric {
    /// Disconnects `me` from a peer: no packets between them any more, and the cells held are back.
    pub(crate) fn close(&mut self, me: u32, peer: u32) {
        if !self.acts(me) {
            return;
        }
        self.close_access(me, peer);
        self.pair(peer, me).closed = true;
        let pair = self.pair(me, peer);
        let lent = std::mem::take(&mut pair.lent);
        pair.closed = true;
        pair.returned.clear();
        self.processes[me as usize].free_cells += lent;
    }

    /// Makes a process die after so many more effects on others.
    pub(crate) fn doom(&mut self, rank: u32, effects: u32) {
        self.processes[rank as usize].fuse = Some(effects);
    }

    /// Returns whether a process has died.
    pub(crate) fn is_dead(&self, rank: u32) -> bool {
        self.processes[rank as usize].dead
    }

    /// Removes a process. Its last packets may be lost, in order.
    pub(crate) fn die(&mut self, rank: u32, loses: bool) {
        self.processes[rank as usize].dead = true;
        self.forget_access(rank);
        for peer in 0..self.conditions.ranks {
            let pair = &self.pairs[(rank * self.conditions.ranks + peer) as usize];
            let under_way = pair.next - pair.expected;
            let kept = if loses { self.rng.below(under_way as usize + 1) as u64 } else { under_way };
            let pair = self.pair(rank, peer);
            let end = pair.expected + kept;
            pair.paths.iter_mut().for_each(|path| path.retain(|packet| packet.sequence < end));
        }
    }

    /// Puts a new process in the place of a dead one. It is connected with no other.
    pub(crate) fn restart(&mut self, rank: u32) {
        let free_cells = self.conditions.cells;
        self.processes[rank as usize] = Process { dead: false, fuse: None, free_cells };
        self.forget_access(rank);
        self.taken[rank as usize].clear();
        self.doorbells[rank as usize].clear();
        for peer in 0..self.conditions.ranks {
            let closed = peer != rank;
            *self.pair(rank, peer) = FabricPair { closed, ..FabricPair::default() };
            *self.pair(peer, rank) = FabricPair { closed, ..FabricPair::default() };
        }
    }

    /// Returns whether two processes are not connected.
    pub(crate) fn is_parted(&mut self, one: u32, other: u32) -> bool {
        self.pair(one, other).closed
    }

    /// Connects two processes that have exchanged nothing yet.
    pub(crate) fn connect(&mut self, one: u32, other: u32) {
        *self.pair(one, other) = FabricPair::default();
        *self.pair(other, one) = FabricPair::default();
    }

    /// Wakes a process that may wait for this action, at the time when the action is visible to it.
    pub(crate) fn wake(&mut self, rank: u32, at: u64) {
        self.doorbells[rank as usize].push(at);
    }

    /// Returns whether a sleeping process is awake now, because something visible to it has happened.
    pub(crate) fn is_woken(&mut self, rank: u32) -> bool {
        let (now, doorbells) = (self.now, &mut self.doorbells[rank as usize]);
        let before = doorbells.len();
        doorbells.retain(|&at| at > now);
        doorbells.len() < before
    }

    /// Returns the number of packets between two processes that were not taken.
    pub(crate) fn under_way(&mut self, from: u32, to: u32) -> usize {
        self.pair(from, to).paths.iter().map(VecDeque::len).sum()
    }

    /// Returns the number of cells of a process that are free or visibly returned.
    pub(crate) fn free_cells(&mut self, rank: u32) -> usize {
        (0..self.conditions.ranks).for_each(|peer| self.collect(rank, peer));
        self.processes[rank as usize].free_cells
    }
}
