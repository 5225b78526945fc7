//! The memory port: an RDMA fabric, as the engine sees it.
//!
//! A port has *regions* (memory lent to it), *connections* (reliable, each with a send queue and a receive queue, to one
//! peer; a peer may have several) and one *completion queue*. *Work requests* are posted to a queue and complete later;
//! each carries a number of the caller's. The model is that of reliable connections in the InfiniBand Architecture
//! Specification volume 1 (below: IBA) as `ibv_*(3)` offers them, reduced to what iWARP (RFC 5040, 5041, 5044) has too;
//! where fabrics differ, [`Facts`] say how, and no protocol asks which fabric it is. Sections are cited by their titles:
//! the numbers differ between the releases of the IBA.
//!
//! # Promised
//! - **Work.** Every work request that was posted completes exactly once, unless it is quiet and succeeds; also when the peer is
//!   lost or the connection closed, in bounded time. No call blocks; every call does a bounded amount of work. A call
//!   that returns an error has had no effect.
//! - **Memory.** From the call to the completion the port uses the local parts of a work request; inline bytes are copied
//!   before the call returns. A region is checked in the call that posts; a stale one is refused.
//! - **Order at the sender.** Work requests of one send queue complete in the order posted (IBA, "Work Request Processing
//!   Model"; RFC 5040, "Ordering and Completions"). So a completion frees the places of all quiet ones before it.
//! - **Order at the target.** A receive's completion proves that all writes posted before its message, on the same
//!   connection, are placed (IBA, "Transaction Ordering"; RFC 5040, "Ordering and Completions"). A read's, or an atomic
//!   operation's, proves the same, for it is executed after them. Messages arrive in the order posted, each in the
//!   oldest receive of the connection's queue; those of a shared queue are taken oldest first, in the order in which
//!   messages begin to arrive.
//! - **Errors.** A failed work request ends its connection: everything else of both its queues completes with
//!   [`WorkError::Flushed`], and [`Event::Lost`] tells (the IBA's error state of queue pairs; RFC 5040, "RDMAP
//!   Error Management"). Other connections go on.
//! - **Sides.** A target checks key, bounds and rights of every access; what a peer does can fail no connection but its own.
//!
//! # Not promised
//! - That the bytes of one write, or of several, are placed in order, unless [`Facts::ordered_placement`]
//!   (`ibv_query_qp_data_in_order(3)`, which speaks of one write; RFC 5040, "Ordering and Completions"): only then may a
//!   target poll on the last byte.
//! - That a completed write is placed, or was even allowed, unless [`Facts::write_proves_placement`]: on iWARP completion
//!   means that the source buffer may be used again, and the error comes later, as a lost connection.
//! - That a read or an atomic operation is executed before what is posted after it, unless that has [`Work::fence`]
//!   (IBA, "Transaction Ordering"; `IBV_SEND_FENCE` in `ibv_post_send(3)`).
//! - Any order between connections, or between a connection's two queues.
//! - How much of a failed operation was placed; nor that an operation of no bytes has its key checked (the IBA lets a
//!   responder leave that out).
//! - That atomic operations exclude those of the processor, or of another port ([`Facts::atomics_exclude_processor`]).
//! - A connection from one port to itself.

use core::time::Duration;

use crate::payload::Lent;

mod bytes;
mod error;
mod facts;

pub use bytes::{Address, KEY_BYTES, MOST_ADDRESS_BYTES, MOST_PRIVATE_BYTES, Origin, Private};
pub use error::{ConnectError, LostError, PostError, RegisterError, WorkError};
pub use facts::Facts;

/// A registered region. The port gives out the numbers; a generation is not used twice for an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// Which of the port's places.
    pub index: u32,
    /// Counts the regions that this place has had.
    pub generation: u32,
}

/// A connection. The port gives out the numbers; a generation is not used twice for an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    /// Which of the port's places.
    pub index: u32,
    /// Counts the connections that this place has had.
    pub generation: u32,
}

/// What may be done with a region (`ibv_reg_mr(3)`). Reading by the port itself is always allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The port may write: receives, reads and results of atomic operations may land there.
    pub local_write: bool,
    /// Peers may read.
    pub remote_read: bool,
    /// Peers may write; needs `local_write`.
    pub remote_write: bool,
    /// Peers may do atomic operations; needs `local_write`.
    pub remote_atomic: bool,
}

impl Access {
    /// Only reading, by the port itself: the source of sends and writes.
    pub const NONE: Self =
        Self { local_write: false, remote_read: false, remote_write: false, remote_atomic: false };
    /// Reading and writing by the port itself.
    pub const LOCAL: Self = Self { local_write: true, ..Self::NONE };
    /// Everything.
    pub const ALL: Self =
        Self { local_write: true, remote_read: true, remote_write: true, remote_atomic: true };

    /// Whether the rights go together: who lets peers write must let the port write.
    pub const fn is_consistent(self) -> bool {
        self.local_write || !(self.remote_write || self.remote_atomic)
    }

    /// Whether this memory can be registered with these rights: they go together, and write nothing that was lent to be read only.
    pub const fn fits(self, memory: &Lent) -> bool {
        self.is_consistent() && (memory.is_writable() || !self.local_write)
    }

    /// Whether peers may do anything at all.
    pub const fn is_remote(self) -> bool {
        self.remote_read || self.remote_write || self.remote_atomic
    }
}

/// Part of a region, in bytes (`struct ibv_sge`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The region.
    pub region: Region,
    /// From where in it.
    pub offset: u64,
    /// How many.
    pub len: u32,
}

/// What a peer needs to reach a region: travels as [`Key::to_bytes`]. Nothing secret but `key` protects the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// What its owner calls the region's first byte.
    pub address: u64,
    /// Bytes of the region.
    pub len: u64,
    /// The remote key: as wide as the fabric has it (32 bits in InfiniBand and iWARP).
    pub key: u64,
}

/// Where an operation reaches in the peer's memory. Not checked here: that is the target's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The owner's address of the first byte: [`Key::address`] and an offset.
    pub address: u64,
    /// Under which key.
    pub key: u64,
}

/// The bytes of a send or write.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// From regions, one after the other; at most [`Facts::slices`] parts.
    Gather(&'a [Slice]),
    /// These, copied before the call returns; at most [`Facts::inline_bytes`].
    Inline(&'a [u8]),
}

/// What every work request of a send queue has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Whose send queue.
    pub connection: Connection,
    /// The caller's number: comes back in the completion, and means nothing here.
    pub id: u64,
    /// Complete only on failure. Its place in the queue is free once a later one has completed: so not all may be quiet.
    pub quiet: bool,
    /// Start after earlier reads and atomic operations of this queue have completed.
    pub fence: bool,
}

impl Work {
    /// A work request that is neither quiet nor fenced.
    pub const fn new(connection: Connection, id: u64) -> Self {
        Self { connection, id, quiet: false, fence: false }
    }
}

/// Where a receive is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveQueue {
    /// The connection's own; not for one that takes from the shared queue.
    Of(Connection),
    /// The port's shared one ([`Facts::shared_receive_depth`]).
    Shared,
}

/// What a work request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A send, write, read or atomic operation is done.
    Done,
    /// A message has come.
    Received {
        /// Its bytes; of a write with immediate, those written, or 0 where the fabric does not tell; of one longer than
        /// [`Facts::message_bytes`] it may be fewer.
        len: u32,
        /// Its immediate.
        immediate: Option<u32>,
        /// The bytes are where a write with immediate put them, not in the receive's memory.
        written: bool,
    },
    /// It failed, and with it the connection.
    Failed(WorkError),
}

/// A completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The caller's number.
    pub id: u64,
    /// Whose; of a shared receive, on which the message came.
    pub connection: Connection,
    /// What it came to.
    pub outcome: Outcome,
}

impl Completion {
    /// To fill a slice that is lent to [`MemoryPort::poll`].
    pub const EMPTY: Self = Self {
        id: 0,
        connection: Connection { index: u32::MAX, generation: 0 },
        outcome: Outcome::Failed(WorkError::Flushed),
    };
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// We asked, the peer has not answered. Receives may be posted.
    Connecting,
    /// The peer asked, we have not answered. Receives may be posted.
    Requested,
    /// We have accepted, the peer has not confirmed. Receives may be posted.
    Accepting,
    /// Everything may be posted, but see [`Facts::active_speaks_first`].
    Ready,
    /// It failed, or was closed, and its work requests flush. Nothing may be posted.
    Lost,
    /// There is no such connection, or no longer.
    Gone,
}

/// What happened to a connection, or to the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer asks for a connection: to be answered by [`MemoryPort::accept`] or [`MemoryPort::refuse`].
    Requested {
        /// The new connection.
        connection: Connection,
        /// What the peer says with it. Not to be trusted.
        private: Private,
    },
    /// It is ready.
    Established {
        /// Which.
        connection: Connection,
        /// On the side that connects: what the peer says with its acceptance. Not to be trusted.
        private: Private,
    },
    /// It did not come about. Its receives flush; it remains to be closed.
    Failed {
        /// Which.
        connection: Connection,
        /// Why.
        error: ConnectError,
        /// What the peer says with a refusal.
        private: Private,
    },
    /// It has ended. All its work requests complete; it remains to be closed. Comes once.
    Lost {
        /// Which.
        connection: Connection,
        /// Why, as far as is known.
        error: LostError,
    },
    /// The last word about a connection that was closed: all completions were polled, the number is not used again.
    Closed {
        /// Which.
        connection: Connection,
    },
    /// The port can do nothing any more: all connections are lost. The code is the device's.
    PortFailed {
        /// The device's code.
        code: u32,
    },
}

/// Whether one may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Yes: the next completion or event makes [`MemoryPort::descriptor`] readable.
    Sleep,
    /// No: something is there already, or the port can't wake anybody. Poll.
    Poll,
}

/// What a connection is asked for, or accepted, with.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// What the peer is told with it: rank, version, number of the stream, ...
    pub private: Private,
    /// Take receives from the port's shared queue ([`Facts::shared_receive_depth`]).
    pub shared_receive: bool,
    /// Until when the connection has to be ready, by the clock of [`MemoryPort::poll_event`].
    pub deadline: Duration,
}

/// An RDMA fabric. See the [module](self) for what is promised.
///
/// Time is what the caller says: since a start of its own, never going back. One thread at a time. Dropping a port closes
/// all connections, and from then on nothing uses the memory that was lent to it.
///
/// # Safety
/// The owner of lent memory uses it again, and frees it, on this port's word. So an implementation has to keep, whatever peers
/// and callers do (unless a port is leaked: then its memory stays lent):
/// - It uses no memory but that which was lent to it ([`MemoryPort::register`]), and of that only ranges that are within one
///   region: reads it for work requests and for peers that have the key, and writes it only if [`Access::fits`], and the
///   region's rights say so, or the peer's.
/// - After [`MemoryPort::deregister`] has returned `Ok`, and after the port is dropped, neither it nor a device or another
///   process on its behalf uses the memory.
/// - After a work request's completion was polled it uses the local parts no more on that request's behalf, and before a
///   receive's completion all that it reports is written.
/// - It makes no reference to the memory.
#[allow(unsafe_code, reason = "the trait has obligations; nothing unsafe is done here")]
pub unsafe trait MemoryPort {
    /// What this fabric can do; it does not change.
    fn facts(&self) -> &Facts;

    /// Lends memory to the port.
    ///
    /// # Errors
    /// See [`RegisterError`]: some go away when other regions are deregistered.
    fn register(&mut self, memory: Lent, access: Access) -> Result<Region, RegisterError>;

    /// Takes memory back. From the call on, no new access begins: the region is refused in calls, and its key by the
    /// target; work requests that use it, and have not completed, fail, unless they still succeed. From the first return
    /// of `Ok` on nothing touches the memory any more.
    ///
    /// # Errors
    /// [`RegisterError::Busy`]: an access is under way; ask again later. The memory has to stay until then. A peer that does
    /// not come to an end loses its connection after some time, as [`MemoryPort::poll_event`] is told it.
    fn deregister(&mut self, region: Region) -> Result<(), RegisterError>;

    /// What peers need to reach a region; `None` when there is no such region, or its rights let peers do nothing.
    fn key(&self, region: Region) -> Option<Key>;

    /// Where others can connect to, to be handed to them by any means; `None` when this port can't be connected to.
    fn address(&self) -> Option<Address>;

    /// Begins a connection. [`Event::Established`] or [`Event::Failed`] follows.
    ///
    /// # Errors
    /// See [`ConnectError`].
    fn connect(&mut self, to: &Address, offer: &Offer) -> Result<Connection, ConnectError>;

    /// Agrees to a connection that was asked for. [`Event::Established`] or [`Event::Failed`] follows.
    ///
    /// # Errors
    /// [`ConnectError::State`] when nobody has asked, or no longer.
    fn accept(&mut self, connection: Connection, offer: &Offer) -> Result<(), ConnectError>;

    /// Refuses a connection that was asked for; nothing more is heard of it.
    ///
    /// # Errors
    /// [`ConnectError::State`] when nobody has asked, or no longer.
    fn refuse(&mut self, connection: Connection, private: Private) -> Result<(), ConnectError>;

    /// Ends a connection at once: what has not completed flushes. To be sure that what was sent has arrived, wait for its
    /// completion (and see [`Facts::write_proves_placement`]) or for an answer. [`Event::Closed`] follows when all
    /// completions have been polled. Again, or for one that is gone: nothing.
    fn close(&mut self, connection: Connection);

    /// Where a connection stands.
    fn state(&self, connection: Connection) -> State;

    /// Where the other end of a connection is, also of one that is only asked for. `None` when nobody but the peer could
    /// say so, or when it is lost.
    fn origin(&self, connection: Connection) -> Option<Origin> {
        let _ = connection;
        None
    }

    /// Writes into the peer's memory (RFC 5040, "RDMA Write Message"), at most [`Facts::transfer_bytes`]. With an immediate
    /// ([`Facts::immediates`]) it takes a receive of the peer's, which completes when the bytes are placed.
    ///
    /// # Errors
    /// See [`PostError`].
    fn write(
        &mut self,
        work: Work,
        from: Source<'_>,
        to: Remote,
        immediate: Option<u32>,
    ) -> Result<(), PostError>;

    /// Reads from the peer's memory (RFC 5040, "RDMA Read Operation"), at most [`Facts::transfer_bytes`], into at most
    /// [`Facts::read_slices`] parts.
    ///
    /// # Errors
    /// See [`PostError`].
    fn read(&mut self, work: Work, into: &[Slice], from: Remote) -> Result<(), PostError>;

    /// Sends a message of at most [`Facts::message_bytes`], which takes a receive of the peer's (RFC 5040, "Send Message
    /// Type"). If none is posted it waits, or the connection fails: [`Facts::waits_for_receive`].
    ///
    /// # Errors
    /// See [`PostError`].
    fn send(&mut self, work: Work, from: Source<'_>, immediate: Option<u32>) -> Result<(), PostError>;

    /// Adds to eight aligned bytes of the peer's, in the order of its processor, wrapping; what they were goes to `into`,
    /// eight bytes, in our order (`IBV_WR_ATOMIC_FETCH_AND_ADD` in `ibv_post_send(3)`).
    ///
    /// # Errors
    /// See [`PostError`].
    fn fetch_add(&mut self, work: Work, into: Slice, at: Remote, add: u64) -> Result<(), PostError>;

    /// As [`MemoryPort::fetch_add`], but stores `new` if they are `expected`.
    ///
    /// # Errors
    /// See [`PostError`].
    fn compare_swap(
        &mut self,
        work: Work,
        into: Slice,
        at: Remote,
        expected: u64,
        new: u64,
    ) -> Result<(), PostError>;

    /// Posts room for a message: at most [`Facts::slices`] parts, filled one after the other. A message that does not fit
    /// fails its connection.
    ///
    /// # Errors
    /// See [`PostError`].
    fn receive(&mut self, queue: ReceiveQueue, id: u64, into: &[Slice]) -> Result<(), PostError>;

    /// Moves on what was posted, as far as this fabric needs the processor for that, and fills `into` with completed work
    /// requests; returns how many. Less than asked for says nothing about what comes next.
    fn poll(&mut self, into: &mut [Completion]) -> usize;

    /// Moves connections on, at time `now`, and returns the next event.
    fn poll_event(&mut self, now: Duration) -> Option<Event>;

    /// Asks to be woken, once, by the next completion or event. Poll again after [`Armed::Sleep`], before sleeping: what came
    /// just before may wake nobody (`ibv_req_notify_cq(3)`). A connection that is being made may need to be looked
    /// after by time: don't sleep past its deadline.
    fn arm(&mut self) -> Armed;

    /// The file descriptor that becomes readable; `None` where there is nothing of the kind.
    fn descriptor(&self) -> Option<i32>;
}
