//! Sleep until there is space: a sender sleeps only if the receiver will see that it must wake it.
//!
//! The receiver reports its position once per half of the ring. Most senders do not wait for it, and to wake one is a
//! system call for each half. If no packet is at the head after a report, the sender does not wait: since the report
//! before, it has filled less than three quarters of the ring (half, and the rest of the last packet), and the largest
//! packet takes the last quarter.
//!
//! The two decisions are a case of [`crate::sync::Edge::Sleep`]: the flag of the sleeper is its packets, and the work
//! that the waker publishes is the position. A fence on each side ensures that either the receiver sees the packets, or
//! the sender sees the position.
#![forbid(unsafe_code)]

use super::{FastboxReceiver, FastboxSender};
use crate::sync::{FenceMode, sleeper_fence, waker_fence};
use crate::wire::Envelope;
use crate::wire::fault::FastboxFault;

impl FastboxSender<'_> {
    /// As [`FastboxSender::push`], for a sender that sleeps if the result is `false`: once there is space,
    /// [`FastboxReceiver::must_wake_sender`] returns `true`.
    ///
    /// # Errors
    /// [`FastboxFault::Position`] if the receiver wrote an invalid position.
    #[inline(always)]
    pub fn push_or_sleep(
        &mut self,
        sequence: u64,
        envelope: &Envelope,
        payload: &[u8],
    ) -> Result<bool, FastboxFault> {
        Ok(self.push(sequence, envelope, payload)? || self.push_before_sleep(sequence, envelope, payload)?)
    }

    #[cold]
    fn push_before_sleep(
        &mut self,
        sequence: u64,
        envelope: &Envelope,
        payload: &[u8],
    ) -> Result<bool, FastboxFault> {
        sleeper_fence();
        self.push(sequence, envelope, payload)
    }
}

impl FastboxReceiver<'_> {
    /// Returns whether the sender may sleep until there is space ([`FastboxSender::push_or_sleep`]). Call this when
    /// [`FastboxReceiver::advance`] has reported the position.
    #[cold]
    pub fn must_wake_sender(&self) -> bool {
        waker_fence(FenceMode::Symmetric);
        self.has_next()
    }
}
