//! Observation.

mod counters;
#[cfg(test)]
mod tests;
mod trace;

pub use counters::{Counters, EngineCounters, PeerCounters, WaitCounters};

pub(super) use trace::{Recorder, recorder};
