//! A request of this process that waits for its acceptance.
#![forbid(unsafe_code)]

use core::time::Duration;

use crate::port::memory::Address;
use crate::wire::hello::{Challenge, Proof};

/// The proof of a request, and the nonce that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestProof {
    pub(super) nonce: u64,
    pub(super) proof: Proof,
}

/// A request of this process that the peer has not accepted yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutgoingCall {
    pub(super) to: Address,
    pub(super) deadline: Duration,
    /// The challenge to be answered next.
    pub(super) challenge: Option<Challenge>,
    /// Number of challenges so far.
    pub(super) challenges: u8,
    /// The proof that was sent with the present request; the first request has none.
    pub(super) proof: Option<RequestProof>,
}

impl OutgoingCall {
    pub(super) const fn new(to: &Address, deadline: Duration) -> Self {
        Self { to: *to, deadline, challenge: None, challenges: 0, proof: None }
    }
}
