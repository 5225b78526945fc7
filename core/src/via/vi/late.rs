//! A VI whose connection ends transfers later than the calls that begin them, as between machines.

use std::vec;
use std::vec::Vec;

use super::{LendResult, MIRROR_STORAGE, RemoteMemoryKind, RemoteUse, Vi, ViQueue, ViaCarrier};
use crate::via::attributes::ViAttributes;
use crate::via::codes::*;
use crate::via::descriptor::{MOST_SEGMENTS, ViaDescriptor, ViaOperation, ViaSegment};
use crate::via::record::{MirrorWriter, RegionRights, ViaRecord};
use crate::via::work_queue::WorkEntry;

type LateVi = Vi<Vec<WorkEntry>, Vec<ViaSegment>>;

const SEGMENT: ViaSegment = ViaSegment { address: 64, handle: 3, length: 8 };

struct LateCarrier {
    /// Writes, reads and records that were begun, and that have ended.
    begun: u64,
    ended: u64,
    has_room: bool,
    kind: RemoteMemoryKind,
}

impl LateCarrier {
    fn new() -> Self {
        Self { begun: 0, ended: 0, has_room: true, kind: RemoteMemoryKind::Direct }
    }

    fn end(&mut self, vi: &mut LateVi, count: u64) {
        self.ended += count;
        vi.transferred(self.ended);
    }
}

impl ViaCarrier for LateCarrier {
    fn is_local(&mut self, _: ViaSegment, _: u64) -> bool {
        true
    }

    fn remote(&mut self, _: ViaSegment, _: RemoteUse) -> RemoteMemoryKind {
        self.kind
    }

    fn has_room(&mut self) -> bool {
        self.has_room
    }

    fn pending(&mut self) -> Option<u64> {
        (self.ended < self.begun).then_some(self.begun)
    }

    fn write(&mut self, _: ViaSegment, _: ViaSegment) -> bool {
        self.begun += 1;
        true
    }

    fn read(&mut self, _: ViaSegment, _: ViaSegment) -> bool {
        self.begun += 1;
        true
    }

    fn lend(&mut self, _: ViaSegment, _: u64) -> LendResult {
        LendResult::Done
    }

    fn is_granted(&mut self, _: ViaSegment, _: u64, _: RemoteUse) -> bool {
        true
    }

    fn settle(&mut self, _: ViaSegment) -> bool {
        true
    }

    fn refresh(&mut self, _: ViaSegment) -> bool {
        true
    }

    fn push(&mut self, _: &ViaRecord<'_>) -> bool {
        self.begun += 1;
        true
    }

    fn change_region(&mut self, _: u32, _: Option<RegionRights>) {}

    fn cut(&mut self) {}
}

/// Returns a connected VI that knows two receive descriptors of the other side.
fn connected(reliability: Reliability) -> (LateVi, LateCarrier) {
    let attributes =
        ViAttributes { reliability, max_transfer: 4096, qos: 0, ptag: 1, rdma_write: true, rdma_read: true };
    let storage = || (vec![WorkEntry::default(); 8], vec![ViaSegment::default(); MOST_SEGMENTS]);
    let mut vi = Vi::new(attributes, storage(), storage(), vec![ViaSegment::default(); MIRROR_STORAGE]);
    assert_eq!(vi.begin_connect(), Ok(()));
    assert!(vi.connected());
    let mut carrier = LateCarrier::new();
    let mut room = [0; 64];
    let mut list = MirrorWriter::new(&mut room);
    assert!(list.push(1, [SEGMENT].into_iter()) && list.push(1, [SEGMENT].into_iter()));
    assert_eq!(vi.arrive(list.record(), &mut carrier), Ok(()));
    (vi, carrier)
}

fn post(vi: &mut LateVi, operation: ViaOperation, fence: bool) {
    let descriptor =
        ViaDescriptor { operation, remote: SEGMENT, fence, segments: 1, ..ViaDescriptor::default() };
    assert!(vi.post(ViQueue::Send, (0, 1), descriptor, [SEGMENT].into_iter()));
}

fn ended(vi: &mut LateVi) -> Vec<u32> {
    while vi.report(ViQueue::Send).is_some() {}
    core::iter::from_fn(|| vi.take(ViQueue::Send)).map(|entry| entry.status).collect()
}

#[test]
fn a_descriptor_ends_when_its_last_transfer_has_ended() {
    for (operation, bits) in [
        (ViaOperation::Send, OPERATION_SEND),
        (ViaOperation::RdmaWrite, OPERATION_RDMA_WRITE),
        (ViaOperation::RdmaRead, OPERATION_RDMA_READ),
    ] {
        let (mut vi, mut carrier) = connected(Reliability::Delivery);
        post(&mut vi, operation, false);
        vi.pump(&mut carrier);
        let last = carrier.begun;
        assert!(last > 0 && ended(&mut vi).is_empty(), "{operation:?}");
        carrier.end(&mut vi, last - 1);
        assert!(ended(&mut vi).is_empty(), "{operation:?}");
        carrier.end(&mut vi, 1);
        assert_eq!(ended(&mut vi), [STATUS_DONE | bits], "{operation:?}");
    }
}

#[test]
fn reliable_reception_waits_for_the_acknowledgement_and_not_for_the_transfer() {
    let (mut vi, mut carrier) = connected(Reliability::Reception);
    post(&mut vi, ViaOperation::Send, false);
    vi.pump(&mut carrier);
    let last = carrier.begun;
    carrier.end(&mut vi, last);
    assert!(ended(&mut vi).is_empty());
    assert_eq!(vi.arrive(ViaRecord::Ack { count: 1 }, &mut carrier), Ok(()));
    assert_eq!(ended(&mut vi), [STATUS_DONE | OPERATION_SEND]);
}

#[test]
fn a_fenced_descriptor_begins_when_those_before_it_have_ended() {
    let (mut vi, mut carrier) = connected(Reliability::Delivery);
    post(&mut vi, ViaOperation::RdmaRead, false);
    post(&mut vi, ViaOperation::Send, true);
    vi.pump(&mut carrier);
    assert_eq!(carrier.begun, 1, "only the read");
    carrier.end(&mut vi, 1);
    vi.pump(&mut carrier);
    assert!(carrier.begun > 1);
}

#[test]
fn a_descriptor_waits_for_room_and_for_what_the_other_side_answers() {
    let (mut vi, mut carrier) = connected(Reliability::Delivery);
    carrier.has_room = false;
    post(&mut vi, ViaOperation::RdmaWrite, false);
    vi.pump(&mut carrier);
    carrier.has_room = true;
    carrier.kind = RemoteMemoryKind::Unknown;
    vi.pump(&mut carrier);
    assert!(carrier.begun == 0 && vi.is_blocked() && ended(&mut vi).is_empty());
    carrier.kind = RemoteMemoryKind::Refused;
    vi.pump(&mut carrier);
    assert_eq!(ended(&mut vi), [STATUS_DONE | STATUS_RDMA_PROTECTION | OPERATION_RDMA_WRITE]);
}

#[test]
fn transfers_in_progress_are_lost_with_the_connection_and_flushed_by_a_disconnect() {
    for (is_lost, status) in [(true, STATUS_TRANSPORT), (false, STATUS_FLUSHED)] {
        let (mut vi, mut carrier) = connected(Reliability::Delivery);
        post(&mut vi, ViaOperation::Send, false);
        vi.pump(&mut carrier);
        if is_lost {
            vi.lose(AsyncError::ConnectionLost);
        } else {
            vi.disconnect();
        }
        let last = carrier.begun;
        carrier.end(&mut vi, last);
        assert_eq!(ended(&mut vi), [STATUS_DONE | OPERATION_SEND | status]);
    }
}

#[test]
fn of_descriptors_that_wait_for_the_other_side_the_oldest_is_lost_with_the_connection() {
    let (mut vi, mut carrier) = connected(Reliability::Delivery);
    carrier.kind = RemoteMemoryKind::Unknown;
    post(&mut vi, ViaOperation::RdmaRead, false);
    post(&mut vi, ViaOperation::RdmaRead, false);
    vi.pump(&mut carrier);
    assert!(carrier.begun == 0 && ended(&mut vi).is_empty());
    vi.lose(AsyncError::ConnectionLost);
    let bits = STATUS_DONE | OPERATION_RDMA_READ;
    assert_eq!(ended(&mut vi), [bits | STATUS_TRANSPORT, bits | STATUS_FLUSHED]);
}

#[test]
fn a_question_is_answered_by_descriptors_that_were_mirrored_after_it() {
    let (mut vi, mut carrier) = connected(Reliability::Delivery);
    let descriptor = ViaDescriptor { segments: 0, ..ViaDescriptor::default() };
    assert!(vi.post(ViQueue::Receive, (1, 1), descriptor, core::iter::empty()));
    vi.pump(&mut carrier);
    vi.refill(&mut carrier);
    let message =
        ViaRecord::Message { length: 0, immediate: None, is_rdma: false, status: 0, wants_ack: false };
    vi.arrive(message, &mut carrier).unwrap();
    let before = carrier.begun;
    vi.arrive(ViaRecord::Starved { mirrored: 0 }, &mut carrier).unwrap();
    vi.pump(&mut carrier);
    assert_eq!(carrier.begun, before);
    vi.arrive(ViaRecord::Starved { mirrored: 1 }, &mut carrier).unwrap();
    vi.pump(&mut carrier);
    assert_eq!(carrier.begun, before + 1);
    assert!(vi.arrive(ViaRecord::Starved { mirrored: 2 }, &mut carrier).is_err());
}
