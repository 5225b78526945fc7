//! Worlds of processes: a launcher starts them, a deadline bounds them, and the output of each rank is kept.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nemesia::bootstrap::{ExitKind, Launcher, Running};

use crate::leftovers::{self, OUTPUT};

/// The time after which a world counts as hanging. No test is expected to come near.
pub const DEADLINE: Duration = Duration::from_secs(120);
/// The interval of the checks whether ranks have ended: the precision of [`Rank::ended`].
const ASK_EVERY: Duration = Duration::from_millis(1);

static JOBS: AtomicU32 = AtomicU32::new(0);

/// A world that is to be started.
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

/// The end and the output of a rank.
#[derive(Clone, Debug)]
pub struct Rank {
    /// Exit code or signal.
    pub kind: ExitKind,
    /// Its standard output.
    pub output: String,
    /// Its standard error output.
    pub errors: String,
    /// The time at which its end was noticed.
    pub ended: Instant,
}

/// A running world.
#[derive(Debug)]
pub struct World {
    running: Running,
    directory: Directory,
    ended: Vec<Option<Instant>>,
}

/// A directory that is removed at the end.
#[derive(Debug)]
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        // Whatever cannot be removed lies in the target directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Job {
    /// Describes a world of `program` with arguments split at spaces. `scratch` is `CARGO_TARGET_TMPDIR`.
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

    /// Adds shell commands that each rank runs before it becomes the program; `$PMI_RANK` is the rank.
    #[must_use]
    pub fn before(mut self, commands: &str) -> Self {
        self.before = format!("{commands}\n");
        self
    }

    /// Sets a program that starts the program.
    #[must_use]
    pub fn wrapper(mut self, words: &str) -> Self {
        words.clone_into(&mut self.wrapper);
        self
    }

    /// Lets ranks that fail be started again, at most `times` times in all. The output of all processes of a
    /// rank is kept.
    #[must_use]
    pub fn restart(mut self, restarts: u32) -> Self {
        self.restarts = restarts;
        self
    }

    /// Starts `size` ranks. The calling thread must outlive them.
    ///
    /// # Errors
    /// The world cannot be started.
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
        // The configuration files of the user do not count.
        launcher = launcher.env(OUTPUT, &directory.0).env("NEMESIA_CONFIG", "");
        for (name, value) in &self.env {
            launcher = launcher.env(name, value);
        }
        let running = launcher.spawn().map_err(|error| error.to_string())?;
        leftovers::started(&directory.0, running.pids());
        Ok(World { running, directory, ended: vec![None; size] })
    }

    /// Starts `size` ranks, and waits until all have ended.
    ///
    /// # Errors
    /// The world cannot be started, or does not end.
    pub fn run(&self, size: usize) -> Result<Vec<Rank>, String> {
        self.spawn(size)?.wait(DEADLINE)
    }

    /// As [`Job::run`], and every rank must succeed.
    ///
    /// # Errors
    /// The output of each rank, unless all have succeeded.
    pub fn succeed(&self, size: usize) -> Result<Vec<Rank>, String> {
        let ranks = self.run(size)?;
        if ranks.iter().all(|rank| rank.kind.is_success()) {
            return Ok(ranks);
        }
        Err(format!("{:?} failed\n{}", self.args, report(&ranks)))
    }
}

impl World {
    /// Returns the first process of each rank.
    pub fn pids(&self) -> &[u32] {
        self.running.pids()
    }

    /// Returns the present process of a rank, if one runs.
    pub fn pid(&self, rank: usize) -> Option<u32> {
        self.running.pid(rank)
    }

    /// Sends a signal to a rank. Returns false if it has ended before.
    pub fn signal(&self, rank: usize, signal: i32) -> bool {
        self.running.kill(rank, signal).is_ok()
    }

    /// Returns what a rank has written to its standard output so far.
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
                // Signal 0 only checks. A rank that was started again has not ended.
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

    /// Kills the remaining ranks, and describes their states.
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

/// Describes the end and the output of every rank.
pub fn report(ranks: &[Rank]) -> String {
    let line = |(number, rank): (usize, &Rank)| {
        format!("rank {number} {}\n{}{}", rank.kind, rank.output, rank.errors)
    };
    ranks.iter().enumerate().map(line).collect()
}
