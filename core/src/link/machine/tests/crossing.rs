//! Calls that cross, calls that wait, and calls that their caller has abandoned.

use super::super::terms::{CarrierKind, DialFault, LinkEnding, LinkStage};
use super::world::{LinkReport, LinkWorld, Setup};
use super::*;
use crate::link::wire::{LeaveManner, LinkBody, LinkRefuse, LinkText};

use CarrierKind::{Datagram, HandOff, Stream};

const KINDS: [CarrierKind; 3] = [HandOff, Stream, Datagram];

#[test]
fn of_two_calls_that_cross_that_of_the_higher_rank_or_smaller_address_counts() {
    for kind in KINDS {
        for (has_ranks, winner) in [(false, 0), (true, 1)] {
            for first in [0, 1] {
                let mut world = Setup { has_ranks, ..Setup::new(kind) }.open();
                world.speak(first, 1 - first).unwrap();
                world.speak(1 - first, first).unwrap();
                world.run();
                let what = std::format!("{kind:?}, ranks: {has_ranks}, first: {first}");
                world.assert_joined(0, 1);
                let says = |world: &mut LinkWorld, at: usize, name| world.said(at).contains(&name);
                assert!(!says(&mut world, 1 - winner, "confirm"), "{what}: both calls count");
                assert!(!says(&mut world, winner, "answer"), "{what}: both calls count");
                for at in [0, 1] {
                    assert_eq!(world.reports(at), [LinkReport::Opened], "{what}: {at}");
                }
            }
        }
    }
}

/// Returns a world in which process 0, whose call counts, has parked the call of process 1. Its own has not arrived.
fn parked(kind: CarrierKind) -> LinkWorld {
    let mut world = Setup::new(kind).open();
    // Of two carriers to a peer, the own one is the latest.
    world.speak(1, 0).unwrap();
    world.deliver(0, "connection");
    if kind == Stream {
        world.deliver(1, "challenge");
    }
    world.speak(0, 1).unwrap();
    world.deliver(1, "connection");
    if kind == Stream {
        world.deliver(0, "challenge");
    }
    assert_eq!(world.stage(0, 1), LinkStage::Proving);
    world.deliver(0, "call");
    assert_eq!((world.stage(0, 1), world.processes[0].links.undecided()), (LinkStage::Proving, 1));
    assert_eq!((world.carriers(0), world.desk(0).made.len()), (2, 1));
    world
}

#[test]
fn a_parked_call_is_kept_in_silence_until_the_answer_voids_it() {
    for kind in [HandOff, Stream] {
        let mut world = parked(kind);
        assert!(!world.said(0).iter().any(|name| ["hold", "refuse", "answer"].contains(name)));
        world.deliver(1, "call");
        // The peer's own call is over: its end is on its way, and the answer overtakes it.
        assert_eq!((world.stage(1, 0), world.carriers(1)), (LinkStage::Answered, 1));
        world.deliver(0, "answer");
        assert_eq!((world.processes[0].links.undecided(), world.carriers(0)), (0, 1));
        world.run();
        world.assert_joined(0, 1);
    }
}

#[test]
fn a_parked_call_is_decided_when_the_own_call_has_failed() {
    for kind in [HandOff, Stream] {
        for failure in 0..3 {
            let mut world = parked(kind);
            world.carriage.flights.clear();
            match failure {
                0 => world.cut(0, 1),
                1 => {
                    let (code, text) = (RefusalCode::Full, LinkText::EMPTY);
                    let body = LinkBody::Refuse(LinkRefuse { code, is_passing: true, values: [0; 2], text });
                    let bytes = world.message(0, 1, body);
                    world.hear(0, 1, &bytes);
                }
                _ => {
                    // The peer has more time: its call was held.
                    world.pass(secs(1));
                    let (own, bytes) =
                        (world.oldest_carrier(1, 0).unwrap(), world.message(1, 0, LinkBody::Hold));
                    world.act(1, |links, now, owner| links.received(own, &bytes, now, owner));
                    world.pass(PATIENCE - secs(1));
                }
            }
            assert_eq!(world.stage(0, 1), LinkStage::Answered, "{kind:?}, failure {failure}");
            // The connection of the own call may be at the peer's door still.
            world.wait(secs(6));
            world.assert_joined(0, 1);
            assert_eq!(world.reports(0), [LinkReport::Opened]);
        }
    }
}

#[test]
fn a_call_that_comes_before_the_peer_has_heard_the_own_one_is_answered() {
    // One direction between the two is closed.
    for fault in [DialFault::Nothing, DialFault::Busy] {
        let mut world = Setup::new(Stream).open();
        world.carriage.faults.insert((1, Stream), fault);
        world.speak(0, 1).unwrap();
        world.speak(1, 0).unwrap();
        world.carriage.flights.rotate_left(1);
        world.step();
        world.deliver(1, "challenge");
        world.deliver(0, "call");
        assert_eq!(world.stage(0, 1), LinkStage::Answered);
        world.run();
        world.assert_joined(0, 1);
    }
}

#[test]
fn a_parked_call_outlives_a_final_refusal_of_the_own_one() {
    let mut world = parked(Stream);
    world.carriage.flights.clear();
    let (code, text) = (RefusalCode::Shape, LinkText::EMPTY);
    let body = LinkBody::Refuse(LinkRefuse { code, is_passing: false, values: [0; 2], text });
    let bytes = world.message(0, 1, body);
    world.hear(0, 1, &bytes);
    assert_eq!(world.reports(0), [LinkReport::Ended(LinkEnding::Refused(RefusalCode::Shape))]);
    assert_eq!(world.processes[0].links.undecided(), 1);
    // It has a limit from now on, and until then it is decided when nothing is left of the ended link.
    world.pass(millis(4999));
    world.free(0, 1);
    world.run();
    world.assert_joined(0, 1);
}

#[test]
fn a_parked_call_whose_author_leaves_or_speaks_is_dropped() {
    for name in ["leave", "end", "nonsense"] {
        let mut world = parked(HandOff);
        world.carriage.flights.clear();
        let (link, own) = (world.link(1, 0).unwrap(), world.oldest_carrier(1, 0).unwrap());
        let waiting = world.oldest_carrier(0, 1).unwrap();
        match name {
            "leave" => world.act(1, |links, now, owner| links.disconnect(link, now, owner)),
            "end" => world.act(1, |links, now, owner| links.lost(own, now, owner)),
            _ => world.act(0, |links, now, owner| links.received(waiting, &[1; 40], now, owner)),
        }
        if name != "nonsense" {
            world.deliver(0, name);
        }
        assert!(!world.has(0, waiting), "{name}");
        assert_eq!(
            (world.processes[0].links.undecided(), world.stage(0, 1)),
            (0, LinkStage::Proving),
            "{name}"
        );
    }
}

#[test]
fn only_the_latest_call_of_a_peer_is_parked() {
    let mut world = parked(HandOff);
    let first = world.oldest_carrier(0, 1).unwrap();
    // The caller alone learns that its connection is lost, and calls again.
    world.carriage.flights.clear();
    let own = world.oldest_carrier(1, 0).unwrap();
    world.act(1, |links, now, owner| links.lost(own, now, owner));
    world.carriage.flights.clear();
    world.pass(millis(1));
    world.deliver(0, "connection");
    world.deliver(0, "call");
    assert_eq!((world.processes[0].links.undecided(), world.carriers(0)), (1, 2));
    assert!(!world.has(0, first));
}

#[test]
fn a_call_that_its_caller_has_abandoned_is_dropped_in_silence() {
    let mut world = Setup::new(Stream).open();
    world.speak(1, 0).unwrap();
    world.until(1, 0, LinkStage::Proving);
    // The first call is late.
    let late = world.carriage.flights.pop_front().unwrap();
    let first = world.carrier(0, 1).unwrap();
    world.cut(1, 0);
    world.pass(millis(1));
    world.until(0, 1, LinkStage::Answered);
    world.forget();
    world.carriage.flights.push_front(late);
    world.step();
    assert!(!world.has(0, first));
    assert_eq!((world.stage(0, 1), world.said(0)), (LinkStage::Answered, [].into()));
    world.run();
    world.assert_joined(0, 1);
    assert_eq!(world.desk(0).makings, 1);
}

#[test]
fn a_call_that_an_answer_has_voided_is_not_heard_later() {
    let mut world = Setup::new(Stream).open();
    world.speak(0, 1).unwrap();
    world.speak(1, 0).unwrap();
    world.deliver(0, "connection");
    world.deliver(1, "challenge");
    // The call of process 1 is late. That of process 0 arrives, counts, and is answered.
    world.deliver(1, "connection");
    world.deliver(0, "challenge");
    world.deliver(1, "call");
    world.deliver(0, "answer");
    world.deliver(1, "confirm");
    world.deliver(0, "welcome");
    world.forget();
    world.deliver(0, "call");
    assert_eq!((world.said(0), world.processes[0].links.undecided()), ([].into(), 0));
    world.run();
    world.assert_joined(0, 1);
}

#[test]
fn a_later_call_replaces_one_that_was_answered() {
    for kind in [HandOff, Stream] {
        let mut world = Setup::new(kind).open();
        world.speak(1, 0).unwrap();
        world.until(0, 1, LinkStage::Answered);
        let first = world.carrier(0, 1).unwrap();
        world.cut(1, 0);
        world.carriage.flights.clear();
        world.pass(millis(1));
        world.run();
        assert!(!world.has(0, first), "{kind:?}");
        world.assert_joined(0, 1);
        assert_eq!(world.desk(0).makings, 2, "{kind:?}: the first answer was made in vain");
    }
}

/// Returns a world in which process 1 calls process 0 once more, which has not seen the end of the first link.
fn held(kind: CarrierKind) -> LinkWorld {
    let mut world = Setup::new(kind).open();
    world.speak(0, 1).unwrap();
    world.run();
    world.cut(1, 0);
    world.free(1, 0);
    world.speak(1, 0).unwrap();
    world.forget();
    world.run();
    world
}

#[test]
fn the_call_of_a_peer_ends_no_open_link_and_is_held_until_the_link_has_ended() {
    for kind in [HandOff, Stream] {
        let mut world = held(kind);
        assert_eq!((world.stage(0, 1), world.stage(1, 0)), (LinkStage::Open, LinkStage::Proving));
        assert_eq!(world.reports(0), []);
        assert!(world.said(0).contains(&"hold"));
        assert_eq!(world.processes[0].links.undecided(), 1);
        // Its own end is seen, and then freed.
        let link = world.link(0, 1).unwrap();
        world.act(0, |links, now, owner| links.path_lost(link, now, owner));
        assert_eq!(
            (world.reports(0), world.stage(0, 1)),
            ([LinkReport::Ended(LinkEnding::Lost)].into(), LinkStage::Ended)
        );
        world.run();
        assert_eq!(world.stage(1, 0), LinkStage::Proving);
        world.free(0, 1);
        world.run();
        world.assert_joined(0, 1);
    }
}

#[test]
fn a_held_call_is_dropped_after_its_limit_and_called_again() {
    let mut world = held(Stream);
    world.forget();
    world.pass(millis(4999));
    assert_eq!((world.processes[0].links.undecided(), world.carriers(0)), (1, 2));
    world.pass(millis(1));
    assert_eq!((world.processes[0].links.undecided(), world.carriers(0)), (0, 1));
    world.wait(millis(1));
    assert_eq!(world.said(1), ["call"]);
    assert!(world.said(0).contains(&"hold"));
}

#[test]
fn a_held_call_goes_with_its_caller() {
    let mut world = held(Stream);
    world.close(1, LeaveManner::Closed);
    world.run();
    assert_eq!((world.processes[0].links.undecided(), world.carriers(0)), (0, 1));
    assert_eq!(world.stage(0, 1), LinkStage::Open);
}
