//! Active messages: their handlers, and the replies of handlers.

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

/// An active message, for its handler. Its bytes are valid until the handler returns.
#[derive(Debug)]
pub struct Incoming<'a> {
    from: usize,
    header: &'a [u8],
    payload: &'a [u8],
    most: usize,
    outbox: &'a mut Outbox,
}

impl Incoming<'_> {
    /// Returns the rank that sent the message.
    pub fn from(&self) -> usize {
        self.from
    }

    /// Returns the header.
    pub fn header(&self) -> &[u8] {
        self.header
    }

    /// Returns the payload.
    pub fn payload(&self) -> &[u8] {
        self.payload
    }

    /// Sends an active message back. A reply to a sender that is gone is dropped.
    ///
    /// Both parts are copied. Replies leave after the handler has returned, in their order, and before active
    /// messages that are sent later from outside.
    ///
    /// # Errors
    /// [`Error::Replies`] if too many replies to this sender wait to leave; send the reply later, from outside
    /// a handler. 32 waiting replies are reserved for each sender. All senders share the room for further
    /// replies. [`Error::LongReply`] if the reply is longer than a packet (a cell), because replies are kept
    /// until they leave.
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

/// A reply that no engine has taken yet.
#[derive(Debug)]
struct Reply {
    handler: u16,
    header_bytes: usize,
    bytes: Box<[u8]>,
}

/// The replies of handlers that have not left.
#[derive(Debug, Default)]
struct Outbox {
    pool: ReplyPool,
    /// The replies by rank, up to the highest rank that has had one.
    peers: Vec<PeerReplies>,
    /// The ranks that have replies, in the order in which they are served.
    busy: VecDeque<usize>,
    /// The number of replies, to all ranks, that no engine has taken yet.
    waiting: usize,
}

/// The replies to one rank, in order. Those in `leaving` came before those in `waiting`.
#[derive(Debug, Default)]
struct PeerReplies {
    account: ReplyAccount,
    waiting: VecDeque<Reply>,
    /// The replies that the engine has taken. It uses the bytes until the request is complete.
    leaving: VecDeque<(RequestId, Box<[u8]>)>,
}

impl PeerReplies {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.leaving.is_empty()
    }
}

impl Outbox {
    /// Keeps a reply to a rank if its account permits one more.
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

    /// Takes the next reply to a rank that no engine has taken. The account of the rank still counts it.
    fn next(&mut self, to: usize) -> Option<Reply> {
        let reply = self.peers.get_mut(to)?.waiting.pop_front()?;
        self.waiting -= 1;
        Some(reply)
    }

    /// Puts back a reply that the engine could not take.
    fn put_back(&mut self, to: usize, reply: Reply) {
        self.peers[to].waiting.push_front(reply);
        self.waiting += 1;
    }

    /// Frees the place of a reply that has left or was dropped.
    fn free(&mut self, to: usize) {
        self.pool.give_back(&mut self.peers[to].account);
    }
}

/// Finds the handler of a message and calls it.
pub(super) struct Dispatch {
    handlers: Vec<Option<Handler>>,
    room: Vec<u8>,
    /// By sender: a message of several packets that is not complete yet.
    parts: HashMap<u32, Vec<u8>>,
    packet: usize,
    outbox: Outbox,
    /// The first panic of a handler that has not been raised yet.
    panic: Option<Panic>,
}

/// The payload of a panic.
pub(super) type Panic = Box<dyn Any + Send>;

impl Dispatch {
    /// Makes a dispatcher for packets of at most `packet` bytes.
    pub(super) fn new(packet: usize) -> Self {
        let (handlers, room, parts) = (Vec::new(), Vec::new(), HashMap::new());
        Self { handlers, room, parts, packet, outbox: Outbox::default(), panic: None }
    }

    /// Drops the replies to a process that is gone. The next process of its rank must not receive them.
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

    /// Returns whether [`Endpoint::attend_handlers`] has something to do.
    #[inline(always)]
    pub(super) fn wants_attention(&self) -> bool {
        self.has_replies() || self.panic.is_some()
    }

    /// Keeps a panic until [`Endpoint::attend_handlers`] raises it. Only the first is kept, because the thread
    /// can unwind once.
    pub(super) fn keep_panic(&mut self, panic: Panic) {
        if self.panic.is_none() {
            self.panic = Some(panic);
        } else {
            // The drop of a panic's payload may panic again.
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
        // The engine is processing a packet and has to finish this first. Afterwards the panic is raised.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| handler(&mut incoming))) {
            self.keep_panic(panic);
        }
    }

    fn drop_parts(&mut self, from: u32) {
        self.parts.remove(&from);
    }
}

/// Allocates `len` zeroed bytes, or fails: the sender chose the number.
fn zeroed(len: usize) -> Result<Vec<u8>, NoMemory> {
    let mut room = Vec::new();
    room.try_reserve_exact(len).map_err(|_| NoMemory)?;
    room.resize(len, 0);
    Ok(room)
}

/// # Active messages
///
/// An active message runs a handler at its receiver, in whichever call makes progress there. The handler may
/// reply with another active message.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// use std::sync::atomic::{AtomicU8, Ordering};
/// use std::sync::Arc;
///
/// const ASK: u16 = 1;
/// const ANSWER: u16 = 2;
/// let peer = 1 - endpoint.rank();
/// let sum = Arc::new(AtomicU8::new(0));
/// let result = Arc::clone(&sum);
/// endpoint.set_handler(ASK, |message| {
///     let sum = message.payload().iter().sum::<u8>();
///     message.reply(ANSWER, b"", &[sum]).expect("one reply has room");
/// });
/// endpoint.set_handler(ANSWER, move |message| result.store(message.payload()[0], Ordering::Relaxed));
/// endpoint.barrier()?;
/// endpoint.send_active(peer, ASK, b"", &[1, 2, 3])?;
/// while sum.load(Ordering::Relaxed) == 0 {
///     endpoint.progress();
/// }
/// assert_eq!(sum.load(Ordering::Relaxed), 6);
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Sets the handler of active messages with this number. It replaces an earlier handler.
    ///
    /// The handler runs in whichever call on this endpoint makes progress. One sender's messages are handled in
    /// the order in which they were sent. A handler can reply, but it cannot use the endpoint. Messages to a
    /// number without a handler are dropped and counted.
    ///
    /// If a handler panics, its message counts as handled. The call that made progress finishes its step and
    /// then raises the panic. A blocking call first takes back the buffer that it has lent: it withdraws a
    /// receive, or waits for a transfer that is under way. The endpoint can be used afterwards.
    pub fn set_handler(&mut self, number: u16, handler: impl FnMut(&mut Incoming<'_>) + Send + 'static) {
        let handlers = &mut self.engine.handlers_mut().handlers;
        let at = usize::from(number);
        if handlers.len() <= at {
            handlers.resize_with(at + 1, || None);
        }
        handlers[at] = Some(Box::new(handler));
    }

    /// Removes a handler. Returns false if there was none.
    pub fn remove_handler(&mut self, number: u16) -> bool {
        let handlers = &mut self.engine.handlers_mut().handlers;
        handlers.get_mut(usize::from(number)).and_then(Option::take).is_some()
    }

    /// Returns the number of active messages that were dropped because their number had no handler.
    pub fn unhandled_messages(&self) -> u64 {
        self.engine.unhandled()
    }

    /// Returns the most bytes of an active message, header and payload together: 1 MiB, or the size of a packet
    /// if that is larger.
    ///
    /// A message that is longer than a packet is streamed, and handled when it is complete.
    pub fn active_bytes(&self) -> usize {
        self.engine.active_bytes()
    }

    /// Sends an active message and waits until its bytes have left both buffers.
    ///
    /// # Errors
    /// See [`Error`]. [`Error::TooLong`] if the message is longer than [`Endpoint::active_bytes`]; send the
    /// payload as a tagged message, or put it.
    pub fn send_active(
        &mut self,
        to: usize,
        handler: u16,
        header: &[u8],
        payload: &[u8],
    ) -> Result<(), Error> {
        // SAFETY: both are borrowed until this function returns, and `finish` returns only when the engine has
        // finished with them.
        let request = unsafe { self.isend_active(to, handler, header, payload) }?;
        self.finish(request).map(drop)
    }

    /// Starts an active message. [`Endpoint::test`] or [`Endpoint::wait`] completes it when its bytes have left
    /// both buffers. For runtimes; [`Endpoint::scope`] is the safe alternative.
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    ///
    /// # Safety
    /// The bytes of both pointers stay readable and unchanged until the request is complete or the endpoint is
    /// dropped. The slices from which the pointers come may end earlier.
    #[inline]
    pub unsafe fn isend_active(
        &mut self,
        to: usize,
        handler: u16,
        header: *const [u8],
        payload: *const [u8],
    ) -> Result<Request, Error> {
        self.send_waiting_replies();
        // SAFETY: the caller's promise.
        unsafe { self.start_active(to, handler, header, payload) }
    }

    /// Sends the replies that wait.
    #[inline]
    pub(super) fn send_waiting_replies(&mut self) {
        if self.engine.handlers_mut().outbox.waiting > 0 {
            self.send_replies();
        }
    }

    /// Starts an active message without sending replies first.
    ///
    /// # Safety
    /// As for [`Endpoint::isend_active`].
    #[inline]
    pub(super) unsafe fn start_active(
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
            // SAFETY: the caller's promise covers each attempt, since a failed attempt has not kept the buffer.
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

    /// Sends the replies of handlers, and frees those that have left. A rank that takes no replies blocks no
    /// other rank.
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

    /// Frees the replies to a rank that have left.
    fn forget_replies(&mut self, to: usize) {
        while let Some((id, _)) = self.engine.handlers_mut().outbox.peers[to].leaving.front() {
            let id = *id;
            // The result of the request does not matter.
            if self.engine.test(id).is_none() {
                return;
            }
            let outbox = &mut self.engine.handlers_mut().outbox;
            outbox.peers[to].leaving.pop_front();
            outbox.free(to);
        }
    }

    /// Passes the replies to a rank to the engine. Returns false if the engine can take no more.
    fn send_replies_to(&mut self, to: usize) -> bool {
        while let Some(reply) = self.engine.handlers_mut().outbox.next(to) {
            let (header, payload) = reply.bytes.split_at(reply.header_bytes);
            let (header, payload): (*const [u8], *const [u8]) = (header, payload);
            // SAFETY: the bytes are on the heap. They are kept below until the request is complete, and the
            // endpoint drops them after the engine.
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
                // The reply has left, or its receiver is gone.
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
    fn a_message_without_memory_is_refused_and_others_are_not() {
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
