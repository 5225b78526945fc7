//! What this repository's own tests and programs use of the inside. **Not part of the API**: it is there only with the feature
//! `internals`, follows no version numbers, and may change or go in any release.
//!
//! Functions whose misuse could break memory safety are `unsafe` here as everywhere.

/// Connections by RDMA-CM.
pub mod cm {
    pub use crate::cm::*;
}

/// The layer over the operating system.
pub mod os {
    pub use crate::os::*;
}
