//! What the processes of a world of links do, and what happens to them.

use std::collections::btree_map::Entry;
use std::time::Duration;

use nemesia_core::link::machine::slots::RankSlot;
use nemesia_core::link::machine::terms::{CarrierKind, LinkStage};
use nemesia_core::link::wire::LeaveManner;
use nemesia_core::peers::PeerAddress;

use super::network::Happening;
use super::{ENGINE, LinksWorld};
use crate::tally::Event;
use crate::violation::Check;

impl LinksWorld {
    /// Makes one random action.
    pub(super) fn action(&mut self) -> Check {
        let running: Vec<_> = self.truth.alive.iter().copied().collect();
        let at = if running.is_empty() { 0 } else { self.rng.pick(&running) };
        let others = self.processes.len();
        match self.rng.below(100) {
            0..62 if self.listens(at) => {
                // Most addresses are those of processes that run.
                let latest = others.saturating_sub(self.most_processes + 2);
                let from = if self.rng.one_in(8) { 0 } else { latest };
                let peer = from + self.rng.below(others - from);
                self.speak(at, peer);
                if self.rng.one_in(3) && self.listens(peer) {
                    // Their calls cross.
                    self.speak(peer, at);
                }
            }
            62..72 => self.disconnect(at),
            72..74 => self.stop(at),
            74..76 => self.cut()?,
            76 if self.rng.one_in(4) => self.block(),
            77..79 => self.end_process(at),
            79 => {
                // The calls of a process may come after it has died, and after it was started again.
                self.ranks.clone().into_iter().for_each(|peer| self.speak(at, peer));
                let until = self.network.later(50_000);
                while self.pass(until)? {}
                self.end_process(at);
                self.replace();
                let until = self.network.later(30_000);
                while self.pass(until)? {}
                self.end_process(self.processes.len() - 1);
                self.replace();
            }
            80..86 => self.replace(),
            86..98 if self.listens(at) => self.attack(at),
            _ => {}
        }
        Ok(())
    }

    /// A process has packets for another one.
    pub(super) fn speak(&mut self, at: usize, peer: usize) {
        let Some(target) = self.truth.processes.iter().find(|(_, of)| **of == peer) else { return };
        let target = PeerAddress::from_bytes(*target.0);
        let Some(process) = self.processes[at].as_ref().filter(|it| it.stopped.is_none()) else { return };
        let known = (0..self.ranks.len() as u32)
            .find(|rank| process.links.rank(*rank).is_some_and(|(address, _)| address == target));
        let rank = process.rank.and(known);
        let is_rank = self.processes[peer].as_ref().is_some_and(|it| it.rank.is_some());
        if process.rank.is_some() && is_rank && rank.is_none() {
            // The launcher has not confirmed the restarted process yet.
            return;
        }
        let spoken = self.act(at, None, |links, now, hands| links.speak(&target, rank, ENGINE, now, hands));
        if let (Some(Ok(link)), Some(process)) = (spoken, self.processes[at].as_mut()) {
            process.desk.peers.insert(link, peer);
            if let Entry::Vacant(new) = process.since.entry(peer) {
                new.insert(self.network.now);
                // What it said before does not come again: this call finds nothing.
                self.truth.departed.remove(&(peer, at));
            }
            self.tally.count(Event::LinkCalled);
            self.note(|| format!("{at} speaks to {peer}"));
        }
    }

    fn disconnect(&mut self, at: usize) {
        let Some(process) = self.processes[at].as_ref().filter(|it| it.stopped.is_none()) else { return };
        let all: Vec<_> = process.desk.peers.values().copied().collect();
        if all.is_empty() {
            return;
        }
        let peer = self.rng.pick(&all);
        if matches!(self.stage(at, peer), LinkStage::Idle | LinkStage::Ended | LinkStage::Held) {
            return;
        }
        self.note(|| format!("{at} disconnects from {peer}"));
        self.tally.count(Event::LinkDisconnected);
        self.truth.left.insert((at, peer));
        self.with_link(at, peer, |links, link, now, hands| links.disconnect(link, now, hands));
        if self.stage(at, peer) == LinkStage::Leaving && !self.rng.one_in(8) {
            let when = self.network.later(100_000);
            self.network.schedule(when, at, Happening::Drained(peer));
        }
    }

    fn stop(&mut self, at: usize) {
        let until = self.network.later(8_000_000);
        let Some(process) = self.processes[at].as_mut().filter(|it| it.stopped.is_none()) else { return };
        process.stopped = Some(until);
        process.last_stop = until;
        self.tally.count(Event::LinkStopped);
        self.network.schedule(until, at, Happening::Resume);
        self.note(|| format!("{at} is stopped"));
    }

    /// A connection breaks.
    fn cut(&mut self) -> Check {
        let ids: Vec<u64> = self.network.connections.keys().copied().collect();
        if ids.is_empty() {
            return Ok(());
        }
        let id = self.rng.pick(&ids);
        if let Some([one, two]) = self.network.cut(id) {
            self.truth.cut.insert([one.min(two), one.max(two)]);
            self.tally.count(Event::LinkCut);
            self.note(|| format!("a connection of {one} and {two} breaks"));
            // One of them may call before the other one knows.
            let until = self.network.later(500_000);
            while self.pass(until)? {}
            for (at, peer) in [(one, two), (two, one)] {
                if self.listens(at) && peer < self.processes.len() {
                    self.speak(at, peer);
                }
            }
        }
        Ok(())
    }

    /// One direction between two hosts is closed for TCP.
    fn block(&mut self) {
        let pair = [0; 2].map(|_| self.rng.below(self.hosts) as u8);
        if pair[0] != pair[1] && !self.truth.blocked.contains(&(pair[1], pair[0])) {
            self.truth.blocked.insert((pair[0], pair[1]));
            self.tally.count(Event::LinkBlocked);
        }
    }

    /// A process dies, or closes its endpoint.
    fn end_process(&mut self, at: usize) {
        if !self.is_alive(at) || self.is_resting {
            return;
        }
        if self.rng.one_in(2) && self.processes[at].as_ref().is_some_and(|it| it.stopped.is_none()) {
            self.close(at);
        }
        self.note(|| format!("{at} dies"));
        self.tally.count(Event::LinkDeath);
        self.processes[at] = None;
        self.truth.alive.remove(&at);
        self.timers.retain(|(_, of)| *of != at);
        self.network.end_process(at);
        let host = self.truth.hosts[at];
        for other in 0..self.processes.len() {
            if self.truth.hosts[other] == host && other != at {
                let when = self.network.now
                    + Duration::from_millis(70)
                    + Duration::from_micros(self.rng.below(9000) as u64);
                self.network.schedule(when, other, Happening::ProcessEnded(at));
            }
        }
    }

    /// A process closes its endpoint, and says so to ranks that it has never met.
    fn close(&mut self, at: usize) {
        self.note(|| format!("{at} closes"));
        self.tally.count(Event::LinkClosed);
        let manner = if self.rng.one_in(3) { LeaveManner::Dropped } else { LeaveManner::Closed };
        if manner == LeaveManner::Dropped {
            self.truth.dropped.insert(at);
        } else {
            (0..self.processes.len()).for_each(|other| _ = self.truth.left.insert((at, other)));
        }
        if let Some(process) = self.processes[at].as_mut() {
            process.is_closing = true;
        }
        self.act(at, None, |links, now, hands| {
            links.close(manner);
            while links.close_next(now, hands) {}
        });
        let ranks = self.ranks.clone();
        let is_rank = self.processes[at].as_ref().is_some_and(|it| it.rank.is_some());
        for other in ranks.into_iter().filter(|other| *other != at && is_rank) {
            let Some(address) = self.processes[other].as_ref().map(|it| it.address) else { continue };
            if self.link(at, other).is_none()
                && let Some(message) =
                    self.act(at, None, |links, _, _| links.departure(&address, CarrierKind::Stream))
            {
                let bytes = message.get().to_vec();
                self.depart(at, other, bytes);
            }
        }
    }

    /// A rank is restarted, or a further process starts.
    fn replace(&mut self) {
        if self.truth.alive.len() >= self.most_processes || self.is_resting {
            return;
        }
        let dead: Vec<_> = (0..self.ranks.len()).filter(|rank| !self.is_alive(self.ranks[*rank])).collect();
        let address = self.draw_address();
        let at = self.processes.len();
        self.truth.processes.insert(*address.encode().bytes(), at);
        if dead.is_empty() {
            return self.open(address, None, 0, Vec::new());
        }
        let rank = self.rng.pick(&dead);
        let incarnation = self.incarnation(rank) + 1;
        self.ranks[rank] = at;
        self.tally.count(Event::LinkStarted);
        let known = (0..self.ranks.len()).map(|of| {
            let address = self.truth.processes.iter().find(|(_, at)| **at == self.ranks[of]);
            let address = address.map_or([0; 64], |(address, _)| *address);
            let incarnation = if of == rank { incarnation } else { self.incarnation(of) };
            RankSlot::new(PeerAddress::from_bytes(address), incarnation)
        });
        let known = known.collect();
        self.truth.incarnations.insert(rank, incarnation);
        self.open(address, Some(rank as u32), incarnation, known);
        self.note(|| format!("{at} is rank {rank}, started {incarnation} times before"));
        for other in self.ranks.clone() {
            if other != at {
                self.speak(at, other);
            }
        }
    }

    fn incarnation(&self, rank: usize) -> u64 {
        self.truth.incarnations.get(&rank).copied().unwrap_or(0)
    }
}
