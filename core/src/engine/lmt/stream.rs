//! The protocol that moves data in packets. The cells are the double buffers of the paper: the sender copies
//! in while the receiver copies out (section 3.2). It needs no kernel support.
#![forbid(unsafe_code)]

use super::Transfer;
use crate::engine::peer::PeerQueue;
use crate::engine::request::{self, State};
use crate::engine::state::{Incoming, StreamState, TransferPhase};
use crate::engine::unload::TAKEN_BACK;
use crate::engine::{Engine, Storage};
use crate::payload::{BorrowedGather, Gather};
use crate::port::{Arrival, PacketPieces, Part, PeerFault, PeerId, Port, PortFault};
use crate::wire::rendezvous::{Cts, Descriptor};
use crate::wire::{Envelope, Kind};

/// The protocol.
#[derive(Debug)]
pub(in crate::engine) enum Stream {}

/// Least bytes that are copied at once, if a packet has room for them. A message of a few packets is split into smaller
/// ones, so that the receiver copies out the first while the sender copies in the second. Below this, each further
/// packet costs more than that saves.
const PIECE_BYTES: u64 = 32 << 10;

impl<P: Port, S: Storage> Transfer<P, S> for Stream {
    fn start_receive(engine: &mut Engine<P, S>, from: PeerId, index: u32) {
        engine.start_answer(from, index);
    }

    fn start_send(engine: &mut Engine<P, S>, to: PeerId, index: u32, cts: &Cts) {
        let State::Offered { message, .. } = &engine.requests.get(index).0 else { return };
        let message = message.alias();
        engine.dequeue(to, PeerQueue::Offered, index);
        let is_accessible = engine.port.is_accessible(to, &cts.descriptor);
        let descriptor = if is_accessible { cts.descriptor } else { Descriptor::NONE };
        let requested = Part { start: cts.start, end: cts.end };
        let stream = StreamState::new((to, cts.receiver), requested, descriptor);
        let (tag, from) = (message.tag, Gather::new(message.buf));
        engine.requests.get_mut(index).0 = State::Streaming { tag, from, stream };
        engine.enqueue(to, PeerQueue::Streaming, index);
    }

    fn progress(engine: &mut Engine<P, S>, peer: PeerId, index: u32) -> Result<bool, PeerFault> {
        let Engine { requests, port, .. } = engine;
        let State::Streaming { from, stream, .. } = &mut requests.get_mut(index).0 else {
            return Ok(false);
        };
        if !stream.descriptor.is_none() {
            return engine.put_next(peer, index);
        }
        let limit = packet_len(port, stream.next, stream.end);
        let envelope = Envelope { kind: Kind::Data, context: 0, tag: stream.receiver, total: limit as u64 };
        if !send_part(port, peer, &envelope, from, stream.next as usize)? {
            return Ok(false);
        }
        stream.next += limit as u64;
        let done = stream.next >= stream.end;
        engine.peer(peer).tally.sent(Kind::Data, limit);
        if done {
            engine.dequeue(peer, PeerQueue::Streaming, index);
            Self::done_send(engine, peer, index);
        }
        Ok(true)
    }

    fn handle_cookie(
        engine: &mut Engine<P, S>,
        index: u32,
        arrival: &Arrival<P::Token>,
    ) -> Result<(), PortFault> {
        let fault = Err(PortFault::Protocol { kind: Kind::Data });
        let Engine { requests, port, tuning, .. } = engine;
        let State::Receiving { incoming, buf } = &mut requests.get_mut(index).0 else { return fault };
        let Incoming { from, rts, left, phase, .. } = *incoming;
        let fits = (1..=incoming.wanted()).contains(&(arrival.len as u64));
        let is_put = arrival.len == 0 && incoming.exposure.is_some();
        if phase != TransferPhase::Stream || from != arrival.peer || !(fits || is_put) {
            return fault;
        }
        if is_put {
            // The sender has put all bytes that are still missing.
            incoming.left.start = left.end;
        }
        let (at, len) = (left.start as usize, arrival.len);
        // Cells are reused and stay in the caches. The destination of a large message does not fit there.
        let non_temporal = rts.total >= tuning.non_temporal_bytes;
        let mut whole = true;
        match buf.whole(at, len) {
            Some(to) if non_temporal => whole = port.read_non_temporal(arrival, 0, to),
            Some(to) => whole = port.read(arrival, 0, to),
            None => buf.each(at, len, |done, to| whole &= port.read(arrival, done, to)),
        }
        if !whole {
            return Err(TAKEN_BACK);
        }
        incoming.left.start += arrival.len as u64;
        if incoming.wanted() == 0 {
            engine.dequeue(from, PeerQueue::Incoming, index);
            Self::done_receive(engine, index);
        }
        Ok(())
    }

    fn done_receive(engine: &mut Engine<P, S>, index: u32) {
        let State::Receiving { incoming, buf } = &engine.requests.get(index).0 else { return };
        let Incoming { from, tag, rts, measured, .. } = *incoming;
        let outcome =
            request::with_immediate(request::outcome(from, tag, rts.total, buf.len()), rts.immediate);
        let bytes = rts.total.min(buf.len() as u64) as usize;
        engine.has_moved(from, measured, bytes as u64);
        if !rts.is_unasked {
            engine.peer(from).tally.streamed.add(bytes);
        }
        engine.complete(index, outcome);
    }
}

/// Returns the bytes of the next packet of a stream that has come to byte `next` of `end`: the rest is sent in equal
/// parts, as few as [`PIECE_BYTES`] and the packets allow.
fn packet_len<P: Port>(port: &P, next: u64, end: u64) -> usize {
    let left = end.saturating_sub(next);
    let parts = left.div_ceil(PIECE_BYTES).max(1);
    let part = left.div_ceil(parts).next_multiple_of(64);
    port.packet_bytes().min(part.min(left) as usize)
}

/// Sends one packet of a message. The packet holds the bytes from `at` on; its envelope gives their number.
pub(in crate::engine) fn send_part<P: Port>(
    port: &mut P,
    to: PeerId,
    envelope: &Envelope,
    from: &mut Gather,
    at: usize,
) -> Result<bool, PeerFault> {
    let len = envelope.total as usize;
    match from.buf().whole(at, len) {
        Some(bytes) => port.send(to, envelope, PacketPieces::Whole(bytes)),
        None => port.send(to, envelope, PacketPieces::List(BorrowedGather::new(from), at, len)),
    }
}
