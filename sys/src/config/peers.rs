//! The settings of endpoints that open alone.

use super::Config;

impl Config {
    /// Sets the most peers with which an endpoint that was opened alone is connected at the same time, 1 to 4095
    /// (initially 1,024). Each connection takes memory for messages ([`Config::unexpected_bytes`]), so that may allow
    /// fewer.
    #[must_use]
    pub fn connections(self, most: u32) -> Self {
        self.with(["NEMESIA_CONNECTIONS"], |config| config.connections = most.clamp(1, 4095))
    }

    /// Sets whether an endpoint that was opened alone takes calls of processes whose address it was not given
    /// ([`Endpoint::connect`](crate::Endpoint::connect)). They are processes of the same user, or on other machines
    /// have the key of the job, in any case. Initially it does.
    #[must_use]
    pub fn strangers(self, admit: bool) -> Self {
        self.with(["NEMESIA_STRANGERS"], |config| config.strangers = admit)
    }
}
