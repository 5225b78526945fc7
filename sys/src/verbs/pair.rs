//! Reliable connected queue pairs.

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use rdma_core_sys as raw;
use rdma_core_sys::inline::{ibv_post_recv, ibv_post_send};

use super::completion::CompletionQueue;
use super::device::{Device, DeviceTransport, LinkLayer};
use super::domain::Domain;
use super::exchange::PairInfo;
use super::shared::SharedReceives;
use crate::rdma::{RETRIES, RNR_FOREVER, VerbsError, attributes, last_errno, verbs};

/// The default of the code of the time for which the device waits for an answer before it sends again: 4.096 us times
/// two to this power, 0.27 s. It suits 10 s of silence: [`ack_timeout`].
const ACK_TIMEOUT: u8 = 16;
/// The largest such code that is chosen, 1.07 s: a lost packet would otherwise cost more.
const MOST_ACK_TIMEOUT: u8 = 18;
/// The code of the time after which the other side tries again if no receive was posted: 0.64 ms.
pub(crate) const RNR_TIMER: u8 = 12;

/// The largest number of reads in progress at once: more bring no gain.
pub(super) const MOST_READS: i32 = 16;

/// The depths of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depths {
    /// The work requests in the send queue.
    pub send: u32,
    /// The work requests in its own receive queue; meaningless with a shared one.
    pub receive: u32,
    /// The parts of a work request.
    pub parts: u32,
    /// The bytes of an inline payload.
    pub inline: u32,
}

/// The attributes of the path of a connected queue pair, as the device has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathAttributes {
    /// The most payload bytes of a packet on the wire.
    pub mtu: u32,
    /// The entry of the table of GIDs from which packets come; `None` on an InfiniBand fabric without routers.
    pub gid_index: Option<u8>,
    /// The traffic class of packets; `None` where they have none.
    pub traffic_class: Option<u8>,
}

/// A queue pair. Dropping it destroys it: afterwards nothing touches the memory of its work requests, and
/// requests that have not completed never complete.
pub struct QueuePair {
    queue: Arc<CompletionQueue>,
    domain: Arc<Domain>,
    shared: Option<Arc<SharedReceives>>,
    qp: NonNull<raw::ibv_qp>,
    depths: Depths,
}

// SAFETY: libibverbs locks its queues; the pointer is this value's own.
unsafe impl Send for QueuePair {}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("number", &self.number())
            .field("depths", &self.depths)
            .finish_non_exhaustive()
    }
}

/// Returns the code of the time for which the device waits for an answer before it sends again, so that it gives a
/// silent peer up within `silence`. It sends 1 + [`RETRIES`] times, and may wait four times as long as the code says
/// (InfiniBand Architecture Specification 1.3, section 9.7.6.1.3).
pub(crate) fn ack_timeout(silence: Duration) -> u8 {
    let longest = 4 * (1 + u128::from(RETRIES)) * 4096;
    let code = (silence.as_nanos() / longest).checked_ilog2().unwrap_or(1);
    // Zero would mean without limit.
    u8::try_from(code).unwrap_or(MOST_ACK_TIMEOUT).clamp(1, MOST_ACK_TIMEOUT)
}

/// Changes the attributes of a queue pair of any kind.
///
/// # Safety
/// The queue pair exists, and is one of this device.
pub(super) unsafe fn modify_raw(
    device: &Device,
    pair: *mut raw::ibv_qp,
    attr: &mut raw::ibv_qp_attr,
    mask: u32,
    what: &'static str,
) -> Result<(), VerbsError> {
    // SAFETY: the caller's promise; the attributes may be read.
    match unsafe { (verbs()?.ibv_modify_qp)(pair, attr, mask.cast_signed()) } {
        0 => Ok(()),
        // A provider that returns -1 has stored the reason in `errno`.
        -1 => Err(device.error(what, last_errno())),
        code => Err(device.error(what, code)),
    }
}

impl QueuePair {
    /// Makes a queue pair in the state RESET. Its work requests complete in `queue`; receives come from
    /// `shared` if it is given.
    ///
    /// # Errors
    /// The device has no such queue pair: too deep, too much inline payload, or no more of them. Or the queues are of
    /// another device: the library would then confuse the structures of two drivers.
    pub fn new(
        domain: &Arc<Domain>,
        queue: &Arc<CompletionQueue>,
        shared: Option<&Arc<SharedReceives>>,
        wanted: Depths,
    ) -> Result<Self, VerbsError> {
        let ours = |device: &Arc<Device>| Arc::ptr_eq(device, domain.device());
        if !ours(queue.device()) || shared.is_some_and(|shared| !ours(shared.device())) {
            return Err(domain.device().error("a queue pair over queues of another device", libc::EINVAL));
        }
        let own = shared.is_none();
        let cap = raw::ibv_qp_cap {
            max_send_wr: wanted.send,
            max_recv_wr: if own { wanted.receive } else { 0 },
            max_send_sge: wanted.parts,
            max_recv_sge: if own { wanted.parts } else { 0 },
            max_inline_data: wanted.inline,
        };
        let mut init = raw::ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: queue.raw(),
            recv_cq: queue.raw(),
            srq: shared.map_or(ptr::null_mut(), |shared| shared.raw()),
            cap,
            qp_type: raw::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queues are in use, and the attributes may be read and written.
        let qp = unsafe { (verbs()?.ibv_create_qp)(domain.raw(), &raw mut init) };
        let qp = NonNull::new(qp).ok_or_else(|| domain.device().last_error("a queue pair"))?;
        // The device grants at least what was requested; the surplus is not used.
        let (queue, domain, shared) = (Arc::clone(queue), Arc::clone(domain), shared.cloned());
        let mut pair = Self { queue, domain, shared, qp, depths: wanted };
        pair.depths.inline = pair.inline()?.min(init.cap.max_inline_data).min(wanted.inline);
        Ok(pair)
    }

    /// Returns the largest inline payload. siw accepts any amount when it makes a queue pair, and reports its
    /// limit only later.
    fn inline(&self) -> Result<u32, VerbsError> {
        let mut attr = attributes(raw::IBV_QPS_RESET);
        // SAFETY: zeros are a value of every field.
        let mut init: raw::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        let mask = raw::IBV_QP_CAP.cast_signed();
        // SAFETY: the queue pair exists, and both structures may be written.
        match unsafe { (verbs()?.ibv_query_qp)(self.raw(), &raw mut attr, mask, &raw mut init) } {
            0 => Ok(init.cap.max_inline_data),
            code => Err(self.device().error("asking what a queue pair can do", code)),
        }
    }

    /// Returns the attributes of its path; `None` on iWARP, and if it is not connected.
    pub fn path(&self) -> Option<PathAttributes> {
        if self.device().transport() != DeviceTransport::InfiniBand {
            return None;
        }
        let mut attr = attributes(raw::IBV_QPS_RESET);
        // SAFETY: zeros are a value of every field.
        let mut init: raw::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        let mask = (raw::IBV_QP_STATE | raw::IBV_QP_AV | raw::IBV_QP_PATH_MTU).cast_signed();
        // SAFETY: the queue pair exists, and both structures may be written.
        let code = unsafe { (verbs().ok()?.ibv_query_qp)(self.raw(), &raw mut attr, mask, &raw mut init) };
        let is_connected = matches!(attr.qp_state, raw::IBV_QPS_RTR | raw::IBV_QPS_RTS);
        if code != 0 || !is_connected || !(1..=5).contains(&attr.path_mtu) {
            return None;
        }
        let is_global = attr.ah_attr.is_global != 0;
        let grh = attr.ah_attr.grh;
        Some(PathAttributes {
            mtu: 128 << attr.path_mtu,
            gid_index: is_global.then_some(grh.sgid_index),
            traffic_class: is_global.then_some(grh.traffic_class),
        })
    }

    /// Returns its number, by which the other side names it.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair exists.
        unsafe { (*self.raw()).qp_num }
    }

    /// Returns its depths.
    pub fn depths(&self) -> Depths {
        self.depths
    }

    /// Returns the queue in which its work requests complete.
    pub fn queue(&self) -> &Arc<CompletionQueue> {
        &self.queue
    }

    /// Returns the shared queue of its receives, if it has one.
    pub fn shared(&self) -> Option<&Arc<SharedReceives>> {
        self.shared.as_ref()
    }

    fn device(&self) -> &Arc<Device> {
        self.domain.device()
    }

    pub(crate) fn raw(&self) -> *mut raw::ibv_qp {
        self.qp.as_ptr()
    }

    /// Changes its attributes. An empty mask changes nothing; it occurs on iWARP, where the manager does the
    /// work.
    pub(crate) fn modify(
        &self,
        attr: &mut raw::ibv_qp_attr,
        mask: u32,
        what: &'static str,
    ) -> Result<(), VerbsError> {
        if mask == 0 {
            return Ok(());
        }
        // SAFETY: the queue pair exists.
        unsafe { modify_raw(self.device(), self.raw(), attr, mask, what) }
    }

    /// Returns the access that peers have through it: what their keys allow, as far as the device supports it.
    pub(crate) fn access(&self) -> u32 {
        let atomics = self.device().attributes().atomic_cap != raw::IBV_ATOMIC_NONE;
        let atomics = atomics && self.device().transport() == DeviceTransport::InfiniBand;
        let base = raw::IBV_ACCESS_LOCAL_WRITE | raw::IBV_ACCESS_REMOTE_WRITE | raw::IBV_ACCESS_REMOTE_READ;
        base | if atomics { raw::IBV_ACCESS_REMOTE_ATOMIC } else { 0 }
    }

    /// Moves it to INIT: receives may be posted from now on.
    ///
    /// # Errors
    /// It is in another state, or the device is gone.
    pub fn prepare(&self, port: u8) -> Result<(), VerbsError> {
        let mut attr = attributes(raw::IBV_QPS_INIT);
        attr.port_num = port;
        attr.qp_access_flags = self.access();
        let mut mask = raw::IBV_QP_STATE | raw::IBV_QP_ACCESS_FLAGS;
        if self.device().transport() == DeviceTransport::InfiniBand {
            mask |= raw::IBV_QP_PKEY_INDEX | raw::IBV_QP_PORT;
        }
        self.modify(&mut attr, mask, "a queue pair to INIT")
    }

    /// Returns the description with which the other side joins this queue pair. `gid` is the index of the GID
    /// to use; it is ignored where the fabric has LIDs.
    ///
    /// # Errors
    /// The port has no such GID, or the device is gone. On iWARP always, because only RDMA-CM connects there.
    pub fn describe(&self, port: u8, gid: u32, psn: u32) -> Result<PairInfo, VerbsError> {
        if self.device().transport() != DeviceTransport::InfiniBand {
            return Err(self.device().error("joining by an exchange, without RDMA-CM", libc::EOPNOTSUPP));
        }
        let attributes = self.device().port(port)?;
        let entry = self.device().gids(port)?.into_iter().find(|entry| entry.index == gid);
        let bytes = match entry {
            Some(entry) => entry.bytes,
            None if attributes.link == LinkLayer::InfiniBand => [0; 16],
            None => return Err(self.device().error("a GID of its port", libc::ENOENT)),
        };
        let reads = self.device().attributes().max_qp_rd_atom.clamp(0, MOST_READS) as u8;
        Ok(PairInfo {
            number: self.number(),
            psn: psn & 0xff_ffff,
            mtu: attributes.mtu.clamp(1, 5) as u8,
            reads,
            lid: attributes.lid,
            gid: bytes,
        })
    }

    /// Joins another queue pair and moves to RTS: everything may be posted. The other side does the same with
    /// our description.
    ///
    /// # Errors
    /// It is not in INIT, or there is no route.
    pub fn join(&self, port: u8, gid: u32, ours: &PairInfo, theirs: &PairInfo) -> Result<(), VerbsError> {
        self.join_by((port, gid), ours, theirs, (None, ACK_TIMEOUT))
    }

    /// Joins another queue pair with this traffic class and this code of the time for which the device waits for an
    /// answer.
    pub(super) fn join_by(
        &self,
        (port, gid): (u8, u32),
        ours: &PairInfo,
        theirs: &PairInfo,
        (traffic_class, ack_timeout): (Option<u8>, u8),
    ) -> Result<(), VerbsError> {
        let attributes_of_port = self.device().port(port)?;
        let mut attr = attributes(raw::IBV_QPS_RTR);
        attr.path_mtu = u32::from(ours.mtu.min(theirs.mtu));
        attr.dest_qp_num = theirs.number;
        attr.rq_psn = theirs.psn;
        attr.max_dest_rd_atomic = ours.reads;
        attr.min_rnr_timer = RNR_TIMER;
        attr.ah_attr.port_num = port;
        attr.ah_attr.dlid = theirs.lid;
        // RoCE has no LIDs. Elsewhere the LID suffices inside a subnet.
        if attributes_of_port.needs_gid {
            attr.ah_attr.is_global = 1;
            attr.ah_attr.grh.dgid = raw::ibv_gid { raw: theirs.gid };
            attr.ah_attr.grh.sgid_index = u8::try_from(gid).unwrap_or(u8::MAX);
            attr.ah_attr.grh.hop_limit = 64;
            attr.ah_attr.grh.traffic_class = traffic_class.unwrap_or(0);
        }
        let mask = raw::IBV_QP_STATE
            | raw::IBV_QP_AV
            | raw::IBV_QP_PATH_MTU
            | raw::IBV_QP_DEST_QPN
            | raw::IBV_QP_RQ_PSN
            | raw::IBV_QP_MAX_DEST_RD_ATOMIC
            | raw::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attr, mask, "a queue pair to RTR")?;
        let mut attr = attributes(raw::IBV_QPS_RTS);
        attr.sq_psn = ours.psn;
        let most_asked = self.device().attributes().max_qp_init_rd_atom.clamp(0, MOST_READS) as u8;
        attr.max_rd_atomic = ours.reads.min(theirs.reads).min(most_asked);
        attr.timeout = ack_timeout;
        attr.retry_cnt = RETRIES;
        attr.rnr_retry = RNR_FOREVER;
        let mask = raw::IBV_QP_STATE
            | raw::IBV_QP_SQ_PSN
            | raw::IBV_QP_MAX_QP_RD_ATOMIC
            | raw::IBV_QP_TIMEOUT
            | raw::IBV_QP_RETRY_CNT
            | raw::IBV_QP_RNR_RETRY;
        self.modify(&mut attr, mask, "a queue pair to RTS")
    }

    /// Moves it to the error state: incomplete requests are flushed.
    ///
    /// # Errors
    /// It is in RESET, or the device is gone; no request is then in progress.
    pub fn fail(&self) -> Result<(), VerbsError> {
        self.modify(&mut attributes(raw::IBV_QPS_ERR), raw::IBV_QP_STATE, "a queue pair to the error state")
    }

    /// Returns whether the library promises that the bytes of a write arrive in the order of their addresses;
    /// `None` if the library is too old to report it.
    pub fn promises_order(&self) -> Option<bool> {
        let ask = verbs().ok()?.ibv_query_qp_data_in_order?;
        // SAFETY: the queue pair exists.
        Some(unsafe { ask(self.raw(), raw::IBV_WR_RDMA_WRITE, 0) } == 1)
    }

    /// Posts to the send queue. The error is a positive error number.
    ///
    /// # Safety
    /// The list of parts can be read. The parts lie in registered memory (or the payload is inline and can be
    /// read). Until the request has completed or the queue pair is dropped, nothing changes them, and nothing
    /// reads those that are written.
    #[inline]
    pub(crate) unsafe fn post_send(&self, wr: &mut raw::ibv_send_wr) -> Result<(), i32> {
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair exists; the caller guarantees the rest.
        match unsafe { ibv_post_send(self.raw(), wr, &raw mut bad) } {
            0 => Ok(()),
            // Providers whose requests pass through the kernel store the reason in `errno`. Others return it
            // negative.
            -1 => Err(last_errno()),
            code => Err(code.saturating_abs()),
        }
    }

    /// Posts to the receive queue. The error is a positive error number.
    ///
    /// # Safety
    /// The parts lie in memory registered with local write access, and no references to them exist until the
    /// request has completed or the queue pair is dropped.
    #[inline]
    pub(crate) unsafe fn post_receive(&self, id: u64, parts: &mut [raw::ibv_sge]) -> Result<(), i32> {
        let (sg_list, num_sge) = (parts.as_mut_ptr(), parts.len() as i32);
        let mut wr = raw::ibv_recv_wr { wr_id: id, next: ptr::null_mut(), sg_list, num_sge };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair exists; the caller guarantees the rest.
        match unsafe { ibv_post_recv(self.raw(), &raw mut wr, &raw mut bad) } {
            0 => Ok(()),
            code => Err(code.saturating_abs()),
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if let Ok(verbs) = verbs() {
            // SAFETY: it is this value's own.
            unsafe { (verbs.ibv_destroy_qp)(self.raw()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_gives_a_silent_peer_up_within_the_limit_and_not_much_earlier() {
        let tries = 1 + u32::from(RETRIES);
        for (seconds, wanted) in
            [(2, 14), (3, 14), (10, ACK_TIMEOUT), (20, 17), (60, MOST_ACK_TIMEOUT), (3600, 18)]
        {
            let (silence, code) = (Duration::from_secs(seconds), ack_timeout(Duration::from_secs(seconds)));
            assert_eq!(code, wanted, "{seconds}");
            let least = tries * Duration::from_nanos(4096 << code);
            assert!(4 * least <= silence, "{seconds}: {least:?}");
            assert!(code == MOST_ACK_TIMEOUT || 10 * least >= silence, "{seconds}: {least:?}");
        }
        assert_eq!((ack_timeout(Duration::ZERO), ack_timeout(Duration::MAX)), (1, MOST_ACK_TIMEOUT));
    }
}
