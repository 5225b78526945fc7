//! The fuzz target of connections of virtual interfaces between machines: messages, and a VI whose transfers end later
//! than the calls that begin them.

use nemesia_core::via::codes::{Reliability, STATUS_DONE, STATUS_ERRORS};
use nemesia_core::via::descriptor::MOST_SEGMENTS;
use nemesia_core::via::record::{RegionRights, ViaRecord};
use nemesia_core::via::vi::{LendResult, MIRROR_STORAGE, RemoteMemoryKind, RemoteUse, ViQueue, ViaCarrier};
use nemesia_core::via::work_queue::WorkEntry;
use nemesia_core::via::{AsyncError, Vi, ViAttributes, ViState, ViaDescriptor, ViaOperation, ViaSegment};
use nemesia_core::wire::vipl::{MOST_VIPL_BYTES, REGION_CODE, ViplHello, ViplMessage};

/// Descriptors of a queue.
const DESCRIPTORS: usize = 32;

/// Decodes the bytes as a hello and as messages, which must be encoded to the same bytes. Then executes them as a
/// script: the program posts descriptors, transfers end, and the other process sends messages. Each descriptor must end
/// once, and one that moves bytes must not succeed before its transfers have ended.
///
/// # Errors
/// The broken promise.
pub fn vipl_network(input: &[u8]) -> Result<(), String> {
    let hello = ViplHello::decode(input);
    if hello.is_some_and(|hello| !input.starts_with(&hello.encode())) {
        return Err(format!("{hello:?} is encoded otherwise"));
    }
    check_message(input)?;
    let mut region = input.to_vec();
    if let Some(head) = region.first_chunk_mut::<8>() {
        *head = u64::from(REGION_CODE + u16::from(head[0] % 4)).to_le_bytes();
    }
    region.truncate(80);
    check_message(&region)?;
    let mut script = LateScript(input);
    let level = [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception];
    let attributes = ViAttributes {
        reliability: level[usize::from(script.byte() % 3)],
        max_transfer: 1 << 20,
        qos: 0,
        ptag: 0,
        rdma_write: true,
        rdma_read: true,
    };
    run(&mut script, attributes)
}

fn check_message(bytes: &[u8]) -> Result<(), String> {
    let Some(message) = ViplMessage::decode(bytes) else { return Ok(()) };
    let mut room = [0; MOST_VIPL_BYTES];
    let len = message.encode(&mut room);
    match len.and_then(|len| room.get(..len)) {
        Some(encoded) if encoded == bytes => Ok(()),
        _ => Err(format!("{message:?} is encoded otherwise")),
    }
}

/// A connection whose transfers end when the script says so.
#[derive(Default)]
struct LateCarrier {
    begun: u64,
    ended: u64,
    has_room: bool,
    is_unknown: bool,
}

impl ViaCarrier for LateCarrier {
    fn is_local(&mut self, _: ViaSegment, _: u64) -> bool {
        true
    }

    fn remote(&mut self, segment: ViaSegment, purpose: RemoteUse) -> RemoteMemoryKind {
        match (segment.address & 7, purpose) {
            (0, _) => RemoteMemoryKind::Refused,
            (_, RemoteUse::Write | RemoteUse::Read) if self.is_unknown => RemoteMemoryKind::Unknown,
            (1, _) => RemoteMemoryKind::Shadow,
            _ => RemoteMemoryKind::Direct,
        }
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

    fn read(&mut self, from: ViaSegment, to: ViaSegment) -> bool {
        self.write(from, to)
    }

    fn lend(&mut self, segment: ViaSegment, _: u64) -> LendResult {
        if segment.address & 8 == 0 { LendResult::Done } else { LendResult::Later }
    }

    fn is_granted(&mut self, segment: ViaSegment, _: u64, _: RemoteUse) -> bool {
        segment.address & 16 == 0
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

/// Reads bytes of the input, zeros after its end.
struct LateScript<'a>(&'a [u8]);

impl LateScript<'_> {
    fn byte(&mut self) -> u8 {
        let Some((byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *byte
    }
}

type LateVi = Vi<Vec<WorkEntry>, Vec<ViaSegment>>;

fn run(script: &mut LateScript<'_>, attributes: ViAttributes) -> Result<(), String> {
    let storage =
        || (vec![WorkEntry::default(); DESCRIPTORS], vec![ViaSegment::default(); 2 * MOST_SEGMENTS]);
    let mut vi = Vi::new(attributes, storage(), storage(), vec![ViaSegment::default(); MIRROR_STORAGE]);
    let mut carrier = LateCarrier { has_room: true, ..LateCarrier::default() };
    vi.begin_connect().map_err(|error| error.to_string())?;
    vi.connected();
    let (mut posted, mut ended) = ([0_usize; 2], [0_usize; 2]);
    while !script.0.is_empty() {
        match script.byte() % 8 {
            0 => posted[0] += usize::from(post(&mut vi, script, ViQueue::Send)),
            1 => posted[1] += usize::from(post(&mut vi, script, ViQueue::Receive)),
            2 => {
                carrier.has_room = !script.byte().is_multiple_of(4);
                carrier.is_unknown = script.byte() > 99;
            }
            3 => {
                carrier.ended += u64::from(script.byte()).min(carrier.begun - carrier.ended);
                vi.transferred(carrier.ended);
            }
            _ => arrive(&mut vi, script, &mut carrier),
        }
        vi.pump(&mut carrier);
        take(&mut vi, &mut ended, &carrier)?;
    }
    vi.disconnect();
    take(&mut vi, &mut ended, &carrier)?;
    if vi.state() != ViState::Idle || posted != ended {
        return Err(format!("{posted:?} descriptors were posted, {ended:?} ended"));
    }
    Ok(())
}

fn post(vi: &mut LateVi, script: &mut LateScript<'_>, queue: ViQueue) -> bool {
    let operations = [ViaOperation::Send, ViaOperation::RdmaWrite, ViaOperation::RdmaRead];
    let operation =
        if queue == ViQueue::Send { operations[usize::from(script.byte() % 3)] } else { operations[0] };
    let segment = |byte: u8| ViaSegment { address: byte.into(), handle: 1, length: 64 };
    let descriptor = ViaDescriptor {
        operation,
        remote: segment(script.byte()),
        fence: script.byte().is_multiple_of(4),
        immediate: script.byte().is_multiple_of(4).then_some(1),
        segments: u16::from(script.byte() % 3),
        ..Default::default()
    };
    vi.post(queue, (u64::from(descriptor.segments > 0), 1), descriptor, [segment(2), segment(3)].into_iter())
}

fn arrive(vi: &mut LateVi, script: &mut LateScript<'_>, carrier: &mut LateCarrier) {
    let mut bytes = vec![0; 16];
    (bytes[0], bytes[1], bytes[8]) = (script.byte() % 14, script.byte() & 7, script.byte() % 40);
    let len = match bytes[0] {
        1 => 4 * usize::from(script.byte() % 2),
        2 => 8,
        3 => 20 * usize::from(bytes[8]),
        7 => 12,
        8 | 11 => 4,
        _ => 0,
    };
    let is_mirror = bytes[0] == 3;
    bytes.extend((0..len).map(|_| script.byte()));
    if is_mirror {
        bytes[16..].chunks_mut(20).for_each(|head| head[..4].copy_from_slice(&[1, 0, 0, 0]));
    }
    let Some(ViplMessage::Record { code, word, bytes }) = ViplMessage::decode(&bytes) else { return };
    let record = ViaRecord::decode(code, word, bytes);
    if record.is_none_or(|record| vi.arrive(record, carrier).is_err()) {
        vi.lose(AsyncError::ConnectionLost);
    }
}

fn take(vi: &mut LateVi, ended: &mut [usize; 2], carrier: &LateCarrier) -> Result<(), String> {
    for (count, queue) in ended.iter_mut().zip([ViQueue::Send, ViQueue::Receive]) {
        while let Some(entry) = vi.report(queue) {
            if entry.status & STATUS_DONE == 0 {
                return Err("a descriptor ended without status".into());
            }
            let has_moved = queue == ViQueue::Send && entry.cookie == 1 && entry.status & STATUS_ERRORS == 0;
            let is_acknowledged = vi.attributes.reliability == Reliability::Reception;
            let is_dropped = vi.attributes.reliability == Reliability::Unreliable;
            if has_moved && carrier.ended == 0 && !is_acknowledged && !is_dropped {
                return Err("a descriptor ended before its transfers".into());
            }
        }
        while vi.take(queue).is_some() {
            *count += 1;
        }
    }
    Ok(())
}
