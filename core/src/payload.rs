//! The user's buffers: where a message comes from and goes to.
//!
//! Non-blocking operations outlive the call that starts them, so the engine keeps addresses. The promise that
//! they stay good is made once, by whoever builds a [`SendBuf`] or [`RecvBuf`]; everything after is safe.

use core::ptr::NonNull;

/// Bytes to send.
#[derive(Clone, Copy, Debug)]
pub struct SendBuf {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the maker's promise (readable until the request completes) does not depend on the thread.
unsafe impl Send for SendBuf {}

impl SendBuf {
    /// Describes `len` bytes at `base`; a null `base` is allowed when `len` is 0.
    ///
    /// # Safety
    /// The bytes are readable and unchanged until the request that takes this buffer has completed.
    #[inline(always)]
    pub unsafe fn from_raw(base: *const u8, len: usize) -> Self {
        Self { base: NonNull::new(base.cast_mut()).unwrap_or(NonNull::dangling()), len }
    }

    /// Bytes in the buffer.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the message is empty.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the bytes are, for whoever can read this process's memory; 0 when there are none.
    pub fn address(&self) -> u64 {
        if self.len == 0 { 0 } else { self.base.as_ptr() as u64 }
    }

    /// At most `len` bytes from `at`; fewer at the end.
    #[inline(always)]
    pub fn part(&self, at: usize, len: usize) -> &[u8] {
        let at = at.min(self.len);
        // SAFETY: the range is within the buffer, which the maker promised to be readable and unchanged;
        // the slice lives no longer than the borrow of `self`, which the request owns.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr().add(at), len.min(self.len - at)) }
    }
}

/// Room to receive into.
#[derive(Debug)]
pub struct RecvBuf {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the maker's promise (exclusive until the request completes) does not depend on the thread.
unsafe impl Send for RecvBuf {}

impl RecvBuf {
    /// Describes `len` bytes at `base`; a null `base` is allowed when `len` is 0.
    ///
    /// # Safety
    /// The bytes are initialised and writable, and nobody else uses them until the request that takes this
    /// buffer has completed.
    #[inline(always)]
    pub unsafe fn from_raw(base: *mut u8, len: usize) -> Self {
        Self { base: NonNull::new(base).unwrap_or(NonNull::dangling()), len }
    }

    /// No room at all: what a completed request keeps.
    pub const fn empty() -> Self {
        Self { base: NonNull::dangling(), len: 0 }
    }

    /// Bytes of room.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no room.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the room is, for whoever can write to this process's memory.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// At most `len` bytes from `at`; fewer at the end.
    #[inline(always)]
    pub fn part(&mut self, at: usize, len: usize) -> &mut [u8] {
        let at = at.min(self.len);
        // SAFETY: the range is within the buffer, which the maker promised to be ours alone and writable;
        // the slice lives no longer than the exclusive borrow of `self`.
        unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr().add(at), len.min(self.len - at)) }
    }
}
