//! What the provider offers: one RDM endpoint type, for messages with and without tags.
//!
//! `fi_getinfo` returns one structure, or -FI_ENODATA if the hints ask for more than is offered.

use std::ffi::{CStr, c_char, c_int, c_void};

use nemesia::ADDRESS_BYTES;

use crate::NAME;
use crate::bindings::{
    self as fi, fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_info, fi_rx_attr, fi_tx_attr,
};
use crate::object::{Errno, call_int};
use crate::service::ServicePlace;

/// Format of our addresses: one of the formats that providers define, "NM".
pub(crate) const ADDRESS_FORMAT: u32 = fi::FI_PROV_SPECIFIC | 0x4e4d;
/// All that endpoints can do, and what an application gets that asks for nothing: what is left out is hidden from it.
pub(crate) const CAPS: u64 = fi::FI_MSG as u64
    | fi::FI_TAGGED as u64
    | fi::FI_SEND as u64
    | fi::FI_RECV as u64
    | fi::FI_MULTI_RECV as u64
    | ONE_SIDED
    | fi::FI_ATOMIC as u64
    | fi::FI_SOURCE
    | fi::FI_DIRECTED_RECV
    | fi::FI_LOCAL_COMM
    | fi::FI_REMOTE_COMM;
/// One-sided operations of this process, and of its peers.
const ONE_SIDED: u64 = fi::FI_RMA as u64 | SIDES;
const SIDES: u64 =
    fi::FI_READ as u64 | fi::FI_WRITE as u64 | fi::FI_REMOTE_READ as u64 | fi::FI_REMOTE_WRITE as u64;
/// The orders that are kept: of messages, of writes and what follows them, and of atomic operations. A read may see the
/// bytes of a write that began later.
const ORDERS: u64 = fi::FI_ORDER_SAS as u64
    | fi::FI_ORDER_RAW as u64
    | fi::FI_ORDER_WAW as u64
    | fi::FI_ORDER_RMA_RAW
    | fi::FI_ORDER_RMA_WAW
    | fi::FI_ORDER_ATOMIC_RAR
    | fi::FI_ORDER_ATOMIC_RAW
    | fi::FI_ORDER_ATOMIC_WAR
    | fi::FI_ORDER_ATOMIC_WAW;
/// What only a sender or origin, and what only a receiver or target needs.
const SENDERS: u64 = fi::FI_SEND as u64 | fi::FI_READ as u64 | fi::FI_WRITE as u64;
const RECEIVERS: u64 = fi::FI_RECV as u64
    | fi::FI_REMOTE_READ as u64
    | fi::FI_REMOTE_WRITE as u64
    | fi::FI_MULTI_RECV as u64
    | fi::FI_SOURCE
    | fi::FI_DIRECTED_RECV;
/// The flags that operations may have by default.
pub(crate) const OP_FLAGS: u64 = fi::FI_COMPLETION as u64
    | fi::FI_INJECT as u64
    | fi::FI_INJECT_COMPLETE as u64
    | fi::FI_TRANSMIT_COMPLETE as u64
    | fi::FI_DELIVERY_COMPLETE as u64
    | fi::FI_MULTI_RECV as u64;
/// The most bytes that an operation may copy, so that its buffer is free on return: few, because the memory for copies
/// of what has not left must hold very many (`port/kept.rs`). MPIs send longer messages from their own memory.
pub(crate) const INJECT_BYTES: usize = 256;
/// The operations that may be under way in one direction, by default half of NEMESIA_REQUESTS.
const OPERATIONS: usize = 1 << 15;
/// The most bytes of values that one atomic operation changes.
pub(crate) const ATOMIC_BYTES: usize = 1 << 16;
/// The runs of memory of one message.
pub(crate) const MOST_RUNS: usize = 8;
/// The offered limits, in the order of the hints'.
const LIMITS: [usize; 4] = [MOST_RUNS, 1, 1, size_of::<u64>()];
/// Only providers that drive a network themselves are asked for: a flag of libfabric's own calls.
const CORE_ONLY: u64 = 1 << 59;
/// The modes of memory regions before version 1.5.
const MR_BASIC: c_int = 1;
const MR_SCALABLE: c_int = 2;
/// Bytes behind each structure that is returned: zero, for the fields of later versions.
const ROOM: usize = 128;
/// The most bytes of a message.
const MOST_BYTES: usize = isize::MAX as usize;

pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    out: *mut *mut fi_info,
) -> c_int {
    call_int(|| {
        if out.is_null() {
            return Err(Errno::INVALID);
        }
        if flags & CORE_ONLY != 0 {
            return Err(Errno::NO_DATA);
        }
        // SAFETY: the application's structure, null or valid.
        let mut wanted = unsafe { Wanted::read(hints) };
        wanted.check()?;
        if !node.is_null() || !service.is_null() {
            let is_source = flags & fi::FI_SOURCE != 0;
            // SAFETY: the application's strings, null or valid.
            if let Some(place) = unsafe { ServicePlace::named(node, service, is_source) }? {
                *(if is_source { &mut wanted.source } else { &mut wanted.destination }) =
                    Some(place.encode());
            }
        }
        // Before version 1.5 the mode was one of two; later it has a bit for each thing that is asked of applications.
        let is_old = version != 0 && version < crate::version(1, 5);
        if is_old && wanted.mr_mode == MR_BASIC {
            return Err(Errno::NO_DATA);
        }
        let info = offer(&wanted)?;
        if is_old {
            // SAFETY: `offer` has filled it.
            unsafe { (*(*info).domain_attr).mr_mode = MR_SCALABLE };
        }
        // SAFETY: checked above.
        unsafe { out.write(info) };
        Ok(())
    })
}

/// The hints, as far as they are set: without a structure, all are 0.
#[derive(Default)]
struct Wanted {
    caps: u64,
    address_format: u32,
    endpoint: u32,
    protocol: u32,
    message_bytes: usize,
    tx: [u64; 3],
    rx: [u64; 3],
    inject: usize,
    sizes: [usize; 2],
    threading: u32,
    progress: [u32; 2],
    av: u32,
    cq_data: usize,
    names: [bool; 2],
    /// The most runs of a message, of this process's and of a peer's memory; contexts of an endpoint; bytes of a key.
    limits: [usize; 4],
    /// Orders of completions.
    completions: u64,
    mr_mode: c_int,
    /// The place at which this endpoint shall be found.
    source: Option<[u8; ADDRESS_BYTES]>,
    /// The address of a peer, or the place at which it is found.
    destination: Option<[u8; ADDRESS_BYTES]>,
    is_address_wrong: bool,
    /// A key of a job.
    has_key: bool,
}

impl Wanted {
    /// # Safety
    /// `hints` and the structures in it are null or valid.
    unsafe fn read(hints: *const fi_info) -> Self {
        let mut wanted = Self::default();
        // SAFETY: the caller's promise.
        let Some(hints) = (unsafe { hints.as_ref() }) else { return wanted };
        (wanted.caps, wanted.address_format) = (hints.caps, hints.addr_format);
        // SAFETY: the application's addresses of so many bytes.
        let [source, destination] = unsafe {
            [address_at(hints.src_addr, hints.src_addrlen), address_at(hints.dest_addr, hints.dest_addrlen)]
        };
        // An endpoint cannot choose its address, but the place at which it is found.
        let is_place =
            |source: &Option<_>| source.as_ref().is_none_or(|it| ServicePlace::decode(it).is_some());
        wanted.is_address_wrong = destination.is_err() || !source.as_ref().is_ok_and(is_place);
        (wanted.source, wanted.destination) = (source.unwrap_or(None), destination.unwrap_or(None));
        // SAFETY: the caller's promise, for this and the following structures.
        if let Some(it) = unsafe { hints.ep_attr.as_ref() } {
            (wanted.endpoint, wanted.protocol, wanted.message_bytes) =
                (it.type_, it.protocol, it.max_msg_size);
            // Values that stand for a shared context are larger.
            wanted.limits[2] = it.tx_ctx_cnt.max(it.rx_ctx_cnt);
            wanted.has_key = it.auth_key_size != 0;
        }
        // SAFETY: as above.
        if let Some(it) = unsafe { hints.tx_attr.as_ref() } {
            wanted.tx = [it.caps, it.op_flags, it.msg_order];
            (wanted.inject, wanted.sizes[0]) = (it.inject_size, it.size);
            wanted.completions |= it.comp_order;
            (wanted.limits[0], wanted.limits[1]) = (it.iov_limit, it.rma_iov_limit);
        }
        // SAFETY: as above.
        if let Some(it) = unsafe { hints.rx_attr.as_ref() } {
            wanted.rx = [it.caps, it.op_flags, it.msg_order];
            wanted.sizes[1] = it.size;
            wanted.completions |= it.comp_order;
            wanted.limits[0] = wanted.limits[0].max(it.iov_limit);
        }
        // SAFETY: as above.
        if let Some(it) = unsafe { hints.domain_attr.as_ref() } {
            wanted.threading = it.threading;
            wanted.progress = [it.control_progress, it.data_progress];
            (wanted.av, wanted.cq_data) = (it.av_type, it.cq_data_size);
            (wanted.limits[3], wanted.mr_mode) = (it.mr_key_size, it.mr_mode);
            // SAFETY: as above.
            wanted.names[0] = unsafe { is_other(it.name) };
        }
        // SAFETY: as above.
        if let Some(it) = unsafe { hints.fabric_attr.as_ref() } {
            // SAFETY: as above.
            wanted.names[1] = unsafe { is_other(it.name) };
        }
        wanted
    }

    /// Fails if this is more than what is offered.
    fn check(&self) -> Result<(), Errno> {
        let is_within = |wanted: u64, offered: u64| wanted & !offered == 0;
        let offered = self.caps & !CAPS == 0
            && [self.tx[0], self.rx[0]].into_iter().all(|caps| is_within(caps, CAPS))
            && [self.tx[1], self.rx[1]].into_iter().all(|flags| is_within(flags, OP_FLAGS))
            && [self.tx[2], self.rx[2]].into_iter().all(|order| is_within(order, ORDERS))
            && matches!(self.address_format, fi::FI_FORMAT_UNSPEC | ADDRESS_FORMAT)
            && matches!(self.endpoint, fi::FI_EP_UNSPEC | fi::FI_EP_RDM)
            && self.protocol == fi::FI_PROTO_UNSPEC
            && self.message_bytes <= MOST_BYTES
            && self.inject <= INJECT_BYTES
            && self.sizes.into_iter().all(|size| size <= OPERATIONS)
            && self.progress.into_iter().all(|it| it != fi::FI_PROGRESS_AUTO)
            && self.cq_data <= size_of::<u64>()
            && self.names == [false; 2]
            && self.limits.into_iter().zip(LIMITS).all(|(wanted, offered)| wanted <= offered)
            && self.completions == 0
            && !self.has_key
            && !self.is_address_wrong;
        if offered { Ok(()) } else { Err(Errno::NO_DATA) }
    }
}

/// Returns the address that an application names, if it names one. Fails if it has another length than ours.
///
/// # Safety
/// The pointer is null or leads to so many bytes.
pub(crate) unsafe fn address_at(
    from: *const c_void,
    len: usize,
) -> Result<Option<[u8; ADDRESS_BYTES]>, Errno> {
    match len {
        _ if from.is_null() => Ok(None),
        // SAFETY: the caller's promise.
        ADDRESS_BYTES => Ok(Some(unsafe { from.cast::<[u8; ADDRESS_BYTES]>().read_unaligned() })),
        _ => Err(Errno::INVALID),
    }
}

/// Copies an address into memory that `fi_freeinfo` frees.
fn copied(address: Option<[u8; ADDRESS_BYTES]>) -> Result<(*mut c_void, usize), Errno> {
    let Some(address) = address else { return Ok((std::ptr::null_mut(), 0)) };
    let copy: *mut [u8; ADDRESS_BYTES] = allocate()?;
    // SAFETY: new memory of this size.
    unsafe { copy.write(address) };
    Ok((copy.cast(), ADDRESS_BYTES))
}

/// Returns whether this is a name, and not ours.
///
/// # Safety
/// The pointer is null or leads to a string.
unsafe fn is_other(name: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    !name.is_null() && unsafe { CStr::from_ptr(name) } != NAME
}

/// Allocates a structure, all zero, that the application frees by `fi_freeinfo`.
fn allocate<T>() -> Result<*mut T, Errno> {
    // SAFETY: no precondition.
    let place = unsafe { libc::calloc(1, size_of::<T>() + ROOM) };
    if place.is_null() { Err(Errno::NO_MEMORY) } else { Ok(place.cast()) }
}

fn name() -> Result<*mut c_char, Errno> {
    // SAFETY: a terminated string.
    let copy = unsafe { libc::strdup(NAME.as_ptr()) };
    if copy.is_null() { Err(Errno::NO_MEMORY) } else { Ok(copy) }
}

fn offer(wanted: &Wanted) -> Result<*mut fi_info, Errno> {
    let caps = if wanted.caps == 0 { CAPS } else { complete(wanted.caps) };
    let info: *mut fi_info = allocate()?;
    // SAFETY: the structures are zeroed, which is valid for all of them, and belong to this call. If memory lacks, what
    // is there stays allocated: the process has a few bytes less.
    unsafe {
        (*info).caps = caps;
        (*info).addr_format = ADDRESS_FORMAT;
        ((*info).src_addr, (*info).src_addrlen) = copied(wanted.source)?;
        ((*info).dest_addr, (*info).dest_addrlen) = copied(wanted.destination)?;
        let tx: *mut fi_tx_attr = allocate()?;
        (*tx).caps = caps & !RECEIVERS;
        (*tx).op_flags = wanted.tx[1];
        (*tx).msg_order = ORDERS;
        (*tx).inject_size = INJECT_BYTES;
        (*tx).size = OPERATIONS;
        (*tx).iov_limit = MOST_RUNS;
        (*tx).rma_iov_limit = 1;
        (*info).tx_attr = tx;
        let rx: *mut fi_rx_attr = allocate()?;
        (*rx).caps = caps & !SENDERS;
        (*rx).op_flags = wanted.rx[1];
        (*rx).msg_order = ORDERS;
        (*rx).size = OPERATIONS;
        (*rx).iov_limit = MOST_RUNS;
        (*info).rx_attr = rx;
        (*info).ep_attr = endpoint()?;
        (*info).domain_attr = domain(wanted, caps)?;
        let fabric: *mut fi_fabric_attr = allocate()?;
        (*fabric).name = name()?;
        (*fabric).prov_version = crate::version(0, 1);
        (*info).fabric_attr = fabric;
    }
    Ok(info)
}

/// Returns the capabilities that these mean: without a direction both, and so for the sides and the reach.
fn complete(caps: u64) -> u64 {
    let ways = u64::from(fi::FI_SEND) | u64::from(fi::FI_RECV);
    let is_message = caps & (u64::from(fi::FI_MSG) | u64::from(fi::FI_TAGGED)) != 0;
    let reach = fi::FI_LOCAL_COMM | fi::FI_REMOTE_COMM;
    let caps = if is_message && caps & ways == 0 { caps | ways } else { caps };
    let is_one_sided = caps & (u64::from(fi::FI_RMA) | u64::from(fi::FI_ATOMIC)) != 0;
    let caps = if is_one_sided && caps & SIDES == 0 { caps | SIDES } else { caps };
    if caps & reach == 0 { caps | reach } else { caps }
}

fn endpoint() -> Result<*mut fi_ep_attr, Errno> {
    let it: *mut fi_ep_attr = allocate()?;
    // SAFETY: zeroed, which is valid, and not shared.
    unsafe {
        (*it).type_ = fi::FI_EP_RDM;
        (*it).protocol = fi::FI_PROTO_UNSPEC;
        (*it).protocol_version = 1;
        (*it).max_msg_size = MOST_BYTES;
        (*it).mem_tag_format = u64::MAX;
        (*it).max_order_raw_size = MOST_BYTES;
        (*it).max_order_waw_size = MOST_BYTES;
        (*it).max_order_war_size = ATOMIC_BYTES;
        (*it).tx_ctx_cnt = 1;
        (*it).rx_ctx_cnt = 1;
    }
    Ok(it)
}

fn domain(wanted: &Wanted, caps: u64) -> Result<*mut fi_domain_attr, Errno> {
    let it: *mut fi_domain_attr = allocate()?;
    // SAFETY: zeroed, which is valid, and not shared.
    unsafe {
        (*it).name = name()?;
        (*it).threading = match wanted.threading {
            fi::FI_THREAD_UNSPEC => fi::FI_THREAD_SAFE,
            threading => threading,
        };
        (*it).control_progress = fi::FI_PROGRESS_MANUAL;
        (*it).data_progress = fi::FI_PROGRESS_MANUAL;
        (*it).resource_mgmt = fi::FI_RM_ENABLED;
        // FI_AV_UNSPEC: both kinds are possible.
        (*it).av_type = wanted.av;
        (*it).mr_cnt = 1 << 16;
        (*it).mr_iov_limit = 1;
        (*it).mr_key_size = size_of::<u64>();
        (*it).cq_data_size = size_of::<u64>();
        (*it).cq_cnt = 1 << 10;
        (*it).ep_cnt = 1 << 10;
        (*it).tx_ctx_cnt = 1 << 10;
        (*it).rx_ctx_cnt = 1 << 10;
        (*it).max_ep_tx_ctx = 1;
        (*it).max_ep_rx_ctx = 1;
        (*it).cntr_cnt = 1 << 10;
        (*it).caps = caps & (fi::FI_LOCAL_COMM | fi::FI_REMOTE_COMM);
    }
    Ok(it)
}

/// Copies an address to the application. Returns whether it fits.
///
/// # Safety
/// `length` is valid; `to` has room for so many bytes.
pub(crate) unsafe fn write_address(
    address: &[u8; ADDRESS_BYTES],
    to: *mut c_void,
    length: *mut usize,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let Some(length) = (unsafe { length.as_mut() }) else { return Err(Errno::INVALID) };
    let room = std::mem::replace(length, ADDRESS_BYTES);
    if !to.is_null() {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<u8>().copy_from_nonoverlapping(address.as_ptr(), room.min(ADDRESS_BYTES)) };
    }
    if to.is_null() || room < ADDRESS_BYTES { Err(Errno::TOO_SMALL) } else { Ok(()) }
}
