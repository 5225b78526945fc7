//! The records of the other side: each is checked against what this side knows, then executed.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::{MIRROR_BATCH, RemoteUse, Vi, ViaCarrier, ViaViolation};
use crate::via::codes::{
    AsyncError, OPERATION_RECEIVE, OPERATION_REMOTE_RDMA_WRITE, STATUS_IMMEDIATE, STATUS_PROTECTION, ViState,
};
use crate::via::descriptor::{MOST_SEGMENTS, ViaSegment};
use crate::via::record::{MirrorReader, ViaRecord};
use crate::via::work_queue::WorkEntry;

impl<E: BorrowMut<[WorkEntry]>, S: BorrowMut<[ViaSegment]>> Vi<E, S> {
    /// Executes a record of the other side. Call [`Vi::pump`] after the last one that is there.
    ///
    /// # Errors
    /// The other side violated the protocol: the caller closes the connection and calls [`Vi::lose`].
    #[inline(always)]
    pub fn arrive(
        &mut self,
        record: ViaRecord<'_>,
        carrier: &mut impl ViaCarrier,
    ) -> Result<(), ViaViolation> {
        if self.state != ViState::Connected {
            return Ok(());
        }
        match record {
            ViaRecord::Message { length, immediate, is_rdma, status, wants_ack } => {
                self.acks_due += u64::from(wants_ack);
                return self.arrive_message((length, status, is_rdma), immediate, carrier);
            }
            ViaRecord::Written { segment, wants_ack } => {
                self.acks_due += u64::from(wants_ack);
                self.arrive_write(segment, carrier);
            }
            ViaRecord::Mirror { count, bytes } => return self.arrive_mirror(count, bytes),
            ViaRecord::Starved { mirrored } => {
                if mirrored > self.mirrored_total {
                    return Err(ViaViolation("more receive descriptors than were mirrored"));
                }
                // A question from before the last descriptors is answered by them, although they may be used up by now:
                // the program may be about to post more.
                self.peer_starves = mirrored == self.mirrored_total;
            }
            ViaRecord::Empty { mirrored } => {
                self.remote.asked = false;
                self.remote.exhausted = mirrored == self.remote.total && self.remote.counts.is_empty();
            }
            ViaRecord::Dropped { .. } => self.add_error(AsyncError::ReceiveQueueEmpty),
            ViaRecord::ReadRequest { segment, number } => return self.arrive_read(segment, number, carrier),
            ViaRecord::ReadAnswer { number, is_permitted } => {
                if !self.finish_read(number, is_permitted, carrier) {
                    return Err(ViaViolation("an answer to no read request"));
                }
            }
            ViaRecord::Ack { count } => {
                if !self.finish_acks(count) {
                    return Err(ViaViolation("an acknowledgement of records that were not sent"));
                }
            }
            ViaRecord::RegionGone { handle } => carrier.change_region(handle, None),
            ViaRecord::RegionRights { handle, rights } => carrier.change_region(handle, Some(rights)),
            ViaRecord::Failure { error } => self.fail(error),
            ViaRecord::Disconnect => {
                self.is_left = true;
                self.fail(AsyncError::ConnectionLost);
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn arrive_message(
        &mut self,
        (length, fault, is_rdma): (u32, u32, bool),
        immediate: Option<u32>,
        carrier: &mut impl ViaCarrier,
    ) -> Result<(), ViaViolation> {
        let position = self.receive.oldest_open();
        let Some(entry) = self.receive.peek(position).filter(|_| self.mirrored > 0) else {
            return Err(ViaViolation("a message without a receive descriptor"));
        };
        if !is_rdma && u64::from(length) > entry.total {
            return Err(ViaViolation("a message longer than its receive descriptor"));
        }
        self.mirrored -= 1;
        self.mirrored_segments -= usize::from(entry.descriptor.segments);
        let mut status = fault;
        if !is_rdma && fault == 0 {
            let mut left = length;
            let is_settled = self.receive.segments(entry).all(|segment| {
                let length = segment.length.min(left);
                left -= length;
                length == 0 || carrier.settle(ViaSegment { length, ..segment })
            });
            if !is_settled {
                status = STATUS_PROTECTION;
            }
        }
        let operation = if is_rdma { OPERATION_REMOTE_RDMA_WRITE } else { OPERATION_RECEIVE };
        let flag = if immediate.is_some() { STATUS_IMMEDIATE } else { 0 };
        let length = if status == 0 { length } else { 0 };
        self.receive.end(position, status | operation | flag, length, immediate);
        if status != 0 && self.attributes.reliability.is_reliable() {
            self.break_off(AsyncError::ConnectionLost, AsyncError::ConnectionLost, carrier);
        }
        Ok(())
    }

    #[inline(never)]
    fn arrive_write(&mut self, segment: ViaSegment, carrier: &mut impl ViaCarrier) {
        let is_granted = self.attributes.rdma_write
            && carrier.is_granted(segment, self.attributes.ptag, RemoteUse::Write)
            && carrier.settle(segment);
        if is_granted {
            return;
        }
        if self.attributes.reliability.is_reliable() {
            self.break_off(AsyncError::RdmaWriteProtection, AsyncError::ConnectionLost, carrier);
        } else {
            self.add_error(AsyncError::RdmaWriteProtection);
        }
    }

    #[inline(never)]
    fn arrive_read(
        &mut self,
        segment: ViaSegment,
        number: u32,
        carrier: &mut impl ViaCarrier,
    ) -> Result<(), ViaViolation> {
        let is_permitted = self.attributes.rdma_read
            && carrier.is_granted(segment, self.attributes.ptag, RemoteUse::Read)
            && carrier.refresh(segment);
        if !is_permitted {
            self.add_error(AsyncError::RdmaReadProtection);
        }
        if self.answers.push((number, is_permitted)) {
            Ok(())
        } else {
            Err(ViaViolation("too many read requests at once"))
        }
    }

    #[inline(never)]
    fn arrive_mirror(&mut self, count: u32, bytes: &[u8]) -> Result<(), ViaViolation> {
        self.remote.asked = false;
        self.remote.exhausted = false;
        if count as usize > MIRROR_BATCH {
            return Err(ViaViolation("too many mirrored descriptors"));
        }
        let mut reader = MirrorReader(bytes);
        for _ in 0..count {
            let Some(segments) = reader.take().filter(|segments| segments.len() <= MOST_SEGMENTS) else {
                return Err(ViaViolation("a mirrored descriptor with too many segments"));
            };
            let fits = self.remote.counts.push(segments.len() as u16);
            if !fits || !segments.into_iter().all(|segment| self.remote.segments.push(segment)) {
                return Err(ViaViolation("more mirrored descriptors than permitted"));
            }
            self.remote.total += 1;
        }
        if reader.0.is_empty() {
            Ok(())
        } else {
            Err(ViaViolation("bytes after the last mirrored descriptor"))
        }
    }
}
