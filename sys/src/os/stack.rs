//! Calls that need more stack than a small thread has.
//!
//! Opening and closing an endpoint move large values and call deep into the C library: hundreds of kilobytes, and more
//! without optimisation. Threads of musl have 128 KiB, and user-level threads often 64. Such a thread gets another
//! stack for the duration of the call, and stays the same thread for the kernel, the C library and the life mark.

use std::ffi::c_void;
use std::ptr;

/// The room that the calls may need: twice what they take without optimisation.
const ROOM: usize = 2 << 20;
/// The threads that have less than this get another stack: a third more than the calls take without optimisation.
const ENOUGH: usize = 5 << 18;
/// The part below the stack that cannot be accessed, so that an overflow is a fault.
const GUARD: usize = 1 << 16;
/// The zeros above the first frame, at which a debugger's backtrace ends.
const ABOVE: usize = 4096;

/// Runs `work` with at least 1.25 MiB of stack: on another stack if the calling thread has less, or if its stack is not
/// the thread's own, as in a user-level thread. If memory for another stack is missing, `work` runs on this one.
///
/// `work` must not panic.
pub fn with_room<R>(work: impl FnOnce() -> R) -> R {
    if room().is_some_and(|room| room >= ENOUGH) {
        return work();
    }
    match Stack::map() {
        Some(stack) => stack.run(work),
        None => work(),
    }
}

/// Returns the number of bytes below this frame on the stack of the calling thread; `None` if it runs on another stack,
/// or if the C library does not know.
fn room() -> Option<usize> {
    let here = 0_u8;
    let here = (&raw const here).addr();
    // SAFETY: zeros are a value of every field.
    let mut attributes: libc::pthread_attr_t = unsafe { std::mem::zeroed() };
    // SAFETY: `attributes` outlives the call, which initialises it on success.
    if unsafe { libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) } != 0 {
        return None;
    }
    let (mut base, mut len) = (ptr::null_mut(), 0);
    // SAFETY: the attributes are initialised, and both outputs outlive the call.
    let code = unsafe { libc::pthread_attr_getstack(&raw const attributes, &raw mut base, &raw mut len) };
    // SAFETY: initialised above, and not used any more.
    unsafe { libc::pthread_attr_destroy(&raw mut attributes) };
    let room = here.checked_sub(base.addr())?;
    (code == 0 && room < len).then_some(room)
}

/// Memory for a stack, from its guard to its end.
struct Stack(*mut c_void);

impl Stack {
    const LEN: usize = GUARD + ROOM + ABOVE;

    fn map() -> Option<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory at an address that the kernel chooses.
        let base = unsafe { libc::mmap(ptr::null_mut(), Self::LEN, access, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let stack = Self(base);
        // SAFETY: the beginning of the new memory, which nothing uses yet.
        (unsafe { libc::mprotect(base, GUARD, libc::PROT_NONE) } == 0).then_some(stack)
    }

    fn run<R, W: FnOnce() -> R>(&self, work: W) -> R {
        let mut task: (Option<W>, Option<R>) = (Some(work), None);
        // SAFETY: the memory has so many bytes.
        let top = unsafe { self.0.byte_add(GUARD + ROOM) };
        // SAFETY: `top` is the end of a stack that nothing uses, and a multiple of 16. `task` is of the types of
        // `perform`, and outlives the call.
        unsafe { call_on(top, perform::<R, W>, (&raw mut task).cast()) };
        match task.1 {
            Some(result) => result,
            // `perform` has filled it, or has ended the process.
            None => std::process::abort(),
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: `map` has made exactly this memory, and no call runs on it any more.
        unsafe { libc::munmap(self.0, Self::LEN) };
    }
}

/// Runs the work of a task and stores its result. A panic ends the process here: the frames above cannot be unwound.
extern "C" fn perform<R, W: FnOnce() -> R>(task: *mut c_void) {
    // SAFETY: `Stack::run` passes a task of these types, and waits.
    let task = unsafe { &mut *task.cast::<(Option<W>, Option<R>)>() };
    task.1 = task.0.take().map(|work| work());
}

/// Calls `run(argument)` on the stack that ends at `top`.
///
/// # Safety
/// `top` is a multiple of 16, and enough memory lies below it, which nothing else uses during the call.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn call_on(top: *mut c_void, run: extern "C" fn(*mut c_void), argument: *mut c_void) {
    // SAFETY: the callee keeps r12, from which the stack pointer is restored. It finds the stack aligned, and may
    // change all that a function of C may change.
    unsafe {
        std::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {run}",
            "mov rsp, r12",
            top = in(reg) top,
            run = in(reg) run,
            in("rdi") argument,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

/// Calls `run(argument)` on the stack that ends at `top`.
///
/// # Safety
/// `top` is a multiple of 16, and enough memory lies below it, which nothing else uses during the call.
#[cfg(target_arch = "aarch64")]
#[inline(never)]
unsafe fn call_on(top: *mut c_void, run: extern "C" fn(*mut c_void), argument: *mut c_void) {
    // SAFETY: the callee keeps x20, from which the stack pointer is restored. It finds the stack aligned, and may
    // change all that a function of C may change.
    unsafe {
        std::arch::asm!(
            "mov x20, sp",
            "mov sp, {top}",
            "blr {run}",
            "mov sp, x20",
            top = in(reg) top,
            run = in(reg) run,
            in("x0") argument,
            out("x20") _,
            clobber_abi("C"),
        );
    }
}

/// Calls `run(argument)` on this stack: how to change it is not known for this processor.
///
/// # Safety
/// None beyond those of `run`.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn call_on(_top: *mut c_void, run: extern "C" fn(*mut c_void), argument: *mut c_void) {
    run(argument);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses `bytes` of stack, and returns the address of its frame.
    #[inline(never)]
    fn deep(bytes: usize) -> usize {
        let page = std::hint::black_box([1_u8; 4096]);
        if bytes > page.len() { deep(bytes - page.len()).max(1) } else { (&raw const page).addr() }
    }

    #[test]
    fn a_small_thread_gets_another_stack_and_a_large_one_stays_on_its_own() {
        let on = |bytes: usize| {
            let thread = std::thread::Builder::new().stack_size(bytes).spawn(move || {
                let here = (&raw const bytes).addr();
                let mut text = String::from("moved in");
                let length = with_room(|| {
                    deep(1 << 18);
                    text.push_str(" and out");
                    text.len()
                });
                assert_eq!((text.as_str(), length), ("moved in and out", 16));
                with_room(|| deep(1)).abs_diff(here)
            });
            thread.unwrap().join().unwrap()
        };
        assert!(on(64 << 10) > 64 << 10);
        assert!(on(8 << 20) < 1 << 20);
    }
}
