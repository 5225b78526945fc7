//! Operations that complete at once or do nothing: the critical path of sends, receives and waits, and the
//! waits that begin with it.
//!
//! All results return in registers, never in memory. A result in memory would be written in parts and read as a
//! whole. For such a read the processor waits until all earlier stores have left the core. The store of the
//! message is among them, and the receiver's core has its cache line.

use std::time::Duration;

use nemesia_core::matching::{Pattern, Source as From};
use nemesia_core::payload::{RecvBuf, SendBuf};

use crate::endpoint::wait::{Awaited, Wait};
use crate::endpoint::{Context, Endpoint, Mode, Request, Source, Status, Tag, free_context, pattern, status};
use crate::error::Error;

/// The number of polls of a receive before the caller sets up a wait.
const SOON: u32 = 32;

/// # At once or not at all
///
/// These functions complete at once or do nothing, so that a runtime needs no request of its own in the usual
/// case. If one of them refuses, the caller uses the ordinary function.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// use nemesia::{Source, Tag};
///
/// let peer = 1 - endpoint.rank();
/// if !endpoint.send_now(peer, 1, b"nemesia!") {
///     endpoint.send_queued(peer, 1, b"nemesia!")?;
/// }
/// let (from, tag, mut buf) = (Source::Rank(peer), Tag::Exactly(1), [0; 8]);
/// let status = match endpoint.recv_now(from, tag, &mut buf) {
///     Some(status) => status,
///     None => endpoint.recv(from, tag, &mut buf)?,
/// };
/// assert_eq!(status.len, 8);
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Most bytes of a short message: as many as travel in one fastbox slot, half a cache line, with their header.
    pub const SHORT_BYTES: usize = nemesia_core::port::SHORT_BYTES;

    /// Sends a message if it can leave at once.
    ///
    /// It can if it has at most NEMESIA_EAGER_BYTES, there is room and credit, no message is queued before it,
    /// and it goes to another process. False has no other meaning, and does not mean that the rank exists:
    /// [`Endpoint::isend`] or [`Endpoint::send`] returns the reason. For runtimes that need no request of their
    /// own in this case (`fi_inject` of libfabric).
    #[inline(always)]
    pub fn send_now(&mut self, to: usize, tag: u64, bytes: &[u8]) -> bool {
        self.in_context(0).send_now(to, tag, bytes)
    }

    /// Returns whether a message of `len` bytes that [`Endpoint::isend`] starts now leaves together with others, in the
    /// next call that makes progress. Such a message is not for [`Endpoint::send_now`], which sends each one alone.
    #[inline]
    pub fn gathers(&self, to: usize, len: usize) -> bool {
        self.engine.gathers(u32::try_from(to).unwrap_or(u32::MAX), len)
    }

    /// Sends a short message, of at most [`Endpoint::SHORT_BYTES`], as [`Endpoint::send_now`] does. This is
    /// the critical path. Also returns false if the message is longer.
    #[inline(always)]
    pub fn send_short_now(&mut self, to: usize, tag: u64, bytes: &[u8]) -> bool {
        self.send_short_at_once(to, 0, tag, bytes)
    }

    /// Returns the most bytes of a message that [`Endpoint::inject`] takes: NEMESIA_EAGER_BYTES, or less if a cell or
    /// the memory for unexpected messages is smaller.
    pub const fn inject_bytes(&self) -> usize {
        self.engine.inject_bytes()
    }

    /// Sends a message now, or returns false: try again after progress. The buffer is free in both cases, and there is
    /// never a request (`fi_inject` of libfabric).
    ///
    /// False means that there is no room or credit, or that messages are queued before this one. Unlike
    /// [`Endpoint::send_now`], this function also sends to this process itself, and returns the reason if the message
    /// can never leave.
    ///
    /// # Errors
    /// [`Error::LongInject`] for more than [`Endpoint::inject_bytes`]; [`Error::Rank`], [`Error::PeerFailed`],
    /// [`Error::Forked`].
    #[inline]
    pub fn inject(&mut self, to: usize, tag: u64, bytes: &[u8]) -> Result<bool, Error> {
        self.in_context(0).inject(to, tag, bytes)
    }

    /// Receives a message if it is there, no send is pending, and no posted receive and no stored message
    /// competes with this receive.
    ///
    /// A posted receive competes if both could match the same message. With many posted receives or stored
    /// messages the engine may not find out that none competes.
    ///
    /// The message has at most [`Endpoint::SHORT_BYTES`] and fits into `buf`. If `from` and `tag` name one
    /// rank and one tag, it may have up to NEMESIA_EAGER_BYTES, as far as these fit. `None` has no other
    /// meaning: [`Endpoint::recv`] or [`Endpoint::irecv`] returns the reason.
    #[inline(always)]
    pub fn recv_now(&mut self, from: Source, tag: Tag, buf: &mut [u8]) -> Option<Status> {
        self.in_context(0).recv_now(from, tag, buf)
    }

    /// Receives a message as [`Endpoint::recv_now`] does, if it is there or comes within less than a
    /// microsecond.
    #[inline(always)]
    pub fn recv_soon(&mut self, from: Source, tag: Tag, buf: &mut [u8]) -> Option<Status> {
        let pattern = pattern(from, 0, tag).ok()?;
        // Pending sends must not wait for these polls.
        let polls = if self.engine.has_work() { 1 } else { self.waiter.polls().min(SOON) };
        self.receive_at_once(from, &pattern, buf, polls)
    }

    /// Sends a message that [`Endpoint::send_now`] has refused, and waits as [`Endpoint::send`] does.
    ///
    /// The message goes to the queue of pending sends without another attempt. From there it leaves at once if
    /// there is room by now.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn send_queued(&mut self, to: usize, tag: u64, bytes: &[u8]) -> Result<(), Error> {
        // SAFETY: the bytes are borrowed until this function returns.
        let buf = unsafe { SendBuf::from_raw(bytes.as_ptr(), bytes.len()) };
        self.send_slowly(to, 0, tag, buf, Mode::Queued)
    }

    /// Starts a send of a message that [`Endpoint::send_now`] has refused; see [`Endpoint::isend`] and
    /// [`Endpoint::send_queued`].
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    ///
    /// # Safety
    /// As for [`Endpoint::isend`].
    pub unsafe fn isend_queued(
        &mut self,
        to: usize,
        tag: u64,
        base: *const u8,
        len: usize,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        let buf = unsafe { SendBuf::from_raw(base, len) };
        self.start(to, 0, tag, buf, Mode::Queued)
    }

    /// Posts a receive as [`Endpoint::irecv`] does, if no stored message might match it and there is a free
    /// slot.
    ///
    /// `None` has no other meaning, and nothing was posted.
    ///
    /// # Safety
    /// As for [`Endpoint::irecv`].
    #[inline(always)]
    pub unsafe fn irecv_now(&mut self, from: Source, tag: Tag, base: *mut u8, len: usize) -> Option<Request> {
        // SAFETY: the caller's promise.
        unsafe { self.in_context(0).irecv_now(from, tag, base, len) }
    }

    /// Finishes a request without making progress, if it has succeeded.
    ///
    /// It also finishes a receive whose message is there, if the message is eager and no longer than the
    /// buffer, and the receive names source and tag. `None` has no other meaning: [`Endpoint::test`] or
    /// [`Endpoint::wait`] returns the reason.
    #[inline(always)]
    pub fn finish_now(&mut self, request: Request) -> Option<Status> {
        if request.is_complete() {
            return Some(Status { rank: self.rank(), tag: 0, len: 0, immediate: None });
        }
        self.engine.finish_now(request.0).map(status)
    }

    /// Waits for `request`, for a caller that will wait for `others` before it does anything else.
    ///
    /// The thread sleeps on until there is something to do. `others` returns each request by its number, and
    /// `None` after the last. Requests that are complete do no harm. With a limit this is
    /// [`Endpoint::wait_timeout`], without one [`Endpoint::wait`].
    ///
    /// # Errors
    /// As for these.
    pub fn wait_before(
        &mut self,
        request: Request,
        others: &dyn Fn(usize) -> Option<Request>,
        limit: Option<Duration>,
    ) -> Result<Status, Error> {
        self.wait_as(request, limit, Awaited::All(request, others))
    }
}

impl Endpoint {
    /// Sends a message now, or explains why it can never leave.
    pub(in crate::endpoint) fn inject_at_once(
        &mut self,
        to: usize,
        context: u16,
        tag: u64,
        bytes: &[u8],
    ) -> Result<bool, Error> {
        self.check_origin()?;
        let most = self.inject_bytes();
        if bytes.len() > most {
            return Err(Error::LongInject { len: bytes.len(), most });
        }
        let to = u32::try_from(to).unwrap_or(u32::MAX);
        // SAFETY: the bytes are borrowed until this function returns, and the engine keeps no pointer to them.
        let buf = unsafe { SendBuf::from_raw(bytes.as_ptr(), bytes.len()) };
        self.engine.inject(to, context, tag, buf).or_else(|error| {
            self.make_room(error)?;
            Ok(false)
        })
    }

    /// Receives a message that is there after at most `polls` failed polls, at least one. `None` has no other
    /// meaning.
    #[inline(always)]
    pub(in crate::endpoint) fn receive_at_once(
        &mut self,
        from: Source,
        pattern: &Pattern,
        buf: &mut [u8],
        polls: u32,
    ) -> Option<Status> {
        let mut left = polls;
        let rank = from.rank();
        loop {
            if let Some(done) =
                self.engine.receive_short(rank, pattern.context, |tag| pattern.accepts(tag), buf)
            {
                return Some(status(done));
            }
            if self.engine.has_next() {
                let From::Rank(rank) = pattern.source else { return None };
                // SAFETY: the buffer is borrowed until this function returns, and the engine keeps no pointer
                // to it.
                let mut room = unsafe { RecvBuf::from_raw(buf.as_mut_ptr(), buf.len()) };
                let len = self.engine.receive_packet(pattern, &mut room)?;
                return Some(Status { rank: rank as usize, tag: pattern.tag, len, immediate: None });
            }
            if !self.engine.is_idle() {
                return self.receive_beside(*pattern, buf, left);
            }
            left = left.saturating_sub(1);
            if left == 0 {
                return None;
            }
            self.engine.pause();
        }
    }

    /// Receives a short message beside posted receives and stored messages, as [`Endpoint::receive_at_once`]
    /// does. The pattern is passed by value, so that it stays in registers there.
    #[cold]
    #[inline(never)]
    fn receive_beside(&mut self, pattern: Pattern, buf: &mut [u8], polls: u32) -> Option<Status> {
        for _ in 0..polls.max(1) {
            if let Some(done) = self.engine.receive_short_beside(&pattern, buf) {
                return Some(status(done));
            }
            // A packet of another kind, and pending work, need the ordinary functions.
            if self.engine.has_next() || self.engine.has_work() {
                break;
            }
            self.engine.pause();
        }
        None
    }

    /// Finishes a synchronous send whose acknowledgement comes within less than a microsecond. `None` has no other
    /// meaning.
    #[inline(always)]
    pub(in crate::endpoint) fn acknowledged_soon(&mut self, request: Request) -> Option<Status> {
        // Pending sends must not wait for these polls.
        let polls = if self.engine.has_work() { 1 } else { self.waiter.polls().min(SOON) };
        for _ in 0..polls {
            if self.engine.has_next() {
                return self.finish_now(request);
            }
            self.engine.pause();
        }
        None
    }

    /// Sends a short message if it can leave at once. False means that nothing was sent, or that the message is
    /// longer.
    #[inline(always)]
    pub(in crate::endpoint) fn send_short_at_once(
        &mut self,
        to: usize,
        context: u16,
        tag: u64,
        bytes: &[u8],
    ) -> bool {
        self.engine.send_short(to, context, tag, bytes)
    }

    /// Sends a message if it can leave at once. False has no other meaning, and nothing was sent.
    #[inline(always)]
    pub(in crate::endpoint) fn send_at_once(
        &mut self,
        to: usize,
        context: u16,
        tag: u64,
        bytes: &[u8],
    ) -> bool {
        self.engine.send_now(u32::try_from(to).unwrap_or(u32::MAX), context, tag, bytes)
    }

    /// As [`Endpoint::send_at_once`], which the compiler shall not repeat in each caller.
    #[inline(never)]
    fn send_alone(&mut self, to: usize, context: u16, tag: u64, bytes: &[u8]) -> bool {
        self.send_at_once(to, context, tag, bytes)
    }

    /// Waits until a request is complete, or for at most `limit`.
    #[inline]
    pub(in crate::endpoint) fn wait_limited(
        &mut self,
        request: Request,
        limit: Option<Duration>,
    ) -> Result<Status, Error> {
        self.wait_as(request, limit, Awaited::Request(request))
    }

    /// Tries to finish the request first: in a stream of messages most requests are complete, or their message
    /// is there.
    #[inline(always)]
    fn wait_as(
        &mut self,
        request: Request,
        limit: Option<Duration>,
        awaited: Awaited<'_>,
    ) -> Result<Status, Error> {
        match self.finish_now(request) {
            Some(status) => Ok(status),
            None => self.wait_slowly(request, limit, awaited),
        }
    }

    #[inline(never)]
    fn wait_slowly(
        &mut self,
        request: Request,
        limit: Option<Duration>,
        awaited: Awaited<'_>,
    ) -> Result<Status, Error> {
        if limit == Some(Duration::ZERO) {
            // One attempt. It needs neither a clock nor the machinery of waits.
            return self.test(request)?.ok_or(Error::Timeout(Duration::ZERO));
        }
        self.check_origin()?;
        if self.engine.is_unacknowledged(request.0)
            && let Some(status) = self.acknowledged_soon(request)
        {
            return Ok(status);
        }
        self.go_on(request, &mut Wait::new(limit), awaited)
    }
}

impl Context<'_> {
    /// Sends a message if it can leave at once; see [`Endpoint::send_now`].
    #[inline(always)]
    pub fn send_now(self, to: usize, tag: u64, bytes: &[u8]) -> bool {
        free_context(self.id).is_ok()
            && (self.endpoint.send_short_at_once(to, self.id, tag, bytes)
                || self.endpoint.send_alone(to, self.id, tag, bytes))
    }

    /// Sends a message with immediate data ([`SendOp::immediate`](crate::SendOp::immediate)) if it can leave at once;
    /// see [`Endpoint::send_now`]. Also returns false for a peer of another machine.
    #[inline]
    pub fn send_immediate_now(self, to: usize, tag: u64, bytes: &[u8], immediate: u64) -> bool {
        if free_context(self.id).is_err() || self.endpoint.is_forked() {
            return false;
        }
        let to = u32::try_from(to).unwrap_or(u32::MAX);
        self.endpoint.engine.send_immediate_now(to, self.id, (tag, immediate), bytes)
    }

    /// Posts a receive if it can be posted at once; see [`Endpoint::irecv_now`].
    ///
    /// # Safety
    /// As for [`Endpoint::irecv`].
    #[inline(always)]
    pub unsafe fn irecv_now(self, from: Source, tag: Tag, base: *mut u8, len: usize) -> Option<Request> {
        // SAFETY: the caller's promise.
        let mut buf = unsafe { RecvBuf::from_raw(base, len) };
        let pattern = pattern(from, self.id, tag).ok()?;
        self.endpoint.check_origin().ok()?;
        self.endpoint.engine.post_now(&pattern, &mut buf).map(Request)
    }

    /// Receives a message if it is there; see [`Endpoint::recv_now`].
    #[inline(always)]
    pub fn recv_now(self, from: Source, tag: Tag, buf: &mut [u8]) -> Option<Status> {
        let pattern = pattern(from, self.id, tag).ok()?;
        self.endpoint.receive_at_once(from, &pattern, buf, 1)
    }
}
