//! One turn of the crank, and failures.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::peer::Queue;
use super::{Engine, Failure, Storage};
use crate::port::{MessagePort, PeerFault, PeerId, Polled};
use crate::trace::Recorder as _;

/// Most packets that one call of [`Engine::progress`] delivers.
pub const PACKETS_A_TURN: usize = 64;

/// What a call of [`Engine::progress`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Packets delivered and sent, and pieces copied. 0 means that there was nothing to do.
    pub packets: usize,
    /// A peer has failed since the last call, and its requests are complete.
    pub failed: Option<PeerId>,
}

impl<P: MessagePort, S: Storage> Engine<P, S> {
    /// Delivers packets that have come, and goes on with what is pending; bounded work, never blocks.
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
        // Packets do not stop coming; what is pending has its turn all the same.
        if self.first_work.is_some() {
            let work = self.work();
            done.packets += work.packets;
            done.failed = work.failed.or(done.failed);
        }
        done
    }

    /// Delivers one packet, or, when none has come, goes on with what is pending: for a caller that waits for one request
    /// and would rather look at it at once.
    #[inline(always)]
    pub fn step(&mut self) -> Progress {
        match self.port.poll() {
            Polled::Idle if self.first_work.is_some() => self.work(),
            polled => self.settle(polled),
        }
    }

    /// Deals with what a poll found.
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

    /// A peer is gone, but what it has sent is still to be taken ([`Engine::drain`], then [`Engine::fail`]): sends of which it
    /// was not told end now with [`Fate::PeerFailed`](super::Fate::PeerFailed). The others may have been received: it may
    /// have said so before it went.
    pub fn depart(&mut self, peer: PeerId, failure: Failure) {
        if peer < self.size() && self.peer(peer).departed.is_none() && self.failure(peer).is_none() {
            self.peer(peer).departed = Some(failure);
            self.fail_queue(peer, Queue::Pending, failure);
            self.fail_leaving(peer, failure);
        }
    }

    /// Takes what a peer that is gone has left behind. True when nothing is left, or what is left is worthless; false
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
        self.fail(fault.peer, Failure::Fault(fault.fault));
        Progress { packets: 0, failed: Some(fault.peer) }
    }

    /// A peer is gone: every request that only it could complete ends with
    /// [`Fate::PeerFailed`](super::Fate::PeerFailed). If it did not finish in good order, or was the last,
    /// receives from any source do too, until [`Engine::acknowledge`] (as MPI's ULFM has it). Messages of it
    /// that have come whole can still be received. The other peers go on.
    pub fn fail(&mut self, peer: PeerId, failure: Failure) {
        if peer >= self.size() || self.peer(peer).failure.is_some() {
            return;
        }
        self.trace.note("fail", peer.into());
        self.peer(peer).failure = Some(failure);
        self.peer(peer).help = None;
        self.peer(peer).tally.last = Some(self.port.traffic(peer));
        // It may live, and copy a message of its own: from now on it finds nothing more to copy.
        self.port.close_share(peer);
        self.port.close(peer);
        self.fail_sends(peer, failure);
        let concerns_any = failure != Failure::Finished || self.is_alone();
        self.fail_receives(peer, failure, concerns_any);
        self.fail_side(peer, failure, concerns_any);
        if concerns_any {
            self.any_source_failure = Some((peer, failure));
            self.peer(peer).unacknowledged = true;
        }
        self.close_account(peer);
    }

    /// Whether every other rank is gone.
    pub fn is_alone(&self) -> bool {
        (0..self.size()).all(|rank| rank == self.rank || self.failure(rank).is_some())
    }

    /// The caller knows of the failures so far: receives from any source can be posted again.
    pub fn acknowledge(&mut self) {
        self.any_source_failure = None;
        self.peers.borrow_mut().iter_mut().for_each(|peer| peer.unacknowledged = false);
    }

    pub(super) fn fault(&mut self, fault: PeerFault) {
        self.fail(fault.peer, Failure::Fault(fault.fault));
        self.found_out = Some(fault.peer);
        // So that the next turn tells.
        self.list_work(fault.peer);
    }
}
