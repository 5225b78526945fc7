//! Active messages: a short header and a payload for a handler of the receiver, which runs when the message comes.
//!
//! Nothing is matched and nothing is stored. Messages between two processes are handled in the order
//! sent, among themselves and with one-sided operations. They do not wait behind tagged messages that lack credit, so
//! between the two kinds there is no order.
//!
//! What is more than a packet, up to [`ACTIVE_BYTES`], goes in several, with nothing of the same kind between them, and is put
//! together in room of the handler's side: it is handled whole, as any other. So the order holds whatever the size, a
//! handler has no descriptor to keep and to come back to (as UCX has it), and what a peer can make us keep is one message.
//! What is larger still is better sent as a tagged message, or put, where one copy is enough.
//!
//! The packet: context is the handler; bits 0-31 of the tag the bytes of the header, bits 32-63 those of the whole message if it
//! takes several packets, else 0; the payload is the header and then the rest, or the next part of them.
#![forbid(unsafe_code)]

use super::request::State;
use super::{Engine, Fate, RequestId, StartError, Status, Storage};
#[cfg(nemesia_blunder)]
use crate::blunder::{Blunder, made};
use crate::payload::SendBuf;
use crate::port::{Arrival, MessagePort, PeerFault, PeerId, PortFault};
use crate::trace::Recorder as _;
use crate::wire::{Envelope, Kind};

/// The most bytes of header and payload together.
pub const ACTIVE_BYTES: usize = 1 << 20;

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

/// There is no memory for an active message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

/// What the layer above does with active messages. Called from [`Engine::progress`] and its kin, which it can't call.
pub trait Handlers {
    /// Room for a message, [`ActiveMessage::len`] bytes at least; `None` when no handler has that number: the message is
    /// then dropped and counted. Of a message that takes several packets this is asked for each of them: until it is run, or
    /// dropped, the room for one sender is the same, and no other's.
    ///
    /// # Errors
    /// [`NoMemory`] where there is no room to be had. A message is not lost unnoticed: its sender is then gone to us.
    fn room(&mut self, message: &ActiveMessage) -> Result<Option<&mut [u8]>, NoMemory>;

    /// The message is in the room: header, then payload. The sender has its memory back.
    fn run(&mut self, message: &ActiveMessage);

    /// What has come of a message in several packets is of no use: its sender is gone, or the handler is.
    fn drop_parts(&mut self, from: PeerId) {
        let _ = from;
    }
}

/// Nobody handles anything.
impl Handlers for () {
    fn room(&mut self, _: &ActiveMessage) -> Result<Option<&mut [u8]>, NoMemory> {
        Ok(None)
    }

    fn run(&mut self, _: &ActiveMessage) {}
}

/// A message on its way out.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) handler: u16,
    pub(super) header: SendBuf,
    pub(super) payload: SendBuf,
    /// Bytes of both that have left.
    pub(super) sent: usize,
}

impl Outgoing {
    /// As [`SendBuf::alias`], of both.
    pub(super) const fn alias(&self) -> Self {
        let Self { handler, sent, .. } = *self;
        Self { handler, header: self.header.alias(), payload: self.payload.alias(), sent }
    }

    fn len(&self) -> usize {
        self.header.len() + self.payload.len()
    }

    /// The next bytes, at most so many: what there is of them in the header, and then in the payload.
    fn part(&self, most: usize) -> [&[u8]; 2] {
        let head = self.header.part(self.sent, most);
        let at = self.sent.saturating_sub(self.header.len());
        [head, self.payload.part(at, most - head.len())]
    }
}

/// A message in several packets, of which so many bytes have come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Assembly {
    handler: u16,
    wanted: bool,
    header_bytes: u32,
    len: u32,
    at: u32,
}

impl Assembly {
    /// What the first packet of a message announces; `None` when no honest peer does.
    fn new(handler: u16, header_bytes: u32, len: u32, packet_bytes: usize) -> Option<Self> {
        let fits = (packet_bytes + 1..=ACTIVE_BYTES).contains(&(len as usize)) && header_bytes <= len;
        fits.then_some(Self { handler, wanted: true, header_bytes, len, at: 0 })
    }
}

impl<P: MessagePort, S: Storage> Engine<P, S> {
    /// The most bytes of header and payload together.
    pub fn active_bytes(&self) -> usize {
        self.port.packet_bytes().max(ACTIVE_BYTES)
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
        let message = Outgoing { handler, header, payload, sent: 0 };
        let most = self.active_bytes();
        if message.len() > most {
            return Err(StartError::TooLong { len: message.len(), most });
        }
        // What takes several packets needs its slot first: without one, nothing may have been sent.
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

    /// Sends the next packet of a message, which may be all of it.
    #[inline]
    fn port_active(&mut self, to: PeerId, message: &Outgoing) -> Result<bool, PeerFault> {
        let most = self.port.packet_bytes();
        let several = if message.len() > most { message.len() as u64 } else { 0 };
        let [head, body] = message.part(most);
        let len = head.len() + body.len();
        let tag = message.header.len() as u64 | several << 32;
        let envelope = Envelope { kind: Kind::Active, context: message.handler, tag, total: len as u64 };
        let sent = self.port.send_parts(to, &envelope, head, body)?;
        if sent {
            self.peer(to).tally.sent(Kind::Active, len);
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
            if let Err(fault) = self.handle_own(message) {
                self.left(to, index);
                self.complete(index, Err(Fate::PeerFailed { peer: to, failure: fault.into() }));
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
        self.complete(index, Ok(Status { peer: to, tag: 0, len: message.payload.len() }));
        Ok(true)
    }

    fn handle_own(&mut self, message: &Outgoing) -> Result<(), PortFault> {
        let Outgoing { handler, header, payload, .. } = message;
        let rank = self.rank;
        let tally = &mut self.peer(rank).tally;
        tally.sent(Kind::Active, message.len());
        tally.received[Kind::Active.index()].add(message.len());
        let header_bytes = header.len();
        let active = ActiveMessage { from: self.rank, handler: *handler, header_bytes, len: message.len() };
        match room_for(&mut self.handlers, &active)?.and_then(|room| room.get_mut(..active.len)) {
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

    /// An active message has come, or a part of one: copied out, so that its sender has its memory back, and handled when it is
    /// whole.
    pub(super) fn deliver_active(&mut self, arrival: Arrival<P::Token>) -> Result<(), PortFault> {
        let Arrival { peer: from, envelope, len, .. } = arrival;
        let (header_bytes, several) = (envelope.tag as u32, (envelope.tag >> 32) as u32);
        let begun = self.peer(from).side.assembly;
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
        let mut room =
            room_for(&mut self.handlers, &message).map(|room| room.and_then(|room| room.get_mut(..len)));
        if let Ok(Some(room)) = &mut room {
            self.port.read(&arrival, 0, room);
        }
        let wanted = room.map(|room| room.is_some());
        self.port.release(arrival);
        self.handle(&message, wanted?);
        Ok(())
    }

    /// A message is whole.
    fn handle(&mut self, message: &ActiveMessage, wanted: bool) {
        if wanted {
            self.trace.enter("handler", message.handler.into());
            self.handlers.run(message);
            self.trace.leave(true);
        } else {
            self.unhandled += 1;
        }
    }

    /// A packet of a message in several. What its sender says of the message is checked against what it said first.
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
        let mut assembly = self.peer(from).side.assembly.unwrap_or(first);
        let same =
            (assembly.handler, assembly.header_bytes, assembly.len) == (handler, header_bytes, several);
        let (at, len) = (assembly.at as usize, arrival.len);
        if !same || !(1..=several as usize - at).contains(&len) {
            return Err(fault);
        }
        let message =
            ActiveMessage { from, handler, header_bytes: header_bytes as usize, len: several as usize };
        if assembly.wanted {
            match room_for(&mut self.handlers, &message)?.and_then(|room| room.get_mut(at..at + len)) {
                Some(room) => self.port.read(arrival, 0, room),
                None => {
                    assembly.wanted = false;
                    self.handlers.drop_parts(from);
                }
            }
        }
        assembly.at += len as u32;
        let whole = assembly.at == assembly.len;
        #[cfg(nemesia_blunder)]
        let whole = whole || made(Blunder::RunEarly);
        self.peer(from).side.assembly = (!whole).then_some(assembly);
        if whole {
            self.handle(&message, assembly.wanted);
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

/// Room for a message, or why its sender is gone to us.
fn room_for<'a, H: Handlers>(
    handlers: &'a mut H,
    message: &ActiveMessage,
) -> Result<Option<&'a mut [u8]>, PortFault> {
    handlers.room(message).map_err(|NoMemory| PortFault::Memory { len: message.len })
}
