//! The registrations of messages: kept for their next use where a registration is expensive.

use std::ptr;

use nemesia_core::payload::LentMemory;
use nemesia_core::port::channel::{ExactRegistrations, RegisteredRange, Registrations, register_exactly};
use nemesia_core::port::memory::{MemoryPort, PortRegion, RegionAccess, RegisterError};
use nemesia_core::regcache::{Counts, Held, Range, Registrar};

use crate::regcache::{KeptRegistrations, Size, Telling};

/// The rights of a registration, as the cache compares them.
const LOCAL_WRITE: u32 = 1;
const REMOTE_READ: u32 = 2;

/// The registrations of the messages of one port.
#[derive(Debug)]
pub(super) enum UserRegistrations {
    /// Each registration ends with its use.
    Exact(ExactRegistrations),
    /// Registrations are kept.
    Cached(Box<CachedRegistrations>),
}

/// Registrations that are kept.
#[derive(Debug)]
pub(super) struct CachedRegistrations {
    telling: Telling,
    /// Made with the first large message: it may need a thread.
    kept: Option<KeptRegistrations<PortRegion>>,
    /// Regions that the port still used when the cache dropped them.
    left: Vec<PortRegion>,
}

impl UserRegistrations {
    /// Returns the registrations for a port. Where a registration costs nothing, none is kept.
    pub(super) fn new(port: &impl MemoryPort, telling: Telling) -> Self {
        if port.facts().registration_pins {
            Self::Cached(Box::new(CachedRegistrations { telling, kept: None, left: Vec::new() }))
        } else {
            Self::Exact(ExactRegistrations::new())
        }
    }

    /// Returns why no registration is kept, although it should be. `None` if registrations are kept, or if there was no
    /// large message yet.
    pub(super) fn refused(&self) -> Option<String> {
        let Self::Cached(cached) = self else { return None };
        cached.kept.as_ref()?.refused().map(ToString::to_string)
    }
}

impl Registrations for UserRegistrations {
    fn acquire<M: MemoryPort>(
        &mut self,
        port: &mut M,
        memory: LentMemory,
        access: RegionAccess,
    ) -> Result<RegisteredRange, RegisterError> {
        match self {
            Self::Exact(exact) => exact.acquire(port, memory, access),
            Self::Cached(cached) => cached.acquire(port, memory, access),
        }
    }

    fn release<M: MemoryPort>(
        &mut self,
        port: &mut M,
        registered: RegisteredRange,
    ) -> Result<(), RegisteredRange> {
        match (self, registered.held) {
            (Self::Cached(cached), Some(held)) => {
                cached.release(port, held);
                Ok(())
            }
            (_, held) => ExactRegistrations::new().release(port, RegisteredRange { held, ..registered }),
        }
    }

    fn keeps(&self) -> bool {
        match self {
            Self::Exact(_) => false,
            Self::Cached(cached) => cached.kept.as_ref().is_some_and(KeptRegistrations::keeps),
        }
    }

    fn counts(&self) -> Counts {
        match self {
            Self::Exact(exact) => exact.counts(),
            Self::Cached(cached) => {
                cached.kept.as_ref().map_or_else(Counts::default, KeptRegistrations::counts)
            }
        }
    }
}

impl CachedRegistrations {
    fn acquire<M: MemoryPort>(
        &mut self,
        port: &mut M,
        memory: LentMemory,
        access: RegionAccess,
    ) -> Result<RegisteredRange, RegisterError> {
        let Self { telling, kept, left } = self;
        left.retain(|region| port.deregister(*region) == Err(RegisterError::Busy));
        let kept = kept.get_or_insert_with(|| {
            // The other regions are those of packets, and of buffers that peers write.
            let entries = Size::default().entries.min((port.facts().regions / 2).max(1) as usize);
            KeptRegistrations::new(Size { entries, ..Size::default() }, *telling)
        });
        let rights = if access.local_write { LOCAL_WRITE } else { 0 }
            | if access.remote_read { REMOTE_READ } else { 0 };
        let (address, len) = (memory.address(), memory.len() as u64);
        let mut registrar = MessageRegistrar { port, left };
        // The first error may be that of a whole cache.
        let Ok(held) = kept.acquire(&mut registrar, (address, len), rights) else {
            return register_exactly(port, memory, access);
        };
        let found = kept.handle(&held).zip(kept.range(&held));
        let Some((region, range)) = found else { return Err(RegisterError::Unknown) };
        Ok(RegisteredRange { region, offset: address - range.start, held: Some(held) })
    }

    fn release<M: MemoryPort>(&mut self, port: &mut M, held: Held) {
        let Self { kept, left, .. } = self;
        if let Some(kept) = kept {
            kept.release(&mut MessageRegistrar { port, left }, held);
        }
    }
}

/// A port as the registrar of the cache.
struct MessageRegistrar<'a, M> {
    port: &'a mut M,
    left: &'a mut Vec<PortRegion>,
}

impl<M: MemoryPort> Registrar for MessageRegistrar<'_, M> {
    type Handle = PortRegion;
    type Error = RegisterError;

    fn register(&mut self, range: Range, rights: u32) -> Result<PortRegion, RegisterError> {
        let local_write = rights & LOCAL_WRITE != 0;
        let access =
            RegionAccess { local_write, remote_read: rights & REMOTE_READ != 0, ..RegionAccess::NONE };
        let base = ptr::with_exposed_provenance_mut::<u8>(range.start as usize);
        let len = range.len() as usize;
        // SAFETY: the pages hold a buffer that its owner promises until its access has ended. The rest of the pages,
        // and all of them after that, are only read or written by a device, for work requests on promised buffers and
        // for peers that read. A device that pins pages accesses the former pages even after they were unmapped.
        let memory = unsafe {
            if local_write { LentMemory::from_raw(base, len) } else { LentMemory::from_readable(base, len) }
        };
        self.port.register(memory, access)
    }

    fn deregister(&mut self, _: Range, region: PortRegion) {
        if self.port.deregister(region) == Err(RegisterError::Busy) {
            self.left.push(region);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::{Options, listen};

    /// A port whose registrations cost nothing, taken for one that pins.
    fn cached(telling: Telling) -> UserRegistrations {
        UserRegistrations::Cached(Box::new(CachedRegistrations { telling, kept: None, left: Vec::new() }))
    }

    fn lend(bytes: &mut [u8]) -> LentMemory {
        // SAFETY: the vector outlives the port's use, and nothing else uses it.
        unsafe { LentMemory::from_raw(bytes.as_mut_ptr(), bytes.len()) }
    }

    #[test]
    fn a_buffer_is_registered_once_if_releases_are_reported() {
        let mut port = listen(([127, 0, 0, 1], 0).into(), &Options::default()).unwrap();
        let mut bytes = vec![0; 100_000];
        for (telling, hits) in [(Telling::Program, 2), (Telling::Nobody, 0)] {
            let mut registrations = cached(telling);
            for part in [0..100_000, 5000..60_000, 99_000..99_001] {
                let buffer = &mut bytes[part];
                // The region begins with a page: the offset says where in it the buffer lies, wherever the heap is.
                let in_page = buffer.as_ptr().addr() as u64 % 4096;
                let registered = registrations.acquire(&mut port, lend(buffer), RegionAccess::LOCAL).unwrap();
                assert!(registered.held.is_some());
                assert_eq!(registered.offset % 4096, in_page);
                registrations.release(&mut port, registered).unwrap();
            }
            assert_eq!(registrations.counts().hits, hits, "{telling:?}");
            assert_eq!(registrations.keeps(), hits > 0);
            assert_eq!(registrations.refused(), None);
        }
    }

    #[test]
    fn ports_without_costs_keep_nothing() {
        let port = listen(([127, 0, 0, 1], 0).into(), &Options::default()).unwrap();
        assert!(matches!(UserRegistrations::new(&port, Telling::Program), UserRegistrations::Exact(_)));
    }
}
