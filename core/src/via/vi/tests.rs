//! Two VIs that are connected through memory of the test, against an oracle.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::{
    LendResult, MIRROR_BATCH, MIRROR_STORAGE, MOST_READS, RemoteMemoryKind, RemoteUse, Vi, ViQueue,
    ViaCarrier,
};
use crate::via::attributes::ViAttributes;
use crate::via::codes::*;
use crate::via::descriptor::{MOST_SEGMENTS, ViaDescriptor, ViaOperation, ViaSegment};
use crate::via::record::{RegionRights, ViaRecord};
use crate::via::work_queue::WorkEntry;

type TestVi = Vi<Vec<WorkEntry>, Vec<ViaSegment>>;
type Packets = Rc<RefCell<VecDeque<(u16, u64, Vec<u8>)>>>;

/// The handle of the only region of each side, of this tag; addresses are offsets in it.
const HANDLE: u32 = 9;
const PTAG: u64 = 4;
const BYTES: usize = 4096;

/// The memory of one side: what the program sees, and its shadow.
#[derive(Debug)]
struct SideMemory {
    program: Vec<u8>,
    shadow: Option<Vec<u8>>,
    rights: RegionRights,
}

/// One side: its end of the connection.
struct ViSide {
    own: Rc<RefCell<SideMemory>>,
    other: Rc<RefCell<SideMemory>>,
    out: Packets,
    inbound: Packets,
    room: usize,
    is_cut: bool,
}

fn range(segment: ViaSegment) -> Option<core::ops::Range<usize>> {
    let end = segment.address.checked_add(segment.length.into())?;
    (segment.handle == HANDLE && end <= BYTES as u64).then_some(segment.address as usize..end as usize)
}

impl ViaCarrier for ViSide {
    fn is_local(&mut self, segment: ViaSegment, ptag: u64) -> bool {
        ptag == PTAG && range(segment).is_some()
    }

    fn remote(&mut self, segment: ViaSegment, purpose: RemoteUse) -> RemoteMemoryKind {
        let other = self.other.borrow();
        let is_permitted = match purpose {
            RemoteUse::Receive => true,
            RemoteUse::Write => other.rights.write,
            RemoteUse::Read => other.rights.read,
        };
        match (range(segment), is_permitted) {
            (Some(_), true) if other.shadow.is_some() => RemoteMemoryKind::Shadow,
            (Some(_), true) => RemoteMemoryKind::Direct,
            _ => RemoteMemoryKind::Refused,
        }
    }

    fn write(&mut self, from: ViaSegment, to: ViaSegment) -> bool {
        let (Some(from), Some(to)) = (range(from), range(to)) else { return false };
        let bytes = self.own.borrow().program[from].to_vec();
        let mut other = self.other.borrow_mut();
        let SideMemory { program, shadow, .. } = &mut *other;
        shadow.as_mut().unwrap_or(program)[to].copy_from_slice(&bytes);
        true
    }

    fn read(&mut self, from: ViaSegment, to: ViaSegment) -> bool {
        let (Some(from), Some(to)) = (range(from), range(to)) else { return false };
        let other = self.other.borrow();
        let bytes = other.shadow.as_ref().unwrap_or(&other.program)[from].to_vec();
        self.own.borrow_mut().program[to].copy_from_slice(&bytes);
        true
    }

    fn lend(&mut self, segment: ViaSegment, ptag: u64) -> LendResult {
        if self.is_local(segment, ptag) { LendResult::Done } else { LendResult::Refused }
    }

    fn is_granted(&mut self, segment: ViaSegment, ptag: u64, purpose: RemoteUse) -> bool {
        let rights = self.own.borrow().rights;
        self.is_local(segment, ptag) && if purpose == RemoteUse::Read { rights.read } else { rights.write }
    }

    fn settle(&mut self, segment: ViaSegment) -> bool {
        let Some(range) = range(segment) else { return false };
        let mut own = self.own.borrow_mut();
        let SideMemory { program, shadow, .. } = &mut *own;
        if let Some(shadow) = shadow {
            program[range.clone()].copy_from_slice(&shadow[range]);
        }
        true
    }

    fn refresh(&mut self, segment: ViaSegment) -> bool {
        let Some(range) = range(segment) else { return false };
        let mut own = self.own.borrow_mut();
        let SideMemory { program, shadow, .. } = &mut *own;
        if let Some(shadow) = shadow {
            shadow[range.clone()].copy_from_slice(&program[range]);
        }
        true
    }

    fn push(&mut self, record: &ViaRecord<'_>) -> bool {
        let encoded = record.encode();
        let has_room = self.out.borrow().len() < self.room;
        if has_room {
            self.out.borrow_mut().push_back((encoded.code, encoded.word, encoded.bytes().to_vec()));
        }
        has_room
    }

    fn change_region(&mut self, _: u32, _: Option<RegionRights>) {}

    fn cut(&mut self) {
        self.is_cut = true;
    }
}

/// Two sides.
struct ViPair {
    vis: [TestVi; 2],
    sides: [ViSide; 2],
}

fn pair(reliability: Reliability, shadow: [bool; 2], room: usize) -> ViPair {
    let attributes = ViAttributes {
        reliability,
        max_transfer: 2048,
        qos: 0,
        ptag: PTAG,
        rdma_write: true,
        rdma_read: true,
    };
    let rights = RegionRights { write: true, read: true };
    let memory = |shadow: bool| {
        let shadow = shadow.then(|| vec![0; BYTES]);
        Rc::new(RefCell::new(SideMemory { program: vec![0; BYTES], shadow, rights }))
    };
    let storage = || (vec![WorkEntry::default(); 64], vec![ViaSegment::default(); 4 * MOST_SEGMENTS]);
    let vi = || {
        let mut vi = Vi::new(attributes, storage(), storage(), vec![ViaSegment::default(); MIRROR_STORAGE]);
        assert_eq!(vi.begin_connect(), Ok(()));
        assert!(vi.connected());
        vi
    };
    let (memories, packets) = (shadow.map(memory), [Packets::default(), Packets::default()]);
    let side = |at: usize| ViSide {
        own: memories[at].clone(),
        other: memories[1 - at].clone(),
        out: packets[at].clone(),
        inbound: packets[1 - at].clone(),
        room,
        is_cut: false,
    };
    ViPair { vis: [vi(), vi()], sides: [side(0), side(1)] }
}

fn segments(list: &[(u64, u32)]) -> impl Iterator<Item = ViaSegment> + '_ {
    list.iter().map(|(address, length)| ViaSegment { address: *address, handle: HANDLE, length: *length })
}

impl ViPair {
    fn post(&mut self, side: usize, queue: ViQueue, descriptor: ViaDescriptor, list: &[(u64, u32)]) -> bool {
        let descriptor = ViaDescriptor { segments: list.len() as u16, ..descriptor };
        self.vis[side].post(queue, (7, HANDLE), descriptor, segments(list))
    }

    fn receive(&mut self, side: usize, list: &[(u64, u32)]) {
        assert!(self.post(side, ViQueue::Receive, ViaDescriptor::default(), list));
    }

    fn send(&mut self, side: usize, list: &[(u64, u32)]) {
        assert!(self.post(side, ViQueue::Send, ViaDescriptor::default(), list));
    }

    fn operate(&mut self, side: usize, operation: ViaOperation, remote: u64, list: &[(u64, u32)]) {
        let remote = ViaSegment { address: remote, handle: HANDLE, length: 0 };
        let descriptor = ViaDescriptor { operation, remote, ..Default::default() };
        assert!(self.post(side, ViQueue::Send, descriptor, list));
    }

    /// Reads at most one record, then pumps.
    fn step(&mut self, side: usize) {
        let (vi, carrier) = (&mut self.vis[side], &mut self.sides[side]);
        let packet = carrier.inbound.borrow_mut().pop_front();
        if let Some((code, word, bytes)) = packet {
            let record = ViaRecord::decode(code, word, &bytes).unwrap();
            assert_eq!(vi.arrive(record, carrier), Ok(()));
        }
        vi.pump(carrier);
    }

    fn settle(&mut self) {
        for _ in 0..400 {
            self.step(0);
            self.step(1);
        }
    }

    fn ended(&mut self, side: usize, queue: ViQueue) -> Vec<(u32, u32)> {
        while self.vis[side].report(queue).is_some() {}
        core::iter::from_fn(|| self.vis[side].take(queue)).map(|entry| (entry.status, entry.length)).collect()
    }

    fn fill(&self, side: usize, at: usize, bytes: &[u8]) {
        self.sides[side].own.borrow_mut().program[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn bytes(&self, side: usize, range: core::ops::Range<usize>) -> Vec<u8> {
        self.sides[side].own.borrow().program[range].to_vec()
    }
}

const RECEIVED: u32 = STATUS_DONE | OPERATION_RECEIVE;

#[test]
fn a_gather_list_arrives_in_a_scatter_list_at_every_level() {
    for (reliability, shadow) in [
        (Reliability::Unreliable, [false, true]),
        (Reliability::Delivery, [true, false]),
        (Reliability::Reception, [true, true]),
    ] {
        let mut pair = pair(reliability, shadow, 3);
        pair.receive(1, &[(10, 2), (20, 9)]);
        pair.fill(0, 0, b"abcdef");
        pair.send(0, &[(0, 4), (4, 2)]);
        pair.settle();
        assert_eq!(pair.ended(0, ViQueue::Send), [(STATUS_DONE, 6)]);
        assert_eq!(pair.ended(1, ViQueue::Receive), [(RECEIVED, 6)]);
        assert_eq!((pair.bytes(1, 10..12), pair.bytes(1, 20..25)), (b"ab".to_vec(), b"cdef\0".to_vec()));
    }
}

#[test]
fn rdma_writes_and_reads_use_the_memory_of_the_other_side() {
    for shadow in [false, true] {
        let mut pair = pair(Reliability::Delivery, [shadow; 2], 3);
        pair.fill(0, 0, b"abc");
        pair.fill(1, 50, b"xyz");
        pair.operate(0, ViaOperation::RdmaWrite, 100, &[(0, 2), (2, 1)]);
        pair.operate(0, ViaOperation::RdmaRead, 50, &[(200, 1), (300, 2)]);
        pair.settle();
        let ended = [OPERATION_RDMA_WRITE, OPERATION_RDMA_READ].map(|bits| (STATUS_DONE | bits, 3));
        assert_eq!(pair.ended(0, ViQueue::Send), ended);
        assert_eq!((pair.bytes(1, 100..103), pair.bytes(0, 300..302)), (b"abc".to_vec(), b"yz".to_vec()));
    }
}

#[test]
fn an_rdma_write_with_immediate_consumes_a_receive_descriptor() {
    let mut pair = pair(Reliability::Delivery, [false, true], 3);
    pair.receive(1, &[]);
    pair.fill(0, 0, b"abc");
    let remote = ViaSegment { address: 70, handle: HANDLE, length: 0 };
    let write = ViaDescriptor {
        operation: ViaOperation::RdmaWrite,
        remote,
        immediate: Some(u32::MAX),
        ..Default::default()
    };
    assert!(pair.post(0, ViQueue::Send, write, &[(0, 3)]));
    pair.settle();
    assert_eq!(pair.vis[1].report(ViQueue::Receive).and_then(|entry| entry.arrived), Some(u32::MAX));
    let status = STATUS_DONE | OPERATION_REMOTE_RDMA_WRITE | STATUS_IMMEDIATE;
    assert_eq!(pair.ended(1, ViQueue::Receive), [(status, 3)]);
    assert_eq!(pair.bytes(1, 70..73), b"abc");
}

#[test]
fn a_message_without_a_receive_descriptor_is_dropped_or_ends_the_connection() {
    let mut reliable = pair(Reliability::Delivery, [false; 2], 3);
    reliable.send(0, &[(0, 4)]);
    reliable.send(0, &[(0, 4)]);
    reliable.settle();
    let ended = [(STATUS_DONE | STATUS_REMOTE_DESCRIPTOR, 0), (STATUS_DONE | STATUS_FLUSHED, 0)];
    assert_eq!(reliable.ended(0, ViQueue::Send), ended);
    assert_eq!(reliable.vis[1].take_error(), Some(AsyncError::ReceiveQueueEmpty));
    assert_eq!(reliable.vis.each_ref().map(Vi::state), [ViState::Error; 2]);
    let mut unreliable = pair(Reliability::Unreliable, [false; 2], 3);
    unreliable.send(0, &[(0, 4)]);
    unreliable.settle();
    assert_eq!(unreliable.ended(0, ViQueue::Send), [(STATUS_DONE, 4)]);
    assert_eq!(unreliable.vis[1].take_error(), Some(AsyncError::ReceiveQueueEmpty));
    unreliable.receive(1, &[(0, 4)]);
    unreliable.send(0, &[(0, 4)]);
    unreliable.settle();
    assert_eq!(unreliable.ended(1, ViQueue::Receive), [(RECEIVED, 4)]);
}

#[test]
fn a_message_that_is_too_long_is_an_error_at_both_ends() {
    for reliability in [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception] {
        let mut pair = pair(reliability, [false; 2], 3);
        pair.receive(1, &[(0, 3)]);
        pair.send(0, &[(0, 4)]);
        pair.settle();
        let fault = if reliability.is_reliable() { STATUS_REMOTE_DESCRIPTOR } else { 0 };
        assert_eq!(pair.ended(0, ViQueue::Send)[0].0, STATUS_DONE | fault);
        assert_eq!(pair.ended(1, ViQueue::Receive), [(RECEIVED | STATUS_LENGTH, 0)]);
        let state = if reliability.is_reliable() { ViState::Error } else { ViState::Connected };
        assert_eq!(pair.vis.each_ref().map(Vi::state), [state; 2], "{reliability:?}");
    }
}

#[test]
fn local_faults_end_their_descriptor_with_the_right_bit() {
    let cases = [
        (ViaDescriptor { fault: STATUS_FORMAT, ..Default::default() }, (0, 1), STATUS_FORMAT),
        (ViaDescriptor::default(), (BYTES as u64, 1), STATUS_PROTECTION),
        (ViaDescriptor::default(), (0, 2049), STATUS_LENGTH),
    ];
    for (descriptor, segment, status) in cases {
        let mut pair = pair(Reliability::Unreliable, [false; 2], 3);
        pair.receive(1, &[(0, 4000)]);
        assert!(pair.post(0, ViQueue::Send, descriptor, &[segment]));
        pair.send(0, &[(0, 1)]);
        pair.settle();
        assert_eq!(pair.ended(0, ViQueue::Send), [(STATUS_DONE | status, 0), (STATUS_DONE, 1)]);
        let mut pair = self::pair(Reliability::Delivery, [false; 2], 3);
        assert!(pair.post(0, ViQueue::Send, descriptor, &[segment]));
        pair.settle();
        assert_eq!(pair.ended(0, ViQueue::Send), [(STATUS_DONE | status, 0)]);
        assert_eq!(pair.vis.each_ref().map(Vi::state), [ViState::Error; 2]);
    }
}

#[test]
fn memory_without_the_right_refuses_rdma_at_both_ends() {
    for (operation, bits) in
        [(ViaOperation::RdmaWrite, OPERATION_RDMA_WRITE), (ViaOperation::RdmaRead, OPERATION_RDMA_READ)]
    {
        let mut pair = pair(Reliability::Delivery, [false; 2], 3);
        pair.sides[1].own.borrow_mut().rights = RegionRights::default();
        pair.operate(0, operation, 0, &[(0, 4)]);
        pair.settle();
        assert_eq!(pair.ended(0, ViQueue::Send), [(STATUS_DONE | STATUS_RDMA_PROTECTION | bits, 0)]);
        assert_eq!(pair.vis.each_ref().map(Vi::state), [ViState::Error; 2]);
    }
    // A process that does not check by itself.
    let mut hostile = pair(Reliability::Delivery, [true; 2], 3);
    hostile.sides[1].own.borrow_mut().rights = RegionRights::default();
    let segment = ViaSegment { address: 0, handle: HANDLE, length: 4 };
    assert!(hostile.sides[0].push(&ViaRecord::Written { segment, wants_ack: false }));
    hostile.settle();
    assert_eq!(hostile.vis[1].take_error(), Some(AsyncError::RdmaWriteProtection));
}

#[test]
fn a_fence_waits_for_the_reads_before_it() {
    let mut pair = pair(Reliability::Delivery, [true; 2], 9);
    pair.receive(1, &[(0, 4)]);
    pair.receive(1, &[(0, 4)]);
    pair.settle();
    pair.operate(0, ViaOperation::RdmaRead, 0, &[(0, 4)]);
    pair.send(0, &[(0, 4)]);
    let fenced = ViaDescriptor { fence: true, ..Default::default() };
    assert!(pair.post(0, ViQueue::Send, fenced, &[(0, 4)]));
    pair.step(0);
    // The read waits for its answer; the send does not wait for the read.
    assert_eq!(pair.vis[0].queue(ViQueue::Send).next_posted(), Some(2));
    pair.settle();
    assert_eq!(pair.ended(0, ViQueue::Send).len(), 3);
}

#[test]
fn a_message_of_one_segment_is_sent_at_once_and_only_if_nothing_else_is_due() {
    let segment = |length| ViaSegment { address: 8, handle: HANDLE, length };
    let single = ViaDescriptor { segments: 1, immediate: Some(5), ..Default::default() };
    let send = |pair: &mut ViPair, descriptor: &ViaDescriptor, length| {
        pair.vis[0].send_single((7, 1), descriptor, segment(length), &mut pair.sides[0])
    };
    let mut pair = pair(Reliability::Delivery, [false; 2], 20);
    pair.fill(0, 8, b"one message");
    assert!(!send(&mut pair, &single, 4), "no receive descriptor is known");
    pair.receive(1, &[(40, 4), (60, 9)]);
    pair.receive(1, &[(80, 10)]);
    pair.settle();
    assert!(!send(&mut pair, &single, 4), "a receive descriptor with two segments");
    pair.send(0, &[(8, 4)]);
    assert!(!send(&mut pair, &single, 4), "an earlier message");
    pair.settle();
    assert!(!send(&mut pair, &single, 11), "longer than the receive descriptor");
    assert!(!send(&mut pair, &ViaDescriptor { fence: true, ..single }, 4), "fence");
    assert!(!send(&mut pair, &ViaDescriptor { segments: 2, ..single }, 4), "two segments");
    assert!(!send(&mut pair, &ViaDescriptor { operation: ViaOperation::RdmaWrite, ..single }, 4), "write");
    assert!(!pair.vis[0].send_single(
        (7, 1),
        &single,
        ViaSegment { handle: HANDLE - 1, ..segment(4) },
        &mut pair.sides[0]
    ));
    assert_eq!(pair.vis[0].queue(ViQueue::Send).len(), 1, "the refused ones are not in the queue");
    assert!(send(&mut pair, &single, 10));
    assert!(!send(&mut pair, &single, 1), "the receive descriptor is used up");
    pair.settle();
    assert_eq!(
        pair.ended(0, ViQueue::Send),
        [(STATUS_DONE | OPERATION_SEND, 4), (STATUS_DONE | OPERATION_SEND, 10)]
    );
    assert_eq!(pair.ended(1, ViQueue::Receive), [(RECEIVED, 4), (RECEIVED | STATUS_IMMEDIATE, 10)]);
    assert_eq!(&pair.sides[1].own.borrow().program[80..90], b"one messag");
}

#[test]
fn receive_descriptors_are_mirrored_in_batches() {
    let mut pair = pair(Reliability::Delivery, [false; 2], 99);
    for _ in 0..60 {
        pair.receive(1, &[(0, 4)]);
    }
    pair.step(1);
    assert_eq!(pair.sides[0].inbound.borrow().len(), 1, "one record for {MIRROR_BATCH} descriptors");
    for _ in 0..MIRROR_BATCH / 2 {
        pair.send(0, &[(0, 4)]);
    }
    pair.settle();
    assert_eq!(pair.vis[1].mirrored, MIRROR_BATCH / 2, "the next batch waits for an idle call");
    assert!(pair.vis[1].can_refill() && !pair.vis[1].must_pump());
    pair.vis[1].refill(&mut pair.sides[1]);
    assert_eq!(pair.vis[1].mirrored, MIRROR_BATCH);
    assert!(!pair.vis[1].can_refill());
    for _ in MIRROR_BATCH / 2..60 {
        pair.send(0, &[(0, 4)]);
    }
    pair.settle();
    assert_eq!(pair.ended(1, ViQueue::Receive), [(RECEIVED, 4); 60]);
}

#[test]
fn a_disconnect_and_a_loss_flush_both_queues() {
    for is_lost in [false, true] {
        let mut pair = pair(Reliability::Reception, [false; 2], 99);
        pair.receive(0, &[(0, 4)]);
        pair.receive(1, &[(0, 4)]);
        pair.step(1);
        pair.send(0, &[(0, 4)]);
        pair.send(0, &[(0, 4)]);
        pair.step(0);
        if is_lost {
            pair.vis[0].lose(AsyncError::ConnectionLost);
        } else {
            pair.vis[0].disconnect();
        }
        let first = if is_lost { STATUS_TRANSPORT } else { STATUS_FLUSHED };
        let ended = [(STATUS_DONE | first, 0), (STATUS_DONE | STATUS_FLUSHED, 0)];
        assert_eq!(pair.ended(0, ViQueue::Send), ended);
        assert_eq!(pair.ended(0, ViQueue::Receive), [(RECEIVED | STATUS_FLUSHED, 0)]);
        let state = if is_lost { ViState::Error } else { ViState::Idle };
        assert_eq!(pair.vis[0].state(), state);
        // What is posted afterwards: sends are flushed, receives only after an error.
        pair.send(0, &[(0, 4)]);
        pair.receive(0, &[(0, 4)]);
        assert_eq!(pair.ended(0, ViQueue::Send), [(STATUS_DONE | STATUS_FLUSHED, 0)]);
        assert_eq!(pair.ended(0, ViQueue::Receive).len(), usize::from(is_lost));
    }
}

#[test]
fn records_that_violate_the_protocol_are_found() {
    let message =
        |length| ViaRecord::Message { length, immediate: None, is_rdma: false, status: 0, wants_ack: false };
    let segment = ViaSegment { address: 0, handle: HANDLE, length: 4 };
    let cases = [
        message(5),
        ViaRecord::ReadAnswer { number: 0, is_permitted: true },
        ViaRecord::Ack { count: 1 },
        ViaRecord::Mirror { count: 33, bytes: &[0; 132] },
        ViaRecord::Mirror { count: 1, bytes: &[0; 3] },
        ViaRecord::Mirror { count: 1, bytes: &[0; 5] },
        ViaRecord::Mirror { count: 1, bytes: &[255; 16] },
    ];
    for record in cases {
        let mut pair = pair(Reliability::Delivery, [false; 2], 99);
        pair.receive(1, &[(0, 4)]);
        pair.step(1);
        let [_, vi] = &mut pair.vis;
        assert!(vi.arrive(record, &mut pair.sides[1]).is_err(), "{record:?}");
    }
    let mut pair = pair(Reliability::Delivery, [true; 2], 0);
    let [_, vi] = &mut pair.vis;
    assert!(vi.arrive(message(0), &mut pair.sides[1]).is_err(), "nothing is posted");
    for number in 0..=MOST_READS as u32 {
        let result = vi.arrive(ViaRecord::ReadRequest { segment, number }, &mut pair.sides[1]);
        assert_eq!(result.is_ok(), (number as usize) < MOST_READS);
    }
}

proptest! {
    #[test]
    fn messages_of_random_lists_arrive_whole_and_in_order(
        messages in prop::collection::vec(prop::collection::vec(0..40_u32, 0..5), 1..40),
        steps in prop::collection::vec(0..4_u8, 1..400),
        room in 1..6_usize,
        shadow in any::<[bool; 2]>(),
        level in 0..3_usize,
    ) {
        let levels = [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception];
        let mut pair = pair(levels[level], shadow, room);
        pair.fill(0, 0, &(0..250_u8).collect::<Vec<_>>());
        for _ in &messages {
            pair.receive(1, &[(0, 7), (1000, 200)]);
        }
        let (mut posted, mut arrived) = (0, 0);
        let mut at = 0_u64;
        let mut expected: VecDeque<Vec<u8>> = VecDeque::new();
        for step in steps.into_iter().chain([0, 1, 2, 3].repeat(300)) {
            match step {
                0 if posted < messages.len() => {
                    let list: Vec<(u64, u32)> = messages[posted].iter().map(|length| {
                        at = (at + 11) % 200;
                        (at, *length)
                    }).collect();
                    let place = |at: u64, length: u32| at as usize..at as usize + length as usize;
                    let bytes = list.iter().flat_map(|(at, length)| pair.bytes(0, place(*at, *length)));
                    expected.push_back(bytes.collect());
                    pair.send(0, &list);
                    posted += 1;
                }
                1 => pair.step(0),
                _ => pair.step(1),
            }
            // The receive buffers are the same for all messages: look at each before the next one can arrive.
            if let Some(entry) = pair.vis[1].report(ViQueue::Receive) {
                arrived += 1;
                prop_assert_eq!(entry.status, RECEIVED);
                let bytes = expected.pop_front().unwrap_or_default();
                prop_assert_eq!(entry.length as usize, bytes.len());
                if posted == arrived {
                    let (head, rest) = (bytes.len().min(7), bytes.len().saturating_sub(7));
                    prop_assert_eq!(pair.bytes(1, 0..head), &bytes[..head]);
                    prop_assert_eq!(pair.bytes(1, 1000..1000 + rest), &bytes[head..]);
                }
            }
        }
        prop_assert_eq!((posted, arrived), (messages.len(), messages.len()));
        prop_assert_eq!(pair.ended(0, ViQueue::Send).len(), messages.len());
    }
}
