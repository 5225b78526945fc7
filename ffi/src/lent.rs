//! An endpoint for the duration of a call: of one thread, or of several threads. Blocking calls differ
//! between the two.
//!
//! A call that does not block takes the lock of a shared endpoint and then has it exclusively
//! (`endpoint::on`). A call that blocks starts its operation in this manner, and then waits without the lock.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nemesia::{
    CompleteAt, Completion, EndedRequest, Endpoint as Inner, Error, Message, RecvOp, RemoteKey, Request,
    SendOp, SharedEndpoint, Source, Status, Tag,
};

use crate::rank::rank_in;
use crate::request::RequestNumber;
use crate::status::{Fault, NEMESIA_ERR_THREADS};

/// The threads that may use an endpoint.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "an endpoint has one, on the heap, and the critical path needs no further pointer"
)]
pub(crate) enum Owner {
    /// One thread at a time.
    One(Single),
    /// All threads.
    All(SharedEndpoint),
}

/// An endpoint, or another object, that one thread at a time uses; its caller ensures that.
#[derive(Debug)]
pub(crate) struct Single<T = Inner> {
    inner: UnsafeCell<T>,
    /// Whether a thread is in a call. Plain loads and stores, which cost little. Two threads that enter
    /// within the same few instructions are not detected; a thread that enters while another one waits is.
    busy: AtomicBool,
}

// SAFETY: only `lend` and `at_hand` reach the content, and their callers promise that no other thread uses
// it. It may move between threads.
unsafe impl<T: Send> Sync for Single<T> {}

impl<T> Single<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self { inner: UnsafeCell::new(inner), busy: AtomicBool::new(false) }
    }

    /// Returns whether a call is seen to be in progress.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    pub(crate) fn into_inner(self) -> T {
        self.inner.into_inner()
    }

    /// Lends the endpoint to a call, unless another call is seen to be in progress.
    ///
    /// # Safety
    /// No other thread calls this until the call is over. (A thread that breaks this gets an error, unless it
    /// enters at the same moment.)
    #[inline]
    pub(crate) unsafe fn lend<O>(&self, work: impl FnOnce(&mut T) -> O) -> Result<O, Fault> {
        struct Free<'a>(&'a AtomicBool);
        impl Drop for Free<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Relaxed);
            }
        }
        if self.busy.load(Ordering::Relaxed) {
            return Err(in_use());
        }
        self.busy.store(true, Ordering::Relaxed);
        let _free = Free(&self.busy);
        // SAFETY: the caller's promise: no other thread is here.
        Ok(work(unsafe { &mut *self.inner.get() }))
    }

    /// Lends the endpoint to a function of a few instructions that calls no code of the caller's and does not
    /// panic. Returns `None` if another call is seen to be in progress, for instance one that runs a handler.
    ///
    /// This function does not set `busy`, because no code could run meanwhile and observe it. The functions
    /// that use it ([`crate::now`]) examine one fastbox or one cell, and deliver no packet to the engine.
    /// Progress calls handlers, where it delivers packets and where own messages leave the queue. `tracing`
    /// is called where peers are found to have failed and where threads sleep. The call tree is memory of
    /// this process. All of these run in guarded calls, which set `busy`.
    ///
    /// # Safety
    /// As [`Single::lend`]; the caller uses the endpoint only for the functions of [`crate::now`].
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the caller's promise")]
    pub(crate) unsafe fn at_hand(&self) -> Option<&mut T> {
        // SAFETY: the caller's promise: no other thread is here.
        (!self.busy.load(Ordering::Relaxed)).then(|| unsafe { &mut *self.inner.get() })
    }
}

#[cold]
fn in_use() -> Fault {
    Fault::new(
        NEMESIA_ERR_THREADS,
        "another thread is in a call on this endpoint or channel, which allows one thread at a time: an endpoint can \
         be opened for several, with nemesia_config_set_threads",
    )
}

/// An endpoint that a blocking call may use.
pub(crate) enum Lent<'a> {
    One(&'a mut Inner),
    All(&'a SharedEndpoint),
}

impl Lent<'_> {
    /// Runs a function that does not block.
    pub(crate) fn with<T, E: From<Error>>(
        &mut self,
        work: impl FnOnce(&mut Inner) -> Result<T, E>,
    ) -> Result<T, E> {
        match self {
            Self::One(endpoint) => work(endpoint),
            // SAFETY: no function of this crate swaps, replaces or takes the endpoint that it is lent.
            Self::All(endpoint) => unsafe { endpoint.with_endpoint(work) }?,
        }
    }

    /// Runs a function that may block and has no form for several threads. It blocks the other threads until
    /// it returns.
    pub(crate) fn keep<T, E: From<Error>>(
        &mut self,
        work: impl FnOnce(&mut Inner) -> Result<T, E>,
    ) -> Result<T, E> {
        self.with(work)
    }

    /// Checks that a rank of the caller's exists.
    #[inline]
    pub(crate) fn rank_in(&mut self, rank: i32) -> Result<usize, Fault> {
        self.with(|endpoint| rank_in(endpoint, rank))
    }

    /// Finishes a request that has succeeded, if that is visible at once and without a lock.
    #[inline(always)]
    pub(crate) fn finish_now(&mut self, request: Request) -> Option<Status> {
        match self {
            Self::One(endpoint) => endpoint.finish_now(request),
            Self::All(_) => None,
        }
    }

    /// Waits for a request, before other requests that the caller will wait for.
    #[inline]
    pub(crate) fn wait(
        &mut self,
        request: Request,
        others: &dyn Fn(usize) -> Option<Request>,
        limit: Option<Duration>,
    ) -> Result<Status, Error> {
        match self {
            Self::One(endpoint) => endpoint.wait_before(request, others, limit),
            Self::All(endpoint) => match limit {
                None => endpoint.wait(request),
                Some(limit) => endpoint.wait_timeout(request, limit),
            },
        }
    }

    #[inline]
    pub(crate) fn test(&mut self, request: Request) -> Result<Option<Status>, Error> {
        self.with(|endpoint| endpoint.test(request))
    }

    /// Waits for completions; see [`Inner::wait_completions`].
    pub(crate) fn wait_completions(
        &mut self,
        into: &mut [Completion],
        limit: Option<Duration>,
    ) -> Result<usize, Error> {
        match self {
            Self::One(endpoint) => endpoint.wait_completions(into, limit),
            Self::All(endpoint) => endpoint.wait_completions(into, limit),
        }
    }

    /// Waits for any request; see [`Inner::wait_any`].
    pub(crate) fn wait_any(
        &mut self,
        requests: &mut [RequestNumber],
        limit: Option<Duration>,
    ) -> Result<Option<EndedRequest>, Error> {
        match self {
            Self::One(endpoint) => endpoint.wait_any(requests, limit),
            Self::All(endpoint) => endpoint.wait_any(requests, limit),
        }
    }

    /// Waits until anything happens; see [`Inner::wait_progress`].
    pub(crate) fn wait_progress(&mut self, limit: Option<Duration>) -> Result<bool, Error> {
        match self {
            Self::One(endpoint) => endpoint.wait_progress(limit),
            Self::All(endpoint) => endpoint.wait_progress(limit),
        }
    }

    /// Starts an operation on borrowed buffers and waits until the engine no longer uses them.
    pub(crate) fn run(
        &mut self,
        start: impl FnOnce(&mut Inner) -> Result<Request, Fault>,
    ) -> Result<(), Fault> {
        match self {
            Self::One(endpoint) => endpoint.run(start).map(drop),
            Self::All(endpoint) => {
                // SAFETY: no function of this crate swaps, replaces or takes the endpoint that it is lent.
                let request = unsafe { endpoint.with_endpoint(start) }??;
                Ok(endpoint.run(|_| Ok(request)).map(drop)?)
            }
        }
    }

    /// Sends a message. `tried` states that an attempt to send it at once has failed.
    #[inline]
    pub(crate) fn send(&mut self, to: usize, tag: u64, bytes: &[u8], tried: bool) -> Result<(), Error> {
        match self {
            Self::One(endpoint) if tried => endpoint.send_queued(to, tag, bytes),
            Self::One(endpoint) => endpoint.send(to, tag, bytes),
            Self::All(endpoint) => endpoint.send(to, tag, bytes),
        }
    }

    #[inline]
    pub(crate) fn recv(&mut self, from: Source, tag: Tag, buf: &mut [u8]) -> Result<Status, Error> {
        match self {
            Self::One(endpoint) => endpoint.recv(from, tag, buf),
            Self::All(endpoint) => endpoint.recv(from, tag, buf),
        }
    }

    /// Sends a message of the general form.
    pub(crate) fn send_op(&mut self, op: SendOp<'_>) -> Result<(), Error> {
        match self {
            Self::One(endpoint) => endpoint.send_op(op),
            // SAFETY: the bytes are borrowed until `run` returns.
            Self::All(endpoint) => endpoint.run(|endpoint| unsafe { endpoint.isend_op(op) }).map(drop),
        }
    }

    /// Receives a message in the general form.
    pub(crate) fn recv_op(&mut self, op: RecvOp<'_>) -> Result<Status, Error> {
        match self {
            Self::One(endpoint) => endpoint.recv_op(op),
            // SAFETY: the buffer is borrowed until `run` returns.
            Self::All(endpoint) => endpoint.run(|endpoint| unsafe { endpoint.irecv_op(op) }),
        }
    }

    pub(crate) fn send_active(
        &mut self,
        to: usize,
        number: u16,
        header: &[u8],
        payload: &[u8],
    ) -> Result<(), Error> {
        match self {
            Self::One(endpoint) => endpoint.send_active(to, number, header, payload),
            Self::All(endpoint) => endpoint.send_active(to, number, header, payload),
        }
    }

    pub(crate) fn probe(
        &mut self,
        context: u16,
        from: Source,
        tag: Tag,
        limit: Option<Duration>,
    ) -> Result<Status, Error> {
        match (self, limit) {
            (Self::One(endpoint), None) => endpoint.in_context(context).probe(from, tag),
            (Self::One(endpoint), Some(limit)) => {
                endpoint.in_context(context).probe_timeout(from, tag, limit)
            }
            (Self::All(endpoint), limit) => endpoint.probe(context, from, tag, limit),
        }
    }

    pub(crate) fn mprobe(
        &mut self,
        context: u16,
        from: Source,
        tag: Tag,
        limit: Option<Duration>,
    ) -> Result<Message, Error> {
        match (self, limit) {
            (Self::One(endpoint), None) => endpoint.in_context(context).mprobe(from, tag),
            (Self::One(endpoint), Some(limit)) => {
                endpoint.in_context(context).mprobe_timeout(from, tag, limit)
            }
            (Self::All(endpoint), limit) => endpoint.mprobe(context, from, tag, limit),
        }
    }

    pub(crate) fn mrecv(&mut self, message: Message, buf: &mut [u8]) -> Result<Status, Error> {
        let (base, len) = (buf.as_mut_ptr(), buf.len());
        match self {
            Self::One(endpoint) => endpoint.mrecv(message, buf),
            // SAFETY: the buffer is borrowed until `run` returns.
            Self::All(endpoint) => endpoint.run(|endpoint| unsafe { endpoint.imrecv(message, base, len) }),
        }
    }

    pub(crate) fn barrier(&mut self) -> Result<(), Error> {
        match self {
            Self::One(endpoint) => endpoint.barrier(),
            Self::All(endpoint) => endpoint.barrier(),
        }
    }

    pub(crate) fn put(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        bytes: &[u8],
        (notify, complete): (bool, CompleteAt),
    ) -> Result<(), Error> {
        match self {
            Self::One(endpoint) => endpoint.put_as(key, offset, bytes, notify, complete),
            Self::All(endpoint) => endpoint.put_as(key, offset, bytes, notify, complete),
        }
    }

    pub(crate) fn get(&mut self, key: &RemoteKey, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        match self {
            Self::One(endpoint) => endpoint.get(key, offset, buf),
            Self::All(endpoint) => endpoint.get(key, offset, buf),
        }
    }

    pub(crate) fn flush(&mut self, rank: usize) -> Result<(), Error> {
        match self {
            Self::One(endpoint) => endpoint.flush(rank),
            Self::All(endpoint) => endpoint.flush(rank),
        }
    }

    /// Flushes every rank and then returns the first error.
    pub(crate) fn flush_all(&mut self) -> Result<(), Error> {
        match self {
            Self::One(endpoint) => endpoint.flush_all(),
            Self::All(endpoint) => endpoint.flush_all(),
        }
    }
}
