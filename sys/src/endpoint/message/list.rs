//! Messages in several buffers: gathered when they are sent, scattered when they are received.
//!
//! These calls allocate nothing. They add no copy either, except for messages that fit into a fastbox, which
//! are gathered on the stack. A large message that is sent from a list takes one copy if at most 224 bytes come
//! before its last run (a short header and a large payload), or if it has at most 256 segments with 4 KiB or more on
//! average. The receiver then reads the list itself, which must not change until the send is complete. Any other list
//! is streamed through cells, in two copies. A large message that is received into a list is pulled in one copy,
//! several runs with each system call, if the runs have 4 KiB or more on average. Otherwise it is streamed.
//!
//! The number of segments is not limited: the engine walks a list a few times.

use std::io::{IoSlice, IoSliceMut};

use nemesia_core::matching::Pattern;
use nemesia_core::payload::{RecvBuf, Segment, SendBuf};

use crate::endpoint::{
    Context, Endpoint, Mode, Pending, Request, Scope, ScopeContext, Source, Status, Tag, free_context,
    pattern,
};
use crate::error::Error;

// The standard library documents both layouts, and POSIX that of `struct iovec`.
const _: () = assert!(
    size_of::<IoSlice<'_>>() == size_of::<Segment>()
        && align_of::<IoSlice<'_>>() == align_of::<Segment>()
        && size_of::<libc::iovec>() == size_of::<Segment>()
        && std::mem::offset_of!(libc::iovec, iov_len) == std::mem::offset_of!(Segment, len)
);

/// # Lists of buffers
///
/// One message can be gathered from several buffers and scattered into several others. The two lists need not
/// have the same lengths.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// use std::io::{IoSlice, IoSliceMut};
///
/// use nemesia::{Source, Tag};
///
/// let peer = 1 - endpoint.rank();
/// endpoint.sendv(peer, 1, &[IoSlice::new(b"head"), IoSlice::new(b"tail")])?;
/// let (mut first, mut rest) = ([0; 2], [0; 6]);
/// let list = &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut rest)];
/// assert_eq!(endpoint.recvv(Source::Rank(peer), Tag::Exactly(1), list)?.len, 8);
/// assert_eq!((&first, &rest), (b"he", b"adtail"));
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Sends the bytes of several slices, in their order, as one message; see [`Endpoint::send`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn sendv(&mut self, to: usize, tag: u64, list: &[IoSlice<'_>]) -> Result<(), Error> {
        self.in_context(0).sendv(to, tag, list)
    }

    /// Receives one message into several slices, in their order; see [`Endpoint::recv`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn recvv(&mut self, from: Source, tag: Tag, list: &mut [IoSliceMut<'_>]) -> Result<Status, Error> {
        self.in_context(0).recvv(from, tag, list)
    }

    /// Starts a send of the bytes of `count` segments at `list`, in their order; see [`Endpoint::isend`].
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    ///
    /// # Safety
    /// The list and the bytes stay readable and unchanged until the request is complete or the endpoint is
    /// dropped.
    pub unsafe fn isendv(
        &mut self,
        to: usize,
        tag: u64,
        list: *const Segment,
        count: usize,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.in_context(0).isendv(to, tag, list, count) }
    }

    /// Posts a receive into `count` segments at `list`, in their order; see [`Endpoint::irecv`].
    ///
    /// # Errors
    /// See [`Error`]; nothing was posted.
    ///
    /// # Safety
    /// As for [`Endpoint::irecv`]. The list, too, stays readable and unchanged until then.
    pub unsafe fn irecvv(
        &mut self,
        from: Source,
        tag: Tag,
        list: *const Segment,
        count: usize,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.in_context(0).irecvv(from, tag, list, count) }
    }
}

impl Context<'_> {
    /// Sends the bytes of several slices in this context; see [`Endpoint::sendv`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn sendv(self, to: usize, tag: u64, list: &[IoSlice<'_>]) -> Result<(), Error> {
        self.sendv_in(to, tag, list, Mode::Standard)
    }

    /// Sends the bytes of several slices in this context, and waits until a receive has matched the message;
    /// see [`Endpoint::ssend`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn ssendv(self, to: usize, tag: u64, list: &[IoSlice<'_>]) -> Result<(), Error> {
        self.sendv_in(to, tag, list, Mode::Synchronous)
    }

    pub(super) fn sendv_in(self, to: usize, tag: u64, list: &[IoSlice<'_>], mode: Mode) -> Result<(), Error> {
        let Self { endpoint, id } = self;
        let list = (list.as_ptr().cast(), list.len());
        // SAFETY: the list and its bytes are borrowed until this function returns, and `finish` returns only
        // when the engine has finished with them.
        let request = unsafe { endpoint.in_context(id).start_list(to, tag, list, mode) }?;
        endpoint.finish(request).map(drop)
    }

    /// Receives one message of this context into several slices; see [`Endpoint::recvv`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn recvv(self, from: Source, tag: Tag, list: &mut [IoSliceMut<'_>]) -> Result<Status, Error> {
        // SAFETY: the list and its bytes are borrowed exclusively until this function returns, and `recv_any`
        // returns only when the engine has finished with them.
        let buf = unsafe { RecvBuf::from_list(list.as_ptr().cast(), list.len()) };
        let Pattern { source, context, tag, ignore } = pattern(from, self.id, tag)?;
        self.endpoint.recv_any(source, context, (tag, ignore), buf.ok_or(Error::List)?)
    }

    /// Starts a send of several segments in this context; see [`Endpoint::isendv`].
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    ///
    /// # Safety
    /// As for [`Endpoint::isendv`].
    pub unsafe fn isendv(
        self,
        to: usize,
        tag: u64,
        list: *const Segment,
        count: usize,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.start_list(to, tag, (list, count), Mode::Standard) }
    }

    /// Starts a synchronous send of `count` segments at `list`, in their order; see [`Endpoint::issend`].
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    ///
    /// # Safety
    /// As for [`Endpoint::isendv`].
    pub unsafe fn issendv(
        self,
        to: usize,
        tag: u64,
        list: *const Segment,
        count: usize,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.start_list(to, tag, (list, count), Mode::Synchronous) }
    }

    /// Starts a send of several segments.
    ///
    /// # Safety
    /// As for [`Endpoint::isendv`].
    pub(super) unsafe fn start_list(
        self,
        to: usize,
        tag: u64,
        (list, count): (*const Segment, usize),
        mode: Mode,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        let buf = unsafe { SendBuf::from_list(list, count) }.ok_or(Error::List)?;
        self.endpoint.start(to, free_context(self.id)?, tag, buf, mode)
    }

    /// Posts a receive into several segments in this context; see [`Endpoint::irecvv`].
    ///
    /// # Errors
    /// See [`Error`]; nothing was posted.
    ///
    /// # Safety
    /// As for [`Endpoint::irecvv`].
    pub unsafe fn irecvv(
        self,
        from: Source,
        tag: Tag,
        list: *const Segment,
        count: usize,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        let buf = unsafe { RecvBuf::from_list(list, count) }.ok_or(Error::List)?;
        self.endpoint.post(pattern(from, self.id, tag)?, buf)
    }
}

impl<'env> ScopeContext<'_, '_, 'env> {
    /// Starts a send of the bytes of several slices, in their order.
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    pub fn isendv(self, to: usize, tag: u64, list: &'env [IoSlice<'env>]) -> Result<Pending, Error> {
        // SAFETY: the list and its bytes are borrowed for 'env, which outlives the scope, and the scope does
        // not end before the operation does.
        self.start(|context| unsafe { context.isendv(to, tag, list.as_ptr().cast(), list.len()) })
    }

    /// Starts a send as [`ScopeContext::isendv`] does. It is complete only when a receive has matched it.
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    pub fn issendv(self, to: usize, tag: u64, list: &'env [IoSlice<'env>]) -> Result<Pending, Error> {
        // SAFETY: as for `isendv`.
        self.start(|context| unsafe { context.issendv(to, tag, list.as_ptr().cast(), list.len()) })
    }

    /// Posts a receive into several slices, in their order.
    ///
    /// # Errors
    /// See [`Error`]; nothing was posted.
    pub fn irecvv(self, from: Source, tag: Tag, list: &'env mut [IoSliceMut<'_>]) -> Result<Pending, Error> {
        // SAFETY: the list, and with it its bytes, are borrowed exclusively for 'env, which outlives the scope,
        // and the scope does not end before the operation does.
        self.start(|context| unsafe { context.irecvv(from, tag, list.as_ptr().cast(), list.len()) })
    }
}

impl<'env> Scope<'_, 'env> {
    /// Starts a send of several slices in context 0; see [`ScopeContext::isendv`].
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    pub fn isendv(&mut self, to: usize, tag: u64, list: &'env [IoSlice<'env>]) -> Result<Pending, Error> {
        self.in_context(0).isendv(to, tag, list)
    }

    /// Posts a receive into several slices in context 0; see [`ScopeContext::irecvv`].
    ///
    /// # Errors
    /// See [`Error`]; nothing was posted.
    pub fn irecvv(
        &mut self,
        from: Source,
        tag: Tag,
        list: &'env mut [IoSliceMut<'_>],
    ) -> Result<Pending, Error> {
        self.in_context(0).irecvv(from, tag, list)
    }
}
