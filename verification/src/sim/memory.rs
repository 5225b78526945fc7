//! The memory of every process: the buffers lent to the engines, their contents, and their permitted uses.
//!
//! A buffer that was given back is poisoned and kept for a while. An engine that still reads it sends poison, and an
//! engine that still writes to it is detected.

mod block;

use std::collections::VecDeque;

use block::{Block, GUARD};
pub(crate) use block::{POISON, Place};

use crate::rng::mix;
use crate::violation::{Check, Violation, ensure};

/// The contents of a receive buffer before anything is received.
pub(crate) const BLANK: u8 = 0xee;
/// The bytes of given-back buffers that are kept.
const QUARANTINE: usize = 256 << 10;

/// Fills a message: each byte depends on the message and on its position.
pub(crate) fn fill(key: u64, bytes: &mut [u8]) {
    for (index, part) in bytes.chunks_mut(8).enumerate() {
        part.copy_from_slice(&word(key, index)[..part.len()]);
    }
}

/// Returns the position of the first byte that differs from the message with this key.
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

/// The purpose for which a buffer is lent.
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

/// The name of a lent buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loan(usize);

/// All buffers of all processes.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    lent: Vec<Option<Lent>>,
    vacant: Vec<usize>,
    kept: VecDeque<Block>,
    kept_bytes: usize,
    /// A write after the buffer was given back, if there was one.
    late: Option<String>,
}

impl Memory {
    /// Lends a buffer that holds a message, cut into segments at `cuts`.
    pub(crate) fn lend_message(&mut self, owner: u32, key: u64, len: usize, cuts: &[usize]) -> (Loan, Place) {
        self.lend(owner, Block::new(len, cuts), Use::Send, |bytes| fill(key, bytes))
    }

    /// Lends a buffer to receive into.
    pub(crate) fn lend_room(&mut self, owner: u32, len: usize, cuts: &[usize]) -> (Loan, Place) {
        self.lend(owner, Block::new(len, cuts), Use::Receive, |bytes| bytes.fill(BLANK))
    }

    /// Lends zeroed memory for other processes to use, for as long as its owner lives.
    pub(crate) fn lend_region(&mut self, owner: u32, len: usize) -> (Loan, Place) {
        self.lend(owner, Block::new(len, &[]), Use::Region, |bytes| bytes.fill(0))
    }

    fn lend(&mut self, owner: u32, mut block: Block, is: Use, fill: impl FnOnce(&mut [u8])) -> (Loan, Place) {
        block.write(fill);
        let place = block.place();
        let lent = Lent { block, owner, is };
        let index = self.vacant.pop().unwrap_or(self.lent.len());
        match self.lent.get_mut(index) {
            Some(slot) => *slot = Some(lent),
            None => self.lent.push(Some(lent)),
        }
        (Loan(index), place)
    }

    /// Returns the contents of a lent buffer.
    pub(crate) fn copy(&self, loan: Loan) -> Vec<u8> {
        let lent = self.lent.get(loan.0).and_then(Option::as_ref);
        lent.map_or(Vec::new(), |Lent { block, .. }| block.read(<[u8]>::to_vec))
    }

    /// Ends a loan: shows the bytes to `look`, then poisons them. Bytes around the buffer must be unchanged.
    pub(crate) fn end<T>(&mut self, loan: Loan, look: impl FnOnce(&[u8]) -> T) -> Result<T, Violation> {
        let lent = self.lent.get_mut(loan.0).and_then(Option::take);
        let Some(Lent { mut block, .. }) = lent else {
            return Err(Violation("a buffer is given back twice".into()));
        };
        self.vacant.push(loan.0);
        ensure!(block.is_fenced(), "bytes next to a buffer of {} bytes were written", block.len());
        let looked = block.read(look);
        block.poison();
        self.keep(block);
        Ok(looked)
    }

    /// Keeps a poisoned block. The oldest blocks are checked and freed.
    fn keep(&mut self, block: Block) {
        self.kept_bytes += block.capacity();
        self.kept.push_back(block);
        while self.kept_bytes > QUARANTINE
            && let Some(block) = self.kept.pop_front()
        {
            self.kept_bytes -= block.capacity();
            if let Some(at) = block.read(|bytes| bytes.iter().position(|&byte| byte != POISON)) {
                self.late = Some(format!("byte {at} of a buffer was written after it was given back"));
            }
        }
    }

    /// Overwrites a lent buffer, as an application does that reuses it too early.
    pub(crate) fn spoil(&mut self, loan: Loan) {
        if let Some(Some(Lent { block, .. })) = self.lent.get_mut(loan.0) {
            block.poison();
        }
    }

    /// Returns the buffer of a process that contains these bytes and was lent for this use, and the position in it.
    fn find(&mut self, owner: u32, is: Use, address: u64, len: usize) -> Option<(&mut Block, usize)> {
        let mine = self.lent.iter_mut().flatten().filter(|lent| lent.owner == owner && lent.is == is);
        let mut found = mine.filter_map(|lent| Some((lent.block.find(address, len)?, &mut lent.block)));
        found.next().map(|(at, block)| (block, at))
    }

    /// Returns whether an address is in the middle of a message to be sent.
    pub(crate) fn is_midway(&mut self, owner: u32, address: u64) -> bool {
        self.find(owner, Use::Send, address, 1).is_some_and(|(_, at)| at > GUARD)
    }

    /// Copies bytes that a process has lent for a send, as a single copy of remote memory does. Returns false if there
    /// is no such buffer, and the real copy would have read something else.
    pub(crate) fn pull(&mut self, owner: u32, address: u64, to: &mut [u8]) -> bool {
        let found = self.find(owner, Use::Send, address, to.len());
        found.map(|(block, at)| to.copy_from_slice(block.run(at, to.len()))).is_some()
    }

    /// Returns whether the list of a buffer that a process has lent for a send lies at this address.
    pub(crate) fn has_table(&self, owner: u32, address: u64) -> bool {
        self.pull_table(owner, address, &mut [])
    }

    /// Copies the first entries of the list of a buffer that a process has lent for a send. Returns false if there is
    /// no such list.
    pub(crate) fn pull_table(&self, owner: u32, address: u64, to: &mut [u8]) -> bool {
        let mut mine = self.lent.iter().flatten().filter(|lent| lent.owner == owner && lent.is == Use::Send);
        let table = mine.find_map(|lent| lent.block.table(address));
        table
            .as_ref()
            .and_then(|table| table.get(..to.len()))
            .map(|table| to.copy_from_slice(table))
            .is_some()
    }

    /// Writes bytes that a process has lent for a receive. Returns false if there is no such buffer, and the real copy
    /// would have overwritten something else.
    pub(crate) fn push(&mut self, owner: u32, address: u64, from: &[u8]) -> bool {
        let found = self.find(owner, Use::Receive, address, from.len());
        found.map(|(block, at)| block.run(at, from.len()).copy_from_slice(from)).is_some()
    }

    /// Removes the memory of a process that is gone, and its engine with it.
    pub(crate) fn forget(&mut self, owner: u32) {
        for (index, slot) in self.lent.iter_mut().enumerate() {
            if slot.as_ref().is_some_and(|lent| lent.owner == owner) {
                *slot = None;
                self.vacant.push(index);
            }
        }
    }

    /// Checks that given-back buffers were left alone.
    pub(crate) fn check(&mut self) -> Check {
        let late = self.late.take();
        ensure!(late.is_none(), "{}", late.unwrap_or_default());
        Ok(())
    }

    /// Returns the number of lent buffers of a process, without its region.
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

    fn run(lent: (Loan, Place)) -> (Loan, *mut u8) {
        match lent.1 {
            Place::Run(base) => (lent.0, base),
            Place::List(..) => unreachable!("one run"),
        }
    }

    #[test]
    fn bytes_outside_a_buffer_and_late_writes_are_found() {
        let mut memory = Memory::default();
        let (loan, base) = run(memory.lend_room(0, 8, &[]));
        // SAFETY: the guard behind the buffer is in the block.
        unsafe { base.add(8).write(0) };
        assert!(memory.end(loan, |_| ()).is_err() && memory.end(loan, |_| ()).is_err());
        let (loan, base) = run(memory.lend_room(0, 8, &[]));
        memory.end(loan, |bytes| assert_eq!(bytes, [BLANK; 8])).unwrap();
        // SAFETY: the block is kept in quarantine.
        unsafe { base.add(3).write(0) };
        let (loan, _) = memory.lend_message(0, 1, QUARANTINE, &[]);
        memory.end(loan, |_| ()).unwrap();
        assert!(memory.check().is_err() && memory.check().is_ok());
    }

    #[test]
    fn runs_of_a_list_lie_apart_and_make_up_the_message() {
        let mut memory = Memory::default();
        let (loan, place) = memory.lend_message(0, 9, 40, &[0, 7, 7, 30]);
        let Place::List(list, count) = place else { unreachable!("several runs") };
        // SAFETY: the list lives as long as the loan.
        let segments: Vec<_> = (0..count).map(|at| unsafe { list.add(at).read() }).collect();
        assert_eq!(segments.iter().map(|segment| segment.len).collect::<Vec<_>>(), [0, 7, 0, 23, 10]);
        let mut to = [0; 7];
        assert!(memory.pull(0, segments[1].base as u64, &mut to) && first_difference(9, &to).is_none());
        assert!(!memory.pull(0, segments[1].base as u64, &mut [0; 8]), "behind the run is a gap");
        memory.end(loan, |bytes| assert_eq!((bytes.len(), first_difference(9, bytes)), (40, None))).unwrap();
        let (loan, place) = memory.lend_room(0, 40, &[7]);
        let Place::List(list, _) = place else { unreachable!("several runs") };
        // SAFETY: the gap behind the first run is in the block.
        unsafe { list.read().base.add(7).write(0) };
        assert!(memory.end(loan, |_| ()).is_err());
    }

    #[test]
    fn only_live_send_buffers_of_the_process_are_pulled() {
        let mut memory = Memory::default();
        let (loan, base) = run(memory.lend_message(1, 9, 40, &[]));
        let (_, room) = run(memory.lend_room(1, 40, &[]));
        let mut to = [0; 16];
        assert!(memory.pull(1, base as u64 + 8, &mut to) && first_difference(9 + 1, &to).is_none());
        assert!(!memory.pull(0, base as u64, &mut to) && !memory.pull(1, base as u64 + 32, &mut to));
        assert!(!memory.pull(1, room as u64, &mut to) && !memory.pull(1, base as u64 - 1, &mut to));
        assert!(memory.push(1, room as u64 + 8, &to) && !memory.push(1, base as u64, &to));
        memory.end(loan, |_| ()).unwrap();
        assert!(!memory.pull(1, base as u64, &mut to) && memory.count(1) == 1);
        memory.forget(1);
        assert_eq!(memory.count(1), 0);
    }
}
