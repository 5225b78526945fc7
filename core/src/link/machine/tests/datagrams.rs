//! Links over datagrams, which are lost, repeated, delayed and overtaken.

use std::vec::Vec;

use super::super::terms::{CarrierKind, LinkEnding, LinkStage};
use super::world::{Flight, LinkReport, LinkWorld, Setup};
use super::*;
use crate::link::wire::{
    LINK_VERSION, LeaveManner, LinkBody, LinkHeader, LinkMessage, LinkService, MOST_DATAGRAM_BYTES,
    MaskedAddress,
};
use crate::link::wire::{LinkAnswer, LinkCall, LinkConfirm, LinkText};
use crate::wire::hello::Proof;

use CarrierKind::Datagram;

/// The messages of a call that nothing disturbs.
const MESSAGES: usize = 6;

#[test]
fn the_loss_of_each_message_is_repaired_by_the_end_that_waits() {
    for lost in 0..MESSAGES {
        let mut world = Setup::new(Datagram).open();
        world.speak(0, 1).unwrap();
        for _ in 0..lost {
            world.step();
        }
        assert!(world.carriage.flights.pop_front().is_some(), "there is no message {lost}");
        world.run();
        assert_ne!(world.stage(0, 1), LinkStage::Open, "message {lost} is not needed");
        world.wait(millis(5));
        world.assert_joined(0, 1);
        assert_eq!((world.desk(0).makings, world.desk(1).makings), (1, 1), "message {lost}");
    }
}

#[test]
fn messages_that_come_twice_or_much_later_change_nothing() {
    let mut world = Setup::new(Datagram).open();
    world.speak(0, 1).unwrap();
    let mut all = Vec::new();
    while let Some(flight) = world.carriage.flights.front().cloned() {
        let Flight::Datagram(_, _, bytes) = &flight else { panic!("{flight:?}") };
        assert!(bytes.len() <= MOST_DATAGRAM_BYTES);
        all.push(flight.clone());
        world.carriage.flights.push_front(flight);
        world.step();
        world.step();
        // Answers to repeated messages are the same, and come twice as well.
        if all.len() > 100 {
            break;
        }
    }
    world.assert_joined(0, 1);
    world.carriage.flights.extend(all);
    world.forget();
    (0..400).for_each(|_| _ = world.step());
    assert!(world.carriage.flights.is_empty(), "copies beget copies");
    assert!(
        ![world.said(0), world.said(1)].concat().contains(&"refuse"),
        "a late copy of the call is no new one"
    );
    world.assert_joined(0, 1);
    assert_eq!((world.reports(0), world.reports(1)), ([].into(), [].into()));
    assert_eq!((world.desk(0).makings, world.desk(1).makings), (1, 1));
}

#[test]
fn the_pauses_between_repetitions_double_up_to_the_longest_and_are_long_after_hold() {
    let mut world = Setup::new(Datagram).open();
    world.speak(0, 1).unwrap();
    assert_eq!(world.processes[0].links.next(), world.now + millis(5));
    for pause in [5, 10, 20, 40, 80, 160, 320, 400, 400] {
        assert_eq!(world.said(0), ["ask"]);
        world.pass(millis(pause) - INSTANT);
        assert_eq!(world.said(0), [""; 0], "{pause} ms");
        world.pass(INSTANT);
    }
    world.until(0, 1, LinkStage::Proving);
    world.forget();
    let hold = world.message(0, 1, LinkBody::Hold);
    world.hear(0, 1, &hold);
    for _ in 0..2 {
        world.pass(secs(1) - INSTANT);
        assert_eq!(world.said(0), [""; 0]);
        world.pass(INSTANT);
        assert_eq!(world.said(0), ["call"]);
    }
}

#[test]
fn questions_take_no_memory() {
    let mut world = Setup::new(Datagram).open();
    let ask = world.message(0, 1, LinkBody::Ask);
    for _ in 0..1000 {
        world.carriage.flights.push_back(Flight::Datagram(1, 0, ask.clone()));
        world.step();
        let Some(Flight::Datagram(0, 1, bytes)) = world.carriage.flights.pop_back() else {
            panic!("no answer")
        };
        assert!(bytes.len() <= ask.len(), "the answer is longer than the question");
        world.assert_nothing(0);
    }
    // An endpoint that closes answers none.
    world.close(0, LeaveManner::Closed);
    world.carriage.flights.push_back(Flight::Datagram(1, 0, ask));
    world.step();
    assert!(world.carriage.flights.is_empty());
}

/// Delivers these bytes, and returns the name and the bytes of the response.
fn respond(world: &mut LinkWorld, bytes: &[u8]) -> Option<Vec<u8>> {
    world.carriage.flights.clear();
    world.carriage.flights.push_back(Flight::Datagram(1, 0, bytes.to_vec()));
    world.step();
    match world.carriage.flights.pop_front() {
        Some(Flight::Datagram(0, 1, bytes)) => Some(bytes),
        other => other.map(|other| panic!("{other:?}")),
    }
}

fn header() -> LinkHeader {
    LinkHeader { version: LINK_VERSION, service: LinkService::Engine, to: 0x1234, from: 0x5678 }
}

#[test]
fn messages_for_links_that_are_over_are_answered_so_that_their_authors_end() {
    let mut world = Setup::new(Datagram).open();
    let offers = crate::link::offers::OfferList::EMPTY;
    let proof = Proof::default();
    let (number, packet_bytes) = (1, 2);
    let answer = LinkAnswer {
        calls: 0,
        incarnation: 0,
        number,
        packet_bytes,
        word: 0,
        chosen: 1,
        offers: offers.get(false),
        proof,
    };
    let call = LinkCall {
        call: 1,
        incarnation: 0,
        number,
        packet_bytes,
        challenge: 77,
        instance: 0,
        nonce: 1,
        address: MaskedAddress([0; 64]),
        offers: offers.get(true),
        proof,
    };
    let confirm = LinkConfirm { chosen: 1, reason: LinkText::EMPTY, proof };
    for (body, passing) in [
        (LinkBody::Answer(answer), Some(true)),
        (LinkBody::Confirm(confirm), Some(true)),
        // Its challenge was never issued.
        (LinkBody::Call(call), Some(true)),
        (LinkBody::Leave(LeaveManner::Closed), None),
    ] {
        let bytes = LinkMessage { header: header(), body }.encode();
        let response = respond(&mut world, bytes.get()).unwrap();
        let response = LinkMessage::decode(&response, LINK_VERSION).unwrap();
        assert_eq!(response.header.to, header().from);
        match (response.body, passing) {
            (LinkBody::Refuse(refuse), Some(passing)) => {
                assert_eq!((refuse.code, refuse.is_passing), (RefusalCode::Challenge, passing));
            }
            (LinkBody::Done, None) => {}
            other => panic!("{other:?}"),
        }
    }
    for body in [LinkBody::Welcome, LinkBody::Hold, LinkBody::Done] {
        let bytes = LinkMessage { header: header(), body }.encode();
        assert_eq!(respond(&mut world, bytes.get()), None, "{body:?}");
    }
    world.assert_nothing(0);
}

#[test]
fn another_version_is_refused_with_both_and_nonsense_is_not_answered() {
    let mut world = Setup::new(Datagram).open();
    let bytes = LinkMessage { header: LinkHeader { version: 9, ..header() }, body: LinkBody::Ask }.encode();
    let response = respond(&mut world, bytes.get()).unwrap();
    let message = LinkMessage::decode(&response, LINK_VERSION).unwrap();
    let LinkBody::Refuse(refuse) = message.body else { panic!("{message:?}") };
    assert_eq!((refuse.code, refuse.values), (RefusalCode::Version, [LINK_VERSION.into(), 9]));
    assert_eq!(message.header.to, header().from);
    assert_eq!(respond(&mut world, &[0xff; 100]), None);
    // A refusal is never refused, whatever its version is: the two would go on for ever.
    assert_eq!(respond(&mut world, &response), None);
}

#[test]
fn an_answer_without_a_confirmation_is_repeated_on_demand_and_forgotten_at_the_limit() {
    let mut world = Setup::new(Datagram).open();
    world.speak(0, 1).unwrap();
    world.until(1, 0, LinkStage::Answered);
    world.carriage.flights.clear();
    // The call comes again: its answer was lost.
    world.forget();
    world.pass(millis(5));
    let copy = world.carriage.flights.front().unwrap().clone();
    world.step();
    assert_eq!((world.said(0), world.said(1)), (["call"].into(), ["answer"].into()));
    assert_eq!(world.desk(1).makings, 1);
    world.kill(0);
    world.pass(PATIENCE - millis(5) - INSTANT);
    assert_eq!(world.stage(1, 0), LinkStage::Answered);
    world.pass(INSTANT);
    world.assert_nothing(1);
    // A copy of the call that comes then begins nothing: its challenge is used up.
    world.forget();
    world.carriage.flights.push_back(copy);
    world.run();
    assert_eq!(world.said(1), ["refuse"]);
    world.assert_nothing(1);
}

#[test]
fn datagrams_of_another_process_are_not_heard() {
    let mut world = Setup::new(Datagram).open();
    world.speak(0, 1).unwrap();
    world.run();
    world.forget();
    for stray in [8, 16] {
        let mut bytes = world.message(0, 1, LinkBody::Leave(LeaveManner::Closed));
        bytes[stray] ^= 1;
        world.hear(0, 1, &bytes);
        assert_eq!((world.stage(0, 1), world.reports(0)), (LinkStage::Open, [].into()));
    }
}

#[test]
fn goodbye_is_repeated_until_it_is_answered_or_the_limit_has_passed() {
    for is_heard in [true, false] {
        let mut world = Setup::new(Datagram).open();
        let link = world.speak(0, 1).unwrap();
        world.run();
        world.forget();
        world.act(0, |links, now, owner| {
            links.disconnect(link, now, owner);
            links.drained(link, now, owner);
            // It leaves once.
            links.drained(link, now, owner);
        });
        world.carriage.flights.clear();
        world.pass(millis(5));
        assert_eq!((world.stage(0, 1), world.said(0)), (LinkStage::Leaving, ["leave", "leave"].into()));
        if is_heard {
            world.run();
            assert_eq!(world.reports(1), [LinkReport::Ended(LinkEnding::Left)]);
            assert_eq!(world.said(1), ["done"]);
        } else {
            world.pass(secs(5) - millis(5) - INSTANT);
            assert_eq!(world.reports(0), []);
            world.pass(INSTANT);
        }
        assert_eq!(world.reports(0), [LinkReport::Ended(LinkEnding::Disconnected)]);
        assert_eq!(world.carriers(0), 0);
    }
}

#[test]
fn a_call_that_waits_for_the_end_of_a_link_is_held_again_for_each_copy() {
    let mut world = Setup::new(Datagram).open();
    world.speak(0, 1).unwrap();
    world.run();
    // Process 1 has lost its link, and calls.
    let link = world.link(1, 0).unwrap();
    world.act(1, |links, now, owner| {
        links.path_lost(link, now, owner);
        links.free(link, now, owner);
    });
    world.speak(1, 0).unwrap();
    world.forget();
    world.run();
    assert_eq!((world.stage(0, 1), world.stage(1, 0)), (LinkStage::Open, LinkStage::Proving));
    assert_eq!((world.said(0), world.processes[0].links.undecided()), (["challenge", "hold"].into(), 1));
    world.wait(secs(1));
    assert_eq!((world.said(0), world.processes[0].links.undecided()), (["hold"].into(), 1));
    let link = world.link(0, 1).unwrap();
    world.act(0, |links, now, owner| {
        links.path_lost(link, now, owner);
        links.free(link, now, owner);
    });
    world.wait(secs(1));
    world.assert_joined(0, 1);
}

#[test]
fn a_departure_is_answered_and_counts_from_its_author_only() {
    for (from, reports) in [(2, &[][..]), (1, &[LinkReport::Ended(LinkEnding::Left)][..])] {
        let mut world = Setup { count: 3, has_ranks: true, ..Setup::new(Datagram) }.open();
        let address = world.address(0);
        let message = world.act(1, |links, _, _| links.departure(&address, Datagram));
        world.carriage.flights.push_back(Flight::Datagram(from, 0, message.get().to_vec()));
        world.step();
        assert_eq!((world.reports(0), world.said(0)), (reports.to_vec(), ["done"].into()), "from {from}");
    }
}
