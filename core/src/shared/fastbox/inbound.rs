//! A short message between the moment at which it is taken and the moment at which it is read.
#![forbid(unsafe_code)]

use super::{FastboxSlot, payload};

/// A short message that was taken, and must be read before the next packet is looked at.
#[derive(Debug)]
pub struct InboundShort<'a> {
    pub(super) slot: &'a FastboxSlot,
    /// The tag.
    pub tag: u64,
    /// Payload bytes.
    pub len: usize,
}

impl InboundShort<'_> {
    /// Copies the message to the beginning of `to`.
    #[inline(always)]
    pub fn read(&self, to: &mut [u8]) {
        payload::load_short(self.slot, self.len).write(to);
    }
}
