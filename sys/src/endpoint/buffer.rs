//! Memory that this endpoint allocates so that peers can map it: buffers of messages, and regions.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use nemesia_core::shared::window::SharedWindow;
use nemesia_core::wire::rma::SHARED_BYTES;

use super::{Access, Endpoint};
use crate::error::Error;
use crate::os::{ProcessOrigin, Segment};
use crate::shm::{LentRange, Loan, share_of, window_of};

/// Memory that peers can map. The window points into the segment, so it is dropped first.
#[derive(Debug)]
pub(super) struct Allocation {
    /// Messages from and into the memory are offered through mappings as long as the loan exists.
    loan: Option<Loan>,
    window: SharedWindow<'static>,
    segment: Segment,
    len: usize,
    key: u64,
}

impl Allocation {
    /// Returns the first byte. The memory is mapped until this value is dropped.
    pub(super) fn base(&self) -> NonNull<u8> {
        // SAFETY: the address is inside the mapping, after its first page.
        unsafe { self.segment.as_ptr().add(SHARED_BYTES) }
    }

    /// Returns the length in bytes.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the key by which peers open the memory.
    pub(super) const fn key(&self) -> u64 {
        self.key
    }

    /// Returns the number by which peers open the memory; 0 if they cannot.
    pub(super) fn share(&self, access: Access) -> u32 {
        share_of(&self.segment, access)
    }

    /// Ends every use by peers. Those that have mapped the memory see that its key is gone.
    fn close(&mut self) {
        self.loan = None;
        self.window.set_key(0);
    }
}

/// Zeroed memory for messages, which other processes of this machine can map and read.
///
/// A message that is sent from it is copied once, in user space: its receiver copies it through a mapping. Other
/// buffers are copied once by the kernel, which is slower, or twice where the kernel does not permit this
/// ([`Endpoint::explain`]). Small messages gain nothing.
///
/// The memory belongs to this value, and is freed when the value is dropped. It may outlive its endpoint, and move
/// between threads. No process can write it but its owner: peers map it only if the kernel enforces that (Linux 5.1
/// with `NEMESIA_BACKING=memfd`). So it is an ordinary slice. A message that is received into it is copied by the
/// receiver alone; memory into which waiting senders copy too is a region with [`Access::ReadWrite`], see
/// [`Endpoint::allocate`].
///
/// In a child made by `fork` it is empty.
#[derive(Debug)]
pub struct MessageBuffer {
    memory: Allocation,
    base: NonNull<u8>,
    origin: Arc<ProcessOrigin>,
}

// SAFETY: the value owns its memory. Shared references only read it.
unsafe impl Send for MessageBuffer {}
// SAFETY: as above. No method by shared reference uses the window.
unsafe impl Sync for MessageBuffer {}

impl MessageBuffer {
    /// Returns the number of bytes that are mapped in this process: none in a forked child.
    fn mapped(&self) -> usize {
        if self.origin.is_elsewhere() { 0 } else { self.memory.len }
    }
}

impl Deref for MessageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped, initialised, and written only through exclusive references to this value. Peers map it
        // for reading only.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.mapped()) }
    }
}

impl DerefMut for MessageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above. Other processes only read it.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.mapped()) }
    }
}

impl Drop for MessageBuffer {
    fn drop(&mut self) {
        // A forked child has no mapping.
        if !self.origin.is_elsewhere() {
            self.memory.close();
        }
    }
}

/// # Buffers that peers map
///
/// Large messages of a machine are fastest from memory that their receiver has mapped.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// use nemesia::{Source, Tag};
///
/// let mut buffer = endpoint.allocate_buffer(1 << 20)?;
/// if endpoint.rank() == 0 {
///     buffer.fill(7);
///     endpoint.send(1, 5, &buffer)?;
/// } else {
///     let status = endpoint.recv(Source::Rank(0), Tag::Exactly(5), &mut buffer)?;
///     assert!(status.len == 1 << 20 && buffer.iter().all(|byte| *byte == 7));
/// }
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Allocates `len` zeroed bytes for messages. Peers copy messages sent from them without the kernel. Each buffer
    /// takes one file descriptor, and whole pages; so few large buffers are better than many small ones.
    ///
    /// # Errors
    /// The error of the operating system; nothing is allocated.
    pub fn allocate_buffer(&mut self, len: usize) -> Result<MessageBuffer, Error> {
        self.check_origin()?;
        let memory = self.new_allocation(len, Access::Read)?;
        let base = memory.base();
        Ok(MessageBuffer { memory, base, origin: Arc::clone(&self.origin) })
    }

    /// Allocates memory that peers can map, as far as the kernel enforces `access`.
    pub(super) fn new_allocation(&mut self, len: usize, access: Access) -> Result<Allocation, Error> {
        self.free_retired();
        let bytes = len.saturating_add(SHARED_BYTES);
        const NAME: &str = "nemesia-region";
        let options = &self.config.segments;
        let segment = match access {
            Access::ReadWrite => Segment::create(NAME, bytes, &options.for_foreign_writers())?,
            // No peer writes such memory by mapping it. A read-only region that the kernel cannot seal is
            // used in packets; a write-only region always is.
            Access::Read | Access::Write => Segment::create_sealed(NAME, bytes, options)?,
        };
        segment.seal_seals()?;
        let window = window_of(&segment, len, true)?;
        let key = self.new_key()?;
        window.set_key(key);
        let mut allocation = Allocation { loan: None, window, segment, len, key };
        let share = allocation.share(access);
        if share != 0 {
            let base = allocation.base().as_ptr() as u64;
            let writable = access == Access::ReadWrite;
            let range = LentRange { base, len: len as u64, key, share, writable };
            allocation.loan = Some(self.engine.port_mut().local_mut().host_mut().lent.add(range));
        }
        Ok(allocation)
    }

    /// Frees memory that peers can map, now or when no message uses it any more.
    pub(super) fn retire(&mut self, mut allocation: Allocation) {
        allocation.close();
        self.retired.push(allocation);
        self.free_retired();
    }

    /// Frees the memory of former regions that no message uses any more.
    pub(super) fn free_retired(&mut self) {
        if !self.retired.is_empty() {
            let engine = &self.engine;
            self.retired.retain(|memory| engine.uses(memory.base().as_ptr() as usize, memory.len));
        }
    }
}

#[cfg(test)]
mod tests;
