//! The counts of a counter.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counts of one counter.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) succeeded: AtomicU64,
    pub(crate) failed: AtomicU64,
}

impl Counts {
    /// Counts an operation.
    pub(crate) fn count(&self, succeeded: bool) {
        let counter = if succeeded { &self.succeeded } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
