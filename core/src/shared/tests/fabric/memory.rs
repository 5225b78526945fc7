//! The memory of the ranks of a test, which their peers read and write.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::vec;
use std::vec::Vec;

use core::ptr::NonNull;

use super::super::Rng;
use crate::payload::ReceiveList;
use crate::port::{AccessError, PeerId, RemoteRun};
use crate::shared::port::Host;
use crate::shared::sleep::{Sleep, SleepWord};
use crate::wire::mappable::MappableBytes;

/// The access of ranks to each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// No rank may try.
    Never,
    /// All existing memory is readable.
    Always,
    /// Once in this many times, existing memory is unreadable.
    Unreadable(usize),
    /// Once in this many times, all further access to a peer is refused.
    Refused(usize),
}

/// The buffers from which ranks send, which peers can read, and those into which they receive, which peers can write.
#[derive(Debug)]
pub(crate) struct FabricMemory {
    pub(crate) reading: Reading,
    /// Ranks that no longer have memory.
    pub(crate) gone: Vec<PeerId>,
    /// The time, if there is a clock. Each reading advances it by some ticks.
    pub(crate) clock: Option<u64>,
    /// Bytes that were read, and bytes that were written.
    pub(crate) pulled: u64,
    pub(crate) pushed: u64,
    /// Once in how many times mapped memory cannot be accessed; `None` if no memory is mapped.
    pub(crate) mapping: Option<usize>,
    /// Bytes that were copied through mappings, in both directions.
    pub(crate) mapped: u64,
    /// Send buffers and receive buffers, by rank and first address.
    pub(super) sends: BTreeMap<(PeerId, usize), NonNull<[u8]>>,
    pub(super) rooms: BTreeMap<(PeerId, usize), NonNull<[u8]>>,
    /// The lists of send buffers, by rank and first address.
    pub(super) tables: BTreeMap<(PeerId, usize), NonNull<[u8]>>,
    /// The number of tables that were read, and of reads of several runs, with the number of their ranges.
    pub(crate) tables_read: usize,
    pub(crate) calls: usize,
    pub(crate) runs: usize,
    pub(super) rng: Rng,
}

impl FabricMemory {
    pub(super) fn new(clock: Option<u64>) -> Self {
        Self {
            reading: Reading::Never,
            gone: vec![],
            clock,
            pulled: 0,
            pushed: 0,
            mapping: None,
            mapped: 0,
            sends: BTreeMap::new(),
            rooms: BTreeMap::new(),
            tables: BTreeMap::new(),
            tables_read: 0,
            calls: 0,
            runs: 0,
            rng: Rng::new(0),
        }
    }

    fn pull(&mut self, peer: PeerId, address: u64, to: &mut [u8]) -> Result<(), AccessError> {
        assert!(!to.is_empty(), "nothing to read");
        // If the read fails, the receiver may not rely on the old content.
        to.fill(self.rng.next() as u8);
        self.allowed(peer)?;
        if let Some(table) = find(&self.tables, peer, address, to.len()) {
            // SAFETY: the loan has not ended, so the table exists and is not written.
            to.copy_from_slice(unsafe { table.as_ref() });
            self.tables_read += 1;
            return Ok(());
        }
        let Some(from) = find(&self.sends, peer, address, to.len()) else { return Err(AccessError::Range) };
        // SAFETY: the loan has not ended, so the buffer exists and is not written.
        to.copy_from_slice(unsafe { from.as_ref() });
        self.pulled += to.len() as u64;
        Ok(())
    }

    /// Reads several runs to several ranges. As the kernel, it may copy some of them before it fails.
    fn pull_runs(
        &mut self,
        peer: PeerId,
        from: impl Iterator<Item = RemoteRun>,
        to: &mut ReceiveList<'_>,
    ) -> Result<(), AccessError> {
        let runs: Vec<_> = from.collect();
        assert_eq!(runs.iter().map(|run| run.len as usize).sum::<usize>(), to.len());
        let mut bytes = vec![self.rng.next() as u8; to.len()];
        let mut rest = &mut bytes[..];
        let mut pulled = Ok(());
        for RemoteRun { address, len } in runs {
            let (here, later) = rest.split_at_mut(len as usize);
            pulled = pulled.and_then(|()| self.pull(peer, address, here));
            rest = later;
        }
        self.calls += 1;
        self.runs += to.pieces().len();
        assert_eq!(to.fill(&bytes), bytes.len());
        pulled
    }

    fn push(&mut self, peer: PeerId, address: u64, from: &[u8]) -> bool {
        assert!(!from.is_empty(), "nothing to write");
        if self.allowed(peer).is_err() {
            return false;
        }
        let Some(mut to) = find(&self.rooms, peer, address, from.len()) else { return false };
        // SAFETY: the loan has not ended, so the buffer exists; the only thread has no other reference.
        unsafe { to.as_mut() }.copy_from_slice(from);
        self.pushed += from.len() as u64;
        true
    }

    /// Returns whether an access through a mapping succeeds. A description with another key is forged.
    fn allows_mapped(&mut self, peer: PeerId, bytes: &MappableBytes) -> bool {
        let Self { mapping, rng, gone, .. } = self;
        !gone.contains(&peer)
            && bytes.key == bytes.address ^ MAP_KEY
            && mapping.is_some_and(|times| !rng.one_in(times))
    }

    fn get_mapped(&mut self, peer: PeerId, bytes: &MappableBytes, at: u64, to: &mut [u8]) -> bool {
        // If the access fails, the receiver may not rely on the old content.
        to.fill(self.rng.next() as u8);
        let address = bytes.address.wrapping_add(at);
        let Some(from) =
            find(&self.sends, peer, address, to.len()).filter(|_| self.allows_mapped(peer, bytes))
        else {
            return false;
        };
        // SAFETY: as for `pull`.
        to.copy_from_slice(unsafe { from.as_ref() });
        self.mapped += to.len() as u64;
        true
    }

    fn put_mapped(&mut self, peer: PeerId, bytes: &MappableBytes, at: u64, from: &[u8]) -> bool {
        assert!(bytes.writable, "memory that is not lent for writing is written");
        let address = bytes.address.wrapping_add(at);
        let Some(mut to) =
            find(&self.rooms, peer, address, from.len()).filter(|_| self.allows_mapped(peer, bytes))
        else {
            return false;
        };
        // SAFETY: as for `push`.
        unsafe { to.as_mut() }.copy_from_slice(from);
        self.mapped += from.len() as u64;
        true
    }

    fn allowed(&mut self, peer: PeerId) -> Result<(), AccessError> {
        match self.reading {
            _ if self.gone.contains(&peer) => Err(AccessError::Refused),
            Reading::Never => Err(AccessError::Refused),
            Reading::Refused(times) if self.rng.one_in(times) => Err(AccessError::Refused),
            Reading::Unreadable(times) if self.rng.one_in(times) => Err(AccessError::Range),
            _ => Ok(()),
        }
    }
}

/// Returns `len` bytes at an address of a rank, if one buffer contains all of them.
fn find(
    buffers: &BTreeMap<(PeerId, usize), NonNull<[u8]>>,
    rank: PeerId,
    address: u64,
    len: usize,
) -> Option<NonNull<[u8]>> {
    let (&(_, start), buffer) = buffers.range((rank, 0)..=(rank, address as usize)).next_back()?;
    let at = address as usize - start;
    (at.checked_add(len)? <= buffer.len()).then(|| {
        // SAFETY: within the buffer, as checked above.
        NonNull::slice_from_raw_parts(unsafe { buffer.cast::<u8>().add(at) }, len)
    })
}

/// With the address, the key of memory that is mapped.
const MAP_KEY: u64 = 0x5ca1_ab1e;

/// The operating system of a test: records the wake-ups that the port requests, and reads the memory of peers.
#[derive(Debug)]
pub(crate) struct WakeLog {
    pub(crate) rung: Vec<PeerId>,
    pub(super) memory: Rc<RefCell<FabricMemory>>,
    pub(super) refused: Vec<PeerId>,
}

impl WakeLog {
    /// Reads memory of a peer. A peer that has refused once is not asked again.
    fn read(
        &mut self,
        peer: PeerId,
        pull: impl FnOnce(&mut FabricMemory) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        if self.refused.contains(&peer) {
            return Err(AccessError::Refused);
        }
        let pulled = pull(&mut self.memory.borrow_mut());
        if pulled == Err(AccessError::Refused) {
            self.refused.push(peer);
        }
        pulled
    }
}

impl Host for WakeLog {
    fn wake(&mut self, peer: PeerId, _: &SleepWord, _: Sleep) {
        self.rung.push(peer);
    }

    fn ticks(&self) -> Option<u64> {
        let FabricMemory { clock, rng, .. } = &mut *self.memory.borrow_mut();
        let now = clock.as_mut()?;
        *now += rng.below(1000) as u64;
        Some(*now)
    }

    fn can_pull(&self, peer: PeerId) -> bool {
        self.memory.borrow().reading != Reading::Never && !self.refused.contains(&peer)
    }

    fn pull(&mut self, peer: PeerId, address: u64, to: &mut [u8]) -> Result<(), AccessError> {
        self.read(peer, |memory| memory.pull(peer, address, to))
    }

    fn pull_runs(
        &mut self,
        peer: PeerId,
        from: impl Iterator<Item = RemoteRun>,
        to: &mut ReceiveList<'_>,
    ) -> Result<(), AccessError> {
        self.read(peer, |memory| memory.pull_runs(peer, from, to))
    }

    /// All memory is mappable, and half of it is lent for writing.
    fn mappable(&self, address: u64, len: usize) -> Option<MappableBytes> {
        self.memory.borrow().mapping?;
        let (offset, writable) = (address % 1000, address & 64 == 0);
        let len = offset + len as u64;
        Some(MappableBytes { address, key: address ^ MAP_KEY, offset, len, share: 7, writable })
    }

    fn can_map(&self, peer: PeerId, _: &MappableBytes) -> bool {
        let memory = self.memory.borrow();
        memory.mapping.is_some() && !memory.gone.contains(&peer)
    }

    fn get_mapped(&mut self, peer: PeerId, from: &MappableBytes, at: u64, to: &mut [u8]) -> bool {
        self.memory.borrow_mut().get_mapped(peer, from, at, to)
    }

    fn put_mapped(&mut self, peer: PeerId, to: &MappableBytes, at: u64, from: &[u8]) -> bool {
        self.memory.borrow_mut().put_mapped(peer, to, at, from)
    }

    fn push(&mut self, peer: PeerId, address: u64, from: &[u8]) -> bool {
        self.memory.borrow_mut().push(peer, address, from)
    }
}
