//! One-sided operations: put, get and atomic operations on memory that another process exposes, without its taking part
//! beyond calling [`Engine::progress`].
//!
//! | file | what it holds |
//! |---|---|
//! | `rma/region.rs` | memory that peers may use |
//! | `rma/origin.rs` | starting operations; requests that leave; replies that come |
//! | `rma/target.rs` | executing requests; replies that leave |
//! | `rma/account.rs` | what is known of operations when a peer is gone |
//! | `rma/reduce.rs` | arithmetic |
//!
//! What is always true:
//! - Operations of one origin on one target are executed in the order started, atomic ones included (MPI's default
//!   accumulate ordering). Only a get may see what is written by operations started after it, unless there is a fence
//!   between them. Atomic operations of all origins on one value are atomic with respect to each other.
//! - A put is complete when its bytes have left the buffer, a get or fetch when the value is here; all before a flush are
//!   done at the target when the flush is complete. What a put or an accumulate met with is known only then.
//! - A target stores no request: it executes each as it comes. What it stores is replies that find no room, and of those at
//!   most [`WINDOW`] an origin, as the origin starts no more: two processes that flood each other with gets always take
//!   each other's packets, so room for the replies comes back.
//! - A request that asks for what it may not have is refused, and the target goes on; one that makes no sense is a fault of
//!   its sender.
#![forbid(unsafe_code)]

mod account;
mod origin;
mod reduce;
mod region;
mod target;

pub(super) use origin::Remote;
pub use origin::Target;
pub use reduce::combine;
pub(super) use region::Regions;
pub use region::{Region, RegionId};
pub use target::Reply;

use core::borrow::Borrow;

use super::active::{Assembly, Handlers as _};
use super::request::{Fate, State};
use super::{Engine, Failure, PACKETS_A_TURN, Peer, RequestId, StartError, Status, Storage};
use crate::payload::Exposed;
use crate::port::{MessagePort, PeerFault, PeerId};
use crate::slab::List;
pub use crate::wire::rma::{Access, Datatype, Reduction, Refusal, RemoteKey, WINDOW};

/// What is between us and one peer, besides messages.
#[derive(Debug, Default)]
pub(super) struct Side {
    /// Requests that wait for room or a place in the window, in order: active messages too.
    leaving: List,
    /// Requests that have left and that the peer has to answer, in order.
    awaited: List,
    /// How many those are.
    in_flight: u32,
    /// Puts and accumulates sent, and how many of them a flush has seen done.
    issued: u64,
    flushed: u64,
    /// Our replies that wait for room, in order.
    replies: List,
    reply_count: u32,
    /// What was refused to the peer since its last flush: how often, and why first.
    refused: Option<(Refusal, u64)>,
    /// Puts and accumulates of the peer that were executed here, in packets; and how many of them it was told of.
    executed: u64,
    told: u64,
    /// It is to be told of the rest, as we leave.
    owes_account: bool,
    /// What was refused to us, as the peer has said before it left, and no flush has reported.
    reported: account::Refused,
    /// The peer is gone, and something that was started is not known to be done.
    lost: bool,
    /// The active message of the peer of which a part has come.
    pub(super) assembly: Option<Assembly>,
}

impl Side {
    /// Whether something may go on without hearing from the peer.
    pub(super) const fn has_work(&self) -> bool {
        !self.leaving.is_empty() || !self.replies.is_empty() || self.owes_account
    }

    /// Whether nothing of ours may be undone at the peer.
    const fn is_flushed(&self) -> bool {
        self.issued == self.flushed && self.leaving.is_empty() && self.in_flight == 0
    }
}

/// Memory of a region, for its owner, while the engine is borrowed. The description itself is not handed out: a caller could exchange
/// it, keep it until the region is concealed, and use memory that is freed by then.
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

impl<P: MessagePort, S: Storage> Engine<P, S> {
    /// Lets peers use memory until [`Engine::conceal`]. `key` is the secret that opens it: random, and new each time.
    /// `None` when every region is in use.
    pub fn expose(&mut self, memory: Exposed, access: Access, key: u64) -> Option<RegionId> {
        self.regions.insert(Region { memory, key, access, ..Region::default() })
    }

    /// Takes the memory back: from now on requests for it are refused, and those that wait for its notifications are
    /// cancelled. False when there is no such region.
    pub fn conceal(&mut self, id: RegionId) -> bool {
        let Some(mut region) = self.regions.remove(id) else { return false };
        while let Some(index) = self.requests.pop_front(&mut region.waiting) {
            self.complete(index, Err(Fate::Cancelled));
        }
        true
    }

    /// What others need to use a region.
    pub fn remote_key(&mut self, id: RegionId) -> Option<RemoteKey> {
        let rank = self.rank;
        let region = self.regions.find(id)?;
        let len = region.memory.len() as u64;
        Some(RemoteKey { rank, region: id.number(), key: region.key, len, access: region.access, share: 0 })
    }

    /// The memory of a region, for its owner.
    pub fn region_memory(&mut self, id: RegionId) -> Option<RegionMemory<'_>> {
        self.regions.find(id).map(|region| RegionMemory(&mut region.memory))
    }

    /// The storage of regions, for its owner to let it grow. It must never shrink.
    pub fn regions_mut(&mut self) -> &mut S::Regions {
        self.regions.storage_mut()
    }

    /// Regions for which there is room, and regions there are.
    pub fn region_count(&self) -> (usize, usize) {
        (self.regions.capacity(), self.regions.used())
    }

    /// Puts with notification that are done in a region, since it was exposed.
    pub fn notifications(&mut self, id: RegionId) -> Option<u64> {
        self.regions.find(id).map(|region| region.notified)
    }

    /// Starts waiting until a region has had so many notifications, counted from when it was exposed. Fails as a receive
    /// from any source does when a peer does.
    ///
    /// # Errors
    /// See [`StartError`]; [`StartError::Region`] when there is no such region.
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

    /// Withdraws a request that waits for notifications.
    pub(super) fn cancel_notified(&mut self, index: u32, region: RegionId) {
        if let Some(region) = self.regions.find(region) {
            self.requests.unlink(&mut region.waiting, index);
        }
        self.complete(index, Err(Fate::Cancelled));
    }

    fn side(&mut self, peer: PeerId) -> &mut Side {
        &mut self.peer(peer).side
    }

    /// Whether something can leave for a peer at once: nothing is before it.
    #[inline]
    pub(super) fn may_leave(&self, to: PeerId) -> bool {
        let peers: &[Peer] = self.peers.borrow();
        peers.get(to as usize).is_some_and(|peer| peer.side.leaving.is_empty())
    }

    /// Makes a request of what can't leave at once.
    pub(super) fn wait_to_leave(&mut self, to: PeerId, state: State) -> Result<RequestId, StartError> {
        let index = self.start(state)?;
        self.queue_to_leave(to, index);
        self.list_work(to);
        Ok(self.id(index))
    }

    fn queue_to_leave(&mut self, to: PeerId, index: u32) {
        // The list is a field of the peer: taken out, changed, put back.
        let mut list = self.side(to).leaving;
        self.requests.push_back(&mut list, index);
        self.side(to).leaving = list;
    }

    /// A request has left.
    pub(super) fn left(&mut self, to: PeerId, index: u32) {
        let mut list = self.side(to).leaving;
        self.requests.unlink(&mut list, index);
        self.side(to).leaving = list;
    }

    /// Sends what there is room for to one peer: replies first, so that what was asked for does not wait for what we ask.
    /// Returns the packets sent.
    pub(super) fn side_work_for(&mut self, peer: PeerId) -> usize {
        let mut sent = 0;
        // Bounded, as the peer makes room while we send.
        while sent < PACKETS_A_TURN {
            let done = match self.side(peer).replies.first() {
                Some(reply) => self.send_reply(peer, reply),
                None if self.side(peer).owes_account => self.send_account(peer),
                None => match self.side(peer).leaving.first() {
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
                if self.side(to).in_flight > 0 {
                    return Ok(false);
                }
                self.left(to, index);
                self.requests.remove(index);
                Ok(true)
            }
            _ => self.leave_remote(to, index),
        }
    }

    /// Ends what a peer that is gone will not take any more; what it has answered may still come, and what it says of flushes.
    pub(super) fn fail_leaving(&mut self, peer: PeerId, failure: Failure) {
        let mut leaving = core::mem::take(&mut self.side(peer).leaving);
        while let Some(index) = self.requests.pop_front(&mut leaving) {
            let Side { issued, lost, .. } = *self.side(peer);
            match &mut self.requests.get_mut(index).0 {
                State::Fence => self.requests.remove(index),
                // A part has left, and its answers may still come.
                State::Remote(remote) if remote.is_awaited() => self.await_answer(peer, index),
                State::Remote(remote) => {
                    if !lost && remote.await_account(issued) {
                        self.side(peer).in_flight += 1;
                        self.await_answer(peer, index);
                    } else {
                        self.side(peer).lost = true;
                        self.complete(index, Err(Fate::PeerFailed { peer, failure }));
                    }
                }
                _ => self.complete(index, Err(Fate::PeerFailed { peer, failure })),
            }
        }
    }

    /// Ends all that is under way with a peer that is gone, and what waits for anybody's notifications if that is
    /// concerned.
    pub(super) fn fail_side(&mut self, peer: PeerId, failure: Failure, concerns_any: bool) {
        self.fail_leaving(peer, failure);
        if self.side(peer).assembly.is_some() {
            self.handlers.drop_parts(peer);
        }
        let fate = Err(Fate::PeerFailed { peer, failure });
        let (mut awaited, mut replies) = {
            let side = self.side(peer);
            (core::mem::take(&mut side.awaited), core::mem::take(&mut side.replies))
        };
        while let Some(index) = self.requests.pop_front(&mut awaited) {
            let done = self.fate_of_flush(peer, index);
            self.side(peer).lost |= done.is_none();
            self.complete(index, done.unwrap_or(fate));
        }
        let Side { issued, flushed, reported, lost, .. } = core::mem::take(self.side(peer));
        let lost = lost || issued != flushed;
        *self.side(peer) = Side { reported, lost, ..Side::default() };
        while let Some(reply) = self.replies.pop_front(&mut replies) {
            self.replies.remove(reply);
        }
        if concerns_any {
            let Self { regions, requests, .. } = self;
            regions.each(|region| {
                while let Some(index) = requests.pop_front(&mut region.waiting) {
                    requests.get_mut(index).0 = State::Done(fate);
                }
            });
        }
    }
}
