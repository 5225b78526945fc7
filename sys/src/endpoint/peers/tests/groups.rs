//! Barriers and agreements among groups of peers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use nemesia_core::payload::SendBuf;

use super::*;
use crate::endpoint::Mode;
use crate::endpoint::group::{BarrierStep, CallGroup};
use crate::endpoint::reserved::{BARRIER_CONTEXT, GROUP_TAG};
use crate::{Meeting, PeerGroup};

/// Runs `work` for each endpoint in a thread of its own, with its position and the addresses of all.
fn each<T: Send + 'static>(
    all: Vec<Endpoint>,
    work: impl Fn(Endpoint, usize, &[PeerAddress]) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let addresses: Vec<_> = all.iter().map(|it| *it.address().unwrap()).collect();
    let start = |(at, endpoint)| {
        let (work, addresses) = (work.clone(), addresses.clone());
        thread::spawn(move || work(endpoint, at, &addresses))
    };
    let threads: Vec<_> = all.into_iter().enumerate().map(start).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn several(count: usize) -> Vec<Endpoint> {
    (0..count).map(|_| alone()).collect()
}

/// Returns the addresses at these positions.
fn those(addresses: &[PeerAddress], at: &[usize]) -> Vec<PeerAddress> {
    at.iter().map(|at| addresses[*at]).collect()
}

/// Returns the position of the member that is gone.
fn gone(broken: Result<(), Error>) -> usize {
    match broken {
        Err(Error::MemberFailed { place, .. } | Error::MemberLost { place, .. }) => place,
        other => panic!("{other:?}"),
    }
}

#[test]
fn groups_that_overlap_in_any_order_meet_and_agree() {
    const GROUPS: [&[usize]; 6] = [&[2, 0], &[3, 1, 2], &[1, 0], &[0, 3, 1, 2], &[3], &[3, 2, 1, 0]];
    each(several(4), |mut endpoint, own, addresses| {
        for round in 0..20_u64 {
            for (number, members) in GROUPS.iter().enumerate().filter(|(_, it)| it.contains(&own)) {
                let group = endpoint.group(&those(addresses, members)).unwrap();
                assert_eq!(members[group.place().unwrap()], own);
                let common = 1 << (10 + number) | round << 20;
                let mut all = endpoint.among_peers(&group).unwrap();
                all.barrier().unwrap();
                let agreed = all.agree(common | 1 << own).unwrap();
                let alone = if members.len() == 1 { 1 << own } else { 0 };
                assert_eq!((agreed.flags, agreed.gone.len()), (common | alone, 0), "{members:?}");
                assert_eq!(all.shrink().unwrap(), group);
            }
        }
        let all = endpoint.group(addresses).unwrap();
        endpoint.among_peers(&all).unwrap().barrier().unwrap();
        assert_eq!(endpoint.engine.unexpected_messages(), 0, "messages are left");
        endpoint.close().unwrap();
    });
}

#[test]
fn no_member_leaves_a_barrier_before_all_have_entered_it() {
    static ENTERED: AtomicUsize = AtomicUsize::new(0);
    for size in [1, 2, 3, 5, 8] {
        ENTERED.store(0, Ordering::SeqCst);
        each(several(size), move |mut endpoint, _, addresses| {
            let mut turned = addresses.to_vec();
            turned.rotate_left(1);
            let group = endpoint.group(&turned).unwrap();
            for round in 1..=30 {
                ENTERED.fetch_add(1, Ordering::SeqCst);
                endpoint.among_peers(&group).unwrap().barrier().unwrap();
                assert!(ENTERED.load(Ordering::SeqCst) >= round * size);
                endpoint.among_peers(&group).unwrap().barrier().unwrap();
            }
            endpoint.close().unwrap();
        });
    }
}

/// One member leaves without a word, before the others connect with it or after a barrier of all. These go on.
fn shrinks(open: fn() -> Endpoint, sizes: &[usize]) {
    for (size, before) in sizes.iter().flat_map(|size| [(*size, false), (*size, true)]) {
        each((0..size).map(|_| open()).collect(), move |mut endpoint, own, addresses| {
            let order: Vec<_> = (0..size).rev().collect();
            let group = endpoint.group(&those(addresses, &order)).unwrap();
            if !before {
                endpoint.among_peers(&group).unwrap().barrier().unwrap();
            }
            if own == 1 {
                return;
            }
            let lost = size - 2;
            let mut all = endpoint.among_peers(&group).unwrap();
            assert_eq!(gone(all.barrier()), lost);
            let agreed = all.agree(own as u64 | 8).unwrap();
            assert_eq!((agreed.flags & 8, &agreed.gone[..]), (8, &[lost][..]));
            let left = all.shrink().unwrap();
            let order: Vec<_> = (0..size).rev().filter(|at| *at != 1).collect();
            assert_eq!(
                (left.addresses(), left.place()),
                (&those(addresses, &order)[..], order.iter().position(|at| *at == own))
            );
            for _ in 0..3 {
                endpoint.among_peers(&left).unwrap().barrier().unwrap();
                assert!(endpoint.among_peers(&left).unwrap().agree(3).unwrap().gone.is_empty());
            }
            // The group of before has the member as gone from the start.
            assert_eq!(endpoint.among_peers(&group).unwrap().agree(1).unwrap().gone, [lost]);
            endpoint.among_peers(&left).unwrap().barrier().unwrap();
            endpoint.close().unwrap();
        });
    }
}

#[test]
fn survivors_of_a_group_agree_on_the_member_that_is_gone_and_go_on() {
    shrinks(alone, &[2, 3, 4, 7]);
}

#[test]
fn groups_across_machines_meet_agree_and_shrink() {
    shrinks(across::lone, &[3]);
}

#[test]
fn two_groups_that_have_met_are_one() {
    let (mut accepting, calling) = (several(2), several(3));
    let address = *accepting[0].address().unwrap();
    let work = move |mut endpoint: Endpoint, addresses: &[PeerAddress], meeting| {
        let own = endpoint.group(addresses).unwrap();
        let other = endpoint.meet(&own, meeting, 4, LIMIT).unwrap();
        let all = match meeting {
            Meeting::Accept => other.followed_by(&own),
            Meeting::Call(_) => own.followed_by(&other),
        };
        for round in 0..10 {
            let mut among = endpoint.among_peers(&all).unwrap();
            among.barrier().unwrap();
            let flags = 1 << 40 | round << 8 | 1 << all.place().unwrap();
            assert_eq!(
                among.agree(flags).unwrap(),
                crate::Agreed { flags: 1 << 40 | round << 8, gone: vec![] }
            );
            endpoint.among_peers(&own).unwrap().barrier().unwrap();
            assert!(matches!(endpoint.among_peers(&other), Err(Error::Members)));
        }
        endpoint.among_peers(&all).unwrap().barrier().unwrap();
        endpoint.close().unwrap();
    };
    let other = thread::spawn(move || {
        each(calling, move |endpoint, _, addresses| work(endpoint, addresses, Meeting::Call(address)))
    });
    let accepting = std::mem::take(&mut accepting);
    each(accepting, move |endpoint, _, addresses| work(endpoint, addresses, Meeting::Accept));
    other.join().unwrap();
}

/// Lets all make progress until a condition holds.
fn until(all: &mut [&mut Endpoint], mut is_reached: impl FnMut(&mut [&mut Endpoint]) -> bool) {
    while !is_reached(all) {
        all.iter_mut().for_each(|it| _ = it.progress());
    }
}

/// Connects with an endpoint that has no place for another connection until a peer of it is gone.
fn connect_when_there_is_room(endpoint: &mut Endpoint, address: &PeerAddress) -> usize {
    loop {
        let peer = endpoint.connect(address).unwrap();
        match endpoint.wait_connected(peer, LIMIT) {
            Ok(rank) => return rank,
            Err(Error::PeerFailed { failure: Failure::Unreachable, .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// A barrier waits for another member, and has no request with the one that goes. Its number becomes that of another
/// process, which the barrier leaves alone.
#[test]
fn a_barrier_under_way_does_not_talk_with_the_next_owner_of_a_number() {
    let mut zero = Endpoint::alone(&Config::default().connections(3)).unwrap();
    let (one, mut two, three, mut next) = (alone(), alone(), alone(), alone());
    let addresses = [&zero, &one, &two, &three].map(|it| *it.address().unwrap());
    let group = zero.group(&addresses).unwrap();
    let call = CallGroup::Peers(group.clone());
    // Round 0 is with members 1 and 3.
    assert!(matches!(zero.barrier_step(&call).unwrap(), BarrierStep::Wait(_)));
    let gone_peer = group.peer(2).unwrap();
    let number = zero.rank_of(gone_peer).unwrap();
    until(&mut [&mut zero, &mut two], |all| {
        matches!(all[0].stage_of(gone_peer).unwrap(), PeerStage::Connected(_))
    });
    drop(two);
    until(&mut [&mut zero], |all| all[0].peer_of(number).is_none());
    let (address, own) = (addresses[0], *next.address().unwrap());
    let other = thread::spawn(move || (connect_when_there_is_room(&mut next, &address), next));
    until(&mut [&mut zero], |_| other.is_finished());
    let (to, mut next) = other.join().unwrap();
    let owner = zero.peer_of(number).unwrap();
    assert_eq!(zero.address_of(owner).unwrap(), &own, "the number is used again");
    let others = thread::spawn(move || {
        each(vec![one, three], move |mut endpoint, _, _| {
            let group = endpoint.group(&addresses).unwrap();
            assert_eq!(gone(endpoint.among_peers(&group).unwrap().barrier()), 2);
            // Not before all have left the barrier.
            assert_eq!(endpoint.among_peers(&group).unwrap().agree(0).unwrap().gone, [2]);
        })
    });
    let broken = zero.among_peers(&group).unwrap().barrier();
    assert!(matches!(broken, Err(Error::MemberFailed { place: 2, .. })), "{broken:?}");
    assert_eq!(zero.among_peers(&group).unwrap().agree(0).unwrap().gone, [2]);
    others.join().unwrap();
    // The next owner has got nothing, and is connected as before.
    zero.send(number, 1, b"first").unwrap();
    assert_eq!(next.recv(Source::Rank(to), Tag::Any, &mut [0; 5]).unwrap().tag, 1);
    assert_eq!(next.engine.unexpected_messages(), 0);
    zero.close().unwrap();
    next.close().unwrap();
}

#[test]
fn an_agreement_under_way_does_not_talk_with_the_next_owner_of_a_number() {
    let mut zero = Endpoint::alone(&Config::default().connections(3)).unwrap();
    let (one, mut two, three, mut next) = (alone(), alone(), alone(), alone());
    let addresses = [&zero, &one, &two, &three].map(|it| *it.address().unwrap());
    let address = addresses[0];
    let group = zero.group(&addresses).unwrap();
    let number = zero.rank_of(group.peer(2).unwrap()).unwrap();
    // It waits for the report of member 1 first.
    let agreeing = thread::spawn(move || {
        let agreed = zero.among_peers(&group).unwrap().agree(u64::MAX);
        (agreed, zero)
    });
    let back = two.connect(&address).unwrap();
    two.wait_connected(back, LIMIT).unwrap();
    // Its credit is used up when all are connected: no number is free but that of the member that goes.
    let mut others = [one, three];
    for other in &mut others {
        let back = other.connect(&address).unwrap();
        other.wait_connected(back, LIMIT).unwrap();
    }
    drop(two);
    let to = connect_when_there_is_room(&mut next, &address);
    each(others.into(), move |mut endpoint, _, _| {
        let group = endpoint.group(&addresses).unwrap();
        let agreed = endpoint.among_peers(&group).unwrap().agree(6).unwrap();
        assert_eq!((agreed.flags, &agreed.gone[..]), (6, &[2][..]));
    });
    let (agreed, mut zero) = agreeing.join().unwrap();
    assert_eq!(agreed.unwrap().gone, [2]);
    let owner = zero.peer_of(number).unwrap();
    assert_eq!(zero.address_of(owner).unwrap(), next.address().unwrap(), "the number is used again");
    zero.send(number, 1, b"first").unwrap();
    assert_eq!(next.recv(Source::Rank(to), Tag::Any, &mut [0; 5]).unwrap().tag, 1);
    assert_eq!(next.engine.unexpected_messages(), 0);
    zero.close().unwrap();
    next.close().unwrap();
}

/// A process has released a member, which lives and does not know that yet.
#[test]
fn a_member_that_lives_and_was_lost_does_not_wait() {
    for reconnects in [false, true] {
        let (mut one, mut two) = (alone(), alone());
        let addresses = [*one.address().unwrap(), *two.address().unwrap()];
        let group = one.group(&addresses).unwrap();
        one.disconnect(group.peer(1).unwrap()).unwrap();
        if reconnects {
            // It is a stranger now, which has nothing to do with the group.
            let back = two.connect(&addresses[0]).unwrap();
            let rank = two.rank_of(back).unwrap();
            until(&mut [&mut one, &mut two], |all| all[1].inject(rank, 1, &[1; 8]).unwrap());
            receive(&mut one, 1);
        }
        assert_eq!(gone(one.among_peers(&group).unwrap().barrier()), 1);
        assert_eq!(one.among_peers(&group).unwrap().agree(5).unwrap().gone, [1]);
        let other = thread::spawn(move || {
            let group = two.group(&addresses).unwrap();
            let broken = two.among_peers(&group).unwrap().barrier();
            assert!(matches!(broken, Err(Error::MemberFailed { place: 0, .. })), "{broken:?}");
            assert_eq!(two.among_peers(&group).unwrap().shrink().unwrap().addresses(), &addresses[1..]);
            two
        });
        until(&mut [&mut one], |_| other.is_finished());
        let two = other.join().unwrap();
        // Both may connect again, if the program says so.
        let group = one.group(&addresses).unwrap();
        let call = thread::spawn(move || {
            let mut two = two;
            let group = two.group(&addresses).unwrap();
            two.among_peers(&group).unwrap().barrier().unwrap();
            two.close().unwrap();
        });
        one.among_peers(&group).unwrap().barrier().unwrap();
        one.close().unwrap();
        call.join().unwrap();
    }
}

#[test]
fn processes_that_make_different_calls_disconnect_instead_of_waiting() {
    for agrees in [false, true] {
        let last = *alone().address().unwrap();
        let ended = each(several(2), move |mut endpoint, own, addresses| {
            // The second one has a third process in its group, which is gone.
            let group = endpoint.group(&[addresses, &[last][..own]].concat()).unwrap();
            let mut all = endpoint.among_peers(&group).unwrap();
            let lost = match agrees {
                true => all.agree(1).map(|agreed| agreed.gone),
                false => Ok(vec![gone(all.barrier())]),
            };
            (lost, endpoint)
        });
        for (own, (lost, _)) in ended.iter().enumerate() {
            let other = |place: &usize| [1 - own, 2].contains(place);
            assert!(lost.as_ref().is_ok_and(|lost| !lost.is_empty() && lost.iter().all(other)), "{ended:?}");
        }
        for (own, (_, endpoint)) in ended.iter().enumerate() {
            assert!((1..endpoint.size()).any(|rank| endpoint.failure(rank).is_some()), "of {own}");
        }
    }
}

#[test]
fn an_invalid_message_of_a_barrier_fails_its_sender_only() {
    for bytes in [&[0; 3][..], &[0; 5], &7_u32.to_le_bytes(), &u32::MAX.to_le_bytes()] {
        let mut all = several(2);
        let (mut liar, mut honest) = (all.pop().unwrap(), all.pop().unwrap());
        let addresses = [*honest.address().unwrap(), *liar.address().unwrap()];
        let to = liar.connect(&addresses[0]).unwrap();
        let to = liar.rank_of(to).unwrap();
        // SAFETY: the bytes outlive the endpoint.
        let buf = unsafe { SendBuf::from_raw(bytes.as_ptr(), bytes.len()) };
        let _ = liar.start(to, BARRIER_CONTEXT, GROUP_TAG | 5, buf, Mode::Standard).unwrap();
        let helper = thread::spawn(move || {
            while liar.failure(to).is_none() {
                liar.progress();
            }
        });
        let group = honest.group(&addresses).unwrap();
        let broken = honest.among_peers(&group).unwrap().barrier();
        assert!(
            matches!(broken, Err(Error::MemberFailed { place: 1, failure: Failure::Fault(_), .. })),
            "{broken:?}"
        );
        helper.join().unwrap();
    }
}

#[test]
fn groups_that_cannot_make_a_call_are_refused_and_the_call_has_not_begun() {
    let mut one = Endpoint::alone(&Config::default().connections(1)).unwrap();
    let others = several(2);
    let own = *one.address().unwrap();
    let addresses: Vec<_> = [own].into_iter().chain(others.iter().map(|it| *it.address().unwrap())).collect();
    let group = one.group(&addresses).unwrap();
    let twice = group.followed_by(&group);
    assert!(matches!(one.among_peers(&twice), Err(Error::Members)));
    let without = one.group(&addresses[1..]).unwrap();
    assert!(matches!(one.among_peers(&without), Err(Error::Members)));
    let mut all = one.among_peers(&group).unwrap();
    for error in [all.barrier().unwrap_err(), all.agree(1).unwrap_err()] {
        assert!(matches!(error, Error::NoPeer(PeerError::Connections { most: 1 })), "{error}");
    }
    // No call is under way, so another group can have one.
    let lone = one.group(&addresses[..1]).unwrap();
    one.among_peers(&lone).unwrap().barrier().unwrap();
    assert_eq!(one.among_peers(&lone).unwrap().agree(7).unwrap().flags, 7);
    drop(others);
}

#[test]
fn a_known_group_leaves_its_peers_as_they_are() {
    let (mut one, mut two) = (alone(), alone());
    let addresses = [*one.address().unwrap(), *two.address().unwrap()];
    let [from, _] = connected(&mut one, &mut two);
    let peer = one.peer_of(from).unwrap();
    two.close().unwrap();
    until(&mut [&mut one], |all| all[0].failure(from).is_some());
    one.connect(&addresses[1]).unwrap();
    let again = one.rank_of(peer);
    assert!(again.is_ok(), "{again:?}");
    until(&mut [&mut one], |all| matches!(all[0].stage_of(peer), Ok(PeerStage::Ended(_))));
    let known = one.known_group(&addresses).unwrap();
    assert_eq!(known.peer(1), Some(peer));
    assert!(matches!(one.stage_of(peer), Ok(PeerStage::Ended(_))));
    assert_eq!(gone(one.among_peers(&known).unwrap().barrier()), 1);
    assert!(matches!(one.known_group(&[addresses[1]; 2]), Err(Error::Members)));
    one.close().unwrap();
}

/// The number of the handler that panics.
const PANICS: u16 = 3;

#[test]
fn a_call_that_a_panic_interrupts_continues_with_the_next_call_of_the_same_group() {
    for agrees in [false, true] {
        let (mut one, mut two) = (alone(), alone());
        one.set_handler(PANICS, |_| panic!("a handler panics, as it should"));
        let addresses = [*one.address().unwrap(), *two.address().unwrap()];
        let (unwound, goes_on) = std::sync::mpsc::channel();
        let other = thread::spawn(move || {
            let group = two.group(&addresses).unwrap();
            let to = two.rank_of(group.peer(0).unwrap()).unwrap();
            two.send_active(to, PANICS, b"", b"").unwrap();
            goes_on.recv().unwrap();
            let mut all = two.among_peers(&group).unwrap();
            match agrees {
                true => assert_eq!(all.agree(0b110).unwrap().flags, 0b010),
                false => all.barrier().unwrap(),
            }
            all.barrier().unwrap();
            two.close().unwrap();
        });
        let group = one.group(&addresses).unwrap();
        let unwinds = catch_unwind(AssertUnwindSafe(|| {
            let mut all = one.among_peers(&group).unwrap();
            match agrees {
                true => all.agree(0b011).map(drop),
                false => all.barrier(),
            }
        }));
        assert!(unwinds.is_err());
        let lone = one.group(&addresses[..1]).unwrap();
        let mut own = one.among_peers(&lone).unwrap();
        let refused = if agrees { own.agree(1).map(drop) } else { own.barrier() };
        assert!(matches!(refused, Err(Error::AgreementUnderWay)), "{refused:?}");
        unwound.send(()).unwrap();
        // A group that was made anew is the same one.
        let group = one.group(&addresses).unwrap();
        let mut all = one.among_peers(&group).unwrap();
        match agrees {
            true => assert_eq!(all.agree(0).unwrap().flags, 0b010, "the flags of the first call count"),
            false => all.barrier().unwrap(),
        }
        all.barrier().unwrap();
        one.close().unwrap();
        other.join().unwrap();
    }
}

#[test]
fn one_thread_is_in_a_barrier_of_a_group_while_others_exchange() {
    each(several(2), |mut endpoint, own, addresses| {
        let group: PeerGroup = endpoint.group(addresses).unwrap();
        let peer = endpoint.rank_of(group.peer(1 - own).unwrap()).unwrap();
        let shared = endpoint.into_shared();
        thread::scope(|scope| {
            scope.spawn(|| {
                for tag in 0..100_u64 {
                    let mut got = [0; 8];
                    shared.send(peer, tag, &tag.to_le_bytes()).unwrap();
                    shared.recv(Source::Rank(peer), Tag::Exactly(tag), &mut got).unwrap();
                    assert_eq!(u64::from_le_bytes(got), tag);
                }
            });
            for _ in 0..100 {
                shared.barrier_among_peers(&group).unwrap();
            }
        });
        let agreed = shared.with(|endpoint| endpoint.among_peers(&group).unwrap().agree(own as u64 | 2));
        assert_eq!(agreed.unwrap().unwrap().flags, 2);
        assert!(matches!(shared.barrier(), Err(Error::NoWorld)));
        shared.barrier_among_peers(&group).unwrap();
        shared.close().unwrap();
    });
}

#[test]
fn a_barrier_of_a_group_names_the_reason_why_a_member_cannot_be_connected_with() {
    static DONE: AtomicUsize = AtomicUsize::new(0);
    let mut one = alone();
    let mut two = Endpoint::alone(&Config::default().strangers(false)).unwrap();
    let addresses = [*one.address().unwrap(), *two.address().unwrap()];
    let group = one.group(&addresses).unwrap();
    let other = thread::spawn(move || {
        while DONE.load(Ordering::Relaxed) == 0 {
            two.progress();
        }
    });
    let broken = one.among_peers(&group).unwrap().barrier();
    DONE.store(1, Ordering::Relaxed);
    other.join().unwrap();
    let text = broken.unwrap_err().to_string();
    assert!(text.contains("admits no unknown peers"), "{text}");
}
