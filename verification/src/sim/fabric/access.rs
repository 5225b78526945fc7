//! Access to memory of other processes that ends later, as RDMA reads do: in any order, after any delay. Buffers are
//! exposed for the time of an access, and each exposure is revoked.

use nemesia_core::port::{AccessError, Accessed, CompletedAccess};

use super::{Fabric, Pull, Pulled};
use crate::tally::Event;

/// An access under way.
#[derive(Clone, Copy, Debug)]
struct SimAccess {
    peer: u32,
    is_put: bool,
    parts: Parts,
    operation: u64,
    due: u64,
}

/// A buffer that a process has exposed to a peer.
#[derive(Clone, Copy, Debug)]
struct SimExposure {
    peer: u32,
    number: u64,
    /// Whether the peer may write the buffer, instead of reading it.
    writable: bool,
    address: u64,
    len: usize,
}

/// The accesses and the exposures of one process.
#[derive(Debug, Default)]
pub(super) struct AccessState {
    under_way: Vec<SimAccess>,
    exposed: Vec<SimExposure>,
    exposures: u64,
}

impl AccessState {
    /// Ends everything that concerns a peer.
    fn close(&mut self, peer: u32) {
        self.under_way.retain(|access| access.peer != peer);
        self.exposed.retain(|exposure| exposure.peer != peer);
    }
}

/// A part of two memories: its first byte in the peer's and in that of the accessing process, and the length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    pub(crate) remote: u64,
    pub(crate) local: u64,
    pub(crate) len: usize,
}

impl Fabric {
    /// Exposes a buffer to a peer. Returns its number; `None` if accesses end at once in this world.
    pub(crate) fn expose(
        &mut self,
        me: u32,
        peer: u32,
        writable: bool,
        (address, len): (u64, usize),
    ) -> Option<u64> {
        if self.conditions.accesses == 0 {
            return None;
        }
        let state = &mut self.remote[me as usize];
        state.exposures += 1;
        let number = state.exposures;
        state.exposed.push(SimExposure { peer, number, writable, address, len });
        Some(number)
    }

    /// Ends an exposure.
    pub(crate) fn revoke(&mut self, me: u32, peer: u32, number: u64) {
        let exposed = &mut self.remote[me as usize].exposed;
        let before = exposed.len();
        exposed.retain(|exposure| (exposure.peer, exposure.number) != (peer, number));
        if exposed.len() == before && !self.pair(me, peer).closed {
            self.misuse(format!("rank {me} revokes exposure {number} to rank {peer}, which does not exist"));
        }
    }

    /// Returns the number of buffers that a process exposes.
    pub(crate) fn exposures(&self, me: u32) -> usize {
        self.remote[me as usize].exposed.len()
    }

    /// Starts an access: a put, or a get.
    pub(crate) fn start_access(
        &mut self,
        me: u32,
        peer: u32,
        is_put: bool,
        parts: Parts,
        operation: u64,
    ) -> Accessed {
        self.count_call();
        if !is_put && !self.can_pull(me, peer) {
            return Accessed::Failed(AccessError::Refused);
        }
        let under_way = self.remote[me as usize].under_way.len();
        if under_way >= self.conditions.accesses || !self.calm && self.rng.one_in(self.conditions.refusal) {
            // A refusal has no visible end, but accesses under way have one.
            if under_way > 0 {
                self.tally.count(Event::AccessBusy);
                return Accessed::Busy;
            }
        }
        self.activity += 1;
        let due = self.later();
        self.remote[me as usize].under_way.push(SimAccess { peer, is_put, parts, operation, due });
        self.doorbells[me as usize].push(due);
        self.tally.count(if is_put { Event::PutAccess } else { Event::Access });
        self.trace.note(self.now, || {
            let verb = if is_put { "puts" } else { "gets" };
            format!("{me} {verb} {} bytes at {peer}, until {due}", parts.len)
        });
        Accessed::Later
    }

    /// Ends one of the accesses that are due.
    pub(crate) fn poll_access(&mut self, me: u32) -> Option<CompletedAccess> {
        self.count_call();
        let now = self.now;
        let due = |access: &SimAccess| access.due <= now;
        let count = self.remote[me as usize].under_way.iter().filter(|access| due(access)).count();
        if count == 0 {
            return None;
        }
        let chosen = self.rng.below(count);
        let under_way = &mut self.remote[me as usize].under_way;
        let at = under_way.iter().enumerate().filter(|(_, access)| due(access)).nth(chosen)?.0;
        let access = under_way.swap_remove(at);
        self.activity += 1;
        Some(CompletedAccess { operation: access.operation, result: self.end_access(me, &access) })
    }

    fn end_access(&mut self, me: u32, access: &SimAccess) -> Result<(), AccessError> {
        let SimAccess { peer, is_put, parts: Parts { remote, local, len }, .. } = *access;
        let end = remote + len as u64;
        let holds = |it: &SimExposure| {
            it.peer == me
                && it.writable == is_put
                && it.address <= remote
                && end <= it.address + it.len as u64
        };
        let is_gone = self.pair(peer, me).closed || self.processes[peer as usize].dead;
        if !self.remote[peer as usize].exposed.iter().any(holds) {
            if !is_gone {
                self.misuse(format!("rank {me} accesses {len} bytes that rank {peer} does not expose to it"));
            }
            return Err(AccessError::Refused);
        }
        let mut bytes = vec![0; len];
        if is_put {
            // Now and then a put fails and leaves some of the bytes.
            let fails = is_gone || self.conditions.pull == Pull::Sometimes && self.rng.one_in(5);
            if !self.processes[me as usize].dead && !self.memory.pull(me, local, &mut bytes) {
                self.misuse(format!("an access reads {len} bytes of rank {me} that it has not lent"));
            }
            let some = if fails { self.rng.below(len + 1) } else { len };
            if !is_gone && some > 0 && !self.memory.push(peer, remote, &bytes[..some]) {
                self.misuse(format!("rank {me} writes {len} bytes of rank {peer} that it has not lent"));
            }
            return if fails { Err(AccessError::Range) } else { Ok(()) };
        }
        let result = match self.pull(me, peer, remote, &mut bytes) {
            Pulled::Done => Ok(()),
            Pulled::Unreadable => Err(AccessError::Range),
            Pulled::Refused => Err(AccessError::Refused),
        };
        if !self.processes[me as usize].dead && !self.memory.push(me, local, &bytes) {
            self.misuse(format!("an access writes {len} bytes of rank {me} that it has not lent"));
        }
        result
    }

    /// Ends the accesses and exposures between a process and a peer.
    pub(super) fn close_access(&mut self, me: u32, peer: u32) {
        self.remote[me as usize].close(peer);
    }

    /// Ends all accesses and exposures of a process that is gone.
    pub(super) fn forget_access(&mut self, rank: u32) {
        self.remote[rank as usize] = AccessState::default();
    }
}
