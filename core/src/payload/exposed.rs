//! Memory that a region exposes to peers.

use core::ptr::NonNull;

use super::{BOUNCE, Bounce, LentMemory};
use crate::sync::{Edge, Word8, Word16, Word32, Word64, in_order, opaque};

/// The largest number of bytes that are written to exposed memory at once, also through a buffer.
const CHUNK: usize = 8192;
/// Many writes are not longer than this. Their buffer is initialised in less time than a chunk.
const MEDIUM: usize = 1024;
/// Most writes are not longer than this.
const SMALL: usize = 64;

/// Memory of this process that peers may access. No reference to the bytes is ever made, because threads of this
/// process and other processes may use them at any time: they are only copied, or changed value by value.
#[derive(Debug)]
pub struct Exposed {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the maker's guarantee (usable until it is unexposed) does not depend on the thread.
unsafe impl Send for Exposed {}

impl Exposed {
    /// Describes `len` bytes at `base`; a null `base` is allowed when `len` is 0.
    ///
    /// # Safety
    /// Until the region that takes this is unexposed, or the engine is dropped: the bytes are initialised and
    /// readable, and writable if peers may write. No reference to them is alive while a function of the engine runs.
    /// Other threads access them meanwhile only by atomic operations.
    ///
    /// If [`Tuning::direct_bytes`](crate::engine::Tuning::direct_bytes) lets peers access the memory directly, they may
    /// do so at any time: no reference is alive at all, and the bytes stay until
    /// [`Engine::withdraw`](crate::engine::Engine::withdraw) has returned `true` after the region was unexposed.
    pub unsafe fn from_raw(base: *mut u8, len: usize) -> Self {
        Self { base: NonNull::new(base).unwrap_or(NonNull::dangling()), len }
    }

    /// Describes memory that other processes access as well; otherwise as [`Exposed::from_raw`].
    ///
    /// # Safety
    /// Until the region that takes this is unexposed, or the engine is dropped: the bytes are mapped readable and
    /// writable, and no reference to them exists.
    pub unsafe fn from_shared(base: *mut u8, len: usize) -> Self {
        Self { base: NonNull::new(base).unwrap_or(NonNull::dangling()), len }
    }

    /// Returns the bytes as memory that a port registers, writable by peers if they may write.
    ///
    /// # Safety
    /// The port deregisters the memory before the region is unexposed, or is dropped before the memory is freed.
    pub(crate) unsafe fn lend(&self, writable: bool) -> LentMemory {
        // SAFETY: the maker guarantees initialised bytes, which are readable, and writable if peers may write; no
        // reference to them is alive while peers may access them.
        unsafe {
            if writable {
                LentMemory::from_raw(self.base.as_ptr(), self.len)
            } else {
                LentMemory::from_readable(self.base.as_ptr(), self.len)
            }
        }
    }

    /// Returns empty memory.
    pub const fn empty() -> Self {
        Self { base: NonNull::dangling(), len: 0 }
    }

    /// Returns the length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    /// Returns whether the memory is empty.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether the byte at `at` is aligned to `bytes`, a power of two.
    pub fn is_aligned(&self, at: usize, bytes: usize) -> bool {
        self.base.as_ptr().wrapping_add(at).addr().is_multiple_of(bytes)
    }

    /// Copies at most `len` bytes from `at` on into `bounce`, and returns them; fewer at the end, and at most
    /// [`BOUNCE`].
    pub fn view<'a>(&self, at: usize, len: usize, bounce: &'a mut Bounce) -> &'a [u8] {
        let at = at.min(self.len);
        let len = len.min(self.len - at).min(BOUNCE);
        let to = bounce.0.as_mut_ptr().cast::<u8>();
        // SAFETY: in the memory, which the maker guarantees to be readable; `bounce` is exclusive and has at
        // least `len` bytes. The copy initialises that many.
        unsafe {
            opaque::copy(self.base.as_ptr().add(at), to, len);
            core::slice::from_raw_parts(to, len)
        }
    }

    /// Copies `len` bytes from `at` on, fewer at the end, in parts of at most [`BOUNCE`]. Calls `each` with the offset
    /// of each part from `at`, and with the part.
    pub fn each(&self, at: usize, len: usize, mut each: impl FnMut(usize, &[u8])) {
        let at = at.min(self.len);
        let len = len.min(self.len - at);
        let mut bounce = Bounce::new();
        for done in (0..len).step_by(BOUNCE) {
            each(done, self.view(at + done, len - done, &mut bounce));
        }
    }

    /// Writes `len` bytes from `at` on. `fill` supplies them part by part: it gets the offset of the part and its
    /// destination. Returns `false`, with nothing written, if they do not all lie in the memory. Only for memory that
    /// peers may write.
    pub fn fill(&mut self, at: usize, len: usize, fill: impl FnMut(usize, &mut [u8])) -> bool {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return false;
        }
        if len <= SMALL {
            self.fill_by(&mut [0; SMALL], at, len, fill);
        } else if len <= MEDIUM {
            self.fill_by(&mut [0; MEDIUM], at, len, fill);
        } else {
            self.fill_by(&mut [0; CHUNK], at, len, fill);
        }
        true
    }

    fn fill_by(&mut self, chunk: &mut [u8], at: usize, len: usize, mut fill: impl FnMut(usize, &mut [u8])) {
        for start in (0..len).step_by(chunk.len()) {
            let count = chunk.len().min(len - start);
            let part = &mut chunk[..count];
            fill(start, part);
            self.write(at + start, part);
        }
    }

    /// Copies bytes out, from `at` on. Returns `false`, with nothing copied, if they do not all lie in the memory.
    pub fn read(&self, at: usize, to: &mut [u8]) -> bool {
        if at.checked_add(to.len()).is_none_or(|end| end > self.len) {
            return false;
        }
        // SAFETY: in the memory, which the maker guarantees to be readable; `to` is exclusive, so the ranges do not
        // overlap. No reference is made: a concurrent write changes only which bytes are copied.
        unsafe { opaque::copy(self.base.as_ptr().add(at), to.as_mut_ptr(), to.len()) };
        true
    }

    /// Copies bytes in, from `at` on, so that the last ones become visible last ([`in_order`]). Returns `false`, with
    /// nothing copied, if they do not all fit. Only for memory that peers may write.
    pub fn write(&mut self, at: usize, from: &[u8]) -> bool {
        if at.checked_add(from.len()).is_none_or(|end| end > self.len) {
            return false;
        }
        // SAFETY: as for `read`, and writable where peers may write; `from` is a reference, so it is no part of the
        // memory.
        unsafe { in_order::copy(NonNull::from(from).cast(), self.base.add(at), from.len()) };
        true
    }

    /// Changes the one, two, four or eight aligned bytes at `at` in one atomic step and returns the old value. `None`,
    /// without any effect, if they are not in the memory or not aligned.
    pub fn update(&mut self, at: usize, bytes: usize, change: impl Fn(u64) -> u64) -> Option<u64> {
        if at.checked_add(bytes)? > self.len || !self.is_aligned(at, bytes) {
            return None;
        }
        // SAFETY: `at` is in the memory.
        let base = unsafe { self.base.add(at) };
        // SAFETY: in the memory and aligned, and writable: only regions that allow reading and writing get here.
        unsafe { update(base, bytes, change) }
    }
}

/// Changes a value of one, two, four or eight bytes in one atomic step and returns the old value. `None` for other
/// sizes.
///
/// # Safety
/// The value is initialised, aligned, mapped and writable, and others use it meanwhile only by atomic operations.
pub(crate) unsafe fn update(base: NonNull<u8>, bytes: usize, change: impl Fn(u64) -> u64) -> Option<u64> {
    let narrow = |old: u32| change(u64::from(old)) as u32;
    match bytes {
        1 => {
            let narrow = |old: u8| change(u64::from(old)) as u8;
            // SAFETY: the caller guarantees the value.
            Some(u64::from(unsafe { Word8::update_acq_rel_at(base, Edge::Region, narrow) }))
        }
        2 => {
            let narrow = |old: u16| change(u64::from(old)) as u16;
            // SAFETY: the caller guarantees the value.
            Some(u64::from(unsafe { Word16::update_acq_rel_at(base.cast(), Edge::Region, narrow) }))
        }
        // SAFETY: the caller guarantees the value.
        4 => Some(u64::from(unsafe { Word32::update_acq_rel_at(base.cast(), Edge::Region, narrow) })),
        // SAFETY: the caller guarantees the value.
        8 => Some(unsafe { Word64::update_acq_rel_at(base.cast(), Edge::Region, change) }),
        _ => None,
    }
}
