//! The fuzz targets of virtual interfaces: frames of the connection setup, which any process may send by TCP; records
//! and mirrored descriptors, which a connected process writes to shared memory; descriptors, which a program writes.

use nemesia_core::via::codes::{Reliability, STATUS_DONE};
use nemesia_core::via::descriptor::{CONTROL_BYTES, MOST_SEGMENTS, SEGMENT_BYTES, segment_count};
use nemesia_core::via::record::{RegionRights, ViaRecord};
use nemesia_core::via::setup::{SETUP_BYTES, SETUP_MAGIC, SETUP_VERSION, SetupFrame};
use nemesia_core::via::vi::{LendResult, MIRROR_STORAGE, RemoteMemoryKind, RemoteUse, ViQueue, ViaCarrier};
use nemesia_core::via::work_queue::WorkEntry;
use nemesia_core::via::{AsyncError, Vi, ViAttributes, ViState, ViaDescriptor, ViaOperation, ViaSegment};

/// Descriptors of a queue.
const DESCRIPTORS: usize = 48;

/// Decodes the bytes as a frame, as they are, and with a valid beginning. What is accepted must be encoded to the same
/// bytes.
///
/// # Errors
/// The broken promise.
pub fn vipl_setup(input: &[u8]) -> Result<(), String> {
    let mut bytes = [0; SETUP_BYTES];
    bytes.iter_mut().zip(input).for_each(|(to, from)| *to = *from);
    check_frame(&bytes)?;
    bytes[..8].copy_from_slice(&SETUP_MAGIC.to_le_bytes());
    bytes[8..10].copy_from_slice(&SETUP_VERSION.to_le_bytes());
    check_frame(&bytes)?;
    // Random bytes are hardly zero where they must be.
    for range in [
        12..16,
        45..48,
        57..64,
        81..82,
        82..84,
        90..152,
        153..156,
        162..224,
        260..264,
        289..292,
        300..SETUP_BYTES,
    ] {
        bytes[range].fill(0);
    }
    (bytes[10], bytes[56], bytes[58]) = (bytes[10] % 11, 1 << (bytes[56] % 4), bytes[58] & 3);
    (bytes[80], bytes[152], bytes[288]) = (4, 4, bytes[288] % 9);
    check_frame(&bytes)
}

fn check_frame(bytes: &[u8; SETUP_BYTES]) -> Result<(), String> {
    match SetupFrame::decode(bytes) {
        Some(frame) if frame.encode() != *bytes => Err(format!("{frame:?} is encoded otherwise")),
        _ => Ok(()),
    }
}

/// A connection to a process that may do anything: which ranges exist follows from their addresses.
#[derive(Default)]
pub(super) struct AnyCarrier {
    pub(super) room: u8,
    pub(super) is_cut: bool,
    pub(super) broken: Option<&'static str>,
}

impl ViaCarrier for AnyCarrier {
    fn is_local(&mut self, segment: ViaSegment, _: u64) -> bool {
        segment.address & 1 == 0
    }

    fn remote(&mut self, segment: ViaSegment, _: RemoteUse) -> RemoteMemoryKind {
        match segment.address & 6 {
            0 => RemoteMemoryKind::Refused,
            2 => RemoteMemoryKind::Direct,
            _ => RemoteMemoryKind::Shadow,
        }
    }

    fn write(&mut self, from: ViaSegment, to: ViaSegment) -> bool {
        if from.length != to.length || from.length == 0 {
            self.broken = Some("a block has two lengths, or none");
        }
        to.address & 8 == 0
    }

    fn read(&mut self, from: ViaSegment, to: ViaSegment) -> bool {
        self.write(from, to)
    }

    fn lend(&mut self, segment: ViaSegment, _: u64) -> LendResult {
        match segment.address & 16 {
            0 => LendResult::Done,
            _ => LendResult::Refused,
        }
    }

    fn is_granted(&mut self, segment: ViaSegment, _: u64, _: RemoteUse) -> bool {
        segment.address & 32 == 0
    }

    fn settle(&mut self, segment: ViaSegment) -> bool {
        segment.address & 64 == 0
    }

    fn refresh(&mut self, segment: ViaSegment) -> bool {
        self.settle(segment)
    }

    fn push(&mut self, record: &ViaRecord<'_>) -> bool {
        let encoded = record.encode();
        if ViaRecord::decode(encoded.code, encoded.word, encoded.bytes()) != Some(*record) {
            self.broken = Some("a record is decoded otherwise");
        }
        self.room = self.room.wrapping_sub(1);
        !self.room.is_multiple_of(4)
    }

    fn change_region(&mut self, _: u32, _: Option<RegionRights>) {}

    fn cut(&mut self) {
        self.is_cut = true;
    }
}

/// Reads bytes of the input, zeros after its end.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl Input<'_> {
    pub(super) fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((byte, rest)) => {
                self.0 = rest;
                *byte
            }
            None => 0,
        }
    }

    pub(super) fn word(&mut self) -> u64 {
        u64::from_le_bytes(core::array::from_fn(|_| self.byte()))
    }
}

/// Executes the bytes as a script: descriptors of the program, and records of the other process. The VI must stay
/// consistent: each posted descriptor ends exactly once, and a VI without a connection has none in progress.
///
/// # Errors
/// The broken promise.
pub fn vipl_peer(input: &[u8]) -> Result<(), String> {
    let mut input = Input(input);
    let attributes = attributes(input.byte());
    let storage =
        || (vec![WorkEntry::default(); DESCRIPTORS], vec![ViaSegment::default(); 4 * MOST_SEGMENTS]);
    let mut vi = Vi::new(attributes, storage(), storage(), vec![ViaSegment::default(); MIRROR_STORAGE]);
    let mut carrier = AnyCarrier { room: input.byte(), ..AnyCarrier::default() };
    vi.begin_connect().map_err(|error| error.to_string())?;
    vi.connected();
    let (mut posted, mut ended) = ([0_usize; 2], [0_usize; 2]);
    while !input.0.is_empty() {
        match input.byte() % 8 {
            0 | 4 => post(&mut vi, &mut input, &mut carrier, &mut posted),
            1 => vi.pump(&mut carrier),
            5 => vi.refill(&mut carrier),
            _ => {
                if arrive(&mut vi, &mut input, &mut carrier) {
                    vi.lose(AsyncError::ConnectionLost);
                }
            }
        }
        take(&mut vi, &mut ended)?;
    }
    vi.disconnect();
    take(&mut vi, &mut ended)?;
    if vi.state() != ViState::Idle || posted != ended {
        return Err(format!("{posted:?} descriptors were posted, {ended:?} ended"));
    }
    carrier.broken.map_or(Ok(()), |broken| Err(broken.into()))
}

/// Returns the attributes of a VI that permits everything, at one of the levels.
pub(super) fn attributes(choice: u8) -> ViAttributes {
    let levels = [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception];
    ViAttributes {
        reliability: levels[usize::from(choice % 3)],
        max_transfer: 1 << 20,
        qos: 0,
        ptag: 0,
        rdma_write: true,
        rdma_read: true,
    }
}

pub(super) type TestedVi = Vi<Vec<WorkEntry>, Vec<ViaSegment>>;

fn post(vi: &mut TestedVi, input: &mut Input<'_>, carrier: &mut AnyCarrier, posted: &mut [usize; 2]) {
    let choice = input.byte();
    let queue = if choice.is_multiple_of(2) { ViQueue::Send } else { ViQueue::Receive };
    let mut control: [u8; CONTROL_BYTES] = core::array::from_fn(|_| input.byte());
    // A small number of segments in most cases.
    if !control[0].is_multiple_of(8) {
        (control[12], control[13], control[15]) = (control[12] % 5, 0, 0);
    }
    let count = segment_count(&control).min(8);
    let segments: Vec<ViaSegment> = (0..count)
        .map(|_| ViaSegment { address: input.word(), handle: 1, length: u32::from(input.byte()) * 64 })
        .collect();
    let descriptor = ViaDescriptor::decode(&control, segments.first().copied(), queue == ViQueue::Receive);
    let skipped = usize::from(descriptor.operation != ViaOperation::Send);
    let is_sent = choice.is_multiple_of(4)
        && segments.first().is_some_and(|only| vi.send_single((0, 1), &descriptor, *only, carrier));
    if is_sent || vi.post(queue, (0, 1), descriptor, segments.into_iter().skip(skipped)) {
        posted[usize::from(queue == ViQueue::Receive)] += 1;
    }
}

/// Returns whether the other process violated the protocol.
fn arrive(vi: &mut TestedVi, input: &mut Input<'_>, carrier: &mut AnyCarrier) -> bool {
    let (code, kind) = (u16::from(input.byte()) << 8, u16::from(input.byte() % 16));
    let word = if kind % 3 == 0 { u64::from(input.byte() % 40) } else { input.word() };
    let len = match kind {
        1 => 4 * usize::from(input.byte() % 2),
        2 => 8,
        3 => usize::from(input.byte() % 4) * (4 + SEGMENT_BYTES),
        7 => 12,
        8 | 11 => 4,
        _ => 0,
    };
    let mut bytes: Vec<u8> = (0..len).map(|_| input.byte()).collect();
    if kind == 3 {
        for head in bytes.chunks_mut(4 + SEGMENT_BYTES) {
            head[..4].copy_from_slice(&[1, 0, 0, 0]);
        }
    }
    let record = ViaRecord::decode(kind | code & 0x700, word, &bytes);
    record.is_none_or(|record| vi.arrive(record, carrier).is_err())
}

pub(super) fn take(vi: &mut TestedVi, ended: &mut [usize; 2]) -> Result<(), String> {
    for (count, queue) in ended.iter_mut().zip([ViQueue::Send, ViQueue::Receive]) {
        while let Some(entry) = vi.report(queue) {
            if entry.status & STATUS_DONE == 0 {
                return Err("a descriptor ended without status".into());
            }
        }
        while vi.take(queue).is_some() {
            *count += 1;
        }
    }
    Ok(())
}
