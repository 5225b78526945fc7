//! The settings for messages that no receive has matched yet, and for receives that no message has matched yet.

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

    /// Sets whether receives from any source outlive the ranks that go.
    ///
    /// By default they end with [`Error::PeerFailed`](crate::Error::PeerFailed) when a rank fails, and when the last
    /// other rank finishes; after a failure they can be posted again once
    /// [`Endpoint::acknowledge_failures`](crate::Endpoint::acknowledge_failures) was called. If they outlive all
    /// ranks, they stay posted whatever happens to other ranks, and there is nothing to acknowledge: a process may
    /// wait for ranks that come later, and an MPI's finalize is no failure. A blocking receive then waits although
    /// no other rank is left. The same holds for waits for notifications. Receives from one rank end with it in both
    /// cases.
    #[must_use]
    pub fn any_source_outlives(self, outlives: bool) -> Self {
        self.with(["NEMESIA_ANY_SOURCE"], |config| config.any_source_outlives = outlives)
    }
}
