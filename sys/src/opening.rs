//! What a process says while it waits for ranks at the opening of a world, if it was asked to explain.

use std::fmt;
use std::io::Write as _;
use std::time::{Duration, Instant};

/// The time until the first report, and between two of them.
const EVERY: Duration = Duration::from_secs(5);

/// The reports of one opening.
#[derive(Debug)]
pub(crate) struct OpeningReport {
    is_wanted: bool,
    rank: usize,
    size: usize,
    begun: Instant,
    next: Instant,
}

impl OpeningReport {
    /// Begins an opening. Nothing is ever said unless `is_wanted`.
    pub(crate) fn new(is_wanted: bool, (rank, size): (usize, usize)) -> Self {
        let begun = Instant::now();
        Self { is_wanted, rank, size, begun, next: begun + EVERY }
    }

    /// Says which ranks are missing, if it is time.
    pub(crate) fn look(&mut self, missing: impl FnOnce() -> Vec<usize>) {
        if let Some(text) = self.due(Instant::now(), missing) {
            say(&text);
        }
    }

    fn due(&mut self, now: Instant, missing: impl FnOnce() -> Vec<usize>) -> Option<String> {
        if !self.is_wanted || now < self.next {
            return None;
        }
        self.next = now + EVERY;
        let Self { rank, size, begun, .. } = *self;
        let (passed, missing) = (now.saturating_duration_since(begun).as_secs(), missing());
        let names = ranges(&missing);
        Some(format!("nemesia: rank {rank} of {size}: waiting for {names} to connect, for {passed} s\n"))
    }
}

/// Prints requested text on the standard error output, in one piece.
pub(crate) fn say(text: &impl fmt::Display) {
    // If the output is closed, the text is lost.
    let _ = std::io::stderr().write_all(text.to_string().as_bytes());
}

/// Formats ranks: `rank 3`, or `ranks 0-2, 5`.
pub(crate) fn ranges(ranks: &[usize]) -> String {
    let runs = ranks.chunk_by(|before, after| before + 1 == *after);
    let run = |run: &[usize]| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run.iter().map(usize::to_string).collect(),
    };
    let text = runs.map(run).collect::<Vec<_>>().join(", ");
    if ranks.len() == 1 { format!("rank {text}") } else { format!("ranks {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_as_short_as_possible() {
        for (ranks, text) in [
            (&[3_usize] as &[usize], "rank 3"),
            (&[0, 1], "ranks 0-1"),
            (&[0, 1, 2, 5], "ranks 0-2, 5"),
            (&[0, 1, 2, 5, 7, 8], "ranks 0-2, 5, 7-8"),
        ] {
            assert_eq!(ranges(ranks), text);
        }
    }

    #[test]
    fn the_missing_ranks_are_named_now_and_then_if_that_is_wanted() {
        let mut report = OpeningReport::new(true, (1, 9));
        let times = [0, 4, 5, 9, 10].map(|seconds| report.begun + Duration::from_secs(seconds));
        let said: Vec<_> = times.map(|now| report.due(now, || vec![2, 3, 4, 7])).into_iter().collect();
        let line =
            |seconds| format!("nemesia: rank 1 of 9: waiting for ranks 2-4, 7 to connect, for {seconds} s\n");
        assert_eq!(said, [None, None, Some(line(5)), None, Some(line(10))]);
        let mut silent = OpeningReport::new(false, (1, 9));
        assert_eq!(silent.due(times[4] + 100 * EVERY, || vec![2]), None);
    }
}
