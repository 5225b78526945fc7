//! Any call from any thread, within one process: two VIs of it are connected with each other. `tests/sanitize` runs
//! these tests under ThreadSanitizer.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nemesia_core::via::codes::Reliability;
use nemesia_core::via::setup::ViaAddress;
use nemesia_core::via::vi::ViQueue;
use nemesia_core::via::{ViAttributes, ViState, ViaError, ViaMemAttributes};

use super::{Callback, Provider};
use crate::os::numa::page_size;
use crate::os::testing::{self, Pages};

/// Messages of each direction. Tests are slow under ThreadSanitizer.
const MESSAGES: u64 = if cfg!(nemesia_race) { 60 } else { 400 };
/// Rounds of the threads that do other things meanwhile.
const ROUNDS: u64 = if cfg!(nemesia_race) { 8 } else { 25 };
/// Receive descriptors of each VI.
const WINDOW: u64 = 8;
/// Bytes of a message, of memory for one descriptor and its data, and of a region.
const MESSAGE_BYTES: u32 = 256;
const PLACE_BYTES: usize = 1024;
const REGION_BYTES: usize = 64 * PLACE_BYTES;
/// The limit of each wait, in milliseconds.
const LIMIT: u64 = 60_000;

/// Registered memory, either kind, of which each thread uses places of its own.
#[derive(Clone, Copy, Debug)]
struct TestRegion {
    base: *mut u8,
    handle: u32,
}

// SAFETY: each thread uses its own places, as the tests distribute them.
unsafe impl Send for TestRegion {}

impl TestRegion {
    fn new(provider: Provider, nic: u64, ptag: u64, is_allocated: bool) -> Self {
        let attributes = ViaMemAttributes { ptag, rdma_write: true, rdma_read: true };
        if is_allocated {
            let (base, handle) = provider.allocate(nic, REGION_BYTES as u64, attributes).unwrap();
            return Self { base, handle };
        }
        let words = Vec::leak(vec![[0_u64; 8]; REGION_BYTES / 64]);
        let base = words.as_mut_ptr().cast::<u8>();
        let base = base.wrapping_add(base.align_offset(64));
        let len = REGION_BYTES as u64 - 64;
        // SAFETY: leaked, so mapped for ever.
        let handle = unsafe { provider.register(nic, base, len, attributes) }.unwrap();
        Self { base, handle }
    }

    /// Writes a descriptor with one segment into a place, and returns its address.
    fn describe(self, place: u64) -> *mut u8 {
        let at = self.base.wrapping_add(place as usize * PLACE_BYTES);
        let mut bytes = [0; 64];
        bytes[12] = 1;
        bytes[32..40].copy_from_slice(&(at as u64 + 64).to_le_bytes());
        bytes[40..44].copy_from_slice(&self.handle.to_le_bytes());
        bytes[44..48].copy_from_slice(&MESSAGE_BYTES.to_le_bytes());
        // SAFETY: within the region; no descriptor of this place is posted.
        unsafe { at.cast::<[u8; 64]>().write(bytes) };
        at
    }

    /// Writes the content of a message behind a descriptor.
    fn fill(at: *mut u8, number: u64) {
        // SAFETY: within the place; its descriptor is not posted.
        unsafe { at.add(64).cast::<[u64; MESSAGE_BYTES as usize / 8]>().write_unaligned([number; 32]) };
    }

    /// Checks the content behind a descriptor.
    fn holds(at: u64, number: u64) -> bool {
        let at = std::ptr::with_exposed_provenance::<u8>(at as usize + 64);
        // SAFETY: within the place of a descriptor that has ended.
        unsafe { at.cast::<[u64; MESSAGE_BYTES as usize / 8]>().read_unaligned() == [number; 32] }
    }
}

fn attributes(ptag: u64) -> ViAttributes {
    ViAttributes {
        reliability: Reliability::Delivery,
        max_transfer: 1 << 20,
        qos: 0,
        ptag,
        rdma_write: true,
        rdma_read: true,
    }
}

/// Connects two VIs of this process with each other.
fn connect(provider: Provider, vis: [u64; 2]) {
    let address = |vi: u64| {
        let name = [u64::from(std::process::id()).to_le_bytes(), vi.to_le_bytes()].concat();
        ViaAddress::new(provider.address(), &name).unwrap()
    };
    let [one, two] = vis.map(address);
    provider.peer_request(vis[0], one, two, LIMIT).unwrap();
    provider.peer_request(vis[1], two, one, LIMIT).unwrap();
    for vi in vis {
        provider.peer_wait(vi).unwrap();
    }
}

/// Returns whether this process has a thread of this name. The one that calls a peer may still close its sockets when
/// both sides are connected.
fn has_thread(name: &str) -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    // A thread that ends meanwhile has no name.
    tasks
        .map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")))
        .any(|comm| comm.is_ok_and(|comm| comm.trim_end() == name))
}

/// Waits until another thread has done something. Fails if it does not, because it has failed.
fn wait_until(condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_millis(LIMIT), "another thread does nothing");
        thread::yield_now();
    }
}

/// Sends messages from the first place of the region on, while the other side has receive descriptors for them.
fn send(provider: Provider, vi: u64, region: TestRegion, received: &AtomicU64) {
    for number in 0..MESSAGES {
        wait_until(|| number < received.load(Ordering::Acquire) + WINDOW);
        let at = region.describe(0);
        TestRegion::fill(at, number);
        provider.post(vi, ViQueue::Send, at, region.handle).unwrap();
        let ended = provider.wait(vi, ViQueue::Send, LIMIT).unwrap();
        assert!(ended.address == at as u64 && !ended.has_failed);
    }
}

/// Opens a device, and makes a protection tag.
fn opened(name: &[u8]) -> (Provider, u64, u64) {
    let provider = Provider::get().unwrap();
    let nic = provider.open_nic(name).unwrap();
    (provider, nic, provider.create_ptag(nic).unwrap())
}

fn pair(provider: Provider, nic: u64, ptag: u64) -> [u64; 2] {
    [(); 2].map(|()| provider.create_vi(nic, attributes(ptag), [None; 2]).unwrap())
}

fn post_receives(provider: Provider, vi: u64, region: TestRegion) {
    for place in 1..=WINDOW {
        provider.post(vi, ViQueue::Receive, region.describe(place), region.handle).unwrap();
    }
}

fn receive(provider: Provider, vi: u64, region: TestRegion, received: &AtomicU64) {
    for number in 0..MESSAGES {
        let ended = provider.wait(vi, ViQueue::Receive, LIMIT).unwrap();
        assert!(!ended.has_failed && TestRegion::holds(ended.address, number), "message {number}");
        let at = std::ptr::with_exposed_provenance_mut(ended.address as usize);
        provider.post(vi, ViQueue::Receive, at, region.handle).unwrap();
        received.store(number + 1, Ordering::Release);
    }
}

/// Looks at everything, until the other threads are done.
fn look(provider: Provider, nic: u64, vis: [u64; 2], queue: u64, is_done: &AtomicBool) {
    while !is_done.load(Ordering::Acquire) {
        for vi in vis {
            assert_eq!(provider.query_vi(vi).unwrap().state, ViState::Connected);
            provider.start_sends(vi).unwrap();
        }
        assert_eq!(provider.queue_done(queue), Err(ViaError::NotDone));
        assert_eq!(provider.queue_wait(queue, 1), Err(ViaError::Timeout));
        provider.resize_queue(queue, 9).unwrap();
        assert!(provider.query_nic(nic).is_ok() && provider.peer_done(vis[0]).is_err());
        thread::yield_now();
    }
}

/// Registers and deregisters memory that every connection learns of.
fn register(provider: Provider, nic: u64, ptag: u64) {
    let attributes = ViaMemAttributes { ptag, rdma_write: true, rdma_read: false };
    for _ in 0..ROUNDS {
        let (base, handle) = provider.allocate(nic, 8192, attributes).unwrap();
        let less = ViaMemAttributes { rdma_write: false, ..attributes };
        provider.set_memory(nic, base, handle, less).unwrap();
        provider.deregister(nic, base, handle, true).unwrap();
    }
}

extern "C" fn count(context: *mut c_void, _: *mut c_void, _: *mut c_void, _: *mut c_void) {
    // SAFETY: the counter of `reconnect`, which waits for its callbacks.
    unsafe { &*context.cast::<AtomicU64>() }.fetch_add(1, Ordering::AcqRel);
}

/// Makes, connects, uses and disconnects other VIs, whose completions reach callbacks.
fn reconnect(provider: Provider, nic: u64, ptag: u64, region: TestRegion) {
    let called = AtomicU64::new(0);
    for round in 0..ROUNDS.div_ceil(4) {
        let vis = pair(provider, nic, ptag);
        let receive = region.describe(10);
        provider.post(vis[1], ViQueue::Receive, receive, region.handle).unwrap();
        connect(provider, vis);
        let context = (&raw const called).cast_mut().cast();
        let callback = Callback::Descriptor(count);
        provider.notify_descriptor(vis[1], ViQueue::Receive, context, callback).unwrap();
        let send = region.describe(11);
        provider.post(vis[0], ViQueue::Send, send, region.handle).unwrap();
        assert!(!provider.wait(vis[0], ViQueue::Send, LIMIT).unwrap().has_failed);
        wait_until(|| called.load(Ordering::Acquire) > round);
        for vi in vis {
            provider.disconnect(vi).unwrap();
            provider.destroy_vi(vi).unwrap();
        }
    }
}

#[test]
fn all_threads_may_call_and_each_message_arrives_whole_and_in_order() {
    let (provider, nic, ptag) = opened(b"threads");
    for is_allocated in [true, false] {
        let region = || TestRegion::new(provider, nic, ptag, is_allocated);
        let (regions, other) = ([region(), region()], region());
        let queue = provider.create_queue(nic, 8).unwrap();
        let vis = pair(provider, nic, ptag);
        for (vi, region) in vis.into_iter().zip(regions) {
            post_receives(provider, vi, region);
        }
        connect(provider, vis);
        let (received, is_done) = ([const { AtomicU64::new(0) }; 2], AtomicBool::new(false));
        let (received, is_done) = (&received, &is_done);
        thread::scope(|scope| {
            let mut busy = Vec::new();
            for side in 0..2 {
                let (vi, region) = (vis[side], regions[side]);
                busy.push(scope.spawn(move || send(provider, vi, region, &received[1 - side])));
                busy.push(scope.spawn(move || receive(provider, vi, region, &received[side])));
            }
            busy.push(scope.spawn(move || register(provider, nic, ptag)));
            busy.push(scope.spawn(move || reconnect(provider, nic, ptag, other)));
            let looking = scope.spawn(move || look(provider, nic, vis, queue, is_done));
            let ended: Vec<_> = busy.into_iter().map(thread::ScopedJoinHandle::join).collect();
            is_done.store(true, Ordering::Release);
            // Joined like the others: ThreadSanitizer does not see how a scope awaits its threads.
            looking.join().unwrap();
            ended.into_iter().for_each(|end| end.unwrap());
        });
        for vi in vis {
            provider.disconnect(vi).unwrap();
        }
    }
    provider.close_nic(nic).unwrap();
}

#[test]
fn done_returns_while_other_threads_wait_for_the_same_queue() {
    let (provider, nic, ptag) = opened(b"waiting");
    let region = TestRegion::new(provider, nic, ptag, true);
    let vis = pair(provider, nic, ptag);
    post_receives(provider, vis[1], region);
    connect(provider, vis);
    let waiting = AtomicU64::new(0);
    let waiting = &waiting;
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(move || {
                    waiting.fetch_add(1, Ordering::AcqRel);
                    provider.wait(vis[1], ViQueue::Receive, u64::MAX).unwrap()
                })
            })
            .collect();
        while waiting.load(Ordering::Acquire) < 3 {
            thread::yield_now();
        }
        // The messages are sent only afterwards: if one of these calls waited, the test would not end.
        for round in 0..ROUNDS * 20 {
            let ended = provider.done(vis[1], ViQueue::Receive);
            assert_eq!(ended.map(|ended| ended.address), Err(ViaError::NotDone), "round {round}");
            if round % 20 == 0 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        for number in 0..3 {
            let at = region.describe(20 + number);
            provider.post(vis[0], ViQueue::Send, at, region.handle).unwrap();
        }
        let mut found: Vec<u64> = waiters.into_iter().map(|waiter| waiter.join().unwrap().address).collect();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), 3, "each thread has a message of its own");
    });
    for vi in vis {
        provider.disconnect(vi).unwrap();
    }
    provider.close_nic(nic).unwrap();
}

#[test]
fn an_rdma_read_does_not_wait_for_pages_that_the_other_process_does_not_have() {
    const COUNT: usize = 32;
    let (provider, nic, ptag) = opened(b"withheld");
    let region = TestRegion::new(provider, nic, ptag, true);
    let vis = pair(provider, nic, ptag);
    connect(provider, vis);
    // Not unmapped if the test fails, because the memory is registered.
    let pages = std::mem::ManuallyDrop::new(Pages::private(COUNT));
    let memory = ViaMemAttributes { ptag, rdma_write: false, rdma_read: true };
    // SAFETY: the pages stay mapped until they were deregistered.
    let source = unsafe { provider.register(nic, pages.at(0).as_ptr(), pages.len() as u64, memory) }.unwrap();
    (0..COUNT / 2).for_each(|page| pages.touch(page));
    let base = pages.address(0);
    let post = move |page: usize| {
        let at = region.describe(page as u64);
        let from = base + (page * page_size()) as u64;
        let local = [at as u64 + 128, u64::from(region.handle) | u64::from(MESSAGE_BYTES) << 32];
        // SAFETY: within the place, whose descriptor is not posted: an RDMA read with a remote and a local segment.
        unsafe {
            at.add(12).cast::<[u16; 2]>().write([2, 2]);
            at.add(32).cast::<[u64; 2]>().write([from, u64::from(source)]);
            at.add(48).cast::<[u64; 2]>().write(local);
            at.add(128).write(7);
        }
        provider.post(vis[0], ViQueue::Send, at, region.handle).unwrap();
    };
    let end = |first: u64| {
        let ended = provider.wait(vis[0], ViQueue::Send, LIMIT).unwrap();
        assert!(!ended.has_failed);
        let bytes = std::ptr::with_exposed_provenance::<[u8; 2]>(ended.address as usize + 128);
        // SAFETY: within the place of a descriptor that has ended.
        assert_eq!(unsafe { bytes.read() }, [first as u8, 0]);
    };
    post(3);
    end(1);
    let Some(withheld) = pages.withhold() else {
        testing::skipped("the kernel does not let this user withhold pages from it (userfaultfd)");
        return;
    };
    let (say, hear) = std::sync::mpsc::channel();
    let reader = thread::spawn(move || {
        post(COUNT / 2);
        say.send(()).unwrap();
    });
    let posted = hear.recv_timeout(Duration::from_secs(30));
    // From now on the pages are zeroed when they are touched.
    drop(withheld);
    reader.join().unwrap();
    assert!(posted.is_ok(), "the call waited for a page of the other side");
    end(0);
    for vi in vis {
        provider.disconnect(vi).unwrap();
    }
    provider.deregister(nic, pages.at(0).as_ptr(), source, false).unwrap();
    provider.close_nic(nic).unwrap();
}

#[test]
fn a_lack_of_descriptors_delays_a_message_and_does_not_end_the_connection() {
    const NAME: &str =
        concat!(module_path!(), "::a_lack_of_descriptors_delays_a_message_and_does_not_end_the_connection");
    if !testing::is_child() {
        return testing::run_again(NAME, || Ok(()));
    }
    let (provider, nic, ptag) = opened(b"shortage");
    let region = TestRegion::new(provider, nic, ptag, true);
    let vis = pair(provider, nic, ptag);
    connect(provider, vis);
    let post = |region: TestRegion, number: u64| {
        let (receive, send) = (region.describe(1), region.describe(0));
        provider.post(vis[1], ViQueue::Receive, receive, region.handle).unwrap();
        TestRegion::fill(send, number);
        provider.post(vis[0], ViQueue::Send, send, region.handle).unwrap();
    };
    let arrives = |number: u64| {
        assert!(!provider.wait(vis[0], ViQueue::Send, LIMIT).unwrap().has_failed);
        let received = provider.wait(vis[1], ViQueue::Receive, LIMIT).unwrap();
        assert!(!received.has_failed && TestRegion::holds(received.address, number));
    };
    post(region, 4);
    arrives(4);
    while has_thread("vipl-peer") {
        thread::yield_now();
    }
    let mut taken = testing::take_descriptors();
    // The region gets the last descriptor. It is lent at once, and cannot be received at the other end.
    taken.pop();
    post(TestRegion::new(provider, nic, ptag, true), 5);
    for _ in 0..100 {
        let ended = provider.done(vis[0], ViQueue::Send).map(|ended| ended.has_failed);
        assert_eq!(ended, Err(ViaError::NotDone));
        thread::yield_now();
    }
    drop(taken);
    arrives(5);
    for vi in vis {
        provider.disconnect(vi).unwrap();
    }
    provider.close_nic(nic).unwrap();
}
