//! Processes whose links are driven by the machine that ships (`core/src/link/machine.rs`), over carriers that lose,
//! repeat, delay and reorder datagrams, and over connections that break.
//!
//! Processes speak to each other, disconnect, close, die, stop and are restarted; some are copies of machines, have
//! other versions, sizes or few places; strangers connect, say nothing or nonsense, guess tokens, claim addresses and
//! repeat calls. An oracle knows what has happened. See `verification/README.md`.

mod actions;
mod arrivals;
mod checks;
mod network;
mod owner;
mod strangers;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nemesia_core::link::address::{AddressKinds, LinkAddress};
use nemesia_core::link::machine::slots::RankSlot;
use nemesia_core::link::machine::table::{LinkProcess, Links};
use nemesia_core::link::machine::terms::{
    CarrierKind, LinkEnding, LinkLimits, LinkRef, LinkStage, PathResult,
};
use nemesia_core::link::token::LinkToken;
use nemesia_core::link::wire::LinkService;
use nemesia_core::slab::{List, Slot};

use crate::rng::Rng;
use crate::tally::{Event, Tally};
use crate::trace::Trace;
use crate::violation::{Check, Violation};
use network::{Happening, LinkNetwork};
use owner::{Hands, LinkDesk, SimProcess, Told, Truth};

/// The service of all links.
const ENGINE: (LinkService, u32) = (LinkService::Engine, 0);
/// The links that one call of `attend` examines.
const BUDGET: usize = 64;
/// The longest times, in microseconds: between two actions, and until an owner has freed a link.
const BETWEEN: usize = 60_000;
const UNTIL_FREE: usize = 300_000;
/// Most events for each process of a world that comes to rest. A process without places refuses each call, and each is
/// repeated ten times a second until the limit.
const MOST_EVENTS: usize = 50_000;

/// A world.
pub(crate) struct LinksWorld {
    rng: Rng,
    network: LinkNetwork,
    truth: Truth,
    processes: Vec<Option<SimProcess>>,
    timers: BTreeSet<(Duration, usize)>,
    limits: LinkLimits,
    /// The latest process of each rank.
    ranks: Vec<usize>,
    most_processes: usize,
    hosts: usize,
    has_datagrams: bool,
    is_varied: bool,
    is_resting: bool,
    pub(crate) tally: Tally,
    trace: Trace,
}

impl LinksWorld {
    pub(crate) fn new(mut rng: Rng, trace: Trace) -> Result<Self, Violation> {
        let network = LinkNetwork::new(Rng::new(rng.next(), 0));
        let mut limits = LinkLimits::new(Duration::from_secs(12));
        (limits.most_unproved, limits.most_undecided) = (rng.pick(&[2, 8, 256]), rng.pick(&[1, 4, 256]));
        let count = if rng.one_in(60) { 120 } else { rng.pick(&[2, 2, 3, 4, 6, 9]) };
        let ranks = if rng.one_in(2) { rng.below(count + 1) } else { 0 };
        let mut world = Self {
            network,
            truth: Truth::default(),
            processes: Vec::new(),
            timers: BTreeSet::new(),
            limits,
            ranks: Vec::new(),
            most_processes: count,
            hosts: 1 + rng.below(4),
            has_datagrams: rng.one_in(2),
            is_varied: rng.one_in(3),
            is_resting: false,
            rng,
            tally: Tally::default(),
            trace,
        };
        // The addresses of all ranks are known before the first one is open.
        world.ranks = (0..ranks).collect();
        let addresses: Vec<_> = (0..count).map(|_| world.draw_address()).collect();
        for (at, address) in addresses.iter().enumerate() {
            world.truth.processes.insert(*address.encode().bytes(), at);
            let in_world = if at < ranks { ranks } else { 0 };
            let known = addresses.iter().take(in_world).map(|it| RankSlot::new(it.encode(), 0)).collect();
            let rank = (at < ranks).then_some(at as u32);
            world.open(*address, rank, 0, known);
        }
        Ok(world)
    }

    fn note(&mut self, event: impl FnOnce() -> String) {
        self.trace.note(self.network.now.as_micros() as u64, event);
    }

    /// Draws the address of the next process.
    fn draw_address(&mut self) -> LinkAddress {
        let at = self.truth.hosts.len();
        let host = self.rng.below(self.hosts) as u8;
        let mut token = [0; 16];
        token.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&self.rng.next().to_le_bytes()));
        let mut kinds = AddressKinds::IP;
        if self.has_datagrams {
            kinds = kinds.with(AddressKinds::DATAGRAMS);
        }
        if self.rng.one_in(4) {
            kinds = kinds.with(AddressKinds::APART);
        }
        // A process without IP has its place for datagrams only.
        let has_ip = !self.has_datagrams || self.rng.one_in(2);
        if !has_ip {
            kinds = AddressKinds::DATAGRAMS.with(AddressKinds::GID).with(AddressKinds::APART);
        }
        self.truth.hosts.push(host);
        self.truth.pids.push(1000 + at as u32);
        self.truth.shapes.push(if self.is_varied && self.rng.one_in(6) { 4096 } else { 8192 });
        let port = if has_ip { 1 + at as u16 } else { 0 };
        if has_ip {
            self.truth.ports.insert(port, at);
        }
        LinkAddress {
            kinds,
            port,
            pid: 1000 + at as u32,
            token: LinkToken::from_bytes(token),
            // Hosts 2 and 3 are copies of one machine.
            machine: u64::from(host.min(2)),
            space: 1,
            datagrams: if self.has_datagrams { (1, 1 + at as u32, 5) } else { (0, 0, 0) },
            place: {
                let mut place = [0; 16];
                (place[0], place[1]) = (0xfd, host);
                place
            },
        }
    }

    /// Opens a process.
    fn open(&mut self, address: LinkAddress, rank: Option<u32>, incarnation: u64, known: Vec<RankSlot>) {
        let at = self.processes.len();
        let version = if self.is_varied && self.rng.one_in(8) { 2 } else { 1 };
        // A further process may be a rank of another world.
        let claimed = rank.or_else(|| self.rng.one_in(3).then(|| self.rng.below(4) as u32));
        let process = LinkProcess { rank: claimed, incarnation, version, ..LinkProcess::alone(address) };
        // A rank has a number and two places for each other rank: an ended process keeps one until the next process of
        // its rank is readmitted.
        let has_room = rank.is_some() || self.most_processes > 20;
        let [places, carriers] =
            if has_room { [300, 300] } else { [self.rng.pick(&[6, 16, 40]), self.rng.pick(&[4, 16, 80])] };
        let storage = (
            (0..places).map(|_| Slot::default()).collect(),
            vec![List::new(); 8],
            (0..carriers).map(|_| Slot::default()).collect(),
            known,
        );
        let seeds = [0, 1].map(|half| {
            let mut seed = [half; 32];
            seed[..8].copy_from_slice(&self.rng.next().to_le_bytes());
            seed
        });
        let links = Links::new(process, self.limits, storage, seeds);
        let most_numbers = if !has_room && self.rng.one_in(3) { 2 } else { 200 };
        let is_short = most_numbers == 2 || places < 40 || carriers < 80;
        let desk = LinkDesk {
            at,
            most_numbers,
            made: BTreeMap::new(),
            told: Vec::new(),
            peers: BTreeMap::new(),
            admits: !self.rng.one_in(8),
            last_full: Duration::ZERO,
            is_short,
        };
        self.truth.alive.insert(at);
        self.processes.push(Some(SimProcess {
            links,
            desk,
            address: address.encode(),
            rank,
            is_closing: false,
            stopped: None,
            last_stop: Duration::ZERO,
            inbox: Vec::new(),
            timer: Duration::MAX,
            since: BTreeMap::new(),
        }));
    }

    /// Lets the machine of a process act, and takes what it reports.
    fn act<R>(
        &mut self,
        at: usize,
        author: Option<usize>,
        run: impl FnOnce(&mut Links<owner::VecLinks>, Duration, &mut Hands<'_>) -> R,
    ) -> Option<R> {
        let now = self.network.now;
        let process = self.processes.get_mut(at)?.as_mut()?;
        let mut hands =
            Hands { desk: &mut process.desk, network: &mut self.network, truth: &mut self.truth, author };
        let result = run(&mut process.links, now, &mut hands);
        let told = std::mem::take(&mut process.desk.told);
        let next = process.links.next();
        if next != process.timer {
            self.timers.remove(&(process.timer, at));
            process.timer = next;
            self.timers.insert((next, at));
        }
        for told in told {
            self.hear(at, &told);
        }
        Some(result)
    }

    /// The owner of a process hears of a link.
    fn hear(&mut self, at: usize, told: &Told) {
        let until_free = if self.rng.one_in(6) { 8_000_000 } else { UNTIL_FREE };
        let when = self.network.later(until_free);
        match *told {
            Told::Opened(link) => self.opened(at, link),
            Told::Ended(link, end) => {
                let peer = self.peer_of(at, link);
                self.note(|| format!("{at}: the link with {peer} ends: {end:?}"));
                if end == LinkEnding::Unreachable || matches!(end, LinkEnding::Refused(_)) {
                    self.truth.given_up.insert((at, peer));
                }
                let made = self.processes[at].as_ref().and_then(|process| process.desk.made.get(&link));
                let was_open = made.is_some_and(|made| made.is_open);
                self.check_end((at, peer), was_open, end);
                self.network.schedule(when, at, Happening::Free(peer));
            }
            Told::Restarted(rank, incarnation) => {
                self.note(|| format!("{at}: rank {rank} was restarted {incarnation} times"));
                // It waits until it is readmitted.
                self.truth.disturb(at, self.ranks[rank as usize]);
                let known = self.processes[at].as_ref().and_then(|process| process.links.rank(rank));
                if known.is_none_or(|(_, known)| known >= incarnation) {
                    self.truth
                        .violate(format!("{at}: a former process of rank {rank} has called: {incarnation}"));
                }
                let when = self.network.later(50_000);
                self.network.schedule(when, at, Happening::Launcher(rank));
            }
        }
    }

    fn opened(&mut self, at: usize, link: LinkRef) {
        let peer = self.peer_of(at, link);
        self.note(|| format!("{at}: the link with {peer} is open"));
        self.tally.count(Event::LinkOpened);
        let Some(process) = self.processes[at].as_mut() else { return };
        let Some(made) = process.desk.made.get_mut(&link) else {
            return self.truth.violate(format!("{at}: a link with {peer} is open that has nothing"));
        };
        if made.is_open {
            self.truth.violate(format!("{at}: the link with {peer} is opened twice"));
        }
        made.is_open = true;
        let made = *made;
        self.truth.opened.insert(made.own);
        // Only *welcome* shows it to the caller; over hand-off its confirmation cannot be refused any more.
        if made.is_caller && made.kind != CarrierKind::HandOff && !self.truth.opened.contains(&made.peers) {
            self.truth.violate(format!("{at} is open to {peer}, which has not welcomed it"));
        }
        let own = made.own;
        self.check_opened(at, peer);
        let when = self.network.now + Duration::from_secs(6);
        self.network.schedule(when, at, Happening::Probe(peer, own));
    }

    /// Returns the process at the other end of a link.
    fn peer_of(&self, at: usize, link: LinkRef) -> usize {
        let process = self.processes[at].as_ref();
        let peer = process.and_then(|process| process.links.peer(link));
        peer.and_then(|(address, _)| self.truth.find(address)).unwrap_or(usize::MAX)
    }

    /// Returns the link of a process with a peer.
    fn link(&self, at: usize, peer: usize) -> Option<LinkRef> {
        let address = self.truth.processes.iter().find(|(_, of)| **of == peer)?.0;
        let address = nemesia_core::peers::PeerAddress::from_bytes(*address);
        self.processes.get(at)?.as_ref()?.links.find(&address, ENGINE.0, ENGINE.1)
    }

    fn stage(&self, at: usize, peer: usize) -> LinkStage {
        let process = self.processes.get(at).and_then(Option::as_ref);
        self.link(at, peer)
            .and_then(|link| process.map(|process| process.links.stage(link)))
            .unwrap_or_default()
    }

    fn is_alive(&self, at: usize) -> bool {
        self.truth.alive.contains(&at)
    }

    /// Returns whether a process listens at its places.
    fn listens(&self, at: usize) -> bool {
        let process = self.processes.get(at).and_then(Option::as_ref);
        process.is_some_and(|process| !process.is_closing) && self.is_alive(at)
    }

    /// Something happens to a process, now or when it runs again.
    fn happen(&mut self, at: usize, happening: Happening) {
        let resumes = matches!(happening, Happening::Resume);
        if let Happening::Accept(id) = happening {
            return self.accept(at, id);
        }
        if let Happening::Message(id, side, bytes) = &happening
            && self.network.connections.get(id).is_some_and(|it| it.stranger.is_some() && *side == 0)
        {
            return self.stranger_hears(*id, &bytes.clone());
        }
        let Some(process) = self.processes.get_mut(at).and_then(Option::as_mut) else { return };
        if process.stopped.is_some() && !resumes {
            process.inbox.push(happening);
            return;
        }
        if resumes {
            process.stopped = None;
            process.last_stop = self.network.now;
            for happening in std::mem::take(&mut process.inbox) {
                self.happen(at, happening);
            }
            return;
        }
        self.handle(at, happening);
    }

    fn handle(&mut self, at: usize, happening: Happening) {
        match happening {
            Happening::Reached(id) => {
                let Some(connection) = self.network.connections.get(&id) else { return };
                let side = connection.sides[0];
                if side.process != at || connection.stranger.is_some() {
                    return self.owner_accepts(at, id);
                }
                let Some(carrier) = side.carrier.filter(|_| !side.is_closed) else { return };
                self.act(at, None, |links, now, hands| links.reached(carrier, now, hands));
            }
            Happening::Failed(id, fault) => {
                let side = self.network.connections.remove(&id).map(|connection| connection.sides[0]);
                let Some(carrier) = side.filter(|side| !side.is_closed).and_then(|side| side.carrier) else {
                    return;
                };
                self.act(at, None, |links, now, hands| links.failed(carrier, fault, now, hands));
            }
            Happening::Message(id, side, bytes) => {
                self.note_departed(at, id, side);
                self.note(|| format!("{at} gets a message of kind {} over {id}", bytes[3]));
                let Some(carrier) = self.network.read(id, side).and_then(|side| side.carrier) else { return };
                self.act(at, None, |links, now, hands| links.received(carrier, &bytes, now, hands));
            }
            Happening::Partial(id) => {
                let side = self.network.connections.get(&id).map(|connection| connection.sides[1]);
                let Some(carrier) = side.filter(|side| !side.is_closed).and_then(|side| side.carrier) else {
                    return;
                };
                self.act(at, None, |links, _, _| links.partial(carrier));
            }
            Happening::End(id, side) => self.connection_ends(at, id, side),
            Happening::Datagram(author, bytes) if self.listens(at) => {
                self.note(|| format!("{at} gets a datagram of kind {} of {author}", bytes[3]));
                self.act(at, Some(author), |links, now, hands| links.datagram(&bytes, now, hands));
            }
            Happening::Datagram(..) | Happening::Accept(_) | Happening::Resume => {}
            Happening::ProcessEnded(peer) => {
                self.with_link(at, peer, |links, link, now, hands| links.process_ended(link, now, hands));
            }
            Happening::Drained(peer) => {
                self.with_link(at, peer, |links, link, now, hands| links.drained(link, now, hands));
            }
            Happening::Free(peer) => {
                self.with_link(at, peer, |links, link, now, hands| links.free(link, now, hands));
            }
            happening => self.handle_owner(at, &happening),
        }
    }

    fn handle_owner(&mut self, at: usize, happening: &Happening) {
        match *happening {
            Happening::Path(peer, own, is_up) => {
                let Some(link) = self.link(at, peer) else { return };
                let made = self.processes[at].as_ref().and_then(|process| process.desk.made.get(&link));
                if made.is_none_or(|made| made.own != own) {
                    return;
                }
                self.act(at, None, |links, now, hands| {
                    let result = if is_up {
                        PathResult::Up(1, "it took time")
                    } else {
                        PathResult::Failed(hands.no_path(peer))
                    };
                    links.path(link, result, now, hands);
                });
            }
            Happening::Probe(peer, own) => self.probe(at, peer, own),
            Happening::Launcher(rank) => {
                let Some(latest) = self.ranks.get(rank as usize).copied() else { return };
                // The launcher knows the latest process of each rank.
                let is_true = matches!(self.stage(at, latest), LinkStage::Held);
                let waits = self
                    .act(at, None, |links, now, hands| links.restarted(rank, is_true, now, hands))
                    .unwrap_or(false);
                if waits {
                    self.tally.count(Event::LinkRestarted);
                    let until_readmitted = if self.rng.one_in(4) { 40_000_000 } else { 500_000 };
                    let when = self.network.later(until_readmitted);
                    self.network.schedule(when, at, Happening::Readmit(rank));
                }
            }
            Happening::Readmit(rank) => {
                let is_left = self.former(at, rank).is_some();
                if is_left {
                    let when = self.network.later(200_000) + Duration::from_millis(1);
                    return self.network.schedule(when, at, Happening::Readmit(rank));
                }
                let latest = self.ranks[rank as usize];
                let link = self.act(at, None, |links, now, hands| links.readmit(rank, now, hands)).flatten();
                if let (Some(link), Some(process)) = (link, self.processes[at].as_mut()) {
                    process.desk.peers.entry(link).or_insert(latest);
                    self.tally.count(Event::LinkReadmitted);
                }
            }
            _ => {}
        }
    }

    /// Returns a former process of a rank of which a process has something left.
    fn former(&self, at: usize, rank: u32) -> Option<usize> {
        let latest = self.ranks[rank as usize];
        let process = self.processes[at].as_ref()?;
        let is_former = |(link, peer): (&LinkRef, &usize)| {
            let is_of = process.links.peer(*link).is_some_and(|(_, of)| of == Some(rank));
            (is_of && *peer != latest && process.desk.made.contains_key(link)).then_some(*peer)
        };
        process.desk.peers.iter().find_map(is_former)
    }

    fn with_link(
        &mut self,
        at: usize,
        peer: usize,
        run: impl FnOnce(&mut Links<owner::VecLinks>, LinkRef, Duration, &mut Hands<'_>),
    ) {
        if let Some(link) = self.link(at, peer) {
            self.act(at, None, |links, now, hands| run(links, link, now, hands));
        }
    }

    /// The path of an open link is probed: datagrams bring no end.
    fn probe(&mut self, at: usize, peer: usize, own: u32) {
        let Some(link) = self.link(at, peer) else { return };
        let made = |at: usize, link: Option<LinkRef>| {
            let process = self.processes.get(at).and_then(Option::as_ref)?;
            process.desk.made.get(&link?).copied().filter(|made| made.is_open)
        };
        let Some(ours) = made(at, Some(link)).filter(|made| made.own == own) else { return };
        let theirs = made(peer, self.link(peer, at));
        let is_stopped =
            self.processes.get(peer).and_then(Option::as_ref).is_some_and(|it| it.stopped.is_some());
        if is_stopped || theirs.is_some_and(|theirs| (theirs.own, theirs.peers) == (ours.peers, ours.own)) {
            let when = self.network.now + Duration::from_secs(2);
            return self.network.schedule(when, at, Happening::Probe(peer, own));
        }
        self.note(|| format!("{at}: the path to {peer} is lost"));
        let is_known = self.truth.opened.contains(&ours.peers) || self.truth.is_cut(at, peer);
        let has_ended = self.truth.left.contains(&(peer, at)) || self.truth.given_up.contains(&(peer, at));
        if self.listens(peer) && !is_known && !has_ended {
            self.truth.violate(format!("{at} is open to {peer}, which never is"));
        }
        self.truth.is_losing = true;
        self.truth.cut.insert([at.min(peer), at.max(peer)]);
        self.act(at, None, |links, now, hands| links.path_lost(link, now, hands));
        self.truth.is_losing = false;
    }

    /// Lets the next event happen, unless it lies after this time.
    fn pass(&mut self, until: Duration) -> Result<bool, Violation> {
        let event = self.network.events.first_key_value().map_or(Duration::MAX, |((at, _), _)| *at);
        let timer = self.timers.first().map_or(Duration::MAX, |(at, _)| *at);
        let at = event.min(timer);
        if at > until || at == Duration::MAX {
            self.network.now = self.network.now.max(until.min(self.network.now + Duration::from_secs(3600)));
            return Ok(false);
        }
        self.network.now = self.network.now.max(at);
        if timer < event {
            if let Some((_, at)) = self.timers.pop_first() {
                self.attend(at);
            }
        } else if let Some((_, (at, happening))) = self.network.events.pop_first() {
            self.happen(at, happening);
        }
        match self.truth.violation.take() {
            Some(what) => Err(Violation(what)),
            None => Ok(true),
        }
    }

    /// A process does what is due.
    fn attend(&mut self, at: usize) {
        let now = self.network.now;
        let Some(process) = self.processes.get_mut(at).and_then(Option::as_mut) else { return };
        if let Some(until) = process.stopped {
            process.timer = until + Duration::from_micros(1);
            self.timers.insert((process.timer, at));
            return;
        }
        process.timer = Duration::MAX;
        self.act(at, None, |links, now, hands| links.attend(BUDGET, now, hands));
        let process = self.processes[at].as_mut();
        if let Some(process) = process.filter(|process| process.timer <= now) {
            // The rest follows at once.
            self.timers.remove(&(process.timer, at));
            process.timer = now + Duration::from_micros(1);
            self.timers.insert((process.timer, at));
        }
    }

    /// Makes one action, and lets some time pass.
    pub(crate) fn step(&mut self) -> Check {
        self.action()?;
        let until = self.network.later(BETWEEN);
        while self.pass(until)? {}
        self.check_limits()
    }

    /// Returns the counts, and the events if they were recorded.
    pub(crate) fn result(&mut self) -> (Tally, Vec<String>) {
        self.tally.add_to(Event::LinkDropped, self.network.dropped);
        self.tally.add_to(Event::LinkRepeated, self.network.repeated);
        (self.tally, self.trace.take())
    }
}
