//! Shared payload as it ships. See the table in [`super`].

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use super::{copy, opaque};

/// Eight bytes of payload that another process may see or write.
///
/// A relaxed atomic: it costs what a plain move costs, and a peer that writes out of turn gives wrong bytes,
/// never undefined behaviour.
#[repr(transparent)]
#[derive(Debug)]
pub struct PayloadWord(AtomicU64);

impl PayloadWord {
    /// A word of private or freshly reserved memory.
    pub const fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// Reads the word; an [`Edge`](super::Edge) must have made it readable.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Writes the word; an [`Edge`](super::Edge) will make it readable.
    #[inline(always)]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// Payload bytes that this process may read and another may write.
///
/// No Rust reference to the bytes ever exists: they are only copied out, as a device's memory would be.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    base: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'a AtomicU64>,
}

// SAFETY: a `Payload` is an address range whose bytes are only ever copied; the constructor's caller
// guarantees that the range stays mapped for 'a in this address space, whichever thread uses it.
unsafe impl Send for Payload<'_> {}

impl<'a> Payload<'a> {
    /// Views `len` bytes from `base`.
    ///
    /// # Safety
    /// The range is mapped readable for all of `'a`, and no Rust reference to its bytes exists meanwhile.
    pub const unsafe fn from_raw(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len, memory: PhantomData }
    }

    /// Bytes in view.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is in view.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The `len` bytes from `at`, or `None` when they are not all in view.
    #[inline]
    pub fn slice(&self, at: usize, len: usize) -> Option<Self> {
        if at.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: `at + len` lies in this view, whose constructor's caller vouched for it.
        Some(unsafe { Self::from_raw(self.base.add(at), len) })
    }

    /// Copies bytes out, from `at`. False, with nothing copied, when they are not all in view.
    #[inline]
    #[must_use]
    pub fn read(&self, at: usize, to: &mut [u8]) -> bool {
        let Some(from) = self.slice(at, to.len()) else { return false };
        // SAFETY: `from` is in view and mapped (constructor); `to` is exclusive and private, so they do not
        // overlap. A peer that writes meanwhile changes which bytes are copied and nothing else (`opaque`).
        unsafe { opaque::copy(from.base.as_ptr(), to.as_mut_ptr(), to.len()) };
        true
    }

    /// As [`Payload::read`], to memory that threads of this process may use meanwhile, so that no reference to it may be made.
    ///
    /// # Safety
    /// `len` bytes at `to` are mapped writable, and may be written; they are no part of this view.
    #[inline]
    #[must_use]
    pub unsafe fn read_into(&self, at: usize, to: *mut u8, len: usize) -> bool {
        let Some(from) = self.slice(at, len) else { return false };
        // SAFETY: `from` is in view and mapped (constructor); of `to`, the caller's promise.
        unsafe { opaque::copy(from.base.as_ptr(), to, len) };
        true
    }

    /// As [`Payload::read`], past the caches: for what is too large to find there anyhow.
    #[must_use]
    pub fn read_past_caches(&self, at: usize, to: &mut [u8]) -> bool {
        let Some(from) = self.slice(at, to.len()) else { return false };
        // SAFETY: as for `read`.
        unsafe { copy::past_caches(from.base.as_ptr(), to.as_mut_ptr(), to.len()) };
        true
    }
}

/// Payload bytes that this process may write and another may read.
#[derive(Clone, Copy, Debug)]
pub struct PayloadMut<'a>(Payload<'a>);

impl<'a> PayloadMut<'a> {
    /// Views `len` bytes from `base` for writing.
    ///
    /// # Safety
    /// As [`Payload::from_raw`], and the range is mapped writable.
    pub const unsafe fn from_raw(base: NonNull<u8>, len: usize) -> Self {
        // SAFETY: the caller's promise includes that of `Payload::from_raw`.
        Self(unsafe { Payload::from_raw(base, len) })
    }

    /// Bytes in view.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is in view.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same bytes for reading.
    pub const fn as_read(&self) -> Payload<'a> {
        self.0
    }

    /// The `len` bytes from `at`, or `None` when they are not all in view.
    #[inline]
    pub fn slice(&self, at: usize, len: usize) -> Option<Self> {
        self.0.slice(at, len).map(Self)
    }

    /// Copies bytes in, from `at`. False, with nothing copied, when they do not all fit.
    #[inline]
    #[must_use]
    pub fn write(&self, at: usize, from: &[u8]) -> bool {
        let Some(to) = self.0.slice(at, from.len()) else { return false };
        // SAFETY: `to` is in view and mapped writable (constructor), and no reference to it exists; `from` is
        // private, so they do not overlap. A peer that reads meanwhile sees torn bytes, which the edges
        // forbid an honest peer to do.
        unsafe { opaque::copy(from.as_ptr(), to.base.as_ptr(), from.len()) };
        true
    }

    /// As [`PayloadMut::write`], from memory that threads of this process may use meanwhile, so that no reference to it may be made.
    ///
    /// # Safety
    /// `len` bytes at `from` are initialised and mapped readable; they are no part of this view.
    #[inline]
    #[must_use]
    pub unsafe fn write_from(&self, at: usize, from: *const u8, len: usize) -> bool {
        let Some(to) = self.0.slice(at, len) else { return false };
        // SAFETY: as for `write`; of `from`, the caller's promise.
        unsafe { opaque::copy(from, to.base.as_ptr(), len) };
        true
    }

    /// Writes to one byte in each 64 of the `len` from `at` on, so that their lines belong to this core. What the bytes are then
    /// is not said.
    #[must_use]
    pub fn warm(&self, at: usize, len: usize) -> bool {
        let Some(to) = self.0.slice(at, len) else { return false };
        // SAFETY: as for `write`.
        unsafe { copy::take(to.base.as_ptr(), len) };
        true
    }

    /// As [`PayloadMut::write`], to lines that another core is likely to have: of all of them one byte is written first.
    #[must_use]
    pub fn write_taking(&self, at: usize, from: &[u8]) -> bool {
        let Some(to) = self.0.slice(at, from.len()) else { return false };
        // SAFETY: as for `write`.
        unsafe { copy::taking(from.as_ptr(), to.base.as_ptr(), from.len()) };
        true
    }

    /// As [`PayloadMut::write`], past the caches: for what is too large to find there anyhow. Done before anything is
    /// published after it.
    #[must_use]
    pub fn write_past_caches(&self, at: usize, from: &[u8]) -> bool {
        let Some(to) = self.0.slice(at, from.len()) else { return false };
        // SAFETY: as for `write`.
        unsafe { copy::past_caches(from.as_ptr(), to.base.as_ptr(), from.len()) };
        true
    }
}
