//! Ranks that are restarted: held until the launcher confirms them and the owner readmits them.

use std::vec::Vec;

use super::super::table::{LinkProcess, Links};
use super::super::terms::{CarrierKind, LinkEnding, LinkStage};
use super::world::{ENGINE, LentVectors, LinkReport, LinkWorld, Setup, TestOwner, address};
use super::*;
use crate::link::wire::{LINK_VERSION, LeaveManner, LinkBody, LinkMessage};

use CarrierKind::{Datagram, HandOff, Stream};

/// Returns two ranks with an open link.
fn joined() -> LinkWorld {
    joined_by(HandOff)
}

fn joined_by(kind: CarrierKind) -> LinkWorld {
    let mut world = Setup { has_ranks: true, ..Setup::new(kind) }.open();
    world.speak(0, 1).unwrap();
    world.run();
    world.forget();
    world
}

/// The process with this incarnation of rank 1 starts, and calls rank 0.
fn restart(world: &mut LinkWorld, incarnation: u64) -> usize {
    let at = world.restart(1, incarnation);
    world.speak(at, 0).unwrap();
    world.run();
    at
}

/// The launcher answers whether rank 1 was restarted.
fn launcher(world: &mut LinkWorld, is_true: bool) -> bool {
    world.act(0, |links, now, owner| links.restarted(1, is_true, now, owner))
}

fn readmit(world: &mut LinkWorld) -> bool {
    world.act(0, |links: &mut Links<LentVectors>, now, owner: &mut TestOwner<'_>| {
        links.readmit(1, now, owner).is_some()
    })
}

#[test]
fn a_restarted_rank_is_held_until_it_is_confirmed_and_readmitted() {
    for has_met in [true, false] {
        let mut world =
            if has_met { joined() } else { Setup { has_ranks: true, ..Setup::new(HandOff) }.open() };
        let next = restart(&mut world, 1);
        assert_eq!(
            (world.stage(0, next), world.reports(0)),
            (LinkStage::Held, [LinkReport::Restarted(1, 1)].into())
        );
        assert_eq!(world.said(0), ["hold"]);
        // The word of a process that it is a later one ends nothing.
        let former = if has_met { LinkStage::Open } else { LinkStage::Idle };
        assert_eq!(world.stage(0, 1), former);
        assert!(!readmit(&mut world), "nobody has confirmed it");
        let claim = world.processes[0].links.claim(1).unwrap();
        assert_eq!((claim.rank, claim.incarnation, claim.is_sure), (1, 1, false));
        assert_eq!((claim.peer, Some(claim.link)), (world.address(next), world.link(0, next)));
        assert_eq!(world.processes[0].links.rank(1), Some((world.address(1), 0)));

        assert!(launcher(&mut world, true));
        let ends: &[LinkReport] = if has_met { &[LinkReport::Ended(LinkEnding::Died)] } else { &[] };
        assert_eq!((world.reports(0), world.stage(0, next)), (ends.into(), LinkStage::Held));
        assert_eq!(world.processes[0].links.rank(1), Some((world.address(next), 1)));
        assert!(!launcher(&mut world, true), "it was confirmed before");

        // It has no limit while its call is held again and again; the caller is a rank, too.
        if has_met {
            world.free(0, 1);
        }
        assert!(readmit(&mut world));
        assert!(!readmit(&mut world), "it was readmitted before");
        world.run();
        world.assert_joined(0, next);
        assert_eq!(world.processes[0].links.peer(world.link(0, next).unwrap()).unwrap().1, Some(1));
    }
}

#[test]
fn a_process_that_the_launcher_does_not_know_is_refused_in_words_and_changes_nothing() {
    let mut world = joined();
    let next = restart(&mut world, 1);
    assert!(!launcher(&mut world, false));
    world.run();
    assert_eq!(world.reports(next), [LinkReport::Ended(LinkEnding::Refused(RefusalCode::Unknown))]);
    assert_eq!(world.desk(next).words, "the launcher does not know this process");
    assert_eq!((world.link(0, next), world.processes[0].links.rank(1)), (None, Some((world.address(1), 0))));
    world.assert_joined(0, 1);
    assert!(!launcher(&mut world, true), "no process waits any more");
}

#[test]
fn only_the_latest_incarnation_waits_and_a_former_one_is_refused_for_good_once_it_is_confirmed() {
    let mut world = joined();
    let second = restart(&mut world, 1);
    let third = restart(&mut world, 2);
    assert_eq!(world.reports(0), [LinkReport::Restarted(1, 1), LinkReport::Restarted(1, 2)]);
    assert_eq!((world.stage(0, second), world.stage(0, third)), (LinkStage::Idle, LinkStage::Held));
    // The second one has lost its connection, and calls again. The third one may have claimed too much.
    world.wait(millis(10));
    assert_eq!((world.reports(second), world.stage(second, 0)), ([].into(), LinkStage::Calling));
    assert_eq!(world.stage(0, third), LinkStage::Held);
    assert!(launcher(&mut world, true));
    world.wait(millis(100));
    let ended = [LinkReport::Ended(LinkEnding::Refused(RefusalCode::Ended))];
    assert_eq!(world.reports(second), ended);
    // The place of the first one is free.
    world.free(0, 1);
    assert_eq!(world.link(0, 1), None);
    assert!(readmit(&mut world));
    world.run();
    world.assert_joined(0, third);
    // Nor is the first one heard any more, by whose address the rank was known.
    let first = LinkProcess { rank: Some(1), ..LinkProcess::alone(address(HandOff, 1)) };
    let first = world.add(first, Vec::new());
    world.speak(first, 0).unwrap();
    world.run();
    assert_eq!(world.reports(first), ended);
    world.assert_joined(0, third);
}

#[test]
fn a_later_call_of_the_process_that_waits_replaces_the_former_one() {
    let mut world = joined();
    let next = restart(&mut world, 1);
    let former = world.carrier(0, next).unwrap();
    world.cut(next, 0);
    world.wait(millis(1));
    assert!(!world.has(0, former));
    assert_eq!((world.stage(0, next), world.carriers(0)), (LinkStage::Held, 2));
    assert_eq!(world.reports(0), [LinkReport::Restarted(1, 1)], "it is reported once");
}

#[test]
fn a_copy_of_the_call_that_waits_is_held_again() {
    let mut world = joined_by(Datagram);
    let next = restart(&mut world, 1);
    world.forget();
    world.wait(secs(2));
    assert_eq!((world.said(next), world.said(0)), (["call"; 2].into(), ["hold"; 2].into()));
    assert_eq!((world.stage(0, next), world.reports(0)), (LinkStage::Held, [].into()));
    // It has waited for longer than the limit of a call, which each hold begins anew for a rank.
    world.wait(3 * PATIENCE);
    assert!(launcher(&mut world, true));
    world.free(0, 1);
    assert!(readmit(&mut world));
    world.run();
    world.assert_joined(0, next);
}

#[test]
fn a_confirmed_rank_whose_carrier_is_lost_is_called_when_it_is_readmitted() {
    let mut world = joined();
    let next = restart(&mut world, 1);
    assert!(launcher(&mut world, true));
    world.free(0, 1);
    let carrier = world.carrier(0, next).unwrap();
    world.act(0, |links, now, owner| links.lost(carrier, now, owner));
    assert_eq!((world.stage(0, next), world.carriers(0)), (LinkStage::Held, 0));
    world.desk(0).dialled.clear();
    assert!(readmit(&mut world));
    assert_eq!(world.desk(0).dialled, [HandOff]);
    world.wait(millis(5));
    world.assert_joined(0, next);
}

#[test]
fn a_confirmed_rank_that_ends_or_leaves_before_it_is_readmitted_has_ended_and_can_be_restarted() {
    for dies in [true, false] {
        let mut world = joined();
        let next = restart(&mut world, 1);
        assert!(launcher(&mut world, true));
        world.forget();
        let link = world.link(0, next).unwrap();
        let end = if dies {
            world.act(0, |links, now, owner| links.process_ended(link, now, owner));
            LinkEnding::Died
        } else {
            let bytes = world.message(0, next, LinkBody::Leave(LeaveManner::Closed));
            world.hear(0, next, &bytes);
            LinkEnding::Left
        };
        assert_eq!(world.reports(0), [LinkReport::Ended(end)]);
        assert!(!readmit(&mut world));
        let last = restart(&mut world, 2);
        assert_eq!(world.reports(0), [LinkReport::Restarted(1, 2)]);
        assert!(launcher(&mut world, true) && readmit(&mut world));
        world.run();
        assert_eq!(world.stage(0, last), LinkStage::Open);
    }
}

#[test]
fn a_confirmed_rank_that_speaks_nonsense_keeps_its_place_without_the_carrier() {
    let mut world = joined();
    let next = restart(&mut world, 1);
    assert!(launcher(&mut world, true));
    world.free(0, 1);
    world.forget();
    world.hear(0, next, &[0xff; 40]);
    assert_eq!(
        (world.said(0), world.stage(0, next), world.carriers(0)),
        (["refuse"].into(), LinkStage::Held, 0)
    );
}

#[test]
fn an_endpoint_that_closes_forgets_a_rank_that_waits_and_says_so() {
    for is_confirmed in [false, true] {
        let mut world = Setup { has_ranks: true, ..Setup::new(HandOff) }.open();
        let next = restart(&mut world, 1);
        if is_confirmed {
            assert!(launcher(&mut world, true));
        }
        world.close(0, LeaveManner::Closed);
        world.assert_nothing(0);
        assert!(!readmit(&mut world));
        world.run();
        assert_eq!(world.reports(next), [LinkReport::Ended(LinkEnding::Left)]);
    }
}

#[test]
fn a_rank_that_is_none_of_the_world_is_refused() {
    let mut world = joined();
    let stranger = LinkProcess { rank: Some(7), ..LinkProcess::alone(address(HandOff, 2)) };
    let stranger = world.add(stranger, Vec::new());
    world.speak(stranger, 0).unwrap();
    world.run();
    let unknown = [LinkReport::Ended(LinkEnding::Refused(RefusalCode::Unknown))];
    assert_eq!(world.reports(stranger), unknown);
    assert_eq!(world.desk(stranger).words, "this world has no such rank");
    // Nor is it a later process of the rank that it calls.
    let own = LinkProcess { rank: Some(0), incarnation: 1, ..LinkProcess::alone(address(HandOff, 3)) };
    let own = world.add(own, Vec::new());
    world.speak(own, 0).unwrap();
    world.run();
    assert_eq!((world.reports(own), world.reports(0)), (unknown.into(), [].into()));
    // A process that was called as one that is no rank is not the restarted one of a rank.
    let next = world.restart(1, 1);
    let peer = world.address(next);
    world.act(0, |links, now, owner| links.speak(&peer, None, ENGINE, now, owner)).unwrap();
    world.speak(next, 0).unwrap();
    world.deliver(0, "connection");
    world.deliver(0, "call");
    world.run();
    assert!(!world.reports(0).contains(&LinkReport::Restarted(1, 1)));
}

#[test]
fn a_rank_claims_its_rank_to_the_processes_of_its_world_only() {
    let mut world = Setup { has_ranks: true, count: 3, ..Setup::new(Stream) }.open();
    let further = world.add(LinkProcess::alone(address(Stream, 3)), Vec::new());
    for (peer, claim) in [(1, 3), (further, 0)] {
        world.speak(2, peer).unwrap();
        world.until(2, peer, LinkStage::Proving);
        let bytes = world.desk(2).last_said.clone();
        let Ok(LinkMessage { body: LinkBody::Call(call), .. }) = LinkMessage::decode(&bytes, LINK_VERSION)
        else {
            panic!("no call");
        };
        assert_eq!(call.instance, claim, "to {peer}");
        world.run();
        assert_eq!(world.stage(peer, 2), LinkStage::Open);
    }
}
