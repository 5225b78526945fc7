//! The shipped implementation of shared payload. See the table in [`super`].

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use super::{copy, in_order, opaque};

/// Eight bytes of payload that another process may see or write.
///
/// A relaxed atomic costs as much as a plain move. If a peer writes at the wrong time, the bytes are wrong,
/// but behaviour is never undefined.
#[repr(transparent)]
#[derive(Debug)]
pub struct PayloadWord(AtomicU64);

impl PayloadWord {
    /// Returns a word of private or freshly reserved memory.
    pub const fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// Reads the word. An [`Edge`](super::Edge) must have made it readable.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Writes the word. An [`Edge`](super::Edge) will make it readable.
    #[inline(always)]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// Payload bytes that this process may read and another may write.
///
/// No Rust reference to the bytes ever exists: they are only copied out, like a device's memory.
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
    /// Returns a view of `len` bytes from `base` on.
    ///
    /// # Safety
    /// The range is mapped readable for all of `'a`, and no Rust reference to its bytes exists meanwhile.
    pub const unsafe fn from_raw(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len, memory: PhantomData }
    }

    /// Returns the number of bytes in view.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the view is empty.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the `len` bytes from `at` on; `None` if they do not all lie in view.
    #[inline]
    pub fn slice(&self, at: usize, len: usize) -> Option<Self> {
        if at.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: `at + len` lies in this view, which the constructor's caller guarantees to be mapped.
        Some(unsafe { Self::from_raw(self.base.add(at), len) })
    }

    /// Copies bytes out, from `at` on. Returns `false`, with nothing copied, if they do not all lie in view.
    #[inline]
    #[must_use]
    pub fn read(&self, at: usize, to: &mut [u8]) -> bool {
        let Some(from) = self.slice(at, to.len()) else { return false };
        // SAFETY: `from` is in view and mapped (constructor); `to` is exclusive and private, so they do not
        // overlap. A peer that writes meanwhile changes which bytes are copied and nothing else (`opaque`).
        unsafe { opaque::copy(from.base.as_ptr(), to.as_mut_ptr(), to.len()) };
        true
    }

    /// As [`Payload::read`], to memory that threads of this process may use meanwhile, so that no reference to it may
    /// be made.
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

    /// As [`Payload::read_into`], so that the last bytes become visible last ([`in_order`]).
    ///
    /// # Safety
    /// As [`Payload::read_into`].
    #[inline]
    #[must_use]
    pub unsafe fn read_in_order_into(&self, at: usize, to: NonNull<u8>, len: usize) -> bool {
        let Some(from) = self.slice(at, len) else { return false };
        // SAFETY: `from` is in view and mapped (constructor); of `to`, the caller's promise.
        unsafe { in_order::copy(from.base, to, len) };
        true
    }

    /// As [`Payload::read`], with non-temporal stores: for data that exceeds the caches.
    #[must_use]
    pub fn read_non_temporal(&self, at: usize, to: &mut [u8]) -> bool {
        let Some(from) = self.slice(at, to.len()) else { return false };
        // SAFETY: as for `read`.
        unsafe { copy::non_temporal(from.base.as_ptr(), to.as_mut_ptr(), to.len()) };
        true
    }
}

/// Payload bytes that this process may write and another may read.
#[derive(Clone, Copy, Debug)]
pub struct PayloadMut<'a>(Payload<'a>);

impl<'a> PayloadMut<'a> {
    /// Returns a view of `len` bytes from `base` on for writing.
    ///
    /// # Safety
    /// As [`Payload::from_raw`], and the range is mapped writable.
    pub const unsafe fn from_raw(base: NonNull<u8>, len: usize) -> Self {
        // SAFETY: the caller guarantees what `Payload::from_raw` requires.
        Self(unsafe { Payload::from_raw(base, len) })
    }

    /// Returns the number of bytes in view.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the view is empty.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the same bytes for reading.
    pub const fn as_read(&self) -> Payload<'a> {
        self.0
    }

    /// Returns the `len` bytes from `at` on; `None` if they do not all lie in view.
    #[inline]
    pub fn slice(&self, at: usize, len: usize) -> Option<Self> {
        self.0.slice(at, len).map(Self)
    }

    /// Copies bytes in, from `at` on. Returns `false`, with nothing copied, if they do not all fit.
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

    /// As [`PayloadMut::write`], from memory that threads of this process may use meanwhile, so that no reference to it
    /// may be made.
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

    /// Returns whether [`PayloadMut::write`] writes whole lines of so many bytes without reading them first.
    #[inline]
    pub fn writes_whole_lines(len: usize) -> bool {
        len >= opaque::WHOLE && opaque::writes_whole_lines()
    }

    /// Write-prefetches the lines of `len` bytes from `at` on: one byte of each 64 is written, so that the
    /// lines belong to this core. The bytes are unspecified afterwards. Returns `false`, without any effect,
    /// if they do not all lie in view.
    #[must_use]
    pub fn prefetch(&self, at: usize, len: usize) -> bool {
        let Some(to) = self.0.slice(at, len) else { return false };
        // SAFETY: as for `write`.
        unsafe { copy::take(to.base.as_ptr(), len) };
        true
    }

    /// As [`PayloadMut::write`], with write prefetch: for lines that another core probably holds.
    #[must_use]
    pub fn prefetch_and_write(&self, at: usize, from: &[u8]) -> bool {
        let Some(to) = self.0.slice(at, from.len()) else { return false };
        // SAFETY: as for `write`.
        unsafe { copy::taking(from.as_ptr(), to.base.as_ptr(), from.len()) };
        true
    }

    /// As [`PayloadMut::write`], with non-temporal stores: for data that exceeds the caches. The copy is
    /// complete before anything is published after it.
    #[must_use]
    pub fn write_non_temporal(&self, at: usize, from: &[u8]) -> bool {
        let Some(to) = self.0.slice(at, from.len()) else { return false };
        // SAFETY: as for `write`.
        unsafe { copy::non_temporal(from.as_ptr(), to.base.as_ptr(), from.len()) };
        true
    }

    /// As [`PayloadMut::write_from`], so that the last bytes become visible last ([`in_order`]). The others are copied
    /// with non-temporal stores if they exceed the caches (`is_long`).
    ///
    /// # Safety
    /// As [`PayloadMut::write_from`].
    #[inline]
    #[must_use]
    pub unsafe fn write_in_order_from(
        &self,
        at: usize,
        from: NonNull<u8>,
        len: usize,
        is_long: bool,
    ) -> bool {
        let Some(to) = self.0.slice(at, len) else { return false };
        let rest = |from: *const u8, to: *mut u8, len: usize| {
            // SAFETY: as for `write`; of `from`, the caller's promise.
            unsafe { if is_long { copy::non_temporal(from, to, len) } else { opaque::copy(from, to, len) } };
        };
        // SAFETY: as above.
        unsafe { in_order::copy_with(from, to.base, len, rest) };
        true
    }
}
