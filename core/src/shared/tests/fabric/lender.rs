//! The buffers that the engines of a test use.

use std::boxed::Box;
use std::rc::Rc;
use std::vec;
use std::vec::Vec;

use core::cell::RefCell;
use core::ptr::NonNull;

use super::FabricMemory;
use crate::payload::{RecvBuf, Segment, SendBuf};
use crate::port::PeerId;

/// Names a buffer of a [`Lender`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loan(usize);

/// A buffer, its rank, and whether it is a send buffer.
type AlignedBuffer = (NonNull<[u8]>, PeerId, bool);

/// Owns the buffers that engines use. It must be declared after the engines, so that it is dropped after them.
#[derive(Debug)]
pub(crate) struct Lender {
    pub(super) buffers: Vec<Option<AlignedBuffer>>,
    pub(super) vacant: Vec<usize>,
    pub(super) memory: Rc<RefCell<FabricMemory>>,
    /// The lists of scattered buffers, and the state of the random numbers that scatter them; 0 scatters nothing.
    pub(super) lists: Vec<Box<[Segment]>>,
    pub(super) random: u64,
    /// See [`Lender::head`] and [`Lender::cut_equally`].
    pub(super) header: usize,
    pub(super) equal: usize,
}

impl Lender {
    /// Makes lists of about half of the buffers that are lent from now on.
    pub(crate) fn scatter(&mut self, seed: u64) {
        self.header = 0;
        self.random = seed | 1;
    }

    /// Returns a random number below `bound`, which is small.
    fn below(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (self.random >> 40) as usize % bound
    }

    /// Lends each later buffer to send as a list of a header of this length and the rest.
    pub(crate) fn head(&mut self, header: usize) {
        self.header = header;
    }

    /// Lends each later buffer to send as a list of so many equal runs.
    pub(crate) fn cut_equally(&mut self, count: usize) {
        self.equal = count;
    }

    /// Returns a list as [`Lender::head`] and [`Lender::cut_equally`] require. `None`: contiguous, or random.
    fn cut(&mut self, buffer: NonNull<[u8]>) -> Option<(*const Segment, usize)> {
        if self.equal == 0 {
            return self.headed(buffer);
        }
        let (base, len) = (buffer.as_ptr().cast::<u8>(), buffer.len());
        let at = |part: usize| part * len / self.equal;
        let run = |part| Segment { base: base.wrapping_add(at(part)), len: at(part + 1) - at(part) };
        self.lists.push((0..self.equal).map(run).collect());
        self.lists.last().map(|list| (list.as_ptr(), list.len()))
    }

    /// Returns the list of a header and the rest, with empty runs.
    fn headed(&mut self, buffer: NonNull<[u8]>) -> Option<(*const Segment, usize)> {
        let (base, len) = (buffer.as_ptr().cast::<u8>(), buffer.len());
        let header = Some(self.header).filter(|header| (1..len).contains(header))?;
        let empty = Segment { base: std::ptr::null_mut(), len: 0 };
        let rest = Segment { base: base.wrapping_add(header), len: len - header };
        self.lists.push(vec![Segment { base, len: header }, empty, rest, empty].into_boxed_slice());
        self.lists.last().map(|list| (list.as_ptr(), list.len()))
    }

    /// Returns a list of random runs, some of them empty, that make up a buffer. `None`: contiguous.
    fn list(&mut self, buffer: NonNull<[u8]>) -> Option<(*const Segment, usize)> {
        if self.random == 0 || self.below(2) == 0 {
            return None;
        }
        let (base, len) = (buffer.as_ptr().cast::<u8>(), buffer.len());
        let most = [1, 9, 100, 700][self.below(4)].min(len.max(1));
        let (mut at, mut list) = (0, Vec::new());
        while at < len {
            let run = self.below(most + 1).min(len - at);
            let nowhere = run == 0 && self.below(2) == 0;
            let base = if nowhere { std::ptr::null_mut() } else { base.wrapping_add(at) };
            list.push(Segment { base, len: run });
            at += run;
        }
        self.lists.push(list.into_boxed_slice());
        self.lists.last().map(|list| (list.as_ptr(), list.len()))
    }

    fn lend(&mut self, bytes: Vec<u8>, rank: PeerId, sends: bool) -> (Loan, NonNull<[u8]>) {
        let buffer = NonNull::from(Box::leak(bytes.into_boxed_slice()));
        let at = self.vacant.pop().unwrap_or(self.buffers.len());
        if at == self.buffers.len() {
            self.buffers.push(None);
        }
        self.buffers[at] = Some((buffer, rank, sends));
        if !buffer.is_empty() {
            let mut memory = self.memory.borrow_mut();
            let buffers = if sends { &mut memory.sends } else { &mut memory.rooms };
            buffers.insert((rank, buffer.addr().get()), buffer);
        }
        (Loan(at), buffer)
    }

    pub(crate) fn send(&mut self, from: PeerId, bytes: Vec<u8>) -> (Loan, SendBuf) {
        let len = bytes.len();
        let (loan, buffer) = self.lend(bytes, from, true);
        if let Some((list, count)) = self.cut(buffer).or_else(|| self.list(buffer)) {
            let table = NonNull::from(self.lists.last().map_or(&[][..], |list| list)).cast::<u8>();
            let table = NonNull::slice_from_raw_parts(table, count * size_of::<Segment>());
            self.memory.borrow_mut().tables.insert((from, table.addr().get()), table);
            // SAFETY: list and buffer are on the heap and unchanged until the loan ends.
            return (loan, unsafe { SendBuf::from_list(list, count) }.unwrap());
        }
        // SAFETY: the buffer is on the heap and unchanged until the loan ends.
        (loan, unsafe { SendBuf::from_raw(buffer.as_ptr().cast_const().cast(), len) })
    }

    /// Lends a receive buffer of `len` bytes, filled with 0xee.
    pub(crate) fn receive(&mut self, rank: PeerId, len: usize) -> (Loan, RecvBuf) {
        let (loan, buffer) = self.lend(vec![0xee; len], rank, false);
        if let Some((list, count)) = self.list(buffer) {
            // SAFETY: list and buffer are on the heap, and are not accessed until the loan ends.
            return (loan, unsafe { RecvBuf::from_list(list, count) }.unwrap());
        }
        // SAFETY: the buffer is on the heap, and is not accessed until the loan ends.
        (loan, unsafe { RecvBuf::from_raw(buffer.as_ptr().cast(), len) })
    }

    /// Ends the loan: the request that used the buffer is complete.
    pub(crate) fn end(&mut self, loan: Loan) -> Vec<u8> {
        let (buffer, rank, sends) = self.buffers[loan.0].take().unwrap();
        self.vacant.push(loan.0);
        let mut memory = self.memory.borrow_mut();
        let buffers = if sends { &mut memory.sends } else { &mut memory.rooms };
        buffers.remove(&(rank, buffer.addr().get()));
        // SAFETY: leaked in `lend`, and the engine no longer uses it.
        unsafe { Box::from_raw(buffer.as_ptr()) }.into_vec()
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        for (buffer, ..) in self.buffers.iter().flatten() {
            // SAFETY: leaked in `lend`; the engines were dropped.
            drop(unsafe { Box::from_raw(buffer.as_ptr()) });
        }
    }
}
