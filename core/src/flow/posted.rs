//! Credits that are posted receives: the packets that a [channel](crate::port::channel) may send over a
//! connection.
//!
//! On an RDMA fabric a message needs a receive that its target has posted before. A message without one
//! waits, or ends its connection. A *credit* is therefore a posted receive of the peer, and belongs to one
//! connection. Every packet takes one credit, including a packet that only reports credits.
//!
//! - **Return.** A receive that was used and posted again is a new credit. Every packet carries the total of
//!   receives ever posted, which wraps around; this *piggyback* is the usual way of return. If half of an
//!   end's receives are unreported and it has nothing to send, it sends an *update*, a packet without
//!   content.
//! - **Reserve.** Ordinary packets leave one credit, and only an update that returns two or more may take it.
//!   Suppose that an end has no usable credit: then all but one of the other end's receives are unreported
//!   there, so an update is due. The other end has its reserve for this update, or gets credits from an
//!   update that crosses it. An update returns at least two credits and takes one, so a sequence of mutual
//!   updates ends. Hence every connection has at least [`LEAST`] receives.
//! - **Growth.** If a peer has used all but the reserve, the receiver posts more receives, from a
//!   [pool](super::shares::SharedPool) that all connections of the process share (paper 2, section 2.3.2,
//!   requires dynamic credits, not a static number per connection).
//! - **Shares.** No connection gets the whole pool. A connection grows only while it has fewer additional
//!   receives than remain for the others (the dynamic threshold of [`shares`](super::shares)). The initial
//!   receives of connections that do not exist yet are kept, up to half of the buffers. If the pool is empty,
//!   a connection with more than twice as many receives as a receive-starved one must return some, even if it
//!   is busy.
//! - **Shrinkage.** Each packet also carries the number of receives that its sender *wants to keep*. A peer
//!   with more credits than that returns them by packets without content. In this way the receives of an idle
//!   connection, which no fabric can withdraw, return to the pool when others need them. Those of a busy
//!   connection are simply not posted again.
//!
//! `verification` explores every interleaving of two small ends: `cargo sim` runs this first.
#![forbid(unsafe_code)]

pub use crate::wire::channel::Stamp;

/// Fewest receives of a connection: one for the reserve, and two for an update to return.
pub const LEAST: u32 = 3;
/// Most receives of a connection.
pub const MOST: u32 = 1 << 15;
/// Start value of all totals. It is close to the maximum, so that every long-lived connection wraps around.
pub const FIRST: u32 = u32::MAX - 6;

/// Error: a peer's report of its receives is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer reports {posted} receives, {target} to be kept, which is impossible")]
pub struct StampFault {
    /// The reported total.
    pub posted: u32,
    /// The reported number to be kept.
    pub target: u32,
}

/// Error: a peer sent a packet without credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer sent a packet without credit for a receive")]
pub struct Overdrawn;

/// The further use of the buffer of a processed packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// The caller posts it again, then calls [`Credits::posted`].
    Post,
    /// The caller returns it to the pool; the connection has one buffer fewer.
    Retire,
}

/// One end of a connection, both directions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Credits {
    /// Total packets sent, and total receives that the peer has reported.
    sent: u32,
    limit: u32,
    /// Receives that the peer wants to keep.
    kept: u32,
    /// Total receives posted, total reported to the peer, and total packets that arrived.
    posted: u32,
    reported: u32,
    arrived: u32,
    /// Number of receives to be kept, and the number last reported to the peer.
    target: u32,
    reported_target: u32,
    /// Buffers that are posted or hold an unprocessed packet.
    size: u32,
}

impl Credits {
    /// Returns an end that starts with `receives` posted: at least [`LEAST`], or none if the connection
    /// never becomes ready. The peer learns this number with the connection.
    pub const fn new(receives: u32) -> Self {
        let posted = FIRST.wrapping_add(receives);
        Self {
            sent: FIRST,
            limit: FIRST,
            kept: MOST,
            posted,
            reported: posted,
            arrived: FIRST,
            target: receives,
            reported_target: receives,
            size: receives,
        }
    }

    /// Records the peer's initial number of receives. Packets of the peer may have arrived before.
    ///
    /// # Errors
    /// The number is less than [`LEAST`] or more than [`MOST`].
    pub const fn open(&mut self, receives: u32) -> Result<(), StampFault> {
        let posted = FIRST.wrapping_add(receives);
        if receives < LEAST || receives > MOST {
            return Err(StampFault { posted, target: receives });
        }
        let more = posted.wrapping_sub(self.limit);
        if more <= MOST {
            self.limit = posted;
        }
        Ok(())
    }

    /// Returns the number of packets for which the peer has receives.
    pub const fn left(&self) -> u32 {
        self.limit.wrapping_sub(self.sent)
    }

    /// Returns whether a packet may be sent. The reserve is only for updates.
    #[inline]
    pub fn can_send(&self) -> bool {
        #[cfg(nemesia_injected_fault)]
        if crate::injected_fault::injected(crate::injected_fault::InjectedFault::SpendReserve) {
            return self.left() > 0;
        }
        self.left() > 1
    }

    /// Returns the number of receives that were not reported to the peer.
    pub const fn unreturned(&self) -> u32 {
        self.posted.wrapping_sub(self.reported)
    }

    /// Returns whether an update is due and may be sent.
    #[inline]
    pub fn can_update(&self) -> bool {
        let half = self.size.div_ceil(2);
        self.left() > 0 && self.unreturned() >= if half < 2 { 2 } else { half }
    }

    /// Returns whether the peer must learn that fewer receives are kept.
    pub const fn is_recalling(&self) -> bool {
        self.target < self.reported_target
    }

    /// Returns whether this end has more credits than the peer wants to keep: it must return one.
    pub const fn has_surplus(&self) -> bool {
        self.left() > self.kept
    }

    /// Returns the report for the next packet.
    pub const fn stamp(&self) -> Stamp {
        Stamp { posted: self.posted, target: self.target }
    }

    /// Records that a packet with that report was sent.
    #[inline]
    pub const fn sent(&mut self) {
        debug_assert!(self.left() > 0);
        self.sent = self.sent.wrapping_add(1);
        self.reported = self.posted;
        self.reported_target = self.target;
    }

    /// Records that the report went with a packet that takes no receive. The number of receives to be kept is not
    /// reported by it.
    #[inline]
    pub const fn reported_beside(&mut self) {
        self.reported = self.posted;
    }

    /// Records that a message without a report was sent.
    pub const fn sent_unreported(&mut self) {
        debug_assert!(self.left() > 0);
        self.sent = self.sent.wrapping_add(1);
    }

    /// Charges an arrived packet, before any other processing.
    ///
    /// # Errors
    /// The peer had no credit.
    #[inline]
    pub const fn arrive(&mut self) -> Result<(), Overdrawn> {
        if self.arrived == self.reported {
            return Err(Overdrawn);
        }
        self.arrived = self.arrived.wrapping_add(1);
        Ok(())
    }

    /// Processes the report of a packet, in the order of its connection. Returns `true` if the credits have
    /// grown.
    ///
    /// # Errors
    /// The report is invalid; nothing was changed.
    #[inline]
    pub fn hear(&mut self, stamp: Stamp) -> Result<bool, StampFault> {
        let Stamp { posted, target } = stamp;
        let more = posted.wrapping_sub(self.limit);
        if more > MOST || self.left() + more > MOST || !(LEAST..=MOST).contains(&target) {
            return Err(StampFault { posted, target });
        }
        self.limit = posted;
        self.kept = target;
        #[cfg(nemesia_injected_fault)]
        if crate::injected_fault::injected(crate::injected_fault::InjectedFault::CountCreditTwice) {
            self.limit = posted.wrapping_add(more);
        }
        Ok(more > 0)
    }

    /// Processes the report of a packet that took no receive, which may be older than the last report.
    ///
    /// # Errors
    /// As [`Credits::hear`].
    #[inline]
    pub fn hear_beside(&mut self, stamp: Stamp) -> Result<bool, StampFault> {
        if stamp.posted == self.limit { Ok(false) } else { self.hear_late(stamp) }
    }

    /// As [`Credits::hear`], where packets that took no receive may have brought later reports before.
    ///
    /// # Errors
    /// As [`Credits::hear`].
    #[inline]
    pub fn hear_late(&mut self, stamp: Stamp) -> Result<bool, StampFault> {
        let is_old = stamp.posted.wrapping_sub(self.limit) > u32::MAX / 2;
        if is_old { Ok(false) } else { self.hear(stamp) }
    }

    /// Returns the further use of the buffer of a processed packet.
    #[inline]
    pub const fn release(&mut self) -> Next {
        if self.size > self.target {
            self.size -= 1;
            return Next::Retire;
        }
        Next::Post
    }

    /// Records that a released buffer was posted again.
    #[inline]
    pub const fn posted(&mut self) {
        self.posted = self.posted.wrapping_add(1);
    }

    /// Records that a buffer has left the connection without being retired: it could not be posted, or the
    /// connection has ended.
    pub const fn lost(&mut self) {
        self.size = self.size.saturating_sub(1);
    }

    /// Returns the number of buffers beyond the minimum.
    pub const fn extra(&self) -> u32 {
        self.size.saturating_sub(LEAST)
    }

    /// Returns whether the peer had used all but the reserve when its last packet arrived.
    #[inline]
    pub const fn is_dry(&self) -> bool {
        self.reported.wrapping_sub(self.arrived) <= 1
    }

    /// Returns the number of receives to post for a receive-starved peer: as many again, but at most `most`
    /// in all.
    pub const fn wanted(&self, most: u32) -> u32 {
        let room = most.saturating_sub(self.size);
        if self.size < room { self.size } else { room }
    }

    /// Cancels a shrinkage: the receives that were to be returned are kept.
    pub const fn keep(&mut self) {
        if self.target < self.size {
            self.target = self.size;
        }
    }

    /// Records that an additional buffer from the pool was posted.
    pub const fn grown(&mut self) {
        self.size += 1;
        if self.target < self.size {
            self.target = self.size;
        }
        self.posted();
    }

    /// Halves the number of receives to be kept. Returns `false` if the connection has only the minimum, or
    /// keeps as few already.
    pub const fn shrink(&mut self) -> bool {
        let half = if self.size / 2 > LEAST { self.size / 2 } else { LEAST };
        let less = half < self.target;
        if less {
            self.target = half;
        }
        less
    }

    /// Returns the number of buffers that are posted or hold an unprocessed packet.
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// Returns the number of receives that the peer may still use.
    pub const fn window(&self) -> u32 {
        self.posted.wrapping_sub(self.arrived)
    }
}

#[cfg(test)]
mod tests;
