//! Looking at messages that have come and that nobody has asked for, without receiving them, and taking one out of the queue
//! to receive it later (MPI 4.1, section 3.8).
#![forbid(unsafe_code)]

use super::request::State;
use super::{Engine, Fate, RequestId, StartError, Status, Storage};
use crate::matching::{Pattern, Source};
use crate::payload::RecvBuf;
use crate::port::{MessagePort, PeerId};
use crate::wire::rendezvous::{RTS_BYTES, Rts};
use crate::wire::{Envelope, Kind};

impl<P: MessagePort, S: Storage> Engine<P, S> {
    /// The first message that this would receive, if it has come: sender, tag, and its bytes in all.
    pub fn iprobe(&self, pattern: &Pattern) -> Option<Status> {
        self.store.find(pattern).map(|id| self.stored_status(id))
    }

    /// Whether a message from here that has not come still can.
    ///
    /// # Errors
    /// What posting a receive would meet with: there is no such rank, or it is gone.
    pub fn check_listening(&self, source: Source) -> Result<(), StartError> {
        self.check_source(source)?;
        self.check_alive(source)
    }

    /// As [`Engine::iprobe`], and takes the message out of the queue: only [`Engine::imrecv`] with this identifier receives it.
    ///
    /// # Errors
    /// Every request slot is in use; nothing was taken out.
    pub fn improbe(&mut self, pattern: &Pattern) -> Result<Option<(RequestId, Status)>, StartError> {
        let Some(stored) = self.store.find(pattern) else { return Ok(None) };
        let index = self.start(State::Probed(stored))?;
        self.store.claim(stored);
        Ok(Some((self.id(index), self.stored_status(stored))))
    }

    /// Receives a message that [`Engine::improbe`] took out. The identifier then is that of the receive, as if
    /// [`Engine::irecv`] had given it.
    ///
    /// # Errors
    /// [`Fate::Stale`]: the identifier is none of [`Engine::improbe`], or was used; the buffer stays the caller's.
    pub fn imrecv(&mut self, id: RequestId, buf: &mut RecvBuf) -> Result<(), Fate> {
        if !self.requests.is_live(id.index, id.generation) {
            return Err(Fate::Stale);
        }
        match self.requests.get(id.index).0 {
            State::Probed(stored) => {
                self.receive_stored(id.index, stored, core::mem::replace(buf, RecvBuf::empty()));
            }
            State::Lost(fate) => {
                *buf = RecvBuf::empty();
                self.complete(id.index, Err(fate));
            }
            _ => return Err(Fate::Stale),
        }
        Ok(())
    }

    /// Stored messages that a receive would look at before it has its own, or knows that there is none: for measurements.
    pub fn receive_steps(&self, pattern: &Pattern) -> usize {
        self.store.steps(pattern)
    }

    /// Posted receives that would be looked at for a message before it has its own, or is known to have none: for
    /// measurements.
    pub fn arrival_steps(&self, from: PeerId, context: u16, tag: u64) -> usize {
        let envelope = Envelope { kind: Kind::Eager, context, tag, total: 0 };
        self.posted.steps(&self.requests, from, &envelope)
    }

    fn stored_status(&self, id: u32) -> Status {
        let stored = self.store.get(id);
        let mut len = stored.len;
        if stored.kind == Kind::Rts {
            let mut head = [0; RTS_BYTES];
            self.store.read(id, 0, &mut head);
            // It was understood when it came.
            len = Rts::decode(&head, stored.len).map_or(0, |rts| rts.total as usize);
        }
        Status { peer: stored.source, tag: stored.tag, len }
    }
}
