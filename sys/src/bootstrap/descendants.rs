//! The processes that ranks have started, directly or through others, such as the program behind a wrapper script.
//!
//! They are found in /proc, by their parents. A process whose parent has ended is found only if the launcher adopts
//! orphans ([`adopt`]).

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::poll;
use crate::os::descriptor::own;

/// A process below a rank.
#[derive(Debug)]
pub(super) struct Descendant {
    pid: libc::pid_t,
    /// Names the process even if its number is given to another one; `None` before Linux 5.3.
    pidfd: Option<OwnedFd>,
}

impl Descendant {
    /// Takes the process `pid`, if it runs and one of `parents` is its parent.
    fn of(pid: libc::pid_t, parents: [libc::pid_t; 2]) -> Option<Self> {
        let pidfd = open_pidfd(pid);
        // Read after the descriptor was opened: if the number has been given to another process, the parent differs.
        let (state, parent) = state_and_parent(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        (parents.contains(&parent) && !matches!(state, 'Z' | 'X')).then_some(Self { pid, pidfd })
    }

    /// Sends a signal. An error means that the process has ended, or has changed its user.
    pub(super) fn signal(&self, signal: i32) {
        match &self.pidfd {
            // SAFETY: takes numbers and no further description of the signal.
            Some(fd) => unsafe {
                libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), signal, 0, 0);
            },
            // SAFETY: kill touches no memory.
            None => unsafe {
                libc::kill(self.pid, signal);
            },
        }
    }

    /// Returns whether it certainly has not ended.
    pub(super) fn runs(&self) -> bool {
        let Some(pidfd) = &self.pidfd else { return false };
        let mut entries = [poll::entry(pidfd.as_fd(), libc::POLLIN)];
        poll::wait(&mut entries, Some(Duration::ZERO)).is_ok() && entries[0].revents == 0
    }
}

impl PartialEq for Descendant {
    fn eq(&self, other: &Self) -> bool {
        self.pid == other.pid
    }
}

/// Returns the running descendants of `roots`, parents first, without `roots` themselves. If orphans are adopted,
/// `adopter` is this process: its children may have had another parent a moment ago.
pub(super) fn descendants(roots: &[libc::pid_t], adopter: Option<libc::pid_t>) -> Vec<Descendant> {
    let mut found: Vec<Descendant> = Vec::new();
    let mut parents = roots.to_vec();
    let mut next = 0;
    while let Some(&parent) = parents.get(next) {
        next += 1;
        for child in children(parent) {
            // A process that got a new parent in the meantime may be seen twice.
            if !parents.contains(&child)
                && let Some(descendant) = Descendant::of(child, [parent, adopter.unwrap_or(parent)])
            {
                parents.push(child);
                found.push(descendant);
            }
        }
    }
    found
}

/// Makes this process the parent of its descendants' orphans, so that it still finds them.
pub(super) fn adopt() -> io::Result<()> {
    // SAFETY: PR_SET_CHILD_SUBREAPER takes a number and touches no memory.
    match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1 as libc::c_ulong) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Collects the ends of adopted orphans, until `is_rank` recognises a process that another function collects.
pub(super) fn reap_orphans(is_rank: impl Fn(libc::pid_t) -> bool) {
    loop {
        // SAFETY: zeros are a value of every field.
        let mut ended: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: `ended` outlives the call.
        let code = unsafe { libc::waitid(libc::P_ALL, 0, &raw mut ended, flags) };
        // SAFETY: waitid has filled the fields of a child, or left the zeros.
        let pid = unsafe { ended.si_pid() };
        if code != 0 || pid <= 0 || is_rank(pid) {
            return;
        }
        // SAFETY: null is allowed for the status; it is our own child, which has ended.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) };
    }
}

/// Returns whether this process has a child, even one whose end was not collected.
pub(super) fn has_children() -> bool {
    // SAFETY: zeros are a value of every field.
    let mut ended: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `ended` outlives the call. It fails if there is no child.
    unsafe { libc::waitid(libc::P_ALL, 0, &raw mut ended, flags) == 0 }
}

/// Returns a descriptor that is readable when the process has ended; `None` before Linux 5.3.
pub(super) fn open_pidfd(pid: libc::pid_t) -> Option<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and touches no memory of this process.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: the kernel has just made this descriptor (close-on-exec) for this call, and nothing else owns it.
    unsafe { own(RawFd::try_from(fd).ok()?) }.ok()
}

/// Returns the children of all threads of a process; none if the kernel does not list them.
fn children(parent: libc::pid_t) -> Vec<libc::pid_t> {
    let Ok(threads) = fs::read_dir(format!("/proc/{parent}/task")) else { return Vec::new() };
    let lists =
        threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Returns the state and the parent in a line of /proc/PID/stat. The name in parentheses may contain anything.
fn state_and_parent(line: &str) -> Option<(char, libc::pid_t)> {
    let mut fields = line.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_does_not_hide_its_parent() {
        assert_eq!(state_and_parent("12 (a) Z 1 (b) ) S 34 5"), Some(('S', 34)));
        assert_eq!(state_and_parent(""), None);
    }
}
