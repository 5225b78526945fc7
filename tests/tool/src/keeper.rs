//! The two processes of `nemesia run`.
//!
//! The first one is the process that a shell starts, stops and signals. It passes the signals on to the second one,
//! which starts the job and is the parent of all that ranks leave behind. If one of the two is killed, the other one
//! ends the whole job: the kernel does that for the ranks only, and not for the program behind a wrapper script.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::failure::Failure;
use crate::output;
use crate::signals::{self, Caught};

/// The name of the second process. `pkill nemesia` kills the first one only, and the second one cleans up.
const NAME: &std::ffi::CStr = c"rank-launcher";

/// Runs `launch` in the second process, with the connection to the first one, from which signals come. Returns in both
/// processes, with the same status.
///
/// # Errors
/// Those of `launch` in the second process; in the first one, that the second one was killed.
pub(crate) fn keep(launch: impl FnOnce(Signals) -> Result<u8, Failure>) -> Result<u8, Failure> {
    // Before any thread or process exists.
    let caught = Caught::hold().map_err(Failure::failed)?;
    let (first, second) = UnixStream::pair().map_err(Failure::failed)?;
    // SAFETY: PR_SET_CHILD_SUBREAPER takes a number and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1 as libc::c_ulong) };
    // SAFETY: this process has one thread, so the child finds every lock free.
    match unsafe { libc::fork() } {
        -1 => Err(Failure::failed(format!(
            "cannot start a process: {}; raise the limit on processes (ulimit -u)",
            io::Error::last_os_error()
        ))),
        0 => {
            drop(first);
            // SAFETY: PR_SET_NAME takes a terminated text of at most 16 bytes.
            unsafe { libc::prctl(libc::PR_SET_NAME, NAME.as_ptr()) };
            launch(Signals(second))
        }
        child => {
            drop(second);
            attend(child, first, &caught)
        }
    }
}

/// The signals that the first process has got.
pub(crate) struct Signals(UnixStream);

impl Signals {
    /// Waits for the next signal. `None` if the first process has ended.
    pub(crate) fn next(&mut self) -> Option<i32> {
        let mut byte = [0];
        self.0.read_exact(&mut byte).ok().map(|()| i32::from(byte[0]))
    }
}

/// Passes signals on to the second process, until it has ended.
fn attend(child: libc::pid_t, mut second: UnixStream, caught: &Caught) -> Result<u8, Failure> {
    while let Some(signal) = caught.next() {
        if signal != libc::SIGCHLD {
            // It fails if the second process has ended, which SIGCHLD reports.
            let _ = second.write_all(&[u8::try_from(signal).unwrap_or_default()]);
            if signal == libc::SIGTSTP {
                signals::stop().map_err(Failure::failed)?;
            }
            continue;
        }
        while let Some((pid, status)) = reap().filter(|(pid, _)| *pid > 0) {
            if pid == child {
                return Ok(end(status));
            }
        }
    }
    Err(Failure::failed("cannot wait for signals"))
}

/// Returns the exit status for the end of the second process. If it was killed, the job is ended here.
fn end(status: i32) -> u8 {
    if libc::WIFEXITED(status) {
        return u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(1);
    }
    end_children();
    let signal = libc::WTERMSIG(status);
    output::remark(&format!("signal {signal} ended the launcher; all ranks were killed"));
    u8::try_from(128 + signal).unwrap_or(1)
}

/// Kills the children of this process until it has none. Those of a killed process become children of this one.
fn end_children() {
    while let Some((ended, _)) = reap() {
        if ended > 0 {
            continue;
        }
        let children = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
        for child in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            // SAFETY: kill touches no memory. The id is a child's that was not reaped.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Collects the end of a child; the process id is 0 if none has ended. `None` if there is no child.
fn reap() -> Option<(libc::pid_t, i32)> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    (pid >= 0).then_some((pid, status))
}
