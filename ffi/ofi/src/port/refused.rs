//! Failures of operations, as lines for the user (`note.rs`): the operation, its peer, the reason and the remedy.

use std::fmt::Arguments;

use nemesia::{Error, Status};

use super::{Accessing, Around, AtomicCall, AtomicRuns, Port, RECV, Receiving, Runs, SEND, Sending};
use crate::bindings as fi;
use crate::failure::{Failure, text_of};
use crate::note;
use crate::object::Errno;

/// Writes a line about a call that fails.
#[cold]
fn refused(operation: Arguments<'_>, errno: Errno) {
    if errno == Errno::AGAIN {
        return;
    }
    match note::take() {
        Some(reason) => note::warn(format_args!("{operation} fails: {reason}")),
        None => note::warn(format_args!("{operation} fails: {}", text_of(errno.0).to_string_lossy())),
    }
}

impl Sending {
    /// Writes a line about a send that fails in its call.
    #[cold]
    pub(super) fn fails(&self, errno: Errno) {
        refused(format_args!("a send to address {}, tag {:#x},", self.to, self.tag), errno);
    }
}

impl Receiving {
    /// Writes a line about a receive that fails in its call.
    #[cold]
    pub(super) fn fails(&self, errno: Errno) {
        match self.from {
            u64::MAX => refused(format_args!("a receive from any address, tag {:#x},", self.tag), errno),
            from => refused(format_args!("a receive from address {from}, tag {:#x},", self.tag), errno),
        }
    }
}

impl Accessing {
    /// Writes a line about a read or a write that fails in its call.
    #[cold]
    pub(super) fn fails(&self, errno: Errno) {
        let name = if self.is_read { "a read of" } else { "a write to" };
        let place = format_args!("{name} address {}, key {:#x}, at {:#x},", self.of, self.key, self.offset);
        refused(place, errno);
    }
}

impl AtomicCall {
    /// Writes a line about an atomic operation that fails in its call.
    #[cold]
    pub(super) fn fails(&self, errno: Errno) {
        let Self { of, key, offset, .. } = self;
        let place = format_args!("an atomic operation on address {of}, key {key:#x}, at {offset:#x},");
        refused(place, errno);
    }
}

impl Port {
    /// Starts a send of one run.
    ///
    /// # Safety
    /// The bytes are readable and do not change until the completion was read, or until this returns if `flags` has
    /// FI_INJECT.
    #[inline(always)]
    pub(crate) unsafe fn send(
        &mut self,
        base: *const u8,
        len: usize,
        it: &Sending,
        around: &mut Around<'_>,
    ) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.send_run(base, len, it, around) }.inspect_err(|error| it.fails(*error))
    }

    /// Starts a send of several runs. The list is copied.
    ///
    /// # Safety
    /// As for [`Port::send`]; the list is valid during the call.
    pub(crate) unsafe fn send_runs(
        &mut self,
        runs: Runs,
        it: &Sending,
        around: &mut Around<'_>,
    ) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.send_list(runs, it, around) }.inspect_err(|error| it.fails(*error))
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// The memory of the runs belongs to the receive until its completion was read. The list is valid during the call.
    pub(crate) unsafe fn receive(
        &mut self,
        runs: Runs,
        it: &Receiving,
        around: &mut Around<'_>,
    ) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.receive_list(runs, it, around) }.inspect_err(|error| it.fails(*error))
    }

    /// Starts a read or a write.
    ///
    /// # Safety
    /// The memory of the runs is valid until the completion was read, or during the call if the flags have FI_INJECT;
    /// that of a read belongs to it. The list is valid during the call.
    pub(crate) unsafe fn access(
        &mut self,
        runs: Runs,
        it: &Accessing,
        around: &mut Around<'_>,
    ) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.access_runs(runs, it, around) }.inspect_err(|error| it.fails(*error))
    }

    /// Starts an atomic operation.
    ///
    /// # Safety
    /// The runs are valid: those of results until the completion was read, and those of operands, too, unless the flags
    /// have FI_INJECT.
    pub(crate) unsafe fn atomic(
        &mut self,
        runs: AtomicRuns<'_>,
        it: &AtomicCall,
        around: &mut Around<'_>,
    ) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.change(runs, it, around) }.inspect_err(|error| it.fails(*error))
    }

    /// Returns the failure of an operation under way, if it has failed, and writes a line about it.
    #[inline]
    pub(super) fn failure_of(
        &mut self,
        number: u64,
        result: &Result<Status, Error>,
        around: &mut Around<'_>,
    ) -> Option<Failure> {
        let error = result.as_ref().err()?;
        let flags = self.operations.get(number).map_or(0, |operation| operation.flags);
        Some(self.name_failure(flags, error, around))
    }

    /// Returns the failure of an operation of this kind, and writes a line about it.
    #[cold]
    pub(super) fn name_failure(&mut self, flags: u64, error: &Error, around: &mut Around<'_>) -> Failure {
        // The application itself has cancelled it.
        if note::is_wanted() && !matches!(error, Error::Cancelled) {
            let name = name_of(flags);
            match peer_in(error).map(|rank| self.find_source(rank, around)).filter(|it| *it != u64::MAX) {
                Some(address) => note::warn(format_args!("{name}, address {address}, has failed: {error}")),
                None => note::warn(format_args!("{name} has failed: {error}")),
            }
        }
        Failure::of(error)
    }
}

/// Returns the name of an operation with these flags.
fn name_of(flags: u64) -> &'static str {
    let has = |flag: u32| flags & u64::from(flag) != 0;
    match () {
        () if has(fi::FI_ATOMIC) => "an atomic operation",
        () if has(fi::FI_RMA) && has(fi::FI_READ) => "a read",
        () if has(fi::FI_RMA) => "a write",
        () if flags & SEND != 0 => "a send",
        () if flags & RECV != 0 => "a receive",
        () => "a receive of many messages",
    }
}

/// Returns the endpoint's number of the peer that an error names.
const fn peer_in(error: &Error) -> Option<usize> {
    match error {
        Error::PeerFailed { rank, .. } | Error::Refused { rank, .. } | Error::Net { rank, .. } => Some(*rank),
        _ => None,
    }
}
