//! Buffers in the form in which a port gets them: for the length of one call. With a reference to the buffer
//! itself, a port could exchange it for another one, and keep it beyond its request. These values can only be
//! exchanged for values that live no longer than the call.
#![forbid(unsafe_code)]

use super::{Gather, RecvBuf};

/// A receive buffer, for one call.
#[derive(Debug)]
pub struct BorrowedRecv<'a>(&'a mut RecvBuf);

impl<'a> BorrowedRecv<'a> {
    /// Returns the memory of this buffer.
    #[inline(always)]
    pub const fn new(buf: &'a mut RecvBuf) -> Self {
        Self(buf)
    }

    /// Returns the length in bytes.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the buffer is empty.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As [`RecvBuf::whole`].
    #[inline(always)]
    pub fn whole(&mut self, at: usize, len: usize) -> Option<&mut [u8]> {
        self.0.whole(at, len)
    }

    /// As [`RecvBuf::each`].
    pub fn each(&mut self, at: usize, len: usize, each: impl FnMut(usize, &mut [u8])) {
        self.0.each(at, len, each);
    }
}

/// Bytes to send, part by part, for one call.
#[derive(Debug)]
pub struct BorrowedGather<'a>(&'a mut Gather);

impl<'a> BorrowedGather<'a> {
    /// Returns the bytes of this buffer.
    pub const fn new(from: &'a mut Gather) -> Self {
        Self(from)
    }

    /// As [`Gather::each`].
    pub fn each(&mut self, at: usize, len: usize, each: impl FnMut(usize, &[u8])) {
        self.0.each(at, len, each);
    }

    /// As [`Gather::read`].
    pub fn read(&mut self, at: usize, to: &mut [u8]) {
        self.0.read(at, to);
    }
}
