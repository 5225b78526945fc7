//! The port of pipes, with the registrations of the caller's buffers.

use nemesia_core::port::memory::{MemoryKey, MemoryPort, PortRegion, RegisterError, Slice};
use nemesia_core::rdma_channel::PipeHost;

use super::memory::{ADMIT, PortRegistrar, READ, WRITE};
use crate::regcache::{Counts, Held, Range, RegistrationCache, Size, Telling};

/// How the caller's buffers are registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Registrations {
    /// Each use registers exactly its bytes: registering costs little.
    Exact,
    /// The cache keeps registrations of whole pages, if it learns when addresses get other pages.
    Cached,
    /// The cache shares registrations while they are in use and keeps none.
    Dropped,
}

/// The port of a fabric, and what it was lent of the caller's memory.
#[derive(Debug)]
pub(super) struct ChannelHost<P: MemoryPort> {
    cache: RegistrationCache<PortRegistrar<P>>,
    how: Registrations,
    /// The cache's uses, by region.
    held: Vec<(PortRegion, Held)>,
    /// Whether the caller of the present call has promised that its buffers stay.
    pub(super) may_lend: bool,
}

impl<P: MemoryPort> ChannelHost<P> {
    pub(super) fn new(port: P, how: Registrations) -> Self {
        let telling = if how == Registrations::Cached { Telling::Kernel } else { Telling::Nobody };
        let cache = RegistrationCache::new(PortRegistrar::new(port), Size::default(), telling);
        Self { cache, how, held: Vec::new(), may_lend: false }
    }

    /// Returns what the cache has counted.
    pub(super) const fn counts(&self) -> Counts {
        self.cache.counts()
    }

    /// Describes how buffers are registered.
    pub(super) fn explain(&self) -> String {
        match (self.how, self.cache.refused()) {
            (Registrations::Exact, _) => "buffers are registered for each use".into(),
            (Registrations::Dropped, _) => {
                "registrations are not kept (NEMESIA_CHANNEL_REGISTRATIONS)".into()
            }
            (Registrations::Cached, None) => "registrations are kept until their pages change".into(),
            (Registrations::Cached, Some(why)) => format!("registrations are not kept: {why}"),
        }
    }

    /// Registers a buffer. Returns the region, and the offset of the buffer there.
    fn register(&mut self, address: u64, len: u64, rights: u32) -> Option<(PortRegion, u64)> {
        if !self.may_lend {
            return None;
        }
        // What a peer may write is registered for one use, byte by byte: a key that it keeps must open nothing later.
        if self.how == Registrations::Exact || self.cache.registrar_mut().opens_to_writes(rights) {
            let range = Range { start: address, end: address.checked_add(len)? };
            return self.cache.registrar_mut().lend(range, rights).ok().map(|region| (region, 0));
        }
        let held = self.cache.acquire(address, len, rights).ok()?;
        let (Some(region), Some(range)) = (self.cache.handle(&held), self.cache.range(&held)) else {
            self.cache.release(held);
            return None;
        };
        self.held.push((region, held));
        Some((region, address - range.start))
    }

    /// Tries again what the port has put off.
    pub(super) fn retry(&mut self) {
        self.cache.registrar_mut().retry();
    }
}

impl<P: MemoryPort> PipeHost for ChannelHost<P> {
    type Port = P;

    fn port(&mut self) -> &mut P {
        &mut self.cache.registrar_mut().port
    }

    fn expose(&mut self, address: u64, len: u64) -> Option<(PortRegion, MemoryKey)> {
        let (region, offset) = self.register(address, len, READ)?;
        match self.port().key(region) {
            // The region may be longer than the buffer, but the peer is given the buffer only.
            Some(whole) => Some((region, MemoryKey { address: whole.address + offset, len, ..whole })),
            None => {
                let _ = self.release(region);
                None
            }
        }
    }

    fn lend(&mut self, address: u64, len: u32) -> Option<Slice> {
        let (region, offset) = self.register(address, len.into(), WRITE)?;
        Some(Slice { region, offset, len })
    }

    fn admit(&mut self, address: u64, len: u64) -> Option<(PortRegion, MemoryKey)> {
        let (region, offset) = self.register(address, len, ADMIT)?;
        let whole = self.port().key(region)?;
        Some((region, MemoryKey { address: whole.address + offset, len, ..whole }))
    }

    fn source(&mut self, address: u64, len: u64) -> Option<(PortRegion, u64)> {
        self.register(address, len, 0)
    }

    fn ticks(&self) -> Option<u64> {
        Some(crate::os::clock::ticks())
    }

    fn release(&mut self, region: PortRegion) -> bool {
        let Some(at) = self.held.iter().position(|(of, _)| *of == region) else {
            return self.port().deregister(region) != Err(RegisterError::Busy);
        };
        let (_, held) = self.held.swap_remove(at);
        self.cache.release(held);
        true
    }
}
