//! Lines for the user, and the reason of the last error.
//!
//! An error of libfabric is a number, and an MPI that ignores it waits for ever. So each failure of an operation is
//! also a line on the standard error output, if the user has asked libfabric for messages (`FI_LOG_LEVEL`).

use std::cell::RefCell;
use std::fmt::{Arguments, Display};
use std::io::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};

/// The most lines of a process: a program may repeat what fails.
const MOST_LINES: u32 = 100;

static LINES: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The reason of the error that the current call returns, if it is more than a number.
    static REASON: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Returns whether the user has asked libfabric for messages.
pub(crate) fn is_wanted() -> bool {
    std::env::var_os("FI_LOG_LEVEL").is_some_and(|level| !level.is_empty())
}

/// Writes a line for the user, if the user has asked for it.
#[cold]
pub(crate) fn warn(line: Arguments<'_>) {
    if !is_wanted() {
        return;
    }
    let text = match LINES.fetch_add(1, Ordering::Relaxed) {
        count if count < MOST_LINES => format!("nemesia: {line}\n"),
        MOST_LINES => "nemesia: further failures are not written\n".to_owned(),
        _ => return,
    };
    // In one call, as other processes write to the same output. Without an output, the line is lost.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Keeps the reason of the error that the current call returns.
#[cold]
pub(crate) fn keep(reason: impl Display) {
    if is_wanted() {
        REASON.set(Some(reason.to_string()));
    }
}

/// Takes the reason of the error that the current call returns.
pub(crate) fn take() -> Option<String> {
    REASON.take()
}
