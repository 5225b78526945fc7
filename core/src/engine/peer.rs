//! The state that the engine keeps for one rank, and the queues of its requests.
#![forbid(unsafe_code)]

use core::borrow::{Borrow, BorrowMut};

use super::request::State;
use super::state::{Assist, RmaState, UnaskedPlace, WorkLink};
use super::{Engine, Failure, StartError, Storage};
use crate::counters::Tally;
use crate::flow::{Account, Allowance};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::port::{PeerId, Port};
use crate::slab::List;

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
    pub(super) const WORK: [Self; 4] =
        [PeerQueue::Answers, PeerQueue::Pulling, PeerQueue::Streaming, PeerQueue::Pending];
    /// Returns the name of the work step for the first request of the queue.
    pub(super) const fn step(self) -> &'static str {
        match self {
            PeerQueue::Pending => "send_pending",
            PeerQueue::Answers => "answer",
            PeerQueue::Pulling => "pull",
            PeerQueue::Streaming => "stream",
            PeerQueue::Offered | PeerQueue::Incoming => "wait",
        }
    }

    pub(super) const SENDS: [Self; 3] = [PeerQueue::Pending, PeerQueue::Offered, PeerQueue::Streaming];
    pub(super) const RECEIVES: [Self; 3] = [PeerQueue::Answers, PeerQueue::Pulling, PeerQueue::Incoming];
}

/// The state that the engine keeps for one rank.
#[derive(Debug, Default)]
pub struct Peer {
    /// Requests in progress, by [`PeerQueue`].
    queues: [List; 6],
    /// Active messages and one-sided operations.
    pub(super) rma_state: RmaState,
    /// Why it has failed; [`Failure::Absent`] also for a rank of a world that was not met (`failure/unmet.rs`).
    pub(super) failure: Option<Failure>,
    /// The layer above should connect with it: see [`Engine::next_wanted`].
    pub(super) wanted: bool,
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
    pub(super) sharable: u32,
    /// Number of accesses to the peer's memory under way.
    pub(super) accesses: u32,
    /// The send that this process currently assists.
    pub(super) assist: Option<Assist>,
    /// The receive into whose buffer the peer may be writing although it has failed.
    pub(super) late: Option<u32>,
    /// Where the next part of the message goes whose bytes the peer sends unasked.
    pub(super) unasked: Option<UnaskedPlace>,
    /// The next peer in the list of peers with work.
    pub(super) next_work: WorkLink,
    /// The next peer in the list of peers that have failed.
    pub(super) next_ended: WorkLink,
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

    pub(super) fn has_work(&self) -> bool {
        self.rma_state.has_work()
            || self.sharable > 0
            || self.assist.is_some()
            || self.accesses > 0
            || self.late.is_some()
            || PeerQueue::WORK.iter().any(|&queue| !self.queue(queue).is_empty())
    }

    pub(super) fn has_sends(&self) -> bool {
        self.rma_state.has_work() || PeerQueue::SENDS.iter().any(|&queue| !self.queue(queue).is_empty())
    }
}

impl<P: Port, S: Storage> Engine<P, S> {
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

    /// Takes a slot for a request in this state, and appends it to a queue of its peer that needs no work. `None` if
    /// every slot is in use. The state is written in place.
    pub(super) fn enqueue_new(&mut self, peer: PeerId, queue: PeerQueue, state: State) -> Option<u32> {
        let mut list = *self.peer(peer).queue(queue);
        let (index, request) = self.requests.reserve_back(&mut list)?;
        request.0 = state;
        self.peer(peer).queues[queue as usize] = list;
        Some(index)
    }

    fn is_sharable(&self, queue: PeerQueue, index: u32) -> bool {
        queue == PeerQueue::Offered
            && match &self.requests.get(index).0 {
                State::Offered { message, .. } => {
                    message.may_be_assisted(self.tuning.least_assist_bytes(), self.tuning.run_bytes)
                }
                _ => false,
            }
    }

    /// Removes a request from a queue of its peer. The request must still have the state that belongs to the
    /// queue.
    pub(super) fn dequeue(&mut self, peer: PeerId, queue: PeerQueue, index: u32) {
        let sharable = self.is_sharable(queue, index);
        self.peer(peer).sharable -= u32::from(sharable);
        let exposure = match &mut self.requests.get_mut(index).0 {
            State::Offered { exposure, .. } => exposure.take(),
            State::Receiving { incoming, .. } if queue == PeerQueue::Incoming => incoming.exposure.take(),
            _ => None,
        };
        if exposure.is_some() {
            #[cfg(nemesia_injected_fault)]
            let exposure = exposure.filter(|_| !injected(InjectedFault::ForgetRevoke));
            self.revoke(peer, exposure);
        }
        let mut list = *self.peer(peer).queue(queue);
        self.requests.unlink(&mut list, index);
        self.peer(peer).queues[queue as usize] = list;
    }

    pub(super) fn first(&mut self, peer: PeerId, queue: PeerQueue) -> Option<u32> {
        self.peer(peer).queue(queue).first()
    }

    pub(super) fn list_work(&mut self, peer: PeerId) {
        self.work.add(peer, &mut self.peers.borrow_mut()[peer as usize].next_work);
    }

    /// Returns an error if nothing can be sent to the rank.
    #[inline]
    pub(super) fn check_destination(&self, rank: PeerId) -> Result<(), StartError> {
        self.check_peer(rank)?;
        match self.peers.borrow().get(rank as usize).and_then(|peer| peer.departed) {
            Some(failure) => Err(StartError::PeerFailed { peer: rank, failure }),
            None => Ok(()),
        }
    }

    #[inline]
    pub(super) fn check_peer(&self, rank: PeerId) -> Result<(), StartError> {
        let peers: &[Peer] = self.peers.borrow();
        match peers.get(rank as usize) {
            None => Err(self.no_peer(rank)),
            Some(Peer { failure: Some(failure), .. }) => {
                Err(StartError::PeerFailed { peer: rank, failure: *failure })
            }
            Some(_) => Ok(()),
        }
    }
}
