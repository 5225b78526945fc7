//! What is done at once or not at all: the critical path of sends, receives and waits, and the waits that begin with
//! it.
//!
//! Everything here comes back in registers, and nothing in a result that lies in memory: that would be written by parts
//! and read as a whole, for which a processor waits until all stores before it have left the core, that of the message
//! among them, whose line the receiver has.

use std::time::Duration;

use nemesia_core::matching::{Pattern, Source as From};
use nemesia_core::payload::{RecvBuf, SendBuf};
use nemesia_core::shared::fastbox::Word;

use super::wait::{Awaited, Wait};
use super::{Context, Endpoint, Mode, Request, Source, Status, Tag, free_context, pattern, status};
use crate::error::Error;

/// Polls of a receive before it is left to who sets up a wait.
const SOON: u32 = 32;

impl Endpoint {
    /// Sends a message if it can leave at once: no longer than NEMESIA_EAGER_BYTES, with room and credit, nothing
    /// before it, and to another process. False says nothing else, not even that the rank exists: [`Endpoint::isend`]
    /// or [`Endpoint::send`] will tell. For runtimes whose own requests need not exist then (`fi_inject` of libfabric).
    #[inline(always)]
    pub fn send_now(&mut self, to: usize, tag: u64, bytes: &[u8]) -> bool {
        self.in_context(0).send_now(to, tag, bytes)
    }

    /// As [`Endpoint::send_now`], of a message of 8 bytes: the critical path.
    #[inline(always)]
    pub fn send_word_now(&mut self, to: usize, tag: u64, word: [u8; 8]) -> bool {
        self.send_word_at_once(to, 0, tag, word)
    }

    /// Receives a message of 8 bytes into the beginning of `buf`, or one of up to NEMESIA_EAGER_BYTES that fits from a
    /// rank and with a tag that are named, if it is there and nothing is posted, stored or pending. `None` says nothing
    /// else: [`Endpoint::recv`] or [`Endpoint::irecv`] will tell.
    #[inline(always)]
    pub fn recv_now(&mut self, from: Source, tag: Tag, buf: &mut [u8]) -> Option<Status> {
        self.in_context(0).recv_now(from, tag, buf)
    }

    /// As [`Endpoint::recv_now`], of a message that is there or comes within less than a microsecond.
    #[inline(always)]
    pub fn recv_soon(&mut self, from: Source, tag: Tag, buf: &mut [u8]) -> Option<Status> {
        let pattern = pattern(from, 0, tag).ok()?;
        // What is pending is not to wait for it.
        let polls = if self.engine.has_work() { 1 } else { self.waiter.polls().min(SOON) };
        self.receive_at_once(&pattern, buf, polls)
    }

    /// As [`Endpoint::send`], of a message that [`Endpoint::send_now`] has refused: it is not tried again, but left to
    /// the queue of pending sends, out of which it leaves at once if there is room by now.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn send_queued(&mut self, to: usize, tag: u64, bytes: &[u8]) -> Result<(), Error> {
        self.send_slowly(to, 0, tag, bytes, Mode::Queued)
    }

    /// As [`Endpoint::isend`], of a message that [`Endpoint::send_now`] has refused; see [`Endpoint::send_queued`].
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

    /// Posts a receive, as [`Endpoint::irecv`], if no message is stored that it might match, and there is a free slot.
    /// `None` says nothing else, and nothing was posted.
    ///
    /// # Safety
    /// As for [`Endpoint::irecv`].
    #[inline(always)]
    pub unsafe fn irecv_now(&mut self, from: Source, tag: Tag, base: *mut u8, len: usize) -> Option<Request> {
        // SAFETY: the caller's promise.
        unsafe { self.in_context(0).irecv_now(from, tag, base, len) }
    }

    /// Finishes a request that is complete and has succeeded, as [`Endpoint::test`], or a receive whose message is
    /// there, eager and no longer than the buffer, if source and tag are named. Does nothing else: no progress is made.
    /// `None` says nothing; [`Endpoint::test`] or [`Endpoint::wait`] will tell.
    #[inline(always)]
    pub fn finish_now(&mut self, request: Request) -> Option<Status> {
        if request.is_complete() {
            return Some(Status { rank: self.rank(), tag: 0, len: 0 });
        }
        self.engine.finish_now(request.0).map(status)
    }

    /// As [`Endpoint::wait`], or [`Endpoint::wait_timeout`] with a limit, by a caller that will wait for `others`
    /// before it does anything else: it is not woken before it has something to do. `others` gives each by its number,
    /// `None` after the last; requests that are complete do no harm.
    ///
    /// # Errors
    /// As there.
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
    /// Receives what is there after at most so many polls in vain, at least one. `None` says nothing.
    #[inline(always)]
    pub(super) fn receive_at_once(
        &mut self,
        pattern: &Pattern,
        buf: &mut [u8],
        polls: u32,
    ) -> Option<Status> {
        let mut left = polls;
        loop {
            if let Some(into) = buf.first_chunk_mut()
                && let Some(done) = self.engine.receive_word(pattern, into)
            {
                return Some(status(done));
            }
            if self.engine.has_next() {
                let From::Rank(rank) = pattern.source else { return None };
                // SAFETY: the buffer is borrowed until this returns, and the engine keeps nothing of it.
                let mut room = unsafe { RecvBuf::from_raw(buf.as_mut_ptr(), buf.len()) };
                let len = self.engine.receive_packet(pattern, &mut room)?;
                return Some(Status { rank: rank as usize, tag: pattern.tag, len });
            }
            left = left.saturating_sub(1);
            if left == 0 {
                return None;
            }
            self.engine.pause();
        }
    }

    /// Sends a word, if it can leave at once. False says nothing, and nothing was sent.
    #[inline(always)]
    pub(super) fn send_word_at_once(&mut self, to: usize, context: u16, tag: u64, word: Word) -> bool {
        self.engine.send_word(u32::try_from(to).unwrap_or(u32::MAX), context, tag, word)
    }

    /// Sends what can leave at once. False says nothing, and nothing was sent.
    #[inline(never)]
    pub(super) fn send_at_once(&mut self, to: usize, context: u16, tag: u64, bytes: &[u8]) -> bool {
        self.engine.send_now(u32::try_from(to).unwrap_or(u32::MAX), context, tag, bytes)
    }

    /// Waits until a request is complete, or for at most so long.
    #[inline]
    pub(super) fn wait_limited(
        &mut self,
        request: Request,
        limit: Option<Duration>,
    ) -> Result<Status, Error> {
        self.wait_as(request, limit, Awaited::Request(request))
    }

    /// Looks first, as most requests that are waited for in a stream of messages are complete or have their message
    /// there.
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
        self.check_origin()?;
        self.go_on(request, &mut Wait::new(limit), awaited)
    }
}

impl Context<'_> {
    /// As [`Endpoint::send_now`].
    #[inline(always)]
    pub fn send_now(self, to: usize, tag: u64, bytes: &[u8]) -> bool {
        free_context(self.id).is_ok() && self.endpoint.send_at_once(to, self.id, tag, bytes)
    }

    /// As [`Endpoint::irecv_now`].
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

    /// As [`Endpoint::recv_now`].
    #[inline(always)]
    pub fn recv_now(self, from: Source, tag: Tag, buf: &mut [u8]) -> Option<Status> {
        let pattern = pattern(from, self.id, tag).ok()?;
        self.endpoint.receive_at_once(&pattern, buf, 1)
    }
}
