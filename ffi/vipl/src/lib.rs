//! The VI Provider Library: the C interface `ffi/include/vipl.h` over the provider of virtual interfaces in `nemesia`.
//! Programs that were written for it twenty years ago compile and run unchanged. The chapter `ffi/vipl.md` is for
//! users.
//!
//! | file | contents |
//! |---|---|
//! | `types.rs` | the structures and numbers of the header |
//! | `boundary.rs` | return codes, checked pointers, and the end of every panic |
//! | `nic.rs` | NICs, protection tags, errors, management |
//! | `vi.rs` | VIs and their descriptors |
//! | `memory.rs` | registered memory; what the vendor header adds |
//! | `queue.rs` | completion queues |
//! | `connect.rs` | connections |
//! | `names.rs` | the name service |
//! | `vendor.rs` | functions that some old programs use beside the standard ones |
//!
//! Handles are numbers in the form of pointers: every call checks them, and none dereferences them.
#![allow(
    unreachable_pub,
    reason = "the functions of the header are exported to C, and no Rust code names them"
)]

mod boundary;
mod connect;
mod memory;
mod names;
mod nic;
mod queue;
mod types;
mod vendor;
mod vi;
