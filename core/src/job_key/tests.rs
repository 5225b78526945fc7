//! What proofs cover, and which challenges are accepted.

use core::time::Duration;
use std::collections::HashSet;
use std::format;

use super::{CallTerms, Challenges, JobKey, KEY_BYTES, LIFE, Nonces, WINDOW, mac, truncated};
use crate::wire::hello::{CALL_BYTES, Challenge, PROOF_BYTES, Proof};

const KEY: JobKey = JobKey::from_bytes([0x0b; KEY_BYTES]);

fn terms() -> CallTerms<'static> {
    CallTerms {
        world: 1,
        challenge: Challenge { number: 2, random: [3; PROOF_BYTES] },
        nonce: 4,
        caller: [5; CALL_BYTES],
        caller_address: &[6, 7],
        callee: 8,
        callee_address: &[9],
    }
}

#[test]
fn the_hash_is_hmac_sha256() {
    // Key and data of the RFC 4231 kind, with a label of 16 bytes; computed by Python's `hmac` module.
    let mac = mac(&[0x0b; KEY_BYTES], b"Hi There, sixtee");
    assert_eq!(truncated(mac), EXPECTED);
}

/// `hmac.new(b"\x0b" * 32, b"Hi There, sixtee", "sha256").digest()[:16]`
const EXPECTED: [u8; 16] =
    [0xd7, 0x45, 0x20, 0x1c, 0x32, 0xf2, 0xa5, 0xc0, 0x12, 0x4f, 0xa1, 0x00, 0x47, 0x73, 0xf3, 0xba];

#[test]
fn a_proof_covers_every_term() {
    let proof = KEY.request_proof(&terms());
    assert!(KEY.accepts_request(&terms(), &proof));
    let good = terms();
    let others = [
        CallTerms { world: 0, ..good },
        CallTerms { challenge: Challenge { number: 0, ..good.challenge }, ..good },
        CallTerms { challenge: Challenge { random: [0; PROOF_BYTES], ..good.challenge }, ..good },
        CallTerms { nonce: 0, ..good },
        CallTerms { caller: [0; CALL_BYTES], ..good },
        CallTerms { caller_address: &[6], ..good },
        // The same bytes in all, divided otherwise.
        CallTerms { caller_address: &[6], callee_address: &[7, 9], ..good },
        CallTerms { caller_address: &[], ..good },
        CallTerms { callee: 0, ..good },
        CallTerms { callee_address: &[9, 0], ..good },
    ];
    for other in others {
        assert!(!KEY.accepts_request(&other, &proof), "{other:?}");
    }
    for byte in 0..KEY_BYTES {
        let mut key = *KEY.bytes();
        key[byte] ^= 0x80;
        assert!(!JobKey::from_bytes(key).accepts_request(&good, &proof), "byte {byte} of the key");
    }
    for bit in 0..8 * PROOF_BYTES {
        let mut wrong = proof;
        wrong.0[bit / 8] ^= 1 << (bit % 8);
        assert!(!KEY.accepts_request(&good, &wrong), "bit {bit} of the proof");
    }
}

#[test]
fn an_answer_covers_the_request_and_is_none() {
    let request = KEY.request_proof(&terms());
    let answer = KEY.answer_proof(&request, 4, b"answer");
    assert!(KEY.accepts_answer(&request, 4, b"answer", &answer));
    assert!(!KEY.accepts_answer(&request, 5, b"answer", &answer), "nonce");
    assert!(!KEY.accepts_answer(&request, 4, b"other.", &answer), "answer");
    assert!(!KEY.accepts_answer(&Proof([0; PROOF_BYTES]), 4, b"answer", &answer), "request");
    assert!(!KEY.accepts_answer(&request, 4, b"answer", &request), "reflected");
    assert!(!KEY.accepts_request(&terms(), &answer), "reflected");
    assert!(!JobKey::from_bytes([0; KEY_BYTES]).accepts_answer(&request, 4, b"answer", &answer), "key");
}

#[test]
fn a_challenge_is_accepted_once() {
    let mut challenges = Challenges::new([1; KEY_BYTES]);
    let now = Duration::ZERO;
    let issued = [(); 5].map(|()| challenges.issue(now));
    for challenge in issued.iter().rev() {
        assert_eq!(challenges.find(challenge.number, now), Some(*challenge));
        assert_eq!(challenges.find(challenge.number, now), Some(*challenge), "it is not used up yet");
        challenges.redeem(challenge.number);
        assert_eq!(challenges.find(challenge.number, now), None);
    }
    for number in [5, 6, u32::MAX, 1 << 31] {
        assert_eq!(challenges.find(number, now), None, "{number} was never issued");
    }
}

#[test]
fn challenges_of_another_process_are_others() {
    let now = Duration::ZERO;
    let [mut one, mut two] = [1, 2].map(|seed| Challenges::new([seed; KEY_BYTES]));
    let mut seen = HashSet::new();
    for _ in 0..1000 {
        assert!(seen.insert(one.issue(now).random) && seen.insert(two.issue(now).random));
    }
}

#[test]
fn the_last_challenges_are_valid_and_no_others() {
    let mut challenges = Challenges::new([1; KEY_BYTES]);
    let now = Duration::ZERO;
    let first = challenges.issue(now);
    let second = challenges.issue(now);
    challenges.redeem(second.number);
    for _ in 2..WINDOW {
        challenges.issue(now);
    }
    assert_eq!(challenges.find(first.number, now), Some(first));
    let later = challenges.issue(now);
    assert_eq!(challenges.find(first.number, now), None, "a flood has ended it");
    assert_eq!(challenges.find(later.number, now), Some(later), "its bit was that of the first one");
    let later = challenges.issue(now);
    assert_eq!(challenges.find(later.number, now), Some(later), "its bit was that of a used one");
}

#[test]
fn a_challenge_is_valid_for_some_time_and_not_for_ever() {
    let second = Duration::from_secs(1);
    for start in 0..12 {
        let mut challenges = Challenges::new([1; KEY_BYTES]);
        challenges.issue(Duration::ZERO);
        let begun = second * start;
        let challenge = challenges.issue(begun);
        for step in 0..10 {
            let found = challenges.find(challenge.number, begun + second * step);
            assert_eq!(found, Some(challenge), "issued at {start} s, after {step} s");
        }
        assert_eq!(challenges.find(challenge.number, begun + 2 * LIFE + second), None);
        // Without any call in between.
        let challenge = challenges.issue(begun + 3 * LIFE);
        assert_eq!(challenges.find(challenge.number, begun + 9 * LIFE), None);
    }
}

#[test]
fn nonces_differ_from_each_other_and_between_processes() {
    let mut seen = HashSet::new();
    for seed in 0..4 {
        let mut nonces = Nonces::new([seed; KEY_BYTES]);
        (0..1000).for_each(|at| assert!(seen.insert(nonces.draw()), "nonce {at} of {seed}"));
    }
}

#[test]
fn what_is_printed_shows_no_secret() {
    let secret = [0xab; KEY_BYTES];
    let shown =
        format!("{:?} {:?} {:?}", JobKey::from_bytes(secret), Challenges::new(secret), Nonces::new(secret));
    assert!(!shown.contains("171") && !shown.contains("ab, ab"), "{shown}");
}
