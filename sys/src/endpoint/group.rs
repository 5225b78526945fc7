//! Calls of all ranks, or of all that are left: they end although ranks die.
//!
//! | file | contents |
//! |---|---|
//! | `group/barrier.rs` | the barrier, and the matching contexts that these calls reserve |
//! | `group/agree.rs` | agreement on flags and on the ranks that are gone (as MPI's ULFM); ranking of the others |
//! | `group/among.rs` | the same among a list of ranks |
//! | `group/restart.rs` | ranks that were started again: they are found and readmitted |
//!
//! The algorithms of agreement are in [`nemesia_core::agreement`]. Their messages are ordinary messages.

mod barrier;

mod agree;
mod among;
mod restart;

pub use agree::{Agreed, Ranking};
pub use among::Among;

pub(super) use agree::Agreements;
pub(super) use among::checked;
pub(super) use barrier::{BarrierStep, CONTEXT as BARRIER_CONTEXT, free_context};
