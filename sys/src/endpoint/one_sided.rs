//! One-sided operations.

mod region;

mod blocking;
mod request;
mod scope;

mod direct;

pub use blocking::Value;
pub use direct::Path;
pub use region::{KEY_BYTES, Region, RemoteKey};

pub(super) use direct::Direct;
