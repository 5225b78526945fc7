//! Ports against a malicious peer that corrupts all memory that it can write.

use crate::port::PacketPieces;
use crate::port::ShortPath as _;
use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::fabric::{Fabric, TestPort};
use super::port::eager;
use super::{Rng, cases, contents, portion};
use crate::port::{PacketPort, PeerFault, PeerId, Polled, Stores};
use crate::shared::tests::fabric::WorldShape;

const HOSTILE: PeerId = 2;

struct PortSiege<'a> {
    seed: u64,
    rng: Rng,
    fabric: &'a Fabric,
    ports: Vec<TestPort<'a>>,
    /// Packets in flight between the honest ranks, by receiver.
    between: [VecDeque<u64>; 2],
    /// Whether this honest rank has closed the connection to the malicious one.
    closed: [bool; 2],
    sent: u64,
    corrupts: usize,
}

impl<'a> PortSiege<'a> {
    fn new(seed: u64, rng: Rng, fabric: &'a Fabric) -> Self {
        let ports = (0..3).map(|rank| fabric.port(rank)).collect();
        let between = Default::default();
        Self { seed, rng, fabric, ports, between, closed: [false; 2], sent: 0, corrupts: 0 }
    }

    fn step(&mut self) {
        let rank = self.rng.below(2);
        match self.rng.below(16) {
            0..=4 => {
                self.corrupts += 1;
                if !self.seed.is_multiple_of(3) && self.rng.one_in(2) {
                    self.fabric.corrupt_own(&mut self.rng, HOSTILE);
                } else {
                    self.fabric.corrupt_inbox(&mut self.rng);
                }
            }
            5..=7 => self.send(rank, 1 - rank as PeerId),
            8 => self.send(rank, HOSTILE),
            9 => self.behave(),
            10 => {
                let units = self.rng.next();
                self.ports[rank].grant(HOSTILE, units);
                self.ports[rank].granted(HOSTILE);
            }
            11 if self.rng.one_in(20) => self.ports[rank].sweep_all(),
            11 => self.ports[rank].pause(),
            _ => self.poll(rank),
        }
    }

    fn send(&mut self, rank: usize, to: PeerId) {
        self.sent += 1;
        let most = self.fabric.geometry.cell_bytes as usize;
        let len = if self.rng.one_in(2) { self.rng.below(49) } else { self.rng.below(most + 1) };
        let (port, bytes) = (&mut self.ports[rank], contents(self.sent, len));
        let sent = match port.send_copy(to, 5, self.sent, &bytes) {
            Some(_) => Ok(true),
            None => port.send(to, &eager(self.sent, len), PacketPieces::Whole(&bytes)),
        };
        match sent {
            Ok(true) if to != HOSTILE => self.between[to as usize].push_back(self.sent),
            Ok(_) => {}
            Err(fault) => self.blame(rank, fault),
        }
    }

    fn blame(&mut self, rank: usize, fault: PeerFault) {
        assert_eq!(fault.peer, HOSTILE, "seed {}: {fault}", self.seed);
        assert!(!self.closed[rank], "seed {}: a closed peer is still polled", self.seed);
        // Some ports continue after a fault: nothing may break even then.
        if self.rng.one_in(2) {
            self.ports[rank].close(HOSTILE);
            self.closed[rank] = true;
        }
    }

    /// Lets the malicious rank act like an honest one, so that its memory is plausible and worth corrupting.
    fn behave(&mut self) {
        let most = self.fabric.geometry.cell_bytes as usize;
        let (to, len) = (self.rng.below(2) as PeerId, self.rng.below(most + 1));
        let _ = self.ports[HOSTILE as usize].send(to, &eager(0, len), PacketPieces::Whole(&contents(0, len)));
        if let Polled::Packet(arrival) = self.ports[HOSTILE as usize].poll() {
            self.ports[HOSTILE as usize].release(arrival);
        }
    }

    fn poll(&mut self, rank: usize) {
        let seed = self.seed;
        let arrival = match self.ports[rank].poll() {
            Polled::Idle => return,
            Polled::Fault(fault) => return self.blame(rank, fault),
            Polled::Packet(arrival) => arrival,
        };
        assert!(arrival.len <= self.fabric.geometry.cell_bytes as usize, "seed {seed}: {arrival:?}");
        let hostile = arrival.peer == HOSTILE;
        assert!(!hostile || !self.closed[rank], "seed {seed}: {arrival:?}");
        if hostile {
            // The malicious rank continues to write during the read.
            self.fabric.corrupt_own(&mut self.rng, HOSTILE);
        }
        let mut bytes = vec![0; arrival.len];
        let mut whole = self.ports[rank].read(&arrival, 0, &mut bytes);
        let at = self.rng.below(arrival.len + 1);
        let mut rest = vec![0; arrival.len - at];
        whole &= self.ports[rank].read(&arrival, at, &mut rest);
        assert!(whole || hostile, "seed {seed}: a packet was taken back");
        if !hostile {
            let tag = arrival.envelope.tag;
            assert_eq!(self.between[rank].pop_front(), Some(tag), "seed {seed}: order");
            assert_eq!(bytes, contents(tag, arrival.len), "seed {seed}: contents");
            assert_eq!(rest, bytes[at..], "seed {seed}: contents from {at}");
        }
        self.ports[rank].release(arrival);
    }
}

/// Returns the number of corrupted words.
fn siege(seed: u64, steps: usize) -> usize {
    let mut rng = Rng::new(seed);
    let (cells, fastbox_slots) = (rng.pick(&[4, 16]), rng.pick(&[4, 16]));
    let cell_bytes = rng.pick(&[256, 1024, 4096]);
    let stores = rng.pick(&[None, Some(Stores::Cached), Some(Stores::Prefetched), Some(Stores::NonTemporal)]);
    let fabric = Fabric::storing(WorldShape { peers: 3, cells, cell_bytes, fastbox_slots }, stores);
    let mut siege = PortSiege::new(seed, rng, &fabric);
    for _ in 0..steps {
        siege.step();
    }
    for polls in 0.. {
        if siege.between.iter().all(VecDeque::is_empty) {
            break;
        }
        assert!(polls < 20_000, "seed {seed}: lost {:?}", siege.between);
        if polls % 500 == 0 {
            siege.ports.iter_mut().for_each(|port| port.sweep_all());
        }
        siege.poll(polls % 2);
    }
    siege.corrupts
}

#[test]
fn packets_between_honest_ranks_arrive_whatever_the_third_corrupts() {
    let seeds = portion(300);
    let corrupts: usize = (0..seeds).map(|seed| siege(seed, 2000)).sum();
    assert!(corrupts > 300 * seeds as usize, "{corrupts} corrupts for {seeds} seeds");
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn packets_between_honest_ranks_arrive_for_any_seed(seed: u64) {
        siege(seed, 800);
    }
}
