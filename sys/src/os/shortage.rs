//! Shortages of this process or its machine that may pass: of descriptors, or of memory for sockets.
//!
//! They concern no peer: what failed is tried again. A listener whose `accept` fails stays readable, and would keep a
//! process from sleeping. So it is left out of the set of descriptors for a while.

use std::time::{Duration, Instant};

use super::error::ShmError;

/// The time for which no connection is accepted after a failure.
const PAUSE: Duration = Duration::from_millis(100);
/// A shortage that comes back after this time is reported again.
const QUIET: Duration = Duration::from_secs(10);

/// The pause of a listener, and what is to be reported of shortages: the first one of several.
#[derive(Debug, Default)]
pub(crate) struct Shortage {
    pause: Option<Instant>,
    /// The last failure.
    last: Option<Instant>,
    report: Option<String>,
}

impl Shortage {
    /// Records that an operation has failed, which is tried again.
    pub(crate) fn record(&mut self, error: &ShmError) {
        let now = Instant::now();
        if self.last.is_none_or(|last| now.duration_since(last) >= QUIET) {
            self.report = Some(error.to_string());
        }
        self.last = Some(now);
    }

    /// Begins the pause of a listener, which the caller takes out of the set.
    pub(crate) fn pause(&mut self, now: Instant, error: &ShmError) {
        self.pause = Some(now + PAUSE);
        self.record(error);
    }

    /// Returns whether the pause ends now: the listener then belongs to the set again.
    pub(crate) fn resumes(&mut self, now: Instant) -> bool {
        self.pause.take_if(|until| now >= *until).is_some()
    }

    /// Returns whether no connection is to be accepted.
    pub(crate) const fn is_paused(&self) -> bool {
        self.pause.is_some()
    }

    /// Returns the next report for the user, once.
    pub(crate) const fn next_report(&mut self) -> Option<String> {
        self.report.take()
    }
}
