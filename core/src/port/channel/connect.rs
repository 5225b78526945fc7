//! Connections: connecting, accepting, refusing, closing.
#![forbid(unsafe_code)]

use core::borrow::{Borrow as _, BorrowMut};
use core::time::Duration;

use super::buffers::{ChannelBuffer, Use};
use super::call::{OutgoingCall, RequestProof, is_expected};
use super::peer::{ChannelStage, Rail};
use super::{Channel, ChannelStorage, OWN};
use crate::flow::posted::LEAST;
use crate::port::memory::{
    Address, ConnectError, Connection, Event, LostError, MemoryPort, PostError, Private,
};
use crate::port::{PeerId, PortFault};
use crate::wire::channel::ChannelRefusal;
use crate::wire::hello::Hello;

/// Most events of the memory port that one call processes.
const EVENTS: usize = 64;

/// A connection event. The loss of a peer is not reported here but by
/// [`PacketPort::poll`](crate::port::PacketPort::poll), after the peer's last packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelEvent {
    /// The connection is ready.
    Up {
        /// Rank of the peer.
        peer: PeerId,
        /// Index of the connection.
        rail: u32,
    },
    /// The connection could not be made.
    Failed {
        /// Rank of the peer.
        peer: PeerId,
        /// Index of the connection.
        rail: u32,
        /// The reason.
        error: ConnectError,
        /// The refusal that the other side sent, or with which this process rejected the other side's answer.
        refusal: Option<ChannelRefusal>,
    },
    /// A restarted process requests to be accepted ([`Channel::accept_caller`]).
    Called {
        /// The rank that it presents.
        peer: PeerId,
    },
    /// This process has refused a connection request.
    Refused {
        /// The rank that the requester presented, if its request was valid.
        claimed: Option<PeerId>,
        /// The reason.
        refusal: ChannelRefusal,
    },
    /// The connection is completely closed and may be made anew.
    Closed {
        /// Rank of the peer.
        peer: PeerId,
        /// Index of the connection.
        rail: u32,
    },
}

/// The reason why a connection cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The peer or rail does not exist.
    #[error("there is no rail {rail} to peer {peer}")]
    Unknown {
        /// Rank of the peer.
        peer: PeerId,
        /// Index of the rail.
        rail: u32,
    },
    /// The connection exists, or connections to that peer have ended and are not completely closed.
    #[error(
        "the connection exists, or an earlier one is not completely closed: wait for `ChannelEvent::Closed`"
    )]
    Exists,
    /// Too few buffers are free.
    #[error("{free} buffers are free, but a connection needs {OWN} reserved buffers: lend more memory")]
    Buffers {
        /// Number of free buffers.
        free: u32,
    },
    /// The fabric refused the connection.
    #[error("{0}")]
    Connect(#[from] ConnectError),
    /// The receives could not be posted.
    #[error("{0}")]
    Post(#[from] PostError),
}

impl<M: MemoryPort, S: ChannelStorage> Channel<M, S> {
    /// Requests a connection to a peer: rail number `rail`, counted from 0. Exactly one of the two processes
    /// must connect, as the world agrees. [`ChannelEvent::Up`] or [`ChannelEvent::Failed`] follows. The peer's
    /// challenge is answered by later calls of [`Channel::poll_event`], which request the connection once more.
    /// The peer refuses a rail other than 0 ([`ChannelRefusal::NoFirst`]) unless it has accepted rail 0 of this process
    /// and still has it: request further rails when rail 0 is ready.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn connect(
        &mut self,
        peer: PeerId,
        rail: u32,
        to: &Address,
        deadline: Duration,
    ) -> Result<(), JoinError> {
        self.dial(peer, rail, OutgoingCall::new(to, deadline))
    }

    /// Progresses connections at time `now` and returns the next event.
    pub fn poll_event(&mut self, now: Duration) -> Option<ChannelEvent> {
        self.release_left();
        if let Some((peer, rail)) = self.ended.take() {
            return Some(ChannelEvent::Closed { peer, rail });
        }
        for _ in 0..EVENTS {
            let happened = match self.port.poll_event(now)? {
                Event::Requested { connection, private } => self.asked(connection, &private, now),
                Event::Established { connection, private } => self.established(connection, &private),
                Event::Failed { connection, error, private } => {
                    self.came_to_nothing(connection, error, &private)
                }
                Event::Lost { connection, error } => self.was_lost(connection, error),
                Event::Closed { connection } => self.was_closed(connection),
                Event::PortFailed { .. } => self.port_failed(),
            };
            if happened.is_some() {
                return happened;
            }
        }
        None
    }

    /// Returns whether this process has requested the connections with the peer, not the peer.
    pub fn has_requested(&self, peer: PeerId) -> bool {
        self.peers.borrow().get(peer as usize).is_some_and(super::ChannelPeer::is_asked)
    }

    /// Returns whether the connection may be made, and reserves its buffers.
    pub(super) fn admit(&mut self, peer: PeerId, rail: u32) -> Result<(), JoinError> {
        let (rank, rails, free) = (self.config.rank, self.config.rails, self.buffers.pool().spare());
        let it = self.peers.borrow_mut().get_mut(peer as usize).filter(|_| peer != rank && rail < rails);
        let it = it.ok_or(JoinError::Unknown { peer, rail })?;
        if !it.takes_rails() || it.rail(rail).is_some() {
            return Err(JoinError::Exists);
        }
        if self.buffers.pool_mut().reserve(OWN) {
            self.connections += 1;
            if it.is_blank() {
                it.restart();
            }
            return Ok(());
        }
        // Other connections may hold more buffers than they use.
        self.wants = true;
        self.recall(peer, rail, 0);
        Err(JoinError::Buffers { free })
    }

    /// Returns a connection for which [`Self::admit`] has reserved buffers. If the port has refused it, frees them.
    pub(super) fn admitted(
        &mut self,
        connection: Result<Connection, ConnectError>,
    ) -> Result<Connection, JoinError> {
        if connection.is_err() {
            self.buffers.pool_mut().unreserve(OWN);
            self.connections -= 1;
        }
        Ok(connection?)
    }

    /// Posts the initial receives of a connection: as many as its credits count.
    pub(super) fn install(&mut self, peer: PeerId, rail: u32, new: Rail) -> Result<(), JoinError> {
        let (connection, receives) = (new.connection, new.credits.size());
        if let Some(it) = self.peer(peer)
            && let Some(place) = it.rails.get_mut(rail as usize)
        {
            *place = Some(new);
        }
        for posted in 0..receives {
            let Some(buffer) = self.buffers.take(true, Use::Held, peer, rail) else { continue };
            if let Err(error) = self.post(buffer, peer, rail) {
                self.buffers.put(buffer, true);
                if let Some(it) = self.peer(peer).and_then(|it| it.rail(rail)) {
                    (posted..receives).for_each(|_| it.credits.lost());
                    it.stage = ChannelStage::Closing;
                }
                self.port.close(connection);
                return Err(error.into());
            }
        }
        Ok(())
    }

    fn find(&self, connection: Connection) -> Option<(PeerId, u32)> {
        let is = |rail: &Option<Rail>| rail.as_ref().is_some_and(|rail| rail.connection == connection);
        let mut peers = (0..).zip(self.peers.borrow());
        peers.find_map(|(peer, it)| Some((peer, it.rails.iter().position(is)? as u32)))
    }

    /// Handles a connection request.
    fn asked(&mut self, connection: Connection, private: &Private, now: Duration) -> Option<ChannelEvent> {
        let said = Hello::decode(private);
        let answer = said.and_then(|hello| {
            self.judge(&hello)?;
            let proof = self.check_request(&hello, now)?;
            if self.is_to_be_held(&hello) {
                self.hold(connection, (&hello, proof))?;
                return Ok((hello, None));
            }
            self.claims(connection, &hello)?;
            self.admit(hello.rank, hello.rail.into()).map_err(|error| match error {
                JoinError::Unknown { .. } => ChannelRefusal::NotAMember,
                JoinError::Buffers { .. } => ChannelRefusal::Buffers,
                _ => ChannelRefusal::Exists,
            })?;
            Ok((hello, Some(proof)))
        });
        match answer {
            Ok((hello, None)) => Some(ChannelEvent::Called { peer: hello.rank }),
            Ok((hello, Some(proof))) => {
                self.take_in(connection, (&hello, proof), now);
                None
            }
            Err(ChannelRefusal::Unproven) => {
                self.challenge(connection, now);
                None
            }
            Err(refusal) => {
                self.turn_away(connection, refusal);
                let claimed = said.ok().map(|hello| hello.rank);
                Some(ChannelEvent::Refused { claimed, refusal })
            }
        }
    }

    /// Refuses a request.
    pub(super) fn turn_away(&mut self, connection: Connection, refusal: ChannelRefusal) {
        // An error means that the requester no longer waits, so it can be ignored.
        let _ = self.port.refuse(connection, refusal.encode());
    }

    /// Accepts a request for which [`Self::admit`] has reserved the buffers.
    pub(super) fn take_in(
        &mut self,
        connection: Connection,
        (hello, proof): (&Hello, RequestProof),
        now: Duration,
    ) -> bool {
        let (peer, rail) = (hello.rank, u32::from(hello.rail));
        let mut new = Rail::new(connection, LEAST, None);
        // `judge` has checked the hello.
        let _ = new.credits.open(hello.receives.into());
        let offer = self.answer(peer, rail, &proof, now);
        if let Some(it) = self.peer(peer) {
            it.show(hello);
        }
        if self.install(peer, rail, new).is_err() {
            return false;
        }
        let accepted = self.port.accept(connection, &offer).is_ok();
        if !accepted {
            self.shut(peer, rail);
        }
        accepted
    }

    /// Checks that the requester may take the rank and rail that it claims. The current holder of the rank is
    /// not affected.
    fn claims(&mut self, connection: Connection, hello: &Hello) -> Result<(), ChannelRefusal> {
        let Some(it) = self.peer(hello.rank) else { return Ok(()) };
        if !it.takes_rails() || it.is_asked() {
            return Err(ChannelRefusal::Exists);
        }
        self.is_holder(connection, hello)?;
        self.follows_first(hello, |it, token| it.is_held_by(token) && it.has_first())
    }

    /// Checks that a further connection belongs to a process with a first one. A request that was on its way when this
    /// process closed the peer thus does not become the only connection with that former process.
    pub(super) fn follows_first(
        &self,
        hello: &Hello,
        has_first: impl Fn(&super::ChannelPeer<S::Window>, u64) -> bool,
    ) -> Result<(), ChannelRefusal> {
        #[cfg(nemesia_injected_fault)]
        if crate::injected_fault::injected(crate::injected_fault::InjectedFault::AcceptFurther) {
            return Ok(());
        }
        let it = self.peers.borrow().get(hello.rank as usize);
        if hello.rail == 0 || it.is_some_and(|it| has_first(it, hello.token)) {
            Ok(())
        } else {
            Err(ChannelRefusal::NoFirst)
        }
    }

    /// Checks the origin of the other end, and that it is the process that holds the rank, if one does.
    pub(super) fn is_holder(&self, connection: Connection, hello: &Hello) -> Result<(), ChannelRefusal> {
        let Some(it) = self.peers.borrow().get(hello.rank as usize) else { return Ok(()) };
        if it.origin.is_some() && it.origin != self.port.origin(connection) {
            return Err(ChannelRefusal::NotAMember);
        }
        if self.grows && !is_expected(it.expected, hello) {
            return Err(ChannelRefusal::NotAMember);
        }
        if it.is_holder(hello.token) { Ok(()) } else { Err(ChannelRefusal::Claimed) }
    }

    /// Checks that a hello is compatible with this process.
    pub(super) fn judge(&self, hello: &Hello) -> Result<(), ChannelRefusal> {
        let super::Config { packet_bytes, rails, .. } = self.config;
        let receives = u32::from(hello.receives);
        let same = hello.packet_bytes == packet_bytes && u32::from(hello.rail) < rails;
        let can = crate::flow::posted::Credits::new(LEAST).open(receives).is_ok();
        if same && can { Ok(()) } else { Err(ChannelRefusal::Settings) }
    }

    /// Closes a connection. Its remaining buffers return when [`Event::Closed`] arrives.
    pub(super) fn shut(&mut self, peer: PeerId, rail: u32) {
        if let Some(it) = self.peers.borrow_mut().get_mut(peer as usize).and_then(|it| it.rail(rail)) {
            it.stage = ChannelStage::Closing;
            self.port.close(it.connection);
            self.discard_early(peer, rail);
        }
    }

    /// Discards packets that arrived on a connection that never becomes ready.
    fn discard_early(&mut self, peer: PeerId, rail: u32) {
        while let Some(buffer) = self.next_early(peer, rail) {
            self.go_home(buffer, peer, rail);
        }
    }

    /// Returns the next packet that arrived before the connection was ready.
    fn next_early(&mut self, peer: PeerId, rail: u32) -> Option<u32> {
        let it = self.peers.borrow_mut().get_mut(peer as usize)?.rail(rail)?;
        self.buffers.pop(&mut it.early)
    }

    fn established(&mut self, connection: Connection, private: &Private) -> Option<ChannelEvent> {
        let (peer, rail) = self.find(connection)?;
        let active = self.peer(peer)?.rail(rail).is_some_and(|it| it.active);
        if active && let Err(refusal) = self.meet(connection, (peer, rail), private) {
            self.shut(peer, rail);
            let error = ConnectError::Protocol;
            return Some(ChannelEvent::Failed { peer, rail, error, refusal: Some(refusal) });
        }
        if self.peer(peer)?.rail(rail)?.stage != ChannelStage::Opening {
            // This process has closed the connection meanwhile.
            return None;
        }
        self.make_ready(peer, rail);
        Some(ChannelEvent::Up { peer, rail })
    }

    /// Lets packets pass over a connection, and takes those in that have come before.
    pub(super) fn make_ready(&mut self, peer: PeerId, rail: u32) {
        let first = self.facts().active_speaks_first;
        let Some(it) = self.peer(peer).and_then(|it| it.rail(rail)) else { return };
        it.stage = ChannelStage::Ready;
        it.hello = it.active && first;
        while let Some(buffer) = self.next_early(peer, rail) {
            let (len, notice) = self.buffers.get(buffer).map_or((0, None), |it| (it.len, it.notice));
            match notice {
                // Another connection of the peer has carried the permission to write.
                Some(_) => self.accept_notice(buffer, (peer, rail), notice),
                None => self.accept_packet(buffer, (peer, rail), len),
            }
        }
        self.settle(peer, rail);
    }

    fn came_to_nothing(
        &mut self,
        connection: Connection,
        error: ConnectError,
        private: &Private,
    ) -> Option<ChannelEvent> {
        let Some((peer, rail)) = self.find(connection) else {
            self.forget_request(connection);
            self.port.close(connection);
            return None;
        };
        if self.is_challenged((peer, rail), private) {
            return None;
        }
        self.shut(peer, rail);
        Some(ChannelEvent::Failed { peer, rail, error, refusal: ChannelRefusal::decode(private) })
    }

    fn was_lost(&mut self, connection: Connection, error: LostError) -> Option<ChannelEvent> {
        let (peer, rail) = self.find(connection)?;
        let it = self.peer(peer)?.rail(rail)?;
        if !it.stage.is_closing() {
            it.stage = ChannelStage::Lost;
            self.fail(peer, PortFault::Lost(error));
            self.discard_early(peer, rail);
        }
        None
    }

    fn was_closed(&mut self, connection: Connection) -> Option<ChannelEvent> {
        let (peer, rail) = self.find(connection)?;
        if let Some(last) = self.out.or(self.released)
            && let Some(&ChannelBuffer { peer: whose, rail: of, .. }) = self.buffers.get(last)
            && (whose, of) == (peer, rail)
        {
            (self.out, self.released) = (None, None);
            self.recycle(last);
        }
        // All work requests have completed, so all buffers are back, as the port guarantees. If a port
        // violates this, its buffers are never reused and count as used.
        let former = self.peer(peer)?.rails.get_mut(rail as usize)?.take()?;
        self.buffers.pool_mut().unreserve(former.kept());
        self.connections = self.connections.saturating_sub(1);
        match former.call {
            Some(call) if former.stage == ChannelStage::Challenged => self.call_again((peer, rail), call),
            _ => Some(ChannelEvent::Closed { peer, rail }),
        }
    }

    #[cold]
    fn port_failed(&mut self) -> Option<ChannelEvent> {
        for peer in 0..self.peers.borrow().len() as PeerId {
            self.fail(peer, PortFault::Lost(LostError::Port));
        }
        None
    }

    /// Disconnects a peer.
    pub(super) fn close_peer(&mut self, peer: PeerId) {
        for rail in 0..self.config.rails {
            self.shut(peer, rail);
        }
        self.forget_accesses(peer);
        self.withdraw_ring(peer);
        loop {
            let Some(it) = self.peers.borrow_mut().get_mut(peer as usize) else { return };
            let Some(buffer) = self.buffers.pop(it.ready_mut()).or_else(|| it.window.drain()) else { break };
            let rail = self.buffers.get(buffer).map_or(0, |buffer| buffer.rail);
            self.go_home(buffer, peer, rail);
        }
        if self.peer(peer).is_some_and(super::ChannelPeer::forget) {
            self.pending = self.pending.saturating_sub(1);
        }
    }
}
