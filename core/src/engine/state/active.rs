//! The state of active messages.
#![forbid(unsafe_code)]

use crate::payload::SendBuf;

/// The most bytes of header and payload together.
pub const ACTIVE_BYTES: usize = 1 << 20;

/// An outgoing active message.
#[derive(Debug)]
pub(in crate::engine) struct Outgoing {
    pub(in crate::engine) handler: u16,
    pub(in crate::engine) header: SendBuf,
    pub(in crate::engine) payload: SendBuf,
    /// Bytes of header and payload that have been sent.
    pub(in crate::engine) sent: usize,
}

impl Outgoing {
    /// As [`SendBuf::alias`], of both.
    pub(in crate::engine) const fn alias(&self) -> Self {
        let Self { handler, sent, .. } = *self;
        Self { handler, header: self.header.alias(), payload: self.payload.alias(), sent }
    }

    pub(in crate::engine) fn len(&self) -> usize {
        self.header.len() + self.payload.len()
    }

    /// Returns the next bytes, at most `most`: the remaining part of the header, followed by a part of the
    /// payload.
    pub(in crate::engine) fn part(&self, most: usize) -> [&[u8]; 2] {
        let head = self.header.part(self.sent, most);
        let at = self.sent.saturating_sub(self.header.len());
        [head, self.payload.part(at, most - head.len())]
    }
}

/// The reassembly state of a message in several packets. `at` bytes have arrived.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Assembly {
    pub(in crate::engine) handler: u16,
    pub(in crate::engine) wanted: bool,
    pub(in crate::engine) header_bytes: u32,
    pub(in crate::engine) len: u32,
    pub(in crate::engine) at: u32,
}

impl Assembly {
    /// Returns the state that the first packet of a message announces. `None` if the announced sizes violate
    /// the protocol.
    pub(in crate::engine) fn new(
        handler: u16,
        header_bytes: u32,
        len: u32,
        packet_bytes: usize,
    ) -> Option<Self> {
        let fits = (packet_bytes + 1..=ACTIVE_BYTES).contains(&(len as usize)) && header_bytes <= len;
        fits.then_some(Self { handler, wanted: true, header_bytes, len, at: 0 })
    }
}
