//! The shape of a pipe: its design, its sizes, and where everything lies in its two pieces of memory.
#![forbid(unsafe_code)]

use super::pointer::POINTERS;
use super::{PipeArrival, PipeError};
use crate::port::memory::{Facts, KEY_BYTES, MemoryKey};

/// Version of everything that two ends of a pipe exchange. It increases with every change of a layout.
pub const PIPE_VERSION: u8 = 3;
/// Bytes of a [`PipeCard`].
pub const CARD_BYTES: usize = 16 + KEY_BYTES;
/// Bytes before the ring in the inbox: one cache line for each pointer of the peer.
pub(super) const RING_AT: u64 = POINTERS as u64 * LINE;
/// Distance of two pointers in the inbox.
pub(super) const LINE: u64 = 64;
/// Places from which pointers are written, for each pointer; also most messages posted in each direction.
pub(super) const SLOTS: u64 = 8;
/// Bytes of a slot.
pub(super) const SLOT_BYTES: u64 = 64;
/// Bytes of the outbox behind the staging buffer: a group of slots to send from for each pointer, and one to receive
/// into.
const OUTBOX_MORE: u64 = (POINTERS as u64 + 1) * SLOTS * SLOT_BYTES;
/// The smallest chunk.
pub(super) const LEAST_CHUNK: u32 = 64;
/// The smallest ring.
const LEAST_RING: u32 = 64;
/// The largest ring.
const MOST_RING: u32 = 1 << 30;

/// The design of a pipe: each is a section of paper 1, but the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Design {
    /// Section 4.2: data, head and tail are written one after the other.
    Basic = 1,
    /// Section 4.3: data and head travel in one write, and the tail with traffic of the other direction.
    Piggyback = 2,
    /// Section 4.4: the write of a chunk overlaps the copy of the next chunk.
    Pipelined = 3,
    /// Section 5: the receiver reads long runs out of the sender's buffer.
    ZeroCopy = 4,
    /// Section 5, the alternative: where a get comes before its put, the sender writes long runs into the receiver's
    /// buffer. Elsewhere as [`Design::ZeroCopy`].
    ZeroCopyPush = 5,
    /// Nemesia's own: [`Design::ZeroCopyPush`], whose sender learns for each size whether long runs are written, read
    /// or copied.
    Learned = 6,
}

impl Design {
    /// All designs, in the order of the paper; our own is last.
    pub const ALL: [Self; 6] =
        [Self::Basic, Self::Piggyback, Self::Pipelined, Self::ZeroCopy, Self::ZeroCopyPush, Self::Learned];

    /// Returns the name of the design in settings and explanations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Basic => "basic",
            Self::Piggyback => "piggyback",
            Self::Pipelined => "pipelined",
            Self::ZeroCopy => "zero-copy",
            Self::ZeroCopyPush => "zero-copy-push",
            Self::Learned => "learned",
        }
    }

    /// Returns whether long runs need not be copied.
    pub const fn is_zero_copy(self) -> bool {
        matches!(self, Self::ZeroCopy | Self::ZeroCopyPush | Self::Learned)
    }

    /// Returns whether a receiver advertises its buffers.
    pub const fn advertises(self) -> bool {
        matches!(self, Self::ZeroCopyPush | Self::Learned)
    }
}

/// How a chunk proves, on a port that places in order, that it has arrived whole (section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ChunkFill {
    /// The header is first, and a second flag follows the payload. Short payloads make short writes.
    TwoFlags = 1,
    /// The payload ends where the header begins, and the header ends the chunk: its flag is placed last.
    Bottom = 2,
}

/// The shape of a pipe. Both ends must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipeShape {
    /// The design.
    pub design: Design,
    /// How chunks are filled. The basic design has no chunks.
    pub fill: ChunkFill,
    /// Bytes of the ring of each direction, a power of two. The receiver and the sender each have so many.
    pub ring_bytes: u32,
    /// Bytes of a chunk with its header: a power of two, at least 64, at most half of the ring.
    pub chunk_bytes: u32,
    /// The zero-copy designs do not copy contiguous runs of so many bytes or more; [`Design::Learned`] chooses.
    pub zero_copy_from: u32,
    /// How an end learns that bytes have arrived.
    pub arrival: PipeArrival,
}

impl PipeShape {
    /// Returns the shape that the paper chose: chunks of 16 KiB, here in rings of 256 KiB. The port's facts decide how
    /// bytes arrive.
    pub const fn new(design: Design, facts: &Facts) -> Self {
        Self {
            design,
            fill: ChunkFill::TwoFlags,
            ring_bytes: 256 << 10,
            chunk_bytes: 16 << 10,
            zero_copy_from: 32 << 10,
            arrival: PipeArrival::of(facts),
        }
    }

    /// Returns the bytes of the inbox, to which the peer writes.
    pub const fn inbox_bytes(&self) -> u64 {
        self.bounce_at() + self.bounce_bytes()
    }

    /// Returns the offset in the inbox of the buffer through which the zero-copy design reads short runs.
    pub(super) const fn bounce_at(&self) -> u64 {
        RING_AT + self.ring_bytes as u64
    }

    /// Returns the bytes of that buffer.
    pub(super) const fn bounce_bytes(&self) -> u64 {
        if self.design.is_zero_copy() { self.chunk_bytes as u64 } else { 0 }
    }

    /// Returns the bytes of the outbox, from which this process writes.
    pub const fn outbox_bytes(&self) -> u64 {
        self.ring_bytes as u64 + OUTBOX_MORE
    }

    /// Returns the number of chunks in a ring.
    pub(super) const fn chunks(&self) -> u64 {
        (self.ring_bytes / self.chunk_bytes) as u64
    }

    /// Checks the sizes, and whether a port can carry such a pipe.
    pub(super) fn check(&self, facts: &Facts) -> Result<(), PipeError> {
        let is_size = |bytes: u32, least, most| bytes.is_power_of_two() && bytes >= least && bytes <= most;
        if !is_size(self.ring_bytes, LEAST_RING, MOST_RING) {
            return Err(PipeError::Ring { bytes: self.ring_bytes, least: LEAST_RING, most: MOST_RING });
        }
        if self.arrival == PipeArrival::Polled && PipeArrival::of(facts) != PipeArrival::Polled {
            return Err(PipeError::Unordered);
        }
        let most = (self.ring_bytes / 2).min(facts.transfer_bytes.min(facts.message_bytes));
        if self.design != Design::Basic && !is_size(self.chunk_bytes, LEAST_CHUNK, most) {
            return Err(PipeError::Chunk { bytes: self.chunk_bytes, least: LEAST_CHUNK, most });
        }
        Ok(())
    }

    /// Returns the offset in the outbox of a slot to send from.
    pub(super) const fn send_slot(&self, group: u64, number: u64) -> u64 {
        self.ring_bytes as u64 + (group * SLOTS + number % SLOTS) * SLOT_BYTES
    }

    /// Returns the offset in the outbox of a slot to receive into.
    pub(super) const fn receive_slot(&self, number: u64) -> u64 {
        self.send_slot(POINTERS as u64, number)
    }
}

/// What one end of a pipe must know of the other: the shape and the key of the inbox. It travels with the request for
/// the connection and with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipeCard {
    /// The shape of the pipe.
    pub shape: PipeShape,
    /// The key of the inbox.
    pub inbox: MemoryKey,
}

impl PipeCard {
    /// Encodes the card: version, design, fill, arrival; ring, chunk and zero-copy sizes; key. Little-endian.
    pub fn to_bytes(&self) -> [u8; CARD_BYTES] {
        let PipeShape { design, fill, ring_bytes, chunk_bytes, zero_copy_from, arrival } = self.shape;
        let mut bytes = [0; CARD_BYTES];
        let (first, key) = bytes.split_at_mut(16);
        for (to, word) in first.as_chunks_mut::<4>().0.iter_mut().zip([
            u32::from_le_bytes([PIPE_VERSION, design as u8, fill as u8, arrival as u8]),
            ring_bytes,
            chunk_bytes,
            zero_copy_from,
        ]) {
            *to = word.to_le_bytes();
        }
        key.copy_from_slice(&self.inbox.to_bytes());
        bytes
    }

    /// Checks a peer's card against the shape of this end, and returns the key of the peer's inbox. Bytes after the
    /// card are ignored: RDMA-CM delivers private data with zeros behind it.
    ///
    /// # Errors
    /// [`PipeError::Card`] if the bytes are fewer than a card has; [`PipeError::Version`] and [`PipeError::Shape`] if
    /// the ends differ; [`PipeError::Inbox`] if the peer's memory is too small.
    pub fn check(bytes: &[u8], shape: &PipeShape) -> Result<MemoryKey, PipeError> {
        let bytes: &[u8; CARD_BYTES] = bytes.first_chunk().ok_or(PipeError::Card { bytes: bytes.len() })?;
        let [theirs, ..] = *bytes;
        if theirs != PIPE_VERSION {
            return Err(PipeError::Version { ours: PIPE_VERSION, theirs });
        }
        let (first, key) = bytes.split_at(16);
        let key: &[u8; KEY_BYTES] = key.try_into().map_err(|_| PipeError::Card { bytes: bytes.len() })?;
        let inbox = MemoryKey::from_bytes(key);
        let ours = Self { shape: *shape, inbox }.to_bytes();
        if ours.first_chunk::<16>().map(<[u8; 16]>::as_slice) != Some(first) {
            return Err(PipeError::Shape);
        }
        let needed = shape.inbox_bytes();
        if inbox.len < needed || inbox.address.checked_add(inbox.len).is_none() {
            return Err(PipeError::Inbox { bytes: inbox.len, needed });
        }
        Ok(inbox)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: PipeShape = PipeShape {
        design: Design::Pipelined,
        fill: ChunkFill::Bottom,
        ring_bytes: 4096,
        chunk_bytes: 256,
        zero_copy_from: 300,
        arrival: PipeArrival::Polled,
    };
    const KEY: MemoryKey = MemoryKey { address: 4096, len: 1 << 20, key: 77 };

    #[test]
    fn a_card_is_accepted_only_from_an_end_of_the_same_shape() {
        let shape = SHAPE;
        let card = PipeCard { shape, inbox: KEY }.to_bytes();
        assert_eq!(PipeCard::check(&card, &shape), Ok(KEY));
        for at in 0..16 {
            let mut other = card;
            other[at] ^= 1;
            assert!(PipeCard::check(&other, &shape).is_err(), "byte {at}");
        }
        // RDMA-CM fills the space for private data with zeros.
        assert_eq!(PipeCard::check(&[card.as_slice(), &[0; 16]].concat(), &shape), Ok(KEY));
        for len in 0..CARD_BYTES {
            assert_eq!(PipeCard::check(&card[..len], &shape), Err(PipeError::Card { bytes: len }));
        }
    }

    #[test]
    fn an_inbox_that_is_too_small_or_wraps_is_refused() {
        let shape = SHAPE;
        let needed = shape.inbox_bytes();
        for inbox in [MemoryKey { len: needed - 1, ..KEY }, MemoryKey { address: u64::MAX - 9, ..KEY }] {
            let card = PipeCard { shape, inbox }.to_bytes();
            assert_eq!(PipeCard::check(&card, &shape), Err(PipeError::Inbox { bytes: inbox.len, needed }));
        }
    }
}
