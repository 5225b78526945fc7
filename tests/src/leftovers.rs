//! Things that the processes of a test must not leave behind: names in file systems, System V objects, processes.
//!
//! Other programs use the same directories at the same time. So the thread of the test, and with it the processes
//! that it starts, gets a mount namespace and an IPC namespace of its own if that is permitted: everything there
//! comes from this test. Otherwise, only things that name a process of this test count.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The time that the kernel may need to free what a dead process held.
const SETTLING: Duration = Duration::from_secs(60);
/// The variable that tells a rank where its output goes. It also identifies the job of a process.
pub const OUTPUT: &str = "NEMESIA_TEST_OUTPUT";
/// The word in every name that the library could make.
const OURS: &str = "nemesia";

thread_local! {
    /// The jobs that this thread has started: their directories, and the processes that they began with.
    static STARTED: RefCell<Vec<(PathBuf, Vec<u32>)>> = const { RefCell::new(Vec::new()) };
    static VIEW: RefCell<Option<View>> = const { RefCell::new(None) };
}

/// Remembers a job of this thread.
pub(crate) fn started(directory: &Path, pids: &[u32]) {
    STARTED.with_borrow_mut(|jobs| jobs.push((directory.to_owned(), pids.to_vec())));
}

/// What this thread sees of the machine.
#[derive(Clone, Debug)]
enum View {
    /// These directories are empty file systems that only this thread and its processes see; System V objects are
    /// theirs.
    Own(Vec<&'static str>),
    /// What every program sees.
    Shared,
}

/// A snapshot of the existing things.
#[derive(Clone, Debug)]
pub struct Traces {
    view: View,
    found: BTreeSet<String>,
}

impl Traces {
    /// Returns the existing things, for the jobs that this thread starts from now on.
    pub fn now() -> Self {
        let view = VIEW.with_borrow_mut(|view| view.get_or_insert_with(own_view).clone());
        Self { found: look(&view), view }
    }

    /// Returns the new things since then. Waits a while for them to vanish.
    pub fn new_ones(&self) -> Vec<String> {
        let deadline = Instant::now() + SETTLING;
        loop {
            let more = self.at_once();
            if more.is_empty() || Instant::now() >= deadline {
                return more;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the things that exist now and did not exist then.
    pub fn at_once(&self) -> Vec<String> {
        look(&self.view).difference(&self.found).cloned().collect()
    }
}

/// Gives this thread a view of its own if that is permitted.
fn own_view() -> View {
    // SAFETY: changes only the view of this thread, and of processes that it starts later.
    if unsafe { libc::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWIPC) } != 0 {
        return View::Shared;
    }
    // Nothing that is mounted here is seen elsewhere.
    if !mount(c"none", c"/", None, libc::MS_REC | libc::MS_PRIVATE) {
        return View::Shared;
    }
    let wanted = [(c"tmpfs", c"/dev/shm", "/dev/shm"), (c"mqueue", c"/dev/mqueue", "/dev/mqueue")];
    let temporary = (c"tmpfs", c"/tmp", "/tmp");
    let all = wanted.into_iter().chain((!needs("/tmp")).then_some(temporary));
    let mounted = all.filter(|(kind, at, _)| mount(kind, at, Some(kind), 0));
    View::Own(mounted.map(|(_, _, name)| name).collect())
}

fn mount(source: &CStr, at: &CStr, kind: Option<&CStr>, flags: libc::c_ulong) -> bool {
    let kind = kind.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: the words live to the end of the call, and there are no data.
    unsafe { libc::mount(source.as_ptr(), at.as_ptr(), kind, flags, std::ptr::null()) == 0 }
}

/// Whether programs or logs of the tests are in this directory.
fn needs(directory: &str) -> bool {
    let program = std::env::current_exe().unwrap_or_default();
    let log = PathBuf::from(std::env::var_os("NEMESIA_SKIP_LOG").unwrap_or_default());
    let here = std::env::current_dir().unwrap_or_default();
    [program, log, here].iter().any(|path| path.starts_with(directory))
}

fn look(view: &View) -> BTreeSet<String> {
    let mut found: BTreeSet<String> = processes().into_iter().collect();
    match view {
        View::Own(directories) => {
            directories.iter().for_each(|directory| found.extend(names(directory)));
            for kind in ["shm", "sem", "msg"] {
                found.extend(objects(kind).into_iter().map(|fields| object(kind, &fields)));
            }
        }
        View::Shared => {
            let pids: BTreeSet<String> =
                jobs().into_iter().flat_map(|(_, pids)| pids).map(|pid| pid.to_string()).collect();
            for directory in ["/dev/shm", "/dev/mqueue", "/tmp"] {
                let is_ours = |name: &String| {
                    let mut numbers = name.split(|letter: char| !letter.is_ascii_digit());
                    name.contains(OURS) && numbers.any(|number| pids.contains(number))
                };
                found.extend(names(directory).into_iter().filter(is_ours));
            }
            // The fifth column is the process that has made it; the other kinds do not tell.
            let made = objects("shm")
                .into_iter()
                .filter(|fields| fields.get(4).is_some_and(|pid| pids.contains(pid)));
            found.extend(made.map(|fields| object("shm", &fields)));
        }
    }
    found
}

fn jobs() -> Vec<(PathBuf, Vec<u32>)> {
    STARTED.with_borrow(Clone::clone)
}

fn names(directory: &str) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| format!("{directory}/{}", entry.file_name().to_string_lossy())).collect()
}

/// The fields of every System V object of this kind.
fn objects(kind: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/sysvipc/{kind}")).unwrap_or_default();
    text.lines().skip(1).map(|line| line.split_whitespace().map(String::from).collect()).collect()
}

/// Key and identifier.
fn object(kind: &str, fields: &[String]) -> String {
    format!("System V {kind} {}", fields[..fields.len().min(2)].join(" "))
}

/// Processes of the jobs that this thread has started.
fn processes() -> Vec<String> {
    let directories: Vec<String> =
        jobs().iter().map(|(directory, _)| format!("{OUTPUT}={}", directory.display())).collect();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let of_ours = |entry: std::fs::DirEntry| {
        let environment = std::fs::read(entry.path().join("environ")).ok()?;
        let is_ours = |variable: &[u8]| directories.iter().any(|directory| directory.as_bytes() == variable);
        if !environment.split(|byte| *byte == 0).any(is_ours) {
            return None;
        }
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        Some(format!("process {}: {command}", entry.file_name().to_string_lossy()))
    };
    entries.filter_map(of_ours).collect()
}
