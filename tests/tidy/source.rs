//! The files of the repository, and the findings of the rules.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::sync::mpsc::{self, Sender};
use std::thread;

/// A text file; `path` is relative to the repository and uses `/`.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    /// Makes a file of a sample tree.
    #[cfg(test)]
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self { path: path.into(), text: text.into() }
    }
}

/// A violation of a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    file: String,
    line: usize,
    what: String,
}

impl Finding {
    pub(crate) fn new(file: &str, line: usize, what: impl Into<String>) -> Self {
        Self { file: file.into(), line, what: what.into() }
    }

    pub(crate) fn line(&self) -> usize {
        self.line
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

/// Fails with the whole list, one finding on each line.
#[track_caller]
pub(crate) fn assert_none(findings: &[Finding]) {
    let list: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert!(list.is_empty(), "{} found\n{}", list.len(), list.join("\n"));
}

/// A rule that waits for the thread that has read the repository.
type Job = Box<dyn FnOnce(&[File]) + Send>;

/// Applies a rule to every text file of the repository.
///
/// One thread applies the rules of all tests: it reads each file once, and [`crate::syntax::parse`] parses it once. The
/// parsed files can't go to another thread.
#[track_caller]
pub(crate) fn assert_keeps(rule: impl FnOnce(&[File]) -> Vec<Finding> + Send + 'static) {
    static READER: LazyLock<Sender<Job>> = LazyLock::new(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        thread::spawn(move || {
            let files = tree();
            jobs.iter().for_each(|job| job(&files));
        });
        sender
    });
    let (result, found) = mpsc::channel();
    let job: Job = Box::new(move |files| {
        // The test that asked may have ended by its limit.
        let _ = result.send(catch_unwind(AssertUnwindSafe(|| rule(files))));
    });
    // If that thread has ended, the answer never comes, and that is reported.
    let _ = READER.send(job);
    match found.recv().unwrap_or_else(|_| Err(Box::new("the thread that reads the repository has ended"))) {
        Ok(findings) => assert_none(&findings),
        Err(panic) => resume_unwind(panic),
    }
}

/// Applies a rule that checks one file at a time.
pub(crate) fn each(files: &[File], rule: fn(&str, &str) -> Vec<Finding>) -> Vec<Finding> {
    files.iter().flat_map(|file| rule(&file.path, &file.text)).collect()
}

/// Returns the root directory of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns every file that git tracks or would track, sorted; without git, every file outside `target` and
/// `.git`.
pub(crate) fn names() -> Vec<String> {
    let mut names = from_git().unwrap_or_else(|| {
        let mut found = Vec::new();
        walk(&root(), "", &mut found);
        found
    });
    names.retain(|name| root().join(name).is_file());
    names.sort_unstable();
    names.dedup();
    assert!(
        names.iter().any(|name| name == "Cargo.toml"),
        "this is not the repository: {}",
        root().display()
    );
    names
}

/// Returns every text file of the repository.
pub(crate) fn tree() -> Vec<File> {
    let read = |path: String| {
        let text = String::from_utf8(std::fs::read(root().join(&path)).ok()?).ok()?;
        Some(File { path, text })
    };
    names().into_iter().filter_map(read).collect()
}

fn from_git() -> Option<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .ok()?;
    let names = String::from_utf8(output.stdout).ok()?;
    let names: Vec<String> = names.split('\0').filter(|name| !name.is_empty()).map(Into::into).collect();
    (output.status.success() && !names.is_empty()).then_some(names)
}

/// Finds the files below a directory, without those that git ignores: what cargo builds, and pictures at the top.
fn walk(directory: &Path, prefix: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type();
        if kind.as_ref().is_ok_and(std::fs::FileType::is_file) {
            if prefix.is_empty() && name.ends_with(".svg") {
                continue;
            }
            found.push(format!("{prefix}{name}"));
        } else if kind.is_ok_and(|kind| kind.is_dir()) && name != "target" && name != ".git" {
            walk(&entry.path(), &format!("{prefix}{name}/"), found);
        }
    }
}

#[test]
fn a_finding_reads_file_line_what() {
    assert_eq!(Finding::new("core/src/port.rs", 7, "too long").to_string(), "core/src/port.rs:7: too long");
}

#[test]
#[should_panic(expected = "1 found\na.rs:1: bad")]
fn findings_fail_the_test_that_asserts_there_are_none() {
    assert_none(&[Finding::new("a.rs", 1, "bad")]);
}

#[test]
fn walking_finds_this_file() {
    let mut found = Vec::new();
    walk(&root().join("tests"), "tests/", &mut found);
    assert!(found.iter().any(|name| name == "tests/tidy/source.rs"));
}
