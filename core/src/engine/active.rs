//! Active messages: a short header and a payload for a handler of the receiver. The handler runs when the
//! message arrives.
//!
//! Active messages are neither matched nor stored. Those between two processes are handled in the order sent,
//! relative to each other and to one-sided operations. They do not wait behind tagged messages that lack
//! credit, so active and tagged messages are not ordered relative to each other.
//!
//! A message that is larger than a packet, up to [`ACTIVE_BYTES`], travels in several packets. No other
//! active message or one-sided operation is sent between them. The receiver assembles the message in memory
//! that the handler layer supplies, and the handler receives it whole. The order therefore does not depend on
//! the size. A handler needs no descriptor that it keeps for later (as in UCX), and a peer can occupy memory
//! for one message only. For still larger data, use a tagged message or a put, which need one copy.
//!
//! A message that waits for space is a request with the state `Active`. It is in the same queue as one-sided operations
//! to the peer (`rma/queue.rs`).
//!
//! Packet format: the context is the handler number. Bits 0-31 of the tag hold the bytes of the header. Bits
//! 32-63 hold the bytes of the whole message if it takes several packets, else 0. The payload is the header
//! followed by the data, or the next part of both.
#![forbid(unsafe_code)]

#[cfg(test)]
pub(in crate::engine) mod tests;

use super::request::State;
pub use super::state::ACTIVE_BYTES;
use super::state::{Assembly, Outgoing};
use super::unload::read;
use super::{CompletionError, Engine, RequestId, StartError, Status, Storage};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::payload::SendBuf;
use crate::port::{Arrival, PacketPieces, PeerFault, PeerId, Port, PortFault};
use crate::trace::Recorder;
use crate::wire::{Envelope, Kind};

/// The description of an active message that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveMessage {
    /// Rank of the sender.
    pub from: PeerId,
    /// Number of the handler.
    pub handler: u16,
    /// Bytes of the header.
    pub header_bytes: usize,
    /// Bytes of header and payload together.
    pub len: usize,
}

/// Error: there is no memory for an active message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

/// The active-message interface of the layer above. [`Engine::progress`] and similar calls invoke it;
/// implementations cannot call the engine.
pub trait Handlers {
    /// Returns memory for a message, at least [`ActiveMessage::len`] bytes. `None` if no handler has that
    /// number: the engine then drops the message and counts it.
    ///
    /// For a message in several packets, the engine calls this function once per packet. Until that message
    /// is run or dropped, the function must return the same memory for its sender and must not give that
    /// memory to another sender.
    ///
    /// # Errors
    /// [`NoMemory`] if no memory is available. The engine then fails the connection to the sender, so that
    /// the message is not lost silently.
    fn room(&mut self, message: &ActiveMessage) -> Result<Option<&mut [u8]>, NoMemory>;

    /// Handles the message that the engine has copied into the memory from `room`: header, then payload. The
    /// sender's packet has been released.
    fn run(&mut self, message: &ActiveMessage);

    /// Discards the parts of an incomplete message in several packets, because its sender failed or its
    /// handler was removed.
    fn drop_parts(&mut self, from: PeerId) {
        let _ = from;
    }
}

/// Handles no message.
impl Handlers for () {
    fn room(&mut self, _: &ActiveMessage) -> Result<Option<&mut [u8]>, NoMemory> {
        Ok(None)
    }

    fn run(&mut self, _: &ActiveMessage) {}
}

/// The handlers of this process, and the messages for which there was none.
#[derive(Debug)]
pub(super) struct ActiveMessages<H> {
    handlers: H,
    unhandled: u64,
}

impl<H: Handlers> ActiveMessages<H> {
    pub(super) const fn new(handlers: H) -> Self {
        Self { handlers, unhandled: 0 }
    }

    /// Returns memory for a message, or the fault with which the connection to its sender fails.
    fn room(&mut self, message: &ActiveMessage) -> Result<Option<&mut [u8]>, PortFault> {
        self.handlers.room(message).map_err(|NoMemory| PortFault::Memory { len: message.len })
    }

    /// Runs the handler of a message of this process to itself.
    fn run_own(&mut self, from: PeerId, message: &Outgoing) -> Result<(), PortFault> {
        let Outgoing { handler, header, payload, .. } = message;
        let header_bytes = header.len();
        let active = ActiveMessage { from, handler: *handler, header_bytes, len: message.len() };
        match self.room(&active)?.and_then(|room| room.get_mut(..active.len)) {
            Some(room) => {
                let (front, back) = room.split_at_mut(header_bytes);
                front.copy_from_slice(header.part(0, header_bytes));
                back.copy_from_slice(payload.part(0, back.len()));
                self.handlers.run(&active);
            }
            None => self.unhandled += 1,
        }
        Ok(())
    }

    /// Runs the handler of a complete message, or counts the message as unhandled.
    fn run(&mut self, trace: &mut impl Recorder, message: &ActiveMessage, wanted: bool) {
        if wanted {
            trace.enter("handler", message.handler.into());
            self.handlers.run(message);
            trace.leave(true);
        } else {
            self.unhandled += 1;
        }
    }

    /// As [`Handlers::drop_parts`].
    pub(super) fn drop_parts(&mut self, from: PeerId) {
        self.handlers.drop_parts(from);
    }
}

impl<H> ActiveMessages<H> {
    pub(super) const fn unhandled(&self) -> u64 {
        self.unhandled
    }
}

impl<P: Port, S: Storage> Engine<P, S> {
    /// Returns the most bytes of header and payload together that one message may have.
    pub fn active_bytes(&self) -> usize {
        self.port.packet_bytes().max(ACTIVE_BYTES)
    }

    /// Starts an active message. [`RequestId::SENT`] means that the message was sent and the caller may reuse
    /// both buffers. The next [`Engine::progress`] handles a message to this process itself.
    ///
    /// # Errors
    /// See [`StartError`]; nothing was sent. [`StartError::TooLong`] if the message exceeds
    /// [`Engine::active_bytes`]; [`StartError::List`] if a buffer is a list.
    #[inline]
    pub fn send_active(
        &mut self,
        to: PeerId,
        handler: u16,
        header: SendBuf,
        payload: SendBuf,
    ) -> Result<RequestId, StartError> {
        self.reach(to)?;
        if header.is_list() || payload.is_list() {
            return Err(StartError::List);
        }
        let message = Outgoing { handler, header, payload, sent: 0 };
        let most = self.active_bytes();
        if message.len() > most {
            return Err(StartError::TooLong { len: message.len(), most });
        }
        // A message in several packets needs a request slot first: if none is free, no packet may have been
        // sent.
        let several = message.len() > self.port.packet_bytes();
        if to != self.rank && several {
            let index = self.start(State::Active(message))?;
            return Ok(self.leave_or_queue(to, index));
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

    /// Sends the next packet of a message. One packet may hold the whole message.
    #[inline]
    fn port_active(&mut self, to: PeerId, message: &Outgoing) -> Result<bool, PeerFault> {
        let most = self.port.packet_bytes();
        let several = if message.len() > most { message.len() as u64 } else { 0 };
        let [head, body] = message.part(most);
        let len = head.len() + body.len();
        let tag = message.header.len() as u64 | several << 32;
        let envelope = Envelope { kind: Kind::Active, context: message.handler, tag, total: len as u64 };
        let sent = self.port.send(to, &envelope, PacketPieces::Parts(head, body))?;
        if sent {
            self.peer(to).tally.sent(Kind::Active, len);
        }
        Ok(sent)
    }

    /// Sends a packet of a queued message. Returns `false` if the port has no space.
    pub(super) fn leave_active(
        &mut self,
        to: PeerId,
        index: u32,
        message: &Outgoing,
    ) -> Result<bool, PeerFault> {
        if to == self.rank {
            if let Err(fault) = self.handle_own(message) {
                self.left(to, index);
                self.complete(index, Err(CompletionError::PeerFailed { peer: to, failure: fault.into() }));
                return Ok(true);
            }
        } else if !self.port_active(to, message)? {
            return Ok(false);
        } else {
            let sent = message.sent.saturating_add(self.port.packet_bytes()).min(message.len());
            if sent < message.len() {
                self.requests.get_mut(index).0 = State::Active(Outgoing { sent, ..message.alias() });
                return Ok(true);
            }
        }
        self.left(to, index);
        self.complete(index, Ok(Status { peer: to, tag: 0, len: message.payload.len(), immediate: None }));
        Ok(true)
    }

    fn handle_own(&mut self, message: &Outgoing) -> Result<(), PortFault> {
        let rank = self.rank;
        let tally = &mut self.peer(rank).tally;
        tally.sent(Kind::Active, message.len());
        tally.received[Kind::Active.index()].add(message.len());
        self.active.run_own(rank, message)
    }

    /// Delivers an active message, or a part of one. The data is copied out first, so that the sender gets
    /// its packet memory back. A message is handled when it is complete.
    pub(super) fn deliver_active(&mut self, arrival: Arrival<P::Token>) -> Result<(), PortFault> {
        let Arrival { peer: from, envelope, len, .. } = arrival;
        let (header_bytes, several) = (envelope.tag as u32, (envelope.tag >> 32) as u32);
        let begun = self.peer(from).rma_state.assembly;
        if several > 0 || begun.is_some() {
            let delivered = self.deliver_part(&arrival, header_bytes, several);
            self.port.release(arrival);
            return delivered;
        }
        let header_bytes = header_bytes as usize;
        if header_bytes > len {
            self.port.release(arrival);
            return Err(PortFault::Protocol { kind: Kind::Active });
        }
        let message = ActiveMessage { from, handler: envelope.context, header_bytes, len };
        let mut room = self.active.room(&message).map(|room| room.and_then(|room| room.get_mut(..len)));
        let whole = match &mut room {
            Ok(Some(room)) => read(&self.port, &arrival, 0, room),
            _ => Ok(()),
        };
        let wanted = room.map(|room| room.is_some());
        self.port.release(arrival);
        whole?;
        self.active.run(&mut self.trace, &message, wanted?);
        Ok(())
    }

    /// Delivers one packet of a message in several packets. Its sizes are checked against those of the first
    /// packet.
    #[cold]
    fn deliver_part(
        &mut self,
        arrival: &Arrival<P::Token>,
        header_bytes: u32,
        several: u32,
    ) -> Result<(), PortFault> {
        let (from, handler, fault) =
            (arrival.peer, arrival.envelope.context, PortFault::Protocol { kind: Kind::Active });
        let first = Assembly::new(handler, header_bytes, several, self.port.packet_bytes()).ok_or(fault)?;
        let mut assembly = self.peer(from).rma_state.assembly.unwrap_or(first);
        let same =
            (assembly.handler, assembly.header_bytes, assembly.len) == (handler, header_bytes, several);
        let (at, len) = (assembly.at as usize, arrival.len);
        if !same || !(1..=several as usize - at).contains(&len) {
            return Err(fault);
        }
        let message =
            ActiveMessage { from, handler, header_bytes: header_bytes as usize, len: several as usize };
        if assembly.wanted {
            match self.active.room(&message)?.and_then(|room| room.get_mut(at..at + len)) {
                Some(room) => read(&self.port, arrival, 0, room)?,
                None => {
                    assembly.wanted = false;
                    self.active.drop_parts(from);
                }
            }
        }
        assembly.at += len as u32;
        let whole = assembly.at == assembly.len;
        #[cfg(nemesia_injected_fault)]
        let whole = whole || injected(InjectedFault::RunEarly);
        self.peer(from).rma_state.assembly = (!whole).then_some(assembly);
        if whole {
            self.active.run(&mut self.trace, &message, assembly.wanted);
        }
        Ok(())
    }

    /// Returns the handlers of active messages.
    pub const fn handlers_mut(&mut self) -> &mut S::Handlers {
        &mut self.active.handlers
    }

    /// Returns the number of active messages that were dropped because no handler has their number.
    pub const fn unhandled(&self) -> u64 {
        self.active.unhandled
    }
}
