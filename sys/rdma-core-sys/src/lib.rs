//! Raw bindings to libibverbs and librdmacm, the two libraries of rdma-core that RDMA programs use.
//!
//! Bindgen makes the types, constants and function signatures from the headers. They are committed, so a build
//! needs neither the headers nor libclang. Nothing is linked: [`Verbs::open`] and [`Cm::open`] open the
//! libraries at run time. So a program also runs on machines without them, and the error names the packages to
//! install. Each function is looked up under the version in the headers; functions of later releases of
//! rdma-core are an `Option`.
//!
//! Half of the interface is not in the libraries: the verbs of the critical path are inline functions of the headers,
//! which call through the operations table of the device's context. They are in [`inline`] and as methods of [`Verbs`].
//!
//! ```no_run
//! let verbs = rdma_core_sys::Verbs::open()?;
//! let mut count = 0;
//! // SAFETY: `count` may be written, and the list is freed once.
//! unsafe {
//!     let list = (verbs.ibv_get_device_list)(&mut count);
//!     if !list.is_null() {
//!         (verbs.ibv_free_device_list)(list);
//!     }
//! }
//! # Ok::<(), rdma_core_sys::OpenError>(())
//! ```
//!
//! C enumerations are integers here, with constants. A library or a device may return a value that these
//! headers lack; it must be a number, not undefined behaviour. The layout of every struct is asserted against
//! the C compiler's at generation, and `tests/layout.rs` compares it with the local C compiler's.
//!
//! To regenerate the files: `cargo run -p rdma-core-sys --features bindgen --example regenerate`.
//!
//! # Licence
//! Names, types and comments derive from the headers of rdma-core, which are used under the OpenIB.org BSD licence;
//! the file `LICENSE-rdma-core` of this package is its notice. The rest is under the licence of the workspace.
#![no_std]
#![deny(unsafe_op_in_unsafe_fn)]

// The names and comments are those of the headers.
#[rustfmt::skip]
#[allow(missing_docs, non_camel_case_types, non_upper_case_globals, non_snake_case, missing_debug_implementations)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, unsafe_op_in_unsafe_fn)]
mod bindings;
// The file is printed from tokens, which have no comments: the documentation of each function has the reasons.
#[rustfmt::skip]
#[allow(clippy::undocumented_unsafe_blocks)]
mod functions;
pub mod inline;
#[rustfmt::skip]
mod layout;
mod load;
mod open;

pub use bindings::*;
pub use functions::{Cm, Verbs};
pub use layout::LAYOUTS;
pub use load::{OpenError, Reason};

/// The size of a type, and the offsets of its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The name of the type in C, such as `struct ibv_qp`.
    pub name: &'static str,
    /// The size in bytes.
    pub size: usize,
    /// The alignment in bytes.
    pub align: usize,
    /// The name of each field in C, including those of unnamed members, and its offset in bytes.
    pub fields: &'static [(&'static str, usize)],
}
