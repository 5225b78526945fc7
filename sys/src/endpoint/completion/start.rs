//! The operations whose completions enter the queue.

use nemesia_core::engine::{self, CompletionKind};
use nemesia_core::payload::RecvBuf;

use crate::endpoint::{
    Comparison, CompleteAt, Datatype, Endpoint, RecvOp, Reduction, Region, RemoteKey, Request, SendOp,
    Source, Tag, pattern,
};
use crate::error::Error;

/// An endpoint that starts operations whose completions enter the completion queue.
///
/// The methods are those of [`Endpoint`] with the same names, and the buffers have the same conditions: they belong to
/// the operation until its completion was taken ([`Endpoint::completions`]). An operation that is complete when it
/// starts makes an entry, too.
#[derive(Debug)]
pub struct WithCompletion<'a> {
    endpoint: &'a mut Endpoint,
    /// The number of the caller's; `None` if the operation has a request instead.
    context: Option<u64>,
}

/// An operation that was started by a method of [`WithCompletion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartedOperation(Request);

impl StartedOperation {
    /// Returns the request of the operation. If its completion enters the queue, the request serves
    /// [`Endpoint::cancel`] only: tests and waits refuse it ([`Error::Stale`]).
    pub const fn request(self) -> Request {
        self.0
    }
}

impl Endpoint {
    /// Returns this endpoint for one operation whose completion enters the queue with this number.
    pub const fn with_completion(&mut self, context: u64) -> WithCompletion<'_> {
        self.with_completion_or_request(Some(context))
    }

    /// Returns this endpoint for one operation. If there is a number, this is [`Endpoint::with_completion`]; otherwise
    /// the operation has a request, which tests and waits complete. For callers that decide at run time.
    pub const fn with_completion_or_request(&mut self, context: Option<u64>) -> WithCompletion<'_> {
        WithCompletion { endpoint: self, context }
    }

    /// Starts an operation whose completion enters the queue. `peer`, `tag` and `len` are its status if it is complete
    /// when it starts.
    fn start_collected(
        &mut self,
        entry: (u64, CompletionKind),
        (peer, tag, len): (usize, u64, usize),
        start: impl FnOnce(&mut Self) -> Result<Request, Error>,
    ) -> Result<Request, Error> {
        // Before the operation starts: after it, nothing may fail.
        while let Err(full) = self.engine.check_slot() {
            self.make_room(full)?;
        }
        let request = start(self)?;
        let peer = u32::try_from(peer).unwrap_or(u32::MAX);
        let done = engine::Status { peer, tag, len, immediate: None };
        self.engine
            .collect(request.0, entry, done)
            .map(Request)
            .map_err(|_| Error::Requests { capacity: self.engine.request_capacity() })
    }
}

impl WithCompletion<'_> {
    fn start(
        self,
        kind: CompletionKind,
        done: (usize, u64, usize),
        start: impl FnOnce(&mut Endpoint) -> Result<Request, Error>,
    ) -> Result<StartedOperation, Error> {
        let Self { endpoint, context } = self;
        let started = match context {
            Some(context) => endpoint.start_collected((context, kind), done, start),
            None => start(endpoint),
        };
        started.map(StartedOperation)
    }

    /// Starts a send; see [`Endpoint::isend_op`].
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    ///
    /// # Safety
    /// As for [`Endpoint::isend_op`], until the completion was taken.
    pub unsafe fn isend_op(self, op: SendOp<'_>) -> Result<StartedOperation, Error> {
        self.start(CompletionKind::Send, op.done(), |endpoint| {
            // SAFETY: the caller's promise.
            unsafe { endpoint.isend_op(op) }
        })
    }

    /// Posts a receive; see [`Endpoint::irecv_op`].
    ///
    /// # Errors
    /// See [`Error`]; nothing was posted.
    ///
    /// # Safety
    /// As for [`Endpoint::irecv_op`], until the completion was taken.
    pub unsafe fn irecv_op(self, op: RecvOp<'_>) -> Result<StartedOperation, Error> {
        self.start(CompletionKind::Receive, NO_STATUS, |endpoint| {
            // SAFETY: the caller's promise.
            unsafe { endpoint.irecv_op(op) }
        })
    }

    /// Posts a receive in a matching context if it can be posted at once; see [`Endpoint::irecv_now`].
    ///
    /// # Safety
    /// As for [`Endpoint::irecv_op`], until the completion was taken.
    #[inline(always)]
    pub unsafe fn irecv_now(
        self,
        context: u16,
        from: Source,
        tag: Tag,
        base: *mut u8,
        len: usize,
    ) -> Option<StartedOperation> {
        let Self { endpoint, context: number } = self;
        if endpoint.is_forked() {
            return None;
        }
        // SAFETY: the caller's promise.
        let mut buf = unsafe { RecvBuf::from_raw(base, len) };
        let pattern = pattern(from, context, tag).ok()?;
        let posted = match number {
            Some(number) => endpoint.engine.post_collected_now(&pattern, &mut buf, number),
            None => endpoint.engine.post_now(&pattern, &mut buf),
        };
        posted.map(|id| StartedOperation(Request(id)))
    }

    /// Starts an active message; see [`Endpoint::isend_active`]. The length of its status is that of the payload.
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    ///
    /// # Safety
    /// As for [`Endpoint::isend_active`], until the completion was taken.
    pub unsafe fn isend_active(
        self,
        to: usize,
        handler: u16,
        header: *const [u8],
        payload: *const [u8],
    ) -> Result<StartedOperation, Error> {
        // Replies of handlers take slots, and leave before the slot for this message is reserved.
        self.endpoint.send_waiting_replies();
        self.start(CompletionKind::Active, (to, 0, payload.len()), |endpoint| {
            // SAFETY: the caller's promise.
            unsafe { endpoint.start_active(to, handler, header, payload) }
        })
    }

    /// Starts a put; see [`Endpoint::iput`].
    ///
    /// # Errors
    /// As for [`Endpoint::iput`].
    ///
    /// # Safety
    /// As for [`Endpoint::iput`], until the completion was taken.
    pub unsafe fn iput(
        self,
        key: &RemoteKey,
        offset: u64,
        base: *const u8,
        len: usize,
        notify: bool,
        complete: CompleteAt,
    ) -> Result<StartedOperation, Error> {
        self.start(CompletionKind::Put, (key.rank(), 0, len), |endpoint| {
            // SAFETY: the caller's promise.
            unsafe { endpoint.iput(key, offset, base, len, notify, complete) }
        })
    }

    /// Starts a get; see [`Endpoint::iget`].
    ///
    /// # Errors
    /// As for [`Endpoint::iget`].
    ///
    /// # Safety
    /// As for [`Endpoint::iget`], until the completion was taken.
    pub unsafe fn iget(
        self,
        key: &RemoteKey,
        offset: u64,
        base: *mut u8,
        len: usize,
    ) -> Result<StartedOperation, Error> {
        self.start(CompletionKind::Get, (key.rank(), 0, len), |endpoint| {
            // SAFETY: the caller's promise.
            unsafe { endpoint.iget(key, offset, base, len) }
        })
    }

    /// Starts an accumulate; see [`Endpoint::iaccumulate`].
    ///
    /// # Errors
    /// As for [`Endpoint::iaccumulate`].
    ///
    /// # Safety
    /// As for [`WithCompletion::iput`].
    pub unsafe fn iaccumulate(
        self,
        key: &RemoteKey,
        offset: u64,
        what: (Datatype, Reduction),
        base: *const u8,
        len: usize,
        complete: CompleteAt,
    ) -> Result<StartedOperation, Error> {
        self.start(CompletionKind::Atomic, (key.rank(), 0, len), |endpoint| {
            // SAFETY: the caller's promise.
            unsafe { endpoint.iaccumulate(key, offset, what, base, len, complete) }
        })
    }

    /// Starts a fetch; see [`Endpoint::ifetch`].
    ///
    /// # Errors
    /// As for [`Endpoint::ifetch`].
    ///
    /// # Safety
    /// As for [`Endpoint::ifetch`], until the completion was taken.
    pub unsafe fn ifetch(
        self,
        key: &RemoteKey,
        offset: u64,
        what: (Datatype, Reduction),
        operand: u64,
        old: *mut u8,
    ) -> Result<StartedOperation, Error> {
        let done = (key.rank(), 0, what.0.bytes());
        self.start(CompletionKind::Atomic, done, |endpoint| {
            // SAFETY: the caller's promise.
            unsafe { endpoint.ifetch(key, offset, what, operand, old) }
        })
    }

    /// Starts a fetch and accumulate; see [`Endpoint::ifetch_accumulate`].
    ///
    /// # Errors
    /// As for [`Endpoint::ifetch_accumulate`].
    ///
    /// # Safety
    /// As for [`Endpoint::ifetch_accumulate`], until the completion was taken.
    pub unsafe fn ifetch_accumulate(
        self,
        key: &RemoteKey,
        offset: u64,
        what: (Datatype, Reduction),
        operands: *const u8,
        old: *mut u8,
        len: usize,
    ) -> Result<StartedOperation, Error> {
        self.start(CompletionKind::Atomic, (key.rank(), 0, len), |endpoint| {
            // SAFETY: the caller's promise.
            unsafe { endpoint.ifetch_accumulate(key, offset, what, operands, old, len) }
        })
    }

    /// Starts a compare and swap; see [`Endpoint::icompare_swap`].
    ///
    /// # Errors
    /// As for [`Endpoint::icompare_swap`].
    ///
    /// # Safety
    /// As for [`Endpoint::icompare_swap`], until the completion was taken.
    pub unsafe fn icompare_swap(
        self,
        key: &RemoteKey,
        offset: u64,
        what: (Datatype, Comparison),
        expected_and_value: [u64; 2],
        old: *mut u8,
    ) -> Result<StartedOperation, Error> {
        let done = (key.rank(), 0, what.0.bytes());
        self.start(CompletionKind::Atomic, done, |endpoint| {
            // SAFETY: the caller's promise.
            unsafe { endpoint.icompare_swap(key, offset, what, expected_and_value, old) }
        })
    }

    /// Starts a flush; see [`Endpoint::iflush`].
    ///
    /// # Errors
    /// As for [`Endpoint::iflush`].
    pub fn iflush(self, rank: usize) -> Result<StartedOperation, Error> {
        self.start(CompletionKind::Flush, (rank, 0, 0), |endpoint| endpoint.iflush(rank))
    }

    /// Starts a wait for notifications; see [`Endpoint::inotified`].
    ///
    /// # Errors
    /// As for [`Endpoint::inotified`].
    pub fn inotified(self, region: Region, count: u64) -> Result<StartedOperation, Error> {
        self.start(CompletionKind::Notification, NO_STATUS, |endpoint| endpoint.inotified(region, count))
    }
}

/// The status of an operation that always has a request, which keeps its own.
const NO_STATUS: (usize, u64, usize) = (0, 0, 0);
