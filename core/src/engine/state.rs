//! The state of requests and peers that belongs to one protocol each. The protocols, which change this state, are the
//! other modules of the engine.
#![forbid(unsafe_code)]

mod active;
mod protocol;
mod remote;
mod turn;

pub use active::ACTIVE_BYTES;
pub(super) use active::{Assembly, Outgoing};
pub(super) use protocol::{FIRST_BYTES, Protocol};
pub use remote::RegionId;
pub(super) use remote::{Body, Refused, RemoteOperation, RmaState, both};
pub use turn::{PACKETS_A_TURN, Progress};
