//! Sender-assisted copy: while the receiver gets a message from the front, its waiting sender copies parts of the same
//! message from the end. [`crate::shared::assist`] assigns the parts, so that no byte is written twice.
//!
//! The receiver opens the shared copy (`lmt/get.rs`), and may end it ([`Engine::end_assists`]). The sender looks for it
//! whenever it works for the peer. The state of the sender is [`Assist`]. A receive does not end while the sender may
//! be writing into its buffer, not even if the sender violates the protocol ([`Engine::keep_late`]).
#![forbid(unsafe_code)]

use crate::engine::peer::PeerQueue;
use crate::engine::request::{CompletionError, SendMessage, State};
use crate::engine::state::{Assist, TransferPhase};
use crate::engine::{Engine, Storage};
use crate::port::{NextChunk, PeerId, Port};

impl<P: Port, S: Storage> Engine<P, S> {
    /// Stops all sender-assisted copies before the engine is dropped and its buffers are returned. Returns
    /// `false` while a peer may still write into a buffer. The transfers are lost in either case.
    pub fn end_assists(&mut self) -> bool {
        // `filter` and `count` visit every peer, also after one that is not done.
        (0..self.size()).filter(|&peer| !self.end_assist(peer)).count() == 0
    }

    /// As [`Engine::end_assists`], for the copies of one peer.
    pub fn end_assist(&mut self, peer: PeerId) -> bool {
        if self.peer(peer).late.is_none() {
            let Some(index) = self.first(peer, PeerQueue::Pulling) else { return true };
            let State::Receiving { incoming, .. } = &self.requests.get(index).0 else { return true };
            if !matches!(incoming.phase, TransferPhase::Assist | TransferPhase::Broken) {
                return true;
            }
            self.port.close_assist(peer);
        }
        loop {
            match self.port.next_chunk(peer) {
                NextChunk::Copy(_) => {}
                NextChunk::Wait => return false,
                NextChunk::Done => return true,
            }
        }
    }

    /// Keeps the receive into whose buffer a peer that fails may be writing, until the peer has ended its part
    /// ([`Engine::end_late`]). The peer lives, so only then the buffer is its owner's again.
    pub(in crate::engine) fn keep_late(&mut self, peer: PeerId) {
        if !self.end_assist(peer)
            && let Some(index) = self.first(peer, PeerQueue::Pulling)
        {
            self.dequeue(peer, PeerQueue::Pulling, index);
            self.peer(peer).late = Some(index);
            self.port.keep_assist(peer);
            self.list_work(peer);
        }
    }

    /// Ends the receive that [`Engine::keep_late`] has kept, if there is one.
    #[cold]
    pub(in crate::engine) fn end_late(&mut self, peer: PeerId) {
        let late = self.peer(peer).late.take();
        if let (Some(index), Some(failure)) = (late, self.failure(peer)) {
            self.port.close(peer);
            self.complete(index, Err(CompletionError::PeerFailed { peer, failure }));
            self.report_ended(peer);
        }
    }

    /// Sender: copies the next part of a message for its receiver (sender-assisted copy). Returns `false` if
    /// there is no part.
    pub(in crate::engine) fn assist(&mut self, peer: PeerId) -> bool {
        let (assist, part) = match self.peer(peer).assist.take() {
            Some(assist) => (assist, self.port.next_part(peer)),
            None => {
                let Some(assisted_copy) = self.port.find_assist(peer) else { return false };
                let Some((_, message)) = self.offered(peer, assisted_copy.request) else { return false };
                if assisted_copy.end > message.buf.len() as u64 {
                    return false;
                }
                let assist = Assist { request: assisted_copy.request, address: assisted_copy.address };
                (assist, self.port.join_assist(peer, assisted_copy.end))
            }
        };
        let Some(part) = part else { return false };
        // The receiver may have sent FIN meanwhile. The buffer then belongs to the caller again.
        let message = self.offered(peer, assist.request).map(|(_, message)| message);
        let (start, len) = (part.start as usize, (part.end - part.start) as usize);
        let pushed = match (message, assist.address.checked_add(part.start)) {
            (Some(SendMessage { buf, .. }), Some(address)) if address.checked_add(len as u64).is_some() => {
                let mut pushed = 0;
                buf.each(start, len, |done, run| {
                    let is_next = pushed == done && self.port.push(peer, address + done as u64, run);
                    pushed += if is_next { run.len() } else { 0 };
                });
                pushed == len
            }
            _ => false,
        };
        self.port.end_part(peer, part, pushed);
        if pushed {
            self.peer(peer).tally.pushed.add(len);
        }
        self.peer(peer).assist = pushed.then_some(assist);
        pushed
    }
}
