//! The fuzz target of descriptors: a program writes any bytes into a descriptor and posts it.

use nemesia_core::via::codes::{
    Reliability, STATUS_DONE, STATUS_ERRORS, STATUS_FORMAT, STATUS_LENGTH, STATUS_PROTECTION,
};
use nemesia_core::via::descriptor::{CONTROL_BYTES, MOST_SEGMENTS, SEGMENT_BYTES, segment_count};
use nemesia_core::via::memory::{RegionSlot, RegionTable, ViaRegion};
use nemesia_core::via::record::{MIRROR_HEAD_BYTES, MirrorWriter, RegionRights, ViaRecord};
use nemesia_core::via::vi::{LendResult, MIRROR_STORAGE, RemoteMemoryKind, RemoteUse, ViQueue, ViaCarrier};
use nemesia_core::via::work_queue::WorkEntry;
use nemesia_core::via::{Vi, ViAttributes, ViaDescriptor, ViaMemAttributes, ViaOperation, ViaSegment};

/// The protection tag of the VI, and the largest transfer in bytes.
const PTAG: u64 = 7;
const MOST_TRANSFER: u64 = 3000;
/// Bytes of each registered region.
const REGION_BYTES: u64 = 1000;
/// The receive descriptors that the other side has mirrored, and the bytes of each.
const MIRRORED: usize = 4;
const MIRRORED_BYTES: u32 = 2000;
/// The handle under which the other side has lent its memory.
const REMOTE_HANDLE: u32 = 0x5_0001;

/// The memory of both sides; it records the bytes that were moved and every access outside of a region.
struct CheckedMemory {
    table: RegionTable<Vec<RegionSlot>>,
    moved: u64,
    broken: Option<&'static str>,
}

impl CheckedMemory {
    fn new() -> Self {
        let mut table = RegionTable::new(vec![RegionSlot::default(); 4]);
        for (base, ptag) in [(0x1_0000, PTAG), (0x2_0000, PTAG), (0x3_0000, PTAG + 1)] {
            let attributes = ViaMemAttributes { ptag, rdma_write: false, rdma_read: false };
            let _handle = table.insert(ViaRegion { base, len: REGION_BYTES, attributes });
        }
        Self { table, moved: 0, broken: None }
    }

    /// Returns a handle that the bytes of a descriptor name by a small number.
    fn handle(&self, number: u32) -> u32 {
        self.table.iter().nth(number as usize % 8).map_or(number, |(handle, _)| handle)
    }

    fn transfer(&mut self, local: ViaSegment, remote: ViaSegment) -> bool {
        if self.table.check(local, PTAG).is_none() {
            self.broken = Some("local memory outside of the regions of the VI is used");
        }
        if !is_remote(remote) {
            self.broken = Some("memory that the other side has not lent is used");
        }
        if local.length != remote.length || local.length == 0 {
            self.broken = Some("a block has two lengths, or none");
        }
        self.moved += u64::from(local.length);
        true
    }
}

/// Returns whether a range lies in the memory that the other side has lent.
fn is_remote(segment: ViaSegment) -> bool {
    let end = segment.address.checked_add(segment.length.into());
    segment.handle == REMOTE_HANDLE && end.is_some_and(|end| end <= 1 << 20)
}

impl ViaCarrier for CheckedMemory {
    fn is_local(&mut self, segment: ViaSegment, ptag: u64) -> bool {
        segment.length == 0 || self.table.check(segment, ptag).is_some()
    }

    fn remote(&mut self, segment: ViaSegment, _: RemoteUse) -> RemoteMemoryKind {
        if is_remote(segment) { RemoteMemoryKind::Direct } else { RemoteMemoryKind::Refused }
    }

    fn write(&mut self, from: ViaSegment, to: ViaSegment) -> bool {
        self.transfer(from, to)
    }

    fn read(&mut self, from: ViaSegment, to: ViaSegment) -> bool {
        self.transfer(to, from)
    }

    fn lend(&mut self, segment: ViaSegment, ptag: u64) -> LendResult {
        if self.table.check(segment, ptag).is_some() { LendResult::Done } else { LendResult::Refused }
    }

    fn is_granted(&mut self, _: ViaSegment, _: u64, _: RemoteUse) -> bool {
        false
    }

    fn settle(&mut self, _: ViaSegment) -> bool {
        true
    }

    fn refresh(&mut self, _: ViaSegment) -> bool {
        true
    }

    fn push(&mut self, _: &ViaRecord<'_>) -> bool {
        true
    }

    fn change_region(&mut self, _: u32, _: Option<RegionRights>) {}

    fn cut(&mut self) {}
}

/// Decodes the bytes as a descriptor of both queues, posts it on a connected VI, and compares its end with what a plain
/// reading of the same bytes predicts.
///
/// # Errors
/// The broken promise.
pub fn vipl_descriptor(input: &[u8]) -> Result<(), String> {
    let mut bytes = input.to_vec();
    bytes.resize(bytes.len().max(CONTROL_BYTES + 2 * SEGMENT_BYTES), 0);
    check_descriptor(&bytes)?;
    // Random bytes hardly ever name memory: the same segments again, in or near the regions.
    bytes[12] %= 6;
    (bytes[13], bytes[15]) = (0, 0);
    bytes[14] &= 0xf;
    let memory = CheckedMemory::new();
    let (_, list) = bytes.split_at_mut(CONTROL_BYTES);
    for segment in list.as_chunks_mut::<SEGMENT_BYTES>().0 {
        let found = ViaSegment::decode(segment);
        // One in sixteen lies anywhere.
        let number = if found.handle.is_multiple_of(16) { found.handle >> 8 } else { found.handle >> 8 & 1 };
        let base = u64::from(number % 4 + 1) << 16;
        let address = base + (found.address >> 8) % (REGION_BYTES / 2);
        let most = if found.length.is_multiple_of(16) { 2048 } else { REGION_BYTES as u32 / 2 };
        let handle = memory.handle(number);
        *segment = ViaSegment { address, handle, length: (found.length >> 8) % most }.encode();
    }
    // The remote range of an RDMA operation.
    if !input.len().is_multiple_of(8) && bytes[14] & 3 != 0 {
        bytes[40..44].copy_from_slice(&REMOTE_HANDLE.to_le_bytes());
    }
    check_descriptor(&bytes)
}

/// The end that the bytes of a send descriptor must have.
struct Predicted {
    status: u32,
    total: u64,
}

fn predict(descriptor: &ViaDescriptor, local: &[ViaSegment], memory: &CheckedMemory) -> Predicted {
    let total: u64 = local.iter().map(|segment| u64::from(segment.length)).sum();
    let is_registered =
        |segment: &&ViaSegment| segment.length == 0 || memory.table.check(**segment, PTAG).is_some();
    let status = if descriptor.fault != 0 {
        STATUS_FORMAT
    } else if total > MOST_TRANSFER {
        STATUS_LENGTH
    } else if !local.iter().all(|segment| is_registered(&segment)) {
        STATUS_PROTECTION
    } else {
        0
    };
    Predicted { status, total }
}

fn check_descriptor(bytes: &[u8]) -> Result<(), String> {
    let Some((control, list)) = bytes.split_first_chunk::<CONTROL_BYTES>() else { return Ok(()) };
    let (list, _) = list.as_chunks::<SEGMENT_BYTES>();
    let count = segment_count(control).min(list.len());
    let segments: Vec<ViaSegment> = list[..count].iter().map(ViaSegment::decode).collect();
    if segments.iter().zip(list).any(|(segment, bytes)| segment.encode() != *bytes) {
        return Err("a segment is encoded otherwise".into());
    }
    for queue in [ViQueue::Send, ViQueue::Receive] {
        let mut descriptor =
            ViaDescriptor::decode(control, segments.first().copied(), queue == ViQueue::Receive);
        let is_valid = descriptor.fault == 0 || descriptor.fault == STATUS_FORMAT && descriptor.segments == 0;
        if !is_valid || usize::from(descriptor.segments) > MOST_SEGMENTS {
            return Err(format!("{descriptor:?} has an unknown fault or too many segments"));
        }
        let skipped = usize::from(descriptor.operation != ViaOperation::Send);
        // The library reads as many segments as the descriptor has; the input may be shorter.
        descriptor.segments = descriptor.segments.min((count.max(skipped) - skipped) as u16);
        let local = segments.get(skipped..).unwrap_or_default();
        let local = &local[..local.len().min(descriptor.segments.into())];
        check_posted(queue, descriptor, local)?;
    }
    Ok(())
}

/// Posts the descriptor on a new VI whose other side has mirrored some receive descriptors.
fn check_posted(queue: ViQueue, descriptor: ViaDescriptor, local: &[ViaSegment]) -> Result<(), String> {
    let mut memory = CheckedMemory::new();
    let attributes = ViAttributes {
        reliability: Reliability::Delivery,
        max_transfer: MOST_TRANSFER,
        qos: 0,
        ptag: PTAG,
        rdma_write: true,
        rdma_read: true,
    };
    let storage = || (vec![WorkEntry::default(); 2], vec![ViaSegment::default(); MOST_SEGMENTS]);
    let mut vi = Vi::new(attributes, storage(), storage(), vec![ViaSegment::default(); MIRROR_STORAGE]);
    vi.begin_connect().map_err(|error| error.to_string())?;
    vi.connected();
    let mut list = [0; MIRRORED * (MIRROR_HEAD_BYTES + SEGMENT_BYTES)];
    let mut mirror = MirrorWriter::new(&mut list);
    for number in 0..MIRRORED as u64 {
        let receive = ViaSegment { address: number << 16, handle: REMOTE_HANDLE, length: MIRRORED_BYTES };
        mirror.push(1, core::iter::once(receive));
    }
    vi.arrive(mirror.record(), &mut memory).map_err(|violation| violation.to_string())?;
    let predicted = predict(&descriptor, local, &memory);
    if !vi.post(queue, (64, 1), descriptor, local.iter().copied()) {
        return Err("a descriptor with at most the permitted segments is refused".into());
    }
    vi.pump(&mut memory);
    let is_open = queue == ViQueue::Receive && predicted.status & STATUS_FORMAT == 0;
    let early = vi.report(queue);
    if queue == ViQueue::Send {
        check_end(early.as_ref(), &predicted, &memory)?;
    } else if early.is_some() && is_open && local.iter().all(|it| memory.table.check(*it, PTAG).is_some()) {
        return Err("a valid receive descriptor ended without a message".into());
    }
    vi.disconnect();
    let late = vi.report(queue);
    if early.is_some() == late.is_some() || vi.take(queue).is_none() || vi.take(queue).is_some() {
        return Err("the descriptor has not ended once".into());
    }
    let error = early.or(late).map_or(0, |entry| entry.status & STATUS_ERRORS);
    match queue {
        ViQueue::Receive if error == 0 => Err("a receive descriptor ended well without a message".into()),
        ViQueue::Receive if memory.moved > 0 => Err("a receive descriptor moved bytes".into()),
        _ => memory.broken.map_or(Ok(()), |broken| Err(broken.into())),
    }
}

fn check_end(ended: Option<&WorkEntry>, predicted: &Predicted, memory: &CheckedMemory) -> Result<(), String> {
    let Some(entry) = ended else { return Err("a send descriptor has not ended".into()) };
    let errors = entry.status & STATUS_ERRORS;
    if entry.status & STATUS_DONE == 0 || predicted.status != 0 && errors != predicted.status {
        return Err(format!("status {:#x} instead of the error {:#x}", entry.status, predicted.status));
    }
    if (errors != 0) != (entry.length == 0 && memory.moved == 0 && (errors != 0)) {
        return Err(format!("status {:#x}, but {} bytes moved", entry.status, memory.moved));
    }
    if errors == 0 && (u64::from(entry.length) != predicted.total || memory.moved != predicted.total) {
        return Err(format!(
            "{} bytes reported, {} moved, {} posted",
            entry.length, memory.moved, predicted.total
        ));
    }
    Ok(())
}
