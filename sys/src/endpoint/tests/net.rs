//! Endpoints that reach each other over TCP.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::meeting::TestMeeting;
use super::pair;
use crate::os::testing;
use crate::{Arm, Config, Endpoint, Error, Failure, NetChoice, PeerStage, Source, Tag};

const EVER: Duration = Duration::from_secs(60);

/// A process that shares memory with no other one.
fn apart() -> Config {
    Config::default().local(false).net(NetChoice::Tcp).net_address(Some("127.0.0.1"))
}

/// Opens three endpoints, of which ranks 0 and 1 share memory and rank 2 does not.
fn mixed() -> [Endpoint; 3] {
    let meeting = TestMeeting::new(3);
    let open = |rank| {
        let config = apart().local(rank < 2).spin(0);
        let exchange = meeting.exchange(rank);
        std::thread::spawn(move || Endpoint::open_with(&config, exchange).unwrap())
    };
    [0, 1, 2].map(open).map(|opening| opening.join().unwrap())
}

fn await_readable(endpoint: &mut Endpoint) {
    assert!(
        crate::os::wait_ready(endpoint.event_fd().unwrap(), libc::POLLIN, Instant::now() + EVER).unwrap()
    );
}

/// Opens a world in a process without standard streams, and returns which of their numbers it has taken.
fn taken_by(config: &Config) -> Vec<String> {
    let [mut zero, mut one] = <[Endpoint; 2]>::try_from(super::world_apart(2, config)).unwrap();
    let sender = std::thread::spawn(move || {
        one.send(0, 7, &[7; 100_000]).unwrap();
        one.barrier().unwrap();
        one
    });
    let mut got = vec![0; 100_000];
    zero.recv(Source::Rank(1), Tag::Exactly(7), &mut got).unwrap();
    let place = |number: &i32| std::fs::read_link(format!("/proc/self/fd/{number}")).ok();
    let taken = (0..3).filter_map(|number| Some(place(&number)?.display().to_string())).collect();
    zero.barrier().unwrap();
    drop(sender.join().unwrap());
    taken
}

/// The next line that the program prints would otherwise go into a segment or a connection.
#[test]
fn a_world_takes_no_number_of_a_closed_standard_stream() {
    const NAME: &str = concat!(module_path!(), "::a_world_takes_no_number_of_a_closed_standard_stream");
    if !testing::is_child() {
        return testing::run_again(NAME, || Ok(()));
    }
    let streams: Vec<_> = (0..3)
        .map(|number| {
            // SAFETY: takes no pointers. Nothing prints until the number is restored.
            unsafe {
                let kept = libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 100);
                libc::close(number);
                kept
            }
        })
        .collect();
    let shm = taken_by(&Config::default().net(NetChoice::Off));
    let (tcp, on_demand) = (taken_by(&apart()), taken_by(&Config::default().connect_on_demand(true)));
    for (number, kept) in streams.into_iter().enumerate() {
        // SAFETY: takes no pointers.
        unsafe { libc::dup2(kept, number as i32) };
    }
    assert_eq!([shm, tcp, on_demand], [const { Vec::<String>::new() }; 3]);
}

#[test]
fn one_descriptor_wakes_an_event_loop_for_messages_of_this_and_of_other_machines() {
    let [mut zero, one, two] = mixed();
    let mut others = Vec::new();
    for (mut from, tag) in [(one, 1), (two, 2)] {
        while zero.arm() == Arm::Busy {}
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            from.send(0, tag, &[tag as u8; 100]).unwrap();
            from
        });
        let begun = Instant::now();
        let mut got = vec![0; 100];
        // SAFETY: the buffer lives, unused, until the request is complete.
        let request =
            unsafe { zero.irecv(Source::Any, Tag::Exactly(tag), got.as_mut_ptr(), got.len()) }.unwrap();
        while zero.test(request).unwrap().is_none() {
            if zero.arm() == Arm::Armed {
                await_readable(&mut zero);
            }
            assert!(begun.elapsed() < EVER);
        }
        assert!(got.iter().all(|byte| *byte == tag as u8));
        others.push(late.join().unwrap());
    }
}

#[test]
fn a_sleeper_is_woken_by_messages_of_this_and_of_other_machines() {
    let [zero, one, two] = mixed();
    let zero = std::thread::spawn(move || {
        let mut zero = zero;
        for from in [2, 1, 2, 1] {
            zero.recv(Source::Rank(from), Tag::Exactly(7), &mut [0; 8]).unwrap();
            zero.send(from, 8, b"go on").unwrap();
        }
        assert!(zero.counters().waits.sleeps > 0, "it never slept");
        zero
    });
    let converse = |mut peer: Endpoint| {
        std::thread::spawn(move || {
            for _ in 0..2 {
                std::thread::sleep(Duration::from_millis(300));
                peer.send(0, 7, b"wake up!").unwrap();
                peer.recv(Source::Rank(0), Tag::Exactly(8), &mut [0; 5]).unwrap();
            }
            peer
        })
    };
    let others = [one, two].map(converse);
    let mut all = vec![zero.join().unwrap()];
    all.extend(others.into_iter().map(|it| it.join().unwrap()));
    let closing: Vec<_> = all.into_iter().map(|it| std::thread::spawn(move || it.close())).collect();
    closing.into_iter().for_each(|it| it.join().unwrap().unwrap());
}

/// The receiver computes and makes no progress meanwhile, and it sends itself, so that the sender's machine resets the
/// connection.
#[test]
fn everything_that_a_closed_endpoint_has_sent_arrives_and_then_it_has_finished() {
    let (mut zero, mut one) = pair(&apart());
    // Each is sent as soon as there is credit for it; there is no receive meanwhile.
    while !zero.inject(1, 0, &[1; 1000]).unwrap() {
        zero.progress();
        one.progress();
    }
    // As many as the peer takes without progress of its own.
    for tag in 0..1 {
        while !one.inject(0, tag, &[tag as u8; 1000]).unwrap() {
            zero.progress();
            one.progress();
        }
    }
    let begun = Instant::now();
    one.close().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30), "a close waited for the peer");
    std::thread::sleep(Duration::from_millis(50));
    // It may already be known that the peer is gone.
    let _ = zero.send(1, 1, &[1; 1000]);
    for tag in 0..1 {
        let mut got = [0; 1000];
        zero.recv(Source::Rank(1), Tag::Exactly(tag), &mut got).unwrap();
        assert_eq!(got, [tag as u8; 1000]);
    }
    let ended = zero.recv(Source::Rank(1), Tag::Any, &mut [0; 8]);
    assert!(matches!(ended, Err(Error::PeerFailed { rank: 1, failure: Failure::Finished, .. })), "{ended:?}");
    zero.close().unwrap();
}

#[test]
fn a_buffer_that_cannot_be_read_is_named_as_such_and_not_the_end_of_the_peer() {
    const LEN: usize = 1 << 20;
    let (mut zero, mut one) = pair(&apart());
    let mut got = vec![0; LEN];
    // SAFETY: the buffer lives, unused, until the endpoint is closed.
    let receive =
        unsafe { one.irecv(Source::Rank(0), Tag::Exactly(1), got.as_mut_ptr(), got.len()) }.unwrap();
    let nowhere = std::ptr::without_provenance(1 << 12);
    // SAFETY: no program has memory there, so that only the kernel reads it, and refuses.
    let send = unsafe { zero.isend(1, 1, nowhere, LEN) }.unwrap();
    let begun = Instant::now();
    let error = loop {
        match zero.test(send) {
            Ok(None) => _ = one.test(receive),
            ended => break ended.unwrap_err().to_string(),
        }
        assert!(begun.elapsed() < EVER);
    };
    let named =
        error.starts_with("rank 1 was given up: ") && error.contains("a buffer of a call of this process");
    assert!(named, "{error}");
}

#[test]
fn an_endpoint_that_is_dropped_has_failed() {
    let (mut zero, one) = pair(&apart());
    drop(one);
    let ended = zero.recv(Source::Rank(1), Tag::Any, &mut [0; 8]);
    assert!(matches!(ended, Err(Error::PeerFailed { rank: 1, failure: Failure::Dropped, .. })), "{ended:?}");
}

#[test]
fn the_routes_name_the_transport_and_why_the_others_are_refused() {
    let [zero, _one, two] = mixed();
    let routes = zero.explain().routes;
    let transports: Vec<_> = routes.iter().map(|route| route.transport).collect();
    assert_eq!(transports, ["self", "shm", "tcp"]);
    let refused: Vec<_> = routes[2].refused.iter().map(|verdict| verdict.name).collect();
    assert_eq!(refused, ["shm", "verbs"]);
    assert!(routes[2].refused[1].reason.contains("NEMESIA_NET is tcp"), "{:?}", routes[2]);
    assert!(two.explain().routes[0].refused[0].reason.contains("NEMESIA_LOCAL is off"));
}

#[test]
fn threads_share_an_endpoint_over_tcp() {
    crate::endpoint::shared::tests::exchange(&apart());
    crate::endpoint::shared::tests::exchange(&apart().spin(0));
}

#[test]
fn the_descriptor_of_an_endpoint_is_always_the_same() {
    let [mut zero, _one, _two] = mixed();
    let first = std::os::fd::AsRawFd::as_raw_fd(&zero.event_fd().unwrap());
    while zero.arm() == Arm::Busy {}
    assert_eq!(std::os::fd::AsRawFd::as_raw_fd(&zero.event_fd().unwrap().as_fd()), first);
}

/// Opens two endpoints that share no memory.
fn two_apart(config: &Config) -> [Endpoint; 2] {
    let meeting = TestMeeting::new(2);
    let open = |rank| {
        let (config, exchange) = (config.clone(), meeting.exchange(rank));
        std::thread::spawn(move || Endpoint::open_with(&config, exchange).unwrap())
    };
    [0, 1].map(open).map(|opening| opening.join().unwrap())
}

/// A connection begins with the fewest receives, and has more after a few packets of a stream.
#[test]
fn the_receives_of_a_connection_grow_with_the_first_messages_of_a_stream() {
    const MESSAGES: u64 = 300;
    let [mut from, mut to] = two_apart(&apart());
    let receives = |endpoint: &Endpoint| endpoint.net().unwrap().receives(0);
    let (sent, mut got) = ([7; 100], [0; 100]);
    assert_eq!(receives(&to), 0, "the ranks connect on demand");
    until_sent(&mut from, &mut to);
    let mut growth = vec![receives(&to)];
    // SAFETY: the buffers live, unused, until the requests are complete.
    let last =
        unsafe { to.irecv(Source::Rank(0), Tag::Exactly(MESSAGES), got.as_mut_ptr(), got.len()) }.unwrap();
    // SAFETY: as above.
    let send = |tag| unsafe { from.isend(1, tag, sent.as_ptr(), sent.len()) }.unwrap();
    let sends: Vec<_> = (1..=MESSAGES).map(send).collect();
    let begun = Instant::now();
    while to.test(last).unwrap().is_none() {
        // The sender always has more to send than it may.
        for _ in 0..16 {
            from.progress();
        }
        growth.extend(Some(receives(&to)).filter(|now| growth.last() != Some(now)));
        assert!(begun.elapsed() < EVER, "{growth:?}");
    }
    assert_eq!(got, sent);
    assert!(growth[0] == 3 && growth.last() >= Some(&12), "{growth:?}");
    for send in sends {
        while from.test(send).unwrap().is_none() {
            to.progress();
        }
    }
    let closing = std::thread::spawn(|| to.close().unwrap());
    from.close().unwrap();
    closing.join().unwrap();
}

/// Sends a message from rank 0 to rank 1, while both make progress, and receives it.
fn until_sent(from: &mut Endpoint, to: &mut Endpoint) {
    let begun = Instant::now();
    while !from.inject(1, 0, b"x").unwrap() {
        from.progress();
        to.progress();
        assert!(begun.elapsed() < EVER);
    }
    assert_eq!(to.recv(Source::Rank(0), Tag::Exactly(0), &mut [0]).unwrap().len, 1);
}

/// After any step towards a connection, either end may make no progress for longer than the time limit.
#[test]
fn a_rank_on_another_machine_may_compute_for_longer_than_the_time_limit() {
    let one = |steps: u32, stopped: usize| {
        let [mut from, mut to] = two_apart(&apart().timeout_seconds(1));
        assert!(!from.inject(1, 0, b"x").unwrap());
        for _ in 0..steps {
            from.progress();
            to.progress();
            std::thread::sleep(Duration::from_millis(1));
        }
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(1500) {
            if stopped == 0 {
                to.progress()
            } else {
                from.progress()
            };
        }
        until_sent(&mut from, &mut to);
    };
    let both = (0..16).flat_map(|steps| [0, 1].map(|stopped| (steps, stopped)));
    let running: Vec<_> =
        both.map(|(steps, stopped)| std::thread::spawn(move || one(steps, stopped))).collect();
    running.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_world_whose_ranks_on_several_machines_connect_at_the_start_has_further_peers_on_its_machine() {
    let config = apart().connect_on_demand(false);
    let [mut one, mut two] = two_apart(&config);
    let rank = one.connect(two.address().unwrap()).unwrap();
    assert_eq!((one.rank_of(rank).unwrap(), one.stage_of(rank).unwrap()), (1, PeerStage::Connected(0)));
    // These processes say of themselves that they are apart from all others.
    let lone = Endpoint::alone(&Config::default()).unwrap();
    let error = one.connect(lone.address().unwrap()).unwrap_err();
    assert!(error.to_string().contains("another machine"), "{error}");
    one.send(1, 3, b"x").unwrap();
    assert_eq!(two.recv(Source::Rank(0), Tag::Exactly(3), &mut [0; 1]).unwrap().len, 1);
}

/// Returns what an endpoint says about the connections with its peer.
fn streams(endpoint: &Endpoint, rank: usize) -> String {
    let route = endpoint.explain().routes.into_iter().find(|route| route.rank == rank).unwrap();
    let streams = route.facilities.into_iter().find(|it| it.name == "streams");
    streams.map_or_else(String::new, |it| it.reason)
}

/// Exchanges messages of all sizes in both directions until both endpoints say this about their connections, and some
/// more.
fn exchange_until(both: &mut [Endpoint; 2], said: [&str; 2]) {
    const LENS: [usize; 6] = [0, 100, 4000, 40_000, 300_000, 3_000_001];
    let begun = Instant::now();
    let mut rounds_left = 2;
    while rounds_left > 0 {
        let seen = [0, 1].map(|rank| streams(&both[rank], 1 - rank));
        rounds_left -= u32::from(seen == said);
        assert!(begun.elapsed() < EVER, "{seen:?} instead of {said:?}");
        for (from, len) in LENS.into_iter().flat_map(|len| [(0, len), (1, len)]) {
            // Several at once, which overtake each other on their connections.
            let sent: Vec<_> = (1..=5).map(|number| vec![number; len]).collect();
            let mut got = vec![vec![0; len]; 5];
            let sends: Vec<_> = sent
                .iter()
                // SAFETY: the buffers live, unused, until the requests are complete.
                .map(|it| unsafe { both[from].isend(1 - from, 1, it.as_ptr(), len) }.unwrap())
                .collect();
            let receives: Vec<_> = got
                .iter_mut()
                .map(|it| {
                    let (source, tag) = (Source::Rank(from), Tag::Exactly(1));
                    // SAFETY: as above.
                    unsafe { both[1 - from].irecv(source, tag, it.as_mut_ptr(), len) }.unwrap()
                })
                .collect();
            for (rank, request) in
                sends.into_iter().map(|it| (from, it)).chain(receives.into_iter().map(|it| (1 - from, it)))
            {
                while both[rank].test(request).unwrap().is_none() {
                    both[1 - rank].progress();
                    assert!(begun.elapsed() < EVER, "{len} bytes do not arrive");
                }
            }
            assert_eq!(got, sent);
        }
    }
}

#[test]
fn a_rank_is_reached_by_several_connections_if_both_want_them() {
    let fewer = "2 of 3 connections; the peer refuses more: the two sides have different settings for packet bytes or \
                 rails";
    for (counts, said) in [
        ([1, 1], ["", ""]),
        ([4, 4], ["4 of 4 connections"; 2]),
        // The higher rank requests the connections.
        ([2, 3], ["2 of 2 connections", fewer]),
        ([3, 2], ["2 of 3 connections", "2 of 2 connections"]),
    ] {
        let meeting = TestMeeting::new(2);
        let open = |rank: usize| {
            let (config, exchange) = (apart().net_streams(counts[rank]), meeting.exchange(rank));
            std::thread::spawn(move || Endpoint::open_with(&config, exchange).unwrap())
        };
        let mut both = [0, 1].map(open).map(|opening| opening.join().unwrap());
        exchange_until(&mut both, said);
        let closing = both.map(|it| std::thread::spawn(move || it.close()));
        closing.into_iter().for_each(|it| it.join().unwrap().unwrap());
    }
}

#[test]
fn puts_by_memory_access_and_several_connections_exclude_each_other() {
    let config = apart().net_streams(2).net_direct_bytes(Some(1));
    assert!(
        config.warnings().iter().any(|it| it.contains("NEMESIA_NET_STREAMS=2")),
        "{:?}",
        config.warnings()
    );
    assert_eq!(apart().net_direct_bytes(Some(1)).warnings(), apart().warnings());
}

/// The further connections are made while the peer already leaves.
#[test]
fn a_rank_may_leave_before_all_its_connections_are_made() {
    for leaver in [0, 1] {
        let [mut zero, mut one] = two_apart(&apart().net_streams(4));
        until_sent(&mut zero, &mut one);
        let mut both = [Some(zero), Some(one)];
        let leaving = both[leaver].take().unwrap();
        let leaving = std::thread::spawn(move || leaving.close());
        let mut other = both[1 - leaver].take().unwrap();
        let ended = other.recv(Source::Rank(leaver), Tag::Any, &mut [0; 8]);
        assert!(matches!(ended, Err(Error::PeerFailed { failure: Failure::Finished, .. })), "{ended:?}");
        leaving.join().unwrap().unwrap();
        // Longer than a request waits for its repetition.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(200) {
            other.progress();
        }
        // The last request may have reached the place of the rank after the rank had left: then the reason follows.
        let left = streams(&other, leaver);
        assert!(left.starts_with("0 of 4 connections"), "{left}");
        other.close().unwrap();
    }
}
