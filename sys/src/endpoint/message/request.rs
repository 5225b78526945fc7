//! Non-blocking requests on buffers that the caller keeps.

use std::time::Duration;

use crate::endpoint::wait::Awaited;
use crate::endpoint::{Endpoint, Request, Source, Status, Tag};
use crate::error::Error;

/// # Non-blocking requests
///
/// These functions start an operation and return a request, which `test` and `wait` complete. They are for
/// runtimes that keep the buffers alive themselves, so they are `unsafe`; [`Endpoint::scope`] is the safe
/// alternative.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// use nemesia::{Source, Tag};
///
/// let peer = 1 - endpoint.rank();
/// let mut buf = [0; 8];
/// let (base, len) = (buf.as_mut_ptr(), buf.len());
/// // SAFETY: the buffer lives, unused, until `wait` returns.
/// let request = unsafe { endpoint.irecv(Source::Rank(peer), Tag::Exactly(1), base, len) }?;
/// endpoint.send(peer, 1, b"nemesia!")?;
/// assert_eq!(endpoint.wait(request)?.len, 8);
/// assert_eq!(&buf, b"nemesia!");
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Starts a send of `len` bytes at `base`. [`Endpoint::test`] or [`Endpoint::wait`] completes it. For
    /// runtimes; [`Endpoint::scope`] is the safe alternative.
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    ///
    /// # Safety
    /// The bytes stay readable and unchanged until the request is complete or the endpoint is dropped.
    #[inline]
    pub unsafe fn isend(
        &mut self,
        to: usize,
        tag: u64,
        base: *const u8,
        len: usize,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.in_context(0).isend(to, tag, base, len) }
    }

    /// Posts a receive into `len` bytes at `base`. [`Endpoint::test`] or [`Endpoint::wait`] completes it. For
    /// runtimes; [`Endpoint::scope`] is the safe alternative.
    ///
    /// # Errors
    /// See [`Error`]; nothing was posted.
    ///
    /// # Safety
    /// The bytes are initialised, and no reference to them is used until the request is complete or the
    /// endpoint is dropped. Several requests may use the same bytes; their content is then unspecified.
    #[inline]
    pub unsafe fn irecv(
        &mut self,
        from: Source,
        tag: Tag,
        base: *mut u8,
        len: usize,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.in_context(0).irecv(from, tag, base, len) }
    }

    /// Returns the result of a request if it is complete. The request then no longer exists.
    ///
    /// # Errors
    /// See [`Error`]. After an error the request no longer exists either.
    #[inline]
    pub fn test(&mut self, request: Request) -> Result<Option<Status>, Error> {
        let done = match self.finish_now(request) {
            None => self.outcome_without_poll(request)?,
            done => done,
        };
        if done.is_some() {
            self.call_succeeded();
            // A caller that only tests requests that are complete makes progress now and then all the same.
            if self.is_progress_due() {
                self.advance();
            }
            return Ok(done);
        }
        let packets = self.advance();
        if self.is_forked() {
            return Err(Error::Forked);
        }
        let done = self.outcome_without_poll(request);
        if matches!(done, Ok(None)) {
            self.count_call(packets);
        }
        done
    }

    /// Waits until a request is complete: it spins, then sleeps.
    ///
    /// # Errors
    /// See [`Error`]. [`Error::Unexpected`] leaves the request as it is; the caller can wait for it again.
    #[inline]
    pub fn wait(&mut self, request: Request) -> Result<Status, Error> {
        self.wait_limited(request, None)
    }

    /// Waits as [`Endpoint::wait`] does, for at most `limit`.
    ///
    /// # Errors
    /// [`Error::Timeout`] leaves the request as it is; the caller can wait for it again.
    pub fn wait_timeout(&mut self, request: Request, limit: Duration) -> Result<Status, Error> {
        self.wait_limited(request, Some(limit))
    }

    /// Checks that no lack of room for unexpected messages keeps a request from completing. For callers that only
    /// test requests: a wait for the request would return the same error, once it has lasted for some 50 ms.
    ///
    /// # Errors
    /// [`Error::Unexpected`]: the message of this receive cannot come, or this message to the own rank cannot be
    /// stored, before other messages are received. The request stays as it is.
    /// [`Error::Forked`].
    pub fn check_room(&self, request: Request) -> Result<(), Error> {
        self.check_origin()?;
        self.held_back(Awaited::Request(request)).map_or(Ok(()), Err)
    }

    /// Withdraws an operation that has not begun: a receive that no message has matched, a wait for notifications, or
    /// a send of which nothing has left this process. Returns false if it has begun or is complete.
    ///
    /// The request still exists and completes with [`Error::Cancelled`]. Its buffer is free at once. Later sends to the
    /// same rank keep their order.
    pub fn cancel(&mut self, request: Request) -> bool {
        self.engine.cancel(request.0)
    }
}
