//! Worlds that meet others: their ranks keep their numbers, and further peers come and go.

use std::time::Instant;

use super::*;
use crate::bootstrap::threads;
use crate::{Meeting, PeerGroup};

/// Starts the ranks of a world in threads of their own.
fn world_of(
    size: usize,
    config: &Config,
    work: impl Fn(Endpoint) + Clone + Send + 'static,
) -> Vec<thread::JoinHandle<()>> {
    let rank = |exchange| {
        let (config, work) = (config.clone(), work.clone());
        thread::spawn(move || work(Endpoint::open_with(&config, Box::new(exchange)).unwrap()))
    };
    threads(size).into_iter().map(rank).collect()
}

fn join(threads: Vec<thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn pattern_of(from: u64, to: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at ^ (from * 37) ^ (to * 101)) as u8).collect()
}

/// Exchanges messages of several sizes with all processes of a group. `own` tells this group's processes apart.
fn exchange_with(endpoint: &mut Endpoint, own: u64, other: &PeerGroup) {
    for len in [8, 3000, 300_000] {
        let numbers: Vec<_> =
            (0..other.size()).map(|place| endpoint.rank_of(other.peer(place).unwrap()).unwrap()).collect();
        let mut buffers: Vec<_> = numbers.iter().map(|_| vec![0; len]).collect();
        let sent: Vec<_> = (0..other.size() as u64).map(|place| pattern_of(own, place, len)).collect();
        endpoint
            .scope(|scope| {
                let mut requests = Vec::new();
                for ((number, buffer), message) in numbers.iter().zip(&mut buffers).zip(&sent) {
                    requests.push(scope.irecv(Source::Rank(*number), Tag::Exactly(len as u64), buffer)?);
                    requests.push(scope.isend(*number, len as u64, message)?);
                }
                requests.into_iter().try_for_each(|request| scope.wait(request).map(drop))
            })
            .unwrap();
        for (place, buffer) in buffers.iter().enumerate() {
            assert_eq!(*buffer, pattern_of(place as u64, own, len), "{len} bytes of {place}");
        }
    }
}

#[test]
fn two_worlds_meet_by_one_address_however_their_ranks_connect() {
    for on_demand in [true, false] {
        let config = Config::default().connect_on_demand(on_demand);
        let (tell, address) = std::sync::mpsc::channel();
        let accepting = world_of(3, &config, move |mut endpoint| {
            if endpoint.rank() == 0 {
                tell.send(*endpoint.address().unwrap()).unwrap();
            }
            let own = endpoint.world_group().unwrap();
            assert_eq!((own.size(), own.place()), (3, Some(endpoint.rank())));
            let other = endpoint.meet(&own, Meeting::Accept, 1, LIMIT).unwrap();
            assert_eq!((other.size(), other.place()), (2, None));
            exchange_with(&mut endpoint, own.place().unwrap() as u64, &other);
            assert_eq!((endpoint.size(), endpoint.numbers() >= 5), (3, true));
            endpoint.barrier().unwrap();
            assert_eq!(endpoint.agree(5).unwrap().flags, 5);
            let text = endpoint.explain().to_string();
            assert!(text.contains("of 3: "), "{text}");
            assert_eq!(endpoint.explain().routes.len(), 5);
            // The other world leaves after an answer of each.
            for peer in (0..2).map(|place| other.peer(place).unwrap()) {
                let number = endpoint.rank_of(peer).unwrap();
                assert!(number >= 3 && endpoint.peer_counters(number).unwrap().eager_sent > 0);
                endpoint.send(number, 9, b"bye").unwrap();
            }
            endpoint.barrier().unwrap();
            endpoint.close().unwrap();
        });
        let address = address.recv().unwrap();
        let calling = world_of(2, &config, move |mut endpoint| {
            let own = endpoint.world_group().unwrap();
            let other = endpoint.meet(&own, Meeting::Call(address), 1, LIMIT).unwrap();
            assert_eq!(other.addresses()[0], address);
            exchange_with(&mut endpoint, own.place().unwrap() as u64, &other);
            for peer in (0..3).map(|place| other.peer(place).unwrap()) {
                let number = endpoint.rank_of(peer).unwrap();
                endpoint.recv(Source::Rank(number), Tag::Exactly(9), &mut [0; 3]).unwrap();
            }
            endpoint.barrier().unwrap();
            endpoint.close().unwrap();
        });
        join(accepting);
        join(calling);
    }
}

/// Two worlds as one group: collective calls of all, of which one process of each world is lost.
fn be_one_group(mut endpoint: Endpoint, all: &PeerGroup, lost: [usize; 2]) {
    let own = all.place().unwrap();
    for round in 0..5 {
        endpoint.among_peers(all).unwrap().barrier().unwrap();
        let agreed = endpoint.among_peers(all).unwrap().agree(8 | 1 << own).unwrap();
        assert_eq!((agreed.flags, agreed.gone), (8, vec![]), "round {round}");
        // The ranks of each world go on by themselves.
        endpoint.barrier().unwrap();
    }
    let mut left = all.clone();
    for at in lost {
        let at = left.addresses().iter().position(|address| *address == all.addresses()[at]).unwrap();
        // No member still needs the one that goes.
        endpoint.among_peers(&left).unwrap().barrier().unwrap();
        if left.place() == Some(at) {
            return drop(endpoint);
        }
        let broken = endpoint.among_peers(&left).unwrap().barrier().unwrap_err();
        let (Error::MemberFailed { place, .. } | Error::MemberLost { place, .. }) = broken else {
            panic!("{broken}");
        };
        assert_eq!(place, at);
        let survivors = endpoint.among_peers(&left).unwrap().shrink().unwrap();
        assert_eq!(survivors.size(), left.size() - 1);
        endpoint.among_peers(&survivors).unwrap().barrier().unwrap();
        left = survivors;
    }
    endpoint.among_peers(&left).unwrap().barrier().unwrap();
    let of_world = endpoint.agree(3).unwrap();
    assert_eq!((of_world.flags, of_world.gone.len()), (3, 1), "each world has lost one rank");
    drop(endpoint);
}

#[test]
fn worlds_that_have_met_meet_agree_and_shrink_as_one_group() {
    for on_demand in [true, false] {
        let config = Config::default().connect_on_demand(on_demand);
        let (tell, address) = std::sync::mpsc::channel();
        let accepting = world_of(3, &config, move |mut endpoint| {
            if endpoint.rank() == 0 {
                tell.send(*endpoint.address().unwrap()).unwrap();
            }
            let own = endpoint.world_group().unwrap();
            let other = endpoint.meet(&own, Meeting::Accept, 1, LIMIT).unwrap();
            be_one_group(endpoint, &own.followed_by(&other), [4, 1]);
        });
        let address = address.recv().unwrap();
        let calling = world_of(2, &config, move |mut endpoint| {
            let own = endpoint.world_group().unwrap();
            let other = endpoint.meet(&own, Meeting::Call(address), 1, LIMIT).unwrap();
            be_one_group(endpoint, &other.followed_by(&own), [4, 1]);
        });
        join(accepting);
        join(calling);
    }
}

#[test]
fn a_rank_knows_the_ranks_by_their_numbers_and_does_not_disconnect_from_them() {
    for on_demand in [true, false] {
        let mut world =
            crate::endpoint::tests::world_apart(2, &Config::default().connect_on_demand(on_demand));
        let addresses = [*world[0].address().unwrap(), *world[1].address().unwrap()];
        let other = world[0].connect(&addresses[1]).unwrap();
        assert_eq!(
            (world[0].peer_of(1), world[0].peer_of(0), world[0].peer_of(2)),
            (Some(other), None, None)
        );
        assert_eq!(world[0].address_of(other).unwrap(), &addresses[1]);
        assert_eq!(world[0].rank_of(other).unwrap(), 1);
        let refused = world[0].disconnect(other).unwrap_err();
        assert!(matches!(refused, Error::NoPeer(PeerError::Pinned)), "{refused}");
        assert_eq!(world[0].world_group().unwrap().addresses(), addresses);
        assert_eq!(world[0].group(&addresses).unwrap(), world[0].world_group().unwrap());
        assert!(matches!(world[0].connect(&addresses[0]), Err(Error::NoPeer(PeerError::Itself))));
        let (mut zero, one) = (world.remove(0), world.pop().unwrap());
        drop(one);
        let failed = zero.recv(Source::Rank(1), Tag::Any, &mut [0]).unwrap_err();
        assert!(matches!(failed, Error::PeerFailed { rank: 1, .. }), "{failed}");
        assert!(matches!(zero.stage_of(other).unwrap(), PeerStage::Ended(_)));
        assert_eq!((zero.connect(&addresses[1]).unwrap(), zero.rank_of(other).unwrap()), (other, 1));
    }
}

/// Lets both make progress until the message can be sent at once.
fn send_to(endpoint: &mut Endpoint, others: &mut [&mut Endpoint], to: usize, tag: u64) {
    let begin = Instant::now();
    while !endpoint.inject(to, tag, b"x").unwrap() {
        endpoint.progress();
        others.iter_mut().for_each(|it| _ = it.progress());
        assert!(begin.elapsed() < LIMIT.unwrap(), "nothing happens");
    }
}

#[test]
fn the_end_of_a_further_peer_concerns_its_own_operations_only_and_its_number_is_used_again() {
    let mut world = crate::endpoint::tests::world(2, &Config::default());
    let address = *world[0].address().unwrap();
    for round in 0..5 {
        let mut lone = alone();
        let peer = lone.connect(&address).unwrap();
        let to = lone.rank_of(peer).unwrap();
        send_to(&mut lone, &mut [&mut world[0]], to, round);
        let mut got = [0; 1];
        let status = world[0].recv(Source::Any, Tag::Exactly(round), &mut got).unwrap();
        assert_eq!((status.rank, world[0].size()), (2, 2), "the first number after the ranks");
        assert!(world[0].peer_of(2).is_some());
        drop(lone);
        let failed = world[0].recv(Source::Rank(2), Tag::Any, &mut got).unwrap_err();
        assert!(matches!(failed, Error::PeerFailed { rank: 2, .. }), "{failed}");
        // A receive from any source outlives it, and the ranks go on.
        let (zero, one) = world.split_at_mut(1);
        send_to(&mut one[0], &mut [&mut zero[0]], 0, 77);
        assert_eq!(zero[0].recv(Source::Any, Tag::Exactly(77), &mut got).unwrap().rank, 1);
        assert!(one[0].failure(0).is_none() && zero[0].survivors() == [0, 1]);
    }
}

#[test]
fn receives_from_any_source_end_when_neither_a_rank_nor_a_further_peer_is_left() {
    let mut world = crate::endpoint::tests::world(2, &Config::default());
    let address = *world[0].address().unwrap();
    let mut lone = alone();
    let peer = lone.connect(&address).unwrap();
    let to = lone.rank_of(peer).unwrap();
    send_to(&mut lone, &mut [&mut world[0]], to, 1);
    let mut got = [0; 1];
    world[0].recv(Source::Any, Tag::Exactly(1), &mut got).unwrap();
    world.pop().unwrap().close().unwrap();
    while world[0].failure(1).is_none() {
        world[0].progress();
    }
    let found = world[0].iprobe(Source::Any, Tag::Exactly(5)).unwrap();
    assert!(found.is_none(), "a further peer is left");
    lone.close().unwrap();
    let ended = world[0].recv(Source::Any, Tag::Any, &mut got).unwrap_err();
    assert!(matches!(ended, Error::PeerFailed { rank: 2, .. }), "{ended}");
}

#[test]
fn further_peers_are_admitted_as_by_lone_endpoints_and_limited_by_the_same_setting() {
    let lone_to = |address: &PeerAddress, callee: &mut Endpoint| {
        let mut lone = alone();
        let peer = lone.connect(address).unwrap();
        let number = lone.rank_of(peer).unwrap();
        let begin = Instant::now();
        while matches!(lone.stage_of(peer).unwrap(), PeerStage::Calling(_)) {
            lone.progress();
            callee.progress();
            assert!(begin.elapsed() < LIMIT.unwrap(), "nothing happens");
        }
        (lone.failure(number), lone)
    };
    // The world has not used its address: it is known from elsewhere.
    let mut world = crate::endpoint::tests::world_apart(2, &Config::default().connections(1));
    let peer = world[1].peer_of(0).unwrap();
    let address = *world[1].address_of(peer).unwrap();
    let (failure, first) = lone_to(&address, &mut world[0]);
    assert_eq!(failure, None);
    let (failure, _) = lone_to(&address, &mut world[0]);
    assert_eq!(failure, Some(Failure::Unreachable), "one connection is the limit");
    drop(first);
    let mut closed = crate::endpoint::tests::world_apart(1, &Config::default().strangers(false)).remove(0);
    let address = *closed.address().unwrap();
    let (failure, _) = lone_to(&address, &mut closed);
    assert_eq!(failure, Some(Failure::Unreachable), "no strangers");
}

#[test]
fn memory_of_a_further_peer_is_taken_with_its_connection() {
    let mut one = crate::endpoint::tests::world(1, &Config::default()).remove(0);
    let committed = one.engine.committed_bytes();
    let mut peers = Vec::new();
    for round in 0..3 {
        let mut lone = alone();
        let peer = one.connect(lone.address().unwrap()).unwrap();
        let before = one.engine.committed_bytes();
        let number = one.rank_of(peer).unwrap();
        assert_eq!(number, round + 1);
        send_to(&mut one, &mut [&mut lone], number, 3);
        lone.recv(Source::Any, Tag::Any, &mut [0; 1]).unwrap();
        assert!(round > 0 || before == committed, "nothing before the connection");
        peers.push(lone);
    }
    assert!(one.engine.committed_bytes() > committed);
}

/// The rank of a world that meets another one of two ranks. Each rank sends to both of the other world, and receives
/// from both; the ranks of its own world are reached as before.
fn meet_and_exchange(endpoint: &mut Endpoint, how: Meeting) {
    let group = endpoint.world_group().unwrap();
    let met = endpoint.meet(&group, how, 5, LIMIT).unwrap();
    assert_eq!(met.size(), 2);
    exchange_with(endpoint, endpoint.rank() as u64, &met);
    let numbers = [0, 1].map(|place| endpoint.rank_of(met.peer(place).unwrap()).unwrap());
    assert!(numbers.iter().all(|number| *number >= 2), "further peers follow the ranks: {numbers:?}");
    let (own, other) = (endpoint.rank() as u64, 1 - endpoint.rank());
    endpoint.send(other, 10, &own.to_le_bytes()).unwrap();
    assert_eq!(receive(endpoint, 10), (other, other as u64));
    endpoint.barrier().unwrap();
}

#[test]
fn a_world_meets_another_one_on_other_machines() {
    for [ours, theirs] in [[true, true], [true, false], [false, false]] {
        let config = across::config().connections(4);
        let (tell, address) = std::sync::mpsc::channel();
        let accepting = world_of(2, &config.clone().local(ours), move |mut endpoint| {
            if endpoint.rank() == 0 {
                tell.send(*endpoint.address().unwrap()).unwrap();
            }
            meet_and_exchange(&mut endpoint, Meeting::Accept);
            endpoint.close().unwrap();
        });
        let address = address.recv().unwrap();
        let calling = world_of(2, &config.local(theirs), move |mut endpoint| {
            meet_and_exchange(&mut endpoint, Meeting::Call(address));
            endpoint.close().unwrap();
        });
        join(accepting);
        join(calling);
    }
}

#[test]
fn the_only_rank_of_a_world_reaches_another_machine() {
    let mut one = crate::endpoint::tests::world_apart(1, &across::config()).remove(0);
    let mut lone = across::lone();
    let peer = one.connect(lone.address().unwrap()).unwrap();
    let number = one.rank_of(peer).unwrap();
    assert_eq!(number, 1);
    send_to(&mut one, &mut [&mut lone], number, 3);
    lone.recv(Source::Any, Tag::Any, &mut [0; 1]).unwrap();
    assert!(one.explain().to_string().contains("rank 1 over tcp"), "{}", one.explain());
}
