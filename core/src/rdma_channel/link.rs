//! What all designs use: the connection, the memory of this end, the key of the peer's, and the numbers of work
//! requests.
#![forbid(unsafe_code)]

use super::{PipeError, PipeShape};
use crate::payload::{Gather, LentMemory, Scatter};
use crate::port::memory::{
    CompletionSource, Connection, MemoryKey, MemoryPort, PortRegion, PostError, Slice, Work,
};

use super::shape::RING_AT;

/// Registered memory of one end of a pipe.
#[derive(Debug)]
pub struct PipeMemory {
    /// The region.
    pub region: PortRegion,
    /// A second view of the same memory, all of whose bytes are 0 at first, aligned to eight bytes.
    pub view: LentMemory,
}

/// What a work request of a pipe does. Its number is in the low bits of the request's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PipeWork {
    /// Writes data; the number is the position up to which data is written.
    Data,
    /// Writes or sends a pointer of a group; the number counts those of the group.
    Pointer(u8),
    /// Receives a message; the number is the slot.
    Receive,
    /// Reads from the peer's exposed buffer.
    Read,
    /// Writes past the pipe; the number is the position in the buffer up to which it writes.
    Past,
    /// Writes into the peer's advertised buffer; the number is the position in the run up to which it writes.
    Push,
}

const NUMBER_BITS: u32 = 56;
const NUMBER: u64 = (1 << NUMBER_BITS) - 1;

impl PipeWork {
    /// Returns the number of a work request.
    pub(super) const fn id(self, number: u64) -> u64 {
        let kind = match self {
            Self::Data => 0,
            Self::Pointer(group) => 0x10 | group as u64,
            Self::Receive => 0x20,
            Self::Read => 0x30,
            Self::Past => 0x40,
            Self::Push => 0x50,
        };
        kind << NUMBER_BITS | (number & NUMBER)
    }

    /// Returns the meaning of a work request's number; `None` if no pipe posts it.
    pub(super) const fn of(id: u64) -> Option<(Self, u64)> {
        let work = match id >> NUMBER_BITS {
            0 => Self::Data,
            kind @ 0x10..=0x13 => Self::Pointer(kind as u8 & 0xf),
            0x20 => Self::Receive,
            0x30 => Self::Read,
            0x40 => Self::Past,
            0x50 => Self::Push,
            _ => return None,
        };
        Some((work, id & NUMBER))
    }
}

/// One end's connection and memory.
#[derive(Debug)]
pub(super) struct PipeLink {
    pub(super) connection: Connection,
    pub(super) shape: PipeShape,
    /// The peer writes here: its pointers, then the ring.
    pub(super) inbox: PipeMemory,
    /// This process writes from here: the staging buffer, then slots.
    pub(super) outbox: PipeMemory,
    /// The key of the peer's inbox, once it is known.
    pub(super) peer: Option<MemoryKey>,
    /// Most bytes of one write.
    pub(super) most_bytes: u32,
}

impl PipeLink {
    /// Writes a part of the outbox into the peer's inbox. Returns `false` if the queue is full, or the connection is
    /// not ready.
    pub(super) fn write<P: MemoryPort>(
        &self,
        port: &mut P,
        id: u64,
        (from, len): (u64, u32),
        to: u64,
    ) -> Result<bool, PipeError> {
        let Some(peer) = self.peer else { return Ok(false) };
        let part = [Slice { region: self.outbox.region, offset: from, len }];
        let work = Work::new(self.connection, id);
        posted(port.write(work, CompletionSource::Gather(&part), peer.at(to), None))
    }

    /// Writes a part of the ring. Returns as [`PipeLink::write`].
    pub(super) fn write_ring<P: MemoryPort>(
        &self,
        port: &mut P,
        id: u64,
        at: u64,
        len: u32,
    ) -> Result<bool, PipeError> {
        self.write(port, id, (at, len), RING_AT + at)
    }

    /// Returns the offset in the ring of a position in the stream.
    pub(super) const fn ring_offset(&self, position: u64) -> u64 {
        position & (self.shape.ring_bytes as u64 - 1)
    }

    /// Copies bytes from `at` on of a list into the staging buffer.
    pub(super) fn stage(&self, to: u64, from: &mut Gather, (at, len): (usize, usize)) {
        from.each(at, len, |done, part| {
            // The callers stay within the staging buffer.
            let fits = self.outbox.view.write(to + done as u64, part);
            debug_assert!(fits, "the staging buffer is left");
        });
    }

    /// Copies bytes out of the ring into a list, from `at` on.
    pub(super) fn unstage(&self, from: u64, into: &mut Scatter, (at, len): (usize, usize)) {
        into.each(at, len, |done, part| {
            // The callers stay within the ring.
            let fits = self.inbox.view.read(RING_AT + from + done as u64, part);
            debug_assert!(fits, "the ring is left");
        });
    }
}

/// Returns whether a work request was posted. A full queue and a connection that is not ready are no errors: the
/// request is posted by a later call, and an event reports a connection that is lost.
pub(super) const fn posted(result: Result<(), PostError>) -> Result<bool, PipeError> {
    match result {
        Ok(()) => Ok(true),
        Err(PostError::QueueFull | PostError::NotReady) => Ok(false),
        Err(error) => Err(PipeError::Post(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_work_requests_have_one_meaning() {
        let kinds =
            [PipeWork::Data, PipeWork::Receive, PipeWork::Read, PipeWork::Past, PipeWork::Push].into_iter();
        for kind in kinds.chain((0..4).map(PipeWork::Pointer)) {
            for number in [0, 1, 1 << 40, NUMBER] {
                assert_eq!(PipeWork::of(kind.id(number)), Some((kind, number)));
            }
        }
        assert_eq!(PipeWork::of(u64::MAX), None);
    }
}
