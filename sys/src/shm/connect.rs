//! Finds out where the processes of a world run, and prepares that those of one machine connect.
//!
//! Each process listens on a socket in the abstract namespace (which leaves no name behind) and publishes its address
//! through the launcher. Others call it there ([`super::calls`]): on demand, or all at the start. The connection then
//! stays open, so that the kernel reports the peer's death.
//!
//! A restarted process finds the addresses of the others through the launcher, and calls those that joined before it.
//! Each of them answers when it readmits the restarted process: only then the two share memory.

mod card;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nemesia_core::link::address::LinkAddress;
use nemesia_core::peers::PeerAddress;

use super::address;
use super::calls::Calls;
use super::peer::{self, Cpus, ShmWorld};
use super::segments::OwnSegments;
use crate::bootstrap::Exchange;
use crate::config::NetChoice;
use crate::error::Error;
use crate::events;
use crate::os::{HandoffConnection, HandoffListener, ProcessOrigin, ShmError, Watch, limits};
use crate::transport::hosts::{self, DemandRanks, HostAddress, MemberAddress, OUTSIDE, RemoteRanks};
use crate::transport::net::{NetPort, RemoteMember, StreamDoor};
use card::ProcessCard;

/// The time after which a connection is tried again that failed for a shortage of this process.
const AGAIN_AFTER: Duration = Duration::from_millis(10);

/// When the ranks of a machine connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectTime {
    /// When one first names the other.
    OnDemand,
    /// Before the endpoint is open.
    Start,
    /// This process was restarted, and calls the others at once. They answer when they readmit it.
    Restart,
}

/// What is known of the ranks, none of which is connected.
pub(super) struct ShmMeeting {
    pub(super) watch: Watch,
    /// The ranks that had left before this process joined.
    pub(super) gone: Vec<usize>,
    /// The ranks on other machines.
    pub(super) remote: RemoteRanks,
    /// How this process and others call each other, and when the ranks connect. `None` if this is the only rank.
    pub(super) calls: Option<(Calls, ConnectTime)>,
    /// What each rank has published, if this process takes calls.
    pub(super) ranks: Vec<RankProcess>,
}

/// A rank, as it has published itself.
#[derive(Debug)]
pub(crate) struct RankProcess {
    pub(crate) address: PeerAddress,
    /// How often it was started before.
    incarnation: u64,
    pub(super) cpus: Cpus,
    pub(super) pid: i32,
    pub(super) expedited: bool,
    /// It runs on another machine.
    pub(crate) is_remote: bool,
}

/// Exchanges what the ranks publish. None is connected yet.
pub(super) fn connect(
    world: &Arc<ShmWorld>,
    (ours, origin): (&Arc<OwnSegments>, &Arc<ProcessOrigin>),
    exchange: &mut dyn Exchange,
) -> Result<ShmMeeting, Error> {
    let size = world.size as usize;
    let _inside = events::connect(size - 1);
    let mut watch = Watch::new()?;
    if size == 1 {
        let (gone, ranks) = (Vec::new(), Vec::new());
        return Ok(ShmMeeting { watch, gone, remote: RemoteRanks::default(), calls: None, ranks });
    }
    let deadline = Instant::now() + Duration::from_secs(world.config.timeout_seconds.into());
    let listener = world.bind()?;
    if exchange.incarnation() > 0 {
        return come_back(world, (ours, origin), exchange, listener);
    }
    let cards = cards(world, &listener, exchange)?;
    let hosts: Vec<HostAddress> = cards.iter().map(|card| card.host.clone()).collect();
    let on_demand = cards.iter().all(|card| card.on_demand);
    let place = world.address(&listener);
    let mut remote = find_remote(world, exchange, (&cards, &hosts, on_demand), place, origin, deadline)?;
    let is_together = hosts::are_together(&hosts);
    let time = match on_demand && (is_together || remote.demand.is_some()) {
        true => ConnectTime::OnDemand,
        false => ConnectTime::Start,
    };
    if time != ConnectTime::OnDemand {
        limits::require_peers(size - 1)?;
    }
    let ranks = ranks(world, &cards, &remote)?;
    let place = at_place(world, place, &remote);
    let door = remote.demand.as_mut().and_then(|demand| demand.door.take());
    let calls = listen(world, ours, (listener, door, place), &ranks, &mut watch)?;
    Ok(ShmMeeting { watch, gone: Vec::new(), remote, calls: Some((calls, time)), ranks })
}

/// Listens for calls of these ranks and of others.
fn listen(
    world: &Arc<ShmWorld>,
    ours: &Arc<OwnSegments>,
    place: (HandoffListener, Option<StreamDoor>, LinkAddress),
    ranks: &[RankProcess],
    watch: &mut Watch,
) -> Result<Calls, Error> {
    let ranks: Vec<_> = ranks.iter().map(|rank| (rank.address, rank.incarnation)).collect();
    Calls::listen_as((Arc::clone(world), Arc::clone(ours)), place, &ranks, watch)
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
    cards_of(exchange, world.size as usize)
}

/// Returns what the first process of each rank has published.
fn cards_of(exchange: &mut dyn Exchange, size: usize) -> Result<Vec<ProcessCard>, Error> {
    let card = |rank| {
        let text = exchange.get(&key(rank))?;
        ProcessCard::decode(&text).map_err(|problem| Error::Peer { rank, problem })
    };
    (0..size).map(card).collect()
}

/// Checks that the processes of this machine fit, and returns what is known of each process.
fn ranks(world: &ShmWorld, cards: &[ProcessCard], remote: &RemoteRanks) -> Result<Vec<RankProcess>, Error> {
    let ranks = cards.iter().zip(0..).map(|(card, rank)| {
        let is_remote = remote.contains(rank as usize);
        if !is_remote {
            peer::compare(&world.geometry, &card.geometry)
                .map_err(|problem| Error::Peer { rank: rank as usize, problem })?;
        }
        let ProcessCard { expedited, cpus, .. } = *card;
        let called = remote.demand.as_ref().and_then(|it| it.addresses.get(rank as usize));
        let address = called.copied().unwrap_or_else(|| card.address());
        Ok(RankProcess { address, incarnation: 0, cpus, pid: card.host.pid, expedited, is_remote })
    });
    ranks.collect()
}

/// Finds out which ranks run on other machines, and opens the port to them. If all ranks run on this one, begins to
/// reach further peers on others, if all have a key for that and connect on demand.
fn find_remote(
    world: &ShmWorld,
    exchange: &mut dyn Exchange,
    (cards, hosts, on_demand): (&[ProcessCard], &[HostAddress], bool),
    place: LinkAddress,
    origin: &Arc<ProcessOrigin>,
    deadline: Instant,
) -> Result<RemoteRanks, Error> {
    let address_at = |remote| address::with_remote(place, remote).encode();
    let address_at: &dyn Fn(SocketAddr) -> PeerAddress = &address_at;
    if hosts::are_together(hosts) {
        if on_demand && cards.iter().all(|card| card.has_key) {
            return reach_others(world, exchange, (hosts, address_at), origin);
        }
        return Ok(RemoteRanks { warnings: unreached_outside(world, cards)?, ..RemoteRanks::default() });
    }
    let me = world.rank as usize;
    let mut unreached = Vec::new();
    for (rank, host) in hosts.iter().enumerate().take(me).filter(|(_, host)| hosts[me].may_share(host)) {
        if !is_reached(rank, host, deadline)? {
            unreached.push(rank);
        }
    }
    let address_at = Some(address_at).filter(|_| on_demand);
    let remote = hosts::meet(&world.config, exchange, me, (hosts, unreached), address_at, origin)?;
    remote.demand.as_ref().map_or(Ok(()), |demand| check_places(&remote, demand))?;
    Ok(remote)
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

/// Finds the ranks that joined before this restarted process. Those on other machines are called when their port is
/// opened.
fn come_back(
    world: &Arc<ShmWorld>,
    (ours, origin): (&Arc<OwnSegments>, &Arc<ProcessOrigin>),
    exchange: &mut dyn Exchange,
    listener: HandoffListener,
) -> Result<ShmMeeting, Error> {
    let (size, me) = (world.size as usize, world.rank as usize);
    limits::require_peers(size - 1)?;
    let cards = cards_of(exchange, size)?;
    let hosts: Vec<HostAddress> = cards.iter().map(|card| card.host.clone()).collect();
    let mut remote = if hosts::are_together(&hosts) {
        RemoteRanks::default()
    } else {
        hosts::come_back(&world.config, exchange, me, &hosts, origin)?
    };
    let place = world.address(&listener);
    let net = remote.port.as_ref().and_then(NetPort::address);
    let turn = exchange.join(&MemberAddress { address: place.encode(), net }.encode())?;
    let mut ranks = ranks(world, &cards, &remote)?;
    ranks[me].address = place.encode();
    let mut gone = Vec::new();
    for rank in (0..size).filter(|rank| *rank != me) {
        let Some(member) = exchange.member(rank)?.filter(|member| member.turn < turn) else {
            gone.push(rank);
            continue;
        };
        let incarnation = member.incarnation;
        let problem = |problem| Error::Peer { rank, problem };
        let MemberAddress { address, net } = MemberAddress::decode(&member.address).map_err(problem)?;
        (ranks[rank].address, ranks[rank].incarnation) = (address, incarnation);
        if remote.contains(rank) {
            let missing = "it has joined without a network address".into();
            let missing = Error::Net { rank, transport: "network", problem: missing };
            let address = net.ok_or(missing)?;
            remote.members.push(RemoteMember { rank: rank as u32, incarnation, address });
        }
    }
    let mut watch = Watch::new()?;
    let calls = listen(world, ours, (listener, None, place), &ranks, &mut watch)?;
    Ok(ShmMeeting { watch, gone, remote, calls: Some((calls, ConnectTime::Restart)), ranks })
}

fn key(rank: usize) -> String {
    format!("nemesia-{rank}")
}

/// Returns whether the socket of a rank is reached: otherwise it runs on another machine, or has ended.
fn is_reached(rank: usize, host: &HostAddress, deadline: Instant) -> Result<bool, Error> {
    let problem = |error: ShmError| Error::Peer { rank, problem: error.to_string() };
    loop {
        match HandoffConnection::connect(&host.name, deadline) {
            Ok(connection) => return connection.require_same_user().map(|()| true).map_err(problem),
            Err(ShmError::NotListening { .. }) => return Ok(false),
            Err(error) if error.is_shortage() && Instant::now() < deadline => std::thread::sleep(AGAIN_AFTER),
            Err(error) => return Err(problem(error)),
        }
    }
}
