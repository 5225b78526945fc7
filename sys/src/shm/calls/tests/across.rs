//! Callers from other machines: over TCP, without the word of a kernel about them.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};

use nemesia_core::job_key::JobKey;
use nemesia_core::link::bytes::LinkBytes;
use nemesia_core::link::offers::StreamOffer;
use nemesia_core::link::wire::{LINK_HEADER_BYTES, length_of};
use nemesia_core::wire::hello::Challenge;
use nemesia_core::wire::placement::PLACEMENT_VERSION;

use super::*;
use crate::os::wait_ready;

const KEY: JobKey = JobKey::from_bytes([7; 32]);
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LIMIT: Duration = Duration::from_secs(60);
/// The most connections of strangers.
const MOST: usize = 256;

fn door(key: Option<JobKey>) -> StreamDoor {
    StreamDoor::reserve(&Config::default(), key, LOCAL).unwrap()
}

/// Returns a process on a machine of its own, which takes calls of other ones, and has a key of the job.
fn lone() -> CallingProcess {
    with_key(Some(KEY))
}

/// As [`lone`], with this key or without one.
fn with_key(key: Option<JobKey>) -> CallingProcess {
    CallingProcess::sized(&[], GEOMETRY, Some(door(key)))
}

fn place(of: &CallingProcess) -> SocketAddr {
    Calls::remote_of(of.calls.own()).unwrap()
}

fn connect(to: &CallingProcess) -> TcpStream {
    let stream = TcpStream::connect_timeout(&place(to), LIMIT).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// Lets a process act until it is so.
fn until(process: &mut CallingProcess, is_so: impl Fn(&CallingProcess) -> bool) {
    let begun = Instant::now();
    while !is_so(process) {
        process.attend();
        assert!(begun.elapsed() < LIMIT, "{:?}", process.calls.callers());
        std::thread::yield_now();
    }
}

fn strangers(process: &CallingProcess) -> usize {
    process.calls.callers().0[1]
}

/// Reads one message; `None` if there is none any more.
fn read(stream: &mut TcpStream) -> Option<LinkBytes> {
    let mut bytes = [0; MOST_LINK_BYTES];
    stream.read_exact(&mut bytes[..LINK_HEADER_BYTES]).ok()?;
    let whole = length_of(bytes.first_chunk().unwrap()).unwrap();
    stream.read_exact(&mut bytes[LINK_HEADER_BYTES..whole]).unwrap();
    Some(LinkBytes::copied(&bytes[..whole]))
}

/// Connects with a process, which acts until the connection has its challenge.
fn challenged(process: &mut CallingProcess) -> (TcpStream, Challenge) {
    let mut stream = connect(process);
    stream.set_nonblocking(true).unwrap();
    let begun = Instant::now();
    while matches!(stream.peek(&mut [0; 48]), Err(error) if error.kind() == ErrorKind::WouldBlock) {
        process.attend();
        assert!(begun.elapsed() < LIMIT, "no challenge");
    }
    stream.set_nonblocking(false).unwrap();
    let message = read(&mut stream).unwrap();
    match LinkMessage::decode(message.get(), LINK_VERSION).unwrap().body {
        LinkBody::Challenge(challenge) => (stream, challenge),
        other => panic!("{other:?}"),
    }
}

/// Returns the call of the process with this address to another one.
fn call(from: &PeerAddress, to: &CallingProcess, challenge: &Challenge, job: JobKey) -> Vec<u8> {
    let mut offers = OfferList::EMPTY;
    let version = PLACEMENT_VERSION as u8;
    offers.add(&LinkOffer::Stream(StreamOffer { version, streams: 1, receives: 3, port: 1, token: 0 }));
    let key = LinkKey::of(to.calls.own(), Some(&job));
    let call = LinkCall {
        call: 1,
        incarnation: 0,
        number: 0,
        packet_bytes: Config::default().net_packet_bytes(true),
        challenge: challenge.number,
        instance: 0,
        nonce: 9,
        address: MaskedAddress(key.mask(Some(challenge), 9, from.bytes())),
        offers: offers.get(true),
        proof: Proof::default(),
    };
    let header = LinkHeader { version: LINK_VERSION, service: LinkService::Engine, to: 0, from: 7 };
    let mut message = LinkMessage { header, body: LinkBody::Call(call) }.encode();
    let proof = key.call_proof(challenge, to.calls.own(), message.get());
    message.seal(&proof);
    message.get().to_vec()
}

/// Sends a call, and returns the kind of the answer, and the words of a refusal.
fn answer(process: &mut CallingProcess, mut stream: TcpStream, call: &[u8]) -> String {
    stream.write_all(call).unwrap();
    let begun = Instant::now();
    stream.set_nonblocking(true).unwrap();
    while matches!(stream.peek(&mut [0; 1]), Err(error) if error.kind() == ErrorKind::WouldBlock) {
        process.attend();
        assert!(begun.elapsed() < LIMIT, "no answer");
    }
    stream.set_nonblocking(false).unwrap();
    let Some(message) = read(&mut stream) else { return "gone".into() };
    match LinkMessage::decode(message.get(), LINK_VERSION).map(|message| message.body) {
        Ok(LinkBody::Refuse(refuse)) => refuse.text.get().to_owned(),
        Ok(LinkBody::Answer(_)) => "answer".into(),
        other => format!("{other:?}"),
    }
}

/// Returns the outcomes of two processes when one has called the other.
fn opened(one: &mut CallingProcess, two: &mut CallingProcess) -> [Box<EnteredStream>; 2] {
    one.speak(two);
    let (mut ours, mut theirs) = (None, None);
    let begun = Instant::now();
    while ours.is_none() || theirs.is_none() {
        for (process, opened) in [(&mut *one, &mut ours), (&mut *two, &mut theirs)] {
            process.attend();
            match process.outcome() {
                Some(CallOutcome::Streamed(_, stream)) => *opened = Some(stream),
                None => {}
                Some(other) => panic!("{other:?}"),
            }
        }
        assert!(begun.elapsed() < LIMIT);
    }
    [ours.unwrap(), theirs.unwrap()]
}

#[test]
fn the_connection_of_a_call_becomes_the_stream_of_both_and_nothing_of_the_call_is_left_in_it() {
    let (mut one, mut two) = (lone(), lone());
    let [mut ours, mut theirs] = opened(&mut one, &mut two);
    assert_eq!((ours.is_caller, theirs.is_caller, ours.receives), (true, false, 3));
    // Each process expects the random number that the other one shows.
    assert!(ours.known.token == theirs.known.expected && ours.known.expected == theirs.known.token);
    assert_ne!(ours.known.token, ours.known.expected);
    assert_eq!(ours.known.key, theirs.known.key);
    assert_eq!(ours.further, tcp::address_at(SocketAddr::new(LOCAL, 1), 5));
    for (from, to) in [(0, 1), (1, 0)] {
        let mut both = [&mut ours, &mut theirs].map(|it| it.socket.stream());
        both[from].write_all(b"first frame").unwrap();
        let mut came = [0; 11];
        wait_ready(both[to].as_fd(), libc::POLLIN, Instant::now() + LIMIT).unwrap();
        both[to].read_exact(&mut came).unwrap();
        assert_eq!(&came, b"first frame");
    }
    for process in [&mut one, &mut two] {
        let desk = &process.calls.desk;
        assert!(desk.carriers.is_empty() && desk.parts.is_empty(), "the connection is the caller's");
    }
}

#[test]
fn only_a_proof_for_this_challenge_and_this_process_from_the_claimed_place_is_answered() {
    let (mut one, mut two) = (lone(), lone());
    let (from, far) = (*two.calls.own(), {
        let own = LinkAddress::decode(two.calls.own()).unwrap();
        address::with_remote(own, "10.9.8.7:6".parse().unwrap()).encode()
    });
    // Another key; a place from which it does not call.
    let (stream, challenge) = challenged(&mut one);
    let wrong = call(&from, &one, &challenge, JobKey::from_bytes([8; 32]));
    assert!(answer(&mut one, stream, &wrong).contains("does not prove"));
    let (stream, challenge) = challenged(&mut one);
    let elsewhere = call(&far, &one, &challenge, KEY);
    assert!(answer(&mut one, stream, &elsewhere).contains("comes from elsewhere"));
    // The challenge of another connection, and a call for another process.
    let (stream, challenge) = challenged(&mut one);
    let (other, _) = challenged(&mut one);
    let right = call(&from, &one, &challenge, KEY);
    assert!(answer(&mut one, other, &right).contains("challenge"));
    let misled = call(&from, &two, &challenge, KEY);
    assert!(answer(&mut one, stream, &misled).contains("does not prove"));
    // A recorded call, sent again.
    let (stream, challenge) = challenged(&mut one);
    let recorded = call(&from, &one, &challenge, KEY);
    assert_eq!(answer(&mut one, stream, &recorded), "answer");
    let (stream, _) = challenged(&mut one);
    assert!(answer(&mut one, stream, &recorded).contains("challenge"));
    assert!(two.outcome().is_none());
}

#[test]
fn who_was_given_an_address_needs_no_key_unless_the_other_process_has_one() {
    let (mut one, mut two) = (with_key(None), with_key(None));
    let [ours, theirs] = opened(&mut one, &mut two);
    assert_eq!(ours.known.key, theirs.known.key);
    // Each link has keys of its own.
    let [others, _] = opened(&mut with_key(None), &mut two);
    assert_ne!(ours.known.key, others.known.key);
    for [caller, called] in [[None, Some(KEY)], [Some(KEY), None]] {
        let (mut caller, mut called) = (with_key(caller), with_key(called));
        caller.speak(&called);
        let ended = until_outcome(&mut [&mut caller, &mut called]);
        let CallOutcome::Ended(LinkEnding::Refused(_), why) = &ended else { panic!("{ended:?}") };
        assert!(why.contains("check NEMESIA_JOB_KEY_FILE in both"), "{why}");
    }
}

#[test]
fn the_place_of_a_process_is_its_own_before_it_listens_and_nobody_is_heard_there() {
    let (closed, watch) = (door(None), Watch::new().unwrap());
    let refused = || TcpStream::connect_timeout(&closed.place(), LIMIT).map_err(|error| error.kind());
    assert_eq!(refused().unwrap_err(), ErrorKind::ConnectionRefused);
    // No other socket gets the port, whatever it permits.
    let taken = TcpListener::bind(closed.place()).map_err(|error| error.kind());
    assert_eq!(taken.unwrap_err(), ErrorKind::AddrInUse);
    assert!(!wait_ready(watch.as_fd(), libc::POLLIN, Instant::now()).unwrap());
    for _ in 0..2 {
        closed.open(&watch).unwrap();
    }
    let _caller = refused().unwrap();
    assert!(wait_ready(watch.as_fd(), libc::POLLIN, Instant::now() + LIMIT).unwrap());
}

#[test]
fn silent_and_senseless_strangers_are_bounded_and_keep_no_caller_out() {
    let mut one = lone();
    let from = *lone().calls.own();
    let mut nonsense = connect(&one);
    nonsense.write_all(&[0x5a; 512]).unwrap();
    drop(connect(&one));
    let mut silent = Vec::new();
    for at in 0..2 * MOST {
        // A part of a message is no message either.
        let mut stream = connect(&one);
        stream.write_all(&b"LN\x01"[..at % 4]).unwrap();
        silent.push(stream);
        one.attend();
        assert!(strangers(&one) <= MOST);
    }
    let (stream, challenge) = challenged(&mut one);
    let call = call(&from, &one, &challenge, KEY);
    assert_eq!(answer(&mut one, stream, &call), "answer");
    assert!(strangers(&one) <= MOST);
    drop(silent);
}

#[test]
fn a_call_whose_connection_was_closed_unread_is_made_again() {
    let (mut one, mut two) = (lone(), lone());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    two.calls.redirect(listener.local_addr().unwrap());
    two.speak(&one);
    // Twice before the challenge, as a process does that has no room.
    for _ in 0..2 {
        listener.set_nonblocking(true).unwrap();
        let begun = Instant::now();
        while matches!(listener.accept(), Err(error) if error.kind() == ErrorKind::WouldBlock) {
            two.attend();
            assert!(begun.elapsed() < LIMIT);
        }
    }
    two.calls.redirect(place(&one));
    drop(listener);
    let begun = Instant::now();
    loop {
        one.attend();
        two.attend();
        match (one.outcome(), two.outcome()) {
            (None, None) => assert!(begun.elapsed() < LIMIT),
            (Some(CallOutcome::Streamed(..)), _) | (_, Some(CallOutcome::Streamed(..))) => break,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_process_without_descriptors_may_sleep_and_hears_its_callers_later() {
    const NAME: &str =
        concat!(module_path!(), "::a_process_without_descriptors_may_sleep_and_hears_its_callers_later");
    if !testing::is_child() {
        return testing::run_again(NAME, || Ok(()));
    }
    let mut one = lone();
    let _caller = connect(&one);
    let taken = testing::take_descriptors();
    one.attend();
    let watch = one.terms.watch.as_fd();
    assert!(!wait_ready(watch, libc::POLLIN, Instant::now()).unwrap(), "the set is readable");
    // Both listeners lack one.
    let reports: Vec<_> = std::iter::from_fn(|| one.calls.next_shortage()).collect();
    assert!(reports.len() == 2 && reports.iter().all(|it| it.contains("ulimit -n")), "{reports:?}");
    drop(taken);
    until(&mut one, |one| strangers(one) == 1);
    let _other = connect(&one);
    assert!(wait_ready(one.terms.watch.as_fd(), libc::POLLIN, Instant::now() + LIMIT).unwrap());
}

/// The kernel has completed more connections than there are places.
#[test]
fn a_caller_behind_many_strangers_is_accepted_by_the_next_looks() {
    let mut one = lone();
    let strangers: Vec<_> = (0..3 * MOST / 2).map(|_| connect(&one)).collect();
    let (_stream, _) = challenged(&mut one);
    drop(strangers);
}

#[test]
fn a_departure_is_heard_without_help_and_only_if_it_is_genuine() {
    let (one_address, mut two) = {
        let one = lone();
        (*one.calls.own(), lone())
    };
    let mut one = CallingProcess::sized(&[*two.calls.own()], GEOMETRY, Some(door(Some(KEY))));
    assert_ne!(*one.calls.own(), one_address);
    let until_left = Instant::now() + LIMIT;
    // One with a changed byte, and one for another process.
    two.calls.links.close(LeaveManner::Closed);
    let mut forged = two.calls.links.departure(one.calls.own(), CarrierKind::Stream).get().to_vec();
    forged[24] ^= 2;
    let misled = two.calls.links.departure(&one_address, CarrierKind::Stream).get().to_vec();
    for message in [forged, misled] {
        connect(&one).write_all(&message).unwrap();
    }
    for _ in 0..50 {
        one.attend();
    }
    assert!(one.outcome().is_none());
    // Nothing is heard meanwhile, and the process that leaves does not wait for that.
    let to = (*one.calls.own(), place(&one));
    two.calls.announce_leave_across([to].into_iter(), until_left);
    let address = *two.calls.own();
    drop(two);
    let begun = Instant::now();
    loop {
        one.attend();
        match one.calls.next_outcome() {
            Some((peer, CallOutcome::Ended(LinkEnding::Left, _))) => break assert_eq!(peer, address),
            None => assert!(begun.elapsed() < LIMIT),
            other => panic!("{other:?}"),
        }
    }
    // A process that has left takes no time of others.
    one.calls.announce_leave_across(
        [(address, "127.0.0.1:1".parse().unwrap())].into_iter(),
        Instant::now() + LIMIT,
    );
}
