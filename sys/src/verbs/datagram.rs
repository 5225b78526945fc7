//! A datagram queue pair: short messages to any port of the fabric, unreliable, without a connection.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nemesia_core::joining::{JOIN_BYTES, JoinPlace};
use nemesia_core::port::memory::RegionAccess;
use rdma_core_sys as raw;
use rdma_core_sys::inline::{ibv_post_recv, ibv_post_send};

use super::completion::CompletionQueue;
use super::device::Device;
use super::domain::{Domain, MemoryRegion};
use super::pair::modify_raw;
use crate::rdma::{VerbsError, attributes, verbs};

/// The receives that wait for datagrams. If more come between two polls, they are lost, and their senders repeat them.
const RECEIVES: usize = 256;
/// The datagrams under way at once.
const SENDS: usize = 256;
/// The bytes before each received datagram, which the device writes: the global routing header, or nothing useful.
const HEADER: usize = 40;
/// The bytes of the memory of a datagram that is sent.
const SEND_PLACE: usize = 256;
/// The bytes of the memory of a datagram that is received. It holds the longest one of any port, because one that is
/// too long for its receive would end the queue pair.
const RECEIVE_PLACE: usize = 4096 + SEND_PLACE;
/// The alignment of the memory: a page of its own, because a device pins whole pages.
const PAGE: usize = 4096;
/// The most peers whose routes are kept.
const MOST_ROUTES: usize = 4096;
/// The time after which a peer is tried again to which no route led: a search may take a second.
const NO_ROUTE: Duration = Duration::from_secs(5);
/// The highest bit of a key means the sender's own key, so no place has it.
const OWN_KEY: u32 = 1 << 31;
/// The bit of a work request's number that distinguishes sends.
const SEND: u64 = 1 << 32;

const _: () = assert!(JOIN_BYTES <= SEND_PLACE && HEADER + 4096 <= RECEIVE_PLACE);

/// Where the queue pair is on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DatagramSite {
    /// The port of the device.
    pub(super) port: u8,
    /// The index of the GID.
    pub(super) gid: u32,
    /// The traffic class of what is sent.
    pub(super) class: Option<u8>,
    /// The key that datagrams to it must have.
    pub(super) key: u32,
    /// Whether packets have the header of IPv4 (`RoCE` v2), or that of InfiniBand, which is that of IPv6. `None` if
    /// that is unknown, and where packets have no global header.
    pub(super) is_ipv4: Option<bool>,
}

/// Returns the GID of the sender of a datagram, from the header that the device has written. A header of IPv4 is in the
/// last 20 bytes.
fn source(header: &[u8; HEADER], is_ipv4: bool) -> [u8; 16] {
    let mut gid = [0; 16];
    if is_ipv4 {
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&header[32..36]);
    } else {
        gid.copy_from_slice(&header[8..24]);
    }
    gid
}

/// A route to a peer's port.
struct AddressHandle(NonNull<raw::ibv_ah>);

impl Drop for AddressHandle {
    fn drop(&mut self) {
        if let Ok(verbs) = verbs() {
            // SAFETY: it is this value's own, and the queue pair that used it has nothing under way.
            unsafe { (verbs.ibv_destroy_ah)(self.0.as_ptr()) };
        }
    }
}

/// Memory of its own for all datagrams.
struct DatagramMemory(NonNull<u8>);

impl DatagramMemory {
    const LAYOUT: Layout = match Layout::from_size_align(RECEIVES * RECEIVE_PLACE + SENDS * SEND_PLACE, PAGE)
    {
        Ok(layout) => layout,
        Err(_) => panic!("the layout is constant"),
    };

    fn new() -> Option<Self> {
        // SAFETY: the layout has bytes.
        NonNull::new(unsafe { alloc_zeroed(Self::LAYOUT) }).map(Self)
    }

    /// Returns the memory of a datagram: the receives come first.
    fn at(&self, place: usize) -> *mut u8 {
        debug_assert!(place < RECEIVES + SENDS);
        let (received, sent) = (place.min(RECEIVES), place.saturating_sub(RECEIVES).min(SENDS - 1));
        self.0.as_ptr().wrapping_add(received * RECEIVE_PLACE + sent * SEND_PLACE)
    }
}

impl Drop for DatagramMemory {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and is not registered any more.
        unsafe { dealloc(self.0.as_ptr(), Self::LAYOUT) };
    }
}

/// The library's queue pair.
struct DatagramPair(NonNull<raw::ibv_qp>);

impl Drop for DatagramPair {
    fn drop(&mut self) {
        if let Ok(verbs) = verbs() {
            // SAFETY: it is this value's own.
            unsafe { (verbs.ibv_destroy_qp)(self.0.as_ptr()) };
        }
    }
}

/// A datagram queue pair that is ready.
pub(super) struct DatagramQueue {
    // In the order of dropping: the queue pair first, then its routes, its region, its memory.
    pair: DatagramPair,
    /// By LID and GID; without a route, when none was found.
    routes: HashMap<(u16, [u8; 16]), Result<AddressHandle, Instant>>,
    region: MemoryRegion,
    memory: DatagramMemory,
    queue: Arc<CompletionQueue>,
    domain: Arc<Domain>,
    site: DatagramSite,
    needs_gid: bool,
    /// The time before which no further route is searched: a search may take a second, and must not take all the time.
    search_again: Instant,
    /// The places of datagrams that may be sent.
    free: Vec<usize>,
}

// SAFETY: libibverbs locks its queues; the pointers are this value's own.
unsafe impl Send for DatagramQueue {}

impl fmt::Debug for DatagramQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramQueue").field("site", &self.site).finish_non_exhaustive()
    }
}

impl DatagramQueue {
    /// Makes the queue pair, and posts its receives.
    ///
    /// # Errors
    /// The device has no such queue pair, or the memory cannot be pinned.
    pub(super) fn new(domain: &Arc<Domain>, site: DatagramSite) -> Result<Self, VerbsError> {
        let device = domain.device();
        let needs_gid = device.port(site.port)?.needs_gid;
        let queue = CompletionQueue::new(device, (RECEIVES + SENDS) as u32)?;
        let bytes = DatagramMemory::LAYOUT.size();
        let memory = DatagramMemory::new()
            .ok_or_else(|| VerbsError::Pinned { device: device.name().into(), bytes })?;
        // SAFETY: the region is dropped before the memory, to which no references are made.
        let region = unsafe { domain.register(memory.0.as_ptr(), bytes, RegionAccess::LOCAL) }?;
        let pair = make(domain, &queue)?;
        let (routes, free, domain) = (HashMap::new(), Vec::new(), Arc::clone(domain));
        let search_again = Instant::now();
        let mut made =
            Self { pair, routes, region, memory, queue, domain, site, needs_gid, search_again, free };
        made.start()?;
        Ok(made)
    }

    /// Returns its number.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: the queue pair exists.
        unsafe { (*self.pair.0.as_ptr()).qp_num }
    }

    /// Returns the queue of its completions.
    pub(super) fn queue(&self) -> &Arc<CompletionQueue> {
        &self.queue
    }

    fn device(&self) -> &Arc<Device> {
        self.domain.device()
    }

    /// Moves it from RESET to the states in which it receives and sends, and posts its receives.
    fn start(&mut self) -> Result<(), VerbsError> {
        prepare(self.device(), &self.pair, self.site)?;
        self.free = (RECEIVES..RECEIVES + SENDS).collect();
        for place in 0..RECEIVES {
            self.post_receive(place)?;
        }
        let mut attr = attributes(raw::IBV_QPS_RTR);
        modify(self.device(), &self.pair, &mut attr, raw::IBV_QP_STATE)?;
        let mut attr = attributes(raw::IBV_QPS_RTS);
        modify(self.device(), &self.pair, &mut attr, raw::IBV_QP_STATE | raw::IBV_QP_SQ_PSN)
    }

    /// Starts it again after an error, for instance while the link was down: the datagrams under way are lost, and
    /// their senders repeat them.
    fn restart(&mut self) -> Result<(), VerbsError> {
        self.drain()?;
        modify(self.device(), &self.pair, &mut attributes(raw::IBV_QPS_RESET), raw::IBV_QP_STATE)?;
        // In RESET nothing completes any more.
        self.drain()?;
        self.start()
    }

    fn drain(&self) -> Result<(), VerbsError> {
        for _ in 0..=self.queue.entries() as usize / super::completion::BATCH {
            if self.queue.poll(super::completion::BATCH, |_| {})? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Moves it to the error state, for tests.
    #[cfg(feature = "internals")]
    pub(super) fn fail(&self) -> Result<(), VerbsError> {
        modify(self.device(), &self.pair, &mut attributes(raw::IBV_QPS_ERR), raw::IBV_QP_STATE)
    }

    fn part(&self, place: usize, len: usize) -> raw::ibv_sge {
        let addr = self.memory.at(place).expose_provenance() as u64;
        raw::ibv_sge { addr, length: len as u32, lkey: self.region.local_key() }
    }

    fn post_receive(&self, place: usize) -> Result<(), VerbsError> {
        let mut part = self.part(place, RECEIVE_PLACE);
        let mut wr = raw::ibv_recv_wr {
            wr_id: place as u64,
            next: ptr::null_mut(),
            sg_list: &raw mut part,
            num_sge: 1,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair exists, and the part lies in its own registered memory, which lives longer and which
        // nothing uses until the receive has completed.
        match unsafe { ibv_post_recv(self.pair.0.as_ptr(), &raw mut wr, &raw mut bad) } {
            0 => Ok(()),
            -1 => Err(self.device().last_error("a receive for datagrams")),
            code => Err(self.device().error("a receive for datagrams", code)),
        }
    }

    /// Sends a datagram. It may be lost: also here, if no place is free or no route leads there.
    pub(super) fn send(&mut self, to: &JoinPlace, bytes: &[u8; JOIN_BYTES]) {
        if to.key & OWN_KEY != 0 || (!self.needs_gid && to.lid == 0) {
            return;
        }
        let Some(route) = self.route(to) else { return };
        let Some(place) = self.free.pop() else { return };
        // SAFETY: the place has room for a datagram, and the device does not use it, because it is free.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.at(place), JOIN_BYTES) };
        let mut part = self.part(place, JOIN_BYTES);
        // SAFETY: zeros are a value of every field.
        let mut wr: raw::ibv_send_wr = unsafe { std::mem::zeroed() };
        wr.wr_id = SEND | place as u64;
        (wr.opcode, wr.send_flags) = (raw::IBV_WR_SEND, raw::IBV_SEND_SIGNALED);
        (wr.sg_list, wr.num_sge) = (&raw mut part, 1);
        wr.wr.ud.ah = route;
        (wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey) = (to.number, to.key);
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair and the route exist until this request has completed, and so does the part.
        if unsafe { ibv_post_send(self.pair.0.as_ptr(), &raw mut wr, &raw mut bad) } != 0 {
            self.free.push(place);
        }
    }

    /// Returns the route to a peer's port; `None` if there is none now.
    fn route(&mut self, to: &JoinPlace) -> Option<*mut raw::ibv_ah> {
        let name = (to.lid, to.gid);
        match self.routes.get(&name) {
            Some(Ok(route)) => return Some(route.0.as_ptr()),
            Some(Err(since)) if since.elapsed() < NO_ROUTE => return None,
            Some(Err(_)) | None => {}
        }
        let begun = Instant::now();
        if begun < self.search_again {
            return None;
        }
        if self.routes.len() >= MOST_ROUTES {
            if self.is_sending() {
                return None;
            }
            self.routes.clear();
        }
        // SAFETY: zeros are a value of every field.
        let mut attr: raw::ibv_ah_attr = unsafe { std::mem::zeroed() };
        (attr.dlid, attr.port_num) = (to.lid, self.site.port);
        if self.needs_gid {
            attr.is_global = 1;
            attr.grh.dgid = raw::ibv_gid { raw: to.gid };
            attr.grh.sgid_index = u8::try_from(self.site.gid).unwrap_or(u8::MAX);
            attr.grh.hop_limit = 64;
            attr.grh.traffic_class = self.site.class.unwrap_or(0);
        }
        // SAFETY: the domain is in use, and the attributes may be read.
        let route = unsafe { (verbs().ok()?.ibv_create_ah)(self.domain.raw(), &raw mut attr) };
        let route = NonNull::new(route).map(AddressHandle).ok_or_else(Instant::now);
        let found = route.as_ref().ok().map(|route| route.0.as_ptr());
        if found.is_none() {
            self.search_again = Instant::now() + 10 * begun.elapsed();
        }
        self.routes.insert(name, route);
        found
    }

    /// Returns whether datagrams are under way.
    pub(super) fn is_sending(&self) -> bool {
        self.free.len() < SENDS
    }

    /// Returns whether so many are under way that the next one would be lost.
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Takes datagrams that have arrived, a bounded number of them, and hands each to `each`, with the GID of the
    /// sender if packets have one.
    ///
    /// # Errors
    /// The queue is broken.
    pub(super) fn poll(
        &mut self,
        mut each: impl FnMut([u8; JOIN_BYTES], Option<[u8; 16]>),
    ) -> Result<(), VerbsError> {
        let mut failed = false;
        for _ in 0..RECEIVES / super::completion::BATCH {
            let queue = Arc::clone(&self.queue);
            let mut arrived = [(0, 0); super::completion::BATCH];
            let mut count = 0;
            let taken = queue.poll(super::completion::BATCH, |polled| {
                failed |= polled.status != raw::IBV_WC_SUCCESS;
                if polled.id & SEND != 0 {
                    self.free.push((polled.id & !SEND) as usize);
                    return;
                }
                let len = if polled.status == raw::IBV_WC_SUCCESS { polled.len as usize } else { 0 };
                arrived[count] = (polled.id as usize, len);
                count += 1;
            })?;
            for (place, len) in arrived.into_iter().take(count) {
                if len == HEADER + JOIN_BYTES {
                    let (mut header, mut bytes) = ([0; HEADER], [0; JOIN_BYTES]);
                    let from = self.memory.at(place);
                    // SAFETY: header and datagram lie in this place, and the device does not use the place until its
                    // receive is posted again.
                    unsafe {
                        ptr::copy_nonoverlapping(from, header.as_mut_ptr(), HEADER);
                        ptr::copy_nonoverlapping(from.wrapping_add(HEADER), bytes.as_mut_ptr(), JOIN_BYTES);
                    }
                    each(bytes, self.site.is_ipv4.map(|is_ipv4| source(&header, is_ipv4)));
                }
                // If it fails, the queue pair has failed, or the device.
                failed |= self.post_receive(place).is_err();
            }
            if taken == 0 {
                break;
            }
        }
        if failed { self.restart() } else { Ok(()) }
    }
}

fn make(domain: &Arc<Domain>, queue: &Arc<CompletionQueue>) -> Result<DatagramPair, VerbsError> {
    let cap = raw::ibv_qp_cap {
        max_send_wr: SENDS as u32,
        max_recv_wr: RECEIVES as u32,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let mut init = raw::ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: queue.raw(),
        recv_cq: queue.raw(),
        srq: ptr::null_mut(),
        cap,
        qp_type: raw::IBV_QPT_UD,
        sq_sig_all: 0,
    };
    // SAFETY: domain and queue are in use, and the attributes may be read and written.
    let pair = unsafe { (verbs()?.ibv_create_qp)(domain.raw(), &raw mut init) };
    NonNull::new(pair)
        .map(DatagramPair)
        .ok_or_else(|| domain.device().last_error("a queue pair for datagrams"))
}

/// Moves the queue pair to the state in which receives may be posted.
fn prepare(device: &Device, pair: &DatagramPair, site: DatagramSite) -> Result<(), VerbsError> {
    let mut attr = attributes(raw::IBV_QPS_INIT);
    (attr.port_num, attr.qkey) = (site.port, site.key);
    let mask = raw::IBV_QP_STATE | raw::IBV_QP_PKEY_INDEX | raw::IBV_QP_PORT | raw::IBV_QP_QKEY;
    modify(device, pair, &mut attr, mask)
}

fn modify(
    device: &Device,
    pair: &DatagramPair,
    attr: &mut raw::ibv_qp_attr,
    mask: u32,
) -> Result<(), VerbsError> {
    // SAFETY: the queue pair exists, and is one of this device.
    unsafe { modify_raw(device, pair.0.as_ptr(), attr, mask, "starting a queue pair for datagrams") }
}
