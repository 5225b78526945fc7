//! The C face of Nemesia: `nemesia.h`, `libnemesia.so`, `libnemesia.a`.
//!
//! Every function here checks its arguments in release builds, turns errors into codes with a text beside them, and
//! lets no panic out. The header `include/nemesia.h` is made from this crate by cbindgen and committed; the comments
//! here are the comments there. `install.sh` installs all of it.
//!
//! | module | what it holds |
//! |---|---|
//! | [`status`] | the codes, and the text of the last error |
//! | [`boundary`] | pointers in, pointers out, panics: the rules that every function follows |
//! | [`config`] | `nemesia_config` |
//! | `handle` | what the opaque pointers hold: the table in which every handle is looked up |
//! | [`exchange`] | `nemesia_exchange`: the caller's own way for processes to find each other |
//! | [`endpoint`] | open, close, and what an endpoint knows |
//! | `lent` | an endpoint for the length of a call, of one thread or of several |
//! | [`event`] | waiting in an event loop |
//! | [`agree`] | going on without the peers that are gone |
//! | [`restart`] | peers that are there again |
//! | [`transfer`] | sends, receives and their requests |
//! | [`active`] | active messages |
//! | [`rma`] | one-sided operations |
//! | [`fetch`] | those that say what a value was |
//! | [`memory`] | memory that the caller takes away |
//! | [`context`] | the same in a matching context; modes of sending |
//! | [`list`] | messages whose bytes are not in one place |
//! | [`observe`] | counters, and the call tree |
//! | [`probe`] | looking at messages before they are received |
//!
//! What is always true: an output is written on success only, unless its comment says otherwise; a pointer that the
//! caller lends is not used after the call, unless a request holds it.
#![expect(
    clippy::missing_safety_doc,
    reason = "each comment is the contract in C, in the words of the header"
)]

pub mod active;
pub mod agree;
pub mod boundary;
pub mod config;
pub mod context;
pub mod endpoint;
pub mod event;
pub mod exchange;
pub mod fetch;
mod handle;
mod lent;
pub mod list;
pub mod memory;
mod now;
pub mod observe;
pub mod probe;
pub mod restart;
pub mod rma;
pub mod status;
pub mod transfer;
