//! Connections by RDMA-CM: addresses, requests, answers, refusals, over any RDMA device.
//!
//! No function here waits. A [`Channel`] returns [`CmEvent`]s, and [`step`] says what to do about each, given
//! the stage of the connection ([`CmStage`]). [`step`] is a pure function, tested with every event in every
//! stage. Its caller ([`crate::verbs::VerbsPort`]) executes the result and watches the deadlines.
//!
//! The connecting side goes through resolving (address), routing (route), asking, ready; the accepting side
//! through requested, accepting, ready. On iWARP the connecting side must send first (RFC 5044, "Connection
//! Startup Rules").

mod address;
mod channel;
mod event;
mod id;
mod stage;

pub use address::{CmAddress, decode_address, encode_address};
pub use channel::Channel;
pub use event::CmEvent;
pub use id::{CmAnswer, DevicePlace, Id, local_addresses, place_of};
pub(crate) use id::{MOST_PLACES, is_taken};
pub use stage::{CmStage, Side, Step, step};
