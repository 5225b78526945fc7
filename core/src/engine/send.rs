//! Sending: at once when there is room, else through the peer's queue of pending sends.
//!
//! A message that does not fit into one packet, or finds no room, is kept as what remains of it and goes on
//! from [`Engine::progress`]; nothing to the same peer overtakes it (paper 4, section 3.1).
#![forbid(unsafe_code)]

use core::borrow::Borrow;

use super::request::State;
use super::{Engine, Failure, PACKETS_A_TURN, Progress, RequestId, StartError, Status, Storage};
use crate::payload::SendBuf;
use crate::port::{MessagePort, PeerFault, PeerId};
use crate::wire::{Envelope, Kind};

impl<P: MessagePort, S: Storage> Engine<P, S> {
    /// Sends a message that fits into one packet, if there is room and nothing waits before it: the critical path.
    /// False when [`Engine::isend`] has to do it, or to say why it can't be done.
    #[inline(always)]
    pub fn send_now(&mut self, to: PeerId, context: u16, tag: u64, bytes: &[u8]) -> bool {
        let free = self.peers.borrow().get(to as usize);
        let free = free.is_some_and(|peer| peer.pending.is_empty() && peer.departed.is_none());
        if !free || bytes.len() > self.port.packet_bytes() {
            return false;
        }
        let envelope = Envelope { kind: Kind::Eager, context, tag, total: bytes.len() as u64 };
        match self.port.send(to, &envelope, bytes) {
            Ok(sent) => sent,
            Err(fault) => {
                self.fault(fault);
                false
            }
        }
    }

    /// Starts a send. [`RequestId::SENT`] means that it is complete and the buffer is the caller's again.
    ///
    /// Eager: complete when the bytes have left the buffer, whether or not a receive is posted.
    ///
    /// # Errors
    /// See [`StartError`]; nothing was sent.
    #[inline]
    pub fn isend(
        &mut self,
        to: PeerId,
        context: u16,
        tag: u64,
        buf: SendBuf,
    ) -> Result<RequestId, StartError> {
        self.check_destination(to)?;
        let total = buf.len() as u64;
        let mut envelope = Envelope { kind: Kind::Eager, context, tag, total };
        if to == self.rank {
            return self.send_to_self(&envelope, buf);
        }
        if self.send_now(to, context, tag, buf.part(0, buf.len())) {
            return Ok(RequestId::SENT);
        }
        self.check_destination(to)?;
        if buf.len() > self.port.packet_bytes() {
            envelope.kind = Kind::First;
        }
        self.queue_send(to, envelope, buf)
    }

    fn queue_send(&mut self, to: PeerId, envelope: Envelope, buf: SendBuf) -> Result<RequestId, StartError> {
        let index = self.start(State::Sending { to, envelope, buf, sent: 0 })?;
        let id = self.id(index);
        // The list is a field of the peer: taken out, changed, put back.
        let mut pending = self.peer(to).pending;
        self.requests.push_back(&mut pending, index);
        let first = self.first_pending;
        let peer = self.peer(to);
        peer.pending = pending;
        if !peer.listed {
            peer.listed = true;
            peer.next_pending = first;
            self.first_pending = Some(to);
        }
        self.send_pending_to(to);
        Ok(id)
    }

    /// Sends what room there is for to every peer with pending sends.
    #[cold]
    pub(super) fn send_pending(&mut self) -> Progress {
        let mut sent = Progress::default();
        let mut at = self.first_pending.take();
        while let Some(to) = at {
            at = self.peer(to).next_pending.take();
            self.peer(to).listed = false;
            sent.packets += self.send_pending_to(to);
            let first = self.first_pending;
            let peer = self.peer(to);
            if !peer.pending.is_empty() && !peer.listed {
                peer.listed = true;
                peer.next_pending = first;
                self.first_pending = Some(to);
            }
        }
        sent
    }

    fn send_pending_to(&mut self, to: PeerId) -> usize {
        let mut sent = 0;
        // Bounded, as the receiver makes room while we send.
        while sent < PACKETS_A_TURN
            && let Some(index) = self.peer(to).pending.first()
        {
            match self.send_packet(index) {
                Ok(true) => sent += 1,
                Ok(false) => break,
                Err(fault) => self.fault(fault),
            }
        }
        sent
    }

    /// Sends the next packet of a pending send; completes it with the last. False when there is no room.
    fn send_packet(&mut self, index: u32) -> Result<bool, PeerFault> {
        let limit = self.port.packet_bytes();
        let State::Sending { to, mut envelope, buf, sent } = self.requests.get(index).0 else {
            return Ok(false);
        };
        if sent > 0 {
            envelope.kind = Kind::More;
        }
        let part = buf.part(sent, limit);
        if !self.port.send(to, &envelope, part)? {
            return Ok(false);
        }
        let now = sent + part.len();
        if now < buf.len() {
            if let State::Sending { sent, .. } = &mut self.requests.get_mut(index).0 {
                *sent = now;
            }
            return Ok(true);
        }
        let mut pending = self.peer(to).pending;
        self.requests.unlink(&mut pending, index);
        self.peer(to).pending = pending;
        self.complete(index, Ok(Status { peer: to, tag: envelope.tag, len: now }));
        Ok(true)
    }

    /// Ends every pending send to a peer that is gone.
    pub(super) fn fail_sends(&mut self, to: PeerId, failure: Failure) {
        let mut pending = core::mem::take(&mut self.peer(to).pending);
        while let Some(index) = pending.first() {
            self.requests.unlink(&mut pending, index);
            self.complete(index, Err(super::request::Fate::PeerFailed { peer: to, failure }));
        }
    }
}
