//! What the placement asks of its byte streams.
//!
//! The layer above implements these traits over sockets, over pipes in shared memory, or over a simulation. It
//! keeps everything that needs the system: descriptors, addresses, readiness, random numbers.
#![deny(unsafe_code)]

use core::time::Duration;

use crate::payload::{GatherList, ScatterList};
use crate::port::memory::{Address, ConnectError, LostError, Origin};

/// The word with which [`StreamTransport::ready`] reports that a stream has come in.
pub const LISTENER: u64 = 0;

/// The result of reading from, or writing to, a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamResult {
    /// So many bytes, at least one and at most those of the list, were transferred from its beginning on.
    Bytes(usize),
    /// Nothing can be transferred now.
    Blocked,
    /// The other end has ended its stream in good order. Only reading returns this.
    Ended,
    /// The stream is lost.
    Failed(LostError),
}

/// The events that [`StreamTransport::ready`] reports for a stream, besides that it can be read or has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Whether the stream was never watched before.
    pub new: bool,
    /// Whether to report that it can be written.
    pub writable: bool,
}

/// A connected pair of byte streams that never blocks.
///
/// # Safety
/// - `read`, `write` and `pull` touch the memory of their lists only during the call.
/// - After `withdraw` has returned, and after the stream is dropped, no pull by the peer that is still in
///   progress succeeds.
#[allow(unsafe_code, reason = "the trait has obligations; nothing unsafe is done here")]
pub unsafe trait ByteStream {
    /// Whether [`StreamTransport::ready`] reports the stream again if a read has left bytes in it. Otherwise it does so
    /// only after a read that was blocked.
    const REPORTS_REST: bool = false;

    /// Whether the stream lies in memory, so that [`ByteStream::is_ready`] finds what the peer has done. The port then
    /// asks [`StreamTransport::ready`] only now and then.
    const IN_MEMORY: bool = false;

    /// Returns the result of connecting; `None` if it is not known yet.
    fn is_connected(&mut self) -> Option<Result<(), ConnectError>>;

    /// Reads available bytes.
    fn read(&mut self, into: &mut ScatterList<'_>) -> StreamResult;

    /// Writes as much as fits.
    fn write(&mut self, from: &GatherList<'_>) -> StreamResult;

    /// Takes note that [`StreamTransport::ready`] has reported this stream. Only for streams in memory.
    fn was_reported(&mut self) {}

    /// Returns whether there are bytes to read, or room for a write that was blocked, as far as memory shows it.
    fn is_ready(&mut self) -> bool {
        false
    }

    /// Announces that this process may sleep until [`StreamTransport::ready`] reports something. From then on the peer
    /// makes it do so. Returns whether there is nothing to do first.
    fn prepare_sleep(&mut self) -> bool {
        true
    }

    /// Ends the announcement of a sleep.
    fn awake(&mut self) {}

    /// Returns whether a write is to be tried again when the stream is reported as writable. If not, the peer
    /// notifies in another way.
    fn wants_writable(&self) -> bool {
        true
    }

    /// Returns whether the peer's memory can be read, as far as is known.
    fn can_pull(&mut self) -> bool {
        false
    }

    /// Returns whether the peer should read these bytes of this process from their place: they are in memory, so
    /// that it waits for nothing. Otherwise they are written to the stream.
    fn may_lend(&mut self, address: u64, len: u32) -> bool {
        let _ = (address, len);
        true
    }

    /// Copies from the peer's memory, without waiting for pages of the peer.
    fn pull(&mut self, from: u64, into: &mut ScatterList<'_>) -> PullResult {
        let _ = (from, into);
        PullResult::Failed
    }

    /// Revokes the memory that the peer may pull. Afterwards the stream has no other use.
    fn withdraw(&mut self) {}

    /// Returns the number of written bytes that would be lost if this process ended now.
    fn unconfirmed(&self) -> usize {
        0
    }

    /// Takes note that the connection is ready: from now on [`ByteStream::is_silent`] is called now and then.
    fn was_opened(&mut self) {}

    /// Returns whether the other machine has given no answer for too long, although written bytes wait for one. `now`
    /// is the time of the port.
    fn is_silent(&mut self, now: Duration) -> bool {
        let _ = now;
        false
    }

    /// Returns where the other end is, as the system reports it.
    fn origin(&self) -> Option<Origin>;

    /// Ends the outgoing stream.
    fn finish(&mut self);
}

/// The result of a copy from the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullResult {
    /// All bytes are there.
    Done,
    /// The bytes are not all in memory. Nothing was copied; a later try may succeed.
    Later,
    /// It failed, or the peer may have revoked the memory meanwhile ([`ByteStream::withdraw`]). The copied bytes are
    /// arbitrary.
    Failed,
}

/// A source of streams.
pub trait StreamTransport {
    /// The type of its streams.
    type Stream: ByteStream;

    /// Its name.
    const NAME: &'static str;

    /// Whether its streams may be able to pull.
    const PULLS: bool = false;

    /// Returns its address for others, with the token that they must present.
    fn address(&self, token: u64) -> Option<Address>;

    /// Splits an address of this transport into its place and its token.
    fn parse(address: &Address) -> Option<(&[u8], u64)>;

    /// Starts to connect.
    ///
    /// # Errors
    /// See [`ConnectError`].
    fn connect(&mut self, to: &[u8]) -> Result<Self::Stream, ConnectError>;

    /// Returns the next incoming stream.
    fn accept(&mut self) -> Option<Self::Stream>;

    /// Requests that [`StreamTransport::ready`] reports this stream by `word`, until it is dropped. If the
    /// request fails, the stream seems silent, and deadlines end it.
    fn watch(&mut self, stream: &Self::Stream, word: u64, interest: Interest);

    /// Ends a request to report this stream, whose owner reads it in every poll, until it is watched as a new one.
    /// The transport spends time on each report, also on one that its owner does not need.
    fn unwatch(&mut self, stream: &Self::Stream);

    /// Fills `words` with the words of streams that can make progress, or [`LISTENER`], and returns their
    /// number. A stream is reported again as long as it has unread bytes, if it has [`ByteStream::REPORTS_REST`]. One
    /// in memory is reported at the peer's departure, and at what the peer does after [`ByteStream::prepare_sleep`].
    fn ready(&mut self, words: &mut [u64]) -> usize;

    /// Returns an unpredictable number, for keys and tokens.
    ///
    /// # Errors
    /// The system's error number.
    fn random(&mut self) -> Result<u64, i32>;

    /// Returns the file descriptor that becomes readable when [`StreamTransport::ready`] has something to
    /// report; `None` if there is none.
    fn descriptor(&self) -> Option<i32>;
}
