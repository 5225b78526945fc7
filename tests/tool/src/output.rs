//! Output: no panic if a reader is gone, and no half-written file if a run fails.
#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Prints one line on the standard error output, behind the program's name.
pub(crate) fn remark(message: &str) {
    // If the standard error output is closed, the line is lost.
    let _ = writeln!(io::stderr().lock(), "nemesia: {message}");
}

/// Prints on the standard output. A reader that closes the pipe early is not an error.
///
/// # Errors
/// The output cannot be written for another reason, such as a full disk.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write to the standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints on the standard error output what does not belong on the standard output.
pub(crate) fn print_aside(text: &str) {
    // As for a remark.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// A file that is opened at the start and written at the end, so that an unusable path is reported before the
/// work.
///
/// If it did not exist and nothing was written, it is removed again.
#[derive(Debug)]
pub(crate) struct Destination {
    path: PathBuf,
    file: File,
    remove: bool,
}

impl Destination {
    /// Opens a file and keeps its contents for now.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let opened = match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(file) => Ok((file, true)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                OpenOptions::new().write(true).open(path).map(|file| (file, false))
            }
            Err(error) => Err(error),
        };
        let (file, remove) =
            opened.map_err(|error| Failure::unusable(format!("cannot write {}: {error}", path.display())))?;
        Ok(Self { path: path.to_owned(), file, remove })
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the contents of the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(mut self, text: &str) -> Result<(), Failure> {
        let regular = self.file.metadata().is_ok_and(|metadata| metadata.is_file());
        let emptied = if regular { self.file.set_len(0) } else { Ok(()) };
        emptied
            .and_then(|()| self.file.write_all(text.as_bytes()))
            .map_err(|error| Failure::failed(format!("cannot write {}: {error}", self.path.display())))?;
        self.remove = false;
        Ok(())
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        if self.remove {
            // If it cannot be removed, an empty file stays.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("nemesia-output-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_file_that_was_not_written_does_not_stay() {
        let path = path("unwritten");
        drop(Destination::open(&path).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn a_failed_run_leaves_the_old_file_as_it_was() {
        let path = path("old");
        std::fs::write(&path, "a long old text").unwrap();
        drop(Destination::open(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a long old text");
        Destination::open(&path).unwrap().write("new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_directory_that_is_missing_is_named() {
        let failure = Destination::open(Path::new("/nonexistent/x")).unwrap_err();
        assert_eq!(failure.status, 2);
        assert!(failure.message.contains("/nonexistent/x"), "{failure:?}");
    }
}
