//! Shared payload, mutants and crashes under loom. Compiled only with the private cfg `nemesia_loom`.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::cell::UnsafeCell;
use std::boxed::Box;
use std::cell::RefCell;
use std::sync::Mutex;

use super::{Edge, End};

/// The weakened end, as `1 + 2 * edge + end`; 0 if there is none. A plain atomic, because loom must not
/// explore it.
static MUTANT: AtomicUsize = AtomicUsize::new(0);

const fn code(edge: Edge, end: End) -> usize {
    1 + 2 * edge as usize + end as usize
}

/// Weakens one end of one edge, or none, for the rest of this process.
pub fn set_mutant(mutant: Option<(Edge, End)>) {
    MUTANT.store(mutant.map_or(0, |(edge, end)| code(edge, end)), Ordering::Relaxed);
}

/// Returns whether this end of this edge is weakened.
pub fn is_mutant(edge: Edge, end: End) -> bool {
    MUTANT.load(Ordering::Relaxed) == code(edge, end)
}

/// Whether non-temporal copies lack their fence. A plain atomic, as above.
static UNDRAINED: AtomicBool = AtomicBool::new(false);

/// Enables or disables the injected fault that omits the fence at the end of non-temporal copies.
pub fn leave_undrained(undrained: bool) {
    UNDRAINED.store(undrained, Ordering::Relaxed);
}

/// The payload with which a thread unwinds that [`crash_after`] has stopped.
#[derive(Debug)]
pub struct Crash;

/// The thread to stop, and the number of accesses until then.
static DOOMED: Mutex<Option<(loom::thread::ThreadId, usize)>> = Mutex::new(None);

fn doomed() -> std::sync::MutexGuard<'static, Option<(loom::thread::ThreadId, usize)>> {
    DOOMED.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs `body` on the current loom thread and stops it, as SIGKILL would, before access number `accesses` to
/// shared memory (counted from 0). Returns whether it was stopped; `false` if it ran to its end.
pub fn crash_after(accesses: usize, body: impl FnOnce()) -> bool {
    *doomed() = Some((loom::thread::current().id(), accesses));
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    *doomed() = None;
    match outcome {
        Ok(()) => false,
        Err(payload) if payload.is::<Crash>() => true,
        Err(payload) => std::panic::resume_unwind(payload),
    }
}

/// Counts one access of the current thread, and stops the thread if it has reached its limit.
pub(super) fn step() {
    let mut doomed = doomed();
    let Some((thread, left)) = doomed.as_mut() else { return };
    if *thread != loom::thread::current().id() {
        return;
    }
    if *left == 0 {
        *doomed = None;
        drop(doomed);
        // Not `panic!`, so that no hook runs and nothing is printed.
        std::panic::resume_unwind(Box::new(Crash));
    }
    *left -= 1;
}

std::thread_local! {
    /// Written before each access to a control word. Loom runs all threads of a model on one thread of the
    /// system.
    static TURN: RefCell<Option<loom::sync::atomic::AtomicUsize>> = const { RefCell::new(None) };
}

/// Makes loom consider every order of the accesses of this execution. A model calls this first.
///
/// Loom reorders two accesses only if one follows the other as the *last* access to the same word. When a
/// producer reads an entry before it writes it, as in a compare-and-swap loop, its own read hides the
/// consumer's read, and loom never lets the consumer see the written value (loom 0.7.2). A write of one
/// common word before each access makes all accesses follow each other. The write is relaxed and never read,
/// so it orders nothing else.
pub fn interleave() {
    TURN.set(Some(loom::sync::atomic::AtomicUsize::new(0)));
}

/// As [`step`], for control words, whose values depend on the order of the threads.
pub(super) fn turn() {
    step();
    TURN.with_borrow(|turn| {
        if let Some(turn) = turn {
            turn.store(0, Ordering::Relaxed);
        }
    });
}

/// Eight bytes of payload. A race on them fails the model.
#[derive(Debug)]
pub struct PayloadWord(UnsafeCell<u64>);

impl PayloadWord {
    /// Returns a word of a model.
    pub fn new(value: u64) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Reads the word.
    pub fn get(&self) -> u64 {
        step();
        // SAFETY: loom checks that no write is concurrent, and fails the model otherwise.
        self.0.with(|word| unsafe { *word })
    }

    /// Writes the word.
    pub fn set(&self, value: u64) {
        step();
        // SAFETY: loom checks that no other access is concurrent, and fails the model otherwise.
        self.0.with_mut(|word| unsafe { *word = value });
    }
}

/// Payload bytes, one loom cell each.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a>(&'a [UnsafeCell<u8>]);

// SAFETY: loom checks every access for races, and fails the model otherwise.
unsafe impl Send for Payload<'_> {}

impl<'a> Payload<'a> {
    /// Returns a view of a model's bytes.
    pub const fn from_cells(cells: &'a [UnsafeCell<u8>]) -> Self {
        Self(cells)
    }

    /// Returns the number of bytes in view.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the view is empty.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the `len` bytes from `at` on; `None` if they do not all lie in view.
    pub fn slice(&self, at: usize, len: usize) -> Option<Self> {
        self.0.get(at..at.checked_add(len)?).map(Self)
    }

    /// Copies bytes out, from `at` on.
    #[must_use]
    pub fn read(&self, at: usize, to: &mut [u8]) -> bool {
        let Some(from) = self.slice(at, to.len()) else { return false };
        step();
        for (cell, byte) in from.0.iter().zip(to) {
            // SAFETY: loom checks that no write is concurrent.
            *byte = cell.with(|byte| unsafe { *byte });
        }
        true
    }

    /// As [`Payload::read`]: the destination is private, so the type of stores does not matter.
    #[must_use]
    pub fn read_non_temporal(&self, at: usize, to: &mut [u8]) -> bool {
        self.read(at, to)
    }
}

/// Payload bytes for writing, one loom cell each.
#[derive(Clone, Copy, Debug)]
pub struct PayloadMut<'a>(Payload<'a>);

impl<'a> PayloadMut<'a> {
    /// Returns a view of a model's bytes for writing.
    pub const fn from_cells(cells: &'a [UnsafeCell<u8>]) -> Self {
        Self(Payload(cells))
    }

    /// Returns the number of bytes in view.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the view is empty.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the same bytes for reading.
    pub const fn as_read(&self) -> Payload<'a> {
        self.0
    }

    /// Returns the `len` bytes from `at` on; `None` if they do not all lie in view.
    pub fn slice(&self, at: usize, len: usize) -> Option<Self> {
        self.0.slice(at, len).map(Self)
    }

    /// Copies bytes in, from `at` on.
    #[must_use]
    pub fn write(&self, at: usize, from: &[u8]) -> bool {
        let Some(to) = self.0.slice(at, from.len()) else { return false };
        step();
        for (cell, byte) in to.0.iter().zip(from) {
            // SAFETY: loom checks that no other access is concurrent.
            cell.with_mut(|cell| unsafe { *cell = *byte });
        }
        true
    }

    /// Models have no cache lines.
    pub const fn writes_whole_lines(_: usize) -> bool {
        false
    }

    /// As [`PayloadMut::write`]: no other thread may read before the copy ends.
    #[must_use]
    pub fn prefetch_and_write(&self, at: usize, from: &[u8]) -> bool {
        self.write(at, from)
    }

    /// Writes all bytes: models have no cache lines.
    #[must_use]
    pub fn prefetch(&self, at: usize, len: usize) -> bool {
        (at..at.saturating_add(len)).all(|at| self.write(at, &[0]))
    }

    /// As [`PayloadMut::write`]. Without the final fence, the last byte has not arrived when the copy
    /// returns, and does not arrive while the model runs.
    #[must_use]
    pub fn write_non_temporal(&self, at: usize, from: &[u8]) -> bool {
        let stored =
            if UNDRAINED.load(Ordering::Relaxed) { from.len().saturating_sub(1) } else { from.len() };
        at.checked_add(from.len()).is_some_and(|end| end <= self.len()) && self.write(at, &from[..stored])
    }
}
