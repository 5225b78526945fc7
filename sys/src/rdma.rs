//! What connections by RDMA-CM ([`cm`](crate::cm)) and the use of devices ([`verbs`](crate::verbs)) have in common:
//! the opened libraries, errors, and attributes of queue pairs.

mod error;
mod library;

use rdma_core_sys as raw;

pub use error::VerbsError;
pub(crate) use error::last_errno;
pub(crate) use library::{manager, verbs};

/// The number of retries. Not 7, the largest: soft `RoCE` takes 7 for unlimited (`rxe_completer`, Linux 6.1).
pub(crate) const RETRIES: u8 = 6;
/// The code for waiting without limit until the other side has posted a receive.
pub(crate) const RNR_FOREVER: u8 = 7;

/// Returns attributes with a state and zeros elsewhere.
pub(crate) fn attributes(state: raw::ibv_qp_state) -> raw::ibv_qp_attr {
    // SAFETY: zeros are a value of every field.
    let mut attr: raw::ibv_qp_attr = unsafe { std::mem::zeroed() };
    attr.qp_state = state;
    attr
}

/// Makes a descriptor non-blocking. The error is an error number.
pub(crate) fn set_nonblocking(descriptor: i32) -> Result<(), i32> {
    // SAFETY: flags of a descriptor; a bad one is an error.
    unsafe {
        let flags = libc::fcntl(descriptor, libc::F_GETFL);
        if flags < 0 || libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK) < 0 {
            return Err(last_errno());
        }
    }
    Ok(())
}
