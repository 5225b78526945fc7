//! One process: the table that ships, and what a layer above does for it.

use std::collections::BTreeMap;

use nemesia_core::peers::{
    CallAnswer, CallRefusal, PeerAddress, PeerEnd, PeerError, PeerLimits, PeerRef, PeerSlot, PeerStage,
    Peers, Speaking,
};
use nemesia_core::slab::{List, Slot};

use super::line::{LinePacket, ProcessName, Side};
use super::{Card, Network, broken, side_of};
use crate::rng::Rng;
use crate::tally::Event;
use crate::violation::{Check, Violation, ensure};

/// What a process knows of a peer besides the table.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) name: ProcessName,
    /// The line of the call, or of the connection.
    line: Option<usize>,
    /// The number by which the peer knows this process.
    number: u32,
    /// The number of packets that wait for the connection.
    pub(super) waiting: usize,
    /// It is a rank of this process's world, and its connection has ended.
    is_over: bool,
}

impl Known {
    const fn new(name: ProcessName) -> Self {
        Self { name, line: None, number: u32::MAX, waiting: 0, is_over: false }
    }
}

/// A process.
#[derive(Debug)]
pub(super) struct CallingProcess {
    pub(super) name: ProcessName,
    address: PeerAddress,
    limits: PeerLimits,
    table: Peers<Vec<Slot<PeerSlot>>, Vec<List>, Vec<u32>>,
    /// The peers, by identifier. The oracle of the table.
    pub(super) known: BTreeMap<PeerRefKey, Known>,
    /// Identifiers that were released.
    released: Vec<PeerRef>,
    /// Calls of peers that are parked.
    parked: Vec<usize>,
    /// Lines of calls that were abandoned, and are not closed yet.
    abandoned: Vec<usize>,
    /// Numbers of connections that have ended, and are not free yet.
    ending: Vec<u32>,
    /// The highest number of a connection so far.
    highest: Option<u32>,
}

/// A [`PeerRef`] with an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PeerRefKey(u64);

impl From<PeerRef> for PeerRefKey {
    fn from(peer: PeerRef) -> Self {
        Self(peer.to_bits())
    }
}

impl From<PeerRefKey> for PeerRef {
    fn from(key: PeerRefKey) -> Self {
        Self::from_bits(key.0)
    }
}

impl CallingProcess {
    /// Makes a process that knows the ranks of its world, if it is one of them.
    pub(super) fn new(rng: &mut Rng, (name, address): Card, count: usize, world: &[Card]) -> Self {
        let pinned = world.len().saturating_sub(1);
        let limits = PeerLimits {
            connections: 1 + rng.below(count) as u32,
            strangers: !rng.one_in(4),
            pinned: pinned as u32,
        };
        // One number more than the limit, which is what counts.
        let slots = (0..pinned + 1 + rng.below(count + 2)).map(|_| Slot::default()).collect();
        let buckets = vec![List::new(); 1 << rng.below(4)];
        let numbers = vec![0; pinned + limits.connections as usize + 1];
        let mut table = Peers::new(address, limits, (slots, buckets, numbers), rng.next());
        table.order_by_rank(name.index as u32, pinned as u32);
        let mut known = BTreeMap::new();
        for (rank, address) in world.iter().filter(|(rank, _)| *rank != name) {
            if let Ok(peer) = table.connect(address) {
                known.insert(peer.into(), Known::new(*rank));
            }
        }
        let (released, ending, parked, abandoned) = Default::default();
        Self { name, address, limits, table, known, released, parked, abandoned, ending, highest: None }
    }

    pub(super) fn card(&self) -> (ProcessName, PeerAddress) {
        (self.name, self.address)
    }

    pub(super) fn stage(&self, peer: PeerRefKey) -> Result<PeerStage, Violation> {
        self.table.stage(peer.into()).or_else(|error| broken(format!("{:?}: {peer:?}: {error}", self.name)))
    }

    /// Returns the line of the connection with a process.
    pub(super) fn line_with(&self, name: ProcessName) -> Option<usize> {
        let (peer, known) = self.known.iter().find(|(_, known)| known.name == name)?;
        matches!(self.table.stage((*peer).into()), Ok(PeerStage::Connected(_))).then_some(known.line)?
    }

    /// Learns an address.
    pub(super) fn connect(
        &mut self,
        name: ProcessName,
        address: PeerAddress,
        network: &mut Network,
    ) -> Check {
        let before = self.table.len();
        let met = self.known.iter().find(|(_, known)| known.name == name).map(|(peer, _)| *peer);
        match (self.table.connect(&address), met) {
            (Err(PeerError::Itself), None) if name == self.name => Ok(()),
            (Err(PeerError::Slots { slots }), None) if slots == before => Ok(()),
            (Ok(peer), Some(met)) if PeerRefKey::from(peer) == met => Ok(()),
            (Ok(peer), None) => self.meet(peer, name, network),
            (found, met) => broken(format!("{:?} meets {name:?} as {found:?}, known as {met:?}", self.name)),
        }
    }

    fn meet(&mut self, peer: PeerRef, name: ProcessName, network: &mut Network) -> Check {
        let is_again = self.released.iter().any(|old| old.to_bits() >> 32 == peer.to_bits() >> 32);
        if is_again {
            network.tally.count(Event::PeerSlotAgain);
        }
        let before = self.known.insert(peer.into(), Known::new(name));
        ensure!(before.is_none(), "{:?}: {peer:?} is the identifier of two peers", self.name);
        ensure!(!self.released.contains(&peer), "{:?}: {peer:?} was released", self.name);
        Ok(())
    }

    fn some_peer(&self, rng: &mut Rng) -> Option<PeerRefKey> {
        self.known.keys().nth(rng.below(self.known.len())).copied()
    }

    /// Sends a packet to some peer. A released identifier names none.
    pub(super) fn send_some(&mut self, network: &mut Network, rng: &mut Rng) -> Check {
        if rng.one_in(8) && !self.released.is_empty() {
            let peer = self.released[rng.below(self.released.len())];
            let spoken = self.table.speak(peer);
            ensure!(spoken == Err(PeerError::Stale), "{:?}: released {peer:?}: {spoken:?}", self.name);
        }
        let Some(peer) = self.some_peer(rng) else { return Ok(()) };
        let used = self.table.connections();
        match self.table.speak(peer.into()) {
            Ok(Speaking::Ready(_)) => {
                self.known_mut(peer)?.waiting += 1;
                self.send_waiting(peer, network)?;
            }
            Ok(Speaking::Wait(_)) => self.known_mut(peer)?.waiting += 1,
            Ok(Speaking::Call(number, call)) => {
                self.known_mut(peer)?.waiting += 1;
                self.call(peer, (number, call), network)?;
            }
            Err(PeerError::Ended(_)) => {}
            Err(PeerError::Connections { most }) if most == self.limits.connections && used >= most => {
                network.tally.count(Event::PeerFull);
            }
            Err(error) => return broken(format!("{:?}: {peer:?}: {error}", self.name)),
        }
        self.check_limit()
    }

    /// Calls a peer.
    fn call(&mut self, peer: PeerRefKey, (number, call): (u32, u64), network: &mut Network) -> Check {
        self.count_number(number, network);
        let line = network.open(self.name, self.known[&peer].name);
        network.note(|| format!("{:?} calls {:?}: line {line}", self.name, self.known[&peer].name));
        network.lines[line].send(Side::Caller, LinePacket::Call(self.address, number, call));
        self.known_mut(peer)?.line = Some(line);
        Ok(())
    }

    /// Disconnects from some peer.
    pub(super) fn disconnect_some(&mut self, network: &mut Network, rng: &mut Rng) -> Check {
        let Some(peer) = self.some_peer(rng) else { return Ok(()) };
        if self.stage(peer)?.number().is_some() && !self.is_rank(peer) {
            network.tally.count(Event::PeerLeft);
            self.leave(peer, network)?;
            self.end_peer(peer, PeerEnd::Disconnected, network)?;
        }
        Ok(())
    }

    /// Gives up some call that was answered and not confirmed, as for a process that is stopped.
    pub(super) fn give_up_some(&mut self, network: &mut Network, rng: &mut Rng) -> Check {
        let Some(peer) = self.some_peer(rng) else { return Ok(()) };
        if let (PeerStage::Answering(_), Some(line)) = (self.stage(peer)?, self.known[&peer].line)
            && network.lines[line].give_up(Side::Called)
        {
            network.note(|| format!("{:?} gives up line {line}", self.name));
            self.end_peer(peer, PeerEnd::Lost, network)?;
        }
        Ok(())
    }

    /// Announces the end on the line of a peer.
    fn leave(&self, peer: PeerRefKey, network: &mut Network) -> Check {
        if let Some(line) = self.known[&peer].line {
            let line = &mut network.lines[line];
            line.send(side_of(line, self.name), LinePacket::Bye);
        }
        Ok(())
    }

    /// Releases some peer.
    pub(super) fn release_some(&mut self, _: &mut Network, rng: &mut Rng) -> Check {
        let Some(peer) = self.some_peer(rng) else { return Ok(()) };
        let in_use = self.stage(peer)?.number().is_some();
        match self.table.release(peer.into()) {
            Err(PeerError::Pinned) if self.is_rank(peer) => Ok(()),
            Err(PeerError::InUse) if in_use => Ok(()),
            Ok(()) if !in_use && !self.is_rank(peer) => {
                self.known.remove(&peer);
                self.released.push(peer.into());
                Ok(())
            }
            other => broken(format!("{:?}: release of {peer:?}: {other:?}", self.name)),
        }
    }

    /// Ends the process. It closes all lines, perhaps after a last packet.
    pub(super) fn end(&mut self, network: &mut Network, leaves: bool) {
        for line in &mut network.lines {
            for (name, side) in [(line.caller, Side::Caller), (line.called, Side::Called)] {
                if name == self.name {
                    if leaves && line.accepted {
                        line.send(side, LinePacket::Bye);
                    }
                    line.close(side);
                }
            }
        }
        network.note(|| format!("{:?} ends", self.name));
    }

    /// Reads what has arrived: first on the lines of peers, then new calls.
    pub(super) fn progress(&mut self, network: &mut Network, rng: &mut Rng) -> Check {
        // New lines are accepted before ends are looked for: a peer calls again after the end of its connection.
        let backlog = self.accept(network);
        let peers: Vec<_> = self.known.keys().copied().collect();
        for peer in peers {
            // Packets of different connections are not in order: a new call may arrive before an earlier last packet.
            if !rng.one_in(4) {
                self.read_line(peer, network)?;
            }
        }
        for line in backlog {
            self.hear_call(line, network)?;
        }
        for line in std::mem::take(&mut self.abandoned) {
            if rng.one_in(3) {
                let side = side_of(&network.lines[line], self.name);
                network.lines[line].close(side);
            } else {
                self.abandoned.push(line);
            }
        }
        self.parked.retain(|line| !network.lines[*line].has_ended(Side::Called));
        if !self.ending.is_empty() && rng.one_in(2) {
            let number = self.ending.swap_remove(rng.below(self.ending.len()));
            self.table.free_number(number);
        }
        self.check_limit()
    }

    fn accept(&self, network: &mut Network) -> Vec<usize> {
        let mut backlog = Vec::new();
        for (at, line) in network.lines.iter_mut().enumerate() {
            if line.called == self.name && !line.accepted {
                line.accepted = true;
                backlog.push(at);
            }
        }
        backlog
    }

    /// Reads the line of a call or of a connection.
    fn read_line(&mut self, peer: PeerRefKey, network: &mut Network) -> Check {
        while let Some(line) = self.known.get(&peer).and_then(|known| known.line) {
            let side = side_of(&network.lines[line], self.name);
            match network.lines[line].receive(side) {
                Some(LinePacket::Answer(number, calls)) => {
                    self.hear_answer(peer, (line, number, calls), network)?;
                }
                Some(LinePacket::Confirmation) => {
                    let confirmed = self.table.confirmed(peer.into());
                    ensure!(confirmed.is_some(), "{:?}: line {line} is confirmed twice", self.name);
                    self.send_waiting(peer, network)?;
                }
                Some(LinePacket::Refusal(reason)) => {
                    network.note(|| format!("{:?}: line {line} is refused: {reason}", self.name));
                    self.end_peer(peer, PeerEnd::Refused, network)?;
                }
                Some(LinePacket::Bye) => self.end_peer(peer, PeerEnd::Left, network)?,
                Some(LinePacket::Data { from, to, number }) => {
                    let name = self.known[&peer].name;
                    let is_right = from == name && to == self.name;
                    ensure!(is_right, "{:?} gets a packet of {from:?} for {to:?} from {name:?}", self.name);
                    let found = self.table.peer_with(number);
                    ensure!(found == Some(peer.into()), "{:?}: number {number} is {found:?}", self.name);
                }
                Some(LinePacket::Call(..)) => {
                    return broken(format!("a call on line {line} of a connection"));
                }
                None if network.lines[line].has_ended(side) => {
                    if side == Side::Caller && self.call_again(peer, line, network)? {
                        continue;
                    }
                    let name = self.known[&peer].name;
                    let lives = network.lives[name.index] == name.life;
                    let is_confirmed = !matches!(self.stage(peer)?, PeerStage::Answering(_));
                    ensure!(
                        !(lives && is_confirmed),
                        "{:?} loses line {line} to {name:?}, which lives",
                        self.name
                    );
                    self.end_peer(peer, PeerEnd::Lost, network)?;
                }
                None => break,
            }
        }
        Ok(())
    }

    fn hear_answer(
        &mut self,
        peer: PeerRefKey,
        (line, number, calls): (usize, u32, u64),
        network: &mut Network,
    ) -> Check {
        if network.lines[line].is_lost(Side::Caller) && self.call_again(peer, line, network)? {
            return Ok(());
        }
        let Some(_) = self.table.answered(peer.into(), calls) else {
            return broken(format!("{:?}: the answer on line {line} comes to no call", self.name));
        };
        network.note(|| format!("{:?}: line {line} is answered", self.name));
        network.lines[line].send(Side::Caller, LinePacket::Confirmation);
        self.known_mut(peer)?.number = number;
        self.send_waiting(peer, network)
    }

    /// Calls a peer once more if its process lives, and has closed the line of the call.
    fn call_again(
        &mut self,
        peer: PeerRefKey,
        line: usize,
        network: &mut Network,
    ) -> Result<bool, Violation> {
        let ProcessName { index, life } = self.known[&peer].name;
        if network.lives[index] != life {
            return Ok(false);
        }
        let Some((number, call)) = self.table.call_again(peer.into()) else { return Ok(false) };
        network.tally.count(Event::PeerAgain);
        network.lines[line].close(Side::Caller);
        let called = network.open(self.name, self.known[&peer].name);
        network.note(|| format!("{:?} calls again: line {called}", self.name));
        network.lines[called].send(Side::Caller, LinePacket::Call(self.address, number, call));
        self.known_mut(peer)?.line = Some(called);
        Ok(true)
    }

    /// Sends the packets that have waited for the connection.
    fn send_waiting(&mut self, peer: PeerRefKey, network: &mut Network) -> Check {
        let name = self.name;
        let known = self.known_mut(peer)?;
        let Some(line) = known.line else {
            return broken(format!("{name:?} has a connection without a line"));
        };
        let packet = LinePacket::Data { from: name, to: known.name, number: known.number };
        let line = &mut network.lines[line];
        let side = side_of(line, name);
        (0..std::mem::take(&mut known.waiting)).for_each(|_| line.send(side, packet));
        Ok(())
    }

    /// Decides about a call.
    fn hear_call(&mut self, at: usize, network: &mut Network) -> Check {
        let Some(LinePacket::Call(address, theirs, call)) = network.lines[at].receive(Side::Called) else {
            network.lines[at].close(Side::Called);
            return Ok(());
        };
        let caller = network.lines[at].caller;
        let was_known = self.known.iter().find(|(_, known)| known.name == caller).map(|(peer, _)| *peer);
        let (used, slots) = (self.table.connections(), self.table.len());
        let before = was_known.map(|peer| self.stage(peer)).transpose()?;
        let mut answer = self.table.called(&address, call);
        if let CallAnswer::Ended(peer) = answer {
            self.end_peer(peer.into(), PeerEnd::Left, network)?;
            answer = self.table.called(&address, call);
        }
        match answer {
            CallAnswer::Answer { peer, number, calls } => {
                ensure!(was_known.is_some() || self.limits.strangers, "{:?} admits {caller:?}", self.name);
                let crosses = matches!(before, Some(PeerStage::Calling(_)));
                let counts = if was_known.is_some_and(|peer| self.is_rank(peer)) {
                    if crosses {
                        network.tally.count(Event::PeerRanksCross);
                    }
                    caller.index > self.name.index
                } else {
                    address < self.address
                };
                ensure!(!crosses || counts, "{:?}: its own call counts", self.name);
                let was_ended = self.known.get(&peer.into()).is_none_or(|known| known.line.is_none());
                let is_alone = was_ended || !matches!(before, Some(PeerStage::Connected(_)));
                ensure!(is_alone, "{:?} has a connection with {caller:?}, and answers it", self.name);
                if was_known.is_none() {
                    self.meet(peer, caller, network)?;
                }
                self.answer(peer.into(), (at, theirs), (number, calls), network)?;
            }
            CallAnswer::Park(peer) => {
                ensure!(was_known == Some(peer.into()), "{:?} parks the call of another", self.name);
                network.tally.count(Event::PeerParked);
                self.parked.push(at);
            }
            CallAnswer::Outdated => {
                network.tally.count(Event::PeerOutdated);
                network.lines[at].close(Side::Called);
            }
            CallAnswer::Refuse(reason) => {
                let is_right = match reason {
                    CallRefusal::Unknown => was_known.is_none() && !self.limits.strangers,
                    CallRefusal::Full if was_known.is_some_and(|peer| self.is_rank(peer)) => false,
                    CallRefusal::Full => used >= self.limits.connections || slots >= self.table.len(),
                    CallRefusal::Itself => caller == self.name,
                    CallRefusal::Connected => false,
                };
                ensure!(is_right, "{:?} refuses {caller:?}: {reason}", self.name);
                let event =
                    if reason == CallRefusal::Unknown { Event::PeerStranger } else { Event::PeerFull };
                network.tally.count(event);
                network.lines[at].send(Side::Called, LinePacket::Refusal(reason));
                network.lines[at].close(Side::Called);
            }
            CallAnswer::Ended(_) => return broken(format!("{:?}: {caller:?} has ended twice", self.name)),
        }
        Ok(())
    }

    /// Answers a call.
    fn answer(
        &mut self,
        peer: PeerRefKey,
        (line, theirs): (usize, u32),
        (number, calls): (u32, u64),
        network: &mut Network,
    ) -> Check {
        network.note(|| format!("{:?} answers line {line}", self.name));
        self.count_number(number, network);
        let known = self.known_mut(peer)?;
        known.number = theirs;
        // Nothing is expected of our own call, or of an earlier call of the peer, any more.
        if let Some(before) = known.line.replace(line) {
            network.tally.count(Event::PeerCrossing);
            self.abandoned.push(before);
        }
        network.lines[line].send(Side::Called, LinePacket::Answer(number, calls));
        Ok(())
    }

    /// Ends the connection with a peer, or the call.
    fn end_peer(&mut self, peer: PeerRefKey, end: PeerEnd, network: &mut Network) -> Check {
        let name = self.name;
        if let Some(line) = self.known_mut(peer)?.line.take() {
            let side = side_of(&network.lines[line], name);
            network.lines[line].close(side);
        }
        // If a call of ours has failed, the peer makes its own once more.
        let peer_name = self.known[&peer].name;
        self.parked.retain(|line| {
            let line = &mut network.lines[*line];
            if line.caller == peer_name {
                line.close(Side::Called);
            }
            line.caller != peer_name
        });
        match self.table.ended(peer.into(), end) {
            Some(number) => self.ending.push(number),
            None => return broken(format!("{name:?}: a line of {peer:?} without a connection")),
        }
        if self.stage(peer)? != PeerStage::Apart {
            let is_rank = self.is_rank(peer);
            self.known_mut(peer)?.is_over = is_rank;
            let waiting = std::mem::take(&mut self.known_mut(peer)?.waiting);
            let lives = network.lives[peer_name.index] == peer_name.life;
            ensure!(
                !(end == PeerEnd::Lost && lives && waiting > 0),
                "{name:?} drops {waiting} packets for {peer_name:?}, which lives"
            );
        } else if self.known[&peer].waiting > 0 {
            // The caller has abandoned its call, but packets wait.
            match self.table.speak(peer.into()) {
                Ok(Speaking::Call(number, call)) => self.call(peer, (number, call), network)?,
                Err(PeerError::Connections { .. }) => self.known_mut(peer)?.waiting = 0,
                other => return broken(format!("{name:?}: {peer:?} is apart, and {other:?}")),
            }
        }
        Ok(())
    }

    fn known_mut(&mut self, peer: PeerRefKey) -> Result<&mut Known, Violation> {
        let name = self.name;
        self.known.get_mut(&peer).ok_or_else(|| Violation(format!("{name:?} does not know {peer:?}")))
    }

    /// Returns whether a peer is a rank of the same world.
    fn is_rank(&self, peer: PeerRefKey) -> bool {
        self.table.is_pinned(peer.into())
    }

    fn count_number(&mut self, number: u32, network: &mut Network) {
        if number < self.limits.pinned {
            return;
        }
        if self.highest.is_some_and(|highest| number <= highest) {
            network.tally.count(Event::PeerNumberAgain);
        }
        self.highest = self.highest.max(Some(number));
    }

    fn check_limit(&self) -> Check {
        let (used, most) = (self.table.connections(), self.limits.connections);
        ensure!(used <= most, "{:?} has {used} connections of {most}", self.name);
        for (peer, known) in self.known.iter().filter(|(_, known)| known.is_over) {
            let stage = self.stage(*peer)?;
            ensure!(matches!(stage, PeerStage::Ended(_)), "{:?}: rank {:?} is back", self.name, known.name);
        }
        Ok(())
    }

    /// Checks that the numbers in use are those of the connections, each once.
    pub(super) fn check_numbers(&self) -> Check {
        let mut numbers = Vec::new();
        for peer in self.known.keys() {
            let number = self.stage(*peer)?.number();
            let place = PeerRef::from(*peer).index();
            let is_its = number.is_none_or(|number| number == place);
            ensure!(is_its || !self.is_rank(*peer), "{:?} has number {number:?} for rank {place}", self.name);
            numbers.extend(number);
        }
        numbers.extend(&self.ending);
        numbers.retain(|number| *number >= self.limits.pinned);
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        ensure!(
            numbers.len() == count && count == self.table.connections() as usize,
            "{:?} has {} numbers in use for {count} connections",
            self.name,
            self.table.connections()
        );
        Ok(())
    }
}
