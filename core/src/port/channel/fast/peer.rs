//! What a channel keeps for each peer about the fast path.
#![forbid(unsafe_code)]

use super::OFFER_AFTER;
use crate::counters::Count;
use crate::wire::channel::{Header, RingNotice};
use crate::wire::ring::RingOffer;

/// The most small packets that a peer must send before its ring is opened again.
const MOST_PATIENCE: u32 = 256;
/// The number of packets in an open ring that make the opening worth while.
const WORTH: u32 = 64;

/// The state of the ring that a peer may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::port::channel) enum RingStage {
    /// The peer may not write. So it is as well without a ring.
    Stopped,
    /// The peer is to be told that it may write.
    Offering,
    /// The peer may write.
    Open,
    /// The peer is to be asked to stop.
    Asking,
    /// The peer was asked to stop, and has not answered.
    Stopping,
}

/// The ring of the peer, into which this process writes.
#[derive(Clone, Copy, Debug)]
struct OutRing {
    offer: RingOffer,
    /// Total packets written, and total slots that the peer has reported as free again.
    sent: u32,
    acked: u32,
    /// Whether the peer has asked this process to stop.
    is_stopped: bool,
    /// The header of the packet that was written last: that of the next one may be cached.
    last: Option<Header>,
}

/// The state of the fast path with a peer, in both directions.
#[derive(Clone, Copy, Debug)]
pub(in crate::port::channel) struct FastPeer {
    /// The place of the ring that the peer may write.
    place: Option<u32>,
    stage: RingStage,
    /// Total packets taken out of it, and the total last reported to the peer.
    taken: u32,
    reported: u32,
    /// Packets since it was opened.
    since: u32,
    /// Small packets that the peer has sent while it could not write, and how many are needed.
    small: u32,
    patience: u32,
    out: Option<OutRing>,
    /// Whether this process has to answer that it has stopped.
    answers: bool,
    /// Whether this process has sent its last packet.
    pub(in crate::port::channel) has_left: bool,
    pub(in crate::port::channel) sent: Count,
    pub(in crate::port::channel) received: Count,
    /// Written packets with a cached header.
    pub(in crate::port::channel) cached: u64,
    /// Packets that were sent because the ring was full.
    pub(in crate::port::channel) overflows: u64,
}

impl FastPeer {
    pub(in crate::port::channel) const fn new() -> Self {
        Self {
            place: None,
            stage: RingStage::Stopped,
            taken: 0,
            reported: 0,
            since: 0,
            small: 0,
            patience: OFFER_AFTER,
            out: None,
            answers: false,
            has_left: false,
            sent: Count { count: 0, bytes: 0 },
            received: Count { count: 0, bytes: 0 },
            cached: 0,
            overflows: 0,
        }
    }

    /// Forgets the rings of a process that has left. The counters are reset with those of the other packets.
    pub(in crate::port::channel) fn reset(&mut self) {
        let Self { sent, received, cached, overflows, .. } = *self;
        *self = Self { sent, received, cached, overflows, ..Self::new() };
    }

    /// Returns the place of the ring that the peer has got.
    pub(in crate::port::channel) const fn place(&self) -> Option<u32> {
        self.place
    }

    pub(in crate::port::channel) fn stage(&self) -> RingStage {
        self.stage
    }

    /// Returns whether this process may write into the ring of the peer.
    pub(in crate::port::channel) fn writes(&self) -> bool {
        self.out.is_some_and(|out| !out.is_stopped)
    }

    /// Counts a small packet of the peer. Returns whether the peer has sent enough for a ring.
    pub(super) fn wants_ring(&mut self) -> bool {
        if self.stage != RingStage::Stopped || self.has_left {
            return false;
        }
        self.small += 1;
        let is_enough = self.small >= self.patience;
        if is_enough {
            self.small = 0;
        }
        is_enough
    }

    pub(super) const fn assign(&mut self, place: u32) {
        self.place = Some(place);
    }

    pub(super) const fn offer(&mut self) {
        (self.stage, self.since) = (RingStage::Offering, 0);
    }

    /// Asks the peer to stop, if it may write.
    pub(super) const fn stop(&mut self) {
        self.stage = match self.stage {
            RingStage::Offering => RingStage::Stopped,
            RingStage::Open => RingStage::Asking,
            stage => stage,
        };
    }

    /// Returns what must be said to the peer about the rings.
    pub(in crate::port::channel) const fn due(&self) -> Option<RingNotice> {
        match self.stage {
            _ if self.has_left => None,
            _ if self.answers => Some(RingNotice::Stopped),
            RingStage::Offering => Some(RingNotice::Open),
            RingStage::Asking => Some(RingNotice::Stop),
            _ => None,
        }
    }

    /// Records that this was said.
    pub(super) const fn said(&mut self, notice: RingNotice) {
        match notice {
            RingNotice::Open => self.stage = RingStage::Open,
            RingNotice::Stop => self.stage = RingStage::Stopping,
            RingNotice::Stopped => self.answers = false,
        }
    }

    /// Records the ring that the peer has opened. Returns `false` if the peer must not open it.
    pub(super) fn opened(&mut self, offer: RingOffer) -> bool {
        match &mut self.out {
            None => {
                self.out = Some(OutRing { offer, sent: 0, acked: 0, is_stopped: false, last: None });
                true
            }
            Some(out) => {
                let may = out.is_stopped && !self.answers && out.offer == offer;
                out.is_stopped &= !may;
                may
            }
        }
    }

    /// Records that the peer asks this process to stop. Returns `false` if the peer must not ask now.
    pub(super) const fn asked_to_stop(&mut self) -> bool {
        match &mut self.out {
            Some(out) if !out.is_stopped => {
                (out.is_stopped, self.answers) = (true, true);
                true
            }
            _ => false,
        }
    }

    /// Records that the peer has stopped. Returns `false` if it was not asked.
    pub(super) fn stopped(&mut self) -> bool {
        if self.stage != RingStage::Stopping {
            return false;
        }
        self.patience =
            if self.since >= WORTH { OFFER_AFTER } else { (2 * self.patience).min(MOST_PATIENCE) };
        (self.stage, self.small) = (RingStage::Stopped, 0);
        true
    }

    /// Returns the ring of the peer, the number of the next packet there and the header of the one before, if a slot is
    /// free. Counts an overflow otherwise.
    pub(in crate::port::channel) fn next_slot(&mut self) -> Option<(RingOffer, u32, Option<Header>)> {
        let out = self.out.filter(|out| !out.is_stopped)?;
        if out.sent.wrapping_sub(out.acked) >= out.offer.shape.slots() {
            self.overflows += 1;
            return None;
        }
        Some((out.offer, out.sent, out.last))
    }

    /// Returns the packets in the ring of the peer, as far as this process knows.
    pub(in crate::port::channel) fn in_flight(&self) -> u32 {
        self.out.map_or(0, |out| out.sent.wrapping_sub(out.acked))
    }

    /// Records a written packet.
    pub(in crate::port::channel) fn wrote(&mut self, len: usize, header: Header, is_cached: bool) {
        self.sent.add(len);
        self.cached += u64::from(is_cached);
        if let Some(out) = &mut self.out {
            (out.sent, out.last) = (out.sent.wrapping_add(1), Some(header));
        }
    }

    /// Processes the peer's report of free slots, which may be older than the last one.
    ///
    /// # Errors
    /// More slots were freed than written.
    pub(in crate::port::channel) const fn heard(&mut self, slots: u32) -> Result<(), ()> {
        let Some(out) = &mut self.out else { return if slots == 0 { Ok(()) } else { Err(()) } };
        let more = slots.wrapping_sub(out.acked);
        if more > u32::MAX / 2 {
            return Ok(());
        }
        if more > out.sent.wrapping_sub(out.acked) {
            return Err(());
        }
        out.acked = slots;
        Ok(())
    }

    /// Records a packet that was taken out of the ring.
    pub(super) const fn took(&mut self, len: usize) {
        self.taken = self.taken.wrapping_add(1);
        self.since = self.since.saturating_add(1);
        self.received.add(len);
    }

    /// Returns the total of taken packets, for the next header.
    pub(in crate::port::channel) const fn taken(&self) -> u32 {
        self.taken
    }

    /// Records that the total was reported.
    pub(in crate::port::channel) const fn reported(&mut self, slots: u32) {
        self.reported = slots;
    }

    /// Returns whether half of the slots of a ring were not reported.
    pub(in crate::port::channel) const fn must_report(&self, slots: u32) -> bool {
        self.taken.wrapping_sub(self.reported) >= slots.div_ceil(2)
    }
}
