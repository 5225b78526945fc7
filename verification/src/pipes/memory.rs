//! Memory of the simulated processes: blocks with guard bytes on both sides, and lists of buffers.
#![allow(
    unsafe_code,
    reason = "memory is lent by address; every block outlives the ports to which it is lent"
)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

use nemesia_core::payload::{Gather, LentMemory, RecvBuf, Scatter, Segment, SendBuf};

/// Guard bytes before and after a block.
const MARGIN: usize = 64;
/// The value of guard bytes, and of bytes that are not to be read.
pub(super) const POISON: u8 = 0xa5;

/// Memory with guard bytes.
#[derive(Debug)]
pub(super) struct PipeBlock {
    base: *mut u8,
    layout: Layout,
    len: usize,
}

impl PipeBlock {
    /// Returns `len` bytes of 0, aligned to 64.
    pub(super) fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len + 2 * MARGIN, 64).unwrap_or(Layout::new::<u64>());
        // SAFETY: the size is not 0.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            handle_alloc_error(layout);
        }
        let block = Self { base, layout, len };
        for at in [0, len + MARGIN] {
            let _ = block.all().write(at as u64, &[POISON; MARGIN]);
        }
        block
    }

    /// Returns the whole memory with its guard bytes.
    fn all(&self) -> LentMemory {
        // SAFETY: allocated with that length and zeroed; the view is used within the call. No reference is made.
        unsafe { LentMemory::from_raw(self.base, self.layout.size()) }
    }

    pub(super) fn address(&self) -> *mut u8 {
        // SAFETY: the margin lies in the allocation.
        unsafe { self.base.add(MARGIN) }
    }

    /// Returns a view of the block, to be lent or to be inspected.
    pub(super) fn lent(&self) -> LentMemory {
        // SAFETY: allocated with that length and zeroed. The worlds free blocks after the ports, and make no references
        // to the bytes.
        unsafe { LentMemory::from_raw(self.address(), self.len) }
    }

    /// Returns whether nothing was written beside the block.
    pub(super) fn is_guarded(&self) -> bool {
        [0, self.len + MARGIN].into_iter().all(|at| {
            let mut guard = [0; MARGIN];
            self.all().read(at as u64, &mut guard) && guard == [POISON; MARGIN]
        })
    }

    pub(super) fn put(&self, at: usize, bytes: &[u8]) {
        // Stays within the block, by its callers.
        let _ = self.lent().write(at as u64, bytes);
    }

    pub(super) fn get(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        if self.lent().read(at as u64, &mut bytes) { bytes } else { Vec::new() }
    }
}

impl Drop for PipeBlock {
    fn drop(&mut self) {
        // SAFETY: allocated so, and not freed before.
        unsafe { dealloc(self.base, self.layout) };
    }
}

/// Lends `len` bytes at an address to a port.
pub(super) fn lend(address: u64, len: u64) -> LentMemory {
    let base = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: the address is that of bytes of a list which a put or get has not yet counted. The world keeps the blocks
    // of a list at their addresses until then.
    unsafe { LentMemory::from_raw(base, len as usize) }
}

/// An entry of a list.
#[derive(Debug)]
struct ListEntry {
    block: PipeBlock,
    len: usize,
    done: usize,
}

/// A list of buffers that several calls put or get.
#[derive(Debug)]
pub(super) struct BufferList {
    entries: Vec<ListEntry>,
    /// Blocks whose bytes have moved away.
    old: Vec<PipeBlock>,
    segments: Vec<Segment>,
}

impl BufferList {
    /// Makes a list of entries of these lengths, which hold `fill` by its position in the list.
    pub(super) fn new(lens: &[usize], mut fill: impl FnMut(usize, usize) -> Vec<u8>) -> Self {
        let mut at = 0;
        let entries = lens.iter().map(|&len| {
            let block = PipeBlock::new(len);
            block.put(0, &fill(at, len));
            at += len;
            ListEntry { block, len, done: 0 }
        });
        Self { entries: entries.collect(), old: Vec::new(), segments: Vec::new() }
    }

    /// Returns the number of bytes left.
    pub(super) fn left(&self) -> usize {
        self.entries.iter().map(|it| it.len - it.done).sum()
    }

    /// Moves what is left of entries shorter than `below` to other addresses.
    pub(super) fn relocate(&mut self, below: usize) {
        for entry in &mut self.entries {
            if entry.len - entry.done < below {
                let block = PipeBlock::new(entry.len);
                block.put(0, &entry.block.get(0, entry.len));
                let old = std::mem::replace(&mut entry.block, block);
                old.put(0, &vec![POISON; entry.len]);
                self.old.push(old);
            }
        }
    }

    fn describe(&mut self) {
        self.segments = self
            .entries
            .iter()
            .skip_while(|it| it.done == it.len && it.len > 0)
            .map(|it| {
                // SAFETY: `done` is at most the length.
                let base = unsafe { it.block.address().add(it.done) };
                base.expose_provenance();
                Segment { base, len: it.len - it.done }
            })
            .collect();
    }

    /// Returns what is left, to be put.
    pub(super) fn gather(&mut self) -> Option<Gather> {
        self.describe();
        // SAFETY: the segments and their blocks stay until this list is changed, which is after the call that uses the
        // value; the bytes of long entries stay until they are counted.
        unsafe { SendBuf::from_list(self.segments.as_ptr(), self.segments.len()) }.map(Gather::new)
    }

    /// Returns what is left, to be filled.
    pub(super) fn scatter(&mut self) -> Option<Scatter> {
        self.describe();
        // SAFETY: as above, and nothing else uses the bytes.
        unsafe { RecvBuf::from_list(self.segments.as_ptr(), self.segments.len()) }.map(Scatter::new)
    }

    /// Counts bytes. Returns them, and overwrites them. `None` if there are not so many.
    pub(super) fn advance(&mut self, mut count: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for entry in &mut self.entries {
            let here = count.min(entry.len - entry.done);
            bytes.extend(entry.block.get(entry.done, here));
            entry.block.put(entry.done, &vec![POISON; here]);
            (entry.done, count) = (entry.done + here, count - here);
        }
        (count == 0).then_some(bytes)
    }

    /// Returns whether nothing was written beside the buffers.
    pub(super) fn is_guarded(&self) -> bool {
        self.entries.iter().map(|it| &it.block).chain(&self.old).all(PipeBlock::is_guarded)
    }
}
