//! Processes whose machines are joined by carriers in memory. A test delivers what is sent, and lets time pass.

use std::vec;
use std::vec::Vec;

use super::super::slots::{CarrierSlot, LinkSlot, LinkStorage, RankSlot};
use super::super::table::{LinkProcess, Links, Spoken};
use super::super::terms::{CarrierKind, CarrierRef, DialFault, LinkLimits, LinkRef, LinkStage};
use super::owner::{Carriage, CarrierEnd, Desk, NAMES, TestWire};
pub(super) use super::owner::{Flight, LinkReport, TestOwner};
use super::*;
use crate::job_key::JobKey;
use crate::link::address::{AddressKinds, LinkAddress};
use crate::link::token::LinkToken;
use crate::link::wire::{LINK_VERSION, LeaveManner, LinkBody, LinkHeader, LinkMessage, LinkService};
use crate::peers::PeerAddress;
use crate::slab::{List, Slot};

/// The service and the instance of all links, if a test does not say otherwise.
pub(super) const ENGINE: (LinkService, u32) = (LinkService::Engine, 0);
/// The storage of a process.
#[derive(Debug)]
pub(super) struct LentVectors;

impl LinkStorage for LentVectors {
    type Links = Vec<Slot<LinkSlot>>;
    type Buckets = Vec<List>;
    type Carriers = Vec<Slot<CarrierSlot>>;
    type Ranks = Vec<RankSlot>;
}

/// A process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) links: Links<LentVectors>,
    pub(super) desk: Desk,
    is_gone: bool,
}

/// What a world begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) kind: CarrierKind,
    pub(super) count: usize,
    pub(super) has_ranks: bool,
    pub(super) limits: LinkLimits,
    /// The places for links and for carriers.
    pub(super) places: [usize; 2],
}

impl Setup {
    /// Returns two processes without a world that reach each other by carriers of this kind.
    pub(super) const fn new(kind: CarrierKind) -> Self {
        let limits = LinkLimits::new(PATIENCE);
        Self { kind, count: 2, has_ranks: false, limits, places: [16, 64] }
    }

    pub(super) fn open(self) -> LinkWorld {
        let mut world = LinkWorld {
            setup: self,
            now: Duration::from_secs(100),
            processes: Vec::new(),
            carriage: Carriage { random: 1, ..Carriage::default() },
        };
        let known = world.known(if self.has_ranks { self.count } else { 0 });
        for at in 0..self.count {
            let rank = self.has_ranks.then_some(at as u32);
            world.add(LinkProcess { rank, ..LinkProcess::alone(address(self.kind, at)) }, known.clone());
        }
        world
    }
}

/// Returns the address of a process. Those of later processes are larger.
pub(super) fn address(kind: CarrierKind, at: usize) -> LinkAddress {
    let number = at as u32 + 1;
    let (kinds, port, datagrams) = match kind {
        CarrierKind::Datagram => (AddressKinds::DATAGRAMS.with(AddressKinds::GID), 0, (0, number, 5)),
        _ => (AddressKinds::IP, 7, (0, 0, 0)),
    };
    let (mut token, mut place) = ([0xfe; 16], [0xfd; 16]);
    token[..4].copy_from_slice(&number.to_le_bytes());
    place[..4].copy_from_slice(&number.to_le_bytes());
    let machine = if kind == CarrierKind::HandOff { 1 } else { u64::from(number) };
    // Bytes are compared from the first on.
    let pid = number.swap_bytes();
    LinkAddress { kinds, port, pid, token: LinkToken::from_bytes(token), machine, space: 1, datagrams, place }
}

/// Processes, and what is between them.
#[derive(Debug)]
pub(super) struct LinkWorld {
    setup: Setup,
    pub(super) now: Duration,
    pub(super) processes: Vec<Process>,
    pub(super) carriage: Carriage,
}

impl LinkWorld {
    /// Returns what a rank knows of the first ranks.
    fn known(&self, count: usize) -> Vec<RankSlot> {
        (0..count).map(|at| RankSlot::new(address(self.setup.kind, at).encode(), 0)).collect()
    }

    /// Adds a process.
    pub(super) fn add(&mut self, process: LinkProcess, known: Vec<RankSlot>) -> usize {
        let (at, setup) = (self.processes.len(), self.setup);
        let storage = (
            (0..setup.places[0]).map(|_| Slot::default()).collect(),
            vec![List::new(); 8],
            (0..setup.places[1]).map(|_| Slot::default()).collect(),
            known,
        );
        let seeds = [1, 2].map(|half| {
            let mut seed = [half; 32];
            seed[1..9].copy_from_slice(&at.to_le_bytes());
            seed
        });
        let links = Links::new(process, setup.limits, storage, seeds);
        self.carriage.addresses.push(process.address.encode());
        self.processes.push(Process { links, desk: Desk::new(at), is_gone: false });
        at
    }

    /// Adds a further process that has this key of a job.
    pub(super) fn add_with_key(&mut self, job: Option<JobKey>) -> usize {
        let address = address(self.setup.kind, self.processes.len());
        self.add(LinkProcess { job, ..LinkProcess::alone(address) }, Vec::new())
    }

    /// Starts the next process of a rank. It knows the addresses of the first processes of the others.
    pub(super) fn restart(&mut self, rank: u32, incarnation: u64) -> usize {
        let address = address(self.setup.kind, self.processes.len());
        let mut known = self.known(self.setup.count);
        known[rank as usize] = RankSlot::new(address.encode(), incarnation);
        self.add(LinkProcess { rank: Some(rank), incarnation, ..LinkProcess::alone(address) }, known)
    }

    /// Lets the machine of a process act.
    pub(super) fn act<R>(
        &mut self,
        at: usize,
        run: impl FnOnce(&mut Links<LentVectors>, Duration, &mut TestOwner<'_>) -> R,
    ) -> R {
        self.act_for(at, None, run)
    }

    fn act_for<R>(
        &mut self,
        at: usize,
        author: Option<usize>,
        run: impl FnOnce(&mut Links<LentVectors>, Duration, &mut TestOwner<'_>) -> R,
    ) -> R {
        let Process { links, desk, .. } = &mut self.processes[at];
        run(links, self.now, &mut TestOwner { desk, carriage: &mut self.carriage, author })
    }

    pub(super) fn desk(&mut self, at: usize) -> &mut Desk {
        &mut self.processes[at].desk
    }

    pub(super) fn address(&self, at: usize) -> PeerAddress {
        self.carriage.addresses[at]
    }

    /// Returns the link of a process with a peer.
    pub(super) fn link(&self, at: usize, peer: usize) -> Option<LinkRef> {
        self.processes[at].links.find(&self.address(peer), ENGINE.0, ENGINE.1)
    }

    pub(super) fn stage(&self, at: usize, peer: usize) -> LinkStage {
        self.link(at, peer).map_or(LinkStage::Idle, |link| self.processes[at].links.stage(link))
    }

    /// Packets of a process wait for a peer. In a world, both have ranks.
    pub(super) fn speak(&mut self, at: usize, peer: usize) -> Spoken {
        let rank = (self.setup.has_ranks && peer < self.setup.count).then_some(peer as u32);
        let address = self.address(peer);
        self.act(at, |links, now, owner| links.speak(&address, rank, ENGINE, now, owner))
    }

    /// Returns what a process has reported since the last time.
    pub(super) fn reports(&mut self, at: usize) -> Vec<LinkReport> {
        std::mem::take(&mut self.desk(at).reports).into_iter().map(|(_, report)| report).collect()
    }

    /// Returns the names of the messages that a process has sent since the last time.
    pub(super) fn said(&mut self, at: usize) -> Vec<&'static str> {
        std::mem::take(&mut self.desk(at).said)
    }

    /// Forgets what was reported and sent.
    pub(super) fn forget(&mut self) {
        for at in 0..self.processes.len() {
            self.reports(at);
            self.said(at);
        }
    }

    /// Delivers the first message with this name that is on its way to a process, before everything else.
    pub(super) fn deliver(&mut self, at: usize, name: &str) {
        let is_it = |flight: &Flight| {
            let named = match flight {
                Flight::Bytes(_, _, bytes) | Flight::Datagram(_, _, bytes) => NAMES[usize::from(bytes[3])],
                Flight::Connection(_) => "connection",
                Flight::End(..) => "end",
            };
            self.carriage.receiver(flight) == at && named == name
        };
        let index = self.carriage.flights.iter().position(is_it);
        let index = index.unwrap_or_else(|| panic!("no {name} is on its way to {at}"));
        let flight = self.carriage.flights.remove(index).unwrap();
        self.arrive(flight);
    }

    /// Delivers the oldest thing that is on its way. Returns whether there was one.
    pub(super) fn step(&mut self) -> bool {
        let Some(flight) = self.carriage.flights.pop_front() else { return false };
        self.arrive(flight);
        true
    }

    /// Delivers everything, and what follows from it.
    pub(super) fn run(&mut self) {
        (0..100_000).find(|_| !self.step()).expect("messages without end");
    }

    /// Delivers until a link has this stage.
    pub(super) fn until(&mut self, at: usize, peer: usize, stage: LinkStage) {
        while self.stage(at, peer) != stage {
            assert!(self.step(), "{at} does not reach {stage:?}: {:?}", self.stage(at, peer));
        }
    }

    /// Time passes, and everything that is sent arrives at once.
    pub(super) fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        self.run();
        while self.attend_next(end) {
            self.run();
        }
        self.now = end;
    }

    /// Time passes, and nothing arrives.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.attend_next(end) {}
        self.now = end;
    }

    /// Lets the process act that is due next, until this time.
    fn attend_next(&mut self, end: Duration) -> bool {
        let running = self.processes.iter().enumerate().filter(|(_, process)| !process.is_gone);
        let due = running.map(|(at, process)| (process.links.next(), at)).min();
        let Some((when, at)) = due.filter(|(when, _)| *when <= end) else { return false };
        self.now = self.now.max(when);
        self.act(at, |links, now, owner| links.attend(4096, now, owner));
        let next = self.processes[at].links.next();
        assert!(next > self.now, "{at} says again and again that something is due");
        true
    }

    fn arrive(&mut self, flight: Flight) {
        match flight {
            Flight::Connection(wire) => self.connect(wire),
            Flight::Bytes(wire, side, bytes) => {
                if let Some((at, carrier)) = self.reader(wire, side) {
                    self.act(at, |links, now, owner| links.received(carrier, &bytes, now, owner));
                }
            }
            Flight::End(wire, side) => {
                if let Some((at, carrier)) = self.reader(wire, side) {
                    self.act(at, |links, now, owner| links.lost(carrier, now, owner));
                    let is_open = self.carriage.ends.contains_key(&(at, carrier));
                    assert!(!is_open, "a carrier that is lost stays");
                }
            }
            Flight::Datagram(from, to, bytes) => {
                if self.processes.get(to).is_some_and(|process| !process.is_gone) {
                    self.act_for(to, Some(from), |links, now, owner| links.datagram(&bytes, now, owner));
                }
            }
        }
    }

    /// Returns the process and the carrier at this side of a connection that it has not closed.
    fn reader(&self, wire: usize, side: usize) -> Option<(usize, CarrierRef)> {
        let it = &self.carriage.wires[wire];
        let carrier = it.carriers[side].filter(|_| !it.is_closed[side])?;
        Some((it.ends[side], carrier))
    }

    /// A connection reaches its other end.
    fn connect(&mut self, wire: usize) {
        let TestWire { kind, ends: [from, to], .. } = self.carriage.wires[wire];
        let listens = self.processes.get(to).is_some_and(|process| !process.is_gone);
        let fault = self.carriage.faults.get(&(to, kind)).copied();
        let fault = if listens { fault } else { Some(DialFault::Nothing) };
        let dialler = self.reader(wire, 0);
        if let Some(fault) = fault {
            if let Some((_, carrier)) = dialler {
                self.act(from, |links, now, owner| links.failed(carrier, fault, now, owner));
            }
            return;
        }
        self.accept(wire);
        if let Some((_, carrier)) = dialler {
            self.act(from, |links, now, owner| links.reached(carrier, now, owner));
        }
    }

    fn accept(&mut self, wire: usize) {
        let TestWire { kind, ends: [_, to], .. } = self.carriage.wires[wire];
        let Some(carrier) = self.act(to, |links, now, owner| links.accepted(kind, now, owner)) else {
            self.carriage.wires[wire].is_closed[1] = true;
            return self.carriage.flights.push_back(Flight::End(wire, 0));
        };
        self.carriage.wires[wire].carriers[1] = Some(carrier);
        self.carriage.ends.insert((to, carrier), CarrierEnd::Wire(wire, 1));
        self.act(to, |links, _, owner| links.challenge(carrier, owner));
    }

    /// A process that is no machine connects. Returns the called side's carrier, if it was accepted.
    pub(super) fn stranger(&mut self, kind: CarrierKind, from: usize, to: usize) -> Option<CarrierRef> {
        let wire = self.carriage.connect(kind, [from, to], None);
        self.carriage.flights.pop_back();
        self.accept(wire);
        self.carriage.wires[wire].carriers[1]
    }

    /// Returns whether a carrier of a process is open.
    pub(super) fn has(&self, at: usize, carrier: CarrierRef) -> bool {
        self.carriage.ends.contains_key(&(at, carrier))
    }

    /// Returns the number of carriers that a process has not closed.
    pub(super) fn carriers(&self, at: usize) -> usize {
        self.carriage.ends.keys().filter(|(of, _)| *of == at).count()
    }

    /// Returns the latest carrier of a process to a peer.
    pub(super) fn carrier(&self, at: usize, peer: usize) -> Option<CarrierRef> {
        self.carriers_to(at, peer).last().map(|(_, carrier)| *carrier)
    }

    pub(super) fn oldest_carrier(&self, at: usize, peer: usize) -> Option<CarrierRef> {
        self.carriers_to(at, peer).first().map(|(_, carrier)| *carrier)
    }

    fn carriers_to(&self, at: usize, peer: usize) -> Vec<(usize, CarrierRef)> {
        let mine = self.carriage.ends.iter().filter(|((of, _), _)| *of == at);
        let to = mine.filter(|((_, carrier), _)| self.carriage.other_end(at, *carrier) == Some(peer));
        let order = |end: &CarrierEnd| if let CarrierEnd::Wire(wire, _) = end { *wire } else { 0 };
        let mut found: Vec<_> = to.map(|((_, carrier), end)| (order(end), *carrier)).collect();
        found.sort_unstable();
        found
    }

    /// The carrier of a process to a peer breaks, and only this process learns it.
    pub(super) fn cut(&mut self, at: usize, peer: usize) {
        let carrier = self.carrier(at, peer).expect("no carrier to cut");
        let Some(CarrierEnd::Wire(wire, side)) = self.carriage.ends.get(&(at, carrier)).copied() else {
            return;
        };
        self.act(at, |links, now, owner| links.lost(carrier, now, owner));
        // What this process sent has arrived, and its end is not seen.
        let is_end = |flight: &Flight| matches!(flight, Flight::End(w, s) if (*w, *s) == (wire, 1 - side));
        self.carriage.flights.retain(|flight| !is_end(flight));
    }

    /// These bytes come from a peer over the carrier of a link.
    pub(super) fn hear(&mut self, at: usize, peer: usize, bytes: &[u8]) {
        let carrier = self.carrier(at, peer).expect("no carrier");
        match self.carriage.ends.get(&(at, carrier)) {
            Some(CarrierEnd::Place(_)) => {
                self.act_for(at, Some(peer), |links, now, owner| links.datagram(bytes, now, owner));
            }
            _ => self.act(at, |links, now, owner| links.received(carrier, bytes, now, owner)),
        }
    }

    /// Returns a message of a peer for its link with a process.
    pub(super) fn message(&self, at: usize, peer: usize, body: LinkBody<'_>) -> Vec<u8> {
        let number = |of: usize, to: usize| self.carriage.numbers.get(&(of, to)).copied();
        let (to, from) = (number(at, peer).unwrap_or(0), number(peer, at).unwrap_or(7));
        let header = LinkHeader { version: LINK_VERSION, service: ENGINE.0, to, from };
        LinkMessage { header, body }.encode().get().to_vec()
    }

    /// A process dies: the kernel closes its connections.
    pub(super) fn kill(&mut self, at: usize) {
        self.processes[at].is_gone = true;
        let mine: Vec<_> =
            self.carriage.ends.iter().filter(|((of, _), _)| *of == at).map(|(_, end)| *end).collect();
        self.carriage.ends.retain(|(of, _), _| *of != at);
        for end in mine {
            if let CarrierEnd::Wire(wire, side) = end {
                self.carriage.wires[wire].is_closed[side] = true;
                self.carriage.flights.push_back(Flight::End(wire, 1 - side));
            }
        }
    }

    /// A process says goodbye over all its links.
    pub(super) fn close(&mut self, at: usize, manner: LeaveManner) {
        self.act(at, |links, now, owner| {
            links.close(manner);
            while links.close_next(now, owner) {}
        });
    }

    /// A process disconnects from a peer, and both free their ends.
    pub(super) fn close_link(&mut self, at: usize, peer: usize) {
        let link = self.link(at, peer).expect("no link");
        self.act(at, |links, now, owner| {
            links.disconnect(link, now, owner);
            links.drained(link, now, owner);
        });
        self.run();
        self.free(at, peer);
        self.free(peer, at);
    }

    /// Nothing is left of a link that has ended.
    pub(super) fn free(&mut self, at: usize, peer: usize) {
        let link = self.link(at, peer).expect("no link");
        self.act(at, |links, now, owner| links.free(link, now, owner));
    }

    /// Checks that two processes have one open link, and nothing else.
    pub(super) fn assert_joined(&self, one: usize, two: usize) {
        for (at, peer) in [(one, two), (two, one)] {
            let process = &self.processes[at];
            assert_eq!(self.stage(at, peer), LinkStage::Open, "{at} with {peer}");
            assert_eq!((process.links.carriers(), self.carriers(at)), (1, 1), "carriers of {at}");
            assert_eq!((process.links.undecided(), process.desk.made.len()), (0, 1), "{at}");
        }
        let ticket = |at: usize, peer: usize| {
            self.processes[at].links.ticket(self.link(at, peer).unwrap(), 3).unwrap()
        };
        assert_eq!(ticket(one, two), ticket(two, one));
    }

    /// Checks that a process keeps nothing of a peer.
    pub(super) fn assert_nothing(&self, at: usize) {
        let process = &self.processes[at];
        let counts = (process.links.links(), process.links.carriers(), process.links.undecided());
        assert_eq!(
            (counts, self.carriers(at), process.desk.made.len()),
            ((0, 0, 0), 0, 0),
            "{at} keeps something"
        );
    }
}
