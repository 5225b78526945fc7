//! The simulated message port: an engine's view of the [`Fabric`].

use std::cell::RefCell;
use std::rc::Rc;

use nemesia_core::counters::TrafficCounters;
use nemesia_core::payload::{BorrowedRecv, ReceiveRange, ReceiveRanges, SendRange, SendRuns};
use nemesia_core::port::{
    AccessError, Accessed, AccessedRanges, Arrival, AssistedCopy, CompletedAccess, Exposure, NextChunk,
    PacketPieces, PacketPort, Part, PeerFault, PeerId, Polled, RemoteAccess, RemoteRun, Rendezvous, RunTable,
    SHORT_BYTES, SharedCopy, ShortPath, describe_runs,
};
use nemesia_core::store::cost;
use nemesia_core::wire::prefix::{EagerPrefix, MOST_PREFIX_BYTES, PrefixWords};
use nemesia_core::wire::rendezvous::Descriptor;
use nemesia_core::wire::{Envelope, Kind};

use crate::fabric::access::Parts;
use crate::fabric::{self, Class, Conditions, DuePacket, Fabric, Path, Taken, rts_of};
use crate::tally::Event;
use crate::world::WorldPort;

/// The method of descriptors of buffers that a peer may write.
const WRITABLE: u8 = 200;

/// Returns the address of a buffer that the peer may write.
fn writable(descriptor: &Descriptor) -> Option<u64> {
    let bytes = descriptor.bytes().try_into().ok().filter(|_| descriptor.method() == WRITABLE)?;
    Some(u64::from_le_bytes(bytes))
}

/// The port of one process.
#[derive(Debug)]
pub(crate) struct SimPort {
    rank: PeerId,
    fabric: Rc<RefCell<Fabric>>,
    runs: Box<RunTable>,
    /// The number of lists that were exposed.
    lists: u64,
}

/// Returns the result of a single copy.
pub(crate) const fn copied(pulled: fabric::Pulled) -> Result<(), AccessError> {
    match pulled {
        fabric::Pulled::Done => Ok(()),
        fabric::Pulled::Unreadable => Err(AccessError::Range),
        fabric::Pulled::Refused => Err(AccessError::Refused),
    }
}

impl WorldPort for SimPort {
    type Medium = ();

    fn preferred(conditions: &Conditions, _: u32) -> usize {
        if conditions.prefers_eager { conditions.packet_bytes } else { 0 }
    }

    fn start(rank: PeerId, fabric: Rc<RefCell<Fabric>>, (): ()) -> Option<Self> {
        Some(Self { rank, fabric, runs: Box::default(), lists: 0 })
    }

    fn free_cells(&mut self) -> usize {
        self.fabric.borrow_mut().free_cells(self.rank)
    }
}

/// Returns whether a packet is a message that receives match.
pub(crate) const fn is_matched(kind: Kind) -> bool {
    kind.is_eager() || matches!(kind, Kind::Rts)
}

/// Returns whether a packet is an operation or an active message. These have an order of their own.
pub(crate) const fn is_remote(kind: Kind) -> bool {
    matches!(kind, Kind::Active | Kind::Rma)
}

/// Returns whether the sender waits for an answer: the packet's bytes follow later, or the receiver acknowledges them.
pub(crate) const fn is_offer(kind: Kind) -> bool {
    kind.is_answered()
}

/// Counts a packet that was sent, or could not be sent.
pub(crate) fn record_sent(
    fabric: &mut Fabric,
    (rank, peer): (u32, u32),
    envelope: &Envelope,
    paid_bytes: usize,
    sent: bool,
) {
    if let Some(event) = event(sent, envelope.kind) {
        fabric.tally.count(event);
    }
    if sent && is_matched(envelope.kind) {
        fabric.spend(rank, peer, cost(paid_bytes));
    }
}

const fn class(kind: Kind) -> Class {
    match kind {
        Kind::Data | Kind::Active => Class::Content,
        kind if kind.is_eager() => Class::Content,
        Kind::Fin => Class::Fin,
        _ => Class::Other,
    }
}

const fn event(sent: bool, kind: Kind) -> Option<Event> {
    match kind {
        _ if !sent => Some(Event::NoRoom),
        Kind::Eager => Some(Event::Eager),
        Kind::EagerImmediate => Some(Event::Immediate),
        Kind::EagerAcknowledged | Kind::EagerBoth => Some(Event::Acknowledged),
        Kind::Rts => Some(Event::Rts),
        Kind::Cts => Some(Event::Cts),
        Kind::Data => Some(Event::Data),
        Kind::Fin => Some(Event::Fin),
        _ => None,
    }
}

fn polled(due: Option<DuePacket>) -> Polled<Path> {
    let Some(DuePacket { taken: Taken { peer, envelope, len, .. }, path }) = due else { return Polled::Idle };
    Polled::Packet(Arrival { peer, envelope, len, token: path })
}

const fn due(arrival: &Arrival<Path>) -> DuePacket {
    let Arrival { peer, envelope, len, token } = *arrival;
    DuePacket { taken: Taken { peer, envelope, len, rts: None }, path: token }
}

impl SimPort {
    fn send_bytes(&mut self, peer: PeerId, envelope: &Envelope, payload: &[u8]) -> Result<bool, PeerFault> {
        let mut fabric = self.fabric.borrow_mut();
        let sent = fabric.send(self.rank, peer, class(envelope.kind), envelope, payload);
        let unasked = rts_of(envelope, payload).map_or(0, |rts| rts.following());
        record_sent(&mut fabric, (self.rank, peer), envelope, payload.len() + unasked, sent);
        Ok(sent)
    }
}

impl PacketPort for SimPort {
    type Token = Path;

    fn send(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        mut pieces: PacketPieces<'_>,
    ) -> Result<bool, PeerFault> {
        let mut bytes = vec![0; pieces.len()];
        pieces.copy_to(&mut bytes);
        self.send_bytes(peer, envelope, &bytes)
    }

    fn packet_bytes(&self) -> usize {
        self.fabric.borrow().conditions.packet_bytes
    }

    fn eager_bytes(&self, peer: PeerId) -> usize {
        let Conditions { packet_bytes, prefers_eager, .. } = self.fabric.borrow().conditions;
        if prefers_eager && peer.is_multiple_of(2) { packet_bytes } else { 0 }
    }

    fn unasked_bytes(&self, peer: PeerId) -> usize {
        let Conditions { packet_bytes, prefers_eager, .. } = self.fabric.borrow().conditions;
        if prefers_eager && !peer.is_multiple_of(3) { 4 * packet_bytes } else { 0 }
    }

    fn gathers(&self, _: PeerId, len: usize) -> bool {
        self.fabric.borrow().conditions.gathers && len.is_multiple_of(2)
    }

    fn poll(&mut self) -> Polled<Path> {
        polled(self.fabric.borrow_mut().poll(self.rank))
    }

    fn poll_peer(&mut self, peer: PeerId) -> Polled<Path> {
        polled(self.fabric.borrow_mut().poll_peer(self.rank, peer, u64::MAX))
    }

    fn read(&self, arrival: &Arrival<Path>, at: usize, to: &mut [u8]) -> bool {
        self.fabric.borrow_mut().read(self.rank, arrival.peer, arrival.token, at, to);
        true
    }

    fn release(&mut self, arrival: Arrival<Path>) {
        self.fabric.borrow_mut().release(self.rank, &due(&arrival));
    }

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

    fn traffic(&self, peer: PeerId) -> TrafficCounters {
        self.fabric.borrow_mut().traffic(self.rank, peer)
    }

    fn close(&mut self, peer: PeerId) {
        self.runs.forget(peer);
        self.fabric.borrow_mut().close(self.rank, peer);
    }
}

impl ShortPath for SimPort {
    fn short_bytes(&self) -> usize {
        SHORT_BYTES
    }

    fn send_short(&mut self, peer: PeerId, context: u16, tag: u64, bytes: &[u8]) -> Option<bool> {
        let envelope = Envelope { kind: Kind::Eager, context, tag, total: bytes.len() as u64 };
        self.send_bytes(peer, &envelope, bytes).unwrap_or(false).then_some(false)
    }

    fn send_immediate(
        &mut self,
        peer: PeerId,
        context: u16,
        [tag, immediate]: [u64; 2],
        bytes: &[u8],
    ) -> Option<bool> {
        let packet = [&immediate.to_le_bytes(), bytes].concat();
        let envelope = Envelope { kind: Kind::EagerImmediate, context, tag, total: packet.len() as u64 };
        self.send_bytes(peer, &envelope, &packet).unwrap_or(false).then_some(false)
    }

    fn send_copy(&mut self, peer: PeerId, context: u16, tag: u64, bytes: &[u8]) -> Option<bool> {
        let envelope = Envelope { kind: Kind::Eager, context, tag, total: bytes.len() as u64 };
        let long = bytes.len() > SHORT_BYTES;
        (long && self.send_bytes(peer, &envelope, bytes).unwrap_or(false)).then_some(false)
    }

    fn send_prefixed(&mut self, peer: PeerId, envelope: &Envelope, words: PrefixWords, body: &[u8]) -> bool {
        let packet = [&words.encode()[..words.bytes()], body].concat();
        self.send_bytes(peer, envelope, &packet).unwrap_or(false)
    }

    fn take_prefixed(
        &mut self,
        wanted: impl FnOnce(PeerId, &Envelope, PrefixWords) -> bool,
        to: &mut BorrowedRecv<'_>,
    ) -> Option<(PeerId, Envelope, PrefixWords)> {
        let mut fabric = self.fabric.borrow_mut();
        let due = fabric.poll(self.rank)?;
        let Taken { peer, envelope, len, .. } = due.taken;
        let skip = PrefixWords::bytes_of(envelope.kind);
        let len = len.checked_sub(skip)?;
        let mut head = [0; MOST_PREFIX_BYTES];
        fabric.read(self.rank, peer, due.path, 0, &mut head[..skip]);
        let head = u128::from_le_bytes(head);
        let words = PrefixWords::of(envelope.kind, [head as u64, (head >> 64) as u64])?;
        let to = to.whole(0, len).filter(|to| to.len() == len)?;
        if !wanted(peer, &envelope, words) {
            return None;
        }
        fabric.read(self.rank, peer, due.path, skip, to);
        fabric.release(self.rank, &due);
        Some((peer, envelope, words))
    }

    /// A packet that only [`ShortPath::take_prefixed`] takes may wait at any time.
    fn has_next(&self) -> bool {
        true
    }

    fn expects_next(&self) -> bool {
        true
    }

    fn take(
        &mut self,
        wanted: impl FnOnce(PeerId, &Envelope) -> bool,
        to: &mut BorrowedRecv<'_>,
    ) -> Option<(PeerId, Envelope)> {
        let mut fabric = self.fabric.borrow_mut();
        let due = fabric.poll(self.rank)?;
        let Taken { peer, envelope, len, .. } = due.taken;
        if due.path != Path::Short || envelope.kind != Kind::Eager || !wanted(peer, &envelope) {
            return None;
        }
        to.each(0, len, |done, to| fabric.read(self.rank, peer, due.path, done, to));
        fabric.release(self.rank, &due);
        Some((peer, envelope))
    }

    fn take_short(
        &mut self,
        from: Option<usize>,
        context: u16,
        wanted: impl FnOnce(u64) -> bool,
        to: &mut [u8],
    ) -> Option<(PeerId, u64, usize, bool)> {
        let mut fabric = self.fabric.borrow_mut();
        let due = match from {
            Some(peer) if peer >= fabric.conditions.ranks as usize => None,
            Some(peer) => {
                let now = fabric.now;
                fabric.poll_peer(self.rank, peer as PeerId, now)
            }
            None => fabric.poll(self.rank),
        }?;
        let Taken { peer, envelope, len, .. } = due.taken;
        let whole = due.path == Path::Short && envelope.kind == Kind::Eager && len <= SHORT_BYTES;
        let to = to.get_mut(..len)?;
        if !whole || envelope.context != context || !wanted(envelope.tag) {
            return None;
        }
        fabric.read(self.rank, peer, due.path, 0, to);
        fabric.release(self.rank, &due);
        Some((peer, envelope.tag, len, false))
    }

    fn take_into<'b>(
        &mut self,
        place: impl FnOnce(PeerId, &Envelope) -> Option<&'b mut [u8]>,
    ) -> Option<(PeerId, Envelope, Option<u64>)> {
        let mut fabric = self.fabric.borrow_mut();
        let due = fabric.poll(self.rank)?;
        let Taken { peer, envelope, len, .. } = due.taken;
        if due.path != Path::Short || !matches!(envelope.kind, Kind::Eager | Kind::EagerImmediate) {
            return None;
        }
        let skip = EagerPrefix::bytes_of(envelope.kind);
        let to = place(peer, &envelope)?.get_mut(..len.checked_sub(skip)?)?;
        let mut head = [0; MOST_PREFIX_BYTES];
        fabric.read(self.rank, peer, due.path, 0, &mut head[..skip]);
        fabric.read(self.rank, peer, due.path, skip, to);
        fabric.release(self.rank, &due);
        let prefix = EagerPrefix::decode(envelope.kind, &head[..skip])?;
        Some((peer, envelope, prefix.immediate))
    }

    fn is_quiet(&mut self) -> bool {
        self.fabric.borrow_mut().poll(self.rank).is_none()
    }
}

// SAFETY: an access ends before `get` returns, or is only described by numbers: its bytes are copied by the fabric,
// which checks that the buffer is still lent.
unsafe impl RemoteAccess for SimPort {
    fn can_get(&self, peer: PeerId) -> bool {
        self.fabric.borrow_mut().can_pull(self.rank, peer)
    }

    fn is_accessible(&self, peer: PeerId, descriptor: &Descriptor) -> bool {
        match descriptor.method() {
            WRITABLE => writable(descriptor).is_some(),
            _ => descriptor.is_readable() && self.can_get(peer),
        }
    }

    fn expose(&mut self, peer: PeerId, range: SendRange) -> (Descriptor, Option<Exposure>) {
        let (address, len) = (range.address(), range.len());
        let number = self.fabric.borrow_mut().expose(self.rank, peer, false, (address, len));
        (Descriptor::of_address(address), number.map(Exposure))
    }

    fn rendezvous(&self, peer: PeerId) -> Rendezvous {
        let put = self.fabric.borrow().conditions.puts;
        Rendezvous { get: self.can_get(peer), put, stream: true }
    }

    fn expose_for_put(
        &mut self,
        peer: PeerId,
        range: ReceiveRange,
        _: u64,
    ) -> (Descriptor, Option<Exposure>) {
        let mut fabric = self.fabric.borrow_mut();
        if !fabric.conditions.puts {
            return (Descriptor::NONE, None);
        }
        let address = range.base().addr().get() as u64;
        let number = fabric.expose(self.rank, peer, true, (address, range.len()));
        let described = Descriptor::new(WRITABLE, &address.to_le_bytes()).filter(|_| number.is_some());
        (described.unwrap_or(Descriptor::NONE), number.map(Exposure))
    }

    fn put(&mut self, peer: PeerId, to: &Descriptor, at: u64, from: SendRange, operation: u64) -> Accessed {
        let Some(remote) = writable(to).and_then(|address| address.checked_add(at)) else {
            return Accessed::Failed(AccessError::Range);
        };
        let parts = Parts { remote, local: from.address(), len: from.len() };
        self.fabric.borrow_mut().start_access(self.rank, peer, true, parts, operation)
    }

    fn revoke(&mut self, peer: PeerId, exposure: Exposure) {
        self.fabric.borrow_mut().revoke(self.rank, peer, exposure.0);
    }

    fn poll_access(&mut self) -> Option<CompletedAccess> {
        self.fabric.borrow_mut().poll_access(self.rank)
    }

    fn get(
        &mut self,
        peer: PeerId,
        from: &Descriptor,
        at: u64,
        to: ReceiveRange,
        operation: u64,
    ) -> Accessed {
        let Some(address) = from.address().and_then(|address| address.checked_add(at)) else {
            return Accessed::Failed(AccessError::Range);
        };
        if self.fabric.borrow().conditions.accesses > 0 {
            let parts = Parts { remote: address, local: to.base().addr().get() as u64, len: to.len() };
            return self.fabric.borrow_mut().start_access(self.rank, peer, false, parts, operation);
        }
        // SAFETY: the port may use the range during this call.
        let to = unsafe { to.as_mut_slice() };
        let pulled = self.fabric.borrow_mut().pull(self.rank, peer, address, to);
        copied(pulled).map_or_else(Accessed::Failed, |()| Accessed::Done)
    }

    fn expose_list(&mut self, _: PeerId, runs: &SendRuns) -> (Descriptor, Option<Exposure>) {
        if self.fabric.borrow().conditions.accesses > 0 {
            return (Descriptor::NONE, None);
        }
        (describe_runs(runs, &mut self.lists), None)
    }

    fn get_ranges(
        &mut self,
        peer: PeerId,
        from: &Descriptor,
        at: u64,
        to: &mut ReceiveRanges,
        operation: u64,
    ) -> AccessedRanges {
        if !from.is_list() {
            return AccessedRanges::each(to, at, |at, range| self.get(peer, from, at, range, operation));
        }
        AccessedRanges::each(to, at, |at, range| {
            // SAFETY: the port may use the range during this call.
            let to = unsafe { range.as_mut_slice() };
            self.get_listed(peer, from, at, to).map_or_else(Accessed::Failed, |()| Accessed::Done)
        })
    }
}

impl SimPort {
    /// Copies bytes of a peer's list, from `at` on.
    fn get_listed(
        &mut self,
        peer: PeerId,
        list: &Descriptor,
        at: u64,
        mut to: &mut [u8],
    ) -> Result<(), AccessError> {
        let Self { rank, fabric, runs, .. } = self;
        let mut fabric = fabric.borrow_mut();
        runs.hold(peer, list, |table, to| copied(fabric.pull_table(*rank, peer, table, to)))?;
        for RemoteRun { address, len } in runs.part(at, to.len() as u64).ok_or(AccessError::List)? {
            let (here, rest) = std::mem::take(&mut to).split_at_mut(len as usize);
            copied(fabric.pull(*rank, peer, address, here))?;
            to = rest;
        }
        Ok(())
    }
}

impl SharedCopy for SimPort {
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
}
