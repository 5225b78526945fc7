//! Observation: what an endpoint has done, and which path it takes to each rank.
//!
//! | file | contents |
//! |---|---|
//! | `observe/counters.rs` | counters, the routes to all ranks ([`Endpoint::explain`](super::Endpoint::explain)), the cost of matching |
//! | `observe/trace.rs` | the call tree: its recorder in this build, and its text |

mod counters;
#[cfg(test)]
mod tests;
mod trace;

pub use counters::{Counters, EngineCounters, PeerCounters, RegistrationCounters, WaitCounters};

pub(super) use trace::{Recorder, recorder};
