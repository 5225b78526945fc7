//! The settings of connections inside a machine.

use super::Config;

impl Config {
    /// Sets the most peers with which an endpoint is connected at the same time, the ranks of its world apart: 1 to
    /// 4095 (initially 1,024). Each connection takes memory for messages ([`Config::unexpected_bytes`]), so that may
    /// allow fewer.
    #[must_use]
    pub fn connections(self, most: u32) -> Self {
        self.with(["NEMESIA_CONNECTIONS"], |config| config.connections = most.clamp(1, 4095))
    }

    /// Sets whether an endpoint takes calls of processes outside of its world whose address it was not given
    /// ([`Endpoint::connect`](crate::Endpoint::connect)). They are processes of the same user, or over the network were
    /// given the address of this endpoint and have the same key of the job, in any case. Initially it does.
    #[must_use]
    pub fn strangers(self, admit: bool) -> Self {
        self.with(["NEMESIA_STRANGERS"], |config| config.strangers = admit)
    }

    /// Sets when the ranks of a world connect: two ranks of a machine, or of two machines over TCP, when an operation
    /// of one first names the other (initially), or all when the world opens. A call of a rank is answered when the
    /// other makes progress, so a first message waits for that.
    ///
    /// All connect when the world opens if any of its processes asks for it, if its launcher starts ranks again, if it
    /// uses RDMA devices between machines, in strict mode, if routes are explained, and if single copy is required.
    #[must_use]
    pub fn connect_on_demand(self, on_demand: bool) -> Self {
        self.with(["NEMESIA_CONNECT"], |config| config.on_demand = on_demand)
    }
}
