//! A progress display for a terminal.
#![forbid(unsafe_code)]

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::page::Page;

const EVERY: Duration = Duration::from_millis(100);

/// Runs `work`, and meanwhile shows how many of `steps` rank 0 has completed, if the standard error output is a
/// terminal.
pub(crate) fn show<R>(page: &Page, steps: usize, work: impl FnOnce() -> R) -> R {
    if !std::io::stderr().is_terminal() {
        return work();
    }
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("measuring [{bar:40}] {percent}%, {elapsed}") {
        bar.set_style(style.progress_chars("=> "));
    }
    let done = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                bar.set_position(page.steps().load(Ordering::Relaxed).min(steps as u64));
                bar.tick();
                std::thread::park_timeout(EVERY);
            }
        });
        let result = work();
        done.store(true, Ordering::Release);
        result
    });
    bar.finish_and_clear();
    result
}
