//! The completion queue. An operation that carries a number of the caller's enters the queue when it completes, and the
//! caller takes many completions at a time, instead of testing each request.
//!
//! The request's own slot is the entry of the queue. So the queue takes no memory and cannot overflow, and the
//! operations that are not in it pay nothing. The slot is hidden from [`Engine::test`] and its neighbours: they return
//! [`CompletionError::Stale`] for its identifier. [`Engine::cancel`] still accepts the identifier.
#![forbid(unsafe_code)]

use super::request::{CompletionError, Outcome, RequestId, StartError, State, Status, enter};
use super::state::{CompletionKind, CompletionMark};
use super::{Engine, Storage};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::matching::Pattern;
use crate::payload::RecvBuf;
use crate::port::Port;

/// One entry of the completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationCompletion {
    /// The number that the caller has given the operation.
    pub context: u64,
    /// The kind of the operation.
    pub kind: CompletionKind,
    /// The immediate data of a received message; `None` if it had none.
    pub immediate: Option<u64>,
    /// The place of a message in a multi-receive buffer.
    pub place: MultiPlace,
    /// The result: peer, tag and length, or the error. The error of a message that was longer than its buffer has both
    /// lengths ([`Truncation`](super::Truncation)).
    pub outcome: Outcome,
}

/// What a completion says about a multi-receive buffer, which is named by its own request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MultiPlace {
    /// The completion is that of another operation.
    #[default]
    None,
    /// A message begins at this offset of the buffer, in bytes.
    Message(RequestId, usize),
    /// The buffer is free.
    End(RequestId),
}

impl Default for OperationCompletion {
    /// A place for a completion: it holds no result ([`CompletionError::Stale`]).
    fn default() -> Self {
        let kind = CompletionKind::default();
        let outcome = Err(CompletionError::Stale);
        Self { context: 0, kind, immediate: None, place: MultiPlace::None, outcome }
    }
}

impl<P: Port, S: Storage> Engine<P, S> {
    /// Returns an error if no slot is free for an operation whose completion enters the queue. Call it before such an
    /// operation is started: one that is complete when it starts takes a slot for its entry ([`Engine::collect`]).
    ///
    /// # Errors
    /// [`StartError::Requests`].
    pub fn check_slot(&self) -> Result<(), StartError> {
        let capacity = self.requests.capacity();
        if self.requests.used() < capacity { Ok(()) } else { Err(StartError::Requests { capacity }) }
    }

    /// Puts an operation, which the caller has just started, into the completion queue as soon as it is complete.
    /// `done` is its status if it was complete when it started ([`RequestId::SENT`]). Returns the identifier by which
    /// [`Engine::cancel`] withdraws it.
    ///
    /// # Errors
    /// [`StartError::Requests`] if the operation was complete and there is no slot for its entry;
    /// [`Engine::check_slot`] prevents this.
    pub fn collect(
        &mut self,
        id: RequestId,
        (context, kind): (u64, CompletionKind),
        done: Status,
    ) -> Result<RequestId, StartError> {
        let index = match id == RequestId::SENT {
            true => self.start(State::Done(Ok(done)))?,
            false if self.requests.is_open(id.index, id.generation) => id.index,
            // Not of an operation just started: it stays as it is.
            false => return Ok(id),
        };
        let request = self.requests.get_mut(index);
        request.1 = CompletionMark::new(context, kind);
        let is_complete = matches!(request.0, State::Done(_));
        self.requests.hide(index);
        if is_complete {
            enter(&mut self.requests, &mut self.completions, index);
        }
        Ok(self.id(index))
    }

    /// Posts a receive whose completion enters the queue, if no message is stored and a slot is free: the critical
    /// path. `None` if nothing was posted: the caller takes the slow path. Otherwise as [`Engine::collect`].
    #[inline(always)]
    pub fn post_collected_now(
        &mut self,
        pattern: &Pattern,
        buf: &mut RecvBuf,
        context: u64,
    ) -> Option<RequestId> {
        let id = self.post_now(pattern, buf)?;
        self.requests.get_mut(id.index).1 = CompletionMark::new(context, CompletionKind::Receive);
        self.requests.hide(id.index);
        Some(id)
    }

    /// Moves completions out of the queue, the oldest first, into the first elements of `into`. Returns their number.
    /// The slots of their requests are then free.
    #[inline]
    pub fn take_completions<C: From<OperationCompletion>>(&mut self, into: &mut [C]) -> usize {
        let count = self.take_entries(into);
        if self.is_starved() {
            self.feed();
        }
        count
    }

    #[inline]
    fn take_entries<C: From<OperationCompletion>>(&mut self, into: &mut [C]) -> usize {
        let mut count = 0;
        let mut places = into.iter_mut();
        while !self.completions.is_empty()
            && let Some(place) = places.next()
        {
            let Some(index) = self.completions.take(&mut self.requests) else { break };
            let request = self.requests.get(index);
            let CompletionMark { context, kind, .. } = request.1;
            // The outcome is copied once, and late: it was written a short time ago, field by field.
            let outcome = match &request.0 {
                State::Done(outcome) => outcome,
                _ => &Err(CompletionError::Stale),
            };
            let immediate = match outcome {
                Ok(status) => status.immediate,
                Err(CompletionError::Truncated(truncation)) => truncation.status.immediate,
                Err(_) => None,
            };
            let (context, multi) = match kind {
                CompletionKind::MultiReceive | CompletionKind::MultiReceiveEnd => self.multi_place(index),
                _ => (context, MultiPlace::None),
            };
            let completion =
                || OperationCompletion { context, kind, immediate, place: multi, outcome: *outcome };
            *place = completion().into();
            #[cfg(nemesia_injected_fault)]
            if injected(InjectedFault::RepeatCompletion)
                && let Some(place) = places.next()
            {
                *place = completion().into();
                count += 1;
            }
            self.requests.remove(index);
            count += 1;
        }
        count
    }

    /// Returns the caller's number, and the place, of an entry that concerns a multi-receive buffer.
    #[cold]
    fn multi_place(&self, index: u32) -> (u64, MultiPlace) {
        let CompletionMark { context, kind, buffer } = self.requests.get(index).1;
        match kind {
            CompletionKind::MultiReceive => {
                let place = MultiPlace::Message(self.id(buffer), context as usize);
                (self.requests.get(buffer).1.context, place)
            }
            _ => (context, MultiPlace::End(self.id(index))),
        }
    }

    /// Returns whether no receive is posted.
    pub const fn awaits_no_message(&self) -> bool {
        self.posted.is_empty()
    }

    /// Returns whether a completion is in the queue.
    pub const fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Returns whether operations are to enter the queue, and none of them can complete before messages that are stored
    /// are received. It takes time for each slot of the requests' storage that was ever in use.
    #[cold]
    pub fn are_completions_held(&self) -> bool {
        let awaited = (0..self.requests.touched() as u32)
            .filter(|&index| self.requests.is_hidden(index))
            .map(|index| self.id(index));
        let mut count = 0;
        let all = awaited.inspect(|_| count += 1).all(|id| self.may_be_held(id) || self.is_own_send_held(id));
        all && count > 0
    }
}
