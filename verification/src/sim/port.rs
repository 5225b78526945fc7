//! The simulated message port: an engine's view of the [`Fabric`].

use std::cell::RefCell;
use std::rc::Rc;

use nemesia_core::counters::TrafficCounters;
use nemesia_core::payload::{BorrowedGather, BorrowedRecv};
use nemesia_core::port::{
    Arrival, AssistedCopy, MessagePort, NextChunk, Part, PeerFault, PeerId, Polled, Pulled,
};
use nemesia_core::shared::fastbox::Word;
use nemesia_core::store::cost;
use nemesia_core::wire::{Envelope, Kind};

use crate::fabric::{self, Class, DuePacket, Fabric, Path, Taken};
use crate::tally::Event;

/// The port of one process.
#[derive(Debug)]
pub(crate) struct SimPort {
    rank: PeerId,
    fabric: Rc<RefCell<Fabric>>,
}

impl SimPort {
    pub(crate) const fn new(rank: PeerId, fabric: Rc<RefCell<Fabric>>) -> Self {
        Self { rank, fabric }
    }
}

/// Returns whether a packet is a message that receives match.
pub(crate) const fn is_matched(kind: Kind) -> bool {
    matches!(kind, Kind::Eager | Kind::Rts)
}

/// Returns whether a packet is an operation or an active message. These have an order of their own.
pub(crate) const fn is_remote(kind: Kind) -> bool {
    matches!(kind, Kind::Active | Kind::Rma)
}

/// Returns whether the packet's bytes follow later.
pub(crate) const fn is_offer(kind: Kind) -> bool {
    matches!(kind, Kind::Rts)
}

const fn class(kind: Kind) -> Class {
    match kind {
        Kind::Eager | Kind::Data | Kind::Active => Class::Content,
        Kind::Fin => Class::Fin,
        _ => Class::Other,
    }
}

const fn event(sent: bool, kind: Kind) -> Option<Event> {
    match kind {
        _ if !sent => Some(Event::NoRoom),
        Kind::Eager => Some(Event::Eager),
        Kind::Rts => Some(Event::Rts),
        Kind::Cts => Some(Event::Cts),
        Kind::Data => Some(Event::Data),
        Kind::Fin => Some(Event::Fin),
        _ => None,
    }
}

fn polled(due: Option<DuePacket>) -> Polled<Path> {
    let Some(DuePacket { taken: Taken { peer, envelope, len }, path }) = due else { return Polled::Idle };
    Polled::Packet(Arrival { peer, envelope, len, token: path })
}

const fn due(arrival: &Arrival<Path>) -> DuePacket {
    let Arrival { peer, envelope, len, token } = *arrival;
    DuePacket { taken: Taken { peer, envelope, len }, path: token }
}

impl MessagePort for SimPort {
    type Token = Path;

    fn packet_bytes(&self) -> usize {
        self.fabric.borrow().conditions.packet_bytes
    }

    fn send(&mut self, peer: PeerId, envelope: &Envelope, payload: &[u8]) -> Result<bool, PeerFault> {
        let mut fabric = self.fabric.borrow_mut();
        let sent = fabric.send(self.rank, peer, class(envelope.kind), envelope, payload);
        if let Some(event) = event(sent, envelope.kind) {
            fabric.tally.count(event);
        }
        if sent && is_matched(envelope.kind) {
            fabric.spend(self.rank, peer, cost(payload.len()));
        }
        Ok(sent)
    }

    fn sends_words(&self) -> bool {
        true
    }

    fn send_word(&mut self, peer: PeerId, context: u16, tag: u64, word: Word) -> Option<bool> {
        let envelope = Envelope { kind: Kind::Eager, context, tag, total: word.len() as u64 };
        self.send(peer, &envelope, &word).unwrap_or(false).then_some(false)
    }

    fn send_copy(&mut self, peer: PeerId, context: u16, tag: u64, bytes: &[u8]) -> Option<bool> {
        let envelope = Envelope { kind: Kind::Eager, context, tag, total: bytes.len() as u64 };
        let long = bytes.len() > size_of::<Word>();
        (long && self.send(peer, &envelope, bytes).unwrap_or(false)).then_some(false)
    }

    fn send_parts(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        head: &[u8],
        body: &[u8],
    ) -> Result<bool, PeerFault> {
        self.send(peer, envelope, &[head, body].concat())
    }

    fn send_list(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        from: &mut BorrowedGather<'_>,
        at: usize,
    ) -> Result<bool, PeerFault> {
        let mut bytes = vec![0; envelope.total as usize];
        from.read(at, &mut bytes);
        self.send(peer, envelope, &bytes)
    }

    fn poll(&mut self) -> Polled<Path> {
        polled(self.fabric.borrow_mut().poll(self.rank))
    }

    fn take(
        &mut self,
        wanted: impl FnOnce(PeerId, &Envelope) -> bool,
        to: &mut BorrowedRecv<'_>,
    ) -> Option<(PeerId, Envelope)> {
        let mut fabric = self.fabric.borrow_mut();
        let due = fabric.poll(self.rank)?;
        let Taken { peer, envelope, len } = due.taken;
        if due.path != Path::Short || envelope.kind != Kind::Eager || !wanted(peer, &envelope) {
            return None;
        }
        to.each(0, len, |done, to| fabric.read(self.rank, peer, due.path, done, to));
        fabric.release(self.rank, &due);
        Some((peer, envelope))
    }

    fn take_word(
        &mut self,
        from: Option<PeerId>,
        context: u16,
        wanted: impl FnOnce(u64) -> bool,
    ) -> Option<(PeerId, u64, Word, bool)> {
        let mut fabric = self.fabric.borrow_mut();
        let due = match from {
            Some(peer) if peer >= fabric.conditions.ranks => None,
            Some(peer) => {
                let now = fabric.now;
                fabric.poll_peer(self.rank, peer, now)
            }
            None => fabric.poll(self.rank),
        }?;
        let Taken { peer, envelope, len } = due.taken;
        let mut word = Word::default();
        let whole = due.path == Path::Short && envelope.kind == Kind::Eager && len == word.len();
        if !whole || envelope.context != context || !wanted(envelope.tag) {
            return None;
        }
        fabric.read(self.rank, peer, due.path, 0, &mut word);
        fabric.release(self.rank, &due);
        Some((peer, envelope.tag, word, false))
    }

    fn poll_peer(&mut self, peer: PeerId) -> Polled<Path> {
        polled(self.fabric.borrow_mut().poll_peer(self.rank, peer, u64::MAX))
    }

    fn read(&self, arrival: &Arrival<Path>, at: usize, to: &mut [u8]) {
        self.fabric.borrow_mut().read(self.rank, arrival.peer, arrival.token, at, to);
    }

    fn release(&mut self, arrival: Arrival<Path>) {
        self.fabric.borrow_mut().release(self.rank, &due(&arrival));
    }

    fn prioritize(&mut self, _: PeerId) {}

    fn grant(&mut self, peer: PeerId, units: u64) {
        self.fabric.borrow_mut().grant(self.rank, peer, units);
    }

    fn granted(&self, peer: PeerId) -> u64 {
        self.fabric.borrow_mut().granted(self.rank, peer)
    }

    /// Virtual time: what the engine learns from it is random, and every choice is correct.
    fn ticks(&self) -> Option<u64> {
        Some(self.fabric.borrow().now)
    }

    fn can_pull(&self, peer: PeerId) -> bool {
        self.fabric.borrow_mut().can_pull(self.rank, peer)
    }

    fn pull(&mut self, peer: PeerId, address: u64, to: &mut [u8]) -> Pulled {
        match self.fabric.borrow_mut().pull(self.rank, peer, address, to) {
            fabric::Pulled::Done => Pulled::Done,
            fabric::Pulled::Unreadable => Pulled::Unreadable,
            fabric::Pulled::Refused => Pulled::Refused,
        }
    }

    fn open_assist(&mut self, peer: PeerId, assist: &AssistedCopy) -> bool {
        let mut fabric = self.fabric.borrow_mut();
        if !fabric.conditions.assists {
            return false;
        }
        fabric.tally.count(Event::Assist);
        let shared = fabric.shared(self.rank, peer, self.rank);
        shared.map(|(shared, _)| shared.open(assist)).is_some()
    }

    fn next_chunk(&mut self, peer: PeerId) -> NextChunk {
        let mut fabric = self.fabric.borrow_mut();
        let now = fabric.now;
        let shared = fabric.shared(self.rank, peer, self.rank);
        let next_chunk = shared.map_or(NextChunk::Wait, |(shared, rng)| shared.next_chunk(now, rng));
        if next_chunk == NextChunk::Wait {
            fabric.tally.count(Event::AssistWait);
        }
        next_chunk
    }

    fn close_assist(&mut self, peer: PeerId) {
        if let Some((shared, _)) = self.fabric.borrow_mut().shared(self.rank, peer, self.rank) {
            shared.close();
        }
    }

    fn find_assist(&mut self, peer: PeerId) -> Option<AssistedCopy> {
        self.fabric.borrow_mut().shared(self.rank, self.rank, peer)?.0.find()
    }

    fn join_assist(&mut self, peer: PeerId, _: u64) -> Option<Part> {
        let mut fabric = self.fabric.borrow_mut();
        let (shared, rng) = fabric.shared(self.rank, self.rank, peer)?;
        shared.join(rng)
    }

    fn next_part(&mut self, peer: PeerId) -> Option<Part> {
        let mut fabric = self.fabric.borrow_mut();
        let (shared, rng) = fabric.shared(self.rank, self.rank, peer)?;
        shared.claim(rng)
    }

    fn end_part(&mut self, peer: PeerId, part: Part, written: bool) {
        let mut fabric = self.fabric.borrow_mut();
        let seen = fabric.later();
        if let Some((shared, _)) = fabric.shared(self.rank, self.rank, peer) {
            shared.end(part, written, seen);
            // The receiver may wait for this.
            fabric.wake(peer, seen);
        }
    }

    fn push(&mut self, peer: PeerId, address: u64, from: &[u8]) -> bool {
        self.fabric.borrow_mut().push(self.rank, peer, address, from)
    }

    fn traffic(&self, peer: PeerId) -> TrafficCounters {
        self.fabric.borrow_mut().traffic(self.rank, peer)
    }

    fn close(&mut self, peer: PeerId) {
        self.fabric.borrow_mut().close(self.rank, peer);
    }
}
