//! The protocol by which the sender writes the receiver's memory: paper 1's rendezvous by RDMA write (section
//! 6). The CTS describes the receiver's buffer, the sender puts the requested bytes, and a `Data` packet
//! without bytes says that they have arrived. If a put fails, the sender streams the bytes instead.
#![forbid(unsafe_code)]

use super::{Stream, Transfer};
use crate::engine::peer::PeerQueue;
use crate::engine::request::{State, StreamState};
use crate::engine::{Engine, Storage};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::payload::{Gather, Scatter};
use crate::port::{Accessed, Exposure, PacketPieces, PeerFault, PeerId, Port};
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
        if stream.failed {
            if stream.accesses == 0 {
                // The bytes are streamed from the first one on.
                stream.descriptor = Descriptor::NONE;
            }
            return Ok(stream.accesses == 0);
        }
        let before = (stream.accesses, stream.begun);
        if stream.begun < stream.end {
            put(port, peer, stream, from, tuning.pull_bytes.max(1), operation);
            let (started, begun) = (stream.accesses - before.0, stream.begun);
            let failed = stream.failed;
            self.peer(peer).accesses += started;
            return Ok(failed || (started, begun) != (0, before.1));
        }
        let is_done = stream.accesses == 0;
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

/// Begins the accesses for the next `most` bytes.
fn put<P: Port>(
    port: &mut P,
    peer: PeerId,
    stream: &mut StreamState,
    from: &mut Gather,
    most: u64,
    operation: u64,
) {
    let (base, first) = (stream.next, stream.begun);
    let len = most.min(stream.end - first);
    let mut last = Accessed::Done;
    from.each_range(first as usize, len as usize, |done, range| {
        if !matches!(last, Accessed::Done | Accessed::Later) {
            return;
        }
        let (at, len) = (first + done as u64, range.len() as u64);
        last = port.put(peer, &stream.descriptor, at - base, range, operation);
        stream.accesses += u32::from(last == Accessed::Later);
        if matches!(last, Accessed::Done | Accessed::Later) {
            stream.begun = at + len;
        }
    });
    stream.failed |= matches!(last, Accessed::Failed(_));
}
