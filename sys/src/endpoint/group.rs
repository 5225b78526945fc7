//! Calls of all ranks, or of all that are left: they end although ranks die.
//!
//! | file | contents |
//! |---|---|
//! | `group/barrier.rs` | the barrier |
//! | `group/agree.rs` | agreement on flags and on the ranks that are gone (as MPI's ULFM); ranking of the others |
//! | `group/among.rs` | the same among a list of ranks |
//! | `group/among_peers.rs` | the same among a group of peers |
//! | `group/exchange.rs` | texts of all members, for each of them |
//! | `group/members.rs` | the members of a call, and how they are reached |
//! | `group/restart.rs` | ranks that were started again: they are found and readmitted |
//!
//! The algorithms of agreement are in [`nemesia_core::agreement`]. Their messages are ordinary messages.

mod barrier;

mod agree;
mod among;
mod among_peers;
mod exchange;
mod members;
mod restart;

pub use agree::{Agreed, Ranking};
pub use among::Among;
pub use among_peers::AmongPeers;

pub(super) use agree::Agreements;
pub(super) use among::checked;
pub(super) use barrier::BarrierStep;
pub(super) use members::CallGroup;
