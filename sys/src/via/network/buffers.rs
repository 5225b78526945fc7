//! The memory of a connection's messages: some for those that arrive, some for those that leave.

use std::ptr::NonNull;

use nemesia_core::payload::LentMemory;
use nemesia_core::port::memory::{PortRegion, RegionAccess, Slice};
use nemesia_core::wire::vipl::{MOST_VIPL_BYTES, VIPL_RECEIVES};

/// Receives of a connection.
pub(super) const RECEIVES: usize = VIPL_RECEIVES as usize;
/// Messages in progress that do not fit into a work request.
pub(super) const SENDS: usize = 8;
const WORDS: usize = (RECEIVES + SENDS) * MOST_VIPL_BYTES / 8;

/// The memory, which is released by [`MessageBuffers::free`] only.
#[derive(Debug)]
pub(super) struct MessageBuffers {
    base: NonNull<[u64; WORDS]>,
    /// A view of the memory for this process.
    view: LentMemory,
    free_sends: Vec<usize>,
    pub(super) region: PortRegion,
}

// SAFETY: the memory belongs to this value alone, and to the port until it has deregistered the region.
unsafe impl Send for MessageBuffers {}

impl MessageBuffers {
    /// Allocates the memory, which `register` registers at the port.
    pub(super) fn new(register: impl FnOnce(LentMemory, RegionAccess) -> Option<PortRegion>) -> Option<Self> {
        let words: Box<[u64; WORDS]> = vec![0; WORDS].into_boxed_slice().try_into().ok()?;
        let base = NonNull::from(Box::leak(words));
        // SAFETY: the memory is allocated, initialised and accessed by copies only. It is freed by `free` alone, after
        // the port has deregistered the region.
        let [view, lent] =
            [(), ()].map(|()| unsafe { LentMemory::from_raw(base.as_ptr().cast(), WORDS * 8) });
        let region = register(lent, RegionAccess::LOCAL)?;
        Some(Self { base, view, free_sends: (0..SENDS).collect(), region })
    }

    fn slice(&self, at: usize, len: usize) -> Slice {
        Slice { region: self.region, offset: (at * MOST_VIPL_BYTES) as u64, len: len as u32 }
    }

    /// Returns the memory of a receive.
    pub(super) fn receive(&self, number: usize) -> Slice {
        self.slice(number % RECEIVES, MOST_VIPL_BYTES)
    }

    /// Copies a message that has arrived.
    pub(super) fn message(&self, number: usize, len: usize, to: &mut Vec<u8>) -> bool {
        to.resize(len.min(MOST_VIPL_BYTES), 0);
        self.view.read(((number % RECEIVES) * MOST_VIPL_BYTES) as u64, to)
    }

    /// Copies a message to memory of its own. Returns the number of the memory; `None` if all is in use.
    pub(super) fn fill(&mut self, bytes: &[u8]) -> Option<(usize, Slice)> {
        let number = *self.free_sends.last()?;
        let at = RECEIVES + number;
        self.view.write((at * MOST_VIPL_BYTES) as u64, bytes).then(|| {
            self.free_sends.pop();
            (number, self.slice(at, bytes.len()))
        })
    }

    /// Takes the memory of a message that has left.
    pub(super) fn release(&mut self, number: usize) {
        self.free_sends.push(number);
    }

    /// Releases the memory.
    ///
    /// # Safety
    /// The port has deregistered the region.
    pub(super) unsafe fn free(self) {
        // SAFETY: leaked by `new`; nothing else uses it, by the caller's promise.
        drop(unsafe { Box::from_raw(self.base.as_ptr()) });
    }
}
