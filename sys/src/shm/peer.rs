//! Handshakes on a connection, and the peer behind a valid one.

use std::fmt;
use std::time::{Duration, Instant};

use nemesia_core::link::address::LinkAddress;
use nemesia_core::link::token::LinkToken;
use nemesia_core::shared::layout::Geometry;

use super::address;
use super::handshake::{self, Cpus, ShmHandshake};
use super::segments::{Expected, MOST_DESCRIPTORS, OwnLink, OwnSegments, PeerSegments, Unjoined};
use crate::config::Config;
use crate::error::Error;
use crate::os::{
    Departure, ForeignFd, HandoffConnection, HandoffListener, IdentityStamp, RemoteMemory, ShmError,
};
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
    pub(super) epoch: u64,
    /// The token of this process, from which the epoch is derived.
    pub(super) token: LinkToken,
    pub(super) expedited: bool,
    pub(super) cpus: Cpus,
    /// The address of `epoch` in our memory, if the peers may read it.
    pub(super) stamp: u64,
    /// The number of previous starts of our rank.
    pub(super) incarnation: u64,
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

    /// Returns the handshake for the process that this one knows by this number.
    pub(super) fn handshake(&self, number: u32, agreements: u64) -> ShmHandshake {
        let Self { geometry, rank, size, epoch, expedited, cpus, stamp, incarnation, .. } = *self;
        ShmHandshake { rank, epoch, size, number, geometry, expedited, cpus, stamp, incarnation, agreements }
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

/// Sends our handshake, with the descriptors of our segments.
pub(super) fn shake_hands(
    world: &ShmWorld,
    (ours, link): (&OwnSegments, &OwnLink),
    connection: &HandoffConnection,
    agreements: u64,
    deadline: Instant,
) -> Result<(), ShmError> {
    let handshake = world.handshake(link.number, agreements);
    connection.send(&handshake.encode(), &ours.descriptors(link), deadline)
}

/// The reason why no valid answer was received.
pub(super) enum Unheard {
    /// The peer leaves, and has announced how.
    Leaving(Departure),
    Gone,
    /// This process has no room for the descriptors of the packet now. The packet can be received later.
    Shortage(ShmError),
    Problem(String),
}

/// Receives the answer of a rank to which we connected, if it has arrived by the deadline.
pub(super) fn hear_answer(
    connection: &HandoffConnection,
    deadline: Instant,
) -> Result<Option<(ShmHandshake, Vec<ForeignFd>)>, Unheard> {
    hear_packet(connection, deadline, ShmHandshake::decode)
}

/// As [`hear_answer`], for packets that `decode` understands.
pub(super) fn hear_packet<T>(
    connection: &HandoffConnection,
    deadline: Instant,
    decode: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<Option<(T, Vec<ForeignFd>)>, Unheard> {
    let mut bytes = [0; handshake::MOST_BYTES];
    let heard = connection.recv(&mut bytes, MOST_DESCRIPTORS, deadline);
    if let Ok((len, _)) = &heard {
        let packet = &bytes[..*len];
        if let Some(departure) = HandoffConnection::departure_in(packet) {
            return Err(Unheard::Leaving(departure));
        }
        if HandoffConnection::is_wake(packet) {
            // The peer links itself with this process before it answers, and may already wake it.
            return Ok(None);
        }
    }
    match heard {
        Ok((len, fds)) => match decode(&bytes[..len]) {
            Ok(said) => Ok(Some((said, fds))),
            Err(problem) => Err(Unheard::Problem(problem)),
        },
        Err(ShmError::TimedOut { .. }) => Ok(None),
        Err(ShmError::PeerGone { .. }) => Err(Unheard::Gone),
        Err(error) if error.is_shortage() => Err(Unheard::Shortage(error)),
        Err(error) => Err(Unheard::Problem(error.to_string())),
    }
}

impl fmt::Display for Unheard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Problem(problem) => f.write_str(problem),
            Self::Shortage(error) => error.fmt(f),
            Self::Leaving(_) | Self::Gone => f.write_str("it is gone"),
        }
    }
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
    handshake: &ShmHandshake,
    fds: &[ForeignFd],
) -> Result<MappedPeer, Unjoined> {
    handshake::compare_sizes(&world.geometry, handshake)?;
    let ShmHandshake { epoch, number, .. } = *handshake;
    let expected =
        Expected { config: &world.config, sizes: world.geometry, sealed: world.sealed, epoch, number };
    let (segments, life) = PeerSegments::attach(&expected, fds)?;
    let stamp = IdentityStamp { address: handshake.stamp, value: epoch };
    let memory = RemoteMemory::of_living(connection.peer().pid, stamp, life);
    Ok(MappedPeer { segments, memory })
}

impl MappedPeer {
    /// Returns the peer, for which we have made this link segment.
    pub(super) fn admit(self, link: OwnLink, handshake: &ShmHandshake) -> Peer {
        let Self { segments, memory } = self;
        let ShmHandshake { expedited, .. } = *handshake;
        Peer { segments, link, expedited, memory }
    }
}

/// Refuses a connection, with the reason.
pub(super) fn send_away(connection: &HandoffConnection, problem: &str) {
    // Optional: the process may be gone.
    let _ = connection.send(&handshake::refusal(problem), &[], Instant::now());
}
