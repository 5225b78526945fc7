//! The state of requests and peers that belongs to one protocol each. The protocols, which change this state, are the
//! other modules of the engine.
#![forbid(unsafe_code)]

mod active;
mod lmt;
mod progress;
mod rma;

pub use active::ACTIVE_BYTES;
pub(super) use active::{Assembly, Outgoing};
pub(super) use lmt::{Accesses, Assist, FIRST_BYTES, Incoming, Protocol, StreamState, TransferPhase};
pub use progress::{PACKETS_A_TURN, Progress};
pub(super) use progress::{WorkLink, WorkList};
pub use rma::RegionId;
pub(super) use rma::{Body, Refused, RemoteOperation, RmaState, both};
