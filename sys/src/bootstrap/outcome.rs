//! The ends of the processes of a launch.

use std::fmt;

/// The end of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExitKind {
    /// It exited with this code (0 to 255).
    Exited(i32),
    /// This signal ended it.
    Signaled(i32),
    /// The rank requested the end of the whole job with this exit code, by PMI.
    Aborted(i32),
    /// The operating system did not report how it ended.
    Unknown,
}

impl ExitKind {
    /// Returns whether it exited with code 0.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Exited(0)
    }

    /// Returns the exit status that a shell would show, from 0 to 255: the code, or 128 + signal. A failure is
    /// never shown as 0.
    #[must_use]
    pub fn status(self) -> i32 {
        let status = match self {
            Self::Exited(0) => return 0,
            Self::Exited(code) | Self::Aborted(code) => code & 0xff,
            Self::Signaled(signal) => 128 + (signal & 0x7f),
            Self::Unknown => 1,
        };
        status.max(1)
    }
}

impl fmt::Display for ExitKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(out, "exited with code {code}"),
            Self::Signaled(signal) => write!(out, "was ended by {}", SignalName(*signal)),
            Self::Aborted(code) => write!(out, "aborted the job with code {code}"),
            Self::Unknown => write!(out, "ended, and the operating system did not say how"),
        }
    }
}

/// A signal by number, and by name if the name is well known.
struct SignalName(i32);

impl fmt::Display for SignalName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            libc::SIGHUP => "SIGHUP",
            libc::SIGINT => "SIGINT",
            libc::SIGQUIT => "SIGQUIT",
            libc::SIGILL => "SIGILL",
            libc::SIGTRAP => "SIGTRAP",
            libc::SIGABRT => "SIGABRT",
            libc::SIGBUS => "SIGBUS",
            libc::SIGFPE => "SIGFPE",
            libc::SIGKILL => "SIGKILL",
            libc::SIGUSR1 => "SIGUSR1",
            libc::SIGSEGV => "SIGSEGV",
            libc::SIGUSR2 => "SIGUSR2",
            libc::SIGPIPE => "SIGPIPE",
            libc::SIGTERM => "SIGTERM",
            number => return write!(out, "signal {number}"),
        };
        write!(out, "signal {} ({name})", self.0)
    }
}

/// The end of one rank, and whether the launcher ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankExit {
    /// How it ended.
    pub kind: ExitKind,
    /// Whether the launcher had sent it SIGTERM or SIGKILL because another rank had failed, or forwarded a signal to
    /// it.
    pub ended_by_launcher: bool,
}

/// A rank that had ended and was started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankRestart {
    /// The rank.
    pub rank: usize,
    /// How often it had been started before.
    pub incarnation: u64,
    /// How the former process had ended.
    pub kind: ExitKind,
    /// The id of the new process.
    pub pid: u32,
}

impl fmt::Display for RankRestart {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, incarnation, kind, pid } = self;
        write!(out, "rank {rank} {kind} and was started again (incarnation {incarnation}, pid {pid})")
    }
}

/// The ends of all processes of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// One entry for each rank, in order: the end of its last process.
    pub ranks: Vec<RankExit>,
    /// The rank that failed first, and how; `None` if all exited with code 0. Ranks that the launcher ended are
    /// not failures of their own, nor are those that it started again.
    pub first_failure: Option<(usize, ExitKind)>,
    /// The ranks that were started again, in that order.
    pub restarts: Vec<RankRestart>,
    /// Ranks whose PMI connection the launcher closed because of their requests, or that it could not start
    /// again, with the reason.
    pub faults: Vec<(usize, String)>,
    /// The first signal that was forwarded to all ranks ([`Interrupter`](super::Interrupter)).
    pub interrupted: Option<i32>,
    /// The reason why output of the ranks was lost, with the stream: the launcher could not write it. The ranks' later
    /// writes to that stream have failed.
    pub lost_output: Option<String>,
}

impl Outcome {
    /// Returns the exit status for the launcher itself: 128 + signal if a signal was forwarded; otherwise that of the
    /// first failure (128 + signal for a signal), 1 if output was lost, or 0.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        if let Some(signal) = self.interrupted {
            return ExitKind::Signaled(signal).status();
        }
        self.first_failure.map_or(i32::from(self.lost_output.is_some()), |(_, kind)| kind.status())
    }
}

/// One line: the rank that failed first and how, and the ends of the others.
impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.ranks.len();
        if let Some(signal) = self.interrupted {
            write!(out, "{} was passed on to all ranks; ", SignalName(signal))?;
        }
        match self.first_failure {
            None if self.interrupted.is_some() => write!(out, "all {count} ranks have ended")?,
            None => write!(out, "all {count} ranks exited with code 0")?,
            Some((rank, kind)) => {
                write!(out, "rank {rank} of {count} {kind}")?;
                let ended = self.ranks.iter().filter(|exit| exit.ended_by_launcher).count();
                let others = self.ranks.iter().enumerate().filter(|(other, exit)| {
                    *other != rank && !exit.ended_by_launcher && !exit.kind.is_success()
                });
                let failed = others.count();
                if failed > 0 {
                    write!(out, "; {failed} more failed")?;
                }
                if ended > 0 {
                    write!(out, "; the launcher ended {ended}")?;
                }
            }
        }
        for restart in &self.restarts {
            write!(out, "; {restart}")?;
        }
        for (rank, fault) in &self.faults {
            write!(out, "; PMI connection of rank {rank}: {fault}")?;
        }
        if let Some(reason) = &self.lost_output {
            write!(out, "; output was lost: {reason}")?;
        }
        Ok(())
    }
}
