//! Blocking sends and receives.

use super::{Endpoint, Source, Status, Tag};
use crate::error::Error;

impl Endpoint {
    /// Sends a message and waits until its bytes have left the buffer. A message of up to NEMESIA_EAGER_BYTES leaves as
    /// long as the receiver has room for it; others when a receive has matched them.
    ///
    /// # Errors
    /// See [`Error`].
    #[inline]
    pub fn send(&mut self, to: usize, tag: u64, bytes: &[u8]) -> Result<(), Error> {
        self.in_context(0).send(to, tag, bytes)
    }

    /// Receives the first message that matches, and waits for it.
    ///
    /// # Errors
    /// See [`Error`]. A message longer than `buf` is [`Error::Truncated`]; what fits is received.
    #[inline]
    pub fn recv(&mut self, from: Source, tag: Tag, buf: &mut [u8]) -> Result<Status, Error> {
        self.in_context(0).recv(from, tag, buf)
    }

    /// Sends a message and waits until a receive has matched it (MPI_Ssend).
    ///
    /// # Errors
    /// See [`Error`].
    pub fn ssend(&mut self, to: usize, tag: u64, bytes: &[u8]) -> Result<(), Error> {
        self.in_context(0).ssend(to, tag, bytes)
    }

    /// Sends a message for which the caller knows that a receive is posted, and waits until its bytes have left the
    /// buffer (MPI_Rsend). The promise is not made use of: this is [`Endpoint::send`], which MPI 4.1 permits (section
    /// 3.4).
    ///
    /// # Errors
    /// See [`Error`].
    #[inline]
    pub fn rsend(&mut self, to: usize, tag: u64, bytes: &[u8]) -> Result<(), Error> {
        self.send(to, tag, bytes)
    }
}
