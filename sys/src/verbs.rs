//! RDMA devices through libibverbs: InfiniBand, `RoCE` and iWARP.
//!
//! A thin layer that owns what the library gives out and keeps its parts alive in the right order: a [`Device`] has
//! [`Domain`]s, which have [`MemoryRegion`]s, [`SharedReceives`] and [`QueuePair`]s; completions come in a
//! [`CompletionQueue`]. [`VerbsPort`] is the memory port over it, connected by RDMA-CM ([`crate::cm`]); queue pairs can also
//! be joined by bytes that travel by any other means ([`PairInfo`]).
//!
//! The library is opened at run time. Codes of the device (status, opcode, event) are kept as numbers: one that is not known
//! here is a failure with that number, never a panic.
//!
//! # Soft devices
//! On soft `RoCE` (rxe) and soft iWARP (siw) the port holds back fenced work requests until the reads before them are
//! answered, and on siw also reads above the number of reads under way: the devices' own queues would wait without end.
//!
//! The siw of Linux (6.1 at least) has two mistakes in what it sends. They are on the side that answers, so no port
//! can avoid them:
//! - The answer to a read of no bytes may have bytes. The connection then ends with
//!   [`WorkError::General`](nemesia_core::port::memory::WorkError::General) (status 21) or another failure.
//! - Payloads of at most 32 bytes that cross the end of a page may arrive with wrong contents, without an error:
//!   answers to reads always, sends and writes if they waited in the queue.
//!
//! Use siw for tests, with the mends of `tests/vm/siw.py`, and not for data that matters.
//!
//! # Fork
//! Registered memory is pinned. A child of `fork` has a copy of it since Linux 5.12, and nothing has to be done
//! ([`ForkSafety::Unneeded`]). Before, the first write after a fork moved the parent away from the pages that the device
//! knows: call [`prepare_fork`] before anything is registered, or let the child `exec` at once. Nothing of this module may be used in
//! the child of a fork: its queues are mapped shared with the parent, or not at all.

mod code;
mod completion;
mod device;
mod domain;
mod error;
mod exchange;
mod fork;
mod library;
mod pair;
mod port;
mod shared;
mod survey;

pub use code::{describe_event, describe_status};
pub use completion::{CompletionQueue, Polled};
pub use device::{AsyncEvent, Device, Gid, LinkLayer, PortAttributes, Transport};
pub use domain::{Domain, MemoryRegion};
pub use error::VerbsError;
pub use exchange::{INFO_BYTES, InfoError, PairInfo};
pub use fork::{ForkSafety, fork_safety, prepare_fork};
pub use pair::{Depths, QueuePair};
pub use port::{PortOptions, VerbsPort};
pub use shared::SharedReceives;
pub use survey::{Choice, Seen, Wish, choose, survey};

pub(crate) use device::set_nonblocking;
pub(crate) use error::last_errno;
pub(crate) use library::{manager, verbs};
pub(crate) use pair::{RETRIES, RNR_FOREVER, attributes};
pub(crate) use survey::NONE;
