//! Worlds whose ranks connect when one first names the other.

use std::thread;
use std::time::{Duration, Instant};

use super::{Source, Tag, world_apart};
use crate::{Config, Endpoint, Error, Failure};

/// A time within which everything happens, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn demand(size: usize) -> Vec<Endpoint> {
    world_apart(size, &Config::default())
}

/// Lets all endpoints make progress until the condition holds.
fn until(world: &mut [Endpoint], mut holds: impl FnMut(&mut [Endpoint]) -> bool) {
    let begin = Instant::now();
    while !holds(world) {
        world.iter_mut().for_each(|it| _ = it.progress());
        assert!(begin.elapsed() < LIMIT, "nothing happens");
    }
}

fn connections(world: &[Endpoint]) -> Vec<usize> {
    world.iter().map(|it| it.facts.met.iter().flatten().count()).collect()
}

fn failure_of_inject(world: &mut [Endpoint], from: usize, to: usize) -> Failure {
    let mut found = None;
    until(world, |world| {
        match world[from].inject(to, 1, b"x") {
            Err(Error::PeerFailed { rank, failure, .. }) if rank == to => found = Some(failure),
            Err(error) => panic!("{error}"),
            Ok(_) => {}
        }
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn ranks_connect_when_one_first_names_the_other() {
    let mut world = demand(4);
    assert_eq!(connections(&world), [0; 4]);
    assert!(world[0].explain().to_string().contains("was not spoken to"));
    assert!((0..4).all(|rank| world[1].failure(rank).is_none()));
    assert!(!world[1].inject(2, 5, b"hello").unwrap(), "nothing can leave before the connection is made");
    until(&mut world, |world| world[1].inject(2, 5, b"hello").unwrap());
    let mut got = [0; 5];
    world[2].recv(Source::Rank(1), Tag::Exactly(5), &mut got).unwrap();
    assert_eq!(&got, b"hello");
    assert_eq!(connections(&world), [0, 1, 1, 0]);
}

#[test]
fn a_rank_may_compute_for_longer_than_the_time_limit_before_it_answers() {
    let mut world = world_apart(2, &Config::default().timeout_seconds(1));
    assert!(!world[0].inject(1, 1, b"x").unwrap());
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(1500) {
        world[0].progress();
        assert!(world[0].failure(1).is_none());
    }
    until(&mut world, |world| world[0].inject(1, 1, b"x").unwrap());
    assert_eq!(world[1].recv(Source::Rank(0), Tag::Any, &mut [0]).unwrap().len, 1);
}

#[test]
fn a_posted_receive_names_its_source() {
    let mut world = demand(3);
    let mut got = [0; 8];
    // SAFETY: the buffer outlives the request, and no other code uses it meanwhile.
    let request = unsafe { world[0].irecv(Source::Rank(2), Tag::Any, got.as_mut_ptr(), 8).unwrap() };
    until(&mut world, |world| connections(world) == [1, 0, 1]);
    assert!(world[2].inject(0, 1, &[3; 8]).unwrap());
    assert_eq!(world[0].wait(request).unwrap().len, 8);
    assert_eq!(got, [3; 8]);
}

#[test]
fn both_may_name_each_other_at_the_same_time() {
    let mut world = demand(2);
    let mut sent = [false; 2];
    until(&mut world, |world| {
        for rank in 0..2 {
            sent[rank] = sent[rank] || world[rank].inject(1 - rank, 1, &[rank as u8]).unwrap();
        }
        sent == [true; 2]
    });
    for (rank, endpoint) in world.iter_mut().enumerate() {
        let mut got = [9];
        endpoint.recv(Source::Rank(1 - rank), Tag::Any, &mut got).unwrap();
        assert_eq!(got, [1 - rank as u8]);
    }
    assert_eq!(connections(&world), [1, 1]);
}

#[test]
fn a_receive_from_any_source_needs_all_ranks_unless_it_outlives_them() {
    for outlives in [false, true] {
        let mut world = world_apart(4, &Config::default().any_source_outlives(outlives));
        let mut got = [0; 8];
        // SAFETY: the buffer outlives the request, and no other code uses it meanwhile.
        let request = unsafe { world[0].irecv(Source::Any, Tag::Any, got.as_mut_ptr(), 8).unwrap() };
        if outlives {
            (0..1000).for_each(|_| world.iter_mut().for_each(|it| _ = it.progress()));
            assert_eq!(connections(&world), [0; 4]);
        } else {
            until(&mut world, |world| connections(world) == [3, 1, 1, 1]);
        }
        until(&mut world, |world| world[3].inject(0, 1, &[3; 8]).unwrap());
        assert_eq!(world[0].wait(request).unwrap().rank, 3);
        assert_eq!(got, [3; 8]);
    }
}

#[test]
fn a_rank_that_has_left_before_it_was_named_has_finished_or_was_dropped() {
    let mut world = demand(4);
    world.pop().unwrap().close().unwrap();
    drop(world.remove(2));
    assert_eq!(failure_of_inject(&mut world, 0, 3), Failure::Finished);
    assert_eq!(failure_of_inject(&mut world, 0, 2), Failure::Dropped);
    let error = world[1].recv(Source::Rank(3), Tag::Any, &mut [0]).unwrap_err();
    assert!(matches!(error, Error::PeerFailed { rank: 3, failure: Failure::Finished, .. }), "{error}");
    until(&mut world, |world| world[1].inject(0, 1, b"x").unwrap());
    until(&mut world, |world| connections(world) == [1, 1]);
}

#[test]
fn receives_from_any_source_end_when_the_last_other_rank_has_finished() {
    let mut world = demand(3);
    world.pop().unwrap().close().unwrap();
    until(&mut world, |world| world[1].inject(0, 1, b"x").unwrap());
    assert_eq!(world[0].recv(Source::Any, Tag::Any, &mut [0]).unwrap().rank, 1);
    world.pop().unwrap().close().unwrap();
    let error = world[0].recv(Source::Any, Tag::Any, &mut [0]).unwrap_err();
    assert!(matches!(error, Error::PeerFailed { failure: Failure::Finished, .. }), "{error}");
}

#[test]
fn all_connect_at_the_start_if_one_asks_for_it() {
    let meeting = super::TestMeeting::new(3);
    let open = |rank: usize| {
        let (exchange, config) = (meeting.exchange(rank), Config::default().connect_on_demand(rank != 1));
        thread::spawn(move || Endpoint::open_with(&config, exchange).unwrap())
    };
    let opening: Vec<_> = (0..3).map(open).collect();
    let world: Vec<_> = opening.into_iter().map(|endpoint| endpoint.join().unwrap()).collect();
    assert_eq!(connections(&world), [2; 3]);
}

#[test]
fn collective_calls_connect_the_ranks_that_they_need() {
    let ranks = demand(5).into_iter().map(|mut endpoint| {
        thread::spawn(move || {
            endpoint.barrier().unwrap();
            let agreed = endpoint.agree(!1 | u64::from(endpoint.rank() != 3)).unwrap();
            endpoint.barrier().unwrap();
            endpoint.close().unwrap();
            agreed.flags
        })
    });
    let ranks: Vec<_> = ranks.collect();
    assert!(ranks.into_iter().all(|rank| rank.join().unwrap() == !1));
}
