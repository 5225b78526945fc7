//! The queues of one-sided operations and active messages to a peer: they leave in the order started, and end if the
//! peer fails. The state is [`RmaState`].
#![forbid(unsafe_code)]

use core::borrow::Borrow;

use crate::engine::request::{CompletionError, State, complete};
use crate::engine::state::RmaState;
use crate::engine::{Engine, Failure, PACKETS_A_TURN, Peer, RequestId, StartError, Storage};
use crate::port::{PeerFault, PeerId, Port};

impl<P: Port, S: Storage> Engine<P, S> {
    /// Returns whether a request to a peer can leave at once, because none is queued before it.
    #[inline]
    pub(in crate::engine) fn may_leave(&self, to: PeerId) -> bool {
        let peers: &[Peer] = self.peers.borrow();
        peers.get(to as usize).is_some_and(|peer| peer.rma_state.leaving.is_empty())
    }

    /// Queues an operation that cannot leave at once, as a request.
    pub(in crate::engine) fn wait_to_leave(
        &mut self,
        to: PeerId,
        state: State,
    ) -> Result<RequestId, StartError> {
        let index = self.start(state)?;
        self.queue_to_leave(to, index);
        self.list_work(to);
        Ok(self.id(index))
    }

    pub(super) fn queue_to_leave(&mut self, to: PeerId, index: u32) {
        // The list is a field of the peer, so it is copied, changed and stored back.
        let mut list = self.rma_state(to).leaving;
        self.requests.push_back(&mut list, index);
        self.rma_state(to).leaving = list;
    }

    /// Removes a request that was sent from the queue.
    pub(in crate::engine) fn left(&mut self, to: PeerId, index: u32) {
        let mut list = self.rma_state(to).leaving;
        self.requests.unlink(&mut list, index);
        self.rma_state(to).leaving = list;
    }

    /// Sends queued replies and requests to one peer while there is space. Replies leave first, so that the
    /// peer's requests do not wait for ours. Returns the number of packets sent.
    pub(in crate::engine) fn rma_work_for(&mut self, peer: PeerId) -> usize {
        let mut sent = 0;
        if self.rma_state(peer).withdrawal_is_unanswered {
            match self.answer_withdrawals(peer) {
                Ok(answered) => sent += usize::from(answered),
                Err(fault) => self.fault(fault),
            }
        }
        // The loop is bounded, because the peer may free space while this process sends.
        while sent < PACKETS_A_TURN {
            let done = match self.rma_state(peer).replies.first() {
                Some(reply) => self.send_reply(peer, reply),
                None if self.rma_state(peer).account_is_pending => self.send_account(peer),
                None => match self.rma_state(peer).leaving.first() {
                    Some(index) => self.leave(peer, index),
                    None => break,
                },
            };
            match done {
                Ok(true) => sent += 1,
                Ok(false) => break,
                Err(fault) => self.fault(fault),
            }
        }
        sent
    }

    fn leave(&mut self, to: PeerId, index: u32) -> Result<bool, PeerFault> {
        match &self.requests.get(index).0 {
            State::Active(message) => {
                let message = message.alias();
                self.leave_active(to, index, &message)
            }
            State::Fence => {
                if self.rma_state(to).in_flight > 0 {
                    return Ok(false);
                }
                self.left(to, index);
                self.requests.remove(index);
                Ok(true)
            }
            _ => self.leave_remote(to, index),
        }
    }

    /// Fails the requests that a departed peer will not receive. Its answers to earlier requests may still
    /// arrive, and so may its report for flushes.
    pub(in crate::engine) fn fail_leaving(&mut self, peer: PeerId, failure: Failure) {
        let mut leaving = core::mem::take(&mut self.rma_state(peer).leaving);
        while let Some(index) = self.requests.pop_front(&mut leaving) {
            let RmaState { issued, lost, .. } = *self.rma_state(peer);
            match &mut self.requests.get_mut(index).0 {
                State::Fence => self.requests.remove(index),
                State::Remote(remote) if let Some(slot) = remote.direct => {
                    self.abandon_direct(peer, index, slot);
                }
                // A part has been sent, and its answers may still arrive.
                State::Remote(remote) if remote.is_awaited() => self.await_answer(peer, index),
                State::Remote(remote) => {
                    if !lost && remote.await_account(issued) {
                        self.rma_state(peer).in_flight += 1;
                        self.await_answer(peer, index);
                    } else {
                        self.rma_state(peer).lost = true;
                        self.complete(index, Err(CompletionError::PeerFailed { peer, failure }));
                    }
                }
                _ => self.complete(index, Err(CompletionError::PeerFailed { peer, failure })),
            }
        }
    }

    /// Fails all operations with a failed peer. If `concerns_any`, requests that wait for notifications of
    /// any peer fail too.
    pub(in crate::engine) fn fail_rma_state(&mut self, peer: PeerId, failure: Failure, concerns_any: bool) {
        self.fail_leaving(peer, failure);
        if self.rma_state(peer).assembly.is_some() {
            self.active.drop_parts(peer);
        }
        let completion_error = Err(CompletionError::PeerFailed { peer, failure });
        let (mut awaited, mut replies) = {
            let rma_state = self.rma_state(peer);
            (core::mem::take(&mut rma_state.awaited), core::mem::take(&mut rma_state.replies))
        };
        while let Some(index) = self.requests.pop_front(&mut awaited) {
            let done = self.result_of_flush(peer, index);
            self.rma_state(peer).lost |= done.is_none();
            self.complete(index, done.unwrap_or(completion_error));
        }
        self.direct.forget(peer);
        let RmaState { issued, flushed, final_refusals, lost, .. } = core::mem::take(self.rma_state(peer));
        let lost = lost || issued != flushed;
        *self.rma_state(peer) = RmaState { final_refusals, lost, ..RmaState::default() };
        while let Some(reply) = self.replies.pop_front(&mut replies) {
            self.replies.remove(reply);
        }
        if concerns_any {
            let Self { regions, requests, completions, .. } = self;
            regions.each(|region| {
                while let Some(index) = requests.pop_front(&mut region.waiting) {
                    complete(requests, completions, index, completion_error);
                }
            });
        }
    }

    pub(super) fn rma_state(&mut self, peer: PeerId) -> &mut RmaState {
        &mut self.peer(peer).rma_state
    }
}
