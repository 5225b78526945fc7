//! The owner of a process, which does what a test says, and the carriers in memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::string::{String, ToString as _};
use std::vec::Vec;

use super::super::terms::{
    CarrierKind, CarrierRef, DialFault, LinkEnding, LinkEvent, LinkIntroduction, LinkOwner, LinkRef,
    LinkRefusal, PathResult,
};
use super::*;
use crate::link::offers::{LinkOffer, OfferList, StreamOffer};
use crate::link::wire::{LinkAnswer, LinkCall, LinkService};
use crate::peers::PeerAddress;

/// The names of the kinds of messages, by their numbers.
pub(super) const NAMES: [&str; 11] =
    ["", "ask", "challenge", "call", "answer", "confirm", "welcome", "refuse", "leave", "hold", "done"];

/// What an owner has learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkReport {
    Opened,
    Ended(LinkEnding),
    Restarted(u32, u64),
}

/// What the owner of a process decides, and what it was asked for.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) at: usize,
    /// How it refuses unknown peers, and calls.
    pub(super) denies: Option<LinkRefusal>,
    pub(super) refuses: Option<LinkRefusal>,
    pub(super) can_make: bool,
    pub(super) path: PathResult,
    pub(super) packet_bytes: u32,
    /// The links for which something is made, and how often something was.
    pub(super) made: BTreeSet<LinkRef>,
    pub(super) makings: u32,
    pub(super) settled: Vec<u8>,
    pub(super) reports: Vec<(LinkRef, LinkReport)>,
    pub(super) words: String,
    /// The messages that it has sent, by name, and the carriers that it has dialled.
    pub(super) said: Vec<&'static str>,
    pub(super) dialled: Vec<CarrierKind>,
    pub(super) last_said: Vec<u8>,
}

impl Desk {
    pub(super) fn new(at: usize) -> Self {
        Self {
            at,
            denies: None,
            refuses: None,
            can_make: true,
            path: PathResult::Up(2, ""),
            packet_bytes: 8192,
            made: BTreeSet::new(),
            makings: 0,
            settled: Vec::new(),
            reports: Vec::new(),
            words: String::new(),
            said: Vec::new(),
            dialled: Vec::new(),
            last_said: Vec::new(),
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct TestWire {
    pub(super) kind: CarrierKind,
    pub(super) ends: [usize; 2],
    pub(super) carriers: [Option<CarrierRef>; 2],
    pub(super) is_closed: [bool; 2],
    pub(super) is_withdrawn: [bool; 2],
}

/// What a carrier of a process is: one side of a connection, or the place of datagrams.
#[derive(Clone, Copy, Debug)]
pub(super) enum CarrierEnd {
    Wire(usize, usize),
    Place(usize),
}

/// What is on its way.
#[derive(Clone, Debug)]
pub(super) enum Flight {
    Connection(usize),
    Bytes(usize, usize, Vec<u8>),
    End(usize, usize),
    Datagram(usize, usize, Vec<u8>),
}

/// The carriers of all processes.
#[derive(Debug, Default)]
pub(super) struct Carriage {
    pub(super) addresses: Vec<PeerAddress>,
    pub(super) wires: Vec<TestWire>,
    pub(super) ends: BTreeMap<(usize, CarrierRef), CarrierEnd>,
    pub(super) flights: VecDeque<Flight>,
    /// Why connections to this process cannot be made.
    pub(super) faults: BTreeMap<(usize, CarrierKind), DialFault>,
    /// The number by which the first process knows its link with the second, as its messages say.
    pub(super) numbers: BTreeMap<(usize, usize), u64>,
    pub(super) random: u64,
}

impl Carriage {
    pub(super) fn receiver(&self, flight: &Flight) -> usize {
        match *flight {
            Flight::Connection(wire) => self.wires[wire].ends[1],
            Flight::Bytes(wire, side, _) | Flight::End(wire, side) => self.wires[wire].ends[side],
            Flight::Datagram(_, to, _) => to,
        }
    }

    pub(super) fn other_end(&self, at: usize, carrier: CarrierRef) -> Option<usize> {
        Some(match *self.ends.get(&(at, carrier))? {
            CarrierEnd::Wire(wire, side) => self.wires[wire].ends[1 - side],
            CarrierEnd::Place(to) => to,
        })
    }

    pub(super) fn connect(
        &mut self,
        kind: CarrierKind,
        ends: [usize; 2],
        carrier: Option<CarrierRef>,
    ) -> usize {
        let wire = self.wires.len();
        self.wires.push(TestWire {
            kind,
            ends,
            carriers: [carrier, None],
            is_closed: [false; 2],
            is_withdrawn: [false; 2],
        });
        if let Some(carrier) = carrier {
            self.ends.insert((ends[0], carrier), CarrierEnd::Wire(wire, 0));
        }
        self.flights.push_back(Flight::Connection(wire));
        wire
    }
}

/// The owner of a process while its machine acts.
pub(super) struct TestOwner<'a> {
    pub(super) desk: &'a mut Desk,
    pub(super) carriage: &'a mut Carriage,
    /// The author of the datagram that is being handled.
    pub(super) author: Option<usize>,
}

impl TestOwner<'_> {
    fn note(&mut self, to: Option<usize>, message: &[u8]) {
        self.desk.said.push(NAMES[usize::from(message[3])]);
        self.desk.last_said = message.to_vec();
        let from = u64::from_le_bytes(message[16..24].try_into().unwrap());
        if let Some(to) = to.filter(|_| from != 0) {
            self.carriage.numbers.insert((self.desk.at, to), from);
        }
    }

    fn introduction(&mut self, link: LinkRef, offers: &mut OfferList) -> LinkIntroduction {
        assert!(self.desk.made.insert(link), "resources are made twice for one link");
        self.desk.makings += 1;
        let offer = LinkOffer::Stream(StreamOffer { version: 1, streams: 1, receives: 2, port: 0, token: 0 });
        offers.add(&offer);
        let (number, packet_bytes) = (self.desk.makings, self.desk.packet_bytes);
        LinkIntroduction { number, packet_bytes, word: 5, chosen: offer.code() }
    }
}

impl LinkOwner for TestOwner<'_> {
    fn random(&mut self) -> u64 {
        let next = self.carriage.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.carriage.random = next;
        next
    }

    fn dial(&mut self, carrier: CarrierRef, kind: CarrierKind, peer: &PeerAddress) {
        let at = self.desk.at;
        let to = self.carriage.addresses.iter().position(|address| address == peer).unwrap_or(usize::MAX);
        self.desk.dialled.push(kind);
        if kind == CarrierKind::Datagram {
            self.carriage.ends.insert((at, carrier), CarrierEnd::Place(to));
        } else {
            self.carriage.connect(kind, [at, to], Some(carrier));
        }
    }

    fn send(&mut self, carrier: CarrierRef, message: &[u8]) -> bool {
        let at = self.desk.at;
        let to = self.carriage.other_end(at, carrier);
        self.note(to, message);
        let end = *self.carriage.ends.get(&(at, carrier)).expect("a message for a carrier that is closed");
        match end {
            CarrierEnd::Wire(wire, side) => {
                let TestWire { kind, is_closed, is_withdrawn, .. } = self.carriage.wires[wire];
                if kind == CarrierKind::HandOff && (is_closed[1 - side] || is_withdrawn[1 - side]) {
                    return false;
                }
                self.carriage.flights.push_back(Flight::Bytes(wire, 1 - side, message.to_vec()));
            }
            CarrierEnd::Place(to) => {
                self.carriage.flights.push_back(Flight::Datagram(at, to, message.to_vec()));
            }
        }
        true
    }

    fn respond(&mut self, message: &[u8]) {
        let author = self.author.expect("an answer to no datagram");
        self.note(None, message);
        self.carriage.flights.push_back(Flight::Datagram(self.desk.at, author, message.to_vec()));
    }

    fn close(&mut self, carrier: CarrierRef) {
        let end = self.carriage.ends.remove(&(self.desk.at, carrier)).expect("a carrier is closed twice");
        if let CarrierEnd::Wire(wire, side) = end {
            self.carriage.wires[wire].is_closed[side] = true;
            self.carriage.flights.push_back(Flight::End(wire, 1 - side));
        }
    }

    fn withdraw(&mut self, carrier: CarrierRef) -> bool {
        let Some(CarrierEnd::Wire(wire, side)) = self.carriage.ends.get(&(self.desk.at, carrier)).copied()
        else {
            return false;
        };
        self.carriage.wires[wire].is_withdrawn[side] = true;
        let is_unread =
            |flight: &Flight| matches!(flight, Flight::Bytes(w, s, _) if (*w, *s) == (wire, side));
        self.carriage.flights.iter().any(is_unread)
    }

    fn is_from(&mut self, carrier: Option<CarrierRef>, peer: &PeerAddress) -> bool {
        let at = self.desk.at;
        let from = match carrier {
            None => self.author,
            Some(carrier) => self.carriage.other_end(at, carrier),
        };
        from.is_some_and(|from| self.carriage.addresses.get(from) == Some(peer))
    }

    fn admit(&mut self, _: &PeerAddress, _: LinkService) -> Result<(), LinkRefusal> {
        self.desk.denies.map_or(Ok(()), Err)
    }

    fn make(
        &mut self,
        link: LinkRef,
        _: (CarrierRef, CarrierKind),
        offers: &mut OfferList,
    ) -> Option<LinkIntroduction> {
        self.desk.can_make.then(|| self.introduction(link, offers))
    }

    fn grant(
        &mut self,
        link: LinkRef,
        _: CarrierRef,
        _: &PeerAddress,
        call: &LinkCall<'_>,
        offers: &mut OfferList,
    ) -> Result<LinkIntroduction, LinkRefusal> {
        let (ours, theirs) = (self.desk.packet_bytes, call.packet_bytes);
        if ours != theirs {
            let values = [u64::from(ours), u64::from(theirs)];
            return Err(LinkRefusal { values, ..refusal(RefusalCode::Shape, false) });
        }
        match self.desk.refuses {
            Some(refusal) => Err(refusal),
            None => Ok(self.introduction(link, offers)),
        }
    }

    fn join(&mut self, link: LinkRef, answer: &LinkAnswer<'_>) -> PathResult {
        assert!(self.desk.made.contains(&link), "an answer for a link that has nothing");
        assert_eq!((answer.word, answer.chosen), (5, 2));
        self.desk.path
    }

    fn settle(&mut self, link: LinkRef, chosen: u8) {
        assert!(self.desk.made.contains(&link), "a link is settled that has nothing");
        self.desk.settled.push(chosen);
    }

    fn unmake(&mut self, link: LinkRef) {
        self.desk.made.remove(&link);
    }

    fn report(&mut self, link: LinkRef, event: LinkEvent<'_>) {
        let report = match event {
            LinkEvent::Opened => LinkReport::Opened,
            LinkEvent::Ended(end, words) => {
                self.desk.words = words.to_string();
                LinkReport::Ended(end)
            }
            LinkEvent::Restarted(rank, incarnation) => LinkReport::Restarted(rank, incarnation),
        };
        self.desk.reports.push((link, report));
    }
}
