//! The key of the job: where a process has it from.

use crate::os::descriptor::above_standard;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use nemesia_core::job_key::{JobKey, KEY_BYTES};

use super::Config;

/// No key, or one that rank 0 draws.
const AUTO: &str = "auto";
/// The rights of other users than the owner of a file.
const OTHERS: u32 = 0o077;

/// Where a process has the key of its job from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum JobKeySource {
    /// Without a setting. For ranks that connect at the start, rank 0 draws it, and the exchange carries it to the
    /// others.
    #[default]
    Exchange,
    /// A file, which is read when the world is opened.
    File(PathBuf),
    /// The program has set it.
    Program(JobKey),
}

impl fmt::Display for JobKeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exchange => f.write_str(AUTO),
            Self::File(path) => path.display().fmt(f),
            Self::Program(_) => f.write_str("set by the program"),
        }
    }
}

impl JobKeySource {
    /// Returns the source that a setting names.
    pub(super) fn parse(value: &str) -> Option<Self> {
        match value {
            AUTO => Some(Self::Exchange),
            path => path.starts_with('/').then(|| Self::File(path.into())),
        }
    }

    /// Returns whether the settings give a key, so that the exchange carries none.
    pub(crate) fn is_given(&self) -> bool {
        *self != Self::Exchange
    }

    /// Returns the key; `None` if the exchange carries it. The error is one line, without any part of the key.
    pub(crate) fn key(&self) -> Result<Option<JobKey>, String> {
        match self {
            Self::Exchange => Ok(None),
            Self::Program(key) => Ok(Some(*key)),
            Self::File(path) => {
                let problem = |what: &str| format!("NEMESIA_JOB_KEY_FILE={}: {what}", path.display());
                let file =
                    File::open(path).and_then(above_standard).map_err(|error| problem(&error.to_string()))?;
                let mode = file.metadata().map_err(|error| problem(&error.to_string()))?.mode();
                if mode & OTHERS != 0 {
                    return Err(problem("other users may read or change it: use chmod 600"));
                }
                let mut text = String::new();
                let most = 2 * KEY_BYTES as u64 + 2;
                file.take(most).read_to_string(&mut text).map_err(|error| problem(&error.to_string()))?;
                let wrong =
                    || problem("it must have 64 hexadecimal digits, as `openssl rand -hex 32` prints them");
                key_from_hex(text.trim_end()).map(Some).ok_or_else(wrong)
            }
        }
    }
}

/// Returns the key with these 64 hexadecimal digits.
pub(crate) fn key_from_hex(text: &str) -> Option<JobKey> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != KEY_BYTES || !rest.is_empty() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut key = [0; KEY_BYTES];
    for (to, [high, low]) in key.iter_mut().zip(pairs) {
        *to = (digit(*high)? << 4 | digit(*low)?) as u8;
    }
    Some(JobKey::from_bytes(key))
}

impl Config {
    /// Sets the key of the job: 32 random bytes, the same in all its processes and known to no other process. Processes
    /// on different machines prove to each other that they know it; it is never sent between them. Without this call
    /// and without `NEMESIA_JOB_KEY_FILE`, a process that was given an address may call it
    /// ([`Endpoint::address`](crate::Endpoint::address)), and ranks that connect at the start prove a key that rank 0
    /// draws: every process that can read the launcher's key space can then join the job.
    #[must_use]
    pub fn job_key(self, key: [u8; 32]) -> Self {
        let key = JobKeySource::Program(JobKey::from_bytes(key));
        self.with(["NEMESIA_JOB_KEY_FILE"], |config| config.job_key = key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;

    /// Returns what is read from a file with this text and these rights.
    fn read(name: &str, text: &str, mode: u32) -> Result<Option<JobKey>, String> {
        let path = std::env::temp_dir().join(format!("nemesia-job-key-{}-{name}", std::process::id()));
        let mut file = File::options().create_new(true).write(true).mode(mode).open(&path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let key = JobKeySource::parse(path.to_str().unwrap()).unwrap().key();
        std::fs::remove_file(path).unwrap();
        key
    }

    #[test]
    fn a_file_has_a_key_and_belongs_to_its_owner_only() {
        let digits = "00ff".repeat(16);
        let mut bytes = [0; KEY_BYTES];
        bytes.iter_mut().skip(1).step_by(2).for_each(|byte| *byte = 0xff);
        for end in ["", "\n"] {
            let key = read("good", &format!("{digits}{end}"), 0o600);
            assert_eq!(key, Ok(Some(JobKey::from_bytes(bytes))));
        }
        for mode in [0o640, 0o604] {
            assert!(read("open", &digits, mode).unwrap_err().contains("chmod 600"));
        }
        for text in ["", "00", &digits[1..], &format!("{digits}0"), &digits.replace('f', "g")] {
            let error = read("bad", text, 0o600).unwrap_err();
            assert!(error.contains("64 hexadecimal digits"), "{text}: {error}");
            assert!(
                text.len() < 8 || !error.contains(&text[..8]),
                "an error shows a part of the key: {error}"
            );
        }
        let missing = JobKeySource::parse("/nonexistent/key").unwrap();
        assert!(missing.key().unwrap_err().contains("NEMESIA_JOB_KEY_FILE=/nonexistent/key"));
    }

    #[test]
    fn no_setting_shows_the_key() {
        let config = Config::default().job_key([0xab; KEY_BYTES]);
        let shown = format!("{config:?} {}", config.get("NEMESIA_JOB_KEY_FILE").unwrap());
        assert!(!shown.contains("abab") && !shown.contains("171"), "{shown}");
        assert!(shown.contains("set by the program"));
    }
}
