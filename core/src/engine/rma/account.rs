//! The state of puts and accumulates whose target has left.
//!
//! They have no replies: a flush tells the origin that they are done. So before a process closes its endpoint,
//! it sends each peer the number of operations that it has executed, without a request
//! ([`Engine::settle_accounts`]). A flush after that succeeds if these were all.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut as _;

use crate::engine::request::{CompletionError, State};
use crate::engine::state::{Body, Due, Refused, RemoteOperation, both};
use crate::engine::unload::read;
use crate::engine::{Engine, Failure, RequestId, StartError, Status, Storage};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::port::{Arrival, PacketPieces, PeerFault, PeerId, Port, PortFault};
use crate::wire::rma::{ACCOUNT, ACCOUNT_BYTES, Confirm, Refusal, RmaOperation, Verb};
use crate::wire::{Envelope, Kind};

impl<P: Port, S: Storage> Engine<P, S> {
    /// Starts a flush. It is complete when all operations that were started before are done at the target. It
    /// fails with [`CompletionError::Refused`] if the target has refused operations since the last flush. If
    /// the target has left, the flush still succeeds if all operations were done before. If the target died,
    /// only the operations known to be done count.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn flush(&mut self, to: PeerId) -> Result<RequestId, StartError> {
        let gone = self.check_destination(to);
        match gone {
            // Nothing was ever sent to a rank that was not met.
            Err(_) if self.is_unmet(to) => {}
            Err(
                error @ (StartError::Rank { .. } | StartError::PeerFailed { failure: Failure::Absent, .. }),
            ) => return Err(error),
            _ => {}
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

    /// Sends each peer the number of its operations that were executed, so that the peer does not count them as
    /// lost. Call it before this process leaves. The packets leave at once, or as soon as there is space
    /// ([`Engine::sends_pending`]).
    pub fn settle_accounts(&mut self) {
        for peer in 0..self.size() {
            let is_there = peer != self.rank && self.check_destination(peer).is_ok();
            let rma_state = self.rma_state(peer);
            if is_there && rma_state.executed != rma_state.reported {
                rma_state.due.add(Due::ACCOUNT);
                self.rma_work_for(peer);
                if self.rma_state(peer).has_work() {
                    self.list_work(peer);
                }
            }
        }
    }

    /// Counts a packet of a put or an accumulate of a peer that was executed, or refused, and is not answered.
    pub(super) fn count_executed(&mut self, peer: PeerId, verb: Verb) {
        let counts = matches!(verb.operation, RmaOperation::Put | RmaOperation::Accumulate);
        if counts && verb.confirm == Confirm::No {
            self.rma_state(peer).executed += 1;
        }
    }

    /// Returns the refusals for the answer to a peer's flush. The peer then has the state of everything that
    /// was executed.
    pub(super) fn settle_flush(&mut self, peer: PeerId) -> Refused {
        let rma_state = self.rma_state(peer);
        rma_state.reported = rma_state.executed;
        rma_state.refused.take()
    }

    /// Sends a peer its account. Returns `false` if there is no space.
    pub(super) fn send_account(&mut self, peer: PeerId) -> Result<bool, PeerFault> {
        let rma_state = self.rma_state(peer);
        let (executed, refused) = (rma_state.executed, rma_state.refused);
        let (code, count) = refused.map_or((0, 0), |(refusal, count)| (refusal.code(), count));
        let bytes = count.to_le_bytes();
        let total = bytes.len() as u64;
        let envelope = Envelope { kind: Kind::RmaReply, context: ACCOUNT | code, tag: executed, total };
        if !self.port.send(peer, &envelope, PacketPieces::Whole(&bytes))? {
            return Ok(false);
        }
        self.peer(peer).tally.sent(Kind::RmaReply, total as usize);
        self.settle_flush(peer);
        self.rma_state(peer).due.remove(Due::ACCOUNT);
        Ok(true)
    }

    /// Handles the account of a peer that leaves. A number above the operations sent, or below an earlier
    /// report, is a fault.
    pub(super) fn deliver_account(&mut self, arrival: &Arrival<P::Token>) -> Result<(), PortFault> {
        let fault = PortFault::Protocol { kind: Kind::RmaReply };
        let refusal = Refusal::from_code(arrival.envelope.context & !ACCOUNT).ok_or(fault)?;
        if arrival.len != ACCOUNT_BYTES {
            return Err(fault);
        }
        let mut count = [0; ACCOUNT_BYTES];
        read(&self.port, arrival, 0, &mut count)?;
        let (executed, count) = (arrival.envelope.tag, u64::from_le_bytes(count));
        let rma_state = self.rma_state(arrival.peer);
        if !(rma_state.flushed..=rma_state.issued).contains(&executed) || refusal.is_some() != (count > 0) {
            return Err(fault);
        }
        rma_state.flushed = executed;
        rma_state.final_refusals = both(rma_state.final_refusals, refusal.map(|refusal| (refusal, count)));
        Ok(())
    }

    /// Starts a flush of a peer that is gone or leaves, or whose operations are all known to be done. It is
    /// complete at once, unless packets of the peer are still unread.
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

    /// Returns the result of the request, if it is a flush, when its peer is gone and no further packet can
    /// arrive.
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
        Some(refused.map_or(Ok(Status { peer, tag: 0, len: 0, immediate: None }), completion_error))
    }
}
