//! The ranks that share a machine, and the transport to the others.
//!
//! Each process publishes through the exchange where it runs: the boot of its machine, its network namespace, and the
//! name of its hand-over socket. If these show that all processes run in one place, nothing else is published.
//! Otherwise each process first tries the hand-over sockets of lower ranks with its boot. Then it publishes a *card*:
//! its network addresses, and the lower ranks with its boot whose socket it could not reach. Two processes share a
//! machine if their boots are equal and the socket was reached: containers and copies of a virtual machine can have
//! equal boots.
//!
//! The card also has the size of the packets, which would else be compared when two ranks connect. If TCP is the
//! transport of the world, and all processes take calls of other machines and permit that ranks connect on demand, no
//! connection between machines is made at the start.
//!
//! A rank that was started again is reached as its first process was: the exchange still has what all published at the
//! start. Its new process joins with a new address, in which peers find its socket and its network address.
//!
//! What others publish is untrusted: lengths are limited, and every field is checked.

use std::sync::Arc;

use nemesia_core::job_key::JobKey;
use nemesia_core::peers::PeerAddress;
use nemesia_core::port::PeerId;
use nemesia_core::port::memory::{Address, MOST_ADDRESS_BYTES};
use nemesia_core::wire::LAYOUT_VERSION;

use super::net::{NetPort, OpenedPorts, RemoteMember, Transport, WorldMember};
use crate::bootstrap::Exchange;
use crate::config::{Config, NetChoice, key_from_hex};
use crate::error::Error;
use crate::os::{HandoffConnection, ProcessOrigin, random};
use crate::verbs::is_joined_address;

/// Version of the card.
const CARD_VERSION: u32 = 4;
/// The most characters of a published text that are looked at.
const MOST_TEXT: usize = 4096;
/// Stands for the boot of a process that shares memory with no other process.
const APART: &str = "apart";
/// Stands for a field without a value.
const NOTHING: &str = "-";

/// The place of a process, as it publishes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostAddress {
    pub(crate) host: String,
    pub(crate) network: String,
    /// The name of its hand-over socket.
    pub(crate) name: String,
    pub(crate) space: String,
    pub(crate) pid: i32,
}

impl HostAddress {
    /// Returns the place of this process, whose hand-over socket has this name.
    pub(crate) fn of(name: String, config: &Config) -> Self {
        let host = if config.local { machine() } else { APART.to_owned() };
        let (network, space) = (namespace("net"), namespace("pid"));
        Self { host, network, name, space, pid: std::process::id() as i32 }
    }

    /// Returns the text to publish.
    pub(crate) fn encode(&self) -> String {
        let Self { host, network, name, space, pid } = self;
        format!("{LAYOUT_VERSION}.{host}.{network}.{name}.{space}.{pid}")
    }

    /// Decodes a published text, or returns what is wrong with it.
    pub(crate) fn decode(text: &str) -> Result<Self, String> {
        let fields: Vec<&str> = text.get(..text.len().min(MOST_TEXT)).unwrap_or("").split('.').collect();
        let [version, host, network, name, space, pid] = fields[..] else {
            return Err(format!("its address {text:?} is not one of nemesia: mixed programs in one job?"));
        };
        if version != LAYOUT_VERSION.to_string() {
            return Err(version_mismatch(version));
        }
        let Ok(pid) = pid.parse() else {
            return Err(format!("its address {text:?} has no process number: mixed programs in one job?"));
        };
        let [host, network, name, space] = [host, network, name, space].map(str::to_owned);
        Ok(Self { host, network, name, space, pid })
    }

    /// Returns whether a process at `other` may share memory with one here, if their sockets connect.
    pub(crate) fn may_share(&self, other: &Self) -> bool {
        self.host == other.host && self.host != APART
    }

    /// Returns whether the process shares memory with no other.
    pub(crate) fn is_apart_from_all(&self) -> bool {
        self.host == APART
    }

    /// Returns whether processes of these two places certainly have different addresses.
    pub(crate) fn is_apart(&self, other: &Self) -> bool {
        self.network != other.network
            || (self.host != other.host && ![&self.host, &other.host].into_iter().any(|it| it == APART))
    }

    /// Returns whether the other end of this connection is the process that published this address. The kernel supplies
    /// the process id. Across pid namespaces its numbers have no meaning, and the connection is accepted.
    pub(crate) fn is_genuine(&self, caller: &HandoffConnection) -> bool {
        self.space != namespace("pid") || self.pid == caller.peer().pid
    }
}

/// Returns the message about a peer with another layout, which both sides report.
pub(crate) fn version_mismatch(version: impl std::fmt::Display) -> String {
    format!(
        "its shared-memory layout is version {version}, ours is {LAYOUT_VERSION}: build both with the same nemesia"
    )
}

/// Returns whether all processes certainly share memory.
pub(crate) fn are_together(hosts: &[HostAddress]) -> bool {
    hosts.windows(2).all(|pair| pair[0].may_share(&pair[1]) && pair[0].network == pair[1].network)
}

/// Returns an identifier that distinguishes this namespace of the process from any other of its kind.
pub(crate) fn namespace(kind: &str) -> String {
    let link = std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap_or_default();
    link.to_string_lossy().chars().filter(char::is_ascii_digit).collect()
}

/// Returns an identifier that distinguishes this boot of this machine from any other.
pub(crate) fn machine() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.chars().filter(char::is_ascii_hexdigit).collect()
}

/// The address with which a process joins a world whose ranks may be started again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberAddress {
    /// The address by which it is called.
    pub(crate) address: PeerAddress,
    /// Its address in the network that the world uses, if it reaches any rank through it.
    pub(crate) net: Option<Address>,
}

impl MemberAddress {
    /// Returns the text with which the process joins.
    pub(crate) fn encode(&self) -> String {
        let net = self.net.map_or(NOTHING.into(), |it| hex(it.bytes()));
        format!("{LAYOUT_VERSION}.{}/{net}", hex(self.address.bytes()))
    }

    /// Decodes the text of another process, or returns what is wrong with it.
    pub(crate) fn decode(text: &str) -> Result<Self, String> {
        // The text has the token, which no error shows.
        let wrong = || "its address is not one of nemesia: mixed programs in one job?".to_owned();
        let (version, rest) = text.split_once('.').ok_or_else(wrong)?;
        if version != LAYOUT_VERSION.to_string() {
            return Err(version_mismatch(version));
        }
        let (address, net) = rest.split_once('/').ok_or_else(wrong)?;
        let address = unhex(address).and_then(|bytes| bytes.try_into().ok()).ok_or_else(wrong)?;
        let net = match net {
            NOTHING => None,
            "" => return Err(wrong()),
            net => Some(unhex(net).and_then(|bytes| Address::new(&bytes)).ok_or_else(wrong)?),
        };
        Ok(Self { address: PeerAddress::from_bytes(address), net })
    }
}

/// The network addresses of a process, as it publishes them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Card {
    /// A random number. That of rank 0 is the number of the world.
    world: u64,
    /// The key of the job, on the card of rank 0. `None` on others, and if a setting gives it to all processes.
    key: Option<JobKey>,
    /// One for each of [`Transport::ALL`].
    addresses: [Option<Address>; 2],
    /// The lower ranks with the same boot whose hand-over socket was not reached.
    unreached: Vec<usize>,
    /// The payload bytes of its largest packet.
    packet_bytes: u32,
}

impl Card {
    /// Returns the address at which the process is reached by this transport.
    fn address(&self, transport: Transport) -> Option<Address> {
        let at = Transport::ALL.iter().position(|it| *it == transport)?;
        self.addresses[at]
    }

    fn encode(&self) -> String {
        let [verbs, tcp] = self.addresses.map(|address| address.map_or(NOTHING.into(), |it| hex(it.bytes())));
        let unreached: Vec<String> = self.unreached.iter().map(usize::to_string).collect();
        let unreached = if unreached.is_empty() { NOTHING.to_owned() } else { unreached.join(",") };
        let key = self.key.map_or(NOTHING.into(), |key| hex(key.bytes()));
        let Self { world, packet_bytes, .. } = self;
        format!("{CARD_VERSION}.{world:016x}.{key}.{verbs}.{tcp}.{unreached}.{packet_bytes}")
    }

    /// Decodes the card of `rank`, or returns what is wrong with it.
    fn decode(text: &str, rank: usize) -> Result<Self, String> {
        // The text may have the job's key, so it is not shown.
        let wrong = || {
            format!("its network address of {} bytes is malformed: mixed programs in one job?", text.len())
        };
        let fields: Vec<&str> = text.get(..text.len().min(MOST_TEXT)).unwrap_or("").split('.').collect();
        let version = fields.first().copied().unwrap_or_default();
        if version != CARD_VERSION.to_string() {
            return Err(format!(
                "its network address has version {version}, ours has {CARD_VERSION}: build both with the same nemesia"
            ));
        }
        let [_, world, key, verbs, tcp, unreached, packet_bytes] = fields[..] else {
            return Err(wrong());
        };
        let world = u64::from_str_radix(world, 16).map_err(|_| wrong())?;
        let key = match key {
            NOTHING => None,
            key => Some(key_from_hex(key).ok_or_else(wrong)?),
        };
        let address = |text: &str| match text {
            NOTHING => Ok(None),
            text => unhex(text).and_then(|bytes| Address::new(&bytes)).map(Some).ok_or_else(wrong),
        };
        let ranks = |text: &str| match text {
            NOTHING => Some(Vec::new()),
            text => text.split(',').map(|it| it.parse().ok().filter(|it| *it < rank)).collect(),
        };
        let addresses = [address(verbs)?, address(tcp)?];
        Ok(Self {
            world,
            key,
            addresses,
            unreached: ranks(unreached).ok_or_else(wrong)?,
            packet_bytes: packet_bytes.parse().map_err(|_| wrong())?,
        })
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() || pairs.len() > MOST_ADDRESS_BYTES {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    pairs.iter().map(|[high, low]| u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()).collect()
}

fn key(rank: usize) -> String {
    format!("nemesia-net-{rank}")
}

/// The ranks that are not reached through shared memory.
#[derive(Debug, Default)]
pub(crate) struct RemoteRanks {
    /// The port to them, not connected yet. `None` if there is no such rank.
    pub(crate) port: Option<NetPort>,
    /// The other transports, each with the reason why it is not used.
    pub(crate) refused: Vec<(Transport, String)>,
    /// If this process was started again: the ranks that joined before it.
    pub(crate) members: Vec<RemoteMember>,
    /// If all ranks connect when they first need each other: whether each is on another machine.
    pub(crate) demand: Option<Vec<bool>>,
    /// Preferences that could not be met.
    pub(crate) warnings: Vec<String>,
}

impl RemoteRanks {
    /// Returns whether this rank is not reached through shared memory.
    pub(crate) fn contains(&self, rank: usize) -> bool {
        if let Some(remote) = &self.demand {
            return remote.get(rank).is_some_and(|is_remote| *is_remote);
        }
        self.port.as_ref().is_some_and(|port| port.reaches(rank as u32))
    }
}

/// Exchanges cards, and opens the port to the ranks that do not share this machine. Collective. `unreached` has the
/// lower ranks with this process's boot whose hand-over socket was not reached. `on_demand`: all ranks take calls of
/// other machines, and may connect on demand.
pub(crate) fn meet(
    config: &Config,
    exchange: &mut dyn Exchange,
    me: usize,
    (hosts, unreached): (&[HostAddress], Vec<usize>),
    on_demand: bool,
    origin: &Arc<ProcessOrigin>,
) -> Result<RemoteRanks, Error> {
    let mut warnings = Vec::new();
    let opened = open_ports(config, me, hosts, &mut warnings)?;
    let addresses = Transport::ALL.map(|transport| opened.address(transport).ok());
    let own = given_key(config)?;
    let drawn = if me == 0 && own.is_none() { Some(JobKey::from_bytes(random()?)) } else { None };
    let (world, packet_bytes) = (u64::from_le_bytes(random()?), config.net_packet_bytes(true));
    let card = Card { world, key: drawn, addresses, unreached, packet_bytes };
    exchange.put(&key(me), &card.encode())?;
    exchange.barrier()?;
    let cards = cards(exchange, hosts.len())?;
    let key = common_key(own, &cards)?;
    let member = WorldMember { rank: me as PeerId, incarnation: 0, world: cards[0].world, key };
    let remote = choose(config, (opened, on_demand), member, (hosts, &cards), origin)?;
    warnings.extend(remote.warnings);
    Ok(RemoteRanks { warnings, ..remote })
}

/// Opens the port to the ranks that do not share this machine, for a process that was started again.
pub(crate) fn come_back(
    config: &Config,
    exchange: &mut dyn Exchange,
    me: usize,
    hosts: &[HostAddress],
    origin: &Arc<ProcessOrigin>,
) -> Result<RemoteRanks, Error> {
    let cards = cards(exchange, hosts.len())?;
    let incarnation = exchange.incarnation();
    let key = common_key(given_key(config)?, &cards)?;
    let member = WorldMember { rank: me as PeerId, incarnation, world: cards[0].world, key };
    let mut warnings = Vec::new();
    let opened = open_ports(config, me, hosts, &mut warnings)?;
    let remote = choose(config, (opened, false), member, (hosts, &cards), origin)?;
    warnings.extend(remote.warnings);
    Ok(RemoteRanks { warnings, ..remote })
}

/// Returns the key that the settings of this process give.
fn given_key(config: &Config) -> Result<Option<JobKey>, Error> {
    config.job_key.key().map_err(|problem| Error::Transport { transport: "network", problem })
}

/// Returns the key of the job: the one that the settings of all processes give, or that of rank 0.
fn common_key(given: Option<JobKey>, cards: &[Card]) -> Result<JobKey, Error> {
    match (given, cards.first().and_then(|card| card.key)) {
        (Some(key), None) | (None, Some(key)) => Ok(key),
        (given, _) => {
            let (with, without) =
                if given.is_some() { ("this process", "rank 0") } else { ("rank 0", "this process") };
            let problem = format!(
                "{with} has a job key of its own, and {without} has none: set NEMESIA_JOB_KEY_FILE in all processes \
                 or in none"
            );
            Err(Error::Net { rank: 0, transport: "network", problem })
        }
    }
}

/// Opens the ports that can lead to the ranks that do not share this machine.
fn open_ports(
    config: &Config,
    me: usize,
    hosts: &[HostAddress],
    warnings: &mut Vec<String>,
) -> Result<OpenedPorts, Error> {
    let remote = (0..hosts.len()).filter(|rank| *rank != me && !hosts[*rank].may_share(&hosts[me])).count();
    Ok(OpenedPorts::open(config, (hosts.len() as u32, remote as u32), warnings)?)
}

/// Returns the cards of all ranks.
fn cards(exchange: &mut dyn Exchange, size: usize) -> Result<Vec<Card>, Error> {
    let card = |rank| {
        let text = exchange.get(&key(rank))?;
        Card::decode(&text, rank).map_err(|problem| Error::Net { rank, transport: "network", problem })
    };
    (0..size).map(card).collect()
}

/// The reason against devices of which some are reached by an IP address and others are not.
const DIFFERENT_SET_UPS: &str =
    "the processes set connections up in two ways: set NEMESIA_NET_SETUP alike in all processes";

/// Returns whether all devices are connected by RDMA-CM, or all by datagrams.
fn sets_up_alike(cards: &[Card]) -> bool {
    let mut kinds = cards
        .iter()
        .filter_map(|card| card.address(Transport::Verbs))
        .map(|address| is_joined_address(&address));
    let first = kinds.next();
    kinds.all(|kind| Some(kind) == first)
}

/// Chooses the transport of the world, and opens the port to the ranks that do not share this machine. `on_demand`:
/// they connect on demand if that transport is TCP.
fn choose(
    config: &Config,
    (opened, on_demand): (OpenedPorts, bool),
    member: WorldMember,
    (hosts, cards): (&[HostAddress], &[Card]),
    origin: &Arc<ProcessOrigin>,
) -> Result<RemoteRanks, Error> {
    let me = member.rank as usize;
    let is_remote = |rank: usize| {
        let (low, high) = (rank.min(me), rank.max(me));
        rank != me && (!hosts[low].may_share(&hosts[high]) || cards[high].unreached.contains(&low))
    };
    let remote: Vec<bool> = (0..hosts.len()).map(is_remote).collect();
    // A transport that serves all processes is used by all: two processes thus choose the same one.
    let serves_all = |transport: &Transport| cards.iter().all(|card| card.address(*transport).is_some());
    // Devices whose connections are set up in two ways can't be connected, so that another transport comes first.
    let is_alike = |transport: &Transport| *transport != Transport::Verbs || sets_up_alike(cards);
    let served = || Transport::ALL.into_iter().filter(serves_all);
    let chosen = served().find(is_alike).or_else(|| served().next());
    let on_demand = on_demand && chosen == Some(Transport::Tcp);
    let Some(first) = remote.iter().position(|it| *it) else {
        return Ok(RemoteRanks { demand: on_demand.then_some(remote), ..RemoteRanks::default() });
    };
    let reasons = Transport::ALL.map(|transport| refusal(&opened, transport, cards));
    let Some(transport) = chosen else { return Err(unserved(config, first, reasons)) };
    check_differences(&opened, transport, (me, hosts), (&remote, cards))?;
    let mut warnings = Vec::new();
    if let Some(unmet) = unmet_device(config, transport, me, cards) {
        config.give_up(unmet, &mut warnings)?;
    }
    let problem = |problem| Error::Transport { transport: transport.name(), problem };
    let (port, demand) = if on_demand {
        check_packets(config, &remote, cards)?;
        (opened.into_growing(config, member.rank, origin).map_err(problem)?, Some(remote))
    } else {
        let others = remote.iter().zip(cards);
        let others = others.map(|(is_remote, card)| card.address(transport).filter(|_| *is_remote));
        (opened.into_net(transport, config, member, others.collect(), origin).map_err(problem)?, None)
    };
    let unused = format!("{transport} is preferred, and all processes have it");
    let refused = Transport::ALL.into_iter().zip(reasons).filter(|(it, _)| *it != transport);
    let unused = |it: &Transport| if is_alike(it) { unused.clone() } else { DIFFERENT_SET_UPS.to_owned() };
    let refused = refused.map(|(it, why)| (it, why.unwrap_or_else(|| unused(&it))));
    let (refused, members) = (refused.collect(), Vec::new());
    Ok(RemoteRanks { port: Some(port), refused, members, demand, warnings })
}

/// Returns the warning that preferences for an RDMA device have no effect, although this process has opened one: all
/// processes use another transport. If it has none, [`OpenedPorts::open`] has warned.
fn unmet_device(config: &Config, transport: Transport, me: usize, cards: &[Card]) -> Option<String> {
    let has_device = |card: &Card| card.address(Transport::Verbs).is_some();
    let wished = config.place.of_devices();
    if transport == Transport::Verbs || wished.is_empty() || !cards.get(me).is_some_and(has_device) {
        return None;
    }
    let without = cards.iter().position(|card| !has_device(card))?;
    Some(format!(
        "{wished}: all processes use {transport}, because rank {without} has no RDMA device that it can use; see \
         NEMESIA_NET and NEMESIA_EXPLAIN there"
    ))
}

/// Returns the error of a world in which no transport leads to this rank.
fn unserved(config: &Config, rank: usize, reasons: [Option<String>; 2]) -> Error {
    let reasons = Transport::ALL.into_iter().zip(reasons);
    let reasons: Vec<_> =
        reasons.map(|(transport, why)| format!("{transport}: {}", why.unwrap_or_default())).collect();
    let remedy = match config.net {
        NetChoice::Auto => "",
        _ => "; NEMESIA_NET=auto uses any transport that all processes have",
    };
    let problem =
        format!("it runs on another machine, and no transport leads there: {}{remedy}", reasons.join("; "));
    Error::Net { rank, transport: "network", problem }
}

/// Checks that the ranks on other machines have packets of the size of this process's.
fn check_packets(config: &Config, remote: &[bool], cards: &[Card]) -> Result<(), Error> {
    let ours = config.net_packet_bytes(true);
    let differs = |(rank, card): &(usize, &Card)| remote[*rank] && card.packet_bytes != ours;
    let Some((rank, card)) = cards.iter().enumerate().find(differs) else { return Ok(()) };
    let theirs = card.packet_bytes;
    let problem = format!(
        "it has {theirs} packet bytes, and this process {ours}: set NEMESIA_NET_PACKET_BYTES alike in all processes"
    );
    Err(Error::Net { rank, transport: Transport::Tcp.name(), problem })
}

/// Checks that the settings and addresses of the ranks on other machines let this process connect with them.
fn check_differences(
    opened: &OpenedPorts,
    transport: Transport,
    (me, hosts): (usize, &[HostAddress]),
    (remote, cards): (&[bool], &[Card]),
) -> Result<(), Error> {
    for (rank, card) in cards.iter().enumerate().filter(|(rank, _)| remote[*rank]) {
        let is_apart = hosts[rank].is_apart(&hosts[me]);
        let address = card.address(transport);
        if let Some(problem) = address.and_then(|address| opened.difference(transport, &address, is_apart)) {
            return Err(Error::Net { rank, transport: transport.name(), problem });
        }
    }
    Ok(())
}

/// Returns why a transport cannot serve the world.
fn refusal(opened: &OpenedPorts, transport: Transport, cards: &[Card]) -> Option<String> {
    if let Err(why) = opened.address(transport) {
        return Some(why);
    }
    let without = cards.iter().position(|card| card.address(transport).is_none())?;
    Some(format!("rank {without} does not have it; see NEMESIA_NET and NEMESIA_EXPLAIN there"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(host: &str, network: &str) -> HostAddress {
        let [host, network, name, space] = [host, network, "name", "7"].map(str::to_owned);
        HostAddress { host, network, name, space, pid: 12 }
    }

    fn card() -> Card {
        let addresses = [None, Address::new(&[1, 0xab, 0xff])];
        let key = Some(JobKey::from_bytes([0x5a; 32]));
        let (world, packet_bytes) = (0x0123_4567_89ab_cdef, 4096);
        Card { world, key, addresses, unreached: vec![0, 3], packet_bytes }
    }

    #[test]
    fn devices_whose_connections_are_set_up_in_two_ways_do_not_serve_a_world() {
        // Versions and kinds of the addresses, as `encode_address` and `JoinAddress` write them.
        let managed = [2, 4, 0, 1, 0, 10, 0, 0, 1].to_vec();
        let joined = [[2, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 7, 0].as_slice(), &[0; 16]].concat();
        let of = |bytes: &[u8]| Card { addresses: [Address::new(bytes), None], ..card() };
        assert!(sets_up_alike(&[of(&managed), of(&managed), Card { addresses: [None, None], ..card() }]));
        assert!(sets_up_alike(&[of(&joined), of(&joined)]) && sets_up_alike(&[]));
        assert!(!sets_up_alike(&[of(&managed), of(&joined)]));
    }

    #[test]
    fn places_are_apart_by_their_network_or_their_boot() {
        let here = host("00ff", "42");
        assert!(!here.is_apart(&here) && here.is_apart(&host("00ff", "43")));
        assert!(here.is_apart(&host("00fe", "42")), "the numbers of networks are equal on most machines");
        assert!(!here.is_apart(&host(APART, "42")), "it may run here");
    }

    #[test]
    fn a_caller_is_identified_by_the_kernel() {
        // Both ends belong to this process.
        let (caller, _other) = HandoffConnection::pair().unwrap();
        let ours = HostAddress::of("name".into(), &Config::default());
        assert!(ours.is_genuine(&caller));
        let other = HostAddress { pid: ours.pid + 1, ..ours.clone() };
        assert!(!other.is_genuine(&caller), "the address of another process");
        let elsewhere = HostAddress { space: "1".into(), pid: 1, ..ours };
        assert!(elsewhere.is_genuine(&caller), "the numbers of another namespace mean nothing");
    }

    #[test]
    fn addresses_and_cards_survive_the_exchange() {
        let address = host("00ff", "42");
        assert_eq!(HostAddress::decode(&address.encode()), Ok(address));
        let here = HostAddress::of("name".into(), &Config::default());
        assert_eq!(HostAddress::decode(&here.encode()), Ok(here));
        let plain = Card { key: None, addresses: [None; 2], unreached: Vec::new(), ..card() };
        for card in [card(), plain] {
            assert_eq!(Card::decode(&card.encode(), 4), Ok(card));
        }
        let longest = Address::new(&[7; MOST_ADDRESS_BYTES]);
        let longest = Card { addresses: [longest; 2], ..card() };
        assert_eq!(Card::decode(&longest.encode(), 4), Ok(longest));
    }

    #[test]
    fn the_address_of_a_member_survives_the_exchange_and_others_are_refused_in_words() {
        for net in [None, Address::new(&[1, 0xab, 0xff]), Address::new(&[7; MOST_ADDRESS_BYTES])] {
            let address = MemberAddress { address: PeerAddress::from_bytes([0xa5; 64]), net };
            assert_eq!(MemberAddress::decode(&address.encode()), Ok(address.clone()));
        }
        let address = format!("{LAYOUT_VERSION}.{}", "a5".repeat(64));
        let long = "00".repeat(MOST_ADDRESS_BYTES + 1);
        for net in ["", "0", "0g", "0x12", "ab/cd", "-1", &long] {
            let error = MemberAddress::decode(&format!("{address}/{net}")).unwrap_err();
            assert!(error.contains("mixed programs") && !error.contains("a5a5"), "{net}: {error}");
        }
        for address in ["", "1.2", &address, &format!("{address}a5/-"), &format!("{}/-", &address[1..])] {
            assert!(MemberAddress::decode(address).is_err(), "{address}");
        }
        let other = format!("{address}/-").replacen(&LAYOUT_VERSION.to_string(), "999", 1);
        assert!(MemberAddress::decode(&other).unwrap_err().contains("version 999"));
    }

    #[test]
    fn malformed_addresses_and_cards_are_refused_in_words() {
        for text in ["", ".", "1.2.3.4.5", "GET / HTTP/1.1", "../../etc/passwd"] {
            let error = HostAddress::decode(text).unwrap_err();
            assert!(error.contains("mixed programs"), "{error}");
        }
        let other = host("00ff", "42").encode().replacen(&LAYOUT_VERSION.to_string(), "999", 1);
        assert!(HostAddress::decode(&other).unwrap_err().contains("version 999"));
        let good = card().encode();
        for (from, to) in
            [("01ab", "01a"), ("01ab", "0xab"), ("0,3", "0,4"), ("0,3", "0,-1"), ("0,3", ""), (".4096", ".x")]
        {
            let error = Card::decode(&good.replace(from, to), 4).unwrap_err();
            assert!(error.contains("malformed"), "{to}: {error}");
        }
        let error = Card::decode(&good.replace("5a5a", "5a5"), 4).unwrap_err();
        assert!(error.contains("malformed") && !error.contains("5a5a"), "{error}");
        for end in 0..good.len() {
            // A prefix may be well-formed, but never ends the process.
            let _ = Card::decode(&good[..end], 4);
        }
        let long = good.replace("01ab", &"00".repeat(MOST_ADDRESS_BYTES + 1));
        assert!(Card::decode(&long, 4).is_err());
        assert!(Card::decode(&good.replacen('4', "5", 1), 4).unwrap_err().contains("version 5"));
    }

    #[test]
    fn the_key_comes_from_rank_0_or_from_the_settings_of_all() {
        let (drawn, given) = (card().key, JobKey::from_bytes([3; 32]));
        assert_eq!(common_key(None, &[card()]).ok(), drawn);
        let silent = [Card { key: None, ..card() }];
        assert_eq!(common_key(Some(given), &silent).ok(), Some(given));
        for (own, cards) in [(None, &silent), (Some(given), &[card()])] {
            let error = common_key(own, cards).unwrap_err().to_string();
            assert!(error.contains("NEMESIA_JOB_KEY_FILE in all processes or in none"), "{error}");
        }
    }

    /// Returns what rank 0 of two that share no memory has after the choice of the transport. Both have TCP.
    fn chosen(config: &Config, have_devices: [bool; 2]) -> Result<RemoteRanks, Error> {
        // The device itself is not needed: the cards decide.
        let without_device = Config::default().net(NetChoice::Tcp).net_address(Some("127.0.0.1"));
        let opened = OpenedPorts::open(&without_device, (2, 1), &mut Vec::new()).unwrap();
        let tcp = opened.address(Transport::Tcp).ok();
        let cards = have_devices.map(|has| Card {
            addresses: [Address::new(&[7]).filter(|_| has), tcp],
            unreached: Vec::new(),
            ..card()
        });
        let member = WorldMember { rank: 0, incarnation: 0, world: 1, key: JobKey::from_bytes([3; 32]) };
        let origin = Arc::new(ProcessOrigin::here(1).unwrap());
        choose(config, (opened, false), member, (&[host(APART, "1"), host(APART, "1")], &cards), &origin)
    }

    #[test]
    fn a_preference_for_a_device_that_another_rank_thwarts_is_a_warning_or_in_strict_mode_an_error() {
        let plain = Config::default();
        let wishes = plain.clone().net_device(Some("mlx5_0")).net_gid_index(Some(3));
        let warned = chosen(&wishes, [true, false]).unwrap().warnings;
        let wanted =
            ["NEMESIA_NET_DEVICE=mlx5_0, NEMESIA_NET_GID_INDEX=3: ", "use tcp", "rank 1 has no RDMA device"];
        assert!(warned.len() == 1 && wanted.iter().all(|part| warned[0].contains(part)), "{warned:?}");
        let error = chosen(&wishes.clone().strict(true), [true, false]).unwrap_err().to_string();
        assert!(
            wanted.iter().all(|part| error.contains(part)) && error.contains("NEMESIA_STRICT"),
            "{error}"
        );
        // Without a device of its own, the process has been warned before.
        for (config, have_devices) in
            [(&wishes, [false, true]), (&wishes, [false; 2]), (&plain, [true, false])]
        {
            assert_eq!(chosen(config, have_devices).unwrap().warnings, [""; 0], "{have_devices:?}");
        }
    }

    #[test]
    fn processes_share_memory_only_with_one_boot_and_never_apart() {
        let together = |hosts: &[(&str, &str)]| {
            are_together(&hosts.iter().map(|(boot, net)| host(boot, net)).collect::<Vec<_>>())
        };
        assert!(together(&[("a", "1"), ("a", "1"), ("a", "1")]));
        assert!(!together(&[("a", "1"), ("a", "2")]), "the sockets may not connect");
        assert!(!together(&[("a", "1"), ("b", "1")]));
        assert!(!together(&[(APART, "1"), (APART, "1")]));
        assert!(!host(APART, "1").may_share(&host(APART, "1")));
    }
}
