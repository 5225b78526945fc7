//! Tests of the whole engine over the shared-memory port, and what the tests of the rooms share: worlds of engines in
//! one thread (`world.rs`), the recording port and the oracle of matching.

mod basics;
mod completion;
pub(in crate::engine) mod exchange;
mod hostile;
mod lists;
mod oracle;
pub(in crate::engine) mod recording;
mod simulation;
pub(in crate::engine) mod world;
