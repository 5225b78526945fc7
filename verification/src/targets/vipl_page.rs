//! The fuzz target of shared pages: what a connected process writes into its half of a link, which holds the records
//! for the other side. The bytes are stamps and words in any slot, at any time between two readings.

use nemesia_core::shared::fastbox::{FIRST_BYTES, FastboxReceiver, FastboxSlot, MORE_BYTES, max_payload};
use nemesia_core::sync::Word64;
use nemesia_core::via::record::ViaRecord;
use nemesia_core::via::vi::{MIRROR_STORAGE, ViQueue};
use nemesia_core::via::work_queue::WorkEntry;
use nemesia_core::via::{AsyncError, Vi, ViState, ViaDescriptor, ViaSegment};
use nemesia_core::wire::Kind;

use super::vipl::{AnyCarrier, Input, TestedVi, attributes, take};

/// Slots of the page: few, so that laps begin often.
const SLOTS: usize = 64;
/// Words of a slot.
const SLOT_WORDS: usize = size_of::<FastboxSlot>() / 8;
/// Records that are read in one go.
const MOST_RECORDS: usize = 32;

/// Memory of a page that another process writes.
#[repr(C, align(64))]
struct Page([[u64; SLOT_WORDS]; SLOTS]);

/// The page as both processes use it.
struct SharedPage {
    memory: *mut Page,
    position: Word64,
}

impl SharedPage {
    fn new() -> Self {
        Self { memory: Box::into_raw(Box::new(Page([[0; SLOT_WORDS]; SLOTS]))), position: Word64::new(0) }
    }

    /// Stores a word, as the other process does.
    #[allow(unsafe_code, reason = "another process writes the memory")]
    fn store(&self, slot: usize, word: usize, value: u64) {
        let at = slot % SLOTS * SLOT_WORDS + word % SLOT_WORDS;
        // SAFETY: within the page, aligned, and accessed only as atomic words.
        let place = unsafe { core::sync::atomic::AtomicU64::from_ptr(self.memory.cast::<u64>().add(at)) };
        place.store(value, core::sync::atomic::Ordering::Relaxed);
    }

    #[allow(unsafe_code, reason = "another process writes the memory")]
    #[cfg(not(nemesia_loom))]
    fn slots(&self) -> &[FastboxSlot] {
        // SAFETY: aligned and as long as this number of slots, which are atomic words, so any bytes are valid.
        unsafe { core::slice::from_raw_parts(self.memory.cast::<FastboxSlot>(), SLOTS) }
    }

    /// The words of models are no memory: the target is compiled with them, but does not run.
    #[cfg(nemesia_loom)]
    fn slots(&self) -> &[FastboxSlot] {
        &[]
    }
}

impl Drop for SharedPage {
    #[allow(unsafe_code, reason = "memory is freed")]
    fn drop(&mut self) {
        // SAFETY: made from a box; the readers borrow this value.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}

/// Executes the bytes as a script: words that the other process stores, and readings of this one, which executes the
/// records that it finds. Each posted descriptor must end once, and each reading must end.
///
/// # Errors
/// The broken promise.
pub fn vipl_page(input: &[u8]) -> Result<(), String> {
    let mut input = Input(input);
    let page = SharedPage::new();
    let mut receiver = FastboxReceiver::new(page.slots(), &page.position);
    let storage = || (vec![WorkEntry::default(); 40], vec![ViaSegment::default(); 80]);
    let mirror = vec![ViaSegment::default(); MIRROR_STORAGE];
    let mut vi = Vi::new(attributes(input.byte()), storage(), storage(), mirror);
    let mut carrier = AnyCarrier { room: input.byte(), ..AnyCarrier::default() };
    vi.begin_connect().map_err(|error| error.to_string())?;
    vi.connected();
    let (mut posted, mut ended) = ([0_usize; 2], [0_usize; 2]);
    // The slot that is read next, and the number of its lap.
    let mut at = 0_usize;
    while !input.0.is_empty() {
        match input.byte() % 8 {
            0 => page.store(input.byte().into(), input.byte().into(), input.word()),
            1..=4 => store_record(&page, &mut input, at),
            5 => {
                let queue = usize::from(input.byte() % 2);
                let name = [ViQueue::Send, ViQueue::Receive][queue];
                let segment = ViaSegment { address: input.word() & !17, handle: 1, length: 64 };
                let descriptor = ViaDescriptor { segments: 1, ..ViaDescriptor::default() };
                posted[queue] += usize::from(vi.post(name, (0, 1), descriptor, core::iter::once(segment)));
            }
            // The library reads nothing more from a lost connection.
            _ if vi.state() != ViState::Connected => {}
            _ => at += read(&mut receiver, &mut vi, &mut carrier)?,
        }
        take(&mut vi, &mut ended)?;
    }
    vi.disconnect();
    take(&mut vi, &mut ended)?;
    if posted != ended {
        return Err(format!("{posted:?} descriptors were posted, {ended:?} ended"));
    }
    carrier.broken.map_or(Ok(()), |broken| Err(broken.into()))
}

/// Stores a packet that is nearly valid into the slot that is read next.
fn store_record(page: &SharedPage, input: &mut Input<'_>, at: usize) {
    let lap = (at / SLOTS + 1) as u64 & 0xff;
    let (code, choice) = (u64::from(input.byte() % 14), input.byte());
    let len = match code {
        2 => 8,
        3 => 20,
        7 => 12,
        8 | 11 => 4,
        _ => 0,
    };
    let len = if choice % 32 == 1 { u64::from(input.byte()) * 16 } else { len };
    let kind = if choice % 32 == 3 { u64::from(input.byte()) } else { Kind::Eager as u64 };
    let flags = if code < 3 && choice % 4 == 2 { u64::from(input.byte() & 7) << 8 } else { 0 };
    let tag = match code {
        3 => 1,
        4 | 13 => 0,
        _ if choice.is_multiple_of(2) => u64::from(input.byte() % 40),
        _ => input.word(),
    };
    page.store(at, 1, tag);
    // The list of a mirror record begins with its number of segments: one, in most cases.
    let first = input.word();
    let head = match code {
        3 => 1,
        8 => first & 1,
        11 => first & 3,
        _ => first & 0xffff_ffff,
    };
    page.store(at, 2, if choice % 16 == 7 { first } else { first & !0xffff_ffff | head });
    page.store(at, 3, input.word() & !0xff);
    for word in 1..SLOT_WORDS {
        page.store(at + 1, word, u64::from(input.byte()));
    }
    page.store(at, 0, len | (code | flags) << 16 | lap << 32 | kind << 40);
}

/// Reads the records that are there, as the library does. Returns the slots read.
fn read(
    receiver: &mut FastboxReceiver<'_>,
    vi: &mut TestedVi,
    carrier: &mut AnyCarrier,
) -> Result<usize, String> {
    let (mut slots, mut bytes) = (0, [0; max_payload(SLOTS)]);
    for _ in 0..MOST_RECORDS {
        let packet = match receiver.peek() {
            Ok(None) => return Ok(slots),
            Ok(Some(packet)) if packet.cell.is_none() && packet.envelope.kind == Kind::Eager => packet,
            // The library ends the connection: nothing is read any more.
            _ => {
                vi.lose(AsyncError::ConnectionLost);
                return Ok(slots);
            }
        };
        let Some(place) = bytes.get_mut(..packet.len) else {
            return Err(format!("a packet of {} bytes is accepted", packet.len));
        };
        receiver.read(packet.len, 0, place);
        receiver.advance(packet.len);
        slots += 1 + packet.len.saturating_sub(FIRST_BYTES).div_ceil(MORE_BYTES);
        let record = ViaRecord::decode(packet.envelope.context, packet.envelope.tag, place);
        if record.is_none_or(|record| vi.arrive(record, carrier).is_err()) {
            vi.lose(AsyncError::ConnectionLost);
        }
        vi.pump(carrier);
    }
    Ok(slots)
}
