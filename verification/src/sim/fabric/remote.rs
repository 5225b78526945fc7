//! What a process reads and writes at another without packets: credit and memory.

use super::{Fabric, Pull, Pulled};
use crate::assist::AssistState;
use crate::bug::Slip;
use crate::memory::POISON;
use crate::rng::Rng;
use crate::tally::Event;

impl Fabric {
    /// Sets the total of units that the receiver `me` grants to the sender `peer`.
    pub(crate) fn grant(&mut self, me: u32, peer: u32, units: u64) {
        if !self.acts(me) {
            return;
        }
        let seen = self.later();
        let (loses, inflates) = (self.slips(Slip::LoseGrant), self.slips(Slip::InflateGrant));
        self.tally.count(Event::Grant);
        self.trace.note(self.now, || format!("{me} grants {units} units in all to {peer}"));
        let pair = self.pair(peer, me);
        let more = units.checked_sub(pair.granted);
        if loses {
            pair.grant_error -= more.unwrap_or(0) as i64;
        }
        pair.grant_error += 8 * i64::from(inflates);
        pair.granted = units;
        let seen = pair.grants.back().map_or(seen, |&(last, _)| last.max(seen));
        pair.grants.push_back((seen, units.saturating_add_signed(pair.grant_error)));
        self.doorbells[peer as usize].push(seen);
        if more.is_none() {
            self.misuse(format!("rank {me} takes a grant to rank {peer} back"));
        }
    }

    /// Sends a packet to `peer` for which `me` needs credit.
    pub(crate) fn spend(&mut self, me: u32, peer: u32, units: u32) {
        let granted = self.granted(me, peer);
        let pair = self.pair(me, peer);
        pair.spent += u64::from(units);
        let spent = pair.spent;
        if spent > granted {
            self.misuse(format!("rank {me} has sent {spent} units to rank {peer}, which granted {granted}"));
        }
    }

    /// Returns the total of units granted by `peer` to `me` that is visible to `me`; 0 if they are not connected.
    pub(crate) fn granted(&mut self, me: u32, peer: u32) -> u64 {
        let now = self.now;
        if self.pair(me, peer).closed {
            return 0;
        }
        let grants = &mut self.pair(me, peer).grants;
        while grants.len() > 1 && grants[1].0 <= now {
            grants.pop_front();
        }
        grants.front().filter(|(seen, _)| *seen <= now).map_or(0, |(_, units)| *units)
    }

    /// Returns the total of units that `me` has granted to `peer`, visible or not.
    pub(crate) fn granted_in_all(&mut self, me: u32, peer: u32) -> u64 {
        self.pair(peer, me).granted
    }

    /// Returns whether `me` may try to read memory of `peer`.
    pub(crate) fn can_pull(&mut self, me: u32, peer: u32) -> bool {
        self.conditions.pull != Pull::Never && !self.pair(peer, me).unreadable
    }

    /// Reads memory of another process.
    pub(crate) fn pull(&mut self, me: u32, peer: u32, address: u64, to: &mut [u8]) -> Pulled {
        if !self.acts(me) || self.processes[peer as usize].dead {
            return Pulled::Refused;
        }
        let midway = self.memory.is_midway(peer, address);
        let pulled = self.pull_living(me, peer, address, to);
        let event = match (pulled, midway) {
            (Pulled::Done, _) => Event::Pull,
            (_, false) => Event::PullRefused,
            (_, true) => Event::PullRefusedMidway,
        };
        self.tally.count(event);
        self.trace.note(self.now, || format!("{me} pulls {} bytes from {peer}: {pulled:?}", to.len()));
        pulled
    }

    /// Reads the table of a list in the memory of another process.
    pub(crate) fn pull_table(&mut self, me: u32, peer: u32, address: u64, to: &mut [u8]) -> Pulled {
        if !self.acts(me) || self.processes[peer as usize].dead || !self.can_pull(me, peer) {
            return Pulled::Refused;
        }
        if self.conditions.pull == Pull::Sometimes && self.rng.one_in(9) {
            to.fill(POISON);
            return Pulled::Unreadable;
        }
        if !self.memory.pull_table(peer, address, to) {
            self.misuse(format!("rank {me} reads a list of rank {peer} that it has not lent"));
        }
        self.tally.count(Event::Table);
        self.trace.note(self.now, || format!("{me} reads a list of {} bytes from {peer}", to.len()));
        Pulled::Done
    }

    fn pull_living(&mut self, me: u32, peer: u32, address: u64, to: &mut [u8]) -> Pulled {
        let sometimes = self.conditions.pull == Pull::Sometimes;
        if sometimes && self.rng.one_in(50) {
            self.pair(peer, me).unreadable = true;
        }
        if !self.can_pull(me, peer) {
            return Pulled::Refused;
        }
        if sometimes && self.rng.one_in(5) {
            // A part may have been copied before it failed.
            let some = self.rng.below(to.len() + 1);
            to[..some].fill(POISON);
            return Pulled::Unreadable;
        }
        if !self.memory.pull(peer, address, to) {
            self.misuse(format!("rank {me} pulls {} bytes of rank {peer} that it has not lent", to.len()));
        }
        if self.slips(Slip::StalePull) {
            to.fill(POISON);
        }
        if !to.is_empty() && self.slips(Slip::ShortPull) {
            let last = to.len() - 1;
            to[last] = POISON;
        }
        Pulled::Done
    }

    /// Returns the copy that `to` and `from` share for a message of `from`; `None` if one of them is gone.
    pub(crate) fn shared(&mut self, me: u32, from: u32, to: u32) -> Option<(&mut AssistState, &mut Rng)> {
        self.count_call();
        if self.processes[me as usize].dead {
            return None;
        }
        let ranks = self.conditions.ranks;
        let Self { pairs, rng, .. } = self;
        let pair = &mut pairs[(from * ranks + to) as usize];
        (!pair.closed).then_some((&mut pair.shared, rng))
    }

    /// Writes memory of another process: the sender's part of a sender-assisted copy.
    pub(crate) fn push(&mut self, me: u32, peer: u32, address: u64, from: &[u8]) -> bool {
        let sometimes = self.conditions.pull == Pull::Sometimes;
        let works =
            self.acts(me) && !self.processes[peer as usize].dead && !(sometimes && self.rng.one_in(5));
        self.trace.note(self.now, || format!("{me} pushes {} bytes to {peer}: {works}", from.len()));
        self.tally.count(if works { Event::Push } else { Event::PushRefused });
        if !works {
            return false;
        }
        let len = from.len() - usize::from(self.slips(Slip::ShortPush));
        if !self.memory.push(peer, address, &from[..len]) {
            self.misuse(format!("rank {me} writes {len} bytes of rank {peer} that it has not lent"));
        }
        true
    }
}
