//! The two buffers of a connection: bytes to send, and bytes to execute.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

/// Bytes to send: frames, and payloads that were copied.
#[derive(Debug, Default)]
pub(super) struct StageBuffer<B> {
    bytes: B,
    /// The number of bytes that are gone.
    sent: usize,
    end: usize,
}

impl<B: BorrowMut<[u8]>> StageBuffer<B> {
    /// Returns an empty buffer in these bytes.
    pub(super) const fn new(bytes: B) -> Self {
        Self { bytes, sent: 0, end: 0 }
    }

    /// Returns the bytes that are still to be sent.
    pub(super) fn rest(&self) -> &[u8] {
        self.bytes.borrow().get(self.sent..self.end).unwrap_or(&[])
    }

    /// Returns the number of bytes, sent or not.
    pub(super) const fn len(&self) -> usize {
        self.end
    }

    /// Removes the bytes from `len` on, which were not sent.
    pub(super) const fn truncate(&mut self, len: usize) {
        self.end = len;
    }

    /// Adds bytes. Returns false, without any effect, if they do not fit.
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        self.grow(bytes.len()).map(|to| to.copy_from_slice(bytes)).is_some()
    }

    /// Adds `len` bytes, which the caller sets; `None` if they do not fit.
    pub(super) fn grow(&mut self, len: usize) -> Option<&mut [u8]> {
        let end = self.end + len;
        let added = self.bytes.borrow_mut().get_mut(self.end..end)?;
        self.end = end;
        Some(added)
    }

    /// Records that `count` of the bytes of [`StageBuffer::rest`] were sent.
    pub(super) const fn advance(&mut self, count: usize) {
        self.sent += count;
        if self.sent == self.end {
            (self.sent, self.end) = (0, 0);
        }
    }
}

/// Bytes that were read, and not executed yet.
#[derive(Debug)]
pub(super) struct InputBuffer<B> {
    bytes: B,
    start: usize,
    end: usize,
}

impl<B: BorrowMut<[u8]>> InputBuffer<B> {
    /// Returns an empty buffer in these bytes.
    pub(super) const fn new(bytes: B) -> Self {
        Self { bytes, start: 0, end: 0 }
    }

    /// Returns the bytes.
    pub(super) fn get(&self) -> &[u8] {
        self.bytes.borrow().get(self.start..self.end).unwrap_or(&[])
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Makes room for so many bytes in all. Returns whether there is.
    pub(super) fn reserve(&mut self, bytes: usize) -> bool
    where
        B: Extend<u8>,
    {
        let have = self.bytes.borrow().len();
        if have < bytes {
            self.bytes.extend(core::iter::repeat_n(0, bytes - have));
        }
        self.bytes.borrow().len() >= bytes
    }

    /// Moves the bytes to the beginning.
    pub(super) fn compact(&mut self) {
        if self.start > 0 {
            self.bytes.borrow_mut().copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// Returns the room behind the bytes, at most until there are `most` of them.
    pub(super) fn room(&mut self, most: usize) -> &mut [u8] {
        let (start, end) = (self.start, self.end);
        let bytes = self.bytes.borrow_mut();
        let most = most.saturating_add(start).min(bytes.len());
        bytes.get_mut(end..most).unwrap_or(&mut [])
    }

    /// Returns the first `before` bytes of an empty buffer, and `behind` bytes after the `left_out` that follow.
    pub(super) fn room_around(
        &mut self,
        before: usize,
        left_out: usize,
        behind: usize,
    ) -> (&mut [u8], &mut [u8]) {
        debug_assert!(self.is_empty(), "the places of the bytes are counted from the beginning");
        (self.start, self.end) = (0, 0);
        let Some((first, rest)) = self.bytes.borrow_mut().split_at_mut_checked(before) else {
            return (&mut [], &mut []);
        };
        let end = (left_out + behind).min(rest.len());
        (first, rest.get_mut(left_out..end).unwrap_or(&mut []))
    }

    /// Makes these bytes the content.
    pub(super) fn skip_to(&mut self, start: usize, count: usize) {
        self.end = (start + count).min(self.bytes.borrow().len());
        self.start = start.min(self.end);
    }

    /// Adds `count` bytes that were stored in the room.
    pub(super) fn add(&mut self, count: usize) {
        self.end = (self.end + count).min(self.bytes.borrow().len());
    }

    /// Removes `count` bytes from the beginning.
    pub(super) fn remove(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }
}
