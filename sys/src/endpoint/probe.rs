//! Looking at messages before they are received (MPI 4.1, section 3.8).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nemesia_core::engine::RequestId;
use nemesia_core::matching::Pattern;
use nemesia_core::payload::RecvBuf;

use super::wait::{Awaited, Wait};
use super::{Context, Endpoint, Request, Source, Status, Tag, pattern, status};
use crate::error::Error;
use crate::os::ProcessOrigin;

/// Identifiers of messages that were dropped, until their endpoint discards them.
#[derive(Debug)]
pub(super) struct Dropped {
    ids: Mutex<Vec<RequestId>>,
    origin: Arc<ProcessOrigin>,
}

impl Dropped {
    pub(super) const fn new(origin: Arc<ProcessOrigin>) -> Self {
        Self { ids: Mutex::new(Vec::new()), origin }
    }

    fn push(&self, id: RequestId) {
        // In a forked child the lock may be that of a thread which does not exist there.
        if !self.origin.is_elsewhere() {
            self.ids.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        }
    }

    fn take(&self) -> Vec<RequestId> {
        std::mem::take(&mut *self.ids.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A message that a matched probe has taken out of the queue: no other receive or probe finds it any more
/// (MPI_Message). Received once, on the endpoint that it was probed on.
///
/// One that is dropped instead is discarded, as if it had been received into no room, and its sender's request
/// completes: at the endpoint's next probe, or while it waits or makes progress, after some ten milliseconds.
#[derive(Debug)]
#[must_use = "a message that is dropped is discarded"]
pub struct Message {
    id: RequestId,
    status: Status,
    /// `None` once it was received.
    home: Option<Arc<Dropped>>,
}

impl Message {
    /// Sender, tag, and the bytes that it has in all.
    pub const fn status(&self) -> Status {
        self.status
    }

    /// Its identifier as one number, for C: it is not discarded, but has to be received; see [`Endpoint::message`].
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

impl Endpoint {
    /// Looks for the first message that this would receive, and leaves it where it is (MPI_Iprobe). Makes progress when
    /// there is none.
    ///
    /// # Errors
    /// The rank does not exist, or is gone and has left no such message.
    pub fn iprobe(&mut self, from: Source, tag: Tag) -> Result<Option<Status>, Error> {
        self.in_context(0).iprobe(from, tag)
    }

    /// As [`Endpoint::iprobe`], and waits for it as a receive does (MPI_Probe).
    ///
    /// # Errors
    /// See [`Error`]. [`Error::Unexpected`]: there is no room for it; receive others first.
    pub fn probe(&mut self, from: Source, tag: Tag) -> Result<Status, Error> {
        self.in_context(0).probe(from, tag)
    }

    /// As [`Endpoint::iprobe`], and takes the message out of the queue (MPI_Improbe).
    ///
    /// # Errors
    /// As for [`Endpoint::iprobe`]; or too many requests are under way, of which each message taken out is one.
    pub fn improbe(&mut self, from: Source, tag: Tag) -> Result<Option<Message>, Error> {
        self.in_context(0).improbe(from, tag)
    }

    /// As [`Endpoint::improbe`], and waits for it as a receive does (MPI_Mprobe).
    ///
    /// # Errors
    /// As for [`Endpoint::probe`] and [`Endpoint::improbe`].
    pub fn mprobe(&mut self, from: Source, tag: Tag) -> Result<Message, Error> {
        self.in_context(0).mprobe(from, tag)
    }

    /// Starts receiving a message that a probe took out, into `len` bytes at `base` (MPI_Imrecv).
    ///
    /// # Errors
    /// [`Error::Stale`]: the message is another endpoint's; the buffer is not used.
    ///
    /// # Safety
    /// As for [`Endpoint::irecv`].
    pub unsafe fn imrecv(
        &mut self,
        mut message: Message,
        base: *mut u8,
        len: usize,
    ) -> Result<Request, Error> {
        self.check_origin()?;
        if !message.home.as_ref().is_some_and(|home| Arc::ptr_eq(home, &self.dropped)) {
            return Err(Error::Stale);
        }
        message.home = None;
        // SAFETY: the caller's promise.
        let mut buf = unsafe { RecvBuf::from_raw(base, len) };
        self.engine.imrecv(message.id, &mut buf)?;
        Ok(Request(message.id))
    }

    /// Receives a message that a probe took out, and waits for its bytes (MPI_Mrecv).
    ///
    /// # Errors
    /// See [`Error`]. A message longer than `buf` is [`Error::Truncated`]; what fits is received.
    pub fn mrecv(&mut self, message: Message, buf: &mut [u8]) -> Result<Status, Error> {
        // SAFETY: the buffer is borrowed until this returns, and `finish` returns only when the engine has done with
        // it.
        let request = unsafe { self.imrecv(message, buf.as_mut_ptr(), buf.len()) }?;
        self.finish(request)
    }

    /// What receiving costs just now, in messages that nobody has asked for: so many of them a receive in context 0
    /// would look at before it has its own, or knows that there is none. For measurements.
    pub fn receive_steps(&self, from: Source, tag: Tag) -> usize {
        pattern(from, 0, tag).map_or(0, |pattern| self.engine.receive_steps(&pattern))
    }

    /// What delivering costs just now, in posted receives: so many of them would be looked at for a message in context
    /// 0 before it has its own, or is known to have none. For measurements.
    pub fn arrival_steps(&self, from: usize, tag: u64) -> usize {
        self.engine.arrival_steps(u32::try_from(from).unwrap_or(u32::MAX), 0, tag)
    }

    /// The message that [`Message::into_bits`] made a number of. Any number is safe: one that names no message gives
    /// [`Error::Stale`] when it is received. Its status is not known any more.
    pub fn message(&self, bits: u64) -> Message {
        let status = Status { rank: self.rank(), tag: 0, len: 0 };
        Message { id: RequestId::from_bits(bits), status, home: Some(Arc::clone(&self.dropped)) }
    }

    /// Receives what was dropped into no room, which tells the senders that are waiting for that.
    pub(super) fn discard_dropped(&mut self) {
        for id in self.dropped.take() {
            if self.engine.imrecv(id, &mut RecvBuf::empty()).is_ok() {
                self.discarding.push(id);
            }
        }
        self.discarding.retain(|id| self.engine.test(*id).is_none());
    }

    /// Looks twice, with progress in between: `find` tells what it has found.
    fn look_for<T>(
        &mut self,
        pattern: &Pattern,
        mut find: impl FnMut(&mut Self, &Pattern) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        self.check_origin()?;
        self.discard_dropped();
        if let Some(found) = find(self, pattern)? {
            return Ok(Some(found));
        }
        self.progress();
        self.look_again(pattern, &mut find)
    }

    /// Looks once; when there is nothing, makes sure that there still can be.
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

    /// Looks until `find` has found something: spins, then sleeps.
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

    /// Looks once for another thread, which waits.
    pub(super) fn find_once(&mut self, pattern: &Pattern) -> Result<Option<Status>, Error> {
        self.look_again(pattern, &mut Self::find)
    }

    /// As [`Endpoint::find_once`], and takes it out.
    pub(super) fn take_once(&mut self, pattern: &Pattern) -> Result<Option<Message>, Error> {
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
    /// As [`Endpoint::iprobe`].
    ///
    /// # Errors
    /// As for [`Endpoint::iprobe`].
    pub fn iprobe(self, from: Source, tag: Tag) -> Result<Option<Status>, Error> {
        self.endpoint.look_for(&pattern(from, self.id, tag)?, Endpoint::find)
    }

    /// As [`Endpoint::probe`].
    ///
    /// # Errors
    /// As for [`Endpoint::probe`].
    pub fn probe(self, from: Source, tag: Tag) -> Result<Status, Error> {
        self.endpoint.wait_for(&pattern(from, self.id, tag)?, None, Endpoint::find)
    }

    /// As [`Endpoint::probe`], for at most this long.
    ///
    /// # Errors
    /// As for [`Endpoint::probe`]; [`Error::Timeout`].
    pub fn probe_timeout(self, from: Source, tag: Tag, limit: Duration) -> Result<Status, Error> {
        self.endpoint.wait_for(&pattern(from, self.id, tag)?, Some(limit), Endpoint::find)
    }

    /// As [`Endpoint::improbe`].
    ///
    /// # Errors
    /// As for [`Endpoint::improbe`].
    pub fn improbe(self, from: Source, tag: Tag) -> Result<Option<Message>, Error> {
        self.endpoint.look_for(&pattern(from, self.id, tag)?, Endpoint::take)
    }

    /// As [`Endpoint::mprobe`].
    ///
    /// # Errors
    /// As for [`Endpoint::mprobe`].
    pub fn mprobe(self, from: Source, tag: Tag) -> Result<Message, Error> {
        self.endpoint.wait_for(&pattern(from, self.id, tag)?, None, Endpoint::take)
    }

    /// As [`Endpoint::mprobe`], for at most this long.
    ///
    /// # Errors
    /// As for [`Endpoint::mprobe`]; [`Error::Timeout`].
    pub fn mprobe_timeout(self, from: Source, tag: Tag, limit: Duration) -> Result<Message, Error> {
        self.endpoint.wait_for(&pattern(from, self.id, tag)?, Some(limit), Endpoint::take)
    }
}
