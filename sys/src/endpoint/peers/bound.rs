//! The connections by which a collective call reaches the members of a group of peers.
//!
//! A call keeps the connections that it began with. When one of them ends, the call has lost that member, whatever
//! follows: another connection with the member, or another peer with the same number of the engine.
//!
//! A member that a call has lost may still live, and wait for this process in the same call. So that it does not wait
//! for ever, this process *parts* with it: it disconnects, and refuses its calls until the program names the address
//! again ([`Endpoint::connect`]). The member then loses this process, too.

use nemesia_core::engine::Failure;
use nemesia_core::peers::{PeerAddress, PeerEnd, PeerError, PeerRef, PeerStage, Speaking};

use super::members::PeerGroup;
use super::table::PeerTable;
use crate::endpoint::Endpoint;
use crate::error::Error;

/// The most addresses with which a process has parted, 4 MiB. Beyond that it forgets one of them.
const MOST_PARTED: usize = 1 << 16;

/// One connection with one peer, which is never mistaken for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::endpoint) struct BoundPeer {
    /// Of the table.
    number: u32,
    /// The connections that this process had begun when it began this one.
    connection: u64,
}

impl PeerTable {
    /// Returns the connections with these members of a group. Those that are not connected are called. A member has
    /// none if it is gone: it was released, it has left or died and no message of it is left, or this process has
    /// parted with it. This process itself, and members that are not needed, have none either.
    ///
    /// # Errors
    /// As for [`Endpoint::rank_of`].
    pub(in crate::endpoint) fn bind(
        &mut self,
        group: &PeerGroup,
        needed: &[usize],
        endpoint: &mut Endpoint,
    ) -> Result<Vec<Option<BoundPeer>>, Error> {
        let mut bound = vec![None; group.size()];
        for place in needed.iter().copied() {
            let Some((peer, address)) = group.peer(place).zip(group.addresses().get(place)) else { continue };
            if self.parted.contains(address) {
                continue;
            }
            if self.table.stage(peer) == Ok(PeerStage::Apart) && self.last_connection(peer).is_none() {
                self.call_member(peer, endpoint)?;
            }
            bound[place] = self.last_connection(peer);
        }
        Ok(bound)
    }

    /// Calls a peer with which there is no connection.
    fn call_member(&mut self, peer: PeerRef, endpoint: &mut Endpoint) -> Result<(), Error> {
        let speaking = match self.speak(peer) {
            Err(Error::NoPeer(PeerError::Connections { .. })) => {
                // Strangers that are stopped do not keep this process from calls of its own.
                self.give_up_one(endpoint);
                self.speak(peer)
            }
            speaking => speaking,
        };
        match speaking? {
            Speaking::Call(rank) => self.call(peer, rank, endpoint),
            Speaking::Ready(_) | Speaking::Wait(_) => Ok(()),
        }
    }

    /// Returns the connection with a peer, or the last one that it had and whose number is not free yet.
    fn last_connection(&self, peer: PeerRef) -> Option<BoundPeer> {
        let bound = |number: u32| {
            let it = self.numbered.get(number as usize).copied().flatten().filter(|it| it.peer == peer)?;
            Some(BoundPeer { number, connection: it.connection })
        };
        match self.table.stage(peer).ok()?.number() {
            Some(number) => bound(number),
            None => {
                let numbers = 0..self.numbered.len() as u32;
                numbers.filter_map(bound).max_by_key(|bound| bound.connection)
            }
        }
    }

    /// Returns the engine's number of a connection. `None` once the number is free, so that no message of the peer is
    /// left, or is that of another connection.
    pub(in crate::endpoint) fn rank_of_bound(&self, bound: BoundPeer) -> Option<usize> {
        let it = self.numbered.get(bound.number as usize).copied().flatten()?;
        (it.connection == bound.connection).then(|| self.rank(bound.number) as usize)
    }

    /// Returns the number of the next collective call of a group, which is the same in all of its processes.
    pub(in crate::endpoint) fn next_call_of(&mut self, group: &PeerGroup) -> u64 {
        let count = self.collectives.entry(group.name()).or_insert(0);
        *count += 1;
        group.name().wrapping_add(*count)
    }

    /// Returns why a peer is gone to which no connection is left.
    pub(in crate::endpoint) fn cause_of(&self, peer: PeerRef) -> Failure {
        match self.table.stage(peer) {
            Ok(PeerStage::Ended(PeerEnd::Lost)) => Failure::Died,
            Ok(PeerStage::Ended(PeerEnd::Refused)) => Failure::Unreachable,
            _ => Failure::Finished,
        }
    }

    /// Ends the connection with the process that has this address, if there is one, and refuses its calls from now on.
    pub(in crate::endpoint) fn part_with(&mut self, address: &PeerAddress, endpoint: &mut Endpoint) {
        if self.parted.len() >= MOST_PARTED {
            self.parted.pop_first();
        }
        self.parted.insert(*address);
        let Some(peer) = self.table.peer_by(address) else { return };
        self.note_failure(peer, endpoint);
        if self.table.stage(peer).is_ok_and(|stage| stage.number().is_some()) {
            self.part_from(peer, false, endpoint);
        }
    }

    /// Returns the reason for which calls of this process are refused, if they are. `across`: from another machine.
    pub(super) fn refusal_of(&self, caller: &PeerAddress) -> Option<&'static str> {
        self.parted.contains(caller).then_some("this process has ended a collective call without the caller")
    }
}
