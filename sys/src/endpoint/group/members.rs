//! The members of a collective call, by their positions in its list.

use nemesia_core::engine::Failure;

use crate::endpoint::Endpoint;
use crate::endpoint::peers::{BoundPeer, PeerGroup};
use crate::error::Error;

/// The processes that a caller names for a collective call.
#[derive(Clone, Debug)]
pub(in crate::endpoint) enum CallGroup {
    /// All ranks of the world that take part.
    World,
    /// These ranks, in rising order.
    Ranks(Vec<usize>),
    /// Peers of an endpoint that has an address.
    Peers(PeerGroup),
}

impl CallGroup {
    /// Returns whether both name the same processes in the same order.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::World, Self::World) => true,
            (Self::Ranks(one), Self::Ranks(other)) => one == other,
            // A peer may have been released, and be known anew.
            (Self::Peers(one), Self::Peers(other)) => {
                one.name() == other.name() && one.addresses() == other.addresses()
            }
            _ => false,
        }
    }
}

/// The members of a call under way.
#[derive(Debug)]
pub(in crate::endpoint) struct CallMembers {
    group: CallGroup,
    reached: ReachedMembers,
    /// The position of this process.
    own: usize,
    /// The number of the call, for a group of peers: the same in all of its processes.
    number: Option<u64>,
}

/// How the members are reached.
#[derive(Debug)]
enum ReachedMembers {
    /// By their ranks.
    Ranks(Vec<usize>),
    /// By the connections that there were when the call began. `None` for members that are gone.
    Peers(Vec<Option<BoundPeer>>),
}

impl CallMembers {
    pub(super) const fn group(&self) -> &CallGroup {
        &self.group
    }

    pub(super) const fn len(&self) -> usize {
        match &self.reached {
            ReachedMembers::Ranks(ranks) => ranks.len(),
            ReachedMembers::Peers(peers) => peers.len(),
        }
    }

    pub(super) const fn own(&self) -> usize {
        self.own
    }

    pub(super) const fn number(&self) -> Option<u64> {
        self.number
    }

    /// Returns the rank of a member in the world.
    pub(super) fn rank(&self, at: usize) -> Option<usize> {
        match &self.reached {
            ReachedMembers::Ranks(ranks) => ranks.get(at).copied(),
            ReachedMembers::Peers(_) => None,
        }
    }

    /// Returns the number by which all members know a member: its rank in the world, or its position in the group.
    pub(super) fn name(&self, at: usize) -> usize {
        self.rank(at).unwrap_or(at)
    }
}

impl Endpoint {
    /// Enters a call of this group. `ranks` returns the ranks of the world that take part; `needed` returns the
    /// positions with which this process exchanges messages, from the number of members and its own position.
    pub(super) fn enter_call(
        &mut self,
        group: &CallGroup,
        ranks: impl FnOnce(&Self) -> Result<Vec<usize>, Error>,
        needed: impl FnOnce(usize, usize) -> Vec<usize>,
    ) -> Result<CallMembers, Error> {
        if !matches!(group, CallGroup::Peers(_)) {
            self.check_world()?;
        }
        let ranks = match group {
            CallGroup::World => ranks(self)?,
            CallGroup::Ranks(ranks) => ranks.clone(),
            CallGroup::Peers(peers) => {
                let own = peers.place().ok_or(Error::Members)?;
                let needed = needed(peers.size(), own);
                let (bound, number) = self.with_peers(|table, endpoint| {
                    Ok((table.bind(peers, &needed, endpoint)?, table.next_call_of(peers)))
                })?;
                // The next reading of the clock looks after the calls that were begun.
                self.attend_calls();
                let reached = ReachedMembers::Peers(bound);
                return Ok(CallMembers { group: group.clone(), reached, own, number: Some(number) });
            }
        };
        let own = ranks.binary_search(&self.rank()).map_err(|_| Error::Excluded)?;
        let reached = ReachedMembers::Ranks(ranks);
        Ok(CallMembers { group: group.clone(), reached, own, number: None })
    }

    /// Returns the number by which the engine knows a member now. `None` if the member is gone and no message of it is
    /// left.
    pub(super) fn number_of(&self, members: &CallMembers, at: usize) -> Option<usize> {
        match &members.reached {
            ReachedMembers::Ranks(ranks) => ranks.get(at).copied(),
            ReachedMembers::Peers(bound) => {
                self.peers.as_ref()?.rank_of_bound(bound.get(at).copied().flatten()?)
            }
        }
    }

    /// Returns why a member is gone. `None` if it is not.
    pub(super) fn failure_of(&self, members: &CallMembers, at: usize) -> Option<Failure> {
        if let Some(number) = self.number_of(members, at) {
            return self.failure(number);
        }
        let peer = match members.group() {
            CallGroup::Peers(group) => group.peer(at),
            CallGroup::World | CallGroup::Ranks(_) => None,
        };
        let cause = |peer| self.peers.as_ref().map(|peers| peers.cause_of(peer));
        Some(peer.and_then(cause).unwrap_or(Failure::Finished))
    }

    /// Parts with a peer that a call has lost: the peer may live, and loses this process, too.
    pub(super) fn part_with(&mut self, members: &CallMembers, at: usize) {
        let CallGroup::Peers(group) = members.group() else { return };
        let Some(address) = group.addresses().get(at) else { return };
        let parted = self.with_peers(|peers, endpoint| {
            peers.part_with(address, endpoint);
            Ok(())
        });
        debug_assert!(parted.is_ok(), "an endpoint with a group has peers");
    }
}
