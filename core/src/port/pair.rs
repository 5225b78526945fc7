//! Two ports as one: several transports in one endpoint, chosen for each peer (paper 1, Fig. 1; paper 4, section 2;
//! paper 5, section 3).
//!
//! The first port is the *local* one, whose short path is asked without a look at the route: it declines peers that
//! it does not reach. Small messages inside a machine therefore cost nothing more. If both ports have packets, the
//! polls alternate in bursts.
use core::borrow::{Borrow, BorrowMut};
use core::time::Duration;

use super::{
    AccessShape, Accessed, AccessedRanges, Arrival, AssistedCopy, CompletedAccess, DirectAccess, Exposure,
    NextChunk, PacketPieces, PacketPort, Part, PeerFault, PeerId, Polled, RemoteAccess, Rendezvous,
    SharedCopy,
};
use crate::counters::TrafficCounters;
use crate::payload::{Exposed, ReceiveRange, ReceiveRanges, SendRange, SendRuns};
use crate::wire::Envelope;
use crate::wire::region::RegionBytes;
use crate::wire::rendezvous::Descriptor;
use crate::wire::rma::Access;

mod short;

/// Packets of the local port in a row until the remote port is polled.
const BURST: u32 = 64;

/// The port that reaches a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// The local port.
    #[default]
    Local,
    /// The remote port.
    Remote,
}

/// The location of a packet of one of two ports.
#[derive(Clone, Copy, Debug)]
pub enum Either<L, R> {
    /// A packet of the local port.
    Local(L),
    /// A packet of the remote port.
    Remote(R),
}

/// A port made of one or two, with a route for each peer. Both ports use the same numbers of peers. `T` lends one
/// [`Route`] for each peer; peers beyond its end are local.
#[derive(Debug)]
pub struct Pair<L, R, T> {
    local: L,
    /// `None` if all peers are local.
    remote: Option<R>,
    routes: T,
    /// Packets of the local port since the remote port was polled.
    burst: u32,
    /// Whether the last packet that a poll found came through the remote port.
    is_remote_recent: bool,
}

impl<L: PacketPort, R: PacketPort, T: Borrow<[Route]>> Pair<L, R, T> {
    /// Returns the port. The local port must have no connection to the remote peers. Without a remote port, all peers
    /// are local, whatever their routes.
    pub const fn new(local: L, remote: Option<R>, routes: T) -> Self {
        Self { local, remote, routes, burst: 0, is_remote_recent: false }
    }

    /// Returns the local port.
    #[inline(always)]
    pub const fn local(&self) -> &L {
        &self.local
    }

    /// Returns the local port for modification by its owner.
    #[inline(always)]
    pub const fn local_mut(&mut self) -> &mut L {
        &mut self.local
    }

    /// Returns the remote port, if there is one.
    #[inline(always)]
    pub const fn remote(&self) -> Option<&R> {
        self.remote.as_ref()
    }

    /// Returns the remote port for modification by its owner.
    #[inline(always)]
    pub const fn remote_mut(&mut self) -> Option<&mut R> {
        self.remote.as_mut()
    }

    /// Has this remote port from now on. It is returned if there is one, or if its packets are smaller than those of
    /// the local port, which peers may have been told.
    pub fn enter_remote(&mut self, remote: R) -> Option<R> {
        if self.remote.is_some() || remote.packet_bytes() < self.local.packet_bytes() {
            return Some(remote);
        }
        self.remote = Some(remote);
        None
    }

    /// Takes the remote port out. All peers are local from now on.
    pub const fn take_remote(&mut self) -> Option<R> {
        self.remote.take()
    }

    /// Returns the port that reaches a peer.
    #[inline(always)]
    pub fn route(&self, peer: PeerId) -> Route {
        self.routes.borrow().get(peer as usize).copied().unwrap_or_default()
    }

    /// Sets the port that reaches a peer from now on. The former port must have no connection with it.
    pub fn set_route(&mut self, peer: PeerId, route: Route)
    where
        T: BorrowMut<[Route]> + Extend<Route>,
    {
        let len = self.routes.borrow().len();
        let missing = (peer as usize + 1).saturating_sub(len);
        if missing > 0 && route == Route::Remote {
            self.routes.extend(core::iter::repeat_n(Route::Local, missing));
        }
        if let Some(place) = self.routes.borrow_mut().get_mut(peer as usize) {
            *place = route;
        }
    }

    /// Returns the remote port if it reaches this peer.
    #[inline(always)]
    fn remote_to(&self, peer: PeerId) -> Option<&R> {
        self.remote.as_ref().filter(|_| self.route(peer) == Route::Remote)
    }

    /// As [`Pair::remote_to`], for modification.
    #[inline(always)]
    fn remote_to_mut(&mut self, peer: PeerId) -> Option<&mut R> {
        let is_remote = self.remote.is_some() && self.route(peer) == Route::Remote;
        self.remote.as_mut().filter(|_| is_remote)
    }

    fn poll_remote(&mut self) -> Polled<Either<L::Token, R::Token>> {
        self.burst = 0;
        let polled = self.remote.as_mut().map_or(Polled::Idle, |remote| from_remote(remote.poll()));
        self.is_remote_recent |= matches!(polled, Polled::Packet(_));
        polled
    }
}

#[inline(always)]
fn from_local<L, R>(polled: Polled<L>) -> Polled<Either<L, R>> {
    match polled {
        Polled::Idle => Polled::Idle,
        Polled::Packet(Arrival { peer, envelope, len, token }) => {
            Polled::Packet(Arrival { peer, envelope, len, token: Either::Local(token) })
        }
        Polled::Fault(fault) => Polled::Fault(fault),
    }
}

fn from_remote<L, R>(polled: Polled<R>) -> Polled<Either<L, R>> {
    match polled {
        Polled::Idle => Polled::Idle,
        Polled::Packet(Arrival { peer, envelope, len, token }) => {
            Polled::Packet(Arrival { peer, envelope, len, token: Either::Remote(token) })
        }
        Polled::Fault(fault) => Polled::Fault(fault),
    }
}

/// Returns an arrival with the token of the port that it came from.
#[inline(always)]
const fn of<A: Copy, B>(arrival: &Arrival<A>, token: B) -> Arrival<B> {
    let Arrival { peer, envelope, len, .. } = *arrival;
    Arrival { peer, envelope, len, token }
}

impl<L: PacketPort, R: PacketPort, T: Borrow<[Route]>> PacketPort for Pair<L, R, T> {
    type Token = Either<L::Token, R::Token>;

    fn packet_bytes(&self) -> usize {
        let local = self.local.packet_bytes();
        self.remote.as_ref().map_or(local, |remote| local.min(remote.packet_bytes()))
    }

    #[inline]
    fn eager_bytes(&self, peer: PeerId) -> usize {
        self.remote_to(peer).map_or_else(|| self.local.eager_bytes(peer), |remote| remote.eager_bytes(peer))
    }

    fn unasked_bytes(&self, peer: PeerId) -> usize {
        let local = || self.local.unasked_bytes(peer);
        self.remote_to(peer).map_or_else(local, |remote| remote.unasked_bytes(peer))
    }

    #[inline(always)]
    fn send(
        &mut self,
        peer: PeerId,
        envelope: &Envelope,
        pieces: PacketPieces<'_>,
    ) -> Result<bool, PeerFault> {
        if let Some(remote) = self.remote_to_mut(peer) {
            return remote.send(peer, envelope, pieces);
        }
        self.local.send(peer, envelope, pieces)
    }

    #[inline]
    fn gathers(&self, peer: PeerId, len: usize) -> bool {
        self.remote_to(peer).map_or_else(|| self.local.gathers(peer, len), |remote| remote.gathers(peer, len))
    }

    #[inline]
    fn set_batch(&mut self, peer: PeerId, is_batch: bool) {
        if let Some(remote) = self.remote_to_mut(peer) {
            return remote.set_batch(peer, is_batch);
        }
        self.local.set_batch(peer, is_batch);
    }

    #[inline(always)]
    fn poll(&mut self) -> Polled<Self::Token> {
        if self.remote.is_none() {
            return from_local(self.local.poll());
        }
        if self.burst >= BURST {
            let polled = self.poll_remote();
            if !matches!(polled, Polled::Idle) {
                return polled;
            }
        }
        match self.local.poll() {
            Polled::Idle => self.poll_remote(),
            polled => {
                self.burst += 1;
                self.is_remote_recent = false;
                from_local(polled)
            }
        }
    }

    fn poll_peer(&mut self, peer: PeerId) -> Polled<Self::Token> {
        if let Some(remote) = self.remote_to_mut(peer) {
            return from_remote(remote.poll_peer(peer));
        }
        from_local(self.local.poll_peer(peer))
    }

    #[inline(always)]
    fn read(&self, arrival: &Arrival<Self::Token>, at: usize, to: &mut [u8]) -> bool {
        match arrival.token {
            Either::Local(token) => self.local.read(&of(arrival, token), at, to),
            Either::Remote(token) => {
                self.remote.as_ref().is_some_and(|remote| remote.read(&of(arrival, token), at, to))
            }
        }
    }

    #[inline(always)]
    fn release(&mut self, arrival: Arrival<Self::Token>) {
        match arrival.token {
            Either::Local(token) => self.local.release(of(&arrival, token)),
            Either::Remote(token) => {
                if let Some(remote) = &mut self.remote {
                    remote.release(of(&arrival, token));
                }
            }
        }
    }

    fn grant(&mut self, peer: PeerId, units: u64) {
        if let Some(remote) = self.remote_to_mut(peer) {
            return remote.grant(peer, units);
        }
        self.local.grant(peer, units);
    }

    fn granted(&self, peer: PeerId) -> u64 {
        self.remote_to(peer).map_or_else(|| self.local.granted(peer), |remote| remote.granted(peer))
    }

    fn traffic(&self, peer: PeerId) -> TrafficCounters {
        self.remote_to(peer).map_or_else(|| self.local.traffic(peer), |remote| remote.traffic(peer))
    }

    fn close(&mut self, peer: PeerId) {
        if let Some(remote) = self.remote_to_mut(peer) {
            return remote.close(peer);
        }
        self.local.close(peer);
    }

    fn advance(&mut self, now: Duration) {
        self.local.advance(now);
        if let Some(remote) = &mut self.remote {
            remote.advance(now);
        }
    }

    fn ticks(&self) -> Option<u64> {
        self.local.ticks()
    }
}

// SAFETY: every method passes on to a port with the same obligations. `close` of a peer closes it at the port that
// reaches it.
#[allow(unsafe_code, reason = "the trait has obligations about memory; this file does nothing unsafe")]
unsafe impl<L, R, T> RemoteAccess for Pair<L, R, T>
where
    L: RemoteAccess + PacketPort,
    R: RemoteAccess + PacketPort,
    T: Borrow<[Route]>,
{
    fn can_get(&self, peer: PeerId) -> bool {
        self.remote_to(peer).map_or_else(|| self.local.can_get(peer), |remote| remote.can_get(peer))
    }

    fn rendezvous(&self, peer: PeerId) -> Rendezvous {
        self.remote_to(peer).map_or_else(|| self.local.rendezvous(peer), |remote| remote.rendezvous(peer))
    }

    fn access_shape(&self, peer: PeerId) -> AccessShape {
        self.remote_to(peer).map_or_else(|| self.local.access_shape(peer), |remote| remote.access_shape(peer))
    }

    fn is_accessible(&self, peer: PeerId, descriptor: &Descriptor) -> bool {
        if let Some(remote) = self.remote_to(peer) {
            return remote.is_accessible(peer, descriptor);
        }
        self.local.is_accessible(peer, descriptor)
    }

    fn is_mappable(&self, peer: PeerId, descriptor: &Descriptor) -> bool {
        if let Some(remote) = self.remote_to(peer) {
            return remote.is_mappable(peer, descriptor);
        }
        self.local.is_mappable(peer, descriptor)
    }

    fn expose(&mut self, peer: PeerId, range: SendRange) -> (Descriptor, Option<Exposure>) {
        if let Some(remote) = self.remote_to_mut(peer) {
            return remote.expose(peer, range);
        }
        self.local.expose(peer, range)
    }

    fn expose_list(&mut self, peer: PeerId, runs: &SendRuns) -> (Descriptor, Option<Exposure>) {
        if let Some(remote) = self.remote_to_mut(peer) {
            return remote.expose_list(peer, runs);
        }
        self.local.expose_list(peer, runs)
    }

    fn expose_for_put(
        &mut self,
        peer: PeerId,
        range: ReceiveRange,
        receiver: u64,
    ) -> (Descriptor, Option<Exposure>) {
        if let Some(remote) = self.remote_to_mut(peer) {
            return remote.expose_for_put(peer, range, receiver);
        }
        self.local.expose_for_put(peer, range, receiver)
    }

    fn prepare_put(&mut self, peer: PeerId, range: SendRange) -> Option<Exposure> {
        if let Some(remote) = self.remote_to_mut(peer) {
            return remote.prepare_put(peer, range);
        }
        self.local.prepare_put(peer, range)
    }

    fn notifies(&self, peer: PeerId, to: &Descriptor) -> bool {
        self.remote_to(peer).map_or_else(|| self.local.notifies(peer, to), |remote| remote.notifies(peer, to))
    }

    fn put_last(
        &mut self,
        peer: PeerId,
        to: &Descriptor,
        at: u64,
        from: SendRange,
        operation: u64,
    ) -> Accessed {
        if let Some(remote) = self.remote_to_mut(peer) {
            return remote.put_last(peer, to, at, from, operation);
        }
        self.local.put_last(peer, to, at, from, operation)
    }

    fn orders_puts(&self, peer: PeerId) -> bool {
        self.remote_to(peer).map_or_else(|| self.local.orders_puts(peer), |remote| remote.orders_puts(peer))
    }

    fn put(&mut self, peer: PeerId, to: &Descriptor, at: u64, from: SendRange, operation: u64) -> Accessed {
        if let Some(remote) = self.remote_to_mut(peer) {
            return remote.put(peer, to, at, from, operation);
        }
        self.local.put(peer, to, at, from, operation)
    }

    fn revoke(&mut self, peer: PeerId, exposure: Exposure) {
        if let Some(remote) = self.remote_to_mut(peer) {
            return remote.revoke(peer, exposure);
        }
        self.local.revoke(peer, exposure);
    }

    fn get(
        &mut self,
        peer: PeerId,
        from: &Descriptor,
        at: u64,
        to: ReceiveRange,
        operation: u64,
    ) -> Accessed {
        if let Some(remote) = self.remote_to_mut(peer) {
            return remote.get(peer, from, at, to, operation);
        }
        self.local.get(peer, from, at, to, operation)
    }

    fn get_ranges(
        &mut self,
        peer: PeerId,
        from: &Descriptor,
        at: u64,
        to: &mut ReceiveRanges,
        operation: u64,
    ) -> AccessedRanges {
        if let Some(remote) = self.remote_to_mut(peer) {
            return remote.get_ranges(peer, from, at, to, operation);
        }
        self.local.get_ranges(peer, from, at, to, operation)
    }

    fn expose_region(
        &mut self,
        peer: PeerId,
        memory: &Exposed,
        access: Access,
    ) -> Option<(RegionBytes, Exposure)> {
        // Only the remote port has such regions, so that an exposure is always one of that port.
        self.remote_to_mut(peer)?.expose_region(peer, memory, access)
    }

    fn withdraw_region(&mut self, exposure: Exposure) -> bool {
        self.remote.as_mut().is_none_or(|remote| remote.withdraw_region(exposure))
    }

    fn direct_access(&self, peer: PeerId) -> Option<DirectAccess> {
        self.remote_to(peer)?.direct_access(peer)
    }

    fn poll_access(&mut self) -> Option<CompletedAccess> {
        self.local.poll_access().or_else(|| self.remote.as_mut()?.poll_access())
    }
}

impl<L: SharedCopy, R, T> SharedCopy for Pair<L, R, T> {
    fn open_assist(&mut self, peer: PeerId, assist: &AssistedCopy) -> bool {
        self.local.open_assist(peer, assist)
    }

    fn is_lent(&self, peer: PeerId, assist: &AssistedCopy) -> bool {
        self.local.is_lent(peer, assist)
    }

    fn next_chunk(&mut self, peer: PeerId) -> NextChunk {
        self.local.next_chunk(peer)
    }

    fn close_assist(&mut self, peer: PeerId) {
        self.local.close_assist(peer);
    }

    fn keep_assist(&mut self, peer: PeerId) {
        self.local.keep_assist(peer);
    }

    fn find_assist(&mut self, peer: PeerId) -> Option<AssistedCopy> {
        self.local.find_assist(peer)
    }

    fn join_assist(&mut self, peer: PeerId, end: u64) -> Option<Part> {
        self.local.join_assist(peer, end)
    }

    fn next_part(&mut self, peer: PeerId) -> Option<Part> {
        self.local.next_part(peer)
    }

    fn end_part(&mut self, peer: PeerId, part: Part, written: bool) {
        self.local.end_part(peer, part, written);
    }

    fn push(&mut self, peer: PeerId, address: u64, from: &[u8]) -> bool {
        self.local.push(peer, address, from)
    }
}
