//! The protocols for large messages.
#![forbid(unsafe_code)]

use crate::port::Stores;
use crate::wire::rendezvous::MOST_PROTOCOLS;

/// Most bytes of a message that travel with its RTS. A synchronous message of at most this size travels whole
/// in its RTS.
pub(in crate::engine) const FIRST_BYTES: usize = 224;
/// Number of protocols to select from.
const PROTOCOLS: usize = MOST_PROTOCOLS as usize;

/// The protocol that moves the data of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) enum Protocol {
    /// The receiver reads the sender's memory; see [`Pull`](crate::engine::lmt::Pull).
    #[default]
    Pull,
    /// The data is streamed through cells that the sender fills with these stores; see
    /// [`Stream`](crate::engine::lmt::Stream).
    Stream(Stores),
}

impl Protocol {
    /// The protocols, in the order of their numbers. The last is tried last, because it can be much slower
    /// than the others.
    pub(in crate::engine) const ALL: [Self; PROTOCOLS] =
        [Self::Pull, Self::Stream(Stores::NonTemporal), Self::Stream(Stores::Cached)];

    pub(in crate::engine) fn of(protocol_number: u8) -> Self {
        Self::ALL.get(usize::from(protocol_number)).copied().unwrap_or_default()
    }

    /// Returns the stores by which a streaming sender fills its cells.
    pub(in crate::engine) const fn stores(self) -> Option<Stores> {
        match self {
            Self::Pull => None,
            Self::Stream(stores) => Some(stores),
        }
    }

    pub(in crate::engine) fn number(self) -> u8 {
        Self::ALL.iter().position(|protocol| *protocol == self).unwrap_or(0) as u8
    }
}
