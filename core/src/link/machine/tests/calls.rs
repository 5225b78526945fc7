//! Calls that succeed at once: the messages over each carrier, when packets may leave, and which peers can be called.

use super::super::table::LinkProcess;
use super::super::terms::{CarrierKind, DialFault, LinkEnding, LinkError, LinkStage, PathResult};
use super::world::{ENGINE, LinkReport, LinkWorld, Setup, address};
use super::*;
use crate::link::address::{AddressFault, AddressKinds, LinkAddress};
use crate::link::wire::{LINK_VERSION, LeaveManner, LinkBody, LinkMessage, LinkService};
use crate::peers::PeerAddress;

use CarrierKind::{Datagram, HandOff, Stream};

#[test]
fn a_call_opens_one_link_at_both_ends_with_the_messages_of_its_carrier() {
    let cases: [(CarrierKind, &[&str], &[&str]); 3] = [
        (HandOff, &["call", "confirm"], &["answer"]),
        (Stream, &["call", "confirm"], &["challenge", "answer", "welcome"]),
        (Datagram, &["ask", "call", "confirm"], &["challenge", "answer", "welcome"]),
    ];
    for (kind, caller, called) in cases {
        let mut world = Setup::new(kind).open();
        world.speak(0, 1).unwrap();
        world.run();
        assert_eq!((world.said(0), world.said(1)), (caller.to_vec(), called.to_vec()), "{kind:?}");
        assert_eq!(
            (world.reports(0), world.reports(1)),
            ([LinkReport::Opened].into(), [LinkReport::Opened].into())
        );
        assert_eq!(world.desk(1).settled, [2]);
        world.assert_joined(0, 1);
        // Nothing is due any more.
        world.wait(secs(100));
        assert_eq!((world.said(0), world.said(1)), ([].into(), [].into()), "{kind:?}");
        world.assert_joined(0, 1);
    }
}

#[test]
fn a_caller_is_open_with_its_confirmation_over_hand_off_and_with_the_welcome_else() {
    for (kind, stage) in
        [(HandOff, LinkStage::Open), (Stream, LinkStage::Confirmed), (Datagram, LinkStage::Confirmed)]
    {
        let mut world = Setup::new(kind).open();
        world.speak(0, 1).unwrap();
        world.until(0, 1, LinkStage::Proving);
        world.until(1, 0, LinkStage::Answered);
        assert_eq!(world.processes[1].links.undecided(), 1);
        world.deliver(0, "answer");
        assert_eq!((world.stage(0, 1), world.stage(1, 0)), (stage, LinkStage::Answered), "{kind:?}");
        world.deliver(1, "confirm");
        assert_eq!((world.stage(0, 1), world.stage(1, 0)), (stage, LinkStage::Open), "{kind:?}");
        world.run();
        world.assert_joined(0, 1);
    }
}

#[test]
fn a_path_that_takes_time_delays_the_confirmation_and_is_confirmed_once() {
    let mut world = Setup::new(Stream).open();
    world.desk(0).path = PathResult::Pending;
    let link = world.speak(0, 1).unwrap();
    let up = PathResult::Up(1, "why it is no better one");
    // It counts in no other stage.
    world.act(0, |links, now, owner| links.path(link, up, now, owner));
    world.run();
    assert_eq!((world.stage(0, 1), world.said(0)), (LinkStage::Confirmed, ["call"].into()));
    for _ in 0..2 {
        world.act(0, |links, now, owner| links.path(link, up, now, owner));
    }
    assert_eq!(world.said(0), ["confirm"]);
    let bytes = world.desk(0).last_said.clone();
    let Ok(LinkMessage { body: LinkBody::Confirm(confirm), .. }) = LinkMessage::decode(&bytes, LINK_VERSION)
    else {
        panic!("no confirmation");
    };
    assert_eq!((confirm.chosen, confirm.reason.get()), (1, "why it is no better one"));
    world.run();
    assert_eq!(world.desk(1).settled, [1]);
    world.assert_joined(0, 1);
}

#[test]
fn without_a_path_both_ends_are_refused_or_for_want_of_something_here_the_call_is_repeated() {
    let mut world = Setup::new(Stream).open();
    world.desk(0).path = PathResult::Failed(refusal(RefusalCode::Path, false));
    world.speak(0, 1).unwrap();
    world.speak(1, 0).unwrap();
    world.run();
    let refused = [LinkReport::Ended(LinkEnding::Refused(RefusalCode::Path))];
    assert_eq!((world.reports(0), world.reports(1)), (refused.into(), refused.into()));
    assert_eq!(world.desk(1).words, "words of the owner");

    let mut world = Setup::new(Stream).open();
    world.desk(0).path = PathResult::Failed(FULL);
    world.speak(0, 1).unwrap();
    world.run();
    assert_eq!(world.stage(0, 1), LinkStage::Calling);
    assert_eq!((world.carriers(0), world.desk(0).made.len()), (0, 0));
    world.assert_nothing(1);
    // A shortage of this process ends no peer, whatever time passes.
    world.wait(3 * PATIENCE);
    assert_eq!((world.reports(0), world.stage(0, 1)), ([].into(), LinkStage::Calling));
    world.desk(0).path = PathResult::Up(2, "");
    world.wait(millis(100));
    world.assert_joined(0, 1);
}

/// Returns two processes of one machine that take calls over every kind of carrier.
fn with_all_carriers() -> LinkWorld {
    let mut world = Setup { count: 0, ..Setup::new(HandOff) }.open();
    for at in 0..2 {
        let kinds = AddressKinds::IP.with(AddressKinds::DATAGRAMS);
        let all = LinkAddress { kinds, datagrams: (0, at as u32 + 1, 5), ..address(HandOff, at) };
        world.add(LinkProcess::alone(all), [].into());
    }
    world
}

#[test]
fn carriers_on_which_nothing_listens_are_followed_by_the_next_ones() {
    let all = [HandOff, Stream, Datagram];
    for listening in 0..3 {
        let mut world = with_all_carriers();
        for kind in &all[..listening] {
            world.carriage.faults.insert((1, *kind), DialFault::Nothing);
        }
        world.speak(0, 1).unwrap();
        world.run();
        world.assert_joined(0, 1);
        assert_eq!(world.desk(0).dialled, all[..=listening]);
    }
    // A process that cannot be reached now is not another one: the same carrier is tried again.
    let mut world = with_all_carriers();
    world.carriage.faults.insert((1, HandOff), DialFault::Busy);
    world.speak(0, 1).unwrap();
    world.wait(millis(5));
    assert_eq!(world.desk(0).dialled, [HandOff; 3]);
    assert_eq!(world.stage(0, 1), LinkStage::Calling);
}

#[test]
fn if_nothing_listens_at_the_last_carrier_the_process_has_died() {
    for kind in [HandOff, Stream] {
        let mut world = Setup::new(kind).open();
        world.kill(1);
        world.speak(0, 1).unwrap();
        world.run();
        assert_eq!(world.reports(0), [LinkReport::Ended(LinkEnding::Died)]);
        // Without memory on this machine it has one more carrier.
        let dialled: &[CarrierKind] = if kind == HandOff { &[HandOff, Stream] } else { &[Stream] };
        assert_eq!(world.desk(0).dialled, dialled);
        world.free(0, 1);
        world.assert_nothing(0);
    }
}

#[test]
fn a_process_at_the_own_place_is_not_called_over_the_network_after_hand_off() {
    let own = address(HandOff, 0);
    for (place, last) in [(own.place, HandOff), (address(HandOff, 5).place, Stream)] {
        let mut world = Setup::new(HandOff).open();
        let gone = LinkAddress { place, ..address(HandOff, 5) }.encode();
        world.act(0, |links, now, owner| links.speak(&gone, None, ENGINE, now, owner)).unwrap();
        world.run();
        assert_eq!(world.reports(0), [LinkReport::Ended(LinkEnding::Died)]);
        assert_eq!(world.desk(0).dialled.last(), Some(&last));
    }
}

#[test]
fn what_cannot_be_called_is_named() {
    let mut world = Setup { places: [2, 8], ..Setup::new(Stream) }.open();
    let mut speak = |peer: &PeerAddress| {
        world.act(0, |links, now, owner| links.speak(peer, None, ENGINE, now, owner)).map(|_| ())
    };
    assert_eq!(speak(&address(Stream, 0).encode()), Err(LinkError::Itself));
    let none = PeerAddress::from_bytes([0; 64]);
    assert_eq!(speak(&none), Err(LinkError::Address(AddressFault::Version { theirs: 0 })));
    // Its own address has no datagrams.
    assert_eq!(speak(&address(Datagram, 5).encode()), Err(LinkError::NoCarrier));
    assert_eq!(speak(&address(Stream, 5).encode()), Ok(()));
    assert_eq!(speak(&address(Stream, 6).encode()), Ok(()));
    assert_eq!(speak(&address(Stream, 7).encode()), Err(LinkError::Links(2)));
    world.close(0, LeaveManner::Closed);
    assert_eq!(world.speak(0, 1), Err(LinkError::Closing));
}

#[test]
fn each_service_and_instance_has_its_own_link_and_is_called_once() {
    let mut world = Setup::new(HandOff).open();
    let peer = world.address(1);
    let all = [(LinkService::Engine, 0), (LinkService::Pipe, 0), (LinkService::Pipe, 1)];
    for service in all {
        let link = world.act(0, |links, now, owner| links.speak(&peer, None, service, now, owner)).unwrap();
        // Packets that come meanwhile, and later, change nothing.
        assert_eq!(world.act(0, |links, now, owner| links.speak(&peer, None, service, now, owner)), Ok(link));
        world.run();
        assert_eq!(world.act(0, |links, now, owner| links.speak(&peer, None, service, now, owner)), Ok(link));
        assert_eq!(world.processes[0].links.find(&peer, service.0, service.1), Some(link));
        assert_eq!(world.processes[0].links.peer(link), Some((&peer, None)));
        assert_eq!(world.said(0), ["call", "confirm"]);
    }
    let caller = world.address(0);
    for service in all {
        let links = &world.processes[1].links;
        let link = links.find(&caller, service.0, service.1).unwrap();
        assert_eq!(links.stage(link), LinkStage::Open);
    }
    assert_eq!(world.reports(1), [LinkReport::Opened; 3]);
}

#[test]
fn a_further_peer_that_has_ended_can_be_called_again_and_a_rank_cannot() {
    for has_ranks in [false, true] {
        let mut world = Setup { has_ranks, ..Setup::new(HandOff) }.open();
        let link = world.speak(0, 1).unwrap();
        world.run();
        world.close(1, LeaveManner::Dropped);
        world.run();
        assert_eq!(world.reports(0).last(), Some(&LinkReport::Ended(LinkEnding::Dropped)));
        assert_eq!(world.processes[0].links.ticket(link, 0), None, "only open links have tickets");
        if has_ranks {
            assert_eq!(world.speak(0, 1), Err(LinkError::Ended(LinkEnding::Dropped)));
            world.free(0, 1);
            assert_eq!(world.speak(0, 1), Err(LinkError::Ended(LinkEnding::Dropped)));
            continue;
        }
        // Until it is freed, packets wait.
        assert_eq!(world.speak(0, 1), Ok(link));
        assert_eq!(world.stage(0, 1), LinkStage::Ended);
        world.free(0, 1);
        assert_eq!(world.stage(0, 1), LinkStage::Calling);
        // The name of a link that was freed, and is not there any more, names nothing.
        world.kill(1);
        world.run();
        world.free(0, 1);
        assert_eq!((world.processes[0].links.stage(link), world.link(0, 1)), (LinkStage::Idle, None));
        assert_eq!(world.processes[0].links.peer(link), None);
    }
}
