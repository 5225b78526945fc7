//! Active messages: handlers, and what they answer.

use std::any::Any;
use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use nemesia_core::engine::RequestId;
use nemesia_core::engine::active::{ActiveMessage, Handlers, NoMemory};
use nemesia_core::flow::replies::{ReplyAccount, ReplyPool};
use nemesia_core::payload::SendBuf;

use super::{Endpoint, Request};
use crate::error::Error;

type Handler = Box<dyn FnMut(&mut Incoming<'_>) + Send>;

/// An active message in the hands of its handler. Its bytes are gone when the handler returns.
#[derive(Debug)]
pub struct Incoming<'a> {
    from: usize,
    header: &'a [u8],
    payload: &'a [u8],
    most: usize,
    outbox: &'a mut Outbox,
}

impl Incoming<'_> {
    /// Who sent it.
    pub fn from(&self) -> usize {
        self.from
    }

    /// Its header.
    pub fn header(&self) -> &[u8] {
        self.header
    }

    /// Its payload.
    pub fn payload(&self) -> &[u8] {
        self.payload
    }

    /// Sends an active message back. It leaves after the handler has returned, in the order of the replies, before what
    /// is sent from outside; both parts are copied. A reply to a sender that is gone is dropped.
    ///
    /// # Errors
    /// [`Error::Replies`] when too many wait to leave for this sender: send it later, from outside a handler. Each
    /// sender may have 32 replies that wait, whatever the others do, and more while there is room for them.
    /// [`Error::LongReply`] beyond a packet (a cell), as replies are kept until they leave.
    pub fn reply(&mut self, handler: u16, header: &[u8], payload: &[u8]) -> Result<(), Error> {
        let len = header.len() + payload.len();
        if len > self.most {
            return Err(Error::LongReply { len, most: self.most });
        }
        let reply =
            || Reply { handler, header_bytes: header.len(), bytes: [header, payload].concat().into() };
        self.outbox.add(self.from, reply)
    }
}

/// A reply that no engine has been given yet.
#[derive(Debug)]
struct Reply {
    handler: u16,
    header_bytes: usize,
    bytes: Box<[u8]>,
}

/// What handlers have answered.
#[derive(Debug, Default)]
struct Outbox {
    pool: ReplyPool,
    /// By rank, as far as any was answered.
    peers: Vec<PeerReplies>,
    /// The ranks that have replies, in the order in which they are looked at.
    busy: VecDeque<usize>,
    /// Replies that no engine has been given yet, to all ranks.
    waiting: usize,
}

/// The replies to one rank, in order: those that leave came first.
#[derive(Debug, Default)]
struct PeerReplies {
    account: ReplyAccount,
    waiting: VecDeque<Reply>,
    /// Given to the engine, which uses the bytes until the request is complete.
    leaving: VecDeque<(RequestId, Box<[u8]>)>,
}

impl PeerReplies {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.leaving.is_empty()
    }
}

impl Outbox {
    /// Keeps a reply to a rank, if there is a place for it.
    fn add(&mut self, to: usize, reply: impl FnOnce() -> Reply) -> Result<(), Error> {
        if self.peers.len() <= to {
            self.peers.resize_with(to + 1, PeerReplies::default);
        }
        let peer = &mut self.peers[to];
        if !self.pool.take(&mut peer.account) {
            return Err(Error::Replies { rank: to, most: peer.account.held() as usize });
        }
        if peer.is_empty() {
            self.busy.push_back(to);
        }
        peer.waiting.push_back(reply());
        self.waiting += 1;
        Ok(())
    }

    /// The next reply to a rank that no engine has been given. It keeps its place.
    fn next(&mut self, to: usize) -> Option<Reply> {
        let reply = self.peers.get_mut(to)?.waiting.pop_front()?;
        self.waiting -= 1;
        Some(reply)
    }

    /// The engine could not take it.
    fn put_back(&mut self, to: usize, reply: Reply) {
        self.peers[to].waiting.push_front(reply);
        self.waiting += 1;
    }

    /// A reply to a rank has left, or is dropped.
    fn free(&mut self, to: usize) {
        self.pool.give_back(&mut self.peers[to].account);
    }
}

/// Finds the handler of a message and calls it.
pub(super) struct Dispatch {
    handlers: Vec<Option<Handler>>,
    room: Vec<u8>,
    /// By sender: its message of several packets, until it is whole.
    parts: HashMap<u32, Vec<u8>>,
    packet: usize,
    outbox: Outbox,
    /// The first panic of a handler that has not been raised yet.
    panic: Option<Panic>,
}

/// What a panic carries.
pub(super) type Panic = Box<dyn Any + Send>;

impl Dispatch {
    /// For packets of so many bytes.
    pub(super) fn new(packet: usize) -> Self {
        let (handlers, room, parts) = (Vec::new(), Vec::new(), HashMap::new());
        Self { handlers, room, parts, packet, outbox: Outbox::default(), panic: None }
    }

    /// What was to be answered to a process that is gone is not for the next one of its rank.
    pub(super) fn forget(&mut self, rank: usize) {
        while self.outbox.next(rank).is_some() {
            self.outbox.free(rank);
        }
        if self.outbox.peers.get(rank).is_some_and(PeerReplies::is_empty) {
            self.outbox.busy.retain(|busy| *busy != rank);
        }
    }

    pub(super) fn has_replies(&self) -> bool {
        !self.outbox.busy.is_empty()
    }

    /// Whether [`Endpoint::attend_handlers`] has something to do.
    #[inline(always)]
    pub(super) fn wants_attention(&self) -> bool {
        self.has_replies() || self.panic.is_some()
    }

    /// Keeps a panic until [`Endpoint::attend_handlers`] raises it. Only the first is kept: the thread can unwind once.
    pub(super) fn keep_panic(&mut self, panic: Panic) {
        if self.panic.is_none() {
            self.panic = Some(panic);
        } else {
            // Dropping what a panic carries may panic again.
            std::mem::forget(panic);
        }
    }
}

impl std::fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let handlers = self.handlers.iter().flatten().count();
        f.debug_struct("Dispatch").field("handlers", &handlers).finish_non_exhaustive()
    }
}

impl Handlers for Dispatch {
    fn room(&mut self, message: &ActiveMessage) -> Result<Option<&mut [u8]>, NoMemory> {
        let Some(Some(_)) = self.handlers.get(usize::from(message.handler)) else { return Ok(None) };
        if message.len > self.packet {
            self.parts.try_reserve(1).map_err(|_| NoMemory)?;
            return Ok(Some(match self.parts.entry(message.from) {
                Entry::Occupied(begun) => begun.into_mut(),
                Entry::Vacant(place) => place.insert(zeroed(message.len)?),
            }));
        }
        if self.room.len() < message.len {
            self.room = zeroed(self.packet)?;
        }
        Ok(Some(&mut self.room))
    }

    fn run(&mut self, message: &ActiveMessage) {
        let Self { handlers, room, parts, packet, outbox, .. } = self;
        let several = if message.len > *packet { parts.remove(&message.from) } else { None };
        let Some(Some(handler)) = handlers.get_mut(usize::from(message.handler)) else { return };
        let room = several.as_deref().unwrap_or(room);
        let (header, payload) = room[..message.len].split_at(message.header_bytes);
        let mut incoming = Incoming { from: message.from as usize, header, payload, most: *packet, outbox };
        // The engine is in the middle of a packet, and must not be left there: the panic goes on when it has finished.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| handler(&mut incoming))) {
            self.keep_panic(panic);
        }
    }

    fn drop_parts(&mut self, from: u32) {
        self.parts.remove(&from);
    }
}

/// So many bytes, or none: it is for others to say how many.
fn zeroed(len: usize) -> Result<Vec<u8>, NoMemory> {
    let mut room = Vec::new();
    room.try_reserve_exact(len).map_err(|_| NoMemory)?;
    room.resize(len, 0);
    Ok(room)
}

impl Endpoint {
    /// Has a handler called for each active message with this number, from now on and in the place of any before. It
    /// runs within whatever call of this endpoint makes progress, in the order in which one sender's messages were
    /// sent; it can't use the endpoint, but reply. Messages for a number without handler are dropped and counted.
    ///
    /// If a handler panics, its message counts as handled, and the panic goes on in the call that made progress, after
    /// that has finished its step. A blocking call first takes back the buffer that it was given: it withdraws a
    /// receive, and waits for a transfer that is under way. The endpoint can be used afterwards.
    pub fn set_handler(&mut self, number: u16, handler: impl FnMut(&mut Incoming<'_>) + Send + 'static) {
        let handlers = &mut self.engine.handlers_mut().handlers;
        let at = usize::from(number);
        if handlers.len() <= at {
            handlers.resize_with(at + 1, || None);
        }
        handlers[at] = Some(Box::new(handler));
    }

    /// Takes a handler away. False when there was none.
    pub fn remove_handler(&mut self, number: u16) -> bool {
        let handlers = &mut self.engine.handlers_mut().handlers;
        handlers.get_mut(usize::from(number)).and_then(Option::take).is_some()
    }

    /// Active messages that were dropped, as no handler had their number.
    pub fn unhandled_messages(&self) -> u64 {
        self.engine.unhandled()
    }

    /// The most bytes of an active message, header and payload together: 1 MiB, or a packet if that is more. What does
    /// not fit into a packet is streamed, and handled when it is whole.
    pub fn active_bytes(&self) -> usize {
        self.engine.active_bytes()
    }

    /// Sends an active message and waits until it has left both buffers.
    ///
    /// # Errors
    /// See [`Error`]. [`Error::TooLong`] beyond [`Endpoint::active_bytes`]: send the payload as a tagged message, or
    /// put it.
    pub fn send_active(
        &mut self,
        to: usize,
        handler: u16,
        header: &[u8],
        payload: &[u8],
    ) -> Result<(), Error> {
        // SAFETY: both are borrowed until this returns, and `finish` returns only when the engine has done with them.
        let request = unsafe { self.isend_active(to, handler, header, payload) }?;
        self.finish(request).map(drop)
    }

    /// Starts an active message; [`Endpoint::test`] or [`Endpoint::wait`] completes it, when it has left both buffers.
    /// For runtimes; see [`Endpoint::scope`] for a safe way.
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    ///
    /// # Safety
    /// The bytes of both pointers, which may be those of slices that do not live as long, stay readable and unchanged
    /// until the request is complete or the endpoint is dropped.
    #[inline]
    pub unsafe fn isend_active(
        &mut self,
        to: usize,
        handler: u16,
        header: *const [u8],
        payload: *const [u8],
    ) -> Result<Request, Error> {
        if self.engine.handlers_mut().outbox.waiting > 0 {
            self.send_replies();
        }
        // SAFETY: the caller's promise.
        unsafe { self.start_active(to, handler, header, payload) }
    }

    /// # Safety
    /// As [`Endpoint::isend_active`].
    #[inline]
    unsafe fn start_active(
        &mut self,
        to: usize,
        handler: u16,
        header: *const [u8],
        payload: *const [u8],
    ) -> Result<Request, Error> {
        self.check_origin()?;
        let to = u32::try_from(to).unwrap_or(u32::MAX);
        // SAFETY: the caller's promise.
        let header = unsafe { SendBuf::from_raw(header.cast(), header.len()) };
        // SAFETY: the caller's promise.
        let payload = unsafe { SendBuf::from_raw(payload.cast(), payload.len()) };
        loop {
            // SAFETY: the caller's promise covers each attempt: one that failed has not kept the buffer.
            let (header, payload) = unsafe { (header.again(), payload.again()) };
            match self.engine.send_active(to, handler, header, payload) {
                Ok(id) => return Ok(Request(id)),
                Err(error) => self.make_room(error)?,
            }
        }
    }

    /// Sends the replies of handlers, and raises the panic of a handler.
    #[cold]
    pub(super) fn attend_handlers(&mut self) {
        self.send_replies();
        if let Some(panic) = self.engine.handlers_mut().panic.take() {
            resume_unwind(panic);
        }
    }

    /// Sends the replies of handlers, and forgets those that have left. A rank that takes nothing blocks no other.
    #[cold]
    fn send_replies(&mut self) {
        for _ in 0..self.engine.handlers_mut().outbox.busy.len() {
            let Some(to) = self.engine.handlers_mut().outbox.busy.pop_front() else { return };
            self.forget_replies(to);
            let all = self.send_replies_to(to);
            let outbox = &mut self.engine.handlers_mut().outbox;
            if !outbox.peers[to].is_empty() {
                outbox.busy.push_back(to);
            }
            if !all {
                return;
            }
        }
    }

    /// Forgets the replies to a rank that have left.
    fn forget_replies(&mut self, to: usize) {
        while let Some((id, _)) = self.engine.handlers_mut().outbox.peers[to].leaving.front() {
            let id = *id;
            // What came of it, nobody asks.
            if self.engine.test(id).is_none() {
                return;
            }
            let outbox = &mut self.engine.handlers_mut().outbox;
            outbox.peers[to].leaving.pop_front();
            outbox.free(to);
        }
    }

    /// Gives the engine the replies to a rank. False when it can take no more.
    fn send_replies_to(&mut self, to: usize) -> bool {
        while let Some(reply) = self.engine.handlers_mut().outbox.next(to) {
            let (header, payload) = reply.bytes.split_at(reply.header_bytes);
            let (header, payload): (*const [u8], *const [u8]) = (header, payload);
            // SAFETY: the bytes are on the heap, and kept below until the request is complete; the endpoint drops them
            // after the engine.
            let started = unsafe { self.start_active(to, reply.handler, header, payload) };
            let outbox = &mut self.engine.handlers_mut().outbox;
            match started {
                Ok(Request(id)) if id != RequestId::SENT => {
                    outbox.peers[to].leaving.push_back((id, reply.bytes));
                }
                Err(Error::Requests { .. }) => {
                    outbox.put_back(to, reply);
                    return false;
                }
                // It has left, or its receiver is gone.
                Ok(_) | Err(_) => outbox.free(to),
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_that_there_is_no_memory_for_is_refused_and_others_are_not() {
        let mut dispatch = Dispatch::new(256);
        dispatch.handlers.push(Some(Box::new(|_| {})));
        let message = |from, len| ActiveMessage { from, handler: 0, header_bytes: 0, len };
        for len in [isize::MAX as usize, usize::MAX] {
            assert_eq!(dispatch.room(&message(1, len)), Err(NoMemory));
        }
        let room = |room: Result<Option<&mut [u8]>, NoMemory>| room.map(|room| room.map(|room| room.len()));
        assert_eq!(room(dispatch.room(&message(1, 257))), Ok(Some(257)));
        assert_eq!(room(dispatch.room(&message(2, 3))), Ok(Some(256)));
        assert_eq!(room(dispatch.room(&ActiveMessage { handler: 1, ..message(2, usize::MAX) })), Ok(None));

        let mut endless = Dispatch::new(isize::MAX as usize);
        endless.handlers.push(Some(Box::new(|_| {})));
        assert_eq!(endless.room(&message(1, 3)), Err(NoMemory));
    }
}
