use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use nemesia_core::wire::call::{CALL_MESSAGE_BYTES, CallBytes, CallDeparture};
use nemesia_core::wire::hello::Challenge;

use super::*;
use crate::os::{testing, wait_ready};

const KEY: [u8; 32] = [7; 32];
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the calls of the process with this address, and where it listens.
fn calls(own: u8, watch: &Watch) -> (NetCalls, SocketAddr) {
    let channel = Address::new(&[own]).unwrap();
    let local = IpAddr::from([127, 0, 0, 1]);
    let mut calls = NetCalls::listen(&Config::default(), JobKey::from_bytes(KEY), (local, channel)).unwrap();
    calls.begin(&address(own), watch).unwrap();
    let place = calls.place().unwrap();
    (calls, place)
}

fn address(own: u8) -> PeerAddress {
    PeerAddress::from_bytes([own; 64])
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// Lets the callee make progress until so many connections have sent nothing valid, and so many calls are heard.
fn until(calls: &mut NetCalls, watch: &Watch, is_so: impl Fn(&NetCalls) -> bool) {
    let begun = Instant::now();
    while !is_so(calls) {
        calls.hear(watch);
        assert!(begun.elapsed() < LIMIT, "{} strangers, {} heard", calls.strangers.len(), calls.heard.len());
        std::thread::yield_now();
    }
}

fn read(stream: &mut TcpStream) -> CallMessage {
    let mut bytes: CallBytes = [0; CALL_MESSAGE_BYTES];
    stream.read_exact(&mut bytes).unwrap();
    CallMessage::decode(&bytes).unwrap()
}

/// Connects, and returns the challenge.
fn challenged(calls: &mut NetCalls, watch: &Watch, place: SocketAddr) -> (TcpStream, Challenge) {
    let before = calls.strangers.len();
    let mut stream = connect(place);
    until(calls, watch, |calls| calls.strangers.len() > before);
    let CallMessage::Challenge(challenge) = read(&mut stream) else { panic!("no challenge") };
    (stream, challenge)
}

/// Lets the callee make progress until this connection has its challenge, among those of strangers.
fn challenged_among(calls: &mut NetCalls, watch: &Watch, mut stream: TcpStream) -> (TcpStream, Challenge) {
    stream.set_nonblocking(true).unwrap();
    let begun = Instant::now();
    while stream.peek(&mut [0; CALL_MESSAGE_BYTES]).is_err() {
        calls.hear(watch);
        assert!(begun.elapsed() < LIMIT);
    }
    stream.set_nonblocking(false).unwrap();
    let CallMessage::Challenge(challenge) = read(&mut stream) else { panic!("no challenge") };
    (stream, challenge)
}

/// Returns the request of a process with this address for process 1, with a proof by this key.
fn request(own: u8, challenge: Challenge, key: [u8; 32]) -> CallRequest {
    let packet_bytes = Config::default().net_packet_bytes(true);
    let introduction = CallIntroduction { calls: 1, token: 5, number: 6, packet_bytes };
    let address = [own; 64];
    let terms = CallTerms {
        world: CALLS_WORLD,
        challenge,
        nonce: 9,
        caller: introduction.common(),
        caller_address: &address,
        callee: NO_RANK,
        callee_address: &[1; 64],
    };
    let proof = JobKey::from_bytes(key).request_proof(&terms);
    CallRequest { introduction, address, challenge: challenge.number, nonce: 9, proof }
}

/// Sends a request, and returns the reason of its refusal.
fn refused(calls: &mut NetCalls, watch: &Watch, mut stream: TcpStream, request: CallRequest) -> String {
    stream.write_all(&CallMessage::Request(request).encode()).unwrap();
    until(calls, watch, |calls| calls.strangers.is_empty());
    assert_eq!(calls.heard(), 0);
    match read(&mut stream) {
        CallMessage::Refusal(reason) => reason.text().to_owned(),
        other => panic!("{other:?} instead of a refusal"),
    }
}

#[test]
fn a_call_is_heard_answered_and_confirmed() {
    let watch = Watch::new().unwrap();
    let ((mut one, place), (mut two, _)) = (calls(1, &watch), calls(2, &watch));
    let peer = PeerRef::from_bits(3);
    two.call((peer, address(1), place), (4, 10, 77));
    let begun = Instant::now();
    let heard = loop {
        one.hear(&watch);
        assert!(two.next_outcome(&watch).is_none() && begun.elapsed() < LIMIT);
        if let Some(call) = one.next_call() {
            break call;
        }
    };
    assert_eq!((heard.address, heard.calls()), (address(2), 10));
    assert_eq!(NetCalls::acquaintance(&heard, 8), Acquaintance { token: 8, expected: 77, number: 4 });
    assert!(one.answer(peer, heard, (5, 11, 88), &watch));
    assert!(one.next_confirmed(&watch).is_none());
    let answered = loop {
        match two.next_outcome(&watch) {
            Some((of, NetCallOutcome::Answered(answered))) if of == peer => break answered,
            None => assert!(begun.elapsed() < LIMIT),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((answered.calls, answered.channel.bytes()), (11, &[1][..]));
    assert_eq!(answered.known, Acquaintance { token: 77, expected: 88, number: 5 });
    two.confirm(peer, answered, &watch);
    let confirmed = loop {
        if let Some(confirmed) = one.next_confirmed(&watch) {
            break confirmed;
        }
        assert!(begun.elapsed() < LIMIT);
    };
    assert_eq!(
        (confirmed, one.opening(0), two.opening(0)),
        ((peer, Ok(())), Some((peer, 5)), Some((peer, 4)))
    );
    // The caller dies before the connection of the channel exists.
    drop(two);
    let failure = loop {
        if let Some(failure) = one.lost(0, &LinkStage::Nothing) {
            break failure;
        }
        assert!(begun.elapsed() < LIMIT);
    };
    assert_eq!(failure, Failure::Died);
}

#[test]
fn only_a_proof_by_the_key_for_this_challenge_and_this_callee_is_heard() {
    let watch = Watch::new().unwrap();
    let (mut one, place) = calls(1, &watch);
    let (stream, challenge) = challenged(&mut one, &watch, place);
    let error = refused(&mut one, &watch, stream, request(2, challenge, [8; 32]));
    assert!(error.contains("another key"), "{error}");
    // A claimed address that the proof does not cover.
    let (stream, challenge) = challenged(&mut one, &watch, place);
    let claimed = CallRequest { address: [3; 64], ..request(2, challenge, KEY) };
    assert!(refused(&mut one, &watch, stream, claimed).contains("another key"));
    // The challenge of another connection.
    let ((kept, other), (stream, _)) =
        (challenged(&mut one, &watch, place), challenged(&mut one, &watch, place));
    drop(kept);
    let error = refused(&mut one, &watch, stream, request(2, other, KEY));
    assert!(error.contains("challenge"), "{error}");
    // A recorded request, sent again.
    let (mut stream, challenge) = challenged(&mut one, &watch, place);
    let recorded = request(2, challenge, KEY);
    stream.write_all(&CallMessage::Request(recorded).encode()).unwrap();
    until(&mut one, &watch, |calls| calls.heard() == 1);
    assert_eq!(one.next_call().unwrap().address, address(2));
    let (stream, _) = challenged(&mut one, &watch, place);
    assert!(refused(&mut one, &watch, stream, recorded).contains("challenge"));
}

#[test]
fn silent_and_senseless_strangers_are_bounded_and_keep_no_caller_out() {
    let watch = Watch::new().unwrap();
    let (mut one, place) = calls(1, &watch);
    let mut nonsense = connect(place);
    nonsense.write_all(&[0x5a; 2 * CALL_MESSAGE_BYTES]).unwrap();
    let closed = connect(place);
    drop(closed);
    let mut silent = Vec::new();
    for _ in 0..2 * MOST_STRANGERS {
        silent.push(connect(place));
        one.hear(&watch);
        assert!(one.strangers.len() <= MOST_STRANGERS && one.heard() == 0);
    }
    let (mut stream, challenge) = challenged_among(&mut one, &watch, connect(place));
    stream.write_all(&CallMessage::Request(request(2, challenge, KEY)).encode()).unwrap();
    until(&mut one, &watch, |calls| calls.heard() == 1);
    assert!(one.strangers.len() <= MOST_STRANGERS);
}

#[test]
fn a_call_that_was_closed_unread_is_made_again() {
    let watch = Watch::new().unwrap();
    let ((mut one, place), (mut two, _)) = (calls(1, &watch), calls(2, &watch));
    let peer = PeerRef::from_bits(3);
    two.call((peer, address(1), place), (4, 10, 77));
    assert!(two.next_outcome(&watch).is_none());
    until(&mut one, &watch, |calls| calls.strangers.len() == 1);
    // The caller is the stranger that has been there for longest. It is closed before its request comes.
    let caller = one.strangers[0].challenge;
    let silent: Vec<_> = (0..MOST_STRANGERS).map(|_| connect(place)).collect();
    until(&mut one, &watch, |calls| calls.strangers[0].challenge != caller);
    let begun = Instant::now();
    let unanswered = loop {
        one.hear(&watch);
        assert!(one.heard() == 0 && begun.elapsed() < LIMIT);
        match two.next_outcome(&watch) {
            Some((of, NetCallOutcome::Unanswered(unanswered))) if of == peer => break unanswered,
            None => {}
            other => panic!("{other:?}"),
        }
    };
    two.call_again((peer, address(1)), (4, 11, 78), unanswered);
    while one.heard() == 0 {
        assert!(two.next_outcome(&watch).is_none() && begun.elapsed() < LIMIT);
        one.hear(&watch);
    }
    let heard = one.next_call().unwrap();
    assert_eq!((heard.address, heard.calls()), (address(2), 11));
    drop(silent);
}

#[test]
fn a_process_without_descriptors_may_sleep_and_hears_its_callers_later() {
    const NAME: &str =
        concat!(module_path!(), "::a_process_without_descriptors_may_sleep_and_hears_its_callers_later");
    if !testing::is_child() {
        return testing::run_again(NAME, || Ok(()));
    }
    let watch = Watch::new().unwrap();
    let (mut one, place) = calls(1, &watch);
    let _caller = connect(place);
    let taken = testing::take_descriptors();
    one.hear(&watch);
    assert!(!wait_ready(watch.as_fd(), libc::POLLIN, Instant::now()).unwrap(), "the set is readable");
    let report = one.next_shortage().unwrap();
    assert!(report.contains("ulimit -n") && one.next_shortage().is_none(), "{report}");
    drop(taken);
    until(&mut one, &watch, |calls| calls.strangers.len() == 1);
    let _other = connect(place);
    assert!(wait_ready(watch.as_fd(), libc::POLLIN, Instant::now() + LIMIT).unwrap());
}

/// As in a process that looks rarely: between two looks, more strangers come than there are places.
#[test]
fn a_request_that_has_come_is_heard_before_strangers_take_its_place() {
    let watch = Watch::new().unwrap();
    let (mut one, place) = calls(1, &watch);
    let (mut stream, challenge) = challenged(&mut one, &watch, place);
    stream.write_all(&CallMessage::Request(request(2, challenge, KEY)).encode()).unwrap();
    // The kernel may show a connection late, but not all of them.
    let strangers: Vec<_> = (0..MOST_STRANGERS + 8).map(|_| connect(place)).collect();
    until(&mut one, &watch, |calls| calls.strangers.len() == MOST_STRANGERS);
    assert_eq!(one.heard(), 1);
    drop(strangers);
}

/// As in a process that looks each 20 ms, while a stranger makes more than 6,000 connections each second.
#[test]
fn a_caller_behind_many_strangers_is_accepted_by_the_next_looks() {
    let watch = Watch::new().unwrap();
    let (mut one, place) = calls(1, &watch);
    // The kernel of this machine completes each connection, if its queue has room.
    let strangers = 3 * MOST_STRANGERS / 2;
    let strangers: Vec<_> =
        (0..strangers).map(|_| TcpStream::connect_timeout(&place, LIMIT).unwrap()).collect();
    let (_stream, _) = challenged_among(&mut one, &watch, connect(place));
    drop(strangers);
}

#[test]
fn a_departure_is_heard_without_help_and_only_if_it_is_genuine() {
    let watch = Watch::new().unwrap();
    let ((mut one, place), (two, _)) = (calls(1, &watch), calls(2, &watch));
    let (other, _) = calls(3, &watch);
    let forged = match two.departure(&address(1), CloseReason::Finished) {
        CallMessage::Departure(departure) => {
            CallMessage::Departure(CallDeparture { reason: CloseReason::Dropped, ..departure })
        }
        message => panic!("{message:?}"),
    };
    // One with another reason, and one for another process.
    for message in [forged, two.departure(&address(3), CloseReason::Finished)] {
        connect(place).write_all(&message.encode()).unwrap();
    }
    // Nothing is heard meanwhile, and the process that leaves does not wait for that.
    two.announce_leave([(address(1), place)].into_iter(), true, Instant::now() + LIMIT);
    drop(two);
    other.announce_leave([(address(1), place)].into_iter(), false, Instant::now() + LIMIT);
    until(&mut one, &watch, |calls| calls.leavers.len() == 2);
    assert_eq!([one.next_leaver(), one.next_leaver()], [Some((address(3), false)), Some((address(2), true))]);
    assert_eq!(one.next_leaver(), None);
    // A process that has left takes no time of others.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    one.announce_leave([(address(4), gone)].into_iter(), true, Instant::now() + LIMIT);
}
