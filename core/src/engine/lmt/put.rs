//! The protocol by which the sender writes the receiver's memory: paper 1's rendezvous by RDMA write (section 6).
//! The CTS describes the receiver's buffer, the sender puts the requested bytes, and a `Data` packet without bytes
//! says that they have arrived. If the port can do that, the last put reports the end itself (paper 2, the CH3
//! device: RDMA write with immediate), or the packet leaves as soon as all puts have begun, because it arrives
//! behind them. The send completes when the puts have ended. If a put fails, the sender streams the bytes instead.
#![forbid(unsafe_code)]

use super::{Stream, Transfer};
use crate::engine::peer::PeerQueue;
use crate::engine::request::State;
use crate::engine::state::{Accesses, StreamState};
use crate::engine::{Engine, Storage};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::payload::{Gather, Scatter};
use crate::port::{AccessedRanges, Exposure, PacketPieces, PeerFault, PeerId, Port};
use crate::wire::rendezvous::Descriptor;
use crate::wire::{Envelope, Kind};

impl<P: Port, S: Storage> Engine<P, S> {
    /// Receiver: exposes the part of a buffer that is requested from the sender, if it is contiguous and the port can
    /// let the sender write it.
    pub(super) fn expose_for_put(
        port: &mut P,
        from: PeerId,
        (buf, receiver): (&mut Scatter, u64),
        (start, end): (u64, u64),
    ) -> (Descriptor, Option<Exposure>) {
        let mut exposed = (Descriptor::NONE, None);
        if buf.address() != 0 {
            buf.each_range(start as usize, (end - start) as usize, |_, range| {
                exposed = port.expose_for_put(from, range, receiver);
            });
        }
        exposed
    }

    /// Sender: puts the next piece, reports that all bytes were put, or ends the send. Returns `false` if there is
    /// nothing to do now.
    pub(super) fn put_next(&mut self, peer: PeerId, index: u32) -> Result<bool, PeerFault> {
        let operation = self.id(index).to_bits();
        let Self { requests, port, tuning, .. } = self;
        let State::Streaming { from, stream, .. } = &mut requests.get_mut(index).0 else { return Ok(false) };
        let before = stream.accesses;
        if before.failed && !stream.is_reported {
            if before.under_way == 0 {
                // The bytes are streamed from the first one on.
                stream.descriptor = Descriptor::NONE;
            }
            return Ok(before.under_way == 0);
        }
        if before.begun < stream.end {
            let notified = stream.put(port, from, tuning.pull_bytes, operation);
            let Accesses { begun, under_way, failed } = stream.accesses;
            let started = under_way - before.under_way;
            let it = self.peer(peer);
            it.accesses += started;
            if notified {
                // The port has sent the packet of `report_put`.
                it.tally.sent(Kind::Data, 0);
            }
            return Ok(failed || (started, begun) != (0, before.begun));
        }
        let is_done = before.under_way == 0;
        #[cfg(nemesia_injected_fault)]
        let is_done = is_done || injected(InjectedFault::CompleteEarly);
        if !stream.is_reported {
            return if is_done || port.orders_puts(peer) { self.report_put(peer, index) } else { Ok(false) };
        }
        // The bytes belong to this process again when the accesses have ended.
        if !is_done || before.failed {
            return Ok(false);
        }
        let bytes = stream.end - stream.next;
        self.peer(peer).tally.pushed.add(bytes as usize);
        self.dequeue(peer, PeerQueue::Streaming, index);
        Stream::done_send(self, peer, index);
        Ok(true)
    }

    /// Sender: reports that all bytes were put. Returns `false` if there is no space now.
    fn report_put(&mut self, peer: PeerId, index: u32) -> Result<bool, PeerFault> {
        let Self { requests, port, .. } = self;
        let State::Streaming { stream, .. } = &mut requests.get_mut(index).0 else { return Ok(false) };
        let envelope = Envelope { kind: Kind::Data, context: 0, tag: stream.receiver, total: 0 };
        if !port.send(peer, &envelope, PacketPieces::Whole(&[]))? {
            return Ok(false);
        }
        stream.is_reported = true;
        self.peer(peer).tally.sent(Kind::Data, 0);
        Ok(true)
    }
}

impl StreamState {
    /// Begins the puts of the next `most` bytes. Returns whether the last of them reports the end.
    fn put<P: Port>(&mut self, port: &mut P, from: &mut Gather, most: u64, operation: u64) -> bool {
        let (base, first) = (self.next, self.accesses.begun);
        let address = from.buf().address();
        let at = if address == 0 { 0 } else { address + first };
        let end = port.access_shape(self.to).end_of((first, self.end), most, at);
        let notifies = end == self.end && port.notifies(self.to, &self.descriptor);
        let (len, mut accessed) = (end - first, AccessedRanges::NONE);
        from.each_range(first as usize, len as usize, |done, range| {
            let (at, bytes) = (first - base + done as u64, range.len() as u64);
            let is_last = notifies && done as u64 + bytes == len;
            accessed.next(bytes, || match is_last {
                true => port.put_last(self.to, &self.descriptor, at, range, operation),
                false => port.put(self.to, &self.descriptor, at, range, operation),
            });
        });
        self.accesses.record(first, &accessed);
        let notified = notifies && self.accesses.begun == self.end;
        self.is_reported |= notified;
        notified
    }
}
