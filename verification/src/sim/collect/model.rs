//! What a process that posts buffers for many messages must be told: two plain vectors, obviously correct, and slow.

use nemesia_verification::oracle::{Name, matches};

use crate::world::{CompletionError, Outgoing, Pattern, Status};

/// A message that has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelMessage {
    pub(crate) name: Name,
    pub(crate) is: Outgoing,
    /// Whether it has arrived whole, and its sender waits for no answer. Its receive is then complete at once.
    pub(crate) is_whole: bool,
}

/// A message that has its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelPlace {
    pub(crate) offset: usize,
    pub(crate) message: ModelMessage,
    is_reported: bool,
}

/// The size, the alignment and the minimum of a buffer for many messages, in bytes.
#[derive(Clone, Copy, Debug)]
struct ModelTerms {
    len: usize,
    align: usize,
    least: usize,
}

/// A receive, or a buffer for many messages.
#[derive(Debug)]
pub(crate) struct ModelReceive {
    pattern: Pattern,
    terms: Option<ModelTerms>,
    offset: usize,
    is_open: bool,
    is_withdrawn: bool,
    /// Its end was reported.
    pub(crate) is_over: bool,
    pub(crate) placed: Vec<ModelPlace>,
}

impl ModelReceive {
    pub(crate) fn plain(pattern: Pattern) -> Self {
        let placed = Vec::new();
        Self { pattern, terms: None, offset: 0, is_open: true, is_withdrawn: false, is_over: false, placed }
    }

    pub(crate) fn multi(pattern: Pattern, len: usize, align: usize, least: usize) -> Self {
        let terms = Some(ModelTerms { len, align, least });
        Self { terms, is_open: len >= least, ..Self::plain(pattern) }
    }

    /// Offers a message. Returns whether it is taken.
    fn offer(&mut self, message: ModelMessage) -> bool {
        let ModelMessage { name, is, .. } = message;
        if !self.is_open || !matches(&self.pattern, name.source, (is.context, is.tag)) {
            return false;
        }
        let place = ModelPlace { offset: self.offset, message, is_reported: false };
        let Some(ModelTerms { len, align, least }) = self.terms else {
            self.is_open = false;
            self.placed.push(place);
            return true;
        };
        if message.is.len > len - self.offset {
            self.is_open = message.is.len > len;
            return false;
        }
        self.placed.push(place);
        self.offset = (self.offset + message.is.len).next_multiple_of(align).min(len);
        self.is_open = len - self.offset >= least;
        true
    }

    /// Reports a message in a buffer for many.
    pub(crate) fn report(&mut self, offset: usize, status: &Status) -> Result<(), &'static str> {
        let is_it = |placed: &ModelPlace| {
            let ModelMessage { name, is, .. } = placed.message;
            !placed.is_reported
                && placed.offset == offset
                && *status == Status { peer: name.source, tag: is.tag, len: is.len, immediate: is.immediate }
        };
        let at = self.placed.iter().position(is_it).ok_or("no such message is to be reported")?;
        let is_whole = self.placed[at].message.is_whole;
        if is_whole && self.placed[..at].iter().any(|placed| placed.message.is_whole && !placed.is_reported) {
            return Err("a message that came before it was not reported");
        }
        self.placed[at].is_reported = true;
        Ok(())
    }

    /// Reports the end: the number of bytes used, or received.
    pub(crate) fn end(&mut self, outcome: Result<usize, CompletionError>) -> Result<(), &'static str> {
        if self.is_open || self.terms.is_some() && self.placed.iter().any(|placed| !placed.is_reported) {
            return Err("it ends too early");
        }
        let used = self.placed.last().map_or(0, |placed| placed.offset + placed.message.is.len);
        let right = if self.is_withdrawn { Err(CompletionError::Cancelled) } else { Ok(used) };
        self.is_over = true;
        if outcome == right { Ok(()) } else { Err("it has another result") }
    }
}

/// The receives and the unexpected messages of one process.
#[derive(Debug, Default)]
pub(crate) struct QueueModel {
    /// In the order of posting.
    pub(crate) receives: Vec<ModelReceive>,
    /// In the order of arrival.
    pub(crate) stored: Vec<ModelMessage>,
}

impl QueueModel {
    pub(crate) fn arrive(&mut self, message: ModelMessage) {
        let mut open = self.receives.iter_mut().filter(|receive| receive.is_open);
        if !open.any(|receive| receive.offer(message)) {
            self.stored.push(message);
        }
    }

    pub(crate) fn post(&mut self, receive: ModelReceive) {
        self.receives.push(receive);
        for message in std::mem::take(&mut self.stored) {
            self.arrive(message);
        }
    }

    /// Withdraws a receive. Returns false if it is too late.
    pub(crate) fn withdraw(&mut self, at: usize) -> bool {
        let receive = &mut self.receives[at];
        let withdrawn = std::mem::take(&mut receive.is_open);
        receive.is_withdrawn |= withdrawn;
        withdrawn
    }
}
