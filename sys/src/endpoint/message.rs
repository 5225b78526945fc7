//! Blocking sends and receives.

use super::{Endpoint, Source, Status, Tag};
use crate::error::Error;

impl Endpoint {
    /// Sends a message and waits until its bytes have left the buffer.
    ///
    /// A message of up to NEMESIA_EAGER_BYTES leaves as soon as the receiver has room for it. A longer message
    /// leaves when a receive has matched it.
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
    /// See [`Error`]. [`Error::Truncated`] if the message is longer than `buf`; the part that fits is received.
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

    /// Sends a message for which a receive is posted, as the caller knows, and waits until its bytes have left
    /// the buffer (MPI_Rsend).
    ///
    /// The engine makes no use of the posted receive: this is [`Endpoint::send`], as MPI 4.1 permits (section
    /// 3.4).
    ///
    /// # Errors
    /// See [`Error`].
    #[inline]
    pub fn rsend(&mut self, to: usize, tag: u64, bytes: &[u8]) -> Result<(), Error> {
        self.send(to, tag, bytes)
    }
}
