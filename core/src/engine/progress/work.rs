//! Pending work: which queue of a peer gets its turn, and which protocol continues it.
#![forbid(unsafe_code)]

use crate::engine::lmt::{Pull, Stream, Transfer};
use crate::engine::peer::PeerQueue;
use crate::engine::state::{PACKETS_A_TURN, Progress};
use crate::engine::{Engine, Storage};
use crate::port::{PeerFault, PeerId, Port};

impl<P: Port, S: Storage> Engine<P, S> {
    /// Continues pending work for every peer: sends packets for which there is space, pulls and answers.
    /// Returns the number of packets and pieces moved, and a peer that failed since the last report.
    #[cold]
    pub(in crate::engine) fn work(&mut self) -> Progress {
        let mut moved = 0;
        let mut at = self.work.take();
        while let Some(peer) = at {
            at = core::mem::take(&mut self.peer(peer).next_work).next();
            moved += self.work_for(peer);
        }
        Progress { packets: moved, failed: self.failures.unreported.take() }
    }

    /// As [`Engine::work`], for one peer, which remains in the list while it has more work.
    pub(in crate::engine) fn work_for(&mut self, peer: PeerId) -> usize {
        self.traced(("work_for", peer.into()), |engine| engine.work_now(peer), |moved| *moved > 0)
    }

    fn work_now(&mut self, peer: PeerId) -> usize {
        self.gathered = 0;
        let mut moved = self.rma_work_for(peer);
        if self.peer(peer).accesses > 0 {
            moved += self.settle_accesses();
        }
        for queue in PeerQueue::WORK {
            let is_batch = queue == PeerQueue::Pending && self.first(peer, queue).is_some();
            if is_batch {
                self.port.set_batch(peer, true);
            }
            moved += self.work_through(peer, queue);
            if is_batch {
                self.port.set_batch(peer, false);
            }
        }
        let it = self.peer(peer);
        if it.sharable > 0 || it.assist.is_some() {
            let assisted =
                self.traced(("help", peer.into()), |engine| engine.assist(peer), |assisted| *assisted);
            moved += usize::from(assisted);
        }
        if self.peer(peer).late.is_some() && self.end_assist(peer) {
            self.end_late(peer);
            moved += 1;
        }
        if self.peer(peer).has_work() {
            self.list_work(peer);
        }
        moved
    }

    /// Continues the work of one queue. The loop is bounded, because the peer may free space while this process sends.
    fn work_through(&mut self, peer: PeerId, queue: PeerQueue) -> usize {
        let mut moved = 0;
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
}
