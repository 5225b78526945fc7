//! The operating system of a process over shared memory: a clock, and the memory of other processes.

use std::cell::RefCell;
use std::rc::Rc;

use nemesia_core::payload::ReceiveList;
use nemesia_core::port::{AccessError, PeerId, RemoteRun};
use nemesia_core::shared::port::Host;
use nemesia_core::shared::sleep::{Sleep, SleepWord};
use nemesia_core::wire::mappable::MappableBytes;

use super::SharedMedium;
use crate::fabric::Fabric;
use crate::memory::POISON;
use crate::port::copied;
use crate::tally::Event;

/// With the address, the key of memory that is mapped.
const MAP_KEY: u64 = 0x5ca1_ab1e;

/// The system of a process. It has no sleepers to wake.
#[derive(Debug)]
pub(crate) struct SharedHost<'a> {
    pub(super) rank: PeerId,
    pub(super) fabric: Rc<RefCell<Fabric>>,
    pub(super) medium: &'a SharedMedium,
}

impl SharedHost<'_> {
    /// Returns whether a copy through a mapping succeeds. It fails now and then, and if the peer is gone.
    fn copies_mapped(&self, peer: PeerId, bytes: &MappableBytes, len: usize) -> bool {
        let mut fabric = self.fabric.borrow_mut();
        if bytes.key != bytes.address ^ MAP_KEY || len == 0 {
            fabric.misuse(format!("rank {} copies {len} of {bytes:?}, which is not lent", self.rank));
        }
        let works = self.medium.mapping.is_some_and(|times| !fabric.one_in(times));
        fabric.acts(self.rank) && works && !fabric.is_dead(peer)
    }
}

impl Host for SharedHost<'_> {
    fn wake(&mut self, _: PeerId, _: &SleepWord, _: Sleep) {}

    fn ticks(&self) -> Option<u64> {
        Some(self.medium.ticks())
    }

    fn can_pull(&self, peer: PeerId) -> bool {
        self.fabric.borrow_mut().can_pull(self.rank, peer)
    }

    fn pull(&mut self, peer: PeerId, address: u64, to: &mut [u8]) -> Result<(), AccessError> {
        let mut fabric = self.fabric.borrow_mut();
        if to.is_empty() {
            fabric.misuse(format!("rank {} reads nothing from rank {peer}", self.rank));
        }
        // If the copy fails, the receiver may not rely on the old content.
        to.fill(POISON);
        if fabric.memory.has_table(peer, address) {
            return copied(fabric.pull_table(self.rank, peer, address, to));
        }
        fabric.tally.count(Event::SharedPull);
        copied(fabric.pull(self.rank, peer, address, to))
    }

    fn pull_runs(
        &mut self,
        peer: PeerId,
        from: impl Iterator<Item = RemoteRun>,
        to: &mut ReceiveList<'_>,
    ) -> Result<(), AccessError> {
        let mut bytes = vec![POISON; to.len()];
        let mut rest = &mut bytes[..];
        let mut pulled = Ok(());
        for RemoteRun { address, len } in from {
            let (here, later) = rest.split_at_mut(len as usize);
            // As the kernel, it may copy some of the runs before it fails.
            pulled = pulled.and_then(|()| self.pull(peer, address, here));
            rest = later;
        }
        if !rest.is_empty() {
            let what = format!("rank {} has room for {} bytes more than there are", self.rank, rest.len());
            self.fabric.borrow_mut().misuse(what);
        }
        to.fill(&bytes);
        pulled
    }

    /// All memory is mappable, and half of it is lent for writing.
    fn mappable(&self, address: u64, len: usize) -> Option<MappableBytes> {
        self.medium.mapping?;
        let mut fabric = self.fabric.borrow_mut();
        // They do not depend on the address, which differs when the seed is repeated.
        let (offset, writable) = (fabric.below(1000) as u64, fabric.one_in(2));
        let now = fabric.now;
        fabric.trace.note(now, || {
            format!("{} can lend {len} bytes, {offset} behind the beginning, writable: {writable}", self.rank)
        });
        Some(MappableBytes {
            address,
            key: address ^ MAP_KEY,
            offset,
            len: offset + len as u64,
            share: 7,
            writable,
        })
    }

    fn can_map(&self, peer: PeerId, _: &MappableBytes) -> bool {
        self.medium.mapping.is_some() && !self.fabric.borrow().is_dead(peer)
    }

    fn get_mapped(&mut self, peer: PeerId, from: &MappableBytes, at: u64, to: &mut [u8]) -> bool {
        to.fill(POISON);
        if !self.copies_mapped(peer, from, to.len()) {
            return false;
        }
        let mut fabric = self.fabric.borrow_mut();
        fabric.tally.count(Event::SharedMappedGet);
        if !fabric.memory.pull(peer, from.address.wrapping_add(at), to) {
            let what = format!("rank {} maps bytes of rank {peer} that it has not lent", self.rank);
            fabric.misuse(what);
        }
        true
    }

    fn put_mapped(&mut self, peer: PeerId, to: &MappableBytes, at: u64, from: &[u8]) -> bool {
        if !to.writable {
            let what =
                format!("rank {} writes memory of rank {peer} that is not lent for writing", self.rank);
            self.fabric.borrow_mut().misuse(what);
        }
        if !self.copies_mapped(peer, to, from.len()) {
            return false;
        }
        let mut fabric = self.fabric.borrow_mut();
        fabric.tally.count(Event::SharedMappedPut);
        if !fabric.memory.push(peer, to.address.wrapping_add(at), from) {
            let what = format!("rank {} maps room of rank {peer} that it has not lent", self.rank);
            fabric.misuse(what);
        }
        true
    }

    fn push(&mut self, peer: PeerId, address: u64, from: &[u8]) -> bool {
        let mut fabric = self.fabric.borrow_mut();
        fabric.tally.count(Event::SharedPush);
        fabric.push(self.rank, peer, address, from)
    }
}
