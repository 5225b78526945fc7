//! Thin, checked layer over the Linux calls that the shared-memory port needs.
//!
//! | module | what it gives |
//! |---|---|
//! | [`segment`] | memory that other processes can map, without a name in any file system |
//! | [`handoff`] | meeting a peer once, to exchange a hello and file descriptors |
//! | `closer` | closing descriptors of others, where that could block |
//! | [`watch`] | learning that a peer is gone |
//! | [`borrow`] | opening a segment of a peer that has not handed it over |
//! | [`wake`] | sleeping and waking through shared memory; the one-sided fence |
//! | [`memory`] | reading and writing a peer's memory in one copy |
//! | [`mapping`] | learning that addresses get other pages |
//! | [`clock`] | comparing times |
//! | [`limits`] | asking before taking: memory, locked memory, descriptors |
//! | `origin` | telling a forked child from the process that opened something |
//! | [`numa`] | processors, memory nodes, cache lines |
//!
//! What holds for all of it: nothing here leaves a name behind, installs a signal handler, starts a thread ([`mapping`]
//! does, when asked, and `closer`, when another process hands over something that could block), prints, or waits past
//! its deadline. Every error is one line that says what failed and what to do about it. Descriptors are close-on-exec
//! and segments are not inherited by `fork`.
//!
//! Not public, because some of it is safe only as this crate uses it:
//!
//! ```compile_fail,E0603
//! use nemesia::os::RemoteMemory;
//! ```

pub mod borrow;
mod call;
pub mod clock;
pub(crate) mod closer;
pub mod error;
pub mod handoff;
pub mod limits;
pub mod mapping;
pub mod memory;
mod message;
pub mod numa;
mod origin;
pub(crate) mod released;
pub mod segment;
mod store;
#[cfg(test)]
pub(crate) mod testing;
pub mod wake;
pub mod watch;

#[cfg(test)]
pub(crate) use call::wait_ready;
pub(crate) use call::{random, wait_any};
pub use closer::ForeignFd;
pub use error::{Bytes, ShmError};
pub use handoff::{Credentials, HandoffConnection, HandoffListener};
pub use memory::{CopyError, IdentityStamp, RemoteMemory, allow_any_reader};
pub(crate) use origin::ProcessOrigin;
pub use segment::{Access, AttachLimits, HugePages, Segment, SegmentBacking, SegmentOptions};
pub use wake::{HeavyFence, WaitResult, futex_wait, futex_wait_bits, futex_wake, futex_wake_bits};
pub use watch::{Departed, Departure, Watch};
