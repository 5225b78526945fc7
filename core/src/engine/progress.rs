//! Progress steps, and failures of peers.
#![forbid(unsafe_code)]

mod work;

use core::borrow::BorrowMut;

use super::peer::PeerQueue;
use super::state::{PACKETS_A_TURN, Progress};
use super::{Engine, Failure, Storage};
use crate::port::{PeerFault, PeerId, Polled, Port};
use crate::trace::Recorder as _;

impl<P: Port, S: Storage> Engine<P, S> {
    /// Delivers packets that have arrived and continues pending work. Does a bounded amount of work and never
    /// blocks.
    #[inline]
    pub fn progress(&mut self) -> Progress {
        let happened = |done: &Progress| *done != Progress::default();
        self.traced(("progress", 0), |engine| engine.progress_now(), happened)
    }

    #[inline(always)]
    fn progress_now(&mut self) -> Progress {
        let mut done = Progress::default();
        while done.packets < PACKETS_A_TURN {
            let step = self.step();
            done.packets += step.packets;
            done.failed = step.failed.or(done.failed);
            if step == Progress::default() {
                return done;
            }
        }
        // Packets may arrive without end; pending work must progress nevertheless.
        if self.first_work.is_some() {
            let work = self.work();
            done.packets += work.packets;
            done.failed = work.failed.or(done.failed);
        }
        done
    }

    /// Delivers one packet, or continues pending work if no packet has arrived. For a caller that waits for
    /// one request and wants to test it after each packet.
    #[inline(always)]
    pub fn step(&mut self) -> Progress {
        match self.port.poll() {
            Polled::Idle if self.first_work.is_some() => self.work(),
            polled => self.settle(polled),
        }
    }

    /// Processes the result of a poll.
    #[inline(always)]
    fn settle(&mut self, polled: Polled<P::Token>) -> Progress {
        match polled {
            Polled::Idle => Progress::default(),
            Polled::Packet(arrival) => {
                let peer = arrival.peer;
                self.trace.enter(arrival.envelope.kind.name(), arrival.len as u64);
                let delivered = self.deliver(arrival);
                self.trace.leave(true);
                match delivered {
                    Ok(()) => Progress { packets: 1, failed: None },
                    Err(fault) => self.step_failed(PeerFault { peer, fault }),
                }
            }
            Polled::Fault(fault) => self.step_failed(fault),
        }
    }

    /// Records that a peer has failed while its packets may still be undelivered (call [`Engine::drain`],
    /// then [`Engine::fail`]). Sends that were not announced to the peer fail now with
    /// [`Fate::PeerFailed`](super::CompletionError::PeerFailed). The others may have been received, and the
    /// peer may have confirmed them before it failed.
    pub fn depart(&mut self, peer: PeerId, failure: Failure) {
        if peer < self.size() && self.peer(peer).departed.is_none() && self.failure(peer).is_none() {
            self.peer(peer).departed = Some(failure);
            self.fail_queue(peer, PeerQueue::Pending, failure);
            self.fail_leaving(peer, failure);
        }
    }

    /// Delivers the remaining packets of a failed peer. Returns `true` when no valid packet is left; `false`
    /// after [`PACKETS_A_TURN`] packets: call again.
    #[cold]
    pub fn drain(&mut self, peer: PeerId) -> bool {
        for _ in 0..PACKETS_A_TURN {
            let polled = self.port.poll_peer(peer);
            if self.settle(polled).packets == 0 {
                return true;
            }
        }
        false
    }

    #[cold]
    fn step_failed(&mut self, fault: PeerFault) -> Progress {
        self.fail(fault.peer, Failure::of(fault.fault));
        Progress { packets: 0, failed: Some(fault.peer) }
    }

    /// Fails a peer: every request that only this peer could complete ends with
    /// [`Fate::PeerFailed`](super::CompletionError::PeerFailed). If the peer did not close its endpoint in
    /// order, or was the last peer, receives from any source fail too, until [`Engine::acknowledge`] (as in
    /// MPI's ULFM). Messages of the peer that arrived whole can still be received. The other peers are not
    /// affected.
    pub fn fail(&mut self, peer: PeerId, failure: Failure) {
        if peer >= self.size() || self.peer(peer).failure.is_some() {
            return;
        }
        self.trace.note("fail", peer.into());
        self.peer(peer).failure = Some(failure);
        self.peer(peer).assist = None;
        self.peer(peer).accesses = 0;
        self.peer(peer).tally.last = Some(self.port.traffic(peer));
        // The peer may be alive and still copying a message of its own; it must find no further part to copy.
        self.port.close_assist(peer);
        self.port.close(peer);
        self.fail_sends(peer, failure);
        let concerns_any = failure != Failure::Finished || self.is_alone();
        self.fail_receives(peer, failure, concerns_any);
        self.fail_rma_state(peer, failure, concerns_any);
        if concerns_any {
            self.any_source_failure = Some((peer, failure));
            self.peer(peer).unacknowledged = true;
        }
        self.close_account(peer);
    }

    /// Returns whether every other rank has failed.
    pub fn is_alone(&self) -> bool {
        (0..self.size()).all(|rank| rank == self.rank || self.failure(rank).is_some())
    }

    /// Acknowledges all failures so far: receives from any source can be posted again.
    pub fn acknowledge(&mut self) {
        self.any_source_failure = None;
        self.peers.borrow_mut().iter_mut().for_each(|peer| peer.unacknowledged = false);
    }

    pub(super) fn fault(&mut self, fault: PeerFault) {
        self.fail(fault.peer, Failure::of(fault.fault));
        self.found_out = Some(fault.peer);
        // The entry in the work list makes the next progress step report the failure.
        self.list_work(fault.peer);
    }
}
