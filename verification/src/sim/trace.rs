//! The events of a run in words. They are kept only on request, because formatting takes longer than the
//! events.

/// The events of one run.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    lines: Option<Vec<String>>,
}

impl Trace {
    /// Makes a trace that keeps events, or one that does not.
    pub(crate) fn new(kept: bool) -> Self {
        Self { lines: kept.then(Vec::new) }
    }

    /// Records an event.
    #[inline]
    pub(crate) fn note(&mut self, now: u64, event: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{now:>8}  {}", event()));
        }
    }

    /// Returns the recorded events and forgets them.
    pub(crate) fn take(&mut self) -> Vec<String> {
        self.lines.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
