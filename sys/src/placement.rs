//! Software placement: a memory port over byte streams, for machines without an RDMA device.
//!
//! What [`wire::placement`](nemesia_core::wire::placement) specifies, executed by the processor: the target checks key,
//! rights and bounds of every access, and copies from the stream straight to where the bytes belong, or from there. The
//! kernel's buffers are the only others that bulk data pass through.
//!
//! Memory is bounded: a connection takes 16 KiB for each direction and its two queues, whatever the peer does. What a
//! peer sends can end its own connection and nothing else.
//!
//! | module | what it holds |
//! |---|---|
//! | `regions` | registered memory |
//! | `link` | a connection: its queues, and how it ends |
//! | `send` | what goes out |
//! | `arrive` | what comes in |
//! | `greet` | streams without a connection: before it is asked for, and after it was refused |
//! | `drive` | what the port does when it is polled: connections are made, move on, and end |
//! | `port` | the port |

mod arrive;
mod drive;
mod greet;
mod link;
mod port;
mod regions;
mod send;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nemesia_core::port::memory::{Address, ConnectError, Origin};

pub use port::{Options, PlacementPort};

/// Bytes of a connection's buffer for what goes out, and of that for what comes in.
const STAGE_BYTES: usize = 16 << 10;

/// A connected pair of byte streams that never blocks.
///
/// # Safety
/// `read` and `write` touch no memory but that which the vectors name, and only during the call.
pub unsafe trait Stream: AsFd {
    /// Whether it is connected; `None` when that is not known yet.
    fn is_connected(&mut self) -> Option<Result<(), ConnectError>>;

    /// Reads what is there; 0 at the end.
    ///
    /// # Safety
    /// The vectors name memory that may be written.
    unsafe fn read(&mut self, into: &[libc::iovec]) -> io::Result<usize>;

    /// Writes what fits.
    ///
    /// # Safety
    /// The vectors name memory that may be read.
    unsafe fn write(&mut self, from: &[libc::iovec]) -> io::Result<usize>;

    /// Whether it is to be tried again as soon as the descriptor is writable; else the peer tells in another way.
    fn wants_writable(&self) -> bool {
        true
    }

    /// Whether the peer's memory can be read, as far as is known.
    fn can_pull(&mut self) -> bool {
        false
    }

    /// Copies from the peer's memory; false when that failed, or when the peer may have taken it back meanwhile
    /// ([`Stream::withdraw`]): what was copied then may be anything.
    ///
    /// # Safety
    /// The vectors name memory that may be written.
    unsafe fn pull(&mut self, from: u64, into: &[libc::iovec]) -> bool {
        let _ = (from, into);
        false
    }

    /// Takes back what the peer was told it may pull, which it may never have done: from the return on, no pull of the peer's
    /// that has not succeeded does. The stream is of no other use then.
    fn withdraw(&mut self) {}

    /// Where the other end is, as the kernel says.
    fn origin(&self) -> Option<Origin>;

    /// Says that nothing more is written.
    fn finish(&mut self);
}

/// Where streams come from.
pub trait Transport {
    /// The streams.
    type Stream: Stream;

    /// What it is called.
    const NAME: &'static str;

    /// Whether its streams may be able to pull.
    const PULLS: bool = false;

    /// Where others find it, without the token.
    fn address(&self) -> Vec<u8>;

    /// Begins to connect.
    fn connect(&mut self, to: &[u8]) -> Result<Self::Stream, ConnectError>;

    /// The next one that somebody else has connected.
    fn accept(&mut self) -> Option<Self::Stream>;

    /// Becomes readable when there is one.
    fn listener(&self) -> BorrowedFd<'_>;

    /// Reads the beginning of an address of this transport.
    fn parse(address: &Address) -> Option<(&[u8], u64)>;
}
