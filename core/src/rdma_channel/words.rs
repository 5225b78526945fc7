//! Pointers as words: each is written into the peer's inbox, and read there from local memory, so that nobody polls
//! through the network (paper 1, section 4.2).
//!
//! This needs a port that places in order. The words are little-endian, so their low bytes are placed first. A word of
//! which only some bytes are placed is therefore less than its new value: it has the old, smaller high bytes. It may
//! also be less than the old value. The reader keeps the largest value that it has seen.
#![forbid(unsafe_code)]

use super::PipeError;
#[cfg(nemesia_injected_fault)]
use super::fault::{PipeFault, injected};
use super::link::{PipeLink, PipeWork};
use super::pointer::{POINTERS, Pointer};
use super::shape::{LINE, SLOTS};
use crate::port::memory::MemoryPort;

/// One own pointer.
#[derive(Clone, Copy, Debug, Default)]
struct OwnPointer {
    /// The master copy.
    value: u64,
    /// The value last written to the peer.
    written: u64,
    /// The number of writes, and of those that are complete. Each uses the next slot, because a write reads its slot as
    /// late as it likes: with a single slot it would publish a value before the data are written.
    posted: u64,
    completed: u64,
}

/// The pointers of an end whose port places in order.
#[derive(Debug, Default)]
pub(super) struct PointerWords {
    ours: [OwnPointer; POINTERS],
    theirs: [u64; POINTERS],
}

impl PointerWords {
    #[inline]
    pub(super) fn theirs(&mut self, link: &PipeLink, pointer: Pointer) -> u64 {
        let found = link.inbox.view.load(pointer as u64 * LINE).unwrap_or_default();
        let known = &mut self.theirs[pointer as usize];
        *known = (*known).max(u64::from_le(found));
        *known
    }

    #[inline]
    pub(super) const fn publish(&mut self, pointer: Pointer, value: u64) {
        self.ours[pointer as usize].value = value;
    }

    #[inline]
    pub(super) fn is_clean(&self) -> bool {
        self.ours.iter().all(|it| it.value == it.written)
    }

    pub(super) fn push<P: MemoryPort>(&mut self, port: &mut P, link: &PipeLink) -> Result<(), PipeError> {
        for (group, own) in (0_u8..).zip(&mut self.ours) {
            if own.value == own.written || own.posted - own.completed >= SLOTS {
                continue;
            }
            #[cfg(nemesia_injected_fault)]
            let own_slot = if injected(PipeFault::OneSlot) { 0 } else { own.posted };
            #[cfg(not(nemesia_injected_fault))]
            let own_slot = own.posted;
            let slot = link.shape.send_slot(group.into(), own_slot);
            if !link.outbox.view.write(slot, &own.value.to_le_bytes()) {
                return Err(PipeError::Memory);
            }
            let id = PipeWork::Pointer(group).id(own.posted);
            if link.write(port, id, (slot, 8), u64::from(group) * LINE)? {
                (own.posted, own.written) = (own.posted + 1, own.value);
            }
        }
        Ok(())
    }

    /// Counts a completed write.
    pub(super) const fn on_written(&mut self, group: u8, number: u64) {
        if (group as usize) < POINTERS {
            self.ours[group as usize].completed = number + 1;
        }
    }
}
