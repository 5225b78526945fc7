//! Supervises the processes of a launch: one loop that answers them, notices their ends, and ends the rest.

use super::error::LaunchError;
use super::outcome::{ExitKind, Outcome, RankExit, RankRestart};
use super::poll;
use super::process::Processes;
use super::server::{Restart, Server};
use crate::os::descriptor::pair;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The time between the failure of a rank and SIGTERM. What other ranks print about it, or about the cause that they
/// see, is not lost.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// The time between SIGTERM and SIGKILL when a rank has failed.
const GRACE: Duration = Duration::from_secs(2);
/// The time between a forwarded signal and SIGKILL.
pub(super) const INTERRUPT_GRACE: Duration = Duration::from_secs(5);
/// The bit that the owner adds to a signal that does not end the job.
pub(super) const PASS_ON: u8 = 0x80;
/// The interval at which the end of a process is polled if the kernel cannot report it.
const ASK_EVERY: Duration = Duration::from_millis(10);

/// The interval at which the ends of adopted processes are collected, if nothing else happens.
const COLLECT_EVERY: Duration = Duration::from_secs(1);

/// The progress of ending the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Not requested.
    No,
    /// A rank has failed; SIGTERM follows at this time.
    Due(Instant),
    /// SIGTERM, or the signal of an interruption, was sent; SIGKILL follows at this time.
    Asked(Instant),
    /// SIGKILL was sent.
    Forced,
}

/// The reaction to the failure of a rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Policy {
    pub(super) keep_going: bool,
    /// The number of restarts that are still allowed.
    pub(super) restarts: u32,
}

/// The state of the loop. Dropping it kills the remaining processes.
#[derive(Debug)]
pub(super) struct Supervisor {
    processes: Processes,
    server: Server,
    policy: Policy,
    /// Ranks to be restarted when the world is complete, and how they ended.
    waiting: Vec<(usize, ExitKind)>,
    restarts: Vec<RankRestart>,
    /// The reasons why ranks could not be restarted.
    faults: Vec<(usize, String)>,
    /// [`Running`](super::Running) holds the other side. A byte from there is a signal to forward. If it is shut down,
    /// the job has been abandoned.
    owner: UnixStream,
    ending: Ending,
    /// The first signal that was forwarded.
    interrupted: Option<i32>,
    first_failure: Option<(usize, ExitKind)>,
}

impl Supervisor {
    pub(super) fn new(processes: Processes, server: Server, policy: Policy, owner: UnixStream) -> Self {
        Self {
            processes,
            server,
            policy,
            waiting: Vec::new(),
            restarts: Vec::new(),
            faults: Vec::new(),
            owner,
            ending: Ending::No,
            interrupted: None,
            first_failure: None,
        }
    }

    /// Runs until all processes have ended. If the job has failed, those that ranks have left behind have ended, too.
    pub(super) fn run(mut self) -> Result<Outcome, LaunchError> {
        while !self.is_over(Instant::now()) {
            let called = self.wait()?;
            let now = Instant::now();
            let abandoned = called && self.hear_owner(now);
            self.server.turn(now);
            self.hear_aborts(now);
            self.bury(now);
            self.restart_waiting(now);
            self.advance_ending(now, abandoned);
        }
        // The world never was complete, so these ranks cannot join it again.
        for (rank, kind) in std::mem::take(&mut self.waiting) {
            self.note_failure(rank, kind);
        }
        self.faults.append(&mut self.server.take_faults());
        let exits = self.processes.exits();
        let ranks = exits.map(|(exit, ended_by_launcher)| RankExit {
            kind: exit.unwrap_or(ExitKind::Unknown),
            ended_by_launcher,
        });
        Ok(Outcome {
            ranks: ranks.collect(),
            first_failure: self.first_failure,
            restarts: self.restarts,
            faults: self.faults,
            interrupted: self.interrupted,
            lost_output: None,
        })
    }

    fn is_over(&mut self, now: Instant) -> bool {
        if !self.processes.all_ended() {
            return false;
        }
        let failed = self.first_failure.is_some() || !self.waiting.is_empty() || self.ending != Ending::No;
        // After a success, a server that a rank has started may go on.
        if !failed || !self.processes.any_below() {
            return true;
        }
        match self.ending {
            Ending::No | Ending::Due(_) => self.ask_all_to_end(now),
            Ending::Asked(_) => {}
            // They may have started others since.
            Ending::Forced => self.processes.end_all(libc::SIGKILL),
        }
        false
    }

    /// Waits for an event. Returns whether the owner has sent something.
    fn wait(&self) -> Result<bool, LaunchError> {
        let now = Instant::now();
        let mut entries = Vec::new();
        let forced = self.ending == Ending::Forced;
        if !forced {
            entries.push(poll::entry(self.owner.as_fd(), libc::POLLIN));
        }
        entries.extend(self.processes.watched().map(|fd| poll::entry(fd.as_fd(), libc::POLLIN)));
        self.server.add_entries(&mut entries);
        let timeouts = [
            self.server.next_chunk(now),
            match self.ending {
                Ending::Due(next) | Ending::Asked(next) => Some(next.saturating_duration_since(now)),
                Ending::No | Ending::Forced => None,
            },
            (self.processes.any_unwatched() || self.processes.all_ended()).then_some(ASK_EVERY),
            self.processes.adopts().then_some(COLLECT_EVERY),
        ];
        poll::wait(&mut entries, timeouts.into_iter().flatten().min())
            .map_err(|source| LaunchError::Watch { source })?;
        Ok(!forced && entries.first().is_some_and(|entry| entry.revents != 0))
    }

    /// Forwards the signals that the owner has sent. Returns whether the owner has abandoned the job.
    fn hear_owner(&mut self, now: Instant) -> bool {
        let mut signals = [0; 16];
        let count = match poll::receive(self.owner.as_fd(), &mut signals) {
            Ok(0) => return true,
            Ok(count) => count,
            Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
        };
        for byte in &signals[..count] {
            let signal = i32::from(byte & !PASS_ON);
            if byte & PASS_ON == 0 {
                self.interrupt(signal, now);
            } else {
                self.processes.signal_all(signal);
            }
        }
        false
    }

    /// Forwards a signal. The second one ends the job at once.
    fn interrupt(&mut self, signal: i32, now: Instant) {
        if self.interrupted.is_some() {
            self.ending = Ending::Asked(now);
            return;
        }
        self.interrupted = Some(signal);
        // Also if a rank has just failed: Ctrl-C reaches the ranks of a terminal before it is forwarded.
        self.ending = Ending::Asked(now + INTERRUPT_GRACE);
        self.processes.end_all(signal);
    }

    fn hear_aborts(&mut self, now: Instant) {
        for abort in self.server.take_aborts() {
            self.note_failure(abort.rank, ExitKind::Aborted(abort.code));
            self.ask_all_to_end(now);
        }
    }

    /// Reaps ended processes and reacts to their ends.
    fn bury(&mut self, now: Instant) {
        let mut ended = self.processes.reap();
        // If several ends are detected at once, a death by a signal is the likelier cause: the others may have
        // failed because of it.
        ended.sort_by_key(|(rank, kind, _)| (!matches!(kind, ExitKind::Signaled(_)), *rank));
        for (rank, kind, ended_by_launcher) in ended {
            // The rank's last requests are handled first: an abort takes precedence over the exit code that
            // follows it.
            self.server.rank_ended(rank, now);
            self.hear_aborts(now);
            if !kind.is_success() && !ended_by_launcher {
                match self.server.can_restart(rank) {
                    Restart::Never => self.give_up(rank, kind, now),
                    _ if self.policy.restarts == 0 || self.ending != Ending::No => {
                        self.give_up(rank, kind, now);
                    }
                    _ => {
                        self.policy.restarts -= 1;
                        self.waiting.push((rank, kind));
                    }
                }
            }
        }
    }

    /// Handles the failure of a rank that is not restarted.
    fn give_up(&mut self, rank: usize, kind: ExitKind, now: Instant) {
        self.note_failure(rank, kind);
        if !self.policy.keep_going && self.ending == Ending::No {
            self.ending = Ending::Due(now + LAST_WORDS);
        }
    }

    /// Restarts waiting ranks that can be restarted now.
    fn restart_waiting(&mut self, now: Instant) {
        for (rank, kind) in std::mem::take(&mut self.waiting) {
            if self.ending != Ending::No {
                self.note_failure(rank, kind);
            } else if self.server.can_restart(rank) == Restart::Later {
                self.waiting.push((rank, kind));
            } else if let Err(error) = self.restart(rank, kind) {
                self.faults.push((rank, format!("it could not be started again: {error}")));
                self.give_up(rank, kind, now);
            }
        }
    }

    /// Restarts a rank from this thread, which lasts as long as the processes: the kernel kills them when it
    /// ends.
    fn restart(&mut self, rank: usize, kind: ExitKind) -> io::Result<()> {
        let (ours, theirs) = pair()?;
        let incarnation = self.server.next_incarnation(rank);
        let pid = self.processes.restart(rank, incarnation, &OwnedFd::from(theirs))?;
        self.server.rank_restarted(rank, OwnedFd::from(ours));
        self.restarts.push(RankRestart { rank, incarnation, kind, pid });
        Ok(())
    }

    fn note_failure(&mut self, rank: usize, kind: ExitKind) {
        self.first_failure.get_or_insert((rank, kind));
    }

    fn ask_all_to_end(&mut self, now: Instant) {
        if matches!(self.ending, Ending::No | Ending::Due(_)) {
            self.ending = Ending::Asked(now + GRACE);
            self.processes.end_all(libc::SIGTERM);
        }
    }

    fn advance_ending(&mut self, now: Instant, abandoned: bool) {
        if matches!(self.ending, Ending::Due(at) if now >= at) {
            self.ask_all_to_end(now);
        }
        let due = matches!(self.ending, Ending::Asked(kill_at) if now >= kill_at);
        if due || abandoned {
            self.ending = Ending::Forced;
            self.processes.end_all(libc::SIGKILL);
        }
    }
}
