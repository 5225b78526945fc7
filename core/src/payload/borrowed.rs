//! Buffers as a port gets them: for the length of one call. A reference to the buffer itself could be used to exchange
//! it for another one, and to keep it beyond its request; what is here can only be exchanged for something that lives
//! no longer than the call.
#![forbid(unsafe_code)]

use super::{Gather, RecvBuf};

/// Room to receive into, for one call.
#[derive(Debug)]
pub struct BorrowedRecv<'a>(&'a mut RecvBuf);

impl<'a> BorrowedRecv<'a> {
    /// The room of this buffer.
    #[inline(always)]
    pub const fn new(buf: &'a mut RecvBuf) -> Self {
        Self(buf)
    }

    /// Bytes of room.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no room.
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
    /// The bytes of this buffer.
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
