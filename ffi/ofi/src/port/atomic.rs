//! Atomic operations on values in the memory of peers.

use nemesia::{Comparison, CompleteAt, Datatype, Reduction, RemoteKey, Segment};

use super::one_sided::EARLY;
use super::operations::Operation;
use super::{Around, INJECT, Port, is_reported};
use crate::bindings as fi;
use crate::info::{self, ATOMIC_BYTES};
use crate::object::Errno;

/// The most values that one operation compares: each is an operation of Nemesia.
pub(crate) const COMPARED: usize = 64;

/// What an atomic operation does with each value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AtomicAction {
    /// Changes it.
    Change(Reduction),
    /// Changes it, and returns its previous value.
    Fetch(Reduction),
    /// Replaces it if the comparison holds, and returns its previous value.
    Swap(Comparison),
}

/// An atomic operation, as the application describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtomicCall {
    pub(crate) action: AtomicAction,
    pub(crate) datatype: Datatype,
    /// The owner of the memory.
    pub(crate) of: u64,
    pub(crate) offset: u64,
    pub(crate) key: u64,
    pub(crate) flags: u64,
    pub(crate) context: usize,
    /// Nothing is reported but an error.
    pub(crate) is_silent: bool,
}

/// The memory of this process that an atomic operation uses: runs of whole values.
#[derive(Clone, Copy)]
pub(crate) struct AtomicRuns<'a> {
    pub(crate) operands: &'a [Segment],
    pub(crate) compared: &'a [Segment],
    pub(crate) results: &'a [Segment],
}

impl AtomicAction {
    /// Returns the most values of one operation.
    pub(crate) const fn most(self, datatype: Datatype) -> usize {
        match self {
            Self::Swap(_) => COMPARED,
            Self::Change(_) | Self::Fetch(_) => ATOMIC_BYTES / datatype.bytes(),
        }
    }

    /// Returns whether Nemesia has this operation for values of this type.
    pub(crate) const fn is_defined(self, datatype: Datatype) -> bool {
        match self {
            Self::Change(Reduction::Nothing) => false,
            Self::Change(reduction) | Self::Fetch(reduction) => datatype.allows(reduction),
            Self::Swap(comparison) => datatype.allows_comparison(comparison),
        }
    }

    const fn returns_values(self) -> bool {
        !matches!(self, Self::Change(_))
    }
}

impl Port {
    /// Starts an atomic operation.
    ///
    /// # Safety
    /// The runs are valid: those of results until the completion was read, and those of operands, too, unless the flags
    /// have FI_INJECT.
    pub(super) unsafe fn change(
        &mut self,
        runs: AtomicRuns<'_>,
        it: &AtomicCall,
        around: &mut Around<'_>,
    ) -> Result<(), Errno> {
        if !self.is_enabled {
            return Err(Errno::BAD_STATE);
        }
        runs.check(it)?;
        let (rank, _) = self.rank_of(it.of, around)?;
        let is_wanted = !it.is_silent && is_reported(self.send_queue, it.flags);
        let way = if it.action.returns_values() { fi::FI_READ } else { fi::FI_WRITE };
        let flags = u64::from(fi::FI_ATOMIC) | u64::from(way);
        let mut operation = Operation { context: it.context, flags, is_wanted, ..Operation::default() };
        // SAFETY: the caller's promise.
        let mut values = unsafe { Values::new(&runs) };
        let is_one = runs.operands.len() == 1;
        if let ([_, _, ..], _) | (_, true) = (runs.operands, it.flags & INJECT != 0) {
            operation.keep_copy(values.operands().into());
        }
        if it.flags & INJECT != 0 {
            self.take_room(rank, length(runs.operands), &mut operation)
                .inspect_err(|_| self.advance(around))?;
        }
        let base = match operation.copy() {
            Some(copy) => copy.as_ptr(),
            None if is_one => runs.operands[0].base.cast_const(),
            None => std::ptr::null(),
        };
        let parts = match it.action {
            AtomicAction::Change(_) => 1,
            AtomicAction::Fetch(_) => runs.results.len() as u32,
            AtomicAction::Swap(_) => (length(runs.results) / it.datatype.bytes()) as u32,
        };
        operation.parts = parts;
        let number = self.operations.insert(operation);
        let key = RemoteKey::new(rank, it.key);
        for begun in 0..parts {
            // SAFETY: the caller's promise; a copy lives in the operation.
            let started = unsafe { self.start_atomic(number, &key, it, (&runs, base), &mut values) };
            if let Err(error) = started {
                return self.give_up(number, parts - begun, error);
            }
        }
        Ok(())
    }

    /// Starts the next part of an atomic operation.
    ///
    /// # Safety
    /// As for [`Port::atomic`]; `base` leads to the operands.
    unsafe fn start_atomic(
        &mut self,
        number: u64,
        key: &RemoteKey,
        it: &AtomicCall,
        (runs, base): (&AtomicRuns<'_>, *const u8),
        values: &mut Values<'_>,
    ) -> Result<(), Errno> {
        let endpoint = self.endpoint.with_completion(number);
        let (datatype, done) = (it.datatype, values.done);
        let offset = it.offset.wrapping_add(done as u64);
        match it.action {
            AtomicAction::Change(reduction) => {
                let early = it.flags & EARLY != 0;
                let complete = if early { CompleteAt::Origin } else { CompleteAt::Target };
                let len = length(runs.operands);
                // SAFETY: the caller's promise.
                unsafe { endpoint.iaccumulate(key, offset, (datatype, reduction), base, len, complete) }?;
            }
            AtomicAction::Fetch(reduction) => {
                let run = runs.results[values.run];
                let operands = if base.is_null() { base } else { base.wrapping_add(done) };
                let what = (datatype, reduction);
                // SAFETY: the caller's promise: as many operands as results.
                unsafe { endpoint.ifetch_accumulate(key, offset, what, operands, run.base, run.len) }?;
                (values.run, values.done) = (values.run + 1, done + run.len);
            }
            AtomicAction::Swap(comparison) => {
                let bytes = datatype.bytes();
                // SAFETY: the caller's promise: as many operands and compared values as results.
                let (pair, old) = unsafe {
                    let pair = [runs.compared, runs.operands].map(|list| value_at(list, done, bytes));
                    (pair, place_at(runs.results, done))
                };
                // SAFETY: as above.
                unsafe { endpoint.icompare_swap(key, offset, (datatype, comparison), pair, old) }?;
                values.done = done + bytes;
            }
        }
        Ok(())
    }
}

impl AtomicRuns<'_> {
    /// Fails if the operation is not defined, or if the lists do not have as many values.
    fn check(&self, it: &AtomicCall) -> Result<(), Errno> {
        if !it.action.is_defined(it.datatype) {
            return Err(Errno::NO_SUPPORT);
        }
        let reads_nothing = matches!(it.action, AtomicAction::Fetch(Reduction::Nothing));
        let is_change = matches!(it.action, AtomicAction::Change(_));
        let len = length(if is_change { self.operands } else { self.results });
        let is_right = |list| length(list) == len;
        let is_short = len <= it.action.most(it.datatype) * it.datatype.bytes();
        let fits_injection = it.flags & INJECT == 0 || len <= info::INJECT_BYTES;
        let is_compared = !matches!(it.action, AtomicAction::Swap(_)) || is_right(self.compared);
        let has_operands = reads_nothing || is_right(self.operands);
        let is_complete = len > 0 && is_short && fits_injection && is_compared && has_operands;
        if is_complete { Ok(()) } else { Err(Errno::INVALID) }
    }
}

/// How far an atomic operation has started.
struct Values<'a> {
    runs: &'a [Segment],
    /// The bytes of values that were begun.
    done: usize,
    /// The runs of results that were begun.
    run: usize,
}

impl<'a> Values<'a> {
    /// # Safety
    /// The operands are readable as long as this lives.
    const unsafe fn new(runs: &AtomicRuns<'a>) -> Self {
        Self { runs: runs.operands, done: 0, run: 0 }
    }

    /// Returns a copy of the operands.
    fn operands(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length(self.runs));
        for run in self.runs.iter().filter(|run| run.len > 0) {
            // SAFETY: the promise of `new`.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(run.base, run.len) });
        }
        bytes
    }
}

/// Returns the bytes of these runs.
fn length(list: &[Segment]) -> usize {
    list.iter().map(|run| run.len).sum()
}

/// Returns the address of a byte of these runs; null if there is none.
fn place_at(list: &[Segment], mut at: usize) -> *mut u8 {
    for run in list {
        if at < run.len {
            return run.base.wrapping_add(at);
        }
        at -= run.len;
    }
    std::ptr::null_mut()
}

/// Returns a value of these runs, as bits.
///
/// # Safety
/// The runs are readable, and have so many bytes at this place.
unsafe fn value_at(list: &[Segment], at: usize, bytes: usize) -> u64 {
    let mut value = [0; 8];
    // SAFETY: the caller's promise; a value lies in one run and has at most 8 bytes.
    unsafe { value.as_mut_ptr().copy_from_nonoverlapping(place_at(list, at), bytes) };
    u64::from_le_bytes(value)
}
