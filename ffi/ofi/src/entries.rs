//! The completions that wait to be read.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};

use crate::bindings::{self as fi, fi_cq_data_entry, fi_cq_entry, fi_cq_msg_entry, fi_cq_tagged_entry};
use crate::failure::Failure;
use crate::object::Errno;

/// An operation that has ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    /// What the application has given the operation.
    pub(crate) context: usize,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) buffer: usize,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    /// The sender.
    pub(crate) source: u64,
    /// Why it has failed, and how many bytes did not fit.
    pub(crate) error: Option<(Failure, usize)>,
}

impl Entry {
    /// Returns the entry in the longest format.
    #[inline]
    pub(crate) const fn tagged(&self) -> fi_cq_tagged_entry {
        fi_cq_tagged_entry {
            op_context: self.context as *mut c_void,
            flags: self.flags,
            len: self.len,
            buf: self.buffer as *mut c_void,
            data: self.data,
            tag: self.tag,
        }
    }
}

/// The memory of the application that a call fills with completions of a queue.
pub(crate) struct Reader {
    pub(crate) queue: usize,
    to: *mut u8,
    sources: *mut u64,
    entry_bytes: usize,
    room: usize,
    pub(crate) taken: usize,
}

impl Reader {
    /// Returns the memory for `room` completions of a queue.
    ///
    /// # Safety
    /// As long as this is used, `to` has room for so many entries of the queue's format, and `sources` is null or has
    /// room for as many numbers.
    #[inline]
    pub(crate) const unsafe fn new(
        (queue, entry_bytes): (usize, usize),
        to: *mut u8,
        room: usize,
        sources: *mut u64,
    ) -> Self {
        Self { queue, to, sources, entry_bytes, room, taken: 0 }
    }

    /// Returns the number of further entries.
    #[inline]
    pub(crate) const fn room(&self) -> usize {
        self.room - self.taken
    }

    /// Writes an entry. `false`: there is no room, or the application must ask for its error.
    #[inline(always)]
    pub(crate) fn take(&mut self, entry: &Entry) -> bool {
        if self.taken >= self.room || entry.error.is_some() {
            return false;
        }
        let tagged = entry.tagged();
        // SAFETY: the promise of `new`. All formats are the first bytes of this one, which most applications use.
        unsafe {
            let to = self.to.add(self.taken * self.entry_bytes);
            // Each of the longer formats has the fields of the one before it. A copy of so many bytes would be a call.
            to.cast::<*mut c_void>().write_unaligned(tagged.op_context);
            if self.entry_bytes > size_of::<fi_cq_entry>() {
                let to = to.cast::<fi_cq_msg_entry>();
                (&raw mut (*to).flags).write_unaligned(tagged.flags);
                (&raw mut (*to).len).write_unaligned(tagged.len);
            }
            if self.entry_bytes > size_of::<fi_cq_msg_entry>() {
                let to = to.cast::<fi_cq_data_entry>();
                (&raw mut (*to).buf).write_unaligned(tagged.buf);
                (&raw mut (*to).data).write_unaligned(tagged.data);
            }
            if self.entry_bytes > size_of::<fi_cq_data_entry>() {
                (&raw mut (*to.cast::<fi_cq_tagged_entry>()).tag).write_unaligned(tagged.tag);
            }
            if !self.sources.is_null() {
                self.sources.add(self.taken).write(entry.source);
            }
        }
        self.taken += 1;
        true
    }
}

/// The completions that wait to be read.
pub(crate) struct Queue {
    pub(crate) entries: VecDeque<Entry>,
    /// How many of the entries report writes of peers, which the application has not asked for.
    pub(crate) written: usize,
    /// How many of those may be there.
    pub(crate) most_written: usize,
    /// The endpoints that are bound.
    pub(crate) ports: Vec<usize>,
    /// Becomes readable when there may be something to read.
    pub(crate) wait: Option<OwnedFd>,
    /// A wait must return.
    pub(crate) signalled: bool,
}

impl Queue {
    /// Removes the oldest entry, which the application has read.
    #[inline]
    pub(crate) fn pop(&mut self) {
        let Some(entry) = self.entries.pop_front() else { return };
        if entry.flags & u64::from(fi::FI_REMOTE_WRITE) != 0 {
            self.written -= 1;
        }
    }

    /// Lets the descriptor of an endpoint wake those who wait for this queue.
    pub(crate) fn watch(&self, descriptor: RawFd) -> Result<(), Errno> {
        let Some(wait) = &self.wait else { return Ok(()) };
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: both descriptors are open; the structure outlives the call.
        let added =
            unsafe { libc::epoll_ctl(wait.as_raw_fd(), libc::EPOLL_CTL_ADD, descriptor, &raw mut event) };
        if added == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EEXIST) {
            Ok(())
        } else {
            Err(Errno::OTHER)
        }
    }

    /// Returns whether the queue has a descriptor.
    pub(crate) const fn has_wait(&self) -> bool {
        self.wait.is_some()
    }
}
