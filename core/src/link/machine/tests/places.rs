//! Limits of number: connections without proof, calls that are not decided, places for links and carriers.

use std::vec::Vec;

use super::super::terms::{CarrierKind, CarrierRef, LinkEnding, LinkLimits, LinkStage};
use super::world::{ENGINE, LinkReport, LinkWorld, Setup, address};
use super::*;
use crate::link::wire::{LINK_VERSION, LinkBody, LinkMessage};

use CarrierKind::{Datagram, HandOff, Stream};

/// Returns a world in which all places at the door of process 0 are in use, one more each millisecond.
fn full_door(kind: CarrierKind) -> (LinkWorld, Vec<CarrierRef>) {
    let mut world = Setup { places: [16, 600], ..Setup::new(kind) }.open();
    let mut guests = Vec::new();
    for _ in 0..256 {
        guests.push(world.stranger(kind, 1, 0).unwrap());
        world.pass(millis(1));
    }
    world.carriage.flights.clear();
    (world, guests)
}

#[test]
fn connections_without_proof_have_their_time_and_no_longer() {
    for kind in [HandOff, Stream] {
        let (mut world, guests) = full_door(kind);
        // The first has been there for 256 ms.
        world.pass(secs(5) - millis(256) - INSTANT);
        assert_eq!(guests.iter().filter(|guest| world.has(0, **guest)).count(), 256);
        for at in [0, 1, 255] {
            let later = guests[at];
            let first_of_all = if at == 0 { INSTANT } else { Duration::ZERO };
            world.pass(first_of_all);
            assert_eq!(guests.iter().filter(|guest| world.has(0, **guest)).count(), 255 - at, "{kind:?}");
            assert!(!world.has(0, later));
            world.pass(if at == 1 { millis(254) } else { millis(1) });
        }
        assert_eq!(world.processes[0].links.unproved(), [0, 0]);
        world.assert_nothing(0);
    }
}

#[test]
fn a_full_door_admits_one_more_for_the_oldest_that_has_had_the_short_time() {
    let mut world = Setup { places: [16, 600], ..Setup::new(Stream) }.open();
    let guests: Vec<_> = (0..256).map(|_| world.stranger(Stream, 1, 0).unwrap()).collect();
    assert_eq!(world.processes[0].links.unproved(), [0, 256]);
    assert_eq!(world.stranger(Stream, 1, 0), None);
    // The other door has its own places.
    assert!(world.stranger(HandOff, 1, 0).is_some());
    world.pass(millis(200) - INSTANT);
    assert_eq!(world.stranger(Stream, 1, 0), None);
    world.pass(INSTANT);
    // Those of which nothing has come go first.
    world.act(0, |links, _, _| links.partial(guests[0]));
    assert!(world.stranger(Stream, 1, 0).is_some());
    assert_eq!([0, 1, 2].map(|at| world.has(0, guests[at])), [true, false, true]);
    assert_eq!(world.processes[0].links.unproved(), [1, 256]);
    for guest in &guests[2..] {
        world.act(0, |links, _, _| links.partial(*guest));
    }
    // The one that has come since is too young.
    assert!(world.stranger(Stream, 1, 0).is_some());
    assert_eq!([0, 2].map(|at| world.has(0, guests[at])), [false, true]);
}

#[test]
fn a_process_behind_a_full_door_is_admitted_in_the_end_and_proof_frees_its_place() {
    let (mut world, _) = full_door(HandOff);
    world.speak(1, 0).unwrap();
    world.run();
    assert_eq!(world.stage(1, 0), LinkStage::Open);
    assert_eq!(world.processes[0].links.unproved(), [255, 0]);
}

#[test]
fn datagrams_have_no_door() {
    let mut world = Setup::new(Datagram).open();
    assert_eq!(world.act(0, |links, now, owner| links.accepted(Datagram, now, owner)), None);
    assert_eq!(world.processes[0].links.unproved(), [0, 0]);
}

/// A process calls process 0, and its call arrives.
fn call(world: &mut LinkWorld, at: usize) {
    world.speak(at, 0).unwrap();
    world.deliver(0, "connection");
    if world.stage(at, 0) == LinkStage::Calling {
        world.deliver(at, "challenge");
    }
    world.deliver(0, "call");
}

/// Returns the code of the passing refusal that process 0 has sent last.
fn passing_refusal(world: &mut LinkWorld) -> Option<RefusalCode> {
    let bytes = world.desk(0).last_said.clone();
    match LinkMessage::decode(&bytes, LINK_VERSION).unwrap().body {
        LinkBody::Refuse(refuse) if refuse.is_passing => Some(refuse.code),
        _ => None,
    }
}

#[test]
fn of_256_answers_without_confirmation_one_that_is_old_makes_room_for_the_next_call() {
    const MOST: usize = 256;
    let mut world = Setup { count: MOST + 2, places: [600, 600], ..Setup::new(HandOff) }.open();
    (1..=MOST).for_each(|at| call(&mut world, at));
    assert_eq!(world.processes[0].links.undecided(), MOST as u32);
    let next = MOST + 1;
    call(&mut world, next);
    assert_eq!((passing_refusal(&mut world), world.link(0, next)), (Some(RefusalCode::Full), None));
    world.deliver(next, "refuse");
    world.pass(secs(5) - INSTANT);
    world.deliver(0, "connection");
    world.deliver(0, "call");
    assert_eq!((passing_refusal(&mut world), world.link(0, next)), (Some(RefusalCode::Full), None));
    world.deliver(next, "refuse");
    world.pass(millis(2));
    world.deliver(0, "connection");
    world.deliver(0, "call");
    assert_eq!((world.stage(0, next), world.link(0, 1)), (LinkStage::Answered, None));
    assert_eq!(world.processes[0].links.undecided(), MOST as u32);
    // The caller that was given up learns it by its confirmation, and calls again.
    world.wait(millis(5));
    for at in 1..=next {
        assert_eq!((world.stage(at, 0), world.stage(0, at)), (LinkStage::Open, LinkStage::Open), "{at}");
    }
    assert_eq!(world.processes[0].links.undecided(), 0);
}

/// Returns a world with one place for a call, which process 1 has had for five seconds. Process 2 calls.
fn one_place(kind: CarrierKind, is_confirmed: bool) -> LinkWorld {
    let limits = LinkLimits { most_undecided: 1, ..LinkLimits::new(PATIENCE) };
    let mut world = Setup { count: 3, limits, ..Setup::new(kind) }.open();
    call(&mut world, 1);
    if is_confirmed {
        world.deliver(1, "answer");
    }
    world.pass(secs(5));
    world.forget();
    call(&mut world, 2);
    world
}

#[test]
fn an_answer_whose_confirmation_has_come_is_not_given_up() {
    let mut world = one_place(HandOff, true);
    assert_eq!(
        (world.stage(0, 1), passing_refusal(&mut world)),
        (LinkStage::Answered, Some(RefusalCode::Full))
    );
    world.deliver(0, "confirm");
    assert_eq!(world.stage(0, 1), LinkStage::Open);
    world.wait(millis(1));
    assert_eq!(world.stage(0, 2), LinkStage::Open);
}

#[test]
fn an_answer_that_is_given_up_is_refused_where_the_caller_waits_for_its_welcome() {
    let mut world = one_place(Stream, false);
    assert_eq!((world.stage(0, 1), world.stage(0, 2)), (LinkStage::Idle, LinkStage::Answered));
    assert_eq!(world.said(0), ["challenge", "refuse", "answer"]);
    world.wait(millis(5));
    assert_eq!((world.stage(0, 1), world.stage(0, 2)), (LinkStage::Open, LinkStage::Open));
}

#[test]
fn an_old_answer_is_found_behind_512_other_links_at_the_second_search() {
    let mut world = Setup { count: 2, places: [600, 600], ..Setup::new(Stream) }.open();
    for other in 0..512 {
        let peer = address(Stream, 10 + other).encode();
        world.act(0, |links, now, owner| links.speak(&peer, None, ENGINE, now, owner)).unwrap();
    }
    world.carriage.flights.clear();
    call(&mut world, 1);
    world.pass(secs(5));
    // One search examines a bounded number of links, and the next one goes on behind them.
    let evict = |world: &mut LinkWorld| world.act(0, |links, now, owner| links.evict_answered(now, owner));
    assert_eq!([evict(&mut world), evict(&mut world)], [false, true]);
    assert_eq!((world.link(0, 1), world.processes[0].links.links()), (None, 512));
}

#[test]
fn without_a_place_for_a_link_a_caller_is_refused_until_there_is_one() {
    let mut world = Setup { count: 4, places: [2, 64], ..Setup::new(HandOff) }.open();
    for at in 1..4 {
        world.speak(at, 0).unwrap();
        world.run();
    }
    assert_eq!(
        (world.stage(3, 0), passing_refusal(&mut world)),
        (LinkStage::Calling, Some(RefusalCode::Full))
    );
    assert_eq!(world.processes[0].links.links(), 2);
    world.cut(0, 1);
    world.free(0, 1);
    world.wait(millis(1));
    assert_eq!(world.stage(0, 3), LinkStage::Open);
}

#[test]
fn without_a_place_for_a_carrier_datagrams_are_refused_and_connections_closed() {
    let mut world = Setup { count: 3, places: [8, 1], ..Setup::new(Datagram) }.open();
    for at in 1..3 {
        world.speak(at, 0).unwrap();
        world.run();
    }
    assert_eq!(
        (world.stage(2, 0), passing_refusal(&mut world)),
        (LinkStage::Calling, Some(RefusalCode::Full))
    );
    assert_eq!((world.processes[0].links.links(), world.processes[0].links.undecided()), (1, 0));

    let mut world = Setup { count: 3, places: [8, 1], ..Setup::new(Stream) }.open();
    for at in 1..3 {
        world.speak(at, 0).unwrap();
        world.run();
    }
    // The kernel of process 0 has taken the connection, so that the caller goes on.
    assert_eq!((world.stage(2, 0), world.carriers(0)), (LinkStage::Calling, 1));
    world.processes[0].links.reserve(1, 1);
    world.wait(millis(100));
    assert_eq!(world.stage(2, 0), LinkStage::Open);
}

#[test]
fn all_due_links_are_attended_however_small_the_budget_is() {
    let mut world = Setup { count: 6, ..Setup::new(Stream) }.open();
    (1..6).for_each(|peer| _ = world.speak(0, peer).unwrap());
    world.carriage.flights.clear();
    world.now += PATIENCE;
    let mut calls = 0;
    while world.processes[0].links.next() <= world.now {
        world.act(0, |links, now, owner| links.attend(2, now, owner));
        calls += 1;
        assert!(calls < 10, "it does not come to an end");
    }
    assert_eq!(world.reports(0), [LinkReport::Ended(LinkEnding::Unreachable); 5]);
}
