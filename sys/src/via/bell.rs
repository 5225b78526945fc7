//! The words on which a process sleeps (paper 2, section 1.4.4: events through shared memory instead of interrupts).
//!
//! A page with two [`SleepWord`]s, which every connected process maps: one for threads of the program that wait for a
//! completion, one for the service thread. A process that sends a record reads the first, and the second too if the
//! record needs an action of the other library.

use std::time::Duration;

use nemesia_core::shared::layout::Extent;
use nemesia_core::shared::sleep::{Payer, Sleep, SleepWord, WakeReason, Waking};
use nemesia_core::sync::FenceMode;

use crate::os::{Access, ForeignFd, Segment, SegmentOptions, ShmError, futex_wait, futex_wake};

/// Bytes of the page.
const BELL_BYTES: usize = 4096;

/// The page of one process.
#[derive(Debug)]
pub(super) struct Bell {
    segment: Segment,
}

impl Bell {
    pub(super) fn create() -> Result<Self, ShmError> {
        let segment = Segment::create("via-bell", BELL_BYTES, &SegmentOptions::default())?;
        segment.seal_seals()?;
        Ok(Self { segment })
    }

    pub(super) fn attach(fd: ForeignFd) -> Result<Self, ShmError> {
        // A page may be larger than 4 KiB.
        Ok(Self { segment: Segment::attach(fd, Access::ReadWrite, BELL_BYTES..=1 << 20)? })
    }

    pub(super) fn segment(&self) -> &Segment {
        &self.segment
    }

    fn word(&self, number: usize) -> &SleepWord {
        let base = self.segment.as_ptr();
        // SAFETY: the segment is mapped for as long as it is borrowed, which the returned reference outlives not.
        let extent = unsafe { Extent::new(base, self.segment.len(), BELL_BYTES) };
        let word = extent.and_then(|extent| extent.resolve::<SleepWord>(number * size_of::<SleepWord>(), 1));
        // A segment is aligned to a page and has at least these bytes.
        let word = word.unwrap_or(base.cast());
        // SAFETY: mapped and aligned; the words are atomics, which any bytes are, and all processes use them so.
        unsafe { word.as_ref() }
    }

    /// Returns the word of threads that wait for completions.
    pub(super) fn waiters(&self) -> &SleepWord {
        self.word(0)
    }

    /// Returns the word of the service thread.
    pub(super) fn service(&self) -> &SleepWord {
        self.word(1)
    }

    /// Announces the sleep of a waiting thread; its state is checked once more after this.
    pub(super) fn announce(&self) -> u32 {
        self.waiters().announce(Sleep::Futex)
    }

    /// Sleeps after [`Bell::announce`], at most for this time.
    pub(super) fn sleep(&self, sequence: u32, limit: Duration) {
        futex_wait(self.waiters().futex(), sequence, Some(limit));
    }

    /// Ends the announcement.
    pub(super) fn awake(&self) {
        self.waiters().unpark(Payer::Sleeper);
    }

    /// Wakes a waiting thread of this process.
    pub(super) fn notify(&self) {
        self.waiters().notify();
        futex_wake(self.waiters().futex(), u32::MAX);
    }

    /// Wakes the waiting thread of the process that owns this page, if one sleeps.
    pub(super) fn wake_waiters(&self) {
        let waking = self.waiters().must_wake(FenceMode::Symmetric, WakeReason::Other);
        if let Waking::Asleep(_) = waking {
            futex_wake(self.waiters().futex(), u32::MAX);
        }
    }

    /// Returns whether the service thread of the owner sleeps and must be woken by a packet.
    pub(super) fn must_wake_service(&self) -> bool {
        let waking = self.service().must_wake(FenceMode::Symmetric, WakeReason::Other);
        matches!(waking, Waking::Asleep(_))
    }
}
