//! Tests of the engine over the shared-memory port, whole worlds in one thread.

mod basics;
mod bypass;
mod ceiling;
mod failure;
mod hostile;
mod oracle;
mod simulation;
mod spy;
mod world;
