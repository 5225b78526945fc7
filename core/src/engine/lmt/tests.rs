//! Tests of large messages.

mod prepared;
mod protocol;
mod rendezvous;
