//! Matching contexts.

use nemesia_core::engine::{Bypass, RequestId};
use nemesia_core::matching::{Pattern, Source as From};
use nemesia_core::payload::{RecvBuf, SendBuf};
use nemesia_core::trace::Recorder as _;

use crate::endpoint::{Endpoint, Mode, Request, Source, Status, Tag, free_context, pattern, status};
use crate::error::Error;

/// An endpoint in one matching context. A message that is sent in a context is received and probed in this
/// context only, whatever its tag.
///
/// MPI needs this for a communicator's context id (MPI 4.1, section 7.1.2). The methods of [`Endpoint`] itself
/// use context 0. The value is the endpoint and a number: it costs nothing and need not be kept.
#[derive(Debug)]
pub struct Context<'a> {
    pub(in crate::endpoint) endpoint: &'a mut Endpoint,
    pub(in crate::endpoint) id: u16,
}

/// # Matching contexts
///
/// A message that is sent in a matching context is received and probed only there, so libraries that share an
/// endpoint do not take each other's messages. The methods of the endpoint itself use context 0.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// use nemesia::{Source, Tag};
///
/// let me = endpoint.rank();
/// endpoint.in_context(7).send(me, 1, b"seven")?;
/// endpoint.send(me, 1, b"zero")?;
/// let status = endpoint.in_context(7).recv(Source::Rank(me), Tag::Any, &mut [0; 8])?;
/// assert_eq!(status.len, 5);
/// # endpoint.recv(Source::Rank(me), Tag::Any, &mut [0; 8])?;
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Returns this endpoint in a matching context, for one call or several.
    ///
    /// The contexts 0xfffe and 0xffff are reserved for [`Endpoint::barrier`] and [`Endpoint::agree`]. Every
    /// send, receive and probe in them returns [`Error::Context`].
    #[inline(always)]
    pub const fn in_context(&mut self, context: u16) -> Context<'_> {
        Context { endpoint: self, id: context }
    }
}

impl Endpoint {
    /// Sends bytes that the caller's borrow keeps until this function returns, and waits until the engine has finished
    /// with them: `finish` returns or unwinds only then.
    #[inline(never)]
    pub(in crate::endpoint) fn send_slowly(
        &mut self,
        to: usize,
        context: u16,
        tag: u64,
        buf: SendBuf,
        mode: Mode,
    ) -> Result<(), Error> {
        self.engine.trace_mut().enter("send", buf.len() as u64);
        let started = self.start(to, context, tag, buf, mode);
        let sent = started.and_then(|request| self.finish(request).map(drop));
        self.engine.trace_mut().leave(true);
        sent
    }

    /// Sends a message of any length and waits. The function is separate from the critical path, so that the
    /// critical path saves no registers.
    #[inline(never)]
    fn send_any(&mut self, to: usize, context: u16, tag: u64, bytes: &[u8]) -> Result<(), Error> {
        if self.send_at_once(to, context, tag, bytes) {
            return Ok(());
        }
        // SAFETY: the bytes are borrowed until this function returns.
        let buf = unsafe { SendBuf::from_raw(bytes.as_ptr(), bytes.len()) };
        self.send_slowly(to, context, tag, buf, Mode::Queued)
    }

    /// Receives a message of any length and waits for it. When this function returns, the engine has finished
    /// with `buf`: `recv_bypass` and `finish` guarantee the same. It takes the parts of a pattern, so that they stay
    /// in registers on the critical path.
    #[inline(never)]
    pub(in crate::endpoint) fn recv_any(
        &mut self,
        source: From,
        context: u16,
        (tag, ignore): (u64, u64),
        mut buf: RecvBuf,
    ) -> Result<Status, Error> {
        let pattern = Pattern { source, context, tag, ignore };
        if let From::Rank(rank) = source
            && let Some(len) = self.engine.receive_packet(&pattern, &mut buf)
        {
            return Ok(Status { rank: rank as usize, tag, len, immediate: None });
        }
        self.check_origin()?;
        // A receive whose message is there makes no other progress, and pending work must not wait for ever.
        if self.engine.has_work() && self.is_progress_due() {
            self.advance();
        }
        if !self.engine.can_bypass(&pattern) {
            let request = self.post(pattern, buf)?;
            return self.finish(request);
        }
        match self.engine.receive_step(&pattern, &mut buf) {
            Bypass::Done(Ok(done)) => Ok(status(done)),
            step => self.recv_bypass(&pattern, buf, step),
        }
    }
}

impl Context<'_> {
    /// Returns the context's number.
    pub const fn id(&self) -> u16 {
        self.id
    }

    /// Sends a message in this context and waits; see [`Endpoint::send`].
    ///
    /// # Errors
    /// See [`Error`].
    #[inline(always)]
    pub fn send(self, to: usize, tag: u64, bytes: &[u8]) -> Result<(), Error> {
        let Self { endpoint, id } = self;
        let id = free_context(id)?;
        // Most short messages need no more than this. For them every instruction counts.
        if endpoint.send_short_at_once(to, id, tag, bytes) {
            return Ok(());
        }
        endpoint.send_any(to, id, tag, bytes)
    }

    /// Sends a message in this context now, or returns false; see [`Endpoint::inject`].
    ///
    /// # Errors
    /// As for [`Endpoint::inject`].
    #[inline]
    pub fn inject(self, to: usize, tag: u64, bytes: &[u8]) -> Result<bool, Error> {
        self.endpoint.inject_at_once(to, free_context(self.id)?, tag, bytes)
    }

    /// Receives a message in this context and waits for it; see [`Endpoint::recv`].
    ///
    /// # Errors
    /// See [`Error`].
    #[inline(always)]
    pub fn recv(self, from: Source, tag: Tag, buf: &mut [u8]) -> Result<Status, Error> {
        let id = free_context(self.id)?;
        let wanted = |found| tag.accepts(found);
        if let Some(done) = self.endpoint.engine.receive_short(from.rank(), id, wanted, buf) {
            return Ok(status(done));
        }
        // SAFETY: the buffer is borrowed until this function returns, and `recv_any` returns only when the
        // engine has finished with it.
        let buf = unsafe { RecvBuf::from_raw(buf.as_mut_ptr(), buf.len()) };
        let Pattern { source, context, tag, ignore } = pattern(from, id, tag)?;
        self.endpoint.recv_any(source, context, (tag, ignore), buf)
    }

    /// Starts a send in this context; see [`Endpoint::isend`].
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    ///
    /// # Safety
    /// As for [`Endpoint::isend`].
    #[inline(always)]
    pub unsafe fn isend(self, to: usize, tag: u64, base: *const u8, len: usize) -> Result<Request, Error> {
        let context = free_context(self.id)?;
        // SAFETY: the caller's promise.
        let buf = unsafe { SendBuf::from_raw(base, len) };
        if let Some(bytes) = buf.whole(0, len)
            && self.endpoint.send_short_at_once(to, context, tag, bytes)
        {
            return Ok(Request(RequestId::SENT));
        }
        self.endpoint.start(to, context, tag, buf, Mode::Standard)
    }

    /// Posts a receive in this context; see [`Endpoint::irecv`].
    ///
    /// # Errors
    /// See [`Error`]; nothing was posted.
    ///
    /// # Safety
    /// As for [`Endpoint::irecv`].
    #[inline(always)]
    pub unsafe fn irecv(self, from: Source, tag: Tag, base: *mut u8, len: usize) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        let mut buf = unsafe { RecvBuf::from_raw(base, len) };
        let pattern = pattern(from, self.id, tag)?;
        self.endpoint.check_origin()?;
        match self.endpoint.engine.post_now(&pattern, &mut buf) {
            Some(id) => Ok(Request(id)),
            None => self.endpoint.post(pattern, buf),
        }
    }
}
