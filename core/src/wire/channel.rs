//! The packet format of a [channel](crate::port::channel): packets that are sent on connections of a memory
//! port.
//!
//! All words are little-endian. **Hello** and **challenge**: the private data of a connection request, of its
//! acceptance and of its first refusal ([`hello`](super::hello)). Any other refusal has one byte: the
//! [`ChannelRefusal`].
//!
//! **Packet**: [`HEADER_BYTES`], then the payload, to the end of the message. Words of 64 bits: 0: bits 0-7
//! the kind, 0 for a packet without content, 251 to 253 for a packet about a ring, 254 or 255 for a close, bit 8
//! whether this packet had to wait for a receive of the peer, bits 16-31 context, 32-47 receives that the sender wants
//! to keep on this connection; 1: tag; 2: bits 0-31 sequence number, 32-63 total receives posted on this connection;
//! 3: total units of the store granted; 4: bits 0-31 total slots of the sender's ring that are free again. All other
//! bits are 0.
//!
//! **Ring**: memory of a process into which one peer writes packets ([`ring`](super::ring)). Kind 253: the peer may
//! write into the ring that the payload describes. Kind 252: the peer should stop. Kind 251: the answer to kind 252;
//! all packets in the ring have lower sequence numbers. These packets have a sequence number, no context and no tag.
//!
//! **Close**: the last packet of a process to a peer, on any rail. It has a sequence number, but no context, no
//! tag and no payload. Kind 254: the process closed its endpoint. Kind 255: it dropped the endpoint, or failed to
//! close it. A connection that ends without a close was lost.
//!
//! **Notice**: a write with an immediate, which a descriptor of the receiver's buffer has named
//! ([`region`](super::region)). It uses a receive, but has no header and no sequence number. It says that all bytes
//! of the message have been written, as a `Data` packet without bytes does.
//!
//! Sequence numbers count the packets with a kind, over all rails to a peer. They and the totals of receives
//! are 32 bits wide, begin at [`FIRST`](crate::flow::posted::FIRST), and wrap around.
#![forbid(unsafe_code)]

use super::Kind;
use super::fabric::Private;

/// Version of the formats on this page and of [rings](super::ring), and of the payloads that [`super::prefix`],
/// [`super::rendezvous`], [`super::region`] and [`super::rma`] define.
pub const CHANNEL_VERSION: u16 = 16;
/// Bytes of a packet header.
pub const HEADER_BYTES: usize = 40;

const RING_STOPPED: u8 = 251;
const RING_STOP: u8 = 252;
const RING_OPEN: u8 = 253;
const FINISHED: u8 = 254;
const DROPPED: u8 = 255;

/// The report on its sender's receives that every packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Total of receives posted on this connection, starting at [`FIRST`](crate::flow::posted::FIRST); wraps around.
    pub posted: u32,
    /// Number of receives to be kept posted.
    pub target: u32,
}

/// The reason why a hello was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelRefusal {
    /// The other side does not use this protocol.
    #[error("the connecting process does not use this protocol")]
    Protocol,
    /// The other side uses another version.
    #[error("versions differ: use the same release on both sides")]
    Version,
    /// The other side belongs to another world, or claims a rank that it cannot have.
    #[error("the process is not a member of the world")]
    NotAMember,
    /// The two sides differ in the packet size or the number of rails.
    #[error("the two sides have different settings for packet bytes or rails")]
    Settings,
    /// The connection exists, or the preceding one has not ended.
    #[error("the connection already exists: try again later")]
    Exists,
    /// There are too few buffers for the connection.
    #[error("too few buffers are free for the connection: lend more memory")]
    Buffers,
    /// Another process holds the rank: the rank is connected, or being connected, with another token.
    #[error(
        "another process holds that rank: if it is the former process, try again after its failure was detected"
    )]
    Claimed,
    /// The process has closed its endpoint.
    #[error("the process has closed its endpoint")]
    Finished,
    /// The process has dropped its endpoint, or failed to close it.
    #[error("the process has dropped its endpoint without closing it")]
    Dropped,
    /// The requester has not proved yet that it knows the key of the job: the refusal carries a
    /// [`Challenge`](super::hello::Challenge). It is the answer to every first request, and to a proof whose challenge
    /// is used up or too old.
    #[error("the process has to prove that it knows the job's key: try again")]
    Unproven,
    /// The proof is wrong: the requester has another key, or means another world or another process.
    #[error("the process does not know the job's key, or belongs to another world: give all the same key")]
    WrongKey,
    /// The request is for a further connection, and the requester's process has no first one with this process.
    #[error(
        "the process has no first connection with the other: request that one before further connections"
    )]
    NoFirst,
    /// A reason that a later version defines.
    #[error("reason {0}")]
    Unknown(u8),
}

impl ChannelRefusal {
    /// Returns the byte that stands for the refusal.
    pub const fn code(self) -> u8 {
        match self {
            Self::Protocol => 1,
            Self::Version => 2,
            Self::NotAMember => 3,
            Self::Settings => 4,
            Self::Exists => 5,
            Self::Buffers => 6,
            Self::Claimed => 7,
            Self::Finished => 8,
            Self::Dropped => 9,
            Self::Unproven => 10,
            Self::WrongKey => 11,
            Self::NoFirst => 12,
            Self::Unknown(code) => code,
        }
    }

    /// Encodes the refusal as private data.
    pub fn encode(self) -> Private {
        Private::new(&[self.code()]).unwrap_or(Private::EMPTY)
    }

    /// Decodes a refusal; `None` if the private data holds none.
    pub fn decode(private: &Private) -> Option<Self> {
        Some(match private.bytes().first()? {
            0 => return None,
            1 => Self::Protocol,
            2 => Self::Version,
            3 => Self::NotAMember,
            4 => Self::Settings,
            5 => Self::Exists,
            6 => Self::Buffers,
            7 => Self::Claimed,
            8 => Self::Finished,
            9 => Self::Dropped,
            10 => Self::Unproven,
            11 => Self::WrongKey,
            12 => Self::NoFirst,
            code => Self::Unknown(*code),
        })
    }
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind, context, tag and number of the packet; `None` for a packet without content.
    pub packet: Option<Numbered>,
    /// The report on the sender's receives on this connection.
    pub stamp: Stamp,
    /// Total units of the store granted.
    pub units: u64,
    /// Whether a packet with content had to wait until the peer had a receive for it.
    pub waited: bool,
    /// Total slots of the sender's ring for this peer that the peer may use again; wraps around. 0 without a ring.
    pub slots: u32,
}

/// How a process left, as its last packet reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// It closed its endpoint, and everything that it sent has left it.
    Finished,
    /// It dropped its endpoint without closing it, or closing it failed.
    Dropped,
}

/// The content of a packet with a sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// A packet of the engine.
    Engine(Kind),
    /// A packet about a ring. [`RingNotice::Open`] has a payload ([`RingOffer`](super::ring::RingOffer)).
    Ring(RingNotice),
    /// The last packet of the process.
    Close(CloseReason),
}

/// What a packet says about a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingNotice {
    /// The receiver of this packet may write into the sender's ring.
    Open,
    /// The receiver of this packet should write into the sender's ring no more, and answer.
    Stop,
    /// The sender of this packet has stopped. What it has written has lower sequence numbers.
    Stopped,
}

impl PacketKind {
    const fn code(self) -> u8 {
        match self {
            Self::Engine(kind) => kind as u8,
            Self::Ring(RingNotice::Open) => RING_OPEN,
            Self::Ring(RingNotice::Stop) => RING_STOP,
            Self::Ring(RingNotice::Stopped) => RING_STOPPED,
            Self::Close(CloseReason::Finished) => FINISHED,
            Self::Close(CloseReason::Dropped) => DROPPED,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        match (code, Kind::from_code(code)) {
            (_, Some(kind)) => Some(Self::Engine(kind)),
            (RING_OPEN, None) => Some(Self::Ring(RingNotice::Open)),
            (RING_STOP, None) => Some(Self::Ring(RingNotice::Stop)),
            (RING_STOPPED, None) => Some(Self::Ring(RingNotice::Stopped)),
            (FINISHED, None) => Some(Self::Close(CloseReason::Finished)),
            (DROPPED, None) => Some(Self::Close(CloseReason::Dropped)),
            _ => None,
        }
    }
}

/// The description of a packet with a sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// Kind of the packet.
    pub kind: PacketKind,
    /// Matching context.
    pub context: u16,
    /// Tag.
    pub tag: u64,
    /// Sequence number of the packet to this peer.
    pub sequence: u32,
}

impl Header {
    /// Encodes the header. A target of more than 16 bits is reduced to 16 bits.
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let target = u64::from(self.stamp.target.min(u32::from(u16::MAX))) << 32;
        let posted = u64::from(self.stamp.posted) << 32;
        let words = match self.packet {
            None => [target, 0, posted, self.units, self.slots.into()],
            Some(Numbered { kind, context, tag, sequence }) => {
                let waited = u64::from(self.waited) << 8;
                let first = u64::from(kind.code()) | waited | u64::from(context) << 16 | target;
                [first, tag, u64::from(sequence) | posted, self.units, self.slots.into()]
            }
        };
        let mut bytes = [0; HEADER_BYTES];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    /// Decodes the header; `None` if it violates the protocol.
    #[inline]
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let mut words = [0; 5];
        for (to, word) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *to = u64::from_le_bytes(*word);
        }
        let [first, tag, numbers, units, slots] = words;
        let (context, sequence) = ((first >> 16) as u16, numbers as u32);
        let waited = first & 0x100 != 0;
        if first & 0xfe00 != 0 || first >> 48 != 0 {
            return None;
        }
        let slots = u32::try_from(slots).ok()?;
        let packet = match first as u8 {
            0 if (context, tag, sequence, waited) == (0, 0, 0, false) => None,
            code => {
                let kind = PacketKind::from_code(code)?;
                if !matches!(kind, PacketKind::Engine(_)) && (context, tag) != (0, 0) {
                    return None;
                }
                Some(Numbered { kind, context, tag, sequence })
            }
        };
        let stamp = Stamp { posted: (numbers >> 32) as u32, target: (first >> 32) as u32 & 0xffff };
        Some(Self { packet, stamp, units, waited, slots })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: Header = Header {
        packet: Some(Numbered {
            kind: PacketKind::Engine(Kind::Fin),
            context: 0xfffe,
            tag: u64::MAX,
            sequence: u32::MAX,
        }),
        stamp: Stamp { posted: 0x89ab_cdef, target: 0x1234 },
        units: 1 << 63,
        waited: true,
        slots: 0x7654_3210,
    };

    #[test]
    fn headers_survive_encoding() {
        let update = Header { packet: None, waited: false, ..PACKET };
        let of = |kind| Header { packet: Some(Numbered { kind, context: 0, tag: 0, sequence: 7 }), ..PACKET };
        let (close, ring) = (PacketKind::Close, PacketKind::Ring);
        let kinds = [
            close(CloseReason::Finished),
            close(CloseReason::Dropped),
            ring(RingNotice::Open),
            ring(RingNotice::Stop),
            ring(RingNotice::Stopped),
        ];
        for header in [PACKET, update].into_iter().chain(kinds.map(of)) {
            assert_eq!(Header::decode(&header.encode()), Some(header));
        }
    }

    #[test]
    fn the_bytes_of_a_header_are_these() {
        let words = PACKET.encode();
        assert_eq!(words[..8], [5, 1, 0xfe, 0xff, 0x34, 0x12, 0, 0]);
        assert_eq!(words[16..24], [0xff, 0xff, 0xff, 0xff, 0xef, 0xcd, 0xab, 0x89]);
        assert_eq!(words[32..], [0x10, 0x32, 0x54, 0x76, 0, 0, 0, 0]);
        let kinds = [RingNotice::Open, RingNotice::Stop, RingNotice::Stopped].map(PacketKind::Ring);
        assert_eq!(kinds.map(PacketKind::code), [253, 252, 251]);
        // Other bytes need another version.
        assert_eq!((CHANNEL_VERSION, HEADER_BYTES), (16, 40));
    }

    #[test]
    fn malformed_headers_are_none() {
        for (at, byte) in [
            (0, 12),
            (0, 250),
            (0, RING_OPEN),
            (0, FINISHED),
            (0, DROPPED),
            (1, 2),
            (6, 1),
            (7, 0x80),
            (36, 1),
        ] {
            let mut bytes = PACKET.encode();
            bytes[at] = byte;
            assert_eq!(Header::decode(&bytes), None, "byte {at}");
        }
        for at in [1, 2, 8, 16] {
            let mut bytes = Header { packet: None, ..PACKET }.encode();
            bytes[at] = 1;
            assert_eq!(Header::decode(&bytes), None, "byte {at} of an update");
        }
    }

    #[test]
    fn every_header_that_is_understood_is_written_the_same() {
        let mut seed = 1_u64;
        for _ in 0..20_000 {
            let mut bytes = PACKET.encode();
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            bytes[(seed >> 40) as usize % HEADER_BYTES] = (seed >> 32) as u8;
            if let Some(header) = Header::decode(&bytes) {
                assert_eq!(header.encode(), bytes);
            }
        }
    }

    #[test]
    fn refusals_survive_encoding() {
        use ChannelRefusal as Refusal;
        use ChannelRefusal::{Buffers, Claimed, Dropped, Exists, Finished, NotAMember, Settings, Unknown};
        let [protocol, version] = [Refusal::Protocol, Refusal::Version];
        let refusals = [
            protocol,
            version,
            NotAMember,
            Settings,
            Exists,
            Buffers,
            Claimed,
            Finished,
            Dropped,
            Refusal::Unproven,
            Refusal::WrongKey,
            Refusal::NoFirst,
            Unknown(200),
        ];
        for refusal in refusals {
            assert_eq!(ChannelRefusal::decode(&refusal.encode()), Some(refusal));
        }
        assert_eq!(ChannelRefusal::decode(&Private::EMPTY), None);
    }
}
