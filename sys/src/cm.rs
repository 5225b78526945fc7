//! Connections by RDMA-CM: addresses, requests, answers, refusals, over any RDMA device.
//!
//! Nothing here waits: a [`Channel`] hands out [`CmEvent`]s, and [`step`] says what is to be done about each, given where
//! the connection stands ([`Stage`]). [`step`] is a pure function, tested with every event in every stage; who calls it
//! ([`crate::verbs::VerbsPort`]) does what it says, and looks after the time.
//!
//! The one that connects: resolving (address), routing (route), asking, ready. The one that is asked: requested, accepting,
//! ready. On iWARP the one that connects has to speak first (RFC 5044, "Connection Startup Rules").

mod address;
mod channel;
mod greeting;
mod id;
mod stage;

pub use address::{decode_address, encode_address};
pub use channel::{Channel, CmEvent};
pub use greeting::{GREETING_BYTES, Greeting, GreetingError};
pub use id::{Answer, Id, local_addresses, place_of};
pub use stage::{Side, Stage, Step, step};
