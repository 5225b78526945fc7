//! The RDMA Channel in C: a progress engine over each design, and misuse of its handle.

use std::path::PathBuf;
use std::process::Command;

use nemesia_tests::job::{Job, report};
use nemesia_tests::quick;

use crate::toolchain::{Linking, compile, output, scratch, source};
use crate::{STRICT_C, can_run};

/// The designs with a port, and what the explanation says of it.
const INSIDE: [(&str, &str); 5] = [
    ("direct", "shared memory, direct"),
    ("basic", "shared memory, basic"),
    ("piggyback", "shared memory, piggyback"),
    ("pipelined", "shared memory, pipelined"),
    ("zero-copy", "shared memory, zero-copy"),
];

fn program(name: &str, linking: Linking) -> Result<PathBuf, String> {
    compile("cc", &STRICT_C, &source(&format!("tests/c/{name}.c")), linking, name)
}

/// Runs the progress engine on `size` processes. The explanation of rank 0 must have these words.
fn progress(size: usize, rounds: usize, settings: &[(&str, &str)], words: &str) -> Result<(), String> {
    let seed = nemesia_tests::seed();
    let job = Job::new(program("progress", Linking::Shared)?, scratch(), &format!("{seed} {rounds}"));
    let ranks = settings.iter().fold(job, |job, (name, value)| job.env(name, value)).succeed(size)?;
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
    for (design, words) in INSIDE {
        for (size, rounds) in [(2, 24), (3, 12), (8, 3)] {
            progress(size, rounds, &[("NEMESIA_CHANNEL_DESIGN", design)], words)?;
        }
    }
    Ok(())
}

#[test]
fn a_progress_engine_runs_over_each_design_between_machines() -> Result<(), String> {
    if !can_run("a_progress_engine_runs_over_each_design_between_machines", &["cc"]) {
        return Ok(());
    }
    for design in ["basic", "piggyback", "pipelined", "zero-copy"] {
        let settings = [
            ("NEMESIA_LOCAL", "off"),
            ("NEMESIA_NET", "tcp"),
            ("NEMESIA_NET_ADDRESS", "127.0.0.1"),
            ("NEMESIA_CHANNEL_DESIGN", design),
        ];
        progress(2, 12, &settings, &format!("tcp, {design}"))?;
        progress(if quick() { 3 } else { 6 }, 3, &settings, &format!("tcp, {design}"))?;
    }
    Ok(())
}

#[test]
fn rings_and_chunks_of_every_size_carry_a_progress_engine() -> Result<(), String> {
    if !can_run("rings_and_chunks_of_every_size_carry_a_progress_engine", &["cc"]) {
        return Ok(());
    }
    for (design, words) in INSIDE {
        let settings = [
            ("NEMESIA_CHANNEL_DESIGN", design),
            ("NEMESIA_CHANNEL_RING_BYTES", "8192"),
            ("NEMESIA_CHANNEL_CHUNK_BYTES", "512"),
            ("NEMESIA_CHANNEL_FILL", "bottom"),
            ("NEMESIA_CHANNEL_ZERO_COPY_BYTES", "600"),
        ];
        progress(2, 9, &settings, words)?;
    }
    Ok(())
}

#[test]
fn misuse_of_a_channel_is_an_error_and_nothing_else() -> Result<(), String> {
    if !can_run("misuse_of_a_channel_is_an_error_and_nothing_else", &["cc"]) {
        return Ok(());
    }
    for linking in Linking::BOTH {
        output(Command::new(program("channel_misuse", linking)?).env("NEMESIA_CONFIG", "")).map(drop)?;
    }
    Ok(())
}
