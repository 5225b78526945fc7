//! Messages whose registrations are kept.
#![allow(unsafe_code, reason = "the memory of messages is lent")]

use core::ptr;
use std::vec;
use std::vec::Vec;

use super::script::{Script, TestChannel, channel, enter, hello};
use crate::payload::{LentMemory, SendBuf, SendRange};
use crate::port::channel::{ExactRegistrations, RegisteredRange, Registrations, RendezvousChoice};
use crate::port::memory::{MemoryPort, PortRegion, RegionAccess, RegisterError};
use crate::port::{Accessed, CompletedAccess, PacketPort as _, Polled, RemoteAccess as _};
use crate::regcache::{Bucket, Cache, Counts, Entry, Limits, Range, Registrar, buckets};
use crate::wire::region::RegionBytes;
use crate::wire::rendezvous::Descriptor;

const PAGE: usize = 4096;

/// Registrations that are kept, or that end with their use.
#[derive(Debug)]
pub(super) enum TestRegistrations {
    Exact(ExactRegistrations),
    Kept(Cache<PortRegion, Vec<Entry<PortRegion>>, Vec<Bucket>>),
}

impl TestRegistrations {
    pub(super) const fn exact() -> Self {
        Self::Exact(ExactRegistrations::new())
    }

    fn kept() -> Self {
        let limits = Limits { bytes: 1 << 20, keep: true, page_shift: 12 };
        let entries = (0..4).map(|_| Entry::default()).collect();
        Self::Kept(Cache::new(limits, entries, vec![Bucket::default(); buckets(4)]).unwrap())
    }
}

/// A port as the registrar of the cache.
struct PageRegistrar<'a, M>(&'a mut M);

impl<M: MemoryPort> Registrar for PageRegistrar<'_, M> {
    type Handle = PortRegion;
    type Error = RegisterError;

    fn register(&mut self, range: Range, _: u32) -> Result<PortRegion, RegisterError> {
        let base = ptr::with_exposed_provenance(range.start as usize);
        // SAFETY: the messages of the tests are whole pages, which are never freed; the port never uses them.
        let memory = unsafe { LentMemory::from_readable(base, range.len() as usize) };
        self.0.register(memory, RegionAccess::NONE)
    }

    fn deregister(&mut self, _: Range, region: PortRegion) {
        assert_eq!(self.0.deregister(region), Ok(()));
    }
}

impl Registrations for TestRegistrations {
    fn acquire<M: MemoryPort>(
        &mut self,
        port: &mut M,
        memory: LentMemory,
        access: RegionAccess,
    ) -> Result<RegisteredRange, RegisterError> {
        match self {
            Self::Exact(exact) => exact.acquire(port, memory, access),
            Self::Kept(cache) => {
                let address = memory.address();
                let held = cache.acquire(&mut PageRegistrar(port), address, memory.len() as u64, 0);
                let held = held.map_err(|_| RegisterError::Unknown)?;
                let (region, range) = cache.handle(&held).zip(cache.range(&held)).unwrap();
                Ok(RegisteredRange { region, offset: address - range.start, held: Some(held) })
            }
        }
    }

    fn release<M: MemoryPort>(
        &mut self,
        port: &mut M,
        registered: RegisteredRange,
    ) -> Result<(), RegisteredRange> {
        match (self, registered.held) {
            (Self::Kept(cache), Some(held)) => {
                cache.release(&mut PageRegistrar(port), held);
                Ok(())
            }
            (_, held) => ExactRegistrations::new().release(port, RegisteredRange { held, ..registered }),
        }
    }

    fn keeps(&self) -> bool {
        matches!(self, Self::Kept(_))
    }

    fn counts(&self) -> Counts {
        match self {
            Self::Exact(exact) => exact.counts(),
            Self::Kept(cache) => cache.counts(),
        }
    }
}

/// Returns all bytes of a message of one page, which may be used several times.
fn message() -> SendBuf {
    let pages = vec![7_u8; 2 * PAGE].leak();
    let start = pages.as_ptr().align_offset(PAGE);
    pages.as_ptr().expose_provenance();
    // SAFETY: the bytes are never freed, and no reference to them is left.
    unsafe { SendBuf::from_raw(pages[start..].as_ptr(), PAGE) }
}

fn range(message: &SendBuf) -> SendRange {
    message.range_of(0, PAGE).unwrap()
}

/// Returns a channel with a connection to rank 0.
fn connected(rendezvous: RendezvousChoice, registrations: TestRegistrations) -> TestChannel {
    let mut channel = channel(2, 1, 64);
    channel.config.rendezvous = rendezvous;
    channel.registrations = registrations;
    enter(&mut channel, &hello(0, 0));
    channel
}

/// Returns the number of regions that were registered beside that of the buffers, and of those that still are.
fn regions(port: &Script) -> (usize, usize) {
    (port.regions.len() - 1, port.regions.iter().flatten().count() - 1)
}

#[test]
fn a_put_that_was_prepared_registers_nothing_and_its_registration_is_kept() {
    for choice in [RendezvousChoice::Write, RendezvousChoice::WriteNotify] {
        let mut channel = connected(choice, TestRegistrations::kept());
        let message = message();
        let exposure = channel.prepare_put(0, range(&message)).unwrap();
        assert_eq!(regions(channel.port()), (1, 1), "the message is registered before the peer answers");
        let region = RegionBytes { address: 1 << 40, len: PAGE as u64, key: 1, notice: None };
        assert_eq!(channel.put(0, &Descriptor::of_region(&region), 0, range(&message), 5), Accessed::Later);
        assert_eq!((regions(channel.port()), channel.registrations().counts().hits), ((1, 1), 1));
        assert!(matches!(channel.poll(), Polled::Idle));
        assert_eq!(channel.poll_access(), Some(CompletedAccess { operation: 5, result: Ok(()) }));
        channel.revoke(0, exposure);
        assert_eq!(regions(channel.port()), (1, 1), "the registration is kept for the next message");
        // Nothing uses it any more, so it can be dropped.
        let super::super::Channel { registrations: TestRegistrations::Kept(cache), port, .. } = &mut channel
        else {
            panic!("no cache")
        };
        assert_eq!((cache.flush(&mut PageRegistrar(port)), regions(channel.port())), (1, (1, 0)));
    }
}

#[test]
fn nothing_is_prepared_where_the_peer_reads_or_no_put_follows_or_no_registration_is_kept() {
    use RendezvousChoice::{Auto, Read, Stream, Write};
    for (choice, registrations) in [
        (Auto, TestRegistrations::kept()),
        (Read, TestRegistrations::kept()),
        (Stream, TestRegistrations::kept()),
        (Write, TestRegistrations::exact()),
    ] {
        let mut channel = connected(choice, registrations);
        assert_eq!(channel.prepare_put(0, range(&message())), None, "{choice:?}");
        assert_eq!(regions(channel.port()), (0, 0), "{choice:?}");
    }
}

#[test]
fn the_end_of_a_peer_ends_what_was_prepared_for_it() {
    let mut channel = connected(RendezvousChoice::Write, TestRegistrations::kept());
    let exposure = channel.prepare_put(0, range(&message())).unwrap();
    channel.close(0);
    let super::super::Channel { registrations: TestRegistrations::Kept(cache), port, .. } = &mut channel
    else {
        panic!("no cache")
    };
    assert_eq!(cache.flush(&mut PageRegistrar(port)), 1, "the registration is not in use");
    // The number names nothing any more.
    channel.revoke(0, exposure);
    assert_eq!(regions(channel.port()), (1, 0));
}

#[test]
fn a_connection_has_a_bounded_number_of_accesses_under_way() {
    let mut channel = connected(RendezvousChoice::Write, TestRegistrations::kept());
    let message = message();
    let region = RegionBytes { address: 1 << 40, len: PAGE as u64, key: 1, notice: None };
    let mut operation = 0;
    let mut begin = |channel: &mut TestChannel| {
        operation += 1;
        channel.put(0, &Descriptor::of_region(&region), 0, range(&message), operation) == Accessed::Later
    };
    let begun = (0..100).take_while(|_| begin(&mut channel)).count();
    assert_eq!(begun, 16);
    // Each one that has ended makes room for one more.
    for _ in 0..3 {
        assert!(matches!(channel.poll(), Polled::Idle));
        assert!(channel.poll_access().is_some() && begin(&mut channel));
    }
    while matches!(channel.poll(), Polled::Idle) && channel.poll_access().is_some() {}
    assert!(begin(&mut channel));
}

#[test]
fn memory_is_accessed_directly_only_over_one_connection() {
    assert!(channel(2, 1, 64).direct_access(0).is_some());
    assert!(channel(2, 2, 64).direct_access(0).is_none());
}
