//! The memory port: the interface of an RDMA fabric.
//!
//! A port has *regions* (registered memory of the caller), *connections* (reliable, each with a send queue
//! and a receive queue, to one peer; a peer may have several) and one *completion queue*. The caller posts
//! *work requests* to a queue, which complete later; each carries a number of the caller's. The model is that
//! of reliable connections in the InfiniBand Architecture Specification volume 1 (below: IBA) as `ibv_*(3)`
//! offers them, reduced to what iWARP (RFC 5040, 5041, 5044) supports too. [`Facts`] describe the differences
//! between fabrics; no protocol depends on the type of the fabric. Sections are cited by their titles,
//! because the numbers differ between the releases of the IBA.
//!
//! # Guarantees
//! - **Work.** Every posted work request completes exactly once, unless it is quiet and succeeds. This
//!   includes lost peers and closed connections, in bounded time. No call blocks; every call does a bounded
//!   amount of work. A call that returns an error has had no effect.
//! - **Memory.** The port uses the local parts of a work request from the call to the completion. Inline
//!   bytes are copied before the call returns. The call that posts checks each region and refuses a stale
//!   one.
//! - **Order at the sender.** Work requests of one send queue complete in the order posted (IBA, "Work
//!   Request Processing Model"; RFC 5040, "Ordering and Completions"). A completion therefore frees the
//!   places of all quiet requests before it.
//! - **Order at the target.** A receive's completion proves that all writes posted before its message on the
//!   same connection are placed (IBA, "Transaction Ordering"; RFC 5040, "Ordering and Completions"). The
//!   completion of a read or an atomic operation proves the same, because the target executes it after them.
//!   Messages arrive in the order posted, each in the oldest receive of the connection's queue. Receives of a
//!   shared queue are taken oldest first, in the order in which messages begin to arrive.
//! - **Progress at the target.** When a port has reported a message, the writes before it on the same connection, and a
//!   write that is the message, complete at the peer without further calls of the port, unless the port has work to the
//!   peer that is not complete. A send may stay incomplete until the port is called again.
//! - **Errors.** A failed work request ends its connection: everything else in both its queues completes with
//!   [`WorkError::Flushed`], and [`Event::Lost`] reports the loss (the IBA's error state of queue pairs; RFC
//!   5040, "RDMAP Error Management"). Other connections are not affected.
//! - **Sides.** A target checks key, bounds and rights of every access. A peer's actions can fail only its
//!   own connection.
//!
//! # Not guaranteed
//! - That the bytes of one write are placed in order, unless [`Facts::ordered_within_write`]
//!   (`ibv_query_qp_data_in_order(3)`; RFC 5040, "Ordering and Completions"): only then may a target poll on the
//!   last byte. That several writes are placed in order, unless [`Facts::ordered_among_writes`].
//! - That a completed write is placed, or was even allowed, unless [`Facts::write_proves_placement`]. On
//!   iWARP, completion means only that the source buffer may be reused; an error follows later, as a lost
//!   connection.
//! - That a read or an atomic operation is executed before requests posted after it, unless those have
//!   [`Work::fence`] (IBA, "Transaction Ordering"; `IBV_SEND_FENCE` in `ibv_post_send(3)`).
//! - Any order between connections, or between a connection's two queues.
//! - The number of bytes that a failed operation has placed; and that the key of an operation of zero bytes
//!   is checked (the IBA allows a responder to omit this).
//! - That atomic operations exclude those of the processor, or of another port
//!   ([`Facts::atomics_exclude_processor`]).
//! - A connection from one port to itself.

use core::time::Duration;

use crate::payload::{GatherList, LentMemory};

mod bytes;
mod error;
mod facts;

pub use crate::wire::fabric::{
    Address, MOST_ADDRESS_BYTES, MOST_PRIVATE_BYTES, Origin, Private, RemoteRange,
};
pub use bytes::KEY_BYTES;
pub use error::{ConnectError, LostError, PostError, RegisterError, WorkError};
pub use facts::Facts;

/// A registered region. The port assigns the numbers; no generation is used twice for an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRegion {
    /// Index of the port's slot.
    pub index: u32,
    /// Number of regions that have used this slot.
    pub generation: u32,
}

/// A connection. The port assigns the numbers; no generation is used twice for an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    /// Index of the port's slot.
    pub index: u32,
    /// Number of connections that have used this slot.
    pub generation: u32,
}

/// The access rights of a region (`ibv_reg_mr(3)`). The port itself may always read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionAccess {
    /// The port may write: receives, reads and results of atomic operations may be placed there.
    pub local_write: bool,
    /// Peers may read.
    pub remote_read: bool,
    /// Peers may write; needs `local_write`.
    pub remote_write: bool,
    /// Peers may execute atomic operations; needs `local_write`.
    pub remote_atomic: bool,
}

impl RegionAccess {
    /// Only local reading: the source of sends and writes.
    pub const NONE: Self =
        Self { local_write: false, remote_read: false, remote_write: false, remote_atomic: false };
    /// Local reading and writing.
    pub const LOCAL: Self = Self { local_write: true, ..Self::NONE };
    /// All rights.
    pub const ALL: Self =
        Self { local_write: true, remote_read: true, remote_write: true, remote_atomic: true };

    /// Returns whether the rights are consistent: rights for peers to write require the local right to write.
    pub const fn is_consistent(self) -> bool {
        self.local_write || !(self.remote_write || self.remote_atomic)
    }

    /// Returns whether this memory can be registered with these rights: they are consistent, and write
    /// nothing that was lent to be read only.
    pub const fn fits(self, memory: &LentMemory) -> bool {
        self.is_consistent() && (memory.is_writable() || !self.local_write)
    }

    /// Returns whether peers have any right.
    pub const fn is_remote(self) -> bool {
        self.remote_read || self.remote_write || self.remote_atomic
    }
}

/// Part of a region, in bytes (`struct ibv_sge`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The region.
    pub region: PortRegion,
    /// Offset in the region.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

/// The information that a peer needs to access a region. It travels as [`MemoryKey::to_bytes`]. Only the
/// secrecy of `key` protects the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryKey {
    /// The owner's address of the region's first byte.
    pub address: u64,
    /// Bytes of the region.
    pub len: u64,
    /// The remote key, as wide as on the fabric (32 bits in InfiniBand and iWARP).
    pub key: u64,
}

/// The source of a send or write.
#[derive(Clone, Copy, Debug)]
pub enum CompletionSource<'a> {
    /// Parts of regions, in sequence; at most [`Facts::slices`] parts.
    Gather(&'a [Slice]),
    /// Bytes that are copied before the call returns; at most [`Facts::inline_bytes`].
    Inline(&'a [u8]),
}

/// The common fields of all work requests of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The connection whose send queue is used.
    pub connection: Connection,
    /// The caller's number, which the completion returns. The port does not interpret it.
    pub id: u64,
    /// Produces a completion only on failure. Its place in the queue becomes free when a later request
    /// completes, so not all requests may be quiet.
    pub quiet: bool,
    /// Starts only after earlier reads and atomic operations of this queue have completed.
    pub fence: bool,
}

impl Work {
    /// Returns a work request that is neither quiet nor fenced.
    pub const fn new(connection: Connection, id: u64) -> Self {
        Self { connection, id, quiet: false, fence: false }
    }
}

/// The queue to which a receive is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveQueue {
    /// The connection's own queue; invalid for a connection that uses the shared queue.
    Of(Connection),
    /// The port's shared queue ([`Facts::shared_receive_depth`]).
    Shared,
}

/// The outcome of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkOutcome {
    /// A send, write, read or atomic operation is complete.
    Done,
    /// A message has arrived.
    Received {
        /// Length of the message. For a write with immediate: the bytes written, or 0 if the fabric does not
        /// report them; fewer are possible for a write longer than [`Facts::message_bytes`].
        len: u32,
        /// The immediate of the message.
        immediate: Option<u32>,
        /// Whether a write with immediate placed the bytes, so that they are not in the receive's memory.
        written: bool,
    },
    /// The work request failed, and with it the connection.
    Failed(WorkError),
}

/// A completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The caller's number.
    pub id: u64,
    /// The connection; for a shared receive, the one on which the message arrived.
    pub connection: Connection,
    /// The outcome.
    pub outcome: WorkOutcome,
}

impl Completion {
    /// A placeholder for the slice that the caller lends to [`MemoryPort::poll`].
    pub const EMPTY: Self = Self {
        id: 0,
        connection: Connection { index: u32::MAX, generation: 0 },
        outcome: WorkOutcome::Failed(WorkError::Flushed),
    };
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// This side has connected; the peer has not answered. Receives may be posted.
    Connecting,
    /// The peer has requested the connection; this side has not answered. Receives may be posted.
    Requested,
    /// This side has accepted; the peer has not confirmed. Receives may be posted.
    Accepting,
    /// All work requests may be posted, subject to [`Facts::active_speaks_first`].
    Ready,
    /// The connection failed or was closed, and its work requests flush. Nothing may be posted.
    Lost,
    /// The connection does not exist.
    Gone,
}

/// An event of a connection or of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer requests a connection. The caller must answer with [`MemoryPort::accept`] or
    /// [`MemoryPort::refuse`].
    Requested {
        /// The new connection.
        connection: Connection,
        /// The private data of the request, which is untrusted.
        private: Private,
    },
    /// The connection is ready.
    Established {
        /// The connection.
        connection: Connection,
        /// On the connecting side: the private data of the acceptance, which is untrusted.
        private: Private,
    },
    /// The connection could not be made. Its receives flush; the caller must close it.
    Failed {
        /// The connection.
        connection: Connection,
        /// The reason.
        error: ConnectError,
        /// The private data of a refusal.
        private: Private,
    },
    /// The connection has ended. All its work requests complete; the caller must close it. Reported once.
    Lost {
        /// The connection.
        connection: Connection,
        /// The reason, as far as it is known.
        error: LostError,
    },
    /// The last event of a closed connection: all completions were polled, and the number is not used again.
    Closed {
        /// The connection.
        connection: Connection,
    },
    /// The port has failed, and all connections are lost. The code is the device's.
    PortFailed {
        /// The device's code.
        code: u32,
    },
}

/// Whether the caller may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Yes: the next completion or event makes [`MemoryPort::descriptor`] readable.
    Sleep,
    /// No: something has already arrived, or the port cannot wake the caller. The caller must poll.
    Poll,
}

/// The parameters with which a connection is requested or accepted.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Private data for the peer: rank, version, number of the rail, and so on.
    pub private: Private,
    /// Whether receives come from the port's shared queue ([`Facts::shared_receive_depth`]).
    pub shared_receive: bool,
    /// Time by which the connection must be ready, by the clock of [`MemoryPort::poll_event`].
    pub deadline: Duration,
}

/// An RDMA fabric. The [module](self) describes its guarantees.
///
/// The caller supplies the time, measured from any start, never decreasing. Only one thread at a time may use
/// the port. Dropping a port closes all connections; after that, nothing accesses the lent memory.
///
/// # Safety
/// The owner of lent memory uses it again, and frees it, when this port reports that it may. An
/// implementation must therefore guarantee the following, whatever peers and callers do. (If a port is
/// leaked, its memory stays lent.)
///
/// - It uses only memory that was lent to it ([`MemoryPort::register`]), and only ranges within one region.
///   It reads them for work requests and for peers that have the key. It writes them only if
///   [`RegionAccess::fits`] and the region's rights, or the peer's, permit it.
/// - After [`MemoryPort::deregister`] has returned `Ok`, and after the port is dropped, neither the port nor
///   a device or another process on its behalf uses the memory.
/// - After the completion of a work request was polled, it no longer uses the local parts for that request.
///   Before the completion of a receive, everything that the completion reports is written.
/// - It makes no reference to the memory.
#[allow(unsafe_code, reason = "the trait has obligations; nothing unsafe is done here")]
pub unsafe trait MemoryPort {
    /// Returns the capabilities of the fabric, which never change.
    fn facts(&self) -> &Facts;

    /// Registers memory that the caller lends.
    ///
    /// # Errors
    /// See [`RegisterError`]: some errors disappear when other regions are deregistered.
    fn register(&mut self, memory: LentMemory, access: RegionAccess) -> Result<PortRegion, RegisterError>;

    /// Deregisters memory. From the call on no new access begins: calls refuse the region, and the target
    /// refuses its key. Incomplete work requests that use the region either still succeed or fail. After the
    /// first return of `Ok`, nothing accesses the memory.
    ///
    /// # Errors
    /// [`RegisterError::Busy`] if an access is in progress: the caller tries again later and keeps the memory
    /// until then. A peer's write doesn't keep a region busy: its bytes that have not arrived are refused, whichever
    /// connection they take, and that connection ends. A peer whose read does not end loses its connection after
    /// some time, measured by the clock of [`MemoryPort::poll_event`].
    fn deregister(&mut self, region: PortRegion) -> Result<(), RegisterError>;

    /// Returns the key of a region for peers; `None` if the region does not exist, or its rights allow peers
    /// nothing.
    fn key(&self, region: PortRegion) -> Option<MemoryKey>;

    /// Returns the address to which peers can connect, to be passed to them by any means; `None` if this port
    /// cannot accept connections.
    fn address(&self) -> Option<Address>;

    /// Starts a connection. [`Event::Established`] or [`Event::Failed`] follows.
    ///
    /// # Errors
    /// See [`ConnectError`].
    fn connect(&mut self, to: &Address, offer: &Offer) -> Result<Connection, ConnectError>;

    /// Accepts a requested connection. [`Event::Established`] or [`Event::Failed`] follows.
    ///
    /// # Errors
    /// [`ConnectError::State`] if the connection is not, or no longer, requested.
    fn accept(&mut self, connection: Connection, offer: &Offer) -> Result<(), ConnectError>;

    /// Refuses a requested connection. No event follows.
    ///
    /// # Errors
    /// [`ConnectError::State`] if the connection is not, or no longer, requested.
    fn refuse(&mut self, connection: Connection, private: Private) -> Result<(), ConnectError>;

    /// Closes a connection at once: incomplete work requests flush, and when the call returns, the port uses their
    /// local parts no more. To be sure that data has arrived, wait for its completion (and see
    /// [`Facts::write_proves_placement`]) or for an answer. [`Event::Closed`] follows when all completions have
    /// been polled. A call for a closed connection has no effect.
    fn close(&mut self, connection: Connection);

    /// Returns the state of a connection.
    fn state(&self, connection: Connection) -> ConnectionState;

    /// Returns the origin of the other end of a connection, including one that is only requested. `None` if
    /// only the peer itself could report it, or if the connection is lost.
    fn origin(&self, connection: Connection) -> Option<Origin> {
        let _ = connection;
        None
    }

    /// Writes into the peer's memory (RFC 5040, "RDMA Write Message"), at most [`Facts::transfer_bytes`]. A
    /// write with an immediate ([`Facts::immediates`]) consumes a receive of the peer, which completes when
    /// the bytes are placed.
    ///
    /// # Errors
    /// See [`PostError`].
    fn write(
        &mut self,
        work: Work,
        from: CompletionSource<'_>,
        to: RemoteRange,
        immediate: Option<u32>,
    ) -> Result<(), PostError>;

    /// Reads from the peer's memory (RFC 5040, "RDMA Read Operation"), at most [`Facts::transfer_bytes`],
    /// into at most [`Facts::read_slices`] parts.
    ///
    /// # Errors
    /// See [`PostError`].
    fn read(&mut self, work: Work, into: &[Slice], from: RemoteRange) -> Result<(), PostError>;

    /// Sends a message of at most [`Facts::message_bytes`], which consumes a receive of the peer (RFC 5040,
    /// "Send Message Type"). If no receive is posted, the message waits or the connection fails:
    /// [`Facts::waits_for_receive`].
    ///
    /// # Errors
    /// See [`PostError`].
    fn send(
        &mut self,
        work: Work,
        from: CompletionSource<'_>,
        immediate: Option<u32>,
    ) -> Result<(), PostError>;

    /// Returns whether the port reports posted receives to the peer, together with the next message. The caller then
    /// posts a receive before it answers. Otherwise the answer is better sent first, because posting takes time.
    fn reports_receives(&self) -> bool {
        false
    }

    /// Returns whether [`MemoryPort::send_at_once`] may do anything.
    fn sends_at_once(&self) -> bool {
        false
    }

    /// Sends a message of the bytes of `from`, as far as the port can take them within this call. It returns their
    /// number. Before the next call of the port, the caller copies the others to their places in `room`, which has as
    /// many bytes as the message and belongs to the port until the completion. So what a byte stream takes at once is
    /// not copied before. `None`: nothing was posted; the caller copies all bytes and calls [`MemoryPort::send`].
    ///
    /// # Errors
    /// See [`PostError`]. [`PostError::Bounds`] also if `room` and `from` have different lengths.
    fn send_at_once(
        &mut self,
        work: Work,
        from: &GatherList<'_>,
        room: Slice,
    ) -> Result<Option<usize>, PostError> {
        let _ = (work, from, room);
        Ok(None)
    }

    /// Adds to eight aligned bytes in the peer's memory, in the byte order of its processor, wrapping. The
    /// old value is placed in `into`, eight bytes in the local byte order (`IBV_WR_ATOMIC_FETCH_AND_ADD` in
    /// `ibv_post_send(3)`).
    ///
    /// # Errors
    /// See [`PostError`].
    fn fetch_add(&mut self, work: Work, into: Slice, at: RemoteRange, add: u64) -> Result<(), PostError>;

    /// As [`MemoryPort::fetch_add`], but stores `new` if the bytes equal `expected`.
    ///
    /// # Errors
    /// See [`PostError`].
    fn compare_swap(
        &mut self,
        work: Work,
        into: Slice,
        at: RemoteRange,
        expected: u64,
        new: u64,
    ) -> Result<(), PostError>;

    /// Posts a receive of at most [`Facts::slices`] parts, which are filled in sequence. A message that does
    /// not fit fails its connection.
    ///
    /// # Errors
    /// See [`PostError`].
    fn receive(&mut self, queue: ReceiveQueue, id: u64, into: &[Slice]) -> Result<(), PostError>;

    /// Progresses posted requests, if this fabric needs the processor for that, fills `into` with completed
    /// work requests, and returns their number. If fewer than `into.len()` are returned, more may still
    /// follow at once.
    fn poll(&mut self, into: &mut [Completion]) -> usize;

    /// Progresses connections at time `now` and returns the next event.
    fn poll_event(&mut self, now: Duration) -> Option<Event>;

    /// Requests one wake-up by the next completion or event. After [`Armed::Sleep`], poll again before
    /// sleeping: something that arrived just before may not wake the caller (`ibv_req_notify_cq(3)`). A
    /// connection that is being made may need calls by time, so do not sleep past its deadline.
    fn arm(&mut self) -> Armed;

    /// Returns the file descriptor that becomes readable; `None` if the port has none.
    fn descriptor(&self) -> Option<i32>;
}
