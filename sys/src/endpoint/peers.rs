//! The peers of an endpoint that was opened alone, and the further peers of a world's.
//!
//! | file | contents |
//! |---|---|
//! | `peers.rs` | addresses; connecting, and disconnecting |
//! | `peers/table.rs` | the table of peers, with the numbers that the engine knows them by |
//! | `peers/attend.rs` | progress of calls, ours and those of others |
//! | `peers/calls.rs` | what is decided about calls, and what becomes of them |
//! | `peers/members.rs` | groups of peers in an order |
//! | `peers/start.rs` | the start of a world whose ranks all connect then |
//! | `peers/bound.rs` | the connections with the members of a group during a collective call |
//! | `peers/meeting.rs` | two groups that meet |

mod attend;
mod bound;
mod calls;
mod meeting;
mod members;
mod start;
mod table;
#[cfg(test)]
mod tests;

use std::time::Duration;

use nemesia_core::engine::Failure;
use nemesia_core::peers::{PeerAddress, PeerEnd, PeerError, PeerRef, PeerStage, Speaking};
use nemesia_core::port::Route;

use crate::endpoint::Endpoint;
use crate::endpoint::wait::{Awaited, Wait};
use crate::error::Error;
use crate::shm::Calls;
pub(in crate::endpoint) use bound::BoundPeer;
pub use meeting::Meeting;
pub use members::PeerGroup;
pub(in crate::endpoint) use table::PeerTable;

/// # Peers
///
/// An endpoint can be opened alone, without a launcher and without any other process. It has an address, of 64 bytes
/// that mean nothing to others. A process that has the address can connect, at any time, without help from this process
/// but its progress. So a runtime with its own launcher opens endpoints, lets its processes exchange their addresses,
/// and connects whom it needs.
///
/// # Further peers of a world
/// The endpoint of a rank has an address as well. So a world can grow: it meets other worlds, and endpoints that were
/// opened alone ([`Endpoint::meet`]).
///
/// - Ranks keep the numbers from 0. A further peer gets a number from [`Endpoint::size`] on. All operations with one
///   process take such numbers, and receives from any source accept messages of further peers.
/// - Further peers on other machines are reached over TCP; not if the ranks connect at the start, as over RDMA devices,
///   or may be started again.
/// - Barriers, agreements and restarts stay calls of the ranks.
/// - The failure of a further peer ends the operations with it. Receives from any source end with it only if no rank
///   and no other peer is left. With [`Config::any_source_outlives`](crate::Config::any_source_outlives), they never
///   end so.
/// - A further peer costs nothing before its connection begins. Its credit then comes out of the memory that the ranks
///   share, [`Config::unexpected_bytes`](crate::Config::unexpected_bytes).
/// - Unknown processes of the same user may call, as they may call an endpoint that was opened alone
///   ([`Config::strangers`](crate::Config::strangers)). As long as this process has used neither its address nor a
///   further peer, a call does not wake it from a sleep, and is answered up to 10 ms later.
///
/// # Numbers of peers
/// A peer is a place in a table ([`PeerRef`]), not a rank: it costs about a hundred bytes until this process speaks to
/// it. [`Endpoint::rank_of`] begins the connection and returns the number by which all other calls of this endpoint
/// name the peer, as they name a rank of a world. Sends wait until the connection is made. Each process chooses such
/// numbers for itself.
///
/// ```
/// use nemesia::{Config, Endpoint, Source, Tag};
///
/// let config = Config::default();
/// let mut endpoint = Endpoint::alone(&config)?;
/// let address = *endpoint.address()?;
/// let other = std::thread::spawn(move || {
///     let mut endpoint = Endpoint::alone(&Config::default())?;
///     let peer = endpoint.connect(&address)?;
///     let to = endpoint.rank_of(peer)?;
///     endpoint.send(to, 7, b"hello")?;
///     endpoint.close()
/// });
/// let mut buf = [0; 5];
/// let status = endpoint.recv(Source::Any, Tag::Exactly(7), &mut buf)?;
/// assert_eq!(&buf, b"hello");
/// // The number of the sender here, its place in the table, and its address.
/// let peer = endpoint.peer_of(status.rank).ok_or("no such peer")?;
/// assert_ne!(endpoint.address_of(peer)?, &address);
/// endpoint.close()?;
/// # other.join().expect("the other thread")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Endpoint {
    /// Returns the address of this endpoint. Other processes of this user on this machine connect with it
    /// ([`Endpoint::connect`]). So do processes on other machines, unless NEMESIA_NET is off or verbs, or one of both
    /// has another key of the job than the other ([`Config::job_key`](crate::Config::job_key)): for them this endpoint
    /// listens from the first call of this function or of [`Endpoint::connect`] on, unless ranks of its world run
    /// there. The address is the permission to call, so keep it from processes that must not. It is valid until the
    /// endpoint is closed, and is never that of another endpoint.
    ///
    /// # Errors
    /// [`Error::Forked`]: the endpoint belongs to the parent of this process. [`Error::Shm`]: the kernel refuses to
    /// listen.
    pub fn address(&self) -> Result<&PeerAddress, Error> {
        self.check_origin()?;
        let peers = self.peer_table()?;
        peers.begin_growth(&self.waiter.watch)?;
        Ok(peers.address())
    }

    /// Returns the peer with this address, at once and without any contact with it. A second call returns the same
    /// peer. If its connection had ended, it can be spoken to again, unless it is a rank of this world. Its calls are
    /// accepted again if a collective call had lost it ([`Endpoint::among_peers`]).
    ///
    /// # Errors
    /// [`Error::Address`] if these are not the bytes of an address. [`Error::Apart`] if it is one of another machine
    /// and one of the two endpoints takes no part in the network.
    /// [`Error::NoPeer`]: it is the address of this endpoint, or there are too many peers.
    pub fn connect(&mut self, address: &PeerAddress) -> Result<PeerRef, Error> {
        self.check_origin()?;
        self.with_peers(|peers, endpoint| {
            let peer = peers.connect(address, endpoint)?;
            peers.parted.remove(address);
            Ok(peer)
        })
    }

    /// Returns the address of a peer.
    ///
    /// # Errors
    /// [`Error::NoPeer`] if the peer was released.
    pub fn address_of(&self, peer: PeerRef) -> Result<&PeerAddress, Error> {
        self.peer_table()?.address_of(peer)
    }

    /// Returns the stage of the connection with a peer, as far as this process knows it.
    ///
    /// # Errors
    /// [`Error::NoPeer`] if the peer was released.
    pub fn stage_of(&self, peer: PeerRef) -> Result<PeerStage, Error> {
        let peers = self.peer_table()?;
        let stage = peers.stage(peer)?;
        // The table is not told of the failures of ranks.
        match stage.number().and_then(|number| self.engine.failure(peers.rank(number))) {
            Some(failure) if peers.is_rank(peer) => Ok(PeerStage::Ended(end_of(failure))),
            _ => Ok(stage),
        }
    }

    /// Returns the number by which other calls name a peer, as they name a rank. If there is no connection, this begins
    /// one, and takes the memory for its messages. Operations with the peer wait until the connection is made; if it
    /// cannot be made within NEMESIA_TIMEOUT, they end with [`Error::PeerFailed`]. A peer that has called this process
    /// and was then stopped is waited for as long as it lives, unless another peer needs its place.
    ///
    /// The number is the same until the peer's connection has ended, and then for as long as messages that had come are
    /// not received, or outcomes of requests that name it are not taken. Afterwards it may become the number of another
    /// peer. That of a rank of this world is its rank, for ever.
    ///
    /// # Errors
    /// [`Error::NoPeer`]: the peer was released, its connection has ended and no message of it waits
    /// ([`Endpoint::connect`] permits another connection), or there are NEMESIA_CONNECTIONS connections.
    /// [`Error::Unpaid`] if there is no memory for its messages.
    pub fn rank_of(&mut self, peer: PeerRef) -> Result<usize, Error> {
        self.check_origin()?;
        if let Some(rank) = self.peer_table()?.ended_rank(peer) {
            return Ok(rank as usize);
        }
        let speaking = match self.peer_table_mut()?.speak(peer) {
            Err(Error::NoPeer(PeerError::Connections { .. })) => self.with_peers(|peers, endpoint| {
                // Strangers that are stopped do not keep this process from calls of its own.
                peers.give_up_one(endpoint);
                peers.speak(peer)
            }),
            Err(error @ Error::NoPeer(PeerError::Ended(_))) => {
                return self.peer_table()?.kept_number(peer, self).ok_or(error);
            }
            speaking => speaking,
        };
        match speaking? {
            Speaking::Ready(rank) => Ok(rank as usize),
            Speaking::Wait(rank) => {
                // If the call of the peer comes to nothing, this process calls it.
                self.with_peers(|peers, endpoint| peers.want(peer, rank, endpoint))?;
                Ok(rank as usize)
            }
            Speaking::Call(rank) => self.call(peer, rank),
        }
    }

    /// As [`Endpoint::rank_of`], for a peer with which this process is connected; `None` in all other cases. Also
    /// returns whether the peer is reached through shared memory: messages to it then lie at once where neither a
    /// failure of this process nor one of a network can take them from it.
    #[inline]
    pub fn connected_rank(&self, peer: PeerRef) -> Option<(usize, bool)> {
        let peers = self.peers.as_ref().filter(|_| !self.is_forked())?;
        let rank = peers.connected_rank(peer)?;
        Some((rank as usize, self.engine.port().route(rank) == Route::Local))
    }

    /// Returns the peer that other calls name by this number: for instance the sender of a message. `None` if no peer
    /// has the number, which is also so for the number of this process.
    ///
    /// A peer that has called this process and was not given to [`Endpoint::connect`] is released once its connection
    /// has ended and its messages are received.
    pub fn peer_of(&self, rank: usize) -> Option<PeerRef> {
        self.peer_table().ok()?.peer_of(rank)
    }

    /// Waits until the connection with a peer is made, or for at most `limit`. It begins the connection if necessary.
    /// Returns the peer's number ([`Endpoint::rank_of`]).
    ///
    /// # Errors
    /// As for [`Endpoint::rank_of`]; [`Error::PeerFailed`] if the connection was refused or has ended;
    /// [`Error::Timeout`].
    pub fn wait_connected(&mut self, peer: PeerRef, limit: Option<Duration>) -> Result<usize, Error> {
        let rank = self.rank_of(peer)?;
        let mut wait = Wait::new(limit);
        loop {
            if let Some(failure) = self.failure(rank) {
                return Err(self.peer_failed(rank, failure));
            }
            if let PeerStage::Connected(_) = self.stage_of(peer)? {
                return Ok(rank);
            }
            let packets = self.engine.progress().packets;
            self.pause(&mut wait, packets, Awaited::Other)?;
        }
    }

    /// Ends the connection with a peer and releases its place, which then may be that of another peer. The peer sees
    /// [`Failure::Finished`].
    ///
    /// Operations under way with it end with [`Error::PeerFailed`]. Messages whose sends have completed still arrive if
    /// the peer reads them within 5 s, and if this process does not need its cells for others before: so wait for an
    /// answer to what must arrive. Its messages that were not received are dropped.
    ///
    /// The call does not wait for the peer. If the peer was stopped (SIGSTOP, a debugger) while it was writing a
    /// part of a large message into a buffer of this process, the connection, and the receive of that message, end
    /// when it goes on or is dead; until then the buffer is not its owner's. The drop of the endpoint waits for
    /// that.
    ///
    /// # Errors
    /// [`Error::NoPeer`] if the peer was released before, or is a rank of this world ([`PeerError::Pinned`]).
    pub fn disconnect(&mut self, peer: PeerRef) -> Result<(), Error> {
        self.check_origin()?;
        self.peer_table()?;
        self.with_peers(|peers, endpoint| peers.disconnect(peer, endpoint))
    }

    /// Fails if the processes that this one knows do not name each other by the same numbers.
    pub(in crate::endpoint) fn check_world(&self) -> Result<(), Error> {
        if self.is_lone() { Err(Error::NoWorld) } else { Ok(()) }
    }

    /// Returns whether this endpoint was opened alone.
    pub(in crate::endpoint) fn is_lone(&self) -> bool {
        self.engine.ranks() == 0
    }

    /// Returns whether another process may call now, which must end a sleep.
    pub(in crate::endpoint) fn expects_calls(&self) -> bool {
        let may_call = |peers: &PeerTable| peers.grows() || self.engine.unmet_ranks() > 0;
        self.peers.as_ref().is_some_and(|peers| may_call(peers) || peers.calls().is_some_and(Calls::is_busy))
    }

    /// Returns the table. Only a forked child has none, as its parent owns it.
    fn peer_table(&self) -> Result<&PeerTable, Error> {
        self.peers.as_deref().ok_or(Error::Forked)
    }

    fn peer_table_mut(&mut self) -> Result<&mut PeerTable, Error> {
        self.peers.as_deref_mut().ok_or(Error::Forked)
    }

    /// Calls `work` with the table of peers and the endpoint, which is without it meanwhile.
    pub(in crate::endpoint) fn with_peers<T>(
        &mut self,
        work: impl FnOnce(&mut PeerTable, &mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Some(mut peers) = self.peers.take() else { return Err(Error::Forked) };
        let done = work(&mut peers, self);
        self.peers = Some(peers);
        done
    }

    /// Takes the memory of a connection, and calls the peer.
    #[cold]
    fn call(&mut self, peer: PeerRef, rank: u32) -> Result<usize, Error> {
        self.with_peers(|peers, endpoint| peers.call(peer, rank, endpoint))?;
        // The next reading of the clock looks after the call.
        self.attend_calls();
        Ok(rank as usize)
    }
}

/// Returns how a connection has ended, by the failure that the engine reports.
const fn end_of(failure: Failure) -> PeerEnd {
    match failure {
        Failure::Finished => PeerEnd::Left,
        Failure::Unreachable => PeerEnd::Refused,
        _ => PeerEnd::Lost,
    }
}
