//! Configuration files: lines `NAME = value`, with the names of the environment variables. A `#` at the
//! beginning of a line or after a blank starts a comment. If several lines set a variable, the last one counts.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::ConfigError;
use crate::os::descriptor::above_standard;

/// The variable that names the file to read instead of those in [`places`]; if it is empty, no file is read.
pub(super) const VARIABLE: &str = "NEMESIA_CONFIG";
/// The file for all users.
const SYSTEM: &str = "/etc/nemesia/nemesia.conf";
/// The file of one user, in `XDG_CONFIG_HOME`, or else in `.config` of `HOME`.
const USER: &str = "nemesia/nemesia.conf";
/// More than any configuration needs: a device or a core dump is not read to its end.
const MOST_BYTES: u64 = 1 << 20;

/// The files to read, in rising precedence.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Places {
    /// One file, which must exist.
    Named(PathBuf),
    /// Files that are read if they exist.
    Usual(Vec<PathBuf>),
}

/// Returns which files the environment selects.
pub(super) fn places(lookup: impl Fn(&str) -> Option<OsString>) -> Places {
    let absolute = |name: &str| lookup(name).map(PathBuf::from).filter(|path| path.is_absolute());
    match lookup(VARIABLE) {
        Some(path) if path.is_empty() => Places::Usual(Vec::new()),
        Some(path) => Places::Named(path.into()),
        None => {
            let home = || absolute("HOME").map(|home| home.join(".config"));
            let user = absolute("XDG_CONFIG_HOME").or_else(home).map(|directory| directory.join(USER));
            Places::Usual([PathBuf::from(SYSTEM)].into_iter().chain(user).collect())
        }
    }
}

/// A line with an assignment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Assignment<'a> {
    /// The line number, from 1.
    pub(super) line: usize,
    pub(super) name: &'a str,
    pub(super) value: &'a str,
}

/// Reads the whole file; `None` if it does not exist.
pub(super) fn read(path: &Path) -> Result<Option<String>, ConfigError> {
    let refused = |reason: &dyn std::fmt::Display| ConfigError::File {
        path: path.to_owned(),
        reason: format!("{reason}: {VARIABLE} names another, or none if it is empty"),
    };
    // The opening of a pipe would wait for a writer.
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = match opened.and_then(above_standard) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        opened => opened.map_err(|error| refused(&error))?,
    };
    if file.metadata().is_ok_and(|it| it.file_type().is_fifo()) {
        return Err(refused(&"it is a pipe, which may never end; a file is needed"));
    }
    let mut text = String::new();
    file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(|error| refused(&error))?;
    if text.len() as u64 > MOST_BYTES {
        return Err(refused(&"it is larger than 1 MiB"));
    }
    Ok(Some(text))
}

/// Returns the assignments of the lines. An error is the number of a line that is neither an assignment nor a
/// comment.
pub(super) fn assignments(text: &str) -> impl Iterator<Item = Result<Assignment<'_>, usize>> {
    text.lines().zip(1..).filter_map(|(whole, line)| {
        let content = without_comment(whole).trim();
        if content.is_empty() {
            return None;
        }
        let (name, value) = content.split_once('=').unwrap_or((content, ""));
        let (name, value) = (name.trim(), value.trim());
        let good = content.contains('=') && !name.is_empty() && !name.contains(char::is_whitespace);
        Some(if good { Ok(Assignment { line, name, value }) } else { Err(line) })
    })
}

fn without_comment(line: &str) -> &str {
    let begins = |(at, _): &(usize, &str)| *at == 0 || line[..*at].ends_with([' ', '\t']);
    line.match_indices('#').find(begins).map_or(line, |(at, _)| &line[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_file_replaces_the_usual_ones() {
        let of = |pairs: &'static [(&str, &str)]| {
            places(|name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
        };
        let usual = |user: &[&str]| Places::Usual([SYSTEM].iter().chain(user).map(PathBuf::from).collect());
        assert_eq!(of(&[("HOME", "/h"), ("NEMESIA_CONFIG", "x.conf")]), Places::Named("x.conf".into()));
        assert_eq!(of(&[("HOME", "/h"), ("NEMESIA_CONFIG", "")]), Places::Usual(Vec::new()));
        assert_eq!(of(&[("HOME", "/h")]), usual(&["/h/.config/nemesia/nemesia.conf"]));
        assert_eq!(of(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")]), usual(&["/x/nemesia/nemesia.conf"]));
        assert_eq!(of(&[("XDG_CONFIG_HOME", "relative")]), usual(&[]));
    }

    #[test]
    fn lines_are_assignments_comments_or_errors() {
        let text = "# all\n\nA=1 # one\n  B =\ttwo#2 \nC=\nD\n=5\nE F=6\n";
        let found: Vec<_> = assignments(text).collect();
        let set = |line, name, value| Ok(Assignment { line, name, value });
        assert_eq!(found, [set(3, "A", "1"), set(4, "B", "two#2"), set(5, "C", ""), Err(6), Err(7), Err(8)]);
    }

    #[test]
    fn what_is_no_text_is_refused_and_what_is_not_there_is_nothing() {
        assert_eq!(read(Path::new("/nonexistent/nemesia.conf")), Ok(None));
        for path in ["/", "/dev/zero"] {
            let error = read(Path::new(path)).unwrap_err().to_string();
            assert!(error.starts_with(path) && error.contains(VARIABLE), "{error}");
        }
    }
}
