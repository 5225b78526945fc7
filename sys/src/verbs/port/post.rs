//! Posting work requests: the critical path.

use nemesia_core::port::memory::{
    CompletionSource, PostError, ReceiveQueue, RegionAccess, RemoteRange, Slice, Work,
};
use rdma_core_sys as raw;

use super::VerbsPort;
use super::held::HeldWork;
use super::long::Share;
use super::regions::VerbsParts;
use super::ring::PostedWork;
use super::tag::{Queue, WorkTag};
use crate::cm::CmStage;

/// Returns a work request with zeros elsewhere.
#[inline]
fn request(opcode: u32, flags: u32) -> raw::ibv_send_wr {
    // SAFETY: zeros are a value of every field.
    let mut wr: raw::ibv_send_wr = unsafe { std::mem::zeroed() };
    wr.opcode = opcode;
    wr.send_flags = flags;
    wr
}

/// Posts reads and atomic operations.
#[inline]
fn is_answered(opcode: u32) -> bool {
    matches!(
        opcode,
        raw::IBV_WR_RDMA_READ | raw::IBV_WR_ATOMIC_FETCH_AND_ADD | raw::IBV_WR_ATOMIC_CMP_AND_SWP
    )
}

fn refused(code: i32) -> PostError {
    match code {
        libc::ENOMEM | libc::EAGAIN => PostError::QueueFull,
        libc::EOPNOTSUPP => PostError::Unsupported,
        // siw has ended the connection, and has not reported it yet.
        libc::ENOTCONN => PostError::NotReady,
        code => PostError::System(code),
    }
}

impl VerbsPort {
    /// Posts sends and writes.
    #[inline]
    pub(super) fn post_source(
        &mut self,
        work: Work,
        opcode: u32,
        from: CompletionSource<'_>,
        to: Option<RemoteRange>,
        immediate: Option<u32>,
    ) -> Result<(), PostError> {
        if immediate.is_some() && !self.facts.immediates {
            return Err(PostError::Unsupported);
        }
        let mut wr = request(opcode, 0);
        if let Some(to) = to {
            wr.wr.rdma.remote_addr = to.address;
            wr.wr.rdma.rkey = key(to);
        }
        // Big-endian on the wire, on every processor.
        wr.__bindgen_anon_1.imm_data = immediate.unwrap_or(0).to_be();
        match from {
            CompletionSource::Gather(slices) => {
                let mut parts = self.regions.parts(slices, self.facts.slices, |_| true)?;
                self.post(work, &mut wr, &mut parts)
            }
            CompletionSource::Inline(bytes) => {
                let limit = self.facts.inline_bytes;
                if bytes.len() > limit as usize {
                    return Err(PostError::Length { limit });
                }
                let (addr, length) = (bytes.as_ptr().expose_provenance() as u64, bytes.len() as u32);
                let mut part = [raw::ibv_sge { addr, length, lkey: 0 }];
                wr.send_flags |= if length > 0 { raw::IBV_SEND_INLINE } else { 0 };
                self.post_one(work, &mut wr, &mut part[..usize::from(length > 0)], Share::Whole)?;
                self.regions.count();
                Ok(())
            }
        }
    }

    pub(super) fn post_read(
        &mut self,
        work: Work,
        into: &[Slice],
        from: RemoteRange,
    ) -> Result<(), PostError> {
        let needs_remote = self.facts.read_needs_remote_write;
        let allows = |access: RegionAccess| access.local_write && (access.remote_write || !needs_remote);
        let mut parts = self.regions.parts(into, self.facts.read_slices, allows)?;
        let mut wr = request(raw::IBV_WR_RDMA_READ, 0);
        wr.wr.rdma.remote_addr = from.address;
        wr.wr.rdma.rkey = key(from);
        // On iWARP reads are executed and answered in order (RFC 5040, "Ordering and Completions"), and siw refuses a
        // fence before one.
        let is_iwarp = self.facts.active_speaks_first;
        if is_iwarp {
            parts.ensure_one();
        }
        self.post(Work { fence: work.fence && !is_iwarp, ..work }, &mut wr, &mut parts)
    }

    pub(super) fn post_atomic(
        &mut self,
        work: Work,
        opcode: u32,
        into: Slice,
        at: RemoteRange,
        (compare_add, swap): (u64, u64),
    ) -> Result<(), PostError> {
        if !self.facts.atomics {
            return Err(PostError::Unsupported);
        }
        let mut parts = self.regions.parts(&[into], 1, |access| access.local_write)?;
        if into.len != 8 || !parts.list[0].addr.is_multiple_of(8) || !at.address.is_multiple_of(8) {
            return Err(PostError::Alignment);
        }
        let mut wr = request(opcode, 0);
        wr.wr.atomic.remote_addr = at.address;
        wr.wr.atomic.compare_add = compare_add;
        wr.wr.atomic.swap = swap;
        wr.wr.atomic.rkey = key(at);
        self.post(work, &mut wr, &mut parts)
    }

    /// Posts operations whose bytes are in regions.
    #[inline]
    fn post(
        &mut self,
        work: Work,
        wr: &mut raw::ibv_send_wr,
        parts: &mut VerbsParts,
    ) -> Result<(), PostError> {
        if parts.len > u64::from(self.facts.message_bytes) {
            return self.post_long(work, wr, parts);
        }
        self.post_one(work, wr, parts.get(), Share::Whole)?;
        self.regions.count();
        Ok(())
    }

    /// Posts one work request of the device: an operation, or a part of one.
    #[inline]
    pub(super) fn post_one(
        &mut self,
        work: Work,
        wr: &mut raw::ibv_send_wr,
        list: &mut [raw::ibv_sge],
        share: Share,
    ) -> Result<(), PostError> {
        let holding = self.holding;
        let link = self.links.get_mut(work.connection).ok_or(PostError::NotReady)?;
        let (CmStage::Ready, Some(pair)) = (link.stage, &link.pair) else { return Err(PostError::NotReady) };
        if link.sends.len() >= self.facts.send_depth as usize {
            return Err(PostError::QueueFull);
        }
        let (index, generation) = (work.connection.index, work.connection.generation);
        let sequence = link.sends.next();
        wr.wr_id = WorkTag { queue: Queue::Send, index, generation, sequence }.encode();
        let answered = is_answered(wr.opcode);
        // If the device may report out of order, an unreported request could not be known to be done. If the
        // port replaces the device's fences, it must learn that a read was answered.
        let signalled =
            share.is_signalled(work.quiet) || self.facts.active_speaks_first || (answered && holding.fences);
        wr.send_flags |= if signalled { raw::IBV_SEND_SIGNALED } else { 0 };
        wr.send_flags |= if work.fence && !holding.fences { raw::IBV_SEND_FENCE } else { 0 };
        wr.num_sge = list.len() as i32;
        let most = holding.most_unanswered(work.fence, answered, link.reads.1);
        let waits = most.is_some_and(|most| link.sends.awaits_more_answers_before(sequence, most));
        if waits || !link.held.is_empty() {
            // SAFETY: the caller lends an inline payload for the call.
            link.held.push_back(unsafe { HeldWork::new(*wr, list, most, sequence) });
        } else {
            wr.sg_list = list.as_mut_ptr();
            // SAFETY: the list lives to the end of the call. The parts lie in registered regions that allow
            // this, and their memory was promised until they are deregistered; an inline payload is copied
            // before the call returns.
            unsafe { pair.post_send(wr) }.map_err(refused)?;
        }
        link.sends.push(PostedWork {
            id: work.id,
            quiet: work.quiet,
            signalled,
            answered,
            more: share == Share::More,
            number: self.regions.next(),
            outcome: None,
        });
        Ok(())
    }

    pub(super) fn post_receive(
        &mut self,
        queue: ReceiveQueue,
        id: u64,
        into: &[Slice],
    ) -> Result<(), PostError> {
        match queue {
            ReceiveQueue::Shared => self.post_shared(id, into),
            ReceiveQueue::Of(connection) => {
                let link = self.links.get_mut(connection).ok_or(PostError::NotReady)?;
                if link.shared || link.stage == CmStage::Over {
                    return Err(PostError::NotReady);
                }
                let mut parts = self.regions.parts(into, self.facts.slices, |access| access.local_write)?;
                if link.receives.len() >= self.facts.receive_depth as usize {
                    return Err(PostError::QueueFull);
                }
                if self.facts.active_speaks_first {
                    parts.ensure_one();
                }
                let list = parts.get();
                let sequence = link.receives.next();
                let tag = WorkTag {
                    queue: Queue::Receive,
                    index: connection.index,
                    generation: connection.generation,
                    sequence,
                };
                match &link.pair {
                    // SAFETY: the parts lie in registered regions that may be written, and their memory was
                    // promised until they are deregistered.
                    Some(pair) => unsafe { pair.post_receive(tag.encode(), list) }.map_err(refused)?,
                    None => link.early.push(list.to_vec()),
                }
                link.receives.push(PostedWork {
                    id,
                    quiet: false,
                    signalled: true,
                    answered: false,
                    more: false,
                    number: 0,
                    outcome: None,
                });
                Ok(())
            }
        }
    }

    fn post_shared(&mut self, id: u64, into: &[Slice]) -> Result<(), PostError> {
        let shared = self.shared.as_mut().ok_or(PostError::Unsupported)?;
        if self.failed {
            return Err(PostError::NotReady);
        }
        let mut parts = self.regions.parts(into, self.facts.slices, |access| access.local_write)?;
        let place = shared.posted.put(id).ok_or(PostError::QueueFull)?;
        let tag = WorkTag { queue: Queue::Shared, index: 0, generation: 0, sequence: place };
        if self.facts.active_speaks_first {
            parts.ensure_one();
        }
        let list = parts.get();
        // SAFETY: the parts lie in registered regions that may be written, and their memory was promised until
        // they are deregistered.
        let posted = unsafe { shared.queue.post(tag.encode(), list) };
        if posted.is_err() {
            shared.posted.take(place);
        }
        posted.map_err(refused)
    }
}

/// Converts a key for the device. A wider key belongs to no fabric of this type, and its low bits could be
/// another key.
fn key(at: RemoteRange) -> u32 {
    u32::try_from(at.key).unwrap_or(0)
}
