//! Links: the life of one connection between two processes, whatever carries its messages.
//!
//! [`wire`] has the messages, with which two processes call and answer each other; [`offers`] has what they offer each
//! other in them. [`address`] and [`proof`] have the capability to call a process: whoever was given its address proves
//! that without sending it.
#![forbid(unsafe_code)]

pub mod address;
pub mod bytes;
pub mod offers;
pub mod proof;
pub mod refusal;
pub mod token;
pub mod wire;
