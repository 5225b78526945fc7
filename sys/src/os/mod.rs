//! A thin, checked layer over the Linux calls that the shared-memory port needs.
//!
//! | module | content |
//! |---|---|
//! | [`segment`] | memory that other processes can map, without a name in any file system |
//! | [`handoff`] | one connection to each peer, for a handshake and file descriptors |
//! | `closer` | closing foreign descriptors whose close may block |
//! | `background` | threads that wait so that no thread of the program has to |
//! | `descriptor` | new descriptors, which are never those of the standard streams |
//! | [`watch`] | detecting that a peer is gone |
//! | [`borrow`] | opening a segment of a peer that has not sent its descriptor |
//! | [`wake`] | sleeping and waking through shared memory; the one-sided fence |
//! | [`memory`] | reading and writing a peer's memory in one copy |
//! | `forked` | sockets that a forked child does not keep |
//! | `life` | whether a process number still means the same process |
//! | [`mapping`] | detecting that addresses get other pages |
//! | [`clock`] | comparing times |
//! | `interfaces` | the addresses of this machine |
//! | `shortage` | failures that pass: an operation is repeated, a listener pauses |
//! | [`limits`] | checks before reservations: memory, locked memory, descriptors |
//! | `owner` | the user of the other end of a TCP connection |
//! | `origin` | telling a forked child from the process that opened an object |
//! | [`numa`] | processors, memory nodes, caches, pages |
//! | `cancel`, `stack` | cancellation and stack of the calling thread |
//!
//! Nothing in these modules leaves a name behind, installs a signal handler, prints, or waits past its deadline.
//! `forked` installs a handler of `fork`. Three start threads: [`mapping`] on request, `closer` when another
//! process has sent a descriptor whose close may block, and [`memory`] when another process has offered pages that are
//! not in memory. Every error is one line with the failure and the remedy. Descriptors
//! are close-on-exec, and segments are not inherited by `fork`.
//!
//! Not public, because some functions are safe only as this crate uses them:
//!
//! ```compile_fail,E0603
//! use nemesia::os::RemoteMemory;
//! ```

mod background;
pub mod borrow;
mod call;
#[cfg(feature = "internals")]
mod cancel;
pub mod clock;
pub(crate) mod closer;
pub(crate) mod descriptor;
pub mod error;
mod forked;
pub mod handoff;
pub(crate) mod interfaces;
pub(crate) mod life;
pub mod limits;
pub mod mapping;
pub mod memory;
mod message;
pub mod numa;
mod origin;
#[cfg(feature = "internals")]
pub(crate) mod owner;
mod pagemap;
mod random;
pub(crate) mod released;
pub(crate) mod reserve;
pub mod segment;
pub(crate) mod shortage;
#[cfg(feature = "internals")]
mod stack;
mod store;
#[cfg(test)]
pub(crate) mod testing;
pub mod wake;
pub mod watch;

pub(crate) use background::PageFetch;
pub(crate) use call::wait_any;
#[cfg(test)]
pub(crate) use call::wait_ready;
#[cfg(feature = "internals")]
pub use cancel::CancellationOff;
pub use closer::ForeignFd;
pub use error::{Bytes, ShmError};
pub(crate) use forked::close_in_children;
pub use handoff::{Credentials, Departure, HandoffConnection, HandoffListener};
pub use memory::{CopyError, IdentityStamp, RemoteMemory, allow_any_reader};
pub(crate) use origin::ProcessOrigin;
pub(crate) use pagemap::{PageTable, PageUse};
pub(crate) use random::random;
pub use segment::{Access, AttachLimits, HugePages, Segment, SegmentBacking, SegmentOptions};
#[cfg(feature = "internals")]
pub use stack::with_room;
pub use wake::{HeavyFence, WaitResult, futex_wait, futex_wait_bits, futex_wake, futex_wake_bits};
pub(crate) use watch::EventSet;
pub use watch::{Departed, Watch};
