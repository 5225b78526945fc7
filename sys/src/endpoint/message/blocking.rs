//! Blocking sends and receives.

use crate::endpoint::{Endpoint, Source, Status, Tag};
use crate::error::Error;

/// # Blocking messages
///
/// A send returns when the caller may change its buffer, and a receive returns when the message is in its
/// buffer. A receive selects messages by their sender and by their 64-bit tag.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// use nemesia::{Source, Tag};
///
/// if endpoint.rank() == 0 {
///     endpoint.send(1, 7, b"hello")?;
/// } else {
///     let mut buf = [0; 64];
///     let status = endpoint.recv(Source::Rank(0), Tag::Exactly(7), &mut buf)?;
///     assert_eq!(&buf[..status.len], b"hello");
/// }
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
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
}
