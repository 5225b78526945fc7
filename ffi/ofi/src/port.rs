//! The endpoint of Nemesia behind one of libfabric. Operations start here; `port/collect.rs` takes their completions.
//!
//! Messages with and without tags travel in two matching contexts. An operation's number in the completion queue of
//! Nemesia is its place in [`Operations`]. A short message that can leave at once has no place there: its completion is
//! written when it starts.

mod atomic;
mod collect;
mod inject;
mod kept;
mod one_sided;
mod operations;
mod receive;
mod refused;
mod written;

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nemesia::{Arm, Config, Endpoint, Error, Message, Origin, PeerAddress, PeerRef, Segment, SendOp};

use crate::bindings as fi;
use crate::counts::Counts;
use crate::entries::{Entry, Queue, Reader};
use crate::info;
use crate::note;
use crate::object::Errno;
use crate::table::Table;
use crate::vector::AddressVector;
pub(crate) use atomic::{AtomicAction, AtomicCall, AtomicRuns};
use collect::ReadSteps;
pub(crate) use collect::{BATCH, Batch};
use inject::sends_now;
use kept::Kept;
pub(crate) use one_sided::{Accessing, ExposedMemory};
use operations::{Operation, Operations};
use written::Inbox;
pub(crate) use written::LEAST_ROOM;

/// The matching contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tagged,
    Plain,
}

impl Kind {
    const fn context(self) -> u16 {
        match self {
            Self::Tagged => 0,
            Self::Plain => 1,
        }
    }

    const fn flag(self) -> u64 {
        match self {
            Self::Tagged => fi::FI_TAGGED as u64,
            Self::Plain => fi::FI_MSG as u64,
        }
    }
}

const COMPLETION: u64 = fi::FI_COMPLETION as u64;
const INJECT: u64 = fi::FI_INJECT as u64;
const SEND: u64 = fi::FI_SEND as u64;
const RECV: u64 = fi::FI_RECV as u64;
const DATA: u64 = fi::FI_REMOTE_CQ_DATA as u64;
const DELIVERED: u64 = fi::FI_DELIVERY_COMPLETE as u64;

/// The bytes that unexpected messages may fill. An MPI cannot receive other messages first, so that the ceiling must
/// grow. Memory is taken when it is needed, as long as the machine has some.
const MOST_UNEXPECTED: usize = 16 << 30;
/// Why a buffer is refused. An MPI may pass the null pointer for MPI_BOTTOM.
const NO_MEMORY: &str = "its buffer is the null pointer, or longer than memory can be; if an MPI has passed MPI_BOTTOM \
                         on, name a buffer instead, with offsets from it in the datatype";

/// The endpoints of this process that are open.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// The completion queue of one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BoundQueue {
    pub(crate) queue: usize,
    /// Only operations with FI_COMPLETION are reported.
    pub(crate) is_selective: bool,
}

/// The runs of memory of a message. The application's array is valid during the call only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runs {
    pub(crate) first: *const libc::iovec,
    pub(crate) count: usize,
}

/// A send, as the application describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    pub(crate) kind: Kind,
    pub(crate) to: u64,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) flags: u64,
    pub(crate) context: usize,
    /// Nothing is reported but an error.
    pub(crate) is_silent: bool,
}

impl Sending {
    /// Returns the send without FI_DELIVERY_COMPLETE if a message that has left is delivered: a receive need not have
    /// matched it (that would be FI_MATCH_COMPLETE; `fi_cq`(3)). MPICH requests this flag for all messages.
    #[inline]
    fn needed(&self, is_delivered: bool) -> Self {
        Self { flags: if is_delivered { self.flags & !DELIVERED } else { self.flags }, ..*self }
    }
}

/// A receive, as the application describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receiving {
    pub(crate) kind: Kind,
    pub(crate) from: u64,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
    pub(crate) flags: u64,
    pub(crate) context: usize,
}

/// What this process knows of an address of the vector.
#[derive(Clone, Copy, Debug)]
enum Destination {
    Unknown,
    /// It is this endpoint's own.
    Own,
    Peer(PeerRef),
}

/// The objects of the domain that an operation needs.
pub(crate) struct Around<'a> {
    pub(crate) queues: &'a mut Table<Queue>,
    pub(crate) vectors: &'a mut Table<AddressVector>,
    /// The call that reads a queue, if this is one.
    pub(crate) reader: Option<&'a mut Reader>,
}

impl Around<'_> {
    /// Puts an entry into a queue, or into the memory of the application that reads it.
    #[inline(always)]
    fn put(&mut self, number: usize, entry: &Entry) {
        let Some(queue) = self.queues.get(number) else { return };
        // No entry overtakes another one.
        if let Some(reader) = &mut self.reader
            && reader.queue == number
            && queue.entries.is_empty()
            && reader.take(entry)
        {
            return;
        }
        queue.entries.push_back(*entry);
    }

    /// Returns the number of completions for which the call that reads has room, or another call may take.
    fn room(&self) -> usize {
        self.reader.as_ref().map_or(BATCH, |reader| reader.room())
    }
}

/// The endpoint behind one of libfabric.
pub(crate) struct Port {
    pub(crate) endpoint: Endpoint,
    own: PeerAddress,
    pub(crate) vector: Option<usize>,
    pub(crate) send_queue: Option<BoundQueue>,
    pub(crate) receive_queue: Option<BoundQueue>,
    pub(crate) counters: Vec<(Arc<Counts>, u64)>,
    destinations: Vec<Destination>,
    /// The injected messages that have not left, and what follows them.
    kept: Kept,
    /// How long injections have waited for connections that were not made.
    waited: Duration,
    /// By number of the endpoint: the peer, and its address in the vector.
    sources: Vec<Option<(PeerRef, u64)>>,
    operations: Operations,
    /// Messages that a look has claimed, by the context of the application.
    claimed: Vec<(usize, Message)>,
    inbox: Arc<Inbox>,
    /// The last look has found completions.
    has_taken: bool,
    steps: ReadSteps,
    /// A peer has written with data.
    has_written: bool,
    /// The writes that were executed, and whose data could not leave yet.
    unsent: VecDeque<u64>,
    pub(crate) least_multi: usize,
    caps: u64,
    /// The flags of operations that have none of their own: of sends, and of receives.
    defaults: [u64; 2],
    pub(crate) is_enabled: bool,
}

/// Opens the endpoint of Nemesia. Unexpected messages may fill [`MOST_UNEXPECTED`] bytes, unless a setting says
/// otherwise.
fn open_alone() -> Result<Endpoint, Errno> {
    let config = Config::from_env().map_err(|error| refused(&error.into()))?;
    if config.origin("NEMESIA_UNEXPECTED_LIMIT") == Origin::Default {
        // Where so many addresses cannot be had, the ceiling stays as it is.
        if let Ok(endpoint) = Endpoint::alone(&config.clone().unexpected_limit(MOST_UNEXPECTED)) {
            return Ok(endpoint);
        }
    }
    Endpoint::alone(&config).map_err(|error| refused(&error))
}

/// Returns the number of an error that says why there is no endpoint. Its text, which names the remedy, is a line for
/// the user.
fn refused(error: &Error) -> Errno {
    note::warn(format_args!("no endpoint: {error}"));
    error.into()
}

impl Port {
    /// Opens an endpoint with these capabilities and default flags.
    pub(crate) fn open(caps: u64, defaults: [u64; 2]) -> Result<Self, Errno> {
        let mut endpoint = open_alone()?;
        let inbox = Inbox::of(&mut endpoint);
        let own = *endpoint.address()?;
        OPEN.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            endpoint,
            own,
            vector: None,
            send_queue: None,
            receive_queue: None,
            counters: Vec::new(),
            destinations: Vec::new(),
            kept: Kept::default(),
            waited: Duration::ZERO,
            sources: Vec::new(),
            operations: Operations::default(),
            claimed: Vec::new(),
            inbox,
            has_taken: false,
            steps: ReadSteps::default(),
            has_written: false,
            unsent: VecDeque::new(),
            least_multi: 1,
            caps,
            defaults,
            is_enabled: false,
        })
    }

    /// Sends what is pending and closes the endpoint.
    pub(crate) fn close(mut self) -> Result<(), Errno> {
        self.start_all_kept();
        OPEN.fetch_sub(1, Ordering::Relaxed);
        drop(self.claimed);
        Ok(self.endpoint.close()?)
    }

    pub(crate) const fn address(&self) -> &PeerAddress {
        &self.own
    }

    /// Returns the flags of a send or a receive that names none.
    pub(crate) const fn default_flags(&self, is_send: bool) -> u64 {
        self.defaults[!is_send as usize]
    }

    /// Returns the descriptor that becomes readable when something happens.
    pub(crate) fn descriptor(&mut self) -> Result<RawFd, Errno> {
        Ok(self.endpoint.event_fd()?.as_fd().as_raw_fd())
    }

    /// Prepares for a sleep on the descriptor. `false`: there may be something to do.
    pub(crate) fn arm(&mut self) -> bool {
        self.endpoint.arm() == Arm::Armed
    }

    /// Returns whether this is the only endpoint of the process: one that sleeps in it misses no message of another.
    pub(crate) fn is_only() -> bool {
        OPEN.load(Ordering::Relaxed) == 1
    }

    /// Waits until something happens, for at most so long.
    pub(crate) fn pause(&mut self, limit: Duration) {
        if self.inbox.is_filled() {
            // The application has too many completions to read (`written.rs`): no more may come.
            return std::thread::sleep(limit);
        }
        // An error shows in the completion of an operation.
        let _ = self.endpoint.wait_progress(Some(limit));
    }

    /// Forgets what is known of a number of the vector, which may become that of another address.
    pub(crate) fn forget(&mut self, number: u64) {
        let known = usize::try_from(number).ok().and_then(|at| self.destinations.get_mut(at));
        if let Some(known) = known {
            *known = Destination::Unknown;
        }
        for source in &mut self.sources {
            *source = source.filter(|(_, known)| *known != number);
        }
    }

    /// Returns the endpoint's number for an address of the vector, and whether every message that has left for it is
    /// delivered: it lies in memory of the receiver, which need not have matched it.
    #[inline]
    fn rank_of(&mut self, number: u64, around: &mut Around<'_>) -> Result<(usize, bool), Errno> {
        let known = usize::try_from(number).ok().and_then(|at| self.destinations.get(at));
        if let Some(Destination::Peer(peer)) = known
            && let Some(reached) = self.endpoint.connected_rank(*peer)
        {
            return Ok(reached);
        }
        Ok((self.rank_of_other(number, around)?, false))
    }

    /// As [`Port::rank_of`], for a peer that is not connected.
    #[cold]
    fn rank_of_other(&mut self, number: u64, around: &mut Around<'_>) -> Result<usize, Errno> {
        let known = usize::try_from(number).ok().and_then(|at| self.destinations.get(at));
        match known {
            Some(Destination::Peer(peer)) => Ok(self.endpoint.rank_of(*peer)?),
            Some(Destination::Own) => Ok(self.endpoint.rank()),
            Some(Destination::Unknown) | None => self.learn(number, around),
        }
    }

    /// Looks an address up.
    #[cold]
    fn learn(&mut self, number: u64, around: &mut Around<'_>) -> Result<usize, Errno> {
        let vector = self.vector.and_then(|at| around.vectors.get(at)).ok_or(Errno::NO_ADDRESSES)?;
        let address = vector.get(number).ok_or(Errno::INVALID)?;
        let destination = if *address == self.own {
            Destination::Own
        } else {
            Destination::Peer(self.endpoint.connect(address)?)
        };
        let at = usize::try_from(number).map_err(|_| Errno::INVALID)?;
        if at >= self.destinations.len() {
            self.destinations.resize(at + 1, Destination::Unknown);
        }
        self.destinations[at] = destination;
        match destination {
            Destination::Peer(peer) => Ok(self.endpoint.rank_of(peer)?),
            _ => Ok(self.endpoint.rank()),
        }
    }

    /// Starts a send of one run.
    ///
    /// # Safety
    /// The bytes are readable and do not change until the completion was read, or until this returns if `flags` has
    /// FI_INJECT.
    #[inline(always)]
    unsafe fn send_run(
        &mut self,
        base: *const u8,
        len: usize,
        it: &Sending,
        around: &mut Around<'_>,
    ) -> Result<(), Errno> {
        if !self.is_enabled {
            return Err(Errno::BAD_STATE);
        }
        if base.is_null() && len > 0 || len > isize::MAX as usize {
            return Err(Errno::invalid(NO_MEMORY));
        }
        if it.flags & INJECT != 0 && len > info::INJECT_BYTES {
            return Err(Errno::INVALID);
        }
        let (rank, is_delivered) = self.rank_of(it.to, around)?;
        let bytes: &[u8] = if len == 0 {
            &[]
        } else {
            // SAFETY: the caller's promise.
            unsafe { std::slice::from_raw_parts(base, len) }
        };
        let may_leave = is_delivered || it.flags & DELIVERED == 0;
        if may_leave && !self.kept.has(rank) && sends_now(&mut self.endpoint, rank, bytes, it) {
            self.report_sent(it, len, around);
            return Ok(());
        }
        self.send_later(rank, bytes, &it.needed(is_delivered), around)
    }

    /// As [`Port::send_run`], which the compiler repeats in the calls of most messages only.
    ///
    /// # Safety
    /// As there.
    #[inline(never)]
    unsafe fn send_other(
        &mut self,
        base: *const u8,
        len: usize,
        it: &Sending,
        around: &mut Around<'_>,
    ) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.send_run(base, len, it, around) }
    }

    /// Sends a message that cannot leave at once.
    #[inline(never)]
    fn send_later(
        &mut self,
        rank: usize,
        bytes: &[u8],
        it: &Sending,
        around: &mut Around<'_>,
    ) -> Result<(), Errno> {
        if it.flags & INJECT != 0 {
            return self.inject(rank, bytes, it, around);
        }
        let operation = self.sending(it);
        self.start_send(rank, (bytes.as_ptr(), bytes.len()), it, operation)
    }

    /// Starts a send of several runs. The list is copied.
    ///
    /// # Safety
    /// As for [`Port::send`]; the list is valid during the call.
    unsafe fn send_list(&mut self, runs: Runs, it: &Sending, around: &mut Around<'_>) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        let (run, list) = unsafe { runs.copy() }?;
        if list.is_empty() {
            let (base, len) = run.map_or((std::ptr::null(), 0), |run| (run.base.cast_const(), run.len));
            // SAFETY: the caller's promise.
            return unsafe { self.send_other(base, len, it, around) };
        }
        if it.flags & INJECT != 0 {
            if list.iter().fold(0, |sum: usize, run| sum.saturating_add(run.len)) > info::INJECT_BYTES {
                return Err(Errno::INVALID);
            }
            let mut bytes = Vec::new();
            for run in list.iter().filter(|run| run.len > 0) {
                // SAFETY: the caller's promise.
                bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(run.base, run.len) });
            }
            // SAFETY: the bytes live during the call, and the flag says that they are copied.
            return unsafe { self.send_other(bytes.as_ptr(), bytes.len(), it, around) };
        }
        if !self.is_enabled {
            return Err(Errno::BAD_STATE);
        }
        let (rank, is_delivered) = self.rank_of(it.to, around)?;
        let it = &it.needed(is_delivered);
        let mut operation = self.sending(it);
        operation.keep_list(list);
        self.start_send(rank, (std::ptr::null(), 0), it, operation)
    }

    /// Returns the record of a send.
    fn sending(&self, it: &Sending) -> Operation {
        let is_wanted = !it.is_silent && is_reported(self.send_queue, it.flags);
        Operation { context: it.context, flags: it.kind.flag() | SEND, is_wanted, ..Operation::default() }
    }

    /// Starts a send whose bytes are those of the operation's copy, of its list, or of this run.
    fn start_send(
        &mut self,
        rank: usize,
        (base, len): (*const u8, usize),
        it: &Sending,
        operation: Operation,
    ) -> Result<(), Errno> {
        if self.kept.has(rank) {
            return self.keep_send(rank, (base, len), it, operation);
        }
        let number = self.operations.insert(operation);
        let started = self.start_number(number, rank, (base, len), it);
        if started.is_err()
            && let Some(operation) = self.operations.remove(number)
        {
            self.give_room_back(&operation);
        }
        started
    }

    /// As [`Port::start_send`], for an operation that has a number, and keeps it if it cannot be started.
    fn start_number(
        &mut self,
        number: u64,
        rank: usize,
        (base, len): (*const u8, usize),
        it: &Sending,
    ) -> Result<(), Errno> {
        let Some(operation) = self.operations.get(number) else { return Err(Errno::OTHER) };
        let list = operation.list();
        let op = if !list.is_empty() {
            // SAFETY: the list is kept until the completion is taken; the runs by the promise of `send_runs`.
            unsafe { SendOp::from_raw_list(rank, it.tag, list.as_ptr(), list.len()) }
        } else {
            let (base, len) = operation.copy().map_or((base, len), |copy| (copy.as_ptr(), copy.len()));
            // SAFETY: as above, for a copy; by the promise of `send` otherwise.
            unsafe { SendOp::from_raw(rank, it.tag, base, len) }
        };
        let op = op.context(it.kind.context());
        let op = match it.data {
            Some(data) => op.immediate(data),
            None => op,
        };
        let op = if it.flags & DELIVERED != 0 { op.synchronous() } else { op };
        // SAFETY: as above.
        unsafe { self.endpoint.with_completion(number).isend_op(op) }?;
        Ok(())
    }

    /// Reports a send that is complete.
    #[inline(always)]
    fn report_sent(&self, it: &Sending, len: usize, around: &mut Around<'_>) {
        if !self.counters.is_empty() {
            self.count(SEND, true);
        }
        if it.is_silent {
            return;
        }
        let Some(bound) = self.send_queue else { return };
        if !bound.is_selective || it.flags & COMPLETION != 0 {
            let flags = it.kind.flag() | SEND;
            around.put(bound.queue, &Entry { context: it.context, flags, len, ..Entry::default() });
        }
    }

    /// Counts an operation.
    fn count(&self, kind: u64, succeeded: bool) {
        for (counts, kinds) in &self.counters {
            if kinds & kind != 0 {
                counts.count(succeeded);
            }
        }
    }
}

impl Runs {
    /// Returns the only run, or a copy of the list if there are several.
    ///
    /// # Safety
    /// The list is valid.
    #[inline]
    unsafe fn copy(self) -> Result<(Option<Segment>, Box<[Segment]>), Errno> {
        if self.count == 0 {
            return Ok((None, Box::default()));
        }
        if self.first.is_null() || self.count > info::MOST_RUNS {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise.
        let list = unsafe { std::slice::from_raw_parts(self.first, self.count) };
        // Most messages have one run, for which nothing is allocated.
        Ok(match list {
            [run] => (Some(segment(run)?), Box::default()),
            list => (None, list.iter().map(segment).collect::<Result<_, _>>()?),
        })
    }
}

/// Returns a run of the application's memory.
#[inline]
fn segment(run: &libc::iovec) -> Result<Segment, Errno> {
    let (base, len) = (run.iov_base.cast(), run.iov_len);
    let is_right = len <= isize::MAX as usize && (len == 0 || !run.iov_base.is_null());
    if is_right { Ok(Segment { base, len }) } else { Err(Errno::invalid(NO_MEMORY)) }
}

/// Returns whether an operation with these flags is reported in the queue of its direction.
fn is_reported(bound: Option<BoundQueue>, flags: u64) -> bool {
    bound.is_some_and(|bound| !bound.is_selective || flags & COMPLETION != 0)
}
