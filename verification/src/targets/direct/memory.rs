//! Memory that the two ends of a direct pipe share, as mappings of two processes, and lists with guard bytes.
#![allow(unsafe_code, reason = "the ends of a pipe are views of memory that both share")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use nemesia_core::payload::{Gather, RecvBuf, Scatter, Segment, SendBuf};
use nemesia_core::rdma_channel::direct::layout::{
    DIRECT_ACK_AT, DIRECT_READ_AT, DIRECT_RING_AT, DIRECT_SLOTS, DIRECT_SLOTS_AT, DIRECT_WRITTEN_AT,
    direct_bytes,
};
use nemesia_core::rdma_channel::{DirectPipe, PipeError};
use nemesia_core::shared::fastbox::{FastboxReceiver, FastboxSender, FastboxSlot};
use nemesia_core::shared::layout::Extent;
use nemesia_core::shared::ring::{ByteReader, ByteRing, ByteWriter};
use nemesia_core::sync::{PayloadMut, Word64};

/// The most bytes of a list.
pub(super) const MOST_LIST: usize = 16 << 10;
/// Guard bytes before, between and after the entries of a list.
const MARGIN: usize = 16;
const GUARD: u8 = 0xa5;
const PAGE: usize = 4096;

/// The memory of a pipe.
#[derive(Debug)]
pub(super) struct SharedPipe {
    base: NonNull<u8>,
    layout: Layout,
    ring: usize,
}

impl SharedPipe {
    pub(super) fn new(ring: usize) -> Self {
        let layout = Layout::from_size_align(2 * direct_bytes(ring), PAGE).unwrap_or(Layout::new::<u64>());
        // SAFETY: the size is not 0.
        let base = unsafe { alloc_zeroed(layout) };
        Self { base: NonNull::new(base).unwrap_or_else(|| handle_alloc_error(layout)), layout, ring }
    }

    fn extent(&self) -> Option<Extent> {
        // SAFETY: allocated with this size; every view borrows `self`.
        unsafe { Extent::new(self.base, self.layout.size(), 2 * direct_bytes(self.ring)) }.ok()
    }

    fn at(&self, offset: usize) -> Option<&Word64> {
        let word: NonNull<Word64> = self.extent()?.resolve(offset, 1).ok()?;
        // SAFETY: resolved, so within the memory and aligned; an atomic word is valid whatever it holds.
        Some(unsafe { word.as_ref() })
    }

    /// Returns the number of words.
    pub(super) fn words(&self) -> usize {
        self.layout.size() / 8
    }

    /// Returns a word; 0 beyond the memory.
    pub(super) fn word(&self, index: usize) -> u64 {
        self.at(index * 8).map_or(0, Word64::load_relaxed)
    }

    /// Writes a word.
    pub(super) fn set(&self, index: usize, value: u64) {
        if let Some(word) = self.at(index * 8) {
            word.store_relaxed(value);
        }
    }

    /// Returns both ends. The memory is zero.
    pub(super) fn ends(&self) -> Option<[DirectPipe<'_>; 2]> {
        let extent = self.extent()?;
        let direction = |at: usize| {
            let slots: NonNull<FastboxSlot> = extent.resolve(at + DIRECT_SLOTS_AT, DIRECT_SLOTS).ok()?;
            // SAFETY: resolved; slots consist of atomic words.
            let slots = unsafe { std::slice::from_raw_parts(slots.as_ptr(), DIRECT_SLOTS) };
            let bytes: NonNull<u8> = extent.resolve(at + DIRECT_RING_AT, self.ring).ok()?;
            // SAFETY: resolved and writable; only one thread takes references to these bytes, as atomic words.
            let bytes = unsafe { PayloadMut::from_raw(bytes, self.ring) };
            let ack = self.at(at + DIRECT_ACK_AT)?;
            let ring = ByteRing::new(bytes, self.at(at + DIRECT_WRITTEN_AT)?, self.at(at + DIRECT_READ_AT)?)?;
            let out = (FastboxSender::new(slots, ack), ByteWriter::new(ring));
            Some((out, (FastboxReceiver::new(slots, ack), ByteReader::new(ring))))
        };
        let (first, second) = (direction(0)?, direction(direct_bytes(self.ring))?);
        let ring = self.ring as u64;
        Some([DirectPipe::new(first.0, second.1, ring), DirectPipe::new(second.0, first.1, ring)])
    }
}

impl Drop for SharedPipe {
    fn drop(&mut self) {
        // SAFETY: allocated so; every view borrowed `self`.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// Puts a list of two entries with the bytes of a function.
pub(super) fn put(
    pipe: &mut DirectPipe<'_>,
    [first, second]: [usize; 2],
    byte: impl Fn(usize) -> u8,
) -> Result<usize, PipeError> {
    let bytes: Vec<u8> = (0..first + second).map(byte).collect();
    let (head, rest) = bytes.split_at(first);
    let list = [head, rest].map(|part| Segment { base: part.as_ptr().cast_mut(), len: part.len() });
    // SAFETY: the list and the bytes outlive the call, and nothing writes them.
    let from = unsafe { SendBuf::from_list(list.as_ptr(), list.len()) };
    from.map_or(Ok(0), |from| pipe.put(&mut Gather::new(from)))
}

/// Gets into a list of two entries. Returns the bytes.
///
/// # Errors
/// More bytes were counted than the list has, or bytes beside it were written.
pub(super) fn get(
    pipe: &mut DirectPipe<'_>,
    [first, second]: [usize; 2],
) -> Result<Result<Vec<u8>, PipeError>, String> {
    let mut bytes = vec![GUARD; first + second + 3 * MARGIN];
    let starts = [MARGIN, 2 * MARGIN + first];
    let base = bytes.as_mut_ptr();
    // Both entries lie in the vector.
    let list = [(starts[0], first), (starts[1], second)]
        .map(|(at, len)| Segment { base: base.wrapping_add(at), len });
    // SAFETY: the list and the bytes outlive the call, and nothing else uses them meanwhile.
    let into = unsafe { RecvBuf::from_list(list.as_ptr(), list.len()) };
    let result = into.map_or(Ok(0), |into| pipe.get(&mut Scatter::new(into)));
    let count = result.unwrap_or_default();
    if count > first + second {
        return Err(format!("{count} bytes were got into {first} and {second}"));
    }
    let in_first = count.min(first);
    let in_second = count - in_first;
    let written = [starts[0]..starts[0] + first, starts[1]..starts[1] + second];
    let beside = (0..bytes.len()).find(|at| !written.iter().any(|it| it.contains(at)) && bytes[*at] != GUARD);
    if let Some(at) = beside {
        return Err(format!("byte {at} beside a list of {first} and {second} was written"));
    }
    let parts = [&bytes[starts[0]..][..in_first], &bytes[starts[1]..][..in_second]];
    Ok(result.map(|_| parts.concat()))
}
