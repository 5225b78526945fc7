//! Events off the critical path, reported to the crate `tracing` (feature `tracing`, target `nemesia`). Without
//! the feature every function here is empty. Nothing is reported where a message is sent or received.
//!
//! | event or span | level | when |
//! |---|---|---|
//! | span `open` | info | joining the world, with everything in it |
//! | span `connect` | debug | connecting to the other processes |
//! | `route` | debug | the route of one rank, with facilities in use and refused ones; once for each rank, at
//! start |
//! | `warning` | warn | a preference that could not be met |
//! | `failure` | warn | a peer is gone without finishing |
//! | `finished` | debug | a peer has finished |
//! | `single copy refused` | warn | the kernel no longer permits reading a peer's memory: large messages are
//! streamed |
//! | `slept` | trace | the thread has slept |

use std::time::Duration;

use crate::Failure;
use crate::route::Route;

/// A span, for as long as it lives.
#[must_use]
pub(crate) struct Inside {
    #[cfg(feature = "tracing")]
    _span: tracing::span::EnteredSpan,
}

#[cfg(feature = "tracing")]
mod emit {
    use super::{Duration, Failure, Inside, Route};

    const TARGET: &str = "nemesia";

    pub(crate) fn open(rank: usize, size: usize) -> Inside {
        Inside { _span: tracing::info_span!(target: TARGET, "open", rank, size).entered() }
    }

    pub(crate) fn connect(peers: usize) -> Inside {
        Inside { _span: tracing::debug_span!(target: TARGET, "connect", peers).entered() }
    }

    pub(crate) fn route(route: &Route) {
        let Route { rank, transport, .. } = *route;
        let listed = |usable: bool| {
            let all =
                route.facilities.iter().chain(&route.refused).filter(|verdict| verdict.usable == usable);
            all.map(|verdict| format!("{}: {}", verdict.name, verdict.reason)).collect::<Vec<_>>().join("; ")
        };
        if tracing::enabled!(target: TARGET, tracing::Level::DEBUG) {
            let (used, refused) = (listed(true), listed(false));
            tracing::debug!(target: TARGET, rank, transport, used, refused, "route");
        }
    }

    pub(crate) fn warning(text: &str) {
        tracing::warn!(target: TARGET, text, "note");
    }

    pub(crate) fn failed(rank: usize, failure: Failure) {
        match failure {
            Failure::Finished => tracing::debug!(target: TARGET, rank, "finished"),
            _ => tracing::warn!(target: TARGET, rank, reason = %failure, "failure"),
        }
    }

    /// Called in the middle of a packet, where the engine must not be left: a subscriber that panics is not heard.
    pub(crate) fn single_copy_refused(rank: u32) {
        let reported =
            std::panic::catch_unwind(|| tracing::warn!(target: TARGET, rank, "single copy refused"));
        // Dropping what a panic carries may panic again.
        reported.unwrap_or_else(std::mem::forget);
    }

    pub(crate) fn slept(took: Duration, woken: bool) {
        tracing::trace!(target: TARGET, ns = took.as_nanos() as u64, woken, "slept");
    }
}

#[cfg(not(feature = "tracing"))]
mod emit {
    use super::{Duration, Failure, Inside, Route};

    pub(crate) const fn open(_: usize, _: usize) -> Inside {
        Inside {}
    }

    pub(crate) const fn connect(_: usize) -> Inside {
        Inside {}
    }

    pub(crate) const fn route(_: &Route) {}

    pub(crate) const fn warning(_: &str) {}

    pub(crate) const fn failed(_: usize, _: Failure) {}

    pub(crate) const fn single_copy_refused(_: u32) {}

    pub(crate) const fn slept(_: Duration, _: bool) {}
}

pub(crate) use emit::{connect, failed, open, route, single_copy_refused, slept, warning};

#[cfg(test)]
#[cfg(feature = "tracing")]
pub(crate) mod tests {
    use std::fmt::{Debug, Write};
    use std::sync::{Mutex, Once};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    static HEARD: Mutex<Vec<String>> = Mutex::new(Vec::new());

    /// Records a line for each event and span of `nemesia`: level, name, fields.
    struct EventListener;

    struct Line(String);

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            let _ = write!(self.0, " {}={value:?}", field.name());
        }
    }

    fn hear(metadata: &Metadata<'_>, record: impl FnOnce(&mut Line)) {
        let mut line =
            Line(format!("{} {}", metadata.level(), if metadata.is_span() { metadata.name() } else { "" }));
        record(&mut line);
        HEARD.lock().unwrap().push(line.0);
    }

    impl Subscriber for EventListener {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "nemesia"
        }

        fn new_span(&self, span: &Attributes<'_>) -> Id {
            hear(span.metadata(), |line| span.record(line));
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            hear(event.metadata(), |line| event.record(line));
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// Starts to record all events of this process.
    pub(crate) fn listen() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing::subscriber::set_global_default(EventListener).unwrap());
    }

    /// Returns whether a recorded line contains all these words.
    pub(crate) fn heard(words: &[&str]) -> bool {
        let lines = HEARD.lock().unwrap();
        lines.iter().any(|line| words.iter().all(|word| line.contains(word)))
    }

    #[test]
    fn failures_are_warnings_and_the_end_of_a_peer_is_none() {
        listen();
        failed(4711, Failure::Died);
        failed(4712, Failure::Finished);
        assert!(heard(&["WARN", "failure", "rank=4711", "its process died"]));
        assert!(heard(&["DEBUG", "finished", "rank=4712"]));
    }
}
