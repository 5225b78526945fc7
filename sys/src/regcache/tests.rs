//! Stale registrations, made in every way that a program can. The registrar remembers the contents of the pages
//! that it registered; reading through it equals a device's access to the pages that it has pinned.

mod snapshot;

use std::ptr;

use super::{Held, Range, Registrar, RegistrationCache, Size, Telling};
use crate::os::testing::{is_child, run_again, skipped};
use snapshot::{PAGE, Snapshot, TestCache, map_with, seen, seen_through, touch, unmap};

/// Returns a cache to which the kernel reports; reports the test as skipped if the kernel does not.
fn watched() -> Option<TestCache> {
    let mut cache = RegistrationCache::new(Snapshot::default(), Size::default(), Telling::Kernel);
    if let Some(refused) = cache.refused() {
        skipped(&refused.to_string());
        return None;
    }
    await_reader(&mut cache);
    Some(cache)
}

/// Waits until the thread that reads the kernel's reports runs. A thread that starts maps memory of its own,
/// perhaps at an address that a test has just freed and wants again.
fn await_reader(cache: &mut TestCache) {
    let watch = cache.kept.reports.watch.as_mut().unwrap();
    let at = map(None, 1, 0) as u64;
    assert!(watch.watch(&(at..at + PAGE as u64)));
    // Returns after the thread has read the report.
    unmap(at as usize, 1);
    watch.settle();
}

/// Returns whether this is a process of this test's own, in which no other test takes addresses that it frees,
/// or moves the end of the heap; if not, runs the test in one.
fn alone(test: &str) -> bool {
    if !is_child() {
        run_again(&format!("nemesia::regcache::tests::{test}"), || Ok(()));
    }
    is_child()
}

/// Maps new pages filled with `byte`: at `at` in place of the old ones, or anywhere.
fn map(at: Option<usize>, pages: usize, byte: u8) -> usize {
    let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
    map_with(at.unwrap_or(0), pages, byte, fixed).unwrap()
}

#[test]
fn page_that_was_unmapped_and_mapped_again_is_registered_anew() {
    if !alone("page_that_was_unmapped_and_mapped_again_is_registered_anew") {
        return;
    }
    let Some(mut cache) = watched() else {
        return;
    };
    let at = map(None, 8, 1);
    for byte in 2..200 {
        touch(&mut cache, at, 8);
        assert_eq!(seen(&mut cache, at + 5 * PAGE), byte - 1);
        unmap(at, 8);
        assert_eq!(map(Some(at), 8, byte), at);
        assert_eq!(seen(&mut cache, at + 5 * PAGE), byte, "a stale registration");
    }
    assert!(cache.counts().hits > 190 && cache.counts().invalidated >= 198, "{:?}", cache.counts());
    unmap(at, 8);
}

/// Returns what a device would read at this page, for callers who promise what
/// [`RegistrationCache::acquire_trusting`] asks.
fn seen_trusting(cache: &mut TestCache, at: usize) -> u8 {
    let held = cache.acquire_trusting(at as u64, 1, 1).unwrap();
    seen_through(cache, held, at)
}

/// In one thread, a change is known as soon as the call has returned, without a system call of our own.
#[test]
fn trusting_callers_see_every_change_that_is_over() {
    if !alone("trusting_callers_see_every_change_that_is_over") {
        return;
    }
    let Some(mut cache) = watched() else { return };
    let at = map(None, 8, 1);
    for byte in 2..200 {
        assert_eq!(seen_trusting(&mut cache, at + 5 * PAGE), byte - 1);
        unmap(at, 8);
        assert_eq!(map(Some(at), 8, byte), at);
        assert_eq!(seen_trusting(&mut cache, at + 5 * PAGE), byte, "a stale registration");
    }
    assert!(cache.counts().hits > 190, "{:?}", cache.counts());
    unmap(at, 8);
}

#[test]
fn page_that_was_replaced_moved_or_discarded_is_registered_anew() {
    if !alone("page_that_was_replaced_moved_or_discarded_is_registered_anew") {
        return;
    }
    let Some(mut cache) = watched() else {
        return;
    };
    let at = map(None, 8, 1);
    touch(&mut cache, at, 8);
    map(Some(at + PAGE), 1, 2);
    assert_eq!(seen(&mut cache, at + PAGE), 2, "mapped over");
    touch(&mut cache, at, 8);
    // SAFETY: a page of this test.
    let discarded = unsafe { libc::madvise(ptr::without_provenance_mut(at), PAGE, libc::MADV_DONTNEED) };
    assert_eq!((discarded, seen(&mut cache, at)), (0, 0), "discarded");
    touch(&mut cache, at, 8);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let (from, to) = (at + 2 * PAGE, map(None, 4, 7));
    touch(&mut cache, to, 4);
    // SAFETY: pages of this test, to a place of this test.
    let moved = unsafe {
        let [from, to] = [from, to].map(ptr::without_provenance_mut::<libc::c_void>);
        libc::mremap(from, 4 * PAGE, 4 * PAGE, flags, to)
    };
    assert_eq!(moved.addr(), to);
    assert_eq!(seen(&mut cache, to + 2 * PAGE), 1, "moved here");
    map(Some(from), 4, 9);
    assert_eq!(seen(&mut cache, from + 2 * PAGE), 9, "moved away");
    unmap(at, 8);
    unmap(to, 4);
}

/// Moves the end of the heap. Returns its former place.
fn move_heap(bytes: isize) -> usize {
    // SAFETY: grows the heap, or takes back what this test had grown it by.
    let before = unsafe { libc::sbrk(bytes) };
    assert_ne!(before.addr(), usize::MAX);
    before.expose_provenance()
}

#[test]
fn heap_that_shrinks_takes_its_registrations_along() {
    if !alone("heap_that_shrinks_takes_its_registrations_along") {
        return;
    }
    let Some(mut cache) = watched() else { return };
    let room = 8 * PAGE as isize;
    for byte in 1..50 {
        let at = move_heap(room).next_multiple_of(PAGE);
        // SAFETY: seven pages and more that this test has just got.
        unsafe { ptr::write_bytes(ptr::with_exposed_provenance_mut::<u8>(at), byte, 7 * PAGE) };
        touch(&mut cache, at, 7);
        assert_eq!(seen(&mut cache, at + 3 * PAGE), byte, "a stale registration");
        let end = move_heap(-room);
        assert!(end >= at + 7 * PAGE, "someone else uses the heap");
    }
    assert!(cache.counts().invalidated > 40, "{:?}", cache.counts());
}

#[test]
fn other_threads_change_mappings_while_registrations_are_used() {
    if !alone("other_threads_change_mappings_while_registrations_are_used") {
        return;
    }
    let Some(mut cache) = watched() else {
        return;
    };
    let (ask, asked) = std::sync::mpsc::channel::<(usize, u8)>();
    let (answer, done) = std::sync::mpsc::channel::<()>();
    let mapper = std::thread::spawn(move || {
        for (at, byte) in asked {
            unmap(at, 4);
            map(Some(at), 4, byte);
            answer.send(()).unwrap();
        }
    });
    let places: Vec<_> = (0..8).map(|_| map(None, 4, 0)).collect();
    for turn in 0..400usize {
        let (at, byte) = (places[turn % 8], (turn % 251) as u8);
        ask.send((at, byte)).unwrap();
        // The other ranges are used meanwhile.
        touch(&mut cache, places[(turn + 3) % 8], 4);
        done.recv().unwrap();
        assert_eq!(seen(&mut cache, at + 3 * PAGE), byte, "turn {turn}");
    }
    drop(ask);
    mapper.join().unwrap();
    drop(cache);
    places.into_iter().for_each(|at| unmap(at, 4));
}

#[test]
fn more_changes_than_are_remembered_drop_everything() {
    let Some(mut cache) = watched() else { return };
    let at = map(None, 400, 1);
    let other = map(None, 1, 5);
    touch(&mut cache, at, 400);
    touch(&mut cache, other, 1);
    for page in (0..400).step_by(2) {
        map(Some(at + page * PAGE), 1, 2);
    }
    for page in (0..400).step_by(2) {
        assert_eq!(seen(&mut cache, at + page * PAGE), 2);
    }
    assert_eq!(seen(&mut cache, other), 5);
    unmap(at, 400);
    unmap(other, 1);
}

#[test]
fn registration_in_use_outlives_the_change_and_is_not_found_again() {
    let Some(mut cache) = watched() else {
        return;
    };
    let at = map(None, 4, 1);
    let held = cache.acquire(at as u64, 100, 1).unwrap();
    map(Some(at), 4, 2);
    assert_eq!(seen(&mut cache, at), 2);
    let old = cache.handle(&held).unwrap();
    assert_eq!(cache.registrar_mut().pinned[&old].1[0], 1);
    cache.release(held);
    assert!(!cache.registrar_mut().pinned.contains_key(&old));
    assert_eq!(cache.registrar_mut().pinned.len(), 1);
    unmap(at, 4);
    assert!(cache.close().pinned.is_empty());
}

/// Only one watch of a process can have a page. A late drop by the other watch must not end it, which the
/// kernel would do before Linux 6.17. Linux 6.17.
#[test]
fn caches_of_one_process_leave_the_watches_of_each_other_alone() {
    if !alone("caches_of_one_process_leave_the_watches_of_each_other_alone") {
        return;
    }
    let (Some(mut first), Some(mut second)) = (watched(), watched()) else { return };
    let at = map(None, 12, 1);
    for byte in 1..100 {
        let old = first.acquire(at as u64, (8 * PAGE) as u64, 1).unwrap();
        // The page is new and now belongs to the second; the first still uses the old one, and afterwards gets
        // the new one only to share.
        map(Some(at), 12, byte + 1);
        touch(&mut second, at + 4 * PAGE, 8);
        assert_eq!((seen(&mut second, at + 6 * PAGE), second.bytes()), (byte + 1, 8 * PAGE as u64));
        assert_eq!(seen(&mut first, at + 6 * PAGE), byte + 1);
        first.release(old);
        assert_eq!(first.flush(), 0, "nothing is kept of which another one is told");
        let unchanged = second.counts().invalidated;
        map(Some(at), 12, byte + 1);
        assert_eq!(seen(&mut second, at + 6 * PAGE), byte + 1);
        assert_eq!(second.counts().invalidated, unchanged + 1, "it was told");
        second.flush();
    }
    drop(first);
    touch(&mut second, at, 12);
    map(Some(at), 12, 200);
    assert_eq!(seen(&mut second, at), 200);
    unmap(at, 12);
}

#[test]
fn nothing_is_watched_that_is_not_registered() {
    let Some(mut cache) = watched() else { return };
    let at = map(None, 4, 1);
    touch(&mut cache, at, 4);
    cache.flush();
    unmap(at, 4);
    assert!(!cache.kept.reports.watch.as_ref().unwrap().changed(), "the program was held up for nothing");
}

#[test]
fn nothing_outlives_its_use_without_reports() {
    let mut cache = RegistrationCache::new(Snapshot::default(), Size::default(), Telling::Nobody);
    let at = map(None, 4, 1);
    touch(&mut cache, at, 4);
    assert_eq!((cache.bytes(), cache.registrar_mut().pinned.len()), (0, 0));
    map(Some(at), 4, 2);
    assert_eq!(seen(&mut cache, at), 2);
    unmap(at, 4);
}

#[test]
fn program_that_reports_keeps_its_registrations() {
    let mut cache = RegistrationCache::new(Snapshot::default(), Size::default(), Telling::Program);
    let at = map(None, 4, 1);
    touch(&mut cache, at, 4);
    touch(&mut cache, at, 4);
    assert_eq!((cache.counts().hits, cache.bytes()), (1, 4 * PAGE as u64));
    map(Some(at), 4, 2);
    assert_eq!(cache.invalidate(at as u64, 1), 1);
    assert_eq!(seen(&mut cache, at), 2);
    unmap(at, 4);
}

#[test]
fn forked_child_leaves_the_watch_of_its_parent_alone() {
    let Some(mut cache) = watched() else { return };
    let at = map(None, 4, 1);
    touch(&mut cache, at, 4);
    // SAFETY: the child calls nothing but `munmap`, our `drop` (which returns at once there) and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        unmap(at, 4);
        drop(cache.kept.reports.watch.take());
        // SAFETY: ends the child without running anything.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: our own child, and a word of our own.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!((seen(&mut cache, at), cache.counts().hits), (1, 1));
    map(Some(at), 4, 2);
    assert_eq!(seen(&mut cache, at), 2);
    unmap(at, 4);
}

/// The last part of a registration in use, without any report, proves nothing about its other pages.
#[test]
fn pages_without_a_watch_are_registered_anew() {
    let mut cache = RegistrationCache::new(Snapshot::default(), Size::default(), Telling::Nobody);
    let at = map(None, 8, 1);
    let whole = cache.acquire(at as u64, (4 * PAGE) as u64, 1).unwrap();
    let part = cache.acquire((at + 3 * PAGE) as u64, (4 * PAGE) as u64, 1).unwrap();
    cache.release(whole);
    map(Some(at), 1, 2);
    assert_eq!(seen(&mut cache, at), 2, "a stale registration");
    cache.release(part);
    unmap(at, 8);
}

/// Makes a segment of System V shared memory, which the kernel removes with its last user.
fn segment() -> i32 {
    // SAFETY: takes numbers; the segment is new.
    let id = unsafe { libc::shmget(libc::IPC_PRIVATE, 4 * PAGE, libc::IPC_CREAT | 0o600) };
    assert!(id >= 0, "{}", std::io::Error::last_os_error());
    id
}

/// Attaches a segment, fills it, and marks it for removal.
fn attach(id: i32, at: usize, byte: u8) -> usize {
    // SAFETY: a place that the kernel chooses, or that is free.
    let new = unsafe { libc::shmat(id, ptr::without_provenance(at), 0) };
    assert_ne!(new.addr(), usize::MAX, "{}", std::io::Error::last_os_error());
    // SAFETY: just attached, and of this size; the segment is ours.
    unsafe {
        ptr::write_bytes(new.cast::<u8>(), byte, 4 * PAGE);
        libc::shmctl(id, libc::IPC_RMID, ptr::null_mut());
    }
    new.expose_provenance()
}

/// The kernel reports no `shmdt`, and therefore watches no such segment.
#[test]
fn segment_that_was_detached_and_replaced_is_registered_anew() {
    if !alone("segment_that_was_detached_and_replaced_is_registered_anew") {
        return;
    }
    let Some(mut cache) = watched() else { return };
    let at = attach(segment(), 0, 1);
    touch(&mut cache, at, 4);
    assert_eq!(seen(&mut cache, at), 1);
    // SAFETY: a segment of this test that it does not refer to.
    assert_eq!(unsafe { libc::shmdt(ptr::with_exposed_provenance(at)) }, 0);
    assert_eq!(attach(segment(), at, 2), at);
    assert_eq!(seen(&mut cache, at), 2, "a stale registration");
}

/// The kernel does not report pages that are taken out of a file.
#[test]
fn pages_punched_out_of_a_shared_file_are_registered_anew() {
    let Some(mut cache) = watched() else { return };
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
    unmap(at, 4);
    // SAFETY: our own file.
    unsafe { libc::close(file) };
}

/// A child has the descriptors too, and keeps the kernel's watch alive after its reader has gone.
#[test]
fn program_goes_on_when_the_cache_is_gone_and_a_forked_child_is_not() {
    if !alone("program_goes_on_when_the_cache_is_gone_and_a_forked_child_is_not") {
        return;
    }
    let Some(mut cache) = watched() else { return };
    let at = map(None, 8, 1);
    touch(&mut cache, at, 4);
    touch(&mut cache, at + 2 * PAGE, 6);
    let held = cache.acquire(at as u64, 1, 1).unwrap();
    // SAFETY: the child does nothing but wait for its end.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: takes nothing.
            unsafe { libc::pause() };
        }
    }
    drop((cache, held));
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        unmap(at, 8);
        done.send(())
    });
    let unmapped = wait.recv_timeout(std::time::Duration::from_secs(20));
    let mut status = 0;
    // SAFETY: our own child, and a word of our own.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, &raw mut status, 0);
    }
    assert_eq!(unmapped, Ok(()), "munmap waits for ever");
}

/// Maps new pages at `at`, unless some are mapped there.
fn claim(at: usize, pages: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory only.
    let new = unsafe { libc::mmap(ptr::without_provenance_mut(at), pages * PAGE, rights, flags, -1, 0) };
    new.addr() == at
}

/// Addresses are free, and reused, before `munmap` has returned: nothing has been reported by then.
#[test]
fn addresses_that_another_thread_is_still_unmapping_are_registered_anew() {
    if !alone("addresses_that_another_thread_is_still_unmapping_are_registered_anew") {
        return;
    }
    let Some(mut cache) = watched() else { return };
    // A starting thread maps memory of its own, perhaps at an address that was ours.
    let started = std::sync::Barrier::new(4);
    let place = map(None, 64, 0);
    std::thread::scope(|threads| {
        let asks: Vec<_> = (0..3)
            .map(|_| {
                let (ask, asked) = std::sync::mpsc::channel::<usize>();
                let started = &started;
                threads.spawn(move || {
                    started.wait();
                    asked.into_iter().for_each(|at| unmap(at, 4));
                });
                ask
            })
            .collect();
        started.wait();
        for turn in 0..1000usize {
            let (at, byte) = (place + turn % 16 * 4 * PAGE, (turn % 250 + 1) as u8);
            touch(&mut cache, at, 4);
            asks[turn % 3].send(at).unwrap();
            let begun = std::time::Instant::now();
            while !claim(at, 4) {
                assert!(
                    begun.elapsed() < std::time::Duration::from_secs(60),
                    "turn {turn}: no thread unmaps"
                );
                std::thread::yield_now();
            }
            // SAFETY: claimed, and ours.
            unsafe { ptr::with_exposed_provenance_mut::<u8>(at + 3 * PAGE).write(byte) };
            assert_eq!(seen(&mut cache, at + 3 * PAGE), byte, "turn {turn}: a stale registration");
        }
    });
    drop(cache);
    unmap(place, 64);
}
