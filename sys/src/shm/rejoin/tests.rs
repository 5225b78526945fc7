//! Callers that are not the restarted processes that are awaited.

use nemesia_core::shared::layout::Geometry;

use super::*;
use crate::config::Config;
use crate::os::closer::lingering;
use crate::os::{testing, wait_ready};

/// The own segment has more than the addresses that [`testing::take_addresses`] leaves.
const GEOMETRY: Geometry = Geometry { cells: 4, cell_bytes: 1 << 18, fastbox_slots: 4 };
/// The largest number of callers.
const MOST: usize = SIZE as usize + SPARE_CALLERS;
const SIZE: u32 = 4;

fn world(rank: u32, incarnation: u64) -> ShmWorld {
    let config = Config::default();
    ShmWorld {
        config,
        geometry: GEOMETRY,
        rank,
        size: SIZE,
        epoch: 7,
        token: nemesia_core::link::token::LinkToken::from_bytes([7; 16]),
        expedited: true,
        cpus: [1; 8],
        stamp: 0,
        incarnation,
        sealed: false,
    }
}

fn segments() -> OwnSegments {
    OwnSegments::new(&Config::default(), GEOMETRY, 7, &mut Vec::new()).unwrap()
}

/// Returns the rejoin listener of rank 0, and the name of its socket.
fn rejoin() -> (RejoinListener, String) {
    let listener = HandoffListener::bind().unwrap();
    let name = listener.name();
    let remote = RemoteRanks::default();
    (RejoinListener::new(Arc::new(world(0, 0)), Arc::new(segments()), Some(listener), &remote), name)
}

fn watch() -> Watch {
    Watch::new().unwrap()
}

/// A refusal would end the world of the process that was started again.
#[test]
fn a_restarted_process_waits_while_this_one_has_no_descriptors() {
    const NAME: &str =
        concat!(module_path!(), "::a_restarted_process_waits_while_this_one_has_no_descriptors");
    if !testing::is_child() {
        return testing::run_again(NAME, || Ok(()));
    }
    let ((mut rejoin, name), set) = (rejoin(), watch());
    set.attend(rejoin.listener.as_ref().unwrap().as_fd()).unwrap();
    let again = call_again(&name);
    let taken = testing::take_descriptors();
    rejoin.open(&set);
    assert!(!wait_ready(set.as_fd(), libc::POLLIN, Instant::now()).unwrap(), "the set is readable");
    assert_eq!((rejoin.callers.len(), rejoin.failed_accepts()), (0, 1));
    let report = rejoin.next_shortage().unwrap();
    assert!(report.contains("suffice for 3 peers"), "{report}");
    drop(taken);
    while rejoin.callers.is_empty() {
        rejoin.open(&set);
    }
    let taken = testing::take_descriptors();
    rejoin.hear(|_| false);
    assert_eq!((rejoin.callers.len(), heard(&rejoin)), (1, vec![]), "its packet waits");
    drop(taken);
    rejoin.hear(|_| false);
    assert_eq!(heard(&rejoin), [1]);
    rejoin.callers[0].genuine = true;
    let taken = testing::take_descriptors();
    assert!(matches!(rejoin.admit(1), Some(Err(Unjoined::Shortage(_)))));
    assert!(!again.has_disconnected());
    drop(taken);
    assert!(rejoin.admit(1).unwrap().is_ok());
}

#[test]
fn a_restarted_process_waits_while_its_segments_cannot_be_mapped() {
    const NAME: &str =
        concat!(module_path!(), "::a_restarted_process_waits_while_its_segments_cannot_be_mapped");
    if !testing::is_child() {
        return testing::run_again(NAME, || Ok(()));
    }
    let ((mut rejoin, name), set) = (rejoin(), watch());
    let again = call_again(&name);
    rejoin.open(&set);
    rejoin.hear(|_| false);
    rejoin.callers[0].genuine = true;
    let taken = testing::take_addresses();
    for _ in 0..2 {
        let unmapped = rejoin.admit(1).unwrap().err();
        assert!(matches!(unmapped, Some(Unjoined::Shortage(ShmError::AddressSpaceLimit { .. }))));
    }
    assert!(!again.has_disconnected());
    drop(taken);
    assert!(rejoin.admit(1).unwrap().is_ok());
}

#[test]
fn an_answer_to_a_restarted_process_waits_until_its_segments_can_be_mapped() {
    const NAME: &str =
        concat!(module_path!(), "::an_answer_to_a_restarted_process_waits_until_its_segments_can_be_mapped");
    if !testing::is_child() {
        return testing::run_again(NAME, || Ok(()));
    }
    let (mut restarted, set) = (RejoinListener { listener: None, ..rejoin().0 }, watch());
    let (theirs, place) = (segments(), HandoffListener::bind().unwrap());
    let connection = call(&place.name());
    let survivor = place.accept(Instant::now() + HANDSHAKE_TIME).unwrap();
    let link = restarted.ours.link(1).unwrap();
    set.attend(connection.as_fd()).unwrap();
    restarted.awaited.push(AwaitedProcess {
        rank: 1,
        incarnation: 0,
        link,
        connection,
        pidfd: None,
        said: None,
    });
    let link = theirs.link(0).unwrap();
    shake_hands(&world(1, 0), (&theirs, &link), &survivor, 5, Instant::now()).unwrap();
    let without_descriptors = testing::take_descriptors();
    assert!(restarted.next_answer(&set).is_none());
    assert!(!wait_ready(set.as_fd(), libc::POLLIN, Instant::now()).unwrap(), "the process may sleep");
    drop(without_descriptors);
    let without_addresses = testing::take_addresses();
    for _ in 0..2 {
        assert!(restarted.next_answer(&set).is_none());
    }
    drop(without_addresses);
    let Some((1, RejoinAnswer::Met(joining))) = restarted.next_answer(&set) else { panic!("it is lost") };
    assert_eq!((joining.number, joining.agreements), (1, 5));
}

/// As ranks that start together do.
#[test]
fn the_segments_of_a_peer_are_mapped_once_there_is_room() {
    const NAME: &str = concat!(module_path!(), "::the_segments_of_a_peer_are_mapped_once_there_is_room");
    if !testing::is_child() {
        return testing::run_again(NAME, || Ok(()));
    }
    let ((mut rejoin, name), set) = (rejoin(), watch());
    let _again = call_again(&name);
    rejoin.open(&set);
    rejoin.hear(|_| false);
    let Caller { connection, said, .. } = &rejoin.callers[0];
    let (mut taken, mut failed) = (Some(testing::take_addresses()), 0);
    let mapped = patiently(Instant::now() + HANDSHAKE_TIME * 60, || {
        let mapped = rejoin.map(connection, said.as_ref());
        failed += u32::from(mapped.is_err());
        if failed == 3 {
            taken = None;
        }
        mapped
    });
    assert!(mapped.is_ok());
    assert_eq!(failed, 3);
}

fn call(name: &str) -> HandoffConnection {
    HandoffConnection::connect(name, Instant::now() + HANDSHAKE_TIME).unwrap()
}

/// Connects as rank 1, which was restarted.
fn call_again(name: &str) -> HandoffConnection {
    let connection = call(name);
    let ours = segments();
    let link = ours.link(0).unwrap();
    shake_hands(&world(1, 1), (&ours, &link), &connection, 0, Instant::now()).unwrap();
    connection
}

fn heard(rejoin: &RejoinListener) -> Vec<u32> {
    rejoin.callers.iter().filter_map(|caller| Some(caller.said.as_ref()?.0.rank)).collect()
}

#[test]
fn callers_that_never_end_do_not_keep_the_one_that_opens() {
    let (mut rejoin, name) = rejoin();
    let many: Vec<_> = (0..3 * MOST).map(|_| call(&name)).collect();
    // The largest number there can be, if a process connects whenever one is accepted.
    rejoin.open(&watch());
    let disconnected = many.iter().filter(|caller| caller.has_disconnected()).count();
    assert!(rejoin.callers.len() + disconnected <= MOST, "{} and {disconnected}", rejoin.callers.len());
    assert!(rejoin.is_busy(), "the others are not forgotten");
}

#[test]
fn silent_callers_do_not_keep_out_a_restarted_process() {
    let (mut rejoin, name) = rejoin();
    let silent: Vec<_> = (0..MOST).map(|_| call(&name)).collect();
    for _ in 0..4 {
        rejoin.open(&watch());
        rejoin.hear(|_| false);
    }
    assert_eq!((rejoin.callers.len(), heard(&rejoin)), (MOST, vec![]));
    let more: Vec<_> = (0..2 * MOST).map(|_| call(&name)).collect();
    let _again = call_again(&name);
    let yet_more: Vec<_> = (0..2 * MOST).map(|_| call(&name)).collect();
    for _ in 0..5 * MOST {
        rejoin.open(&watch());
        assert!(rejoin.callers.len() <= MOST);
        rejoin.hear(|rank| rank != 1);
    }
    assert_eq!(heard(&rejoin), [1]);
    drop((silent, more, yet_more));
}

#[test]
fn descriptors_whose_close_blocks_do_not_hold_up_progress() {
    let began = Instant::now();
    let (mut rejoin, name) = rejoin();
    let (mut callers, mut others) = (Vec::new(), Vec::new());
    let handshake = handshake_of(1).encode();
    for words in [b"nonsense".as_slice(), &handshake, &handshake] {
        let (bad, other) = lingering(600);
        let caller = call(&name);
        caller.send(words, &[bad.as_fd()], Instant::now()).unwrap();
        others.push(other);
        callers.push(caller);
    }
    rejoin.open(&watch());
    rejoin.hear(|_| false);
    assert_eq!(heard(&rejoin), [1, 1]);
    // One does not send its segments, and the other ends with the listener.
    assert!(rejoin.callers.iter_mut().all(|caller| {
        caller.genuine = true;
        caller.said.is_some()
    }));
    assert!(rejoin.admit(1).unwrap().is_err());
    drop(rejoin);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

#[test]
fn callers_of_living_or_unknown_ranks_are_refused() {
    let (mut rejoin, name) = rejoin();
    let _again = call_again(&name);
    rejoin.open(&watch());
    rejoin.hear(|_| true);
    assert_eq!((rejoin.callers.len(), heard(&rejoin)), (0, vec![]));
    let foreign = call(&name);
    let handshake = ShmHandshake { rank: u32::MAX, ..handshake_of(1) };
    foreign.send(&handshake.encode(), &[], Instant::now()).unwrap();
    rejoin.open(&watch());
    rejoin.hear(|rank| panic!("rank {rank} does not exist"));
    assert_eq!(rejoin.callers.len(), 0);
}

#[test]
fn callers_of_ranks_that_are_reached_over_the_network_are_refused() {
    let (mut rejoin, name) = rejoin();
    rejoin.remote.push(1);
    let again = call_again(&name);
    rejoin.open(&watch());
    rejoin.hear(|_| false);
    assert_eq!(rejoin.callers.len(), 0);
    let Err(Unheard::Problem(problem)) = hear_answer(&again, Instant::now() + HANDSHAKE_TIME) else {
        panic!("no refusal")
    };
    assert!(problem.contains("over the network"), "{problem}");
}

#[test]
fn a_process_that_is_woken_before_it_is_answered_goes_on_waiting() {
    let (one, other) = HandoffConnection::pair().unwrap();
    let soon = || Instant::now() + HANDSHAKE_TIME;
    one.send_wake().unwrap();
    let ours = segments();
    let link = ours.link(0).unwrap();
    shake_hands(&world(1, 0), (&ours, &link), &one, 3, Instant::now()).unwrap();
    assert!(matches!(hear_answer(&other, soon()), Ok(None)));
    let Ok(Some((answer, _))) = hear_answer(&other, soon()) else { panic!("no answer") };
    assert_eq!((answer.rank, answer.agreements), (1, 3));
}

fn handshake_of(rank: u32) -> ShmHandshake {
    let ShmWorld { geometry, epoch, expedited, cpus, stamp, .. } = world(rank, 1);
    let (size, number, incarnation, agreements) = (SIZE, 0, 1, 0);
    ShmHandshake { rank, epoch, size, number, geometry, expedited, cpus, stamp, incarnation, agreements }
}
