//! A request of this process that waits for its acceptance.
#![forbid(unsafe_code)]

use core::time::Duration;

use crate::job_key::JobKey;
use crate::port::PeerId;
use crate::port::memory::Address;
use crate::wire::hello::{Challenge, Hello, Proof};

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

/// What two processes without a world have agreed upon before they connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquaintance {
    /// The random number that this process presents to the peer.
    pub token: u64,
    /// The random number that the peer presents.
    pub expected: u64,
    /// The number by which the peer knows this process.
    pub number: PeerId,
    /// The key by which both prove themselves in further connections. Only they know it.
    pub key: JobKey,
}

/// Returns whether a process presents what was agreed upon with a peer.
pub(super) fn is_expected(expected: Option<Acquaintance>, hello: &Hello) -> bool {
    expected.is_some_and(|known| known.expected == hello.token)
}
