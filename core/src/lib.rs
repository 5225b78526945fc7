//! The core of Nemesia: every algorithm and protocol of the transport engine, and nothing else.
//!
//! No allocation, no clock, no random source, no I/O: the caller lends storage at start, polls, and is told
//! what happened (sans-I/O). The same code therefore runs over shared memory, in a kernel, in a simulator and
//! under the loom model checker.
//!
//! | module | what it holds |
//! |---|---|
//! | [`sync`] | the only door to atomics, shared payload and fences; loom behind a private cfg |
//! | [`shared`] | what two processes see: layouts, fastbox, cell queue, cell pool, rings, sleep word, and the shared-memory [`port`] built from them |
//! | [`port`] | what the engine asks of a transport; [`port::channel`]: packets over an RDMA fabric |
//! | [`wire`] | the packets: kinds, envelope, version |
//! | [`matching`] | what a receive asks for; posted receives |
//! | [`store`] | unexpected messages |
//! | [`flow`] | credits: of memory for unexpected messages, and of posted receives |
//! | [`order`] | packets that overtake each other, put back in order |
//! | [`regcache`] | registrations of memory that are kept for their next use |
//! | [`agreement`] | what the living agree on after failures |
//! | [`trace`] | entry and exit of functions, as a call tree |
//! | [`threads`] | one endpoint for several threads: the lock, and who makes progress |
//! | [`counters`] | what was done, in numbers |
//! | [`engine`] | eager and rendezvous protocols, active messages, one-sided operations, requests, progress, failure |
//!
//! The ideas come from five papers; the modules say which. "Paper 4" is Buntinas, Mercier and Gropp,
//! *Implementation and Shared-Memory Evaluation of MPICH2 over the Nemesis Communication Subsystem*.
#![no_std]
#![deny(unsafe_op_in_unsafe_fn)]

// Sizes and positions are 64 bits wide; every cast to `usize` relies on it.
static_assertions::const_assert!(usize::BITS >= 64);

// Tests and models run on the host; the shipping library never sees std.
#[cfg(any(test, nemesia_loom))]
extern crate std;

pub mod agreement;
#[cfg(nemesia_blunder)]
pub mod blunder;
pub mod counters;
pub mod engine;
pub mod flow;
pub mod matching;
pub mod order;
pub mod payload;
pub mod port;
pub mod regcache;
pub mod shared;
pub mod slab;
pub mod store;
pub mod sync;
pub mod threads;
pub mod trace;
mod ways;
pub mod wire;
