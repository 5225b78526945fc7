//! Tests of large messages.

mod protocol;
mod rendezvous;
mod unasked;
