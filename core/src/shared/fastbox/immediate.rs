//! Short messages with immediate data.
#![forbid(unsafe_code)]

use super::payload;
use super::short::ShortMessage;
use super::{FastboxSender, KIND_AT};
use crate::sync::Edge;
use crate::wire::Kind;

impl FastboxSender<'_> {
    /// As [`FastboxSender::push_short`], for a message of at most 8 bytes with immediate data before it.
    #[inline(always)]
    pub fn push_immediate(
        &mut self,
        sequence: u64,
        context: u16,
        [tag, immediate]: [u64; 2],
        bytes: &[u8],
    ) -> bool {
        const OTHER_KIND: u64 = (Kind::Eager as u64 ^ Kind::EagerImmediate as u64) << KIND_AT;
        let message = ShortMessage::behind(immediate, bytes);
        let stamp = self.tail.eager_stamp(sequence, context) ^ OTHER_KIND | message.len as u64;
        let Some(slot) = self.tail.run.next() else { return false };
        payload::store_short(slot, tag, message);
        slot.stamp.store_release(stamp, Edge::FastboxPublish);
        true
    }
}
