//! Attempts, their pauses and their limits.

use std::vec::Vec;

use super::super::terms::{CarrierKind, DialFault, LinkEnding, LinkStage, PathResult};
use super::world::{LinkReport, LinkWorld, Setup};
use super::*;
use crate::link::wire::{LINK_VERSION, LinkBody, LinkMessage};

use CarrierKind::{Datagram, HandOff, Stream};

/// The pauses between attempts, in milliseconds.
const PAUSES: [u64; 10] = [1, 2, 4, 8, 16, 32, 64, 100, 100, 100];

const UNREACHABLE: LinkReport = LinkReport::Ended(LinkEnding::Unreachable);

/// Returns the time until something is due at process 0, in microseconds.
fn due(world: &LinkWorld) -> u128 {
    world.processes[0].links.next().saturating_sub(world.now).as_micros()
}

/// Returns the number of the call that process 0 has sent last.
fn call_number(world: &mut LinkWorld) -> u64 {
    let bytes = world.desk(0).last_said.clone();
    match LinkMessage::decode(&bytes, LINK_VERSION).unwrap().body {
        LinkBody::Call(call) => call.call,
        other => panic!("no call: {other:?}"),
    }
}

#[test]
fn the_pauses_between_attempts_double_up_to_the_longest() {
    for busy in [true, false] {
        let mut world = Setup::new(HandOff).open();
        if busy {
            world.carriage.faults.insert((1, HandOff), DialFault::Busy);
        } else {
            world.desk(1).refuses = Some(FULL);
        }
        world.speak(0, 1).unwrap();
        for pause in PAUSES {
            world.run();
            assert_eq!((world.stage(0, 1), due(&world)), (LinkStage::Calling, 1000 * u128::from(pause)));
            // Meanwhile it has neither a carrier nor resources, and the peer has nothing at all.
            assert_eq!((world.carriers(0), world.desk(0).made.len()), (0, 0));
            world.assert_nothing(1);
            world.pass(millis(pause) - INSTANT);
            assert!(world.carriage.flights.is_empty());
            world.pass(INSTANT);
        }
        // A later call begins with the shortest pause.
        (world.desk(1).refuses, world.carriage.faults) = (None, [].into());
        world.run();
        world.assert_joined(0, 1);
        world.close_link(0, 1);
        world.desk(1).refuses = Some(FULL);
        world.speak(0, 1).unwrap();
        world.run();
        assert_eq!(due(&world), 1000);
    }
}

#[test]
fn each_attempt_has_the_next_number() {
    let mut world = Setup::new(HandOff).open();
    world.desk(1).refuses = Some(FULL);
    world.speak(0, 1).unwrap();
    let mut numbers = Vec::new();
    for pause in [1, 2, 4] {
        world.run();
        numbers.push(call_number(&mut world));
        world.pass(millis(pause));
    }
    assert_eq!(numbers, [1, 2, 3]);
}

#[test]
fn a_further_peer_that_is_full_for_the_whole_limit_has_refused_and_a_rank_is_called_on() {
    for has_ranks in [false, true] {
        let mut world = Setup { has_ranks, ..Setup::new(Stream) }.open();
        world.desk(1).refuses = Some(FULL);
        world.speak(0, 1).unwrap();
        world.wait(PATIENCE - INSTANT);
        assert_eq!((world.stage(0, 1), world.reports(0)), (LinkStage::Calling, [].into()));
        world.wait(PATIENCE);
        let full = LinkReport::Ended(LinkEnding::Refused(RefusalCode::Full));
        assert_eq!(world.reports(0).first(), (!has_ranks).then_some(&full));
        if has_ranks {
            // Its words show that it lives.
            world.desk(1).refuses = None;
            world.wait(millis(100));
            world.assert_joined(0, 1);
        }
    }
}

#[test]
fn a_peer_that_gives_no_sign_is_unreachable_at_the_limit_and_not_before() {
    for kind in [HandOff, Stream, Datagram] {
        let mut world = Setup::new(kind).open();
        world.speak(0, 1).unwrap();
        world.until(0, 1, LinkStage::Proving);
        world.pass(PATIENCE - INSTANT);
        assert_eq!((world.stage(0, 1), world.reports(0)), (LinkStage::Proving, [].into()), "{kind:?}");
        world.pass(INSTANT);
        assert_eq!(world.reports(0), [UNREACHABLE], "{kind:?}");
        assert_eq!((world.carriers(0), world.desk(0).made.len()), (0, 1), "{kind:?}");
        world.free(0, 1);
        world.assert_nothing(0);
    }
}

#[test]
fn a_rank_whose_kernel_has_taken_the_connection_has_no_limit() {
    for is_taken in [false, true] {
        let mut world = Setup { has_ranks: true, ..Setup::new(Stream) }.open();
        world.speak(0, 1).unwrap();
        if is_taken {
            // The rank itself computes: no challenge comes.
            world.step();
            world.carriage.flights.clear();
        }
        for _ in 0..3 {
            world.pass(PATIENCE);
        }
        let reports: &[LinkReport] = if is_taken { &[] } else { &[UNREACHABLE] };
        assert_eq!(world.reports(0), reports, "taken: {is_taken}");
    }
}

#[test]
fn a_queue_that_is_full_shows_that_a_rank_lives_and_not_that_a_further_peer_does() {
    for has_ranks in [false, true] {
        let mut world = Setup { has_ranks, ..Setup::new(HandOff) }.open();
        world.carriage.faults.insert((1, HandOff), DialFault::Full);
        world.speak(0, 1).unwrap();
        world.wait(3 * PATIENCE);
        let reports: &[LinkReport] = if has_ranks { &[] } else { &[UNREACHABLE] };
        assert_eq!(world.reports(0), reports);
    }
    // Another fault shows nothing.
    let mut world = Setup { has_ranks: true, ..Setup::new(HandOff) }.open();
    world.carriage.faults.insert((1, HandOff), DialFault::Busy);
    world.speak(0, 1).unwrap();
    world.wait(3 * PATIENCE);
    assert_eq!(world.reports(0), [UNREACHABLE]);
}

/// Process 1 says that it keeps the call.
fn hold(world: &mut LinkWorld) {
    let bytes = world.message(0, 1, LinkBody::Hold);
    world.hear(0, 1, &bytes);
}

#[test]
fn hold_begins_the_limit_anew_twice_for_a_further_peer_and_always_for_a_rank() {
    for has_ranks in [false, true] {
        // A rank over datagrams: no kernel shows that it lives.
        let mut world = Setup { has_ranks, ..Setup::new(Datagram) }.open();
        world.speak(0, 1).unwrap();
        world.until(0, 1, LinkStage::Proving);
        for _ in 0..3 {
            world.pass(secs(11));
            hold(&mut world);
            assert_eq!(world.stage(0, 1), LinkStage::Proving);
        }
        // The third one, after 33 s, changes nothing for a further peer: the second was after 22 s.
        world.pass(secs(1) - INSTANT);
        assert_eq!(world.reports(0), []);
        world.pass(INSTANT);
        let reports: &[LinkReport] = if has_ranks { &[] } else { &[UNREACHABLE] };
        assert_eq!(world.reports(0), reports);
        world.pass(secs(11));
        assert_eq!(world.stage(0, 1), LinkStage::Ended, "a hold is no more than one limit");
    }
}

#[test]
fn a_challenge_shows_that_a_rank_lives() {
    let mut world = Setup { has_ranks: true, ..Setup::new(Datagram) }.open();
    world.speak(0, 1).unwrap();
    world.pass(secs(11));
    world.until(0, 1, LinkStage::Proving);
    world.pass(PATIENCE - INSTANT);
    assert_eq!(world.reports(0), []);
    world.pass(INSTANT);
    assert_eq!(world.reports(0), [UNREACHABLE]);
}

#[test]
fn a_shortage_of_this_process_never_ends_a_peer() {
    let mut world = Setup::new(Stream).open();
    world.desk(0).can_make = false;
    world.speak(0, 1).unwrap();
    world.wait(5 * PATIENCE);
    assert_eq!((world.stage(0, 1), world.reports(0)), (LinkStage::Calling, [].into()));
    world.desk(0).can_make = true;
    world.wait(millis(100));
    world.assert_joined(0, 1);

    // The one place for a carrier is in use.
    let mut world = Setup { count: 3, places: [8, 1], ..Setup::new(Stream) }.open();
    world.speak(0, 1).unwrap();
    world.run();
    world.speak(0, 2).unwrap();
    world.wait(3 * PATIENCE);
    assert_eq!((world.stage(0, 2), world.reports(0)), (LinkStage::Calling, [LinkReport::Opened].into()));
    world.cut(0, 1);
    world.wait(millis(100));
    assert_eq!(world.stage(0, 2), LinkStage::Open);
}

#[test]
fn a_shortage_that_is_over_protects_a_silent_peer_no_longer() {
    let mut world = Setup::new(Stream).open();
    world.desk(0).can_make = false;
    world.speak(0, 1).unwrap();
    world.wait(2 * PATIENCE);
    world.desk(0).can_make = true;
    world.kill(1);
    world.carriage.faults.insert((1, Stream), DialFault::Busy);
    world.processes.truncate(1);
    // Nothing answers: the call was not sent.
    world.wait(2 * PATIENCE);
    assert_eq!(world.stage(0, 1), LinkStage::Ended);
}

#[test]
fn a_path_that_is_not_made_within_the_limit_ends_the_call_and_the_peer_learns_it() {
    let mut world = Setup::new(Stream).open();
    world.desk(0).path = PathResult::Pending;
    world.speak(0, 1).unwrap();
    world.run();
    world.pass(PATIENCE);
    assert_eq!((world.reports(0), world.said(0)), ([UNREACHABLE].into(), ["call", "leave"].into()));
    world.run();
    world.assert_nothing(1);
}

#[test]
fn a_carrier_that_is_lost_before_the_welcome_is_followed_by_the_next_call() {
    let mut world = Setup::new(Stream).open();
    world.speak(0, 1).unwrap();
    world.until(0, 1, LinkStage::Confirmed);
    world.carriage.flights.clear();
    world.cut(0, 1);
    assert_eq!((world.stage(0, 1), world.reports(0)), (LinkStage::Calling, [].into()));
    world.wait(secs(6));
    world.assert_joined(0, 1);
}

#[test]
fn over_hand_off_a_call_to_a_process_that_has_gone_is_repeated_at_once() {
    // The other end closes between the connection and the call, and again before the confirmation.
    let mut world = Setup::new(HandOff).open();
    world.speak(0, 1).unwrap();
    world.until(1, 0, LinkStage::Answered);
    let answered = world.carrier(1, 0).unwrap();
    world.act(1, |links, now, owner| links.lost(answered, now, owner));
    world.deliver(0, "answer");
    assert_eq!((world.stage(0, 1), world.reports(0)), (LinkStage::Calling, [].into()));
    world.wait(millis(1));
    world.assert_joined(0, 1);
}
