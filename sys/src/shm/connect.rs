//! Connects every process with every other of its machine, once; or prepares that they connect on demand.
//!
//! Each process listens on a socket in the abstract namespace (which leaves no name behind) and publishes its address
//! through the launcher. It connects to every lower rank and sends its handshake, then answers every higher rank, then
//! reads the answers: so no step waits for a process that waits for it. The connection then stays open, so that the
//! kernel reports the peer's death. [`super::rejoin`] describes how a restarted process finds the others.

mod card;

use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nemesia_core::link::address::LinkAddress;
use nemesia_core::peers::PeerAddress;

use super::address;
use super::arrivals::{Arrivals, refuse};
use super::calls::Calls;
use super::handshake::{self, Cpus};
use super::peer::{Peer, ShmWorld, hear_by, map, patiently, shake_hands};
use super::rejoin::RejoinListener;
use super::segments::OwnSegments;
use crate::bootstrap::Exchange;
use crate::config::NetChoice;
use crate::error::Error;
use crate::events;
use crate::opening::OpeningReport;
use crate::os::{HandoffConnection, HandoffListener, ProcessOrigin, ShmError, Watch, limits};
use crate::transport::hosts::{self, DemandRanks, HostAddress, MemberAddress, OUTSIDE, RemoteRanks};
use crate::transport::net::{NetPort, RemoteMember};
use card::ProcessCard;

/// The interval between liveness checks of the ranks that have not connected yet.
const PROBE_EVERY: Duration = Duration::from_millis(200);
/// Ranks with equal places must reach each other.
const UNREACHED: &str = "nothing listens at its socket: it has ended, or runs in a copy of this machine; for copies \
                         set NEMESIA_LOCAL=off";

/// A lower rank of this machine, and a connection to its hand-over socket.
type CalledRank = (usize, HandoffConnection);

/// The result of connecting with all ranks.
pub(super) struct ShmMeeting {
    /// One element per rank, `None` for this process and for ranks that are not connected.
    pub(super) peers: Vec<Option<Peer>>,
    pub(super) watch: Watch,
    pub(super) rejoin: RejoinListener,
    /// The ranks that had left before this process joined.
    pub(super) gone: Vec<usize>,
    /// The ranks on other machines.
    pub(super) remote: RemoteRanks,
    /// How this process and others call each other, if it takes calls.
    pub(super) calls: Option<Calls>,
    /// What each rank has published, if this process takes calls.
    pub(super) ranks: Vec<RankProcess>,
}

/// A rank, as it has published itself.
#[derive(Debug)]
pub(crate) struct RankProcess {
    pub(crate) address: PeerAddress,
    pub(super) cpus: Cpus,
    pub(super) pid: i32,
    pub(super) expedited: bool,
    /// It runs on another machine.
    pub(crate) is_remote: bool,
}

/// Connects with every rank. If this process was restarted, sends connection requests to every rank.
pub(super) fn connect(
    world: Arc<ShmWorld>,
    (ours, origin): (&Arc<OwnSegments>, &Arc<ProcessOrigin>),
    exchange: &mut dyn Exchange,
) -> Result<ShmMeeting, Error> {
    let size = world.size as usize;
    let _inside = events::connect(size - 1);
    let mut watch = Watch::new()?;
    if size == 1 {
        return Ok(single(world, ours, watch));
    }
    let deadline = Instant::now() + Duration::from_secs(world.config.timeout_seconds.into());
    let listener = world.bind()?;
    if exchange.incarnation() > 0 {
        return come_back(world, (ours, origin), exchange, (listener, watch), deadline);
    }
    let cards = cards(&world, &listener, exchange)?;
    let hosts: Vec<HostAddress> = cards.iter().map(|card| card.host.clone()).collect();
    let on_demand = cards.iter().all(|card| card.on_demand);
    let place = world.address(&listener);
    let address_at = |remote| address::with_remote(place, remote).encode();
    let address_at: &dyn Fn(SocketAddr) -> PeerAddress = &address_at;
    if hosts::are_together(&hosts) && on_demand {
        let remote = if cards.iter().all(|card| card.has_key) {
            reach_others(&world, exchange, (&hosts, address_at), origin)?
        } else {
            RemoteRanks { warnings: unreached_outside(&world, &cards)?, ..RemoteRanks::default() }
        };
        let place = at_place(&world, place, &remote);
        return apart(world, ours, (&cards, remote), (listener, place), watch);
    }
    limits::require_peers(size - 1)?;
    let address_at = Some(address_at).filter(|_| on_demand);
    let (called, mut remote) = find_remote(&world, exchange, (&hosts, address_at), origin, deadline)?;
    if hosts::are_together(&hosts) {
        remote.warnings = unreached_outside(&world, &cards)?;
    }
    if let Some(demand) = &remote.demand {
        // The connections have shown that the ranks are on this machine, and are not used.
        drop(called);
        check_places(&remote, demand)?;
        let place = at_place(&world, place, &remote);
        return apart(world, ours, (&cards, remote), (listener, place), watch);
    }
    let listening = (&hosts[..], &listener, &mut watch);
    let peers = meet(&world, ours, (called, &remote), listening, deadline)?;
    let (mut calls, mut ranks) = (None, Vec::new());
    let listener = if exchange.restarts() {
        watch.attend(listener.as_fd())?;
        Some(listener)
    } else {
        if hosts::are_together(&hosts) {
            // Other processes call where the ranks have called.
            ranks = self::ranks(&world, &cards, &remote)?;
            let place = (listener, place);
            calls = Some(Calls::listen_as(Arc::clone(&world), Arc::clone(ours), place, &[], &mut watch)?);
        }
        None
    };
    let rejoin = RejoinListener::new(world, Arc::clone(ours), listener, &remote);
    Ok(ShmMeeting { peers, watch, rejoin, gone: Vec::new(), remote, calls, ranks })
}

/// Begins as the only rank.
fn single(world: Arc<ShmWorld>, ours: &Arc<OwnSegments>, watch: Watch) -> ShmMeeting {
    let remote = RemoteRanks::default();
    let rejoin = RejoinListener::new(world, Arc::clone(ours), None, &remote);
    let (gone, calls, ranks) = (Vec::new(), None, Vec::new());
    ShmMeeting { peers: vec![None], watch, rejoin, gone, remote, calls, ranks }
}

/// Begins without a connection, and listens for calls as the process with this address.
fn apart(
    world: Arc<ShmWorld>,
    ours: &Arc<OwnSegments>,
    (cards, remote): (&[ProcessCard], RemoteRanks),
    place: (HandoffListener, LinkAddress),
    mut watch: Watch,
) -> Result<ShmMeeting, Error> {
    let ranks = ranks(&world, cards, &remote)?;
    let addresses: Vec<_> = ranks.iter().map(|rank| rank.address).collect();
    let calls = Calls::listen_as(Arc::clone(&world), Arc::clone(ours), place, &addresses, &mut watch)?;
    let peers = (0..world.size).map(|_| None).collect();
    let rejoin = RejoinListener::new(world, Arc::clone(ours), None, &remote);
    Ok(ShmMeeting { peers, watch, rejoin, gone: Vec::new(), remote, calls: Some(calls), ranks })
}

/// Returns the place of this process, with that at which it takes calls of other machines if it does.
fn at_place(world: &ShmWorld, place: LinkAddress, remote: &RemoteRanks) -> LinkAddress {
    let own = remote.demand.as_ref().and_then(|demand| demand.addresses.get(world.rank as usize));
    own.and_then(Calls::remote_of).map_or(place, |own| address::with_remote(place, own))
}

/// Checks that the addresses of the ranks on other machines name a place there.
fn check_places(remote: &RemoteRanks, demand: &DemandRanks) -> Result<(), Error> {
    let mut ranks = (0..demand.addresses.len()).filter(|rank| remote.contains(*rank));
    let Some(rank) = ranks.find(|rank| Calls::remote_of(&demand.addresses[*rank]).is_none()) else {
        return Ok(());
    };
    let problem = "its address is malformed: mixed programs in one job?".into();
    Err(Error::Net { rank, transport: "tcp", problem })
}

/// Exchanges what each process publishes. Collective.
fn cards(
    world: &ShmWorld,
    listener: &HandoffListener,
    exchange: &mut dyn Exchange,
) -> Result<Vec<ProcessCard>, Error> {
    let card = ProcessCard::here(listener, world, exchange.restarts());
    exchange.put(&key(world.rank as usize), &card.encode())?;
    exchange.barrier()?;
    (0..world.size as usize).map(|rank| card_of(exchange, rank)).collect()
}

fn card_of(exchange: &mut dyn Exchange, rank: usize) -> Result<ProcessCard, Error> {
    let text = exchange.get(&key(rank))?;
    ProcessCard::decode(&text).map_err(|problem| Error::Peer { rank, problem })
}

/// Checks that the processes of this machine fit, and returns what is known of each process.
fn ranks(world: &ShmWorld, cards: &[ProcessCard], remote: &RemoteRanks) -> Result<Vec<RankProcess>, Error> {
    let ranks = cards.iter().zip(0..).map(|(card, rank)| {
        let is_remote = remote.contains(rank as usize);
        if !is_remote {
            handshake::compare((world.size, &world.geometry), &card.handshake(rank, world.size))
                .map_err(|problem| Error::Peer { rank: rank as usize, problem })?;
        }
        let ProcessCard { expedited, cpus, .. } = *card;
        let called = remote.demand.as_ref().and_then(|it| it.addresses.get(rank as usize));
        let address = called.copied().unwrap_or_else(|| card.address());
        Ok(RankProcess { address, cpus, pid: card.host.pid, expedited, is_remote })
    });
    ranks.collect()
}

/// Connects to the lower ranks of this machine, and finds out which ranks run on other machines. If the ranks connect
/// on demand, `address_at` returns the address of this process if it takes calls at a place.
fn find_remote(
    world: &ShmWorld,
    exchange: &mut dyn Exchange,
    (hosts, address_at): (&[HostAddress], Option<&dyn Fn(SocketAddr) -> PeerAddress>),
    origin: &Arc<ProcessOrigin>,
    deadline: Instant,
) -> Result<(Vec<CalledRank>, RemoteRanks), Error> {
    let me = world.rank as usize;
    let together = hosts::are_together(hosts);
    let (mut called, mut unreached) = (Vec::with_capacity(me), Vec::new());
    for (rank, host) in hosts.iter().enumerate().take(me) {
        if !hosts[me].may_share(host) {
            continue;
        }
        match call(rank, host, deadline)? {
            Some(connection) => called.push((rank, connection)),
            None if together => return Err(Error::Peer { rank, problem: UNREACHED.into() }),
            None => unreached.push(rank),
        }
    }
    let remote = if together {
        RemoteRanks::default()
    } else {
        hosts::meet(&world.config, exchange, me, (hosts, unreached), address_at, origin)?
    };
    Ok((called, remote))
}

/// Begins to reach further peers on other machines, for a world whose ranks all run on this one. Collective.
fn reach_others(
    world: &ShmWorld,
    exchange: &mut dyn Exchange,
    (hosts, address_at): (&[HostAddress], &dyn Fn(SocketAddr) -> PeerAddress),
    origin: &Arc<ProcessOrigin>,
) -> Result<RemoteRanks, Error> {
    // Further peers are reached over TCP only.
    let config = world.config.clone().net(NetChoice::Tcp);
    hosts::meet(&config, exchange, world.rank as usize, (hosts, Vec::new()), Some(address_at), origin)
}

/// Returns the warning of a world whose ranks all run here, if this process has a key for others, and one of the
/// processes does not use it over TCP.
fn unreached_outside(world: &ShmWorld, cards: &[ProcessCard]) -> Result<Vec<String>, Error> {
    let (config, mut warnings) = (&world.config, Vec::new());
    let silent = cards.iter().position(|card| !card.has_key);
    let why = match (config.job_key.is_given(), config.net, silent) {
        (false, ..) | (_, NetChoice::Off, _) | (.., None) => return Ok(warnings),
        (_, NetChoice::Verbs, _) => {
            format!("NEMESIA_NET=verbs: {OUTSIDE}, as that needs TCP: use auto or tcp")
        }
        (_, _, Some(rank)) => {
            format!(
                "{OUTSIDE}: rank {rank} has no key in its settings, or its NEMESIA_NET is neither auto nor tcp"
            )
        }
    };
    config.give_up(why, &mut warnings)?;
    Ok(warnings)
}

/// Connects with every rank of this machine, all of which have just been started. `called` are the connections to the
/// lower ones.
fn meet(
    world: &ShmWorld,
    ours: &OwnSegments,
    (called, remote): (Vec<CalledRank>, &RemoteRanks),
    (hosts, listener, watch): (&[HostAddress], &HandoffListener, &mut Watch),
    deadline: Instant,
) -> Result<Vec<Option<Peer>>, Error> {
    let (size, me) = (world.size as usize, world.rank as usize);
    let mut peers: Vec<Option<Peer>> = (0..size).map(|_| None).collect();
    let mut awaited = Vec::with_capacity(called.len());
    for (rank, connection) in called {
        let link = patiently(deadline, || ours.link(rank as u32))?;
        shake_hands(world, (ours, &link), &connection, 0, deadline)
            .map_err(|error| Error::Peer { rank, problem: error.to_string() })?;
        awaited.push((rank, link, connection));
    }
    let mut arrivals = Arrivals::new(size);
    let mut report = OpeningReport::new(world.config.explain, (me, size));
    for _ in (me + 1..size).filter(|rank| !remote.contains(*rank)) {
        let sources = (listener, &mut arrivals, &mut report);
        let (rank, mut peer, connection) = answer(world, ours, sources, (&peers, hosts, remote), deadline)?;
        peer.connection = add(watch, rank, connection)?;
        peers[rank] = Some(peer);
    }
    for (rank, mut link, connection) in awaited {
        let problem = |problem| Error::Peer { rank, problem };
        let (handshake, fds) = hear_by(&connection, deadline).map_err(problem)?;
        link.close_descriptor();
        if handshake.rank as usize != rank {
            return Err(problem(format!("it claims to be rank {}", handshake.rank)));
        }
        handshake::compare((world.size, &world.geometry), &handshake).map_err(problem)?;
        let mapped = patiently(deadline, || map(world, &connection, &handshake, &fds));
        let mapped = mapped.map_err(|unjoined| problem(unjoined.to_string()))?;
        let mut peer = mapped.admit(link, &handshake);
        peer.connection = add(watch, rank, connection)?;
        peers[rank] = Some(peer);
    }
    Ok(peers)
}

/// Connects this restarted process to the ranks that joined before it, without waiting for answers. Ranks that join
/// later connect to this one. Ranks on other machines are called when their port is opened.
fn come_back(
    world: Arc<ShmWorld>,
    (ours, origin): (&Arc<OwnSegments>, &Arc<ProcessOrigin>),
    exchange: &mut dyn Exchange,
    (listener, watch): (HandoffListener, Watch),
    deadline: Instant,
) -> Result<ShmMeeting, Error> {
    let (size, me) = (world.size as usize, world.rank as usize);
    limits::require_peers(size - 1)?;
    let host = |rank| card_of(exchange, rank).map(|card| card.host);
    let hosts = (0..size).map(host).collect::<Result<Vec<_>, _>>()?;
    let mut remote = if hosts::are_together(&hosts) {
        RemoteRanks::default()
    } else {
        hosts::come_back(&world.config, exchange, me, &hosts, origin)?
    };
    let host = HostAddress::of(listener.name(), &world.config);
    let net = remote.port.as_ref().and_then(NetPort::address);
    let turn = exchange.join(&MemberAddress { host, net }.encode())?;
    watch.attend(listener.as_fd())?;
    let mut rejoin = RejoinListener::new(world, Arc::clone(ours), Some(listener), &remote);
    let mut gone = Vec::new();
    for rank in (0..size).filter(|rank| *rank != me) {
        let member = exchange.member(rank)?.filter(|member| member.turn < turn);
        let called = match member {
            None => false,
            Some(member) if remote.contains(rank) => {
                let problem = |problem| Error::Net { rank, transport: "network", problem };
                let address = MemberAddress::decode(&member.address).map_err(problem)?;
                let missing = || problem("it has joined without a network address".into());
                let address = address.net.ok_or_else(missing)?;
                let incarnation = member.incarnation;
                remote.members.push(RemoteMember { rank: rank as u32, incarnation, address });
                true
            }
            Some(member) => rejoin.call(rank, &member, &watch, deadline)?,
        };
        if !called {
            gone.push(rank);
        }
    }
    let peers = (0..size).map(|_| None).collect();
    Ok(ShmMeeting { peers, watch, rejoin, gone, remote, calls: None, ranks: Vec::new() })
}

fn key(rank: usize) -> String {
    format!("nemesia-{rank}")
}

/// Connects to a lower rank. `None` if nothing listens there: it runs on another machine, or has ended.
fn call(rank: usize, host: &HostAddress, deadline: Instant) -> Result<Option<HandoffConnection>, Error> {
    let problem = |error: ShmError| Error::Peer { rank, problem: error.to_string() };
    match patiently(deadline, || Ok(HandoffConnection::connect(&host.name, deadline)?)) {
        Ok(connection) => {
            connection.require_same_user().map_err(problem)?;
            Ok(Some(connection))
        }
        Err(Error::Shm(ShmError::NotListening { .. })) => Ok(None),
        Err(Error::Shm(error)) => Err(problem(error)),
        Err(error) => Err(error),
    }
}

/// Answers the next connection from an awaited rank. Other connections are refused, which is not an error of the world.
fn answer(
    world: &ShmWorld,
    ours: &OwnSegments,
    (listener, arrivals, report): (&HandoffListener, &mut Arrivals, &mut OpeningReport),
    (peers, hosts, remote): (&[Option<Peer>], &[HostAddress], &RemoteRanks),
    deadline: Instant,
) -> Result<(usize, Peer, HandoffConnection), Error> {
    let later = world.rank as usize + 1;
    let is_awaited = |rank: usize, caller: &HandoffConnection| {
        let is_missing = rank >= later && peers.get(rank).is_some_and(Option::is_none);
        is_missing && !remote.contains(rank) && hosts[rank].is_genuine(caller)
    };
    let belongs = |caller: &HandoffConnection| (later..peers.len()).any(|rank| is_awaited(rank, caller));
    let mut next_probe = Instant::now() + PROBE_EVERY;
    loop {
        arrivals.accept(listener, belongs);
        let Some((connection, handshake, fds)) = arrivals.hear() else {
            let now = Instant::now();
            let problem = arrivals.problem();
            // What does not pass will not be otherwise at the deadline.
            if now >= deadline || problem.as_ref().is_some_and(|error| !error.is_shortage()) {
                let late = || ShmError::TimedOut { doing: "waiting for a peer to connect" };
                return Err(missing(world, peers, remote, &problem.unwrap_or_else(late)));
            }
            let is_missing = |rank: &usize| peers[*rank].is_none() && !remote.contains(*rank);
            report.look(|| (later..peers.len()).filter(is_missing).collect());
            if now >= next_probe {
                probe(world, peers, hosts, remote)?;
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
        let link = patiently(deadline, || ours.link(handshake.rank))?;
        let fits = handshake::compare((world.size, &world.geometry), &handshake);
        let mapped = fits.and_then(|()| {
            let mapped = patiently(deadline, || map(world, &connection, &handshake, &fds));
            mapped.map_err(|unjoined| unjoined.to_string())
        });
        let admitted = mapped.and_then(|mapped| {
            let mut peer = mapped.admit(link, &handshake);
            let sent = shake_hands(world, (ours, &peer.link), &connection, 0, deadline);
            sent.map_err(|error| error.to_string())?;
            peer.link.close_descriptor();
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

/// Checks that the ranks that have not connected yet still live: the kernel removes their listeners with them. A probe
/// does not wait, and appears to them as an unauthenticated connection. A full queue of other connections proves that
/// the listener exists.
fn probe(
    world: &ShmWorld,
    peers: &[Option<Peer>],
    hosts: &[HostAddress],
    remote: &RemoteRanks,
) -> Result<(), Error> {
    let late = (0..peers.len()).filter(|rank| *rank > world.rank as usize && peers[*rank].is_none());
    for rank in late.filter(|rank| !remote.contains(*rank)) {
        let problem = |problem: String| Error::Peer { rank, problem };
        let probed = match HandoffConnection::connect(&hosts[rank].name, Instant::now()) {
            Err(ShmError::TimedOut { .. }) => Ok(()),
            connection => connection.and_then(|connection| connection.require_same_user()),
        };
        probed.map_err(|error| problem(error.to_string()))?;
    }
    Ok(())
}

/// Names the ranks that have not connected.
fn missing(
    world: &ShmWorld,
    peers: &[Option<Peer>],
    remote: &RemoteRanks,
    error: &dyn std::fmt::Display,
) -> Error {
    let absent =
        |rank: &usize| *rank > world.rank as usize && peers[*rank].is_none() && !remote.contains(*rank);
    let rank = (0..peers.len()).find(absent).unwrap_or(0);
    let count = (0..peers.len()).filter(absent).count();
    let problem = format!("it never connected ({count} ranks are missing): {error}; did it fail at start?");
    Error::Peer { rank, problem }
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
