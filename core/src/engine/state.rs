//! The state of requests and peers that belongs to one room each. The states of a request are one type
//! ([`State`](super::request)), and every room uses it. So the parts lie below the rooms, one file for each, and the
//! methods that change them lie in the rooms.
#![forbid(unsafe_code)]

mod active;
mod completion;
mod lmt;
mod multi;
mod progress;
mod rma;

pub use active::ACTIVE_BYTES;
pub(super) use active::{Assembly, Outgoing};
pub use completion::CompletionKind;
pub(super) use completion::{CompletionMark, CompletionQueue};
pub(super) use lmt::{
    Accesses, Assist, FIRST_BYTES, Incoming, Protocol, StreamState, TransferPhase, UnaskedPlace,
};
pub use multi::MultiReceiveOptions;
pub(super) use multi::{MultiBuffer, MultiFit};
pub use progress::{PACKETS_A_TURN, Progress};
pub(super) use progress::{WorkLink, WorkList};
pub use rma::RegionId;
pub(super) use rma::{Body, Due, Refused, RemoteOperation, RmaState, both};
