//! What tests build with cargo: one build of the whole workspace, which `tests/run` has made before.
//!
//! `cargo test` does not make the libraries in C's format, the programs of other packages and the examples.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The packages and features of the build. `tests/run` uses the same words; with others cargo would build all again.
const WORDS: [&str; 5] = ["--workspace", "--all-features", "--lib", "--bins", "--examples"];

/// Returns the command `cargo`, for a build within a test.
///
/// The test harness is allowed to use an unstable option (`tests/limited`). Builds must not see that, because cargo
/// would then build some crates again.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.env_remove("RUSTC_BOOTSTRAP");
    cargo
}

/// Builds the workspace once in a run of these tests. Returns the directory of the unoptimised profile.
///
/// # Errors
/// The build fails; the error contains what cargo printed.
pub fn workspace() -> Result<PathBuf, String> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut command = cargo();
        command.args(["build", "--quiet"]).args(WORDS).current_dir(&root);
        let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
        if !output.status.success() {
            return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)));
        }
        target().map(|target| target.join("debug"))
    };
    BUILT.get_or_init(build).clone()
}

/// Returns cargo's target directory: that of this program, which lies in `PROFILE/deps`.
fn target() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let target = program.ancestors().nth(3);
    target.map(Path::to_path_buf).ok_or_else(|| format!("{} is in no target directory", program.display()))
}
