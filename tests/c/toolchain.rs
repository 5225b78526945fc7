//! Installs the C interface into a directory of this build, and compiles programs against it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use nemesia_tests::{built, quick};

/// The lines of a failed command's errors that are shown first.
const LAST_LINES: usize = 4;

/// How a program is linked with the library.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Linking {
    /// Links libnemesia.so, which the loader finds by the path in the program.
    Shared,
    /// Links libnemesia.a.
    Static,
}

impl Linking {
    pub(crate) const BOTH: [Self; 2] = [Self::Shared, Self::Static];

    /// Returns the ways in which a program is linked whose test does not depend on the way. In the short form that is
    /// one: the tests of packages, of host runtimes, of misuse and of the small runtime link the archive as well.
    pub(crate) fn each() -> &'static [Self] {
        if quick() { &[Self::Shared] } else { &Self::BOTH }
    }

    fn arguments(self, prefix: &Path) -> Vec<String> {
        let lib = prefix.join("lib");
        match self {
            Self::Shared => {
                vec![
                    format!("-L{}", lib.display()),
                    "-lnemesia".into(),
                    format!("-Wl,-rpath,{}", lib.display()),
                ]
            }
            Self::Static => {
                let system = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"];
                let archive = lib.join("libnemesia.a").display().to_string();
                std::iter::once(archive).chain(system.map(String::from)).collect()
            }
        }
    }
}

/// Returns the prefix of the installation by `ffi/install.sh`, which runs once per test process.
///
/// Several test programs install what one build has made. Each has a prefix of its own, because they may run at the
/// same time.
pub(crate) fn installed() -> Result<PathBuf, String> {
    static INSTALLED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    INSTALLED
        .get_or_init(|| {
            built::workspace()?;
            let prefix = scratch().join(concat!("prefix-", env!("CARGO_CRATE_NAME")));
            let mut install = Command::new(source("ffi/install.sh"));
            output(install.args(["--debug", "--built"]).arg(&prefix)).map(|_| prefix)
        })
        .clone()
}

/// Compiles and links one source, once in this process for the same flags; the program is named after the first `name`
/// and the linking. To link the static library takes seconds.
pub(crate) fn compile(
    compiler: &str,
    flags: &[&str],
    source: &Path,
    linking: Linking,
    name: &str,
) -> Result<PathBuf, String> {
    type Programs = HashMap<String, Arc<OnceLock<Result<PathBuf, String>>>>;
    static PROGRAMS: OnceLock<Mutex<Programs>> = OnceLock::new();

    let prefix = installed()?;
    let key = format!("{compiler} {flags:?} {} {linking:?}", source.display());
    let mut programs = PROGRAMS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let program = Arc::clone(programs.entry(key).or_default());
    drop(programs);
    let compiled = program.get_or_init(|| {
        let program = scratch().join(format!("{name}-{linking:?}"));
        let mut command = Command::new(compiler);
        command.args(flags).arg("-I").arg(prefix.join("include")).arg(source).arg("-o").arg(&program);
        output(command.args(linking.arguments(&prefix))).map(|_| program)
    });
    compiled.clone()
}

/// Returns the first tool that is not installed.
pub(crate) fn missing<'a>(tools: &[&'a str]) -> Option<&'a str> {
    tools.iter().copied().find(|tool| Command::new(tool).arg("--version").output().is_err())
}

/// Runs a command and returns its output. A failure is an error that contains the whole output, and before it the last
/// lines of its errors: a report may cut it.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().count().saturating_sub(LAST_LINES);
    let last: Vec<&str> = errors.lines().skip(last).collect();
    Err(format!("{}\n{command:?}: {}\n{text}{errors}", last.join("\n"), output.status))
}

/// Returns the path of a file of the repository.
pub(crate) fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Applies `of` to the lines of a text and returns its results.
pub(crate) fn lines(text: &str, of: impl Fn(&str) -> Option<&str>) -> Vec<String> {
    text.lines().filter_map(of).map(str::to_owned).collect()
}

/// Returns the directory in which this build may write.
pub(crate) fn scratch() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}
