//! Connecting: which port reaches which rank, and a pipe to each.
//!
//! Each process publishes its place, then a card with a token and the addresses of the ports that some rank needs, and
//! then that it has found a port for each rank:
//!
//! | rank | design | port |
//! |---|---|---|
//! | of this machine | auto, direct | shared memory, without a port |
//! | of this machine | one of the paper | the memory port over shared memory |
//! | of another machine | auto, one of the paper | RDMA device if both ranks have one, else TCP (`NEMESIA_NET`) |
//!
//! The higher of two ranks connects. A process that connects presents the token of the other's card, which only
//! processes of the job can read. Over a port each rank then sends one byte, so a pipe is known to work before the
//! caller uses it. What others publish and send is untrusted.

use std::time::{Duration, Instant};

use nemesia_core::payload::{Gather, RecvBuf, Scatter, SendBuf};
use nemesia_core::port::memory::{Address, Facts, MemoryPort};
use nemesia_core::rdma_channel::{Design, PipeArrival, PipeShape};

use super::direct::{self, RequestedLink};
use super::fabric::{ChannelFabric, Introduction};
use super::host::Registrations;
use super::{ChannelGroup, ChannelLink, Spread};
use crate::config::{ChannelDesign, Config, FastPathChoice, NetChoice};
use crate::error::Error;
use crate::os::{self, HandoffListener};
use crate::shm::pipe::{self, Copying};
use crate::tcp;
use crate::transport::hosts::{HostAddress, hex, unhex};
use crate::transport::net::{NotOpen, listen_tcp, open_device};
use crate::verbs::PortOptions;

/// The version of the card.
const CARD_VERSION: u32 = 2;
/// The longest text of another process that is looked at.
const MOST_TEXT: usize = 2048;
/// Connections of a port beyond one for each rank: of processes that are refused.
const SPARE: u32 = 16;
/// The receives of a connection; only messages with pointers need them.
const RECEIVES: u32 = 8;
/// Stands for an address that a process does not have.
const NOTHING: &str = "-";
/// Begins the text of a process that has failed; the reason follows, as hexadecimal digits.
const FAILED: char = '!';
/// The most bytes of a reason: keys of launchers hold about a thousand bytes.
const MOST_REASON: usize = 400;
/// The byte that each process sends first over a port.
const FIRST_BYTE: u8 = 0x4e;

/// A port of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChannelPort {
    Direct,
    Shm,
    Tcp,
    Verbs,
}

/// What a process publishes of its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ChannelCard {
    token: u64,
    shm: Option<Address>,
    tcp: Option<Address>,
    verbs: Option<Address>,
}

impl ChannelCard {
    fn encode(&self) -> String {
        let text = |address: Option<Address>| address.map_or(NOTHING.into(), |it| hex(it.bytes()));
        let [shm, tcp, verbs] = [self.shm, self.tcp, self.verbs].map(text);
        format!("{CARD_VERSION}.{:016x}.{shm}.{tcp}.{verbs}", self.token)
    }

    /// Decodes the card of another process, or returns what is wrong with it.
    fn decode(text: &str) -> Result<Self, String> {
        let wrong =
            || "its card of the RDMA Channel is malformed: build both with the same nemesia".to_owned();
        let text = text.get(..text.len().min(MOST_TEXT)).ok_or_else(wrong)?;
        let fields: Vec<&str> = text.split('.').collect();
        let [version, token, shm, tcp, verbs] = fields[..] else { return Err(wrong()) };
        if version != CARD_VERSION.to_string() {
            return Err(wrong());
        }
        let address = |text: &str| match text {
            NOTHING => Ok(None),
            text => unhex(text)
                .filter(|bytes| !bytes.is_empty())
                .and_then(|bytes| Address::new(&bytes))
                .map(Some)
                .ok_or_else(wrong),
        };
        let token = u64::from_str_radix(token, 16).map_err(|_| wrong())?;
        Ok(Self { token, shm: address(shm)?, tcp: address(tcp)?, verbs: address(verbs)? })
    }
}

/// Connects with all other processes.
pub(super) fn connect(group: &mut ChannelGroup, spread: Spread<'_>) -> Result<(), Error> {
    if group.size == 1 {
        return Ok(());
    }
    let limit = Duration::from_secs(group.config.timeout_seconds.into());
    let deadline = Instant::now() + limit;
    let bound = HandoffListener::bind().map_err(Error::from).map(|listener| {
        let own = HostAddress::of(listener.name(), &group.config);
        (listener, own)
    });
    let ((listener, own), places) =
        exchange(spread, "channel-place", bound, |(_, own)| own.encode(), HostAddress::decode)?;
    let local = |place: &HostAddress| place.may_share(&own) && place.network == own.network;
    let is_local: Vec<bool> = places.iter().map(local).collect();
    let card = open_ports(group, &is_local);
    let (card, cards) = exchange(spread, "channel-card", card, ChannelCard::encode, ChannelCard::decode)?;
    let ports = choose_all(group, &is_local, &card, &cards);
    let ready = |_: &Vec<_>| NOTHING.to_owned();
    let (ports, _) = exchange(spread, "channel-ports", ports, ready, |_| Ok(()))?;
    connect_direct(group, &listener, &places, &ports, deadline)?;
    let own = Introduction { rank: group.rank, token: card.token };
    let to = |port: ChannelPort, rank: usize| match port {
        ChannelPort::Direct => None,
        ChannelPort::Shm => cards[rank].shm,
        ChannelPort::Tcp => cards[rank].tcp,
        ChannelPort::Verbs => cards[rank].verbs,
    };
    let peers_of = |port: ChannelPort| -> Vec<FabricPeer> {
        let reached = (0..)
            .zip(&ports)
            .filter_map(|(rank, of)| of.filter(|(it, _)| *it == port).map(|it| (rank, it.1)));
        reached
            .map(|(rank, design)| FabricPeer { rank, design, token: cards[rank].token, to: to(port, rank) })
            .collect()
    };
    let settings = (group.config.clone(), own, limit);
    let places = join(&settings, group.shm.as_mut(), "shared memory", &peers_of(ChannelPort::Shm))?;
    places.into_iter().for_each(|(rank, at)| group.links[rank] = ChannelLink::Shm(at));
    let places = join(&settings, group.tcp.as_mut(), "tcp", &peers_of(ChannelPort::Tcp))?;
    places.into_iter().for_each(|(rank, at)| group.links[rank] = ChannelLink::Tcp(at));
    let places = join(&settings, group.verbs.as_mut(), "verbs", &peers_of(ChannelPort::Verbs))?;
    places.into_iter().for_each(|(rank, at)| group.links[rank] = ChannelLink::Verbs(at));
    Ok(())
}

/// Publishes a text about `own`, and returns `own` with the meanings of the texts of all ranks. If this process has
/// failed, it publishes the reason instead: then all ranks return it, and none waits for this process later.
fn exchange<O, T>(
    spread: Spread<'_>,
    key: &str,
    own: Result<O, Error>,
    encode: impl Fn(&O) -> String,
    decode: impl Fn(&str) -> Result<T, String>,
) -> Result<(O, Vec<T>), Error> {
    let text = own.as_ref().map_or_else(failure, encode);
    let texts = spread(key, &text);
    let own = own?;
    let decoded = |(rank, text): (usize, String)| match text.strip_prefix(FAILED) {
        Some(reason) => Err(failed_elsewhere(rank, reason)),
        None => decode(&text).map_err(|problem| Error::Peer { rank, problem }),
    };
    Ok((own, (0..).zip(texts?).map(decoded).collect::<Result<_, Error>>()?))
}

/// Returns the text of a process that has failed.
fn failure(error: &Error) -> String {
    let reason = error.to_string();
    format!("{FAILED}{}", hex(&reason.as_bytes()[..reason.len().min(MOST_REASON)]))
}

/// Returns the error for the text of another process that has failed.
fn failed_elsewhere(rank: usize, reason: &str) -> Error {
    let pairs = reason.as_bytes().chunks_exact(2).take(MOST_REASON);
    let bytes: Vec<u8> = pairs.filter_map(|pair| unhex(str::from_utf8(pair).ok()?)).flatten().collect();
    let reason = String::from_utf8_lossy(&bytes).replace(char::is_control, " ");
    Error::Net { rank, transport: "RDMA Channel", problem: format!("it cannot connect: {reason}") }
}

/// Chooses port and design for each other rank, before any pipe is opened.
fn choose_all(
    group: &mut ChannelGroup,
    is_local: &[bool],
    card: &ChannelCard,
    cards: &[ChannelCard],
) -> Result<Vec<Option<(ChannelPort, Design)>>, Error> {
    let ports = (0..group.size).map(|rank| {
        (rank != group.rank).then(|| choose(group, rank, is_local[rank], [card, &cards[rank]])).transpose()
    });
    let ports: Vec<Option<(ChannelPort, Design)>> = ports.collect::<Result<_, Error>>()?;
    if let Some(unmet) = unmet_device(&group.config, group.verbs.is_some(), &ports) {
        group.config.give_up(unmet, &mut group.warnings)?;
    }
    if let Some(fabric) = &mut group.verbs {
        for (rank, _) in
            (0..).zip(&ports).filter(|(_, of)| of.is_some_and(|(it, _)| it == ChannelPort::Verbs))
        {
            let problem = cards[rank].verbs.and_then(|address| fabric.difference(&address));
            if let Some(problem) = problem {
                return Err(Error::Net { rank, transport: "verbs", problem });
            }
        }
    }
    Ok(ports)
}

/// Returns the design for a rank by the settings.
fn design_for(group: &ChannelGroup, rank: usize) -> ChannelDesign {
    group.designs[rank].unwrap_or(group.config.channel.design)
}

/// Opens the ports that the ranks may need. Returns the card of this process.
fn open_ports(group: &mut ChannelGroup, is_local: &[bool]) -> Result<ChannelCard, Error> {
    open_near_and_far(group, is_local)?;
    Ok(ChannelCard {
        token: u64::from_le_bytes(os::random::<8>()?),
        shm: group.shm.as_mut().and_then(ChannelFabric::address),
        tcp: group.tcp.as_mut().and_then(ChannelFabric::address),
        verbs: group.verbs.as_mut().and_then(ChannelFabric::address),
    })
}

fn open_near_and_far(group: &mut ChannelGroup, is_local: &[bool]) -> Result<(), Error> {
    let others = (0..group.size).filter(|rank| *rank != group.rank);
    let (near, far): (Vec<usize>, Vec<usize>) = others.partition(|rank| is_local[*rank]);
    let ranks = u32::try_from(group.size).unwrap_or(u32::MAX);
    let named = |rank: &usize| matches!(design_for(group, *rank), ChannelDesign::Paper(_));
    if near.iter().any(named) {
        let options = tcp::Options { connections: ranks.saturating_add(SPARE), ..port_options() };
        let port = pipe::listen(Copying::Kernel, &options)
            .map_err(|error| Error::Transport { transport: "shared memory", problem: error.to_string() })?;
        group.shm = Some(ChannelFabric::new(port, Registrations::Exact));
    }
    if far.is_empty() {
        return Ok(());
    }
    let net = group.config.net;
    let verbs = match net {
        NetChoice::Auto | NetChoice::Verbs => {
            let options = device_options(&group.config, ranks);
            open_device(&group.config, &options, &mut group.warnings).map_err(NotOpen::reason)
        }
        NetChoice::Tcp | NetChoice::Off => Err(Ok(String::new())),
    };
    let verbs = match verbs {
        Ok(opened) => Ok(opened.port),
        Err(reason) => Err(reason?),
    };
    match verbs {
        Ok(port) => {
            let keeps = group.config.channel.keeps_registrations;
            let how = if keeps { Registrations::Cached } else { Registrations::Dropped };
            if group.config.net_fast_path == FastPathChoice::On && !port.facts().ordered_among_writes {
                let why =
                    "verbs polls no flags (NEMESIA_NET_FAST_PATH=on): iWARP promises no order of placement";
                group.config.give_up(why.into(), &mut group.warnings)?;
            }
            group.verbs = Some(ChannelFabric::new(port, how));
        }
        Err(problem) if net == NetChoice::Verbs => {
            return Err(Error::Transport { transport: "verbs", problem });
        }
        Err(why) if net == NetChoice::Auto => {
            let (wished, why) = (group.config.place.of_devices(), format!("verbs is not used: {why}"));
            if wished.is_empty() {
                group.warnings.push(why);
            } else {
                group.config.give_up(format!("{wished}: {why}"), &mut group.warnings)?;
            }
        }
        Err(_) => {}
    }
    if matches!(net, NetChoice::Auto | NetChoice::Tcp) {
        let options = tcp::Options { connections: ranks.saturating_add(SPARE), ..port_options() };
        let opened = match listen_tcp(&group.config, &options, &mut group.warnings).map_err(NotOpen::reason) {
            Ok(opened) => opened,
            Err(problem) => return Err(Error::Transport { transport: "tcp", problem: problem? }),
        };
        group.tcp = Some(ChannelFabric::new(opened.port, Registrations::Exact));
    }
    Ok(())
}

fn port_options() -> tcp::Options {
    tcp::Options { receive_depth: RECEIVES, shared_receive_depth: 0, ..tcp::Options::default() }
}

fn device_options(config: &Config, ranks: u32) -> PortOptions {
    PortOptions {
        connections: ranks.saturating_add(SPARE),
        receive_depth: RECEIVES,
        shared_receive_depth: 0,
        set_up: config.net_set_up,
        assert_order: config.net_fast_path == FastPathChoice::On,
        ..PortOptions::default()
    }
}

/// Chooses port and design for a rank. Both ranks choose the same, because both know both cards.
fn choose(
    group: &ChannelGroup,
    rank: usize,
    is_local: bool,
    cards: [&ChannelCard; 2],
) -> Result<(ChannelPort, Design), Error> {
    let design = design_for(group, rank);
    let paper = match design {
        ChannelDesign::Paper(design) => design,
        ChannelDesign::Auto | ChannelDesign::Direct => Design::Learned,
    };
    if is_local {
        let named = matches!(design, ChannelDesign::Paper(_));
        return Ok((if named { ChannelPort::Shm } else { ChannelPort::Direct }, paper));
    }
    let refuse =
        |problem: &str| Err(Error::Net { rank, transport: "RDMA Channel", problem: problem.to_owned() });
    if design == ChannelDesign::Direct {
        return refuse(
            "the direct design needs shared memory, and it runs on another machine or apart (NEMESIA_LOCAL): choose \
             another NEMESIA_CHANNEL_DESIGN",
        );
    }
    let [verbs, tcp] =
        [cards.iter().all(|card| card.verbs.is_some()), cards.iter().all(|card| card.tcp.is_some())];
    match group.config.net {
        NetChoice::Auto | NetChoice::Verbs if verbs => Ok((ChannelPort::Verbs, paper)),
        NetChoice::Auto | NetChoice::Tcp if tcp => Ok((ChannelPort::Tcp, paper)),
        NetChoice::Off => refuse("it runs on another machine, and NEMESIA_NET is off"),
        _ => refuse("both processes must have a port to other machines of the same kind (NEMESIA_NET)"),
    }
}

/// Returns the warning that preferences for an RDMA device have no effect on a rank, although this process has opened
/// one: the rank is reached over TCP.
fn unmet_device(
    config: &Config,
    has_device: bool,
    ports: &[Option<(ChannelPort, Design)>],
) -> Option<String> {
    let wished = config.place.of_devices();
    if !has_device || wished.is_empty() {
        return None;
    }
    let rank = ports.iter().position(|of| of.is_some_and(|(port, _)| port == ChannelPort::Tcp))?;
    Some(format!(
        "{wished}: rank {rank} is reached over tcp, because it has no RDMA device that it can use; see NEMESIA_NET and \
         the warnings there"
    ))
}

/// Connects with the ranks that share memory: first requests to all lower ranks, then their answers, then the requests
/// of the higher ones. Rank 0 waits for no answer, so no two ranks wait for each other.
fn connect_direct(
    group: &mut ChannelGroup,
    listener: &HandoffListener,
    places: &[HostAddress],
    ports: &[Option<(ChannelPort, Design)>],
    deadline: Instant,
) -> Result<(), Error> {
    let own = group.rank;
    let is_direct = |rank: &usize| ports[*rank].is_some_and(|(port, _)| port == ChannelPort::Direct);
    let failed = |rank: usize| move |problem: String| Error::Peer { rank, problem };
    let requested = (0..own).filter(is_direct).map(|rank| {
        let link = RequestedLink::new(own, &places[rank], &group.config, deadline);
        link.map(|link| (rank, link)).map_err(failed(rank))
    });
    let requested: Vec<(usize, RequestedLink)> = requested.collect::<Result<_, Error>>()?;
    for (rank, link) in requested {
        group.links[rank] = ChannelLink::Direct(Box::new(link.finish(rank, deadline).map_err(failed(rank))?));
    }
    while let Some(missing) =
        (own + 1..group.size).filter(is_direct).find(|rank| matches!(group.links[*rank], ChannelLink::None))
    {
        let accepted = direct::accept(listener, own, places, &group.config, deadline);
        if let Some((rank, link)) = accepted.map_err(failed(missing))?
            && is_direct(&rank)
            && matches!(group.links[rank], ChannelLink::None)
        {
            group.links[rank] = ChannelLink::Direct(Box::new(link));
        }
    }
    Ok(())
}

/// A rank that a port reaches.
#[derive(Clone, Copy, Debug)]
struct FabricPeer {
    rank: usize,
    design: Design,
    token: u64,
    to: Option<Address>,
}

fn shape(config: &Config, design: Design, facts: &Facts) -> PipeShape {
    let channel = &config.channel;
    PipeShape {
        design,
        fill: channel.fill,
        ring_bytes: channel.ring_bytes,
        chunk_bytes: channel.chunk_bytes,
        zero_copy_from: channel.zero_copy_from,
        arrival: PipeArrival::of(facts),
    }
}

/// Connects with the ranks that a port reaches. Returns the place of each one's pipe.
fn join<P: MemoryPort>(
    (config, own, limit): &(Config, Introduction, Duration),
    fabric: Option<&mut ChannelFabric<P>>,
    transport: &'static str,
    peers: &[FabricPeer],
) -> Result<Vec<(usize, usize)>, Error> {
    let Some(fabric) = fabric.filter(|_| !peers.is_empty()) else { return Ok(Vec::new()) };
    let (deadline, facts) = (Instant::now() + *limit, fabric.facts());
    let failed = |rank: usize| move |problem: String| Error::Net { rank, transport, problem };
    for peer in peers.iter().filter(|peer| peer.rank < own.rank) {
        let to = peer.to.ok_or_else(|| failed(peer.rank)("it has no address there".into()))?;
        let shape = shape(config, peer.design, &facts);
        let introduction = Introduction { rank: own.rank, token: peer.token };
        fabric.connect(peer.rank, shape, introduction, &to, *limit).map_err(failed(peer.rank))?;
    }
    let expects = |rank: usize| {
        let peer = peers.iter().find(|peer| peer.rank == rank && rank > own.rank)?;
        Some(shape(config, peer.design, &facts))
    };
    while let Some(missing) = peers.iter().find(|peer| !fabric.is_ready(peer.rank)) {
        fabric.settle(&expects, *own, *limit).map_err(|(rank, why)| match rank {
            Some(rank) => failed(rank)(why),
            None => Error::Transport { transport, problem: why },
        })?;
        if Instant::now() > deadline {
            return Err(failed(missing.rank)(format!(
                "it did not connect within {limit:?} (NEMESIA_TIMEOUT)"
            )));
        }
        std::thread::yield_now();
    }
    exchange_first_bytes(fabric, transport, peers, deadline)
}

/// Exchanges a byte with each rank. Does not wait until ranks have confirmed the writes: a rank whose own bytes have
/// arrived may call nothing of its pipes for a while, so none may wait for its progress here.
fn exchange_first_bytes<P: MemoryPort>(
    fabric: &mut ChannelFabric<P>,
    transport: &'static str,
    peers: &[FabricPeer],
    deadline: Instant,
) -> Result<Vec<(usize, usize)>, Error> {
    let places: Vec<(usize, usize)> =
        peers.iter().filter_map(|peer| Some((peer.rank, fabric.place(peer.rank)?))).collect();
    let mut open: Vec<(usize, usize, bool, bool)> =
        places.iter().map(|&(rank, at)| (rank, at, false, false)).collect();
    while !open.is_empty() || !fabric.push_out() {
        for (rank, at, put, got) in &mut open {
            let failed = |problem| Error::Pipe { rank: *rank, problem };
            let mut byte = [FIRST_BYTE];
            if !*put {
                // SAFETY: the byte outlives the call; it is copied, because it is not lent.
                let from = unsafe { SendBuf::from_raw(byte.as_ptr(), 1) };
                *put = fabric.put(*at, &mut Gather::new(from), false).map_err(failed)? == 1;
            }
            if !*got {
                // SAFETY: the byte outlives the call, and is not lent.
                let into = unsafe { RecvBuf::from_raw(byte.as_mut_ptr(), 1) };
                *got = fabric.get(*at, &mut Scatter::new(into), false).map_err(failed)? == 1;
                if byte != [FIRST_BYTE] {
                    let problem =
                        format!("its first byte is {:#x}: build both with the same nemesia", byte[0]);
                    return Err(Error::Net { rank: *rank, transport, problem });
                }
            }
        }
        open.retain(|(_, _, put, got)| !(*put && *got));
        if Instant::now() > deadline {
            let rank = open.first().map_or(peers[0].rank, |it| it.0);
            let problem = "its pipe carries nothing: see NEMESIA_TIMEOUT".into();
            return Err(Error::Net { rank, transport, problem });
        }
        std::thread::yield_now();
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_survives_encoding_and_damage_is_refused() {
        let address = Address::new(&[1, 2, 255]);
        let card = ChannelCard { token: u64::MAX, shm: None, tcp: address, verbs: None };
        let text = card.encode();
        assert_eq!(ChannelCard::decode(&text), Ok(card));
        for text in ["", "2", "1.0.-.-.-", "2.x.-.-.-", "2.0.0.-.-", "2.0.-.-.-.-", "2.0.-.zz.-", "2.0..-.-"]
        {
            assert!(ChannelCard::decode(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_reason_of_another_process_is_cut_and_has_no_control_characters() {
        let long = failure(&Error::Transport { transport: "tcp", problem: "no\x1b[2J\n".repeat(1000) });
        assert!(long.len() <= 1 + 2 * MOST_REASON, "{}", long.len());
        let told = |text: &str| failed_elsewhere(3, text.strip_prefix(FAILED).unwrap()).to_string();
        assert!(told(&long).contains("rank 3") && told(&long).contains("no [2J no"), "{}", told(&long));
        for text in ["!", "!zz", "!abc", "!\u{e9}\u{e9}"] {
            assert!(told(text).contains("it cannot connect"), "{text}");
        }
    }

    #[test]
    fn a_preference_for_a_device_is_unmet_if_a_rank_is_reached_over_tcp() {
        let wishes = Config::default().net_port(Some(2));
        let [verbs, tcp] = [ChannelPort::Verbs, ChannelPort::Tcp].map(|port| Some((port, Design::ZeroCopy)));
        let unmet = unmet_device(&wishes, true, &[None, verbs, tcp]).unwrap();
        assert!(unmet.starts_with("NEMESIA_NET_PORT=2: rank 2 is reached over tcp"), "{unmet}");
        for (config, has_device, ports) in [
            (&wishes, true, [None, verbs, verbs]),
            (&wishes, false, [None, tcp, tcp]),
            (&Config::default(), true, [None, tcp, tcp]),
        ] {
            assert_eq!(unmet_device(config, has_device, &ports), None, "{has_device}, {ports:?}");
        }
    }
}
