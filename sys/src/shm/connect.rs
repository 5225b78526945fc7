//! Connects every process with every other of its machine, once.
//!
//! Each process listens on a socket in the abstract namespace (which leaves no name behind) and publishes its
//! address through the launcher. It connects to every lower rank and sends its handshake, then answers every
//! higher rank, then reads the answers: so no step waits for a process that waits for it. The connection then
//! stays open, so that the kernel reports the peer's death. [`super::rejoin`] describes how a restarted process
//! finds the others.

use std::os::fd::AsFd as _;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nemesia_core::shared::layout::{Geometry, Identity, SegmentKind};
use nemesia_core::wire::LAYOUT_VERSION;

use super::arrivals::{Arrivals, refuse};
use super::handshake::{self, Cpus, ShmHandshake};
use super::rejoin::RejoinListener;
use super::{Pair, descriptors, views};
use crate::bootstrap::Exchange;
use crate::config::Config;
use crate::error::Error;
use crate::events;
use crate::os::{
    Access, AttachLimits, Departure, ForeignFd, HandoffConnection, HandoffListener, IdentityStamp,
    RemoteMemory, Segment, SegmentBacking, ShmError, Watch, limits,
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
/// The interval between liveness checks of the ranks that have not connected yet.
const PROBE_EVERY: Duration = Duration::from_millis(200);

/// The result of connecting with all ranks.
pub(super) struct ShmMeeting {
    /// One element per rank, `None` for this process and for ranks that are not connected.
    pub(super) peers: Vec<Option<Peer>>,
    pub(super) watch: Watch,
    pub(super) rejoin: RejoinListener,
    /// The ranks that had left before this process joined.
    pub(super) gone: Vec<usize>,
}

/// Connects with every rank. If this process was restarted, sends connection requests to every rank.
pub(super) fn connect(
    world: ShmWorld,
    ours: &Arc<Pair>,
    exchange: &mut dyn Exchange,
) -> Result<ShmMeeting, Error> {
    let size = world.geometry.peers as usize;
    let _inside = events::connect(size - 1);
    let mut watch = Watch::new()?;
    if size == 1 {
        let rejoin = RejoinListener::new(world, Arc::clone(ours), None);
        return Ok(ShmMeeting { peers: vec![None], watch, rejoin, gone: Vec::new() });
    }
    // Per peer: socket, pidfd, and two segments.
    limits::require_descriptors(size.saturating_mul(4))?;
    let deadline = Instant::now() + Duration::from_secs(world.config.timeout_seconds.into());
    let listener = HandoffListener::bind()?;
    if exchange.incarnation() > 0 {
        return come_back(world, ours, exchange, (listener, watch), deadline);
    }
    let peers = meet(&world, ours, exchange, (&listener, &mut watch), deadline)?;
    let listener = if exchange.restarts() {
        exchange.join(&address(&listener))?;
        watch.attend(listener.as_fd())?;
        Some(listener)
    } else {
        None
    };
    let rejoin = RejoinListener::new(world, Arc::clone(ours), listener);
    Ok(ShmMeeting { peers, watch, rejoin, gone: Vec::new() })
}

/// Connects with every rank, all of which have just been started.
fn meet(
    world: &ShmWorld,
    ours: &Pair,
    exchange: &mut dyn Exchange,
    (listener, watch): (&HandoffListener, &mut Watch),
    deadline: Instant,
) -> Result<Vec<Option<Peer>>, Error> {
    let (size, me) = (world.geometry.peers as usize, world.rank as usize);
    let mut peers: Vec<Option<Peer>> = (0..size).map(|_| None).collect();
    exchange.put(&key(me), &address(listener))?;
    exchange.barrier()?;
    let addresses = (0..size).map(|rank| exchange.get(&key(rank))).collect::<Result<Vec<_>, _>>()?;
    let mut called = Vec::with_capacity(me);
    for (rank, address) in addresses.iter().enumerate().take(me) {
        let connection = call(rank, address, deadline)?;
        shake_hands(world, ours, &connection, 0, deadline)
            .map_err(|error| Error::Peer { rank, problem: error.to_string() })?;
        called.push(connection);
    }
    let mut arrivals = Arrivals::new(size);
    for _ in me + 1..size {
        let sources = (listener, &mut arrivals);
        let (rank, mut peer, connection) = answer(world, ours, sources, (&peers, &addresses), deadline)?;
        peer.connection = add(watch, rank, connection)?;
        peers[rank] = Some(peer);
    }
    for (rank, connection) in called.into_iter().enumerate() {
        let problem = |problem| Error::Peer { rank, problem };
        let (handshake, fds) = hear_by(&connection, deadline).map_err(problem)?;
        if handshake.rank as usize != rank {
            return Err(problem(format!("it claims to be rank {}", handshake.rank)));
        }
        let mut peer = admit(world, &connection, &handshake, fds).map_err(problem)?;
        peer.connection = add(watch, rank, connection)?;
        peers[rank] = Some(peer);
    }
    Ok(peers)
}

/// Connects this restarted process to the ranks that joined before it, without waiting for answers. Ranks that
/// join later connect to this one.
fn come_back(
    world: ShmWorld,
    ours: &Arc<Pair>,
    exchange: &mut dyn Exchange,
    (listener, watch): (HandoffListener, Watch),
    deadline: Instant,
) -> Result<ShmMeeting, Error> {
    let (size, me) = (world.geometry.peers as usize, world.rank as usize);
    let turn = exchange.join(&address(&listener))?;
    watch.attend(listener.as_fd())?;
    let mut rejoin = RejoinListener::new(world, Arc::clone(ours), Some(listener));
    let mut gone = Vec::new();
    for rank in (0..size).filter(|rank| *rank != me) {
        let called = match exchange.member(rank)?.filter(|member| member.turn < turn) {
            Some(member) => rejoin.call(rank, &member, &watch, deadline)?,
            None => false,
        };
        if !called {
            gone.push(rank);
        }
    }
    Ok(ShmMeeting { peers: (0..size).map(|_| None).collect(), watch, rejoin, gone })
}

fn key(rank: usize) -> String {
    format!("nemesia-{rank}")
}

/// Returns our address: version, machine, socket name, pid namespace and process id. By these a peer decides
/// whether it can reach us, and recognises our connection.
fn address(listener: &HandoffListener) -> String {
    format!("{LAYOUT_VERSION}.{}.{}.{}.{}", machine(), listener.name(), pid_namespace(), std::process::id())
}

/// Returns whether a connection comes from the process that published this address. The kernel supplies the
/// process id. Across pid namespaces its numbers have no meaning, and the connection is accepted.
pub(super) fn is_genuine(caller: &HandoffConnection, address: &str) -> bool {
    let mut fields = address.rsplit('.');
    let pid = fields.next().and_then(|pid| pid.parse().ok());
    let comparable = fields.next().is_some_and(|space| space == pid_namespace());
    !comparable || pid == Some(caller.peer().pid)
}

/// Returns an identifier that distinguishes this pid namespace from any other.
fn pid_namespace() -> String {
    let link = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    link.to_string_lossy().chars().filter(char::is_ascii_digit).collect()
}

/// Returns an identifier that distinguishes this boot of this machine from any other.
fn machine() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.chars().filter(char::is_ascii_hexdigit).collect()
}

/// Returns the socket name in an address, if we can reach it.
pub(super) fn name_in(address: &str) -> Result<&str, String> {
    let fields: Vec<&str> = address.split('.').collect();
    let [version, host, name, _space, _pid] = fields[..] else {
        return Err(format!("its address {address:?} is not one of nemesia: mixed programs in one job?"));
    };
    if version != LAYOUT_VERSION.to_string() {
        return Err(handshake::version_mismatch(version));
    }
    if host != machine() {
        return Err(
            "it runs on another machine, and only shared memory is available yet: start all on one machine"
                .into(),
        );
    }
    Ok(name)
}

fn call(rank: usize, address: &str, deadline: Instant) -> Result<HandoffConnection, Error> {
    let problem = |problem: String| Error::Peer { rank, problem };
    let name = name_in(address).map_err(problem)?;
    let connection =
        HandoffConnection::connect(name, deadline).map_err(|error| problem(error.to_string()))?;
    connection.require_same_user().map_err(|error| problem(error.to_string()))?;
    Ok(connection)
}

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
    if let Ok((len, _)) = &heard
        && let Some(departure) = HandoffConnection::departure_in(&bytes[..*len])
    {
        return Err(Unheard::Leaving(departure));
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

fn hear_by(
    connection: &HandoffConnection,
    deadline: Instant,
) -> Result<(ShmHandshake, Vec<ForeignFd>), String> {
    let mut bytes = [0; handshake::MOST_BYTES];
    let (len, fds) = connection.recv(&mut bytes, 2, deadline).map_err(|error| error.to_string())?;
    Ok((ShmHandshake::decode(&bytes[..len])?, fds))
}

/// Answers the next connection from an awaited rank. Other connections are refused, which is not an error of
/// the world.
fn answer(
    world: &ShmWorld,
    ours: &Pair,
    (listener, arrivals): (&HandoffListener, &mut Arrivals),
    (peers, addresses): (&[Option<Peer>], &[String]),
    deadline: Instant,
) -> Result<(usize, Peer, HandoffConnection), Error> {
    let later = world.rank as usize + 1;
    let is_awaited = |rank: usize, caller: &HandoffConnection| {
        rank >= later && peers.get(rank).is_some_and(Option::is_none) && is_genuine(caller, &addresses[rank])
    };
    let belongs = |caller: &HandoffConnection| (later..peers.len()).any(|rank| is_awaited(rank, caller));
    let mut next_probe = Instant::now() + PROBE_EVERY;
    loop {
        arrivals.accept(listener, belongs);
        let Some((connection, handshake, fds)) = arrivals.hear() else {
            let now = Instant::now();
            if now >= deadline {
                let error = ShmError::TimedOut { doing: "waiting for a peer to connect" };
                return Err(missing(world, peers, &error));
            }
            if now >= next_probe {
                probe(world, peers, addresses)?;
                next_probe = Instant::now() + PROBE_EVERY;
            }
            arrivals.wait(listener, deadline.min(next_probe));
            continue;
        };
        let rank = handshake.rank as usize;
        if handshake.incarnation != 0 || !is_awaited(rank, &connection) {
            refuse(&connection, "this rank is not awaited here");
            continue;
        }
        let admitted = admit(world, &connection, &handshake, fds).and_then(|peer| {
            shake_hands(world, ours, &connection, 0, deadline).map_err(|error| error.to_string())?;
            Ok(peer)
        });
        return match admitted {
            Ok(peer) => Ok((rank, peer, connection)),
            Err(problem) => {
                refuse(&connection, &problem);
                Err(Error::Peer { rank, problem })
            }
        };
    }
}

/// Checks that the ranks that have not connected yet still live: the kernel removes their listeners with them.
/// A probe does not wait, and appears to them as an unauthenticated connection. A full queue of other
/// connections proves that the listener exists.
fn probe(world: &ShmWorld, peers: &[Option<Peer>], addresses: &[String]) -> Result<(), Error> {
    let late = (0..peers.len()).filter(|rank| *rank > world.rank as usize && peers[*rank].is_none());
    for rank in late {
        let problem = |problem: String| Error::Peer { rank, problem };
        let name = name_in(&addresses[rank]).map_err(problem)?;
        let probed = match HandoffConnection::connect(name, Instant::now()) {
            Err(ShmError::TimedOut { .. }) => Ok(()),
            connection => connection.and_then(|connection| connection.require_same_user()),
        };
        probed.map_err(|error| problem(error.to_string()))?;
    }
    Ok(())
}

/// Names the ranks that have not connected.
fn missing(world: &ShmWorld, peers: &[Option<Peer>], error: &dyn std::fmt::Display) -> Error {
    let absent = |rank: &usize| *rank > world.rank as usize && peers[*rank].is_none();
    let rank = (0..peers.len()).find(absent).unwrap_or(0);
    let count = (0..peers.len()).filter(absent).count();
    let problem = format!("it never connected ({count} ranks are missing): {error}; did it fail at start?");
    Error::Peer { rank, problem }
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

fn add(
    watch: &mut Watch,
    rank: usize,
    connection: HandoffConnection,
) -> Result<Weak<HandoffConnection>, Error> {
    let (pidfd, connection) = (connection.pidfd(), Arc::new(connection));
    let weak = Arc::downgrade(&connection);
    watch.add(rank, connection, pidfd)?;
    Ok(weak)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_identified_by_the_kernel() {
        // Both ends belong to this process.
        let (caller, _other) = HandoffConnection::pair().unwrap();
        let (space, pid) = (pid_namespace(), std::process::id());
        let address = |space: &str, pid: u32| format!("1.machine.name.{space}.{pid}");
        assert!(is_genuine(&caller, &address(&space, pid)));
        assert!(!is_genuine(&caller, &address(&space, pid + 1)), "the address of another process");
        assert!(is_genuine(&caller, &address("1", 1)), "the numbers of another namespace mean nothing");
    }
}
