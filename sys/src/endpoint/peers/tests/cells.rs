//! Messages in cells of a process that disconnects.

use super::*;

/// The bytes of a message that travels in a cell.
const IN_CELL: usize = 4001;

/// Sends a message in a cell, whose bytes are all the same. Both sides make progress.
fn send_in_cell(from: &mut Endpoint, to: &mut Endpoint, rank: usize, byte: u8) {
    while !from.inject(rank, byte.into(), &[byte; IN_CELL]).unwrap() {
        from.progress();
        to.progress();
    }
}

/// Receives a message of [`send_in_cell`]. `None` if its sender has taken it back.
fn receive_in_cell(endpoint: &mut Endpoint, from: usize, byte: u8) -> Option<()> {
    let mut buf = [0; IN_CELL];
    match endpoint.recv(Source::Rank(from), Tag::Exactly(byte.into()), &mut buf) {
        Ok(_) => {
            assert!(buf.iter().all(|it| *it == byte), "{byte}: {}", buf[0]);
            Some(())
        }
        Err(Error::PeerFailed { failure: Failure::Finished, .. }) => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// Three messages lie in cells of a sender, which disconnects and sends others.
fn disconnect_from_three(others: usize) -> [Option<()>; 3] {
    let (mut one, mut two, mut three) = (alone(), alone(), alone());
    let [from, to] = connected(&mut one, &mut two);
    let [source, other] = connected(&mut three, &mut two);
    for byte in 1..=3 {
        assert!(two.inject(to, byte.into(), &[byte; IN_CELL]).unwrap(), "there is credit");
    }
    let peer = two.peer_of(to).unwrap();
    two.disconnect(peer).unwrap();
    for byte in (4..=20).cycle().take(others) {
        send_in_cell(&mut two, &mut three, other, byte);
    }
    let received = [1, 2, 3].map(|byte| receive_in_cell(&mut one, from, byte));
    for byte in (4..=20).cycle().take(others) {
        assert_eq!(receive_in_cell(&mut three, source, byte), Some(()));
    }
    // The number and the segments of the former peer are free again.
    while two.engine.port_mut().local_mut().is_open(to as u32) {
        two.progress();
        two.attend_calls();
    }
    let again = two.connect(one.address().unwrap()).unwrap();
    two.rank_of(again).unwrap();
    while !matches!(two.stage_of(again), Ok(PeerStage::Connected(_))) {
        two.progress();
        two.attend_calls();
        one.progress();
        one.attend_calls();
    }
    [one, two, three].into_iter().for_each(|it| it.close().unwrap());
    received
}

#[test]
fn messages_that_a_peer_has_sent_before_it_disconnected_are_received_whole() {
    assert_eq!(disconnect_from_three(8), [Some(()); 3]);
}

/// A sender that needs its cells takes them back from the peers that it has left. These see its end, and nothing of the
/// messages for others.
#[test]
fn a_message_whose_cell_was_taken_back_is_never_received() {
    let mut pinned = Vec::new();
    let (mut one, mut two) = (alone(), alone());
    let [from, to] = connected(&mut one, &mut two);
    for byte in 1..=3 {
        assert!(two.inject(to, byte.into(), &[byte; IN_CELL]).unwrap(), "there is credit");
    }
    let peer = two.peer_of(to).unwrap();
    two.disconnect(peer).unwrap();
    // Until the cells are used up.
    while two.engine.port_mut().local_mut().has_left_cells(to as u32) {
        let mut next = alone();
        let [source, rank] = connected(&mut next, &mut two);
        let mut count = 0_u8;
        while count < 8 && two.inject(rank, 200 + u64::from(count), &[200 + count; IN_CELL]).unwrap() {
            count += 1;
        }
        pinned.push((next, source, count));
    }
    for byte in 1..=3 {
        assert_eq!(receive_in_cell(&mut one, from, byte), None);
    }
    for (next, source, count) in &mut pinned {
        for byte in 0..*count {
            assert_eq!(receive_in_cell(next, *source, 200 + byte), Some(()));
        }
    }
    pinned.into_iter().for_each(|(next, ..)| next.close().unwrap());
    one.close().unwrap();
    two.close().unwrap();
}

/// The receiver of thousands of messages makes no progress. Another one, with which the sender connects afterwards,
/// receives messages of all sizes.
#[test]
fn a_peer_that_makes_no_progress_holds_no_message_to_another_one_up() {
    const COUNT: usize = 5000;
    let bytes: Vec<u8> = (0..100_000).map(|at| at as u8).collect();
    let (mut silent, mut two, mut three) = (alone(), alone(), alone());
    let [_, to] = connected(&mut silent, &mut two);
    // SAFETY: the bytes live longer than the endpoint, and are not changed.
    let flood = |_| unsafe { two.isend(to, 1, bytes.as_ptr(), 256) }.unwrap();
    (0..COUNT).map(flood).for_each(|_| ());
    let [from, other] = connected(&mut three, &mut two);
    for len in [8, 256, IN_CELL, bytes.len()] {
        // SAFETY: as above.
        let request = unsafe { two.isend(other, 2, bytes.as_ptr(), len) }.unwrap();
        let mut buf = vec![0; len];
        let receiving = thread::scope(|scope| {
            let receiver = scope.spawn(|| three.recv(Source::Rank(from), Tag::Exactly(2), &mut buf));
            two.wait(request).unwrap();
            receiver.join().unwrap()
        });
        assert_eq!(receiving.unwrap().len, len);
        assert_eq!(buf, bytes[..len]);
    }
    // The first one has lost nothing.
    let receiver = thread::spawn(move || {
        let mut buf = [0; 256];
        for _ in 0..COUNT {
            silent.recv(Source::Any, Tag::Exactly(1), &mut buf).unwrap();
        }
        silent.close().unwrap();
    });
    while !receiver.is_finished() {
        two.progress();
    }
    receiver.join().unwrap();
    two.close().unwrap();
    three.close().unwrap();
}
