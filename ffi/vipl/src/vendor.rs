//! Functions of other vendors that some old programs use beside the standard ones.

use std::ffi::{c_int, c_ulong, c_void};

use nemesia_core::via::ViaError;

use crate::boundary::{call, give, number};
use crate::types::Handle;

/// Not supported: this provider has no tags of completion queues.
#[unsafe(no_mangle)]
pub extern "C" fn VipAddTagCQ(_: Handle, _: *mut Handle, _: c_ulong, _: c_ulong) -> i32 {
    call(|_| Err(ViaError::NotSupported))
}

/// Not supported: this provider has no tags of completion queues.
#[unsafe(no_mangle)]
pub extern "C" fn VipRemoveTagCQ(_: Handle, _: Handle, _: c_ulong) -> i32 {
    call(|_| Err(ViaError::NotSupported))
}

/// Starts the sends of a VI that could not be started before, and returns whether some are left that wait for the other
/// side.
///
/// # Safety
/// The pointer is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipPostDeferredSends(vi: Handle, _interrupt: c_int, deferred: *mut c_int) -> i32 {
    call(|provider| {
        let is_left = provider.start_sends(number(vi))?;
        // SAFETY: the caller's promise.
        unsafe { give(deferred, is_left.into()) }
    })
}

/// Returns the pointer that the program stored with a VI; null for a VI that does not exist.
#[unsafe(no_mangle)]
pub extern "C" fn VipGetUserData(vi: Handle) -> *mut c_void {
    let mut found = std::ptr::null_mut();
    call(|provider| {
        found = provider.user_pointer(number(vi))?;
        Ok(())
    });
    found
}

/// Stores a pointer with a VI.
#[unsafe(no_mangle)]
pub extern "C" fn VipSetUserData(vi: Handle, pointer: *mut c_void) {
    call(|provider| provider.set_user_pointer(number(vi), pointer));
}
