//! The one signal whose disposition matters to a program that starts others.

/// Sees to it that the system says how our processes end, even if whoever started this program ignores that.
///
/// To be called before any process is started.
pub(crate) fn hear_of_children() {
    // SAFETY: the default disposition involves no code of ours; no other thread exists yet.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}
