//! The program of the embedding guide: `ffi/examples/runtime.c`, alone and under tools that check every access.

use std::path::PathBuf;
use std::process::Command;

use crate::toolchain::{Linking, compile, output, scratch, source};
use crate::{STRICT_C, can_run, can_sanitize};

fn program(flags: &[&str], linking: Linking, name: &str) -> Result<PathBuf, String> {
    let flags = [&STRICT_C[..], flags].concat();
    compile("cc", &flags, &source("ffi/examples/runtime.c"), linking, &format!("runtime-{name}"))
}

/// Runs the runtime in a directory of its own, in which it must leave nothing.
fn check(command: &mut Command, size: usize, name: &str) -> Result<(), String> {
    let directory = scratch().join(format!("runtime-{name}"));
    let shown = |error: std::io::Error| format!("{}: {error}", directory.display());
    // What a run that failed has left there.
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).map_err(shown)?;
    let text = output(command.arg(size.to_string()).current_dir(&directory).env("NEMESIA_CONFIG", ""))?;
    let mut said: Vec<&str> = text.lines().collect();
    said.sort_unstable();
    // Each survivor has the words of the other survivors, which are their ranks and one, and has lost the last rank.
    let total = size * (size - 1) / 2;
    let survivors = 0..size - 1;
    let mut expected: Vec<String> =
        survivors.map(|rank| format!("rank {rank}: sum {}, lost 1", total - rank - 1)).collect();
    expected.sort_unstable();
    assert_eq!(said, expected);
    let left: Vec<_> = std::fs::read_dir(&directory).map_err(shown)?.flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

#[test]
fn the_runtime_of_the_guide_survives_a_death() -> Result<(), String> {
    if !can_run("the_runtime_of_the_guide_survives_a_death", &["cc"]) {
        return Ok(());
    }
    for (linking, size) in [(Linking::Shared, 4), (Linking::Static, 2), (Linking::Shared, 9)] {
        check(&mut Command::new(program(&[], linking, "plain")?), size, "plain")?;
    }
    Ok(())
}

#[test]
fn the_runtime_makes_no_invalid_access_under_address_sanitizer() -> Result<(), String> {
    const TEST: &str = "the_runtime_makes_no_invalid_access_under_address_sanitizer";
    if !can_sanitize(TEST)? {
        return Ok(());
    }
    let program = program(&["-fsanitize=address"], Linking::Static, "sanitized")?;
    check(&mut Command::new(program), 4, "sanitized")
}

#[test]
fn the_runtime_makes_no_invalid_access_under_valgrind() -> Result<(), String> {
    const TEST: &str = "the_runtime_makes_no_invalid_access_under_valgrind";
    if !can_run(TEST, &["cc", "valgrind"]) {
        return Ok(());
    }
    let program = program(&[], Linking::Shared, "checked")?;
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["-q", "--trace-children=yes", "--error-exitcode=9"]).arg(program);
    check(&mut valgrind, 3, "checked")
}

/// The chapter shows the program as it is, piece by piece.
#[test]
fn the_guide_shows_the_pieces_of_the_program() -> Result<(), String> {
    let read = |path: &str| std::fs::read_to_string(source(path)).map_err(|error| format!("{path}: {error}"));
    let (readme, program) = (read("ffi/README.md")?, read("ffi/examples/runtime.c")?);
    let chapter = readme.split("\n## ").find(|chapter| chapter.starts_with("Embedding guide"));
    let chapter = chapter.ok_or("there is no chapter `Embedding guide`")?;
    let pieces: Vec<&str> =
        chapter.split("```c\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(pieces.len() >= 5, "{} pieces", pieces.len());
    for piece in pieces {
        assert!(program.contains(piece), "not in the program:\n{piece}");
    }
    Ok(())
}
