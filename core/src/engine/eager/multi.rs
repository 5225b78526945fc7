//! Multi-receive buffers: one posted buffer takes message after message, each behind the one before.
//!
//! A buffer stays in the queue of posted receives, at its place in the order, and each message that it takes has a
//! request of its own from then on, whose buffer is a part of the whole. The place is reserved when the message
//! matches: so a message that is announced (RTS) lies before one that matches later, although the latter may be
//! complete first. Every completion enters the completion queue; that of the buffer itself comes after those of its
//! messages.
//!
//! | a message that matches | goes to |
//! |---|---|
//! | is at most as long as the rest of the buffer | the buffer |
//! | is longer than the rest | the next receive; the buffer ends, so that buffers are filled in the order of posting |
//! | is longer than the whole buffer | the next receive; the buffer stays, as if it did not match |
//!
//! "The next receive" is the next posted receive that matches. If there is none, the message is stored as unexpected.
//! No message is truncated.
//!
//! A message for which no slot is free is promised its place and is stored, where no receive finds it any more. As soon
//! as there is a slot, [`Engine::feed`] moves it to its place. Completions that are taken free slots.
#![forbid(unsafe_code)]

use crate::engine::request::{Outcome, Request, State};
use crate::engine::state::{CompletionKind, CompletionMark, MultiBuffer, MultiFit};
use crate::engine::stored::needs_sender;
use crate::engine::{
    CompletionError, Engine, Failure, MultiReceiveOptions, RequestId, StartError, Status, Storage,
};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::matching::{Pattern, Source};
use crate::payload::RecvBuf;
use crate::port::{PeerId, Port};
use crate::store::AssignedMessage;
use crate::trace::Recorder as _;
use crate::wire::Envelope;

/// Marks of assigned messages whose sender is gone: it has finished; or any other failure.
const FINISHED: u32 = 1;
const FAILED: u32 = 2;

impl<P: Port, S: Storage> Engine<P, S> {
    /// Posts a buffer that receives one message after the other. Stored messages that match enter it at once, in the
    /// order of arrival. Each message makes an entry in the completion queue ([`CompletionKind::MultiReceive`]) with
    /// `context` and the message's offset. The last entry ([`CompletionKind::MultiReceiveEnd`]) has the number of bytes
    /// used: the buffer is free.
    ///
    /// [`Engine::cancel`] withdraws the buffer, which then ends with [`CompletionError::Cancelled`]; messages that have
    /// matched are received all the same. The engine takes the buffer out of `buf`, unless it returns an error.
    ///
    /// # Errors
    /// See [`StartError`]; nothing was posted. The buffer must be contiguous. A failed source is an error unless a
    /// message from it is stored.
    pub fn post_multi(
        &mut self,
        pattern: Pattern,
        buf: &mut RecvBuf,
        options: MultiReceiveOptions,
        context: u64,
    ) -> Result<RequestId, StartError> {
        if buf.is_list() {
            return Err(StartError::List);
        }
        self.check_source(pattern.source)?;
        let alive = self.reach_source(pattern.source);
        if alive.is_err() && self.store.find(&pattern).is_none() {
            alive?;
        }
        let number = self.posted.take_number();
        let capacity = self.requests.capacity();
        let posted = self.posted.push(&mut self.requests, &pattern);
        let (index, request) = posted.ok_or(StartError::Requests { capacity })?;
        let buffer = MultiBuffer::new(pattern, number, core::mem::replace(buf, RecvBuf::empty()), options);
        let is_open = buffer.is_open();
        *request = Request(
            State::Multi { buffer, end: None },
            CompletionMark::new(context, CompletionKind::MultiReceiveEnd),
        );
        self.requests.hide(index);
        self.trace.note("post_multi", index.into());
        let id = self.id(index);
        if !is_open {
            self.end_multi(index, None);
            return Ok(id);
        }
        if let Source::Rank(rank) = pattern.source {
            self.port.prioritize(rank);
        }
        self.offer_stored();
        if let Err(StartError::PeerFailed { peer, failure }) = alive {
            self.end_multi(index, Some((peer, failure)));
        }
        Ok(id)
    }

    /// Ends a multi-receive buffer that is posted: with the failure of a peer, or because it is used up.
    fn end_multi(&mut self, index: u32, failed: Option<(PeerId, Failure)>) {
        let State::Multi { buffer, end: None } = &self.requests.get(index).0 else { return };
        let (pattern, len) = (buffer.pattern, buffer.used);
        let outcome: Outcome = match failed {
            Some((peer, failure)) => Err(CompletionError::PeerFailed { peer, failure }),
            None => Ok(Status { peer: self.rank, tag: 0, len, immediate: None }),
        };
        self.posted.remove(&mut self.requests, index, &pattern);
        self.end_posted(index, outcome);
    }

    /// Finds the receiver of a message of `total` bytes, if the first receive that matches is a multi-receive buffer.
    /// The caller has just removed that buffer from the queue of posted receives. As
    /// [`Engine::take_posted`](Engine::take_posted) for the result. If there is no slot, the caller stores the message
    /// and then calls [`Engine::assign_stored`].
    #[cold]
    #[inline(never)]
    pub(super) fn take_multi(
        &mut self,
        first: u32,
        message: (PeerId, &Envelope),
        total: u64,
    ) -> Option<(u32, RecvBuf)> {
        let State::Multi { buffer, .. } = &self.requests.get(first).0 else { return None };
        let pattern = buffer.pattern;
        self.posted.restore(&mut self.requests, first, &pattern);
        loop {
            let found = self.posted.find(&self.requests, message, |request| request.takes(total))?;
            let index = found.index;
            match &mut self.requests.get_mut(index).0 {
                State::Multi { buffer, .. } if buffer.fit(total) == MultiFit::Fits => {
                    let taken =
                        if buffer.promises == 0 { self.take_place(index, total as usize) } else { None };
                    if taken.is_none() {
                        self.unplaced = Some((index, total as usize));
                    }
                    return taken;
                }
                State::Multi { .. } => self.end_multi(index, None),
                State::Posted { buf, .. } => {
                    let buf = core::mem::replace(buf, RecvBuf::empty());
                    self.posted.remove_found(&mut self.requests, found);
                    return Some((index, buf));
                }
                // Not reached: the queue has no others.
                _ => return None,
            }
        }
    }

    /// Makes the request of a message of `len` bytes, and takes its place in a multi-receive buffer. `None` if no slot
    /// is free.
    fn take_place(&mut self, whole: u32, len: usize) -> Option<(u32, RecvBuf)> {
        let (index, request) = self.requests.reserve()?;
        *request = Request(State::Free, CompletionMark::default());
        self.requests.hide(index);
        let State::Multi { buffer, .. } = &mut self.requests.get_mut(whole).0 else { return None };
        let (offset, place) = buffer.place(len);
        let is_open = buffer.is_open();
        let mark = CompletionMark::new(offset as u64, CompletionKind::MultiReceive);
        self.requests.get_mut(index).1 = CompletionMark { buffer: whole, ..mark };
        if !is_open {
            self.end_multi(whole, None);
        }
        Some((index, place))
    }

    /// Promises a place to the message just stored, if it matches a multi-receive buffer and has got no slot.
    #[inline(always)]
    pub(in crate::engine) fn assign_stored(&mut self, stored: Option<u32>) {
        if let Some(unplaced) = self.unplaced {
            self.unplaced = None;
            self.promise_place(stored, unplaced);
        }
    }

    #[cold]
    #[inline(never)]
    fn promise_place(&mut self, stored: Option<u32>, (index, len): (u32, usize)) {
        let (Some(stored), State::Multi { buffer, .. }) = (stored, &mut self.requests.get_mut(index).0)
        else {
            return;
        };
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::OvertakeStored) {
            return;
        }
        buffer.promise(len);
        let is_open = buffer.is_open();
        self.store.assign(stored, index);
        if !is_open {
            self.end_multi(index, None);
        }
    }

    /// Returns whether messages wait for slots, to enter the multi-receive buffer that they have matched. Then make
    /// place for more requests, or take completions, and call [`Engine::feed`].
    pub fn is_starved(&self) -> bool {
        self.store.first_assigned().is_some()
    }

    /// Moves messages that wait for slots to their places, in the order of arrival, as far as there are slots.
    #[cold]
    pub fn feed(&mut self) {
        while let Some(AssignedMessage { id, owner, mark }) = self.store.first_assigned() {
            let Status { peer, len, .. } = self.stored_status(id);
            let Some((index, place)) = self.take_place(owner, len) else { return };
            self.store.take_assigned();
            match mark {
                0 => self.receive_stored(index, id, place),
                _ => {
                    self.discard(id);
                    let failure = if mark == FINISHED { Failure::Finished } else { Failure::Died };
                    self.complete(index, Err(CompletionError::PeerFailed { peer, failure }));
                }
            }
        }
    }

    /// Fails messages that wait for slots and whose sender waits for an answer. The answer would reach the next process
    /// of the peer.
    pub(in crate::engine) fn lose_assigned(&mut self, peer: PeerId) {
        let mark = if self.failure(peer) == Some(Failure::Finished) { FINISHED } else { FAILED };
        self.store.mark_assigned(mark, |store, id, stored| {
            stored.source == peer && needs_sender(store, id, stored)
        });
    }

    /// Offers each stored message to the posted receives, in the order of arrival. A receive that has refused a message
    /// refuses it again, so this concerns only the receive that was posted last.
    fn offer_stored(&mut self) {
        let mut next = self.store.first();
        while let Some(id) = next {
            next = self.store.next(id);
            let stored = self.store.get(id);
            let total = self.stored_status(id).len as u64;
            let envelope = Envelope { kind: stored.kind, context: stored.context, tag: stored.tag, total };
            let before = self.store.len();
            if let Some((index, buf)) = self.take_posted(stored.source, &envelope, total) {
                self.receive_stored(index, id, buf);
                if self.store.len() + 1 != before {
                    // A peer has failed meanwhile, and messages of it are gone.
                    next = self.store.first();
                }
            }
            self.assign_stored(Some(id));
        }
    }
}
