//! Processes that die, let go of others, sleep and wake.

use std::collections::VecDeque;

use super::{Fabric, Pair, Process};

impl Fabric {
    /// `me` lets go of a peer: no packets to or from it any more, and the cells that it held are back.
    pub(crate) fn close(&mut self, me: u32, peer: u32) {
        if !self.acts(me) {
            return;
        }
        self.pair(peer, me).closed = true;
        let pair = self.pair(me, peer);
        let lent = std::mem::take(&mut pair.lent);
        pair.closed = true;
        pair.returned.clear();
        self.processes[me as usize].free_cells += lent;
    }

    /// A process dies after so many more effects on others.
    pub(crate) fn doom(&mut self, rank: u32, effects: u32) {
        self.processes[rank as usize].fuse = Some(effects);
    }

    /// Whether a process has died.
    pub(crate) fn is_dead(&self, rank: u32) -> bool {
        self.processes[rank as usize].dead
    }

    /// A process is gone. What it sent last may be lost, in order.
    pub(crate) fn die(&mut self, rank: u32, loses: bool) {
        self.processes[rank as usize].dead = true;
        for peer in 0..self.conditions.ranks {
            let pair = &self.pairs[(rank * self.conditions.ranks + peer) as usize];
            let under_way = pair.next - pair.expected;
            let kept = if loses { self.rng.below(under_way as usize + 1) as u64 } else { under_way };
            let pair = self.pair(rank, peer);
            let end = pair.expected + kept;
            pair.paths.iter_mut().for_each(|path| path.retain(|packet| packet.sequence < end));
        }
    }

    /// A process takes the place of one that has died, and is connected with nobody.
    pub(crate) fn restart(&mut self, rank: u32) {
        let free_cells = self.conditions.cells;
        self.processes[rank as usize] = Process { dead: false, fuse: None, free_cells };
        self.taken[rank as usize].clear();
        self.bells[rank as usize].clear();
        for peer in 0..self.conditions.ranks {
            let closed = peer != rank;
            *self.pair(rank, peer) = Pair { closed, ..Pair::default() };
            *self.pair(peer, rank) = Pair { closed, ..Pair::default() };
        }
    }

    /// Connects two processes that have said nothing to each other.
    pub(crate) fn connect(&mut self, one: u32, other: u32) {
        *self.pair(one, other) = Pair::default();
        *self.pair(other, one) = Pair::default();
    }

    /// Wakes a process that may wait for what was done, and sees it at that time.
    pub(crate) fn wake(&mut self, rank: u32, at: u64) {
        self.bells[rank as usize].push(at);
    }

    /// Whether a process that slept is awake now: something has happened that it can see.
    pub(crate) fn is_woken(&mut self, rank: u32) -> bool {
        let (now, bells) = (self.now, &mut self.bells[rank as usize]);
        let before = bells.len();
        bells.retain(|&at| at > now);
        bells.len() < before
    }

    /// Packets from one process to another that nobody has taken.
    pub(crate) fn under_way(&mut self, from: u32, to: u32) -> usize {
        self.pair(from, to).paths.iter().map(VecDeque::len).sum()
    }

    /// Cells of a process that are free, or can be seen to be back.
    pub(crate) fn free_cells(&mut self, rank: u32) -> usize {
        (0..self.conditions.ranks).for_each(|peer| self.collect(rank, peer));
        self.processes[rank as usize].free_cells
    }
}
