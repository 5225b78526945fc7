//! Internal interfaces for this repository's own tests and programs, among them the library `libvipl`. **Not part of
//! the API**: they exist only with the feature `internals`, follow no version numbers, and may change or go in any
//! release.
//!
//! Functions whose misuse could break memory safety are `unsafe` here as well. The following one could write
//! any memory of its own process:
//!
//! ```compile_fail,E0133
//! use nemesia::internals::os::{IdentityStamp, RemoteMemory};
//!
//! let (stamp, victim) = (Box::new(77_u64), Box::new([1_u8; 8]));
//! let stamp = IdentityStamp { address: &raw const *stamp as u64, value: 77 };
//! let mut own = RemoteMemory::new(std::process::id() as i32, stamp).unwrap();
//! own.write(&raw const *victim as u64, &[9; 8], || true).unwrap();
//! ```

/// Connections by RDMA-CM.
pub mod cm {
    pub use crate::cm::*;
}

/// The provider of virtual interfaces, for `libvipl`.
pub mod via {
    pub use crate::via::*;
}

/// The layer over the operating system.
pub mod os {
    pub use crate::os::*;
}
