//! The README's quick start as a reader runs it: a crate outside of the repository, started by `nemesia run`.
#![allow(clippy::unwrap_used, reason = "helpers of tests; a panic fails the test")]

use std::path::{Path, PathBuf};
use std::process::Command;

use nemesia_tests::built;

const README: &str = include_str!("../../README.md");
const QUICK_START_C: &str = include_str!("../../ffi/examples/quickstart.c");
/// The place of the clone in the README, relative to the reader's crate.
const CLONE: &str = "../nemesia/sys";

/// Returns the first block of the README in this language.
fn block(language: &str) -> &'static str {
    let fence = format!("\n```{language}\n");
    let start = README.find(&fence).unwrap() + fence.len();
    let rest = &README[start..];
    &rest[..rest.find("\n```").unwrap() + 1]
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Runs a command and returns its standard output; a failure shows both outputs.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}:\n{}\n{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Makes the reader's crate, and returns the path of its manifest.
fn make_crate(directory: &Path) -> PathBuf {
    let sys = repository().join("sys");
    let dependencies = block("toml").replace(CLONE, sys.to_str().unwrap());
    assert!(dependencies.contains(sys.to_str().unwrap()), "the README does not name {CLONE}");
    // The last table keeps cargo from adding the crate to the workspace around its directory.
    let manifest = format!(
        "[package]\nname = \"hello\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n{dependencies}\n[workspace]\n"
    );
    std::fs::create_dir_all(directory.join("src")).unwrap();
    std::fs::write(directory.join("src/main.rs"), block("rust")).unwrap();
    // The versions with which the repository was tested: nothing needs to be fetched.
    std::fs::copy(repository().join("Cargo.lock"), directory.join("Cargo.lock")).unwrap();
    let path = directory.join("Cargo.toml");
    std::fs::write(&path, manifest).unwrap();
    path
}

fn build(manifest: &Path, target: &Path) {
    let mut command = built::cargo();
    command.args(["build", "--manifest-path"]).arg(manifest).env("CARGO_TARGET_DIR", target);
    // This test runs the programs, and no debugger reads them.
    run(command.env("CARGO_PROFILE_DEV_DEBUG", "0"));
}

/// Returns the program `nemesia`.
fn launcher() -> PathBuf {
    std::env::var_os("NEMESIA_BIN").map_or_else(|| built::workspace().unwrap().join("nemesia"), PathBuf::from)
}

#[test]
fn the_quick_start_in_rust_runs_in_a_crate_outside_of_the_repository() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("quick_start");
    let target = directory.join("target");
    build(&make_crate(&directory), &target);
    let said = run(Command::new(launcher()).args(["run", "-n", "3"]).arg(target.join("debug/hello")));
    assert_eq!(said, "rank 1 says: hello from rank 1 of 3\nrank 2 says: hello from rank 2 of 3\n");
}

#[test]
fn the_quick_start_in_c_is_the_example_that_the_tests_install_and_run() {
    assert_eq!(block("c"), QUICK_START_C);
}
