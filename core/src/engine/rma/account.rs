//! What is known of puts and accumulates when a peer is gone.
//!
//! They are not answered: their origin learns by a flush that they are done. A process that leaves in good order
//! therefore tells each peer, unasked, how many it has executed ([`Engine::settle_accounts`]). A flush after that
//! succeeds if those were all.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut as _;

use super::origin::{Body, RemoteOperation};
use crate::engine::request::{CompletionError, State};
use crate::engine::{Engine, RequestId, StartError, Status, Storage};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::port::{Arrival, MessagePort, PeerFault, PeerId, PortFault};
use crate::wire::rma::{ACCOUNT, ACCOUNT_BYTES, Refusal, RmaOperation};
use crate::wire::{Envelope, Kind};

/// What was refused: why first, and how often.
pub(super) type Refused = Option<(Refusal, u64)>;

/// Both of two refusals; the first reason counts.
pub(super) const fn both(first: Refused, second: Refused) -> Refused {
    match (first, second) {
        (Some((refusal, some)), Some((_, more))) => Some((refusal, some.saturating_add(more))),
        (Some(one), None) | (None, Some(one)) => Some(one),
        (None, None) => None,
    }
}

impl<P: MessagePort, S: Storage> Engine<P, S> {
    /// Starts a flush: complete when all operations that were started before are done at the target. Fails with
    /// [`CompletionError::Refused`] if some were refused since the last flush. A target that is gone does not matter if
    /// all were done before; as far as is known, they are not if it died.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn flush(&mut self, to: PeerId) -> Result<RequestId, StartError> {
        let gone = self.check_destination(to);
        if let Err(error @ StartError::Rank { .. }) = gone {
            return Err(error);
        }
        let flushed = self.rma_state(to).is_flushed();
        #[cfg(nemesia_injected_fault)]
        let flushed = flushed || injected(InjectedFault::ForgetFlush);
        if flushed || gone.is_err() {
            return self.flush_known(to);
        }
        let id = self.leave_or_wait(to, RemoteOperation::flush(to, None))?;
        self.count_operation(to, RmaOperation::Flush, 0);
        Ok(id)
    }

    /// Tells each peer how much of what it has sent is executed, so that it need not take that for lost: before this
    /// process leaves. Sent at once, or as soon as there is room ([`Engine::sends_pending`]).
    pub fn settle_accounts(&mut self) {
        for peer in 0..self.size() {
            let is_there = peer != self.rank && self.check_destination(peer).is_ok();
            let rma_state = self.rma_state(peer);
            if is_there && rma_state.executed != rma_state.reported {
                rma_state.account_is_pending = true;
                self.rma_work_for(peer);
                if self.rma_state(peer).has_work() {
                    self.list_work(peer);
                }
            }
        }
    }

    /// A put or an accumulate of a peer was executed, or refused.
    pub(super) fn count_executed(&mut self, peer: PeerId, operation: RmaOperation) {
        if matches!(operation, RmaOperation::Put | RmaOperation::Accumulate) {
            self.rma_state(peer).executed += 1;
        }
    }

    /// What a flush of a peer is answered with: afterwards it knows of everything that was executed.
    pub(super) fn settle_flush(&mut self, peer: PeerId) -> Refused {
        let rma_state = self.rma_state(peer);
        rma_state.reported = rma_state.executed;
        rma_state.refused.take()
    }

    /// Sends a peer its account. False when there is no room.
    pub(super) fn send_account(&mut self, peer: PeerId) -> Result<bool, PeerFault> {
        let rma_state = self.rma_state(peer);
        let (executed, refused) = (rma_state.executed, rma_state.refused);
        let (code, count) = refused.map_or((0, 0), |(refusal, count)| (refusal.code(), count));
        let bytes = count.to_le_bytes();
        let total = bytes.len() as u64;
        let envelope = Envelope { kind: Kind::RmaReply, context: ACCOUNT | code, tag: executed, total };
        if !self.port.send(peer, &envelope, &bytes)? {
            return Ok(false);
        }
        self.peer(peer).tally.sent(Kind::RmaReply, total as usize);
        self.settle_flush(peer);
        self.rma_state(peer).account_is_pending = false;
        Ok(true)
    }

    /// A peer that leaves says how much it has executed. More than was sent, or less than it has said before, is a lie.
    pub(super) fn deliver_account(&mut self, arrival: &Arrival<P::Token>) -> Result<(), PortFault> {
        let fault = PortFault::Protocol { kind: Kind::RmaReply };
        let refusal = Refusal::from_code(arrival.envelope.context & !ACCOUNT).ok_or(fault)?;
        if arrival.len != ACCOUNT_BYTES {
            return Err(fault);
        }
        let mut count = [0; ACCOUNT_BYTES];
        self.port.read(arrival, 0, &mut count);
        let (executed, count) = (arrival.envelope.tag, u64::from_le_bytes(count));
        let rma_state = self.rma_state(arrival.peer);
        if !(rma_state.flushed..=rma_state.issued).contains(&executed) || refusal.is_some() != (count > 0) {
            return Err(fault);
        }
        rma_state.flushed = executed;
        rma_state.final_refusals = both(rma_state.final_refusals, refusal.map(|refusal| (refusal, count)));
        Ok(())
    }

    /// Starts a flush of a peer that is gone or departs, or of one of which everything is known to be done: complete at
    /// once, unless the peer's last packets are still to be looked at.
    fn flush_known(&mut self, peer: PeerId) -> Result<RequestId, StartError> {
        let lost = self.rma_state(peer).lost;
        #[cfg(nemesia_injected_fault)]
        let lost = lost && !injected(InjectedFault::AssumeDone);
        if lost {
            self.check_destination(peer)?;
        }
        if self.failure(peer).is_none() && !self.rma_state(peer).is_flushed() {
            let issued = self.rma_state(peer).issued;
            let index = self.start(State::Remote(RemoteOperation::flush(peer, Some(issued))))?;
            self.rma_state(peer).in_flight += 1;
            self.await_answer(peer, index);
            return Ok(self.id(index));
        }
        let Some((refusal, count)) = self.rma_state(peer).final_refusals else { return Ok(RequestId::SENT) };
        let index = self.start(State::Done(Err(CompletionError::Refused { peer, refusal, count })))?;
        self.rma_state(peer).final_refusals = None;
        Ok(self.id(index))
    }

    /// What comes of a flush, if this request is one, when its peer is gone and nothing more comes of it.
    pub(super) fn result_of_flush(
        &mut self,
        peer: PeerId,
        index: u32,
    ) -> Option<Result<Status, CompletionError>> {
        let State::Remote(RemoteOperation { body: Body::Nothing { issued, .. }, .. }) =
            &self.requests.get(index).0
        else {
            return None;
        };
        let issued = *issued;
        let rma_state = &mut self.peers.borrow_mut()[peer as usize].rma_state;
        let lost = rma_state.lost || rma_state.flushed < issued;
        #[cfg(nemesia_injected_fault)]
        let lost = lost && !injected(InjectedFault::AssumeDone);
        if lost {
            return None;
        }
        let refused = rma_state.final_refusals.take();
        let completion_error = |(refusal, count)| Err(CompletionError::Refused { peer, refusal, count });
        Some(refused.map_or(Ok(Status { peer, tag: 0, len: 0 }), completion_error))
    }
}
