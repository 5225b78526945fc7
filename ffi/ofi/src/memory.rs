//! Memory of the application that peers may use.

use nemesia::{Access, Region};

use crate::object::Errno;
use crate::port::{ExposedMemory, Port};
use crate::table::Table;

/// A region of a domain.
pub(crate) struct DomainRegion {
    pub(crate) memory: ExposedMemory,
    pub(crate) access: Access,
    pub(crate) key: u64,
    /// The endpoints that expose it.
    pub(crate) exposed: Vec<(usize, Region)>,
}

impl DomainRegion {
    /// Exposes the region on an endpoint.
    ///
    /// # Safety
    /// The memory of the region is valid until the region is closed.
    pub(crate) unsafe fn expose(&mut self, number: usize, port: &mut Port) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        let region = unsafe { port.expose(&self.memory, self.access, self.key) }?;
        self.exposed.push((number, region));
        Ok(())
    }

    /// Withdraws the region from all endpoints.
    pub(crate) fn hide(&self, ports: &mut Table<Port>) {
        for (number, region) in &self.exposed {
            if let Some(port) = ports.get(*number) {
                port.hide(*region);
            }
        }
    }

    /// Forgets an endpoint that was closed.
    pub(crate) fn forget(&mut self, number: usize) {
        self.exposed.retain(|(port, _)| *port != number);
    }
}
