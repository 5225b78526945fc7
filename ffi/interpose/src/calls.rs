//! The calls that change mappings.

use std::ffi::{c_int, c_void};
use std::ptr;

use libc::{intptr_t, off_t, size_t};

use crate::next::{Next, missing};
use crate::report::{report, report_all};

/// Converts the result of a system call to an address, as the C library does.
fn address(result: libc::c_long) -> *mut c_void {
    ptr::with_exposed_provenance_mut(result as usize)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(start: *mut c_void, bytes: size_t) -> c_int {
    report(start, bytes);
    // SAFETY: the caller's arguments for the system call that it wants. The results of this call are 0 and
    // -1.
    unsafe { libc::syscall(libc::SYS_munmap, start, bytes) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    start: *mut c_void,
    bytes: size_t,
    rights: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    if flags & libc::MAP_FIXED != 0 {
        report(start, bytes);
    }
    // SAFETY: the caller's arguments for the system call that it wants.
    let new = address(unsafe { libc::syscall(libc::SYS_mmap, start, bytes, rights, flags, fd, offset) });
    if new != libc::MAP_FAILED {
        // The C library may have unmapped an earlier mapping of this range without an interposed call.
        report(new, bytes);
    }
    new
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    start: *mut c_void,
    bytes: size_t,
    rights: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the same function.
    unsafe { mmap(start, bytes, rights, flags, fd, offset) }
}

/// In C the last argument exists only with `MREMAP_FIXED`. On the platforms of this library it is passed as
/// any other argument.
#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_bytes: size_t,
    new_bytes: size_t,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    report(old, old_bytes);
    if flags & libc::MREMAP_FIXED != 0 {
        report(to, new_bytes);
    }
    // SAFETY: the caller's arguments for the system call that it wants.
    let new = address(unsafe { libc::syscall(libc::SYS_mremap, old, old_bytes, new_bytes, flags, to) });
    if new != libc::MAP_FAILED {
        report(new, new_bytes);
    }
    new
}

/// Returns whether this advice keeps the pages of the range. An unknown advice counts as one that does not.
const fn keeps_pages(advice: c_int) -> bool {
    use libc::{MADV_KEEPONFORK, MADV_NORMAL, MADV_WILLNEED};
    // The values below `MADV_FREE` and `MADV_REMOVE`, and those from `MADV_DONTFORK` to
    // `MADV_POPULATE_WRITE`; not `MADV_DONTNEED`.
    matches!(advice, MADV_NORMAL..=MADV_WILLNEED | libc::MADV_DONTFORK..=MADV_KEEPONFORK | 20..=23)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(start: *mut c_void, bytes: size_t, advice: c_int) -> c_int {
    let keeps = keeps_pages(advice);
    if !keeps {
        report(start, bytes);
    }
    // SAFETY: the caller's arguments for the system call that it wants. The results of this call are 0 and
    // -1.
    let result = unsafe { libc::syscall(libc::SYS_madvise, start, bytes, advice) as c_int };
    if !keeps {
        report(start, bytes);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn shmat(id: c_int, at: *const c_void, flags: c_int) -> *mut c_void {
    if flags & libc::SHM_REMAP != 0 {
        report_all();
    }
    // SAFETY: the caller's arguments for the system call that it wants.
    let new = address(unsafe { libc::syscall(libc::SYS_shmat, id, at, flags) });
    report_all();
    new
}

#[unsafe(no_mangle)]
unsafe extern "C" fn shmdt(at: *const c_void) -> c_int {
    report_all();
    // SAFETY: the caller's arguments for the system call that it wants. The results of this call are 0 and
    // -1.
    unsafe { libc::syscall(libc::SYS_shmdt, at) as c_int }
}

static BRK: Next = Next::new(c"brk");
static SBRK: Next = Next::new(c"sbrk");

type Brk = Option<unsafe extern "C" fn(*mut c_void) -> c_int>;
type Sbrk = Option<unsafe extern "C" fn(intptr_t) -> *mut c_void>;

/// Reports the heap from `start` to its end.
fn report_heap_from(start: *const c_void) {
    // SAFETY: the type of this function; the argument 0 does not move the end of the heap.
    let end = unsafe { SBRK.get::<Sbrk>().map(|sbrk| sbrk(0)) };
    if let Some(end) = end {
        report(start, end.addr().saturating_sub(start.addr()));
    }
}

// The C library keeps its own copy of the end of the heap, so the C library must move it.
#[unsafe(no_mangle)]
unsafe extern "C" fn brk(end: *mut c_void) -> c_int {
    report_heap_from(end);
    // SAFETY: the type of this function, and the caller's argument.
    unsafe { BRK.get::<Brk>().map_or_else(missing, |brk| brk(end)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sbrk(more: intptr_t) -> *mut c_void {
    // SAFETY: the type of this function.
    let Some(sbrk) = (unsafe { SBRK.get::<Sbrk>() }) else { return address(missing().into()) };
    if more < 0 {
        // SAFETY: the argument 0 does not move the end of the heap.
        let end = unsafe { sbrk(0) };
        report_heap_from(end.wrapping_byte_offset(more));
    }
    // SAFETY: the caller's argument.
    unsafe { sbrk(more) }
}

static DLCLOSE: Next = Next::new(c"dlclose");

#[unsafe(no_mangle)]
unsafe extern "C" fn dlclose(library: *mut c_void) -> c_int {
    report_all();
    // SAFETY: the type of this function, and the caller's argument.
    let next = unsafe { DLCLOSE.get::<Option<unsafe extern "C" fn(*mut c_void) -> c_int>>() };
    // SAFETY: as above.
    let result = next.map_or_else(missing, |next| unsafe { next(library) });
    report_all();
    result
}
