//! A port's connections.

use std::net::SocketAddr;
use std::time::Duration;

use nemesia_core::joining::Joint;
use nemesia_core::port::memory::{Connection, ConnectionState, LostError, Private};
use rdma_core_sys as raw;

use super::VerbsPort;
use super::held::HeldQueue;
use super::ring::Ring;
use super::tag::WorkTag;
use crate::cm::{CmStage, Id, Side};
use crate::verbs::exchange::PairInfo;
use crate::verbs::pair::QueuePair;

/// This end of a connection that datagrams set up, before it is over.
pub(super) struct LinkJoint {
    pub(super) joint: Joint,
    /// The queue pair of the requesting end: our own one if this end requests, otherwise the peer's.
    pub(super) info: PairInfo,
}

/// A connection.
pub(super) struct VerbsLink {
    pub(super) side: Side,
    pub(super) stage: CmStage,
    /// Declared before the identifier, because it must be destroyed first.
    pub(super) pair: Option<QueuePair>,
    pub(super) id: Option<Id>,
    pub(super) sends: Ring,
    /// Those of `sends` that wait for reads, and the requests behind them.
    pub(super) held: HeldQueue,
    pub(super) receives: Ring,
    /// Receives posted before the queue pair existed. The first one's sequence number is 0.
    pub(super) early: Vec<Vec<raw::ibv_sge>>,
    /// Whether receives come from the shared queue.
    pub(super) shared: bool,
    /// The address of the peer, if this side requests by RDMA-CM.
    pub(super) to: Option<SocketAddr>,
    /// This end, if datagrams set the connection up and it is not over.
    pub(super) joint: Option<Box<LinkJoint>>,
    /// The identifiers that this request has had.
    pub(super) places: u8,
    /// The private data of our request.
    pub(super) private: Private,
    /// The time by which it must be ready.
    pub(super) deadline: Duration,
    /// The reads that this side serves at once, and has in progress at once.
    pub(super) reads: (u8, u8),
    /// Whether a probe is under way.
    pub(super) probed: bool,
    /// Completions that the caller has not polled yet.
    pub(super) unpolled: u32,
    /// The device's reason, reported before any request failed.
    pub(super) cause: Option<LostError>,
    /// Whether the caller has closed the connection and expects only the final event.
    pub(super) closing: bool,
}

impl VerbsLink {
    pub(super) fn new(side: Side, stage: CmStage, depths: (u32, u32)) -> Self {
        Self {
            side,
            stage,
            pair: None,
            id: None,
            sends: Ring::new(depths.0),
            held: HeldQueue::new(),
            receives: Ring::new(depths.1),
            early: Vec::new(),
            shared: false,
            to: None,
            joint: None,
            places: 0,
            private: Private::EMPTY,
            deadline: Duration::MAX,
            reads: (0, 0),
            probed: false,
            unpolled: 0,
            cause: None,
            closing: false,
        }
    }

    pub(super) fn state(&self) -> ConnectionState {
        match self.stage {
            CmStage::Resolving | CmStage::Routing | CmStage::Asking => ConnectionState::Connecting,
            CmStage::Requested => ConnectionState::Requested,
            CmStage::Accepting => ConnectionState::Accepting,
            CmStage::Ready => ConnectionState::Ready,
            CmStage::Over => ConnectionState::Lost,
        }
    }

    /// Returns whether the connection is being made, and is therefore bound by a deadline.
    pub(super) fn is_unready(&self) -> bool {
        matches!(self.stage, CmStage::Resolving | CmStage::Routing | CmStage::Asking | CmStage::Accepting)
    }

    /// Posts the held requests that may now go. Returns the error number if the device accepts no more.
    fn release_held(&mut self) -> Result<(), i32> {
        while let Some(held) = self.held.front() {
            if held
                .most_unanswered
                .is_some_and(|most| self.sends.awaits_more_answers_before(held.sequence, most))
            {
                break;
            }
            let (Some(held), Some(pair)) = (self.held.pop_front(), &self.pair) else { break };
            // SAFETY: the parts lie in memory that was promised until its regions are deregistered; the device
            // refuses a stale key.
            unsafe { held.post(pair) }?;
        }
        Ok(())
    }

    /// Disconnects from the peer, if the connection was up.
    pub(super) fn disconnect(&self) {
        if let (Some(id), CmStage::Ready | CmStage::Accepting) = (&self.id, self.stage) {
            id.disconnect();
        }
    }
}

/// A place for a connection.
struct LinkPlace {
    generation: u32,
    link: Option<VerbsLink>,
}

/// All connections.
pub(super) struct VerbsLinks {
    places: Vec<LinkPlace>,
    free: Vec<u32>,
    limit: u32,
}

impl VerbsLinks {
    pub(super) fn new(limit: u32) -> Self {
        Self { places: Vec::new(), free: Vec::new(), limit }
    }

    /// Returns whether all places are taken.
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty() && self.places.len() as u32 >= self.limit
    }

    /// Takes a place; `None` if all are taken.
    pub(super) fn add(&mut self, link: VerbsLink) -> Option<Connection> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if (self.places.len() as u32) < self.limit => {
                self.places.push(LinkPlace { generation: 0, link: None });
                self.places.len() as u32 - 1
            }
            None => return None,
        };
        let place = &mut self.places[index as usize];
        place.link = Some(link);
        Some(Connection { index, generation: place.generation })
    }

    /// Gives a place back. A place whose generations are used up stays empty.
    pub(super) fn remove(&mut self, connection: Connection) -> Option<VerbsLink> {
        let place = self.places.get_mut(connection.index as usize)?;
        if place.generation != connection.generation {
            return None;
        }
        let link = place.link.take()?;
        if let Some(generation) = place.generation.checked_add(1) {
            place.generation = generation;
            self.free.push(connection.index);
        }
        Some(link)
    }

    #[inline]
    pub(super) fn get(&self, connection: Connection) -> Option<&VerbsLink> {
        let place = self.places.get(connection.index as usize)?;
        place.link.as_ref().filter(|_| place.generation == connection.generation)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, connection: Connection) -> Option<&mut VerbsLink> {
        let place = self.places.get_mut(connection.index as usize)?;
        if place.generation == connection.generation { place.link.as_mut() } else { None }
    }

    /// Returns the connection at a place, with its present generation.
    #[inline]
    pub(super) fn at(&mut self, index: u32) -> Option<(Connection, &mut VerbsLink)> {
        let place = self.places.get_mut(index as usize)?;
        let connection = Connection { index, generation: place.generation };
        place.link.as_mut().map(|link| (connection, link))
    }

    /// Returns the connection to which the number of a work request belongs.
    #[inline]
    pub(super) fn tagged(&mut self, tag: WorkTag) -> Option<(Connection, &mut VerbsLink)> {
        self.at(tag.index).filter(|(connection, _)| tag.is_of(connection.generation))
    }

    /// Returns the connections that satisfy a condition.
    pub(super) fn which(&self, is: impl Fn(&VerbsLink) -> bool) -> Vec<Connection> {
        let places = self.places.iter().zip(0..);
        let found = places.filter(|(place, _)| place.link.as_ref().is_some_and(&is));
        found.map(|(place, index)| Connection { index, generation: place.generation }).collect()
    }

    pub(super) fn each(&mut self, mut each: impl FnMut(Connection, &mut VerbsLink)) {
        for (place, index) in self.places.iter_mut().zip(0..) {
            if let Some(link) = &mut place.link {
                each(Connection { index, generation: place.generation }, link);
            }
        }
    }
}

impl VerbsPort {
    /// Handles answered reads: posts the requests that waited for them.
    #[cold]
    pub(super) fn release_answered(&mut self) {
        for index in std::mem::take(&mut self.answered) {
            let Some((_, link)) = self.links.at(index) else { continue };
            if let Err(code) = link.release_held() {
                link.cause.get_or_insert(LostError::Unknown(code.unsigned_abs()));
                self.suspects.push(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> VerbsLink {
        VerbsLink::new(Side::Active, CmStage::Resolving, (4, 4))
    }

    #[test]
    fn a_number_is_used_once() {
        let mut links = VerbsLinks::new(2);
        let (a, b) = (links.add(link()).unwrap(), links.add(link()).unwrap());
        assert_eq!(links.add(link()), None);
        assert!(links.remove(a).is_some() && links.remove(a).is_none() && links.get(a).is_none());
        let c = links.add(link()).unwrap();
        assert!(c.index == a.index && c.generation != a.generation);
        assert!(links.get_mut(a).is_none() && links.get_mut(b).is_some() && links.get(c).is_some());
        assert!(links.get(Connection { index: u32::MAX, generation: 0 }).is_none());
        assert_eq!(links.which(|link| link.is_unready()).len(), 2);
    }

    #[test]
    fn a_place_whose_numbers_are_used_up_stays_empty() {
        let mut links = VerbsLinks::new(1);
        let first = links.add(link()).unwrap();
        links.places[0].generation = u32::MAX;
        assert!(links.remove(first).is_none());
        assert!(links.remove(Connection { index: 0, generation: u32::MAX }).is_some());
        assert_eq!(links.add(link()), None);
    }
}
