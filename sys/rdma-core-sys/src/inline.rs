//! The inline functions of the headers, in Rust.
//!
//! They have the names, arguments and results of those in `infiniband/verbs.h`, `rdma/rdma_cma.h` and
//! `rdma/rdma_verbs.h`. Three call into the libraries as well and are therefore methods of [`Verbs`](crate::Verbs).
//! Where the headers would call a null pointer, because a device has no such operation, these return `EOPNOTSUPP`.
//!
//! Errors are those of C: a function that returns an `int` returns an error number, zero or (some providers) a negative
//! error number; one that returns a pointer returns null and sets `errno`.

mod cm;
mod completion;
mod context;
mod extended;
mod work;

pub use cm::*;
pub use completion::*;
pub use context::*;
pub use extended::*;
pub use work::*;

use core::ffi::c_int;

/// Sets `errno`.
fn set_errno(code: c_int) {
    // SAFETY: the address is that of this thread's `errno`.
    unsafe { *libc::__errno_location() = code };
}

/// As the C library has it: minus one, and the error in `errno`.
fn or_errno(code: c_int) -> c_int {
    if code == 0 {
        return 0;
    }
    set_errno(code);
    -1
}
