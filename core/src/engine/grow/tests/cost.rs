//! The cost of a turn of progress: that of the peers with work, whatever the number of peers.

use core::borrow::{Borrow, BorrowMut};
use core::cell::Cell;
use std::vec;
use std::vec::Vec;

use crate::counters::TrafficCounters;
use crate::engine::rma::{ExposedRegion, Reply};
use crate::engine::{Engine, Lent, Peer, PeerSelection, Request, Storage, Tuning};
use crate::port::{Arrival, PacketPieces, PacketPort, PacketsOnly, PeerFault, PeerId, Polled};
use crate::shared::tests::fabric::{Fabric, tiny};
use crate::slab::{List, Slot};
use crate::store::{UNIT, Unit};
use crate::wire::Envelope;

/// Peers that count how often the engine accesses them.
#[derive(Debug)]
struct CountedPeers {
    peers: Vec<Peer>,
    visits: Cell<usize>,
}

impl Borrow<[Peer]> for CountedPeers {
    fn borrow(&self) -> &[Peer] {
        self.visits.set(self.visits.get() + 1);
        &self.peers
    }
}

impl BorrowMut<[Peer]> for CountedPeers {
    fn borrow_mut(&mut self) -> &mut [Peer] {
        self.visits.set(self.visits.get() + 1);
        &mut self.peers
    }
}

impl Extend<Peer> for CountedPeers {
    fn extend<I: IntoIterator<Item = Peer>>(&mut self, more: I) {
        self.peers.extend(more);
    }
}

#[derive(Debug)]
struct CountedStorage;

impl Storage for CountedStorage {
    type Requests = Vec<Slot<Request>>;
    type Peers = CountedPeers;
    type Units = Vec<Unit>;
    type Stored = Vec<u32>;
    type Buckets = Vec<List>;
    type Regions = Vec<Slot<ExposedRegion>>;
    type Replies = Vec<Slot<Reply>>;
    type Selections = Vec<PeerSelection>;
    type Handlers = ();
    type Trace = ();
}

/// A port that has no space for any packet, and counts the attempts.
#[derive(Debug, Default)]
struct FullPort {
    attempts: usize,
}

impl PacketPort for FullPort {
    type Token = ();

    fn packet_bytes(&self) -> usize {
        256
    }

    fn send(&mut self, _: PeerId, _: &Envelope, _: PacketPieces<'_>) -> Result<bool, PeerFault> {
        self.attempts += 1;
        Ok(false)
    }

    fn poll(&mut self) -> Polled<()> {
        Polled::Idle
    }

    fn poll_peer(&mut self, _: PeerId) -> Polled<()> {
        Polled::Idle
    }

    fn read(&self, _: &Arrival<()>, _: usize, _: &mut [u8]) -> bool {
        true
    }

    fn release(&mut self, _: Arrival<()>) {}

    fn grant(&mut self, _: PeerId, _: u64) {}

    fn granted(&self, _: PeerId) -> u64 {
        100
    }

    fn traffic(&self, _: PeerId) -> TrafficCounters {
        TrafficCounters::default()
    }

    fn close(&mut self, _: PeerId) {}
}

/// Returns how often a turn of progress accesses peers, and attempts to send, with so many peers, of which `active`
/// have a message waiting.
fn turn(peers: u32, active: u32) -> (usize, usize) {
    let mut lender = Fabric::new(tiny(2)).lender();
    let lent = Lent::<CountedStorage> {
        requests: (0..64).map(|_| Slot::default()).collect(),
        peers: CountedPeers { peers: vec![Peer::default()], visits: Cell::new(0) },
        units: vec![[0; UNIT]; 1 << 16],
        stored: vec![],
        posted: vec![List::new(); 16],
        regions: vec![],
        replies: vec![],
        selections: vec![],
        handlers: (),
        trace: (),
    };
    let port = PacketsOnly(FullPort::default());
    let mut engine = Engine::alone(0, port, Tuning::default(), lent, peers).unwrap();
    (1..=peers).for_each(|peer| engine.add_peer(peer).unwrap());
    for peer in (1..=peers).step_by((peers / active) as usize).take(active as usize) {
        let (_, buf) = lender.send(0, vec![7; 100]);
        engine.isend(peer, 0, 0, buf).unwrap();
    }
    engine.progress();
    let (visits, attempts) = (engine.peers.visits.get(), engine.port.0.attempts);
    engine.progress();
    (engine.peers.visits.get() - visits, engine.port.0.attempts - attempts)
}

#[test]
fn turn_of_progress_costs_what_the_active_peers_cost() {
    let few = turn(8, 8);
    assert_eq!(few.1, 8, "each active peer is tried once");
    assert!(few.0 <= 8 * 40, "{} visits for 8 peers", few.0);
    assert_eq!(turn(4096, 8), few, "4096 peers, of which 8 are active");
    assert_eq!(turn(64, 1).1, 1);
}
