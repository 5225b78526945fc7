//! One-sided operations: memory that this process exposes, and operations on memory of peers. The engine's room is
//! [`rma`](nemesia_core::engine::rma).
//!
//! An operation takes one of two paths. If this process has mapped the region, it uses the memory itself
//! (`direct.rs`). Otherwise the operation travels in packets, which the owner executes.
//!
//! | file | contents |
//! |---|---|
//! | `one_sided/region.rs` | regions of this process, and the keys by which peers name them |
//! | `one_sided/blocking.rs` | safe operations on borrowed buffers and typed values, which wait until they are complete |
//! | `one_sided/request.rs` | non-blocking operations for runtimes, which keep the buffers themselves |
//! | `one_sided/scope.rs` | safe non-blocking operations in a scope |
//! | `one_sided/direct.rs` | the direct path, and the order of operations on both paths |

mod region;

mod blocking;
mod request;
mod scope;

mod direct;

pub use blocking::Value;
pub use direct::Path;
pub use region::{ExposeOptions, KEY_BYTES, Region, RemoteKey};

pub(super) use direct::Direct;
