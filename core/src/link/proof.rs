//! Proofs: how two ends of a link show each other that they were given an address, without sending its token.
//!
//! Each value is an HMAC-SHA256 by a key, over a label and the named bytes, cut to 16 bytes. `Tc` is the key of the
//! called process: its token, mixed with the key of the job if both have one ([`LinkKey::new`]).
//!
//! | value | key | label and bytes | what it proves |
//! |---|---|---|---|
//! | mask of the caller's token | Tc | mask, challenge, nonce | only the called process finds the caller's address |
//! | P1, in the call | Tc | call, challenge, called address, bytes | the author was given this address, now, and says these bytes |
//! | P2, in the answer | Tc | answer, P1, bytes | the author was given the address too, and answers this call |
//! | S, the session | Tc | session, P1, P2 | not sent; the key of what follows |
//! | P3, in the confirmation | S | confirm, bytes | the author has taken part in the exchange |
//! | ticket i | S | ticket, i | a further stream or queue pair belongs to this link: 0 has the tokens of both ends, 1 and 2 the key of a stream, 3 that of masks |
//! | mask of a token in packets | ticket 3 | address, three numbers | only the ends of the link find the address |
//! | departure | Tc | leave, nonce, bytes | the author was given the address, and says that it leaves |
//!
//! Replay: a challenge counts once, and P2 covers P1. Reflection: the labels differ, and a call in the other direction
//! has another key. A departure may be repeated by anyone: an endpoint that has left does not return.
//!
//! Not held: two processes of one host that know the token of a third one can stand for it while it is not connected.
//! The proofs do not protect the packets that follow.
#![forbid(unsafe_code)]

use core::fmt;

use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use super::bytes::proven;
use super::token::{LinkToken, TOKEN_AT, TOKEN_BYTES, padded};
use crate::job_key::{JobKey, KEY_BYTES, mac, truncated};
use crate::peers::PeerAddress;
use crate::wire::hello::{Challenge, Proof};

/// What the first bytes of each HMAC say about its purpose. All have the same length.
const MASK: &[u8; 16] = b"nemesia mask    ";
const CALL: &[u8; 16] = b"nemesia call    ";
const ANSWER: &[u8; 16] = b"nemesia reply   ";
const SESSION: &[u8; 16] = b"nemesia session ";
const CONFIRM: &[u8; 16] = b"nemesia confirm ";
const TICKET: &[u8; 16] = b"nemesia ticket  ";
const LEAVE: &[u8; 16] = b"nemesia leave   ";
const MIX: &[u8; 16] = b"nemesia mix     ";
const ADDRESS: &[u8; 16] = b"nemesia address ";

/// The challenge of a call inside a machine, where the kernel says who the caller is.
pub const NO_CHALLENGE: Challenge = Challenge { number: 0, random: [0; TOKEN_BYTES] };

/// The key by which a called process and its callers prove to each other that they know its address.
///
/// It is not printed: its `Debug` shows no byte of it.
#[derive(Clone, Copy)]
pub struct LinkKey([u8; KEY_BYTES]);

impl fmt::Debug for LinkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkKey(..)")
    }
}

/// Returns the HMAC of some parts. Each purpose has parts of fixed lengths, but for the last one.
fn mac_of(key: &[u8; KEY_BYTES], label: &[u8; 16], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = mac(key, label);
    parts.iter().for_each(|part| mac.update(part));
    mac
}

/// Returns whether the proof at the end of a message is the HMAC. Takes the same time for every wrong proof.
fn accepts(mac: Hmac<Sha256>, proof: &Proof) -> bool {
    if fault!(SkipLinkProof) {
        return true;
    }
    mac.verify_truncated_left(&proof.0).is_ok()
}

impl LinkKey {
    /// Returns the key of the called process with this token. A key of the job, if both ends have one, strengthens it.
    pub fn new(token: &LinkToken, job: Option<&JobKey>) -> Self {
        match job {
            None => Self(padded(token.bytes())),
            Some(job) => Self(padded(&truncated(mac_of(job.bytes(), MIX, &[token.bytes()])))),
        }
    }

    /// Returns the key of the process with this address.
    pub fn of(address: &PeerAddress, job: Option<&JobKey>) -> Self {
        Self::new(&LinkToken::in_address(address.bytes()), job)
    }

    /// Masks the token in a caller's address, or removes the mask. `challenge` is absent in a departure.
    pub fn mask(&self, challenge: Option<&Challenge>, nonce: u64, address: &[u8; 64]) -> [u8; 64] {
        let number = challenge.map_or(0, |challenge| challenge.number).to_le_bytes();
        let random = challenge.map_or([0; 16], |challenge| challenge.random);
        let is_departure = [u8::from(challenge.is_none())];
        let parts: [&[u8]; 4] = [&number, &random, &is_departure, &nonce.to_le_bytes()];
        masked(address, truncated(mac_of(&self.0, MASK, &parts)))
    }

    fn call(&self, challenge: &Challenge, called: &PeerAddress, message: &[u8]) -> Hmac<Sha256> {
        let number = challenge.number.to_le_bytes();
        mac_of(&self.0, CALL, &[&number, &challenge.random, called.bytes(), proven(message)])
    }

    /// Returns P1 for a call with an empty proof.
    pub fn call_proof(&self, challenge: &Challenge, called: &PeerAddress, message: &[u8]) -> Proof {
        Proof(truncated(self.call(challenge, called, message)))
    }

    /// Returns whether this is P1 of the call.
    pub fn accepts_call(
        &self,
        challenge: &Challenge,
        called: &PeerAddress,
        message: &[u8],
        proof: &Proof,
    ) -> bool {
        accepts(self.call(challenge, called, message), proof)
    }

    fn answer(&self, call: &Proof, message: &[u8]) -> Hmac<Sha256> {
        mac_of(&self.0, ANSWER, &[&call.0, proven(message)])
    }

    /// Returns P2 for an answer with an empty proof to the call with this P1.
    pub fn answer_proof(&self, call: &Proof, message: &[u8]) -> Proof {
        Proof(truncated(self.answer(call, message)))
    }

    /// Returns whether this is P2 of the answer.
    pub fn accepts_answer(&self, call: &Proof, message: &[u8], proof: &Proof) -> bool {
        accepts(self.answer(call, message), proof)
    }

    /// Returns the key of the session that begins with these proofs.
    pub fn session(&self, call: &Proof, answer: &Proof) -> LinkSession {
        LinkSession(truncated(mac_of(&self.0, SESSION, &[&call.0, &answer.0])))
    }

    fn departure(&self, nonce: u64, message: &[u8]) -> Hmac<Sha256> {
        mac_of(&self.0, LEAVE, &[&nonce.to_le_bytes(), proven(message)])
    }

    /// Returns the proof for a departure with an empty proof.
    pub fn departure_proof(&self, nonce: u64, message: &[u8]) -> Proof {
        Proof(truncated(self.departure(nonce, message)))
    }

    /// Returns whether this is the proof of the departure.
    pub fn accepts_departure(&self, nonce: u64, message: &[u8], proof: &Proof) -> bool {
        accepts(self.departure(nonce, message), proof)
    }
}

/// Returns an address whose token is masked, or without its mask.
fn masked(address: &[u8; 64], mask: [u8; TOKEN_BYTES]) -> [u8; 64] {
    let mut masked = *address;
    masked.iter_mut().skip(TOKEN_AT).zip(mask).for_each(|(byte, mask)| *byte ^= mask);
    masked
}

/// The key by which the two ends of an open link mask the tokens of addresses that they send each other in packets.
///
/// It is not printed: its `Debug` shows no byte of it.
#[derive(Clone, Copy)]
pub struct TokenMask([u8; KEY_BYTES]);

impl fmt::Debug for TokenMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenMask(..)")
    }
}

impl TokenMask {
    /// Returns the key that this ticket of a link is.
    pub fn new(ticket: &[u8; 16]) -> Self {
        Self(padded(ticket))
    }

    /// Masks the token of an address, or removes the mask. No two addresses of a link have the same numbers.
    pub fn apply(&self, numbers: [u64; 3], address: &PeerAddress) -> PeerAddress {
        let numbers = numbers.map(u64::to_le_bytes);
        let mask = truncated(mac_of(&self.0, ADDRESS, &[numbers.as_flattened()]));
        PeerAddress::from_bytes(masked(address.bytes(), mask))
    }
}

/// The key of a link whose ends have proved themselves.
///
/// It is not printed: its `Debug` shows no byte of it.
#[derive(Clone, Copy, Default)]
pub struct LinkSession([u8; 16]);

impl fmt::Debug for LinkSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkSession(..)")
    }
}

impl LinkSession {
    /// Returns P3 for a confirmation with an empty proof.
    pub fn confirm_proof(&self, message: &[u8]) -> Proof {
        Proof(truncated(mac_of(&padded(&self.0), CONFIRM, &[proven(message)])))
    }

    /// Returns whether this is P3 of the confirmation.
    pub fn accepts_confirm(&self, message: &[u8], proof: &Proof) -> bool {
        accepts(mac_of(&padded(&self.0), CONFIRM, &[proven(message)]), proof)
    }

    /// Returns the ticket with this number.
    pub fn ticket(&self, number: u32) -> [u8; 16] {
        truncated(mac_of(&padded(&self.0), TICKET, &[&number.to_le_bytes()]))
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::String;
    use std::vec::Vec;

    use super::*;

    const TOKEN: LinkToken = LinkToken::from_bytes(*b"0123456789abcdef");
    const CHALLENGE: Challenge = Challenge { number: 0x0102_0304, random: [0x5a; 16] };
    const CALLED: PeerAddress = PeerAddress::from_bytes([3; 64]);
    /// The last 16 bytes are the place of the proof.
    const MESSAGE: &[u8] = b"a messagePPPPPPPPPPPPPPPP";

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn answers_are_known() {
        let key = LinkKey::new(&TOKEN, None);
        let (p1, p2) = (key.call_proof(&CHALLENGE, &CALLED, MESSAGE), Proof([9; 16]));
        let session = key.session(&p1, &p2);
        let address: [u8; 64] = core::array::from_fn(|at| at as u8);
        let job = LinkKey::new(&TOKEN, Some(&JobKey::from_bytes([7; KEY_BYTES])));
        let found = [
            hex(&key.mask(Some(&CHALLENGE), 77, &address)[8..24]),
            hex(&key.mask(None, 77, &address)[8..24]),
            hex(&p1.0),
            hex(&key.answer_proof(&p1, MESSAGE).0),
            hex(&session.0),
            hex(&session.confirm_proof(MESSAGE).0),
            hex(&session.ticket(1)),
            hex(&key.departure_proof(77, MESSAGE).0),
            hex(&job.0),
            hex(&TOKEN.hand_off_name()),
            format!("{:016x}", TOKEN.epoch()),
            format!("{:08x}", TOKEN.queue_key()),
        ];
        assert_eq!(found, KNOWN);
    }

    #[test]
    fn a_mask_hides_only_the_token_and_is_its_own_inverse() {
        let key = LinkKey::new(&TOKEN, None);
        let address: [u8; 64] = core::array::from_fn(|at| at as u8);
        let masked = key.mask(Some(&CHALLENGE), 5, &address);
        assert_eq!((&masked[..8], &masked[24..]), (&address[..8], &address[24..]));
        assert!(masked[8..24] != address[8..24] && key.mask(Some(&CHALLENGE), 5, &masked) == address);
        for other in [
            key.mask(Some(&CHALLENGE), 6, &address),
            key.mask(None, 5, &address),
            key.mask(Some(&Challenge { number: 5, ..CHALLENGE }), 5, &address),
            LinkKey::new(&LinkToken::from_bytes([1; 16]), None).mask(Some(&CHALLENGE), 5, &address),
        ] {
            assert_ne!(other[8..24], masked[8..24]);
        }
    }

    #[test]
    fn a_proof_covers_its_key_and_everything_that_it_names() {
        let key = LinkKey::new(&TOKEN, None);
        let other = LinkKey::new(&LinkToken::from_bytes([1; 16]), None);
        let p1 = key.call_proof(&CHALLENGE, &CALLED, MESSAGE);
        let late = Challenge { random: [1; 16], ..CHALLENGE };
        let elsewhere = PeerAddress::from_bytes([4; 64]);
        let says = b"b messagePPPPPPPPPPPPPPPP";
        assert!(key.accepts_call(&CHALLENGE, &CALLED, MESSAGE, &p1));
        assert!(key.accepts_call(&CHALLENGE, &CALLED, b"a messageQQQQQQQQQQQQQQQQ", &p1));
        assert!(!other.accepts_call(&CHALLENGE, &CALLED, MESSAGE, &p1));
        assert!(!key.accepts_call(&late, &CALLED, MESSAGE, &p1));
        assert!(!key.accepts_call(&CHALLENGE, &elsewhere, MESSAGE, &p1));
        assert!(!key.accepts_call(&CHALLENGE, &CALLED, says, &p1));
        let p2 = key.answer_proof(&p1, MESSAGE);
        assert!(key.accepts_answer(&p1, MESSAGE, &p2) && !key.accepts_answer(&p2, MESSAGE, &p2));
        assert!(!key.accepts_answer(&p1, MESSAGE, &p1) && !other.accepts_answer(&p1, MESSAGE, &p2));
        let session = key.session(&p1, &p2);
        let p3 = session.confirm_proof(MESSAGE);
        assert!(session.accepts_confirm(MESSAGE, &p3) && !session.accepts_confirm(says, &p3));
        assert!(!key.session(&p2, &p1).accepts_confirm(MESSAGE, &p3));
        assert_ne!(session.ticket(0), session.ticket(1));
        let left = key.departure_proof(5, MESSAGE);
        assert!(key.accepts_departure(5, MESSAGE, &left) && !key.accepts_departure(6, MESSAGE, &left));
    }

    #[test]
    fn no_text_shows_a_key() {
        let key = LinkKey([0xab; KEY_BYTES]);
        for text in [format!("{key:?}"), format!("{:?}", LinkSession([0xab; 16]))] {
            assert!(!text.contains("ab") && !text.contains("171"), "{text}");
        }
    }

    /// Computed with Python's `hmac` and `hashlib`.
    const KNOWN: [&str; 12] = [
        "32fd87d5f11ed3560f25f5b47c8c3973",
        "0316494991d0e1e93b0d3844571076dc",
        "b3e2d610aa8ee1807ea37e095518a248",
        "11f42aa655befcc2316954d4ca5c9a07",
        "26f3d458fe78adec7932b08ccf3b86e0",
        "b39a47f362295851411e4fdf03fce359",
        "80edf8277eadec3235c3fbd59b0de09f",
        "53ed218f429d5827df9c6d23e833bd5b",
        "60b5e3966fedf4e4decde687ebf1866a00000000000000000000000000000000",
        "945fc73a1610b1bf8858436c2d2940c6",
        "878e554814bab0ec",
        "0bcd14f2",
    ];

    #[test]
    fn a_mask_in_packets_hides_the_token_only_and_depends_on_its_numbers() {
        let mask = TokenMask::new(&[7; 16]);
        let hidden = mask.apply([1, 2, 3], &CALLED);
        assert_eq!(mask.apply([1, 2, 3], &hidden), CALLED);
        let differ = |one: &PeerAddress, other: &PeerAddress| {
            let pairs = one.bytes().iter().zip(other.bytes());
            pairs.enumerate().filter(|(_, (one, other))| one != other).map(|(at, _)| at).collect::<Vec<_>>()
        };
        let changed = differ(&hidden, &CALLED);
        assert!(
            changed.len() > 8 && changed.iter().all(|at| (TOKEN_AT..TOKEN_AT + TOKEN_BYTES).contains(at))
        );
        for other in [
            mask.apply([2, 2, 3], &CALLED),
            mask.apply([1, 3, 3], &CALLED),
            mask.apply([1, 2, 4], &CALLED),
            TokenMask::new(&[8; 16]).apply([1, 2, 3], &CALLED),
        ] {
            assert!(differ(&hidden, &other).len() > 8);
        }
    }
}
