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

use nemesia_core::peers::PeerAddress;

use super::calls::Calls;
use super::peer::{self, Cpus, ShmWorld};
use super::segments::OwnSegments;
use crate::bootstrap::Exchange;
use crate::error::Error;
use crate::events;
use crate::os::{HandoffConnection, HandoffListener, ProcessOrigin, ShmError, Watch, limits};
use crate::transport::hosts::{self, HostAddress, MemberAddress, RemoteRanks};
use crate::transport::net::{NetPort, RemoteMember, StreamDoor};
use card::{ProcessCard, permits_demand};

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
    let mut warnings = Vec::new();
    let mut door = match permits_demand(world) {
        true => StreamDoor::find(&world.config, &mut warnings)?,
        false => Err("the ranks of its world connect at the start".into()),
    };
    let called = door.as_ref().ok().map(StreamDoor::place);
    let mut cards = cards(world, (&listener, called), exchange)?;
    let hosts: Vec<HostAddress> = cards.iter().map(|card| card.host.clone()).collect();
    let is_together = hosts::are_together(&hosts);
    if let Ok(door) = door.as_ref()
        && (!is_together || world.config.job_key.is_given())
    {
        // Before the barrier of what is exchanged next: ranks on other machines may call at once after it. With a key,
        // others may know the addresses of all ranks from one of them.
        door.open(&watch)?;
    }
    let on_demand = cards.iter().all(|card| card.on_demand);
    let mut remote = find_remote(world, exchange, (&cards, &hosts), origin, deadline)?;
    if is_together {
        // With ranks elsewhere, the choice of the transport has said what they need.
        remote.warnings = warnings;
    }
    let has_door = on_demand && is_together || remote.demand.is_some();
    if !has_door {
        // The port to the other ranks is no port to others.
        door = Err("the ranks of its world connect at the start".into());
        cards.iter_mut().for_each(|card| card.called = None);
    }
    let time = match has_door {
        true => ConnectTime::OnDemand,
        false => ConnectTime::Start,
    };
    if time != ConnectTime::OnDemand {
        limits::require_peers(size - 1)?;
    }
    let ranks = ranks(world, &cards, &remote)?;
    let calls = listen(world, ours, (listener, door), &ranks, &mut watch)?;
    Ok(ShmMeeting { watch, gone: Vec::new(), remote, calls: Some((calls, time)), ranks })
}

/// Listens for calls of these ranks and of others.
fn listen(
    world: &Arc<ShmWorld>,
    ours: &Arc<OwnSegments>,
    place: (HandoffListener, Result<StreamDoor, String>),
    ranks: &[RankProcess],
    watch: &mut Watch,
) -> Result<Calls, Error> {
    let ranks: Vec<_> = ranks.iter().map(|rank| (rank.address, rank.incarnation)).collect();
    Calls::listen((Arc::clone(world), Arc::clone(ours)), place, &ranks, watch)
}

/// Exchanges what each process publishes. Collective.
fn cards(
    world: &ShmWorld,
    (listener, called): (&HandoffListener, Option<SocketAddr>),
    exchange: &mut dyn Exchange,
) -> Result<Vec<ProcessCard>, Error> {
    let card = ProcessCard::here(listener, called, world);
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
        Ok(RankProcess {
            address: card.address(),
            incarnation: 0,
            cpus,
            pid: card.host.pid,
            expedited,
            is_remote,
        })
    });
    ranks.collect()
}

/// Finds out which ranks run on other machines, and opens the port to them.
fn find_remote(
    world: &ShmWorld,
    exchange: &mut dyn Exchange,
    (cards, hosts): (&[ProcessCard], &[HostAddress]),
    origin: &Arc<ProcessOrigin>,
    deadline: Instant,
) -> Result<RemoteRanks, Error> {
    if hosts::are_together(hosts) {
        return Ok(RemoteRanks::default());
    }
    let me = world.rank as usize;
    let mut unreached = Vec::new();
    for (rank, host) in hosts.iter().enumerate().take(me).filter(|(_, host)| hosts[me].may_share(host)) {
        if !is_reached(rank, host, deadline)? {
            unreached.push(rank);
        }
    }
    let on_demand = cards.iter().all(|card| card.on_demand && card.called.is_some());
    hosts::meet(&world.config, exchange, me, (hosts, unreached), on_demand, origin)
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
    let door = Err("its ranks may be started again".into());
    let calls = listen(world, ours, (listener, door), &ranks, &mut watch)?;
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
