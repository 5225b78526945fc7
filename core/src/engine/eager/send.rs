//! Sending: eagerly if the receiver has granted credit, else by rendezvous; at once, or through the peer's
//! queue of pending sends.
//!
//! A message waits if it finds no space, no credit, or other messages queued before it. [`Engine::progress`]
//! then sends it. No message to the same peer overtakes it (paper 4, section 3.1).
#![forbid(unsafe_code)]

use core::borrow::{Borrow, BorrowMut};

use crate::engine::lmt::{Pull, Transfer, send_part};
use crate::engine::peer::PeerQueue;
use crate::engine::request::{CompletionError, SendMessage, State};
use crate::engine::{Engine, RequestId, SendOptions, StartError, Status, Storage};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::payload::{BorrowedGather, Gather, SendBuf};
use crate::port::{PacketPieces, PeerFault, PeerId, Port, SHORT_BYTES};
use crate::store::cost;
use crate::trace::Recorder as _;
use crate::wire::prefix::IMMEDIATE_BYTES;
use crate::wire::{Envelope, Kind};

/// The most sends that wait to leave together. The next one makes them leave.
const MOST_GATHERED: u32 = 64;

impl<P: Port, S: Storage> Engine<P, S> {
    /// As [`Engine::send_now`], for a short message: the critical path. Returns `false` if nothing was sent, or
    /// the message is not short: the caller takes the slow path. The rank is compared as the caller has it, before it
    /// becomes a [`PeerId`].
    #[inline(always)]
    pub fn send_short(&mut self, to: usize, context: u16, tag: u64, bytes: &[u8]) -> bool {
        self.send_slot(to, (context, tag), None, bytes)
    }

    /// As [`Engine::send_short`], for a message with immediate data, which is short with these.
    #[inline(always)]
    pub fn send_short_immediate(
        &mut self,
        to: usize,
        context: u16,
        (tag, immediate): (u64, u64),
        bytes: &[u8],
    ) -> bool {
        self.send_slot(to, (context, tag), Some(immediate), bytes)
    }

    /// Sends a message in one slot, if it is short. The callers decide about immediate data when they are compiled.
    #[inline(always)]
    fn send_slot(
        &mut self,
        to: usize,
        (context, tag): (u16, u64),
        immediate: Option<u64>,
        bytes: &[u8],
    ) -> bool {
        // Every short message has the same cost.
        const UNITS: u32 = cost(SHORT_BYTES);
        let (kind, len) = match immediate {
            None => (Kind::Eager, bytes.len()),
            Some(_) => (Kind::EagerImmediate, IMMEDIATE_BYTES + bytes.len()),
        };
        if len > self.short_bytes {
            return false;
        }
        let Some(peer) = self.peers.borrow_mut().get_mut(to) else { return false };
        if !peer.is_free() || !peer.allowance.may(UNITS) {
            return false;
        }
        let to = to as PeerId;
        let sent = match immediate {
            None => self.port.send_short(to, context, tag, bytes),
            Some(immediate) => self.port.send_immediate(to, context, [tag, immediate], bytes),
        };
        let Some(unsettled) = sent else { return false };
        peer.allowance.spend(UNITS);
        let sent = &mut peer.tally.sent[kind.index()];
        match immediate {
            // The number of eager packets is derived.
            None => sent.bytes += len as u64,
            Some(_) => sent.add(len),
        }
        self.trace.note("send_short", len as u64);
        if unsettled {
            self.port.settle_send(to);
        }
        true
    }

    /// Sends a message eagerly if it is small enough, there is space and credit, and no message waits before
    /// it. Returns `false` if nothing was sent: the caller then uses [`Engine::isend`], which sends the
    /// message or returns the error.
    #[inline(always)]
    pub fn send_now(&mut self, to: PeerId, context: u16, tag: u64, bytes: &[u8]) -> bool {
        if !self.may_send_now(to, bytes.len()) {
            return false;
        }
        if let Some(unsettled) = self.port.send_copy(to, context, tag, bytes) {
            self.book_sent(to, bytes.len());
            self.trace.note("send_copy", bytes.len() as u64);
            if unsettled {
                self.port.settle_send(to);
            }
            return true;
        }
        let envelope = Envelope { kind: Kind::Eager, context, tag, total: bytes.len() as u64 };
        self.trace.enter("send_now", bytes.len() as u64);
        let sent = self.port.send(to, &envelope, PacketPieces::Whole(bytes));
        self.trace.leave(!matches!(sent, Ok(false)));
        self.sent_now(to, bytes.len(), sent)
    }

    /// Returns the most bytes of a message for [`Engine::inject`].
    pub const fn inject_bytes(&self) -> usize {
        self.eager_bytes
    }

    /// Sends a message as [`Engine::send_now`] does, also to this process itself. Returns `false` if there is no space
    /// or credit now, messages wait before it, or it is longer than [`Engine::inject_bytes`]. The buffer is free in any
    /// case.
    ///
    /// # Errors
    /// See [`StartError`]; nothing was sent.
    pub fn inject(&mut self, to: PeerId, context: u16, tag: u64, bytes: SendBuf) -> Result<bool, StartError> {
        self.reach(to)?;
        if to == self.rank {
            let is_first = self.peer(to).is_free() && bytes.len() <= self.eager_bytes;
            let message = SendMessage { context, tag, buf: bytes, synchronous: false, immediate: None };
            let sent = is_first && self.deliver_own(&message);
            self.unplaced = None;
            return Ok(sent);
        }
        let sent = bytes.whole(0, bytes.len()).is_some_and(|bytes| self.send_now(to, context, tag, bytes));
        if !sent {
            // The attempt may have found that the peer is gone.
            self.check_destination(to)?;
        }
        Ok(sent)
    }

    /// As [`Engine::send_now`], for a list of buffers.
    #[cold]
    fn send_list_now(&mut self, to: PeerId, context: u16, tag: u64, list: &SendBuf) -> bool {
        if !self.may_send_now(to, list.len()) {
            return false;
        }
        let envelope = Envelope { kind: Kind::Eager, context, tag, total: list.len() as u64 };
        let mut from = Gather::new(list.alias());
        let sent =
            self.port.send(to, &envelope, PacketPieces::List(BorrowedGather::new(&mut from), 0, list.len()));
        self.sent_now(to, list.len(), sent)
    }

    #[inline(always)]
    fn may_send_now(&mut self, to: PeerId, len: usize) -> bool {
        let free = self.peers.borrow().get(to as usize);
        free.is_some_and(|peer| peer.is_free())
            && (len <= self.eager_bytes || len <= self.port.eager_bytes(to))
            && self.has_credit(to, cost(len))
            && !self.asks_first(to, len)
    }

    /// Returns the most bytes of an eager message to this peer, with its prefix: those that the settings prefer, or
    /// those that the port to the peer prefers.
    #[inline(always)]
    pub(in crate::engine) fn most_eager(&self, to: PeerId) -> usize {
        self.eager_bytes.max(self.port.eager_bytes(to))
    }

    #[inline(always)]
    fn book_sent(&mut self, to: PeerId, len: usize) {
        let peer = self.peer(to);
        peer.allowance.spend(cost(len));
        peer.tally.sent[Kind::Eager.index()].bytes += len as u64;
        self.count_turn(to, len);
    }

    #[inline(always)]
    fn sent_now(&mut self, to: PeerId, len: usize, sent: Result<bool, PeerFault>) -> bool {
        match sent {
            Ok(sent) => {
                if sent {
                    self.book_sent(to, len);
                }
                sent
            }
            Err(fault) => {
                self.fault(fault);
                false
            }
        }
    }

    /// Starts a send. [`RequestId::SENT`] means that the send is complete and the caller may reuse the
    /// buffer.
    ///
    /// A small message is complete when its bytes have left the buffer, whether or not a receive is posted. A
    /// larger message, or one for which the receiver has no memory, is complete when a receive has taken it.
    ///
    /// # Errors
    /// See [`StartError`]; nothing was sent.
    #[inline(always)]
    pub fn isend(
        &mut self,
        to: PeerId,
        context: u16,
        tag: u64,
        buf: SendBuf,
    ) -> Result<RequestId, StartError> {
        if let Some(bytes) = buf.whole(0, buf.len())
            && self.send_short(to as usize, context, tag, bytes)
        {
            return Ok(RequestId::SENT);
        }
        self.isend_any(to, context, tag, buf)
    }

    /// As [`Engine::isend`], for a message that [`Engine::send_short`] refused, or a list.
    ///
    /// # Errors
    /// As [`Engine::isend`].
    #[inline(never)]
    pub fn isend_any(
        &mut self,
        to: PeerId,
        context: u16,
        tag: u64,
        buf: SendBuf,
    ) -> Result<RequestId, StartError> {
        self.reach(to)?;
        if to != self.rank {
            if self.gathers(to, buf.len()) {
                return self.start_later(to, context, tag, buf);
            }
            let sent = match buf.whole(0, buf.len()) {
                Some(bytes) => self.send_now(to, context, tag, bytes),
                None => self.send_list_now(to, context, tag, &buf),
            };
            if sent {
                return Ok(RequestId::SENT);
            }
        }
        self.isend_queued(to, context, tag, buf)
    }

    /// Returns whether a message of `len` bytes that is started now leaves together with others in the next progress
    /// step.
    #[inline]
    pub fn gathers(&self, to: PeerId, len: usize) -> bool {
        self.gathered < MOST_GATHERED && self.port.gathers(to, len)
    }

    /// Starts a send that leaves in the next progress step.
    fn start_later(
        &mut self,
        to: PeerId,
        context: u16,
        tag: u64,
        buf: SendBuf,
    ) -> Result<RequestId, StartError> {
        let message = SendMessage { context, tag, buf, synchronous: false, immediate: None };
        let index = self.start(State::Sending { to, message })?;
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::ForgetGathered) {
            return Ok(self.id(index));
        }
        self.enqueue(to, PeerQueue::Pending, index);
        self.gathered += 1;
        Ok(self.id(index))
    }

    /// As [`Engine::isend`], for a message that [`Engine::send_now`] refused. The message goes directly to
    /// the queue of pending sends, and leaves at once if there is space by now.
    ///
    /// # Errors
    /// As [`Engine::isend`].
    pub fn isend_queued(
        &mut self,
        to: PeerId,
        context: u16,
        tag: u64,
        buf: SendBuf,
    ) -> Result<RequestId, StartError> {
        self.start_send(to, SendMessage { context, tag, buf, synchronous: false, immediate: None })
    }

    /// Starts a synchronous send, which completes only when a receive has matched the message (MPI 4.1,
    /// section 3.4); see [`SendOptions::synchronous`].
    ///
    /// # Errors
    /// See [`StartError`]; nothing was sent.
    pub fn issend(
        &mut self,
        to: PeerId,
        context: u16,
        tag: u64,
        buf: SendBuf,
    ) -> Result<RequestId, StartError> {
        self.isend_with(to, context, tag, buf, SendOptions { immediate: None, synchronous: true })
    }

    pub(super) fn start_send(&mut self, to: PeerId, message: SendMessage) -> Result<RequestId, StartError> {
        self.reach(to)?;
        let len = message.buf.len();
        let index = self.start(State::Sending { to, message })?;
        let id = self.id(index);
        self.trace.enter("start_send", len as u64);
        self.enqueue(to, PeerQueue::Pending, index);
        self.work_for(to);
        self.trace.leave(true);
        if matches!(self.requests.get(index).0, State::Done(Ok(_))) {
            self.requests.remove(index);
            return Ok(RequestId::SENT);
        }
        Ok(id)
    }

    /// Sends a pending message, or announces it. Returns `false` if there is no space or no credit.
    pub(in crate::engine) fn send_pending(&mut self, to: PeerId, index: u32) -> Result<bool, PeerFault> {
        let State::Sending { message, .. } = &self.requests.get(index).0 else { return Ok(false) };
        let message = message.alias();
        if to == self.rank {
            return Ok(self.send_to_self(index, &message));
        }
        if let Some(len) = message.eager_len(self.most_eager(to))
            && !(message.is_plain() && self.asks_first(to, len))
        {
            if self.has_credit(to, cost(len)) {
                return self.send_whole(to, index, &message);
            }
            if cost(len) <= cost(0) {
                // An RTS does not need less space.
                self.peer(to).tally.hold();
                return Ok(false);
            }
        }
        let len = message.buf.len();
        let has_left = match self.may_leave_unasked(to, &message) {
            true => self.send_unasked(to, index, message)?,
            false => Pull::initiate(self, to, index)?,
        };
        if has_left {
            self.count_turn(to, len);
        }
        Ok(has_left)
    }

    /// Withdraws a send that waits in the queue of pending sends. Returns `false` if `id` is no such send.
    #[cold]
    pub(in crate::engine) fn cancel_send(&mut self, id: RequestId) -> bool {
        if !self.requests.is_live(id.index, id.generation) {
            return false;
        }
        let State::Sending { to, .. } = self.requests.get(id.index).0 else { return false };
        self.dequeue(to, PeerQueue::Pending, id.index);
        self.complete(id.index, Err(CompletionError::Cancelled));
        true
    }

    /// Sends a pending message eagerly. Returns `false` if there is no space.
    fn send_whole(&mut self, to: PeerId, index: u32, message: &SendMessage) -> Result<bool, PeerFault> {
        let sent = if message.is_plain() {
            let envelope = message.envelope(Kind::Eager);
            send_part(&mut self.port, to, &envelope, &mut Gather::new(message.buf.alias()), 0)?
        } else {
            self.send_prefixed(to, message, self.id(index))?
        };
        if sent {
            if message.is_plain() {
                self.sent_now(to, message.buf.len(), Ok(true));
                self.peer(to).tally.is_held = false;
            }
            self.dequeue(to, PeerQueue::Pending, index);
            match message.synchronous {
                true => self.await_acknowledgement(to, index, message),
                false => self.complete_send(to, index),
            }
        }
        Ok(sent)
    }

    /// Completes a send: the caller may reuse the buffer.
    pub(in crate::engine) fn complete_send(&mut self, to: PeerId, index: u32) {
        let (tag, len) = match &self.requests.get(index).0 {
            State::Sending { message, .. } | State::Offered { message, .. } => {
                (message.tag, message.buf.len())
            }
            State::Streaming { tag, from, .. } => (*tag, from.buf().len()),
            _ => return,
        };
        self.complete(index, Ok(Status { peer: to, tag, len, immediate: None }));
    }
}
