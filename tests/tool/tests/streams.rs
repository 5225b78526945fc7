//! The standard streams of the processes that `nemesia run` starts.

use std::fs::OpenOptions;
use std::io::{PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// No step takes this long on a machine that makes any progress.
const LONG: Duration = Duration::from_secs(120);
/// The bytes that each of two ranks prints in lines of 100: more than a pipe and the launcher hold.
const PRINTED: usize = 1_000_000;

/// Describes a job of shells that run `script`.
fn job(ranks: &str, options: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nemesia"));
    command.args(["run", "-n", ranks]).args(options).args(["--", "sh", "-c", script]);
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

/// A script that prints [`PRINTED`] bytes.
fn print() -> String {
    format!("yes $(printf %099d 7) | head -n {}", PRINTED / 100)
}

fn errors(child: &mut Child) -> String {
    let mut text = String::new();
    let read = child.stderr.take().map(|mut errors| errors.read_to_string(&mut text));
    assert!(matches!(read, Some(Ok(_))), "{read:?}");
    text
}

#[test]
fn rank_0_reads_the_standard_input_and_the_others_an_empty_one() {
    let mut command = job("3", &["--prefix"], "echo $(wc -c) bytes");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&[b'x'; 300_000]).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] 300000 bytes", "[1] 0 bytes", "[2] 0 bytes"]);
    assert!(output.status.success());
}

/// A shell, ssh or another program that uses the same stream may have made it non-blocking.
#[test]
fn no_line_is_lost_if_the_output_is_a_full_pipe_that_does_not_block() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    // SAFETY: F_GETFL takes no argument and touches no memory.
    let flags = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_GETFL) };
    // SAFETY: F_SETFL takes an int and touches no memory.
    assert_eq!(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) }, 0);
    let watched = writer.try_clone().unwrap();
    let mut child = job("2", &["--prefix"], &print()).stdout(writer).spawn().unwrap();
    await_full(&watched);
    drop(watched);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text.lines().count(), 2 * PRINTED / 100);
    assert!(text.lines().all(|line| line.len() == 103), "a line was cut");
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}: {}", errors(&mut child));
}

/// Waits until a pipe takes no more bytes. No process reads it meanwhile.
fn await_full(writer: &PipeWriter) {
    let deadline = Instant::now() + LONG;
    let mut entry = libc::pollfd { fd: writer.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry, which outlives the call.
    while unsafe { libc::poll(&raw mut entry, 1, 0) } != 0 {
        assert!(Instant::now() < deadline, "the pipe is not full");
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn output_that_cannot_be_written_is_reported_and_fails_the_job() {
    let full = || OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut child = job("2", &["--prefix"], "echo hello").stdout(full()).spawn().unwrap();
    let status = child.wait().unwrap();
    let text = errors(&mut child);
    assert!(!status.success() && text.contains("No space left on device"), "{status}: {text}");
    assert!(text.contains("standard output"), "{text}");
    let mut child =
        job("2", &["--prefix"], "echo hello >&2").stdout(Stdio::null()).stderr(full()).spawn().unwrap();
    assert!(!child.wait().unwrap().success());
}

/// The ranks are not left to run without a reader.
#[test]
fn a_reader_that_goes_away_ends_the_job() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child = job("2", &["--prefix"], "while :; do echo hello; done").stdout(writer).spawn().unwrap();
    let status = child.wait().unwrap();
    let text = errors(&mut child);
    assert!(!status.success() && text.contains("Broken pipe"), "{status}: {text}");
}
