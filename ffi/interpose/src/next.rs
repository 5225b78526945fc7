//! The functions of the C library that this library interposes.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the C library, looked up on first use.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the function with type `F`.
    ///
    /// # Safety
    /// `F` is an `Option` of a function pointer, of the type that the function of this name has.
    pub(crate) unsafe fn get<F: Copy>(&self) -> F {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // Relaxed: the value is the address of code, which existed before, and every thread finds the same.
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: a name that ends with zero.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(found, Ordering::Relaxed);
        }
        // SAFETY: the caller's promise; null is `None`.
        unsafe { std::mem::transmute_copy(&found) }
    }
}

/// Sets `errno` for a function that does not exist, and returns -1.
pub(crate) fn missing() -> i32 {
    // SAFETY: the variable of this thread.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}
