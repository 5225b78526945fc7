//! The common base of all models: exploring, threads that borrow, payload, messages.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use loom::cell::UnsafeCell;
use loom::thread::JoinHandle;
use nemesia_core::sync::model::{crash_after, interleave};
use nemesia_core::wire::{Envelope, Kind};

use crate::mutant::InjectedFault;

/// The branches of one execution before loom gives up. No thread of a model waits for another without a
/// limit, so only a broken model reaches this.
const BRANCHES: usize = 20_000;
/// More accesses than any body makes that is crashed.
const STEPS: usize = 1000;

/// The executions that loom has explored in this process. Not loom's atomic: it counts across executions.
static EXECUTIONS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of executions explored so far.
pub(crate) fn executions() -> u64 {
    EXECUTIONS.load(Ordering::Relaxed)
}

/// How much a model explores.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// One preemption less.
    Short,
    /// The preemptions and messages that it has.
    Usual,
    /// More preemptions and messages.
    Long,
}

/// How a model runs.
pub(crate) struct Run {
    /// How much it explores.
    pub(crate) extent: Extent,
    /// The injected fault that the model enables.
    pub(crate) injected_fault: Option<InjectedFault>,
}

impl Run {
    /// Returns whether the model makes this mistake.
    pub(crate) fn injected_faults(&self, injected_fault: InjectedFault) -> bool {
        self.injected_fault == Some(injected_fault)
    }

    /// Returns the first value, or in a long run the second.
    pub(crate) fn size<T>(&self, normal: T, long: T) -> T {
        if self.extent == Extent::Long { long } else { normal }
    }

    /// Runs `body` under every schedule with at most `preemptions` preemptions (one more in a long run, one less in
    /// a short one), and with every value that each load may return.
    pub(crate) fn explore(&self, preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.max_branches = BRANCHES;
        builder.preemption_bound = Some(match self.extent {
            Extent::Short => preemptions.saturating_sub(1),
            Extent::Usual => preemptions,
            Extent::Long => preemptions + 1,
        });
        builder.check(move || {
            EXECUTIONS.fetch_add(1, Ordering::Relaxed);
            interleave();
            body();
        });
    }

    /// Explores `body(accesses)` for each number of accesses, until the thread that it stops always runs to
    /// its end. `body` stops one thread after so many accesses and returns whether it did.
    pub(crate) fn explore_crashes(
        &self,
        preemptions: usize,
        body: impl Fn(usize) -> bool + Send + Sync + 'static,
    ) {
        let body = Arc::new(body);
        for accesses in 0..STEPS {
            let crashed = Arc::new(AtomicBool::new(false));
            let (seen, body) = (Arc::clone(&crashed), Arc::clone(&body));
            self.explore(preemptions, move || {
                if body(accesses) {
                    seen.store(true, Ordering::Relaxed);
                }
            });
            if !crashed.load(Ordering::Relaxed) {
                return;
            }
        }
        unreachable!("a body of more than {STEPS} accesses");
    }
}

/// Ends the process when dropped: a thread that borrows must not outlive an unwinding parent.
struct Abort;

impl Drop for Abort {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// A thread that may borrow from its parent.
struct Child<T> {
    handle: JoinHandle<()>,
    outcome: Rc<RefCell<Option<T>>>,
    abort: Abort,
}

impl<T> Child<T> {
    /// # Safety
    /// The child is joined, or dropped, before anything ends that `body` or its result borrows.
    unsafe fn spawn<'a>(body: impl FnOnce() -> T + 'a) -> Self
    where
        T: 'a,
    {
        let outcome = Rc::new(RefCell::new(None));
        let to = Rc::clone(&outcome);
        let body: Box<dyn FnOnce() + 'a> = Box::new(move || *to.borrow_mut() = Some(body()));
        // SAFETY: only the lifetime changes. The caller joins the thread, and so the body has ended, before
        // the borrows do; a drop without a join ends the process.
        let body: Box<dyn FnOnce() + 'static> = unsafe { std::mem::transmute(body) };
        // Loom runs all threads of a model on one thread of the system, so `Rc` is enough.
        Self { handle: loom::thread::spawn(body), outcome, abort: Abort }
    }

    fn join(self) -> T {
        let ended = self.handle.join();
        assert!(ended.is_ok(), "a thread of the model panicked");
        std::mem::forget(self.abort);
        let Some(outcome) = self.outcome.take() else { unreachable!("an ended thread left its outcome") };
        outcome
    }
}

/// Runs both closures at the same time, each on its own loom thread, until both have ended.
pub(crate) fn both<A, B>(first: impl FnOnce() -> A, second: impl FnOnce() -> B) -> (A, B) {
    // SAFETY: joined below, before the borrows of the arguments can end; unwinding aborts.
    let second = unsafe { Child::spawn(second) };
    (first(), second.join())
}

/// Runs all three closures at the same time, each on its own loom thread, until all have ended.
pub(crate) fn three<A, B, C>(
    first: impl FnOnce() -> A,
    second: impl FnOnce() -> B,
    third: impl FnOnce() -> C,
) -> (A, B, C) {
    // SAFETY: joined below, before the borrows of the arguments can end; unwinding aborts.
    let (second, third) = unsafe { (Child::spawn(second), Child::spawn(third)) };
    (first(), second.join(), third.join())
}

/// Runs `body` on this thread and stops it before access number `accesses`, as SIGKILL would. Returns whether
/// it was stopped.
pub(crate) fn crash(accesses: usize, body: impl FnOnce()) -> bool {
    crash_after(accesses, body)
}

/// Returns zeroed payload bytes, each in a cell whose races loom sees.
pub(crate) fn payload(bytes: usize) -> Vec<UnsafeCell<u8>> {
    several(bytes, || UnsafeCell::new(0))
}

/// Returns a vector of `count` new values.
pub(crate) fn several<T>(count: usize, new: impl Fn() -> T) -> Vec<T> {
    std::iter::repeat_with(new).take(count).collect()
}

/// Returns the envelope of message `number` with `len` bytes.
pub(crate) fn envelope(number: u8, len: usize) -> Envelope {
    Envelope { kind: Kind::Eager, context: number.into(), tag: u64::from(number) << 40, total: len as u64 }
}

/// Returns the bytes of message `number`.
pub(crate) fn bytes(number: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| number.wrapping_mul(16).wrapping_add(at as u8)).collect()
}

/// Asserts that the message is `number` and complete.
pub(crate) fn assert_whole(number: u8, found: &Envelope, payload: &[u8]) {
    assert_eq!(*found, envelope(number, payload.len()), "envelope of message {number}");
    assert_eq!(payload, bytes(number, payload.len()), "payload of message {number}");
}
