//! Bytes that lie in several runs.

use std::ffi::c_void;

use nemesia::Segment;

use crate::boundary::check_buffer;
use crate::status::Fault;

/// A run of bytes, with the layout of POSIX's `struct iovec`: an array of one may be cast to the other.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Iovec {
    /// The first byte; may be NULL if `len` is 0.
    pub base: *mut c_void,
    /// The number of bytes.
    pub len: usize,
}

const _: () = assert!(
    size_of::<Iovec>() == size_of::<Segment>()
        && std::mem::offset_of!(Iovec, base) == std::mem::offset_of!(Segment, base)
        && std::mem::offset_of!(Iovec, len) == std::mem::offset_of!(Segment, len)
);

/// Checks the runs of a list: none is at NULL unless it is empty, and all together are not longer than memory.
///
/// # Safety
/// There are `count` runs at `list`.
pub(crate) unsafe fn check_list(list: *const Iovec, count: usize) -> Result<(), Fault> {
    let mut total = 0_usize;
    for at in 0..count {
        // SAFETY: the caller's promise.
        let Iovec { base, len } = unsafe { list.add(at).read() };
        check_buffer(base.cast::<u8>(), len, "a run of the list")?;
        total = total.saturating_add(len);
    }
    // No byte is read there.
    check_buffer(std::ptr::NonNull::<u8>::dangling().as_ptr(), total, "the list")
}
