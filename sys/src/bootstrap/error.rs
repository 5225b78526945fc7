//! Errors of the exchange through which processes find each other, and of the launcher.

use super::wire::WireError;
use std::ffi::OsString;
use std::io;
use std::time::Duration;

/// Why the exchange with the launcher failed. Each message is one line: what failed, and the remedy.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// Some of PMI_FD, PMI_RANK and PMI_SIZE are set, but not all.
    #[error(
        "{missing} is not set, unlike {present}; start with mpiexec.hydra or `nemesia run`, or unset {present} to run \
         one process alone"
    )]
    Missing {
        /// The variables that are set.
        present: String,
        /// The variable that is not set.
        missing: &'static str,
    },
    /// A variable holds no number, or one out of range.
    #[error(
        "{name}={value:?} is not {wanted}; start with mpiexec.hydra or `nemesia run`, which set it, or unset PMI_FD, \
         PMI_RANK and PMI_SIZE to run one process alone"
    )]
    BadVariable {
        /// The variable.
        name: &'static str,
        /// The beginning of its value.
        value: String,
        /// The expected value.
        wanted: &'static str,
    },
    /// PMI_RANK is not below PMI_SIZE.
    #[error(
        "PMI_RANK={rank} is not below PMI_SIZE={size}; correct them, or start with mpiexec.hydra or `nemesia run`"
    )]
    RankOutOfRange {
        /// The rank.
        rank: usize,
        /// The number of processes.
        size: usize,
    },
    /// PMI_FD is not a connection to a launcher.
    #[error(
        "PMI_FD={fd} {reason}; start with mpiexec.hydra or `nemesia run`, and do not close it on the way"
    )]
    BadDescriptor {
        /// The file descriptor.
        fd: i32,
        /// The reason.
        reason: String,
    },
    /// This process has opened PMI_FD before.
    #[error("PMI_FD={fd} was opened by this process before; call from_env once and keep what it returns")]
    AlreadyOpened {
        /// The file descriptor.
        fd: i32,
    },
    /// Other code of this process has initialised the connection to the launcher.
    #[error(
        "the launcher's connection (PMI_FD) belongs to other code of this process, as {by} reports; pass that \
         runtime's own exchange to open_with, or set NEMESIA_PMI_TAKE_OVER=1 if it no longer uses the connection"
    )]
    Owned {
        /// The function or the program that reports it.
        by: String,
    },
    /// A launcher that does not speak PMI-1 started several processes.
    #[error(
        "{name}={value:?} says that there are several processes, but their launcher did not offer PMI-1 \
         (PMI_FD is not set); start with mpiexec.hydra or `nemesia run`, or unset {name} to run one process alone"
    )]
    ForeignLauncher {
        /// The variable that shows it.
        name: &'static str,
        /// The beginning of its value.
        value: String,
    },
    /// The launcher closed the connection.
    #[error(
        "PMI_FD was closed at its other end during {during}: the launcher has ended, or ends this job, or PMI_FD is \
         not its connection; start again with mpiexec.hydra or `nemesia run`"
    )]
    LauncherGone {
        /// The operation.
        during: &'static str,
    },
    /// The launcher did not answer in time.
    #[error(
        "no answer from the launcher to {during} within the deadline of {deadline:?}; look for a process that \
         hangs before it, or set a longer deadline"
    )]
    Timeout {
        /// The operation.
        during: &'static str,
        /// The deadline.
        deadline: Duration,
    },
    /// The operating system refused to read or write.
    #[error("PMI_FD failed during {during}: {source}; start again")]
    Io {
        /// The operation.
        during: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The launcher sent a line that is not PMI-1.
    #[error(
        "the launcher answered {during} with {source}; use a launcher that speaks PMI-1, such as mpiexec.hydra"
    )]
    Protocol {
        /// The operation.
        during: &'static str,
        /// The mistake in the line.
        source: WireError,
    },
    /// The launcher answered a request other than the one that was sent, or sent an answer without a request.
    #[error(
        "the launcher answered {during} with {reply:?}; use a launcher that speaks PMI-1, such as mpiexec.hydra"
    )]
    Unexpected {
        /// The operation.
        during: &'static str,
        /// The beginning of the answer.
        reply: String,
    },
    /// The launcher understood the request and refused it.
    #[error(
        "the launcher refused {during} with code {code} ({reason}); check it against the launcher's limits and version"
    )]
    Refused {
        /// The operation.
        during: &'static str,
        /// The launcher's code.
        code: i32,
        /// The launcher's reason.
        reason: String,
    },
    /// The caller's own exchange refused a call. The reason is the caller's, as [`BootstrapError::caller`] got it;
    /// `source` returns it.
    #[error("the caller's own exchange refused {during}: {source}")]
    Caller {
        /// The operation.
        during: &'static str,
        /// The caller's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A process that the barrier waits for is gone.
    #[error("the barrier failed ({reason}); see how that process ended, and start again")]
    BarrierFailed {
        /// The reason that the launcher gave; `nemesia run` names the rank.
        reason: String,
    },
    /// The key was never put.
    #[error("key {key:?} is not known ({reason}); put it before a barrier and get it after the barrier")]
    KeyNotFound {
        /// The key.
        key: String,
        /// The reason.
        reason: String,
    },
    /// The key was put before.
    #[error("key {key:?} was put before; use every key once")]
    KeyTaken {
        /// The key.
        key: String,
    },
    /// The key or the value cannot be carried.
    #[error(
        "{what} {text:?} cannot be carried: it must have 1 to {limit} bytes of printable ASCII, {without}; encode it \
        in hexadecimal or divide it"
    )]
    Unencodable {
        /// "key" or "value".
        what: &'static str,
        /// The beginning of it.
        text: String,
        /// The most bytes allowed.
        limit: usize,
        /// What it must not contain.
        without: &'static str,
    },
    /// The exchange does not start ranks again.
    #[error(
        "no rank can be started again in this world: its launcher does not do that; start with `nemesia run --restart \
        N`"
    )]
    NoRestart,
    /// An earlier failure has left the connection in an unknown state.
    #[error(
        "{during} is not possible after an earlier failure of the launcher's connection; end this process"
    )]
    Broken {
        /// The operation.
        during: &'static str,
    },
    /// The exchange was finalized.
    #[error("{during} is not possible after finalize; call it before")]
    Finalized {
        /// The operation.
        during: &'static str,
    },
}

impl BootstrapError {
    /// Returns the error of an exchange of the caller's own. `during` names the operation, and `reason` is any error or
    /// text.
    pub fn caller(during: &'static str, reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Caller { during, source: reason.into() }
    }
}

/// The reason why a job could not be started or supervised. Each message is one line: the failure and the
/// remedy.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The number of processes is 0.
    #[error("0 processes cannot be started; ask for at least 1")]
    NoProcesses,
    /// A process could not be started. The processes started before it have been ended.
    #[error(
        "cannot start {program:?} as rank {rank}: {source}; check its path, its permissions and the limits on \
         processes (ulimit -u) and open files (ulimit -n)"
    )]
    Start {
        /// The rank.
        rank: usize,
        /// The program.
        program: OsString,
        /// The error of the system.
        source: io::Error,
    },
    /// A socket or a pipe could not be made.
    #[error(
        "cannot connect rank {rank} to the launcher: {source}; raise the limit on open files (ulimit -n)"
    )]
    Connect {
        /// The rank.
        rank: usize,
        /// The error of the system.
        source: io::Error,
    },
    /// The allowed processors could not be read.
    #[error("cannot read the allowed processors: {source}; start without binding")]
    Affinity {
        /// The error of the system.
        source: io::Error,
    },
    /// The launcher cannot adopt the processes that ranks leave behind.
    #[error("cannot adopt the processes of ranks: {source}; allow prctl(PR_SET_CHILD_SUBREAPER)")]
    Adopt {
        /// The error of the system.
        source: io::Error,
    },
    /// A thread of the launcher could not be started. All processes have been ended.
    #[error("cannot start a thread of the launcher: {source}; raise the limit on processes (ulimit -u)")]
    Thread {
        /// The error of the system.
        source: io::Error,
    },
    /// The processes can no longer be watched. All of them have been ended.
    #[error("cannot wait for the processes: {source}; raise the limit on open files (ulimit -n)")]
    Watch {
        /// The error of the system.
        source: io::Error,
    },
    /// A thread of the launcher panicked. All processes have been ended.
    #[error("a thread of the launcher has panicked; report this as an error of Nemesia")]
    Panicked,
    /// There is no such rank, or its process has ended.
    #[error("rank {rank} is not running; signal ranks that have not ended")]
    NotRunning {
        /// The rank.
        rank: usize,
    },
    /// A signal could not be sent.
    #[error("cannot send signal {signal} to rank {rank}: {source}; use a valid signal number")]
    Signal {
        /// The rank.
        rank: usize,
        /// The signal.
        signal: i32,
        /// The error of the system.
        source: io::Error,
    },
}
