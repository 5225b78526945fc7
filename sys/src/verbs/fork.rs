//! The effect of a `fork` on registered memory.

use crate::rdma::{VerbsError, verbs};
use rdma_core_sys as raw;

/// Whether a process with registered memory may fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkSafety {
    /// No: the child must `exec` at once, without writing.
    Unsafe,
    /// Yes, by [`prepare_fork`]: registered pages are absent from the child.
    Prepared,
    /// Yes: the kernel gives the child copies of pinned pages at once (since 5.12).
    Unneeded,
    /// Unknown: the library returned a number that this module does not define.
    Unknown(u32),
}

/// Returns the fork safety of this process (`ibv_is_fork_initialized(3)`).
///
/// # Errors
/// The library is absent, or too old to report it.
pub fn fork_safety() -> Result<ForkSafety, VerbsError> {
    let ask = verbs()?.ibv_is_fork_initialized.ok_or(VerbsError::Old { what: "ibv_is_fork_initialized" })?;
    // SAFETY: no requirements.
    Ok(match unsafe { ask() } {
        raw::IBV_FORK_DISABLED => ForkSafety::Unsafe,
        raw::IBV_FORK_ENABLED => ForkSafety::Prepared,
        raw::IBV_FORK_UNNEEDED => ForkSafety::Unneeded,
        other => ForkSafety::Unknown(other),
    })
}

/// Makes forks safe on kernels that need it (`ibv_fork_init(3)`), at the cost of a system call for each
/// registration. Must be called before anything is registered.
///
/// # Errors
/// The library is absent, or memory is registered already.
pub fn prepare_fork() -> Result<(), VerbsError> {
    // SAFETY: no requirements.
    match unsafe { (verbs()?.ibv_fork_init)() } {
        0 => Ok(()),
        code => Err(VerbsError::System { what: "preparing for fork", code: code.abs() }),
    }
}
