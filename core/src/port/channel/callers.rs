//! Callers: processes that were started again and wait to be accepted.
#![forbid(unsafe_code)]

use core::borrow::{Borrow as _, BorrowMut as _};
use core::time::Duration;

use super::call::RequestProof;
use super::connect::JoinError;
use super::peer::{Caller, ChannelPeer, Introduction};
use super::{Channel, ChannelStorage};
use crate::port::PeerId;
use crate::port::memory::{ConnectError, Connection, MemoryPort};
use crate::wire::channel::ChannelRefusal;
use crate::wire::hello::Hello;

impl<M: MemoryPort, S: ChannelStorage> Channel<M, S> {
    /// From now on, accepts no process by itself. Requests of processes that were started again are held for
    /// [`Channel::accept_caller`]. Others are refused, unless they are further rails of a process that holds its rank.
    pub const fn hold_requests(&mut self) {
        self.holds = true;
    }

    /// Returns the incarnation that the process claims which requests to be accepted as this rank; `None` if there is
    /// none, or if it cannot be accepted yet.
    pub fn caller(&self, peer: PeerId) -> Option<u64> {
        let it = self.peers.borrow().get(peer as usize).filter(|it| it.is_blank())?;
        Some(it.caller?.hello.incarnation.into())
    }

    /// Accepts the held requests of a process. [`ChannelEvent::Up`](super::ChannelEvent::Up) or
    /// [`ChannelEvent::Failed`](super::ChannelEvent::Failed) follows. `agreements` travels with the acceptance.
    ///
    /// # Errors
    /// See [`JoinError`]. If buffers are missing, the requests are still held. If the process is gone, they are not.
    pub fn accept_caller(&mut self, peer: PeerId, agreements: u64, now: Duration) -> Result<(), JoinError> {
        let unknown = JoinError::Unknown { peer, rail: 0 };
        let caller = self.peer(peer).filter(|it| it.is_blank()).and_then(|it| it.caller).ok_or(unknown)?;
        let (mut begun, mut accepted) = (false, false);
        for (rail, request) in (0..).zip(caller.requests) {
            let Some((connection, proof)) = request else { continue };
            match self.admit(peer, rail) {
                Ok(()) => {}
                Err(error) if !begun => return Err(error),
                // Buffers are missing, or another connection of the process was lost just now.
                Err(_) => {
                    self.turn_away(connection, ChannelRefusal::Buffers);
                    continue;
                }
            }
            begun = true;
            if let Some(it) = self.peer(peer) {
                (it.caller, it.agreements) = (None, agreements);
            }
            let hello = Hello { rail: rail as u8, ..caller.hello };
            accepted |= self.take_in(connection, (&hello, proof), now);
        }
        if accepted { Ok(()) } else { Err(ConnectError::State.into()) }
    }

    /// Refuses the held requests of a process.
    pub fn refuse_caller(&mut self, peer: PeerId, refusal: ChannelRefusal) {
        let Some(caller) = self.peer(peer).and_then(|it| it.caller.take()) else { return };
        for (connection, _) in caller.requests.into_iter().flatten() {
            self.turn_away(connection, refusal);
        }
    }

    /// Returns what the process that holds this rank, or held it last, has said about itself.
    pub fn introduction(&self, peer: PeerId) -> Option<Introduction> {
        self.peers.borrow().get(peer as usize).and_then(ChannelPeer::introduction)
    }

    /// Returns whether a valid request must wait for the caller.
    pub(super) fn is_to_be_held(&self, hello: &Hello) -> bool {
        #[cfg(nemesia_injected_fault)]
        if crate::injected_fault::injected(crate::injected_fault::InjectedFault::AcceptUnasked) {
            return false;
        }
        let holder = self.peers.borrow().get(hello.rank as usize);
        self.holds && !holder.is_some_and(|it| it.is_held_by(hello.token))
    }

    /// Holds a valid request, or returns why it is refused.
    pub(super) fn hold(
        &mut self,
        connection: Connection,
        (hello, proof): (&Hello, RequestProof),
    ) -> Result<(), ChannelRefusal> {
        let is_me = hello.rank == self.config.rank;
        let Some(it) = self.peer(hello.rank).filter(|_| !is_me && hello.incarnation > 0) else {
            return Err(ChannelRefusal::NotAMember);
        };
        if !it.is_blank() {
            return Err(ChannelRefusal::Claimed);
        }
        let held = it.caller;
        self.is_holder(connection, hello)?;
        self.follows_first(hello, ChannelPeer::holds_first)?;
        let mut caller = match held {
            Some(caller) if caller.hello.token == hello.token => caller,
            // A later process of the rank. The former one, or an impostor, may ask again.
            Some(caller) if caller.hello.incarnation < hello.incarnation => {
                self.refuse_caller(hello.rank, ChannelRefusal::Claimed);
                Caller { hello: *hello, requests: [None; super::MOST_RAILS] }
            }
            Some(_) => return Err(ChannelRefusal::Claimed),
            None => Caller { hello: *hello, requests: [None; super::MOST_RAILS] },
        };
        let place = caller.requests.get_mut(usize::from(hello.rail)).ok_or(ChannelRefusal::Settings)?;
        let former = place.replace((connection, proof));
        if let Some(it) = self.peer(hello.rank) {
            it.caller = Some(caller);
        }
        if let Some((former, _)) = former {
            self.turn_away(former, ChannelRefusal::Exists);
        }
        Ok(())
    }

    /// Forgets a held request whose process is gone. Without its first request, its others are refused.
    pub(super) fn forget_request(&mut self, connection: Connection) {
        for (peer, it) in (0..).zip(self.peers.borrow_mut()) {
            let Some(caller) = &mut it.caller else { continue };
            let is_it =
                |place: &&mut Option<(Connection, RequestProof)>| place.is_some_and(|it| it.0 == connection);
            if let Some(place) = caller.requests.iter_mut().find(is_it) {
                *place = None;
                if caller.requests.first().is_none_or(Option::is_none) {
                    self.refuse_caller(peer, ChannelRefusal::NoFirst);
                }
                return;
            }
        }
    }
}
