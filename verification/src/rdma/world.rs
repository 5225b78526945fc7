//! All ports and connections of a simulated fabric, and its time.

use std::collections::VecDeque;
use std::time::Duration;

use nemesia_core::port::memory::{
    Address, Completion, ConnectError, Connection, ConnectionState, Event, LostError, Offer, Private,
    WorkError,
};

use super::connection::{End, Link};
use super::memory::Memory;
use super::operation::Receive;
use super::{Conditions, Flaw};
use crate::rng::Rng;

/// The prefix of an address, which distinguishes it from addresses of other fabrics.
const MARK: &[u8; 4] = b"sim1";

/// The fabric.
#[derive(Debug)]
pub(super) struct World {
    pub(super) conditions: Conditions,
    pub(super) rng: Rng,
    pub(super) now: Duration,
    pub(super) nodes: Vec<Node>,
    pub(super) links: Vec<Link>,
}

/// One port.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) alive: bool,
    pub(super) memory: Memory,
    places: Vec<WorldPlace>,
    pub(super) shared: VecDeque<Receive>,
    /// The number of used places in the shared queue.
    pub(super) receiving: u32,
    pub(super) events: VecDeque<Event>,
}

#[derive(Debug)]
struct WorldPlace {
    generation: u32,
    /// The link and the side.
    held: Option<(usize, usize)>,
}

impl World {
    pub(super) const fn new(seed: u64, conditions: Conditions) -> Self {
        let rng = Rng::new(seed, 0);
        Self { conditions, rng, now: Duration::ZERO, nodes: Vec::new(), links: Vec::new() }
    }

    pub(super) fn add_node(&mut self) -> usize {
        self.nodes.push(Node { alive: true, ..Node::default() });
        self.nodes.len() - 1
    }

    pub(super) fn pass(&mut self) -> Duration {
        self.now += Duration::from_micros(1);
        for link in 0..self.links.len() {
            for _ in 0..4 {
                let side = self.rng.below(2);
                if self.rng.one_in(self.conditions.delay) {
                    self.step(link, side);
                }
            }
        }
        self.now
    }

    /// Returns the link and side of a connection.
    pub(super) fn find(&self, node: usize, connection: Connection) -> Option<(usize, usize)> {
        let place = self.nodes[node].places.get(connection.index as usize)?;
        place.held.filter(|_| place.generation == connection.generation)
    }

    fn new_connection(&mut self, node: usize, held: (usize, usize)) -> Result<Connection, ConnectError> {
        let limit = self.conditions.facts.connections;
        let places = &mut self.nodes[node].places;
        let index = match places.iter().position(|place| place.held.is_none()) {
            Some(index) => index,
            None if places.len() < limit as usize => {
                places.push(WorldPlace { generation: 0, held: None });
                places.len() - 1
            }
            None => return Err(ConnectError::Full { limit }),
        };
        let place = &mut places[index];
        place.generation += 1;
        place.held = Some(held);
        Ok(Connection { index: index as u32, generation: place.generation })
    }

    pub(super) fn address(node: usize) -> Option<Address> {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(MARK);
        bytes[4..].copy_from_slice(&(node as u64).to_le_bytes());
        Address::new(&bytes)
    }

    pub(super) fn connect(
        &mut self,
        node: usize,
        to: &Address,
        offer: &Offer,
    ) -> Result<Connection, ConnectError> {
        let rest = to.bytes().strip_prefix(MARK).ok_or(ConnectError::Address)?;
        let peer = rest.try_into().map(u64::from_le_bytes).map_err(|_| ConnectError::Address)? as usize;
        self.check_offer(offer)?;
        let link = self.links.len();
        let connection = self.new_connection(node, (link, 0))?;
        let mut active = End::new(node, connection, ConnectionState::Connecting);
        (active.shared, active.deadline, active.private) =
            (offer.shared_receive, offer.deadline, offer.private);
        // The real value is known when the request is made.
        let nobody = Connection { index: u32::MAX, generation: 0 };
        self.links
            .push(Link { ends: [active, End::new(peer, nobody, ConnectionState::Gone)], broken: false });
        Ok(connection)
    }

    fn check_offer(&self, offer: &Offer) -> Result<(), ConnectError> {
        let can = !offer.shared_receive || self.conditions.facts.shared_receive_depth > 0;
        can.then_some(()).ok_or(ConnectError::Unsupported)
    }

    /// Delivers the request for a connection to the other side.
    pub(super) fn ask(&mut self, link: usize, private: Private) {
        let peer = self.links[link].ends[1].node;
        let found = if self.nodes.get(peer).is_some_and(|node| node.alive) {
            self.new_connection(peer, (link, 1)).map_err(|_| ConnectError::Refused)
        } else {
            Err(ConnectError::NotListening)
        };
        match found {
            Ok(connection) => {
                self.links[link].ends[1] = End::new(peer, connection, ConnectionState::Requested);
                self.nodes[peer].events.push_back(Event::Requested { connection, private });
            }
            Err(error) => self.fail_connect(link, 0, error, Private::EMPTY),
        }
    }

    /// Fails a connection that was being made.
    pub(super) fn fail_connect(&mut self, link: usize, side: usize, error: ConnectError, private: Private) {
        let Link { ends, broken } = &mut self.links[link];
        *broken = true;
        ends[side].flush(WorkError::Flushed);
        let event = Event::Failed { connection: ends[side].connection, error, private };
        self.nodes[ends[side].node].events.push_back(event);
    }

    pub(super) fn accept(
        &mut self,
        node: usize,
        connection: Connection,
        offer: &Offer,
    ) -> Result<(), ConnectError> {
        self.check_offer(offer)?;
        let (link, side) = self.find(node, connection).ok_or(ConnectError::State)?;
        let end = &mut self.links[link].ends[side];
        if end.state != ConnectionState::Requested {
            return Err(ConnectError::State);
        }
        end.state = ConnectionState::Accepting;
        (end.shared, end.deadline, end.private) = (offer.shared_receive, offer.deadline, offer.private);
        Ok(())
    }

    pub(super) fn refuse(
        &mut self,
        node: usize,
        connection: Connection,
        private: Private,
    ) -> Result<(), ConnectError> {
        let (link, side) = self.find(node, connection).ok_or(ConnectError::State)?;
        let Link { ends, broken } = &mut self.links[link];
        if ends[side].state != ConnectionState::Requested {
            return Err(ConnectError::State);
        }
        *broken = true;
        ends[side].state = ConnectionState::Gone;
        ends[side].private = private;
        ends[1 - side].doom = Some((LostError::Closed, WorkError::Flushed));
        self.nodes[node].places[connection.index as usize].held = None;
        Ok(())
    }

    pub(super) fn close(&mut self, node: usize, connection: Connection) {
        let Some((link, side)) = self.find(node, connection) else { return };
        let end = &mut self.links[link].ends[side];
        if !end.closing {
            end.closing = true;
            self.lose(link, side, (LostError::Closed, WorkError::Flushed), LostError::Closed);
        }
    }

    /// Ends the process of a port: its memory is gone at once, and its peers notice after a while.
    pub(super) fn kill(&mut self, node: usize) {
        for link in 0..self.links.len() {
            for side in 0..2 {
                if self.links[link].ends[side].node == node {
                    let mine = self.links[link].ends[side].state;
                    if mine != ConnectionState::Gone {
                        let closed = (LostError::Closed, WorkError::Flushed);
                        self.lose(link, side, closed, LostError::Unreachable);
                        self.links[link].ends[side].state = ConnectionState::Gone;
                    }
                }
            }
        }
        self.nodes[node] = Node::default();
    }

    /// Returns the next completion of a port, of any connection, in order for each queue.
    pub(super) fn completion(&mut self, node: usize) -> Option<Completion> {
        let World { links, nodes, rng, conditions, .. } = self;
        let mut ready = Vec::new();
        for (link, side) in nodes[node].places.iter().filter_map(|place| place.held) {
            let end = &links[link].ends[side];
            if !end.sent.is_empty() {
                ready.push((link, side, true));
            }
            if !end.arrived.is_empty() {
                ready.push((link, side, false));
            }
        }
        if ready.is_empty() {
            return None;
        }
        let (link, side, is_sent) = rng.pick(&ready);
        let end = &mut links[link].ends[side];
        if is_sent {
            let at = if conditions.flaw == Some(Flaw::Order) { rng.below(end.sent.len()) } else { 0 };
            let (completion, freed) = end.sent.remove(at)?;
            end.freed = freed;
            match conditions.flaw {
                Some(Flaw::Loss) if rng.one_in(20) => return None,
                Some(Flaw::Twice) if rng.one_in(20) => end.sent.push_front((completion, freed)),
                _ => {}
            }
            return Some(completion);
        }
        let (completion, shared) = end.arrived.pop_front()?;
        let receiving = if shared { &mut nodes[node].receiving } else { &mut end.receiving };
        *receiving -= 1;
        Some(completion)
    }

    pub(super) fn event(&mut self, node: usize, now: Duration) -> Option<Event> {
        for at in 0..self.nodes[node].places.len() {
            let Some((link, side)) = self.nodes[node].places[at].held else { continue };
            let end = &self.links[link].ends[side];
            let waits = matches!(end.state, ConnectionState::Connecting | ConnectionState::Accepting)
                && end.doom.is_none();
            if waits && now > end.deadline {
                let other = &mut self.links[link].ends[1 - side];
                if other.state != ConnectionState::Gone {
                    other.doom = Some((LostError::Unreachable, WorkError::Flushed));
                }
                self.fail_connect(link, side, ConnectError::TimedOut, Private::EMPTY);
            } else if end.is_over() && self.nodes[node].events.is_empty() {
                let connection = end.connection;
                self.links[link].ends[side].state = ConnectionState::Gone;
                self.nodes[node].places[at].held = None;
                return Some(Event::Closed { connection });
            }
        }
        self.nodes[node].events.pop_front()
    }

    /// Returns whether a work request that uses the region is being executed.
    pub(super) fn is_busy(&self, node: usize, region: nemesia_core::port::memory::PortRegion) -> bool {
        self.links.iter().any(|link| {
            [0, 1].into_iter().any(|side| {
                let (own, peer) = (link.ends[side].node == node, link.ends[1 - side].node == node);
                let mut operations = link.ends[side].operations.iter();
                !link.broken && operations.any(|it| own && it.holds(region) || peer && it.reaches(region))
            })
        })
    }
}
