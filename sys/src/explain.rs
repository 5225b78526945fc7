//! The usable transports, the reasons against others, and the memory bill.

use std::os::fd::AsRawFd;

use nemesia_core::engine::active::ACTIVE_BYTES;
use nemesia_core::engine::rma::{Reply, WINDOW};
use nemesia_core::engine::{Peer, Request};
use nemesia_core::flow::replies;
use nemesia_core::shared::layout::{HEADER_PAGE, LayoutError, MAX_PEERS, queue_of};
use nemesia_core::shared::port::Link;
use nemesia_core::slab::{List, Slot};

use crate::config::{Config, FIRST_REQUESTS, SingleCopy};
use crate::os::borrow::open_foreign;
use crate::os::interfaces;
use crate::os::{
    CopyError, HeavyFence, HugePages, IdentityStamp, RemoteMemory, Segment, SegmentBacking, SegmentOptions,
    ShmError, limits, numa,
};
use crate::transport::net;
use crate::verbs::{NONE, VerbsError, choose, survey};

/// The number of bytes of one entry or exit in the ring; 0 in builds without a ring.
#[cfg(feature = "trace")]
const RECORD_BYTES: usize = size_of::<nemesia_core::trace::Record>();
#[cfg(not(feature = "trace"))]
const RECORD_BYTES: usize = 0;

/// Whether a transport or facility can be used, or is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// A transport or a facility.
    pub name: &'static str,
    /// Whether it can be used; in a [`Route`](crate::Route), whether it is used.
    pub usable: bool,
    /// Its use, or why it cannot be used and the remedy.
    pub reason: String,
}

impl Verdict {
    pub(crate) fn new(name: &'static str, usable: bool, reason: impl Into<String>) -> Self {
        Self { name, usable, reason: reason.into() }
    }

    fn probe<E: std::fmt::Display>(name: &'static str, outcome: Result<String, E>) -> Self {
        match outcome {
            Ok(reason) => Self::new(name, true, reason),
            Err(error) => Self::new(name, false, error.to_string()),
        }
    }
}

/// Returns why a rank of this machine is not reached by the transports between machines.
pub(crate) fn local() -> impl Iterator<Item = Verdict> {
    let verdict = |name| Verdict::new(name, false, "it shares this machine, where shared memory is faster");
    ["tcp", "verbs"].into_iter().map(verdict)
}

/// Tests the facilities of this machine. Nothing is left behind.
pub fn explain(config: &Config) -> Vec<Verdict> {
    let mut verdicts = vec![shm(config), single_copy(config)];
    verdicts.extend(facilities());
    verdicts.extend([Verdict::probe("tcp", tcp(config)), Verdict::probe("verbs", rdma(config))]);
    verdicts
}

fn shm(config: &Config) -> Verdict {
    let probe = || -> Result<String, crate::Error> {
        let bytes = config.geometry()?.own().total;
        let segment = Segment::create("nemesia-probe", bytes, &config.segments)?;
        let sealed = segment.seal_against_foreign_writes()?;
        let warnings = segment.warnings().join("; ");
        let seal = if sealed { "read-only to peers" } else { "not sealed against peers" };
        let separator = if warnings.is_empty() { "" } else { "; " };
        Ok(format!("messages between processes of this machine; segments are {seal}{separator}{warnings}"))
    };
    Verdict::probe("shm", probe())
}

/// Tested on this process itself; each peer is tested when it is met.
fn single_copy(config: &Config) -> Verdict {
    const NAME: &str = "single copy";
    if config.single_copy == SingleCopy::Off {
        return Verdict::new(NAME, false, "NEMESIA_SINGLE_COPY=off");
    }
    let value = 1;
    let stamp = IdentityStamp { address: std::ptr::from_ref(&value) as u64, value };
    let memory = RemoteMemory::new(std::process::id() as i32, stamp);
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let probed = memory.map_or(Err(CopyError::OtherProcess), |memory| memory.permitted());
    let where_ = match config.single_copy {
        SingleCopy::Auto => " where that is faster than a stream",
        _ => "",
    };
    let use_ = match scope.trim() {
        "" | "0" => format!("large messages move in one copy through the kernel{where_}"),
        scope => format!(
            "large messages move in one copy{where_}, but Yama's ptrace_scope is {scope}: unless the processes run as \
            root, \
             NEMESIA_PTRACER=1 is needed"
        ),
    };
    Verdict::probe(NAME, probed.map(|()| use_).map_err(CopyError::explain))
}

fn facilities() -> Vec<Verdict> {
    let fence = HeavyFence::register();
    let membarrier = if fence.is_expedited() {
        Verdict::new("membarrier", true, "sleepers pay for the fence, senders don't")
    } else {
        Verdict::new("membarrier", false, "the kernel refuses it: every send needs a full fence")
    };
    let try_segment = |options: SegmentOptions, use_: &str| {
        Segment::create("nemesia-probe", HEADER_PAGE, &options).map(|_| use_.to_owned())
    };
    let huge = SegmentOptions { huge: HugePages::Require, ..SegmentOptions::default() };
    let devshm = SegmentOptions { backing: SegmentBacking::DevShm, ..SegmentOptions::default() };
    let cpus =
        numa::allowed_cpus().map(|cpus| format!("{} usable, {} NUMA nodes", cpus.len(), numa::nodes().len()));
    let regions = || -> Result<String, ShmError> {
        let segment = Segment::create("nemesia-probe", HEADER_PAGE, &SegmentOptions::default())?;
        let number = segment.fd().map_or(u32::MAX, |fd| fd.as_raw_fd().cast_unsigned());
        let pid = std::process::id().cast_signed();
        open_foreign(pid, number)?;
        Ok("allocated regions are used by peers directly, if they see this process".to_owned())
    };
    vec![
        membarrier,
        Verdict::probe("regions", regions()),
        Verdict::probe(
            "huge pages",
            try_segment(huge, "NEMESIA_HUGE_PAGES=try or require uses them for what peers do not write"),
        ),
        Verdict::probe(
            "/dev/shm",
            try_segment(devshm, "NEMESIA_BACKING=devshm would work; memfd is the default"),
        ),
        Verdict::probe(
            "lock memory",
            limits::require_memlock(1 << 20).map(|()| "1 MiB can be locked".to_owned()),
        ),
        Verdict::probe("cores", cpus),
    ]
}

/// Describes the address at which this process would listen over TCP.
fn tcp(config: &Config) -> Result<String, String> {
    let chosen = interfaces::choose(config.net_address.as_deref(), config.place.family)?;
    let unmet = chosen.unmet.as_ref().map_or(String::new(), |unmet| format!("; not met: {unmet}"));
    Ok(format!("messages between machines, {}{unmet}", net::tcp_place(&chosen)))
}

/// Describes the ports of RDMA devices, why each can be used or not, and which one the settings choose.
fn rdma(config: &Config) -> Result<String, VerbsError> {
    let seen = survey()?;
    let lines: Vec<String> = seen.iter().map(ToString::to_string).collect();
    if seen.iter().all(|seen| seen.verdict.is_err()) {
        return Err(VerbsError::NoDevice {
            why: if lines.is_empty() { NONE.into() } else { lines.join("; ") },
        });
    }
    // An address that cannot be used is reported with TCP, and in the warnings of an endpoint.
    let preference = net::device_preference(config, &mut Vec::new()).unwrap_or_default();
    let chosen = match choose(&preference) {
        Ok(selection) => format!("the settings choose {selection}"),
        Err(error) => format!("the settings choose none: {error}"),
    };
    Ok(format!("messages between machines; {}; {chosen}", lines.join("; ")))
}

/// The memory of a process of a world, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bill {
    /// The number of processes in the world.
    pub processes: u32,
    /// The shared segments of one process that is connected with all others of its machine. The segments of each
    /// connection are reserved with it.
    pub segments: u64,
    /// The part of `segments` that each further process adds, at most.
    pub per_peer: u64,
    /// The part of `segments` that is the pool of cells.
    pub cells: u64,
    /// Private memory of a process that is connected with all others, before it has messages: requests, answers to
    /// one-sided operations, state and counters of each peer, the call tree.
    pub private_at_start: u64,
    /// The part of `private_at_start` that each further process adds.
    pub private_per_peer: u64,
    /// The part of `private_per_peer` that is there before the connection; the rest comes with it.
    pub private_per_rank: u64,
    /// The ceiling of what one process may commit for unexpected messages and requests, for one incomplete
    /// active message of each process, and for waiting replies of handlers.
    pub private_ceiling: u64,
    /// The ceiling of what each rank on another machine adds, for packets. Nothing if there is none.
    pub net_per_peer: u64,
    /// The file descriptors without connections, those of the launcher and of a network not counted
    /// ([`NetBill`](crate::NetBill)).
    /// One whose descriptor for event loops is used has one more. One that takes no calls of other machines, for
    /// instance because of NEMESIA_NET=off, has one less.
    pub descriptors: u32,
    /// The file descriptors of each connection with another process of this machine. While it is made, it takes up to
    /// two more.
    pub descriptors_per_peer: u32,
}

impl Bill {
    /// Returns the bill for a world of `processes` processes.
    ///
    /// # Errors
    /// A size is out of range.
    pub fn new(config: &Config, processes: u32) -> Result<Self, LayoutError> {
        let geometry = config.geometry()?;
        let last = processes.clamp(1, MAX_PEERS) - 1;
        let inboxes: usize = (0..=queue_of(last)).map(|queue| geometry.inbox(queue).total).sum();
        let segments = geometry.own().total + inboxes + last as usize * geometry.link().total;
        // Each comes with the list that finds it.
        let request = (size_of::<Slot<Request>>() + size_of::<List>()) as u64;
        let requests = config.requests as u64;
        // With its counters.
        let peer = (size_of::<Peer>() + size_of::<Option<Link<'_>>>()) as u64;
        let private_per_peer = peer + u64::from(WINDOW) * size_of::<Slot<Reply>>() as u64;
        let trace = (config.trace * RECORD_BYTES) as u64;
        let peers = peer + u64::from(processes.saturating_sub(1)) * private_per_peer;
        let replies = u64::from(replies::POOL) + u64::from(processes) * u64::from(replies::SHARE);
        Ok(Self {
            processes,
            segments: segments as u64,
            per_peer: geometry.bytes_per_peer() as u64,
            cells: u64::from(geometry.cells) * u64::from(geometry.cell_bytes),
            private_at_start: trace + peers + requests.min(FIRST_REQUESTS as u64) * request,
            private_per_peer,
            private_per_rank: peer,
            private_ceiling: (config.unexpected_bytes.max(config.unexpected_limit) as u64)
                .saturating_add(requests * request)
                .saturating_add(u64::from(processes) * ACTIVE_BYTES as u64)
                .saturating_add(replies * u64::from(geometry.cell_bytes)),
            net_per_peer: net::bytes_per_peer(config),
            descriptors: limits::DESCRIPTORS,
            descriptors_per_peer: limits::DESCRIPTORS_PER_PEER,
        })
    }
}
