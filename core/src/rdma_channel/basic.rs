//! The basic design (paper 1, section 4.2): a ring of bytes in the receiver's memory, a staging buffer of the same size
//! at the sender, and three writes for a put and its get.
//!
//! Positions count the bytes of the stream; the ring holds position `p` at `p` modulo its size. Always `tail <=
//! settled, written <= staged <= tail + ring`: bytes of the staging buffer are replaced only when the peer has taken
//! them and the port no longer reads them.
#![forbid(unsafe_code)]

#[cfg(nemesia_injected_fault)]
use super::fault::{PipeFault, injected};
use super::link::{PipeLink, PipeWork};
use super::pointer::Pointer;
use super::pointers::Pointers;
use super::{PipeError, checked};
use crate::payload::{Gather, Scatter};
use crate::port::memory::MemoryPort;

/// Both directions of a pipe of the basic design, at one end.
#[derive(Debug, Default)]
pub(super) struct Basic {
    /// Bytes that were copied to the staging buffer.
    staged: u64,
    /// Bytes whose writes are posted.
    written: u64,
    /// Bytes whose writes are complete.
    settled: u64,
    /// The replica of the peer's tail.
    tail: u64,
    /// The replica of the peer's head.
    head: u64,
    /// Bytes that were read: the master copy of our tail.
    taken: u64,
}

impl Basic {
    /// Puts the list's bytes from its beginning. Returns how many.
    pub(super) fn put<P: MemoryPort>(
        &mut self,
        port: &mut P,
        (link, pointers): (&PipeLink, &mut Pointers),
        from: &mut Gather,
    ) -> Result<usize, PipeError> {
        // 1. The space that is empty, by local copies of head and tail.
        let mut room = self.room(link);
        if room < from.buf().len() as u64 {
            self.tail = checked("tail", pointers.theirs(link, Pointer::Tail), (self.tail, self.written))?;
            room = self.room(link);
        }
        // 2. Copy to the staging buffer.
        let len = from.buf().len().min(room as usize);
        self.stage(link, from, len);
        // 3. to 5. Write the data, move the head, write the head.
        self.push(port, link, pointers)?;
        // 6. The bytes belong to the caller again.
        Ok(len)
    }

    fn room(&self, link: &PipeLink) -> u64 {
        let free = self.tail.min(self.settled);
        #[cfg(nemesia_injected_fault)]
        let free = if injected(PipeFault::ReuseStaging) { self.written } else { free };
        u64::from(link.shape.ring_bytes) - (self.staged - free)
    }

    /// Copies the first bytes of a list to the staging buffer, in two parts if the ring ends between them.
    fn stage(&mut self, link: &PipeLink, from: &mut Gather, len: usize) {
        let at = link.ring_offset(self.staged);
        let first = len.min((u64::from(link.shape.ring_bytes) - at) as usize);
        link.stage(at, from, (0, first));
        if first < len {
            link.stage(0, from, (first, len - first));
        }
        self.staged += len as u64;
    }

    /// Posts writes of staged bytes, then of the pointers, as far as the queue has room. The head that is published
    /// covers only bytes whose writes were posted before.
    pub(super) fn push<P: MemoryPort>(
        &mut self,
        port: &mut P,
        link: &PipeLink,
        pointers: &mut Pointers,
    ) -> Result<(), PipeError> {
        #[cfg(nemesia_injected_fault)]
        if injected(PipeFault::HeadFirst) {
            pointers.publish(Pointer::Head, self.staged);
            pointers.push(port, link)?;
        }
        while self.written < self.staged {
            let at = link.ring_offset(self.written);
            let end = u64::from(link.shape.ring_bytes) - at;
            #[cfg(nemesia_injected_fault)]
            let end = if injected(PipeFault::IgnoreWrap) && at > 0 { end + 1 } else { end };
            let len = (self.staged - self.written).min(end).min(link.most_bytes.into());
            let id = PipeWork::Data.id(self.written + len);
            if !link.write_ring(port, id, at, len as u32)? {
                break;
            }
            self.written += len;
        }
        pointers.publish(Pointer::Head, self.written);
        if pointers.is_clean() { Ok(()) } else { pointers.push(port, link) }
    }

    /// Takes note that the port no longer uses the staged bytes below a position.
    pub(super) const fn on_written(&mut self, position: u64) {
        self.settled = position;
    }

    /// Gets bytes into the list, from its beginning. Returns how many.
    pub(super) fn get<P: MemoryPort>(
        &mut self,
        port: &mut P,
        (link, pointers): (&PipeLink, &mut Pointers),
        into: &mut Scatter,
    ) -> Result<usize, PipeError> {
        // 1. Whether there are new bytes, by local copies of head and tail.
        if self.head == self.taken {
            let most = self.taken + u64::from(link.shape.ring_bytes);
            self.head = checked("head", pointers.theirs(link, Pointer::Head), (self.head, most))?;
        }
        let len = into.len().min((self.head - self.taken) as usize);
        if len > 0 {
            #[cfg(nemesia_injected_fault)]
            if injected(PipeFault::TailFirst) {
                pointers.publish(Pointer::Tail, self.taken + u64::from(link.shape.ring_bytes) / 2);
                pointers.push(port, link)?;
            }
            // 2. Copy out of the ring.
            let at = link.ring_offset(self.taken);
            let first = len.min((u64::from(link.shape.ring_bytes) - at) as usize);
            link.unstage(at, into, (0, first));
            link.unstage(0, into, (first, len - first));
            // 3. and 4. Move the tail, and write it to the sender.
            self.taken += len as u64;
            pointers.publish(Pointer::Tail, self.taken);
        }
        #[cfg(nemesia_injected_fault)]
        if injected(PipeFault::ForgetStaged) {
            pointers.push(port, link)?;
            return Ok(len);
        }
        if self.written < self.staged || !pointers.is_clean() {
            self.push(port, link, pointers)?;
        }
        // 5. The bytes are the caller's.
        Ok(len)
    }

    /// Returns whether a get finds bytes.
    pub(super) fn has_bytes(&self, link: &PipeLink, pointers: &mut Pointers) -> bool {
        self.head != self.taken || pointers.theirs(link, Pointer::Head) > self.taken
    }

    /// Returns whether no staged byte waits for its write.
    pub(super) const fn is_posted(&self) -> bool {
        self.written == self.staged
    }

    /// Returns whether all bytes that were put have left this end.
    pub(super) const fn is_sent(&self) -> bool {
        self.settled == self.staged
    }
}
