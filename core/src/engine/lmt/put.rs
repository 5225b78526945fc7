//! The protocol by which the sender writes the receiver's memory: paper 1's rendezvous by RDMA write (section
//! 6). The CTS describes the receiver's buffer, the sender puts the requested bytes, and a `Data` packet
//! without bytes says that they have arrived. If a put fails, the sender streams the bytes instead.
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
        buf: &mut Scatter,
        (start, end): (u64, u64),
    ) -> (Descriptor, Option<Exposure>) {
        let mut exposed = (Descriptor::NONE, None);
        if buf.address() != 0 {
            buf.each_range(start as usize, (end - start) as usize, |_, range| {
                exposed = port.expose_for_put(from, range);
            });
        }
        exposed
    }

    /// Sender: puts the next piece, or reports that all bytes were put. Returns `false` if there is nothing to do now.
    pub(super) fn put_next(&mut self, peer: PeerId, index: u32) -> Result<bool, PeerFault> {
        let operation = self.id(index).to_bits();
        let Self { requests, port, tuning, .. } = self;
        let State::Streaming { from, stream, .. } = &mut requests.get_mut(index).0 else { return Ok(false) };
        let before = stream.accesses;
        if before.failed {
            if before.under_way == 0 {
                // The bytes are streamed from the first one on.
                stream.descriptor = Descriptor::NONE;
            }
            return Ok(before.under_way == 0);
        }
        if before.begun < stream.end {
            stream.put(port, from, tuning.pull_bytes.max(1), operation);
            let Accesses { begun, under_way, failed } = stream.accesses;
            let started = under_way - before.under_way;
            self.peer(peer).accesses += started;
            return Ok(failed || (started, begun) != (0, before.begun));
        }
        let is_done = before.under_way == 0;
        #[cfg(nemesia_injected_fault)]
        let is_done = is_done || injected(InjectedFault::CompleteEarly);
        if !is_done {
            return Ok(false);
        }
        let envelope = Envelope { kind: Kind::Data, context: 0, tag: stream.receiver, total: 0 };
        let bytes = stream.end - stream.next;
        if !self.port.send(peer, &envelope, PacketPieces::Whole(&[]))? {
            return Ok(false);
        }
        let tally = &mut self.peer(peer).tally;
        tally.sent(Kind::Data, 0);
        tally.pushed.add(bytes as usize);
        self.dequeue(peer, PeerQueue::Streaming, index);
        Stream::done_send(self, peer, index);
        Ok(true)
    }
}

impl StreamState {
    /// Begins the puts of the next `most` bytes.
    fn put<P: Port>(&mut self, port: &mut P, from: &mut Gather, most: u64, operation: u64) {
        let (base, first) = (self.next, self.accesses.begun);
        let len = most.min(self.end - first);
        let mut accessed = AccessedRanges::NONE;
        from.each_range(first as usize, len as usize, |done, range| {
            let at = first - base + done as u64;
            accessed.next(range.len() as u64, || port.put(self.to, &self.descriptor, at, range, operation));
        });
        self.accesses.record(first, &accessed);
    }
}
