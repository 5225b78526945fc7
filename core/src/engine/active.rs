//! Active messages: a short header and a payload for a handler of the receiver, which runs when the message comes.
//!
//! One packet each; nothing is matched and nothing is stored. Messages between two processes are handled in the order
//! sent, among themselves and with one-sided operations. They do not wait behind tagged messages that lack credit, so
//! between the two kinds there is no order.
//!
//! The packet: context is the handler, tag the bytes of the header; the payload is the header and then the rest.
#![forbid(unsafe_code)]

use super::request::State;
use super::{Engine, RequestId, StartError, Status, Storage};
use crate::payload::SendBuf;
use crate::port::{Arrival, MessagePort, PeerFault, PeerId, PortFault};
use crate::trace::Recorder as _;
use crate::wire::{Envelope, Kind};

/// An active message that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveMessage {
    /// Who sent it.
    pub from: PeerId,
    /// Which handler it is for.
    pub handler: u16,
    /// Bytes of the header.
    pub header_bytes: usize,
    /// Bytes of header and payload together.
    pub len: usize,
}

/// What the layer above does with active messages. Called from [`Engine::progress`] and its kin, which it can't call.
pub trait Handlers {
    /// Room for a message, [`ActiveMessage::len`] bytes at least; `None` when no handler has that number: the message is
    /// then dropped and counted.
    fn room(&mut self, message: &ActiveMessage) -> Option<&mut [u8]>;

    /// The message is in the room: header, then payload. The sender has its memory back.
    fn run(&mut self, message: &ActiveMessage);
}

/// Nobody handles anything.
impl Handlers for () {
    fn room(&mut self, _: &ActiveMessage) -> Option<&mut [u8]> {
        None
    }

    fn run(&mut self, _: &ActiveMessage) {}
}

/// A message on its way out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    pub(super) handler: u16,
    pub(super) header: SendBuf,
    pub(super) payload: SendBuf,
}

impl Outgoing {
    fn len(&self) -> usize {
        self.header.len() + self.payload.len()
    }
}

impl<P: MessagePort, S: Storage> Engine<P, S> {
    /// The most bytes of header and payload together.
    pub fn active_bytes(&self) -> usize {
        self.port.packet_bytes()
    }

    /// Starts an active message. [`RequestId::SENT`] means that it has left, and both buffers are the caller's again. One
    /// to ourselves is handled by the next [`Engine::progress`].
    ///
    /// # Errors
    /// See [`StartError`]; nothing was sent. [`StartError::TooLong`] beyond [`Engine::active_bytes`]; a list is
    /// [`StartError::List`].
    #[inline]
    pub fn send_active(
        &mut self,
        to: PeerId,
        handler: u16,
        header: SendBuf,
        payload: SendBuf,
    ) -> Result<RequestId, StartError> {
        self.check_destination(to)?;
        if header.is_list() || payload.is_list() {
            return Err(StartError::List);
        }
        let message = Outgoing { handler, header, payload };
        let most = self.active_bytes();
        if message.len() > most {
            return Err(StartError::TooLong { len: message.len(), most });
        }
        if to != self.rank && self.may_leave(to) {
            match self.port_active(to, &message) {
                Ok(true) => return Ok(RequestId::SENT),
                Ok(false) => {}
                Err(fault) => self.fault(fault),
            }
            self.check_destination(to)?;
        }
        self.wait_to_leave(to, State::Active(message))
    }

    #[inline]
    fn port_active(&mut self, to: PeerId, message: &Outgoing) -> Result<bool, PeerFault> {
        let Outgoing { handler, header, payload } = message;
        let envelope = Envelope {
            kind: Kind::Active,
            context: *handler,
            tag: header.len() as u64,
            total: message.len() as u64,
        };
        let (head, body) = (header.part(0, header.len()), payload.part(0, payload.len()));
        let sent = self.port.send_parts(to, &envelope, head, body)?;
        if sent {
            self.peer(to).tally.sent(Kind::Active, message.len());
        }
        Ok(sent)
    }

    /// Sends a message that waited. False when there is no room.
    pub(super) fn leave_active(
        &mut self,
        to: PeerId,
        index: u32,
        message: &Outgoing,
    ) -> Result<bool, PeerFault> {
        if to == self.rank {
            self.handle_own(message);
        } else if !self.port_active(to, message)? {
            return Ok(false);
        }
        self.left(to, index);
        self.complete(index, Ok(Status { peer: to, tag: 0, len: message.payload.len() }));
        Ok(true)
    }

    fn handle_own(&mut self, message: &Outgoing) {
        let Outgoing { handler, header, payload } = message;
        let rank = self.rank;
        let tally = &mut self.peer(rank).tally;
        tally.sent(Kind::Active, message.len());
        tally.received[Kind::Active.index()].add(message.len());
        let header_bytes = header.len();
        let active = ActiveMessage { from: self.rank, handler: *handler, header_bytes, len: message.len() };
        match self.handlers.room(&active).and_then(|room| room.get_mut(..active.len)) {
            Some(room) => {
                let (front, back) = room.split_at_mut(header_bytes);
                front.copy_from_slice(header.part(0, header_bytes));
                back.copy_from_slice(payload.part(0, back.len()));
                self.handlers.run(&active);
            }
            None => self.unhandled += 1,
        }
    }

    /// An active message has come: copied out, so that its sender has its memory back, and handled.
    pub(super) fn deliver_active(&mut self, arrival: Arrival<P::Token>) -> Result<(), PortFault> {
        let Arrival { peer: from, envelope, len, .. } = arrival;
        let header_bytes = usize::try_from(envelope.tag).ok().filter(|bytes| *bytes <= len);
        let Some(header_bytes) = header_bytes else {
            self.port.release(arrival);
            return Err(PortFault::Protocol { kind: Kind::Active });
        };
        let message = ActiveMessage { from, handler: envelope.context, header_bytes, len };
        let room = self.handlers.room(&message).and_then(|room| room.get_mut(..len));
        let wanted = room.is_some();
        if let Some(room) = room {
            self.port.read(&arrival, 0, room);
        }
        self.port.release(arrival);
        if wanted {
            self.trace.enter("handler", message.handler.into());
            self.handlers.run(&message);
            self.trace.leave(true);
        } else {
            self.unhandled += 1;
        }
        Ok(())
    }

    /// What handles active messages.
    pub const fn handlers_mut(&mut self) -> &mut S::Handlers {
        &mut self.handlers
    }

    /// Active messages that were dropped, as no handler had their number.
    pub const fn unhandled(&self) -> u64 {
        self.unhandled
    }
}
