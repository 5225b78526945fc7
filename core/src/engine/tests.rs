//! Tests of the engine over the shared-memory port. Each test runs whole worlds in one thread.

mod active;
mod basics;
mod bypass;
mod ceiling;
mod counters;
mod failure;
mod hostile;
mod lists;
mod oracle;
mod probe;
mod protocol;
mod reconnect;
mod recording;
mod rendezvous;
mod rma;
mod simulation;
mod world;
