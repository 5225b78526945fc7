//! Strangers: connections of processes that were not given the address that they call, or that claim another one.

use nemesia_core::link::address::LinkAddress;
use nemesia_core::link::machine::terms::{CarrierKind, LinkStage};
use nemesia_core::link::offers::OfferList;
use nemesia_core::link::proof::{LinkKey, NO_CHALLENGE};
use nemesia_core::link::token::LinkToken;
use nemesia_core::link::wire::{
    LINK_VERSION, LinkBody, LinkCall, LinkHeader, LinkMessage, LinkService, MaskedAddress,
};
use nemesia_core::peers::PeerAddress;
use nemesia_core::wire::hello::{Challenge, Proof};

use super::LinksWorld;
use super::network::{Attack, Happening};
use crate::tally::Event;

impl LinksWorld {
    /// Some strangers connect to a process.
    pub(super) fn attack(&mut self, at: usize) {
        let Some(address) = self.processes[at].as_ref().map(|process| process.address) else { return };
        let has_ip = LinkAddress::decode(&address).is_ok_and(|it| it.port != 0);
        let kind = if has_ip && self.rng.one_in(2) { CarrierKind::Stream } else { CarrierKind::HandOff };
        let count = if self.rng.one_in(10) { 12 } else { 1 };
        for _ in 0..count {
            let from = self.rng.below(self.processes.len());
            let attack = match self.rng.below(6) {
                0 => Attack::Silent,
                1 => Attack::Partial,
                2 => Attack::Says((0..60).map(|_| self.rng.next() as u8).collect()),
                3 => Attack::Guess,
                4 => Attack::Claim(self.rng.below(self.processes.len())),
                _ => Attack::Replay,
            };
            if let Attack::Claim(claimed) = attack
                && (kind == CarrierKind::HandOff || self.truth.hosts[claimed] == self.truth.hosts[from])
            {
                // Two processes of one host can stand for a third one; of one machine, the kernel names the caller.
                continue;
            }
            self.tally.count(Event::LinkStranger);
            self.network.connect(kind, (from, None), at, Some(attack));
        }
    }

    /// A process that has left tells another one, over a connection of its own.
    pub(super) fn depart(&mut self, at: usize, other: usize, bytes: Vec<u8>) {
        self.tally.count(Event::LinkDeparture);
        self.network.connect(CarrierKind::Stream, (at, None), other, Some(Attack::Departs(bytes)));
    }

    /// A message of a connection has come: perhaps a departure.
    pub(super) fn note_departed(&mut self, at: usize, id: u64, side: usize) {
        let Some(connection) = self.network.connections.get(&id) else { return };
        let is_open = side == 1 && !connection.sides[1].is_closed && !self.is_varied;
        if is_open && matches!(connection.stranger, Some(Attack::Departs(_))) {
            let from = connection.sides[0].process;
            // The end of an open link comes over its own carrier.
            let link = self.link(at, from).map(|_| self.stage(at, from));
            let rank = self.ranks.iter().position(|of| *of == from);
            let process = self.processes[at].as_ref();
            let known = rank.and_then(|rank| process.and_then(|it| it.links.rank(rank as u32)));
            let is_known = known.is_some_and(|(address, _)| self.truth.find(&address) == Some(from));
            let is_early = matches!(link, Some(LinkStage::Idle | LinkStage::Calling | LinkStage::Proving));
            if is_early || link.is_none() && is_known {
                self.truth.departed.insert((from, at));
            }
        }
    }

    /// A stranger has been accepted.
    pub(super) fn stranger_begins(&mut self, at: usize, id: u64) {
        let Some(connection) = self.network.connections.get(&id) else { return };
        let (kind, attack, from) =
            (connection.kind, connection.stranger.clone(), connection.sides[0].process);
        let bytes = match attack {
            None | Some(Attack::Silent) => return,
            Some(Attack::Partial) => {
                let when = self.network.later(1000);
                return self.network.schedule(when, at, Happening::Partial(id));
            }
            Some(Attack::Says(bytes) | Attack::Departs(bytes)) => bytes,
            Some(Attack::Replay) => {
                let calls: Vec<_> = self.truth.recorded.iter().filter(|(to, _)| *to == at).collect();
                let Some((_, bytes)) = calls.last() else { return };
                bytes.clone()
            }
            Some(Attack::Guess | Attack::Claim(_)) if kind == CarrierKind::Stream => return,
            Some(Attack::Guess | Attack::Claim(_)) => {
                let Some(bytes) = self.false_call(at, from, None, &NO_CHALLENGE) else { return };
                bytes
            }
        };
        self.network.send(id, 0, &bytes, true);
    }

    /// A stranger has a message of a process: perhaps a challenge.
    pub(super) fn stranger_hears(&mut self, id: u64, bytes: &[u8]) {
        let Some(connection) = self.network.connections.get(&id) else { return };
        let (at, from) = (connection.sides[1].process, connection.sides[0].process);
        let claimed = match connection.stranger {
            Some(Attack::Guess) => None,
            Some(Attack::Claim(claimed)) => Some(claimed),
            _ => return,
        };
        let Ok(LinkMessage { body: LinkBody::Challenge(challenge), .. }) =
            LinkMessage::decode(bytes, LINK_VERSION)
        else {
            return;
        };
        if let Some(bytes) = self.false_call(at, from, claimed, &challenge) {
            self.network.send(id, 0, &bytes, true);
        }
    }

    /// Returns the call of a stranger: with a guessed token, or, if it knows the called process, with the address of
    /// another one.
    fn false_call(
        &mut self,
        at: usize,
        from: usize,
        claimed: Option<usize>,
        challenge: &Challenge,
    ) -> Option<Vec<u8>> {
        let called = self.processes[at].as_ref()?.address;
        let address = |of: usize| {
            let all = self.truth.processes.iter();
            all.clone().find(|(_, at)| **at == of).map(|(address, _)| PeerAddress::from_bytes(*address))
        };
        let (claims, key) = match claimed {
            Some(claimed) => (address(claimed)?, LinkKey::of(&called, None)),
            None => {
                let mut guess = [0; 16];
                guess[..8].copy_from_slice(&self.network.rng.next().to_le_bytes());
                (address(from)?, LinkKey::new(&LinkToken::from_bytes(guess), None))
            }
        };
        let call = LinkCall {
            call: u64::MAX,
            incarnation: 0,
            number: u32::MAX,
            packet_bytes: 8192,
            challenge: challenge.number,
            instance: 0,
            nonce: 5,
            address: MaskedAddress(key.mask(Some(challenge), 5, claims.bytes())),
            offers: OfferList::EMPTY.get(true),
            proof: Proof::default(),
        };
        let header = LinkHeader { version: LINK_VERSION, service: LinkService::Engine, to: 0, from: 7 };
        let mut message = LinkMessage { header, body: LinkBody::Call(call) }.encode();
        let proof = key.call_proof(challenge, &called, message.get());
        message.seal(&proof);
        Some(message.get().to_vec())
    }
}
