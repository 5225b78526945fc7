//! A rank dies, and another process gets its process id between two system calls of a peer. Each test runs
//! again as the first process of a new pid namespace, in which process ids can be chosen.

use std::path::Path;
use std::process::Command;

use nemesia_tests::job::{Job, report};
use nemesia_tests::skip;

const SUCCESSOR: &str = env!("CARGO_BIN_EXE_successor");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");
/// Set in the namespace, to a word that no other run has: the process ids are the same in all runs.
const INSIDE: &str = "NEMESIA_TEST_PID_NAMESPACE";

/// Makes a command that runs in a new pid namespace.
fn inside(program: &Path) -> Command {
    let mut command = Command::new("unshare");
    // SAFETY: takes nothing and can't fail.
    if unsafe { libc::geteuid() } != 0 {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(program);
    command
}

/// Runs this test again where process ids can be chosen, or reports why it cannot. Returns `true` in the
/// process that must do the work.
fn is_inside(test: &str) -> Result<bool, String> {
    if std::env::var_os(INSIDE).is_some() {
        return Ok(true);
    }
    let probe = inside(Path::new("sh")).args(["-c", "echo 300 >/proc/sys/kernel/ns_last_pid"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        skip(test, "a pid namespace whose numbers can be chosen is not permitted here");
        return Ok(false);
    }
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = inside(&program);
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, format!("{test}-{}", std::process::id()));
    let output = command.output().map_err(|error| error.to_string())?;
    let [text, errors] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    // If the inner run skips the test, its output has the reason.
    text.lines().filter(|line| line.starts_with("SKIPPED")).for_each(nemesia_tests::say);
    if output.status.success() && text.contains("1 passed") {
        return Ok(false);
    }
    Err(format!("{}\n{text}\n{errors}", output.status))
}

fn replaced(test: &str, mode: &str) -> Result<(), String> {
    if !is_inside(test)? {
        return Ok(());
    }
    // The kernel copies all messages of this size, where it permits that.
    let scratch = Path::new(SCRATCH).join(std::env::var(INSIDE).unwrap_or_default());
    let ranks = Job::new(SUCCESSOR, &scratch, mode).env("NEMESIA_SINGLE_COPY", "require").run(2);
    // Its remains lie in the target directory.
    let _ = std::fs::remove_dir_all(&scratch);
    let ranks = ranks?;
    if ranks.iter().any(|rank| rank.errors.contains("no single copy through the kernel")) {
        skip(test, "the kernel permits no single copy here");
        return Ok(());
    }
    if ranks[0].kind.is_success() { Ok(()) } else { Err(report(&ranks)) }
}

#[test]
fn no_byte_of_a_process_that_got_a_dead_peers_number_is_delivered() -> Result<(), String> {
    replaced("no_byte_of_a_process_that_got_a_dead_peers_number_is_delivered", "read")
}

#[test]
fn no_byte_of_a_process_that_got_a_dead_peers_number_is_written() -> Result<(), String> {
    replaced("no_byte_of_a_process_that_got_a_dead_peers_number_is_written", "write")
}
