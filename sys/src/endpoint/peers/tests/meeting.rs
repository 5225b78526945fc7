//! Groups that meet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nemesia_core::payload::SendBuf;
use nemesia_core::wire::meeting::{MOST_MEETING_BYTES, MeetingKind, MeetingMessage};

use super::super::members::decoded;
use super::*;
use crate::bootstrap::Exchange as _;
use crate::endpoint::Mode;
use crate::endpoint::reserved::BARRIER_CONTEXT;
use crate::{Meeting, PeerGroup};

/// Opens endpoints in threads of their own, each with the group of all. Returns the address of the first one.
fn group_of(
    size: usize,
    work: impl Fn(Endpoint, PeerGroup) + Clone + Send + 'static,
) -> (PeerAddress, Vec<thread::JoinHandle<()>>) {
    let mut endpoints: Vec<_> = (0..size).map(|_| alone()).collect();
    let addresses: Vec<_> = endpoints.iter().map(|it| *it.address().unwrap()).collect();
    let threads = endpoints.drain(..).map(|mut endpoint| {
        let (addresses, work) = (addresses.clone(), work.clone());
        thread::spawn(move || {
            let group = endpoint.group(&addresses).unwrap();
            work(endpoint, group);
        })
    });
    (addresses[0], threads.collect())
}

fn join(threads: Vec<thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Sends the own place to all processes of a group, and receives theirs.
fn greet_all(endpoint: &mut Endpoint, all: &PeerGroup) {
    let own = all.place().unwrap() as u64;
    let mut numbers = Vec::new();
    for (place, peer) in (0..all.size()).filter_map(|place| Some((place as u64, all.peer(place)?))) {
        let number = endpoint.rank_of(peer).unwrap();
        endpoint.send(number, own, &own.to_le_bytes()).unwrap();
        numbers.push((place, number));
    }
    for (place, number) in numbers {
        let mut buf = [0; 8];
        endpoint.recv(Source::Rank(number), Tag::Exactly(place), &mut buf).unwrap();
        assert_eq!(u64::from_le_bytes(buf), place);
    }
}

#[test]
fn two_groups_meet_by_one_address_and_all_of_their_processes_know_each_other() {
    let (address, accepting) = group_of(3, |mut endpoint, group| {
        for _ in 0..2 {
            let other = endpoint.meet(&group, Meeting::Accept, 5, LIMIT).unwrap();
            assert_eq!((other.size(), other.place()), (4, None));
            greet_all(&mut endpoint, &other.followed_by(&group));
        }
        endpoint.close().unwrap();
    });
    let calling = move || {
        let (_, calling) = group_of(4, move |mut endpoint, group| {
            let other = endpoint.meet(&group, Meeting::Call(address), 5, LIMIT).unwrap();
            let all = group.followed_by(&other);
            assert_eq!((all.size(), all.place()), (7, group.place()));
            assert_eq!(all.addresses()[4], address);
            greet_all(&mut endpoint, &all);
            endpoint.close().unwrap();
        });
        calling
    };
    // The second one calls while the first one meets.
    let calling = [calling(), calling()];
    join(accepting);
    calling.into_iter().for_each(join);
}

#[test]
fn a_group_that_nobody_calls_gives_up_and_a_call_for_which_nobody_waits_is_withdrawn() {
    const SHORT: Option<Duration> = Some(Duration::from_millis(50));
    let is_withdrawn = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_withdrawn);
    let (address, accepting) = group_of(2, move |mut endpoint, group| {
        // Members hear of it; only the leader knows the reason.
        let gave_up = endpoint.meet(&group, Meeting::Accept, 1, SHORT).unwrap_err();
        match group.place() {
            Some(0) => assert!(matches!(gave_up, Error::Timeout(_)), "{gave_up:?}"),
            _ => assert!(matches!(gave_up, Error::Peer { .. }), "{gave_up:?}"),
        }
        while !told.load(Ordering::Relaxed) {
            endpoint.progress();
        }
        // The call of the first caller has come and was withdrawn, before that of the second one.
        let met = endpoint.meet(&group, Meeting::Accept, 2, LIMIT).unwrap();
        greet_all(&mut endpoint, &met.followed_by(&group));
        endpoint.close().unwrap();
    });
    let (mut first, mut second) = (alone(), alone());
    let own = first.group(&[*first.address().unwrap()]).unwrap();
    let peer = first.connect(&address).unwrap();
    first.wait_connected(peer, LIMIT).unwrap();
    let gave_up = first.meet(&own, Meeting::Call(address), 2, Some(Duration::ZERO)).unwrap_err();
    assert!(matches!(gave_up, Error::Timeout(_)), "{gave_up:?}");
    is_withdrawn.store(true, Ordering::Relaxed);
    let own = second.group(&[*second.address().unwrap()]).unwrap();
    let met = second.meet(&own, Meeting::Call(address), 2, LIMIT).unwrap();
    greet_all(&mut second, &own.followed_by(&met));
    first.close().unwrap();
    second.close().unwrap();
    join(accepting);
}

#[test]
fn groups_that_overlap_and_lists_that_are_wrong_are_refused() {
    let (mut one, mut two) = (alone(), alone());
    let addresses = [*one.address().unwrap(), *two.address().unwrap()];
    assert!(matches!(one.group(&[addresses[1], addresses[1]]), Err(Error::Members)));
    assert!(matches!(one.group(&[PeerAddress::from_bytes([1; 64])]), Err(Error::Address { .. })));
    let other = one.group(&addresses[1..]).unwrap();
    assert!(
        matches!(one.meet(&other, Meeting::Accept, 1, LIMIT), Err(Error::Members)),
        "not of this process"
    );
    let accepting = one.group(&addresses[..1]).unwrap();
    // The caller is in order, but has a process of the other group in its own.
    let caller = thread::spawn(move || {
        let calling = two.group(&[addresses[1], addresses[0]]).unwrap();
        let refused = two.meet(&calling, Meeting::Call(addresses[0]), 1, LIMIT).unwrap_err();
        assert!(matches!(refused, Error::Peer { .. }), "{refused:?}");
        let calling = two.group(&addresses[1..]).unwrap();
        two.meet(&calling, Meeting::Call(addresses[0]), 1, LIMIT).unwrap();
        two.close().unwrap();
    });
    // The next caller is the same process, with another group.
    let met = one.meet(&accepting, Meeting::Accept, 1, LIMIT).unwrap();
    assert_eq!(met.addresses(), &addresses[1..]);
    caller.join().unwrap();
    one.close().unwrap();
}

/// A stranger sends messages as those of a meeting: noise, the beginning of a list, a list of others, and a message
/// that it never completes.
#[test]
fn strangers_that_send_anything_keep_no_group_from_meeting() {
    const TAG: u64 = 1 << 32 | 9;
    let write = |from: &mut Endpoint, to, bytes: &[u8]| {
        // SAFETY: the bytes are borrowed until the call returns, which waits for the end of the send.
        let buf = unsafe { SendBuf::from_raw(bytes.as_ptr(), bytes.len()) };
        from.send_slowly(to, BARRIER_CONTEXT, TAG, buf, Mode::Queued).unwrap();
    };
    let mut accepting = alone();
    let address = *accepting.address().unwrap();
    let (ready, is_ready) = std::sync::mpsc::channel();
    let stranger = thread::spawn(move || {
        let mut stranger = alone();
        let peer = stranger.connect(&address).unwrap();
        let to = stranger.wait_connected(peer, LIMIT).unwrap();
        let mut bytes = [0; MOST_MEETING_BYTES];
        let others = address.bytes().repeat(2);
        for (total, first, addresses) in
            [(2, 0, &others[..]), (2, 1, &others[64..]), (60_000, 0, &others[..])]
        {
            let call = MeetingMessage { kind: MeetingKind::Call, token: 3, total, first, addresses };
            let len = call.encode(&mut bytes);
            write(&mut stranger, to, &bytes[..len]);
        }
        for len in [0, 1, 24, 88, MOST_MEETING_BYTES] {
            write(&mut stranger, to, &vec![0xee; len]);
        }
        ready.send(()).unwrap();
        // It dies with a large message under way.
        let large = vec![0; 1 << 20];
        // SAFETY: the buffer lives until the endpoint is dropped.
        let buf = unsafe { SendBuf::from_raw(large.as_ptr(), large.len()) };
        let _ = stranger.start(to, BARRIER_CONTEXT, TAG, buf, Mode::Standard).unwrap();
        stranger.progress();
        drop(stranger);
        drop(large);
    });
    while is_ready.try_recv().is_err() {
        accepting.progress();
    }
    let (_, calling) = group_of(2, move |mut endpoint, group| {
        let other = endpoint.meet(&group, Meeting::Call(address), 9, LIMIT).unwrap();
        greet_all(&mut endpoint, &group.followed_by(&other));
        endpoint.close().unwrap();
    });
    let own = accepting.group(&[address]).unwrap();
    let met = accepting.meet(&own, Meeting::Accept, 9, LIMIT).unwrap();
    greet_all(&mut accepting, &met.followed_by(&own));
    accepting.close().unwrap();
    join(calling);
    stranger.join().unwrap();
}

/// The list of a group travels in several messages.
#[test]
fn a_large_group_is_met_whole() {
    let mut one = alone();
    let address = *one.address().unwrap();
    let caller = thread::spawn(move || {
        let mut two = alone();
        // Processes that do not exist, which are not spoken to.
        let own = *two.address().unwrap();
        let others = (0..200_u8).map(|number| {
            let mut bytes = *own.bytes();
            // In the name of its socket.
            bytes[16] ^= 1 + number;
            PeerAddress::from_bytes(bytes)
        });
        let addresses: Vec<_> = std::iter::once(own).chain(others).collect();
        let group = two.group(&addresses).unwrap();
        two.meet(&group, Meeting::Call(address), 1, LIMIT).unwrap();
        two.close().unwrap();
        addresses
    });
    let own = one.group(&[address]).unwrap();
    let met = one.meet(&own, Meeting::Accept, 1, LIMIT).unwrap();
    assert_eq!(met.addresses(), caller.join().unwrap());
    one.close().unwrap();
}

#[test]
fn the_processes_of_a_launcher_become_a_group() {
    let threads = crate::bootstrap::threads(3).into_iter().map(|mut exchange| {
        thread::spawn(move || {
            let mut endpoint = alone();
            let group = endpoint.group_with(&mut exchange).unwrap();
            assert_eq!((group.size(), group.place()), (3, Some(exchange.rank())));
            greet_all(&mut endpoint, &group);
            endpoint.close().unwrap();
        })
    });
    join(threads.collect::<Vec<_>>());
}

#[test]
fn what_a_process_has_put_is_checked() {
    assert_eq!(decoded::<2>("0aFf"), Some([10, 255]));
    for wrong in ["", "0a", "0aff00", "0a f", "+aff", "0afé"] {
        assert_eq!(decoded::<2>(wrong), None, "{wrong}");
    }
}
