//! Calls of all ranks.

mod barrier;

mod agree;
mod restart;

pub use agree::{Agreed, Ranking};

pub(super) use agree::Agreements;
pub(super) use barrier::{BarrierStep, free_context};
