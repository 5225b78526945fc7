//! The shared-memory transport on Linux: its segments are laid out, exchanged, validated and made into a port.

mod address;
mod calls;
mod connect;
mod extent;
mod joining;
mod lent;
mod links;
mod oversubscription;
mod peer;
pub mod pipe;
mod regions;
mod segments;
mod views;

use std::sync::{Arc, Weak};

use nemesia_core::link::token::LinkToken;
use nemesia_core::payload::ReceiveList;
use nemesia_core::port::{AccessError, RemoteRun};
use nemesia_core::shared::layout::{Geometry, LayoutError, MAX_PEERS};
use nemesia_core::shared::pool::CellRecord;
use nemesia_core::shared::port::{Host, PortConfig, ShmPort};
use nemesia_core::shared::sleep::{Sleep, SleepWord};
use nemesia_core::shared::window::SharedWindow;
use nemesia_core::spin::Oversubscription;
use nemesia_core::sync::FenceMode;
use nemesia_core::wire::mappable::MappableBytes;

use crate::bootstrap::Exchange;
use crate::config::{Config, SingleCopy};
use crate::error::Error;
use crate::events;
use crate::os::clock;
use crate::os::{
    CopyError, HandoffConnection, HeavyFence, ProcessOrigin, RemoteMemory, SegmentBacking, Watch,
    allow_any_reader, futex_wake, random,
};
use crate::route::{Facts, Met};
use crate::transport::hosts::RemoteRanks;
use crate::transport::net::StreamDoor;
use links::Links;
use peer::ShmWorld;

use lent::LentRanges;
use regions::MappedRegions;

pub(crate) use calls::{CallGrant, CallOutcome, CallTerms, Calls};
pub(crate) use connect::{ConnectTime, RankProcess};
pub(crate) use joining::JoiningProcess;
pub(crate) use lent::{LentRange, Loan};
pub(crate) use oversubscription::load_beside;
pub(crate) use regions::{PeerRegion, share_of, window_of};
use segments::{OwnSegments, PeerSegments};
pub(crate) use views::OwnSleep;

/// The port over mapped segments.
pub(crate) type Port = ShmPort<'static, Kernel, Links, Vec<CellRecord>>;

/// The operating-system services that the port uses.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// The memory of peers that can be read, one element per number.
    memories: Vec<Option<RemoteMemory>>,
    /// The connections, one per number; those of departed peers are closed.
    connections: Vec<Weak<HandoffConnection>>,
    /// The memory of this process that peers can map.
    pub(crate) lent: LentRanges,
    /// The regions of peers that are mapped here.
    pub(crate) regions: MappedRegions,
    /// The number of bytes from which copies from and to these regions are non-temporal.
    non_temporal_bytes: u64,
    /// The mappings into which the port's views point. Only `views` uses it.
    mappings: views::Mappings,
}

impl Kernel {
    /// Makes the services for so many processes, none of which is connected.
    fn new(config: &Config, places: usize, mappings: views::Mappings) -> Self {
        Self {
            memories: (0..places).map(|_| None).collect(),
            connections: (0..places).map(|_| Weak::new()).collect(),
            lent: LentRanges::default(),
            regions: MappedRegions::new(config.segments.backing),
            non_temporal_bytes: config.non_temporal_from(),
            mappings,
        }
    }

    /// Keeps the mapped segments from being unmapped in a forked child, which does not own them.
    pub(crate) fn leave_to_parent(&mut self) {
        self.regions.leave_to_parent();
        self.mappings.leave_to_parent();
    }

    /// Reads the memory of a peer. After a refusal it is not tried again.
    fn read(
        &mut self,
        peer: u32,
        read: impl FnOnce(&mut RemoteMemory) -> Result<(), CopyError>,
    ) -> Result<(), AccessError> {
        let Some(memory) = self.memories.get_mut(peer as usize) else { return Err(AccessError::Refused) };
        let read = memory.as_mut().map(read);
        match read {
            Some(Ok(())) => Ok(()),
            Some(Err(CopyError::Unreadable | CopyError::Absent)) => Err(AccessError::Range),
            _ => {
                if self.memories.get_mut(peer as usize).and_then(Option::take).is_some() {
                    events::single_copy_refused(peer);
                }
                Err(AccessError::Refused)
            }
        }
    }

    /// Returns the window of memory that a peer has described.
    fn window(&mut self, peer: u32, bytes: &MappableBytes) -> Option<&SharedWindow<'static>> {
        let Self { regions, connections, .. } = self;
        let connection = connections.get(peer as usize)?;
        let pid = || connection.upgrade().map(|connection| connection.peer().pid);
        regions.window(&PeerRegion::of_bytes(peer, bytes), pid).ok()
    }
}

impl Host for Kernel {
    #[cold]
    fn wake(&mut self, peer: u32, word: &SleepWord, how: Sleep) {
        match how {
            Sleep::Futex => {
                futex_wake(word.futex(), u32::MAX);
            }
            Sleep::Event => {
                let connection = self.connections.get(peer as usize).and_then(Weak::upgrade);
                // If the packet cannot be sent, the peer is gone or has unread wake packets.
                let _ = connection.map(|connection| connection.send_wake());
            }
        }
    }

    fn ticks(&self) -> Option<u64> {
        Some(clock::ticks())
    }

    fn can_pull(&self, peer: u32) -> bool {
        self.memories.get(peer as usize).is_some_and(Option::is_some)
    }

    fn pull(&mut self, peer: u32, address: u64, to: &mut [u8]) -> Result<(), AccessError> {
        self.read(peer, |memory| memory.read(address, to))
    }

    fn pull_runs(
        &mut self,
        peer: u32,
        from: impl Iterator<Item = RemoteRun>,
        to: &mut ReceiveList<'_>,
    ) -> Result<(), AccessError> {
        self.read(peer, |memory| memory.read_runs(from, to))
    }

    fn mappable(&self, address: u64, len: usize) -> Option<MappableBytes> {
        self.lent.find(address, len)
    }

    fn can_map(&self, peer: u32, bytes: &MappableBytes) -> bool {
        self.regions.may_map(&PeerRegion::of_bytes(peer, bytes))
    }

    fn get_mapped(&mut self, peer: u32, from: &MappableBytes, at: u64, to: &mut [u8]) -> bool {
        let non_temporal = to.len() as u64 >= self.non_temporal_bytes;
        let (Some(window), Some(at)) = (self.window(peer, from), from.offset.checked_add(at)) else {
            return false;
        };
        if non_temporal { window.get_non_temporal(at, to) } else { window.get(at, to) }
    }

    fn put_mapped(&mut self, peer: u32, to: &MappableBytes, at: u64, from: &[u8]) -> bool {
        let non_temporal = from.len() as u64 >= self.non_temporal_bytes;
        let (Some(window), Some(at)) = (self.window(peer, to), to.offset.checked_add(at)) else {
            return false;
        };
        if non_temporal { window.put_non_temporal(at, from) } else { window.put(at, from) }
    }

    fn push(&mut self, peer: u32, address: u64, from: &[u8]) -> bool {
        let Self { memories, connections, .. } = self;
        let Some(memory) = memories.get_mut(peer as usize).and_then(Option::as_mut) else { return false };
        let connection = connections.get(peer as usize).and_then(Weak::upgrade);
        let is_alive = || connection.is_some_and(|connection| connection.is_alive());
        // SAFETY: the peer's engine has offered this address for this message: it lies in the buffer of a posted
        // receive, which belongs to that engine alone. A dishonest peer names an address in its own memory.
        unsafe { memory.write(address, from, is_alive) }.is_ok()
    }
}

/// Makes places for peers with smaller numbers than this.
pub(crate) fn make_places(port: &mut Port, count: usize) {
    let host = port.host_mut();
    if count > host.connections.len() {
        // Each time as many again, so that a peer costs the same, however many there are.
        let count = count.next_power_of_two().min(MAX_PEERS as usize);
        host.memories.resize_with(count, || None);
        host.connections.resize_with(count, Weak::new);
        host.mappings.grow(count);
        port.grow_links(|links| links.grow(count));
    }
}

/// Frees what a closed link with a peer had: the segments of both sides, the peer's regions, and the means to read its
/// memory.
pub(crate) fn release_link(port: &mut Port, number: usize) {
    let Kernel { memories, connections, regions, .. } = port.host_mut();
    regions.forget(number as u32);
    memories.get_mut(number).map(Option::take);
    connections.get_mut(number).map(std::mem::take);
    views::unmap(port, number as u32);
}

/// Returns the facts about a peer; `unreadable` is the reason why its memory cannot be read.
fn met(segments: &PeerSegments, expedited: bool, unreadable: Option<String>) -> Met {
    let own = &segments.own;
    let page = own.huge().then(|| own.page_size());
    Met { expedited, sealed: own.write_sealed(), page, unreadable }
}

/// This process, as others of its machine connect with it.
#[derive(Debug)]
pub(crate) struct LocalProcess {
    world: Arc<ShmWorld>,
    ours: Arc<OwnSegments>,
}

impl LocalProcess {
    /// Begins to listen for calls of this machine, as a process without ranks beside it. `door` is the place for calls
    /// of other machines, or why there is none.
    pub(crate) fn listen(&self, watch: &mut Watch, door: Result<StreamDoor, String>) -> Result<Calls, Error> {
        let place = (self.world.bind()?, door);
        Calls::listen((Arc::clone(&self.world), Arc::clone(&self.ours)), place, &[], watch)
    }

    /// Returns the number of previous starts of its rank.
    pub(crate) fn incarnation(&self) -> u64 {
        self.world.incarnation
    }
}

/// The results of attaching to the transport.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) port: Port,
    pub(crate) sleep: OwnSleep,
    pub(crate) watch: Watch,
    pub(crate) fence: HeavyFence,
    pub(crate) load: Oversubscription,
    pub(crate) facts: Facts,
    /// Warnings about features that are not available (huge pages, seals, cheap fences).
    pub(crate) warnings: Vec<String>,
    /// The identity stamp by which peers recognise this process's memory.
    pub(crate) stamp: Box<u64>,
    pub(crate) here: LocalProcess,
    /// The ranks that had left before this process joined.
    pub(crate) gone: Vec<usize>,
    /// The ranks on other machines. Their port is not connected yet.
    pub(crate) remote: RemoteRanks,
    /// How this process and others call each other, and when the ranks connect, if it takes calls.
    pub(crate) calls: Option<(Calls, ConnectTime)>,
    /// The ranks, with their addresses, if this process takes calls. None is connected yet.
    pub(crate) ranks: Vec<RankProcess>,
    /// The process to which these objects belong.
    pub(crate) origin: Arc<ProcessOrigin>,
}

/// Makes our segments, finds the other processes of the world, and builds the port. No peer is connected yet.
pub(crate) fn attach(
    config: &Config,
    exchange: &mut dyn Exchange,
    (rank, size): (u32, u32),
) -> Result<Attached, Error> {
    let geometry = sizes(config, size)?;
    let origin = Arc::new(ProcessOrigin::here(size as usize)?);
    let token = LinkToken::from_bytes(random()?);
    let epoch = token.epoch();
    let mut warnings = Vec::new();
    let ours = Arc::new(OwnSegments::new(config, geometry, epoch, &mut warnings)?);
    ask_for_all(config, &origin, &mut warnings)?;
    let fence = HeavyFence::register();
    if !fence.is_expedited() {
        config.give_up(NO_MEMBARRIER.into(), &mut warnings)?;
    }
    let cpus = oversubscription::allowed();
    // At a fixed address while peers may read it: until this process ends.
    let stamp = Box::new(epoch);
    let address = if config.single_copy == SingleCopy::Off { 0 } else { (&raw const *stamp) as u64 };
    let expedited = fence.is_expedited();
    let world = Arc::new(ShmWorld {
        config: config.clone(),
        geometry,
        rank,
        size,
        token,
        expedited,
        cpus,
        stamp: address,
        incarnation: exchange.incarnation(),
        sealed: ours.own.write_sealed(),
        restarts: exchange.restarts(),
    });
    let met = connect::connect(&world, (&ours, &origin), exchange)?;
    let connect::ShmMeeting { watch, gone, remote, calls, ranks } = met;
    let expedited = all_expedited(&world, &ranks, &mut warnings)?;
    let fences = if expedited { FenceMode::Asymmetric } else { FenceMode::Symmetric };
    let load = load_by(&world, &ranks, &remote);
    let met = (0..size).map(|_| None).collect();
    let facts = Facts { expedited, met, remote: Vec::new(), unused: Vec::new() };
    let kernel = |mappings| Kernel::new(config, size as usize, mappings);
    let port = views::port(port_config(config, fences), &ours, kernel, &origin)?;
    let sleep = OwnSleep::new(&ours)?;
    Ok(Attached {
        port,
        sleep,
        watch,
        fence,
        load,
        facts,
        warnings,
        stamp,
        here: LocalProcess { world, ours },
        gone,
        remote,
        calls,
        ranks,
        origin,
    })
}

fn port_config(config: &Config, fences: FenceMode) -> PortConfig {
    PortConfig {
        fastbox_limit: config.fastbox_bytes(),
        eager_bytes: config.local_eager_bytes(),
        fences,
        announce: true,
        pieces: config.pieces(),
        stores: config.cell_stores,
        clocked: config.single_copy == SingleCopy::Auto,
    }
}

/// Returns whether all processes have registered for `membarrier`, as far as is known. Others are named in a warning.
fn all_expedited(world: &ShmWorld, ranks: &[RankProcess], warnings: &mut Vec<String>) -> Result<bool, Error> {
    let is_without = |rank: &usize| !ranks[*rank].expedited && !ranks[*rank].is_remote;
    let preference = fenced_by((0..ranks.len()).filter(is_without));
    let all = preference.is_none();
    preference.map_or(Ok(()), |preference| world.config.give_up(preference, warnings))?;
    Ok(world.expedited && all)
}

/// Returns how the processes of the world share our processors.
fn load_by(world: &ShmWorld, ranks: &[RankProcess], remote: &RemoteRanks) -> Oversubscription {
    // The best guess for ranks of which nothing is known is that they may run on our processors.
    let of = |rank: usize| ranks.get(rank).map_or((world.cpus, 0), |process| (process.cpus, process.pid));
    let others =
        (0..world.size as usize).filter(|rank| *rank != world.rank as usize && !remote.contains(*rank));
    oversubscription::load(world.cpus, &others.map(of).collect::<Vec<_>>())
}

/// Returns the sizes of our segments, if there can be links with all processes of the world.
fn sizes(config: &Config, processes: u32) -> Result<Geometry, Error> {
    if processes > MAX_PEERS {
        let (field, value) = ("number of processes", processes.into());
        let error = LayoutError::Geometry { field, value, must: "1 to 4096" };
        return Err(crate::ConfigError::from(error).into());
    }
    Ok(config.geometry()?)
}

/// Requests the optional features from the kernel, and records those that are refused as warnings.
fn ask_for_all(config: &Config, origin: &ProcessOrigin, warnings: &mut Vec<String>) -> Result<(), Error> {
    if !origin.is_known() {
        config.give_up(NO_WIPING.into(), warnings)?;
    }
    if config.ptracer && !allow_any_reader() {
        config.give_up("NEMESIA_PTRACER=1: the kernel refuses it".into(), warnings)?;
    }
    Ok(())
}

/// Returns the memory of a peer if the kernel lets us read it, or the reason for the refusal. `memory`: if it can be
/// identified.
fn readable(config: &Config, memory: Option<RemoteMemory>) -> Result<RemoteMemory, String> {
    if config.single_copy == SingleCopy::Off {
        return Err(OFF.to_owned());
    }
    let memory = memory.ok_or_else(|| {
        "its process has no number here, or forbids reading its memory: run all in one pid namespace, with \
         the same NEMESIA_SINGLE_COPY"
            .to_owned()
    })?;
    memory.permitted().map(|()| memory).map_err(CopyError::explain)
}

/// Not an unmet preference: no setting changes it.
const ORDINARY: &str = "memory that peers write (the inbox, and regions that are allocated for reading and writing) is \
                        on ordinary pages: a process that can write a huge page could remove it, and the next \
                        access would be a SIGBUS";
const OFF: &str = "NEMESIA_SINGLE_COPY is off";
const NO_WIPING: &str =
    "the use of this endpoint in a forked child is not detected, which needs Linux 4.14 (MADV_WIPEONFORK)";
const NO_MEMBARRIER: &str = "every send needs a full fence: membarrier is refused here; it needs Linux 4.14, and a \
                             seccomp profile that permits it";

/// Returns the reason why peers could write to our own segment, and the remedy.
fn unsealed(backing: SegmentBacking) -> &'static str {
    match backing {
        SegmentBacking::DevShm => {
            "peers could write to our own segment: files in /dev/shm cannot be sealed; use NEMESIA_BACKING=memfd"
        }
        SegmentBacking::Memfd => {
            "peers could write to our own segment: this kernel cannot seal it against them; use Linux 5.1 or later"
        }
    }
}

/// Returns the cost of peers that have not registered for `membarrier`, if there are any.
fn fenced_by(mut without: impl Iterator<Item = usize>) -> Option<String> {
    let first = without.next()?;
    let more = match without.count() {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    Some(format!(
        "every send needs a full fence: membarrier is refused to rank {first}{more}; allow it there"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_that_cost_a_fence_are_named() {
        assert_eq!(fenced_by([].into_iter()), None);
        assert!(fenced_by([3].into_iter()).unwrap().contains("to rank 3; allow"));
        assert!(fenced_by([3, 5, 7].into_iter()).unwrap().contains("to rank 3 and 2 more; allow"));
    }

    #[cfg(feature = "tracing")]
    #[test]
    fn memory_that_cannot_be_read_any_more_is_reported_once() {
        use crate::events::tests::{heard, listen};

        listen();
        let memory = RemoteMemory::new(i32::MAX, crate::os::IdentityStamp { address: 4096, value: 1 });
        let memories = (0..1234).map(|_| None).chain([memory]).collect();
        let options = crate::os::SegmentOptions::default();
        let config = Config::default();
        let ours = OwnSegments::new(&config, config.geometry().unwrap(), 7, &mut Vec::new()).unwrap();
        let mappings = views::Mappings::of(Arc::new(ours));
        let (lent, regions) = (LentRanges::default(), MappedRegions::new(options.backing));
        let connections = Vec::new();
        let mut kernel =
            Kernel { memories, connections, lent, regions, non_temporal_bytes: u64::MAX, mappings };
        assert!(kernel.can_pull(1234));
        assert_eq!(kernel.pull(1234, 4096, &mut [0; 8]), Err(AccessError::Refused));
        assert!(!kernel.can_pull(1234) && heard(&["WARN", "single copy refused", "rank=1234"]));
        assert_eq!(kernel.pull(1233, 4096, &mut [0; 8]), Err(AccessError::Refused));
        assert!(!heard(&["rank=1233"]));
    }
}
