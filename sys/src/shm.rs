//! The shared-memory transport on Linux: segments laid out, exchanged, validated and made into a port.

mod connect;
mod crowd;
mod greeting;
mod views;

use std::os::fd::BorrowedFd;

use nemesia_core::shared::layout::{Identity, SegmentKind};
use nemesia_core::shared::pool::CellRecord;
use nemesia_core::shared::port::{Link, PortConfig, ShmPort, Waker};
use nemesia_core::shared::sleep::SleepWord;
use nemesia_core::sync::FenceMode;

use crate::bootstrap::Exchange;
use crate::config::Config;
use crate::error::Error;
use crate::os::{HeavyFence, Segment, Watch, futex_wake};

/// The port as it runs over mapped segments.
pub(crate) type Port = ShmPort<'static, FutexWaker, Vec<Option<Link<'static>>>, Vec<CellRecord>>;

/// Wakes sleepers by the kernel.
#[derive(Debug)]
pub(crate) struct FutexWaker;

impl Waker for FutexWaker {
    #[cold]
    fn wake(&mut self, _peer: u32, word: &SleepWord) {
        futex_wake(word.futex(), u32::MAX);
    }
}

/// Both segments of one process, as mapped here.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) own: Segment,
    pub(crate) inbox: Segment,
}

/// Everything that the transport gave us. The port's views point into the mappings: `port` comes first, so that
/// it is dropped first, and the views never leave it.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) port: Port,
    pub(crate) sleep: &'static SleepWord,
    pub(crate) watch: Watch,
    pub(crate) fence: HeavyFence,
    /// Whether we share our processors with more processes of the world than there are processors.
    pub(crate) crowded: bool,
    /// Remarks of the segments on what they could not have (huge pages, seals).
    pub(crate) notes: Vec<String>,
    pub(crate) mappings: Vec<Pair>,
}

/// Makes our segments, exchanges them with every other process of the world, and builds the port.
pub(crate) fn attach(config: &Config, exchange: &mut dyn Exchange) -> Result<Attached, Error> {
    let size = u32::try_from(exchange.size()).unwrap_or(u32::MAX);
    let geometry = config.geometry(size)?;
    let rank = exchange.rank() as u32;
    let epoch = greeting::draw_epoch()?;
    let identity = |kind| Identity { kind, geometry, rank, epoch };
    let (own_bytes, inbox_bytes) = (geometry.own().total, geometry.inbox().total);
    let own = Segment::create("nemesia-own", own_bytes, &config.segments)?;
    let inbox = Segment::create("nemesia-inbox", inbox_bytes, &config.segments)?;
    inbox.seal_seals()?;
    views::header(&own)?.publish(&identity(SegmentKind::Own), own_bytes as u64);
    views::header(&inbox)?.publish(&identity(SegmentKind::Inbox), inbox_bytes as u64);
    let mut notes: Vec<String> = own.notes().iter().chain(inbox.notes()).cloned().collect();
    if !own.seal_against_foreign_writes()? {
        notes.push("peers could write to our own segment: this kernel cannot seal it against them".into());
    }
    let fence = HeavyFence::register();
    let cpus = crowd::allowed();
    let world = connect::World { config, geometry, rank, epoch, expedited: fence.is_expedited(), cpus };
    let ours = Pair { own, inbox };
    let (peers, watch) = connect::connect(&world, &ours, exchange)?;
    let expedited = fence.is_expedited() && peers.iter().flatten().all(|peer| peer.expedited);
    let fences = if expedited { FenceMode::Asymmetric } else { FenceMode::Symmetric };
    let crowded = crowd::is_crowded(cpus, peers.iter().flatten().map(|peer| peer.cpus));
    let port_config = PortConfig { rank, fastbox_limit: config.fastbox_bytes(), fences };
    let port = views::port(port_config, &geometry, &ours, &peers)?;
    let sleep = views::inbox(&ours.inbox, &geometry)?.sleep;
    let mut mappings = vec![ours];
    mappings.extend(peers.into_iter().flatten().map(|peer| peer.pair));
    Ok(Attached { port, sleep, watch, fence, crowded, notes, mappings })
}

/// The descriptors that a greeting hands over.
fn descriptors(pair: &Pair) -> Vec<BorrowedFd<'_>> {
    [pair.own.fd(), pair.inbox.fd()].into_iter().flatten().collect()
}
