//! Links: the life of one connection between two processes, whatever carries its messages.
//!
//! | module | contents |
//! |---|---|
//! | [`machine`] | the stages of a link, as one machine without I/O: the page has it as a table |
//! | [`wire`], [`offers`], [`refusal`], [`bytes`] | the messages, what the ends offer each other, and refusals in words |
//! | [`address`], [`token`] | an address is the capability to call its process |
//! | [`proof`] | how both ends prove that they were given an address, without sending its token |
//!
//! All connections inside a machine are links, and those between machines over TCP that are made on demand: see
//! `sys/src/shm/calls.rs`. The other ones follow.
#![forbid(unsafe_code)]

/// Returns whether this fault is injected; false in the library that ships.
macro_rules! fault {
    ($fault:ident) => {{
        #[cfg(nemesia_injected_fault)]
        let is_injected = crate::injected_fault::injected(crate::injected_fault::InjectedFault::$fault);
        #[cfg(not(nemesia_injected_fault))]
        let is_injected = false;
        is_injected
    }};
}

pub mod address;
pub mod bytes;
pub mod machine;
pub mod offers;
pub mod proof;
pub mod refusal;
pub mod token;
pub mod wire;
