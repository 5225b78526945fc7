//! Sends with options: immediate data, and acknowledged delivery.

use std::io::IoSlice;

use nemesia_core::engine::SendOptions;
use nemesia_core::payload::{Segment, SendBuf};

use crate::endpoint::{Context, Endpoint, Mode, Pending, Request, ScopeContext, free_context};
use crate::error::Error;

/// # Immediate data and acknowledged sends
///
/// A message may carry 64 bits of *immediate data* beside its tag. They are not matched. The receiver gets them with
/// the result of the receive ([`Status::immediate`](crate::Status)), and every probe reports them before. A message
/// without them costs nothing more.
///
/// A *synchronous* send is complete when the receiver has put the message into the buffer of a receive. Up to
/// NEMESIA_EAGER_BYTES, the message travels at once as that of a standard send, and a small packet comes back when a
/// receive has taken it. If no receive takes the message, the send stays incomplete; if the receiver fails first, the
/// send ends with [`Error::PeerFailed`].
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// use nemesia::{SendOptions, Source, Tag};
///
/// let peer = 1 - endpoint.rank();
/// let options = SendOptions { immediate: Some(42), ..SendOptions::default() };
/// endpoint.send_with(peer, 1, b"nemesia!", options)?;
/// let status = endpoint.recv(Source::Rank(peer), Tag::Exactly(1), &mut [0; 8])?;
/// assert_eq!((status.len, status.immediate), (8, Some(42)));
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Sends a message with options and waits as [`Endpoint::send`] does; a synchronous send as [`Endpoint::ssend`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn send_with(
        &mut self,
        to: usize,
        tag: u64,
        bytes: &[u8],
        options: SendOptions,
    ) -> Result<(), Error> {
        self.in_context(0).send_with(to, tag, bytes, options)
    }

    /// Starts a send with options; see [`Endpoint::isend`] and [`Endpoint::issend`].
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    ///
    /// # Safety
    /// As for [`Endpoint::isend`].
    pub unsafe fn isend_with(
        &mut self,
        to: usize,
        tag: u64,
        base: *const u8,
        len: usize,
        options: SendOptions,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.in_context(0).isend_with(to, tag, base, len, options) }
    }
}

impl Context<'_> {
    /// Sends a message in this context with options and waits; see [`Endpoint::send_with`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn send_with(self, to: usize, tag: u64, bytes: &[u8], options: SendOptions) -> Result<(), Error> {
        let context = free_context(self.id)?;
        if let SendOptions { immediate: Some(immediate), synchronous: false } = options {
            // SAFETY: the bytes are borrowed until this function returns, and the engine keeps no pointer to them.
            let buf = unsafe { SendBuf::from_raw(bytes.as_ptr(), bytes.len()) };
            let peer = u32::try_from(to).unwrap_or(u32::MAX);
            if self.endpoint.engine.send_immediate_now(peer, context, tag, (&buf, immediate)) {
                return Ok(());
            }
        }
        self.endpoint.send_slowly(to, context, tag, bytes, Mode::With(options))
    }

    /// Sends the bytes of several slices with options and waits; see [`Endpoint::send_with`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn sendv_with(
        self,
        to: usize,
        tag: u64,
        list: &[IoSlice<'_>],
        options: SendOptions,
    ) -> Result<(), Error> {
        self.sendv_in(to, tag, list, Mode::With(options))
    }

    /// Starts a send in this context with options; see [`Endpoint::isend_with`].
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    ///
    /// # Safety
    /// As for [`Endpoint::isend`].
    pub unsafe fn isend_with(
        self,
        to: usize,
        tag: u64,
        base: *const u8,
        len: usize,
        options: SendOptions,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        let buf = unsafe { SendBuf::from_raw(base, len) };
        self.endpoint.start(to, free_context(self.id)?, tag, buf, Mode::With(options))
    }

    /// Starts a send of `count` segments at `list`, in their order, with options; see [`Endpoint::isend_with`].
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    ///
    /// # Safety
    /// As for [`Endpoint::isendv`].
    pub unsafe fn isendv_with(
        self,
        to: usize,
        tag: u64,
        list: *const Segment,
        count: usize,
        options: SendOptions,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.start_list(to, tag, (list, count), Mode::With(options)) }
    }
}

impl<'env> ScopeContext<'_, '_, 'env> {
    /// Starts a send with options. If it is synchronous, the scope cannot end before a receive has matched it.
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    pub fn isend_with(
        self,
        to: usize,
        tag: u64,
        bytes: &'env [u8],
        options: SendOptions,
    ) -> Result<Pending, Error> {
        // SAFETY: as for `isend`.
        self.start(|context| unsafe { context.isend_with(to, tag, bytes.as_ptr(), bytes.len(), options) })
    }

    /// Starts a send of the bytes of several slices, in their order, with options; see [`ScopeContext::isend_with`].
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    pub fn isendv_with(
        self,
        to: usize,
        tag: u64,
        list: &'env [IoSlice<'env>],
        options: SendOptions,
    ) -> Result<Pending, Error> {
        // SAFETY: as for `isendv`.
        self.start(|context| unsafe {
            context.isendv_with(to, tag, list.as_ptr().cast(), list.len(), options)
        })
    }
}
