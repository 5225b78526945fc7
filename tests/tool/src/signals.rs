//! The signals that matter to a program that starts other programs.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// The signals that end a job.
const ENDING: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// The signals that are passed on to the processes of a job, and nothing else.
const PASSED_ON: [i32; 5] = [libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2, libc::SIGTSTP, libc::SIGCONT];

/// Returns whether a signal ends a job.
pub(crate) fn ends_job(signal: i32) -> bool {
    ENDING.contains(&signal)
}

/// Restores the default handling of SIGCHLD, so that the system reports how our processes end, even if the
/// parent of this program ignores that signal.
///
/// Must be called before any process is started.
pub(crate) fn hear_of_children() {
    // SAFETY: the default disposition involves no code of ours; no other thread exists yet.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Signals that stay pending until [`Caught::next`] takes them, instead of ending this program.
pub(crate) struct Caught(libc::sigset_t);

impl Caught {
    /// Blocks the signals that are to be passed on, and SIGCHLD, in this thread and in those that it starts from
    /// now on. Signals that this program ignores from its start (as under `nohup`) stay ignored.
    pub(crate) fn hold() -> io::Result<Self> {
        let passed_on = ENDING.into_iter().chain(PASSED_ON).filter(|signal| !is_ignored(*signal));
        let set = set_of(passed_on.chain([libc::SIGCHLD]));
        mask(libc::SIG_BLOCK, &set)?;
        Ok(Self(set))
    }

    /// Waits for the next of these signals. `None` if none can come.
    pub(crate) fn next(&self) -> Option<i32> {
        let mut signal = 0;
        // SAFETY: the set is initialised, and the number is ours.
        let code = unsafe { libc::sigwait(&raw const self.0, &raw mut signal) };
        (code == 0).then_some(signal)
    }
}

/// Stops this process as SIGTSTP does, until SIGCONT. A SIGCONT that is pending already comes first. A further SIGTSTP
/// that comes before this function returns stops this process only, and is not passed on.
pub(crate) fn stop() -> io::Result<()> {
    let mut pending = set_of([]);
    // SAFETY: the set is ours.
    unsafe { libc::sigpending(&raw mut pending) };
    // SAFETY: the set is initialised, and the signal exists.
    if unsafe { libc::sigismember(&raw const pending, libc::SIGCONT) } == 1 {
        return Ok(());
    }
    let stop = set_of([libc::SIGTSTP]);
    // SAFETY: raise touches no memory, and the signal's default disposition involves no code.
    unsafe { libc::raise(libc::SIGTSTP) };
    mask(libc::SIG_UNBLOCK, &stop)?;
    mask(libc::SIG_BLOCK, &stop)
}

fn set_of(signals: impl IntoIterator<Item = i32>) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set that it is given.
    let mut set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    };
    for signal in signals {
        // SAFETY: the set is ours and initialised, and the signal exists.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    set
}

/// Changes the mask of this thread.
fn mask(how: i32, set: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: the set is initialised, and no old one is asked for.
    match unsafe { libc::pthread_sigmask(how, set, ptr::null_mut()) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: no new action is given, and the old one is written to a place of that type.
    let code = unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: on success the system has written it.
    code == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}
