//! Handshakes on a connection, and the peer behind a valid one.

use std::sync::Weak;
use std::time::Instant;

use nemesia_core::shared::layout::{Geometry, Identity, SegmentKind};

use super::handshake::{self, Cpus, ShmHandshake};
use super::{Pair, descriptors, views};
use crate::config::Config;
use crate::os::{
    Access, AttachLimits, Departure, ForeignFd, HandoffConnection, IdentityStamp, RemoteMemory, Segment,
    SegmentBacking, ShmError,
};

/// The facts about this process that its handshake contains.
#[derive(Debug)]
pub(super) struct ShmWorld {
    pub(super) config: Config,
    pub(super) geometry: Geometry,
    pub(super) rank: u32,
    pub(super) epoch: u64,
    pub(super) expedited: bool,
    pub(super) cpus: Cpus,
    /// The address of `epoch` in our memory, if the peers may read it.
    pub(super) stamp: u64,
    /// The number of previous starts of our rank.
    pub(super) incarnation: u64,
    /// Our own segment is sealed against writing, so this kernel can seal the peers' as well.
    pub(super) sealed: bool,
}

/// A connected peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) pair: Pair,
    pub(super) expedited: bool,
    pub(super) cpus: Cpus,
    /// Its memory, if it can be identified.
    pub(super) memory: Option<RemoteMemory>,
    /// Valid while the peer is connected.
    pub(super) connection: Weak<HandoffConnection>,
}

/// Slack in a segment's size: it may be rounded up to huge pages.
const ROUNDING: usize = 1 << 30;

/// Sends our handshake, with the descriptors of our segments.
pub(super) fn shake_hands(
    world: &ShmWorld,
    ours: &Pair,
    connection: &HandoffConnection,
    agreements: u64,
    deadline: Instant,
) -> Result<(), ShmError> {
    let ShmWorld { geometry, rank, epoch, expedited, cpus, stamp, incarnation, .. } = *world;
    let handshake = ShmHandshake { rank, epoch, geometry, expedited, cpus, stamp, incarnation, agreements };
    connection.send(&handshake.encode(), &descriptors(ours), deadline)
}

/// The reason why no valid answer was received.
pub(super) enum Unheard {
    /// The peer leaves, and has announced how.
    Leaving(Departure),
    Gone,
    Problem(String),
}

/// Receives the answer of a rank to which we connected, if it has arrived by the deadline.
pub(super) fn hear_answer(
    connection: &HandoffConnection,
    deadline: Instant,
) -> Result<Option<(ShmHandshake, Vec<ForeignFd>)>, Unheard> {
    let mut bytes = [0; handshake::MOST_BYTES];
    let heard = connection.recv(&mut bytes, 2, deadline);
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
        Ok((len, fds)) => match ShmHandshake::decode(&bytes[..len]) {
            Ok(handshake) => Ok(Some((handshake, fds))),
            Err(problem) => Err(Unheard::Problem(problem)),
        },
        Err(ShmError::TimedOut { .. }) => Ok(None),
        Err(ShmError::PeerGone { .. }) => Err(Unheard::Gone),
        Err(error) => Err(Unheard::Problem(error.to_string())),
    }
}

/// Receives the handshake of a connection, if it has arrived by the deadline.
pub(super) fn hear(
    connection: &HandoffConnection,
    deadline: Instant,
) -> Result<Option<(ShmHandshake, Vec<ForeignFd>)>, String> {
    hear_answer(connection, deadline).map_err(|unheard| match unheard {
        Unheard::Problem(problem) => problem,
        Unheard::Leaving(_) | Unheard::Gone => "it is gone".into(),
    })
}

/// As [`hear`], for a connection whose handshake must arrive by the deadline.
pub(super) fn hear_by(
    connection: &HandoffConnection,
    deadline: Instant,
) -> Result<(ShmHandshake, Vec<ForeignFd>), String> {
    let mut bytes = [0; handshake::MOST_BYTES];
    let (len, fds) = connection.recv(&mut bytes, 2, deadline).map_err(|error| error.to_string())?;
    Ok((ShmHandshake::decode(&bytes[..len])?, fds))
}

/// Maps and validates the segments of a peer. Its own segment is mapped read-only.
pub(super) fn admit(
    world: &ShmWorld,
    connection: &HandoffConnection,
    handshake: &ShmHandshake,
    fds: Vec<ForeignFd>,
) -> Result<Peer, String> {
    handshake::compare(&world.geometry, &handshake.geometry)?;
    let [own, inbox]: [ForeignFd; 2] =
        fds.try_into().map_err(|fds: Vec<_>| format!("it sent {} descriptors instead of 2", fds.len()))?;
    let geometry = world.geometry;
    let attach = |fd, access, kind, total: usize| {
        let allow_unsealed = world.config.segments.backing == SegmentBacking::DevShm;
        let keeps_pages = access == Access::ReadOnly && world.sealed;
        let limits = AttachLimits { lengths: total..=total + ROUNDING, allow_unsealed, keeps_pages };
        let segment = Segment::attach(fd, access, limits).map_err(|error| error.to_string())?;
        let expected = Identity { kind, geometry, rank: handshake.rank, epoch: handshake.epoch };
        let header = views::header(&segment).map_err(|error| error.to_string())?;
        header.check(&expected, total as u64).map_err(|error| error.to_string())?;
        Ok::<_, String>(segment)
    };
    let own = attach(own, Access::ReadOnly, SegmentKind::Own, geometry.own().total)?;
    let inbox = attach(inbox, Access::ReadWrite, SegmentKind::Inbox, geometry.inbox().total)?;
    let stamp = IdentityStamp { address: handshake.stamp, value: handshake.epoch };
    let memory = RemoteMemory::new(connection.peer().pid, stamp);
    let ShmHandshake { expedited, cpus, .. } = *handshake;
    Ok(Peer { pair: Pair { own, inbox }, expedited, cpus, memory, connection: Weak::new() })
}
