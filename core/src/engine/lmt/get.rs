//! The protocol with one copy: the receiver reads the sender's memory piece by piece and then sends FIN. This
//! is paper 1's zero-copy design with the kernel's cross-memory read instead of the RDMA read. From a
//! configurable size on, an otherwise idle sender copies a part ([`crate::shared::assist`]), unless the receiver has
//! learned that this is slower.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::{Stream, Transfer};
use crate::engine::peer::PeerQueue;
use crate::engine::request::State;
use crate::engine::state::{Accesses, Incoming, Protocol, TransferPhase};
use crate::engine::{Engine, PACKETS_A_TURN, RequestId, Storage, Tuning};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::payload::Scatter;
use crate::port::{
    AccessError, Accessed, AccessedRanges, AssistedCopy, NextChunk, Part, PeerFault, PeerId, Port,
};
use crate::wire::rendezvous::Rts;

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
        let Incoming { from, rts, shared, measured, .. } = *incoming;
        let bytes = rts.total.min(buf.len() as u64) as usize;
        engine.has_moved(from, measured, bytes as u64);
        let tally = &mut engine.peer(from).tally;
        let by = if shared == 0 { &mut tally.pulled } else { &mut tally.assisted };
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
    let Incoming { from, left, accesses: Accesses { begun, .. }, .. } = *incoming;
    if incoming.phase == TransferPhase::Pull
        && incoming.protocol != Protocol::PullAlone
        && begun == left.start
        && let Some((size, assisted_copy)) = shareable(incoming, buf, tuning)
    {
        let worthwhile = size >= tuning.assist_bytes || port.is_lent(from, &assisted_copy);
        if worthwhile && port.open_assist(from, &assisted_copy) {
            incoming.phase = TransferPhase::Assist;
            incoming.shared = assisted_copy.end;
        }
    }
    match incoming.phase {
        // The accesses that are under way must end before the rest is streamed.
        TransferPhase::Pull if incoming.accesses.failed => NextChunk::Wait,
        TransferPhase::Pull => {
            let address = buf.address();
            let at = if address == 0 { 0 } else { address + begun };
            let end = port.access_shape(from).end_of((begun, left.end), tuning.pull_bytes, at);
            NextChunk::Copy(Part { start: begun, end })
        }
        // The parts of both sides are assigned one after the other.
        TransferPhase::Assist | TransferPhase::Broken if incoming.accesses.under_way > 0 => NextChunk::Wait,
        TransferPhase::Assist => {
            let next_chunk = port.next_chunk(from);
            if next_chunk == NextChunk::Done {
                incoming.left.start = incoming.shared;
                if incoming.shared < left.end {
                    // The next run follows.
                    incoming.phase = TransferPhase::Pull;
                    incoming.accesses.begun = incoming.shared;
                }
            }
            next_chunk
        }
        TransferPhase::Broken => {
            let next_chunk = port.next_chunk(from);
            if let NextChunk::Copy(part) = next_chunk
                && left.end <= incoming.shared
            {
                // The sender will not write this part. No part is assigned twice, and all bytes behind this
                // part have arrived. If the copy was not shared up to the end of the message, the shared
                // bytes are streamed again.
                incoming.left.end = part.end;
            }
            next_chunk
        }
        TransferPhase::Lost => NextChunk::Done,
        TransferPhase::Await | TransferPhase::Stream => NextChunk::Wait,
    }
}

/// Returns the part of a message that sender and receiver may copy together, and the size that decides whether they
/// should. In a contiguous buffer the part is the missing bytes. In a list it is the rest of the next run, if that is
/// at least as long as a piece that is pulled at once; the size is then that of the message.
fn shareable(incoming: &Incoming, buf: &mut Scatter, tuning: &Tuning) -> Option<(u64, AssistedCopy)> {
    let Incoming { rts, left: Part { start, end }, .. } = *incoming;
    let (is_list, least) = (buf.address() == 0, tuning.least_assist_bytes());
    let size = if is_list { rts.total.min(buf.len() as u64) } else { end - start };
    if size < least {
        return None;
    }
    let run = buf.range_from(start as usize, (end - start) as usize)?;
    let (address, len) = (run.base().addr().get() as u64, run.len() as u64);
    if is_list && len < tuning.pull_bytes.max(1) {
        return None;
    }
    let address = address.checked_sub(start)?;
    Some((size, AssistedCopy { request: rts.sender, address, start, end: start + len }))
}

/// Begins the accesses for a part.
fn copy<P: Port>(port: &mut P, incoming: &mut Incoming, buf: &mut Scatter, part: Part, operation: u64) {
    if incoming.phase == TransferPhase::Broken {
        return;
    }
    let (start, len) = (part.start as usize, (part.end - part.start) as usize);
    let Incoming { from, rts: Rts { ref descriptor, origin, .. }, .. } = *incoming;
    #[cfg(nemesia_injected_fault)]
    let origin = if injected(InjectedFault::WrongOrigin) { 0 } else { origin };
    let accessed = match part.start.checked_sub(origin.into()) {
        // The usual case, without the long table of ranges.
        Some(at) if buf.address() != 0 && !descriptor.is_list() => {
            let mut only = AccessedRanges::NONE;
            if let Some(range) = buf.range_from(start, len) {
                only.next(range.len() as u64, || port.get(from, descriptor, at, range, operation));
            }
            only
        }
        Some(at) => port.get_ranges(from, descriptor, at, &mut buf.ranges(start, len), operation),
        None => AccessedRanges { last: Accessed::Failed(AccessError::Range), ..AccessedRanges::NONE },
    };
    incoming.accesses.record(part.start, &accessed);
    if incoming.phase == TransferPhase::Assist {
        // A shared message is complete when both processes have copied their parts. A part is copied at once.
        incoming.accesses.failed |= accessed.last == Accessed::Busy;
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
            if incoming.shared == incoming.left.end {
                incoming.left.end = incoming.accesses.begun;
            }
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
        if let Some(peer) = self.settle_direct(index, result) {
            let it = self.peer(peer);
            it.accesses = it.accesses.saturating_sub(1);
            return;
        }
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
