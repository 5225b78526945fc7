//! One buffer, in one segment or in several that lie apart, with guard bytes around each.

use std::ops::Range;
use std::ptr::NonNull;

use nemesia_core::payload::Segment;

/// The guard bytes before and after each segment.
pub(super) const GUARD: usize = 16;
/// The value of a guard byte.
const FENCE: u8 = 0x99;
/// The value of each byte of a buffer that was given back.
pub(crate) const POISON: u8 = 0xdd;

/// The place of a buffer, for an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Run(*mut u8),
    /// A list of so many segments.
    List(*const Segment, usize),
}

/// Memory to which only raw pointers refer while it is lent.
#[derive(Debug)]
pub(super) struct Block {
    /// Aligned as a word of this type.
    words: NonNull<u128>,
    capacity: usize,
    /// The positions of the buffer's bytes, in their order.
    runs: Vec<Range<usize>>,
    list: Box<[Segment]>,
}

impl Block {
    /// Makes room for `len` bytes, cut into segments at `cuts`, which are in order.
    pub(super) fn new(len: usize, cuts: &[usize]) -> Self {
        let ends = cuts.iter().copied().chain([len]);
        let (mut runs, mut at, mut before) = (Vec::new(), GUARD, 0);
        for end in ends {
            runs.push(at..at + end - before);
            at += end - before + GUARD;
            before = end;
        }
        let words = vec![u128::from_ne_bytes([FENCE; 16]); at.div_ceil(16)];
        let words = NonNull::from(Box::leak(words.into_boxed_slice())).cast::<u128>();
        let mut block = Self { words, capacity: at, runs, list: Box::default() };
        if !cuts.is_empty() {
            let segment = |run: &Range<usize>| Segment { base: block.at(run.start), len: run.len() };
            block.list = block.runs.iter().map(segment).collect();
        }
        block
    }

    /// Returns the address of a byte of the block.
    fn at(&self, at: usize) -> *mut u8 {
        self.words.as_ptr().cast::<u8>().wrapping_add(at)
    }

    /// Returns the place of the buffer, valid for as long as the block lives.
    pub(super) fn place(&self) -> Place {
        if self.list.is_empty() {
            Place::Run(self.at(GUARD))
        } else {
            Place::List(self.list.as_ptr(), self.list.len())
        }
    }

    /// Returns the addresses and lengths of the segments, if the list of the buffer lies at this address.
    pub(super) fn table(&self, address: u64) -> Option<Vec<u8>> {
        let words = self.list.iter().flat_map(|segment| [segment.base as u64, segment.len as u64]);
        let is_list = !self.list.is_empty() && self.list.as_ptr() as u64 == address;
        is_list.then(|| words.flat_map(u64::to_le_bytes).collect())
    }

    /// Returns the memory that the block takes, in bytes.
    pub(super) const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the length of the buffer in bytes.
    pub(super) fn len(&self) -> usize {
        self.runs.iter().map(ExactSizeIterator::len).sum()
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: allocated with this capacity and initialised. The engines write through their pointers only
        // while they run, and no engine runs while this reference lives: there is one thread.
        unsafe { std::slice::from_raw_parts(self.at(0), self.capacity) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.at(0), self.capacity) }
    }

    /// Shows the contents of the buffer to `look`.
    pub(super) fn read<T>(&self, look: impl FnOnce(&[u8]) -> T) -> T {
        let bytes = self.bytes();
        match &self.runs[..] {
            [run] => look(&bytes[run.clone()]),
            runs => look(&runs.iter().flat_map(|run| &bytes[run.clone()]).copied().collect::<Vec<_>>()),
        }
    }

    /// Lets `fill` write the whole buffer.
    pub(super) fn write(&mut self, fill: impl FnOnce(&mut [u8])) {
        if let [run] = &self.runs[..] {
            let run = run.clone();
            return fill(&mut self.bytes_mut()[run]);
        }
        let mut whole = vec![0; self.len()];
        fill(&mut whole);
        let mut from = &whole[..];
        for run in self.runs.clone() {
            let (here, rest) = from.split_at(run.len());
            self.bytes_mut()[run].copy_from_slice(here);
            from = rest;
        }
    }

    pub(super) fn poison(&mut self) {
        for run in self.runs.clone() {
            self.bytes_mut()[run].fill(POISON);
        }
    }

    /// Returns whether all guard bytes are unchanged.
    pub(super) fn is_fenced(&self) -> bool {
        let starts = self.runs.iter().map(|run| run.start - GUARD);
        let mut around = starts.chain([self.capacity - GUARD]).map(|at| &self.bytes()[at..at + GUARD]);
        around.all(|guard| guard.iter().all(|&byte| byte == FENCE))
    }

    /// Returns the position of an address, if `len` bytes from there on are in one segment.
    pub(super) fn find(&self, address: u64, len: usize) -> Option<usize> {
        let at = usize::try_from(address.checked_sub(self.at(0) as u64)?).ok()?;
        let end = at.checked_add(len)?;
        self.runs.iter().any(|run| run.start <= at && end <= run.end).then_some(at)
    }

    /// Returns the bytes that [`Block::find`] has found.
    pub(super) fn run(&mut self, at: usize, len: usize) -> &mut [u8] {
        &mut self.bytes_mut()[at..at + len]
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let words = std::ptr::slice_from_raw_parts_mut(self.words.as_ptr(), self.capacity.div_ceil(16));
        // SAFETY: made by `Box::leak` in `new`. The engines that may point here were dropped before: `World` says so.
        drop(unsafe { Box::from_raw(words) });
    }
}
