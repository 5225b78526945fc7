//! Thread stacks, which the C library keeps, discards and unmaps without a call by name.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::next::Next;
use crate::report::report;

type Start = extern "C-unwind" fn(*mut c_void) -> *mut c_void;
type Create = Option<
    unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int,
>;

static CREATE: Next = Next::new(c"pthread_create");

/// The key, plus 1, whose destructor runs when a thread ends; 0 if there is none.
static KEY: AtomicU32 = AtomicU32::new(0);

/// The number of rounds in which the destructor runs again, so that it also runs after those of the program:
/// `PTHREAD_DESTRUCTOR_ITERATIONS`.
const ROUNDS: usize = 4;

/// Returns whether the end of a thread is observed.
pub(crate) fn is_ready() -> bool {
    KEY.load(Ordering::Relaxed) != 0
}

/// Runs before the program's `main`.
pub(crate) fn start() {
    let mut key = 0;
    // SAFETY: a local word, and a function that stays valid because this library is not unloaded.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(ending)) } == 0 {
        KEY.store(key + 1, Ordering::Relaxed);
    }
}

/// Makes [`ending`] run for `rounds` more rounds.
fn end_in(rounds: usize) {
    let key = KEY.load(Ordering::Relaxed);
    if key != 0 {
        // SAFETY: the key of this library; the value is a number, and null means that no round follows.
        unsafe { libc::pthread_setspecific(key - 1, ptr::without_provenance(rounds)) };
    }
}

unsafe extern "C" fn ending(rounds: *mut c_void) {
    report_stack();
    end_in(rounds.addr() - 1);
}

/// Reports the stack of this thread.
fn report_stack() {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut stack, mut bytes) = (ptr::null_mut(), 0);
    // SAFETY: the attributes are written before they are read, and are destroyed; the rest are local values.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return crate::report::report_all();
        }
        libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut stack, &raw mut bytes);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
    }
    report(stack, bytes);
}

/// The function that a thread runs, and its argument.
struct Work {
    start: Start,
    argument: *mut c_void,
}

/// The first function of each thread. `pthread_exit` and cancellation may unwind through it: at that time it
/// has no value left to drop.
extern "C-unwind" fn begin(work: *mut c_void) -> *mut c_void {
    let Work { start, argument } = {
        // SAFETY: made by `pthread_create` below, for this thread only.
        *unsafe { Box::from_raw(work.cast::<Work>()) }
    };
    // The end of the stack's previous thread may not have been observed.
    report_stack();
    end_in(ROUNDS);
    start(argument)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    out: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the type of this function.
    let Some(create) = (unsafe { CREATE.get::<Create>() }) else { return libc::ENOSYS };
    let work = Box::into_raw(Box::new(Work { start, argument }));
    // SAFETY: the caller's arguments, and a function that takes the value it is given.
    let result = unsafe { create(out, attributes, begin, work.cast()) };
    if result != 0 {
        // SAFETY: no thread has received it.
        drop(unsafe { Box::from_raw(work) });
    }
    result
}
