//! The state that the engine keeps for one rank, and the queues of its requests.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::request::{CompletionError, State};
use super::rma::RmaState;
use super::{Engine, Failure, PACKETS_A_TURN, Progress, Storage};
use crate::counters::Tally;
use crate::flow::{Account, Allowance};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::port::{MessagePort, PeerFault, PeerId};
use crate::slab::List;

use super::lmt::{Pull, Stream, Transfer, may_be_assisted};

/// The queues of a peer. Requests in the queues before [`PeerQueue::Offered`] can progress without an answer
/// from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerQueue {
    /// Sends that wait for space or credit, in order.
    Pending,
    /// CTS and FIN packets that must be sent to the peer.
    Answers,
    /// Messages whose bytes this process reads from the peer's memory.
    Pulling,
    /// Sends for which the peer has sent CTS.
    Streaming,
    /// Sends whose RTS was sent.
    Offered,
    /// Messages that the peer streams to this process.
    Incoming,
}

impl PeerQueue {
    const WORK: [Self; 4] =
        [PeerQueue::Answers, PeerQueue::Pulling, PeerQueue::Streaming, PeerQueue::Pending];
    /// Returns the name of the work step for the first request of the queue.
    const fn step(self) -> &'static str {
        match self {
            PeerQueue::Pending => "send_pending",
            PeerQueue::Answers => "answer",
            PeerQueue::Pulling => "pull",
            PeerQueue::Streaming => "stream",
            PeerQueue::Offered | PeerQueue::Incoming => "wait",
        }
    }

    const SENDS: [Self; 3] = [PeerQueue::Pending, PeerQueue::Offered, PeerQueue::Streaming];
    const RECEIVES: [Self; 3] = [PeerQueue::Answers, PeerQueue::Pulling, PeerQueue::Incoming];
}

/// A message to a peer of which this process copies a part (sender-assisted copy).
#[derive(Clone, Copy, Debug)]
pub(super) struct Assist {
    /// Identifier of this process's request, as the peer knows it.
    pub(super) request: u64,
    /// Address of the first byte of the message in the peer's memory.
    pub(super) address: u64,
}

/// The state that the engine keeps for one rank.
#[derive(Debug, Default)]
pub struct Peer {
    /// Requests in progress, by [`PeerQueue`].
    queues: [List; 6],
    /// Active messages and one-sided operations.
    pub(super) rma_state: RmaState,
    pub(super) failure: Option<Failure>,
    /// The peer failed, but packets that it sent before may not have been delivered yet.
    pub(super) departed: Option<Failure>,
    /// Whether receives from any source must report the failure of the peer: see [`Engine::acknowledge`].
    pub(super) unacknowledged: bool,
    /// The credit of this process at the peer.
    pub(super) allowance: Allowance,
    /// The credit of the peer at this process.
    pub(super) account: Account,
    pub(super) tally: Tally,
    /// Number of sends in [`PeerQueue::Offered`] for which a sender-assisted copy is possible.
    sharable: u32,
    /// The send that this process currently assists.
    pub(super) assist: Option<Assist>,
    /// The next peer in the list of peers with work, and whether this peer is in the list.
    next_work: Option<PeerId>,
    listed: bool,
}

impl Peer {
    pub(super) fn queue(&self, queue: PeerQueue) -> &List {
        &self.queues[queue as usize]
    }

    /// Returns whether a message can leave at once: no send is queued before it, and the peer has not failed.
    #[inline(always)]
    pub(super) fn is_free(&self) -> bool {
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::OvertakePending) {
            return self.departed.is_none();
        }
        self.queue(PeerQueue::Pending).is_empty() && self.departed.is_none()
    }

    fn has_work(&self) -> bool {
        self.rma_state.has_work()
            || self.sharable > 0
            || self.assist.is_some()
            || PeerQueue::WORK.iter().any(|&queue| !self.queue(queue).is_empty())
    }

    pub(super) fn has_sends(&self) -> bool {
        self.rma_state.has_work() || PeerQueue::SENDS.iter().any(|&queue| !self.queue(queue).is_empty())
    }
}

impl<P: MessagePort, S: Storage> Engine<P, S> {
    /// Appends a request to a queue of its peer.
    pub(super) fn enqueue(&mut self, peer: PeerId, queue: PeerQueue, index: u32) {
        // The list is a field of the peer, so it is copied, changed and stored back.
        let mut list = *self.peer(peer).queue(queue);
        self.requests.push_back(&mut list, index);
        self.peer(peer).queues[queue as usize] = list;
        let sharable = self.is_sharable(queue, index);
        self.peer(peer).sharable += u32::from(sharable);
        if sharable || PeerQueue::WORK.contains(&queue) {
            self.list_work(peer);
        }
    }

    fn is_sharable(&self, queue: PeerQueue, index: u32) -> bool {
        queue == PeerQueue::Offered
            && match &self.requests.get(index).0 {
                State::Offered { message, .. } => may_be_assisted(message, self.tuning.assist_bytes),
                _ => false,
            }
    }

    /// Removes a request from a queue of its peer. The request must still have the state that belongs to the
    /// queue.
    pub(super) fn dequeue(&mut self, peer: PeerId, queue: PeerQueue, index: u32) {
        let sharable = self.is_sharable(queue, index);
        self.peer(peer).sharable -= u32::from(sharable);
        let mut list = *self.peer(peer).queue(queue);
        self.requests.unlink(&mut list, index);
        self.peer(peer).queues[queue as usize] = list;
    }

    pub(super) fn first(&mut self, peer: PeerId, queue: PeerQueue) -> Option<u32> {
        self.peer(peer).queue(queue).first()
    }

    pub(super) fn list_work(&mut self, peer: PeerId) {
        let first = self.first_work;
        let it = &mut self.peers.borrow_mut()[peer as usize];
        if !it.listed {
            it.listed = true;
            it.next_work = first;
            self.first_work = Some(peer);
        }
    }

    /// Continues pending work for every peer: sends packets for which there is space, pulls and answers.
    /// Returns the number of packets and pieces moved, and a peer that failed since the last report.
    #[cold]
    pub(super) fn work(&mut self) -> Progress {
        let mut moved = 0;
        let mut at = self.first_work.take();
        while let Some(peer) = at {
            at = self.peer(peer).next_work.take();
            self.peer(peer).listed = false;
            moved += self.work_for(peer);
        }
        Progress { packets: moved, failed: self.found_out.take() }
    }

    /// As [`Engine::work`], for one peer, which remains in the list while it has more work.
    pub(super) fn work_for(&mut self, peer: PeerId) -> usize {
        self.traced(("work_for", peer.into()), |engine| engine.work_now(peer), |moved| *moved > 0)
    }

    fn work_now(&mut self, peer: PeerId) -> usize {
        let mut moved = self.rma_work_for(peer);
        for queue in PeerQueue::WORK {
            // The loop is bounded, because the peer may free space while this process sends.
            for _ in 0..PACKETS_A_TURN {
                let Some(index) = self.first(peer, queue) else { break };
                match self.work_on(peer, queue, index) {
                    Ok(true) => moved += 1,
                    Ok(false) => break,
                    Err(fault) => self.fault(fault),
                }
                if queue == PeerQueue::Pulling {
                    // One piece of a pull is enough work for one call.
                    break;
                }
            }
        }
        let it = self.peer(peer);
        if it.sharable > 0 || it.assist.is_some() {
            let assisted =
                self.traced(("help", peer.into()), |engine| engine.assist(peer), |assisted| *assisted);
            moved += usize::from(assisted);
        }
        if self.peer(peer).has_work() {
            self.list_work(peer);
        }
        moved
    }

    fn work_on(&mut self, peer: PeerId, queue: PeerQueue, index: u32) -> Result<bool, PeerFault> {
        let happened = |moved: &Result<bool, PeerFault>| !matches!(moved, Ok(false));
        self.traced((queue.step(), peer.into()), |engine| engine.step_on(peer, queue, index), happened)
    }

    fn step_on(&mut self, peer: PeerId, queue: PeerQueue, index: u32) -> Result<bool, PeerFault> {
        match queue {
            PeerQueue::Pending => self.send_pending(peer, index),
            PeerQueue::Answers => self.answer(peer, index),
            PeerQueue::Pulling => Pull::progress(self, peer, index),
            PeerQueue::Streaming => Stream::progress(self, peer, index),
            PeerQueue::Offered | PeerQueue::Incoming => Ok(false),
        }
    }

    /// Fails every send to a failed peer.
    pub(super) fn fail_sends(&mut self, peer: PeerId, failure: Failure) {
        for queue in PeerQueue::SENDS {
            self.fail_queue(peer, queue, failure);
        }
    }

    /// Fails every receive whose bytes a failed peer was sending.
    pub(super) fn fail_transfers(&mut self, peer: PeerId, failure: Failure) {
        for queue in PeerQueue::RECEIVES {
            self.fail_queue(peer, queue, failure);
        }
        if let Some(selection) = self.selections.of(peer) {
            *selection = Default::default();
        }
    }

    pub(super) fn fail_queue(&mut self, peer: PeerId, queue: PeerQueue, failure: Failure) {
        while let Some(index) = self.first(peer, queue) {
            self.dequeue(peer, queue, index);
            let outcome = match self.requests.get(index).0 {
                // All bytes of the message have arrived.
                State::Finishing { outcome, .. } => outcome,
                _ => Err(CompletionError::PeerFailed { peer, failure }),
            };
            self.complete(index, outcome);
        }
    }
}
