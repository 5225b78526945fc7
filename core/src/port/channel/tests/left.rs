//! Peers that announce that they leave.

use core::time::Duration;
use std::vec;
use std::vec::Vec;

use super::ChannelEvent;
use super::script::{channel, enter, hello, packet, settle};
use crate::flow::posted::{FIRST, LEAST, Stamp};
use crate::payload::SendBuf;
use crate::port::memory::{Event, LostError};
use crate::port::{
    Accessed, CompletedAccess, PacketPieces, PacketPort as _, PeerFault, Polled, PortFault, RemoteAccess as _,
};
use crate::wire::channel::{CloseReason, Header, Numbered, PacketKind};
use crate::wire::region::RegionBytes;
use crate::wire::rendezvous::Descriptor;
use crate::wire::{Envelope, Kind};

const ENVELOPE: Envelope = Envelope { kind: Kind::Eager, context: 0, tag: 0, total: 4 };

/// Returns a close with this number.
fn close(number: u32, reason: CloseReason, payload: &[u8]) -> Vec<u8> {
    let kind = PacketKind::Close(reason);
    let packet = Some(Numbered { kind, context: 0, tag: 0, sequence: FIRST.wrapping_add(number) });
    let stamp = Stamp { posted: FIRST.wrapping_add(LEAST), target: LEAST };
    let mut bytes = Header { packet, stamp, units: 0, waited: false, slots: 0 }.encode().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

fn fault(polled: &Polled<super::super::Token>) -> Option<PortFault> {
    match polled {
        Polled::Fault(PeerFault { peer: 0, fault }) => Some(*fault),
        _ => None,
    }
}

#[test]
fn a_peer_that_leaves_is_reported_after_its_last_message_and_with_its_reason() {
    for reason in [CloseReason::Finished, CloseReason::Dropped] {
        let mut channel = channel(2, 2, 64);
        let [first, second] = [0, 1].map(|rail| enter(&mut channel, &hello(0, rail)));
        // The close overtakes the last message, on the other rail.
        channel.port_mut().arrive(second, &close(1, reason, &[]));
        assert!(matches!(channel.poll(), Polled::Idle));
        channel.port_mut().arrive(first, &packet(0, 0, b"last"));
        let Polled::Packet(arrival) = channel.poll() else { panic!("no packet") };
        channel.release(arrival);
        assert_eq!(fault(&channel.poll()), Some(PortFault::Left(reason)));
        assert_eq!(channel.send(0, &ENVELOPE, PacketPieces::Whole(b"more")), Ok(false));
        // Nothing comes after a close.
        channel.port_mut().arrive(first, &packet(2, 0, b"more"));
        assert!(matches!(channel.poll(), Polled::Idle));
        channel.close(0);
        assert_eq!(settle(&mut channel).len(), 2);
        assert_eq!(channel.buffers.pool().spare(), 64, "no buffer is lost");
    }
}

#[test]
fn the_reason_of_a_peer_counts_even_if_the_end_of_its_connection_is_seen_first() {
    let mut channel = channel(2, 1, 64);
    let first = enter(&mut channel, &hello(0, 0));
    channel.port_mut().arrive(first, &packet(0, 0, b"last"));
    channel.port_mut().arrive(first, &close(1, CloseReason::Finished, &[]));
    channel.port_mut().events.push_back(Event::Lost { connection: first, error: LostError::Closed });
    channel.port_mut().flush(first);
    assert_eq!(channel.poll_event(Duration::ZERO), None);
    let Polled::Packet(arrival) = channel.poll() else { panic!("no packet") };
    channel.release(arrival);
    assert_eq!(fault(&channel.poll()), Some(PortFault::Left(CloseReason::Finished)));
}

#[test]
fn a_close_with_a_payload_violates_the_protocol() {
    let mut channel = channel(2, 1, 64);
    let first = enter(&mut channel, &hello(0, 0));
    channel.port_mut().arrive(first, &close(0, CloseReason::Finished, b"x"));
    assert_eq!(fault(&channel.poll()), Some(PortFault::Header));
}

#[test]
fn a_close_needs_no_more_than_the_reserved_credit() {
    let mut channel = channel(2, 1, 64);
    enter(&mut channel, &hello(0, 0));
    while channel.send(0, &ENVELOPE, PacketPieces::Whole(b"full")).unwrap() {}
    let before = channel.port().sent.len();
    assert_eq!(channel.send_close(0, CloseReason::Finished), Ok(true));
    assert!(channel.is_sending(0), "the close completes, and shows that the packets before it have arrived");
    let (_, _, bytes) = channel.port().sent.last().unwrap();
    let header = Header::decode(bytes.first_chunk().unwrap()).unwrap();
    assert_eq!(header.packet.unwrap().kind, PacketKind::Close(CloseReason::Finished));
    assert_eq!(channel.port().sent.len(), before + 1);
    assert_eq!(channel.send_close(0, CloseReason::Finished), Ok(false), "no credit is left");
    // To a peer without a connection there is nothing to say.
    channel.close(0);
    assert_eq!(channel.send_close(0, CloseReason::Finished), Ok(true));
    assert_eq!(settle(&mut channel), [ChannelEvent::Closed { peer: 0, rail: 0 }]);
}

/// The completions of a send queue and of a receive queue are in no order.
#[test]
fn a_peer_that_leaves_is_reported_after_the_ends_of_all_writes_to_it() {
    let mut channel = channel(2, 1, 64);
    let first = enter(&mut channel, &hello(0, 0));
    let bytes = vec![7; 64].leak();
    // SAFETY: the bytes are never freed, and no reference to them is left.
    #[allow(unsafe_code, reason = "the memory of a message is lent")]
    let message = unsafe { SendBuf::from_raw(bytes.as_ptr(), bytes.len()) };
    let range = message.range_of(0, 64).unwrap();
    let region = Descriptor::of_region(&RegionBytes { address: 4096, len: 64, key: 1, notice: None });
    assert_eq!(channel.put(0, &region, 0, range, 5), Accessed::Later);
    channel.port_mut().arrive(first, &close(0, CloseReason::Finished, &[]));
    channel.port_mut().done.rotate_left(1);
    assert_eq!(fault(&channel.poll()), None);
    assert!(channel.port().done.is_empty(), "both completions were seen");
    assert_eq!(fault(&channel.poll()), None, "the engine has not taken the end of the write");
    assert_eq!(channel.poll_access(), Some(CompletedAccess { operation: 5, result: Ok(()) }));
    assert_eq!(fault(&channel.poll()), Some(PortFault::Left(CloseReason::Finished)));
}
