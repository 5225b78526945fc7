//! A library to preload (`LD_PRELOAD=libnemesia_interpose.so`). It reports every call of the C library that
//! changes mappings to the registration caches of the process, for [`Telling::Interposed`]. It serves systems
//! without `userfaultfd`, and acts on request only (invariant 3).
//!
//! A copy of Nemesia finds `nemesia_interposer_1` by its name and registers a report function there. That
//! function is called with a range before the range gets other pages. It is called again afterwards if the
//! addresses stay valid meanwhile, or if an unobserved call may have unmapped them before. The report
//! function takes no lock and allocates no memory, and neither do the functions of this library.
//!
//! | call | reported |
//! |---|---|
//! | `munmap` | the range, before |
//! | `mmap`, `mremap` | the ranges that they replace or move, before; the new range, after |
//! | `madvise` that discards pages | the range, before and after |
//! | `brk`, `sbrk` | the range that they release, before |
//! | `shmat`, `shmdt`, `dlclose`, `malloc_trim` | every address, because the range is unknown |
//! | `pthread_create` | the stack of the thread, when it begins and when it ends |
//!
//! The C library itself does not call these functions by name. Therefore this library sets `malloc` to take
//! memory from the heap only, in one arena, and never to return it (`M_MMAP_MAX`, `M_ARENA_MAX`,
//! `M_TRIM_THRESHOLD`). That costs memory and, if many threads allocate, time. Attempts to change these
//! settings are refused. Three things are not observed: system calls that a program makes without the C
//! library, libraries loaded with `RTLD_DEEPBIND`, and threads of `thrd_create`. A program that uses one of
//! these must not request interposition.
//!
//! The library supports glibc on x86-64 and AArch64 only. Elsewhere it is empty, and Nemesia reports that it
//! is missing.
//!
//! [`Telling::Interposed`]: ../nemesia/regcache/enum.Telling.html
#![cfg(all(
    target_os = "linux",
    target_env = "gnu",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod calls;
mod malloc;
mod next;
mod register;
mod report;
mod thread;
