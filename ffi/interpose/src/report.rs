//! The registered report functions.

use std::ffi::c_void;
use std::mem::{MaybeUninit, transmute};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function that receives the address and the size of a range that is about to get other pages, or has got
/// them. Any thread may call it, in any state.
pub(crate) type Report = extern "C" fn(*const c_void, usize);

/// The maximum number of copies of Nemesia in one process.
const MOST: usize = 16;

/// The functions, as addresses; unused entries are null.
static REPORTS: [AtomicPtr<c_void>; MOST] = [const { AtomicPtr::new(ptr::null_mut()) }; MOST];

/// Adds a function for the rest of the process. False if the limit is reached.
pub(crate) fn add(report: Report) -> bool {
    let report = report as *mut c_void;
    for place in &REPORTS {
        // An entry is written once. Acquire and Release order the function's own data before calls through
        // the entry.
        let was = place.compare_exchange(ptr::null_mut(), report, Ordering::AcqRel, Ordering::Acquire);
        if was.is_ok() || was == Err(report) {
            pin(report);
            return true;
        }
    }
    false
}

/// Prevents the unloading of the library that contains a function.
fn pin(function: *const c_void) {
    let mut found = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: any address is allowed. The result is written if the call succeeds, with a name that ends with
    // zero and stays valid. The main program is not found by its name, and is not unloaded either.
    unsafe {
        if libc::dladdr(function, found.as_mut_ptr()) != 0 {
            let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
            libc::dlopen(found.assume_init().dli_fname, flags);
        }
    }
}

/// Reports a range to all registered functions.
pub(crate) fn report(address: *const c_void, bytes: usize) {
    for place in &REPORTS {
        let function = place.load(Ordering::Acquire);
        if function.is_null() {
            return;
        }
        // SAFETY: only `add` writes here: a function of this type, of a library that is not
        // unloaded.
        let function = unsafe { transmute::<*mut c_void, Report>(function) };
        function(address, bytes);
    }
}

/// Reports to all registered functions that any address may be affected.
pub(crate) fn report_all() {
    report(ptr::null(), usize::MAX);
}
