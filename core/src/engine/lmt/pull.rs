//! The protocol with one copy: the receiver reads the sender's memory piece by piece and then sends FIN. This
//! is paper 1's zero-copy design with the kernel's cross-memory read instead of the RDMA read. From a
//! configurable size on, an otherwise idle sender copies a part ([`crate::shared::assist`]).
#![forbid(unsafe_code)]

use super::{Stream, Transfer};
use crate::engine::peer::{Assist, PeerQueue};
use crate::engine::request::{Incoming, SendMessage, State, TransferPhase};
use crate::engine::{Engine, Storage, Tuning};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::payload::Scatter;
use crate::port::{AssistedCopy, MessagePort, NextChunk, Part, PeerFault, PeerId, Pulled};

/// The protocol.
#[derive(Debug)]
pub(in crate::engine) enum Pull {}

/// Returns whether the message is large enough for a sender-assisted copy, and contiguous. Its sender then
/// looks for a shared copy.
pub(in crate::engine) fn may_be_assisted(message: &SendMessage, assist_bytes: u64) -> bool {
    message.buf.len() as u64 >= assist_bytes && message.buf.address() != 0
}

/// Returns whether the receiver's buffer is contiguous, or consists of few enough runs. Otherwise the bytes
/// are streamed.
pub(in crate::engine) fn is_worth_pulling(incoming: &Incoming, buf: &mut Scatter, run_bytes: u64) -> bool {
    let wanted = incoming.wanted();
    if buf.address() != 0 {
        return true;
    }
    let runs = buf.runs(incoming.left.start as usize, wanted as usize) as u64;
    runs.saturating_mul(run_bytes) <= wanted
}

impl<P: MessagePort, S: Storage> Transfer<P, S> for Pull {
    fn start_receive(engine: &mut Engine<P, S>, from: PeerId, index: u32) {
        engine.enqueue(from, PeerQueue::Pulling, index);
        engine.work_for(from);
    }

    /// Reads the next piece of the first message in the queue. Reading one message at a time has the same
    /// throughput as reading all alternately, and completes the first one earlier.
    fn progress(engine: &mut Engine<P, S>, peer: PeerId, index: u32) -> Result<bool, PeerFault> {
        let Engine { requests, port, tuning, .. } = engine;
        let State::Receiving { incoming, buf } = &mut requests.get_mut(index).0 else { return Ok(false) };
        match next_chunk(port, incoming, buf, tuning) {
            NextChunk::Wait => return Ok(false),
            NextChunk::Copy(part) => copy(port, incoming, buf, part),
            NextChunk::Done if matches!(incoming.phase, TransferPhase::Broken | TransferPhase::Lost) => {
                // The sender streams the rest.
                engine.dequeue(peer, PeerQueue::Pulling, index);
                engine.peer(peer).tally.fallbacks += 1;
                if let Some(selection) = engine.selections.of(peer) {
                    selection.spoil();
                }
                Stream::start_receive(engine, peer, index);
                return Ok(true);
            }
            NextChunk::Done => {}
        }
        if incoming.wanted() == 0 {
            engine.dequeue(peer, PeerQueue::Pulling, index);
            Self::done_receive(engine, index);
        }
        Ok(true)
    }

    fn done_receive(engine: &mut Engine<P, S>, index: u32) {
        let State::Receiving { incoming, buf } = &engine.requests.get(index).0 else { return };
        let Incoming { from, rts, phase, measured, .. } = *incoming;
        let bytes = rts.total.min(buf.len() as u64) as usize;
        engine.has_moved(from, measured, bytes as u64);
        let tally = &mut engine.peer(from).tally;
        let by = if phase == TransferPhase::Pull { &mut tally.pulled } else { &mut tally.assisted };
        by.add(bytes);
        engine.finish(index);
    }
}

fn next_chunk<P: MessagePort>(
    port: &mut P,
    incoming: &mut Incoming,
    buf: &mut Scatter,
    tuning: &Tuning,
) -> NextChunk {
    let Incoming { from, rts, left, .. } = *incoming;
    if incoming.phase == TransferPhase::Pull && incoming.wanted() >= tuning.assist_bytes && buf.address() != 0
    {
        let assisted_copy =
            AssistedCopy { request: rts.sender, address: buf.address(), start: left.start, end: left.end };
        if port.open_assist(from, &assisted_copy) {
            incoming.phase = TransferPhase::Assist;
        }
    }
    match incoming.phase {
        TransferPhase::Pull => {
            let end = left.start.saturating_add(tuning.pull_bytes.max(1));
            NextChunk::Copy(Part { start: left.start, end: left.end.min(end) })
        }
        TransferPhase::Assist => {
            let next_chunk = port.next_chunk(from);
            if next_chunk == NextChunk::Done {
                incoming.left.start = left.end;
            }
            next_chunk
        }
        TransferPhase::Broken => {
            let next_chunk = port.next_chunk(from);
            if let NextChunk::Copy(part) = next_chunk {
                // The sender will not write this part. No part is assigned twice, and all bytes behind this
                // part have arrived.
                incoming.left.end = part.end;
            }
            next_chunk
        }
        TransferPhase::Lost => NextChunk::Done,
        TransferPhase::Stream => NextChunk::Wait,
    }
}

fn copy<P: MessagePort>(port: &mut P, incoming: &mut Incoming, buf: &mut Scatter, part: Part) {
    if incoming.phase == TransferPhase::Broken {
        return;
    }
    let mut pulled = Pulled::Done;
    buf.each(part.start as usize, (part.end - part.start) as usize, |done, to| {
        if pulled == Pulled::Done {
            pulled = match incoming.rts.address.checked_add(part.start + done as u64) {
                Some(address) => port.pull(incoming.from, address, to),
                None => Pulled::Unreadable,
            };
        }
    });
    if pulled == Pulled::Done {
        // A shared message is complete when both processes have copied their parts.
        incoming.left.start = if incoming.phase == TransferPhase::Assist { part.start } else { part.end };
        return;
    }
    incoming.left.start = part.start;
    #[cfg(nemesia_injected_fault)]
    if injected(InjectedFault::SkipPart) {
        incoming.left.start = part.end;
    }
    if incoming.phase == TransferPhase::Assist {
        port.close_assist(incoming.from);
        incoming.left.end = part.end;
        incoming.phase = TransferPhase::Broken;
    } else {
        incoming.phase = TransferPhase::Lost;
    }
}

impl<P: MessagePort, S: Storage> Engine<P, S> {
    /// Stops all sender-assisted copies before the engine is dropped and its buffers are returned. Returns
    /// `false` while a peer may still write into a buffer. The transfers are lost in either case.
    pub fn end_assists(&mut self) -> bool {
        // `filter` and `count` visit every peer, also after one that is not done.
        (0..self.size()).filter(|&peer| !self.end_assist(peer)).count() == 0
    }

    fn end_assist(&mut self, peer: PeerId) -> bool {
        let Some(index) = self.first(peer, PeerQueue::Pulling) else { return true };
        let State::Receiving { incoming, .. } = &self.requests.get(index).0 else { return true };
        if !matches!(incoming.phase, TransferPhase::Assist | TransferPhase::Broken) {
            return true;
        }
        self.port.close_assist(peer);
        loop {
            match self.port.next_chunk(peer) {
                NextChunk::Copy(_) => {}
                NextChunk::Wait => return false,
                NextChunk::Done => return true,
            }
        }
    }

    /// Sender: copies the next part of a message for its receiver (sender-assisted copy). Returns `false` if
    /// there is no part.
    pub(in crate::engine) fn assist(&mut self, peer: PeerId) -> bool {
        let (assist, part) = match self.peer(peer).assist.take() {
            Some(assist) => (assist, self.port.next_part(peer)),
            None => {
                let Some(assisted_copy) = self.port.find_assist(peer) else { return false };
                let Some((_, message)) = self.offered(peer, assisted_copy.request) else { return false };
                if assisted_copy.end > message.buf.len() as u64 {
                    return false;
                }
                let assist = Assist { request: assisted_copy.request, address: assisted_copy.address };
                (assist, self.port.join_assist(peer, assisted_copy.end))
            }
        };
        let Some(part) = part else { return false };
        // The receiver may have sent FIN meanwhile. The buffer then belongs to the caller again.
        let message = self.offered(peer, assist.request).map(|(_, message)| message);
        let (start, len) = (part.start as usize, (part.end - part.start) as usize);
        let bytes = message.as_ref().and_then(|message| message.buf.whole(start, len));
        let pushed = match (bytes, assist.address.checked_add(part.start)) {
            (Some(bytes), Some(address)) if bytes.len() == len => self.port.push(peer, address, bytes),
            _ => false,
        };
        self.port.end_part(peer, part, pushed);
        if pushed {
            self.peer(peer).tally.pushed.add(len);
        }
        self.peer(peer).assist = pushed.then_some(assist);
        pushed
    }
}
