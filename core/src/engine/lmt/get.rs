//! The protocol with one copy: the receiver reads the sender's memory piece by piece and then sends FIN. This
//! is paper 1's zero-copy design with the kernel's cross-memory read instead of the RDMA read. From a
//! configurable size on, an otherwise idle sender copies a part ([`crate::shared::assist`]).
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::{Stream, Transfer};
use crate::engine::peer::PeerQueue;
use crate::engine::request::State;
use crate::engine::state::{Accesses, Incoming, TransferPhase};
use crate::engine::{Engine, PACKETS_A_TURN, RequestId, Storage, Tuning};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::payload::Scatter;
use crate::port::{AccessError, Accessed, AssistedCopy, NextChunk, Part, PeerFault, PeerId, Port};

/// The protocol.
#[derive(Debug)]
pub(in crate::engine) enum Pull {}

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

impl<P: Port, S: Storage> Transfer<P, S> for Pull {
    fn start_receive(engine: &mut Engine<P, S>, from: PeerId, index: u32) {
        engine.enqueue(from, PeerQueue::Pulling, index);
        engine.work_for(from);
    }

    /// Gets the next piece of the first message in the queue. Reading one message at a time has the same
    /// throughput as reading all alternately, and completes the first one earlier. A message whose accesses are all
    /// under way leaves the queue, so that the next one begins.
    fn progress(engine: &mut Engine<P, S>, peer: PeerId, index: u32) -> Result<bool, PeerFault> {
        let operation = engine.id(index).to_bits();
        let Engine { requests, port, tuning, peers, .. } = engine;
        let State::Receiving { incoming, buf } = &mut requests.get_mut(index).0 else { return Ok(false) };
        match next_chunk(port, incoming, buf, tuning) {
            NextChunk::Wait => return Ok(false),
            NextChunk::Copy(part) => {
                let before = incoming.accesses;
                copy(port, incoming, buf, part, operation);
                let Accesses { begun, under_way, .. } = incoming.accesses;
                peers.borrow_mut()[peer as usize].accesses += under_way - before.under_way;
                if under_way == 0 {
                    settle(port, incoming);
                } else if (under_way, begun) == (before.under_way, before.begun) {
                    // The port has no place for more accesses, or one has failed.
                    return Ok(false);
                }
            }
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
        engine.end_piece(peer, index);
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

fn next_chunk<P: Port>(
    port: &mut P,
    incoming: &mut Incoming,
    buf: &mut Scatter,
    tuning: &Tuning,
) -> NextChunk {
    let Incoming { from, rts, left, accesses: Accesses { begun, .. }, .. } = *incoming;
    if incoming.phase == TransferPhase::Pull
        && begun == left.start
        && incoming.wanted() >= tuning.least_assist_bytes()
        && buf.address() != 0
    {
        let assisted_copy =
            AssistedCopy { request: rts.sender, address: buf.address(), start: left.start, end: left.end };
        let worthwhile = incoming.wanted() >= tuning.assist_bytes || port.is_lent(from, &assisted_copy);
        if worthwhile && port.open_assist(from, &assisted_copy) {
            incoming.phase = TransferPhase::Assist;
        }
    }
    match incoming.phase {
        // The accesses that are under way must end before the rest is streamed.
        TransferPhase::Pull if incoming.accesses.failed => NextChunk::Wait,
        TransferPhase::Pull => {
            let end = begun.saturating_add(tuning.pull_bytes.max(1));
            NextChunk::Copy(Part { start: begun, end: left.end.min(end) })
        }
        // The parts of both sides are assigned one after the other.
        TransferPhase::Assist | TransferPhase::Broken if incoming.accesses.under_way > 0 => NextChunk::Wait,
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
        TransferPhase::Await | TransferPhase::Stream => NextChunk::Wait,
    }
}

/// Begins the accesses for a part.
fn copy<P: Port>(port: &mut P, incoming: &mut Incoming, buf: &mut Scatter, part: Part, operation: u64) {
    if incoming.phase == TransferPhase::Broken {
        return;
    }
    let mut series = incoming.accesses.begin(part.start);
    buf.each_range(part.start as usize, (part.end - part.start) as usize, |done, to| {
        let at = part.start + done as u64;
        let origin = u64::from(incoming.rts.origin);
        #[cfg(nemesia_injected_fault)]
        let origin = if injected(InjectedFault::WrongOrigin) { 0 } else { origin };
        series.next(at, to.len(), || match at.checked_sub(origin) {
            Some(described) => port.get(incoming.from, &incoming.rts.descriptor, described, to, operation),
            None => Accessed::Failed(AccessError::Range),
        });
    });
    let is_busy = series.last() == Accessed::Busy;
    if incoming.phase == TransferPhase::Assist {
        // A shared message is complete when both processes have copied their parts. A part is copied at once.
        incoming.accesses.failed |= is_busy;
        incoming.left.start = part.start;
        incoming.accesses.begun = part.end;
    }
    #[cfg(nemesia_injected_fault)]
    if incoming.accesses.failed && injected(InjectedFault::SkipPart) {
        incoming.left.start = part.end;
    }
}

/// Records what has arrived, when no access of the message is under way.
fn settle<P: Port>(port: &mut P, incoming: &mut Incoming) {
    match (incoming.phase, incoming.accesses.failed) {
        (TransferPhase::Pull | TransferPhase::Await, true) => incoming.phase = TransferPhase::Lost,
        (TransferPhase::Pull | TransferPhase::Await, false) => {
            incoming.phase = TransferPhase::Pull;
            incoming.left.start = incoming.accesses.begun;
        }
        (TransferPhase::Assist, true) => {
            port.close_assist(incoming.from);
            incoming.left.end = incoming.accesses.begun;
            incoming.phase = TransferPhase::Broken;
        }
        _ => {}
    }
}

impl<P: Port, S: Storage> Engine<P, S> {
    /// Continues after a piece: a message whose bytes have all arrived is complete, and one whose accesses are all
    /// under way waits for their end in another queue.
    fn end_piece(&mut self, peer: PeerId, index: u32) {
        let State::Receiving { incoming, .. } = &mut self.requests.get_mut(index).0 else { return };
        if incoming.wanted() == 0 {
            self.dequeue(peer, PeerQueue::Pulling, index);
            Pull::done_receive(self, index);
        } else if incoming.phase == TransferPhase::Pull
            && incoming.accesses.under_way > 0
            && !incoming.accesses.failed
            && incoming.accesses.begun == incoming.left.end
        {
            incoming.phase = TransferPhase::Await;
            self.dequeue(peer, PeerQueue::Pulling, index);
            self.enqueue(peer, PeerQueue::Incoming, index);
        }
    }

    /// Processes the accesses that have ended. Returns their number.
    #[cold]
    pub(in crate::engine) fn settle_accesses(&mut self) -> usize {
        for ended in 0..PACKETS_A_TURN {
            let Some(access) = self.port.poll_access() else { return ended };
            let id = RequestId::from_bits(access.operation);
            if self.requests.is_live(id.index, id.generation) {
                self.settle_access(id.index, access.result);
            }
        }
        PACKETS_A_TURN
    }

    fn settle_access(&mut self, index: u32, result: Result<(), AccessError>) {
        let failed = result.is_err();
        #[cfg(nemesia_injected_fault)]
        let failed = failed && !injected(InjectedFault::IgnoreFailure);
        let Self { requests, port, .. } = self;
        let (peer, ended) = match &mut requests.get_mut(index).0 {
            State::Streaming { stream, .. } => {
                stream.accesses.end(failed);
                (stream.to, None)
            }
            State::Receiving { incoming, .. } if incoming.accesses.under_way > 0 => {
                incoming.accesses.end(failed);
                #[cfg(nemesia_injected_fault)]
                if injected(InjectedFault::CompleteEarly) {
                    incoming.accesses.under_way = 0;
                }
                let waits = incoming.phase == TransferPhase::Await;
                let is_last = incoming.accesses.under_way == 0;
                if is_last {
                    settle(port, incoming);
                }
                (incoming.from, is_last.then_some(waits))
            }
            _ => return,
        };
        let it = self.peer(peer);
        it.accesses = it.accesses.saturating_sub(1);
        let Some(waits) = ended else { return };
        if waits {
            self.dequeue(peer, PeerQueue::Incoming, index);
            self.enqueue(peer, PeerQueue::Pulling, index);
        }
        self.end_piece(peer, index);
    }
}
