//! Software placement: a memory port over byte streams, for machines without an RDMA device.
//!
//! The processor executes the specification of [`wire::placement`](nemesia_core::wire::placement). The target
//! checks key, access rights and bounds of every access, and copies directly between the stream and the
//! destination. Bulk data pass through no other buffers than the kernel's.
//!
//! Memory is bounded: a connection takes 16 KiB for each direction and its two queues, whatever the peer does.
//! A peer's bytes can end its own connection and nothing else.
//!
//! | module | what it holds |
//! |---|---|
//! | `regions` | registered memory |
//! | `link` | a connection: its queues, and how it ends |
//! | `send` | outgoing bytes |
//! | `arrive` | incoming bytes |
//! | `handshake` | streams without a connection: before the request, and after a refusal |
//! | `drive` | polling: connections are made, make progress, and end |
//! | `port` | the port |

mod arrive;
mod drive;
mod handshake;
mod link;
mod port;
mod regions;
mod send;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nemesia_core::port::memory::{Address, ConnectError, Origin};

pub use port::{Options, PlacementPort};

/// The bytes of each of a connection's two buffers, for outgoing and for incoming bytes.
const STAGE_BYTES: usize = 16 << 10;

/// A connected pair of non-blocking byte streams.
///
/// # Safety
/// `read` and `write` touch no memory outside the vectors, and only during the call.
pub unsafe trait Stream: AsFd {
    /// Returns the result of connecting; `None` if it is not known yet.
    fn is_connected(&mut self) -> Option<Result<(), ConnectError>>;

    /// Reads the available bytes; returns 0 at the end.
    ///
    /// # Safety
    /// The vectors name memory that may be written.
    unsafe fn read(&mut self, into: &[libc::iovec]) -> io::Result<usize>;

    /// Writes as much as fits.
    ///
    /// # Safety
    /// The vectors name memory that may be read.
    unsafe fn write(&mut self, from: &[libc::iovec]) -> io::Result<usize>;

    /// Returns whether a write is to be tried again when the descriptor is writable; otherwise the peer
    /// notifies in another way.
    fn wants_writable(&self) -> bool {
        true
    }

    /// Returns whether the peer's memory can be read, as far as is known.
    fn can_pull(&mut self) -> bool {
        false
    }

    /// Copies from the peer's memory. Returns false if that failed, or if the peer may have revoked it
    /// meanwhile ([`Stream::withdraw`]); the copied bytes are then arbitrary.
    ///
    /// # Safety
    /// The vectors name memory that may be written. The vectors name memory that may be written.
    unsafe fn pull(&mut self, from: u64, into: &[libc::iovec]) -> bool {
        let _ = (from, into);
        false
    }

    /// Revokes what the peer was told it may pull, even if it never did: after this call returns, every pull by
    /// the peer that is still in progress fails. Afterwards the stream has no other use.
    fn withdraw(&mut self) {}

    /// Returns where the other end is, as the kernel reports it.
    fn origin(&self) -> Option<Origin>;

    /// Ends the outgoing stream.
    fn finish(&mut self);
}

/// A source of streams.
pub trait StreamTransport {
    /// The type of its streams.
    type Stream: Stream;

    /// Its name.
    const NAME: &'static str;

    /// Whether its streams may be able to pull.
    const PULLS: bool = false;

    /// Returns its address for others, without the token.
    fn address(&self) -> Vec<u8>;

    /// Starts to connect.
    fn connect(&mut self, to: &[u8]) -> Result<Self::Stream, ConnectError>;

    /// Returns the next incoming stream.
    fn accept(&mut self) -> Option<Self::Stream>;

    /// Returns a descriptor that is readable when a stream has come in.
    fn listener(&self) -> BorrowedFd<'_>;

    /// Splits an address of this transport into its place and its token.
    fn parse(address: &Address) -> Option<(&[u8], u64)>;
}
