//! Endpoints: opened, bound to their queues, enabled, named.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::address::VectorObject;
use crate::bindings::{
    self as fi, fi_info, fi_ops_cm, fi_ops_ep, fi_rx_attr, fi_tx_attr, fid, fid_domain, fid_ep, fid_mc,
    fid_pep,
};
use crate::counter::CounterObject;
use crate::info::{self, write_address};
use crate::object::{Constant, Errno, FidOps, call_int, fid_of, lend, object, reclaim};
use crate::port::{BoundQueue, Port};
use crate::queue::QueueObject;
use crate::service::{ServiceListener, ServicePlace};
use crate::state::{Domain, EndpointObject, domain_of};
use crate::{atomic, message, one_sided, tagged};

/// The operations that counters count. Of those of peers, these are the writes with data: others are counted on
/// endpoints with FI_RMA_EVENT only, which is not offered.
const COUNTED: u64 = fi::FI_SEND as u64
    | fi::FI_RECV as u64
    | fi::FI_READ as u64
    | fi::FI_WRITE as u64
    | fi::FI_REMOTE_READ as u64
    | fi::FI_REMOTE_WRITE as u64;

static FID: FidOps = FidOps::new(close, bind, control);
static OPS: Constant<fi_ops_ep> = Constant(fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: Some(cancel),
    getopt: Some(get_option),
    setopt: Some(set_option),
    tx_ctx: Some(no_sends),
    rx_ctx: Some(no_receives),
    rx_size_left: Some(size_left),
    tx_size_left: Some(size_left),
});
static NAMES: Constant<fi_ops_cm> = Constant(fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname: Some(no_set_name),
    getname: Some(get_name),
    getpeer: Some(no_peer),
    connect: Some(no_connect),
    listen: Some(no_listen),
    accept: Some(no_accept),
    reject: Some(no_reject),
    shutdown: Some(no_shutdown),
    join: Some(no_join),
});

pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    call_int(|| {
        // SAFETY: the application's domain.
        let domain = unsafe { domain_of(domain) }?;
        // SAFETY: the application's structures, null or valid.
        let info = unsafe { info.as_ref() }.ok_or(Errno::INVALID)?;
        // SAFETY: as above.
        let [sends, receives] = unsafe {
            [
                info.tx_attr.as_ref().map_or(0, |it| it.op_flags),
                info.rx_attr.as_ref().map_or(0, |it| it.op_flags),
            ]
        };
        // SAFETY: as above.
        let kind = unsafe { info.ep_attr.as_ref() }.map_or(fi::FI_EP_RDM, |it| it.type_);
        if !matches!(kind, fi::FI_EP_UNSPEC | fi::FI_EP_RDM) || info.caps & !info::CAPS != 0 {
            return Err(Errno::INVALID);
        }
        // SAFETY: as above.
        let place = unsafe { info::address_at(info.src_addr, info.src_addrlen) }?;
        let place = place.map(|it| ServicePlace::decode(&it).ok_or(Errno::INVALID)).transpose()?;
        let port = Port::open(info.caps, [sends, receives])?;
        let listener = place.map(|place| ServiceListener::open(place, port.address())).transpose()?.flatten();
        let number = domain.with(|state| {
            let number = state.ports.insert(port);
            let exposed = state.expose_all(number);
            exposed.map(|()| number).inspect_err(|_| drop(state.ports.remove(number)))
        })?;
        domain.opened();
        let endpoint = fid_ep {
            fid: fid_of(fi::FI_CLASS_EP, context, &FID),
            ops: OPS.get(),
            cm: NAMES.get(),
            msg: message::OPS.get(),
            rma: one_sided::OPS.get(),
            tagged: tagged::OPS.get(),
            atomic: atomic::OPS.get(),
            collective: std::ptr::null_mut(),
        };
        lend(EndpointObject { endpoint, domain, number, _listener: listener }, out)
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    call_int(|| {
        // SAFETY: the application's endpoint.
        let it: &EndpointObject = unsafe { object(fid) }?;
        let port = it.domain.with(|state| {
            for queue in state.queues.iter_mut() {
                queue.ports.retain(|port| *port != it.number);
            }
            for region in state.regions.iter_mut() {
                region.forget(it.number);
            }
            state.ports.remove(it.number)
        });
        it.domain.closed();
        // SAFETY: the application closes it once.
        drop(unsafe { reclaim::<EndpointObject, _>(fid) });
        // Peers that do not receive what was sent are no reason to keep the endpoint.
        port.map_or(Ok(()), Port::close)
    })
}

unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, flags: u64) -> c_int {
    call_int(|| {
        // SAFETY: the application's endpoint.
        let it: &EndpointObject = unsafe { object(fid) }?;
        // SAFETY: the application's object, null or valid.
        let class = unsafe { other.as_ref() }.ok_or(Errno::INVALID)?.fclass as u32;
        match class {
            fi::FI_CLASS_CQ => {
                // SAFETY: a queue of this provider, by its class.
                let queue: &QueueObject = unsafe { object(other) }?;
                check_domain(it, &queue.domain)?;
                bind_queue(it, queue.number, flags)
            }
            fi::FI_CLASS_AV => {
                // SAFETY: a vector of this provider, by its class.
                let vector: &VectorObject = unsafe { object(other) }?;
                check_domain(it, &vector.domain)?;
                it.with(|port, _| {
                    port.vector = Some(vector.number);
                    Ok(())
                })
            }
            fi::FI_CLASS_CNTR => {
                // SAFETY: a counter of this provider, by its class.
                let counter: &CounterObject = unsafe { object(other) }?;
                check_domain(it, &counter.domain)?;
                // A counter without flags counts nothing.
                if flags & !COUNTED != 0 {
                    return Err(Errno::BAD_FLAGS);
                }
                it.with(|port, _| {
                    port.counters.push((Arc::clone(&counter.counts), flags));
                    Ok(())
                })
            }
            // There are no events of endpoints without connections.
            fi::FI_CLASS_EQ => Ok(()),
            _ => Err(Errno::INVALID),
        }
    })
}

/// Fails if an object is not of the endpoint's domain.
fn check_domain(it: &EndpointObject, domain: &Arc<Domain>) -> Result<(), Errno> {
    if Arc::ptr_eq(&it.domain, domain) { Ok(()) } else { Err(Errno::INVALID) }
}

/// Binds a queue to an endpoint.
fn bind_queue(it: &EndpointObject, number: usize, flags: u64) -> Result<(), Errno> {
    let (sends, receives) = (u64::from(fi::FI_SEND), u64::from(fi::FI_RECV));
    if flags & !(sends | receives | fi::FI_SELECTIVE_COMPLETION) != 0 || flags & (sends | receives) == 0 {
        return Err(Errno::BAD_FLAGS);
    }
    let bound = Some(BoundQueue { queue: number, is_selective: flags & fi::FI_SELECTIVE_COMPLETION != 0 });
    it.with(|port, around| {
        let queue = around.queues.get(number).ok_or(Errno::INVALID)?;
        if queue.has_wait() {
            queue.watch(port.descriptor()?)?;
        }
        if !queue.ports.contains(&it.number) {
            queue.ports.push(it.number);
        }
        if flags & sends != 0 {
            port.send_queue = bound;
        }
        if flags & receives != 0 {
            port.receive_queue = bound;
        }
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, _: *mut c_void) -> c_int {
    call_int(|| {
        // SAFETY: the application's endpoint.
        let it: &EndpointObject = unsafe { object(fid) }?;
        if command != fi::FI_ENABLE as c_int {
            return Err(Errno::NO_SYSTEM);
        }
        it.with(|port, _| {
            if port.vector.is_none() {
                return Err(Errno::NO_ADDRESSES);
            }
            port.is_enabled = true;
            Ok(())
        })
    })
}

unsafe extern "C" fn cancel(fid: *mut fid, context: *mut c_void) -> isize {
    call_int(|| {
        // SAFETY: the application's endpoint.
        let it: &EndpointObject = unsafe { object(fid) }?;
        it.with(|port, _| {
            port.cancel(context as usize);
            Ok(())
        })
    }) as isize
}

/// The minimum of buffers for many messages is the only option.
fn check_option(level: c_int, name: c_int) -> Result<(), Errno> {
    let is_it = level == fi::FI_OPT_ENDPOINT as c_int && name == fi::FI_OPT_MIN_MULTI_RECV as c_int;
    if is_it { Ok(()) } else { Err(Errno::NO_OPTION) }
}

unsafe extern "C" fn get_option(
    fid: *mut fid,
    level: c_int,
    name: c_int,
    out: *mut c_void,
    length: *mut usize,
) -> c_int {
    call_int(|| {
        // SAFETY: the application's endpoint.
        let it: &EndpointObject = unsafe { object(fid) }?;
        check_option(level, name)?;
        // SAFETY: the application's number, null or valid.
        let length = unsafe { length.as_mut() }.ok_or(Errno::INVALID)?;
        if out.is_null() || std::mem::replace(length, size_of::<usize>()) < size_of::<usize>() {
            return Err(Errno::TOO_SMALL);
        }
        let least = it.with(|port, _| Ok(port.least_multi))?;
        // SAFETY: the application's place, which is large enough.
        unsafe { out.cast::<usize>().write_unaligned(least) };
        Ok(())
    })
}

unsafe extern "C" fn set_option(
    fid: *mut fid,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: usize,
) -> c_int {
    call_int(|| {
        // SAFETY: the application's endpoint.
        let it: &EndpointObject = unsafe { object(fid) }?;
        check_option(level, name)?;
        if value.is_null() || length < size_of::<usize>() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the application's value, of so many bytes.
        let least = unsafe { value.cast::<usize>().read_unaligned() };
        it.with(|port, _| {
            port.least_multi = least;
            Ok(())
        })
    })
}

unsafe extern "C" fn get_name(fid: *mut fid, out: *mut c_void, length: *mut usize) -> c_int {
    call_int(|| {
        // SAFETY: the application's endpoint.
        let it: &EndpointObject = unsafe { object(fid) }?;
        let address = it.with(|port, _| Ok(*port.address()))?;
        // SAFETY: the application's place.
        unsafe { write_address(address.bytes(), out, length) }
    })
}

/// There is no limit but that of the requests.
unsafe extern "C" fn size_left(_: *mut fid_ep) -> isize {
    -(fi::FI_ENOSYS as isize)
}

/// Defines functions that the provider does not have.
macro_rules! lacking {
    ($($name:ident($($argument:ty),*) -> $returned:ty;)*) => {
        $(unsafe extern "C" fn $name($(_: $argument),*) -> $returned {
            -(fi::FI_ENOSYS as $returned)
        })*
    };
}

lacking! {
    no_sends(*mut fid_ep, c_int, *mut fi_tx_attr, *mut *mut fid_ep, *mut c_void) -> c_int;
    no_receives(*mut fid_ep, c_int, *mut fi_rx_attr, *mut *mut fid_ep, *mut c_void) -> c_int;
    no_set_name(*mut fid, *mut c_void, usize) -> c_int;
    no_peer(*mut fid_ep, *mut c_void, *mut usize) -> c_int;
    no_connect(*mut fid_ep, *const c_void, *const c_void, usize) -> c_int;
    no_listen(*mut fid_pep) -> c_int;
    no_accept(*mut fid_ep, *const c_void, usize) -> c_int;
    no_reject(*mut fid_pep, *mut fid, *const c_void, usize) -> c_int;
    no_shutdown(*mut fid_ep, u64) -> c_int;
    no_join(*mut fid_ep, *const c_void, u64, *mut *mut fid_mc, *mut c_void) -> c_int;
}
