//! RDMA devices through libibverbs: InfiniBand, `RoCE` and iWARP.
//!
//! A thin layer that owns the objects of the library and drops them in the right order: a [`Device`] has
//! [`Domain`]s, which have [`MemoryRegion`]s, [`SharedReceives`] and [`QueuePair`]s. Completions arrive in a
//! [`CompletionQueue`]. [`VerbsPort`] is the memory port over these, connected by RDMA-CM (librdmacm) or
//! by datagrams ([`SetUpChoice`]). Queue pairs can also be joined by bytes that travel by any other means
//! ([`PairInfo`]).
//!
//! The library is opened at run time. Codes of the device (status, opcode, event) are kept as numbers. An
//! unknown code is a failure with that number, never a panic.
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
//! Registered memory is pinned. Since Linux 5.12 a child of `fork` gets a copy of it, and nothing needs to be
//! done ([`ForkSafety::Unneeded`]). On older kernels, the first write after a fork moves the parent to pages
//! that the device does not know: call [`prepare_fork`] before anything is registered, or let the child `exec`
//! at once. A forked child must not use anything of this module: its queues are shared with the parent, or not
//! mapped at all.

mod code;
mod completion;
mod datagram;
mod device;
mod domain;
mod exchange;
mod fork;
mod pair;
mod port;
mod setup;
mod shared;
mod survey;

pub use crate::rdma::VerbsError;
pub use code::{describe_event, describe_status};
pub use completion::{CompletionQueue, Polled};
pub use device::{AsyncEvent, Device, DeviceTransport, Gid, LinkLayer, PortAttributes};
pub use domain::{Domain, MemoryRegion};
pub use exchange::{INFO_BYTES, InfoError, PairInfo};
pub use fork::{ForkSafety, fork_safety, prepare_fork};
pub use pair::{Depths, PathAttributes, QueuePair};
pub use port::{PortOptions, VerbsPort};
pub use setup::SetUpChoice;
pub use shared::SharedReceives;
pub use survey::{DevicePreference, DeviceSelection, Seen, choose, survey};

pub(crate) use port::DESCRIPTORS;
pub(crate) use setup::is_joined_address;
pub(crate) use survey::NONE;
