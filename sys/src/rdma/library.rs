//! The libraries, each opened once in a process.

use std::sync::OnceLock;

use rdma_core_sys::{Cm, OpenError, Verbs};

/// Returns libibverbs.
pub(crate) fn verbs() -> Result<&'static Verbs, OpenError> {
    static TABLE: OnceLock<Result<Verbs, OpenError>> = OnceLock::new();
    TABLE.get_or_init(Verbs::open).as_ref().map_err(|error| *error)
}

/// Returns librdmacm.
pub(crate) fn manager() -> Result<&'static Cm, OpenError> {
    static TABLE: OnceLock<Result<Cm, OpenError>> = OnceLock::new();
    TABLE.get_or_init(Cm::open).as_ref().map_err(|error| *error)
}
