//! The key of a job: how two processes prove to each other that they know it, without sending it.
//!
//! All processes of a job know 32 random bytes, the [`JobKey`]. The layer above distributes them; this module neither
//! makes nor sends a key. A connection between machines begins with three messages
//! ([`wire::hello`](crate::wire::hello)):
//!
//! 1. the called process sends a *challenge*: random bytes that it accepts once ([`Challenges`]);
//! 2. the caller sends its *nonce* ([`Nonces`]) and a proof: an HMAC-SHA256 by the key over [`CallTerms`];
//! 3. the called process sends its own proof: an HMAC-SHA256 by the key over the caller's proof, the nonce and its
//!    own answer.
//!
//! | attack | what prevents it |
//! |---|---|
//! | another key | the proofs differ |
//! | a recorded request is sent again | its challenge is used up, or its number is no longer valid |
//! | a recorded answer is sent again | it covers the caller's proof, and thereby a nonce that is used once |
//! | a proof is sent back to its author | the two proofs begin with different labels, and a request names the called rank |
//! | a process passes a caller's proof on to another process | the proof covers the called rank and address |
//! | a restarted process is taken for the former one | the proofs cover both incarnations and tokens |
//! | another world with the same key | the proof covers the number of the world |
//!
//! Both proofs are computed before anything is allocated for the caller: a stranger costs one challenge, which takes no
//! memory, and one refusal.
//!
//! The proofs do not encrypt or authenticate the packets that follow. A process that can change the bytes between two
//! machines while they travel can still take over a connection that both ends have accepted.
#![forbid(unsafe_code)]

mod challenges;
#[cfg(test)]
mod tests;

use core::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

pub use challenges::{Challenges, LIFE, Nonces, WINDOW};

use crate::wire::hello::{CALL_BYTES, Challenge, PROOF_BYTES, Proof};

/// Bytes of a key, and of the random seed of a process.
pub const KEY_BYTES: usize = 32;

/// What the first bytes of each HMAC say about its purpose. All have the same length.
const REQUEST: &[u8; 16] = b"nemesia request ";
const ANSWER: &[u8; 16] = b"nemesia answer  ";
const CHALLENGE: &[u8; 16] = b"nemesia challeng";
const NONCE: &[u8; 16] = b"nemesia nonce   ";

/// The key of a job: 32 random bytes that all its processes know, and no other process.
///
/// It is not printed: its `Debug` shows no byte of it.
#[derive(Clone, Copy)]
pub struct JobKey([u8; KEY_BYTES]);

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobKey(..)")
    }
}

impl PartialEq for JobKey {
    /// Compares in constant time.
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().zip(other.0).fold(0, |all, (one, two)| all | (one ^ two)) == 0
    }
}

impl Eq for JobKey {}

/// The facts of a call that both sides know, and that the caller's proof covers.
#[derive(Clone, Copy, Debug)]
pub struct CallTerms<'a> {
    /// Number of the world.
    pub world: u64,
    /// The challenge of the called process.
    pub challenge: Challenge,
    /// The caller's nonce.
    pub nonce: u64,
    /// What the caller says about itself: rank, incarnation, token, rail, sizes.
    pub caller: [u8; CALL_BYTES],
    /// The caller's address, opaque; empty if the called process cannot know it.
    pub caller_address: &'a [u8],
    /// Rank of the called process.
    pub callee: u32,
    /// The address that the caller has called, opaque.
    pub callee_address: &'a [u8],
}

/// Starts an HMAC by this key with this label.
pub(crate) fn mac(key: &[u8; KEY_BYTES], label: &[u8; 16]) -> Hmac<Sha256> {
    // The key is shorter than a block of the hash, so it is copied and not hashed.
    let mut block = hmac::digest::Key::<Hmac<Sha256>>::default();
    block.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
    let mut mac = Hmac::<Sha256>::new(&block);
    mac.update(label);
    mac
}

/// Returns the first 16 bytes of an HMAC.
pub(crate) fn truncated(mac: Hmac<Sha256>) -> [u8; PROOF_BYTES] {
    let mut first = [0; PROOF_BYTES];
    first.iter_mut().zip(mac.finalize().into_bytes()).for_each(|(to, from)| *to = from);
    first
}

impl JobKey {
    /// Returns the key that consists of these bytes.
    pub const fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes, to pass them to the other processes of the job.
    pub const fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    fn request_mac(&self, terms: &CallTerms<'_>) -> Hmac<Sha256> {
        let CallTerms { world, challenge, nonce, caller, caller_address, callee, callee_address } = terms;
        let mut mac = mac(&self.0, REQUEST);
        mac.update(&world.to_le_bytes());
        mac.update(&challenge.number.to_le_bytes());
        mac.update(&challenge.random);
        mac.update(&nonce.to_le_bytes());
        mac.update(caller);
        #[cfg(nemesia_injected_fault)]
        if crate::injected_fault::injected(crate::injected_fault::InjectedFault::ForgetCallee) {
            return mac;
        }
        mac.update(&callee.to_le_bytes());
        for address in [caller_address, callee_address] {
            mac.update(&(address.len() as u64).to_le_bytes());
            mac.update(address);
        }
        mac
    }

    /// Returns the caller's proof.
    pub fn request_proof(&self, terms: &CallTerms<'_>) -> Proof {
        Proof(truncated(self.request_mac(terms)))
    }

    /// Returns whether this is the caller's proof. Takes the same time for every wrong proof.
    pub fn accepts_request(&self, terms: &CallTerms<'_>, proof: &Proof) -> bool {
        #[cfg(nemesia_injected_fault)]
        if crate::injected_fault::injected(crate::injected_fault::InjectedFault::SkipProof) {
            return true;
        }
        self.request_mac(terms).verify_truncated_left(&proof.0).is_ok()
    }

    fn answer_mac(&self, request: &Proof, nonce: u64, answer: &[u8]) -> Hmac<Sha256> {
        let mut mac = mac(&self.0, ANSWER);
        mac.update(&request.0);
        mac.update(&nonce.to_le_bytes());
        mac.update(answer);
        mac
    }

    /// Returns the proof of the called process: for the proof and the nonce of the request, and with the answer's own
    /// bytes.
    pub fn answer_proof(&self, request: &Proof, nonce: u64, answer: &[u8]) -> Proof {
        #[cfg(nemesia_injected_fault)]
        if crate::injected_fault::injected(crate::injected_fault::InjectedFault::UnboundDirection) {
            return *request;
        }
        Proof(truncated(self.answer_mac(request, nonce, answer)))
    }

    /// Returns whether this is the proof of the called process. Takes the same time for every wrong proof.
    pub fn accepts_answer(&self, request: &Proof, nonce: u64, answer: &[u8], proof: &Proof) -> bool {
        #[cfg(nemesia_injected_fault)]
        if crate::injected_fault::injected(crate::injected_fault::InjectedFault::UnboundDirection) {
            return request == proof;
        }
        self.answer_mac(request, nonce, answer).verify_truncated_left(&proof.0).is_ok()
    }
}
