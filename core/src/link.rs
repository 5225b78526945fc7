//! Links: the life of one connection between two processes, whatever carries its messages.
//!
//! [`wire`] has the messages, with which two processes call and answer each other; [`offers`] has what they offer each
//! other in them.
#![forbid(unsafe_code)]

pub mod bytes;
pub mod offers;
pub mod refusal;
pub mod wire;
