//! The call tree: its recorder in this build, and its text.

use crate::config::Config;
use crate::endpoint::Endpoint;

/// The recorder of the functions that the engine enters and leaves.
#[cfg(feature = "trace")]
pub(in crate::endpoint) type Recorder = nemesia_core::trace::TraceRing<Vec<nemesia_core::trace::Record>>;
#[cfg(not(feature = "trace"))]
pub(in crate::endpoint) type Recorder = ();

#[cfg(feature = "trace")]
pub(in crate::endpoint) fn recorder(config: &Config) -> Recorder {
    Recorder::new(vec![nemesia_core::trace::Record::default(); config.trace], now)
}

#[cfg(not(feature = "trace"))]
pub(in crate::endpoint) const fn recorder(_: &Config) -> Recorder {}

/// Returns the nanoseconds since the first call.
#[cfg(feature = "trace")]
fn now() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;

    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// # Call tree
///
/// In builds with the feature `trace`, the engine records the functions that it enters and leaves.
/// NEMESIA_TRACE sets the length of the record.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// if let Some(tree) = endpoint.call_tree() {
///     eprintln!("{tree}");
/// }
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Returns the call tree as lines of text: the functions that were entered and left last, with times.
    ///
    /// `None` unless this build has the feature `trace` and NEMESIA_TRACE sets the number of entries and exits
    /// to keep.
    pub fn call_tree(&self) -> Option<String> {
        #[cfg(feature = "trace")]
        let tree = (self.config.trace > 0).then(|| self.engine.trace().tree().to_string());
        #[cfg(not(feature = "trace"))]
        let tree = None;
        tree
    }
}
