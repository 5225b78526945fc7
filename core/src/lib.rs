//! The core of Nemesia: all algorithms and protocols of the transport engine.
//!
//! The core does not allocate, read a clock, draw random numbers or perform I/O (sans-I/O). The caller lends
//! storage at start, polls, and receives results as return values. The same code therefore runs over shared
//! memory, in a kernel, in a simulator and under the loom model checker.
//!
//! | module | contents |
//! |---|---|
//! | [`sync`] | the only access to atomics, shared payload and fences; loom behind a private cfg |
//! | [`shared`] | structures that two processes share, and the shared-memory [`port`] built from them |
//! | [`peers`] | the processes that this one knows, and the state of its connection with each |
//! | [`job_key`] | the key of a job, and the proofs of its knowledge with which connections between machines begin |
//! | [`link`] | the life of one connection: its messages, proofs and stages, whatever carries them |
//! | [`joining`] | connections without a connection manager: queue pairs joined by unreliable datagrams |
//! | [`port`] | the interface that the engine requires of a transport; [`port::channel`]: packets over an RDMA fabric; [`port::placement`]: such a fabric in software |
//! | [`wire`] | packet formats: kinds, envelope, version |
//! | [`matching`] | receive patterns and the queue of posted receives |
//! | [`store`] | unexpected messages |
//! | [`flow`] | credits: for unexpected-message memory, and for posted receives |
//! | [`order`] | the reorder window for packets that arrive out of order |
//! | [`regcache`] | the registration cache |
//! | [`rdma_channel`] | the RDMA Channel: a pipe of bytes over an RDMA fabric, in four designs |
//! | [`agreement`] | agreement of the surviving processes after failures |
//! | [`via`] | the Virtual Interface Architecture: VIs, work queues, descriptors, completion queues |
//! | [`trace`] | entry and exit of functions, as a call tree |
//! | [`spin`] | the spin policy: when a waiting process polls, yields the core and sleeps |
//! | [`threads`] | one endpoint shared by several threads: lock, waiter list, event count |
//! | [`counters`] | statistics |
//! | [`engine`] | eager and rendezvous protocols, active messages, one-sided operations, requests, progress, failure |
//!
//! The ideas come from five papers; each module names its source. "Paper 4" is Buntinas, Mercier and Gropp,
//! *Implementation and Shared-Memory Evaluation of MPICH2 over the Nemesis Communication Subsystem*.
#![no_std]
#![deny(unsafe_op_in_unsafe_fn)]

// Sizes and positions have 64 bits. Every cast to `usize` relies on this width.
static_assertions::const_assert!(usize::BITS >= 64);

// Tests and models run on the host. The shipped library never links std.
#[cfg(any(test, nemesia_loom))]
extern crate std;

pub mod agreement;
pub mod counters;
pub mod engine;
pub mod flow;
#[cfg(nemesia_injected_fault)]
pub mod injected_fault;
pub mod job_key;
pub mod joining;
pub mod link;
pub mod matching;
pub mod order;
pub mod payload;
pub mod peers;
pub mod port;
pub mod rdma_channel;
pub mod regcache;
mod selector;
pub mod shared;
pub mod slab;
pub mod spin;
pub mod store;
pub mod sync;
pub mod threads;
pub mod trace;
pub mod via;
pub mod wire;
