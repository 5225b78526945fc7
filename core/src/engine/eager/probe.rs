//! Probes: they report unexpected messages without receiving them, and matched probes reserve one for a later
//! receive (MPI 4.1, section 3.8).
#![forbid(unsafe_code)]

use crate::engine::request::State;
use crate::engine::stored::stored_rts;
use crate::engine::{CompletionError, Engine, RequestId, StartError, Status, Storage};
use crate::matching::{Pattern, Source};
use crate::payload::RecvBuf;
use crate::port::{PeerId, Port};
use crate::wire::{Envelope, Kind};

impl<P: Port, S: Storage> Engine<P, S> {
    /// Returns sender, tag, total length and immediate data of the first stored message that `pattern` matches;
    /// `None` if there is none.
    pub fn iprobe(&self, pattern: &Pattern) -> Option<Status> {
        self.store.find(pattern).map(|id| self.stored_status(id))
    }

    /// Returns an error if no further message can arrive from `source`.
    ///
    /// # Errors
    /// The error that posting a receive would return: the rank does not exist, or it failed.
    pub fn check_listening(&mut self, source: Source) -> Result<(), StartError> {
        self.check_source(source)?;
        self.reach_source(source)
    }

    /// As [`Engine::iprobe`], and removes the message from the queue. Only [`Engine::imrecv`] with this
    /// identifier receives it.
    ///
    /// # Errors
    /// Every request slot is in use; the message stays in the queue.
    pub fn improbe(&mut self, pattern: &Pattern) -> Result<Option<(RequestId, Status)>, StartError> {
        let Some(stored) = self.store.find(pattern) else { return Ok(None) };
        let index = self.start(State::Probed(stored))?;
        self.store.claim(stored);
        Ok(Some((self.id(index), self.stored_status(stored))))
    }

    /// Receives a message that [`Engine::improbe`] removed from the queue. The identifier then names the
    /// receive, as if [`Engine::irecv`] had returned it.
    ///
    /// # Errors
    /// [`CompletionError::Stale`] if the identifier does not come from [`Engine::improbe`] or was already
    /// used; the caller keeps the buffer.
    pub fn imrecv(&mut self, id: RequestId, buf: &mut RecvBuf) -> Result<(), CompletionError> {
        if !self.requests.is_live(id.index, id.generation) {
            return Err(CompletionError::Stale);
        }
        match self.requests.get(id.index).0 {
            State::Probed(stored) => {
                self.receive_stored(id.index, stored, core::mem::replace(buf, RecvBuf::empty()));
            }
            State::Lost(completion_error) => {
                *buf = RecvBuf::empty();
                self.complete(id.index, Err(completion_error));
            }
            _ => return Err(CompletionError::Stale),
        }
        Ok(())
    }

    /// Returns the number of stored messages that a receive would inspect until it finds a match or finds
    /// that there is none. For measurements.
    pub fn receive_steps(&self, pattern: &Pattern) -> usize {
        self.store.steps(pattern)
    }

    /// Returns the number of posted receives that a message would be compared with until one matches or none
    /// does. For measurements.
    pub fn arrival_steps(&self, from: PeerId, context: u16, tag: u64) -> usize {
        let envelope = Envelope { kind: Kind::Eager, context, tag, total: 0 };
        self.posted.steps(&self.requests, from, &envelope)
    }

    pub(super) fn stored_status(&self, id: u32) -> Status {
        let stored = self.store.get(id);
        let (len, immediate) = match stored.kind {
            Kind::Rts => stored_rts(&self.store, id, &stored)
                .map_or((0, None), |rts| (rts.total as usize, rts.immediate)),
            Kind::Eager => (stored.len, None),
            kind => {
                let prefix = self.stored_prefix(id, kind);
                (stored.len - prefix.bytes(), prefix.immediate)
            }
        };
        Status { peer: stored.source, tag: stored.tag, len, immediate }
    }
}
