//! The inline functions of the headers, in Rust.
//!
//! They have the names, arguments and results of the functions in `infiniband/verbs.h`, `rdma/rdma_cma.h` and
//! `rdma/rdma_verbs.h`. Three also call into the libraries, so they are methods of [`Verbs`](crate::Verbs). If
//! a device lacks an operation, these functions return `EOPNOTSUPP`; the headers' functions would call a null
//! pointer.
//!
//! Errors follow C: a function that returns an `int` returns zero, an error number, or (some providers) a
//! negative error number. A function that returns a pointer returns null and sets `errno`.

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

/// Converts a result to the convention of the C library: minus one, and the error in `errno`.
fn or_errno(code: c_int) -> c_int {
    if code == 0 {
        return 0;
    }
    set_errno(code);
    -1
}
