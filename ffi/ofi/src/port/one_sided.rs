//! One-sided operations, and the memory that peers may use.

use nemesia::{Access, Addressing, CompleteAt, Error, ExposeOptions, Region, RemoteKey, Segment};

use super::operations::{Notice, Operation};
use super::{Around, INJECT, Port, Runs, is_reported};
use crate::bindings as fi;
use crate::info;
use crate::note;
use crate::object::Errno;

/// With one of these flags a write is complete as soon as its bytes have left.
pub(super) const EARLY: u64 = INJECT | fi::FI_INJECT_COMPLETE as u64;

/// A read or a write of a peer's memory, as the application describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accessing {
    pub(crate) is_read: bool,
    /// The owner of the memory.
    pub(crate) of: u64,
    pub(crate) offset: u64,
    pub(crate) key: u64,
    /// What the target of a write reports.
    pub(crate) data: Option<u64>,
    pub(crate) flags: u64,
    pub(crate) context: usize,
    /// Nothing is reported but an error.
    pub(crate) is_silent: bool,
}

/// The memory of a region, and how peers name its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExposedMemory {
    pub(crate) base: usize,
    pub(crate) len: usize,
    pub(crate) addressing: Addressing,
}

impl ExposedMemory {
    /// Returns the memory that an application names; `None` if there is no such memory.
    pub(crate) fn of(base: usize, len: usize) -> Option<Self> {
        let most = isize::MAX as usize;
        match base {
            // The whole memory of the process. The null pointer leads to none of it, and no process has the upper half.
            0 if len > most => Some(Self { base: 1, len: most - 1, addressing: Addressing::Address }),
            0 if len > 0 => None,
            _ => (len <= most).then_some(Self { base, len, addressing: Addressing::Offset }),
        }
    }
}

impl Port {
    /// Exposes memory to peers.
    ///
    /// # Safety
    /// The memory is valid until [`Port::hide`], or until the endpoint is closed.
    pub(crate) unsafe fn expose(
        &mut self,
        &ExposedMemory { base, len, addressing }: &ExposedMemory,
        access: Access,
        key: u64,
    ) -> Result<Region, Errno> {
        let (base, options) = (base as *mut u8, ExposeOptions { key: Some(key), addressing });
        // SAFETY: the caller's promise.
        match unsafe { self.endpoint.expose_as(base, len, access, options) } {
            Err(Error::KeyInUse { .. }) => Err(Errno::NO_KEY),
            exposed => Ok(exposed?),
        }
    }

    /// Withdraws memory from peers.
    pub(crate) fn hide(&mut self, region: Region) {
        // It is exposed, or the endpoint has forgotten it.
        let _ = self.endpoint.unexpose(region);
    }

    /// Starts a read or a write: one operation for each run of this process's memory.
    ///
    /// # Safety
    /// The memory of the runs is valid until the completion was read, or during the call if the flags have FI_INJECT;
    /// that of a read belongs to it. The list is valid during the call.
    pub(super) unsafe fn access_runs(
        &mut self,
        runs: Runs,
        it: &Accessing,
        around: &mut Around<'_>,
    ) -> Result<(), Errno> {
        if !self.is_enabled {
            return Err(Errno::BAD_STATE);
        }
        // SAFETY: the caller's promise.
        let (run, list) = unsafe { runs.copy() }?;
        let mut list = run.map_or(list, |run| [run].into());
        let (rank, _) = self.rank_of(it.of, around)?;
        let is_wanted = !it.is_silent && is_reported(self.send_queue, it.flags);
        let way = if it.is_read { fi::FI_READ } else { fi::FI_WRITE };
        let flags = u64::from(fi::FI_RMA) | u64::from(way);
        let mut operation = Operation { context: it.context, flags, is_wanted, ..Operation::default() };
        if !it.is_read && it.flags & INJECT != 0 {
            // SAFETY: the caller's promise.
            let mut copy = unsafe { copied(&list) }?;
            list = [Segment { base: copy.as_mut_ptr(), len: copy.len() }].into();
            self.take_room(rank, copy.len(), &mut operation).inspect_err(|_| self.advance(around))?;
            operation.keep_copy(copy);
        }
        if list.is_empty() {
            list = [Segment { base: std::ptr::null_mut(), len: 0 }].into();
        }
        operation.parts = list.len() as u32;
        if let Some(data) = it.data {
            let len = list.iter().map(|run| run.len as u64).sum();
            operation.keep_notice(Notice { rank, peer: self.endpoint.peer_of(rank), data, len });
        }
        let (number, key) = (self.operations.insert(operation), RemoteKey::new(rank, it.key));
        // Only the target knows whether it refuses: an error must reach the completion. Data must not overtake bytes.
        let complete =
            if it.flags & EARLY != 0 && it.data.is_none() { CompleteAt::Origin } else { CompleteAt::Target };
        let (mut offset, parts) = (it.offset, list.len() as u32);
        for (begun, run) in (0..).zip(&list) {
            let endpoint = self.endpoint.with_completion(number);
            // SAFETY: the caller's promise; a copy lives in the operation.
            let started = unsafe {
                if it.is_read {
                    endpoint.iget(&key, offset, run.base, run.len)
                } else {
                    endpoint.iput(&key, offset, run.base, run.len, false, complete)
                }
            };
            if let Err(error) = started {
                return self.give_up(number, parts - begun, error.into());
            }
            offset = offset.wrapping_add(run.len as u64);
        }
        Ok(())
    }

    /// Ends an operation of which the last parts could not be started. If others are under way, it fails when they end.
    pub(super) fn give_up(&mut self, number: u64, missing: u32, error: Errno) -> Result<(), Errno> {
        let Some(operation) = self.operations.get(number) else { return Err(error) };
        if operation.parts == missing {
            if let Some(operation) = self.operations.remove(number) {
                self.give_room_back(&operation);
            }
            return Err(error);
        }
        operation.parts -= missing;
        operation.error = Some(error.into());
        // The completion reports the error, with the text of its number.
        note::take();
        Ok(())
    }
}

/// Returns a copy of the bytes of these runs.
///
/// # Safety
/// They are readable.
unsafe fn copied(list: &[Segment]) -> Result<Box<[u8]>, Errno> {
    let mut bytes = Vec::new();
    for run in list.iter().filter(|run| run.len > 0) {
        if bytes.len() + run.len > info::INJECT_BYTES {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(run.base, run.len) });
    }
    Ok(bytes.into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_from_null_to_the_end_is_the_whole_memory_by_its_addresses() {
        for len in [usize::MAX, usize::MAX - 1, isize::MAX as usize + 1] {
            let all = ExposedMemory::of(0, len).unwrap();
            assert_eq!((all.base, all.addressing), (1, Addressing::Address));
            assert!(all.base + all.len == isize::MAX as usize);
        }
        assert_eq!(ExposedMemory::of(0, 8), None);
        assert_eq!(ExposedMemory::of(4096, usize::MAX), None);
        let one = ExposedMemory { base: 4096, len: 8, addressing: Addressing::Offset };
        assert_eq!(ExposedMemory::of(4096, 8), Some(one));
        assert_eq!(ExposedMemory::of(0, 0).map(|none| none.len), Some(0));
    }
}
