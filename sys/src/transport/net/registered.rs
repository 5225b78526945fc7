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
    use std::time::Duration;

    use nemesia_core::port::memory::{
        Address, Armed, Completion, CompletionSource, ConnectError, Connection, ConnectionState, Event,
        Facts, MemoryKey, Offer, PostError, Private, ReceiveQueue, RemoteRange, Slice, Work,
    };

    use super::*;
    use crate::tcp::{Options, listen};

    /// A port that records its regions, and can do nothing else.
    #[derive(Debug)]
    struct RegionPort {
        facts: Facts,
        /// The address and the length of each region, and whether it is registered now.
        regions: Vec<(u64, u64, bool)>,
    }

    impl RegionPort {
        fn new(registration_pins: bool) -> Self {
            let port = listen(([127, 0, 0, 1], 0).into(), &Options::default()).unwrap();
            Self { facts: Facts { registration_pins, ..*port.facts() }, regions: Vec::new() }
        }

        fn registered(&self) -> usize {
            self.regions.iter().filter(|(.., registered)| *registered).count()
        }
    }

    // SAFETY: it never uses memory.
    unsafe impl MemoryPort for RegionPort {
        fn facts(&self) -> &Facts {
            &self.facts
        }

        fn register(&mut self, memory: LentMemory, _: RegionAccess) -> Result<PortRegion, RegisterError> {
            self.regions.push((memory.address(), memory.len() as u64, true));
            Ok(PortRegion { index: self.regions.len() as u32 - 1, generation: 0 })
        }

        fn deregister(&mut self, region: PortRegion) -> Result<(), RegisterError> {
            let registered = &mut self.regions[region.index as usize].2;
            if std::mem::replace(registered, false) { Ok(()) } else { Err(RegisterError::Unknown) }
        }

        fn key(&self, _: PortRegion) -> Option<MemoryKey> {
            None
        }

        fn address(&self) -> Option<Address> {
            None
        }

        fn connect(&mut self, _: &Address, _: &Offer) -> Result<Connection, ConnectError> {
            Err(ConnectError::State)
        }

        fn accept(&mut self, _: Connection, _: &Offer) -> Result<(), ConnectError> {
            Err(ConnectError::State)
        }

        fn refuse(&mut self, _: Connection, _: Private) -> Result<(), ConnectError> {
            Err(ConnectError::State)
        }

        fn close(&mut self, _: Connection) {}

        fn state(&self, _: Connection) -> ConnectionState {
            ConnectionState::Gone
        }

        fn write(
            &mut self,
            _: Work,
            _: CompletionSource<'_>,
            _: RemoteRange,
            _: Option<u32>,
        ) -> Result<(), PostError> {
            Err(PostError::Unsupported)
        }

        fn read(&mut self, _: Work, _: &[Slice], _: RemoteRange) -> Result<(), PostError> {
            Err(PostError::Unsupported)
        }

        fn send(&mut self, _: Work, _: CompletionSource<'_>, _: Option<u32>) -> Result<(), PostError> {
            Err(PostError::Unsupported)
        }

        fn fetch_add(&mut self, _: Work, _: Slice, _: RemoteRange, _: u64) -> Result<(), PostError> {
            Err(PostError::Unsupported)
        }

        fn compare_swap(
            &mut self,
            _: Work,
            _: Slice,
            _: RemoteRange,
            _: u64,
            _: u64,
        ) -> Result<(), PostError> {
            Err(PostError::Unsupported)
        }

        fn receive(&mut self, _: ReceiveQueue, _: u64, _: &[Slice]) -> Result<(), PostError> {
            Err(PostError::Unsupported)
        }

        fn poll(&mut self, _: &mut [Completion]) -> usize {
            0
        }

        fn poll_event(&mut self, _: Duration) -> Option<Event> {
            None
        }

        fn arm(&mut self) -> Armed {
            Armed::Poll
        }

        fn descriptor(&self) -> Option<i32> {
            None
        }
    }

    fn lend(bytes: &mut [u8]) -> LentMemory {
        // SAFETY: the port never uses the memory.
        unsafe { LentMemory::from_raw(bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Uses three parts of one buffer, one after the other: all of it, then two that lie within it.
    fn use_parts(port: &mut RegionPort, registrations: &mut UserRegistrations) {
        let mut bytes = vec![0; 100_000];
        for part in [0..100_000, 5000..60_000, 99_000..99_001] {
            let buffer = &mut bytes[part];
            let (address, len) = (buffer.as_ptr().addr() as u64, buffer.len() as u64);
            let registered = registrations.acquire(port, lend(buffer), RegionAccess::LOCAL).unwrap();
            let (start, region_len, is_registered) = port.regions[registered.region.index as usize];
            assert!(is_registered && start + registered.offset == address);
            assert!(registered.offset + len <= region_len);
            registrations.release(port, registered).unwrap();
        }
    }

    #[test]
    fn a_buffer_is_registered_once_with_a_port_that_pins_if_releases_are_reported() {
        for (telling, made, kept) in [(Telling::Program, 1, 1), (Telling::Nobody, 3, 0)] {
            let mut port = RegionPort::new(true);
            let mut registrations = UserRegistrations::new(&port, telling);
            use_parts(&mut port, &mut registrations);
            assert_eq!((port.regions.len(), port.registered()), (made, kept), "{telling:?}");
            let counts = registrations.counts();
            assert_eq!((counts.misses, counts.hits), (made as u64, 3 - made as u64), "{telling:?}");
            assert_eq!(registrations.keeps(), kept > 0);
            assert_eq!(registrations.refused(), None);
        }
    }

    #[test]
    fn a_buffer_is_registered_for_each_use_with_a_port_that_does_not_pin() {
        let mut port = RegionPort::new(false);
        let mut registrations = UserRegistrations::new(&port, Telling::Program);
        use_parts(&mut port, &mut registrations);
        assert_eq!((port.regions.len(), port.registered()), (3, 0));
        // Nothing but the bytes of each use: peers could access the rest of the pages.
        assert_eq!([0, 1, 2].map(|at| port.regions[at].1), [100_000, 55_000, 1]);
        assert!(!registrations.keeps());
    }
}
