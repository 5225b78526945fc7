//! The settings of glibc's `malloc`, which would otherwise change mappings without a call by name.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::next::{Next, missing};
use crate::report::report_all;
use crate::thread;

static MALLOPT: Next = Next::new(c"mallopt");
static MALLOC_TRIM: Next = Next::new(c"malloc_trim");

type Mallopt = Option<unsafe extern "C" fn(c_int, c_int) -> c_int>;
type MallocTrim = Option<unsafe extern "C" fn(usize) -> c_int>;

/// The settings: no mappings of its own; one arena, because other arenas are mapped, too; no trimming of the
/// heap's end.
const SETTINGS: [(c_int, c_int); 3] =
    [(libc::M_MMAP_MAX, 0), (libc::M_ARENA_MAX, 1), (libc::M_TRIM_THRESHOLD, -1)];

/// Whether the settings were accepted.
static TAME: AtomicBool = AtomicBool::new(false);

/// Returns whether `malloc` changes no mapping unobserved.
pub(crate) fn is_tame() -> bool {
    TAME.load(Ordering::Relaxed)
}

/// Runs before the program's `main`.
extern "C" fn start() {
    // SAFETY: the type of this function.
    let mallopt = unsafe { MALLOPT.get::<Mallopt>() };
    // SAFETY: numbers only.
    let set = |(what, value)| mallopt.is_some_and(|mallopt| unsafe { mallopt(what, value) } == 1);
    TAME.store(SETTINGS.into_iter().all(set), Ordering::Relaxed);
    thread::start();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Refuses the settings that would let `malloc` change mappings again.
#[unsafe(no_mangle)]
unsafe extern "C" fn mallopt(what: c_int, value: c_int) -> c_int {
    if what == libc::M_MMAP_THRESHOLD || SETTINGS.iter().any(|&(ours, _)| ours == what) {
        return 0;
    }
    // SAFETY: the type of this function, and the caller's arguments.
    unsafe { MALLOPT.get::<Mallopt>().map_or(0, |mallopt| mallopt(what, value)) }
}

/// Reports every address, because glibc also returns pages in the middle of the heap.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_trim(leave: usize) -> c_int {
    report_all();
    // SAFETY: the type of this function, and the caller's argument.
    let result = unsafe { MALLOC_TRIM.get::<MallocTrim>().map_or_else(missing, |trim| trim(leave)) };
    report_all();
    result
}
