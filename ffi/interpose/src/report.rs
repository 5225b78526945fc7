//! Who is told.

use std::ffi::c_void;
use std::mem::{MaybeUninit, transmute};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::{malloc, thread};

/// Called with the first address and the bytes of a range that is about to get other pages, or has got them; by any
/// thread, in any state.
pub(crate) type Report = extern "C" fn(*const c_void, usize);

/// Copies of Nemesia in one process.
const MOST: usize = 16;

/// The functions, as addresses; the rest is null.
static REPORTS: [AtomicPtr<c_void>; MOST] = [const { AtomicPtr::new(ptr::null_mut()) }; MOST];

/// Has `report` called from now on, for the rest of the process. Returns 0; 1 when there are too many; 2 when `malloc`
/// or threads cannot be seen here.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nemesia_interposer_1(report: Report) -> i32 {
    if !malloc::is_tame() || !thread::is_ready() {
        return 2;
    }
    let report = report as *mut c_void;
    for place in &REPORTS {
        // A place is written once. Acquire and Release are for whoever reads the function's own data after it was put
        // here.
        let was = place.compare_exchange(ptr::null_mut(), report, Ordering::AcqRel, Ordering::Acquire);
        if was.is_ok() || was == Err(report) {
            pin(report);
            return 0;
        }
    }
    1
}

/// Keeps the library that a function is of from being unloaded.
fn pin(function: *const c_void) {
    let mut found = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: any address may be asked for; what was found is written when the call says so, with a name that ends with
    // zero and stays. The main program is not found by its name, and is not unloaded either.
    unsafe {
        if libc::dladdr(function, found.as_mut_ptr()) != 0 {
            let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
            libc::dlopen(found.assume_init().dli_fname, flags);
        }
    }
}

/// Tells everyone of a range.
pub(crate) fn report(address: *const c_void, bytes: usize) {
    for place in &REPORTS {
        let function = place.load(Ordering::Acquire);
        if function.is_null() {
            return;
        }
        // SAFETY: only `nemesia_interposer_1` writes here, a function of this type, of a library that is not unloaded.
        let function = unsafe { transmute::<*mut c_void, Report>(function) };
        function(address, bytes);
    }
}

/// Tells everyone that any address may be meant.
pub(crate) fn report_all() {
    report(ptr::null(), usize::MAX);
}
