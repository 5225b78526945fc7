//! Completion queues.
//!
//! The completions of an endpoint of Nemesia are taken when one of the queues is read to which its endpoint of libfabric
//! is bound, and go to the queue that each belongs to. A queue grows as necessary: it holds completions that an endpoint
//! had for another reader.

mod read;

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;

use crate::bindings::{self as fi, fi_cq_attr, fi_ops_cq, fid, fid_cq, fid_domain, fid_fabric};
use crate::domain::{Domain, DomainState, domain_of};
use crate::object::{Constant, Errno, FidOps, call_int, fid_of, lend, object, reclaim};

/// An operation that has ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    /// What the application has given the operation.
    pub(crate) context: usize,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) buffer: usize,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    /// The sender.
    pub(crate) source: u64,
    /// Why it has failed, and how many bytes did not fit.
    pub(crate) error: Option<(Errno, usize)>,
}

/// The completions that wait to be read.
pub(crate) struct Queue {
    pub(crate) entries: VecDeque<Entry>,
    /// The endpoints that are bound.
    pub(crate) ports: Vec<usize>,
    /// Becomes readable when there may be something to read.
    wait: Option<OwnedFd>,
    /// The bytes of an entry in the application's format.
    entry_bytes: usize,
    /// A wait must return.
    signalled: bool,
}

impl Queue {
    /// Takes completions if there are none.
    #[inline]
    fn fill(state: &mut DomainState, number: usize) -> Result<(), Errno> {
        let DomainState { ports, queues, vectors, .. } = state;
        let queue = queues.get(number).ok_or(Errno::INVALID)?;
        if !queue.entries.is_empty() {
            return Ok(());
        }
        for at in 0..queue.ports.len() {
            let port = queues.get(number).and_then(|queue| queue.ports.get(at).copied());
            if let Some(port) = port.and_then(|port| ports.get(port)) {
                port.collect(queues, vectors);
            }
        }
        Ok(())
    }

    /// Lets the descriptor of an endpoint wake those who wait for this queue.
    pub(crate) fn watch(&self, descriptor: RawFd) -> Result<(), Errno> {
        let Some(wait) = &self.wait else { return Ok(()) };
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: both descriptors are open; the structure outlives the call.
        let added =
            unsafe { libc::epoll_ctl(wait.as_raw_fd(), libc::EPOLL_CTL_ADD, descriptor, &raw mut event) };
        if added == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EEXIST) {
            Ok(())
        } else {
            Err(Errno::OTHER)
        }
    }

    pub(crate) const fn has_wait(&self) -> bool {
        self.wait.is_some()
    }
}

#[repr(C)]
pub(crate) struct QueueObject {
    queue: fid_cq,
    domain: Arc<Domain>,
    pub(crate) number: usize,
}

static FID: FidOps = FidOps::new(close, crate::object::no_bind, control);
static OPS: Constant<fi_ops_cq> = Constant(fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: Some(read::read),
    readfrom: Some(read::read_from),
    readerr: Some(read::read_error),
    sread: Some(read::wait_and_read),
    sreadfrom: Some(read::wait_and_read_from),
    signal: Some(signal),
    strerror: Some(read::text),
});

pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    out: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    call_int(|| {
        // SAFETY: the application's domain.
        let domain = unsafe { domain_of(domain) }?;
        // SAFETY: the application's structure, null or valid.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::INVALID)?;
        let entry_bytes = match attr.format {
            fi::FI_CQ_FORMAT_UNSPEC | fi::FI_CQ_FORMAT_TAGGED => size_of::<fi::fi_cq_tagged_entry>(),
            fi::FI_CQ_FORMAT_CONTEXT => size_of::<fi::fi_cq_entry>(),
            fi::FI_CQ_FORMAT_MSG => size_of::<fi::fi_cq_msg_entry>(),
            fi::FI_CQ_FORMAT_DATA => size_of::<fi::fi_cq_data_entry>(),
            _ => return Err(Errno::INVALID),
        };
        if attr.format == fi::FI_CQ_FORMAT_UNSPEC {
            attr.format = fi::FI_CQ_FORMAT_TAGGED;
        }
        let wait = match attr.wait_obj {
            fi::FI_WAIT_NONE | fi::FI_WAIT_UNSPEC => None,
            fi::FI_WAIT_FD => Some(new_set()?),
            _ => return Err(Errno::NO_SYSTEM),
        };
        let (entries, ports) = (VecDeque::with_capacity(64), Vec::new());
        let queue = Queue { entries, ports, wait, entry_bytes, signalled: false };
        let number = domain.with(|state| state.queues.insert(queue));
        domain.opened();
        let fid = fid_of(fi::FI_CLASS_CQ, context, &FID);
        lend(QueueObject { queue: fid_cq { fid, ops: OPS.get() }, domain, number }, out)
    })
}

/// Returns a new set of descriptors.
fn new_set() -> Result<OwnedFd, Errno> {
    // SAFETY: no precondition.
    let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if set < 0 {
        return Err(Errno::NO_MEMORY);
    }
    // SAFETY: the descriptor is new, and owned here only.
    Ok(unsafe { OwnedFd::from_raw_fd(set) })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    call_int(|| {
        // SAFETY: the application's queue.
        let it: &QueueObject = unsafe { object(fid) }?;
        it.domain.with(|state| {
            let is_used = state.queues.get(it.number).is_some_and(|queue| !queue.ports.is_empty());
            if is_used { Err(Errno::BUSY) } else { Ok(drop(state.queues.remove(it.number))) }
        })?;
        it.domain.closed();
        // SAFETY: the application closes it once.
        drop(unsafe { reclaim::<QueueObject, _>(fid) });
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, out: *mut c_void) -> c_int {
    call_int(|| {
        // SAFETY: the application's queue.
        let it: &QueueObject = unsafe { object(fid) }?;
        let command = u32::try_from(command).map_err(|_| Errno::NO_SYSTEM)?;
        let descriptor = it.domain.with(|state| {
            state.queues.get(it.number).and_then(|queue| queue.wait.as_ref().map(OwnedFd::as_raw_fd))
        });
        if out.is_null() {
            return Err(Errno::INVALID);
        }
        match (command, descriptor) {
            // SAFETY: the application's place for a descriptor.
            (fi::FI_GETWAIT, Some(descriptor)) => unsafe { out.cast::<c_int>().write(descriptor) },
            (fi::FI_GETWAITOBJ, descriptor) => {
                let kind = if descriptor.is_some() { fi::FI_WAIT_FD } else { fi::FI_WAIT_NONE };
                // SAFETY: the application's place for the kind.
                unsafe { out.cast::<fi::fi_wait_obj>().write(kind) };
            }
            _ => return Err(Errno::NO_SYSTEM),
        }
        Ok(())
    })
}

unsafe extern "C" fn signal(queue: *mut fid_cq) -> c_int {
    call_int(|| {
        // SAFETY: the application's queue.
        let it: &QueueObject = unsafe { object(queue) }?;
        it.domain.with(|state| state.queues.get(it.number).map(|queue| queue.signalled = true));
        Ok(())
    })
}

/// Prepares for a sleep on the descriptors of these queues: -FI_EAGAIN if there is something to read.
pub(crate) unsafe extern "C" fn try_wait(_: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    call_int(|| {
        for at in 0..usize::try_from(count).map_err(|_| Errno::INVALID)? {
            // SAFETY: the application's array of objects.
            let fid = unsafe { fids.add(at).read() };
            // SAFETY: as above.
            let class = unsafe { fid.as_ref() }.ok_or(Errno::INVALID)?.fclass;
            if class != fi::FI_CLASS_CQ as usize {
                continue;
            }
            // SAFETY: a queue of this provider, by its class.
            let it: &QueueObject = unsafe { object(fid) }?;
            it.domain.with(|state| {
                Queue::fill(state, it.number)?;
                let queue = state.queues.get(it.number).ok_or(Errno::INVALID)?;
                let is_quiet = queue.entries.is_empty()
                    && queue.ports.iter().all(|port| state.ports.get(*port).is_none_or(|port| port.arm()));
                if is_quiet { Ok(()) } else { Err(Errno::AGAIN) }
            })?;
        }
        Ok(())
    })
}
