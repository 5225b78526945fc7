//! The layout of shared memory.
//!
//! All integers are effectively little-endian: both sides run on one machine, and [`LAYOUT_VERSION`] together
//! with the segment magic rejects a peer that differs:
//!
//! **Packet.** Each packet between two processes takes the next *sequence number*, whichever of the two paths
//! (fastbox, cell) carries it. The receiver takes packets only in that order.
//!
//! | kind | code | meaning |
//! |---|---|---|
//! | [`Kind::Eager`] | 1 | a whole message |
//! | [`Kind::Rts`] | 2 | ready to send: a message that is matched before its data moves ([`rendezvous`]) |
//! | [`Kind::Cts`] | 3 | clear to send: the answer to an RTS |
//! | [`Kind::Data`] | 4 | the next bytes of a streamed message |
//! | [`Kind::Fin`] | 5 | the receiver has all bytes of a message |
//! | [`Kind::Active`] | 6 | an active message |
//! | [`Kind::Rma`] | 7 | a one-sided operation for its target |
//! | [`Kind::RmaReply`] | 8 | the target's answer |
//! | [`Kind::EagerImmediate`] | 9 | a whole message with immediate data |
//! | [`Kind::EagerAcknowledged`] | 10 | a whole message that its receiver acknowledges |
//! | [`Kind::EagerBoth`] | 11 | a whole message with immediate data that its receiver acknowledges |
//!
//! The payload of the kinds 9 to 11 begins with a prefix of one or two words ([`prefix`]). The receiver acknowledges
//! a message with a `Fin` packet after it has copied the bytes into the buffer of a receive.
//!
//! **Credit.** `Rts` packets and those of the four eager kinds occupy memory at the receiver if no receive
//! matches: as many units of 64 bytes as [`cost`](crate::store::cost) returns for their payload. The receiver
//! publishes the total units granted, which only grows, in the second word of the line that holds its fastbox
//! position. The sender never sends more. The other kinds occupy no memory.
//!
//! **Sender-assisted copy** (64 bytes, eight words, one line a peer in the owner's segment;
//! [`crate::shared::assist`]). As receiver, word 0: number of the share in bits 1-63, bit 0 set if it is
//! closed; 1: the sender's request; 2: address of the receiver's buffer; 3: end of the bytes to copy; 4: end
//! of those claimed. As sender, word 5: number of the share joined in bits 1-63, bit 0 set while it is not
//! copying; 6: start of the bytes claimed; 7: start of those written. Words 2-4 of the line that holds the
//! receiver's fastbox position describe its buffer, with its address, as [`mappable`] says, if the sender may map
//! it for writing; they are 0 otherwise.
//!
//! **Fastbox slot** (32 bytes, four words; two slots share a cache line). Word 0 is the *stamp*: bits 0-15
//! payload bytes of this packet, 16-31 context, 32-39 lap, 40-47 kind, 48-63 low half of the sequence number.
//! In the first slot of a packet, word 1 is the tag. Words 2 and 3 are the first and the last 8 bytes of a
//! payload of 8 to 16 bytes; the first and the last 4, 2 or 1 bytes, padded with zeros, of one of 4 to 7, 2
//! or 3, or 1; and the first 16 bytes of a longer one. In a further slot, only the lap and the kind `0xff` of
//! the stamp are significant. Words 1-3 are the next 24 payload bytes, but in the last slot of a packet the
//! last 24 bytes; if the whole payload has fewer, word 1 is the last 8 bytes. Bit 7 of the kind is set if the
//! payload lies in a cell of the sender. The header of that cell is then not significant, and the packet takes
//! one slot: word 2 is the cell in bits 0-31 and the payload bytes in bits 32-63; word 3 is the lower half of a
//! return slot for a returned cell of the receiver, plus one, or 0. The lap of the packet that starts at
//! position `p` of a fastbox of `n` slots is `(p / n + 1) mod 256`.
//!
//! **Cell header** (64 bytes). Word 0: sequence number in bits 16-63; in bits 0-15 the number
//! by which the sender knows the destination. Word 1:
//! bits 0-31 payload bytes, 32-39 kind, 48-63 context. Word 2: tag. The rest is reserved. Sequence numbers of
//! cells are 48 bits wide and start at 1.
//!
//! **Sleep word** (64 bytes in the inbox; [`crate::shared::sleep`]). Bytes 0-3: bits 0-6 are 0 if the process
//! is awake, 1 if it sleeps on the futex, and 2 if it sleeps in an event loop; bit 7 requests a fence of
//! wakers before each read; bits 8-31 are the number of messages that the sleeper needs beyond the next.
//! Bytes 4-7: the number of the wake-up, on which the futex waits.
//!
//! **Queue entry** (64 bits). Bits 0-31: `number * cells + cell`, where `number` is the one by which the owner of the
//! queue knows the owner of the cell. Bits 32-63: lap of the entry, `position / entries + 1`.
//!
//! **Return slot** (32 bits). Bits 0-11: the cell. Bits 12-15: the code of the pace with which the receiver has
//! read it, a third of an octave for each step; 0 if that was not measured. Bits 16-31: lap, `position / cells
//! + 1`.
#![forbid(unsafe_code)]

pub mod channel;
pub mod direct;
pub mod fabric;
pub mod fault;
pub mod hello;
pub mod listed;
pub mod mappable;
pub mod meeting;
pub mod placement;
pub mod prefix;
pub mod region;
pub mod rendezvous;
pub mod ring;
pub mod rma;
pub mod vipl;

/// Version of the layouts on this page.
pub const LAYOUT_VERSION: u32 = 18;

/// A peer's rank in the world.
pub type PeerId = u32;

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A whole message.
    Eager = 1,
    /// A message that is matched before its data moves (ready to send).
    Rts = 2,
    /// The receiver requests the bytes of such a message as a stream (clear to send).
    Cts = 3,
    /// The next bytes of a streamed message.
    Data = 4,
    /// The receiver has all bytes of a message.
    Fin = 5,
    /// An active message.
    Active = 6,
    /// A one-sided operation for its target.
    Rma = 7,
    /// The target's answer.
    RmaReply = 8,
    /// A whole message, after its immediate data.
    EagerImmediate = 9,
    /// A whole message, after the number of the sender's request, which waits for an acknowledgement.
    EagerAcknowledged = 10,
    /// A whole message, after the number of the sender's request and the immediate data.
    EagerBoth = 11,
}

impl Kind {
    /// Number of kinds.
    pub const COUNT: usize = 11;

    /// Returns the index of the kind, from 0: [`Kind::Eager`] is the first.
    #[inline(always)]
    pub const fn index(self) -> usize {
        self as usize - 1
    }

    /// Returns whether the packet is a whole message.
    #[inline(always)]
    pub const fn is_eager(self) -> bool {
        matches!(self, Kind::Eager | Kind::EagerImmediate | Kind::EagerAcknowledged | Kind::EagerBoth)
    }

    /// Returns whether the sender of the packet waits for an answer to it.
    pub const fn is_answered(self) -> bool {
        matches!(self, Kind::Rts | Kind::EagerAcknowledged | Kind::EagerBoth)
    }

    /// Returns the name of the kind.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Eager => "eager",
            Kind::Rts => "rts",
            Kind::Cts => "cts",
            Kind::Data => "data",
            Kind::Fin => "fin",
            Kind::Active => "active",
            Kind::Rma => "rma",
            Kind::RmaReply => "rma_reply",
            Kind::EagerImmediate => "eager_immediate",
            Kind::EagerAcknowledged => "eager_acknowledged",
            Kind::EagerBoth => "eager_both",
        }
    }

    /// Returns the kind with this code, if there is one.
    #[inline(always)]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Kind::Eager),
            2 => Some(Kind::Rts),
            3 => Some(Kind::Cts),
            4 => Some(Kind::Data),
            5 => Some(Kind::Fin),
            6 => Some(Kind::Active),
            7 => Some(Kind::Rma),
            8 => Some(Kind::RmaReply),
            9 => Some(Kind::EagerImmediate),
            10 => Some(Kind::EagerAcknowledged),
            11 => Some(Kind::EagerBoth),
            _ => None,
        }
    }
}

/// The description of a packet, independent of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Kind of the packet.
    pub kind: Kind,
    /// Matching context (for example of an MPI communicator); never a wildcard. 0xffff is reserved for
    /// agreements: [`crate::agreement`].
    pub context: u16,
    /// The sender's tag.
    pub tag: u64,
    /// Bytes of the whole message.
    pub total: u64,
}

/// Mask of a sequence number, which is 48 bits wide.
pub const SEQUENCE_MASK: u64 = (1 << 48) - 1;

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn each_kind_has_its_code_its_index_and_its_name() {
        let kinds: Vec<_> = (0..=u8::MAX).filter_map(Kind::from_code).collect();
        assert_eq!(kinds.len(), Kind::COUNT);
        assert_eq!((kinds.first(), Kind::from_code(0)), (Some(&Kind::Eager), None));
        for (at, kind) in kinds.iter().enumerate() {
            assert_eq!((kind.index(), Kind::from_code(*kind as u8)), (at, Some(*kind)));
            let same = kinds.iter().filter(|other| other.name() == kind.name()).count();
            assert_eq!(same, 1, "{}", kind.name());
        }
    }

    #[test]
    fn whole_messages_and_questions_are_told_apart() {
        let names = |is: fn(Kind) -> bool| -> Vec<_> {
            (0..=u8::MAX).filter_map(Kind::from_code).filter(|kind| is(*kind)).map(Kind::name).collect()
        };
        assert_eq!(names(Kind::is_eager), ["eager", "eager_immediate", "eager_acknowledged", "eager_both"]);
        assert_eq!(names(Kind::is_answered), ["rts", "eager_acknowledged", "eager_both"]);
    }
}
