//! Tests of the whole engine over the shared-memory port, and what the tests of the rooms share: worlds of engines in
//! one thread (`world.rs`), and the recording port.

mod basics;
mod completion;
pub(in crate::engine) mod exchange;
mod hostile;
mod lists;
pub(in crate::engine) mod recording;
pub(in crate::engine) mod world;
