//! What the engine knows of one rank, and the queues in which its requests stand.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::request::{Fate, State};
use super::rma::Side;
use super::{Engine, Failure, PACKETS_A_TURN, Progress, Storage};
#[cfg(nemesia_blunder)]
use crate::blunder::{Blunder, made};
use crate::counters::Tally;
use crate::flow::{Account, Allowance};
use crate::port::{MessagePort, PeerFault, PeerId};
use crate::slab::List;

use super::lmt::{Pull, Stream, Transfer, may_be_shared};

/// The queues of a peer. Those before [`Queue::Offered`] are work that may go on without hearing from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// Sends that wait for room or credit, in order.
    Pending,
    /// What the peer is to be told: CTS and FIN.
    Answers,
    /// Messages whose bytes we read from the peer's memory.
    Pulling,
    /// Sends that the peer has cleared.
    Streaming,
    /// Sends that the peer was told of.
    Offered,
    /// Messages that the peer streams to us.
    Incoming,
}

impl Queue {
    const WORK: [Self; 4] = [Queue::Answers, Queue::Pulling, Queue::Streaming, Queue::Pending];
    /// What is done for the first request of it.
    const fn step(self) -> &'static str {
        match self {
            Queue::Pending => "send_pending",
            Queue::Answers => "answer",
            Queue::Pulling => "pull",
            Queue::Streaming => "stream",
            Queue::Offered | Queue::Incoming => "wait",
        }
    }

    const SENDS: [Self; 3] = [Queue::Pending, Queue::Offered, Queue::Streaming];
    const RECEIVES: [Self; 3] = [Queue::Answers, Queue::Pulling, Queue::Incoming];
}

/// A message to a peer that both copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Help {
    /// Our request, as the peer names it.
    pub(super) request: u64,
    /// Where its first byte goes at the peer.
    pub(super) address: u64,
}

/// What the engine knows of one rank.
#[derive(Debug, Default)]
pub struct Peer {
    /// Requests, by [`Queue`].
    queues: [List; 6],
    /// Active messages and one-sided operations.
    pub(super) side: Side,
    pub(super) failure: Option<Failure>,
    /// It is gone, but what it has sent may not have been taken yet.
    pub(super) departed: Option<Failure>,
    /// Receives from any source have to report its failure: see [`Engine::acknowledge`].
    pub(super) unacknowledged: bool,
    /// What we may still send.
    pub(super) allowance: Allowance,
    /// What it may still send.
    pub(super) account: Account,
    pub(super) tally: Tally,
    /// Sends in [`Queue::Offered`] that the peer may share.
    sharable: u32,
    /// The one that it shares.
    pub(super) help: Option<Help>,
    /// Whether it stands in the list of peers with work, and the next one there.
    next_work: Option<PeerId>,
    listed: bool,
}

impl Peer {
    pub(super) fn queue(&self, queue: Queue) -> &List {
        &self.queues[queue as usize]
    }

    /// Whether a message can leave at once: nothing is before it, and the peer is there.
    #[inline(always)]
    pub(super) fn is_free(&self) -> bool {
        #[cfg(nemesia_blunder)]
        if made(Blunder::OvertakePending) {
            return self.departed.is_none();
        }
        self.queue(Queue::Pending).is_empty() && self.departed.is_none()
    }

    fn has_work(&self) -> bool {
        self.side.has_work()
            || self.sharable > 0
            || self.help.is_some()
            || Queue::WORK.iter().any(|&queue| !self.queue(queue).is_empty())
    }

    pub(super) fn has_sends(&self) -> bool {
        self.side.has_work() || Queue::SENDS.iter().any(|&queue| !self.queue(queue).is_empty())
    }
}

impl<P: MessagePort, S: Storage> Engine<P, S> {
    /// Appends a request to a queue of its peer.
    pub(super) fn enqueue(&mut self, peer: PeerId, queue: Queue, index: u32) {
        // The list is a field of the peer: taken out, changed, put back.
        let mut list = *self.peer(peer).queue(queue);
        self.requests.push_back(&mut list, index);
        self.peer(peer).queues[queue as usize] = list;
        let sharable = self.is_sharable(queue, index);
        self.peer(peer).sharable += u32::from(sharable);
        if sharable || Queue::WORK.contains(&queue) {
            self.list_work(peer);
        }
    }

    fn is_sharable(&self, queue: Queue, index: u32) -> bool {
        queue == Queue::Offered
            && matches!(&self.requests.get(index).0, State::Offered { message, .. } if may_be_shared(message, self.tuning.share_bytes))
    }

    /// Takes a request out of a queue of its peer. Its state is still that of the queue.
    pub(super) fn dequeue(&mut self, peer: PeerId, queue: Queue, index: u32) {
        let sharable = self.is_sharable(queue, index);
        self.peer(peer).sharable -= u32::from(sharable);
        let mut list = *self.peer(peer).queue(queue);
        self.requests.unlink(&mut list, index);
        self.peer(peer).queues[queue as usize] = list;
    }

    pub(super) fn first(&mut self, peer: PeerId, queue: Queue) -> Option<u32> {
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

    /// Goes on with what can be done for every peer: sends what there is room for, pulls, answers. Returns the packets and
    /// pieces moved, and who was found out since.
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

    /// As [`Engine::work`], for one peer; it stays listed as long as there is more.
    pub(super) fn work_for(&mut self, peer: PeerId) -> usize {
        self.traced(("work_for", peer.into()), |engine| engine.work_now(peer), |moved| *moved > 0)
    }

    fn work_now(&mut self, peer: PeerId) -> usize {
        let mut moved = self.side_work_for(peer);
        for queue in Queue::WORK {
            // Bounded, as the peer makes room while we send.
            for _ in 0..PACKETS_A_TURN {
                let Some(index) = self.first(peer, queue) else { break };
                match self.work_on(peer, queue, index) {
                    Ok(true) => moved += 1,
                    Ok(false) => break,
                    Err(fault) => self.fault(fault),
                }
                if queue == Queue::Pulling {
                    // A piece is work enough.
                    break;
                }
            }
        }
        let it = self.peer(peer);
        if it.sharable > 0 || it.help.is_some() {
            let helped = self.traced(("help", peer.into()), |engine| engine.help(peer), |helped| *helped);
            moved += usize::from(helped);
        }
        if self.peer(peer).has_work() {
            self.list_work(peer);
        }
        moved
    }

    fn work_on(&mut self, peer: PeerId, queue: Queue, index: u32) -> Result<bool, PeerFault> {
        let happened = |moved: &Result<bool, PeerFault>| !matches!(moved, Ok(false));
        self.traced((queue.step(), peer.into()), |engine| engine.step_on(peer, queue, index), happened)
    }

    fn step_on(&mut self, peer: PeerId, queue: Queue, index: u32) -> Result<bool, PeerFault> {
        match queue {
            Queue::Pending => self.send_pending(peer, index),
            Queue::Answers => self.answer(peer, index),
            Queue::Pulling => Pull::progress(self, peer, index),
            Queue::Streaming => Stream::progress(self, peer, index),
            Queue::Offered | Queue::Incoming => Ok(false),
        }
    }

    /// Ends every send to a peer that is gone.
    pub(super) fn fail_sends(&mut self, peer: PeerId, failure: Failure) {
        for queue in Queue::SENDS {
            self.fail_queue(peer, queue, failure);
        }
    }

    /// Ends every receive whose bytes are on the way from a peer that is gone.
    pub(super) fn fail_transfers(&mut self, peer: PeerId, failure: Failure) {
        for queue in Queue::RECEIVES {
            self.fail_queue(peer, queue, failure);
        }
        if let Some(choice) = self.choices.of(peer) {
            *choice = Default::default();
        }
    }

    pub(super) fn fail_queue(&mut self, peer: PeerId, queue: Queue, failure: Failure) {
        while let Some(index) = self.first(peer, queue) {
            self.dequeue(peer, queue, index);
            let outcome = match self.requests.get(index).0 {
                // All its bytes are here.
                State::Finishing { outcome, .. } => outcome,
                _ => Err(Fate::PeerFailed { peer, failure }),
            };
            self.complete(index, outcome);
        }
    }
}
