//! The registration of the buffers of messages.
#![forbid(unsafe_code)]

use crate::payload::LentMemory;
use crate::port::memory::{MemoryPort, PortRegion, RegionAccess, RegisterError};
use crate::regcache::{Counts, Held};

/// A use of registered memory.
#[derive(Debug)]
pub struct RegisteredRange {
    /// The region that holds the memory.
    pub region: PortRegion,
    /// The position of the first byte in the region.
    pub offset: u64,
    /// The use of a cached registration; `None` if the region was registered for this use only.
    pub held: Option<Held>,
}

/// How a channel gets the buffers of messages registered that peers cannot write. Buffers that a peer can write are
/// registered by the channel itself, byte by byte and for one use: a cached registration would outlive the exposure.
///
/// Peers that have had the key of a cached registration can read its pages as long as it lasts.
pub trait Registrations {
    /// Registers memory, or finds a registration with at least these rights.
    ///
    /// # Errors
    /// The port refuses. The message is then streamed.
    fn acquire<M: MemoryPort>(
        &mut self,
        port: &mut M,
        memory: LentMemory,
        access: RegionAccess,
    ) -> Result<RegisteredRange, RegisterError>;

    /// Ends a use.
    ///
    /// # Errors
    /// The port still uses the region, which was registered for this use only: try again later.
    fn release<M: MemoryPort>(
        &mut self,
        port: &mut M,
        registered: RegisteredRange,
    ) -> Result<(), RegisteredRange>;

    /// Returns whether registrations outlive their use.
    fn keeps(&self) -> bool;

    /// Returns the counts so far.
    fn counts(&self) -> Counts;
}

/// Registrations that end with their use. They suit fabrics on which a registration costs nothing
/// ([`Facts::registration_pins`](crate::port::memory::Facts::registration_pins)).
#[derive(Clone, Copy, Debug, Default)]
pub struct ExactRegistrations {
    counts: Counts,
}

impl ExactRegistrations {
    /// Returns registrations of which none was made.
    pub const fn new() -> Self {
        Self { counts: Counts { hits: 0, misses: 0, evicted: 0, merged: 0, invalidated: 0 } }
    }
}

impl Registrations for ExactRegistrations {
    fn acquire<M: MemoryPort>(
        &mut self,
        port: &mut M,
        memory: LentMemory,
        access: RegionAccess,
    ) -> Result<RegisteredRange, RegisterError> {
        let region = register_exactly(port, memory, access)?;
        self.counts.misses += 1;
        Ok(region)
    }

    fn release<M: MemoryPort>(
        &mut self,
        port: &mut M,
        registered: RegisteredRange,
    ) -> Result<(), RegisteredRange> {
        deregister_exactly(port, registered)
    }

    fn keeps(&self) -> bool {
        false
    }

    fn counts(&self) -> Counts {
        self.counts
    }
}

/// Registers memory for one use.
///
/// # Errors
/// The port refuses.
pub fn register_exactly<M: MemoryPort>(
    port: &mut M,
    memory: LentMemory,
    access: RegionAccess,
) -> Result<RegisteredRange, RegisterError> {
    let region = port.register(memory, access)?;
    Ok(RegisteredRange { region, offset: 0, held: None })
}

/// Ends a use of memory that [`register_exactly`] has registered.
///
/// # Errors
/// The port still uses the region.
pub fn deregister_exactly<M: MemoryPort>(
    port: &mut M,
    registered: RegisteredRange,
) -> Result<(), RegisteredRange> {
    match port.deregister(registered.region) {
        Err(RegisterError::Busy) => Err(registered),
        // The region does not exist any more, or the system has refused and the region stays until the port is
        // dropped: nothing can be done about either.
        Ok(()) | Err(_) => Ok(()),
    }
}
