//! Contiguous parts of the user's buffers, which a port uses while it accesses a peer's memory.

use core::marker::PhantomData;
use core::ptr::NonNull;

use super::{LentMemory, Segment, lists};

/// The largest number of ranges that a port gets in one call.
pub const MOST_RANGES: usize = 64;

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

    /// Describes `len` bytes at `base`, for the caller of a port that is no engine.
    ///
    /// # Safety
    /// As long as [`RemoteAccess`] allows the port to use the range: the bytes are initialised and
    /// writable, and nothing else uses them.
    ///
    /// [`RemoteAccess`]: crate::port::RemoteAccess
    pub const unsafe fn from_raw(base: NonNull<u8>, len: usize) -> Self {
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

impl ReceiveRange {
    /// Returns the bytes as memory that a port registers.
    ///
    /// # Safety
    /// The caller is a port. It deregisters the memory before it must use the range no more.
    pub(crate) unsafe fn lend(&self) -> LentMemory {
        // SAFETY: the maker of the buffer guarantees initialised, writable bytes that nothing else uses as long as the
        // port may use the range.
        unsafe { LentMemory::from_raw(self.base.as_ptr(), self.len) }
    }
}

/// Parts of a receive buffer in sequence, none of them empty. Each may be used as a [`ReceiveRange`].
#[derive(Debug)]
pub struct ReceiveRanges {
    pieces: [Segment; MOST_RANGES],
    /// The first range that was not taken out, and the end of the ranges.
    first: usize,
    end: usize,
}

// SAFETY: as for `ReceiveRange`.
unsafe impl Send for ReceiveRanges {}

impl ReceiveRanges {
    /// Returns no ranges.
    pub(super) const fn new() -> Self {
        Self { pieces: [Segment::EMPTY; MOST_RANGES], first: 0, end: 0 }
    }

    /// Adds a range. Returns `false` if there is no place for it.
    pub(super) fn push(&mut self, range: &ReceiveRange) -> bool {
        let Some(piece) = self.pieces.get_mut(self.end) else { return false };
        if !range.is_empty() {
            *piece = Segment { base: range.base.as_ptr(), len: range.len };
            self.end += 1;
        }
        true
    }

    fn pieces(&self) -> &[Segment] {
        self.pieces.get(self.first..self.end).unwrap_or(&[])
    }

    /// Returns the number of ranges.
    pub fn count(&self) -> usize {
        self.pieces().len()
    }

    /// Returns the number of bytes of all ranges.
    pub fn len(&self) -> usize {
        self.pieces().iter().map(|piece| piece.len).sum()
    }

    /// Returns whether there are no ranges.
    pub fn is_empty(&self) -> bool {
        self.pieces().is_empty()
    }

    /// Takes the first range out.
    pub fn pop_first(&mut self) -> Option<ReceiveRange> {
        let Segment { base, len } = *self.pieces().first()?;
        self.first += 1;
        NonNull::new(base).map(|base| ReceiveRange { base, len })
    }

    /// Returns the memory of all ranges.
    ///
    /// # Safety
    /// The caller is a port that may use the ranges now, and has no access to them under way.
    pub unsafe fn as_list<'a>(&'a mut self) -> ReceiveList<'a> {
        ReceiveList { pieces: self.pieces(), memory: PhantomData }
    }
}

/// Memory of several ranges that may be written as long as `'a`.
#[derive(Debug)]
pub struct ReceiveList<'a> {
    pieces: &'a [Segment],
    memory: PhantomData<&'a mut [u8]>,
}

impl ReceiveList<'_> {
    /// Returns the pieces, in the layout of `struct iovec`. The addresses may be written as long as the list exists.
    pub const fn pieces(&self) -> &[Segment] {
        self.pieces
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len).sum()
    }

    /// Returns whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Copies bytes in, from the beginning of the first piece on. Returns the number of bytes that had room.
    pub fn fill(&mut self, from: &[u8]) -> usize {
        // SAFETY: the caller of `as_list` guarantees that the port may write the ranges, which nothing else uses.
        // `from` is a reference, so it is no part of them.
        unsafe { lists::fill(self.pieces, from) }
    }
}

/// The runs of a buffer to send, in the sender's own table. A port may read both, or let a peer read them, as long as
/// [`RemoteAccess`] allows.
///
/// [`RemoteAccess`]: crate::port::RemoteAccess
#[derive(Debug)]
pub struct SendRuns {
    table: NonNull<u8>,
    count: usize,
    len: usize,
}

// SAFETY: the guarantee of the buffer's maker does not depend on the thread.
unsafe impl Send for SendRuns {}

impl SendRuns {
    /// Describes a list of `count` segments with `len` bytes.
    pub(super) const fn new(table: NonNull<u8>, count: usize, len: usize) -> Self {
        Self { table, count, len }
    }

    /// Returns the address of the table as a number, for processes that can read this process's memory.
    pub fn table(&self) -> u64 {
        self.table.as_ptr().addr() as u64
    }

    /// Returns the addresses and lengths of the runs that are not empty, if there are two.
    pub fn pair(&self) -> Option<[(u64, u64); 2]> {
        let (mut runs, mut found) = ([(0, 0); 2], 0);
        for at in 0..self.count {
            // SAFETY: the maker of the buffer guarantees so many segments.
            let Segment { base, len } = unsafe { self.table.cast::<Segment>().add(at).read() };
            if len > 0 {
                *runs.get_mut(found)? = (base.addr() as u64, len as u64);
                found += 1;
            }
        }
        (found == 2).then_some(runs)
    }

    /// Returns the number of runs, which may be empty.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
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

    /// Describes `len` bytes at `base`, for the caller of a port that is no engine.
    ///
    /// # Safety
    /// As long as [`RemoteAccess`] allows the port to use the range, the bytes are readable and unchanged.
    ///
    /// [`RemoteAccess`]: crate::port::RemoteAccess
    pub const unsafe fn from_raw(base: NonNull<u8>, len: usize) -> Self {
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
    /// Returns the bytes as memory that a port registers for reading.
    ///
    /// # Safety
    /// As for [`ReceiveRange::lend`].
    pub(crate) unsafe fn lend(&self) -> LentMemory {
        // SAFETY: the maker of the buffer guarantees readable bytes that nobody changes as long as the port may use the
        // range.
        unsafe { LentMemory::from_readable(self.base.as_ptr(), self.len) }
    }
}
