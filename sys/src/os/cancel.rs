//! Cancellation of the calling thread (`pthread_cancel`), which no call of the C interface allows.
//!
//! A thread that is cancelled in a call of the operating system is unwound by the C library, through functions that
//! cannot be unwound: the process would be aborted, with memory that peers still write.

use std::ffi::c_int;

/// PTHREAD_CANCEL_DISABLE, of glibc and of musl.
const DISABLE: c_int = 1;

unsafe extern "C" {
    // POSIX, and not in the crate `libc`.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// While this value lives, a cancellation of the calling thread stays pending. It is dropped by the same thread.
#[derive(Debug)]
pub struct CancellationOff {
    before: c_int,
    /// The state belongs to a thread.
    _thread: std::marker::PhantomData<*const ()>,
}

impl CancellationOff {
    /// Disables cancellation of the calling thread.
    #[inline]
    #[must_use]
    pub fn hold() -> Self {
        let mut before = DISABLE;
        // SAFETY: `before` outlives the call, which changes a property of this thread only.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self { before, _thread: std::marker::PhantomData }
    }
}

impl Drop for CancellationOff {
    #[inline]
    fn drop(&mut self) {
        let mut ours = DISABLE;
        // SAFETY: as in `hold`. The state is one that this function has returned.
        unsafe { pthread_setcancelstate(self.before, &raw mut ours) };
    }
}
