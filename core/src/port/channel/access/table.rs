//! The table of a channel's accesses to the memory of peers, and of its own memory that peers may access.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::port::channel::registered::RegisteredRange;
use crate::port::{AccessError, CompletedAccess, PeerId};
use crate::slab::NONE;

/// Most entries: the immediate of a write has 16 bits for the index.
const MOST: usize = 1 << 16;
/// Flag in the numbers of work requests that access a peer's memory.
const ACCESS: u64 = 1 << 62;
/// The bits of a generation in the number of a work request.
const GENERATION: u32 = (1 << 30) - 1;

/// The memory for one access or exposure.
#[derive(Debug)]
pub struct AccessSlot {
    generation: u32,
    /// The next slot in the list of free ones, or of accesses that have ended.
    next: u32,
    usage: AccessUse,
}

impl Default for AccessSlot {
    fn default() -> Self {
        Self { generation: 0, next: NONE, usage: AccessUse::Free }
    }
}

/// The use of a slot.
#[derive(Debug)]
pub(in crate::port::channel) enum AccessUse {
    Free,
    /// A work request is under way.
    Working {
        peer: PeerId,
        rail: u32,
        operation: u64,
        registered: RegisteredRange,
    },
    /// The work request has ended, which is not reported yet.
    Ended {
        peer: PeerId,
        access: CompletedAccess,
    },
    /// The peer may access the memory. `receiver`: the peer may write it, and reports the end to this request.
    Exposed {
        peer: PeerId,
        registered: RegisteredRange,
        receiver: Option<u64>,
    },
    /// Peers may access the memory of a region by one-sided operations.
    Region(RegisteredRange),
    /// The port still uses memory that peers may access no more.
    Leaving(RegisteredRange),
}

impl AccessUse {
    const fn peer(&self) -> Option<PeerId> {
        match self {
            Self::Working { peer, .. } | Self::Ended { peer, .. } | Self::Exposed { peer, .. } => Some(*peer),
            Self::Free | Self::Region(_) | Self::Leaving(_) => None,
        }
    }
}

/// A slot and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::port::channel) struct AccessId {
    index: u32,
    generation: u32,
}

impl AccessId {
    /// Returns the number of the work request.
    pub(in crate::port::channel) const fn work(self) -> u64 {
        ACCESS | ((self.generation & GENERATION) as u64) << 32 | self.index as u64
    }

    /// Returns the immediate that reports the end of writes.
    pub(in crate::port::channel) const fn notice(self) -> u32 {
        (self.generation << 16) | self.index
    }

    /// Returns the number of an exposure.
    pub(in crate::port::channel) const fn exposure(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// Returns the slot that an exposure's number names.
    pub(in crate::port::channel) const fn of_exposure(number: u64) -> Self {
        Self { index: number as u32, generation: (number >> 32) as u32 }
    }
}

/// Returns whether a work request is an access.
pub(in crate::port::channel) const fn is_access(work: u64) -> bool {
    work >> 62 == 1
}

/// The table.
#[derive(Debug)]
pub(in crate::port::channel) struct AccessTable<T> {
    slots: T,
    free: u32,
    /// The accesses that have ended, oldest first.
    ended: u32,
    last_ended: u32,
    /// The number of slots whose memory the port still uses.
    pub(in crate::port::channel) leaving: u32,
}

impl<T: BorrowMut<[AccessSlot]> + Extend<AccessSlot>> AccessTable<T> {
    pub(in crate::port::channel) fn new(slots: T) -> Self {
        let mut table = Self { slots, free: NONE, ended: NONE, last_ended: NONE, leaving: 0 };
        for index in (0..table.slots.borrow().len().min(MOST) as u32).rev() {
            table.put_free(index);
        }
        table
    }

    fn put_free(&mut self, index: u32) {
        let free = self.free;
        if let Some(slot) = self.slots.borrow_mut().get_mut(index as usize) {
            slot.generation = slot.generation.wrapping_add(1);
            (slot.usage, slot.next) = (AccessUse::Free, free);
            self.free = index;
        }
    }

    /// Returns the slot that the next call of [`AccessTable::fill`] uses; `None` if there is none.
    pub(in crate::port::channel) fn next(&mut self) -> Option<AccessId> {
        let have = self.slots.borrow().len();
        if self.free == NONE && have < MOST {
            self.slots.extend(core::iter::once(AccessSlot::default()));
            if self.slots.borrow().len() > have {
                self.put_free(have as u32);
            }
        }
        let slot = self.slots.borrow().get(self.free as usize)?;
        Some(AccessId { index: self.free, generation: slot.generation })
    }

    /// Uses the slot that [`AccessTable::next`] has returned.
    pub(in crate::port::channel) fn fill(&mut self, id: AccessId, usage: AccessUse) {
        if let Some(slot) = self.slots.borrow_mut().get_mut(id.index as usize)
            && self.free == id.index
        {
            self.free = slot.next;
            (slot.usage, slot.next) = (usage, NONE);
        }
    }

    fn get(&self, id: AccessId) -> Option<&AccessUse> {
        let slot = self.slots.borrow().get(id.index as usize)?;
        (slot.generation == id.generation).then_some(&slot.usage)
    }

    fn take(&mut self, index: u32) -> Option<AccessUse> {
        let slot = self.slots.borrow_mut().get_mut(index as usize)?;
        Some(core::mem::replace(&mut slot.usage, AccessUse::Free))
    }

    /// Ends the access of a work request. Returns its peer, its rail and the registration of its memory.
    pub(in crate::port::channel) fn end(
        &mut self,
        work: u64,
        result: Result<(), AccessError>,
    ) -> Option<(PeerId, u32, RegisteredRange)> {
        let index = work as u32;
        let slot = self.slots.borrow().get(index as usize)?;
        let is_current = u64::from(slot.generation & GENERATION) == work >> 32 & u64::from(GENERATION);
        if !is_current || !matches!(slot.usage, AccessUse::Working { .. }) {
            // The connection was closed meanwhile.
            return None;
        }
        let AccessUse::Working { peer, rail, operation, registered } = self.take(index)? else { return None };
        let access = CompletedAccess { operation, result };
        let last = core::mem::replace(&mut self.last_ended, index);
        let slots = self.slots.borrow_mut();
        if let Some(slot) = slots.get_mut(index as usize) {
            (slot.usage, slot.next) = (AccessUse::Ended { peer, access }, NONE);
        }
        match slots.get_mut(last as usize) {
            Some(last) => last.next = index,
            None => self.ended = index,
        }
        Some((peer, rail, registered))
    }

    /// Returns the next access that has ended.
    pub(in crate::port::channel) fn next_ended(&mut self) -> Option<CompletedAccess> {
        loop {
            let index = self.ended;
            let next = self.slots.borrow().get(index as usize)?.next;
            self.ended = next;
            if next == NONE {
                self.last_ended = NONE;
            }
            let ended = self.take(index)?;
            self.put_free(index);
            // The slot of a closed peer is free of content, and still in the list.
            if let AccessUse::Ended { access, .. } = ended {
                return Some(access);
            }
        }
    }

    /// Ends an exposure. Returns the registration of its memory.
    pub(in crate::port::channel) fn revoke(&mut self, id: AccessId) -> Option<RegisteredRange> {
        if !matches!(self.get(id)?, AccessUse::Exposed { .. }) {
            return None;
        }
        let AccessUse::Exposed { registered, .. } = self.take(id.index)? else { return None };
        self.put_free(id.index);
        Some(registered)
    }

    /// Ends the exposure of a region by `release`. Returns whether it is over.
    pub(in crate::port::channel) fn withdraw(
        &mut self,
        id: AccessId,
        release: impl FnOnce(RegisteredRange) -> Result<(), RegisteredRange>,
    ) -> bool {
        if !matches!(self.get(id), Some(AccessUse::Region(_))) {
            return true;
        }
        let Some(AccessUse::Region(registered)) = self.take(id.index) else { return true };
        let released = release(registered);
        match (released, self.slots.borrow_mut().get_mut(id.index as usize)) {
            (Err(registered), Some(slot)) => slot.usage = AccessUse::Region(registered),
            _ => {
                self.put_free(id.index);
                return true;
            }
        }
        false
    }

    /// Returns the receiving request to which an immediate of this peer reports the end of all writes.
    pub(in crate::port::channel) fn notified(&self, peer: PeerId, immediate: u32) -> Option<u64> {
        let index = immediate & (MOST as u32 - 1);
        let slot = self.slots.borrow().get(index as usize)?;
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::TrustNotice)
            && let AccessUse::Exposed { receiver, .. } = slot.usage
        {
            return receiver;
        }
        match slot.usage {
            AccessUse::Exposed { peer: to, receiver, .. }
                if to == peer && slot.generation << 16 == immediate >> 16 << 16 =>
            {
                receiver
            }
            _ => None,
        }
    }

    /// Keeps memory that the port still uses.
    pub(in crate::port::channel) fn keep(&mut self, registered: RegisteredRange) {
        // Without a slot the region stays registered until the port is dropped, and the memory may be used by the
        // port's own work only: peers cannot access it any more.
        if let Some(id) = self.next() {
            self.fill(id, AccessUse::Leaving(registered));
            self.leaving += 1;
        }
    }

    /// Calls `release` with all memory that the port may still use. Memory that it returns stays in the table.
    pub(in crate::port::channel) fn retry_leaving(
        &mut self,
        mut release: impl FnMut(RegisteredRange) -> Result<(), RegisteredRange>,
    ) {
        for index in 0..self.slots.borrow().len() as u32 {
            let is_leaving = |slot: &AccessSlot| matches!(slot.usage, AccessUse::Leaving(_));
            if !self.slots.borrow().get(index as usize).is_some_and(is_leaving) {
                continue;
            }
            let Some(AccessUse::Leaving(registered)) = self.take(index) else { continue };
            match release(registered) {
                Ok(()) => {
                    self.put_free(index);
                    self.leaving = self.leaving.saturating_sub(1);
                }
                Err(registered) => {
                    if let Some(slot) = self.slots.borrow_mut().get_mut(index as usize) {
                        slot.usage = AccessUse::Leaving(registered);
                    }
                }
            }
        }
    }

    /// Returns whether a work request to this peer is under way.
    pub(in crate::port::channel) fn is_working(&self, peer: PeerId) -> bool {
        let works =
            |slot: &AccessSlot| matches!(slot.usage, AccessUse::Working { peer: of, .. } if of == peer);
        self.slots.borrow().iter().any(works)
    }

    /// Returns whether a work request to this peer is under way, or has ended and its end was not taken
    /// ([`AccessTable::next_ended`]).
    pub(in crate::port::channel) fn is_unsettled(&self, peer: PeerId) -> bool {
        let is_of_peer = |slot: &AccessSlot| match slot.usage {
            AccessUse::Working { peer: of, .. } | AccessUse::Ended { peer: of, .. } => of == peer,
            _ => false,
        };
        self.slots.borrow().iter().any(is_of_peer)
    }

    /// Frees the next slot of a peer from `from` on. Returns its index, and the registration of its memory. `None` if
    /// there is none.
    pub(in crate::port::channel) fn forget_next(
        &mut self,
        peer: PeerId,
        from: u32,
    ) -> Option<(u32, Option<RegisteredRange>)> {
        let of_peer = |slot: &AccessSlot| slot.usage.peer() == Some(peer);
        let at = self.slots.borrow().iter().skip(from as usize).position(of_peer)?;
        let index = from + at as u32;
        let registered = match self.take(index)? {
            AccessUse::Working { registered, .. } | AccessUse::Exposed { registered, .. } => Some(registered),
            // It stays in the list of ended accesses, which frees it.
            AccessUse::Ended { .. } => return Some((index, None)),
            AccessUse::Free | AccessUse::Region(_) | AccessUse::Leaving(_) => None,
        };
        self.put_free(index);
        Some((index, registered))
    }
}
