//! The share of this process's resources that one peer can take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nemesia_core::flow::replies;

use super::{pair, world};
use crate::{Access, Config, Endpoint, Error, KEY_BYTES, Path, RemoteKey};

const LIMIT: Duration = Duration::from_secs(60);
const REQUEST: u16 = 1;
const ANSWER: u16 = 2;

/// Answers requests. Returns how many replies to each rank were refused and accepted.
fn answer(endpoint: &mut Endpoint) -> (Arc<[AtomicUsize; 3]>, Arc<[AtomicUsize; 3]>) {
    let (refused, accepted): (Arc<[AtomicUsize; 3]>, Arc<[AtomicUsize; 3]>) = Default::default();
    let counts = (Arc::clone(&refused), Arc::clone(&accepted));
    endpoint.set_handler(REQUEST, move |message| {
        let from = message.from();
        let payload = message.payload().to_vec();
        match message.reply(ANSWER, &[], &payload) {
            Ok(()) => accepted[from].fetch_add(1, Relaxed),
            Err(Error::Replies { rank, .. }) if rank == from => refused[from].fetch_add(1, Relaxed),
            Err(error) => panic!("{error}"),
        };
    });
    counts
}

/// Sends requests until a reply is refused. The asking endpoint takes no replies.
fn ask_until_refused(asking: &mut Endpoint, answering: &mut Endpoint, refused: &AtomicUsize) {
    let deadline = Instant::now() + LIMIT;
    while refused.load(Relaxed) == 0 {
        // SAFETY: the bytes are static.
        let request = unsafe { asking.isend_active(0, REQUEST, &raw const *b"", &raw const *b"a request") };
        assert!(request.unwrap().is_complete(), "the asking endpoint has to take replies first");
        answering.progress();
        assert!(Instant::now() < deadline, "no reply was refused");
    }
}

#[test]
fn a_peer_that_takes_no_replies_blocks_no_replies_to_others() {
    let mut all = world(3, &Config::default());
    let [zero, one, two] = &mut all[..] else { unreachable!("three were asked for") };
    let (refused, accepted) = answer(zero);
    ask_until_refused(one, zero, &refused[1]);
    let most = (replies::SHARE + replies::POOL) as usize;
    assert!(accepted[1].load(Relaxed) >= replies::SHARE as usize);
    let answers = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&answers);
    two.set_handler(ANSWER, move |_| {
        count.fetch_add(1, Relaxed);
    });
    for round in 1..=2 * most {
        two.send_active(0, REQUEST, &[], b"a request").unwrap();
        let deadline = Instant::now() + LIMIT;
        while answers.load(Relaxed) < round {
            zero.progress();
            two.progress();
            assert_eq!(refused[2].load(Relaxed), 0, "round {round}");
            assert!(Instant::now() < deadline, "round {round}: no answer");
        }
    }
    // Then the first peer takes its replies, and is answered again.
    let answers = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&answers);
    one.set_handler(ANSWER, move |_| {
        count.fetch_add(1, Relaxed);
    });
    let deadline = Instant::now() + LIMIT;
    while answers.load(Relaxed) < accepted[1].load(Relaxed) {
        zero.progress();
        one.progress();
        assert!(Instant::now() < deadline, "replies were lost");
    }
    zero.progress();
    assert!(!zero.engine.handlers_mut().has_replies());
}

/// Returns the key with another secret and descriptor.
fn forged(key: &RemoteKey, number: u32) -> RemoteKey {
    let mut bytes: [u8; KEY_BYTES] = key.to_bytes();
    bytes[8..16].copy_from_slice(&u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    RemoteKey::from_bytes(key.rank(), &bytes).unwrap()
}

#[test]
fn forged_keys_take_bounded_memory_and_displace_no_mapping() {
    let (mut zero, mut one) = pair(&Config::default());
    let region = one.allocate(64, Access::ReadWrite).unwrap();
    let key = one.remote_key(region).unwrap();
    if zero.path(&key) != Path::Direct {
        crate::os::testing::skipped("regions can't be mapped here");
        return;
    }
    for number in 0..5000 {
        assert!(matches!(zero.path(&forged(&key, number)), Path::Packets { .. }), "{number}");
    }
    let (mapped, refused) = zero.engine.port_mut().local_mut().host_mut().regions.known();
    assert!(mapped == 1 && refused <= 64, "{mapped} mappings and {refused} refusals are remembered");
    // Only the descriptor is wrong. The key itself must not be remembered as refused.
    let mut bytes = key.to_bytes();
    bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(zero.path(&RemoteKey::from_bytes(1, &bytes).unwrap()), Path::Packets { .. }));
    assert_eq!(zero.path(&key), Path::Direct);
    zero.put(&key, 0, &[9; 8]).unwrap();
    let mut word = [0; 8];
    one.read_region(region, 0, &mut word).unwrap();
    assert_eq!(word, [9; 8]);
}
