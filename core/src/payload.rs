//! The user's buffers: where a message comes from and goes to.
//!
//! Non-blocking operations outlive the call that starts them, so the engine keeps addresses. The promise that
//! they stay good is made once, by whoever builds a [`SendBuf`] or [`RecvBuf`]; everything after is safe.

use core::ptr::NonNull;

use crate::sync::{Edge, Word32, Word64};

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

/// Bytes that go through a buffer of ours at a time, where memory is used by other processes directly.
pub const BOUNCE: usize = 1024;

/// Memory of ours that peers may use: only ever copied, or changed value by value.
#[derive(Debug)]
pub struct Exposed {
    base: NonNull<u8>,
    len: usize,
    /// Other processes write to it without us: no reference to it may exist.
    shared: bool,
}

// SAFETY: the maker's promise (usable until it is concealed) does not depend on the thread.
unsafe impl Send for Exposed {}

impl Exposed {
    /// Describes `len` bytes at `base`; a null `base` is allowed when `len` is 0.
    ///
    /// # Safety
    /// Until the region that takes this is concealed, or the engine is dropped: the bytes are initialised and readable,
    /// and writable if peers may write; no reference to them is alive while a function of the engine runs; other threads
    /// use them meanwhile only by atomic operations.
    pub unsafe fn from_raw(base: *mut u8, len: usize) -> Self {
        Self { base: NonNull::new(base).unwrap_or(NonNull::dangling()), len, shared: false }
    }

    /// The same of memory that other processes use as well.
    ///
    /// # Safety
    /// Until the region that takes this is concealed, or the engine is dropped: the bytes are mapped readable and
    /// writable, and no reference to them exists.
    pub unsafe fn from_shared(base: *mut u8, len: usize) -> Self {
        Self { base: NonNull::new(base).unwrap_or(NonNull::dangling()), len, shared: true }
    }

    /// No memory.
    pub const fn empty() -> Self {
        Self { base: NonNull::dangling(), len: 0, shared: false }
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the byte at `at` has an address that is a multiple of `bytes`, a power of two.
    pub fn is_aligned(&self, at: usize, bytes: usize) -> bool {
        self.base.as_ptr().wrapping_add(at).addr().is_multiple_of(bytes)
    }

    /// At most `len` bytes from `at`, to read; fewer at the end. Where other processes write, at most [`BOUNCE`] of them,
    /// copied to `bounce`.
    pub fn view<'a>(&'a self, at: usize, len: usize, bounce: &'a mut [u8; BOUNCE]) -> &'a [u8] {
        let at = at.min(self.len);
        let len = len.min(self.len - at);
        if self.shared {
            let part = &mut bounce[..len.min(BOUNCE)];
            self.read(at, part);
            return part;
        }
        // SAFETY: within the memory, which the maker promised to be readable; the slice lives no longer than a call of the
        // engine, during which nobody else writes.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr().add(at), len) }
    }

    /// Writes `len` bytes from `at`, which `fill` is asked for part by part: from where, and where to. False, with nothing
    /// written, when they are not all in the memory. Only for memory that peers may write.
    pub fn fill(&mut self, at: usize, len: usize, mut fill: impl FnMut(usize, &mut [u8])) -> bool {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return false;
        }
        if !self.shared {
            // SAFETY: within the memory, which the maker promised to be writable where peers may write; the slice lives no
            // longer than a call of the engine, during which nobody else uses it.
            fill(0, unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr().add(at), len) });
            return true;
        }
        let mut bounce = [0; BOUNCE];
        for start in (0..len).step_by(BOUNCE) {
            let part = &mut bounce[..BOUNCE.min(len - start)];
            fill(start, part);
            self.write(at + start, part);
        }
        true
    }

    /// Copies bytes out, from `at`. False, with nothing copied, when they are not all in the memory.
    pub fn read(&self, at: usize, to: &mut [u8]) -> bool {
        if at.checked_add(to.len()).is_none_or(|end| end > self.len) {
            return false;
        }
        // SAFETY: in the memory, which the maker promised to be readable; `to` is exclusive, so they do not overlap. No
        // reference is made: who writes meanwhile changes which bytes are copied and nothing else.
        unsafe { self.base.as_ptr().add(at).copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
        true
    }

    /// Copies bytes in, from `at`. False, with nothing copied, when they do not all fit. Only for memory that peers may
    /// write.
    pub fn write(&mut self, at: usize, from: &[u8]) -> bool {
        if at.checked_add(from.len()).is_none_or(|end| end > self.len) {
            return false;
        }
        // SAFETY: as for `read`, and writable where peers may write; `from` is a reference, and so is no part of it.
        unsafe { self.base.as_ptr().add(at).copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        true
    }

    /// Changes the four or eight bytes at `at`, which are aligned, in one atomic step; returns what they were. `None`, with
    /// nothing done, when they are not in the memory, or not aligned.
    pub fn update(&mut self, at: usize, bytes: usize, change: impl Fn(u64) -> u64) -> Option<u64> {
        if at.checked_add(bytes)? > self.len || !self.is_aligned(at, bytes) {
            return None;
        }
        // SAFETY: `at` is in the memory.
        let base = unsafe { self.base.add(at) };
        // SAFETY: in the memory and aligned, and writable: only what reads and writes comes here.
        unsafe { update(base, bytes, change) }
    }
}

/// Changes a value of four or eight bytes in one atomic step; returns what it was. `None` for other sizes.
///
/// # Safety
/// The value is initialised, aligned, mapped and writable, and others use it meanwhile only by atomic operations.
pub(crate) unsafe fn update(base: NonNull<u8>, bytes: usize, change: impl Fn(u64) -> u64) -> Option<u64> {
    let narrow = |old: u32| change(u64::from(old)) as u32;
    match bytes {
        // SAFETY: the caller's promise.
        4 => Some(u64::from(unsafe { Word32::update_acq_rel_at(base.cast(), Edge::Region, narrow) })),
        // SAFETY: the caller's promise.
        8 => Some(unsafe { Word64::update_acq_rel_at(base.cast(), Edge::Region, change) }),
        _ => None,
    }
}
