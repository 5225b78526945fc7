//! The send queue: descriptors are started in order, while the other side has receive descriptors for them.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use super::{MOST_READS, RemoteMemoryKind, RemoteUse, Vi, ViaCarrier, send_bits};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::via::blocks::{Blocks, prefix};
use crate::via::codes::{
    AsyncError, OPERATION_SEND, Reliability, STATUS_LENGTH, STATUS_PROTECTION, STATUS_RDMA_PROTECTION,
    STATUS_REMOTE_DESCRIPTOR, STATUS_TRANSPORT, ViState,
};
use crate::via::descriptor::{ViaDescriptor, ViaOperation, ViaSegment};
use crate::via::record::ViaRecord;
use crate::via::work_queue::{Awaited, WorkEntry, WorkQueue};

/// The result of an attempt to start a descriptor.
enum Start {
    /// Not now.
    Wait,
    /// It ended, with these error bits.
    Ended(u32),
    /// It waits for the other side.
    Issued(Awaited),
    /// It ended with these error bits, and an error of this side; a reliable connection ends. The other side reports
    /// the error.
    Broken(u32, AsyncError),
}

impl<E: BorrowMut<[WorkEntry]>, S: BorrowMut<[ViaSegment]>> Vi<E, S> {
    /// Starts the descriptors of the send queue that can be started.
    #[inline(always)]
    pub(super) fn pump_send(&mut self, carrier: &mut impl ViaCarrier) {
        while self.state == ViState::Connected
            && let Some(position) = self.send.next_posted()
            && let Some(entry) = self.send.get(position)
        {
            let is_fenced = entry.descriptor.fence;
            #[cfg(nemesia_injected_fault)]
            let is_fenced = is_fenced && !injected(InjectedFault::ForgetQueueFence);
            if is_fenced && self.send.oldest_open() < position {
                return;
            }
            let length = u32::try_from(entry.total).unwrap_or(u32::MAX);
            match self.start(&entry, carrier) {
                Start::Wait => return,
                Start::Issued(awaited) => self.send.start(awaited),
                Start::Ended(status) => {
                    let length = if status == 0 { length } else { 0 };
                    self.send.end(position, status | send_bits(&entry), length, None);
                }
                Start::Broken(status, theirs) => {
                    self.send.end(position, status | send_bits(&entry), 0, None);
                    if self.attributes.reliability.is_reliable() {
                        self.break_off(AsyncError::ConnectionLost, theirs, carrier);
                    }
                }
            }
        }
    }

    /// Sends a message of one segment at once, if it is next in the queue and the other side has a receive descriptor
    /// of one segment that can take it. Returns whether the message was sent, and its descriptor is in the queue and
    /// has ended. If not, the caller posts the descriptor; nothing has happened to it.
    ///
    /// For a carrier whose copies are complete when its calls return. The queue must have room.
    #[inline(always)]
    pub fn send_single(
        &mut self,
        of: (u64, u32),
        descriptor: &ViaDescriptor,
        segment: ViaSegment,
        carrier: &mut impl ViaCarrier,
    ) -> bool {
        let is_next = self.state == ViState::Connected && self.send.next_posted().is_none();
        let is_plain = descriptor.operation == ViaOperation::Send
            && descriptor.segments == 1
            && descriptor.fault == 0
            && !descriptor.fence
            && self.attributes.reliability != Reliability::Reception
            && u64::from(segment.length) <= self.attributes.max_transfer;
        let target = self.remote.segments.get(0).filter(|target| segment.length <= target.length);
        let (true, true, Some(1), Some(target)) = (is_next, is_plain, self.remote.counts.get(0), target)
        else {
            return false;
        };
        let to = ViaSegment { length: segment.length, ..target };
        let is_written = segment.length == 0
            || carrier.is_local(segment, self.attributes.ptag)
                && carrier.remote(to, RemoteUse::Receive) != RemoteMemoryKind::Refused
                && carrier.write(segment, to);
        let message = ViaRecord::Message {
            length: segment.length,
            immediate: descriptor.immediate,
            is_rdma: false,
            status: 0,
            wants_ack: false,
        };
        if !is_written || !self.send.has_room(0) || !carrier.push(&message) {
            return false;
        }
        self.remote.counts.skip(1);
        self.remote.segments.skip(1);
        self.send.post_ended(of, OPERATION_SEND, segment.length)
    }

    fn start(&mut self, entry: &WorkEntry, carrier: &mut impl ViaCarrier) -> Start {
        if !carrier.has_room() {
            return Start::Wait;
        }
        if let Some(fault) = self.local_fault(entry, carrier) {
            return Start::Broken(fault, AsyncError::ConnectionLost);
        }
        match entry.descriptor.operation {
            ViaOperation::Send => self.start_send(entry, carrier),
            ViaOperation::RdmaWrite => self.start_write(entry, carrier),
            ViaOperation::RdmaRead => self.start_read(entry, carrier),
        }
    }

    /// Returns the error of a descriptor that this side finds alone.
    fn local_fault(&self, entry: &WorkEntry, carrier: &mut impl ViaCarrier) -> Option<u32> {
        if entry.descriptor.fault != 0 {
            return Some(entry.descriptor.fault);
        }
        if entry.total > self.attributes.max_transfer {
            return Some(STATUS_LENGTH);
        }
        let ptag = self.attributes.ptag;
        let is_local = self.send.segments(entry).all(|segment| carrier.is_local(segment, ptag));
        (!is_local).then_some(STATUS_PROTECTION)
    }

    /// Returns the number of segments of the oldest receive descriptor of the other side; if there is none, what
    /// happens to a descriptor that needs one.
    fn remote_receive(&mut self, entry: &WorkEntry, carrier: &mut impl ViaCarrier) -> Result<usize, Start> {
        if let Some(count) = self.remote.counts.get(0) {
            return Ok(count.into());
        }
        if !self.remote.exhausted {
            if !self.remote.asked {
                self.remote.asked = carrier.push(&ViaRecord::Starved { mirrored: self.remote.total });
            }
            return Err(Start::Wait);
        }
        self.remote.exhausted = false;
        if self.attributes.reliability.is_reliable() {
            return Err(Start::Broken(STATUS_REMOTE_DESCRIPTOR, AsyncError::ReceiveQueueEmpty));
        }
        let length = u32::try_from(entry.total).unwrap_or(u32::MAX);
        if carrier.push(&ViaRecord::Dropped { length }) {
            return Err(Start::Ended(0));
        }
        self.remote.exhausted = true;
        Err(Start::Wait)
    }

    fn start_send(&mut self, entry: &WorkEntry, carrier: &mut impl ViaCarrier) -> Start {
        let count = match self.remote_receive(entry, carrier) {
            Ok(count) => count,
            Err(start) => return start,
        };
        let scatter = (0..count).filter_map(|at| self.remote.segments.get(at));
        let room: u64 = scatter.clone().map(|segment| u64::from(segment.length)).sum();
        if room < entry.total {
            return self.refuse_message(entry, STATUS_LENGTH, carrier);
        }
        let kinds =
            prefix(scatter.clone(), entry.total).map(|segment| carrier.remote(segment, RemoteUse::Receive));
        let (mut is_refused, mut is_unknown) = (false, false);
        for kind in kinds {
            is_refused |= kind == RemoteMemoryKind::Refused;
            is_unknown |= kind == RemoteMemoryKind::Unknown;
        }
        if is_refused {
            return self.refuse_message(entry, STATUS_PROTECTION, carrier);
        }
        if is_unknown {
            return Start::Wait;
        }
        if let Some(broken) = write_all(&self.send, entry, scatter, carrier) {
            return broken;
        }
        self.finish_message(entry, 0, false, carrier)
    }

    /// Ends a message that the receive descriptor of the other side cannot take: the descriptors at both ends have an
    /// error, and a reliable connection ends.
    fn refuse_message(&mut self, entry: &WorkEntry, status: u32, carrier: &mut impl ViaCarrier) -> Start {
        match self.finish_message(entry, status, false, carrier) {
            Start::Wait => Start::Wait,
            _ if self.attributes.reliability.is_reliable() => {
                Start::Broken(STATUS_REMOTE_DESCRIPTOR, AsyncError::ConnectionLost)
            }
            _ => Start::Ended(0),
        }
    }

    /// Sends the record of a message, and removes the receive descriptor that it consumes.
    fn finish_message(
        &mut self,
        entry: &WorkEntry,
        status: u32,
        is_rdma: bool,
        carrier: &mut impl ViaCarrier,
    ) -> Start {
        let wants_ack = self.attributes.reliability == Reliability::Reception && status == 0;
        let length = if status == 0 { u32::try_from(entry.total).unwrap_or(u32::MAX) } else { 0 };
        let immediate = entry.descriptor.immediate;
        if !carrier.push(&ViaRecord::Message { length, immediate, is_rdma, status, wants_ack }) {
            return Start::Wait;
        }
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::KeepMirrored) {
            return self.acknowledged(wants_ack, carrier);
        }
        if let Some(count) = self.remote.counts.pop() {
            self.remote.segments.skip(count.into());
        }
        self.acknowledged(wants_ack, carrier)
    }

    /// Returns what a descriptor waits for whose transfers and records were handed to the connection.
    fn acknowledged(&mut self, wants_ack: bool, carrier: &mut impl ViaCarrier) -> Start {
        if !wants_ack {
            return begun(carrier);
        }
        self.acks_wanted += 1;
        Start::Issued(Awaited::Ack(self.acks_wanted))
    }

    fn start_write(&mut self, entry: &WorkEntry, carrier: &mut impl ViaCarrier) -> Start {
        let target = remote_range(entry);
        let has_immediate = entry.descriptor.immediate.is_some();
        if has_immediate && let Err(start) = self.remote_receive(entry, carrier) {
            return start;
        }
        let kind = carrier.remote(target, RemoteUse::Write);
        if kind == RemoteMemoryKind::Refused {
            return Start::Broken(STATUS_RDMA_PROTECTION, AsyncError::RdmaWriteProtection);
        }
        if kind == RemoteMemoryKind::Unknown {
            return Start::Wait;
        }
        if let Some(broken) = write_all(&self.send, entry, core::iter::once(target), carrier) {
            return broken;
        }
        let wants_ack = self.attributes.reliability == Reliability::Reception;
        let written = ViaRecord::Written { segment: target, wants_ack: wants_ack && !has_immediate };
        let is_reported = kind == RemoteMemoryKind::Shadow || wants_ack && !has_immediate;
        if is_reported && !carrier.push(&written) {
            return Start::Wait;
        }
        if has_immediate {
            self.finish_message(entry, 0, true, carrier)
        } else {
            self.acknowledged(wants_ack, carrier)
        }
    }

    fn start_read(&mut self, entry: &WorkEntry, carrier: &mut impl ViaCarrier) -> Start {
        let source = remote_range(entry);
        let kind = if self.attributes.reliability.is_reliable() {
            carrier.remote(source, RemoteUse::Read)
        } else {
            RemoteMemoryKind::Refused
        };
        match kind {
            RemoteMemoryKind::Refused => {
                Start::Broken(STATUS_RDMA_PROTECTION, AsyncError::RdmaReadProtection)
            }
            RemoteMemoryKind::Unknown => Start::Wait,
            RemoteMemoryKind::Direct => read_all(&self.send, entry, carrier),
            RemoteMemoryKind::Shadow => {
                let reads = self.send.issued().filter(|(_, awaited)| matches!(awaited, Awaited::Read(_)));
                if reads.count() >= MOST_READS {
                    return Start::Wait;
                }
                let number = self.next_read;
                if !carrier.push(&ViaRecord::ReadRequest { segment: source, number }) {
                    return Start::Wait;
                }
                self.next_read = number.wrapping_add(1);
                Start::Issued(Awaited::Read(number))
            }
        }
    }

    /// Completes an RDMA read whose source the other side has copied to its shadow.
    pub(super) fn finish_read(
        &mut self,
        number: u32,
        is_permitted: bool,
        carrier: &mut impl ViaCarrier,
    ) -> bool {
        let mut issued = self.send.issued();
        let found = issued.find(|(_, awaited)| *awaited == Awaited::Read(number));
        drop(issued);
        let Some((position, _)) = found else { return false };
        let Some(entry) = self.send.get(position) else { return false };
        let start = if is_permitted {
            read_all(&self.send, &entry, carrier)
        } else {
            Start::Broken(STATUS_RDMA_PROTECTION, AsyncError::RdmaReadProtection)
        };
        let (status, broken) = match start {
            Start::Broken(status, error) => (status, Some(error)),
            Start::Issued(awaited) => {
                self.send.await_more(position, awaited);
                return true;
            }
            _ => (0, None),
        };
        let length = if status == 0 { u32::try_from(entry.total).unwrap_or(u32::MAX) } else { 0 };
        self.send.end(position, status | send_bits(&entry), length, None);
        if let Some(error) = broken {
            self.break_off(AsyncError::ConnectionLost, error, carrier);
        }
        true
    }

    /// Completes the descriptors that waited for the acknowledgement of these records. False if there are not so many.
    pub(super) fn finish_acks(&mut self, count: u64) -> bool {
        if count > self.acks_wanted {
            return false;
        }
        self.finish_awaited(|awaited| matches!(awaited, Awaited::Ack(number) if number <= count));
        true
    }

    /// Completes the descriptors that waited for the transfers up to this number, which the connection has executed:
    /// see [`ViaCarrier::pending`].
    pub fn transferred(&mut self, last: u64) {
        self.finish_awaited(|awaited| matches!(awaited, Awaited::Transfer(number) if number <= last));
    }

    fn finish_awaited(&mut self, is_over: impl Fn(Awaited) -> bool) {
        loop {
            let mut issued = self.send.issued();
            let found = issued.find(|(_, awaited)| is_over(*awaited));
            drop(issued);
            let Some((position, _)) = found else { return };
            let Some(entry) = self.send.get(position) else { return };
            let length = u32::try_from(entry.total).unwrap_or(u32::MAX);
            self.send.end(position, send_bits(&entry), length, None);
        }
    }
}

/// Returns the start of a descriptor whose transfers the connection has taken over: it ended if they have.
fn begun(carrier: &mut impl ViaCarrier) -> Start {
    #[cfg(nemesia_injected_fault)]
    if injected(InjectedFault::EndTransferEarly) {
        return Start::Ended(0);
    }
    carrier.pending().map_or(Start::Ended(0), |number| Start::Issued(Awaited::Transfer(number)))
}

/// Returns the remote range of an RDMA operation.
fn remote_range(entry: &WorkEntry) -> ViaSegment {
    ViaSegment { length: u32::try_from(entry.total).unwrap_or(u32::MAX), ..entry.descriptor.remote }
}

/// Copies all bytes of a descriptor to the other side. Returns the error if a block is not there any more.
fn write_all<E: BorrowMut<[WorkEntry]>, S: BorrowMut<[ViaSegment]>>(
    queue: &WorkQueue<E, S>,
    entry: &WorkEntry,
    scatter: impl Iterator<Item = ViaSegment>,
    carrier: &mut impl ViaCarrier,
) -> Option<Start> {
    let mut blocks = Blocks::new(queue.segments(entry), scatter, entry.total);
    let is_written = blocks.all(|(from, to)| carrier.write(from, to));
    (!is_written).then_some(Start::Broken(STATUS_TRANSPORT, AsyncError::RdmaWriteAbort))
}

/// Copies all bytes of an RDMA read.
fn read_all<E: BorrowMut<[WorkEntry]>, S: BorrowMut<[ViaSegment]>>(
    queue: &WorkQueue<E, S>,
    entry: &WorkEntry,
    carrier: &mut impl ViaCarrier,
) -> Start {
    let source = core::iter::once(remote_range(entry));
    let mut blocks = Blocks::new(source, queue.segments(entry), entry.total);
    if blocks.all(|(from, to)| carrier.read(from, to)) {
        begun(carrier)
    } else {
        Start::Broken(STATUS_TRANSPORT, AsyncError::ConnectionLost)
    }
}
