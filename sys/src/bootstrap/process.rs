//! One process of a launch: its start, its supervision and its end.

use super::INCARNATION;
use super::descendants::{Descendant, adopt, descendants, has_children, open_pidfd, reap_orphans};
use super::outcome::ExitKind;
use crate::os::descriptor::above_standard;
use std::ffi::OsString;
use std::io::{self, PipeWriter};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// The words of an affinity mask: 8192 processors, the most that Linux supports today.
const MASK_WORDS: usize = 128;

/// A set of processors in the kernel's format.
type CpuMask = Vec<u64>;

/// The process ids of all ranks, each until its process is reaped. Both signalling and reaping hold the lock: a
/// process id is never signalled after the system may have given it to another process.
#[derive(Debug, Clone)]
pub(super) struct LivePids(Arc<Mutex<Vec<Option<libc::pid_t>>>>);

impl LivePids {
    fn with<R>(&self, action: impl FnOnce(&mut Vec<Option<libc::pid_t>>) -> R) -> R {
        action(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the process of `rank`, until it is reaped.
    pub(super) fn pid(&self, rank: usize) -> Option<u32> {
        self.with(|pids| pids.get(rank).copied().flatten()).and_then(|pid| u32::try_from(pid).ok())
    }

    /// Sends `signal` to `rank`. Returns false if the process is gone.
    pub(super) fn signal(&self, rank: usize, signal: i32) -> io::Result<bool> {
        self.with(|pids| {
            let Some(&Some(pid)) = pids.get(rank) else { return Ok(false) };
            // SAFETY: kill touches no memory. `pid` is a child that was not reaped, so the id is still its own.
            if unsafe { libc::kill(pid, signal) } == 0 { Ok(true) } else { Err(io::Error::last_os_error()) }
        })
    }
}

/// The properties that all processes of a launch share.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) size: usize,
    pub(super) program: OsString,
    pub(super) args: Vec<OsString>,
    pub(super) env: Vec<(OsString, OsString)>,
    /// Whether the output is piped to the launcher.
    pub(super) pipe_output: bool,
    /// Processors to assign in turn; empty leaves the affinity unchanged.
    pub(super) cpus: Vec<usize>,
    /// Whether ranks may be started again, which the processes learn.
    pub(super) restarts: bool,
    /// Whether this process has no other children, and becomes the parent of those that ranks leave behind.
    pub(super) adopts: bool,
}

/// All processes of a launch. Dropping this kills and reaps the remaining ones.
#[derive(Debug)]
pub(super) struct Processes {
    plan: Plan,
    list: Vec<Process>,
    pids: LivePids,
    /// The processes below ranks that the last signal reached.
    below: Vec<Descendant>,
}

#[derive(Debug)]
struct Process {
    child: Child,
    /// Readable when the process has ended; `None` before Linux 5.3.
    pidfd: Option<OwnedFd>,
    exit: Option<ExitKind>,
    ended_by_launcher: bool,
    /// The ends of its pipes for the output of its next process; empty if it writes elsewhere, or if there will
    /// be none.
    writers: Vec<PipeWriter>,
}

impl Processes {
    pub(super) fn new(plan: Plan) -> io::Result<Self> {
        if plan.adopts {
            adopt()?;
        }
        let pids = LivePids(Arc::new(Mutex::new(Vec::new())));
        Ok(Self { plan, list: Vec::new(), pids, below: Vec::new() })
    }

    /// Starts the next rank, which inherits `socket`. Returns the pipes of its output, if it has any.
    pub(super) fn start(&mut self, socket: &OwnedFd) -> io::Result<Vec<OwnedFd>> {
        let rank = self.list.len();
        let (mut readers, mut writers) = (Vec::new(), Vec::new());
        if self.plan.pipe_output {
            for _ in 0..2 {
                let (reader, writer) = io::pipe()?;
                let (reader, writer) = (above_standard(reader)?, above_standard(writer)?);
                readers.push(OwnedFd::from(reader));
                writers.push(writer);
            }
        }
        let child = spawn(&self.plan, rank, 0, socket, &writers)?;
        if !self.plan.restarts {
            writers.clear();
        }
        // A process id is positive and fits; 0 would mean a whole group, so nothing replaces it.
        let pid = libc::pid_t::try_from(child.id()).ok();
        let pidfd = pid.and_then(open_pidfd);
        self.pids.with(|pids| pids.push(pid));
        self.list.push(Process { child, pidfd, exit: None, ended_by_launcher: false, writers });
        Ok(readers)
    }

    /// Starts a rank again that has ended. Returns its process id.
    pub(super) fn restart(&mut self, rank: usize, incarnation: u64, socket: &OwnedFd) -> io::Result<u32> {
        let process = self.list.get_mut(rank).ok_or(io::ErrorKind::NotFound)?;
        let child = spawn(&self.plan, rank, incarnation, socket, &process.writers)?;
        let (id, pid) = (child.id(), libc::pid_t::try_from(child.id()).ok());
        process.pidfd = pid.and_then(open_pidfd);
        process.child = child;
        process.exit = None;
        self.pids.with(|pids| {
            if let Some(slot) = pids.get_mut(rank) {
                *slot = pid;
            }
        });
        Ok(id)
    }

    pub(super) fn live_pids(&self) -> LivePids {
        self.pids.clone()
    }

    /// Returns the last process id of each rank.
    pub(super) fn ids(&self) -> Vec<u32> {
        self.list.iter().map(|process| process.child.id()).collect()
    }

    /// Returns the descriptors of the running processes, for a poll.
    pub(super) fn watched(&self) -> impl Iterator<Item = &OwnedFd> {
        self.list.iter().filter(|process| process.exit.is_none()).filter_map(|process| process.pidfd.as_ref())
    }

    /// Returns whether a running process cannot be watched, so that its end must be polled.
    pub(super) fn any_unwatched(&self) -> bool {
        self.list.iter().any(|process| process.exit.is_none() && process.pidfd.is_none())
    }

    pub(super) fn all_ended(&self) -> bool {
        self.list.iter().all(|process| process.exit.is_some())
    }

    /// Returns each rank's end, if it has ended, and whether the launcher ended it.
    pub(super) fn exits(&self) -> impl Iterator<Item = (Option<ExitKind>, bool)> {
        self.list.iter().map(|process| (process.exit, process.ended_by_launcher))
    }

    /// Reaps the processes that have ended since the last call. Returns rank, end, and whether the launcher
    /// ended it.
    pub(super) fn reap(&mut self) -> Vec<(usize, ExitKind, bool)> {
        let pids = self.pids.clone();
        let mut ended = Vec::new();
        for (rank, process) in self.list.iter_mut().enumerate().filter(|(_, process)| process.exit.is_none())
        {
            let exit = pids.with(|pids| {
                let exit = match process.child.try_wait() {
                    Ok(None) => return None,
                    Ok(Some(status)) => kind_of(status),
                    // Another part of this process has reaped it.
                    Err(_) => ExitKind::Unknown,
                };
                if let Some(pid) = pids.get_mut(rank) {
                    *pid = None;
                }
                Some(exit)
            });
            if let Some(exit) = exit {
                process.exit = Some(exit);
                process.pidfd = None;
                ended.push((rank, exit, process.ended_by_launcher));
            }
        }
        if self.plan.adopts {
            let running = self.running();
            reap_orphans(|pid| running.contains(&pid));
        }
        ended
    }

    /// Returns whether the ends of orphans must be collected.
    pub(super) fn adopts(&self) -> bool {
        self.plan.adopts
    }

    /// Returns whether a process that a rank has left behind runs.
    pub(super) fn any_below(&self) -> bool {
        // The kernel's lists of children may leave some out while others end; a wait does not.
        self.below.iter().any(Descendant::runs) || (self.plan.adopts && has_children())
    }

    /// Sends `signal` to all running processes and those below them, and records that the launcher ended the former.
    pub(super) fn end_all(&mut self, signal: i32) {
        for rank in self.signal_all(signal) {
            if let Some(process) = self.list.get_mut(rank) {
                process.ended_by_launcher = true;
            }
        }
    }

    /// Sends `signal` to all running processes and those below them. Returns the ranks that it reached.
    pub(super) fn signal_all(&mut self, signal: i32) -> Vec<usize> {
        // Found before any of them is signalled: the end of a process separates those below it from its rank.
        let mut below = self.find_below();
        // On an error the process has changed its user; then the launcher can only wait for its end.
        let reached = |rank: &usize| matches!(self.pids.signal(*rank, signal), Ok(true));
        let ranks = (0..self.list.len()).filter(reached).collect();
        for earlier in std::mem::take(&mut self.below) {
            if !below.contains(&earlier) {
                below.push(earlier);
            }
        }
        below.iter().for_each(|process| process.signal(signal));
        self.below = below;
        ranks
    }

    /// Returns the process ids of the ranks that were not reaped.
    fn running(&self) -> Vec<libc::pid_t> {
        self.pids.with(|pids| pids.iter().flatten().copied().collect())
    }

    fn find_below(&self) -> Vec<Descendant> {
        let mut roots = self.running();
        let own = self.plan.adopts.then(|| libc::pid_t::try_from(std::process::id()).ok()).flatten();
        roots.extend(own);
        descendants(&roots, own)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.end_all(libc::SIGKILL);
        for process in self.list.iter_mut().filter(|process| process.exit.is_none()) {
            // The lock is not held while waiting, so no signal may be sent from here on.
            self.pids.with(Vec::clear);
            // An error cannot be reported here.
            let _ = process.child.wait();
        }
    }
}

fn kind_of(status: ExitStatus) -> ExitKind {
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitKind::Exited(code),
        (None, Some(signal)) => ExitKind::Signaled(signal),
        (None, None) => ExitKind::Unknown,
    }
}

/// Starts a process that inherits `socket` and writes into `writers`, if there are any. The socket is none of the
/// standard streams, which the child replaces.
fn spawn(
    plan: &Plan,
    rank: usize,
    incarnation: u64,
    socket: &OwnedFd,
    writers: &[PipeWriter],
) -> io::Result<Child> {
    let mut command = command(plan, rank, socket.as_raw_fd());
    if plan.restarts {
        command.env(INCARNATION, incarnation.to_string());
    }
    // Several readers of one stream would each get a part of it.
    if rank != 0 {
        command.stdin(Stdio::null());
    }
    if let [output, error] = writers {
        command.stdout(output.try_clone()?).stderr(error.try_clone()?);
    }
    command.spawn()
}

fn command(plan: &Plan, rank: usize, socket: RawFd) -> Command {
    let mut command = Command::new(&plan.program);
    command.args(&plan.args);
    // A launcher above this one may have set these; they would contradict the three below.
    for name in ["PMI_PORT", "PMI_ID", "PMI_SPAWNED", INCARNATION] {
        command.env_remove(name);
    }
    command.envs(plan.env.iter().map(|(name, value)| (name, value)));
    command.env("PMI_FD", socket.to_string());
    command.env("PMI_RANK", rank.to_string()).env("PMI_SIZE", plan.size.to_string());
    let cpu = plan.cpus.get(rank.checked_rem(plan.cpus.len()).unwrap_or(0)).copied();
    let mask = cpu.map(mask_of);
    // SAFETY: getpid has no arguments and cannot fail.
    let launcher = unsafe { libc::getpid() };
    // SAFETY: the closure runs in the child between fork and exec. It makes system calls only, on values made
    // before the fork; it does not allocate or lock, so the state of other threads does not matter.
    unsafe { command.pre_exec(move || prepare(socket, launcher, mask.as_deref())) };
    command
}

/// Prepares the child before it executes the program. Only async-signal-safe calls are allowed.
fn prepare(socket: RawFd, launcher: libc::pid_t, mask: Option<&[u64]>) -> io::Result<()> {
    // SAFETY: PR_SET_PDEATHSIG takes a signal number as an unsigned long and touches no memory.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // The launcher may have died before prctl; then no process would send that signal.
    // SAFETY: getppid has no arguments and cannot fail.
    if unsafe { libc::getppid() } != launcher {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    unblock_signals()?;
    // Only this copy of the socket loses close-on-exec: the other ranks never inherit it.
    // SAFETY: F_SETFD takes an int and touches no memory; `socket` was open at the fork.
    if unsafe { libc::fcntl(socket, libc::F_SETFD, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if let Some(mask) = mask {
        // SAFETY: the pointer and the size in bytes describe `mask`; 0 means the calling thread.
        let code = unsafe { libc::sched_setaffinity(0, size_of_val(mask), mask.as_ptr().cast()) };
        if code != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Unblocks every signal. A blocked signal stays blocked across exec, and the threads of the launcher, or its program,
/// block those that are passed on to the ranks.
fn unblock_signals() -> io::Result<()> {
    let mut none = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set, which sigmask then only reads; no old set is asked for.
    let code = unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut())
    };
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
}

fn mask_of(cpu: usize) -> CpuMask {
    let mut mask = vec![0; MASK_WORDS];
    if let Some(word) = mask.get_mut(cpu / 64) {
        *word = 1_u64 << (cpu % 64);
    }
    mask
}

/// Returns the processors on which the calling thread may run, in order.
pub(super) fn allowed_cpus() -> io::Result<Vec<usize>> {
    let mut mask: CpuMask = vec![0; MASK_WORDS];
    // SAFETY: the pointer and the size in bytes describe `mask`, which is borrowed exclusively for the call.
    let code = unsafe { libc::sched_getaffinity(0, size_of_val(mask.as_slice()), mask.as_mut_ptr().cast()) };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    let has = |cpu: &usize| mask.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1);
    Ok((0..MASK_WORDS * 64).filter(has).collect())
}
