//! Complete endpoints in threads of one process, over a key-value exchange in memory.

mod demand;
mod fickle;
mod meeting;
mod net;
mod place;
mod raw;
mod shares;
mod unexpected;
mod unwind;
mod worlds;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use nemesia_core::port::RemoteAccess as _;

use self::meeting::TestMeeting;
use super::wait::{Awaited, Wait};
use super::{Access, Endpoint, Path, Refusal, Region, Source, Tag};
use crate::{Config, Error};

/// Opens a world of `size` endpoints, which are connected: a test may use them in one thread, where a call of one does
/// not end before the other makes progress.
pub(in crate::endpoint) fn world(size: usize, config: &Config) -> Vec<Endpoint> {
    world_apart(size, &config.clone().connect_on_demand(false))
}

/// Opens a world of `size` endpoints, with the connections that the configuration asks for.
pub(in crate::endpoint) fn world_apart(size: usize, config: &Config) -> Vec<Endpoint> {
    let meeting = TestMeeting::new(size);
    let open = |rank| {
        let (exchange, config) = (meeting.exchange(rank), config.clone());
        std::thread::spawn(move || Endpoint::open_with(&config, exchange).unwrap())
    };
    let opening: Vec<_> = (0..size).map(open).collect();
    opening.into_iter().map(|endpoint| endpoint.join().unwrap()).collect()
}

pub(in crate::endpoint) fn pair(config: &Config) -> (Endpoint, Endpoint) {
    let mut both = world(2, config);
    let one = both.pop().unwrap();
    (both.pop().unwrap(), one)
}

#[test]
fn operation_of_another_scope_releases_no_buffer() {
    let mut endpoint = world(1, &Config::default()).pop().unwrap();
    let mut first = [0; 1];
    let sent = endpoint.scope(|scope| {
        let receive = scope.irecv(Source::Any, Tag::Exactly(5), &mut first)?;
        scope.isend(0, 5, b"x")?;
        Ok(receive)
    });
    let (stale, mut buffer) = (sent.unwrap(), [0; 8]);
    let ended = endpoint.scope(|scope| {
        scope.irecv(Source::Any, Tag::Exactly(9), &mut buffer)?;
        assert!(matches!(scope.wait(stale), Err(Error::Stale)));
        assert!(matches!(scope.test(stale), Err(Error::Stale)));
        Err::<(), _>(Error::Cancelled)
    });
    assert!(matches!(ended, Err(Error::Cancelled)));
    // The scope has withdrawn the receive: no receive matches this message, and the buffer belongs to this
    // function.
    endpoint.send(0, 9, &[7; 8]).unwrap();
    assert_eq!(buffer, [0; 8]);
}

#[test]
fn more_messages_than_entries_at_start_are_stored_while_both_only_send() {
    const MANY: u64 = 3000;
    let exchange = |mut endpoint: Endpoint, peer| {
        let mut got = [0; 8];
        for number in 0..MANY {
            endpoint.send(peer, number, &number.to_le_bytes()).unwrap();
        }
        for number in (0..MANY).rev() {
            endpoint.recv(Source::Rank(peer), Tag::Exactly(number), &mut got).unwrap();
            assert_eq!(u64::from_le_bytes(got), number);
        }
        endpoint
    };
    let (zero, one) = pair(&Config::default());
    let other = std::thread::spawn(move || exchange(one, 0));
    drop((exchange(zero, 1), other.join().unwrap()));
}

#[test]
fn a_loan_is_reclaimed_only_in_its_own_scope() {
    let (mut zero, mut one) = pair(&Config::default());
    let (mut first, mut second) = ([0; 4], [0; 4]);
    let ended = zero.scope(|outer| {
        let lent = outer.irecv_loan(Source::Rank(1), Tag::Exactly(1), &mut first)?;
        one.scope(|inner| {
            // Both loans have the same number of the same index, in different endpoints.
            inner.irecv_loan(Source::Rank(1), Tag::Exactly(1), &mut second).map(drop)?;
            inner.isend(1, 1, b"self")?;
            assert!(matches!(inner.reclaim(lent), Err(Error::Stale)));
            Ok(())
        })?;
        Err::<(), _>(Error::Cancelled)
    });
    assert!(matches!(ended, Err(Error::Cancelled)));
    assert_eq!((&first, &second), (&[0; 4], b"self"));
}

#[test]
fn polling_for_one_message_is_not_stopped_by_many_others() {
    let (mut zero, mut one) = pair(&Config::default());
    let sender = std::thread::spawn(move || {
        for _ in 0..3000 {
            one.send(0, 1, &[1; 8]).unwrap();
        }
        one.send(0, 2, &[2; 8]).unwrap();
        one
    });
    let mut got = [0; 8];
    // SAFETY: the buffer lives, unused, until the request is complete.
    let request = unsafe { zero.irecv(Source::Rank(1), Tag::Exactly(2), got.as_mut_ptr(), 8) }.unwrap();
    while zero.test(request).unwrap().is_none() {}
    assert_eq!(got, [2; 8]);
    drop(sender.join().unwrap());
}

#[test]
fn send_to_a_peer_that_left_while_it_was_held_fails() {
    let (mut zero, mut one) = pair(&Config::default().unexpected_bytes(64 << 10));
    let large = vec![1; 8 << 20];
    // There are as many sends as there is room for, and one more, which is never complete: rank 1 leaves.
    let never = loop {
        // SAFETY: the buffer outlives the endpoint.
        let request = unsafe { one.isend(0, 1, large.as_ptr(), 8) }.unwrap();
        if !request.is_complete() {
            zero.progress();
            if one.test(request).unwrap().is_none() && zero.progress() == 0 {
                break request;
            }
        }
    };
    assert!(one.test(never).unwrap().is_none());
    while zero.engine.held_peers() == 0 {
        zero.progress();
    }
    drop(one);
    // SAFETY: the buffer outlives the endpoint.
    match unsafe { zero.isend(1, 1, large.as_ptr(), large.len()) } {
        Ok(request) => {
            let outcome = zero.wait_timeout(request, Duration::from_secs(60));
            assert!(!matches!(outcome, Err(Error::Timeout(_))), "{outcome:?}");
        }
        Err(error) => assert!(matches!(error, Error::PeerFailed { rank: 1, .. }), "{error}"),
    }
    drop(zero);
}

#[test]
fn a_held_peer_does_not_end_a_receive_that_another_satisfies() {
    let mut all = world(3, &Config::default().unexpected_bytes(64 << 10));
    let (mut two, mut one) = (all.pop().unwrap(), all.pop().unwrap());
    let mut zero = all.pop().unwrap();
    let bytes = [1; 8];
    // Rank 2 sends messages that rank 0 does not receive, until it has no credit.
    while !zero.engine.is_held(2) {
        // SAFETY: the buffer outlives the endpoint.
        let _ = unsafe { two.isend(0, 77, bytes.as_ptr(), bytes.len()) }.unwrap();
        while zero.progress() + two.progress() > 0 {}
    }
    assert!(!zero.engine.is_held(1));
    let mut got = [0; 8];
    // SAFETY: the buffer lives, unused, until the request is complete.
    let request = unsafe { zero.irecv(Source::Any, Tag::Exactly(2), got.as_mut_ptr(), 8) }.unwrap();
    // A wait checks for held peers after a sleep without result. Rank 1 sends only after that.
    let mut wait = Wait::new(None);
    sleep_unwoken(&mut zero, &mut wait, request);
    assert!(zero.engine.is_held(2) && !zero.engine.is_held(1));
    one.send(0, 2, b"late").unwrap();
    let status = zero.go_on(request, &mut wait, Awaited::Request(request)).unwrap();
    assert_eq!((status.rank, status.len, &got[..4]), (1, 4, &b"late"[..]));
    drop((one, two));
}

/// Continues a wait, as the blocking calls do, until a sleep had no result and the wait has continued after it.
/// The wait has then read the clock and checked for held peers. No message may come meanwhile.
fn sleep_unwoken(endpoint: &mut Endpoint, wait: &mut Wait, request: super::Request) {
    let unwoken = |endpoint: &Endpoint| {
        let waits = endpoint.counters().waits;
        waits.sleeps - waits.sleeps_woken
    };
    let before = unwoken(endpoint);
    // The second sleep begins after the wait has processed the result of the first.
    while unwoken(endpoint) < before + 2 {
        assert!(endpoint.outcome(request).is_none(), "the request is complete");
        let packets = endpoint.engine.step().packets;
        endpoint.pause(wait, packets, Awaited::Request(request)).unwrap();
    }
}

#[test]
fn a_time_beyond_the_end_of_the_clock_never_comes() {
    let (mut zero, mut one) = pair(&Config::default());
    let mut got = [0; 8];
    // SAFETY: the buffer lives, unused, until the request is complete.
    let request = unsafe { zero.irecv(Source::Any, Tag::Any, got.as_mut_ptr(), 8) }.unwrap();
    let mut wait = Wait::new(Some(Duration::MAX));
    // The wait has added the time to the clock before the message is sent.
    sleep_unwoken(&mut zero, &mut wait, request);
    one.send(0, 2, &[2; 8]).unwrap();
    assert_eq!(zero.go_on(request, &mut wait, Awaited::Request(request)).unwrap().len, 8);
    // SAFETY: as above.
    let request = unsafe { zero.irecv(Source::Any, Tag::Any, got.as_mut_ptr(), 8) }.unwrap();
    one.send(0, 2, &[3; 8]).unwrap();
    assert_eq!(zero.wait_timeout(request, Duration::MAX).unwrap().len, 8);
    assert_eq!(got, [3; 8]);
}

#[test]
fn a_rank_outside_its_world_is_refused() {
    let exchange = TestMeeting::new(1).exchange(5);
    let error = Endpoint::open_with(&Config::default(), exchange).unwrap_err();
    assert!(matches!(error, Error::Rank { rank: 5, last: 0 }), "{error}");
}

#[test]
fn a_setting_beyond_the_available_memory_is_refused_by_name() {
    for bytes in [usize::MAX, 1 << 60] {
        let exchange = TestMeeting::new(1).exchange(0);
        let config = Config::default().unexpected_bytes(bytes);
        let error = Endpoint::open_with(&config, exchange).unwrap_err().to_string();
        assert!(error.contains("NEMESIA_UNEXPECTED_BYTES") && error.contains("lower"), "{error}");
    }
}

#[test]
fn handlers_can_be_replaced_and_removed() {
    let (mut zero, mut one) = pair(&Config::default());
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listen = |endpoint: &mut Endpoint, word: &'static str| {
        let heard = Arc::clone(&heard);
        endpoint.set_handler(65_535, move |message| {
            assert_eq!((message.from(), message.header(), message.payload()), (1, &b"h"[..], &b"p"[..]));
            heard.lock().unwrap().push(word);
        });
    };
    let mut send = |zero: &mut Endpoint, handled: usize| {
        one.send_active(0, 65_535, b"h", b"p").unwrap();
        while heard.lock().unwrap().len() < handled && zero.unhandled_messages() == 0 {
            zero.progress();
        }
    };
    listen(&mut zero, "first");
    send(&mut zero, 1);
    listen(&mut zero, "second");
    send(&mut zero, 2);
    assert!(zero.remove_handler(65_535) && !zero.remove_handler(65_535) && !zero.remove_handler(3));
    send(&mut zero, 3);
    assert_eq!((&heard.lock().unwrap()[..], zero.unhandled_messages()), (&["first", "second"][..], 1));
}

#[test]
fn replies_are_bounded_and_leave_in_order_before_what_is_sent_later() {
    const ANSWERS: u32 = 2000;
    let (mut zero, mut one) = pair(&Config::default());
    let refused = Arc::new(Mutex::new(0));
    let (count, most) = (Arc::clone(&refused), zero.active_bytes());
    zero.set_handler(1, move |message| {
        for number in 0..ANSWERS {
            match message.reply(2, &number.to_le_bytes(), &[]) {
                Ok(()) => {}
                Err(Error::Replies { .. }) => *count.lock().unwrap() += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(matches!(message.reply(2, &[], &vec![0; most + 1]), Err(Error::LongReply { .. })));
    });
    let answers = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&answers);
    one.set_handler(2, move |message| {
        log.lock().unwrap().push(u32::from_le_bytes(message.header().try_into().unwrap()));
    });
    one.send_active(0, 1, &[], &[]).unwrap();
    let other = std::thread::spawn(move || {
        while answers.lock().unwrap().last() != Some(&u32::MAX) {
            one.progress();
        }
        let answers = answers.lock().unwrap().clone();
        (one, answers)
    });
    while *refused.lock().unwrap() == 0 {
        zero.progress();
    }
    zero.send_active(1, 2, &u32::MAX.to_le_bytes(), &[]).unwrap();
    while zero.engine.handlers_mut().has_replies() {
        zero.progress();
    }
    let (_one, mut answers) = other.join().unwrap();
    assert_eq!(answers.pop(), Some(u32::MAX));
    assert_eq!(answers, (0..answers.len() as u32).collect::<Vec<_>>());
    assert_eq!(answers.len() as u32 + *refused.lock().unwrap(), ANSWERS);
}

#[test]
fn a_receive_does_not_wait_for_pages_that_its_sender_does_not_have() {
    const COUNT: usize = 1024;
    let (mut zero, mut one) =
        pair(&Config::default().single_copy(crate::SingleCopy::Prefer).assist_bytes(None));
    let pages = crate::os::testing::Pages::private(COUNT);
    (9..COUNT).for_each(|page| pages.touch(page));
    let Some(withheld) = pages.withhold().filter(|_| zero.engine.port().can_get(1)) else {
        crate::os::testing::skipped("the kernel refuses single copies, or userfaultfd");
        return;
    };
    let len = pages.len();
    let sender = std::thread::spawn(move || {
        // SAFETY: the pages outlive the request, and no thread writes to them.
        let send = unsafe { one.isend(0, 1, pages.at(0).as_ptr(), len) }.unwrap();
        // This thread waits for its own pages.
        one.wait(send).unwrap();
        one
    });
    let (say, hear) = std::sync::mpsc::channel();
    let receiver = std::thread::spawn(move || {
        let mut room = vec![7; len];
        // SAFETY: the bytes outlive the request, and nothing else uses them.
        let receive = unsafe { zero.irecv(Source::Rank(1), Tag::Any, room.as_mut_ptr(), len) }.unwrap();
        say.send(zero.wait_timeout(receive, Duration::from_millis(100)).map(drop)).unwrap();
        (zero.wait(receive).unwrap().len, room)
    });
    let outcome = hear.recv_timeout(Duration::from_secs(30));
    drop(withheld);
    let (_one, (received, room)) = (sender.join().unwrap(), receiver.join().unwrap());
    assert!(matches!(outcome, Ok(Err(Error::Timeout(_)))), "{outcome:?}");
    assert_eq!(received, len);
    let page = len / COUNT;
    assert!((0..COUNT).all(|at| room[at * page] == u8::from(at >= 9) && room[at * page + 1] == 0));
}

#[test]
fn buffers_of_an_endpoint_that_ends_are_not_read_any_more() {
    let (mut zero, mut one) = pair(&Config::default().single_copy(crate::SingleCopy::Prefer));
    if !zero.engine.port().can_get(1) {
        crate::os::testing::skipped("the kernel lets no process read another's memory");
        return;
    }
    let mut bytes = vec![7; 1 << 20];
    // SAFETY: the bytes outlive both endpoints, and this endpoint does not read them again.
    let _send = unsafe { one.isend(0, 1, bytes.as_ptr(), bytes.len()) }.unwrap();
    // Rank 0 knows the buffer's address before rank 1 forbids to read it.
    while zero.counters().engine.unexpected_now == 0 {
        zero.progress();
    }
    // The end of an endpoint begins with this. The buffer then belongs to its owner again.
    one.forbid_reading();
    bytes.fill(9);
    let mut room = vec![0; 1 << 20];
    // SAFETY: the bytes outlive both endpoints, and nothing else uses them until the request is complete.
    let receive = unsafe { zero.irecv(Source::Rank(1), Tag::Any, room.as_mut_ptr(), room.len()) }.unwrap();
    for _ in 0..100 {
        assert!(zero.test(receive).unwrap().is_none());
    }
    // Rank 0 has tried to read, was refused, and does not try again.
    assert!(!zero.engine.port().can_get(1), "rank 0 has not tried to read the buffer");
    drop(one);
    let outcome = zero.wait(receive);
    assert!(matches!(outcome, Err(Error::PeerFailed { rank: 1, .. })), "{outcome:?}");
    assert!(room.iter().all(|&byte| byte != 9), "the bytes after the end were read");
}

#[test]
fn regions_permit_only_their_access_and_range() {
    let mut endpoint = world(1, &Config::default()).pop().unwrap();
    let empty = endpoint.allocate(0, Access::ReadWrite).unwrap();
    let key = endpoint.remote_key(empty).unwrap();
    assert!(key.is_empty() && endpoint.path(&key) == Path::Own);
    endpoint.put(&key, 0, &[]).unwrap();
    assert!(matches!(endpoint.put(&key, 0, &[1]), Err(Error::Refused { refusal: Refusal::Bounds, .. })));
    let fixed = [1_u8; 64];
    // SAFETY: the bytes outlive the region, and no code writes them.
    let fixed = unsafe { endpoint.expose(fixed.as_ptr().cast_mut(), 64, Access::Read) }.unwrap();
    let written = endpoint.write_region(fixed, 0, &[2]);
    assert!(matches!(written, Err(Error::Refused { refusal: Refusal::Access, .. })));
    let mut bytes = [0; 8];
    endpoint.read_region(fixed, 56, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 8]);
    assert!(endpoint.read_region(fixed, 57, &mut bytes).is_err());
    assert!(endpoint.read_region(fixed, usize::MAX, &mut bytes).is_err());
    assert!(endpoint.allocate(usize::MAX, Access::Read).is_err());
    for bits in [u64::MAX, 1 << 40, 7] {
        let nonsense = Region::from_bits(bits);
        assert!(matches!(endpoint.unexpose(nonsense), Err(Error::Region)));
        assert!(matches!(endpoint.remote_key(nonsense), Err(Error::Region)));
        assert!(matches!(endpoint.notifications(nonsense), Err(Error::Region)));
    }
    let regions: Vec<_> = (0..100).map(|_| endpoint.allocate(8, Access::ReadWrite).unwrap()).collect();
    for (number, region) in (0_u64..).zip(&regions) {
        let key = endpoint.remote_key(*region).unwrap();
        assert_eq!(endpoint.swap(&key, 0, number).unwrap(), 0);
    }
    for (number, region) in (0_u64..).zip(regions) {
        assert_eq!(Region::from_bits(region.to_bits()), region);
        endpoint.read_region(region, 0, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), number);
        endpoint.unexpose(region).unwrap();
    }
}

#[test]
fn operations_before_and_after_a_fence_keep_their_order_on_two_paths() {
    let (mut zero, mut one) = pair(&Config::default());
    let memory = vec![0_u64; 1 << 17].leak();
    // SAFETY: the bytes live forever, and no other code uses them.
    let slow = unsafe { one.expose(memory.as_mut_ptr().cast(), 1 << 20, Access::ReadWrite) }.unwrap();
    let fast = one.allocate(8, Access::ReadWrite).unwrap();
    let (slow_key, fast_key) = (one.remote_key(slow).unwrap(), one.remote_key(fast).unwrap());
    if zero.path(&fast_key) != Path::Direct {
        crate::os::testing::skipped("regions can't be mapped here");
        return;
    }
    zero.put(&fast_key, 0, &1_u64.to_le_bytes()).unwrap();
    let mut word = [0; 8];
    one.read_region(fast, 0, &mut word).unwrap();
    assert_eq!(word[0], 1, "the put is there before the owner has made progress");
    zero.put(&slow_key, 0, &[7; 64]).unwrap();
    zero.fence(1).unwrap();
    zero.put(&fast_key, 0, &2_u64.to_le_bytes()).unwrap();
    one.read_region(fast, 0, &mut word).unwrap();
    assert_eq!(word[0], 1, "the put waits for the operations under way");
    let other = std::thread::spawn(move || {
        while one.notifications(slow).unwrap() == 0 {
            one.progress();
        }
        one
    });
    zero.put_notify(&slow_key, 0, &[]).unwrap();
    zero.flush(1).unwrap();
    let mut one = other.join().unwrap();
    one.read_region(fast, 0, &mut word).unwrap();
    assert_eq!(word[0], 2);
    zero.put(&fast_key, 0, &3_u64.to_le_bytes()).unwrap();
    one.read_region(fast, 0, &mut word).unwrap();
    assert_eq!(word[0], 3, "after the flush, puts are direct again");
    one.unexpose(fast).unwrap();
    assert_ne!(zero.path(&fast_key), Path::Direct);
    zero.put(&fast_key, 0, &4_u64.to_le_bytes()).unwrap();
    let (flushed, is_flushed) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || {
        while is_flushed.try_recv().is_err_and(|it| it == std::sync::mpsc::TryRecvError::Empty) {
            one.progress();
        }
        one
    });
    assert!(matches!(zero.flush(1), Err(Error::Refused { rank: 1, refusal: Refusal::Key, count: 1 })));
    drop(flushed);
    drop(other.join().unwrap());
}

#[test]
fn all_living_ranks_agree_and_finished_ranks_are_gone() {
    let mut all = world(4, &Config::default());
    drop(all.remove(1));
    let threads: Vec<_> = all
        .into_iter()
        .map(|mut endpoint| {
            std::thread::spawn(move || {
                let flags = !(1 << endpoint.rank());
                let agreed = endpoint.agree(flags).unwrap();
                assert_eq!((agreed.flags, &agreed.gone[..]), (!0b1101, &[1][..]));
                let ranking = endpoint.shrink().unwrap();
                assert_eq!(ranking.world(), [0, 2, 3]);
                assert_eq!(ranking.to_world(ranking.rank()), Some(endpoint.rank()));
                assert_eq!((ranking.size(), ranking.from_world(1), ranking.to_world(3)), (3, None, None));
                // No message of the agreement is left to slow down other receives.
                assert_eq!(endpoint.engine.unexpected_messages(), 0);
                endpoint
            })
        })
        .collect();
    let all: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    drop(all);
}

#[test]
fn an_agreement_continues_after_the_store_of_unexpected_messages_was_full() {
    let (mut zero, mut one) = pair(&Config::default().unexpected_bytes(64 << 10));
    // There are more messages than there is room for, so the agreement's messages wait behind them.
    const MESSAGES: usize = 3000;
    let other = std::thread::spawn(move || {
        // SAFETY: the bytes are static.
        let sends = [(); MESSAGES].map(|()| unsafe { one.isend(0, 1, b"a word".as_ptr(), 6) }.unwrap());
        let agreed = one.agree(3).unwrap();
        for send in sends {
            one.wait(send).unwrap();
        }
        (agreed, one)
    });
    let mut left = MESSAGES;
    let agreed = loop {
        match zero.agree(5) {
            Ok(agreed) => break agreed,
            Err(Error::Unexpected { .. }) => {
                for _ in 0..left.min(500) {
                    zero.recv(Source::Rank(1), Tag::Exactly(1), &mut [0; 8]).unwrap();
                    left -= 1;
                }
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert!(left < MESSAGES, "the store was not full");
    for _ in 0..left {
        zero.recv(Source::Rank(1), Tag::Exactly(1), &mut [0; 8]).unwrap();
    }
    let (theirs, one) = other.join().unwrap();
    assert_eq!((agreed.flags, &agreed), (1, &theirs));
    drop(one);
}

#[test]
fn a_rank_from_which_another_disconnected_gets_an_error_that_it_is_excluded() {
    let mut all = world(3, &Config::default());
    // Rank 1 does the same if rank 0 violates the protocol.
    let fault = nemesia_core::port::PortFault::Credit { units: 1 };
    all[1].engine.fail(0, nemesia_core::engine::Failure::Fault(fault));
    let agree = |mut endpoint: Endpoint| {
        std::thread::spawn(move || {
            let agreed = endpoint.agree(0);
            // A rank that is excluded stays excluded.
            assert!(agreed.is_ok() || matches!(endpoint.shrink(), Err(Error::Excluded)));
            (agreed, endpoint)
        })
    };
    let all: Vec<_> = all.into_iter().map(agree).collect();
    let ended: Vec<_> = all.into_iter().map(|thread| thread.join().unwrap()).collect();
    let excluded: Vec<_> = ended.iter().map(|(agreed, _)| matches!(agreed, Err(Error::Excluded))).collect();
    // Rank 2 hears from both and supports neither. A rank that lost another one, or was lost, may be gone.
    assert!(!excluded[2] && (excluded[0] || excluded[1]), "{ended:?}");
}

#[test]
fn each_rank_has_its_route_and_a_peer_that_left_is_reported_as_gone() {
    let (mut zero, one) = pair(&Config::default());
    let before = zero.explain();
    let transports: Vec<&str> = before.routes.iter().map(|route| route.transport).collect();
    assert_eq!((transports, before.routes[1].failure), (vec!["self", "shm"], None));
    assert!(before.routes[1].refused.iter().any(|verdict| verdict.name == "tcp" && !verdict.usable));
    one.close().unwrap();
    assert!(zero.recv(Source::Rank(1), Tag::Any, &mut []).is_err());
    assert_eq!(zero.explain().routes[1].failure, Some(crate::Failure::Finished));
}

#[test]
fn a_launcher_without_restart_is_reported_with_the_remedy() {
    let mut endpoint = world(1, &Config::default()).remove(0);
    let errors = [endpoint.restarted().unwrap_err(), endpoint.readmit(0).unwrap_err()];
    for error in errors {
        assert!(matches!(error, Error::Bootstrap(crate::bootstrap::BootstrapError::NoRestart)), "{error}");
        assert!(error.to_string().contains("nemesia run --restart"), "{error}");
    }
    assert!(matches!(endpoint.readmit(1), Err(Error::Rank { rank: 1, last: 0 })));
    assert_eq!(
        (endpoint.incarnation(), endpoint.incarnation_of(0), endpoint.incarnation_of(1)),
        (0, Some(0), None)
    );
}
