//! Completion queues.
//!
//! When a queue is read, the completions of the endpoints that are bound to it are taken, and each goes to the queue
//! that it belongs to. A queue grows as necessary.

mod read;
mod rest;

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::Arc;

use crate::bindings::{self as fi, fi_cq_attr, fi_ops_cq, fid, fid_cq, fid_domain, fid_fabric};
use crate::descriptor::above_standard;
use crate::entries::Queue;
use crate::object::{Constant, Errno, FidOps, call_int, fid_of, lend, object, reclaim};
use crate::port::LEAST_ROOM;
use crate::state::{Domain, domain_of};
use rest::Rest;

#[repr(C)]
pub(crate) struct QueueObject {
    queue: fid_cq,
    pub(crate) domain: Arc<Domain>,
    pub(crate) number: usize,
    /// The bytes of an entry in the application's format.
    entry_bytes: usize,
    rest: Rest,
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
        if attr.wait_cond != fi::FI_CQ_COND_NONE {
            return Err(Errno::NO_SYSTEM);
        }
        let wait = match attr.wait_obj {
            fi::FI_WAIT_NONE | fi::FI_WAIT_UNSPEC => None,
            fi::FI_WAIT_FD => Some(new_set()?),
            _ => return Err(Errno::NO_SYSTEM),
        };
        let (entries, ports) = (VecDeque::with_capacity(64), Vec::new());
        let most_written = attr.size.max(LEAST_ROOM);
        let queue = Queue { entries, written: 0, most_written, ports, wait, signalled: false };
        let number = domain.with(|state| state.queues.insert(queue));
        domain.opened();
        let fid = fid_of(fi::FI_CLASS_CQ, context, &FID);
        let (queue, rest) = (fid_cq { fid, ops: OPS.get() }, Rest::new());
        lend(QueueObject { queue, domain, number, entry_bytes, rest }, out)
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
    above_standard(unsafe { OwnedFd::from_raw_fd(set) }).map_err(|_| Errno::NO_MEMORY)
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    call_int(|| {
        // SAFETY: the application's queue.
        let it: &QueueObject = unsafe { object(fid) }?;
        it.domain.with(|state| {
            let is_used = state.queues.get(it.number).is_some_and(|queue| !queue.ports.is_empty());
            if is_used { Err(Errno::BUSY) } else { Ok(state.queues.remove(it.number)) }
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
                state.fill(it.number, None)?;
                let queue = state.queues.get(it.number).ok_or(Errno::INVALID)?;
                let is_quiet = queue.entries.is_empty()
                    && queue.ports.iter().all(|port| state.ports.get(*port).is_none_or(|port| port.arm()));
                if is_quiet { Ok(()) } else { Err(Errno::AGAIN) }
            })?;
        }
        Ok(())
    })
}
