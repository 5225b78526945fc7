//! Preloaded (`LD_PRELOAD=libnemesia_interpose.so`), tells the registration caches of a process of every call of the C
//! library that changes mappings, for [`Telling::Interposed`]. For systems without `userfaultfd`, on request only
//! (invariant 3).
//!
//! A copy of Nemesia finds `nemesia_interposer_1` by its name and leaves a function there, which is called with a range
//! before the range gets other pages, and once more afterwards where the addresses stay good meanwhile, or may have
//! been taken over from a call that nobody saw. That function takes no lock and allocates nothing; neither do the
//! functions here.
//!
//! | call | told |
//! |---|---|
//! | `munmap` | the range, before |
//! | `mmap`, `mremap` | what they replace or move, before; the new range, after |
//! | `madvise` that takes pages away | the range, before and after |
//! | `brk`, `sbrk` | what they take back, before |
//! | `shmat`, `shmdt`, `dlclose`, `malloc_trim` | everything, as they do not say how much |
//! | `pthread_create` | the stack of the thread, when it begins and when it ends |
//!
//! The C library does not call these by name itself. So `malloc` is set to take memory from the heap only, from one
//! arena, and never to give it back (`M_MMAP_MAX`, `M_ARENA_MAX`, `M_TRIM_THRESHOLD`), which costs memory and, where
//! many threads allocate, time; attempts to set it otherwise are refused. Not seen are system calls that a program
//! makes without the C library, libraries loaded with `RTLD_DEEPBIND`, and threads of `thrd_create`: a program with
//! these must not ask for it.
//!
//! Only glibc, on x86-64 and AArch64; elsewhere the library is empty, so that Nemesia says that it is not there.
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
mod report;
mod thread;
