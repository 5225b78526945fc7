//! Disconnecting, closing, departures, and what is left of a link afterwards.

use std::vec::Vec;

use super::super::table::LinkProcess;
use super::super::terms::{CarrierKind, LinkEnding, LinkError, LinkStage};
use super::world::{LinkReport, LinkWorld, Setup, address};
use super::*;
use crate::link::wire::LeaveManner;

use CarrierKind::{Datagram, HandOff, Stream};

const KINDS: [CarrierKind; 3] = [HandOff, Stream, Datagram];

const DISCONNECTED: LinkReport = LinkReport::Ended(LinkEnding::Disconnected);
const LEFT: LinkReport = LinkReport::Ended(LinkEnding::Left);

/// Returns two processes with an open link.
fn open(kind: CarrierKind) -> LinkWorld {
    let mut world = Setup::new(kind).open();
    world.speak(0, 1).unwrap();
    world.run();
    world.forget();
    world
}

#[test]
fn who_disconnects_says_goodbye_after_its_last_packets_and_both_ends_are_free() {
    for kind in KINDS {
        let mut world = open(kind);
        let link = world.link(0, 1).unwrap();
        world.act(0, |links, now, owner| links.disconnect(link, now, owner));
        world.wait(secs(4));
        assert_eq!((world.stage(0, 1), world.said(0)), (LinkStage::Leaving, [].into()));
        world.act(0, |links, now, owner| links.drained(link, now, owner));
        world.run();
        assert_eq!((world.reports(0), world.reports(1)), ([DISCONNECTED].into(), [LEFT].into()), "{kind:?}");
        for (at, peer) in [(0, 1), (1, 0)] {
            world.free(at, peer);
            world.assert_nothing(at);
        }
        world.speak(1, 0).unwrap();
        world.run();
        world.assert_joined(0, 1);
    }
}

#[test]
fn packets_that_do_not_leave_delay_goodbye_by_its_limit_only() {
    let mut world = open(Stream);
    let link = world.link(0, 1).unwrap();
    world.act(0, |links, now, owner| links.disconnect(link, now, owner));
    world.wait(secs(5) - INSTANT);
    assert_eq!(world.said(0), [""; 0]);
    world.wait(INSTANT);
    assert_eq!((world.said(0), world.reports(1)), (["leave"].into(), [LEFT].into()));
}

#[test]
fn drained_counts_only_after_the_process_has_disconnected() {
    let mut world = open(Stream);
    let link = world.link(0, 1).unwrap();
    world.act(0, |links, now, owner| links.drained(link, now, owner));
    assert_eq!((world.stage(0, 1), world.said(0)), (LinkStage::Open, [].into()));
}

#[test]
fn an_endpoint_that_closes_leaves_every_link_and_takes_no_calls() {
    for (manner, end) in
        [(LeaveManner::Closed, LinkEnding::Left), (LeaveManner::Dropped, LinkEnding::Dropped)]
    {
        for kind in KINDS {
            let mut world = Setup { count: 5, ..Setup::new(kind) }.open();
            (1..4).for_each(|peer| _ = world.speak(0, peer).unwrap());
            world.run();
            // A call of its own, and one of a peer that it has answered, are not finished.
            world.speak(4, 0).unwrap();
            world.until(0, 4, LinkStage::Answered);
            world.forget();
            world.close(0, manner);
            let left = world.said(0);
            assert_eq!(left, ["leave"; 4], "{kind:?}");
            world.run();
            // Over hand-off the confirmation of the last one cannot be sent: it calls again, and finds nothing.
            let last = if kind == HandOff { 4 } else { 5 };
            for peer in 1..last {
                assert_eq!(world.reports(peer).last(), Some(&LinkReport::Ended(end)), "{kind:?}, {peer}");
            }
            assert_eq!(world.reports(0), [DISCONNECTED; 4]);
            assert_eq!((world.carriers(0), world.speak(0, 1)), (0, Err(LinkError::Closing)));
            let accepted = world.act(0, |links, now, owner| links.accepted(Stream, now, owner));
            assert_eq!(accepted, None);
        }
    }
}

#[test]
fn a_call_by_datagrams_to_an_endpoint_that_closes_is_refused_for_good() {
    let mut world = Setup::new(Datagram).open();
    world.speak(1, 0).unwrap();
    world.until(1, 0, LinkStage::Proving);
    world.close(0, LeaveManner::Closed);
    world.run();
    assert_eq!(world.reports(1), [LinkReport::Ended(LinkEnding::Refused(RefusalCode::Unknown))]);
    world.assert_nothing(0);
}

/// The departure of a process comes to another one over a connection from `from`, perhaps with one bit changed.
fn depart(world: &mut LinkWorld, at: usize, to: usize, from: usize, changed: Option<usize>) {
    let address = world.address(to);
    let message = world.act(at, |links, _, _| links.departure(&address, Stream));
    let mut bytes = message.get().to_vec();
    if let Some(place) = changed {
        bytes[place] ^= 1;
    }
    let carrier = world.stranger(Stream, from, to).unwrap();
    world.act(to, |links, now, owner| links.received(carrier, &bytes, now, owner));
    assert!(!world.has(to, carrier), "the connection of a departure stays");
}

#[test]
fn the_departure_of_a_rank_that_was_never_met_ends_it() {
    for (manner, end) in
        [(LeaveManner::Closed, LinkEnding::Left), (LeaveManner::Dropped, LinkEnding::Dropped)]
    {
        let mut world = Setup { has_ranks: true, ..Setup::new(Stream) }.open();
        world.close(1, manner);
        depart(&mut world, 1, 0, 1, None);
        assert_eq!(world.reports(0), [LinkReport::Ended(end)]);
        assert_eq!(world.speak(0, 1), Err(LinkError::Ended(end)));
    }
    // Of a process that is no rank nothing is kept.
    let mut world = Setup::new(Stream).open();
    depart(&mut world, 1, 0, 1, None);
    world.assert_nothing(0);
}

#[test]
fn a_departure_counts_only_with_its_proof_and_from_the_place_of_its_address() {
    let len = 120;
    for changed in (0..len).map(Some).chain([None]) {
        let mut world = Setup { count: 3, has_ranks: true, ..Setup::new(Stream) }.open();
        // Unchanged, it comes from elsewhere.
        let from = if changed.is_some() { 1 } else { 2 };
        depart(&mut world, 1, 0, from, changed);
        assert_eq!((world.reports(0), world.processes[0].links.links()), ([].into(), 0), "byte {changed:?}");
    }
}

#[test]
fn a_departure_ends_a_call_and_what_waits_with_it_but_no_open_link() {
    let mut world = open(Stream);
    depart(&mut world, 1, 0, 1, None);
    assert_eq!((world.stage(0, 1), world.reports(0)), (LinkStage::Open, [].into()));

    let mut world = Setup::new(Stream).open();
    world.speak(1, 0).unwrap();
    world.speak(0, 1).unwrap();
    world.deliver(0, "connection");
    world.deliver(1, "challenge");
    world.deliver(0, "call");
    assert_eq!(world.processes[0].links.undecided(), 1);
    depart(&mut world, 1, 0, 1, None);
    assert_eq!((world.reports(0), world.processes[0].links.undecided()), ([LEFT].into(), 0));
    assert_eq!(world.carriers(0), 0);
}

#[test]
fn the_call_of_a_rank_whose_connection_has_ended_is_refused_for_good() {
    let mut world = Setup { has_ranks: true, ..Setup::new(HandOff) }.open();
    world.speak(0, 1).unwrap();
    world.run();
    world.kill(1);
    world.run();
    // The same rank calls once more, as if it had lost the connection only.
    let rank = LinkProcess { rank: Some(1), ..LinkProcess::alone(address(HandOff, 1)) };
    let again = world.add(rank, Vec::new());
    world.forget();
    world.speak(again, 0).unwrap();
    world.run();
    let refused = LinkReport::Ended(LinkEnding::Refused(RefusalCode::Ended));
    assert_eq!((world.reports(again), world.reports(0)), ([refused].into(), [].into()));
}

#[test]
fn the_end_of_a_process_voids_its_call_that_is_held() {
    let mut world = open(Stream);
    world.cut(1, 0);
    world.free(1, 0);
    world.speak(1, 0).unwrap();
    world.run();
    assert_eq!((world.stage(0, 1), world.processes[0].links.undecided()), (LinkStage::Open, 1));
    let link = world.link(0, 1).unwrap();
    world.act(0, |links, now, owner| links.process_ended(link, now, owner));
    assert_eq!(world.reports(0), [LinkReport::Ended(LinkEnding::Died)]);
    assert_eq!((world.processes[0].links.undecided(), world.carriers(0)), (0, 0));
}

#[test]
fn a_link_that_has_not_ended_is_not_freed() {
    let mut world = open(Stream);
    world.free(0, 1);
    world.assert_joined(0, 1);
}
