//! The embedded launcher: starts the processes of a job on this machine and serves them PMI-1.

use super::KVSNAME;
use super::error::LaunchError;
use super::forward::{self, ForwardSource, Target};
use super::outcome::Outcome;
use super::poll;
use super::process::{LivePids, Plan, Processes, allowed_cpus};
use super::server::Server;
use super::supervise::{INTERRUPT_GRACE, PASS_ON, Policy, Supervisor};
use crate::os::descriptor::pair;
use std::ffi::OsString;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How long a rank may be without a connection before the barrier of the others fails, unless its end is
/// noticed earlier.
const DISCONNECTION_GRACE: Duration = Duration::from_secs(1);

/// A job to be started on this machine: `n` processes of one program, as `nemesia run` does.
///
/// The processes find each other through PMI-1 (PMI_FD, PMI_RANK and PMI_SIZE are set for them), and need not
/// use it. They inherit the environment, the working directory and the standard streams, except that only rank 0 gets
/// the standard input; the others get an empty one.
///
/// A signal to a rank, at the end of the job or by [`Interrupter`], also reaches the processes that the rank has
/// started, such as the program behind a wrapper script.
#[derive(Debug, Clone)]
pub struct Launcher {
    size: usize,
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    prefix_output: bool,
    keep_going: bool,
    bind: bool,
    restarts: u32,
    adopts: bool,
}

impl Launcher {
    /// Describes a job of `n` processes of `program` with `args`. A program without a slash is searched in
    /// PATH.
    #[must_use]
    pub fn new(n: usize, program: OsString, args: Vec<OsString>) -> Self {
        let env = Vec::new();
        Self {
            size: n,
            program,
            args,
            env,
            prefix_output: false,
            keep_going: false,
            bind: false,
            restarts: 0,
            adopts: false,
        }
    }

    /// Sets whether each line of output gets `[rank] ` in front. Lines of different ranks are then never mixed
    /// (lines of more than 64 KiB are divided), and an unfinished last line is completed. Default: no; the
    /// processes write to the launcher's own output directly.
    #[must_use]
    pub fn prefix_output(mut self, prefix: bool) -> Self {
        self.prefix_output = prefix;
        self
    }

    /// Sets an environment variable for all processes, except PMI_FD, PMI_RANK and PMI_SIZE.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets whether the other ranks go on when one fails. Default: no; they get SIGTERM after 0.2 s, in which they may
    /// say what they have seen, and SIGKILL 2 s later.
    /// A rank that requests an abort by PMI ends the job in any case.
    #[must_use]
    pub fn keep_going(mut self, keep_going: bool) -> Self {
        self.keep_going = keep_going;
        self
    }

    /// Sets whether each rank is bound to one of the allowed processors, round robin. Default: no.
    #[must_use]
    pub fn bind(mut self, bind: bool) -> Self {
        self.bind = bind;
        self
    }

    /// Sets how often, over all ranks, a rank is started again as the same rank after a signal or an exit with
    /// a code other than 0. [`Outcome::restarts`] records each restart. Default: 0. When no more are allowed,
    /// [`Launcher::keep_going`] decides.
    ///
    /// A restarted process finds its place in the world by
    /// [`Exchange::incarnation`](super::Exchange::incarnation); an [`Endpoint`](crate::Endpoint) does so by
    /// itself. If a rank has used PMI and dies before the whole world was there, its restart waits for that. A
    /// rank that has finalized PMI is not started again. A program that does not use PMI is simply started
    /// again.
    #[must_use]
    pub fn restart(mut self, restarts: u32) -> Self {
        self.restarts = restarts;
        self
    }

    /// Sets whether this process serves the job only, as `nemesia run` does: it adopts the processes that ranks leave
    /// behind (PR_SET_CHILD_SUBREAPER), and if the job fails or is interrupted, it ends them with the ranks. Processes
    /// that are left behind by a job that succeeds go on. It must have no other children, because they would be
    /// signalled, and their ends collected. Default: no; then a process is found only through a rank that still runs.
    #[must_use]
    pub fn adopt_orphans(mut self, adopt: bool) -> Self {
        self.adopts = adopt;
        self
    }

    /// Starts the job and waits until all its processes have ended. A failure of the program itself is not an
    /// error here: see [`Outcome`].
    ///
    /// # Errors
    /// The job cannot be started or supervised; no process of it is left.
    pub fn run(&self) -> Result<Outcome, LaunchError> {
        self.spawn()?.wait()
    }

    /// Starts the job. One thread supervises it, and another forwards its output if that is prefixed.
    ///
    /// The kernel kills the processes when the calling thread ends, so that nothing is left when the launcher
    /// itself is killed: call this from a thread that lasts as long as the job. SIGCHLD must not be ignored in
    /// this process, because the system would then not report how its children ended.
    ///
    /// # Errors
    /// The job cannot be started; no process of it is left.
    pub fn spawn(&self) -> Result<Running, LaunchError> {
        let mut processes = Processes::new(self.plan()?).map_err(|source| LaunchError::Adopt { source })?;
        let mut sockets = Vec::with_capacity(self.size);
        let mut sources = Vec::new();
        for rank in 0..self.size {
            let connect = |source| LaunchError::Connect { rank, source };
            let (ours, theirs) = pair().map_err(connect)?;
            let pipes = processes.start(&OwnedFd::from(theirs)).map_err(|source| LaunchError::Start {
                rank,
                program: self.program.clone(),
                source,
            })?;
            for (pipe, target) in pipes.into_iter().zip([Target::Output, Target::Error]) {
                sources.push(ForwardSource::new(rank, pipe, target).map_err(connect)?);
            }
            sockets.push(OwnedFd::from(ours));
        }
        let kvsname = format!("{KVSNAME}{}", std::process::id());
        let server = Server::new(sockets, kvsname, DISCONNECTION_GRACE, self.restarts > 0);
        let policy = Policy { keep_going: self.keep_going, restarts: self.restarts };
        Running::start(processes, server, policy, sources)
    }

    fn plan(&self) -> Result<Plan, LaunchError> {
        if self.size == 0 {
            return Err(LaunchError::NoProcesses);
        }
        let cpus = if self.bind {
            allowed_cpus().map_err(|source| LaunchError::Affinity { source })?
        } else {
            Vec::new()
        };
        Ok(Plan {
            size: self.size,
            program: self.program.clone(),
            args: self.args.clone(),
            env: self.env.clone(),
            pipe_output: self.prefix_output,
            cpus,
            restarts: self.restarts > 0,
            adopts: self.adopts,
        })
    }
}

/// Forwards signals to all ranks of a job, from any thread, for example while another thread is in [`Running::wait`].
#[derive(Debug)]
pub struct Interrupter(UnixStream);

impl Interrupter {
    /// The time between the signal and SIGKILL.
    pub const GRACE: Duration = INTERRUPT_GRACE;

    /// Sends `signal` to all running ranks; those that have not ended after [`Interrupter::GRACE`] get SIGKILL.
    /// The second call sends SIGKILL at once. After that no rank is restarted, and [`Outcome::exit_code`] is
    /// 128 + `signal`. No effect if the job has ended, or if `signal` is not between 1 and 127.
    pub fn interrupt(&self, signal: i32) {
        self.send(signal, 0);
    }

    /// Sends `signal` to all running ranks and does nothing else, as for SIGUSR1, or for SIGTSTP and SIGCONT. No effect
    /// if the job has ended, or if `signal` is not between 1 and 127.
    pub fn pass_on(&self, signal: i32) {
        self.send(signal, PASS_ON);
    }

    fn send(&self, signal: i32, flag: u8) {
        if let Some(byte) = u8::try_from(signal).ok().filter(|byte| (1..128).contains(byte)) {
            // An error means that the job has ended, or that many signals are unread: no signal is lost in
            // either case.
            let _ = poll::send(self.0.as_fd(), &[byte | flag]);
        }
    }
}

/// A running job. Dropping it without [`Running::wait`] kills the remaining processes.
///
/// Several threads may use it at once.
#[derive(Debug)]
pub struct Running {
    ids: Vec<u32>,
    live: LivePids,
    /// The supervisor takes its shutdown as the end of the owner: the job is then abandoned. Interrupters have
    /// it, too.
    owner: UnixStream,
    supervisor: Option<JoinHandle<Result<Outcome, LaunchError>>>,
    forwarder: Option<Forwarder>,
}

/// The thread that forwards output. It ends when all output is forwarded, or soon after `stop` is closed.
#[derive(Debug)]
struct Forwarder {
    stop: UnixStream,
    /// Returns why output was lost, if any was.
    thread: JoinHandle<Option<String>>,
}

impl Running {
    fn start(
        processes: Processes,
        server: Server,
        policy: Policy,
        sources: Vec<ForwardSource>,
    ) -> Result<Self, LaunchError> {
        let failed = |source| LaunchError::Thread { source };
        let (ids, live) = (processes.ids(), processes.live_pids());
        let (owner, theirs) = pair().map_err(failed)?;
        let supervisor = Supervisor::new(processes, server, policy, theirs);
        // Started before the supervisor: if this thread cannot be made, dropping `supervisor` ends the
        // processes.
        let forwarder = if sources.is_empty() { None } else { Some(Forwarder::start(sources)?) };
        let thread = Builder::new().name("nemesia-launch".to_owned()).spawn(move || supervisor.run());
        let supervisor = Some(thread.map_err(failed)?);
        Ok(Self { ids, live, owner, supervisor, forwarder })
    }

    /// Returns the process id of each rank's first process, in order. After the end of a rank, its id may
    /// belong to another process: use [`Running::kill`] for signals.
    #[must_use]
    pub fn pids(&self) -> &[u32] {
        &self.ids
    }

    /// Returns the present process of a rank; `None` if it has ended and was not started again, or not yet. As
    /// for [`Running::pids`], use [`Running::kill`] for signals.
    #[must_use]
    pub fn pid(&self, rank: usize) -> Option<u32> {
        self.live.pid(rank)
    }

    /// Sends `signal` to the process of `rank`. It never reaches a process that the launcher did not start.
    ///
    /// # Errors
    /// [`LaunchError::NotRunning`] if the process has ended, [`LaunchError::Signal`] for a bad signal.
    pub fn kill(&self, rank: usize, signal: i32) -> Result<(), LaunchError> {
        match self.live.signal(rank, signal) {
            Ok(true) => Ok(()),
            Ok(false) => Err(LaunchError::NotRunning { rank }),
            Err(source) => Err(LaunchError::Signal { rank, signal, source }),
        }
    }

    /// Returns a handle with which another thread forwards signals while one is in [`Running::wait`].
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn interrupter(&self) -> Result<Interrupter, LaunchError> {
        self.owner.try_clone().map(Interrupter).map_err(|source| LaunchError::Thread { source })
    }

    /// Waits until all processes have ended and their output is forwarded.
    ///
    /// # Errors
    /// The processes can no longer be supervised; all of them have been ended.
    pub fn wait(mut self) -> Result<Outcome, LaunchError> {
        let outcome = match self.supervisor.take().map(JoinHandle::join) {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) | None => Err(LaunchError::Panicked),
        };
        let lost_output = self.finish_output();
        outcome.map(|outcome| Outcome { lost_output, ..outcome })
    }

    /// Waits until the output is forwarded. Returns why some was lost.
    fn finish_output(&mut self) -> Option<String> {
        let Forwarder { stop, thread } = self.forwarder.take()?;
        drop(stop);
        thread.join().unwrap_or_else(|_| Some("the thread that forwards it panicked".to_owned()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It fails only where the supervisor is gone already.
        let _ = self.owner.shutdown(Shutdown::Both);
        if let Some(thread) = self.supervisor.take() {
            // The outcome cannot be reported here.
            let _ = thread.join();
        }
        let _ = self.finish_output();
    }
}

impl Forwarder {
    fn start(sources: Vec<ForwardSource>) -> Result<Self, LaunchError> {
        let failed = |source| LaunchError::Thread { source };
        let (stop, theirs) = pair().map_err(failed)?;
        let thread = Builder::new()
            .name("nemesia-output".to_owned())
            .spawn(move || forward::run(sources, &theirs))
            .map_err(failed)?;
        Ok(Self { stop, thread })
    }
}
