//! Multi-receive buffers: one posted buffer takes message after message, each behind the one before.
//!
//! A buffer stays in the queue of posted receives, at its place in the order, and each message that it takes has a
//! request of its own from then on, whose buffer is a part of the whole. The place is reserved when the message matches:
//! so a message that is announced (RTS) lies before one that matches later, although the latter may be complete first.
//! Every completion enters the completion queue; that of the buffer itself comes after those of its messages.
//!
//! | a message that matches | goes to |
//! |---|---|
//! | is at most as long as the rest of the buffer | the buffer |
//! | is longer than the rest | the next receive; the buffer ends, so that buffers are filled in the order of posting |
//! | is longer than the whole buffer | the next receive; the buffer stays, as if it did not match |
//!
//! "The next receive" is the next posted receive that matches. If there is none, the message is stored as unexpected. No
//! message is truncated.
//!
//! A message for which no slot is free is stored, and so is each later one that a buffer matches, until
//! [`Engine::feed`] has moved them to the buffers, in the order of arrival. Completions that are taken free slots.
#![forbid(unsafe_code)]

use crate::engine::request::{Outcome, Request, State};
use crate::engine::state::{CompletionKind, CompletionMark, MultiBuffer, MultiFit};
use crate::engine::{Engine, MultiReceiveOptions, RequestId, StartError, Status, Storage};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::matching::{Pattern, Source};
use crate::payload::RecvBuf;
use crate::port::{PeerId, Port};
use crate::trace::Recorder as _;
use crate::wire::Envelope;

impl<P: Port, S: Storage> Engine<P, S> {
    /// Posts a buffer that receives one message after the other. Stored messages that match enter it at once, in the
    /// order of arrival. Each message makes an entry in the completion queue
    /// ([`CompletionKind::MultiReceive`]) with `context` and the message's offset. The last entry
    /// ([`CompletionKind::MultiReceiveEnd`]) has the number of bytes used: the buffer is free.
    ///
    /// [`Engine::cancel`] withdraws the buffer, which then ends with
    /// [`CompletionError::Cancelled`](crate::engine::CompletionError::Cancelled); messages that have
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
        self.feed_if_starved();
        let alive = self.check_alive(pattern.source);
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
        self.feed();
        if let Err(StartError::PeerFailed { peer, failure }) = alive {
            self.end_multi(index, Some((peer, failure)));
        }
        Ok(id)
    }

    /// Ends a multi-receive buffer that is posted: with the failure of a peer, or because it is used up.
    fn end_multi(&mut self, index: u32, failed: Option<(PeerId, crate::engine::Failure)>) {
        let State::Multi { buffer, end: None } = &self.requests.get(index).0 else { return };
        let (pattern, len) = (buffer.pattern, buffer.used);
        let outcome: Outcome = match failed {
            Some((peer, failure)) => Err(crate::engine::CompletionError::PeerFailed { peer, failure }),
            None => Ok(Status { peer: self.rank, tag: 0, len, immediate: None }),
        };
        self.posted.remove(&mut self.requests, index, &pattern);
        self.end_posted(index, outcome);
    }

    /// Finds the receiver of a message of `total` bytes, if the first receive that matches is a multi-receive buffer.
    /// The caller has just removed that buffer from the queue of posted receives. As
    /// [`Engine::take_posted`](Engine::take_posted) for the result.
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
        #[cfg(nemesia_injected_fault)]
        let is_starved = self.is_starved && !injected(InjectedFault::OvertakeStored);
        #[cfg(not(nemesia_injected_fault))]
        let is_starved = self.is_starved;
        if is_starved {
            // Messages that came before wait in the store.
            return None;
        }
        loop {
            let index = self.posted.find(&self.requests, message, |request| request.takes(total))?;
            match &mut self.requests.get_mut(index).0 {
                State::Multi { buffer, .. } if buffer.fit(total) == MultiFit::Fits => {
                    return self.take_place(index, total as usize);
                }
                State::Multi { .. } => self.end_multi(index, None),
                State::Posted { pattern, buf, .. } => {
                    let (pattern, buf) = (*pattern, core::mem::replace(buf, RecvBuf::empty()));
                    self.posted.remove(&mut self.requests, index, &pattern);
                    return Some((index, buf));
                }
                // Not reached: the queue has no others.
                _ => return None,
            }
        }
    }

    /// Makes the request of a message of `len` bytes that fits into a multi-receive buffer, and reserves its place.
    fn take_place(&mut self, whole: u32, len: usize) -> Option<(u32, RecvBuf)> {
        let Some((index, request)) = self.requests.reserve() else {
            self.is_starved = true;
            return None;
        };
        *request = Request(State::Free, CompletionMark::default());
        let State::Multi { buffer, .. } = &mut self.requests.get_mut(whole).0 else { return None };
        let (offset, place) = buffer.place(len);
        let is_open = buffer.is_open();
        self.requests.get_mut(index).1 = CompletionMark {
            buffer: whole,
            ..CompletionMark::new(offset as u64, CompletionKind::MultiReceive)
        };
        self.requests.hide(index);
        if !is_open {
            self.end_multi(whole, None);
        }
        Some((index, place))
    }

    /// Returns whether stored messages wait for a free slot, to enter the multi-receive buffer that they match. Then
    /// make place for more requests, or take completions, and call [`Engine::feed`].
    pub const fn is_starved(&self) -> bool {
        self.is_starved
    }

    #[inline]
    pub(in crate::engine) fn feed_if_starved(&mut self) {
        if self.is_starved {
            self.feed();
        }
    }

    /// Moves stored messages to the receives that match them, in the order of arrival, as far as there are slots.
    #[cold]
    pub fn feed(&mut self) {
        self.is_starved = false;
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
            if self.is_starved {
                return;
            }
        }
    }
}
