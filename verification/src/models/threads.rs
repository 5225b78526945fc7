//! Models of several threads on one endpoint: the lock, the driver, and the threads that wait for it.
//!
//! A thread that sleeps waits on a condition variable, guarded by a mutex as the kernel guards a futex. A lost
//! wake-up is therefore a deadlock, which loom reports.

use loom::cell::UnsafeCell;
use loom::sync::{Condvar, Mutex};
use nemesia_core::shared::sleep::{Payer, Sleep, SleepWord, WakeReason, Waking};
use nemesia_core::sync::{Edge, FenceMode, Word32, Word64};
use nemesia_core::threads::{Bits, EventCount, Lock, Park, WaiterList, WaiterSlot};

use super::Model;
use crate::mutant::InjectedFault;
use crate::stage::{Run, both, three};

/// The lock alone.
pub(super) const LOCK: Model = Model {
    name: "threads/lock",
    structure: "lock",
    property: "three threads lock, hand over and sleep: one holds the lock at a time, each sees the work of the \
        previous holder, none sleeps on",
    edges: &[Edge::Lock],
    injected_faults: &[],
    run: lock,
};

/// The lock is handed over by a thread that comes back for it at once.
pub(super) const AGAIN: Model = Model {
    name: "threads/again",
    structure: "lock",
    property: "a thread that hands the lock to a waiter and returns gets it after the waiter",
    edges: &[],
    injected_faults: &[InjectedFault::GrabAgain],
    run: again,
};

/// The lock is handed over twice; the thread that was passed over first gets it second.
pub(super) const TWICE: Model = Model {
    name: "threads/twice",
    structure: "lock",
    property: "a thread about to sleep because the lock was handed to another does not sleep when the lock is then \
        handed to it",
    edges: &[],
    injected_faults: &[InjectedFault::ForgetHanding],
    run: twice,
};

/// Two threads wait, and a peer sends a message to each.
pub(super) const DRIVER: Model = Model {
    name: "threads/driver",
    structure: "lock, waiter list, bell, sleep word",
    property: "of two waiting threads one drives and serves both, or leaves the other to drive; neither sleeps when \
        its message is there",
    edges: &[Edge::Lock, Edge::Sleep],
    injected_faults: &[InjectedFault::ListenUnlocked, InjectedFault::CheckBeforeAnnounce],
    run: driver,
};

/// A thread waits, and another thread of the process completes its request.
pub(super) const NOTIFY: Model = Model {
    name: "threads/stir",
    structure: "lock, waiter list, bell, sleep word",
    property: "a driver that sleeps is woken when another thread of its process has served it",
    edges: &[Edge::Lock],
    injected_faults: &[InjectedFault::ForgetDriver],
    run: notify,
};

/// Two threads wait. Another thread of the process serves the first, then a peer sends to the second.
pub(super) const HEIR: Model = Model {
    name: "threads/heir",
    structure: "lock, waiter list, bell, sleep word",
    property: "a driver that leaves wakes the next driver",
    edges: &[],
    injected_faults: &[InjectedFault::LeaveNoDriver],
    run: heir,
};

/// The places where threads sleep, one for each word.
struct Kernel {
    guard: Mutex<()>,
    wake: Condvar,
}

impl Kernel {
    fn new() -> Self {
        Self { guard: Mutex::new(()), wake: Condvar::new() }
    }

    fn sleep_while(&self, unchanged: impl FnOnce() -> bool) {
        let guard = self.guard.lock().expect("no thread panics with it");
        if unchanged() {
            drop(self.wake.wait(guard).expect("no thread panics with it"));
        }
    }

    fn wake(&self, all: bool) {
        let _guard = self.guard.lock().expect("no thread panics with it");
        if all { self.wake.notify_all() } else { self.wake.notify_one() }
    }
}

impl Park for Kernel {
    fn park(&self, word: &Word32, expected: u32) {
        self.sleep_while(|| word.load_relaxed() == expected);
    }

    fn unpark(&self, _: &Word32) {
        self.wake(false);
    }

    fn unpark_all(&self, _: &Word32) {
        self.wake(true);
    }
}

fn lock(run: &Run) {
    run.explore(run.size(2, 3), || {
        let (lock, kernel, inside) = (Lock::default(), Kernel::new(), UnsafeCell::new(0));
        let enter = |hand_over: bool| {
            lock.acquire(&kernel);
            // SAFETY: loom fails the model if another thread is inside, or what it did is not visible.
            inside.with_mut(|count| unsafe { *count += 1 });
            if hand_over { lock.hand_over(&kernel) } else { lock.release(&kernel) }
        };
        three(|| enter(true), || enter(false), || enter(true));
        // SAFETY: the threads have ended.
        assert_eq!(inside.with(|count| unsafe { *count }), 3);
    });
}

fn again(run: &Run) {
    let grab = run.injected_faults(InjectedFault::GrabAgain);
    run.explore(run.size(3, 4), move || {
        let (lock, kernel) = (Lock::default(), Kernel::new());
        // A thread that hands the lock over and wants it again gets it after the other thread.
        let inside = UnsafeCell::new(Vec::new());
        let enter = |thread: u8| {
            lock.acquire(&kernel);
            // SAFETY: loom fails the model if another thread is inside, or what it did is not visible.
            inside.with_mut(|order| unsafe { (*order).push((thread, lock.is_wanted())) });
            if grab { lock.release(&kernel) } else { lock.hand_over(&kernel) }
        };
        both(
            || {
                enter(0);
                enter(0);
            },
            || enter(1),
        );
        // SAFETY: the threads have ended.
        let order = inside.with(|order| unsafe { (*order).clone() });
        assert_eq!(order.len(), 3);
        let overtaken = order.windows(2).any(|two| two[0] == (0, true) && two[1].0 == 0);
        assert!(!overtaken, "{order:?}");
    });
}

fn twice(run: &Run) {
    let forget = run.injected_faults(InjectedFault::ForgetHanding);
    run.explore(run.size(2, 3), move || {
        let (lock, kernel) = (Lock::default(), Kernel::new());
        let kernel = Forgetful { kernel, forget };
        let enter = || {
            lock.acquire(&kernel);
            lock.hand_over(&kernel);
        };
        three(
            || {
                enter();
                enter();
            },
            enter,
            enter,
        );
    });
}

/// Wraps the kernel. If `forget` is set, a thread sleeps by the kind of the state alone.
struct Forgetful {
    kernel: Kernel,
    forget: bool,
}

impl Park for Forgetful {
    fn park(&self, word: &Word32, expected: u32) {
        // These bits hold the kind of the state.
        let seen = |state: u32| if self.forget { state % 8 } else { state };
        self.kernel.sleep_while(|| seen(word.load_relaxed()) == seen(expected));
    }

    fn unpark(&self, word: &Word32) {
        self.kernel.unpark(word);
    }

    fn unpark_all(&self, word: &Word32) {
        self.kernel.unpark_all(word);
    }
}

type Waiters = WaiterList<Vec<Option<WaiterSlot<usize>>>>;

/// An endpoint that several threads share. A message is represented by its number.
struct Shared {
    lock: Lock,
    for_lock: Kernel,
    event_count: EventCount,
    for_event_count: Kernel,
    word: SleepWord,
    for_word: Kernel,
    /// The messages that have arrived.
    mail: [Word64; 2],
    waiters: UnsafeCell<Waiters>,
    injected_fault: Option<InjectedFault>,
}

impl Shared {
    fn new(injected_fault: Option<InjectedFault>) -> Self {
        Self {
            lock: Lock::default(),
            for_lock: Kernel::new(),
            event_count: EventCount::default(),
            for_event_count: Kernel::new(),
            word: SleepWord::awake(),
            for_word: Kernel::new(),
            mail: [Word64::new(0), Word64::new(0)],
            waiters: UnsafeCell::new(WaiterList::new(vec![None, None])),
            injected_fault,
        }
    }

    fn injected_faults(&self, injected_fault: InjectedFault) -> bool {
        self.injected_fault == Some(injected_fault)
    }

    /// Runs `work` on the list of waiters. The caller holds the lock.
    fn waiters<T>(&self, work: impl FnOnce(&mut Waiters) -> T) -> T {
        // SAFETY: loom fails the model if another thread is at it.
        self.waiters.with_mut(|waiters| work(unsafe { &mut *waiters }))
    }

    /// Polls for messages and reports them to the waiting threads. Returns whether there were any. The caller
    /// holds the lock.
    fn progress(&self) -> bool {
        let (bits, driver) =
            self.waiters(|waiters| waiters.serve(|message| self.mail[*message].load_relaxed() == 1));
        self.ring(bits);
        if driver && !self.injected_faults(InjectedFault::ForgetDriver) {
            self.word.notify();
            self.for_word.wake(true);
        }
        bits != Bits::NONE
    }

    fn ring(&self, bits: Bits) {
        if bits != Bits::NONE {
            self.event_count.ring();
            self.for_event_count.wake(true);
        }
    }

    /// Sleeps as the driver, which has found nothing. The caller holds the lock.
    fn sleep(&self) {
        let early = self.injected_faults(InjectedFault::CheckBeforeAnnounce);
        let found = early && self.progress();
        let since = self.word.announce(Sleep::Futex);
        if !(found || !early && self.progress()) {
            self.lock.hand_over(&self.for_lock);
            self.for_word.sleep_while(|| !self.word.moved(since));
            self.lock.acquire(&self.for_lock);
        }
        self.word.unpark(Payer::Sleeper);
    }

    /// Sends these messages as a peer.
    fn send(&self, messages: &[usize]) {
        for message in messages {
            self.mail[*message].store_relaxed(1);
        }
        // Wakes once for all messages. After a claim, loom lets the waker read its own claim back (see
        // `sleep/twice`), so that the waker would miss a sleep that began since.
        if matches!(self.word.must_wake(FenceMode::Symmetric, WakeReason::Message), Waking::Asleep(_)) {
            self.for_word.wake(true);
        }
    }

    /// Sends a message to the own process from another thread that does not wait.
    fn serve(&self, message: usize) {
        self.lock.acquire(&self.for_lock);
        self.mail[message].store_relaxed(1);
        self.progress();
        self.lock.release(&self.for_lock);
    }

    /// Waits for a message.
    fn wait(&self, message: usize) {
        self.lock.acquire(&self.for_lock);
        let slot = self.waiters(|waiters| waiters.join(message)).expect("there is a seat for each");
        loop {
            if self.waiters(|waiters| waiters.is_served(slot)) {
                break;
            }
            if self.waiters(|waiters| waiters.drives(slot)) {
                if !self.progress() {
                    self.sleep();
                }
                continue;
            }
            let since = self.event_count.listen();
            self.lock.release(&self.for_lock);
            let since = if self.injected_faults(InjectedFault::ListenUnlocked) {
                self.event_count.listen()
            } else {
                since
            };
            self.for_event_count.sleep_while(|| self.event_count.listen() == since);
            self.lock.acquire(&self.for_lock);
        }
        let (_, next) = self.waiters(|waiters| waiters.leave(slot));
        if !self.injected_faults(InjectedFault::LeaveNoDriver) {
            self.ring(next);
        }
        self.lock.release(&self.for_lock);
    }
}

fn driver(run: &Run) {
    let injected_fault = run.injected_fault;
    run.explore(run.size(2, 3), move || {
        let shared = Shared::new(injected_fault);
        three(|| shared.wait(0), || shared.wait(1), || shared.send(&[0, 1]));
        assert_eq!(shared.waiters(|waiters| waiters.count()), 0);
    });
}

fn notify(run: &Run) {
    let injected_fault = run.injected_fault;
    run.explore(run.size(3, 4), move || {
        let shared = Shared::new(injected_fault);
        both(|| shared.wait(0), || shared.serve(0));
    });
}

fn heir(run: &Run) {
    let injected_fault = run.injected_fault;
    run.explore(run.size(1, 2), move || {
        let shared = Shared::new(injected_fault);
        let other = || {
            shared.serve(0);
            shared.send(&[1]);
        };
        three(|| shared.wait(0), || shared.wait(1), other);
    });
}
