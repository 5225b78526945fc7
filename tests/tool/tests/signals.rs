//! Signals that reach `nemesia run`: the job ends with it, in an orderly way, and so do the programs that ranks start.

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
    start_script(scratch, &format!("{first}\necho $$ >pid.$PMI_RANK\nwhile :; do sleep 0.1; done"))
}

/// Starts two ranks. Each is a wrapper that starts a program and goes on after it. The program runs `first`, writes its
/// process id, and then sleeps for ever.
fn start_wrapped(scratch: &Scratch, first: &str) -> Result<(Child, Vec<i32>), String> {
    // A shell waits for a child of `vfork` until the child has begun its program, and is not stopped meanwhile. If both
    // get the signal, the child is stopped, and the shell waits for ever. One that hears no signal starts no child.
    let sleeps = if first.is_empty() { "exec sleep 1000" } else { "while :; do sleep 0.1; done" };
    let program = format!("{first}\necho $$ >pid.$PMI_RANK\n{sleeps}");
    std::fs::write(scratch.0.join("program"), program).map_err(|error| error.to_string())?;
    start_script(scratch, "echo $$ >wrapper.$PMI_RANK\nsh ./program\nexit 7")
}

/// Starts two ranks that run a script, in a process group of their own, and returns the process ids that they write.
fn start_script(scratch: &Scratch, script: &str) -> Result<(Child, Vec<i32>), String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nemesia"));
    command.args(["run", "-n", "2", "--", "sh", "-c", script]).process_group(0);
    command.current_dir(&scratch.0).stdin(Stdio::null());
    // If the tests run in the background, the shell has made some of these signals ignored.
    let hear = || {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGTSTP] {
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

/// Returns the state of a process and its parent; `None` if it does not exist.
fn state(pid: i32) -> Option<(char, i32)> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = line.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Waits until all processes have this state; `'X'` means that they have ended.
fn await_state(pids: &[i32], wanted: impl Fn(char) -> bool, what: &str) {
    let deadline = Instant::now() + LONG;
    for pid in pids {
        while !wanted(state(*pid).map_or('X', |(state, _)| if state == 'Z' { 'X' } else { state })) {
            assert!(Instant::now() < deadline, "{what}: process {pid} is {:?}", state(*pid));
            sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn programs_behind_wrappers_end_with_the_launcher_that_is_signalled() {
    let scratch = Scratch::new("programs_behind_wrappers").unwrap();
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGKILL] {
        let (mut child, pids) = start_wrapped(&scratch, "").unwrap();
        send(&child, signal);
        let status = child.wait().unwrap();
        if signal == libc::SIGKILL {
            await_state(&pids, |state| state == 'X', "SIGKILL");
        } else {
            assert_eq!(status.code(), Some(128 + signal), "{status}");
            assert!(pids.iter().all(|pid| state(*pid).is_none()), "signal {signal}");
        }
        (0..2).for_each(|rank| std::fs::remove_file(scratch.0.join(format!("pid.{rank}"))).unwrap());
    }
}

/// The first process of the launcher ends the job if the second one, the parent of the ranks, is killed.
#[test]
fn programs_behind_wrappers_end_with_the_parent_of_the_ranks() {
    let scratch = Scratch::new("programs_behind_wrappers_and_parent").unwrap();
    let (mut child, pids) = start_wrapped(&scratch, "").unwrap();
    let wrapper = scratch.read("wrapper.0").unwrap().trim().parse().unwrap();
    let (_, parent) = state(wrapper).unwrap();
    assert_ne!(parent, child.id() as i32);
    // SAFETY: a process of this job, which has not ended.
    assert_eq!(unsafe { libc::kill(parent, libc::SIGKILL) }, 0);
    assert_eq!(child.wait().unwrap().code(), Some(137));
    assert!(pids.iter().all(|pid| state(*pid).is_none()));
}

/// Also the program whose own wrapper was killed, and one that ignores the first signal.
#[test]
fn programs_behind_wrappers_end_when_a_rank_fails() {
    let scratch = Scratch::new("programs_behind_wrappers_of_a_rank_that_fails").unwrap();
    for first in ["", "trap '' TERM"] {
        let (mut child, pids) = start_wrapped(&scratch, first).unwrap();
        let wrapper = scratch.read("wrapper.1").unwrap().trim().parse().unwrap();
        // SAFETY: a process of this job, which has not ended.
        assert_eq!(unsafe { libc::kill(wrapper, libc::SIGKILL) }, 0);
        assert_eq!(child.wait().unwrap().code(), Some(137));
        assert!(pids.iter().all(|pid| state(*pid).is_none()), "{first}");
        for name in ["pid.0", "pid.1", "wrapper.0", "wrapper.1"] {
            std::fs::remove_file(scratch.0.join(name)).unwrap();
        }
    }
}

#[test]
fn signals_for_the_program_are_passed_on_and_the_job_goes_on() {
    let scratch = Scratch::new("signals_for_the_program_are_passed_on_and_the_job_goes_on").unwrap();
    let signals = [("USR1", libc::SIGUSR1), ("USR2", libc::SIGUSR2), ("QUIT", libc::SIGQUIT)];
    let traps = signals.map(|(name, _)| format!("trap 'echo {name} >{name}.$PMI_RANK' {name}\n")).concat();
    let (mut child, pids) = start(&scratch, &traps).unwrap();
    for (name, signal) in signals {
        send(&child, signal);
        for rank in 0..2 {
            assert_eq!(scratch.read(&format!("{name}.{rank}")).unwrap(), format!("{name}\n"));
        }
    }
    assert!(pids.iter().all(|pid| is_there(*pid)) && child.try_wait().unwrap().is_none());
    send(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

/// Waits until a launcher that goes on hears SIGTSTP again, and has taken its SIGCONT: while it stops, SIGTSTP has its
/// default effect, which concerns the launcher alone, and a new SIGTSTP makes the system forget a pending SIGCONT.
fn await_hearing(launcher: i32) {
    let deadline = Instant::now() + LONG;
    let has = |status: &str, name, signal: i32| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let set = line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        set.map(|set| set >> (signal - 1) & 1 != 0)
    };
    loop {
        let status = std::fs::read_to_string(format!("/proc/{launcher}/status")).unwrap_or_default();
        // A process that waits for blocked signals shows them as not blocked: all of them, not SIGTSTP alone.
        let [stop, other] = [libc::SIGTSTP, libc::SIGUSR1].map(|signal| has(&status, "SigBlk:", signal));
        if stop.is_some() && stop == other && has(&status, "ShdPnd:", libc::SIGCONT) == Some(false) {
            return;
        }
        assert!(Instant::now() < deadline, "the launcher does not hear SIGTSTP: {status}");
        sleep(Duration::from_millis(1));
    }
}

/// A terminal sends SIGTSTP to the whole process group, and a shell SIGCONT; a program sends them to one process.
#[test]
fn the_job_stops_and_goes_on_with_the_launcher() {
    let scratch = Scratch::new("the_job_stops_and_goes_on_with_the_launcher").unwrap();
    let (mut child, pids) = start_wrapped(&scratch, "").unwrap();
    let launcher = child.id() as i32;
    let all = [&pids[..], &[launcher]].concat();
    for target in [-launcher, launcher] {
        // SAFETY: our own child, which was not waited for, and its group.
        let send = |signal| assert_eq!(unsafe { libc::kill(target, signal) }, 0);
        send(libc::SIGTSTP);
        await_state(&all, |state| state == 'T', "SIGTSTP");
        send(libc::SIGCONT);
        await_hearing(launcher);
        await_state(&all, |state| matches!(state, 'S' | 'R' | 'D'), "SIGCONT");
    }
    send(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
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
