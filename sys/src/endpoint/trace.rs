//! The call tree: what writes it down in this build, and how it is read.

use super::Endpoint;
use crate::config::Config;

/// What the engine tells of the functions that it enters and leaves.
#[cfg(feature = "trace")]
pub(super) type Recorder = nemesia_core::trace::TraceRing<Vec<nemesia_core::trace::Record>>;
#[cfg(not(feature = "trace"))]
pub(super) type Recorder = ();

/// Bytes of one entry or exit in the ring; 0 in builds that have none.
#[cfg(feature = "trace")]
pub(crate) const RECORD_BYTES: usize = size_of::<nemesia_core::trace::Record>();
#[cfg(not(feature = "trace"))]
pub(crate) const RECORD_BYTES: usize = 0;

#[cfg(feature = "trace")]
pub(super) fn recorder(config: &Config) -> Recorder {
    Recorder::new(vec![nemesia_core::trace::Record::default(); config.trace], now)
}

#[cfg(not(feature = "trace"))]
pub(super) const fn recorder(_: &Config) -> Recorder {}

/// Nanoseconds since the first call.
#[cfg(feature = "trace")]
fn now() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;

    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

impl Endpoint {
    /// The functions that were entered and left lately, with times, as a tree: lines of text. `None` unless this build
    /// has the feature `trace` and NEMESIA_TRACE says how many entries and exits to keep.
    pub fn call_tree(&self) -> Option<String> {
        #[cfg(feature = "trace")]
        let tree = (self.config.trace > 0).then(|| self.engine.trace().tree().to_string());
        #[cfg(not(feature = "trace"))]
        let tree = None;
        tree
    }
}
