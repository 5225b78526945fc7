//! The table of peers, with the numbers that the engine knows them by.

use nemesia_core::engine::Failure;
use nemesia_core::peers::{
    PeerAddress, PeerEnd, PeerError, PeerLimits, PeerRef, PeerSlot, PeerStage, Peers, Speaking,
};
use nemesia_core::port::Route;
use nemesia_core::slab::{List, Slot};

use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::os::random;
use crate::shm::{self, Calls};
use crate::transport::net::NetCalls;

/// The engine's number of the table's first peer: 0 is this process itself.
pub(super) const OWN: u32 = 1;
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
}

/// The peers of an endpoint that was opened alone.
#[derive(Debug)]
pub(in crate::endpoint) struct PeerTable {
    pub(super) table: Table,
    pub(super) calls: Calls,
    /// Calls to and from other machines, if this process takes part in the network.
    pub(super) across: Option<Box<NetCalls>>,
    /// By number of the engine, from [`OWN`].
    pub(super) numbered: Vec<Option<NumberedPeer>>,
    /// Peers that have called this process, and whose address it was not given.
    pub(super) strangers: Vec<PeerRef>,
}

impl PeerTable {
    pub(in crate::endpoint) fn new(
        calls: Calls,
        across: Option<NetCalls>,
        config: &Config,
    ) -> Result<Self, Error> {
        let limits = PeerLimits { connections: config.connections, strangers: config.strangers };
        let lent = (Vec::new(), vec![List::new(); BUCKETS], vec![0; config.connections as usize]);
        let table = Peers::new(*calls.own(), limits, lent, u64::from_le_bytes(random()?));
        let across = across.map(Box::new);
        Ok(Self { table, calls, across, numbered: Vec::new(), strangers: Vec::new() })
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
        let NumberedPeer { peer, .. } = (*self.numbered.get(rank.checked_sub(OWN as usize)?)?)?;
        // A released peer keeps its number as long as a message of it is stored.
        self.table.stage(peer).is_ok().then_some(peer)
    }

    /// Announces to all with whom a connection is under way that this process leaves.
    pub(in crate::endpoint) fn send_goodbyes(&mut self, finished: bool) {
        self.calls.send_goodbyes(finished);
        if let Some(across) = &mut self.across {
            across.send_goodbyes(finished);
        }
    }

    pub(super) fn connect(
        &mut self,
        address: &PeerAddress,
        endpoint: &mut Endpoint,
    ) -> Result<PeerRef, Error> {
        self.calls.check(address).map_err(|problem| Error::Address { problem })?;
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
        if self.table.len() == self.table.capacity() {
            let more = self.table.capacity().max(PLACES).min(MOST_PLACES - self.table.capacity());
            self.table.grow(more);
        }
    }

    /// As [`Peers::speak`], with numbers of the engine.
    pub(super) fn speak(&mut self, peer: PeerRef) -> Result<Speaking, Error> {
        Ok(match self.table.speak(peer)? {
            Speaking::Ready(number) => Speaking::Ready(number + OWN),
            Speaking::Wait(number) => Speaking::Wait(number + OWN),
            Speaking::Call(number, call) => Speaking::Call(number + OWN, call),
        })
    }

    /// Takes the memory of a connection that begins, and calls the peer. `rank` is a number of the engine.
    pub(super) fn call(
        &mut self,
        peer: PeerRef,
        (rank, call): (u32, u64),
        endpoint: &mut Endpoint,
    ) -> Result<(), Error> {
        let address = *self.table.address_of(peer)?;
        let begun = self.begin(peer, rank, endpoint);
        let called = begun.and_then(|()| match self.calls.check(&address) {
            Ok(Some(remote)) => self.call_across((peer, address, remote), (rank, call), endpoint),
            _ => self.calls.call(peer, &address, rank, call),
        });
        called.inspect_err(|_| {
            // The peer is as before: it can be spoken to when there is memory.
            self.end(peer, PeerEnd::Lost, Failure::Unreachable, endpoint);
            let _ = self.table.connect(&address);
        })
    }

    /// Gives a number of the engine to a peer whose connection begins.
    pub(super) fn begin(&mut self, peer: PeerRef, rank: u32, endpoint: &mut Endpoint) -> Result<(), Error> {
        let at = (rank - OWN) as usize;
        if at >= self.numbered.len() {
            self.numbered.resize(at + 1, None);
        }
        // A call to or from another machine sets another route.
        endpoint.engine.port_mut().set_route(rank, Route::Local);
        if self.numbered[at].is_some_and(|it| it.peer == peer && !it.ended) {
            return Ok(());
        }
        self.numbered[at] = Some(NumberedPeer { peer, ended: false });
        endpoint.forget_process(rank as usize);
        endpoint.engine.add_peer(rank).map_err(Error::Unpaid)
    }

    /// Ends what there is with a peer: its requests end with `failure`.
    pub(super) fn end(&mut self, peer: PeerRef, end: PeerEnd, failure: Failure, endpoint: &mut Endpoint) {
        self.abandon(peer, endpoint);
        let Some(number) = self.table.ended(peer, end) else { return };
        endpoint.engine.fail(number + OWN, failure);
        let rank = (number + OWN) as usize;
        endpoint.waiter.release(rank);
        shm::release_link(endpoint.engine.port_mut().local_mut(), rank);
        if let Some(Some(it)) = self.numbered.get_mut(number as usize) {
            it.ended = true;
        }
    }

    /// Ends the calls that are under way with a peer.
    pub(super) fn abandon(&mut self, peer: PeerRef, endpoint: &Endpoint) {
        self.calls.abandon(peer, &endpoint.waiter.watch);
        if let Some(across) = &mut self.across {
            across.abandon(peer, &endpoint.waiter.watch);
        }
    }

    /// Frees the numbers of ended connections of which no message is left, and releases strangers.
    pub(super) fn free_numbers(&mut self, endpoint: &mut Endpoint) {
        for at in 0..self.numbered.len() {
            let Some(NumberedPeer { peer, ended: true }) = self.numbered[at] else { continue };
            let number = at as u32 + OWN;
            let is_closed = endpoint.net().is_none_or(|net| !net.is_taken(number));
            if is_closed && endpoint.engine.is_vacant(number) {
                self.numbered[at] = None;
                self.table.free_number(at as u32);
                self.release_stranger(peer);
            }
        }
    }

    /// Releases the place of a peer that this process has not asked for, if its connection has ended.
    pub(super) fn release_stranger(&mut self, peer: PeerRef) {
        if let Some(at) = self.strangers.iter().position(|stranger| *stranger == peer)
            && self.table.release(peer) != Err(PeerError::InUse)
        {
            self.strangers.swap_remove(at);
        }
    }

    pub(super) fn disconnect(&mut self, peer: PeerRef, endpoint: &mut Endpoint) -> Result<(), Error> {
        let stage = self.table.stage(peer)?;
        self.calls.send_goodbye_to(peer);
        if let Some(across) = &mut self.across {
            across.send_goodbye_to(peer);
        }
        if let PeerStage::Connected(number) = stage {
            endpoint.waiter.watch.send_goodbye_to((number + OWN) as usize);
            if let Some(net) = endpoint.net_mut() {
                net.disconnect(number + OWN);
            }
        }
        self.end(peer, PeerEnd::Disconnected, Failure::Finished, endpoint);
        for at in 0..self.numbered.len() {
            if self.numbered[at].is_some_and(|it| it.peer == peer) {
                endpoint.engine.forget_peer(at as u32 + OWN);
            }
        }
        // It is released below, whether its number becomes free now or later.
        self.strangers.retain(|stranger| *stranger != peer);
        self.free_numbers(endpoint);
        Ok(self.table.release(peer)?)
    }
}
