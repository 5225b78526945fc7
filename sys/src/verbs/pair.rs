//! Reliable connected queue pairs.

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_core_sys as raw;
use rdma_core_sys::inline::{ibv_post_recv, ibv_post_send};

use super::completion::CompletionQueue;
use super::device::{Device, LinkLayer, Transport};
use super::domain::Domain;
use super::error::{VerbsError, last_errno};
use super::exchange::PairInfo;
use super::shared::SharedReceives;
use super::verbs;

/// How long the device waits for an answer before it sends again: 4.096 us times two to this, 0.27 s. With
/// [`RETRIES`] a peer that is gone is found out within 1.9 s.
pub(crate) const ACK_TIMEOUT: u8 = 16;
/// How often it sends again. Not 7, the most that there is: soft `RoCE` takes that for ever (`rxe_completer`, Linux 6.1).
pub(crate) const RETRIES: u8 = 6;
/// To wait for a receive at the other side as long as it takes.
pub(crate) const RNR_FOREVER: u8 = 7;
/// How long the other side waits before it tries again when no receive was posted: a code for 0.64 ms.
pub(crate) const RNR_TIMER: u8 = 12;

/// How much a queue pair holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depths {
    /// Work requests in the send queue.
    pub send: u32,
    /// Work requests in its own receive queue; meaningless with a shared one.
    pub receive: u32,
    /// Parts of a work request.
    pub parts: u32,
    /// Bytes of an inline payload.
    pub inline: u32,
}

/// A queue pair. Dropping it destroys it: then nothing touches the memory of its work requests any more, and those
/// that have not completed never do.
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

impl QueuePair {
    /// A new queue pair, in the state RESET. Its work requests complete in `queue`; receives come from `shared` if there is one.
    ///
    /// # Errors
    /// The device has no such queue pair: too deep, too much inline, or no more of them. The queues are of another device, with
    /// which the library would take one driver's structures for another's.
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
        // What the device gives is at least what was asked for; the rest is not used.
        let (queue, domain, shared) = (Arc::clone(queue), Arc::clone(domain), shared.cloned());
        let mut pair = Self { queue, domain, shared, qp, depths: wanted };
        pair.depths.inline = pair.inline()?.min(init.cap.max_inline_data).min(wanted.inline);
        Ok(pair)
    }

    /// How much inline payload it takes. siw agrees to any when it is asked to make a queue pair, and tells only later.
    fn inline(&self) -> Result<u32, VerbsError> {
        let mut attr = attributes(raw::IBV_QPS_RESET);
        // SAFETY: zeros are a value of every field.
        let mut init: raw::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        let mask = raw::IBV_QP_CAP.cast_signed();
        // SAFETY: the queue pair is there, and both may be written.
        match unsafe { (verbs()?.ibv_query_qp)(self.raw(), &raw mut attr, mask, &raw mut init) } {
            0 => Ok(init.cap.max_inline_data),
            code => Err(self.device().error("asking what a queue pair can do", code)),
        }
    }

    /// Its number, by which the other side names it.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair is there.
        unsafe { (*self.raw()).qp_num }
    }

    /// What it holds.
    pub fn depths(&self) -> Depths {
        self.depths
    }

    /// Where its work requests complete.
    pub fn queue(&self) -> &Arc<CompletionQueue> {
        &self.queue
    }

    /// Where its receives come from, if they are not its own.
    pub fn shared(&self) -> Option<&Arc<SharedReceives>> {
        self.shared.as_ref()
    }

    fn device(&self) -> &Arc<Device> {
        self.domain.device()
    }

    pub(crate) fn raw(&self) -> *mut raw::ibv_qp {
        self.qp.as_ptr()
    }

    /// Changes its attributes; nothing if the mask is empty, as it is where iWARP does the work itself.
    pub(crate) fn modify(
        &self,
        attr: &mut raw::ibv_qp_attr,
        mask: u32,
        what: &'static str,
    ) -> Result<(), VerbsError> {
        if mask == 0 {
            return Ok(());
        }
        // SAFETY: the queue pair is there, and the attributes may be read.
        match unsafe { (verbs()?.ibv_modify_qp)(self.raw(), attr, mask.cast_signed()) } {
            0 => Ok(()),
            // A provider that says minus one has put the reason into `errno`.
            -1 => Err(self.device().error(what, last_errno())),
            code => Err(self.device().error(what, code)),
        }
    }

    /// What peers may do through it: what their keys allow, as far as the device has it.
    pub(crate) fn access(&self) -> u32 {
        let atomics = self.device().attributes().atomic_cap != raw::IBV_ATOMIC_NONE;
        let atomics = atomics && self.device().transport() == Transport::InfiniBand;
        let base = raw::IBV_ACCESS_LOCAL_WRITE | raw::IBV_ACCESS_REMOTE_WRITE | raw::IBV_ACCESS_REMOTE_READ;
        base | if atomics { raw::IBV_ACCESS_REMOTE_ATOMIC } else { 0 }
    }

    /// To INIT: receives may be posted from now on.
    ///
    /// # Errors
    /// It is in another state, or the device is gone.
    pub fn prepare(&self, port: u8) -> Result<(), VerbsError> {
        let mut attr = attributes(raw::IBV_QPS_INIT);
        attr.port_num = port;
        attr.qp_access_flags = self.access();
        let mut mask = raw::IBV_QP_STATE | raw::IBV_QP_ACCESS_FLAGS;
        if self.device().transport() == Transport::InfiniBand {
            mask |= raw::IBV_QP_PKEY_INDEX | raw::IBV_QP_PORT;
        }
        self.modify(&mut attr, mask, "a queue pair to INIT")
    }

    /// What the other side has to know to join this one, by whatever means it travels. `gid` is the index of the GID to
    /// use; it is ignored where the fabric has LIDs.
    ///
    /// # Errors
    /// The port has no such GID, or the device is gone; on iWARP always, where only RDMA-CM connects.
    pub fn describe(&self, port: u8, gid: u32, psn: u32) -> Result<PairInfo, VerbsError> {
        if self.device().transport() != Transport::InfiniBand {
            return Err(self.device().error("joining by an exchange, without RDMA-CM", libc::EOPNOTSUPP));
        }
        let attributes = self.device().port(port)?;
        let entry = self.device().gids(port)?.into_iter().find(|entry| entry.index == gid);
        let bytes = match entry {
            Some(entry) => entry.bytes,
            None if attributes.link == LinkLayer::InfiniBand => [0; 16],
            None => return Err(self.device().error("a GID of its port", libc::ENOENT)),
        };
        let reads = self.device().attributes().max_qp_rd_atom.clamp(0, 16) as u8;
        Ok(PairInfo {
            number: self.number(),
            psn: psn & 0xff_ffff,
            mtu: attributes.mtu.clamp(1, 5) as u8,
            reads,
            lid: attributes.lid,
            gid: bytes,
        })
    }

    /// Joins another queue pair, to RTS: everything may be posted. The other side does the same with what we said.
    ///
    /// # Errors
    /// It is not in INIT, or there is no way there.
    pub fn join(&self, port: u8, gid: u32, ours: &PairInfo, theirs: &PairInfo) -> Result<(), VerbsError> {
        let attributes_of_port = self.device().port(port)?;
        let mut attr = attributes(raw::IBV_QPS_RTR);
        attr.path_mtu = u32::from(ours.mtu.min(theirs.mtu));
        attr.dest_qp_num = theirs.number;
        attr.rq_psn = theirs.psn;
        attr.max_dest_rd_atomic = ours.reads;
        attr.min_rnr_timer = RNR_TIMER;
        attr.ah_attr.port_num = port;
        attr.ah_attr.dlid = theirs.lid;
        // RoCE has no LIDs; elsewhere the GID is needed only between subnets, and then it is there.
        if attributes_of_port.link == LinkLayer::Ethernet {
            attr.ah_attr.is_global = 1;
            attr.ah_attr.grh.dgid = raw::ibv_gid { raw: theirs.gid };
            attr.ah_attr.grh.sgid_index = u8::try_from(gid).unwrap_or(u8::MAX);
            attr.ah_attr.grh.hop_limit = 64;
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
        attr.max_rd_atomic = ours.reads.min(theirs.reads);
        attr.timeout = ACK_TIMEOUT;
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

    /// To the error state: what has not completed flushes.
    ///
    /// # Errors
    /// It is in RESET, or the device is gone; then nothing is under way any more.
    pub fn fail(&self) -> Result<(), VerbsError> {
        self.modify(&mut attributes(raw::IBV_QPS_ERR), raw::IBV_QP_STATE, "a queue pair to the error state")
    }

    /// Whether the bytes of a write arrive in the order of their addresses, as the library promises it; `None` where it is too
    /// old to tell.
    pub fn promises_order(&self) -> Option<bool> {
        let ask = verbs().ok()?.ibv_query_qp_data_in_order?;
        // SAFETY: the queue pair is there.
        Some(unsafe { ask(self.raw(), raw::IBV_WR_RDMA_WRITE, 0) } == 1)
    }

    /// Posts to the send queue. The error number otherwise, positive.
    ///
    /// # Safety
    /// The list of parts can be read. They lie in registered memory (or the payload is inline and can be read), which
    /// nobody changes, nor looks at where it is written, until it has completed or the queue pair is dropped.
    #[inline]
    pub(crate) unsafe fn post_send(&self, wr: &mut raw::ibv_send_wr) -> Result<(), i32> {
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is there; the caller keeps the rest.
        match unsafe { ibv_post_send(self.raw(), wr, &raw mut bad) } {
            0 => Ok(()),
            // Where the kernel takes the request, it has put the reason into `errno`. Others return it negative.
            -1 => Err(last_errno()),
            code => Err(code.saturating_abs()),
        }
    }

    /// Posts to the receive queue. The error number otherwise, positive.
    ///
    /// # Safety
    /// The parts lie in memory that is registered with local write access, and nobody has references to them, until it has
    /// completed or the queue pair is dropped.
    #[inline]
    pub(crate) unsafe fn post_receive(&self, id: u64, parts: &mut [raw::ibv_sge]) -> Result<(), i32> {
        let (sg_list, num_sge) = (parts.as_mut_ptr(), parts.len() as i32);
        let mut wr = raw::ibv_recv_wr { wr_id: id, next: ptr::null_mut(), sg_list, num_sge };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is there; the caller keeps the rest.
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

/// Attributes with a state, and everything else zero.
pub(crate) fn attributes(state: raw::ibv_qp_state) -> raw::ibv_qp_attr {
    // SAFETY: zeros are a value of every field.
    let mut attr: raw::ibv_qp_attr = unsafe { std::mem::zeroed() };
    attr.qp_state = state;
    attr
}
