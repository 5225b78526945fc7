//! The core links without any library: only the memory functions are undefined.
//!
//! The crate is `verification/bare`. Its feature `allocates` is the control: with it, the same check must fail.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use nemesia_tests::{built, skip};

/// The functions that the compiler may call on any target, and that every target supplies.
const SUPPLIED: [&str; 6] = ["memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen"];
/// The entry point of the library, which keeps everything else alive.
const EXERCISE: &str = "nemesia_bare_exercise";
const ALLOCATES: &str = "nemesia_bare_allocates";

#[test]
fn core_needs_only_the_memory_functions() -> Result<(), String> {
    let Some(symbols) = undefined("core_needs_only_the_memory_functions", EXERCISE, &[])? else {
        return Ok(());
    };
    let missing = not_supplied(&symbols);
    assert!(missing.is_empty(), "the core needs more than it may: {missing:?}");
    Ok(())
}

#[test]
fn a_crate_that_allocates_is_reported() -> Result<(), String> {
    let features = ["--features", "allocates"];
    let Some(symbols) = undefined("a_crate_that_allocates_is_reported", ALLOCATES, &features)? else {
        return Ok(());
    };
    let missing = not_supplied(&symbols);
    assert!(missing.iter().any(|symbol| symbol == "malloc"), "the check missed `malloc`: {missing:?}");
    Ok(())
}

#[test]
fn core_builds_for_bare_metal() -> Result<(), String> {
    let targets = bare_metal()?;
    if targets.is_empty() {
        skip("core_builds_for_bare_metal", "no *-none* target with 64-bit atomics is installed");
    }
    for target in targets {
        run(cargo(&["build", "--package", "nemesia-core", "--target", &target], "Cargo.toml"))?;
    }
    Ok(())
}

#[test]
fn only_the_memory_functions_are_supplied() {
    let listing =
        "                 U memcpy\n                 U __rust_alloc\n                 w pthread_self\n";
    let symbols = symbols(listing);
    assert_eq!(symbols, ["memcpy", "__rust_alloc", "pthread_self"]);
    assert_eq!(not_supplied(&symbols), ["__rust_alloc", "pthread_self"]);
}

fn not_supplied(symbols: &[String]) -> Vec<String> {
    symbols.iter().filter(|symbol| !SUPPLIED.contains(&symbol.as_str())).cloned().collect()
}

/// Returns the names in a listing of `nm`.
fn symbols(listing: &str) -> Vec<String> {
    listing.lines().filter_map(|line| line.split_whitespace().last()).map(Into::into).collect()
}

/// Builds the crate, links everything that `entry` reaches, and lists undefined symbols. Returns `None` if a
/// tool is missing.
fn undefined(test: &str, entry: &str, features: &[&str]) -> Result<Option<Vec<String>>, String> {
    for tool in ["cc", "nm"] {
        if Command::new(tool).arg("--version").output().is_err() {
            skip(test, &format!("`{tool}` is not installed"));
            return Ok(None);
        }
    }
    // One directory, so that the core is built once; each build replaces the archive of the other one.
    static BUILD: Mutex<()> = Mutex::new(());
    let _turn = BUILD.lock().unwrap_or_else(PoisonError::into_inner);
    let build = [&["build", "--release"], features].concat();
    run(cargo(&build, "verification/bare/Cargo.toml").arg("--target-dir").arg(directory()))?;
    let archive = directory().join("release/libnemesia_bare.a");
    let linked = directory().join(format!("{entry}.so"));
    let flags = ["-nostdlib", "-shared", "-Wl,--gc-sections", "-Wl,--exclude-libs,ALL"];
    let keep = [format!("-Wl,--undefined={entry}"), format!("-Wl,--entry={entry}")];
    run(Command::new("cc").args(flags).args(keep).arg("-o").arg(&linked).arg(&archive))?;
    // If the linker had dropped the entry, nothing would be undefined and nothing proved.
    let defined = run(Command::new("nm").arg("--defined-only").arg(&linked))?;
    if !symbols(&defined).iter().any(|symbol| symbol == entry) {
        return Err(format!("`{entry}` is not in {}", linked.display()));
    }
    run(Command::new("nm").args(["--dynamic", "--undefined-only"]).arg(&linked)).map(|it| Some(symbols(&it)))
}

/// Returns the installed targets without an operating system that have the atomics of the core.
fn bare_metal() -> Result<Vec<String>, String> {
    let sysroot = run(Command::new(rustc()).args(["--print", "sysroot"]))?;
    let installed =
        std::fs::read_dir(Path::new(sysroot.trim()).join("lib/rustlib")).map_err(|e| e.to_string())?;
    let names = installed.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut targets = Vec::new();
    for target in names.filter(|name| name.contains("-none")) {
        let facts = run(Command::new(rustc()).args(["--print", "cfg", "--target", &target]))?;
        if facts.contains("target_has_atomic=\"64\"") {
            targets.push(target);
        }
    }
    Ok(targets)
}

fn rustc() -> PathBuf {
    std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()).into()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns a directory beside the target directory.
fn directory() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bare")
}

fn cargo(arguments: &[impl AsRef<OsStr>], manifest: &str) -> Command {
    let mut command = built::cargo();
    command.args(arguments).arg("--manifest-path").arg(root().join(manifest));
    command
}

/// Runs a command and returns its output. A failure is an error that contains the whole output.
fn run(mut command: impl std::borrow::BorrowMut<Command>) -> Result<String, String> {
    let command = command.borrow_mut();
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(text)
    } else {
        Err(format!("{command:?}: {}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr)))
    }
}
