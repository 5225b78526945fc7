//! The memory of every process: buffers lent to the engines, what is in them, and who may look at it.
//!
//! A buffer that is given back is poisoned and kept for a while: an engine that still reads it sends poison, one that still
//! writes it is found out.

use std::collections::VecDeque;
use std::ptr::NonNull;

use crate::rng::mix;
use crate::violation::{Check, Violation, ensure};

/// Bytes before and after each buffer that nobody may write.
const GUARD: usize = 16;
/// What the guards hold.
const FENCE: u8 = 0x99;
/// What a receive buffer holds before anything is received.
pub(crate) const BLANK: u8 = 0xee;
/// What a buffer holds that was given back.
pub(crate) const POISON: u8 = 0xdd;
/// Bytes of buffers that are kept after they were given back.
const QUARANTINE: usize = 256 << 10;

/// Fills a message: every byte depends on the message and on its position.
pub(crate) fn fill(key: u64, bytes: &mut [u8]) {
    for (index, part) in bytes.chunks_mut(8).enumerate() {
        part.copy_from_slice(&word(key, index)[..part.len()]);
    }
}

/// Where bytes differ from the beginning of the message with this key.
pub(crate) fn first_difference(key: u64, bytes: &[u8]) -> Option<usize> {
    let wrong = |(index, part): (usize, &[u8])| {
        let right = word(key, index);
        let at = part.iter().zip(right).position(|(is, should)| *is != should)?;
        Some(8 * index + at)
    };
    bytes.chunks(8).enumerate().find_map(wrong)
}

const fn word(key: u64, index: usize) -> [u8; 8] {
    mix(key.wrapping_add(index as u64)).to_le_bytes()
}

/// Memory that nothing but raw pointers refers to while it is lent.
#[derive(Debug)]
struct Block {
    /// Aligned as a word of this kind.
    words: NonNull<u128>,
    base: NonNull<u8>,
    capacity: usize,
}

impl Block {
    /// Room for `len` bytes between two guards.
    fn new(len: usize) -> Self {
        let capacity = len + 2 * GUARD;
        let words = vec![u128::from_ne_bytes([FENCE; 16]); capacity.div_ceil(16)];
        let words = NonNull::from(Box::leak(words.into_boxed_slice())).cast::<u128>();
        Self { words, base: words.cast(), capacity }
    }

    /// The bytes between the guards.
    fn inside(&self) -> std::ops::Range<usize> {
        GUARD..self.capacity - GUARD
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: allocated with this capacity and initialised. The engines write through their pointers only while they
        // run, and nobody holds this reference meanwhile: there is one thread.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.capacity) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.capacity) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let words = std::ptr::slice_from_raw_parts_mut(self.words.as_ptr(), self.capacity.div_ceil(16));
        // SAFETY: made by `Box::leak` in `new`. The engines that may point here were dropped before: `World` says so.
        drop(unsafe { Box::from_raw(words) });
    }
}

/// What a buffer is lent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Send,
    Receive,
    Region,
}

#[derive(Debug)]
struct Lent {
    block: Block,
    owner: u32,
    is: Use,
}

/// Names a buffer that is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loan(usize);

/// Every buffer of every process.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    lent: Vec<Option<Lent>>,
    vacant: Vec<usize>,
    kept: VecDeque<Block>,
    kept_bytes: usize,
    /// What was written after it was given back, if anything.
    late: Option<String>,
}

impl Memory {
    /// A buffer that holds a message.
    pub(crate) fn lend_message(&mut self, owner: u32, key: u64, len: usize) -> (Loan, *const u8) {
        let (loan, base) = self.lend_bytes(owner, key, len);
        (loan, base.cast_const())
    }

    /// The same, for whoever does not know yet what it is for.
    pub(crate) fn lend_bytes(&mut self, owner: u32, key: u64, len: usize) -> (Loan, *mut u8) {
        self.lend(owner, len, Use::Send, |bytes| fill(key, bytes))
    }

    /// Memory for other processes to use, zeroed, as long as its owner lives.
    pub(crate) fn lend_region(&mut self, owner: u32, len: usize) -> (Loan, *mut u8) {
        self.lend(owner, len, Use::Region, |bytes| bytes.fill(0))
    }

    /// What is in a buffer that is lent.
    pub(crate) fn copy(&self, loan: Loan) -> Vec<u8> {
        let lent = self.lent.get(loan.0).and_then(Option::as_ref);
        lent.map_or(Vec::new(), |Lent { block, .. }| block.bytes()[block.inside()].to_vec())
    }

    /// A buffer to receive into.
    pub(crate) fn lend_room(&mut self, owner: u32, len: usize) -> (Loan, *mut u8) {
        self.lend(owner, len, Use::Receive, |bytes| bytes.fill(BLANK))
    }

    fn lend(&mut self, owner: u32, len: usize, is: Use, fill: impl FnOnce(&mut [u8])) -> (Loan, *mut u8) {
        let mut block = Block::new(len);
        let inside = block.inside();
        fill(&mut block.bytes_mut()[inside]);
        // SAFETY: the guard is within the block.
        let base = unsafe { block.base.add(GUARD) }.as_ptr();
        let lent = Lent { block, owner, is };
        let index = self.vacant.pop().unwrap_or(self.lent.len());
        match self.lent.get_mut(index) {
            Some(slot) => *slot = Some(lent),
            None => self.lent.push(Some(lent)),
        }
        (Loan(index), base)
    }

    /// Ends a loan: shows the bytes, then poisons them. Bytes outside the buffer must be as they were.
    pub(crate) fn end<T>(&mut self, loan: Loan, look: impl FnOnce(&[u8]) -> T) -> Result<T, Violation> {
        let lent = self.lent.get_mut(loan.0).and_then(Option::take);
        let Some(Lent { mut block, .. }) = lent else {
            return Err(Violation("a buffer is given back twice".into()));
        };
        self.vacant.push(loan.0);
        let inside = block.inside();
        let bytes = block.bytes();
        let around = bytes[..inside.start].iter().chain(&bytes[inside.end..]);
        let intact = around.into_iter().all(|&byte| byte == FENCE);
        let looked = look(&bytes[inside.clone()]);
        ensure!(intact, "bytes next to a buffer of {} bytes were written", inside.len());
        block.bytes_mut()[inside].fill(POISON);
        self.keep(block);
        Ok(looked)
    }

    /// Keeps a poisoned block; those kept longest are looked at and freed.
    fn keep(&mut self, block: Block) {
        self.kept_bytes += block.capacity;
        self.kept.push_back(block);
        while self.kept_bytes > QUARANTINE
            && let Some(block) = self.kept.pop_front()
        {
            self.kept_bytes -= block.capacity;
            if let Some(at) = block.bytes()[block.inside()].iter().position(|&byte| byte != POISON) {
                self.late = Some(format!("byte {at} of a buffer was written after it was given back"));
            }
        }
    }

    /// Overwrites a buffer that is lent, as an application might that is too early.
    pub(crate) fn spoil(&mut self, loan: Loan) {
        if let Some(Some(Lent { block, .. })) = self.lent.get_mut(loan.0) {
            let inside = block.inside();
            block.bytes_mut()[inside].fill(POISON);
        }
    }

    fn find(&self, owner: u32, is: Use, address: u64, len: usize) -> Option<(usize, usize)> {
        let within = |lent: &Lent| {
            let inside = lent.block.inside();
            let at = address.checked_sub(lent.block.base.as_ptr() as u64)? as usize;
            let covers = at >= inside.start && at.checked_add(len).is_some_and(|end| end <= inside.end);
            (lent.owner == owner && lent.is == is && covers).then_some(at)
        };
        self.lent.iter().enumerate().find_map(|(index, lent)| Some((index, within(lent.as_ref()?)?)))
    }

    /// Whether an address is in the middle of a message to be sent.
    pub(crate) fn is_midway(&self, owner: u32, address: u64) -> bool {
        self.find(owner, Use::Send, address, 1).is_some_and(|(_, at)| at > GUARD)
    }

    /// Copies bytes of a process that it has lent for a send: what a single copy of remote memory does. False when there is
    /// no such buffer, and the process would have read something else.
    pub(crate) fn pull(&self, owner: u32, address: u64, to: &mut [u8]) -> bool {
        let found = self.find(owner, Use::Send, address, to.len());
        let Some((index, at)) = found else { return false };
        let Some(Lent { block, .. }) = &self.lent[index] else { return false };
        to.copy_from_slice(&block.bytes()[at..at + to.len()]);
        true
    }

    /// Writes bytes of a process that it has lent for a receive. False when there is no such buffer, and something else would
    /// have been overwritten.
    pub(crate) fn push(&mut self, owner: u32, address: u64, from: &[u8]) -> bool {
        let found = self.find(owner, Use::Receive, address, from.len());
        let Some((index, at)) = found else { return false };
        let Some(Lent { block, .. }) = &mut self.lent[index] else { return false };
        block.bytes_mut()[at..at + from.len()].copy_from_slice(from);
        true
    }

    /// A process is gone, and its engine with it: so is its memory.
    pub(crate) fn forget(&mut self, owner: u32) {
        for (index, slot) in self.lent.iter_mut().enumerate() {
            if slot.as_ref().is_some_and(|lent| lent.owner == owner) {
                *slot = None;
                self.vacant.push(index);
            }
        }
    }

    /// Whether what was given back was left alone.
    pub(crate) fn check(&mut self) -> Check {
        let late = self.late.take();
        ensure!(late.is_none(), "{}", late.unwrap_or_default());
        Ok(())
    }

    /// Buffers of a process that are lent, but for its region.
    pub(crate) fn count(&self, owner: u32) -> usize {
        self.lent.iter().flatten().filter(|lent| lent.owner == owner && lent.is != Use::Region).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_differs_from_others_and_from_itself_elsewhere() {
        let mut bytes = [0; 21];
        fill(5, &mut bytes);
        assert_eq!(first_difference(5, &bytes), None);
        assert!(first_difference(6, &bytes).is_some() && first_difference(5, &bytes[1..]).is_some());
        bytes[19] ^= 1;
        assert_eq!((first_difference(5, &bytes), first_difference(5, &bytes[..19])), (Some(19), None));
    }

    #[test]
    fn bytes_outside_a_buffer_and_late_writes_are_found() {
        let mut memory = Memory::default();
        let (loan, base) = memory.lend_room(0, 8);
        // SAFETY: the guard behind the buffer is in the block.
        unsafe { base.add(8).write(0) };
        assert!(memory.end(loan, |_| ()).is_err() && memory.end(loan, |_| ()).is_err());
        let (loan, base) = memory.lend_room(0, 8);
        memory.end(loan, |bytes| assert_eq!(bytes, [BLANK; 8])).unwrap();
        // SAFETY: the block is kept in quarantine.
        unsafe { base.add(3).write(0) };
        let (loan, _) = memory.lend_message(0, 1, QUARANTINE);
        memory.end(loan, |_| ()).unwrap();
        assert!(memory.check().is_err() && memory.check().is_ok());
    }

    #[test]
    fn only_live_send_buffers_of_the_process_are_pulled() {
        let mut memory = Memory::default();
        let (loan, base) = memory.lend_message(1, 9, 40);
        let (_, room) = memory.lend_room(1, 40);
        let mut to = [0; 16];
        assert!(memory.pull(1, base as u64 + 8, &mut to) && first_difference(9 + 1, &to).is_none());
        assert!(!memory.pull(0, base as u64, &mut to) && !memory.pull(1, base as u64 + 32, &mut to));
        assert!(!memory.pull(1, room as u64, &mut to) && !memory.pull(1, base as u64 - 1, &mut to));
        memory.end(loan, |_| ()).unwrap();
        assert!(!memory.pull(1, base as u64, &mut to) && memory.count(1) == 1);
        memory.forget(1);
        assert_eq!(memory.count(1), 0);
    }
}
