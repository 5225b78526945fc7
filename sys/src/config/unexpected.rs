//! The settings for messages that no receive has matched yet.

use super::Config;

impl Config {
    /// Sets the ceiling for unexpected messages in bytes, at least 64 KiB. Each message takes 64 bytes, and
    /// more if it is longer than 32. Memory is committed as it is used, and before a peer gets credit for it.
    #[must_use]
    pub fn unexpected_bytes(self, bytes: usize) -> Self {
        self.with(["NEMESIA_UNEXPECTED_BYTES"], |config| config.unexpected_bytes = bytes.max(64 << 10))
    }

    /// Sets the limit in bytes up to which the ceiling for unexpected messages grows; 0, or a limit below the
    /// ceiling, keeps it.
    ///
    /// For runtimes that cannot receive other messages first. The ceiling grows, by a quarter at a time, only if it
    /// holds back something that this process waits for: a posted receive whose sender has no credit, or a message
    /// of this process to a rank that itself has no credit here. It never shrinks. At the limit, calls that cannot
    /// succeed return [`Error::Unexpected`](crate::Error::Unexpected), as they do at the ceiling without a limit.
    #[must_use]
    pub fn unexpected_limit(self, bytes: usize) -> Self {
        self.with(["NEMESIA_UNEXPECTED_LIMIT"], |config| config.unexpected_limit = bytes)
    }
}
