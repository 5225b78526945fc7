//! A world of processes: started by the launcher, waited for under a deadline, each rank's words kept.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nemesia::bootstrap::{ExitKind, Launcher, Running};

use crate::leftovers::{self, OUTPUT};

/// A world of processes hangs when it has not ended by then. Nothing here is expected to come near.
pub const DEADLINE: Duration = Duration::from_secs(120);
/// How often ranks are asked whether they have ended: the precision of [`Rank::ended`].
const ASK_EVERY: Duration = Duration::from_millis(1);

static JOBS: AtomicU32 = AtomicU32::new(0);

/// A world to be started.
#[derive(Clone, Debug)]
pub struct Job {
    program: PathBuf,
    scratch: PathBuf,
    args: Vec<OsString>,
    env: Vec<(String, String)>,
    before: String,
    wrapper: String,
    restarts: u32,
}

/// How a rank ended, and what it said.
#[derive(Clone, Debug)]
pub struct Rank {
    /// Exit code or signal.
    pub kind: ExitKind,
    /// What it wrote to its standard output.
    pub output: String,
    /// What it wrote to its standard error.
    pub errors: String,
    /// When its end was seen.
    pub ended: Instant,
}

/// A world that runs.
#[derive(Debug)]
pub struct World {
    running: Running,
    directory: Directory,
    ended: Vec<Option<Instant>>,
}

/// A directory of its own, removed in the end.
#[derive(Debug)]
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        // What is left of it lies in the target directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Job {
    /// A world of `program` with arguments split at spaces. `scratch` is `CARGO_TARGET_TMPDIR`.
    pub fn new(program: impl AsRef<Path>, scratch: impl AsRef<Path>, args: &str) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            scratch: scratch.as_ref().to_owned(),
            args: args.split_whitespace().map(OsString::from).collect(),
            env: Vec::new(),
            before: String::new(),
            wrapper: String::new(),
            restarts: 0,
        }
    }

    /// Sets a variable for all ranks.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Shell commands that each rank runs before it becomes the program; `$PMI_RANK` tells which one it is.
    #[must_use]
    pub fn before(mut self, commands: &str) -> Self {
        self.before = format!("{commands}\n");
        self
    }

    /// A program that starts the program.
    #[must_use]
    pub fn wrapper(mut self, words: &str) -> Self {
        words.clone_into(&mut self.wrapper);
        self
    }

    /// Ranks that fail are started again, at most so often in all. What all processes of a rank say is kept.
    #[must_use]
    pub fn restart(mut self, restarts: u32) -> Self {
        self.restarts = restarts;
        self
    }

    /// Starts so many ranks. The calling thread must outlast them.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(&self, size: usize) -> Result<World, String> {
        let name = format!("job-{}-{}", std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed));
        let directory = Directory(self.scratch.join(name));
        std::fs::create_dir_all(&directory.0)
            .map_err(|error| format!("{}: {error}", directory.0.display()))?;
        let Self { before, wrapper, .. } = self;
        let script = format!(
            "{before}exec {wrapper} \"$@\" >>\"${OUTPUT}/$PMI_RANK.out\" 2>>\"${OUTPUT}/$PMI_RANK.err\""
        );
        let mut args: Vec<OsString> =
            vec!["-c".into(), script.into(), "sh".into(), self.program.clone().into()];
        args.extend(self.args.iter().cloned());
        let mut launcher =
            Launcher::new(size, "/bin/sh".into(), args).keep_going(true).restart(self.restarts);
        // The configuration files of whoever runs the tests do not count.
        launcher = launcher.env(OUTPUT, &directory.0).env("NEMESIA_CONFIG", "");
        for (name, value) in &self.env {
            launcher = launcher.env(name, value);
        }
        let running = launcher.spawn().map_err(|error| error.to_string())?;
        leftovers::started(&directory.0, running.pids());
        Ok(World { running, directory, ended: vec![None; size] })
    }

    /// Starts so many ranks and waits until all have ended.
    ///
    /// # Errors
    /// When it cannot be started, or does not end.
    pub fn run(&self, size: usize) -> Result<Vec<Rank>, String> {
        self.spawn(size)?.wait(DEADLINE)
    }

    /// As [`Job::run`], and every rank must succeed.
    ///
    /// # Errors
    /// What each rank said, unless all have succeeded.
    pub fn succeed(&self, size: usize) -> Result<Vec<Rank>, String> {
        let ranks = self.run(size)?;
        if ranks.iter().all(|rank| rank.kind.is_success()) {
            return Ok(ranks);
        }
        Err(format!("{:?} failed\n{}", self.args, report(&ranks)))
    }
}

impl World {
    /// The process of each rank.
    pub fn pids(&self) -> &[u32] {
        self.running.pids()
    }

    /// The process of a rank that runs now, if one does.
    pub fn pid(&self, rank: usize) -> Option<u32> {
        self.running.pid(rank)
    }

    /// Sends a signal to a rank; false when it has ended before.
    pub fn signal(&self, rank: usize, signal: i32) -> bool {
        self.running.kill(rank, signal).is_ok()
    }

    /// What a rank has written to its standard output so far.
    pub fn output(&self, rank: usize) -> String {
        self.read(rank, "out")
    }

    fn read(&self, rank: usize, stream: &str) -> String {
        let path = self.directory.0.join(format!("{rank}.{stream}"));
        // A rank that was killed before it became the program has no such file.
        std::fs::read(path).map_or_else(|_| String::new(), |text| String::from_utf8_lossy(&text).into_owned())
    }

    /// Waits until all ranks have ended.
    ///
    /// # Errors
    /// After the limit: which ranks hang, and where. They are killed.
    pub fn wait(mut self, limit: Duration) -> Result<Vec<Rank>, String> {
        let deadline = Instant::now() + limit;
        while self.ended.contains(&None) {
            let now = Instant::now();
            for rank in 0..self.ended.len() {
                // Signal 0 only asks. A rank that was started again has not ended.
                self.ended[rank] = if self.signal(rank, 0) { None } else { self.ended[rank].or(Some(now)) };
            }
            if now >= deadline {
                return Err(self.give_up(limit));
            }
            std::thread::sleep(ASK_EVERY);
        }
        let words: Vec<_> =
            (0..self.ended.len()).map(|rank| (self.read(rank, "out"), self.read(rank, "err"))).collect();
        let Self { running, ended, .. } = self;
        let outcome = running.wait().map_err(|error| error.to_string())?;
        let ranks = outcome.ranks.iter().zip(words).zip(ended);
        let ranks = ranks.map(|((exit, (output, errors)), ended)| Rank {
            kind: exit.kind,
            output,
            errors,
            ended: ended.unwrap_or_else(Instant::now),
        });
        Ok(ranks.collect())
    }

    /// Kills what is left, and says what it was doing.
    fn give_up(self, limit: Duration) -> String {
        let mut text = format!("not ended within {limit:?}:\n");
        for (rank, ended) in self.ended.iter().enumerate() {
            let place = |file: &str| {
                std::fs::read_to_string(format!("/proc/{}/{file}", self.pids()[rank])).unwrap_or_default()
            };
            let status = place("status");
            let state = status.lines().find(|line| line.starts_with("State")).unwrap_or_default();
            let alive =
                if ended.is_none() { format!("{state} in {}", place("syscall")) } else { "ended".into() };
            text += &format!("rank {rank}: {alive}\n{}{}", self.read(rank, "out"), self.read(rank, "err"));
        }
        for rank in 0..self.ended.len() {
            self.signal(rank, libc::SIGKILL);
        }
        text
    }
}

/// How every rank ended, with its words.
pub fn report(ranks: &[Rank]) -> String {
    let line = |(number, rank): (usize, &Rank)| {
        format!("rank {number} {}\n{}{}", rank.kind, rank.output, rank.errors)
    };
    ranks.iter().enumerate().map(line).collect()
}
