//! Transports between machines: which ranks share this machine, and the port to the others.
//!
//! | module | content |
//! |---|---|
//! | `hosts` | the addresses that processes publish, and the ranks that share a machine |
//! | `net` | the port to ranks on other machines: a channel over TCP or over an RDMA device |

pub(crate) mod hosts;
pub(crate) mod net;
