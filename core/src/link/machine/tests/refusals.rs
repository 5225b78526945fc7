//! Messages that are forged, changed, repeated or of others, and calls that are refused.

use std::vec::Vec;

use super::super::table::LinkProcess;
use super::super::terms::{CarrierKind, LinkEnding, LinkStage};
use super::world::{Flight, LinkReport, LinkWorld, Setup, address};
use super::*;
use crate::job_key::JobKey;
use crate::link::wire::{LINK_VERSION, LinkBody, LinkMessage, LinkRefuse};

use CarrierKind::{HandOff, Stream};

const fn refused_for(code: RefusalCode) -> LinkReport {
    LinkReport::Ended(LinkEnding::Refused(code))
}

/// Changes one bit of this byte of the message that is on its way. Returns false if it is shorter.
fn change(world: &mut LinkWorld, place: usize) -> bool {
    let Some(Flight::Bytes(_, _, bytes)) = world.carriage.flights.front_mut() else { panic!("no message") };
    bytes.get_mut(place).map(|byte| *byte ^= 1).is_some()
}

/// Returns the refusal that a process has sent last.
fn last_refusal(bytes: &[u8]) -> LinkRefuse<'_> {
    match LinkMessage::decode(bytes, LINK_VERSION).unwrap().body {
        LinkBody::Refuse(refuse) => refuse,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_call_of_which_any_bit_was_changed_is_not_answered() {
    for kind in [HandOff, Stream] {
        let mut place = 0;
        loop {
            let mut world = Setup::new(kind).open();
            world.speak(0, 1).unwrap();
            world.until(0, 1, LinkStage::Proving);
            if !change(&mut world, place) {
                break;
            }
            world.step();
            assert_eq!(world.desk(1).makings, 0, "byte {place}");
            world.assert_nothing(1);
            place += 1;
        }
        assert_eq!(place, 160, "the call has its header, its fields, one offer and its proof");
    }
}

#[test]
fn an_answer_of_which_any_bit_was_changed_opens_nothing() {
    let mut place = 0;
    loop {
        let mut world = Setup::new(Stream).open();
        world.speak(0, 1).unwrap();
        world.until(1, 0, LinkStage::Answered);
        if !change(&mut world, place) {
            break;
        }
        world.step();
        let stage = world.stage(0, 1);
        assert!(matches!(stage, LinkStage::Proving | LinkStage::Ended), "byte {place}: {stage:?}");
        place += 1;
    }
    assert_eq!(place, 96);
}

#[test]
fn a_confirmation_of_which_any_bit_was_changed_opens_nothing() {
    let mut place = 0;
    loop {
        let mut world = Setup::new(Stream).open();
        world.speak(0, 1).unwrap();
        world.until(0, 1, LinkStage::Confirmed);
        if !change(&mut world, place) {
            break;
        }
        world.step();
        assert_ne!(world.stage(1, 0), LinkStage::Open, "byte {place}");
        assert!(world.desk(1).settled.is_empty(), "byte {place}");
        place += 1;
    }
    assert_eq!(place, 48);
}

#[test]
fn an_answer_with_a_wrong_proof_is_refused_with_words_so_that_its_author_frees_at_once() {
    let mut world = Setup::new(Stream).open();
    world.speak(0, 1).unwrap();
    world.until(1, 0, LinkStage::Answered);
    change(&mut world, 87);
    world.step();
    assert_eq!(world.reports(0), [refused_for(RefusalCode::Proof)]);
    assert_eq!(world.desk(0).words, "the answer is not by the process with the address that was called");
    assert_eq!(world.said(0).last(), Some(&"refuse"));
    world.run();
    world.assert_nothing(1);
}

#[test]
fn a_call_counts_only_from_the_place_of_its_address() {
    // Process 2 sends what process 1 has sent.
    let mut world = Setup { count: 3, ..Setup::new(HandOff) }.open();
    world.speak(1, 0).unwrap();
    world.until(1, 0, LinkStage::Proving);
    let Some(Flight::Bytes(_, _, bytes)) = world.carriage.flights.pop_front() else { panic!("no call") };
    let carrier = world.stranger(HandOff, 2, 0).unwrap();
    world.act(0, |links, now, owner| links.received(carrier, &bytes, now, owner));
    assert!(!world.has(0, carrier));
    assert_eq!((world.desk(0).makings, world.processes[0].links.links()), (0, 0));
    let said = world.desk(0).last_said.clone();
    assert_eq!((last_refusal(&said).code, last_refusal(&said).is_passing), (RefusalCode::Proof, false));
}

#[test]
fn a_recorded_call_is_void_over_another_connection() {
    let mut world = Setup::new(Stream).open();
    world.speak(1, 0).unwrap();
    world.until(1, 0, LinkStage::Proving);
    let Some(Flight::Bytes(_, _, bytes)) = world.carriage.flights.pop_front() else { panic!("no call") };
    // It has another challenge.
    let carrier = world.stranger(Stream, 1, 0).unwrap();
    world.act(0, |links, now, owner| links.received(carrier, &bytes, now, owner));
    let said = world.desk(0).last_said.clone();
    assert_eq!((last_refusal(&said).code, last_refusal(&said).is_passing), (RefusalCode::Challenge, true));
    assert_eq!((world.desk(0).makings, world.has(0, carrier)), (0, false));
}

#[test]
fn processes_with_different_keys_of_a_job_do_not_connect() {
    let keys = [None, Some(JobKey::from_bytes([1; 32])), Some(JobKey::from_bytes([2; 32]))];
    for (ours, theirs) in keys.iter().flat_map(|ours| keys.iter().map(move |theirs| (*ours, *theirs))) {
        let mut world = Setup { count: 0, ..Setup::new(Stream) }.open();
        world.add_with_key(ours);
        world.add_with_key(theirs);
        world.speak(0, 1).unwrap();
        world.run();
        if ours == theirs {
            world.assert_joined(0, 1);
        } else {
            assert_eq!(world.reports(0), [refused_for(RefusalCode::Proof)]);
            world.assert_nothing(1);
        }
    }
}

#[test]
fn two_versions_refuse_each_other_with_both_versions_and_a_remedy() {
    for (caller, called) in [(1, 2), (2, 1)] {
        let mut world = Setup { count: 0, ..Setup::new(HandOff) }.open();
        for (at, version) in [caller, called].into_iter().enumerate() {
            world.add(LinkProcess { version, ..LinkProcess::alone(address(HandOff, at)) }, Vec::new());
        }
        world.speak(0, 1).unwrap();
        world.run();
        assert_eq!(world.reports(0), [refused_for(RefusalCode::Version)]);
        assert!(world.desk(0).words.contains("use the same nemesia in both processes"));
        let said = world.desk(1).last_said.clone();
        assert_eq!(last_refusal(&said).values, [u64::from(called), u64::from(caller)]);
        world.assert_nothing(1);
    }
}

#[test]
fn another_shape_is_refused_at_both_ends_with_both_values() {
    let mut world = Setup::new(HandOff).open();
    world.desk(1).packet_bytes = 4096;
    world.speak(0, 1).unwrap();
    world.run();
    assert_eq!(world.reports(0), [refused_for(RefusalCode::Shape)]);
    let said = world.desk(1).last_said.clone();
    assert_eq!(last_refusal(&said).values, [4096, 8192]);
    // A process that did not want the link has nothing to report, and keeps nothing.
    assert_eq!(world.reports(1), []);
    world.assert_nothing(1);
    // If its packets wait, it learns the end as well.
    world.free(0, 1);
    world.speak(0, 1).unwrap();
    world.speak(1, 0).unwrap();
    world.run();
    assert_eq!(
        (world.reports(0), world.reports(1)),
        ([refused_for(RefusalCode::Shape)].into(), [refused_for(RefusalCode::Shape)].into())
    );
}

#[test]
fn a_process_that_admits_no_unknown_peers_refuses_them_for_good_and_is_free_to_call() {
    let mut world = Setup::new(HandOff).open();
    world.desk(1).denies = Some(refusal(RefusalCode::Unknown, false));
    world.speak(0, 1).unwrap();
    world.run();
    assert_eq!(world.reports(0), [refused_for(RefusalCode::Unknown)]);
    assert_eq!(world.desk(0).words, "words of the owner");
    world.assert_nothing(1);
    // Its own calls are answered: it knows whom it calls.
    world.free(0, 1);
    world.speak(1, 0).unwrap();
    world.run();
    world.assert_joined(0, 1);
    // And ranks are known.
    let mut world = Setup { has_ranks: true, ..Setup::new(HandOff) }.open();
    world.desk(1).denies = Some(refusal(RefusalCode::Unknown, false));
    world.speak(0, 1).unwrap();
    world.run();
    world.assert_joined(0, 1);
}

#[test]
fn a_connection_that_does_not_begin_with_a_call_is_refused_in_words_and_closed() {
    let welcome = |world: &LinkWorld| world.message(0, 1, LinkBody::Welcome);
    for is_message in [true, false] {
        let mut world = Setup::new(Stream).open();
        let carrier = world.stranger(Stream, 1, 0).unwrap();
        let bytes = if is_message { welcome(&world) } else { [0xff; 50].into() };
        world.act(0, |links, now, owner| links.received(carrier, &bytes, now, owner));
        let said = world.desk(0).last_said.clone();
        let refuse = last_refusal(&said);
        assert_eq!(
            (refuse.code, refuse.is_passing, world.has(0, carrier)),
            (RefusalCode::Message, false, false)
        );
        let words =
            if is_message { "a link does not begin with this message" } else { "the message is malformed" };
        assert_eq!(refuse.text.get(), words);
        assert_eq!(world.processes[0].links.unproved(), [0, 0]);
    }
}

#[test]
fn messages_of_a_carrier_that_is_closed_are_not_heard() {
    let mut world = Setup::new(Stream).open();
    let carrier = world.stranger(Stream, 1, 0).unwrap();
    world.act(0, |links, now, owner| links.lost(carrier, now, owner));
    let bytes = world.message(0, 1, LinkBody::Welcome);
    world.forget();
    world.act(0, |links, now, owner| {
        links.received(carrier, &bytes, now, owner);
        links.lost(carrier, now, owner);
        links.challenge(carrier, owner);
        links.partial(carrier);
    });
    assert_eq!(world.said(0), [""; 0]);
    world.assert_nothing(0);
}
