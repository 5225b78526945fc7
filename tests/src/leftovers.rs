//! Things that a process must not leave behind: names in file systems, System V objects, sockets, processes.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// The time that the kernel may need to free what a dead process held.
const SETTLING: Duration = Duration::from_secs(10);

/// A snapshot of the existing things.
#[derive(Clone, Debug)]
pub struct Traces {
    program: String,
    found: BTreeSet<String>,
}

impl Traces {
    /// What is there now. Processes are those that run `program`.
    pub fn now(program: impl AsRef<Path>) -> Self {
        let program = program.as_ref().to_string_lossy().into_owned();
        let found = look(&program);
        Self { program, found }
    }

    /// What is there now and was not then. Waits a while for it to vanish.
    pub fn new_ones(&self) -> Vec<String> {
        let deadline = Instant::now() + SETTLING;
        loop {
            let more: Vec<_> = look(&self.program).difference(&self.found).cloned().collect();
            if more.is_empty() || Instant::now() >= deadline {
                return more;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn look(program: &str) -> BTreeSet<String> {
    let mut found = names("/dev/shm", "");
    found.extend(names("/dev/mqueue", ""));
    // Others use this directory too, compilers among them.
    found.extend(names("/tmp", "nemesia"));
    for kind in ["shm", "sem", "msg"] {
        let text = std::fs::read_to_string(format!("/proc/sysvipc/{kind}")).unwrap_or_default();
        // Key and identifier.
        let objects = text.lines().skip(1).map(|line| {
            let fields: Vec<_> = line.split_whitespace().take(2).collect();
            format!("System V {kind} {}", fields.join(" "))
        });
        found.extend(objects);
    }
    found.extend(processes(program));
    found
}

fn names(directory: &str, containing: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains(containing)).map(|name| format!("{directory}/{name}")).collect()
}

fn processes(program: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let runs = |entry: std::fs::DirEntry| {
        let command = std::fs::read(entry.path().join("cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let ours = command.split(' ').any(|word| word == program);
        ours.then(|| format!("process {}: {command}", entry.file_name().to_string_lossy()))
    };
    entries.filter_map(runs).collect()
}
