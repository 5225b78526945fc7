//! The shared-memory message port, built from fastbox, cell queue and pool (paper 4, section 2).
//!
//! A packet goes into the fastbox if it is small and there is space, else into a cell. The fastbox also announces the
//! cell; if there are many peers or the fastbox is full, the receive queue does. Both paths share one sequence number
//! per pair, and the receiver takes packets in that order. A packet that is visible too early on one path waits for
//! the packets on the other.
//!
//! A poll checks the fastboxes of a few *hot* peers (those that sent lately or for which a receive waits), the queue,
//! and one other peer in rotation. Idle peers therefore cost almost nothing. Occasionally, and whenever the queue is
//! inconsistent, the port scans a peer's cells for the next packet: the queue is only a hint, and the cells are
//! authoritative.

mod cells;
mod copy_policy;
mod host;
mod left_cells;
mod link;
mod open;
mod pace;
mod packets;
mod poll;
mod prefetch;
mod queues;
mod remote;
mod short;
mod wake;

use core::borrow::BorrowMut;

use cells::CellShares;
use copy_policy::CopyPolicies;
pub use host::{Host, PortConfig};
use left_cells::{LeftCells, MOST_LEFT};
use link::Condition;
pub use link::{Ends, Link};
use prefetch::WritePrefetch;
use queues::ReceiveQueues;
use remote::{KeptShare, MOST_KEPT};

use super::pool::{CellPool, CellRecord};
use super::queue::Consumer;
pub use crate::port::Stores;
use crate::port::{PeerId, RunTable};
use crate::sync::Local;

/// Most peers whose fastboxes every poll checks.
pub const HOT: usize = 8;
/// Packets of one peer in a row until the other fastboxes, the queue and the other peers are polled, if no other peer
/// was ready when the burst began.
const BURST: u32 = 128;
/// As `BURST`, if another peer was ready.
const SHARED_BURST: u32 = 16;
/// Most queue entries that one poll checks.
const ENTRIES_A_POLL: usize = 64;
/// Packets found only by scanning after which the inbox counts as corrupt; every idle poll then scans.
const LOST: u32 = 64;
/// Polls without a packet after which the cells of one peer are scanned.
const IDLE_SWEEP: u32 = 1024;

/// Cells for each linked process, this one included, that a pool must have for its port to defer releases.
const DEFER_FROM: usize = 2;

/// Largest payload in two pieces, or of a list, that goes through a fastbox. It is assembled on the stack.
const SMALL: usize = 1024;

/// The location of a received packet.
#[derive(Clone, Copy, Debug)]
pub enum PacketPlace {
    /// At the head of its sender's fastbox.
    Fastbox,
    /// In this cell of its sender.
    Cell(u32),
    /// In this cell of its sender, which the head of the fastbox announces.
    Announced(u32),
}

/// The port. `L` lends the links, by the number of the peer (that of this process stays `None`), `R` the records of
/// the pool.
#[derive(Debug)]
pub struct ShmPort<'a, H, L, R>
where
    H: Host,
    L: BorrowMut<[Option<Link<'a>>]>,
    R: BorrowMut<[CellRecord]>,
{
    config: PortConfig,
    links: L,
    pool: CellPool<'a, R>,
    copy_policies: CopyPolicies,
    write_prefetch: WritePrefetch,
    /// Number of cells in every peer's pool, as the world agreed.
    cells: u32,
    /// The number of links.
    linked: usize,
    shares: CellShares,
    /// Whether the fastbox announces cells: see [`PortConfig::announce`].
    announces: bool,
    queues: ReceiveQueues<'a>,
    /// Whether some peer probably sleeps although messages were sent to it.
    counted: bool,
    lost: u32,
    host: H,
    hot: [PeerId; HOT],
    hot_count: usize,
    turn: usize,
    burst: u32,
    /// Whether another peer was ready when the burst began; the burst is then short.
    oversubscribed: bool,
    /// Whether the cold peers come first after the next burst, before the queue.
    cold_first: bool,
    cold: PeerId,
    idle: u32,
    swept: PeerId,
    /// The peer's cell that was measured last while it was read, and the code of its pace ([`pace`]).
    read_pace: Local<(u64, u32)>,
    /// A cell that was read and whose release is deferred: the next announcement to its owner returns it, if that
    /// announcement is the next event. In a ping-pong both sides then use one cell each, which stays in their caches,
    /// and touch no other line.
    deferred: Option<(PeerId, u32)>,
    /// Whether the pools are large enough for deferred releases.
    defers: bool,
    /// The table of the peer's list that is being read.
    runs: RunTable,
    /// The number of lists that were exposed.
    lists: u64,
    /// The closed links whose peers still have cells.
    left: [Option<LeftCells<'a>>; MOST_LEFT],
    /// The shares of closed links whose peers may be writing.
    kept: [Option<KeptShare<'a>>; MOST_KEPT],
}

impl<'a, H, L, R> ShmPort<'a, H, L, R>
where
    H: Host,
    L: BorrowMut<[Option<Link<'a>>]>,
    R: BorrowMut<[CellRecord]>,
{
    /// Returns a port with these links. `cells` is the number of cells in each process's pool, a power of two.
    /// `inbox` is the first receive queue.
    pub fn new(
        config: PortConfig,
        links: L,
        pool: CellPool<'a, R>,
        cells: u32,
        inbox: Consumer<'a>,
        host: H,
    ) -> Self {
        let linked = links.borrow().iter().flatten().count();
        let mut port = Self {
            config,
            links,
            pool,
            copy_policies: CopyPolicies::new(),
            write_prefetch: WritePrefetch::default(),
            cells,
            linked,
            shares: CellShares::new(cells),
            announces: false,
            queues: ReceiveQueues::new(inbox),
            counted: false,
            lost: 0,
            host,
            hot: [0; HOT],
            hot_count: 0,
            turn: 0,
            burst: BURST,
            oversubscribed: false,
            cold_first: false,
            cold: 0,
            idle: 0,
            swept: 0,
            read_pace: Local::new(pace::NOT_MEASURED),
            deferred: None,
            defers: false,
            runs: RunTable::new(),
            lists: 0,
            left: [const { None }; MOST_LEFT],
            kept: [const { None }; MOST_KEPT],
        };
        port.follow_links();
        for peer in (0..port.peers()).take(HOT) {
            port.heat(peer);
        }
        port
    }

    /// Sets what depends on the number of links.
    fn follow_links(&mut self) {
        self.shares.follow(self.linked, self.links.borrow().len());
        self.announces = self.config.announce && self.linked <= HOT;
        self.defers = self.cells as usize >= DEFER_FROM * (self.linked + 1);
    }

    /// Returns the operating system interface for its owner.
    pub fn host_mut(&mut self) -> &mut H {
        &mut self.host
    }

    /// Returns whether the inbox held values that violate the protocol. Messages then still arrive, found by
    /// scanning.
    pub fn inbox_damaged(&self) -> bool {
        self.queues.is_damaged()
    }

    /// Returns the number of cells that can be filled now, without collecting those that peers have returned.
    pub fn free_cells(&self) -> usize {
        self.pool.free()
    }

    /// Makes the coming polls scan every peer's cells: after a sleep that no waker ended.
    pub fn sweep_all(&mut self) {
        for link in self.links.borrow_mut().iter_mut().flatten() {
            link.traffic.conditions.set(Condition::Sweep, true);
        }
    }

    fn peers(&self) -> PeerId {
        self.links.borrow().len() as PeerId
    }

    #[inline(always)]
    fn link(&mut self, peer: PeerId) -> Option<&mut Link<'a>> {
        self.links.borrow_mut().get_mut(peer as usize)?.as_mut()
    }

    /// Makes the peer hot: every poll checks it from now on.
    fn heat(&mut self, peer: PeerId) {
        if self.link(peer).is_none() || self.hot[..self.hot_count].contains(&peer) {
            return;
        }
        if self.hot_count < HOT {
            self.hot[self.hot_count] = peer;
            self.hot_count += 1;
        } else {
            // The peer after the current one was polled longest ago.
            let victim = (self.turn + 1) % HOT;
            self.hot[victim] = peer;
        }
        self.limit_run(peer);
    }

    /// Limits the run of a peer to a burst. Short messages are counted only when their run ends.
    fn limit_run(&mut self, peer: PeerId) {
        let most = if self.oversubscribed { SHARED_BURST } else { BURST };
        if let Some(link) = self.link(peer) {
            link.ends.inbound.limit_run(most as usize);
        }
    }
}
