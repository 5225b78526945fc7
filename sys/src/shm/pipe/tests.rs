//! A peer that sends arbitrary packets, and writes arbitrary bytes into the rings.

use std::time::Duration;

use nemesia_core::payload::LentMemory;
use nemesia_core::port::memory::{
    Completion, CompletionSource, Connection as Link, ConnectionState, Event, MemoryKey, MemoryPort, Offer,
    Private, RegionAccess as Rights, RemoteRange, Work,
};
use nemesia_core::wire::placement::{Frame, HANDSHAKE_BYTES, Handshake, PlacementAnswer};

use super::*;

const BYTES: usize = 64 << 10;
/// The time until a peer's disconnection is detected.
const LATER: Duration = Duration::from_secs(3600);

/// The generator splitmix64.
struct PipeRandom(u64);

impl PipeRandom {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % end
    }
}

/// A port with memory that every peer may access, and with memory whose key it sent to no peer. Dropped before
/// the memory.
struct Victim {
    port: ShmMemoryPort,
    now: Duration,
    open: (nemesia_core::port::memory::PortRegion, MemoryKey),
    bytes: *mut [u8],
    events: Vec<Event>,
}

impl Victim {
    fn new() -> Self {
        let mut port = listen(Copying::Kernel, &Options::default()).unwrap();
        let bytes = Box::into_raw(vec![0x44_u8; 2 * BYTES].into_boxed_slice());
        // SAFETY: freed after the port; accessed by raw pointers only.
        let open = unsafe { LentMemory::from_raw(bytes.cast(), BYTES) };
        let region = port.register(open, Rights::ALL).unwrap();
        let key = port.key(region).unwrap();
        Self { port, now: Duration::ZERO, open: (region, key), bytes, events: Vec::new() }
    }

    fn turn(&mut self) {
        let mut room = [Completion::EMPTY; 16];
        self.port.poll(&mut room);
        self.events.extend(self.port.poll_event(self.now));
    }

    fn request(&mut self) -> Link {
        loop {
            self.turn();
            if let Some(Event::Requested { connection, .. }) = self.events.pop() {
                return connection;
            }
        }
    }

    fn secret_is_untouched(&self) -> bool {
        (BYTES..2 * BYTES).all(|at| {
            // SAFETY: inside the memory.
            unsafe { self.bytes.cast::<u8>().add(at).read_volatile() == 0x44 }
        })
    }
}

fn offer() -> Offer {
    Offer { private: Private::EMPTY, shared_receive: false, deadline: LATER }
}

fn write(pipe: &mut Pipe, bytes: &[u8]) {
    let mut list = GatherList::new();
    list.push(bytes);
    // The test does not depend on whether they are accepted.
    let _ = pipe.write(&list);
}

/// Returns a stream to the victim, which has accepted its handshake.
fn enemy(victim: &mut Victim, pipes: &mut Pipes) -> (Pipe, Link) {
    let address = victim.port.address().unwrap();
    let (name, token) = Pipes::parse(&address).unwrap();
    let mut pipe = pipes.connect(name).unwrap();
    let handshake =
        Handshake { answer: PlacementAnswer::Request, token, shared: false, private: Private::EMPTY };
    write(&mut pipe, &handshake.encode());
    let connection = victim.request();
    victim.port.accept(connection, &offer()).unwrap();
    let mut answer = [0; HANDSHAKE_BYTES];
    loop {
        victim.turn();
        let mut list = ScatterList::new();
        list.push(&mut answer);
        if !matches!(pipe.read(&mut list), StreamResult::Blocked | StreamResult::Failed(_)) {
            return (pipe, connection);
        }
    }
}

fn frame(random: &mut PipeRandom, key: MemoryKey) -> Frame {
    let wild = [0, 1, 4095, 32 << 10, BYTES as u64 - 8, BYTES as u64, 1 << 32, u64::MAX, u64::MAX - 4096];
    let mut number = || if random.below(2) == 0 { wild[random.below(9) as usize] } else { random.below(200) };
    let at =
        RemoteRange { address: key.address.wrapping_add(number()), key: key.key ^ (number() == 7) as u64 };
    let (len, value, count) = (number().min(1 << 20) as u32, number(), number());
    // Readable memory of this process, which stands for that of the enemy.
    let source = if value == 1 { key.address } else { value };
    match random.below(10) {
        0..=2 => Frame::WriteFrom { len, to: at, immediate: (count == 1).then_some(1), source },
        3 => Frame::ReadFrom { len, source },
        4 => Frame::Pulled { count },
        5 | 6 => Frame::CanPull,
        7 => Frame::Read { len, from: at },
        8 => Frame::Ack { executed: count, room: value },
        _ => Frame::Ask { wanted: count },
    }
}

/// Returns an honest port with a connection to the victim, over which it can still write.
fn honest(victim: &mut Victim) -> (ShmMemoryPort, Link) {
    let mut port = listen(Copying::Kernel, &Options::default()).unwrap();
    let connection = port.connect(&victim.port.address().unwrap(), &offer()).unwrap();
    while port.poll_event(Duration::ZERO).is_none() {
        victim.turn();
        if let Some(Event::Requested { connection, .. }) = victim.events.pop() {
            victim.port.accept(connection, &offer()).unwrap();
        }
    }
    (port, connection)
}

fn still_works(victim: &mut Victim, (port, connection): &mut (ShmMemoryPort, Link)) {
    let to = victim.open.1.at(0);
    port.write(Work::new(*connection, 1), CompletionSource::Inline(b"still here"), to, None).unwrap();
    let mut room = [Completion::EMPTY];
    while port.poll(&mut room) == 0 {
        victim.turn();
    }
    assert_eq!(room[0].outcome, nemesia_core::port::memory::WorkOutcome::Done);
}

#[test]
fn a_peer_that_sends_arbitrary_bytes_fails_only_itself() {
    let (mut victim, mut random) = (Victim::new(), PipeRandom(std::process::id().into()));
    let stamp = Box::new(99);
    let mut pipes = Pipes { listener: HandoffListener::bind().unwrap(), stamp, copying: Copying::Kernel };
    let mut friend = honest(&mut victim);
    let mut ended = 0;
    for round in 0..200 {
        let (mut pipe, connection) = enemy(&mut victim, &mut pipes);
        let (region, key) = victim.open;
        let part = [nemesia_core::port::memory::Slice { region, offset: 0, len: 40_000 }];
        victim.port.read(Work::new(connection, 1), &part, key.at(0)).unwrap();
        for _ in 0..8 {
            let (bytes, count) = frame(&mut random, key).encode();
            write(&mut pipe, &bytes[..count]);
            (0..3).for_each(|_| victim.turn());
        }
        if round % 4 == 0 {
            // Invalid positions.
            let base = pipe.ends.as_ref().unwrap().segment.as_ptr();
            for word in 0..4 {
                let value = [0, 1, u64::MAX, 1 << 40, random.below(1 << 20)][random.below(5) as usize];
                // SAFETY: the positions are in a mapped segment.
                unsafe { base.add(word * LINE).cast::<u64>().write_volatile(value) };
            }
            let _ = pipe.connection.send(&[DOORBELL], &[], Instant::now());
            (0..5).for_each(|_| victim.turn());
        }
        ended += usize::from(victim.port.state(connection) == ConnectionState::Lost);
        drop(pipe);
        victim.port.close(connection);
        while !matches!(victim.events.pop(), Some(Event::Closed { .. })) {
            victim.turn();
        }
        still_works(&mut victim, &mut friend);
        assert!(victim.secret_is_untouched(), "round {round}");
    }
    assert!(ended > 100, "only {ended} of 200 were noticed");
    let Victim { port, bytes, .. } = victim;
    drop((port, friend));
    // SAFETY: made so above; the port is gone.
    drop(unsafe { Box::from_raw(bytes) });
}

#[test]
fn a_peer_reads_no_pages_that_their_owner_does_not_have() {
    let mut victim = Victim::new();
    let mut pipes =
        Pipes { listener: HandoffListener::bind().unwrap(), stamp: Box::new(99), copying: Copying::Kernel };
    let (mut pipe, _) = enemy(&mut victim, &mut pipes);
    let (pages, page) = (os::testing::Pages::private(20), os::numa::page_size() as u32);
    (0..19).for_each(|at| pages.touch(at));
    assert!(pipe.may_lend(pages.address(0), 19 * page));
    assert!(!pipe.may_lend(pages.address(0), 19 * page + 1));
}

/// A hostile peer offers pages that it keeps back. The thread that makes progress does not wait for them, and other
/// peers go on. Pages that come later are read.
#[test]
fn pages_that_a_peer_keeps_back_are_not_waited_for() {
    let mut victim = Victim::new();
    let mut pipes =
        Pipes { listener: HandoffListener::bind().unwrap(), stamp: Box::new(99), copying: Copying::Kernel };
    let mut friend = honest(&mut victim);
    let pages = os::testing::Pages::private(16);
    (0..15).for_each(|page| pages.touch(page));
    let Some(withheld) = pages.withhold() else {
        return os::testing::skipped(
            "the kernel does not let this user withhold pages from it (userfaultfd)",
        );
    };
    let (ended, watched) = std::sync::mpsc::channel();
    // Ends the waits, so that a thread that waits in vain fails this test.
    let guard = std::thread::spawn(move || {
        let in_time = watched.recv_timeout(Duration::from_secs(30)).is_ok();
        drop(withheld);
        in_time
    });
    let key = victim.open.1;
    let offered = |victim: &mut Victim, pipes: &mut Pipes| {
        let (mut pipe, connection) = enemy(victim, pipes);
        let len = pages.len() as u32;
        let (bytes, count) =
            Frame::WriteFrom { len, to: key.at(0), immediate: None, source: pages.address(0) }.encode();
        write(&mut pipe, &bytes[..count]);
        (0..20).for_each(|_| victim.turn());
        assert_eq!(victim.port.state(connection), ConnectionState::Ready);
        (pipe, connection)
    };
    let (kept, waiting) = offered(&mut victim, &mut pipes);
    let (left, gone) = offered(&mut victim, &mut pipes);
    still_works(&mut victim, &mut friend);
    drop(left);
    while victim.port.state(gone) == ConnectionState::Ready {
        victim.turn();
    }
    still_works(&mut victim, &mut friend);
    ended.send(()).unwrap();
    assert!(guard.join().unwrap(), "a page was waited for");
    // SAFETY: inside the memory of the victim.
    let last = || unsafe { victim.bytes.cast::<u8>().add(15 * os::numa::page_size()).read_volatile() };
    assert_eq!(last(), 0x44);
    while last() != 0 {
        victim.port.poll(&mut [Completion::EMPTY; 16]);
    }
    assert_eq!(victim.port.state(waiting), ConnectionState::Ready);
    drop(kept);
    let Victim { port, bytes, .. } = victim;
    drop((port, friend));
    // SAFETY: made so by `Victim::new`; the port is gone.
    drop(unsafe { Box::from_raw(bytes) });
}

#[test]
fn a_first_packet_of_another_kind_ends_the_stream() {
    let mut victim = Victim::new();
    for bytes in [b"x".as_slice(), &[0; HELLO_BYTES], &[7; 31], &[7; 33]] {
        let address = victim.port.address().unwrap();
        let name = std::str::from_utf8(Pipes::parse(&address).unwrap().0).unwrap();
        let foreign = HandoffConnection::connect(name, Instant::now() + LATER).unwrap();
        foreign.send(bytes, &[], Instant::now() + LATER).unwrap();
        let gone = loop {
            victim.turn();
            match foreign.recv(&mut [0; 64], 1, Instant::now()) {
                Err(ShmError::TimedOut { .. }) => {}
                other => break other,
            }
        };
        assert!(matches!(gone, Err(ShmError::PeerGone { .. })), "{gone:?}");
        assert_eq!(victim.events, []);
    }
    let mut friend = honest(&mut victim);
    still_works(&mut victim, &mut friend);
}

/// A peer that has stopped does not keep memory for ever. When it runs again, it does not mistake the new bytes
/// of that memory for the old ones.
#[test]
fn a_peer_that_is_stuck_loses_its_connection_when_memory_is_taken_back() {
    let mut victim = Victim::new();
    let (mut stuck, connection) = honest(&mut victim);
    let mut friend = honest(&mut victim);
    let mut room = [Completion::EMPTY; 4];
    // Each detects that it can read the other's memory, and reports so.
    for _ in 0..20 {
        victim.turn();
        assert_eq!(stuck.poll(&mut room), 0);
    }
    let into = Box::into_raw(vec![0_u8; BYTES].into_boxed_slice());
    // SAFETY: never freed; accessed by raw pointers only.
    let region = stuck.register(unsafe { LentMemory::from_raw(into.cast(), BYTES) }, Rights::LOCAL).unwrap();
    let part = [nemesia_core::port::memory::Slice { region, offset: 0, len: BYTES as u32 }];
    stuck.read(Work::new(connection, 7), &part, victim.open.1.at(0)).unwrap();
    // It leaves, and is not polled again until the memory has another owner.
    assert_eq!(stuck.poll(&mut room), 0);
    (0..20).for_each(|_| victim.turn());

    let mine = victim.open.0;
    let busy = Err(nemesia_core::port::memory::RegisterError::Busy);
    assert_eq!(victim.port.deregister(mine), busy);
    let patience = Options::default().patience;
    victim.now = patience - Duration::from_millis(1);
    (0..20).for_each(|_| victim.turn());
    assert_eq!((victim.port.deregister(mine), victim.events.len()), (busy, 0));
    victim.now = patience + Duration::from_millis(1);
    (0..20).for_each(|_| victim.turn());
    let error = nemesia_core::port::memory::LostError::Unreachable;
    assert!(matches!(victim.events.as_slice(), [Event::Lost { error: it, .. }] if *it == error));
    assert_eq!(victim.port.deregister(mine), Ok(()));
    // SAFETY: no other code uses the memory now; no reference is made.
    unsafe { victim.bytes.cast::<u8>().write_bytes(0x99, BYTES) };

    let outcome = loop {
        stuck.poll_event(Duration::ZERO);
        if stuck.poll(&mut room) > 0 {
            break room[0].outcome;
        }
    };
    assert!(matches!(outcome, nemesia_core::port::memory::WorkOutcome::Failed(_)), "{outcome:?}");
    // The other port has not detected it yet.
    friend.0.poll(&mut room);
    assert_eq!(friend.0.state(friend.1), ConnectionState::Ready);
}

#[test]
fn the_kernel_identifies_the_process_at_the_other_end() {
    let mut victim = Victim::new();
    let (mut port, connection) = honest(&mut victim);
    let process = Some(Origin::Process(std::process::id()));
    assert_eq!(port.origin(connection), process);
    port.close(connection);
    assert_eq!(port.origin(connection), None);
}

#[test]
fn two_processes_that_poll_make_no_system_call_for_a_message() {
    let mut victim = Victim::new();
    let (mut port, connection) = honest(&mut victim);
    let mut room = [Completion::EMPTY; 4];
    for _ in 0..4096 {
        victim.turn();
        port.poll(&mut room);
    }
    let (before, to) = (crate::placement::CALLS.get(), victim.open.1.at(0));
    for number in 0..2000 {
        port.write(Work::new(connection, number), CompletionSource::Inline(b"48 bytes"), to, None).unwrap();
        while port.poll(&mut room) == 0 {
            victim.turn();
        }
    }
    let calls = crate::placement::CALLS.get() - before;
    assert!(calls < 200, "{calls} calls for 2000 messages and their answers");
}

#[test]
fn a_process_that_sleeps_is_woken_by_bytes_and_by_room() {
    let mut victim = Victim::new();
    let (mut port, connection) = honest(&mut victim);
    let mut room = [Completion::EMPTY; 4];
    let descriptor = |port: &ShmMemoryPort| {
        let fd = port.descriptor().unwrap();
        // SAFETY: the port keeps it open.
        unsafe { BorrowedFd::borrow_raw(fd) }
    };
    let sleeps = |port: &mut ShmMemoryPort, room: &mut [Completion]| {
        while port.arm() == nemesia_core::port::memory::Armed::Poll {
            port.poll(room);
        }
        assert_eq!(port.poll(room), 0);
    };
    let is_woken =
        |port: &ShmMemoryPort, until: Instant| os::wait_ready(descriptor(port), libc::POLLIN, until).unwrap();
    (0..100).for_each(|_| {
        victim.turn();
        port.poll(&mut room);
    });
    sleeps(&mut victim.port, &mut room);
    assert!(!is_woken(&victim.port, Instant::now()));
    let to = victim.open.1.at(0);
    port.write(Work::new(connection, 1), CompletionSource::Inline(b"bytes"), to, None).unwrap();
    port.poll(&mut room);
    assert!(is_woken(&victim.port, Instant::now() + LATER), "by bytes");
    // More than the ring takes: the rest waits for room.
    let bytes = vec![7_u8; 16 << 10].leak();
    // SAFETY: leaked; nothing else uses them.
    let region =
        port.register(unsafe { LentMemory::from_raw(bytes.as_mut_ptr(), bytes.len()) }, Rights::LOCAL);
    let part = [nemesia_core::port::memory::Slice { region: region.unwrap(), offset: 0, len: 16 << 10 }];
    let mut number = 2;
    while port.write(Work::new(connection, number), CompletionSource::Gather(&part), to, None).is_ok() {
        port.poll(&mut room);
        number += 1;
    }
    sleeps(&mut port, &mut room);
    assert!(number > 20 && !is_woken(&port, Instant::now()), "{number}");
    victim.turn();
    assert!(is_woken(&port, Instant::now() + LATER), "by room");
}

/// What a peer writes while the last look is taken must be found: no signal follows.
#[test]
fn no_burst_is_left_in_the_ring_beside_a_reader() {
    const BURST: usize = 16;
    // A burst takes some switches of threads where the processors have other work.
    let bursts = if std::env::var_os("NEMESIA_QUICK").is_some() { 300 } else { 10_000 };
    let mut victim = Victim::new();
    let (mut port, connection) = honest(&mut victim);
    let to = victim.open.1.at(0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut room = [Completion::EMPTY; BURST];
            let mut written = 0;
            while written < bursts {
                // Each burst has a limit, because all of them may take long on a busy machine.
                let deadline = Instant::now() + Duration::from_secs(60);
                let mut done = 0;
                for at in 0..BURST {
                    let bytes = CompletionSource::Inline(b"a burst of writes");
                    port.write(Work::new(connection, 1), bytes, to, None).unwrap();
                    if at % 3 == written % 3 {
                        done += port.poll(&mut room);
                    }
                    // The reader comes to its last look at another moment each time.
                    (0..written % 97).for_each(|_| std::hint::spin_loop());
                }
                while done < BURST && Instant::now() < deadline {
                    done += port.poll(&mut room);
                    std::thread::yield_now();
                }
                if done < BURST {
                    break;
                }
                written += 1;
            }
            written
        });
        while !writer.is_finished() {
            victim.turn();
        }
        assert_eq!(writer.join().unwrap(), bursts);
    });
}
