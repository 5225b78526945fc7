//! The general form of sends and receives: one value describes the operation, and a few calls take it. `send`, `recv`,
//! `isend` and `irecv` are the plain form: one buffer, a standard send without immediate data.

use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;

use nemesia_core::engine::SendOptions;
use nemesia_core::matching::Pattern;
use nemesia_core::payload::{RecvBuf, Segment, SendBuf};

use crate::endpoint::{
    Endpoint, Message, Mode, Pending, Request, Scope, Source, Status, Tag, free_context, pattern,
};
use crate::error::Error;

// The standard library documents both layouts, and POSIX that of `struct iovec`.
const _: () = assert!(
    size_of::<IoSlice<'_>>() == size_of::<Segment>()
        && align_of::<IoSlice<'_>>() == align_of::<Segment>()
        && size_of::<libc::iovec>() == size_of::<Segment>()
        && std::mem::offset_of!(libc::iovec, iov_len) == std::mem::offset_of!(Segment, len)
);

/// The options of a plain send.
const PLAIN: SendOptions = SendOptions { immediate: None, synchronous: false };

/// A message to send, for [`Endpoint::send_op`], [`Endpoint::isend_op`] and the methods of the same name elsewhere:
/// receiver, tag, bytes, and the properties that a plain send does not have.
///
/// A *synchronous* send is complete when the receiver has put the message into the buffer of a receive. Up to
/// NEMESIA_EAGER_BYTES, the message travels at once as that of a standard send, and a small packet comes back when a
/// receive has taken it. If no receive takes the message, the send stays incomplete; if the receiver fails first, the
/// send ends with [`Error::PeerFailed`].
///
/// It borrows the bytes for `'a` and owns nothing. A value takes one operation.
#[derive(Debug)]
#[must_use = "it describes a send, which `send_op` or `isend_op` starts"]
pub struct SendOp<'a> {
    to: usize,
    tag: u64,
    /// `None` for a list that is longer than memory.
    buf: Option<SendBuf>,
    context: u16,
    options: SendOptions,
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> SendOp<'a> {
    #[inline]
    const fn with(to: usize, tag: u64, buf: Option<SendBuf>) -> Self {
        Self { to, tag, buf, context: 0, options: PLAIN, bytes: PhantomData }
    }

    /// Describes a send of `bytes` to the rank `to`, in context 0, complete when the buffer is free again.
    #[inline]
    pub fn new(to: usize, tag: u64, bytes: &'a [u8]) -> Self {
        // SAFETY: the bytes are borrowed for 'a. Safe calls that take this value keep them no longer than 'a, and
        // the unsafe calls demand that of their callers.
        Self::with(to, tag, Some(unsafe { SendBuf::from_raw(bytes.as_ptr(), bytes.len()) }))
    }

    /// Describes a send of the bytes of several slices, in their order, as one message.
    pub fn list(to: usize, tag: u64, list: &'a [IoSlice<'_>]) -> Self {
        // SAFETY: the list has the layout of segments. It and its bytes are borrowed for 'a; see `new`.
        Self::with(to, tag, unsafe { SendBuf::from_list(list.as_ptr().cast(), list.len()) })
    }

    /// Describes a send of `len` bytes at `base`, for runtimes. `base` may be null if `len` is 0.
    ///
    /// # Safety
    /// The bytes stay readable and unchanged until this value is dropped or, if an operation takes it, until that is
    /// complete or the endpoint is dropped.
    #[inline]
    pub unsafe fn from_raw(to: usize, tag: u64, base: *const u8, len: usize) -> Self {
        // SAFETY: the caller's promise.
        Self::with(to, tag, Some(unsafe { SendBuf::from_raw(base, len) }))
    }

    /// Describes a send of the bytes of `count` segments at `list`, in their order, for runtimes.
    ///
    /// # Safety
    /// There are `count` segments at `list`. List and bytes stay readable and unchanged as in [`SendOp::from_raw`].
    pub unsafe fn from_raw_list(to: usize, tag: u64, list: *const Segment, count: usize) -> Self {
        // SAFETY: the caller's promise.
        Self::with(to, tag, unsafe { SendBuf::from_list(list, count) })
    }

    /// Sends in a matching context; see [`Endpoint::in_context`].
    #[inline]
    pub const fn context(mut self, context: u16) -> Self {
        self.context = context;
        self
    }

    /// Makes the send complete only when a receive has matched the message (MPI_Ssend).
    #[inline]
    pub const fn synchronous(mut self) -> Self {
        self.options.synchronous = true;
        self
    }

    /// States that a receive is posted, as the caller knows (MPI_Rsend). The engine makes no use of that: the send
    /// stays as it is, as MPI 4.1 permits (section 3.4).
    #[inline]
    pub const fn ready(self) -> Self {
        self
    }

    /// Attaches 64 bits of *immediate data*, beside the tag. They are not matched. The receiver gets them with the
    /// result of the receive ([`Status::immediate`]), and every probe reports them before. A message without them
    /// costs nothing more.
    #[inline]
    pub const fn immediate(mut self, immediate: u64) -> Self {
        self.options.immediate = Some(immediate);
        self
    }

    /// Returns receiver, tag and number of bytes: the status of the operation if it is complete when it starts.
    pub(in crate::endpoint) fn done(&self) -> (usize, u64, usize) {
        (self.to, self.tag, self.buf.as_ref().map_or(0, SendBuf::len))
    }
}

/// A receive, for [`Endpoint::recv_op`], [`Endpoint::irecv_op`] and the methods of the same name elsewhere: source,
/// tag, buffer, and the properties that a plain receive does not have.
///
/// It borrows the buffer for `'a` and owns nothing. A value takes one operation.
#[derive(Debug)]
#[must_use = "it describes a receive, which `recv_op` or `irecv_op` starts"]
pub struct RecvOp<'a> {
    from: Source,
    tag: Tag,
    /// `None` for a list that is longer than memory.
    buf: Option<RecvBuf>,
    context: u16,
    /// The message to receive, if a probe took it out.
    message: Option<Message>,
    bytes: PhantomData<&'a mut [u8]>,
}

impl<'a> RecvOp<'a> {
    #[inline]
    const fn with(from: Source, tag: Tag, buf: Option<RecvBuf>) -> Self {
        Self { from, tag, buf, context: 0, message: None, bytes: PhantomData }
    }

    /// Describes a receive into `buf`, in context 0.
    #[inline]
    pub fn new(from: Source, tag: Tag, buf: &'a mut [u8]) -> Self {
        // SAFETY: the buffer is borrowed exclusively for 'a. Safe calls that take this value keep it no longer than
        // 'a, and the unsafe calls demand that of their callers.
        Self::with(from, tag, Some(unsafe { RecvBuf::from_raw(buf.as_mut_ptr(), buf.len()) }))
    }

    /// Describes a receive of one message into several slices, in their order.
    pub fn list(from: Source, tag: Tag, list: &'a mut [IoSliceMut<'_>]) -> Self {
        // SAFETY: the list has the layout of segments. It and its bytes are borrowed exclusively for 'a; see `new`.
        Self::with(from, tag, unsafe { RecvBuf::from_list(list.as_ptr().cast(), list.len()) })
    }

    /// Describes a receive into `len` bytes at `base`, for runtimes. `base` may be null if `len` is 0.
    ///
    /// # Safety
    /// The bytes are initialised, and no reference to them is used until this value is dropped or, if an operation
    /// takes it, until that is complete or the endpoint is dropped. Several receives may use the same bytes; their
    /// content is then unspecified.
    #[inline]
    pub unsafe fn from_raw(from: Source, tag: Tag, base: *mut u8, len: usize) -> Self {
        // SAFETY: the caller's promise.
        Self::with(from, tag, Some(unsafe { RecvBuf::from_raw(base, len) }))
    }

    /// Describes a receive into `count` segments at `list`, in their order, for runtimes.
    ///
    /// # Safety
    /// There are `count` segments at `list`, which stay readable and unchanged as the bytes in [`RecvOp::from_raw`].
    /// The bytes are as there.
    pub unsafe fn from_raw_list(from: Source, tag: Tag, list: *const Segment, count: usize) -> Self {
        // SAFETY: the caller's promise.
        Self::with(from, tag, unsafe { RecvBuf::from_list(list, count) })
    }

    /// Receives in a matching context; see [`Endpoint::in_context`].
    #[inline]
    pub const fn context(mut self, context: u16) -> Self {
        self.context = context;
        self
    }

    /// Receives this message, which a probe took out ([`Endpoint::mprobe`]). Source, tag and context of the description
    /// then have no effect. If the operation cannot start, the message is dropped.
    pub fn matched(mut self, message: Message) -> Self {
        self.message = Some(message);
        self
    }
}

/// # The general form
///
/// A [`SendOp`] or a [`RecvOp`] describes an operation: context, mode, immediate data, one buffer or a list.
/// [`Endpoint::send`] and [`Endpoint::recv`] are the plain form and the fastest. [`Endpoint::with_completion`] and
/// [`Endpoint::scope`] have the same operations, whose completion enters the queue or ends with the scope.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// use std::io::{IoSlice, IoSliceMut};
///
/// use nemesia::{RecvOp, SendOp, Source, Tag};
///
/// let peer = 1 - endpoint.rank();
/// let parts = [IoSlice::new(b"head"), IoSlice::new(b"tail")];
/// endpoint.send_op(SendOp::list(peer, 1, &parts).context(7).immediate(42))?;
/// let (mut first, mut rest) = ([0; 2], [0; 6]);
/// let list = &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut rest)];
/// let status = endpoint.recv_op(RecvOp::list(Source::Rank(peer), Tag::Exactly(1), list).context(7))?;
/// assert_eq!((status.len, status.immediate, &first, &rest), (8, Some(42), b"he", b"adtail"));
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
///
/// A list allocates nothing. It adds no copy either, except for messages that fit into a fastbox, which are gathered
/// on the stack. A large message that is sent from a list takes one copy if at most 224 bytes come before its last run
/// (a short header and a large payload), or if it has at most 256 segments with 4 KiB or more on average. The receiver
/// then reads the list itself, which must not change until the send is complete. Any other list is streamed through
/// cells, in two copies. A large message that is received into a list is pulled in one copy, several runs with each
/// system call, if the runs have 4 KiB or more on average. Otherwise it is streamed. The number of segments is not
/// limited: the engine walks a list a few times. The two lists of a message need not have the same lengths.
impl Endpoint {
    /// Sends a message of the general form and waits until it is complete; see [`SendOp`].
    ///
    /// # Errors
    /// See [`Error`]. [`Error::List`] if a list is longer than memory.
    #[inline]
    pub fn send_op(&mut self, op: SendOp<'_>) -> Result<(), Error> {
        let SendOp { to, tag, buf, context, options, .. } = op;
        let (context, buf) = (free_context(context)?, buf.ok_or(Error::List)?);
        // The bytes are borrowed until this function returns.
        match self.send_op_at_once((to, context, tag), &buf, options) {
            Some(request) if request.is_complete() => Ok(()),
            Some(request) => self.finish_synchronous(request),
            None => self.send_slowly(to, context, tag, buf, mode(options)),
        }
    }

    /// Receives a message in the general form, and waits for it; see [`RecvOp`].
    ///
    /// # Errors
    /// See [`Endpoint::recv`]. [`Error::List`] if a list is longer than memory.
    pub fn recv_op(&mut self, op: RecvOp<'_>) -> Result<Status, Error> {
        let RecvOp { from, tag, buf, context, message, .. } = op;
        // The buffer is borrowed until this function returns. `finish` and `recv_any` return only when the engine has
        // finished with it.
        let buf = buf.ok_or(Error::List)?;
        if let Some(message) = message {
            let request = self.start_matched(message, buf)?;
            return self.finish(request);
        }
        let Pattern { source, context, tag, ignore } = pattern(from, context, tag)?;
        self.recv_any(source, context, (tag, ignore), buf)
    }

    /// Starts an operation on borrowed buffers by `start`, and waits for it: the blocking form of any operation.
    ///
    /// If `start` returns the request of an operation that it has started on this endpoint, and leaves the endpoint in
    /// its place, this function returns or unwinds only when the operation has finished with its buffers, whatever the
    /// result. The buffers may be borrowed until then.
    ///
    /// # Errors
    /// The error of `start` or of the operation.
    pub fn run<E: From<Error>>(
        &mut self,
        start: impl FnOnce(&mut Self) -> Result<Request, E>,
    ) -> Result<Status, E> {
        let request = start(self)?;
        Ok(self.finish(request)?)
    }

    /// Starts a send of the general form. [`Endpoint::test`] or [`Endpoint::wait`] completes it. For runtimes;
    /// [`Scope::isend_op`] is the safe alternative.
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    ///
    /// # Safety
    /// The bytes, and the list if there is one, stay readable and unchanged until the request is complete or the
    /// endpoint is dropped, also beyond the lifetime of `op`.
    #[inline]
    pub unsafe fn isend_op(&mut self, op: SendOp<'_>) -> Result<Request, Error> {
        let SendOp { to, tag, buf, context, options, .. } = op;
        let (context, buf) = (free_context(context)?, buf.ok_or(Error::List)?);
        match self.send_op_at_once((to, context, tag), &buf, options) {
            Some(request) => Ok(request),
            None => self.start(to, context, tag, buf, mode(options)),
        }
    }

    /// Posts a receive of the general form. [`Endpoint::test`] or [`Endpoint::wait`] completes it. For runtimes;
    /// [`Scope::irecv_op`] is the safe alternative.
    ///
    /// # Errors
    /// See [`Error`]; nothing was posted.
    ///
    /// # Safety
    /// No reference to the bytes is used until the request is complete or the endpoint is dropped, also beyond the
    /// lifetime of `op`. The list, if there is one, stays readable and unchanged until then.
    #[inline]
    pub unsafe fn irecv_op(&mut self, op: RecvOp<'_>) -> Result<Request, Error> {
        let RecvOp { from, tag, buf, context, message, .. } = op;
        let mut buf = buf.ok_or(Error::List)?;
        if let Some(message) = message {
            return self.start_matched(message, buf);
        }
        let pattern = pattern(from, context, tag)?;
        self.check_origin()?;
        match self.engine.post_now(&pattern, &mut buf) {
            Some(id) => Ok(Request(id)),
            None => self.post(pattern, buf),
        }
    }

    /// Sends a message that is short, has immediate data or is synchronous, if it can leave at once. `None` means that
    /// nothing was sent.
    #[inline]
    fn send_op_at_once(
        &mut self,
        (to, context, tag): (usize, u16, u64),
        buf: &SendBuf,
        options: SendOptions,
    ) -> Option<Request> {
        if options == PLAIN {
            let bytes = buf.whole(0, buf.len())?;
            return self.send_short_at_once(to, context, tag, bytes).then_some(Request::DONE);
        }
        let peer = u32::try_from(to).unwrap_or(u32::MAX);
        if self.is_forked() {
            return None;
        }
        match options {
            SendOptions { immediate, synchronous: true } => {
                self.engine.send_synchronous_now(peer, context, tag, (buf, immediate)).map(Request)
            }
            SendOptions { immediate, synchronous: false } => {
                let (body, words) = (buf.whole(0, buf.len())?, (tag, immediate?));
                self.engine.send_immediate_now(peer, context, words, body).then_some(Request::DONE)
            }
        }
    }

    /// Waits for a synchronous send that has left. Its acknowledgement usually comes soon.
    #[inline(never)]
    fn finish_synchronous(&mut self, request: Request) -> Result<(), Error> {
        match self.acknowledged_soon(request) {
            Some(_) => Ok(()),
            None => self.finish(request).map(drop),
        }
    }
}

/// Returns the mode of a send that has not left at once.
fn mode(options: SendOptions) -> Mode {
    if options == PLAIN { Mode::Standard } else { Mode::With(options) }
}

impl<'env> Scope<'_, 'env> {
    /// Starts a send of the general form. A synchronous one keeps the scope open until a receive has matched it.
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    pub fn isend_op(&mut self, op: SendOp<'env>) -> Result<Pending, Error> {
        // SAFETY: the bytes and the list are borrowed for 'env, which outlives the scope, and the scope does not end
        // before the operation does (see `Drop`).
        let request = unsafe { self.endpoint.isend_op(op) }?;
        Ok(self.keep(request))
    }

    /// Posts a receive of the general form.
    ///
    /// # Errors
    /// See [`Error`]; nothing was posted.
    pub fn irecv_op(&mut self, op: RecvOp<'env>) -> Result<Pending, Error> {
        // SAFETY: buffer and list are borrowed exclusively for 'env, which outlives the scope, and the scope does not
        // end before the operation does (see `Drop`).
        let request = unsafe { self.endpoint.irecv_op(op) }?;
        Ok(self.keep(request))
    }
}
