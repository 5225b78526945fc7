//! Buffers of operations, in one run or in a list, between guard bytes.

use nemesia_core::payload::{RecvBuf, Segment, SendBuf};

use crate::content::{difference, filled};

/// The guard bytes on each side of a run, and their value.
const GUARD: usize = 32;
const GUARDED: u8 = 0xa5;
/// The content of a receive buffer before the receive.
const BLANK: u8 = 0xee;

/// The bytes of an operation. The operation owns the buffer, so the bytes stay where they are until it is
/// complete.
#[derive(Debug, Default)]
pub struct Buffer {
    /// Each run with its guards.
    runs: Vec<Vec<u8>>,
    /// The runs as a list; empty if there is one run.
    list: Vec<Segment>,
}

impl Buffer {
    /// Returns a buffer with these bytes in one run.
    pub fn of(bytes: &[u8]) -> Self {
        Self { runs: vec![guarded(bytes)], list: Vec::new() }
    }

    /// Returns a buffer with the content of this seed.
    pub fn filled(seed: u64, len: usize) -> Self {
        Self::of(&filled(seed, len))
    }

    /// Returns a buffer to receive into.
    pub fn room(len: usize) -> Self {
        Self::of(&vec![BLANK; len])
    }

    /// Divides the buffer into a list of runs that begin at these offsets, which rise. The first run begins at
    /// 0. Runs may be empty.
    #[must_use]
    pub fn cut(self, offsets: &[usize]) -> Self {
        let bytes = self.bytes();
        let mut runs = Vec::new();
        let mut from = 0;
        for &to in offsets.iter().chain([&bytes.len()]) {
            let to = to.clamp(from, bytes.len());
            runs.push(guarded(&bytes[from..to]));
            from = to;
        }
        let segment = |run: &mut Vec<u8>| Segment {
            base: run.as_mut_ptr().wrapping_add(GUARD),
            len: run.len() - 2 * GUARD,
        };
        let list = runs.iter_mut().map(segment).collect();
        Self { runs, list }
    }

    /// Returns the number of bytes, without guards.
    pub fn len(&self) -> usize {
        self.runs.iter().map(|run| run.len() - 2 * GUARD).sum()
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of all runs.
    pub fn bytes(&self) -> Vec<u8> {
        // Copies of whole runs: a loop over bytes takes most of the time of a test that is not optimised.
        self.runs.iter().map(|run| &run[GUARD..run.len() - GUARD]).collect::<Vec<_>>().concat()
    }

    /// Returns what is wrong with the first `len` bytes, which must have the content of this seed. The bytes
    /// after them must be untouched, and so must the guards.
    pub fn wrong(&self, seed: u64, len: usize) -> Option<String> {
        let bytes = self.bytes();
        let Some((head, rest)) = bytes.split_at_checked(len) else {
            return Some(format!("{len} bytes in a buffer of {}", bytes.len()));
        };
        if let Some(at) = difference(seed, head) {
            return Some(format!("byte {at} of {len} is wrong"));
        }
        if rest != vec![BLANK; rest.len()]
            && let Some(at) = rest.iter().position(|byte| *byte != BLANK)
        {
            return Some(format!("byte {} behind {len} bytes was written", len + at));
        }
        self.overrun()
    }

    /// Returns what is wrong if bytes beside the buffer were written.
    pub fn overrun(&self) -> Option<String> {
        let kept = |run: &Vec<u8>| {
            let (head, rest) = run.split_at(GUARD);
            head.iter().chain(&rest[rest.len() - GUARD..]).all(|byte| *byte == GUARDED)
        };
        let wrong = self.runs.iter().position(|run| !kept(run))?;
        Some(format!("bytes beside run {wrong} of a buffer were written"))
    }

    /// Returns the bytes for the engine.
    ///
    /// # Safety
    /// The buffer is kept, and is not changed, until the operation is complete or the engine is gone.
    pub(super) unsafe fn outgoing(&self) -> SendBuf {
        if self.list.is_empty() {
            let run = self.runs.first().map_or(&[][..], |run| &run[GUARD..run.len() - GUARD]);
            // SAFETY: the caller's promise.
            return unsafe { SendBuf::from_raw(run.as_ptr(), run.len()) };
        }
        // SAFETY: the caller's promise; the runs and the list lie on the heap.
        let list = unsafe { SendBuf::from_list(self.list.as_ptr(), self.list.len()) };
        list.unwrap_or_else(|| unreachable!("the runs lie in memory"))
    }

    /// Returns the room for the engine.
    ///
    /// # Safety
    /// The buffer is kept, and is not used, until the operation is complete or the engine is gone.
    pub(super) unsafe fn incoming(&mut self) -> RecvBuf {
        if self.list.is_empty() {
            let run = self.runs.first_mut().map_or(&mut [][..], |run| {
                let end = run.len() - GUARD;
                &mut run[GUARD..end]
            });
            // SAFETY: the caller's promise.
            return unsafe { RecvBuf::from_raw(run.as_mut_ptr(), run.len()) };
        }
        // SAFETY: the caller's promise; the runs and the list lie on the heap.
        let list = unsafe { RecvBuf::from_list(self.list.as_ptr(), self.list.len()) };
        list.unwrap_or_else(|| unreachable!("the runs lie in memory"))
    }

    /// Returns address and length of the only run, or of the list.
    pub(super) fn place(&mut self) -> BufferPlace {
        if self.list.is_empty() {
            let len = self.len();
            let base = self.runs.first_mut().map_or(std::ptr::null_mut(), |run| run.as_mut_ptr());
            return BufferPlace::Run(base.wrapping_add(GUARD), len);
        }
        BufferPlace::List(self.list.as_ptr(), self.list.len())
    }
}

/// The place of a buffer in memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum BufferPlace {
    Run(*mut u8, usize),
    List(*const Segment, usize),
}

fn guarded(bytes: &[u8]) -> Vec<u8> {
    let guard = [GUARDED; GUARD];
    [&guard[..], bytes, &guard].concat()
}
