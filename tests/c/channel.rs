//! The RDMA Channel in C: a progress engine over each design, and misuse of its handle.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nemesia_tests::job::{Job, report};
use nemesia_tests::quick;

use crate::toolchain::{Linking, compile, output, scratch, source};
use crate::{STRICT_C, can_run};

/// The designs with a port, and what the explanation says of it.
const INSIDE: [(&str, &str); 7] = [
    ("direct", "shared memory, direct"),
    ("basic", "shared memory, basic"),
    ("piggyback", "shared memory, piggyback"),
    ("pipelined", "shared memory, pipelined"),
    ("zero-copy", "shared memory, zero-copy"),
    ("zero-copy-push", "shared memory, zero-copy-push"),
    ("learned", "shared memory, learned"),
];

/// The time in which processes that poll come to their end, also beside many others.
const LIMIT: Duration = Duration::from_secs(600);

/// Compiles a program. Its file is named after `test`, because tests run at the same time.
fn program(name: &str, linking: Linking, test: &str) -> Result<PathBuf, String> {
    let file = source(&format!("tests/c/{name}.c"));
    compile("cc", &STRICT_C, &file, linking, &format!("{name}-{test}"))
}

/// Runs the progress engine on `size` processes. The explanation of rank 0 must have these words.
fn progress(
    program: &Path,
    (size, rounds): (usize, usize),
    settings: &[(&str, &str)],
    words: &str,
) -> Result<(), String> {
    let seed = nemesia_tests::seed();
    let job = Job::new(program, scratch(), &format!("{seed} {rounds}"));
    let job = settings.iter().fold(job, |job, (name, value)| job.env(name, value));
    let ranks = job.spawn(size)?.wait(LIMIT)?;
    if !ranks.iter().all(|rank| rank.kind.is_success()) {
        return Err(report(&ranks));
    }
    let explained = &ranks[0].output;
    assert!(explained.contains(words), "{words}: {}", report(&ranks));
    assert_eq!(explained.lines().count(), size, "{}", report(&ranks));
    Ok(())
}

#[test]
fn a_progress_engine_runs_over_each_design_inside_a_machine() -> Result<(), String> {
    if !can_run("a_progress_engine_runs_over_each_design_inside_a_machine", &["cc"]) {
        return Ok(());
    }
    let program = program("progress", Linking::Shared, "inside")?;
    for (design, words) in INSIDE {
        for size in 2..=8 {
            progress(
                &program,
                (size, if size == 2 { 12 } else { 8 / size + 1 }),
                &[("NEMESIA_CHANNEL_DESIGN", design)],
                words,
            )?;
        }
    }
    Ok(())
}

#[test]
fn a_progress_engine_runs_over_each_design_between_machines() -> Result<(), String> {
    if !can_run("a_progress_engine_runs_over_each_design_between_machines", &["cc"]) {
        return Ok(());
    }
    let program = program("progress", Linking::Shared, "between")?;
    for design in ["basic", "piggyback", "pipelined", "zero-copy", "zero-copy-push", "learned"] {
        let settings = [
            ("NEMESIA_LOCAL", "off"),
            ("NEMESIA_NET", "tcp"),
            ("NEMESIA_NET_ADDRESS", "127.0.0.1"),
            ("NEMESIA_CHANNEL_DESIGN", design),
        ];
        let words = format!("tcp, {design}");
        for size in if quick() { 2..=3 } else { 2..=8 } {
            progress(&program, (size, if size == 2 { 9 } else { 2 }), &settings, &words)?;
        }
    }
    Ok(())
}

#[test]
fn rings_and_chunks_of_every_size_carry_a_progress_engine() -> Result<(), String> {
    if !can_run("rings_and_chunks_of_every_size_carry_a_progress_engine", &["cc"]) {
        return Ok(());
    }
    let program = program("progress", Linking::Shared, "sizes")?;
    for (design, words) in INSIDE {
        let settings = [
            ("NEMESIA_CHANNEL_DESIGN", design),
            ("NEMESIA_CHANNEL_RING_BYTES", "8192"),
            ("NEMESIA_CHANNEL_CHUNK_BYTES", "512"),
            ("NEMESIA_CHANNEL_FILL", "bottom"),
            ("NEMESIA_CHANNEL_ZERO_COPY_BYTES", "600"),
        ];
        progress(&program, (2, 6), &settings, words)?;
    }
    Ok(())
}

#[test]
fn processes_without_a_launcher_open_a_channel_by_addresses() -> Result<(), String> {
    if !can_run("processes_without_a_launcher_open_a_channel_by_addresses", &["cc"]) {
        return Ok(());
    }
    let program = program("channel_among", Linking::Shared, "among")?;
    let between = [("NEMESIA_LOCAL", "off"), ("NEMESIA_NET", "tcp"), ("NEMESIA_NET_ADDRESS", "127.0.0.1")];
    for (design, settings) in [("direct", &[][..]), ("basic", &[]), ("zero-copy-push", &between)] {
        output(Command::new(&program).arg(design).env("NEMESIA_CONFIG", "").envs(settings.iter().copied()))?;
    }
    Ok(())
}

#[test]
fn misuse_of_a_channel_is_an_error_and_nothing_else() -> Result<(), String> {
    if !can_run("misuse_of_a_channel_is_an_error_and_nothing_else", &["cc"]) {
        return Ok(());
    }
    for &linking in Linking::each() {
        output(Command::new(program("channel_misuse", linking, "misuse")?).env("NEMESIA_CONFIG", ""))
            .map(drop)?;
    }
    Ok(())
}
