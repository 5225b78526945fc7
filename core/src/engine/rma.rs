//! One-sided operations: put, get and atomic operations on memory that another process exposes. The target
//! process only has to call [`Engine::progress`](super::Engine::progress). Paper 3 has them directly on RDMA.
//!
//! | file | contents |
//! |---|---|
//! | `rma/region.rs` | exposed memory regions |
//! | `rma/origin.rs` | starting operations; sending requests; handling replies |
//! | `rma/target.rs` | executing requests; sending replies |
//! | `rma/direct.rs` | puts and gets by remote memory access |
//! | `rma/queue.rs` | the order in which requests and active messages leave; their end if the peer fails |
//! | `rma/account.rs` | the state of operations whose target has left |
//! | `rma/reduce.rs` | arithmetic |
//!
//! | state of an operation | list of the peer | next |
//! |---|---|---|
//! | `Remote` | `leaving`: waits for space, or for a place in the window | `awaited`, or `Done` |
//! | `Remote` | `awaited`: was sent, and the peer must answer | `Done` |
//! | `Fence` | `leaving`: waits until `awaited` is empty | ends |
//! | `Notified` | that of the region | `Done` |
//!
//! Invariants:
//! - The target executes the operations of one origin in the order started, atomic ones included (MPI's
//!   default accumulate ordering). Only a get may observe writes of operations started after it, unless a
//!   fence separates them. Atomic operations of all origins on one value are atomic with respect to each
//!   other.
//! - A put or an accumulate is complete when its bytes have left the buffer, or on request when the target has
//!   executed it ([`CompleteAt`]); then its outcome is known. A get or fetch is complete when the value has
//!   arrived. When a flush is complete, all operations before it are done at the target, and it reports the refusals
//!   of all that were complete earlier.
//! - A target stores no request: it executes each request on arrival. It stores replies for which there is no
//!   space, at most [`WINDOW`] for each origin, because an origin starts no more. Two processes that flood
//!   each other with gets always consume each other's packets, so space for the replies becomes free again.
//! - If a request lacks access rights, the target refuses it and continues. If a request is malformed, it
//!   counts as a fault of its sender.
#![forbid(unsafe_code)]

mod account;
mod direct;
mod origin;
mod queue;
mod reduce;
mod region;
mod target;
#[cfg(test)]
mod tests;

pub use super::state::RegionId;
pub use crate::wire::rma::{Access, Comparison, Datatype, Reduction, Refusal, RemoteKey, WINDOW};
pub(super) use direct::DirectTable;
pub use origin::{CompleteAt, Target};
pub use reduce::{combine, swap};
pub(super) use region::Regions;
pub use region::{Addressing, ExposeError, ExposedRegion, RegionMemory};
pub use target::Reply;
