//! Contiguous parts of the user's buffers, which a port uses while it accesses a peer's memory.

use core::ptr::NonNull;

/// A contiguous part of a receive buffer. A port may write it as long as [`RemoteAccess`] allows.
///
/// [`RemoteAccess`]: crate::port::RemoteAccess
#[derive(Debug)]
pub struct ReceiveRange {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the guarantee of the buffer's maker does not depend on the thread.
unsafe impl Send for ReceiveRange {}

impl ReceiveRange {
    /// Describes a run of a receive buffer.
    pub(super) const fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
    }

    /// Returns the address of the first byte.
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the range is empty.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes.
    ///
    /// # Safety
    /// The caller is a port that may use the range now, and has no access to it under way.
    pub unsafe fn as_mut_slice<'a>(self) -> &'a mut [u8] {
        // SAFETY: the maker of the buffer guarantees initialised, writable bytes that nothing else uses. The caller
        // guarantees that the port may use them; it consumes the only description of them.
        unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

/// A contiguous part of a buffer to send. A port may read it, or let a peer read it, as long as [`RemoteAccess`]
/// allows.
///
/// [`RemoteAccess`]: crate::port::RemoteAccess
#[derive(Debug)]
pub struct SendRange {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the guarantee of the buffer's maker does not depend on the thread.
unsafe impl Send for SendRange {}

impl SendRange {
    /// Describes a run of a buffer to send.
    pub(super) const fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
    }

    /// Returns the address of the first byte.
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the address of the first byte as a number, for processes that can read this process's memory.
    pub fn address(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    /// Returns the length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the range is empty.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}
