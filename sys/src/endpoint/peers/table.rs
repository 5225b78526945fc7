//! The table of peers, with the numbers that the engine knows them by: those of the ranks of a world are their ranks,
//! and those of further peers follow.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nemesia_core::engine::Failure;
use nemesia_core::link::address::LinkAddress;
use nemesia_core::link::proof::TokenMask;
use nemesia_core::peers::{
    PeerAddress, PeerEnd, PeerError, PeerLimits, PeerRef, PeerSlot, PeerStage, Peers, Speaking,
};
use nemesia_core::port::Route;
use nemesia_core::shared::layout::MAX_PEERS;
use nemesia_core::slab::{List, Slot};

use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::os::{Watch, random};
use crate::shm::{self, Calls, RankProcess};

/// The places for peers that are made at a time, at least.
const PLACES: usize = 64;
/// The most places for peers, about 100 MiB.
const MOST_PLACES: usize = 1 << 20;
/// The lists by which addresses are found.
const BUCKETS: usize = 1024;

type Table = Peers<Vec<Slot<PeerSlot>>, Vec<List>, Vec<u32>>;

/// The peer behind a number of the engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct NumberedPeer {
    pub(super) peer: PeerRef,
    /// Its connection has ended. The number is used again when its messages are received.
    pub(super) ended: bool,
    /// The connections that this process had begun before this one.
    pub(super) connection: u64,
    /// How tokens are masked in packets, if they travel over the network by a link.
    pub(super) mask: Option<TokenMask>,
}

/// The time for which messages that were sent before a disconnection are left to a peer that does not read them.
const LEFT_FOR: Duration = Duration::from_secs(5);

/// The number of an ended connection that is not free yet.
#[derive(Clone, Copy, Debug)]
struct EndingNumber {
    /// From 0.
    number: u32,
    /// The place where its next check begins ([`Engine::check_number`](nemesia_core::engine::Engine::check_number)).
    from: u32,
    /// Until then, what lies in cells is left to the peer.
    left_until: Instant,
}

/// A peer from which this process parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartingPeer {
    peer: PeerRef,
    /// Its place is released then.
    is_released: bool,
}

/// The peers of an endpoint that takes calls: all, if it was opened alone; else the other ranks of its world, and the
/// further peers of this process.
#[derive(Debug)]
pub(in crate::endpoint) struct PeerTable {
    pub(super) table: Table,
    /// Calls to and from other processes; `None` while they make progress.
    pub(super) calls: Option<Box<Calls>>,
    /// The engine's number of this process itself, which the table does not have.
    own: u32,
    /// The ranks of the world; 0 if the endpoint was opened alone. The other ranks are the first peers of the table:
    /// all are known from the start, and none comes back.
    pub(super) ranks: u32,
    /// By number, whether a rank runs on another machine.
    remote: Vec<bool>,
    /// The address was asked for, or there are further peers, so a call of a further peer must end a sleep.
    grows: AtomicBool,
    /// By number of the table.
    pub(super) numbered: Vec<Option<NumberedPeer>>,
    /// The numbers of ended connections that are not free yet.
    ending: Vec<EndingNumber>,
    /// Peers from which this process parts as soon as they have ended a copy into a buffer of this process.
    pub(super) parting: Vec<PartingPeer>,
    /// Peers that have called this process, and whose address it was not given.
    pub(super) strangers: Vec<PeerRef>,
    /// The meetings so far of each group that has met another one.
    pub(super) meetings: BTreeMap<u64, u64>,
    /// The collective calls so far of each group.
    pub(super) collectives: BTreeMap<u64, u64>,
    /// The processes that a collective call has lost, whose calls are refused.
    pub(super) parted: BTreeSet<PeerAddress>,
    /// The ranks that were readmitted, with the number of agreements at that time.
    pub(super) readmitted: BTreeMap<u32, u64>,
    /// The connections that this process has begun.
    begun: u64,
}

impl PeerTable {
    /// Returns the table of an endpoint that was opened alone.
    pub(in crate::endpoint) fn alone(calls: Calls, config: &Config) -> Result<Self, Error> {
        let limits = PeerLimits { connections: config.connections, strangers: config.strangers, pinned: 0 };
        let lent = (Vec::new(), vec![List::new(); BUCKETS], vec![0; config.connections as usize]);
        let table = Peers::new(*calls.own(), limits, lent, u64::from_le_bytes(random()?));
        Ok(Self {
            table,
            calls: Some(Box::new(calls)),
            own: 0,
            ranks: 0,
            remote: Vec::new(),
            grows: AtomicBool::new(true),
            numbered: Vec::new(),
            ending: Vec::new(),
            parting: Vec::new(),
            strangers: Vec::new(),
            meetings: BTreeMap::new(),
            collectives: BTreeMap::new(),
            parted: BTreeSet::new(),
            readmitted: BTreeMap::new(),
            begun: 0,
        })
    }

    /// Returns the table of rank `own` of a world, whose ranks these are; none if it is the only one. No rank is
    /// connected yet.
    pub(in crate::endpoint) fn of_world(
        calls: Calls,
        own: u32,
        ranks: &[RankProcess],
        config: &Config,
    ) -> Result<Self, Error> {
        let others = ranks.len().saturating_sub(1);
        let connections = config.connections.min(MAX_PEERS - 1 - others as u32);
        let limits = PeerLimits { connections, strangers: config.strangers, pinned: others as u32 };
        let slots = std::iter::repeat_with(Slot::default).take(others).collect();
        let lent = (slots, vec![List::new(); others.clamp(1, BUCKETS)], vec![0; others]);
        let mut table = Peers::new(*calls.own(), limits, lent, u64::from_le_bytes(random()?));
        let (below, above) = ranks.split_at(ranks.len().min(own as usize));
        let remote = below.iter().chain(above.iter().skip(1)).map(|rank| rank.is_remote).collect();
        for (rank, process) in ranks.iter().enumerate().filter(|(rank, _)| *rank != own as usize) {
            let known = table.len();
            let same = |_| Error::Peer { rank, problem: "it has the address of another rank".into() };
            table.connect(&process.address).map_err(same)?;
            if table.len() == known {
                return Err(same(PeerError::Itself));
            }
        }
        Ok(Self {
            table,
            calls: Some(Box::new(calls)),
            own,
            ranks: others as u32 + 1,
            remote,
            grows: AtomicBool::new(false),
            numbered: vec![None; others],
            ending: Vec::new(),
            parting: Vec::new(),
            strangers: Vec::new(),
            meetings: BTreeMap::new(),
            collectives: BTreeMap::new(),
            parted: BTreeSet::new(),
            readmitted: BTreeMap::new(),
            begun: 0,
        })
    }

    /// Returns whether this peer is a rank of the world.
    pub(super) const fn is_rank(&self, peer: PeerRef) -> bool {
        self.table.is_pinned(peer)
    }

    /// Returns whether this peer is a rank of the world on another machine.
    pub(super) fn is_remote_rank(&self, peer: PeerRef) -> bool {
        self.is_rank(peer) && self.remote.get(peer.index() as usize).is_some_and(|is_remote| *is_remote)
    }

    /// Returns where to call a peer if it is on another machine.
    pub(super) fn place_across(&self, peer: PeerRef, address: &PeerAddress) -> Option<SocketAddr> {
        match self.is_rank(peer) {
            true if self.is_remote_rank(peer) => Calls::remote_of(address),
            true => None,
            false => self.calls.as_ref()?.check(address).ok().flatten(),
        }
    }

    /// Returns the number of a peer that is connected.
    #[inline]
    pub(super) fn connected_rank(&self, peer: PeerRef) -> Option<u32> {
        match self.table.stage(peer) {
            Ok(PeerStage::Connected(number)) => Some(self.rank(number)),
            _ => None,
        }
    }

    /// Returns the number of a rank whose connection has ended. It has the number for ever.
    pub(super) fn ended_rank(&self, peer: PeerRef) -> Option<u32> {
        let has_ended = self.is_rank(peer) && matches!(self.table.stage(peer), Ok(PeerStage::Ended(_)));
        has_ended.then(|| self.rank(peer.index()))
    }

    /// Expects calls of further peers from now on, also of other machines.
    ///
    /// # Errors
    /// The kernel refuses to listen.
    pub(super) fn begin_growth(&self, watch: &Watch) -> Result<(), Error> {
        self.grows.store(true, Ordering::Relaxed);
        self.calls.as_ref().map_or(Ok(()), |calls| calls.open_door(watch))
    }

    /// Returns whether calls of further peers are expected.
    pub(super) fn grows(&self) -> bool {
        self.grows.load(Ordering::Relaxed)
    }

    /// Returns the engine's number for a number of the table.
    pub(super) const fn rank(&self, number: u32) -> u32 {
        number + (number >= self.own) as u32
    }

    /// Returns the number of the table for one of the engine. `None` for that of this process.
    pub(super) fn number(&self, rank: u32) -> Option<u32> {
        (rank != self.own).then(|| rank - u32::from(rank > self.own))
    }

    /// Returns the peer that is this rank of the world, whether or not there is a connection.
    pub(super) fn peer_of_rank(&self, rank: u32) -> Option<PeerRef> {
        self.table.peer_at(self.number(rank)?)
    }

    pub(super) const fn address(&self) -> &PeerAddress {
        self.table.own()
    }

    pub(super) fn address_of(&self, peer: PeerRef) -> Result<&PeerAddress, Error> {
        Ok(self.table.address_of(peer)?)
    }

    pub(super) fn stage(&self, peer: PeerRef) -> Result<PeerStage, Error> {
        Ok(self.table.stage(peer)?)
    }

    pub(super) fn peer_of(&self, rank: usize) -> Option<PeerRef> {
        let number = self.number(u32::try_from(rank).ok()?)?;
        if number + 1 < self.ranks {
            return self.table.peer_at(number);
        }
        let NumberedPeer { peer, .. } = (*self.numbered.get(number as usize)?)?;
        // A released peer keeps its number as long as a message of it is stored.
        self.table.stage(peer).is_ok().then_some(peer)
    }

    /// Returns how tokens are masked in packets from and to a peer, if they are.
    pub(super) fn mask_of(&self, rank: usize) -> Option<TokenMask> {
        let number = self.number(u32::try_from(rank).ok()?)?;
        self.numbered.get(number as usize).copied().flatten()?.mask
    }

    /// Sets how tokens are masked in packets from and to a peer.
    pub(super) fn mask_by(&mut self, rank: u32, mask: TokenMask) {
        if let Some(number) = self.number(rank)
            && let Some(Some(it)) = self.numbered.get_mut(number as usize)
        {
            it.mask = Some(mask);
        }
    }

    /// Returns the engine's number of a peer whose connection has ended, if messages of it are stored or outcomes of
    /// requests that name it are not taken.
    pub(super) fn kept_number(&self, peer: PeerRef, endpoint: &Endpoint) -> Option<usize> {
        let is_its = |it: &&EndingNumber| {
            self.numbered.get(it.number as usize).copied().flatten().is_some_and(|it| it.peer == peer)
        };
        let ending = self.ending.iter().rev().find(is_its)?;
        let rank = self.rank(ending.number);
        endpoint.engine.check_number(rank, ending.from).is_err().then_some(rank as usize)
    }

    /// Announces to all with whom a connection is under way that this process leaves.
    pub(in crate::endpoint) fn send_goodbyes(&mut self, finished: bool, watch: &Watch) {
        if let Some(calls) = &mut self.calls {
            calls.send_goodbyes(finished, watch);
        }
    }

    /// Announces to the ranks with which there is no connection that this process leaves. Until the deadline this waits
    /// for room in their queues of connections, and for the kernels of other machines.
    pub(in crate::endpoint) fn announce_leave(&mut self, deadline: Instant, endpoint: &Endpoint) {
        for rank in (0..endpoint.engine.size()).filter(|rank| endpoint.engine.is_unmet(*rank)) {
            let Some(peer) = self.peer_of_rank(rank).filter(|peer| !self.is_remote_rank(*peer)) else {
                continue;
            };
            let Ok(address) = self.table.address_of(peer).copied() else { continue };
            if let Some(calls) = &mut self.calls {
                calls.announce_leave(&address, deadline);
            }
        }
        self.with_calls(|peers, calls| {
            let unconnected: Vec<_> = peers.unconnected_across(endpoint).collect();
            calls.announce_leave_across(unconnected.into_iter(), deadline);
        });
    }

    /// Returns the ranks on other machines that may not know whether this process lives: those that were not met, and
    /// those that are being called.
    fn unconnected_across<'a>(
        &'a self,
        endpoint: &'a Endpoint,
    ) -> impl Iterator<Item = (PeerAddress, SocketAddr)> + 'a {
        let ranks = (0..self.ranks).filter(|rank| endpoint.engine.failure(*rank).is_none_or(is_absent));
        let peers = ranks.filter_map(|rank| self.peer_of_rank(rank));
        peers.filter_map(|peer| {
            let is_connected = matches!(self.table.stage(peer), Ok(PeerStage::Connected(_)));
            let address = self.table.address_of(peer).ok().filter(|_| !is_connected)?;
            Some((*address, self.place_across(peer, address)?))
        })
    }

    pub(super) fn connect(
        &mut self,
        address: &PeerAddress,
        endpoint: &mut Endpoint,
    ) -> Result<PeerRef, Error> {
        if let Some(rank) = self.table.peer_by(address).filter(|peer| self.is_rank(*peer)) {
            return Ok(rank);
        }
        let place = self.calls.as_ref().map_or(Ok(None), |calls| calls.check(address));
        let place = place.map_err(|problem| match LinkAddress::decode(address) {
            Ok(_) => Error::Apart { problem },
            Err(_) => Error::Address { problem },
        })?;
        let grown = self.begin_growth(&endpoint.waiter.watch);
        // A peer of this machine needs no network.
        place.map_or(Ok(()), |_| grown)?;
        self.make_place();
        let peer = self.table.connect(address)?;
        // What this process could see of the former connection has ended with it.
        self.note_failure(peer, endpoint);
        self.table.connect(address)?;
        self.strangers.retain(|stranger| *stranger != peer);
        Ok(peer)
    }

    /// Makes sure that there is a place for another peer, if there may be one.
    pub(super) fn make_place(&mut self) {
        self.table.grow_numbers();
        if self.table.len() == self.table.capacity() {
            let more = self.table.capacity().max(PLACES).min(MOST_PLACES - self.table.capacity());
            self.table.grow(more);
        }
    }

    /// As [`Peers::speak`], with numbers of the engine.
    pub(super) fn speak(&mut self, peer: PeerRef) -> Result<Speaking, Error> {
        Ok(match self.table.speak(peer)? {
            Speaking::Ready(number) => Speaking::Ready(self.rank(number)),
            Speaking::Wait(number) => Speaking::Wait(self.rank(number)),
            Speaking::Call(number) => Speaking::Call(self.rank(number)),
        })
    }

    /// Takes the memory of a connection that begins, and calls the peer. `rank` is a number of the engine.
    pub(super) fn call(&mut self, peer: PeerRef, rank: u32, endpoint: &mut Endpoint) -> Result<(), Error> {
        let address = *self.table.address_of(peer)?;
        let begun = self.begin(peer, rank, endpoint);
        let called = begun.and_then(|()| {
            if self.place_across(peer, &address).is_some() {
                endpoint.open_port()?;
                endpoint.route_across(rank);
            }
            self.want(peer, rank, endpoint)
        });
        called.inspect_err(|_| {
            // The peer is as before: it can be spoken to when there is memory.
            self.end(peer, PeerEnd::Lost, Failure::Unreachable, endpoint);
            if !self.is_rank(peer) {
                let _ = self.table.connect(&address);
            }
        })
    }

    /// Gives a number of the engine to a peer whose connection begins.
    pub(super) fn begin(&mut self, peer: PeerRef, rank: u32, endpoint: &mut Endpoint) -> Result<(), Error> {
        let Some(at) = self.number(rank).map(|number| number as usize) else { return Ok(()) };
        if at >= self.numbered.len() {
            self.numbered.resize(at + 1, None);
        }
        // A connection with another machine sets another route, also that of a rank which was expected here.
        let route = if self.is_remote_rank(peer) { Route::Remote } else { Route::Local };
        endpoint.engine.port_mut().set_route(rank, route);
        if self.numbered[at].is_some_and(|it| it.peer == peer && !it.ended) {
            return Ok(());
        }
        self.numbered[at] = Some(NumberedPeer { peer, ended: false, connection: self.begun, mask: None });
        self.begun += 1;
        endpoint.unreached.remove(&(rank as usize));
        if self.is_rank(peer) {
            return endpoint.engine.meet_paid(rank).map_err(Error::Unpaid);
        }
        endpoint.forget_process(rank as usize);
        endpoint.engine.add_peer(rank).map_err(Error::Unpaid)
    }

    /// Ends what there is with a peer: its requests end with `failure`.
    pub(super) fn end(&mut self, peer: PeerRef, end: PeerEnd, failure: Failure, endpoint: &mut Endpoint) {
        self.abandon(peer, endpoint);
        let Some(number) = self.table.ended(peer, end) else { return };
        let rank = self.rank(number) as usize;
        endpoint.engine.fail(rank as u32, failure);
        endpoint.waiter.release(rank);
        shm::release_link(endpoint.engine.port_mut().local_mut(), rank);
        if let Some(Some(it)) = self.numbered.get_mut(number as usize) {
            it.ended = true;
        }
        // A rank keeps its number for ever.
        if !self.is_rank(peer) {
            self.ending.push(EndingNumber { number, from: 0, left_until: Instant::now() + LEFT_FOR });
        }
    }

    /// Ends the calls that are under way with a peer.
    pub(super) fn abandon(&mut self, peer: PeerRef, endpoint: &Endpoint) {
        if let (Some(calls), Ok(address)) = (&mut self.calls, self.table.address_of(peer)) {
            calls.end(address, &endpoint.waiter.watch);
        }
    }

    /// Frees the numbers of ended connections of which no message is left, and releases strangers.
    pub(super) fn free_numbers(&mut self, endpoint: &mut Endpoint) {
        let mut at = 0;
        while let Some(EndingNumber { number, from, left_until }) = self.ending.get(at).copied() {
            let rank = self.rank(number);
            if endpoint.net().is_some_and(|net| net.is_taken(rank))
                || !are_cells_back(rank, left_until, endpoint)
            {
                at += 1;
                continue;
            }
            match endpoint.engine.check_number(rank, from) {
                Ok(()) => {
                    self.ending.swap_remove(at);
                    self.table.free_number(number);
                    if let Some(it) = self.numbered.get_mut(number as usize).and_then(Option::take) {
                        self.release_stranger(it.peer);
                    }
                }
                Err(next) => {
                    self.ending[at].from = next;
                    at += 1;
                }
            }
        }
    }

    /// Takes back the cells that were left to former peers, so that their numbers become free. Returns whether one did.
    pub(super) fn take_back_left(&mut self, endpoint: &mut Endpoint) -> bool {
        let before = self.ending.len();
        for ending in &mut self.ending {
            ending.left_until = Instant::now();
        }
        self.free_numbers(endpoint);
        self.ending.len() < before
    }

    /// Releases the place of a peer that this process has not asked for, if its connection has ended.
    pub(super) fn release_stranger(&mut self, peer: PeerRef) {
        if let Some(at) = self.strangers.iter().position(|stranger| *stranger == peer)
            && self.table.release(peer) != Err(PeerError::InUse)
        {
            self.strangers.swap_remove(at);
        }
    }

    /// Ends the connection with a peer, which sees that this process has disconnected. Returns whether it has
    /// ended: a peer that lives may be writing its part of a message into a buffer of this process. The connection
    /// then ends when the peer has done so, or is dead ([`PeerTable::part_later`]), because only then the buffer is
    /// its owner's again.
    pub(super) fn part_from(&mut self, peer: PeerRef, is_released: bool, endpoint: &mut Endpoint) -> bool {
        let stage = self.table.stage(peer);
        if let Ok(PeerStage::Connected(number)) = stage
            && !endpoint.end_assist(self.rank(number))
        {
            self.parting.retain(|parting| parting.peer != peer);
            self.parting.push(PartingPeer { peer, is_released });
            return false;
        }
        if let Ok(PeerStage::Connected(number)) = stage {
            endpoint.waiter.watch.send_goodbye_to(self.rank(number) as usize);
            if let Some(net) = endpoint.net_mut() {
                net.disconnect(self.rank(number));
            }
            // What was sent before is left to the peer for a while, until its number is free. That of a rank never is.
            if !self.is_rank(peer) {
                endpoint.engine.port_mut().local_mut().leave_cells(self.rank(number));
            }
        }
        self.end(peer, PeerEnd::Disconnected, Failure::Finished, endpoint);
        true
    }

    /// Parts from the peers that have ended their copies. Returns whether there was one.
    pub(super) fn part_later(&mut self, endpoint: &mut Endpoint) -> bool {
        let mut parted = false;
        for PartingPeer { peer, is_released } in std::mem::take(&mut self.parting) {
            if self.connected_rank(peer).is_some_and(|rank| !endpoint.engine.end_assist(rank)) {
                self.parting.push(PartingPeer { peer, is_released });
                continue;
            }
            parted = true;
            if is_released {
                // An error says that the peer was released meanwhile.
                let _ = self.disconnect(peer, endpoint);
            } else {
                self.part_from(peer, false, endpoint);
            }
        }
        parted
    }

    pub(super) fn disconnect(&mut self, peer: PeerRef, endpoint: &mut Endpoint) -> Result<(), Error> {
        self.table.stage(peer)?;
        if self.is_rank(peer) {
            return Err(PeerError::Pinned.into());
        }
        if !self.part_from(peer, true, endpoint) {
            return Ok(());
        }
        // Those of its earlier connections are among them.
        for EndingNumber { number, .. } in &self.ending {
            if self.numbered.get(*number as usize).copied().flatten().is_some_and(|it| it.peer == peer) {
                endpoint.engine.forget_peer(self.rank(*number));
            }
        }
        // It is released below, whether its number becomes free now or later.
        self.strangers.retain(|stranger| *stranger != peer);
        self.free_numbers(endpoint);
        Ok(self.table.release(peer)?)
    }
}

/// Returns whether a rank has not failed, but was not met.
fn is_absent(failure: Failure) -> bool {
    failure == Failure::Absent
}

/// Returns whether nothing is left to this former peer. Its segments are then not mapped any more.
fn are_cells_back(rank: u32, until: Instant, endpoint: &mut Endpoint) -> bool {
    let port = endpoint.engine.port_mut().local_mut();
    if port.has_left_cells(rank) {
        port.collect_left_cells();
        if Instant::now() >= until {
            port.take_back_cells(rank);
        }
        if port.has_left_cells(rank) {
            return false;
        }
    }
    shm::release_link(port, rank as usize);
    true
}
