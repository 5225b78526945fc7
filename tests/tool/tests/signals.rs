//! Signals that reach `nemesia run`: the job ends with it, in an orderly way.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// No step takes this long on a machine that makes any progress.
const LONG: Duration = Duration::from_secs(120);

/// A directory for one test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Result<Self, String> {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| error.to_string())?;
        Ok(Self(path))
    }

    /// Returns the contents of a file, if it exists and is complete.
    fn read(&self, name: &str) -> Result<String, String> {
        let deadline = Instant::now() + LONG;
        loop {
            match std::fs::read_to_string(self.0.join(name)) {
                Ok(text) if text.ends_with('\n') => return Ok(text),
                _ if Instant::now() > deadline => return Err(format!("{name} is not there")),
                _ => sleep(Duration::from_millis(10)),
            }
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Starts two ranks. Each is a shell that runs `first`, writes its process id, and then sleeps for ever.
fn start(scratch: &Scratch, first: &str) -> Result<(Child, Vec<i32>), String> {
    let script = format!("{first}\necho $$ >pid.$PMI_RANK\nwhile :; do sleep 0.1; done");
    let mut command = Command::new(env!("CARGO_BIN_EXE_nemesia"));
    command.args(["run", "-n", "2", "--", "sh", "-c", &script]);
    command.current_dir(&scratch.0).stdin(Stdio::null());
    // If the tests run in the background, the shell has made some of these signals ignored.
    let hear = || {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: async-signal-safe, and the default disposition involves no code.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: the closure calls `signal` only, which is allowed between fork and exec.
    unsafe { command.pre_exec(hear) };
    let child = command.spawn().map_err(|error| error.to_string())?;
    let pid = |name| scratch.read(name)?.trim().parse().map_err(|error| format!("{name}: {error}"));
    Ok((child, vec![pid("pid.0")?, pid("pid.1")?]))
}

fn send(child: &Child, signal: i32) {
    // SAFETY: our own child, which was not waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

/// Returns whether a process exists, even as a zombie.
fn is_there(pid: i32) -> bool {
    // SAFETY: signal 0 only checks that the process exists.
    unsafe { libc::kill(pid, 0) == 0 }
}

#[test]
fn a_signal_is_passed_on_to_all_ranks_and_none_is_left() {
    let scratch = Scratch::new("a_signal_is_passed_on_to_all_ranks_and_none_is_left").unwrap();
    for (name, signal) in [("TERM", libc::SIGTERM), ("INT", libc::SIGINT), ("HUP", libc::SIGHUP)] {
        let trap = format!("trap 'echo {name} >got.$PMI_RANK; exit 3' {name}");
        let (mut child, pids) = start(&scratch, &trap).unwrap();
        send(&child, signal);
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(128 + signal), "{name}: {status}");
        for (rank, pid) in pids.into_iter().enumerate() {
            assert_eq!(scratch.read(&format!("got.{rank}")).unwrap(), format!("{name}\n"));
            assert!(!is_there(pid), "{name}: rank {rank}");
            std::fs::remove_file(scratch.0.join(format!("pid.{rank}"))).unwrap();
            std::fs::remove_file(scratch.0.join(format!("got.{rank}"))).unwrap();
        }
    }
}

#[test]
fn ranks_that_ignore_a_signal_are_killed_after_their_time() {
    let scratch = Scratch::new("ranks_that_ignore_a_signal_are_killed_after_their_time").unwrap();
    let (mut child, pids) = start(&scratch, "trap '' INT TERM").unwrap();
    let begun = Instant::now();
    send(&child, libc::SIGINT);
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130), "{status}");
    assert!(begun.elapsed() >= nemesia::bootstrap::Interrupter::GRACE);
    assert!(!pids.into_iter().any(is_there));
}

#[test]
fn a_second_signal_kills_the_ranks_that_ignored_the_first() {
    let scratch = Scratch::new("a_second_signal_kills_the_ranks_that_ignored_the_first").unwrap();
    let (mut child, pids) = start(&scratch, "trap 'echo TERM >got.$PMI_RANK' TERM").unwrap();
    send(&child, libc::SIGTERM);
    assert_eq!(["got.0", "got.1"].map(|name| scratch.read(name).unwrap()), ["TERM\n", "TERM\n"]);
    send(&child, libc::SIGINT);
    let status = child.wait().unwrap();
    // The first signal counts.
    assert_eq!(status.code(), Some(143), "{status}");
    assert!(!pids.into_iter().any(is_there));
}

/// A shell clears its mask itself; most programs keep the one that they get.
#[test]
fn ranks_start_with_no_signal_blocked() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nemesia"));
    command.args(["run", "-n", "2", "--", "grep", "SigBlk", "/proc/self/status"]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "SigBlk:\t0000000000000000\n".repeat(2));
}
