//! Ranks that this process has not met: their connection is made when an operation first names them.
//!
//! An engine of a world may begin without connections ([`Engine::unmet`]). A rank is *unmet* until an operation
//! names it, or until it calls. The operation begins as any other does, waits like one whose packets do not leave, and
//! makes the rank *wanted*: the layer above connects with it ([`Engine::next_wanted`], [`Engine::connected`]). The
//! failure of an unmet rank is not seen. So an operation that can end with the failure of any rank, such as a receive
//! from any source, makes all ranks wanted, unless it outlives failures.
//!
//! This costs the critical path nothing: to the checks of an operation an unmet rank looks like a failed one, and only
//! the slow path finds out that it is not.
#![forbid(unsafe_code)]

use core::borrow::{Borrow as _, BorrowMut as _};

use crate::engine::request::StartError;
use crate::engine::rma::Reply;
use crate::engine::{Engine, Failure, Peer, Storage};
use crate::flow::CeilingError;
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::matching::Source;
use crate::port::{PeerId, Port};
use crate::slab::Slot;

/// The ranks that were not met, and those of them that an operation has named since.
#[derive(Debug, Default)]
pub(in crate::engine) struct UnmetRanks {
    unmet: u32,
    /// How many ranks are wanted and were not reported.
    wanted: u32,
}

impl<P: Port, S: Storage> Engine<P, S> {
    /// Begins without a connection with any other rank.
    pub(in crate::engine) fn begin_unmet(&mut self) {
        for rank in (0..self.ranks).filter(|rank| *rank != self.rank) {
            self.peers.borrow_mut()[rank as usize].failure = Some(Failure::Absent);
            self.unmet.unmet += 1;
        }
        self.acknowledge();
    }

    /// Returns the number of ranks that were not met.
    #[inline]
    pub const fn unmet_ranks(&self) -> u32 {
        self.unmet.unmet
    }

    /// Returns whether a rank was not met.
    pub fn is_unmet(&self, rank: PeerId) -> bool {
        let peer = self.peers.borrow().get(rank as usize);
        self.is_rank(rank) && peer.is_some_and(|it| it.failure == Some(Failure::Absent))
    }

    /// Records that a rank was met: it calls this process, or is known to be gone. Operations with it may wait until
    /// [`Engine::connected`]. Returns false if it was met before.
    pub fn meet(&mut self, rank: PeerId) -> bool {
        let is_unmet = self.is_unmet(rank);
        if is_unmet {
            self.peer(rank).failure = None;
            self.unmet.unmet -= 1;
            if self.unmet.unmet == 0 {
                self.forget_unmet_failure();
            }
        }
        is_unmet
    }

    /// As [`Engine::meet`], and takes the memory of the rank's credit and places for its replies, as
    /// [`Engine::add_peer`] does for a further peer. The layer above calls it before it connects with a rank of a world
    /// that began without connections. Nothing changes if the rank has its credit, or has failed.
    ///
    /// # Errors
    /// [`CeilingError::Memory`]: the memory cannot be committed. The rank was met, and has no credit.
    #[cold]
    pub fn meet_paid(&mut self, rank: PeerId) -> Result<(), CeilingError>
    where
        S::Replies: Extend<Slot<Reply>>,
    {
        self.meet(rank);
        if !self.lacks_reserve(rank) {
            return Ok(());
        }
        self.take_reserves(self.ledger.reserves_used() + 1)?;
        let granted = self.ledger.open(self.peers.borrow_mut(), rank);
        self.grow_replies();
        self.port.grant(rank, granted);
        Ok(())
    }

    /// Returns whether this is a rank that has not failed, and whose credit was not taken yet.
    fn lacks_reserve(&self, rank: PeerId) -> bool {
        let lacks = |it: &Peer| {
            it.failure.is_none_or(|failure| failure == Failure::Absent) && !it.account.has_reserve()
        };
        self.is_rank(rank) && rank != self.rank && self.peers.borrow().get(rank as usize).is_some_and(lacks)
    }

    /// Returns the number of reserves that are kept for ranks.
    pub(in crate::engine) fn reserves_kept(&self) -> u32 {
        (0..self.ranks).filter(|rank| self.lacks_reserve(*rank)).count() as u32
    }

    /// Lets receives from any source begin: they need no further rank.
    fn forget_unmet_failure(&mut self) {
        let failures = &mut self.failures;
        failures.any_source = failures.any_source.filter(|(_, failure)| *failure != Failure::Absent);
    }

    /// Returns whether there are ranks with which the layer above should connect.
    #[inline]
    pub const fn has_wanted(&self) -> bool {
        self.unmet.wanted > 0
    }

    /// Returns the next rank with which the layer above should connect; `None` if there is none. Each is returned once.
    #[cold]
    pub fn next_wanted(&mut self) -> Option<PeerId> {
        if self.unmet.wanted == 0 {
            return None;
        }
        let mut peers = self.peers.borrow_mut().iter_mut();
        let Some(rank) = peers.position(|it| core::mem::take(&mut it.wanted)) else {
            self.unmet.wanted = 0;
            return None;
        };
        self.unmet.wanted -= 1;
        Some(rank as PeerId)
    }

    /// As `check_destination`, for an operation that begins: a rank that was not met becomes wanted.
    #[inline(always)]
    pub(in crate::engine) fn reach(&mut self, rank: PeerId) -> Result<(), StartError> {
        match self.check_destination(rank) {
            Ok(()) => Ok(()),
            Err(error) => self.meet_or(rank, error),
        }
    }

    #[cold]
    fn meet_or(&mut self, rank: PeerId, error: StartError) -> Result<(), StartError> {
        if self.want(rank) { self.check_destination(rank) } else { Err(error) }
    }

    /// As `check_alive`, for an operation that begins: ranks that it needs and that were not met become wanted.
    pub(in crate::engine) fn reach_source(&mut self, source: Source) -> Result<(), StartError> {
        match (self.check_alive(source), source) {
            (Err(error), Source::Rank(rank)) => self.meet_or(rank, error),
            (Err(error), Source::Any) if self.unmet.unmet > 0 => {
                self.want_all();
                if is_unmet_error(error) { Ok(()) } else { Err(error) }
            }
            (alive, _) => alive,
        }
    }

    /// Makes all ranks wanted, for an operation that ends with the failure of any.
    #[cold]
    fn want_all(&mut self) {
        (0..self.ranks).for_each(|rank| _ = self.want(rank));
        self.forget_unmet_failure();
    }

    /// Makes a rank wanted that was not met. Returns whether it was not.
    fn want(&mut self, rank: PeerId) -> bool {
        let is_unmet = self.meet(rank);
        #[cfg(nemesia_injected_fault)]
        let is_wanted = is_unmet && !injected(InjectedFault::ForgetWanted);
        #[cfg(not(nemesia_injected_fault))]
        let is_wanted = is_unmet;
        if is_wanted {
            self.peer(rank).wanted = true;
            self.unmet.wanted += 1;
        }
        is_unmet
    }

    /// Returns what receives from any source must report if no failure is left: they need all ranks.
    pub(in crate::engine) fn unmet_failure(&self) -> Option<(PeerId, Failure)> {
        (self.unmet.unmet > 0 && !self.failures.outlived).then_some((self.rank, Failure::Absent))
    }
}

fn is_unmet_error(error: StartError) -> bool {
    matches!(error, StartError::PeerFailed { failure: Failure::Absent, .. })
}

#[cfg(test)]
mod tests;
