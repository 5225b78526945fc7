//! The end of a connection while the peer writes into a buffer of this process.

use nemesia_core::port::{Part, PortFault, SharedCopy as _};

use super::*;
use crate::endpoint::Request;

/// A sender that was stopped just before it writes its part of a message into the buffer of a receiver.
struct StoppedCopy {
    receiver: Endpoint,
    sender: Endpoint,
    /// The sender as the receiver knows it, and the receiver as the sender does.
    ranks: [usize; 2],
    receive: Request,
    part: Part,
    buffers: [Vec<u8>; 2],
}

impl StoppedCopy {
    /// Returns `None` if no message is copied by both sides here.
    fn new() -> Option<Self> {
        const LEN: usize = 4 << 20;
        let config =
            || Config::default().assist_bytes(Some(1 << 20)).assist_pieces(4096, 4096).timeout_seconds(1);
        let (mut one, mut two) = (Endpoint::alone(&config()).unwrap(), Endpoint::alone(&config()).unwrap());
        let [from, to] = connected(&mut one, &mut two);
        let (sent, mut received) = (vec![3_u8; LEN], vec![0_u8; LEN]);
        // SAFETY: the buffers outlive the requests, and no other code uses them meanwhile.
        let receive = unsafe {
            let receive = one.irecv(Source::Rank(from), Tag::Exactly(1), received.as_mut_ptr(), LEN).unwrap();
            let _ = two.isend(to, 1, sent.as_ptr(), LEN).unwrap();
            receive
        };
        let assist = loop {
            if one.test(receive).unwrap().is_some() {
                crate::os::testing::skipped("no message is copied by both sides here");
                return None;
            }
            if let Some(assist) = two.engine.port_mut().local_mut().find_assist(to as u32) {
                break assist;
            }
        };
        let part = two.engine.port_mut().local_mut().join_assist(to as u32, assist.end).unwrap();
        let (ranks, buffers) = ([from, to], [sent, received]);
        Some(Self { receiver: one, sender: two, ranks, receive, part, buffers })
    }
}

/// The receive of a message goes on while its sender may write into the buffer, whatever the time limit is; other peers
/// do not wait for that.
#[test]
fn a_buffer_is_not_returned_while_the_former_peer_writes_into_it() {
    let Some(StoppedCopy { mut receiver, mut sender, ranks: [from, to], receive, part, buffers }) =
        StoppedCopy::new()
    else {
        return;
    };
    let mut other = alone();
    let [third, back] = connected(&mut receiver, &mut other);
    let peer = receiver.peer_of(from).unwrap();
    receiver.disconnect(peer).unwrap();
    for round in 0..3 {
        receiver.send(third, round, b"goes on").unwrap();
        let mut buf = [0; 7];
        other.recv(Source::Rank(back), Tag::Exactly(round), &mut buf).unwrap();
        receiver.attend_calls();
        assert!(receiver.test(receive).unwrap().is_none(), "the sender is about to write");
    }
    sender.engine.port_mut().local_mut().end_part(to as u32, part, true);
    let end = loop {
        receiver.attend_calls();
        match receiver.test(receive) {
            Ok(None) => {}
            end => break end,
        }
    };
    assert!(matches!(end, Ok(_) | Err(Error::PeerFailed { .. })), "{end:?}");
    while receiver.stage_of(peer).is_ok() {
        receiver.attend_calls();
    }
    [receiver, sender, other].into_iter().for_each(drop);
    drop(buffers);
}

/// So does the receive from a peer that has violated the protocol, or that a local error has cut off: it lives.
#[test]
fn a_buffer_is_not_returned_while_a_faulty_peer_writes_into_it() {
    for leaves in [false, true] {
        let Some(StoppedCopy { mut receiver, mut sender, ranks: [from, to], receive, part, buffers }) =
            StoppedCopy::new()
        else {
            return;
        };
        let mut other = alone();
        let [third, back] = connected(&mut receiver, &mut other);
        let peer = receiver.peer_of(from).unwrap();
        receiver.fault(from as u32, PortFault::Memory { len: 1 });
        for round in 0..3 {
            receiver.send(third, round, b"goes on").unwrap();
            let mut buf = [0; 7];
            other.recv(Source::Rank(back), Tag::Exactly(round), &mut buf).unwrap();
            receiver.check_liveness();
            assert!(receiver.test(receive).unwrap().is_none(), "the sender is about to write");
        }
        assert!(matches!(receiver.send(from, 1, b"no"), Err(Error::PeerFailed { .. })));
        // An endpoint that is dropped writes no more.
        let sender = if leaves {
            drop(sender);
            None
        } else {
            sender.engine.port_mut().local_mut().end_part(to as u32, part, true);
            Some(sender)
        };
        let end = loop {
            receiver.check_liveness();
            match receiver.test(receive) {
                Ok(None) => {}
                end => break end,
            }
        };
        assert!(matches!(end, Err(Error::PeerFailed { .. })), "{end:?}");
        receiver.disconnect(peer).unwrap();
        assert!(receiver.stage_of(peer).is_err(), "the connection has ended");
        drop((receiver, sender, other, buffers));
    }
}

/// An endpoint that is dropped waits for that as well, for longer than its limit of time.
#[test]
fn an_endpoint_is_not_dropped_while_a_peer_writes_into_a_buffer() {
    let Some(StoppedCopy { receiver, mut sender, ranks: [_, to], part, buffers, .. }) = StoppedCopy::new()
    else {
        return;
    };
    let returned = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            drop(receiver);
            returned.store(true, std::sync::atomic::Ordering::Release);
        });
        thread::sleep(Duration::from_millis(1500));
        let is_early = returned.load(std::sync::atomic::Ordering::Acquire);
        sender.engine.port_mut().local_mut().end_part(to as u32, part, true);
        assert!(!is_early, "the sender was about to write");
    });
    drop(sender);
    drop(buffers);
}
