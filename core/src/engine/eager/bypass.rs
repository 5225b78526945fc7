//! When a blocking receive need not be posted (paper 4, section 3.3).
//!
//! A blocking receive may take its message out of the port itself if no posted receive can match that message, or
//! the message would miss the receive that was posted first. No earlier message for it may be stored either. Usually
//! nothing is posted, stored or pending, which the critical path checks by three words. Otherwise the pattern is
//! compared with the others, and a receive that would need more than [`MOST_COMPARED`] comparisons is posted.
#![forbid(unsafe_code)]

use core::borrow::Borrow;

use crate::engine::peer::{Peer, PeerQueue};
use crate::engine::{Bypass, Engine, Progress, Status, Storage};
use crate::matching::{MOST_COMPARED, Pattern, Source};
use crate::port::Port;

impl<P: Port, S: Storage> Engine<P, S> {
    /// Returns whether a blocking receive need not be posted: no posted receive can match its message, and no
    /// message for it is stored. The answer is `false` also if more than [`MOST_COMPARED`] comparisons were needed.
    #[inline(always)]
    pub fn can_bypass(&self, pattern: &Pattern) -> bool {
        (self.is_idle() || self.is_apart(pattern)) && self.check_alive(pattern.source).is_ok()
    }

    /// As [`Engine::can_bypass`], for a single poll. If work is pending, the answer is `false`: the caller then takes
    /// the slow path, which continues the work. Does not check for a failed source: a failed source has no packets.
    #[inline(always)]
    pub(in crate::engine) fn can_poll(&self, pattern: &Pattern) -> bool {
        self.is_idle() || !self.has_work() && self.is_apart(pattern)
    }

    /// As [`Engine::receive_short`], although something may be posted or stored. A function of its own, because the
    /// comparison would cost the critical path ten instructions even if nothing is posted.
    #[cold]
    #[inline(never)]
    pub fn receive_short_beside(&mut self, pattern: &Pattern, into: &mut [u8]) -> Option<Status> {
        if !self.can_poll(pattern) {
            return None;
        }
        let from = match pattern.source {
            Source::Rank(rank) => Some(rank as usize),
            Source::Any => None,
        };
        self.take_short(from, pattern.context, |tag| pattern.accepts(tag), into)
    }

    /// Returns whether nothing is posted, stored or pending.
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        self.posted.is_empty() && self.store.is_empty() && !self.has_work()
    }

    /// Returns whether no posted receive can match a message for this pattern, and no such message is stored or
    /// pending from this process to itself.
    #[cold]
    #[inline(never)]
    fn is_apart(&self, pattern: &Pattern) -> bool {
        self.posted.is_apart(&self.requests, pattern)
            && self.store.has_none(pattern, MOST_COMPARED)
            && !(pattern.source.accepts(self.rank) && self.sends_to_self())
    }

    /// Returns whether a message to this process itself is pending.
    fn sends_to_self(&self) -> bool {
        let own = self.peers.borrow().get(self.rank as usize);
        own.is_some_and(|own: &Peer| !own.queue(PeerQueue::Pending).is_empty())
    }

    /// Continues pending work while a blocking receive is not posted. The work may store a message for the receive.
    #[cold]
    #[inline(never)]
    pub(in crate::engine) fn work_beside(&mut self) -> Bypass {
        if self.work() == Progress::default() { Bypass::Idle } else { Bypass::Busy }
    }
}
