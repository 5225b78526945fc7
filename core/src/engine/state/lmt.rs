//! The protocols for large messages.
#![forbid(unsafe_code)]

use crate::port::{Accessed, AccessedRanges, Exposure, Part, PeerId, Rendezvous};
use crate::wire::rendezvous::{Descriptor, MOST_PROTOCOLS, Rts};

/// Most bytes of a message that travel with its RTS. A synchronous message of at most this size travels whole
/// in its RTS.
pub(in crate::engine) const FIRST_BYTES: usize = 224;
/// Number of protocols to select from.
const PROTOCOLS: usize = MOST_PROTOCOLS as usize;

/// The protocol that moves the data of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) enum Protocol {
    /// The receiver reads the sender's memory, and the sender helps; see [`Pull`](crate::engine::lmt::Pull).
    #[default]
    Pull,
    /// As [`Self::Pull`], but the sender does not help.
    PullAlone,
    /// The sender writes the receiver's memory; see [`put`](crate::engine::lmt). Only on ports that can do that, where
    /// it takes the place of another option.
    Put,
    /// The data is streamed in packets; see [`Stream`](crate::engine::lmt::Stream).
    Stream,
}

impl Protocol {
    /// The options of the adaptive selector, in the order of their numbers, in which they are tried at first.
    pub(in crate::engine) const ALL: [Self; PROTOCOLS] = [Self::Stream, Self::Pull, Self::PullAlone];

    /// Returns the protocols that the options of the adaptive selector stand for. Where the sender can put, no sender
    /// helps.
    pub(in crate::engine) const fn offered(by: Rendezvous) -> [Self; PROTOCOLS] {
        match by {
            Rendezvous { get: true, put: true, .. } => [Self::Pull, Self::Put, Self::Stream],
            Rendezvous { get: false, put: true, .. } => [Self::Put, Self::Stream, Self::Put],
            Rendezvous { put: false, .. } => Self::ALL,
        }
    }

    pub(in crate::engine) fn of(protocol_number: u8) -> Self {
        Self::ALL.get(usize::from(protocol_number)).copied().unwrap_or_default()
    }

    pub(in crate::engine) fn number(self) -> u8 {
        Self::ALL.iter().position(|protocol| *protocol == self).unwrap_or(0) as u8
    }
}

/// The accesses to a peer's memory that move one message: gets of its receiver, or puts of its sender.
///
/// The bytes are accessed in order. An access may end later ([`RemoteAccess`](crate::port::RemoteAccess)).
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Accesses {
    /// End of the bytes that have been moved, or whose access has begun.
    pub(in crate::engine) begun: u64,
    /// Number of accesses under way.
    pub(in crate::engine) under_way: u32,
    /// Whether one has failed.
    pub(in crate::engine) failed: bool,
}

impl Accesses {
    /// Returns the state before the access to the bytes from `start` on.
    pub(in crate::engine) const fn from(start: u64) -> Self {
        Self { begun: start, under_way: 0, failed: false }
    }

    /// Records accesses that have begun with the byte `start`.
    pub(in crate::engine) const fn record(&mut self, start: u64, accessed: &AccessedRanges) {
        self.begun = start + accessed.begun;
        self.under_way += accessed.under_way;
        self.failed |= matches!(accessed.last, Accessed::Failed(_));
    }

    /// Records the end of an access that was under way.
    pub(in crate::engine) const fn end(&mut self, failed: bool) {
        self.under_way = self.under_way.saturating_sub(1);
        self.failed |= failed;
    }
}

/// The bytes of a streamed message that must still be sent.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct StreamState {
    /// The receiver's rank.
    pub(in crate::engine) to: PeerId,
    /// Identifier of the receiver's request.
    pub(in crate::engine) receiver: u64,
    pub(in crate::engine) next: u64,
    pub(in crate::engine) end: u64,
    /// The receiver's buffer, if this process can put the bytes there.
    pub(in crate::engine) descriptor: Descriptor,
    /// The puts.
    pub(in crate::engine) accesses: Accesses,
    /// Whether the receiver has been told that all bytes have arrived, or will be as soon as they have.
    pub(in crate::engine) is_reported: bool,
}

impl StreamState {
    /// Returns the state before the first of these bytes is sent to a rank, whose request is `receiver`.
    pub(in crate::engine) const fn new(
        (to, receiver): (PeerId, u64),
        Part { start, end }: Part,
        descriptor: Descriptor,
    ) -> Self {
        let accesses = Accesses::from(start);
        Self { to, receiver, next: start, end, descriptor, accesses, is_reported: false }
    }
}

/// A message whose bytes are being transferred to this process.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Incoming {
    pub(in crate::engine) from: PeerId,
    pub(in crate::engine) tag: u64,
    pub(in crate::engine) rts: Rts,
    /// The bytes that are still missing and that this process may assign.
    pub(in crate::engine) left: Part,
    pub(in crate::engine) phase: TransferPhase,
    /// End of the last sender-assisted copy: of the message, or of a run of a receive list; 0 if there was none.
    pub(in crate::engine) shared: u64,
    /// The gets.
    pub(in crate::engine) accesses: Accesses,
    /// The selected protocol.
    pub(in crate::engine) protocol: Protocol,
    /// The option of the adaptive selector, if it measures the transfer ([`crate::engine::lmt::ProtocolSelections`]).
    pub(in crate::engine) measured: Option<Protocol>,
    /// The exposure of the buffer to the sender, which may put the bytes there.
    pub(in crate::engine) exposure: Option<Exposure>,
}

impl Incoming {
    /// Returns the state of a message from a rank before a protocol was selected for the bytes that are missing.
    pub(in crate::engine) const fn new((from, tag): (PeerId, u64), rts: Rts, left: Part) -> Self {
        Self {
            from,
            tag,
            rts,
            left,
            phase: TransferPhase::Pull,
            shared: 0,
            accesses: Accesses::from(left.start),
            protocol: Protocol::Pull,
            measured: None,
            exposure: None,
        }
    }

    /// Returns the number of bytes that are still missing.
    pub(in crate::engine) const fn wanted(&self) -> u64 {
        self.left.end - self.left.start
    }
}

/// The transfer phase of an incoming message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum TransferPhase {
    /// The receiver reads the bytes.
    Pull,
    /// As `Pull`; all missing bytes have an access under way (`incoming`).
    Await,
    /// The receiver reads the bytes, and the sender may write some (sender-assisted copy).
    Assist,
    /// As `Assist`, but reading has failed; the sender may still write.
    Broken,
    /// Reading has failed; the receiver must request a stream.
    Lost,
    /// The receiver has requested a stream.
    Stream,
}

/// Where the parts of a message go that a peer sends unasked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum UnaskedPlace {
    /// To the receive in this slot.
    Request(u32),
    /// To the message with this number in the store.
    Stored(u32),
}

/// A message to a peer of which this process copies a part (sender-assisted copy).
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Assist {
    /// Identifier of this process's request, as the peer knows it.
    pub(in crate::engine) request: u64,
    /// Address of the first byte of the message in the peer's memory.
    pub(in crate::engine) address: u64,
}
