//! What happened, in words: kept only when somebody asks, as words take longer than what they tell.

/// The events of one run.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    lines: Option<Vec<String>>,
}

impl Trace {
    /// Keeps events, or does not.
    pub(crate) fn new(kept: bool) -> Self {
        Self { lines: kept.then(Vec::new) }
    }

    /// Writes an event down.
    #[inline]
    pub(crate) fn note(&mut self, now: u64, event: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{now:>8}  {}", event()));
        }
    }

    /// Hands over what was written down.
    pub(crate) fn take(&mut self) -> Vec<String> {
        self.lines.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
