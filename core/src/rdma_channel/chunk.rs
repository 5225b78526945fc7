//! Chunks: the ring in parts of fixed size, each with a header (paper 1, section 4.3).
//!
//! Chunk `n` of a direction lies at `n` modulo the number of chunks. Its header has the number, counted from 1, so a
//! header of an earlier lap, or of none, is never taken for it. The number is the last word of the header and
//! little-endian: on a port that places in order it is complete only when the rest of the header is placed.
//!
//! | bytes | header |
//! |---|---|
//! | 0 to 3 | bytes of the payload |
//! | 4 | kind: 1 data, 2 exposed buffer, 3 advertised buffer, 4 bytes pushed into it |
//! | 5 | bit 0: the second flag is inverted; bit 1: more chunks of the same put follow |
//! | 6, 7 | 0 |
//! | 8 to 15 | the sender's tail of the other direction, in chunks |
//! | 16 to 23 | number of the chunk: the first flag |
//!
//! [`ChunkFill::TwoFlags`]: header, payload, up to seven bytes, then a word that repeats the number, inverted if bit 0
//! is set. The sender knows what that word was before, because its staging buffer has the same contents as the peer's
//! ring, and inverts the flag if it was equal. [`ChunkFill::Bottom`]: the payload, then the header at the end of the
//! chunk; no second flag is needed.
#![forbid(unsafe_code)]

use super::PipeError;
use super::shape::{ChunkFill, PipeShape};

/// Bytes of a header.
pub(super) const HEADER: u64 = 24;
/// Offset of the number in the header.
pub(super) const NUMBER_AT: u64 = 16;
const FLAG: u64 = 8;

/// The contents of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ChunkKind {
    Data = 1,
    /// The key of a buffer from which the receiver reads.
    Exposed = 2,
    /// The key of a buffer into which the receiver may write, and its position in the stream.
    Advertised = 3,
    /// The number of bytes that were written into an advertised buffer.
    Pushed = 4,
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkHeader {
    pub(super) len: u32,
    pub(super) kind: ChunkKind,
    pub(super) inverted: bool,
    pub(super) more: bool,
    pub(super) tail: u64,
    pub(super) number: u64,
}

impl ChunkHeader {
    pub(super) fn to_bytes(self) -> [u8; HEADER as usize] {
        let mut bytes = [0; HEADER as usize];
        let flags = u8::from(self.inverted) | u8::from(self.more) << 1;
        let [a, b, c, d] = self.len.to_le_bytes();
        let first = u64::from_le_bytes([a, b, c, d, self.kind as u8, flags, 0, 0]);
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip([first, self.tail, self.number]) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    /// Decodes and checks a header of chunk `number`.
    pub(super) fn from_bytes(
        bytes: &[u8; HEADER as usize],
        number: u64,
        capacity: u32,
    ) -> Result<Self, PipeError> {
        let mut words = [0; 3];
        for (to, word) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *to = u64::from_le_bytes(*word);
        }
        let [first, tail, found] = words;
        let (len, [.., kind, flags, _, _]) = (first as u32, first.to_le_bytes());
        if found != number {
            return Err(PipeError::Violated { what: "number of a chunk", found, limit: number });
        }
        if len == 0 || len > capacity {
            let (found, limit) = (len.into(), capacity.into());
            return Err(PipeError::Violated { what: "length of a chunk", found, limit });
        }
        let kind = match kind {
            1 => ChunkKind::Data,
            2 => ChunkKind::Exposed,
            3 => ChunkKind::Advertised,
            4 => ChunkKind::Pushed,
            other => {
                return Err(PipeError::Violated { what: "kind of a chunk", found: other.into(), limit: 4 });
            }
        };
        Ok(Self { len, kind, inverted: flags & 1 != 0, more: flags & 2 != 0, tail, number })
    }

    /// Returns the second flag.
    pub(super) const fn flag(&self) -> u64 {
        if self.inverted { !self.number } else { self.number }
    }
}

/// Where the parts of a chunk lie, as offsets in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkPlaces {
    pub(super) header: u64,
    pub(super) payload: u64,
    /// The second flag, if there is one.
    pub(super) flag: Option<u64>,
    /// The bytes that are written: their offset, and their number.
    pub(super) whole: (u64, u32),
}

impl PipeShape {
    /// Returns the most bytes of a chunk's payload.
    pub(super) const fn capacity(&self) -> u32 {
        match self.fill {
            ChunkFill::TwoFlags => self.chunk_bytes - (HEADER + FLAG) as u32,
            ChunkFill::Bottom => self.chunk_bytes - HEADER as u32,
        }
    }

    /// Returns the offset in the ring of the header of the chunk that has so many before it.
    pub(super) const fn header_at(&self, before: u64) -> u64 {
        let start = (before & (self.chunks() - 1)) * self.chunk_bytes as u64;
        match self.fill {
            ChunkFill::TwoFlags => start,
            ChunkFill::Bottom => start + self.chunk_bytes as u64 - HEADER,
        }
    }

    /// Returns the places of a chunk with a payload of `len` bytes, at most [`PipeShape::capacity`].
    pub(super) const fn places(&self, before: u64, len: u32) -> ChunkPlaces {
        let header = self.header_at(before);
        match self.fill {
            ChunkFill::TwoFlags => {
                let payload = header + HEADER;
                let flag = (payload + len as u64).next_multiple_of(FLAG);
                let whole = (header, (flag + FLAG - header) as u32);
                ChunkPlaces { header, payload, flag: Some(flag), whole }
            }
            ChunkFill::Bottom => {
                let payload = header - len as u64;
                ChunkPlaces { header, payload, flag: None, whole: (payload, len + HEADER as u32) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma_channel::{Design, PipeArrival};

    const HEADERS: ChunkHeader = ChunkHeader {
        len: 7,
        kind: ChunkKind::Exposed,
        inverted: true,
        more: false,
        tail: 1 << 50,
        number: 3,
    };

    #[test]
    fn headers_survive_encoding() {
        for (inverted, more) in [(false, false), (false, true), (true, false), (true, true)] {
            let header = ChunkHeader { inverted, more, ..HEADERS };
            assert_eq!(ChunkHeader::from_bytes(&header.to_bytes(), 3, 7), Ok(header));
        }
    }

    #[test]
    fn a_header_that_no_sender_writes_is_refused() {
        for (header, number, capacity) in
            [(HEADERS, 4, 7), (HEADERS, 3, 6), (ChunkHeader { len: 0, ..HEADERS }, 3, 7)]
        {
            assert!(ChunkHeader::from_bytes(&header.to_bytes(), number, capacity).is_err());
        }
        for kind in [0, 5, 255] {
            let mut bytes = HEADERS.to_bytes();
            bytes[4] = kind;
            assert!(ChunkHeader::from_bytes(&bytes, 3, 7).is_err(), "{kind}");
        }
    }

    #[test]
    fn the_places_of_a_chunk_lie_within_it_and_do_not_overlap() {
        for fill in [ChunkFill::TwoFlags, ChunkFill::Bottom] {
            let shape = PipeShape {
                design: Design::Piggyback,
                fill,
                ring_bytes: 256,
                chunk_bytes: 64,
                zero_copy_from: 99,
                arrival: PipeArrival::Polled,
            };
            for before in 0..9 {
                for len in 1..=shape.capacity() {
                    let places = shape.places(before, len);
                    let (start, count) = places.whole;
                    let chunk = before % 4 * 64;
                    assert!(start >= chunk && start + u64::from(count) <= chunk + 64);
                    let end = places.payload + u64::from(len);
                    assert!(places.payload >= start && places.header.is_multiple_of(8));
                    assert!(end <= places.header || places.payload >= places.header + HEADER);
                    assert!(places.flag.is_none_or(|flag| flag >= end && flag.is_multiple_of(8)));
                    assert_eq!(places.header, shape.header_at(before));
                }
            }
        }
    }
}
