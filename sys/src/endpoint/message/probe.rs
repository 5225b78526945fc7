//! Probes: they find messages before these are received (MPI 4.1, section 3.8).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nemesia_core::engine::RequestId;
use nemesia_core::matching::Pattern;
use nemesia_core::payload::RecvBuf;

use crate::endpoint::wait::{Awaited, Wait};
use crate::endpoint::{Context, Endpoint, Request, Source, Status, Tag, pattern, status};
use crate::error::Error;
use crate::os::ProcessOrigin;

/// The identifiers of messages that were dropped, until their endpoint discards these messages.
#[derive(Debug)]
pub(in crate::endpoint) struct Dropped {
    ids: Mutex<Vec<RequestId>>,
    origin: Arc<ProcessOrigin>,
}

impl Dropped {
    pub(in crate::endpoint) const fn new(origin: Arc<ProcessOrigin>) -> Self {
        Self { ids: Mutex::new(Vec::new()), origin }
    }

    fn push(&self, id: RequestId) {
        // In a forked child, a thread of the parent may hold the lock and does not exist here to release it.
        if !self.origin.is_elsewhere() {
            self.ids.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        }
    }

    fn take(&self) -> Vec<RequestId> {
        std::mem::take(&mut *self.ids.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A message that a matched probe has taken out of the queue (MPI_Message). No other receive or probe finds it.
///
/// The message is received once, on the endpoint that found it. If it is dropped instead, the endpoint discards
/// it: it receives the message into an empty buffer, which completes the sender's request. The endpoint does so
/// at its next probe, or within some ten milliseconds while it waits or makes progress.
#[derive(Debug)]
#[must_use = "a message that is dropped is discarded"]
pub struct Message {
    id: RequestId,
    status: Status,
    /// `None` once the message was received.
    home: Option<Arc<Dropped>>,
}

impl Message {
    /// Returns the sender, the tag and the full length of the message.
    pub const fn status(&self) -> Status {
        self.status
    }

    /// Returns the identifier as one number, for C. The message is then not discarded when it is dropped and
    /// has to be received; see [`Endpoint::message`].
    pub fn into_bits(mut self) -> u64 {
        self.home = None;
        self.id.to_bits()
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.push(self.id);
        }
    }
}

/// # Probes
///
/// A probe returns sender, tag and length of a message before it is received. A matched probe also takes the
/// message out of the queue, so that no other receive gets it.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// use nemesia::{Source, Tag};
///
/// let peer = 1 - endpoint.rank();
/// endpoint.send(peer, 1, &vec![7; 1000])?;
/// let message = endpoint.mprobe(Source::Any, Tag::Any)?;
/// let mut buf = vec![0; message.status().len];
/// endpoint.mrecv(message, &mut buf)?;
/// assert_eq!(buf, [7; 1000]);
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Finds the first message that such a receive would receive, and leaves it in the queue (MPI_Iprobe).
    /// Makes progress if there is none.
    ///
    /// # Errors
    /// The rank does not exist, or it is gone and has left no such message.
    pub fn iprobe(&mut self, from: Source, tag: Tag) -> Result<Option<Status>, Error> {
        self.in_context(0).iprobe(from, tag)
    }

    /// Waits for a message as a receive does, and leaves it in the queue (MPI_Probe).
    ///
    /// # Errors
    /// See [`Error`]. [`Error::Unexpected`] if there is no room for the message; receive others first.
    pub fn probe(&mut self, from: Source, tag: Tag) -> Result<Status, Error> {
        self.in_context(0).probe(from, tag)
    }

    /// Finds a message as [`Endpoint::iprobe`] does, and takes it out of the queue (MPI_Improbe).
    ///
    /// # Errors
    /// As for [`Endpoint::iprobe`]. [`Error::Requests`] if too many requests are under way; each message taken
    /// out counts as one.
    pub fn improbe(&mut self, from: Source, tag: Tag) -> Result<Option<Message>, Error> {
        self.in_context(0).improbe(from, tag)
    }

    /// Waits for a message as a receive does, and takes it out of the queue (MPI_Mprobe).
    ///
    /// # Errors
    /// As for [`Endpoint::probe`] and [`Endpoint::improbe`].
    pub fn mprobe(&mut self, from: Source, tag: Tag) -> Result<Message, Error> {
        self.in_context(0).mprobe(from, tag)
    }

    /// Starts the receive of a message that a probe took out, into `len` bytes at `base` (MPI_Imrecv).
    /// [`RecvOp::matched`](crate::RecvOp::matched) receives it into a list.
    ///
    /// # Errors
    /// [`Error::Stale`] if the message belongs to another endpoint; the buffer is not used.
    ///
    /// # Safety
    /// As for [`Endpoint::irecv`].
    pub unsafe fn imrecv(&mut self, message: Message, base: *mut u8, len: usize) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        let buf = unsafe { RecvBuf::from_raw(base, len) };
        self.start_matched(message, buf)
    }

    /// Starts the receive of a message that a probe took out.
    pub(super) fn start_matched(&mut self, mut message: Message, mut buf: RecvBuf) -> Result<Request, Error> {
        self.check_origin()?;
        if !message.home.as_ref().is_some_and(|home| Arc::ptr_eq(home, &self.dropped)) {
            return Err(Error::Stale);
        }
        message.home = None;
        self.engine.imrecv(message.id, &mut buf)?;
        Ok(Request(message.id))
    }

    /// Receives a message that a probe took out, and waits for its bytes (MPI_Mrecv).
    ///
    /// # Errors
    /// See [`Error`]. [`Error::Truncated`] if the message is longer than `buf`; the part that fits is received.
    pub fn mrecv(&mut self, message: Message, buf: &mut [u8]) -> Result<Status, Error> {
        // SAFETY: the buffer is borrowed until this function returns, and `finish` returns only when the engine
        // has finished with it.
        let request = unsafe { self.imrecv(message, buf.as_mut_ptr(), buf.len()) }?;
        self.finish(request)
    }

    /// Returns the message that [`Message::into_bits`] made into this number. Any number is safe: if it names
    /// no message, the receive returns [`Error::Stale`]. The status of the message is not kept.
    pub fn message(&self, bits: u64) -> Message {
        let status = Status { rank: self.rank(), tag: 0, len: 0, immediate: None };
        Message { id: RequestId::from_bits(bits), status, home: Some(Arc::clone(&self.dropped)) }
    }

    /// Receives the dropped messages into empty buffers. This completes the senders that wait for a receive.
    pub(in crate::endpoint) fn discard_dropped(&mut self) {
        for id in self.dropped.take() {
            if self.engine.imrecv(id, &mut RecvBuf::empty()).is_ok() {
                self.discarding.push(id);
            }
        }
        self.discarding.retain(|id| self.engine.test(*id).is_none());
    }

    /// Searches with `find` twice, with progress in between.
    fn look_for<T>(
        &mut self,
        pattern: &Pattern,
        mut find: impl FnMut(&mut Self, &Pattern) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        self.check_origin()?;
        self.discard_dropped();
        if let Some(found) = find(self, pattern)? {
            self.call_succeeded();
            return Ok(Some(found));
        }
        self.progress();
        self.look_again(pattern, &mut find)
    }

    /// Searches with `find` once. If it finds nothing, fails if no such message can come.
    fn look_again<T>(
        &mut self,
        pattern: &Pattern,
        find: &mut impl FnMut(&mut Self, &Pattern) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let found = find(self, pattern)?;
        if found.is_none() {
            self.engine.check_listening(pattern.source).or_else(|error| self.make_room(error))?;
        }
        Ok(found)
    }

    /// Searches until `find` has found something: spins, then sleeps.
    fn wait_for<T>(
        &mut self,
        pattern: &Pattern,
        limit: Option<Duration>,
        mut find: impl FnMut(&mut Self, &Pattern) -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        if let Some(found) = self.look_for(pattern, &mut find)? {
            return Ok(found);
        }
        let mut wait = Wait::new(limit);
        loop {
            let packets = self.engine.progress().packets;
            if let Some(found) = self.look_again(pattern, &mut find)? {
                return Ok(found);
            }
            self.pause(&mut wait, packets, Awaited::Message(pattern.source))?;
        }
    }

    /// Waits for at most `limit` for a message, and takes it out of the queue.
    pub(in crate::endpoint) fn take_within(
        &mut self,
        pattern: &Pattern,
        limit: Option<Duration>,
    ) -> Result<Message, Error> {
        self.wait_for(pattern, limit, Self::take)
    }

    /// Searches once for another thread, which waits.
    pub(in crate::endpoint) fn find_once(&mut self, pattern: &Pattern) -> Result<Option<Status>, Error> {
        self.look_again(pattern, &mut Self::find)
    }

    /// Searches as [`Endpoint::find_once`] does, and takes the message out.
    pub(in crate::endpoint) fn take_once(&mut self, pattern: &Pattern) -> Result<Option<Message>, Error> {
        self.look_again(pattern, &mut Self::take)
    }

    fn find(&mut self, pattern: &Pattern) -> Result<Option<Status>, Error> {
        Ok(self.engine.iprobe(pattern).map(status))
    }

    fn take(&mut self, pattern: &Pattern) -> Result<Option<Message>, Error> {
        loop {
            match self.engine.improbe(pattern) {
                Ok(found) => {
                    return Ok(found.map(|(id, found)| Message {
                        id,
                        status: status(found),
                        home: Some(Arc::clone(&self.dropped)),
                    }));
                }
                Err(error) => self.make_room(error)?,
            }
        }
    }
}

impl Context<'_> {
    /// Finds a message in this context and leaves it in the queue; see [`Endpoint::iprobe`].
    ///
    /// # Errors
    /// As for [`Endpoint::iprobe`].
    pub fn iprobe(self, from: Source, tag: Tag) -> Result<Option<Status>, Error> {
        self.endpoint.look_for(&pattern(from, self.id, tag)?, Endpoint::find)
    }

    /// Waits for a message in this context and leaves it in the queue; see [`Endpoint::probe`].
    ///
    /// # Errors
    /// As for [`Endpoint::probe`].
    pub fn probe(self, from: Source, tag: Tag) -> Result<Status, Error> {
        self.endpoint.wait_for(&pattern(from, self.id, tag)?, None, Endpoint::find)
    }

    /// Waits as [`Context::probe`] does, for at most `limit`.
    ///
    /// # Errors
    /// As for [`Endpoint::probe`]; [`Error::Timeout`].
    pub fn probe_timeout(self, from: Source, tag: Tag, limit: Duration) -> Result<Status, Error> {
        self.endpoint.wait_for(&pattern(from, self.id, tag)?, Some(limit), Endpoint::find)
    }

    /// Finds a message in this context and takes it out of the queue; see [`Endpoint::improbe`].
    ///
    /// # Errors
    /// As for [`Endpoint::improbe`].
    pub fn improbe(self, from: Source, tag: Tag) -> Result<Option<Message>, Error> {
        self.endpoint.look_for(&pattern(from, self.id, tag)?, Endpoint::take)
    }

    /// Waits for a message in this context and takes it out of the queue; see [`Endpoint::mprobe`].
    ///
    /// # Errors
    /// As for [`Endpoint::mprobe`].
    pub fn mprobe(self, from: Source, tag: Tag) -> Result<Message, Error> {
        self.endpoint.wait_for(&pattern(from, self.id, tag)?, None, Endpoint::take)
    }

    /// Waits as [`Context::mprobe`] does, for at most `limit`.
    ///
    /// # Errors
    /// As for [`Endpoint::mprobe`]; [`Error::Timeout`].
    pub fn mprobe_timeout(self, from: Source, tag: Tag, limit: Duration) -> Result<Message, Error> {
        self.endpoint.wait_for(&pattern(from, self.id, tag)?, Some(limit), Endpoint::take)
    }
}
