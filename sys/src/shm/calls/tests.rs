//! Callers that lie, are silent, or are too many.

use std::sync::Arc;

use nemesia_core::shared::layout::Geometry;

use super::*;
use crate::config::Config;
use crate::os::{Departure, testing, wait_ready};

const GEOMETRY: Geometry = Geometry { cells: 4, cell_bytes: 4096, fastbox_slots: 4 };

fn world(epoch: u64) -> ShmWorld {
    ShmWorld {
        config: Config::default(),
        geometry: GEOMETRY,
        rank: 0,
        size: 1,
        epoch,
        expedited: true,
        cpus: [1; 8],
        stamp: 0,
        incarnation: 0,
        sealed: false,
    }
}

fn segments(epoch: u64) -> Arc<OwnSegments> {
    Arc::new(OwnSegments::new(&Config::default(), GEOMETRY, epoch, &mut Vec::new()).unwrap())
}

fn calls(epoch: u64) -> (Calls, Watch) {
    let mut watch = Watch::new().unwrap();
    (
        Calls::listen(
            Arc::new(world(epoch)),
            segments(epoch),
            (HandoffListener::bind().unwrap(), None),
            &mut watch,
        )
        .unwrap(),
        watch,
    )
}

fn dial(calls: &Calls) -> HandoffConnection {
    HandoffConnection::connect(&calls.place.socket(), Instant::now() + PATIENCE).unwrap()
}

/// Sends a call of this process as `packet` makes it of a correct one, with its segments.
fn send_call(from: &Calls, to: &Calls, packet: impl FnOnce(&mut CallPacket)) -> HandoffConnection {
    let connection = dial(to);
    let mut call = CallPacket { handshake: from.world.handshake(0, 0), address: *from.own(), calls: 1 };
    packet(&mut call);
    let link = from.ours.link(0).unwrap();
    connection.send(&call.encode(), &from.ours.descriptors(&link), Instant::now()).unwrap();
    connection
}

/// Returns the text of the refusal that this caller has received.
fn refusal(connection: &HandoffConnection) -> String {
    match hear_packet(connection, Instant::now() + PATIENCE, CallPacket::decode) {
        Err(Unheard::Problem(problem)) => problem,
        Err(Unheard::Leaving(Departure::Died | Departure::Dropped | Departure::Finished) | Unheard::Gone) => {
            "gone".into()
        }
        Err(Unheard::Shortage(error)) => error.to_string(),
        Ok(_) => "answered".into(),
    }
}

#[test]
fn a_call_is_heard_with_its_address_and_number() {
    let ((one, _), (mut two, watch)) = (calls(1), calls(2));
    let _caller = send_call(&one, &two, |call| call.calls = 77);
    while two.heard() == 0 {
        two.hear(&watch);
    }
    let call = two.next_call().unwrap();
    assert_eq!((call.address, call.number, two.heard()), (*one.own(), 77, 0));
}

#[test]
fn claims_that_the_kernel_contradicts_are_refused_in_words() {
    let ((one, _), (mut two, watch)) = (calls(1), calls(2));
    let other_process = |call: &mut CallPacket| {
        let mut bytes = *call.address.bytes();
        bytes[4..8].copy_from_slice(&1_u32.to_le_bytes());
        call.address = PeerAddress::from_bytes(bytes);
    };
    let earlier = |call: &mut CallPacket| call.handshake.epoch = 3;
    let no_address = |call: &mut CallPacket| call.address = PeerAddress::from_bytes([0; 64]);
    let other_sizes = |call: &mut CallPacket| call.handshake.geometry.cells = 8;
    type Lie = fn(&mut CallPacket);
    let lies: [(Lie, &str); 4] = [
        (other_process, "belongs to process 1"),
        (earlier, "earlier process"),
        (no_address, "version 0"),
        (other_sizes, "NEMESIA_CELLS"),
    ];
    for (lie, words) in lies {
        let caller = send_call(&one, &two, lie);
        while two.is_busy() || !caller.has_disconnected() {
            two.hear(&watch);
        }
        let refused = refusal(&caller);
        assert!(refused.contains(words), "{refused}");
        assert_eq!(two.heard(), 0);
    }
}

#[test]
fn garbage_and_segments_that_do_not_fit_end_the_call_only() {
    let ((one, _), (mut two, watch)) = (calls(1), calls(2));
    let garbage = dial(&two);
    garbage.send(&[0xff; 200], &[], Instant::now()).unwrap();
    // A call without segments.
    let bare = dial(&two);
    let packet = CallPacket { handshake: one.world.handshake(0, 0), address: *one.own(), calls: 1 };
    bare.send(&packet.encode(), &[], Instant::now()).unwrap();
    while two.heard() == 0 {
        two.hear(&watch);
    }
    assert!(refusal(&garbage).contains("no nemesia handshake"));
    let call = two.next_call().unwrap();
    let peer = PeerRef::from_bits(0);
    let problem = two.answer(peer, call, (1, 0, 0), &watch).unwrap_err();
    assert!(problem.contains("0 descriptors"), "{problem}");
    assert!(refusal(&bare).contains("0 descriptors"));
    assert!(two.answered.is_empty());
}

#[test]
fn silent_callers_do_not_keep_a_call_from_being_heard() {
    let ((one, _), (mut two, watch)) = (calls(1), calls(2));
    let silent: Vec<_> = (0..MOST_CALLERS + 50).map(|_| dial(&two)).collect();
    let _caller = send_call(&one, &two, |_| ());
    while two.heard() == 0 {
        two.hear(&watch);
        assert!(two.silent.len() + two.heard.len() <= MOST_CALLERS);
    }
    assert_eq!(two.next_call().unwrap().address, *one.own());
    drop(silent);
}

/// A process of another user cannot keep the queue full: all its connections are closed in one look.
#[test]
fn the_connections_of_other_users_take_no_turn_of_a_caller() {
    const NAME: &str = concat!(module_path!(), "::the_connections_of_other_users_take_no_turn_of_a_caller");
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return testing::skipped("only root can act as another user");
    }
    if !testing::is_child() {
        return testing::run_again(NAME, || Ok(()));
    }
    let ((one, _), (mut two, watch)) = (calls(1), calls(2));
    // SAFETY: takes numbers only; this process has the user for itself.
    unsafe { libc::seteuid(65534) };
    let strangers: Vec<_> = (0..2 * AT_ONCE).map(|_| dial(&two)).collect();
    // SAFETY: as above.
    unsafe { libc::seteuid(0) };
    let _caller = send_call(&one, &two, |_| ());
    two.hear(&watch);
    assert_eq!((two.heard(), two.silent.len()), (1, 0));
    drop(strangers);
}

/// Runs this part of a test in a process of its own, which may take all its descriptors.
fn in_another_process(test: &str, body: impl FnOnce()) {
    if testing::is_child() { body() } else { testing::run_again(test, || Ok(())) }
}

#[test]
fn a_process_without_descriptors_may_sleep_and_hears_its_callers_later() {
    const NAME: &str =
        concat!(module_path!(), "::a_process_without_descriptors_may_sleep_and_hears_its_callers_later");
    in_another_process(NAME, || {
        let ((one, _), (mut two, watch)) = (calls(1), calls(2));
        let _caller = send_call(&one, &two, |_| ());
        let taken = testing::take_descriptors();
        two.hear(&watch);
        assert!(!wait_ready(watch.as_fd(), libc::POLLIN, Instant::now()).unwrap(), "the set is readable");
        let report = two.next_shortage().unwrap();
        assert!(report.contains("ulimit -n") && two.next_shortage().is_none(), "{report}");
        drop(taken);
        while two.heard() == 0 {
            two.hear(&watch);
        }
        let _caller = send_call(&one, &two, |_| ());
        assert!(wait_ready(watch.as_fd(), libc::POLLIN, Instant::now() + PATIENCE).unwrap());
    });
}

#[test]
fn a_call_waits_while_its_process_has_no_descriptors() {
    const NAME: &str = concat!(module_path!(), "::a_call_waits_while_its_process_has_no_descriptors");
    in_another_process(NAME, || {
        let ((mut one, watch), (mut two, its)) = (calls(1), calls(2));
        let taken = testing::take_descriptors();
        one.call(PeerRef::from_bits(0), two.own(), (1, 1), 0).unwrap();
        for _ in 0..10 {
            assert!(one.next_outcome(&watch).is_none());
        }
        let report = one.next_shortage().unwrap();
        assert!(report.contains("ulimit -n"), "{report}");
        drop(taken);
        while two.heard() == 0 {
            assert!(one.next_outcome(&watch).is_none());
            two.hear(&its);
        }
    });
}

#[test]
fn an_answer_is_received_when_there_is_room_for_its_descriptors() {
    const NAME: &str =
        concat!(module_path!(), "::an_answer_is_received_when_there_is_room_for_its_descriptors");
    in_another_process(NAME, || {
        let ((mut one, watch), (mut two, its)) = (calls(1), calls(2));
        one.call(PeerRef::from_bits(0), two.own(), (1, 1), 0).unwrap();
        while two.heard() == 0 {
            assert!(one.next_outcome(&watch).is_none());
            two.hear(&its);
        }
        let call = two.next_call().unwrap();
        assert_eq!(two.answer(PeerRef::from_bits(0), call, (1, 0, 0), &its), Ok(true));
        let taken = testing::take_descriptors();
        for _ in 0..10 {
            assert!(one.next_outcome(&watch).is_none());
        }
        assert!(one.next_shortage().unwrap().contains("ulimit -n"));
        assert!(!wait_ready(watch.as_fd(), libc::POLLIN, Instant::now()).unwrap(), "the process may sleep");
        drop(taken);
        let outcome = std::iter::repeat_with(|| one.next_outcome(&watch)).flatten().next().unwrap().1;
        assert!(matches!(outcome, CallOutcome::Answered(_)), "{outcome:?}");
    });
}

#[test]
fn a_shortage_in_a_world_names_a_limit_that_suffices() {
    let error = ShmError::system("a test", std::io::Error::from_raw_os_error(libc::EMFILE));
    let mut shortage = Shortage::among(23);
    shortage.record(&error);
    let text = shortage.present().unwrap().to_owned();
    let limit: u64 = text.split("(now ").nth(1).unwrap().split(')').next().unwrap().parse().unwrap();
    assert!(text.ends_with(&format!(": {} suffice for 23 peers", limit + 3 * 23 + 16)), "{text}");
    assert_eq!(shortage.next_report(), Some(text));
}

/// A refusal would end the peer for good.
#[test]
fn a_call_waits_or_is_closed_without_an_answer_while_the_callee_has_no_descriptors() {
    const NAME: &str = concat!(
        module_path!(),
        "::a_call_waits_or_is_closed_without_an_answer_while_the_callee_has_no_descriptors"
    );
    in_another_process(NAME, || {
        let ((one, _), (mut two, watch)) = (calls(1), calls(2));
        // One whose segments find no room, and one for which there is no segment.
        let (cut, link) = (dial(&two), one.ours.link(0).unwrap());
        let _heard = send_call(&one, &two, |_| ());
        while two.heard() == 0 || two.silent.is_empty() {
            two.hear(&watch);
        }
        let call = two.next_call().unwrap();
        let taken = testing::take_descriptors();
        let packet = CallPacket { handshake: one.world.handshake(0, 0), address: *one.own(), calls: 1 };
        cut.send(&packet.encode(), &one.ours.descriptors(&link), Instant::now()).unwrap();
        two.hear(&watch);
        assert_eq!((cut.has_disconnected(), two.heard()), (false, 0));
        assert!(!wait_ready(watch.as_fd(), libc::POLLIN, Instant::now()).unwrap(), "the process may sleep");
        let _rest = testing::take_descriptors();
        assert_eq!(two.answer(PeerRef::from_bits(0), call, (1, 0, 0), &watch), Ok(false));
        let report = two.next_shortage().unwrap();
        assert!(report.contains("ulimit -n"), "{report}");
        drop((taken, _rest));
        while two.heard() == 0 {
            two.hear(&watch);
        }
    });
}

/// Both processes of a pair may lack descriptors: then each gives up the other's call and makes one, for ever.
#[test]
fn a_shortage_that_lasts_ends_the_calls_of_both_sides_with_the_remedy() {
    const NAME: &str =
        concat!(module_path!(), "::a_shortage_that_lasts_ends_the_calls_of_both_sides_with_the_remedy");
    in_another_process(NAME, || {
        let ((one, _), (mut two, watch)) = (calls(1), calls(2));
        let (limit, peer) = (two.limit(), PeerRef::from_bits(0));
        let (cut, link) = (dial(&two), one.ours.link(0).unwrap());
        let heard = send_call(&one, &two, |_| ());
        while two.heard() == 0 || two.silent.is_empty() {
            two.hear(&watch);
        }
        let call = two.next_call().unwrap();
        let packet = CallPacket { handshake: one.world.handshake(0, 0), address: *one.own(), calls: 1 };
        let _taken = testing::take_descriptors();
        cut.send(&packet.encode(), &one.ours.descriptors(&link), Instant::now()).unwrap();
        two.hear(&watch);
        two.call(peer, one.own(), (1, 1), 0).unwrap();
        assert!(two.next_outcome(&watch).is_none() && !cut.has_disconnected(), "it may pass");
        two.shortage.expire(limit);
        two.hear(&watch);
        assert!(two.silent.is_empty() && refusal(&cut).contains("ulimit -n"));
        let outcome = two.next_outcome(&watch).unwrap().1;
        assert!(matches!(&outcome, CallOutcome::Refused(why) if why.contains("ulimit -n")), "{outcome:?}");
        let why = two.answer(peer, call, (1, 0, 0), &watch).unwrap_err();
        assert!(why.contains("ulimit -n") && refusal(&heard).contains("ulimit -n"), "{why}");
    });
}

#[test]
fn a_connection_that_is_made_ends_a_shortage() {
    let error = ShmError::system("a test", std::io::Error::from_raw_os_error(libc::EMFILE));
    let mut shortage = Shortage::among(1);
    shortage.record(&error);
    shortage.expire(PATIENCE);
    assert!(shortage.lasting(PATIENCE).is_some() && shortage.lasting(3 * PATIENCE).is_none());
    shortage.end();
    assert_eq!((shortage.present(), shortage.lasting(Duration::ZERO)), (None, None));
    shortage.record(&error);
    assert_eq!(shortage.lasting(PATIENCE), None);
}

#[test]
fn a_caller_that_never_confirms_is_given_up() {
    let ((one, _), (mut two, watch)) = (calls(1), calls(2));
    let peer = PeerRef::from_bits(0);
    for confirm in [&b"something else"[..], b""] {
        let caller = send_call(&one, &two, |_| ());
        while two.heard() == 0 {
            two.hear(&watch);
        }
        let call = two.next_call().unwrap();
        two.answer(peer, call, (1, 0, 0), &watch).unwrap();
        assert!(two.next_confirmed(&watch).is_none() && two.is_busy());
        if confirm.is_empty() {
            drop(caller);
        } else {
            caller.send(confirm, &[], Instant::now()).unwrap();
        }
        let ended = std::iter::repeat_with(|| two.next_confirmed(&watch)).flatten().next().unwrap();
        assert!(ended.0 == peer && ended.1.is_err() && two.answered.is_empty());
    }
}

#[test]
fn an_answer_of_another_process_than_the_one_called_is_refused() {
    let ((mut one, watch), (two, _)) = (calls(1), calls(2));
    let peer = PeerRef::from_bits(0);
    one.call(peer, two.own(), (1, 1), 0).unwrap();
    assert!(one.next_outcome(&watch).is_none());
    let connection = two.listener.accept(Instant::now() + PATIENCE).unwrap();
    // It answers with the address of a third one.
    let (three, _) = calls(3);
    let packet = CallPacket { handshake: three.world.handshake(0, 0), address: *three.own(), calls: 0 };
    let link = three.ours.link(0).unwrap();
    connection.send(&packet.encode(), &three.ours.descriptors(&link), Instant::now()).unwrap();
    let (_, outcome) = std::iter::repeat_with(|| one.next_outcome(&watch)).flatten().next().unwrap();
    assert!(matches!(&outcome, CallOutcome::Refused(why) if why.contains("another address")), "{outcome:?}");
}

#[test]
fn calls_to_nobody_end_at_once() {
    let ((mut one, watch), (two, _)) = (calls(1), calls(2));
    let (address, peer) = (*two.own(), PeerRef::from_bits(0));
    drop(two);
    one.call(peer, &address, (1, 1), 0).unwrap();
    assert!(matches!(one.next_outcome(&watch), Some((_, CallOutcome::Gone))));
}

#[test]
fn a_peer_that_calls_again_and_again_keeps_one_place_among_the_parked() {
    let ((one, _), (mut two, watch)) = (calls(1), calls(2));
    let peer = PeerRef::from_bits(0);
    for number in 1..20 {
        let _caller = send_call(&one, &two, |call| call.calls = number);
        while two.heard() == 0 {
            two.hear(&watch);
        }
        let call = two.next_call().unwrap();
        two.park(peer, call);
    }
    assert_eq!(two.parked.len(), 1);
}

#[test]
fn a_process_that_leaves_is_heard_and_another_cannot_say_so_for_it() {
    let ((one, _), (mut two, watch)) = (calls(1), calls(2));
    let until = Instant::now() + PATIENCE;
    let mut bytes = *one.own().bytes();
    bytes[4..8].copy_from_slice(&1_u32.to_le_bytes());
    let forged = LeavePacket { address: PeerAddress::from_bytes(bytes), departure: Departure::Finished };
    let forger = dial(&two);
    forger.send(&forged.encode(), &[], until).unwrap();
    one.announce_leave(two.own(), Departure::Dropped, until);
    // The announcement is there although its sender has gone; nothing is lost if it is read late.
    drop(one);
    let mut left = Vec::new();
    while left.is_empty() || two.is_busy() {
        two.hear(&watch);
        left.extend(std::iter::from_fn(|| two.next_leaver()));
        assert!(Instant::now() < until + PATIENCE);
    }
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].1, Departure::Dropped);
    assert!(forger.has_disconnected());
}

/// Lets `one` call `two`, which answers.
fn answered(one: &mut Calls, two: &mut Calls, watches: [&Watch; 2]) -> PeerRef {
    let peer = PeerRef::from_bits(0);
    one.call(peer, two.own(), (1, 1), 0).unwrap();
    while two.heard() == 0 {
        assert!(one.next_outcome(watches[0]).is_none());
        two.hear(watches[1]);
    }
    let call = two.next_call().unwrap();
    assert_eq!(two.answer(peer, call, (1, 0, 0), watches[1]), Ok(true));
    peer
}

fn outcome(calls: &mut Calls, watch: &Watch) -> CallOutcome {
    std::iter::repeat_with(|| calls.next_outcome(watch)).flatten().next().unwrap().1
}

#[test]
fn a_caller_that_lives_may_confirm_at_any_time() {
    let ((mut one, watch), (mut two, its)) = (calls(1), calls(2));
    let peer = answered(&mut one, &mut two, [&watch, &its]);
    two.expire();
    assert!(two.next_confirmed(&its).is_none() && !two.is_busy() && !two.is_full());
    let CallOutcome::Answered(answer) = outcome(&mut one, &watch) else { panic!("no answer") };
    answer.confirm().unwrap();
    assert!(matches!(two.next_confirmed(&its), Some((it, Ok(_))) if it == peer));
    assert!(two.give_up_one(&its).is_none(), "it is not among the answered any more");
}

#[test]
fn a_call_that_was_given_up_is_made_once_more_and_is_no_death() {
    let ((mut one, watch), (mut two, its)) = (calls(1), calls(2));
    let peer = answered(&mut one, &mut two, [&watch, &its]);
    assert_eq!(two.give_up_one(&its), None, "it has time left");
    two.expire();
    assert_eq!((two.give_up_one(&its), two.give_up_one(&its)), (Some(peer), None));
    // The answer is there, but has no meaning any more.
    let CallOutcome::Answered(answer) = outcome(&mut one, &watch) else { panic!("no answer") };
    assert!(matches!(answer.confirm(), Err(CallOutcome::Again(1))));
    one.call(peer, two.own(), (1, 2), 1).unwrap();
    while two.heard() == 0 {
        assert!(one.next_outcome(&watch).is_none());
        two.hear(&its);
    }
    let again = two.next_call().unwrap();
    assert_eq!(again.number, 2);
    // A call that is closed without an answer is made again, too; but not for ever.
    drop(again);
    assert!(matches!(outcome(&mut one, &watch), CallOutcome::Again(2)));
    one.call(peer, two.own(), (1, 3), 15).unwrap();
    while two.next_call().is_none() {
        assert!(one.next_outcome(&watch).is_none());
        two.hear(&its);
    }
    let last = outcome(&mut one, &watch);
    assert!(matches!(&last, CallOutcome::Refused(why) if why.contains("given up 16 calls")), "{last:?}");
}

#[test]
fn a_caller_that_confirms_is_not_given_up() {
    let ((mut one, watch), (mut two, its)) = (calls(1), calls(2));
    let peer = answered(&mut one, &mut two, [&watch, &its]);
    let CallOutcome::Answered(answer) = outcome(&mut one, &watch) else { panic!("no answer") };
    answer.confirm().unwrap();
    two.expire();
    assert!(matches!(two.next_confirmed(&its), Some((it, Ok(_))) if it == peer));
}

/// Strangers that have an answer each and never confirm it do not keep others from calling.
#[test]
fn callers_that_never_confirm_give_their_places_to_others() {
    let ((one, _), (mut two, watch)) = (calls(1), calls(2));
    let silent: Vec<_> = (0..MOST_CALLERS).map(|_| send_call(&one, &two, |_| ())).collect();
    for number in 0..MOST_CALLERS {
        while two.heard() == 0 {
            two.hear(&watch);
        }
        let call = two.next_call().unwrap();
        let (peer, number) = (PeerRef::from_bits((number as u64) << 32), number as u32 % 8);
        assert_eq!(two.answer(peer, call, (number, 0, 0), &watch), Ok(true));
    }
    let _other = send_call(&one, &two, |call| call.calls = 9);
    two.hear(&watch);
    assert!(two.heard() == 0 && two.is_full() && two.give_up_one(&watch).is_none());
    two.expire();
    assert!(two.give_up_one(&watch).is_some() && !two.is_full());
    while two.heard() == 0 {
        two.hear(&watch);
    }
    assert_eq!(two.next_call().unwrap().number, 9);
    drop(silent);
}
