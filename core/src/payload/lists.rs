//! Lists of memory for one call of a byte stream: where it reads from, and where it writes to.

use core::marker::PhantomData;

use super::{LentMemory, Segment};
use crate::sync::opaque;

/// The largest number of pieces in a list.
pub const MOST_PIECES: usize = 10;

/// Memory that may be written as long as `'a`: exclusive slices, and parts of lent memory.
#[derive(Debug)]
pub struct ScatterList<'a> {
    pieces: [Segment; MOST_PIECES],
    count: usize,
    memory: PhantomData<&'a mut [u8]>,
}

/// Memory that may be read as long as `'a`: slices, and parts of lent memory.
#[derive(Debug)]
pub struct GatherList<'a> {
    pieces: [Segment; MOST_PIECES],
    count: usize,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> ScatterList<'a> {
    /// Returns an empty list.
    pub const fn new() -> Self {
        Self { pieces: [Segment::EMPTY; MOST_PIECES], count: 0, memory: PhantomData }
    }

    /// Adds a slice. A piece that does not fit is left out: it is for the next call.
    pub fn push(&mut self, bytes: &'a mut [u8]) {
        push(&mut self.pieces, &mut self.count, bytes.as_mut_ptr(), bytes.len());
    }

    /// Adds `len` bytes of lent memory from `at` on. Returns false if they do not all lie in it, or may not be
    /// written.
    pub fn push_lent(&mut self, lent: &'a LentMemory, at: u64, len: u64) -> bool {
        let part = lent.part(at, len).filter(|_| lent.is_writable());
        part.is_some_and(|base| {
            push(&mut self.pieces, &mut self.count, base.as_ptr(), len as usize);
            true
        })
    }

    /// Returns the pieces, in the layout of `struct iovec`. The addresses may be written as long as `'a`, and
    /// only as raw memory: no reference to lent memory may be made.
    pub fn pieces(&self) -> &[Segment] {
        self.pieces.get(..self.count).unwrap_or(&[])
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.pieces().iter().map(|piece| piece.len).sum()
    }

    /// Copies bytes in, from the beginning of the first piece on. Returns the number of bytes that had room.
    pub fn fill(&mut self, from: &[u8]) -> usize {
        // SAFETY: `push` took the pieces from exclusive slices, `push_lent` from writable lent memory; both are
        // borrowed as long as `'a`. `from` is a reference, so it is no part of either.
        unsafe { fill(self.pieces(), from) }
    }
}

impl<'a> GatherList<'a> {
    /// Returns an empty list.
    pub const fn new() -> Self {
        Self { pieces: [Segment::EMPTY; MOST_PIECES], count: 0, memory: PhantomData }
    }

    /// Adds a slice. A piece that does not fit is left out: it is for the next call.
    pub fn push(&mut self, bytes: &'a [u8]) {
        push(&mut self.pieces, &mut self.count, bytes.as_ptr().cast_mut(), bytes.len());
    }

    /// Adds `len` bytes of lent memory from `at` on. Returns false if they do not all lie in it.
    pub fn push_lent(&mut self, lent: &'a LentMemory, at: u64, len: u64) -> bool {
        lent.part(at, len).is_some_and(|base| {
            push(&mut self.pieces, &mut self.count, base.as_ptr(), len as usize);
            true
        })
    }

    /// Returns the pieces, in the layout of `struct iovec`. The addresses may be read as long as `'a`, and only
    /// as raw memory: no reference to lent memory may be made.
    pub fn pieces(&self) -> &[Segment] {
        self.pieces.get(..self.count).unwrap_or(&[])
    }

    /// Adds the pieces of another list. Pieces that do not fit are left out.
    pub fn append(&mut self, more: &Self) {
        more.pieces().iter().for_each(|piece| push(&mut self.pieces, &mut self.count, piece.base, piece.len));
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.pieces().iter().map(|piece| piece.len).sum()
    }

    /// Returns whether the list has no byte.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Copies bytes out, from the beginning of the first piece on. Returns the number of bytes copied.
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        let mut done = 0;
        for piece in self.pieces() {
            let Some(rest) = to.get_mut(done..) else { break };
            let count = piece.len.min(rest.len());
            // SAFETY: `push` took the piece from a slice, `push_lent` from lent memory, which is readable; both
            // are borrowed as long as `'a`. `rest` is exclusive, so it is no part of either.
            unsafe { opaque::copy(piece.base, rest.as_mut_ptr(), count) };
            done += count;
        }
        done
    }
}

impl Default for ScatterList<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for GatherList<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// Copies bytes into pieces, in sequence. Returns the number of bytes that had room.
///
/// # Safety
/// The pieces may be written now, and contain no byte of `from`.
pub(super) unsafe fn fill(pieces: &[Segment], from: &[u8]) -> usize {
    let mut done = 0;
    for piece in pieces {
        let Some(rest) = from.get(done..) else { break };
        let count = piece.len.min(rest.len());
        // SAFETY: the caller's promise.
        unsafe { opaque::copy(rest.as_ptr(), piece.base, count) };
        done += count;
    }
    done
}

fn push(pieces: &mut [Segment; MOST_PIECES], count: &mut usize, base: *mut u8, len: usize) {
    if let Some(piece) = pieces.get_mut(*count).filter(|_| len > 0) {
        *piece = Segment { base, len };
        *count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_fill_the_pieces_in_sequence_and_nothing_else() {
        let [lent, view] = LentMemory::leaked(8);
        let (mut first, mut second) = ([0; 3], [0; 4]);
        let mut list = ScatterList::new();
        list.push(&mut first);
        assert!(list.push_lent(&lent, 2, 3));
        list.push(&mut []);
        list.push(&mut second);
        assert_eq!(list.pieces().len(), 3);
        assert_eq!(list.fill(&[1, 2, 3, 4, 5, 6, 7]), 7);
        assert_eq!(list.fill(&[9; 20][..0]), 0);
        let mut bytes = [0; 8];
        assert!(view.read(0, &mut bytes));
        assert_eq!((first, bytes, second), ([1, 2, 3], [0, 0, 4, 5, 6, 0, 0, 0], [7, 0, 0, 0]));
        let mut all = [0; 20];
        let mut list = GatherList::new();
        assert!(list.is_empty() && list.push_lent(&view, 1, 4));
        list.push(&first);
        assert_eq!((list.copy_to(&mut all), &all[..7]), (7, &[0, 4, 5, 6, 1, 2, 3][1 - 1..][..7]));
        assert_eq!(list.copy_to(&mut all[..5]), 5);
    }

    #[test]
    fn memory_outside_of_what_was_lent_is_refused() {
        let [lent, _] = LentMemory::leaked(8);
        let mut list = ScatterList::new();
        let mut from = GatherList::new();
        for (at, len) in [(0, 9), (8, 1), (u64::MAX, 2)] {
            assert!(!list.push_lent(&lent, at, len) && !from.push_lent(&lent, at, len));
        }
        let bytes = [1_u8];
        // SAFETY: the array outlives the descriptor, which permits reading only.
        let readable = unsafe { LentMemory::from_readable(bytes.as_ptr(), 1) };
        assert!(!list.push_lent(&readable, 0, 1) && from.push_lent(&readable, 0, 1));
        assert_eq!(list.fill(&[7]), 0);
    }

    #[test]
    fn pieces_beyond_the_limit_wait() {
        let mut bytes = [[0_u8]; MOST_PIECES + 2];
        let mut list = ScatterList::new();
        bytes.iter_mut().for_each(|byte| list.push(byte));
        assert_eq!(list.fill(&[1; 2 * MOST_PIECES]), MOST_PIECES);
    }
}
