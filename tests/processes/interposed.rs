//! Registration caches that `libnemesia_interpose.so` notifies of changed mappings. Each test runs again in a
//! process of its own with the library preloaded. The registrar remembers the contents of the pages that it
//! registered, as a device that has pinned them does.
#![allow(clippy::unwrap_used, reason = "helpers of tests; a panic fails the test")]

#[path = "../../sys/src/regcache/tests/snapshot.rs"]
mod snapshot;

use std::path::PathBuf;
use std::process::Command;
use std::ptr;
use std::sync::{Mutex, PoisonError, mpsc};

use nemesia::regcache::{
    Held, MappingError, Range, Registrar, RegistrationCache, Size, Telling, memory_released,
};
use nemesia_tests::{built, skip};
use snapshot::{PAGE, Snapshot, TestCache, map_with, place, seen, touch, unmap};

/// Set in a process with the library preloaded.
const PRELOADED: &str = "NEMESIA_TEST_PRELOADED";

/// Returns the path of the library.
fn library() -> Result<PathBuf, String> {
    built::workspace().map(|directory| directory.join("libnemesia_interpose.so"))
}

/// Returns whether this is the process with the library preloaded; if not, runs the test in one.
fn interposed(test: &str) -> bool {
    if std::env::var_os(PRELOADED).is_some() {
        return true;
    }
    if !cfg!(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64"))) {
        skip(test, "the preloaded library is for glibc on x86-64 and AArch64");
        return false;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    let output = command.env(PRELOADED, "1").env("LD_PRELOAD", library().unwrap()).output().unwrap();
    let [text, errors] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    assert!(text.contains("1 passed"), "no test of that name: {text}");
    false
}

fn cache() -> TestCache {
    let cache = RegistrationCache::new(Snapshot::default(), Size::default(), Telling::Interposed);
    assert!(cache.refused().is_none(), "{:?}", cache.refused());
    cache
}

fn map(pages: usize, byte: u8) -> usize {
    map_with(0, pages, byte, 0).unwrap()
}

fn map_over(at: usize, pages: usize, byte: u8) {
    assert_eq!(map_with(at, pages, byte, libc::MAP_FIXED), Some(at));
}

#[test]
fn without_the_library_the_preference_is_refused_and_nothing_is_kept() {
    if std::env::var_os(PRELOADED).is_some() {
        return;
    }
    let mut cache = RegistrationCache::new(Snapshot::default(), Size::default(), Telling::Interposed);
    let refused = cache.refused().unwrap();
    assert!(matches!(refused, MappingError::NotPreloaded), "{refused}");
    assert!(refused.to_string().contains("LD_PRELOAD=libnemesia_interpose.so"), "{refused}");
    let at = map(4, 1);
    touch(&mut cache, at, 4);
    assert_eq!(cache.bytes(), 0);
    map_over(at, 4, 2);
    assert_eq!(seen(&mut cache, at), 2);
    unmap(at, 4);
}

#[test]
fn memory_that_another_thread_reports_as_released_is_registered_anew() {
    let mut cache = RegistrationCache::new(Snapshot::default(), Size::default(), Telling::Program);
    let (at, other) = (map(8, 1), map(1, 5));
    touch(&mut cache, at, 8);
    touch(&mut cache, other, 1);
    let changed = std::thread::spawn(move || {
        memory_released((at + PAGE) as u64, PAGE as u64);
        map_over(at + PAGE, 1, 2);
    });
    changed.join().unwrap();
    assert_eq!(seen(&mut cache, at + PAGE), 2, "a stale registration");
    assert_eq!((seen(&mut cache, other), cache.counts().hits), (5, 1));
    // More than is remembered, and the end of the address space.
    map_over(other, 1, 6);
    memory_released(other as u64, 1);
    (0..1000).for_each(|_| memory_released(u64::MAX - 5, u64::MAX));
    assert_eq!(seen(&mut cache, other), 6, "a stale registration");
    unmap(at, 8);
    unmap(other, 1);
}

#[test]
fn page_that_was_unmapped_and_mapped_again_is_registered_anew() {
    if !interposed("page_that_was_unmapped_and_mapped_again_is_registered_anew") {
        return;
    }
    let mut cache = cache();
    let at = map(8, 1);
    for byte in 2..200 {
        touch(&mut cache, at, 8);
        assert_eq!(seen(&mut cache, at + 5 * PAGE), byte - 1);
        unmap(at, 8);
        map_over(at, 8, byte);
        assert_eq!(seen(&mut cache, at + 5 * PAGE), byte, "a stale registration");
    }
    assert!(cache.counts().hits > 190 && cache.counts().invalidated >= 198, "{:?}", cache.counts());
}

#[test]
fn page_that_was_replaced_moved_or_discarded_is_registered_anew() {
    if !interposed("page_that_was_replaced_moved_or_discarded_is_registered_anew") {
        return;
    }
    let mut cache = cache();
    let at = map(8, 1);
    touch(&mut cache, at, 8);
    map_over(at + PAGE, 1, 2);
    assert_eq!(seen(&mut cache, at + PAGE), 2, "mapped over");
    for advice in [libc::MADV_DONTNEED, libc::MADV_DONTNEED, libc::MADV_NORMAL] {
        map_over(at, 1, 3);
        touch(&mut cache, at, 8);
        // SAFETY: a page of this test.
        let advised = unsafe { libc::madvise(place(at), PAGE, advice) };
        let left = if advice == libc::MADV_NORMAL { 3 } else { 0 };
        assert_eq!((advised, seen(&mut cache, at)), (0, left), "discarded");
    }
    touch(&mut cache, at, 8);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let (from, to) = (at + 2 * PAGE, map(4, 7));
    touch(&mut cache, to, 4);
    // SAFETY: pages of this test, to a place of this test.
    let moved = unsafe { libc::mremap(place(from), 4 * PAGE, 4 * PAGE, flags, place(to)) };
    assert_eq!(moved.addr(), to);
    assert_eq!(seen(&mut cache, to + 2 * PAGE), 1, "moved here");
    map_over(from, 4, 9);
    assert_eq!(seen(&mut cache, from + 2 * PAGE), 9, "moved away");
}

/// Moves the end of the heap. Returns its former place.
fn move_heap(bytes: isize) -> usize {
    // SAFETY: grows the heap, or shrinks it by the bytes by which this test has grown it.
    let before = unsafe { libc::sbrk(bytes) };
    assert_ne!(before.addr(), usize::MAX);
    before.expose_provenance()
}

#[test]
fn heap_that_shrinks_takes_its_registrations_along() {
    if !interposed("heap_that_shrinks_takes_its_registrations_along") {
        return;
    }
    let mut cache = cache();
    // Prevents `malloc` from moving the end of the heap meanwhile.
    drop(Vec::<u8>::with_capacity(1 << 20));
    for byte in 1..50 {
        let start = move_heap(8 * PAGE as isize);
        let at = start.next_multiple_of(PAGE);
        // SAFETY: seven pages and more that this test has just got.
        unsafe { ptr::write_bytes(place(at).cast::<u8>(), byte, 7 * PAGE) };
        touch(&mut cache, at, 7);
        assert_eq!(seen(&mut cache, at + 3 * PAGE), byte, "a stale registration");
        assert_eq!(move_heap(0), start + 8 * PAGE, "someone else uses the heap");
        if byte % 2 == 0 {
            move_heap(-8 * PAGE as isize);
        } else {
            // SAFETY: shrinks the heap by the bytes by which this test has grown it.
            assert_eq!(unsafe { libc::brk(place(start)) }, 0);
        }
    }
    assert!(cache.counts().invalidated > 40, "{:?}", cache.counts());
}

/// Returns the mapping that contains an address, as the kernel names it.
fn mapping_of(at: usize) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let holds = |line: &&str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let [start, end] = [start, end].map(|digits| usize::from_str_radix(digits, 16).ok());
        Some(start? <= at && at < end?)
    };
    maps.lines().find(|line| holds(line) == Some(true)).map(str::to_owned)
}

/// By default such a block has a mapping of its own, which `free` unmaps without calling a function by name.
#[test]
fn malloc_keeps_its_pages_and_trimming_it_is_reported() {
    if !interposed("malloc_keeps_its_pages_and_trimming_it_is_reported") {
        return;
    }
    let mut cache = cache();
    let allocate = || {
        let block = vec![7u8; 4 << 20];
        (block.as_ptr().expose_provenance().next_multiple_of(PAGE) + (1 << 20), block)
    };
    let (at, block) = std::thread::spawn(allocate).join().unwrap();
    let rest = vec![1u8; 1 << 20];
    touch(&mut cache, at, 4);
    drop(block);
    assert!(mapping_of(at).is_some_and(|line| line.ends_with("[heap]")), "{:?}", mapping_of(at));
    assert_eq!((seen(&mut cache, at), cache.counts().hits), (7, 1), "the same page");
    // SAFETY: numbers only.
    let refused = unsafe { libc::mallopt(libc::M_MMAP_MAX, 10) };
    assert_eq!(refused, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::malloc_trim(0) }, 1);
    assert_eq!(seen(&mut cache, at), 0, "a stale registration");
    drop(rest);
}

/// The C library keeps stacks of threads for later threads, and discards their contents.
#[test]
fn stack_of_a_new_thread_is_registered_anew() {
    if !interposed("stack_of_a_new_thread_is_registered_anew") {
        return;
    }
    let cache = Mutex::new(cache());
    let mut places = Vec::new();
    for byte in 1..50 {
        let use_stack = || {
            let bytes = std::hint::black_box([byte; 16 * PAGE]);
            let at = bytes.as_ptr().expose_provenance().next_multiple_of(PAGE);
            let cache = &mut cache.lock().unwrap_or_else(PoisonError::into_inner);
            assert_eq!(seen(cache, at + 8 * PAGE), byte, "a stale registration");
            assert_eq!(seen(cache, at + 8 * PAGE), byte);
            std::hint::black_box(bytes);
            at
        };
        places.push(std::thread::scope(|threads| threads.spawn(use_stack).join().unwrap()));
    }
    places.sort_unstable();
    places.dedup();
    assert!(places.len() < 49, "no stack was used again: this shows nothing");
    assert!(cache.into_inner().unwrap().counts().hits >= 49);
}

#[test]
fn segment_that_was_detached_and_file_that_was_punched_are_registered_anew() {
    if !interposed("segment_that_was_detached_and_file_that_was_punched_are_registered_anew") {
        return;
    }
    let mut cache = cache();
    // SAFETY: a new file without a name, and new memory of its size.
    let (file, at) = unsafe {
        let file = libc::memfd_create(c"punched".as_ptr(), libc::MFD_CLOEXEC);
        assert_eq!(libc::ftruncate(file, 4 * PAGE as i64), 0);
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        (file, libc::mmap(ptr::null_mut(), 4 * PAGE, rights, libc::MAP_SHARED, file, 0))
    };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: just mapped, and ours.
    unsafe { ptr::write_bytes(at.cast::<u8>(), 1, 4 * PAGE) };
    let at = at.expose_provenance();
    touch(&mut cache, at, 4);
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: our own file, which nothing refers to.
    assert_eq!(unsafe { libc::fallocate(file, mode, 0, PAGE as i64) }, 0);
    assert_eq!(seen(&mut cache, at), 0, "a stale registration");
    let kept = map(4, 3);
    touch(&mut cache, kept, 4);
    assert_eq!(cache.bytes(), 4 * PAGE as u64);
    // SAFETY: a segment of this test, which goes with its last user.
    unsafe {
        let id = libc::shmget(libc::IPC_PRIVATE, 4 * PAGE, libc::IPC_CREAT | 0o600);
        let segment = libc::shmat(id, ptr::null(), 0);
        libc::shmctl(id, libc::IPC_RMID, ptr::null_mut());
        assert_ne!(segment.addr(), usize::MAX);
        touch(&mut cache, kept, 4);
        assert_eq!(libc::shmdt(segment), 0);
    }
    // The released amount is unknown, so everything counts as released.
    let before = cache.counts().invalidated;
    assert_eq!((seen(&mut cache, kept), cache.counts().invalidated), (3, before + 1));
}

#[test]
fn other_threads_change_mappings_while_registrations_are_used() {
    if !interposed("other_threads_change_mappings_while_registrations_are_used") {
        return;
    }
    let mut cache = cache();
    let (ask, asked) = mpsc::channel::<(usize, u8)>();
    let (answer, done) = mpsc::channel::<()>();
    let mapper = std::thread::spawn(move || {
        for (at, byte) in asked {
            unmap(at, 4);
            map_over(at, 4, byte);
            answer.send(()).unwrap();
        }
    });
    let places: Vec<_> = (0..8).map(|_| map(4, 0)).collect();
    for turn in 0..2000usize {
        let (at, byte) = (places[turn % 8], (turn % 251) as u8);
        ask.send((at, byte)).unwrap();
        // The other ranges are used meanwhile.
        touch(&mut cache, places[(turn + 3) % 8], 4);
        done.recv().unwrap();
        assert_eq!(seen(&mut cache, at + 3 * PAGE), byte, "turn {turn}");
    }
    drop(ask);
    mapper.join().unwrap();
}

/// Addresses are free, and reused, before `munmap` has returned.
#[test]
fn addresses_that_another_thread_is_still_unmapping_are_registered_anew() {
    if !interposed("addresses_that_another_thread_is_still_unmapping_are_registered_anew") {
        return;
    }
    let mut cache = cache();
    let start = map(64, 0);
    // A starting thread maps memory of its own, perhaps at an address that was ours.
    let started = std::sync::Barrier::new(4);
    std::thread::scope(|threads| {
        let started = &started;
        let spawn = |_| {
            let (ask, asked) = mpsc::channel::<usize>();
            threads.spawn(move || {
                started.wait();
                asked.into_iter().for_each(|at| unmap(at, 4));
            });
            ask
        };
        let asks: Vec<_> = (0..3).map(spawn).collect();
        started.wait();
        for turn in 0..4000usize {
            let (at, byte) = (start + turn % 16 * 4 * PAGE, (turn % 250 + 1) as u8);
            touch(&mut cache, at, 4);
            asks[turn % 3].send(at).unwrap();
            let begun = std::time::Instant::now();
            while map_with(at, 4, byte, libc::MAP_FIXED_NOREPLACE).is_none() {
                assert!(
                    begun.elapsed() < std::time::Duration::from_secs(60),
                    "turn {turn}: no thread unmaps"
                );
                std::thread::yield_now();
            }
            assert_eq!(seen(&mut cache, at + 3 * PAGE), byte, "turn {turn}: a stale registration");
        }
    });
}
