//! The port that ships for shared memory (`core/src/shared/port.rs`), as the port of a simulated engine.
//!
//! Packets, credit and cells are those of the port, in memory of this process. The [`Fabric`] only records them: it
//! counts the effects after which a process dies, and copies memory of other processes as the kernel does.

mod host;
mod medium;

use std::cell::RefCell;
use std::rc::Rc;

use nemesia_core::counters::TrafficCounters;
use nemesia_core::payload::{BorrowedRecv, ReceiveRange, ReceiveRanges, SendRange, SendRuns};
use nemesia_core::port::{
    AccessError, Accessed, AccessedRanges, Arrival, AssistedCopy, CompletedAccess, Exposure, NextChunk,
    PacketPieces, PacketPort, Part, PeerFault, PeerId, Polled, RemoteAccess, SharedCopy, ShortPath,
};
use nemesia_core::shared::port::PacketPlace;
use nemesia_core::wire::prefix::{IMMEDIATE_BYTES, PrefixWords};
use nemesia_core::wire::rendezvous::Descriptor;
use nemesia_core::wire::{Envelope, Kind};

use crate::fabric::{Conditions, Fabric, Taken, rts_of};
use crate::port::record_sent;
use crate::segments::SegmentPort;
use crate::tally::Event;
use crate::world::WorldPort;
use host::SharedHost;
pub(crate) use medium::SharedMedium;

/// The port of one process.
#[derive(Debug)]
pub(crate) struct SharedPort<'a> {
    rank: PeerId,
    fabric: Rc<RefCell<Fabric>>,
    medium: &'a SharedMedium,
    port: SegmentPort<'a, SharedHost<'a>>,
}

impl<'a> WorldPort for SharedPort<'a> {
    type Medium = &'a SharedMedium;
    /// No process is woken: each polls.
    const WAKES: bool = false;

    fn start(rank: PeerId, fabric: Rc<RefCell<Fabric>>, medium: Self::Medium) -> Option<Self> {
        let host = SharedHost { rank, fabric: Rc::clone(&fabric), medium };
        let mut port = medium.port(rank, host)?;
        medium.links(rank).for_each(|(peer, link)| _ = port.open(peer, link));
        Some(Self { rank, fabric, medium, port })
    }

    fn preferred(conditions: &Conditions, rank: u32) -> usize {
        if rank.is_multiple_of(2) { 0 } else { conditions.packet_bytes }
    }

    fn begin(medium: Self::Medium, rank: PeerId) {
        medium.begin(rank);
    }

    fn has_process(medium: Self::Medium) -> bool {
        medium.has_process()
    }

    fn connect(medium: Self::Medium, one: PeerId, other: PeerId) {
        medium.connect(one, other);
    }

    fn open(&mut self, peer: PeerId) -> bool {
        self.medium.link(self.rank, peer).is_some_and(|link| self.port.open(peer, link))
    }

    fn sweep(&mut self) {
        self.port.sweep_all();
    }

    fn free_cells(&mut self) -> usize {
        if let Err(fault) = self.port.collect_all() {
            self.fabric.borrow_mut().misuse(format!("rank {}: {fault:?}", self.rank));
        }
        self.port.free_cells()
    }
}

impl SharedPort<'_> {
    /// Returns whether the process still has effects on others.
    fn may_act(&self) -> bool {
        self.fabric.borrow_mut().may_act(self.rank)
    }

    fn refuses(&self, peer: PeerId, len: usize) -> bool {
        self.fabric.borrow_mut().refuses(self.rank, peer, len)
    }

    /// Sends a packet by `send`, which returns `None` if it could not. A process that has died sends nothing, and
    /// returns `dead`.
    fn sends<T>(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        dead: T,
        send: impl FnOnce(&mut SegmentPort<'_, SharedHost<'_>>) -> Option<T>,
    ) -> Option<T> {
        self.sends_paid(peer, (envelope, 0), dead, send)
    }

    /// As [`Self::sends`], for a packet that is followed by so many bytes unasked.
    fn sends_paid<T>(
        &mut self,
        peer: PeerId,
        (envelope, unasked): (&Envelope, usize),
        dead: T,
        send: impl FnOnce(&mut SegmentPort<'_, SharedHost<'_>>) -> Option<T>,
    ) -> Option<T> {
        let len = envelope.total as usize;
        if self.refuses(peer, len) {
            return None;
        }
        if !self.may_act() {
            return Some(dead);
        }
        let sent = send(&mut self.port);
        let mut fabric = self.fabric.borrow_mut();
        if sent.is_some() {
            fabric.acts(self.rank);
            fabric.tally.count(Event::SharedPacket);
            let now = fabric.now;
            fabric.trace.note(now, || format!("{} -> {peer}: {envelope:?}", self.rank));
        }
        record_sent(&mut fabric, (self.rank, peer), envelope, len + unasked, sent.is_some());
        sent
    }

    /// Records a packet that the engine has taken. If it is an RTS, `payload` is its content.
    fn takes(&self, peer: PeerId, envelope: Envelope, len: usize, payload: &[u8]) {
        let mut fabric = self.fabric.borrow_mut();
        fabric.acts(self.rank);
        let now = fabric.now;
        fabric.trace.note(now, || format!("{} takes {envelope:?} of {len} bytes from {peer}", self.rank));
        let rts = rts_of(&envelope, payload);
        fabric.taken[self.rank as usize].push(Taken { peer, envelope, len, rts });
    }

    fn polled(&self, polled: Polled<PacketPlace>) -> Polled<PacketPlace> {
        if let Polled::Packet(Arrival { token, envelope, .. }) = &polled {
            let mut fabric = self.fabric.borrow_mut();
            fabric.tally.count(match token {
                PacketPlace::Fastbox => Event::SharedFastbox,
                PacketPlace::Cell(_) => Event::SharedCell,
                PacketPlace::Announced(_) => Event::SharedAnnounced,
            });
            if envelope.kind == Kind::Data {
                fabric.tally.count(Event::SharedStreamed);
            }
        }
        polled
    }

    fn check_read(&self, arrival: &Arrival<PacketPlace>, at: usize, len: usize) {
        if at + len > arrival.len {
            let what = format!("rank {} reads what is not in a packet of rank {}", self.rank, arrival.peer);
            self.fabric.borrow_mut().misuse(what);
        }
    }
}

impl PacketPort for SharedPort<'_> {
    type Token = PacketPlace;

    fn packet_bytes(&self) -> usize {
        self.port.packet_bytes()
    }

    fn eager_bytes(&self, peer: PeerId) -> usize {
        self.port.eager_bytes(peer)
    }

    fn unasked_bytes(&self, peer: PeerId) -> usize {
        self.port.unasked_bytes(peer)
    }

    fn send(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        pieces: PacketPieces<'_>,
    ) -> Result<bool, PeerFault> {
        let mut fault = None;
        let unasked = match &pieces {
            PacketPieces::Whole(bytes) => rts_of(envelope, bytes).map_or(0, |rts| rts.following()),
            _ => 0,
        };
        let sent =
            self.sends_paid(peer, (envelope, unasked), (), |port| match port.send(peer, envelope, pieces) {
                Ok(sent) => sent.then_some(()),
                Err(found) => {
                    fault = Some(found);
                    None
                }
            });
        fault.map_or(Ok(sent.is_some()), Err)
    }

    fn poll(&mut self) -> Polled<PacketPlace> {
        if !self.may_act() {
            return Polled::Idle;
        }
        let polled = self.port.poll();
        self.polled(polled)
    }

    fn poll_peer(&mut self, peer: PeerId) -> Polled<PacketPlace> {
        if !self.may_act() {
            return Polled::Idle;
        }
        let polled = self.port.poll_peer(peer);
        self.polled(polled)
    }

    fn read(&self, arrival: &Arrival<PacketPlace>, at: usize, to: &mut [u8]) -> bool {
        self.check_read(arrival, at, to.len());
        self.port.read(arrival, at, to)
    }

    fn release(&mut self, arrival: Arrival<PacketPlace>) {
        if !self.may_act() {
            return;
        }
        let Arrival { peer, envelope, len, .. } = arrival;
        let mut payload = vec![0; if envelope.kind == Kind::Rts { len } else { 0 }];
        let is_read = self.port.read(&arrival, 0, &mut payload);
        self.port.release(arrival);
        if is_read {
            self.takes(peer, envelope, len, &payload);
        }
    }

    fn grant(&mut self, peer: PeerId, units: u64) {
        if self.may_act() {
            self.port.grant(peer, units);
            self.fabric.borrow_mut().grant(self.rank, peer, units);
        }
    }

    fn granted(&self, peer: PeerId) -> u64 {
        self.port.granted(peer)
    }

    fn traffic(&self, peer: PeerId) -> TrafficCounters {
        self.port.traffic(peer)
    }

    fn ticks(&self) -> Option<u64> {
        self.port.ticks()
    }

    fn close(&mut self, peer: PeerId) {
        if self.may_act() {
            self.port.close(peer);
            self.fabric.borrow_mut().close(self.rank, peer);
        }
    }
}

impl ShortPath for SharedPort<'_> {
    fn short_bytes(&self) -> usize {
        self.port.short_bytes()
    }

    fn send_short(&mut self, peer: PeerId, context: u16, tag: u64, bytes: &[u8]) -> Option<bool> {
        let envelope = Envelope { kind: Kind::Eager, context, tag, total: bytes.len() as u64 };
        self.sends(peer, &envelope, false, |port| port.send_short(peer, context, tag, bytes))
    }

    fn send_immediate(
        &mut self,
        peer: PeerId,
        context: u16,
        [tag, immediate]: [u64; 2],
        bytes: &[u8],
    ) -> Option<bool> {
        let total = (IMMEDIATE_BYTES + bytes.len()) as u64;
        let envelope = Envelope { kind: Kind::EagerImmediate, context, tag, total };
        self.sends(peer, &envelope, false, |port| port.send_immediate(peer, context, [tag, immediate], bytes))
    }

    fn send_copy(&mut self, peer: PeerId, context: u16, tag: u64, bytes: &[u8]) -> Option<bool> {
        let envelope = Envelope { kind: Kind::Eager, context, tag, total: bytes.len() as u64 };
        let sent = self.sends(peer, &envelope, false, |port| port.send_copy(peer, context, tag, bytes));
        self.fabric.borrow_mut().tally.add_to(Event::SharedCopied, u64::from(sent.is_some()));
        sent
    }

    fn send_prefixed(&mut self, peer: PeerId, envelope: &Envelope, words: PrefixWords, body: &[u8]) -> bool {
        let send = |port: &mut SegmentPort<'_, SharedHost<'_>>| {
            port.send_prefixed(peer, envelope, words, body).then_some(())
        };
        self.sends(peer, envelope, (), send).is_some()
    }

    fn settle_send(&mut self, peer: PeerId) {
        self.port.settle_send(peer);
    }

    fn take(
        &mut self,
        wanted: impl FnOnce(PeerId, &Envelope) -> bool,
        to: &mut BorrowedRecv<'_>,
    ) -> Option<(PeerId, Envelope)> {
        if !self.may_act() {
            return None;
        }
        let (peer, envelope) = self.port.take(wanted, to)?;
        self.takes(peer, envelope, envelope.total as usize, &[]);
        Some((peer, envelope))
    }

    fn take_prefixed(
        &mut self,
        wanted: impl FnOnce(PeerId, &Envelope, PrefixWords) -> bool,
        to: &mut BorrowedRecv<'_>,
    ) -> Option<(PeerId, Envelope, PrefixWords)> {
        if !self.may_act() {
            return None;
        }
        let (peer, envelope, words) = self.port.take_prefixed(wanted, to)?;
        self.fabric.borrow_mut().tally.count(Event::SharedPrefixed);
        self.takes(peer, envelope, envelope.total as usize, &[]);
        Some((peer, envelope, words))
    }

    fn take_short(
        &mut self,
        from: Option<usize>,
        context: u16,
        wanted: impl FnOnce(u64) -> bool,
        to: &mut [u8],
    ) -> Option<(PeerId, u64, usize, bool)> {
        if !self.may_act() {
            return None;
        }
        let (peer, tag, len, unsettled) = self.port.take_short(from, context, wanted, to)?;
        self.takes(peer, Envelope { kind: Kind::Eager, context, tag, total: len as u64 }, len, &[]);
        Some((peer, tag, len, unsettled))
    }

    fn take_into<'b>(
        &mut self,
        place: impl FnOnce(PeerId, &Envelope) -> Option<&'b mut [u8]>,
    ) -> Option<(PeerId, Envelope, Option<u64>)> {
        if !self.may_act() {
            return None;
        }
        let (peer, envelope, immediate) = self.port.take_into(place)?;
        self.takes(peer, envelope, envelope.total as usize, &[]);
        Some((peer, envelope, immediate))
    }

    fn is_quiet(&mut self) -> bool {
        self.port.is_quiet()
    }

    fn settle_take(&mut self, peer: PeerId) {
        self.port.settle_take(peer);
    }

    fn has_next(&self) -> bool {
        self.port.has_next()
    }

    fn expects_next(&self) -> bool {
        self.port.expects_next()
    }

    fn pause(&mut self) {
        self.port.pause();
    }

    fn prioritize(&mut self, peer: PeerId) {
        self.port.prioritize(peer);
    }

    fn read_non_temporal(&self, arrival: &Arrival<PacketPlace>, at: usize, to: &mut [u8]) -> bool {
        self.check_read(arrival, at, to.len());
        self.fabric.borrow_mut().tally.count(Event::SharedNonTemporal);
        self.port.read_non_temporal(arrival, at, to)
    }
}

// SAFETY: every method passes on to a port with the same obligations, or does nothing.
unsafe impl RemoteAccess for SharedPort<'_> {
    fn can_get(&self, peer: PeerId) -> bool {
        self.port.can_get(peer)
    }

    fn is_accessible(&self, peer: PeerId, descriptor: &Descriptor) -> bool {
        self.port.is_accessible(peer, descriptor)
    }

    fn is_mappable(&self, peer: PeerId, descriptor: &Descriptor) -> bool {
        self.port.is_mappable(peer, descriptor)
    }

    fn expose(&mut self, peer: PeerId, range: SendRange) -> (Descriptor, Option<Exposure>) {
        self.port.expose(peer, range)
    }

    fn expose_list(&mut self, peer: PeerId, runs: &SendRuns) -> (Descriptor, Option<Exposure>) {
        self.port.expose_list(peer, runs)
    }

    fn revoke(&mut self, peer: PeerId, exposure: Exposure) {
        self.port.revoke(peer, exposure);
    }

    fn get(
        &mut self,
        peer: PeerId,
        from: &Descriptor,
        at: u64,
        to: ReceiveRange,
        operation: u64,
    ) -> Accessed {
        if !self.may_act() {
            return Accessed::Failed(AccessError::Refused);
        }
        self.port.get(peer, from, at, to, operation)
    }

    fn get_ranges(
        &mut self,
        peer: PeerId,
        from: &Descriptor,
        at: u64,
        to: &mut ReceiveRanges,
        operation: u64,
    ) -> AccessedRanges {
        if !self.may_act() {
            return AccessedRanges { last: Accessed::Failed(AccessError::Refused), ..AccessedRanges::NONE };
        }
        self.port.get_ranges(peer, from, at, to, operation)
    }

    fn poll_access(&mut self) -> Option<CompletedAccess> {
        self.port.poll_access()
    }
}

impl SharedCopy for SharedPort<'_> {
    fn is_lent(&self, peer: PeerId, assist: &AssistedCopy) -> bool {
        self.port.is_lent(peer, assist)
    }

    fn open_assist(&mut self, peer: PeerId, assist: &AssistedCopy) -> bool {
        let is_open = self.may_act() && self.port.open_assist(peer, assist);
        self.fabric.borrow_mut().tally.add_to(Event::SharedAssist, u64::from(is_open));
        is_open
    }

    fn next_chunk(&mut self, peer: PeerId) -> NextChunk {
        if self.may_act() { self.port.next_chunk(peer) } else { NextChunk::Wait }
    }

    fn close_assist(&mut self, peer: PeerId) {
        if self.may_act() {
            self.port.close_assist(peer);
        }
    }

    fn keep_assist(&mut self, peer: PeerId) {
        if self.may_act() {
            self.port.keep_assist(peer);
        }
    }

    fn find_assist(&mut self, peer: PeerId) -> Option<AssistedCopy> {
        self.port.find_assist(peer)
    }

    fn join_assist(&mut self, peer: PeerId, end: u64) -> Option<Part> {
        if self.may_act() { self.port.join_assist(peer, end) } else { None }
    }

    fn next_part(&mut self, peer: PeerId) -> Option<Part> {
        if self.may_act() { self.port.next_part(peer) } else { None }
    }

    fn end_part(&mut self, peer: PeerId, part: Part, written: bool) {
        if self.may_act() {
            self.port.end_part(peer, part, written);
        }
    }

    fn push(&mut self, peer: PeerId, address: u64, from: &[u8]) -> bool {
        self.may_act() && self.port.push(peer, address, from)
    }
}
