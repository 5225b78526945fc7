//! Each stage of a link, with each input that ends or interrupts it: the next stage, messages and reports.

use std::format;
use std::vec::Vec;

use super::super::terms::{CarrierKind, LinkEnding, LinkRef, LinkStage, PathResult};
use super::world::{LinkReport, LinkWorld, Setup};
use super::*;
use crate::link::wire::{LeaveManner, LinkBody, LinkRefuse, LinkText};

use CarrierKind::{Datagram, HandOff, Stream};
use Input::*;
use LinkEnding::{Died, Disconnected, Dropped, Left, Lost, Refused};
use LinkStage::{Answered, Calling, Confirmed, Ended, Held, Idle, Leaving, Open, Proving};

/// What happens to process 0, of which the tests look at the link with its peer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Input {
    /// The carrier of the link ends.
    CarrierLost,
    /// The kernel says that the process of the peer has ended.
    ProcessEnded,
    /// The owner says that the path is lost.
    PathLost,
    /// A message of the peer.
    Refusal,
    PassingRefusal,
    PeerCloses,
    PeerDrops,
    Hold,
    Welcome,
    Done,
    /// A message that is none, and one of another version.
    Nonsense,
    OtherVersion,
    /// A message for another number of a link.
    OtherNumber,
    /// A proved departure of the peer comes over another connection.
    Departure,
    /// The user disconnects; the endpoint closes.
    Disconnect,
    Close,
    /// The owner says that everything has left.
    Drained,
}

/// Where a link goes from a stage: the stage, the messages, and the report of an end.
type Row = (Input, LinkStage, &'static [&'static str], Option<LinkEnding>);

/// Returns a world in which the link of process 0 with a peer has this stage, and the peer. If `is_wanted`, packets
/// of process 0 wait for a link by which it is called.
fn reach(stage: LinkStage, kind: CarrierKind, is_wanted: bool) -> (LinkWorld, usize) {
    let has_ranks = stage == Held;
    let mut world = Setup { has_ranks, ..Setup::new(kind) }.open();
    let mut peer = 1;
    match stage {
        Calling => {
            world.speak(0, 1).unwrap();
            // The connection is there, and the challenge has not come.
            world.step();
        }
        Proving => {
            world.speak(0, 1).unwrap();
            world.until(0, 1, Proving);
        }
        Confirmed => {
            world.desk(0).path = PathResult::Pending;
            world.speak(0, 1).unwrap();
            world.until(0, 1, Confirmed);
        }
        Answered => {
            world.speak(1, 0).unwrap();
            world.until(0, 1, Answered);
            if is_wanted {
                world.speak(0, 1).unwrap();
            }
        }
        Held => {
            peer = world.restart(1, 1);
            world.speak(peer, 0).unwrap();
            world.until(0, peer, Held);
        }
        Open | Leaving | Ended => {
            world.speak(0, 1).unwrap();
            world.run();
            let link = world.link(0, 1).unwrap();
            match stage {
                Leaving => world.act(0, |links, now, owner| links.disconnect(link, now, owner)),
                Ended => world.act(0, |links, now, owner| links.process_ended(link, now, owner)),
                _ => {}
            }
        }
        Idle => {}
    }
    assert_eq!(world.stage(0, peer), stage);
    world.forget();
    (world, peer)
}

fn refuse(is_passing: bool) -> LinkBody<'static> {
    let code = if is_passing { RefusalCode::Full } else { RefusalCode::Shape };
    LinkBody::Refuse(LinkRefuse { code, is_passing, values: [1, 2], text: LinkText::new("words", 100) })
}

fn enter(world: &mut LinkWorld, peer: usize, link: LinkRef, input: Input) {
    let body = match input {
        CarrierLost => return world.cut(0, peer),
        ProcessEnded => return world.act(0, |links, now, owner| links.process_ended(link, now, owner)),
        PathLost => return world.act(0, |links, now, owner| links.path_lost(link, now, owner)),
        Disconnect => return world.act(0, |links, now, owner| links.disconnect(link, now, owner)),
        Drained => return world.act(0, |links, now, owner| links.drained(link, now, owner)),
        Close => return world.close(0, LeaveManner::Closed),
        Nonsense => return world.hear(0, peer, &[0xff; 60]),
        OtherVersion => {
            let mut bytes = world.message(0, peer, LinkBody::Welcome);
            bytes[2] = 9;
            return world.hear(0, peer, &bytes);
        }
        OtherNumber => {
            let mut bytes = world.message(0, peer, LinkBody::Leave(LeaveManner::Closed));
            bytes[8] ^= 1;
            return world.hear(0, peer, &bytes);
        }
        Departure => return depart(world, peer),
        Refusal => refuse(false),
        PassingRefusal => refuse(true),
        PeerCloses => LinkBody::Leave(LeaveManner::Closed),
        PeerDrops => LinkBody::Leave(LeaveManner::Dropped),
        Hold => LinkBody::Hold,
        Welcome => LinkBody::Welcome,
        Done => LinkBody::Done,
    };
    let bytes = world.message(0, peer, body);
    world.hear(0, peer, &bytes);
}

/// The departure of a peer comes over a connection of its own.
fn depart(world: &mut LinkWorld, peer: usize) {
    let address = world.address(0);
    let bytes = world.act(peer, |links, _, _| links.departure(&address, Stream)).get().to_vec();
    let carrier = world.stranger(Stream, peer, 0).unwrap();
    world.forget();
    world.act(0, |links, now, owner| links.received(carrier, &bytes, now, owner));
    assert!(!world.has(0, carrier));
}

/// Checks each row from a stage. Inputs that no row names change nothing.
fn check(stage: LinkStage, kind: CarrierKind, is_wanted: bool, rows: &[Row]) {
    for input in [
        CarrierLost,
        ProcessEnded,
        PathLost,
        Refusal,
        PassingRefusal,
        PeerCloses,
        PeerDrops,
        Hold,
        Welcome,
        Done,
        Nonsense,
        OtherVersion,
        OtherNumber,
        Departure,
        Disconnect,
        Close,
        Drained,
    ] {
        let row = rows.iter().find(|row| row.0 == input);
        let (_, next, said, end) = row.copied().unwrap_or((input, stage, &[], None));
        let (mut world, peer) = reach(stage, kind, is_wanted);
        let has_carrier = world.carrier(0, peer).is_some();
        if !has_carrier
            && !matches!(input, ProcessEnded | PathLost | Departure | Disconnect | Close | Drained)
        {
            continue;
        }
        let link = world.link(0, peer).unwrap();
        let (carriers, made) = (world.carriers(0), world.desk(0).made.len());
        enter(&mut world, peer, link, input);
        let what = format!("{stage:?} over {kind:?}, {input:?}");
        assert_eq!(world.stage(0, peer), next, "{what}");
        assert_eq!(world.said(0), said, "{what}");
        let ends: Vec<_> = end.into_iter().map(LinkReport::Ended).collect();
        assert_eq!(world.reports(0), ends, "{what}");
        let counts = (world.carriers(0), world.processes[0].links.carriers(), world.desk(0).made.len());
        let (lasting, lasting_made) = match next {
            _ if row.is_none() => (carriers, made),
            // The owner frees what was made.
            Ended => (0, made),
            Leaving => (1, 1),
            // A pause, or nothing.
            _ => (0, 0),
        };
        assert_eq!(counts, (lasting, lasting, lasting_made), "{what}: carriers, their places and resources");
    }
}

#[test]
fn a_caller_that_was_not_challenged() {
    check(
        Calling,
        Stream,
        true,
        &[
            (CarrierLost, Calling, &[], None),
            (ProcessEnded, Ended, &[], Some(Died)),
            (Refusal, Ended, &[], Some(Refused(RefusalCode::Shape))),
            (PassingRefusal, Calling, &[], None),
            (PeerCloses, Ended, &[], Some(Left)),
            (PeerDrops, Ended, &[], Some(Dropped)),
            (Nonsense, Ended, &["refuse"], Some(Refused(RefusalCode::Message))),
            (OtherVersion, Ended, &["refuse"], Some(Refused(RefusalCode::Version))),
            (Departure, Ended, &[], Some(Left)),
            (Disconnect, Ended, &[], Some(Disconnected)),
            (Close, Ended, &[], Some(Disconnected)),
        ],
    );
}

#[test]
fn a_caller_whose_call_was_sent_or_whose_answer_is_right_and_whose_path_is_pending() {
    for (stage, kind) in [(Proving, HandOff), (Proving, Stream), (Confirmed, HandOff), (Confirmed, Stream)] {
        check(
            stage,
            kind,
            true,
            &[
                (CarrierLost, Calling, &[], None),
                (ProcessEnded, Ended, &[], Some(Died)),
                (Refusal, Ended, &[], Some(Refused(RefusalCode::Shape))),
                (PassingRefusal, Calling, &[], None),
                (PeerCloses, Ended, &[], Some(Left)),
                (PeerDrops, Ended, &[], Some(Dropped)),
                (Nonsense, Ended, &["refuse"], Some(Refused(RefusalCode::Message))),
                (OtherVersion, Ended, &["refuse"], Some(Refused(RefusalCode::Version))),
                (Departure, Ended, &[], Some(Left)),
                (Disconnect, Ended, &["leave"], Some(Disconnected)),
                (Close, Ended, &["leave"], Some(Disconnected)),
            ],
        );
    }
}

#[test]
fn a_called_process_that_does_not_want_the_link_forgets_it() {
    for kind in [HandOff, Stream] {
        check(
            Answered,
            kind,
            false,
            &[
                (CarrierLost, Idle, &[], None),
                (ProcessEnded, Idle, &[], None),
                (Refusal, Idle, &[], None),
                (PassingRefusal, Idle, &[], None),
                (PeerCloses, Idle, &[], None),
                (PeerDrops, Idle, &[], None),
                (Nonsense, Idle, &["refuse"], None),
                (OtherVersion, Idle, &["refuse"], None),
                (Departure, Ended, &[], Some(Left)),
                (Disconnect, Ended, &["leave"], Some(Disconnected)),
                (Close, Ended, &["leave"], Some(Disconnected)),
            ],
        );
    }
}

#[test]
fn a_called_process_whose_packets_wait_calls_or_learns_the_end() {
    // Its own connection is on its way at once.
    let (mut world, peer) = reach(Answered, Stream, true);
    for input in [CarrierLost, PassingRefusal, Nonsense] {
        let link = world.link(0, peer).unwrap();
        enter(&mut world, peer, link, input);
        assert_eq!((world.stage(0, peer), world.carriers(0)), (Calling, 1), "{input:?}");
        assert_eq!(world.desk(0).dialled.pop(), Some(Stream), "{input:?}");
        (world, _) = reach(Answered, Stream, true);
    }
    for (input, end) in [
        (ProcessEnded, Died),
        (Refusal, Refused(RefusalCode::Shape)),
        (PeerCloses, Left),
        (PeerDrops, Dropped),
        (Departure, Left),
    ] {
        let (mut world, peer) = reach(Answered, Stream, true);
        let link = world.link(0, peer).unwrap();
        enter(&mut world, peer, link, input);
        assert_eq!(world.reports(0), [LinkReport::Ended(end)], "{input:?}");
    }
}

#[test]
fn a_restarted_rank_that_waits_is_forgotten_with_its_carrier() {
    for kind in [HandOff, Stream] {
        check(
            Held,
            kind,
            false,
            &[
                (CarrierLost, Idle, &[], None),
                (ProcessEnded, Idle, &[], None),
                (PeerCloses, Idle, &[], None),
                (PeerDrops, Idle, &[], None),
                (Nonsense, Idle, &["refuse"], None),
                (OtherVersion, Idle, &["refuse"], None),
                (Departure, Idle, &[], None),
                (Close, Idle, &["leave"], None),
            ],
        );
    }
}

#[test]
fn an_open_link_ends_by_its_own_carrier_only() {
    for kind in [HandOff, Stream] {
        check(
            Open,
            kind,
            true,
            &[
                (CarrierLost, Ended, &[], Some(Lost)),
                (ProcessEnded, Ended, &[], Some(Died)),
                (PathLost, Ended, &[], Some(Lost)),
                (PeerCloses, Ended, &[], Some(Left)),
                (PeerDrops, Ended, &[], Some(Dropped)),
                (Nonsense, Ended, &["refuse"], Some(Refused(RefusalCode::Message))),
                (OtherVersion, Ended, &["refuse"], Some(Refused(RefusalCode::Version))),
                (Disconnect, Leaving, &[], None),
                (Close, Ended, &["leave"], Some(Disconnected)),
            ],
        );
    }
}

#[test]
fn a_link_that_leaves_ends_as_disconnected_whatever_happens() {
    for kind in [HandOff, Stream] {
        check(
            Leaving,
            kind,
            true,
            &[
                (CarrierLost, Ended, &[], Some(Disconnected)),
                (ProcessEnded, Ended, &[], Some(Disconnected)),
                (PathLost, Ended, &[], Some(Disconnected)),
                (PeerCloses, Ended, &[], Some(Disconnected)),
                (PeerDrops, Ended, &[], Some(Disconnected)),
                (Nonsense, Ended, &["refuse"], Some(Disconnected)),
                (OtherVersion, Ended, &["refuse"], Some(Disconnected)),
                (Drained, Ended, &["leave"], Some(Disconnected)),
                (Close, Ended, &["leave"], Some(Disconnected)),
                (Done, Ended, &[], Some(Disconnected)),
            ],
        );
    }
}

#[test]
fn a_link_that_has_ended_stays_ended() {
    for kind in [HandOff, Stream, Datagram] {
        check(Ended, kind, true, &[]);
    }
}

#[test]
fn the_words_of_a_refusal_are_reported_with_the_end() {
    for stage in [Calling, Proving, Confirmed] {
        let (mut world, peer) = reach(stage, Stream, true);
        let bytes = world.message(0, peer, refuse(false));
        world.hear(0, peer, &bytes);
        assert_eq!(world.desk(0).words, "words", "{stage:?}");
    }
}
