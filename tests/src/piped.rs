//! Processes without a launcher of their own world: each has a pipe for commands and one for its answers.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::leftovers::{self, OUTPUT};

static JOBS: AtomicU32 = AtomicU32::new(0);

/// Processes that one test starts, commands and ends. All are killed when this value is dropped.
#[derive(Debug)]
pub struct PipedJob {
    program: PathBuf,
    env: Vec<(String, String)>,
    /// For the files of the processes; removed at the end.
    directory: PathBuf,
    processes: Vec<Piped>,
    lines: Receiver<(usize, Option<String>)>,
    sender: Sender<(usize, Option<String>)>,
}

#[derive(Debug)]
struct Piped {
    child: Child,
    commands: Option<ChildStdin>,
}

impl PipedJob {
    /// Makes a job without processes. `scratch` is `CARGO_TARGET_TMPDIR`.
    ///
    /// # Errors
    /// Its directory cannot be made.
    pub fn new(program: impl AsRef<Path>, scratch: impl AsRef<Path>) -> Result<Self, String> {
        let name = format!("piped-{}-{}", std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed));
        let directory = scratch.as_ref().join(name);
        std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let (sender, lines) = channel();
        let program = program.as_ref().to_owned();
        Ok(Self { program, env: Vec::new(), directory, processes: Vec::new(), lines, sender })
    }

    /// Sets a variable for all processes.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts a process with arguments split at spaces, and returns its number: the processes count from 0.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(&mut self, args: &str) -> Result<usize, String> {
        self.start_by(&[], args)
    }

    /// As [`PipedJob::start`], by another program with its arguments, which becomes the program of this job.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_by(&mut self, wrapper: &[&str], args: &str) -> Result<usize, String> {
        let number = self.processes.len();
        let errors = std::fs::File::create(self.errors_file(number)).map_err(|error| error.to_string())?;
        let mut command = match wrapper {
            [] => Command::new(&self.program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(&self.program);
                command
            }
        };
        command.args(args.split_whitespace()).env(OUTPUT, &self.directory).env("NEMESIA_CONFIG", "");
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut child = piped.spawn().map_err(|error| error.to_string())?;
        leftovers::started(&self.directory, &[child.id()]);
        let (commands, output) = (child.stdin.take(), child.stdout.take());
        self.processes.push(Piped { child, commands });
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            let lines =
                output.into_iter().flat_map(|output| BufReader::new(output).lines()).map_while(Result::ok);
            // If the reader is gone, the job is over.
            lines.map(Some).chain([None]).for_each(|line| _ = sender.send((number, line)));
        });
        Ok(number)
    }

    /// Sends a command line to a process. A process that has ended does not get it.
    pub fn tell(&mut self, process: usize, line: &str) {
        if let Some(commands) = &mut self.processes[process].commands {
            let _ = commands.write_all(format!("{line}\n").as_bytes());
        }
    }

    /// Returns the next line of any process, with its number; no line at the end of its output.
    ///
    /// # Errors
    /// None came within the limit.
    pub fn next_line(&self, limit: Duration) -> Result<(usize, Option<String>), String> {
        self.lines.recv_timeout(limit).map_err(|_| format!("no process has said anything within {limit:?}"))
    }

    /// Kills a process (SIGKILL).
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn kill(&mut self, process: usize) -> Result<(), String> {
        self.processes[process].child.kill().map_err(|error| error.to_string())
    }

    /// Waits for a process that ends or has been killed.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn reap(&mut self, process: usize) -> Result<ExitStatus, String> {
        self.processes[process].commands = None;
        self.processes[process].child.wait().map_err(|error| error.to_string())
    }

    /// Returns the identifier of a process.
    pub fn pid(&self, process: usize) -> u32 {
        self.processes[process].child.id()
    }

    /// Returns what a process has written to its standard error output.
    pub fn errors(&self, process: usize) -> String {
        let text = std::fs::read(self.errors_file(process)).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    fn errors_file(&self, process: usize) -> PathBuf {
        self.directory.join(format!("{process}.err"))
    }
}

impl Drop for PipedJob {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // Fails if it has been waited for.
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
        // Whatever cannot be removed lies in the target directory.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
