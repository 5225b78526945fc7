//! All objects of a domain, in one structure behind one lock.
//!
//! An application that has asked for FI_THREAD_DOMAIN calls one function of a domain at a time. For all others the lock
//! is taken in each call.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::bindings::{fid_domain, fid_ep};
use crate::entries::{Queue, Reader};
use crate::memory::DomainRegion;
use crate::object::{Errno, object};
use crate::port::{Around, Batch, Port};
use crate::service::ServiceListener;
use crate::table::Table;
use crate::vector::AddressVector;

/// All objects of a domain.
pub(crate) struct DomainState {
    pub(crate) ports: Table<Port>,
    pub(crate) queues: Table<Queue>,
    pub(crate) vectors: Table<AddressVector>,
    pub(crate) regions: Table<DomainRegion>,
    /// The completions that an endpoint has given last.
    batch: Batch,
}

impl DomainState {
    /// Returns a domain without objects.
    fn new() -> Self {
        let (ports, queues, vectors, regions) = (Table::new(), Table::new(), Table::new(), Table::new());
        Self { ports, queues, vectors, regions, batch: Batch::default() }
    }

    /// Takes completions if there are none. Those of this queue may go to its reader. Returns whether no completion
    /// waits in the queue.
    #[inline]
    pub(crate) fn fill(&mut self, number: usize, reader: Option<&mut Reader>) -> Result<bool, Errno> {
        let Self { ports, queues, vectors, batch, .. } = self;
        let queue = queues.get(number).ok_or(Errno::INVALID)?;
        if !queue.entries.is_empty() {
            return Ok(false);
        }
        let (count, mut next) = (queue.ports.len(), queue.ports.first().copied());
        let mut around = Around { queues, vectors, reader };
        for at in 1..=count {
            if let Some(port) = next.and_then(|port| ports.get(port)) {
                port.collect(batch, &mut around);
            }
            // Most queues have one endpoint: the queue is not looked up again for it.
            next = if at < count {
                around.queues.get(number).and_then(|it| it.ports.get(at).copied())
            } else {
                None
            };
        }
        Ok(around.queues.get(number).is_none_or(|queue| queue.entries.is_empty()))
    }

    /// Makes progress with all endpoints, and takes their completions into the queues.
    pub(crate) fn collect_all(&mut self) {
        let Self { ports, queues, vectors, batch, .. } = self;
        let mut around = Around { queues, vectors, reader: None };
        ports.iter_mut().for_each(|port| port.collect(batch, &mut around));
    }

    /// Exposes all regions on an endpoint that was opened.
    pub(crate) fn expose_all(&mut self, number: usize) -> Result<(), Errno> {
        let Self { ports, regions, .. } = self;
        let port = ports.get(number).ok_or(Errno::INVALID)?;
        for region in regions.iter_mut() {
            // SAFETY: the application keeps the memory of a region until it closes it.
            unsafe { region.expose(number, port) }?;
        }
        Ok(())
    }
}

/// A domain.
pub(crate) struct Domain {
    state: UnsafeCell<DomainState>,
    lock: Mutex<()>,
    /// Several threads may call functions of the domain at the same time.
    is_shared: bool,
    /// The objects of the domain that are open.
    open: AtomicUsize,
}

const fn needs_send<T: Send>() {}
const _: () = needs_send::<DomainState>();

// SAFETY: the state may move between threads, as is checked above. One thread at a time uses it: by the lock, or by the
// promise of an application that has asked for FI_THREAD_DOMAIN.
unsafe impl Sync for Domain {}
// SAFETY: as above.
unsafe impl Send for Domain {}

impl Domain {
    /// Returns a domain without objects. `is_shared`: several threads may call its functions at the same time.
    pub(crate) fn new(is_shared: bool) -> Self {
        let state = UnsafeCell::new(DomainState::new());
        Self { state, lock: Mutex::new(()), is_shared, open: AtomicUsize::new(0) }
    }

    /// Returns whether several threads may call functions of the domain at the same time.
    pub(crate) const fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Returns whether an object of the domain is open.
    pub(crate) fn is_in_use(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    /// Calls `work` with all objects. `work` calls no function of the application.
    #[inline]
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut DomainState) -> T) -> T {
        let _guard = self.is_shared.then(|| self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: see above; and `work` does not come here again.
        work(unsafe { &mut *self.state.get() })
    }

    /// Counts an object that is open.
    pub(crate) fn opened(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an object that was closed.
    pub(crate) fn closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A domain, as the application holds it.
#[repr(C)]
pub(crate) struct DomainObject {
    pub(crate) domain: fid_domain,
    pub(crate) shared: Arc<Domain>,
}

/// An endpoint.
#[repr(C)]
pub(crate) struct EndpointObject {
    pub(crate) endpoint: fid_ep,
    pub(crate) domain: Arc<Domain>,
    pub(crate) number: usize,
    /// Passes its address to those that know its host and port.
    pub(crate) _listener: Option<ServiceListener>,
}

impl EndpointObject {
    /// Calls `work` with the port of this endpoint and what is around it.
    #[inline]
    pub(crate) fn with<T>(
        &self,
        work: impl FnOnce(&mut Port, &mut Around<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.domain.with(|state| {
            let DomainState { ports, queues, vectors, .. } = state;
            let port = ports.get(self.number).ok_or(Errno::INVALID)?;
            work(port, &mut Around { queues, vectors, reader: None })
        })
    }
}

/// Returns the domain behind its object.
///
/// # Safety
/// The pointer is null, or an open domain of this provider.
pub(crate) unsafe fn domain_of(domain: *mut fid_domain) -> Result<Arc<Domain>, Errno> {
    // SAFETY: the caller's promise.
    let it: &DomainObject = unsafe { object(domain) }?;
    Ok(Arc::clone(&it.shared))
}
