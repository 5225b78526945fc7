//! The critical path: whole small messages in one call each way.
#![forbid(unsafe_code)]

use super::{Arrival, PacketPort, PeerId};
use crate::payload::BorrowedRecv;
use crate::sync::spin_hint;
use crate::wire::Envelope;
use crate::wire::prefix::PrefixWords;

/// The most bytes of a short message, on any port: as many as a fastbox slot has beside its stamp and its tag.
pub const SHORT_BYTES: usize = 16;

/// The optional critical path of a port. By default there is none, and every message is a packet.
///
/// Each call either does the whole work or has no effect; the engine then takes the general path. A port
/// declines messages to and from peers that it does not reach.
pub trait ShortPath: PacketPort {
    /// Returns the largest message in bytes for which [`ShortPath::send_short`] may be called, at most [`SHORT_BYTES`].
    fn short_bytes(&self) -> usize {
        0
    }

    /// The critical path of [`PacketPort::send`]: sends a short message, if only the message must be written.
    /// Returns whether the caller must call [`ShortPath::settle_send`] next. `None` if nothing was sent: the
    /// caller uses [`PacketPort::send`].
    #[inline(always)]
    fn send_short(&mut self, peer: PeerId, context: u16, tag: u64, bytes: &[u8]) -> Option<bool> {
        let _ = (peer, context, tag, bytes);
        None
    }

    /// As [`ShortPath::send_short`], for a message with immediate data, which count as 8 of its bytes. The caller uses
    /// [`ShortPath::send_prefixed`] if nothing was sent.
    #[inline(always)]
    fn send_immediate(
        &mut self,
        peer: PeerId,
        context: u16,
        [tag, immediate]: [u64; 2],
        bytes: &[u8],
    ) -> Option<bool> {
        let _ = (peer, context, tag, immediate, bytes);
        None
    }

    /// As [`ShortPath::send_short`], for a whole message of any length that fits into a packet, if the
    /// message only needs to be copied.
    #[inline(always)]
    fn send_copy(&mut self, peer: PeerId, context: u16, tag: u64, bytes: &[u8]) -> Option<bool> {
        let _ = (peer, context, tag, bytes);
        None
    }

    /// As [`ShortPath::send_copy`], for a packet of another kind that begins with `words` and goes on with `body`:
    /// a message with a prefix, or a `Fin`. The envelope has the number of bytes of both. Returns whether the packet
    /// was sent; there is no rare work afterwards.
    #[inline(always)]
    fn send_prefixed(&mut self, peer: PeerId, envelope: &Envelope, words: PrefixWords, body: &[u8]) -> bool {
        let _ = (peer, envelope, words, body);
        false
    }

    /// Does the rare work after the calls that return whether it is necessary.
    fn settle_send(&mut self, peer: PeerId) {
        let _ = peer;
    }

    /// The critical path of receiving, in one step. If a poll would first find a whole small message, and
    /// `wanted` accepts it, copies the bytes that fit into `to`, releases the packet, and returns its sender
    /// and envelope. `None` if nothing was taken: the caller polls.
    #[inline(always)]
    fn take(
        &mut self,
        wanted: impl FnOnce(PeerId, &Envelope) -> bool,
        to: &mut BorrowedRecv<'_>,
    ) -> Option<(PeerId, Envelope)> {
        let _ = (wanted, to);
        None
    }

    /// As [`ShortPath::take`], for a packet that begins with words ([`PrefixWords`]). `wanted` gets these as well.
    /// The bytes after them are copied into `to`; a packet of which not all fit is not taken.
    #[inline(always)]
    fn take_prefixed(
        &mut self,
        wanted: impl FnOnce(PeerId, &Envelope, PrefixWords) -> bool,
        to: &mut BorrowedRecv<'_>,
    ) -> Option<(PeerId, Envelope, PrefixWords)> {
        let _ = (wanted, to);
        None
    }

    /// As [`ShortPath::take`], for a short message in this context that fits into `to`, from this rank, which
    /// need not exist; without a rank, from the peer that a poll checks first. Returns the sender, the tag, the
    /// length, and whether the caller must call [`ShortPath::settle_take`] next.
    #[inline(always)]
    fn take_short(
        &mut self,
        from: Option<usize>,
        context: u16,
        wanted: impl FnOnce(u64) -> bool,
        to: &mut [u8],
    ) -> Option<(PeerId, u64, usize, bool)> {
        let _ = (from, context, wanted, to);
        None
    }

    /// As [`ShortPath::take`], for a whole message that need not be short, with immediate data or without, whose
    /// buffer is found only now: `place` returns the memory for it. A message of which not all bytes fit is not taken.
    /// Returns the sender, the envelope of the packet, and the immediate data.
    #[inline(always)]
    fn take_into<'b>(
        &mut self,
        place: impl FnOnce(PeerId, &Envelope) -> Option<&'b mut [u8]>,
    ) -> Option<(PeerId, Envelope, Option<u64>)> {
        let _ = place;
        None
    }

    /// Does the rare work after [`ShortPath::take_short`].
    fn settle_take(&mut self, peer: PeerId) {
        let _ = peer;
    }

    /// Returns whether [`PacketPort::poll`] may find a packet where [`ShortPath::take`] looks. It is `true` whenever
    /// `take` may find something. The cost is the same as that of `take`.
    fn has_next(&self) -> bool {
        false
    }

    /// Returns whether packets are expected where [`ShortPath::has_next`] looks. If not, a waiting caller makes whole
    /// polls only.
    fn expects_next(&self) -> bool {
        false
    }

    /// Returns whether a poll would find nothing where most packets arrive, and has no other work. A caller that polls
    /// without a pause may then leave out most polls, but not all: packets may wait elsewhere.
    fn is_quiet(&mut self) -> bool {
        false
    }

    /// Pauses between two polls that found nothing: the core idles for some ten nanoseconds, or does work of
    /// about that length that speeds up later calls.
    fn pause(&mut self) {
        spin_hint();
    }

    /// Prioritizes polling for packets of this peer, after a receive was posted (paper 4, section 3.1).
    fn prioritize(&mut self, peer: PeerId) {
        let _ = peer;
    }

    /// As [`PacketPort::read`], with non-temporal stores where possible: the message is too large for the
    /// caches.
    #[must_use]
    fn read_non_temporal(&self, arrival: &Arrival<Self::Token>, at: usize, to: &mut [u8]) -> bool {
        self.read(arrival, at, to)
    }
}
