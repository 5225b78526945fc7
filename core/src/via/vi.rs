//! A virtual interface (paper 2, sections 1.3.1, 1.4.1, 1.4.3 and 1.4.4): its state, its two work queues, and the
//! protocol by which two connected VIs move data.
//!
//! The sender has copies of the receiver's oldest receive descriptors (32 by default) and moves the bytes itself: it
//! stores them into the memory that the receiver lent, or reads them from there, through its [`ViaCarrier`]. Then it
//! sends a record. So the sender knows the completion from its own copy, and the receiver is informed by the record.
//!
//! If memory is a shadow of user memory, the owner copies between both: after a record that reports an arrival, and
//! before an RDMA read, which is then a request and an answer.
//!
//! | file | contents |
//! |---|---|
//! | `sending.rs` | the send queue, and the mirrored receive descriptors of the other side |
//! | `receiving.rs` | the receive queue, and its mirror at the other side |
//! | `arriving.rs` | the records of the other side |
#![forbid(unsafe_code)]

mod arriving;
mod receiving;
mod sending;

use core::borrow::BorrowMut;

use super::attributes::ViAttributes;
use super::codes::{self, AsyncError, ViState, ViaError};
use super::descriptor::{ViaDescriptor, ViaOperation, ViaSegment};
use super::fifo::Fifo;
use super::record::ViaRecord;
use super::work_queue::{WorkEntry, WorkQueue};

/// Receive descriptors that are mirrored at the other side, at most: the default of paper 2.
pub const MIRROR_BATCH: usize = 32;
/// Mirrored descriptors that are left when the next batch is sent at the latest.
const MIRROR_LATEST: usize = MIRROR_BATCH * 3 / 8;
/// Segments of all mirrored descriptors, at most, unless a single descriptor has more.
pub const MIRROR_SEGMENTS: usize = 1024;
/// Segments for which the storage of the mirror has room.
pub const MIRROR_STORAGE: usize = MIRROR_SEGMENTS + super::descriptor::MOST_SEGMENTS;
/// RDMA reads that wait for the answer of the other side, at most.
pub const MOST_READS: usize = 16;

/// How the memory of the other side can be used for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteMemoryKind {
    /// The operation is not permitted.
    Refused,
    /// Not known yet: the carrier asks the other side. The descriptor waits.
    Unknown,
    /// It is the memory of the program.
    Direct,
    /// It is a shadow: its owner copies.
    Shadow,
}

/// The purpose for which memory of the other side is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteUse {
    /// The memory of a mirrored receive descriptor.
    Receive,
    /// The target of an RDMA write.
    Write,
    /// The source of an RDMA read.
    Read,
}

/// The result of lending memory to the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LendResult {
    /// The other side can use it.
    Done,
    /// It is not registered, or has another protection tag.
    Refused,
    /// Not now.
    Later,
}

/// The connection of a VI: what moves its bytes and records. All of its methods are bounded, and none waits.
pub trait ViaCarrier {
    /// Returns whether a local segment is registered under this protection tag.
    fn is_local(&mut self, segment: ViaSegment, ptag: u64) -> bool;
    /// Returns how a range of the other side can be used.
    fn remote(&mut self, segment: ViaSegment, purpose: RemoteUse) -> RemoteMemoryKind;
    /// Returns whether all blocks and records of one more descriptor have room. Then neither [`ViaCarrier::write`] nor
    /// [`ViaCarrier::read`] fails for lack of room before the descriptor is started, and [`ViaCarrier::push`] succeeds.
    fn has_room(&mut self) -> bool {
        true
    }
    /// Returns the number of the last transfer or record that was begun, if it has not ended: a descriptor that began
    /// it ends by [`Vi::transferred`]. `None` if each copy is complete when its call returns, as between processes of
    /// one machine.
    fn pending(&mut self) -> Option<u64> {
        None
    }
    /// Copies a local block to a block of the other side; false if one of them is not there any more.
    fn write(&mut self, from: ViaSegment, to: ViaSegment) -> bool;
    /// Copies a block of the other side to a local block; false if one of them is not there any more.
    fn read(&mut self, from: ViaSegment, to: ViaSegment) -> bool;
    /// Lends the memory of a receive segment to the other side, if that has not happened before. The segment may reach
    /// past its registration: the sender checks the bytes that it places.
    fn lend(&mut self, segment: ViaSegment, ptag: u64) -> LendResult;
    /// Returns whether the other side may use this local range by RDMA under this protection tag.
    fn is_granted(&mut self, segment: ViaSegment, ptag: u64, purpose: RemoteUse) -> bool;
    /// Copies what arrived from the shadow, if there is one, to the memory of the program.
    fn settle(&mut self, segment: ViaSegment) -> bool;
    /// Copies the memory of the program to its shadow, if there is one.
    fn refresh(&mut self, segment: ViaSegment) -> bool;
    /// Sends a record. Returns whether there was room.
    fn push(&mut self, record: &ViaRecord<'_>) -> bool;
    /// Takes note that the other side deregistered a region, or changed its rights (`Some`).
    fn change_region(&mut self, handle: u32, rights: Option<super::record::RegionRights>);
    /// Ends the connection: no further record of the other side is of interest.
    fn cut(&mut self);
}

/// The queue of a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViQueue {
    /// The send queue.
    Send,
    /// The receive queue.
    Receive,
}

/// A violation of the protocol by the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other side violated the protocol: {0}")]
pub struct ViaViolation(pub &'static str);

/// The receive descriptors of the other side that are known here.
#[derive(Debug)]
struct RemoteReceives<S: BorrowMut<[ViaSegment]>> {
    counts: Fifo<u16, [u16; MIRROR_BATCH]>,
    segments: Fifo<ViaSegment, S>,
    /// The number of descriptors since the connection.
    total: u64,
    /// Whether more were requested.
    asked: bool,
    /// Whether the other side has no more.
    exhausted: bool,
}

/// A virtual interface over lent storage.
#[derive(Debug)]
pub struct Vi<E: BorrowMut<[WorkEntry]>, S: BorrowMut<[ViaSegment]>> {
    /// The attributes; they change only while the VI is idle.
    pub attributes: ViAttributes,
    state: ViState,
    send: WorkQueue<E, S>,
    receive: WorkQueue<E, S>,
    remote: RemoteReceives<S>,
    /// Receive descriptors that the other side knows: the oldest ones that have not ended.
    mirrored: usize,
    mirrored_segments: usize,
    mirrored_total: u64,
    /// Whether the other side waits for receive descriptors.
    peer_starves: bool,
    /// Records of this side that asked for an acknowledgement.
    acks_wanted: u64,
    /// Records of the other side that did, and how many of them were acknowledged.
    acks_due: u64,
    acks_sent: u64,
    next_read: u32,
    /// Answers to read requests that could not be sent yet.
    answers: Fifo<(u32, bool), [(u32, bool); MOST_READS]>,
    /// Errors that no descriptor reports, one bit each.
    errors: u16,
    /// Whether the other side has disconnected.
    is_left: bool,
}

impl<E: BorrowMut<[WorkEntry]>, S: BorrowMut<[ViaSegment]>> Vi<E, S> {
    /// Returns an idle VI. `mirror` has [`MIRROR_STORAGE`] places; the queues have storage for at least one descriptor.
    pub fn new(attributes: ViAttributes, send: (E, S), receive: (E, S), mirror: S) -> Self {
        Self {
            attributes,
            state: ViState::Idle,
            send: WorkQueue::new(send.0, send.1),
            receive: WorkQueue::new(receive.0, receive.1),
            remote: RemoteReceives {
                counts: Fifo::new([0; MIRROR_BATCH]),
                segments: Fifo::new(mirror),
                total: 0,
                asked: false,
                exhausted: false,
            },
            mirrored: 0,
            mirrored_segments: 0,
            mirrored_total: 0,
            peer_starves: false,
            acks_wanted: 0,
            acks_due: 0,
            acks_sent: 0,
            next_read: 0,
            answers: Fifo::new([(0, false); MOST_READS]),
            errors: 0,
            is_left: false,
        }
    }

    /// Returns the state.
    #[inline(always)]
    pub const fn state(&self) -> ViState {
        self.state
    }

    /// Returns a queue, to be inspected or given more storage.
    #[inline(always)]
    pub fn queue(&mut self, queue: ViQueue) -> &mut WorkQueue<E, S> {
        match queue {
            ViQueue::Send => &mut self.send,
            ViQueue::Receive => &mut self.receive,
        }
    }

    /// Posts a descriptor. Nothing is sent before the next [`Vi::pump`]. The queue must have room.
    #[inline(always)]
    pub fn post(
        &mut self,
        queue: ViQueue,
        (cookie, handle): (u64, u32),
        descriptor: ViaDescriptor,
        segments: impl Iterator<Item = ViaSegment>,
    ) -> bool {
        let is_posted = self.queue(queue).post(cookie, handle, descriptor, segments);
        let is_dead = match queue {
            // A send needs a connection; a receive can be posted before.
            ViQueue::Send => self.state != ViState::Connected,
            ViQueue::Receive => self.state == ViState::Error,
        };
        if is_posted && is_dead {
            self.flush_queue(queue, false);
        }
        is_posted
    }

    /// Returns whether the last connection ended because the program of the other side has disconnected.
    pub const fn is_left(&self) -> bool {
        self.is_left
    }

    /// Begins to connect.
    ///
    /// # Errors
    /// [`ViaError::InvalidState`] unless the VI is idle.
    pub fn begin_connect(&mut self) -> Result<(), ViaError> {
        if self.state != ViState::Idle {
            return Err(ViaError::InvalidState);
        }
        self.state = ViState::ConnectPending;
        Ok(())
    }

    /// Ends an attempt to connect without success.
    pub fn abandon_connect(&mut self) {
        if self.state == ViState::ConnectPending {
            self.state = ViState::Idle;
        }
    }

    /// Completes an attempt to connect. False if the attempt was abandoned meanwhile.
    pub fn connected(&mut self) -> bool {
        if self.state != ViState::ConnectPending {
            return false;
        }
        self.forget_connection();
        self.state = ViState::Connected;
        true
    }

    fn forget_connection(&mut self) {
        self.remote.counts.skip(MIRROR_BATCH);
        self.remote.segments.skip(usize::MAX);
        (self.remote.total, self.remote.asked, self.remote.exhausted) = (0, false, false);
        (self.mirrored, self.mirrored_segments, self.mirrored_total) = (0, 0, 0);
        (self.acks_wanted, self.acks_due, self.acks_sent) = (0, 0, 0);
        self.answers.skip(MOST_READS);
        (self.next_read, self.peer_starves, self.is_left) = (0, false, false);
    }

    /// Disconnects: all descriptors that have not ended are flushed, and the VI is idle. The caller closes the
    /// connection.
    pub fn disconnect(&mut self) {
        self.flush_queue(ViQueue::Send, false);
        self.flush_queue(ViQueue::Receive, false);
        self.forget_connection();
        self.state = ViState::Idle;
    }

    /// Takes note that the connection is lost. The oldest descriptor of the send queue is then in progress, even if it
    /// waits for word of the other side before its transfer.
    pub fn lose(&mut self, error: AsyncError) {
        if self.state == ViState::Connected {
            let oldest = self.send.oldest_open();
            if let Some(entry) = self.send.get(oldest) {
                self.send.end(oldest, codes::STATUS_TRANSPORT | send_bits(&entry), 0, None);
            }
            self.fail(error);
        }
    }

    fn fail(&mut self, error: AsyncError) {
        self.errors |= 1 << error as u16;
        self.state = ViState::Error;
        self.flush_queue(ViQueue::Send, true);
        self.flush_queue(ViQueue::Receive, true);
    }

    /// Fails the connection because of an error on this side, and informs the other one, which reports `theirs`.
    fn break_off(&mut self, ours: AsyncError, theirs: AsyncError, carrier: &mut impl ViaCarrier) {
        self.fail(ours);
        carrier.push(&ViaRecord::Failure { error: theirs });
        carrier.cut();
    }

    fn flush_queue(&mut self, queue: ViQueue, is_lost: bool) {
        match queue {
            ViQueue::Send => self.send.flush(is_lost, send_bits),
            ViQueue::Receive => {
                self.receive.flush(is_lost, |_| codes::OPERATION_RECEIVE);
                (self.mirrored, self.mirrored_segments) = (0, 0);
            }
        }
    }

    /// Takes the next error that no descriptor reports.
    #[inline(always)]
    pub fn take_error(&mut self) -> Option<AsyncError> {
        if self.errors == 0 {
            return None;
        }
        let error = AsyncError::ALL.into_iter().find(|error| self.errors & 1 << *error as u16 != 0)?;
        self.errors &= !(1 << error as u16);
        Some(error)
    }

    /// Adds an error that no descriptor reports.
    pub fn add_error(&mut self, error: AsyncError) {
        self.errors |= 1 << error as u16;
    }

    /// Reports the next descriptor of a queue that has ended: the caller writes it back to its memory.
    #[inline(always)]
    pub fn report(&mut self, queue: ViQueue) -> Option<WorkEntry> {
        self.queue(queue).report()
    }

    /// Takes the oldest descriptor of a queue, if it was reported.
    #[inline(always)]
    pub fn take(&mut self, queue: ViQueue) -> Option<WorkEntry> {
        self.queue(queue).take()
    }

    /// Does all work that is possible now, apart from reading records. Sends go first: a batch of receive descriptors
    /// can wait for a call of [`Vi::refill`] until the other side has few left.
    pub fn pump(&mut self, carrier: &mut impl ViaCarrier) {
        if self.state != ViState::Connected {
            return;
        }
        self.pump_send(carrier);
        if self.must_mirror() {
            self.mirror_all(carrier);
        }
        self.answer_starved(carrier);
        self.pump_answers(carrier);
    }

    /// Returns whether [`Vi::pump`] can have something to do: work waits, or receive descriptors must be mirrored now.
    #[inline(always)]
    pub fn must_pump(&self) -> bool {
        self.is_blocked() || self.must_mirror()
    }

    /// Returns whether half of a batch of receive descriptors is used up, and [`Vi::refill`] can mirror more. The
    /// caller does so when it has nothing else to do: when the program polls in vain.
    #[inline(always)]
    pub fn can_refill(&self) -> bool {
        self.mirrored <= MIRROR_BATCH / 2 && self.state == ViState::Connected && self.unmirrored() > 0
    }

    /// Mirrors receive descriptors, if half of the last batch is used up.
    pub fn refill(&mut self, carrier: &mut impl ViaCarrier) {
        if self.can_refill() {
            self.mirror_all(carrier);
        }
    }

    /// Returns whether work is left that waits for room in the connection or for the other side.
    #[inline(always)]
    pub fn is_blocked(&self) -> bool {
        self.state == ViState::Connected
            && (self.send.next_posted().is_some()
                || self.acks_due > self.acks_sent
                || !self.answers.is_empty()
                || self.peer_starves)
    }
}

/// Returns the operation bits of the status of a descriptor in a send queue.
fn send_bits(entry: &WorkEntry) -> u32 {
    match entry.descriptor.operation {
        ViaOperation::Send => codes::OPERATION_SEND,
        ViaOperation::RdmaWrite => codes::OPERATION_RDMA_WRITE,
        ViaOperation::RdmaRead => codes::OPERATION_RDMA_READ,
    }
}

#[cfg(test)]
mod late;
#[cfg(test)]
mod tests;
