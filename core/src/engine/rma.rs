//! One-sided operations: put, get and atomic operations on memory that another process exposes. The target
//! process only has to call [`Engine::progress`].
//!
//! | file | contents |
//! |---|---|
//! | `rma/region.rs` | exposed memory regions |
//! | `rma/origin.rs` | starting operations; sending requests; handling replies |
//! | `rma/target.rs` | executing requests; sending replies |
//! | `rma/account.rs` | the state of operations whose target has left |
//! | `rma/reduce.rs` | arithmetic |
//!
//! Invariants:
//! - The target executes the operations of one origin in the order started, atomic ones included (MPI's
//!   default accumulate ordering). Only a get may observe writes of operations started after it, unless a
//!   fence separates them. Atomic operations of all origins on one value are atomic with respect to each
//!   other.
//! - A put is complete when its bytes have left the buffer. A get or fetch is complete when the value has
//!   arrived. When a flush is complete, all operations before it are done at the target. The outcome of a put
//!   or an accumulate is known only then.
//! - A target stores no request: it executes each request on arrival. It stores replies for which there is no
//!   space, at most [`WINDOW`] for each origin, because an origin starts no more. Two processes that flood
//!   each other with gets always consume each other's packets, so space for the replies becomes free again.
//! - If a request lacks access rights, the target refuses it and continues. If a request is malformed, it
//!   counts as a fault of its sender.
#![forbid(unsafe_code)]

mod account;
mod origin;
mod reduce;
mod region;
mod target;
#[cfg(test)]
mod tests;

pub use super::state::RegionId;
pub use origin::Target;
pub use reduce::combine;
pub use region::ExposedRegion;
pub(super) use region::Regions;
pub use target::Reply;

use core::borrow::Borrow;

use super::active::Handlers as _;
use super::request::{CompletionError, State};
use super::state::RmaState;
use super::{Engine, Failure, PACKETS_A_TURN, Peer, RequestId, StartError, Status, Storage};
use crate::payload::Exposed;
use crate::port::{PeerFault, PeerId, Port};
use crate::slab::Slot;
pub use crate::wire::rma::{Access, Datatype, Reduction, Refusal, RemoteKey, WINDOW};

/// Memory of a region, for its owner, while the engine is borrowed. The description itself is not handed out: a caller
/// could exchange it, keep it until the region is unexposed, and use memory that is freed by then.
#[derive(Debug)]
pub struct RegionMemory<'a>(&'a mut Exposed);

impl RegionMemory<'_> {
    /// As [`Exposed::read`].
    pub fn read(&self, at: usize, to: &mut [u8]) -> bool {
        self.0.read(at, to)
    }

    /// As [`Exposed::write`]. Only for memory that may be written.
    pub fn write(&mut self, at: usize, from: &[u8]) -> bool {
        self.0.write(at, from)
    }
}

impl<P: Port, S: Storage> Engine<P, S> {
    /// Exposes memory to peers until [`Engine::unexpose`]. `key` is the secret that grants access: it must be
    /// random and new for each call. `None` if every region is in use.
    pub fn expose(&mut self, memory: Exposed, access: Access, key: u64) -> Option<RegionId> {
        self.regions.insert(ExposedRegion { memory, key, access, ..ExposedRegion::default() })
    }

    /// Unexposes the memory. Requests for it are refused from now on, and requests that wait for its
    /// notifications are cancelled. Returns `false` if there is no such region.
    pub fn unexpose(&mut self, id: RegionId) -> bool {
        let Some(mut region) = self.regions.remove(id) else { return false };
        while let Some(index) = self.requests.pop_front(&mut region.waiting) {
            self.complete(index, Err(CompletionError::Cancelled));
        }
        true
    }

    /// Returns the key that peers need to access a region.
    pub fn remote_key(&mut self, id: RegionId) -> Option<RemoteKey> {
        let rank = self.rank;
        let region = self.regions.find(id)?;
        let len = region.memory.len() as u64;
        Some(RemoteKey { rank, region: id.number(), key: region.key, len, access: region.access, share: 0 })
    }

    /// Returns the memory of a region for its owner.
    pub fn region_memory(&mut self, id: RegionId) -> Option<RegionMemory<'_>> {
        self.regions.find(id).map(|region| RegionMemory(&mut region.memory))
    }

    /// Makes place for `count` more regions.
    pub fn grow_regions(&mut self, count: usize)
    where
        S::Regions: Extend<Slot<ExposedRegion>>,
    {
        self.regions.grow(count);
    }

    /// Returns the capacity for regions and the number of regions in use.
    pub fn region_count(&self) -> (usize, usize) {
        (self.regions.capacity(), self.regions.used())
    }

    /// Returns the number of completed puts with notification in a region since it was exposed.
    pub fn notifications(&mut self, id: RegionId) -> Option<u64> {
        self.regions.find(id).map(|region| region.notified)
    }

    /// Starts a request that completes when a region has had `count` notifications since it was exposed. If a
    /// peer fails, the request fails under the same conditions as a receive from any source.
    ///
    /// # Errors
    /// See [`StartError`]; [`StartError::Region`] if there is no such region.
    pub fn await_notifications(&mut self, id: RegionId, count: u64) -> Result<RequestId, StartError> {
        let region = self.regions.find(id).ok_or(StartError::Region)?;
        let done = region.notified >= count;
        if !done && let Some((peer, failure)) = self.any_source_failure {
            return Err(StartError::PeerFailed { peer, failure });
        }
        let index = self.start(State::Notified { region: id, count })?;
        if done {
            self.complete_notified(index);
        } else if let Some(region) = self.regions.find(id) {
            self.requests.push_back(&mut region.waiting, index);
        }
        Ok(self.id(index))
    }

    fn complete_notified(&mut self, index: u32) {
        self.complete(index, Ok(Status { peer: self.rank, tag: 0, len: 0 }));
    }

    /// Cancels a request that waits for notifications.
    pub(super) fn cancel_notified(&mut self, index: u32, region: RegionId) {
        if let Some(region) = self.regions.find(region) {
            self.requests.unlink(&mut region.waiting, index);
        }
        self.complete(index, Err(CompletionError::Cancelled));
    }

    fn rma_state(&mut self, peer: PeerId) -> &mut RmaState {
        &mut self.peer(peer).rma_state
    }

    /// Returns whether a request to a peer can leave at once, because none is queued before it.
    #[inline]
    pub(super) fn may_leave(&self, to: PeerId) -> bool {
        let peers: &[Peer] = self.peers.borrow();
        peers.get(to as usize).is_some_and(|peer| peer.rma_state.leaving.is_empty())
    }

    /// Queues an operation that cannot leave at once, as a request.
    pub(super) fn wait_to_leave(&mut self, to: PeerId, state: State) -> Result<RequestId, StartError> {
        let index = self.start(state)?;
        self.queue_to_leave(to, index);
        self.list_work(to);
        Ok(self.id(index))
    }

    fn queue_to_leave(&mut self, to: PeerId, index: u32) {
        // The list is a field of the peer, so it is copied, changed and stored back.
        let mut list = self.rma_state(to).leaving;
        self.requests.push_back(&mut list, index);
        self.rma_state(to).leaving = list;
    }

    /// Removes a request that was sent from the queue.
    pub(super) fn left(&mut self, to: PeerId, index: u32) {
        let mut list = self.rma_state(to).leaving;
        self.requests.unlink(&mut list, index);
        self.rma_state(to).leaving = list;
    }

    /// Sends queued replies and requests to one peer while there is space. Replies leave first, so that the
    /// peer's requests do not wait for ours. Returns the number of packets sent.
    pub(super) fn rma_work_for(&mut self, peer: PeerId) -> usize {
        let mut sent = 0;
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
    pub(super) fn fail_leaving(&mut self, peer: PeerId, failure: Failure) {
        let mut leaving = core::mem::take(&mut self.rma_state(peer).leaving);
        while let Some(index) = self.requests.pop_front(&mut leaving) {
            let RmaState { issued, lost, .. } = *self.rma_state(peer);
            match &mut self.requests.get_mut(index).0 {
                State::Fence => self.requests.remove(index),
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
    pub(super) fn fail_rma_state(&mut self, peer: PeerId, failure: Failure, concerns_any: bool) {
        self.fail_leaving(peer, failure);
        if self.rma_state(peer).assembly.is_some() {
            self.handlers.drop_parts(peer);
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
        let RmaState { issued, flushed, final_refusals, lost, .. } = core::mem::take(self.rma_state(peer));
        let lost = lost || issued != flushed;
        *self.rma_state(peer) = RmaState { final_refusals, lost, ..RmaState::default() };
        while let Some(reply) = self.replies.pop_front(&mut replies) {
            self.replies.remove(reply);
        }
        if concerns_any {
            let Self { regions, requests, .. } = self;
            regions.each(|region| {
                while let Some(index) = requests.pop_front(&mut region.waiting) {
                    requests.get_mut(index).0 = State::Done(completion_error);
                }
            });
        }
    }
}
