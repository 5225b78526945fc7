//! Peers that fail, and peers that return.
//!
//! A peer fails if its process dies, if it leaves, or if its connection breaks, usually because it violated the
//! protocol. The other peers are not affected. MPI's ULFM is the model for receives from any source, unless they
//! are set to outlive failures.
//!
//! | state of the peer | meaning | ends with |
//! |---|---|---|
//! | connected | Requests with it proceed. | [`Engine::depart`], [`Engine::fail`] |
//! | departed | Nothing can be sent to it. Packets that it sent before may still be delivered ([`Engine::drain`]). | [`Engine::fail`] |
//! | failed | All requests that only it could complete have ended, but for one ([`Engine::writes_late`]). Messages that arrived whole can be received. | [`Engine::reconnect`], [`Engine::add_peer`] |
//!
//! | file | contents |
//! |---|---|
//! | `failure.rs` | the end of a peer, and of the requests that involve it |
//! | `failure/reconnect.rs` | peers that connect again, or late |
//! | `failure/unmet.rs` | ranks of a world that are connected when they are first needed |
//!
//! The rooms end what is theirs: `close_account` (`eager/credit.rs`), `fail_rma_state` (`rma/queue.rs`).
#![forbid(unsafe_code)]

mod reconnect;
#[cfg(test)]
mod tests;
mod unmet;

use core::borrow::{Borrow as _, BorrowMut as _};

use super::peer::PeerQueue;
use super::request::{CompletionError, State, end_posted};
use super::state::{Progress, WorkList};
use super::{Engine, Failure, Storage};
use crate::matching::{Pattern, Source};
use crate::port::{PeerFault, PeerId, Port};
use crate::trace::Recorder as _;
pub(in crate::engine) use unmet::UnmetRanks;

/// The failures that calls must still report.
#[derive(Debug, Default)]
pub(in crate::engine) struct Failures {
    /// The most recent failure that receives from any source must report; see [`Engine::acknowledge`].
    pub(in crate::engine) any_source: Option<(PeerId, Failure)>,
    /// Whether receives from any source outlive failures.
    pub(in crate::engine) outlived: bool,
    /// A peer that failed outside of a poll, and that [`Engine::progress`] has not yet reported.
    pub(in crate::engine) unreported: Option<PeerId>,
    /// The peers whose failure [`Engine::next_ended`] has not returned; only those that were added one by one.
    pub(in crate::engine) ended: WorkList,
}

impl<P: Port, S: Storage> Engine<P, S> {
    /// Returns why a rank failed; `None` if it has not failed.
    pub fn failure(&self, peer: PeerId) -> Option<Failure> {
        // A rank that was not met has not failed.
        let failure = self.peers.borrow().get(peer as usize)?.failure;
        failure.filter(|failure| !self.is_rank(peer) || *failure != Failure::Absent)
    }

    /// Records that a peer has failed while its packets may still be undelivered (call [`Engine::drain`],
    /// then [`Engine::fail`]). Sends that were not announced to the peer fail now with
    /// [`CompletionError::PeerFailed`]. The others may have been received, and the
    /// peer may have confirmed them before it failed.
    pub fn depart(&mut self, peer: PeerId, failure: Failure) {
        if peer < self.size() && self.peer(peer).departed.is_none() && self.failure(peer).is_none() {
            self.meet(peer);
            self.peer(peer).departed = Some(failure);
            self.fail_queue(peer, PeerQueue::Pending, failure);
            self.fail_leaving(peer, failure);
        }
    }

    /// Fails a peer: every request that only this peer could complete ends with
    /// [`CompletionError::PeerFailed`]. If the peer is a rank that did not close its endpoint in
    /// order, or was the last peer, receives from any source fail too, until [`Engine::acknowledge`] (as in
    /// MPI's ULFM); unless they outlive failures ([`Engine::outlive_failures`]). Messages of the peer that arrived
    /// whole can still be received. The other peers are not affected.
    ///
    /// A peer that fails by [`Failure::Fault`] lives, and may be writing its part of a message into the buffer of a
    /// receive. That receive ends when the peer has done so, or when this is called for another failure: the peer is
    /// dead, or has left. Until then [`Engine::writes_late`].
    pub fn fail(&mut self, peer: PeerId, failure: Failure) {
        if peer >= self.size() {
            return;
        }
        let lives = matches!(failure, Failure::Fault(_));
        if self.failure(peer).is_some() {
            if !lives {
                self.end_late(peer);
            }
            return;
        }
        self.meet(peer);
        if lives {
            self.keep_late(peer);
        }
        self.trace.note("fail", peer.into());
        self.peer(peer).failure = Some(failure);
        self.peer(peer).assist = None;
        self.peer(peer).unasked = None;
        self.peer(peer).accesses = 0;
        self.peer(peer).tally.last = Some(self.port.traffic(peer));
        // The peer may be alive and still copying a message of its own; it must find no further part to copy.
        self.port.close_assist(peer);
        self.port.close(peer);
        self.fail_sends(peer, failure);
        let is_loss = failure != Failure::Finished && (self.is_rank(peer) || self.ranks == 0);
        let concerns_any = !self.failures.outlived && (is_loss || self.is_alone());
        self.fail_receives(peer, failure, concerns_any);
        self.fail_rma_state(peer, failure, concerns_any);
        if concerns_any {
            self.failures.any_source = Some((peer, failure));
            self.peer(peer).unacknowledged = true;
        }
        self.close_account(peer);
        self.report_ended(peer);
    }

    /// Makes [`Engine::next_ended`] return a failed peer, once it writes no more.
    pub(in crate::engine) fn report_ended(&mut self, peer: PeerId) {
        if !self.is_rank(peer) && !self.writes_late(peer) {
            self.failures.ended.add(peer, &mut self.peers.borrow_mut()[peer as usize].next_ended);
        }
    }

    /// Returns whether a failed peer may be writing into the buffer of a receive that has not ended. The connection
    /// shows whether the peer is dead, so the layer above keeps it, and the peer's segments.
    pub fn writes_late(&self, peer: PeerId) -> bool {
        self.peers.borrow().get(peer as usize).is_some_and(|it| it.late.is_some())
    }

    #[cold]
    pub(in crate::engine) fn step_failed(&mut self, fault: PeerFault) -> Progress {
        self.fail(fault.peer, Failure::of(fault.fault));
        Progress { packets: 0, failed: Some(fault.peer) }
    }

    pub(in crate::engine) fn fault(&mut self, fault: PeerFault) {
        self.fail(fault.peer, Failure::of(fault.fault));
        self.failures.unreported = Some(fault.peer);
        // The entry in the work list makes the next progress step report the failure.
        self.list_work(fault.peer);
    }

    /// Returns whether every other rank, and every further peer, has failed.
    pub fn is_alone(&self) -> bool {
        (0..self.size()).all(|rank| rank == self.rank || self.failure(rank).is_some())
    }

    /// Sets whether receives from any source, and waits for notifications, outlive the failures of peers, even of the
    /// last one. They then wait for messages of this process itself and of peers that connect later. Initially they do
    /// not. Past failures that are not acknowledged stay so.
    pub const fn outlive_failures(&mut self, outlive: bool) {
        self.failures.outlived = outlive;
    }

    /// Acknowledges all failures so far: receives from any source can be posted again.
    pub fn acknowledge(&mut self) {
        self.failures.any_source = self.unmet_failure();
        self.peers.borrow_mut().iter_mut().for_each(|peer| peer.unacknowledged = false);
    }

    /// Fails every send to a failed peer.
    pub(in crate::engine) fn fail_sends(&mut self, peer: PeerId, failure: Failure) {
        for queue in PeerQueue::SENDS {
            self.fail_queue(peer, queue, failure);
        }
    }

    /// Fails every receive whose bytes a failed peer was sending.
    pub(in crate::engine) fn fail_transfers(&mut self, peer: PeerId, failure: Failure) {
        for queue in PeerQueue::RECEIVES {
            self.fail_queue(peer, queue, failure);
        }
        self.selections.forget(peer);
    }

    pub(in crate::engine) fn fail_queue(&mut self, peer: PeerId, queue: PeerQueue, failure: Failure) {
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

    /// Fails the receives that only the failed peer could satisfy. If `concerns_any`, those from any source fail too.
    pub(in crate::engine) fn fail_receives(&mut self, peer: PeerId, failure: Failure, concerns_any: bool) {
        self.fail_transfers(peer, failure);
        let completion_error = Err(CompletionError::PeerFailed { peer, failure });
        let listens = |pattern: &Pattern| match pattern.source {
            Source::Rank(rank) => rank == peer,
            Source::Any => concerns_any,
        };
        let Self { posted, requests, completions, .. } = self;
        posted.extract(requests, listens, |requests, index| {
            end_posted(requests, completions, index, completion_error);
        });
    }
}
