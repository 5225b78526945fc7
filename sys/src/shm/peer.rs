//! This process as its peers see it, and the segments of a peer that are mapped.

use std::time::{Duration, Instant};

use nemesia_core::link::address::LinkAddress;
use nemesia_core::link::token::LinkToken;
use nemesia_core::shared::layout::Geometry;

use super::address;
use super::handshake::{self, Cpus, SaidProcess};
use super::segments::{Expected, OwnLink, PeerSegments, Unjoined};
use crate::config::Config;
use crate::error::Error;
use crate::os::{ForeignFd, HandoffConnection, HandoffListener, IdentityStamp, RemoteMemory, ShmError};
use crate::transport::hosts::HostAddress;

/// The time after which is repeated what failed for a shortage of this process.
const AGAIN_AFTER: Duration = Duration::from_millis(10);

/// The facts about this process that its handshake contains.
#[derive(Debug)]
pub(super) struct ShmWorld {
    pub(super) config: Config,
    pub(super) geometry: Geometry,
    pub(super) rank: u32,
    /// The number of processes of the world.
    pub(super) size: u32,
    /// The token of this process, from which its epoch is derived.
    pub(super) token: LinkToken,
    pub(super) expedited: bool,
    pub(super) cpus: Cpus,
    /// The address of a copy of the epoch in our memory, if the peers may read it.
    pub(super) stamp: u64,
    /// The number of previous starts of our rank.
    pub(super) incarnation: u64,
    /// The launcher restarts ranks.
    pub(super) restarts: bool,
    /// Our own segment is sealed against writing, so this kernel can seal the peers' as well.
    pub(super) sealed: bool,
}

impl ShmWorld {
    /// Returns the address of this process, which listens here and takes no calls of other machines.
    pub(super) fn address(&self, listener: &HandoffListener) -> LinkAddress {
        address::address_at(&HostAddress::of(listener.name(), &self.config), self.token)
    }

    /// Listens under the name that the token of this process has.
    pub(super) fn bind(&self) -> Result<HandoffListener, ShmError> {
        HandoffListener::bind_as(address::socket(&self.token))
    }
}

/// A connected peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) segments: PeerSegments,
    /// Our segment for it.
    pub(super) link: OwnLink,
    pub(super) expedited: bool,
    /// Its memory, if it can be identified.
    pub(super) memory: Option<RemoteMemory>,
}

/// What a process has sent to join, mapped in this process.
#[derive(Debug)]
pub(super) struct MappedPeer {
    segments: PeerSegments,
    memory: Option<RemoteMemory>,
}

/// An error that may be a shortage of this process.
pub(super) trait MayPass {
    /// Returns whether what failed may be repeated.
    fn may_pass(&self) -> bool;
}

impl MayPass for ShmError {
    fn may_pass(&self) -> bool {
        self.is_shortage()
    }
}

impl MayPass for Error {
    fn may_pass(&self) -> bool {
        matches!(self, Self::Shm(error) if error.is_shortage())
    }
}

impl MayPass for Unjoined {
    fn may_pass(&self) -> bool {
        matches!(self, Self::Shortage(_))
    }
}

/// Repeats what fails for a shortage of this process, until the deadline.
pub(super) fn patiently<T, E: MayPass>(
    deadline: Instant,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    loop {
        match attempt() {
            Err(error) if error.may_pass() && Instant::now() < deadline => std::thread::sleep(AGAIN_AFTER),
            outcome => return outcome,
        }
    }
}

/// Maps and validates the segments of a peer. After a shortage this function may be called again.
pub(super) fn map(
    world: &ShmWorld,
    connection: &HandoffConnection,
    said: &SaidProcess,
    fds: &[ForeignFd],
) -> Result<MappedPeer, Unjoined> {
    handshake::compare(&world.geometry, &said.geometry)?;
    let SaidProcess { epoch, number, .. } = *said;
    let expected =
        Expected { config: &world.config, sizes: world.geometry, sealed: world.sealed, epoch, number };
    let (segments, life) = PeerSegments::attach(&expected, fds)?;
    let stamp = IdentityStamp { address: said.stamp, value: epoch };
    let memory = RemoteMemory::of_living(connection.peer().pid, stamp, life);
    Ok(MappedPeer { segments, memory })
}

impl MappedPeer {
    /// Returns the peer, for which we have made this link segment.
    pub(super) fn admit(self, link: OwnLink, said: &SaidProcess) -> Peer {
        let Self { segments, memory } = self;
        let expedited = said.expedited;
        Peer { segments, link, expedited, memory }
    }
}
