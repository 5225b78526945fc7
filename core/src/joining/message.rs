//! The datagrams, and their bytes.
#![forbid(unsafe_code)]

use crate::wire::fabric::{MOST_PRIVATE_BYTES, Private};

/// The bytes of every datagram. Those of the smallest path MTU of InfiniBand are 256.
pub const JOIN_BYTES: usize = PRIVATE_AT + MOST_PRIVATE_BYTES;
/// The bytes of an encoded [`JoinPlace`].
pub const PLACE_BYTES: usize = 26;
/// The bytes that describe a queue pair. Their content belongs to the fabric.
pub const PAIR_BYTES: usize = 32;

const MAGIC: u8 = 0x4a;
const VERSION: u8 = 1;
const PLACE_AT: usize = 4;
const TO_AT: usize = 32;
const FROM_AT: usize = 40;
const PAIR_AT: usize = 48;
const PRIVATE_AT: usize = PAIR_AT + PAIR_BYTES;

/// Where a port receives datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JoinPlace {
    /// The number of its datagram queue pair, 24 bits.
    pub number: u32,
    /// The key that every datagram to it must have (a `Q_Key`). Only peers that have its address know the key.
    pub key: u32,
    /// The address of its port in an InfiniBand fabric; 0 on Ethernet.
    pub lid: u16,
    /// The identifier of its port, by which Ethernet finds it; zeros: none.
    pub gid: [u8; 16],
}

impl JoinPlace {
    /// Encodes the place; numbers are little-endian.
    pub fn to_bytes(&self) -> [u8; PLACE_BYTES] {
        let mut bytes = [0; PLACE_BYTES];
        bytes[..4].copy_from_slice(&self.number.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.key.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.lid.to_le_bytes());
        bytes[10..].copy_from_slice(&self.gid);
        bytes
    }

    /// Decodes a place, which is untrusted; `None` if no port has it.
    pub fn from_bytes(bytes: &[u8; PLACE_BYTES]) -> Option<Self> {
        let (number, rest) = bytes.split_first_chunk()?;
        let (key, rest) = rest.split_first_chunk()?;
        let (lid, rest) = rest.split_first_chunk()?;
        let gid = *rest.first_chunk()?;
        let number = u32::from_le_bytes(*number);
        let lid = u16::from_le_bytes(*lid);
        let is_good = (1..1 << 24).contains(&number) && (lid != 0 || gid != [0; 16]);
        is_good.then(|| Self { number, key: u32::from_le_bytes(*key), lid, gid })
    }
}

/// The kind of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum JoinKind {
    /// The sender asks for a connection.
    Request = 1,
    /// The sender accepts a request.
    Accept = 2,
    /// The requesting port has joined its queue pair.
    Confirm = 3,
    /// The sender refuses a request.
    Refuse = 4,
    /// The sender has ended the connection, or knows none of this number.
    End = 5,
    /// The answer to a refusal and to an end.
    Ended = 6,
}

impl JoinKind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::Request, Self::Accept, Self::Confirm, Self::Refuse, Self::End, Self::Ended];
}

/// A datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinMessage {
    /// Its kind.
    pub kind: JoinKind,
    /// Where the sender receives.
    pub place: JoinPlace,
    /// The receiver's number of the connection; 0 if the sender has not learned the number.
    pub to: u64,
    /// The sender's number of the connection; 0 only if the sender has no such connection.
    pub from: u64,
    /// The sender's queue pair, in a request and its acceptance. Untrusted: the fabric decodes it.
    pub pair: [u8; PAIR_BYTES],
    /// Private data of the request or of the answer. Untrusted.
    pub private: Private,
}

impl JoinMessage {
    /// Encodes the datagram; numbers are little-endian.
    pub fn to_bytes(&self) -> [u8; JOIN_BYTES] {
        let mut bytes = [0; JOIN_BYTES];
        let private = self.private.bytes();
        bytes[..PLACE_AT].copy_from_slice(&[MAGIC, VERSION, self.kind as u8, private.len() as u8]);
        bytes[PLACE_AT..PLACE_AT + PLACE_BYTES].copy_from_slice(&self.place.to_bytes());
        bytes[TO_AT..FROM_AT].copy_from_slice(&self.to.to_le_bytes());
        bytes[FROM_AT..PAIR_AT].copy_from_slice(&self.from.to_le_bytes());
        bytes[PAIR_AT..PRIVATE_AT].copy_from_slice(&self.pair);
        bytes[PRIVATE_AT..PRIVATE_AT + private.len()].copy_from_slice(private);
        bytes
    }

    /// Decodes a datagram, which is untrusted; `None` if the bytes are not one of this version.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; JOIN_BYTES] = bytes.try_into().ok()?;
        let [magic, version, kind, private_bytes] = *bytes.first_chunk()?;
        if (magic, version) != (MAGIC, VERSION) {
            return None;
        }
        let kind = JoinKind::ALL.into_iter().find(|known| *known as u8 == kind)?;
        let number = |at: usize| bytes.get(at..)?.first_chunk().map(|number| u64::from_le_bytes(*number));
        let (to, from) = (number(TO_AT)?, number(FROM_AT)?);
        if from == 0 && kind != JoinKind::Ended {
            return None;
        }
        let place = JoinPlace::from_bytes(bytes.get(PLACE_AT..)?.first_chunk()?)?;
        let pair = *bytes.get(PAIR_AT..)?.first_chunk()?;
        let private = bytes.get(PRIVATE_AT..)?.get(..private_bytes.into()).and_then(Private::new)?;
        Some(Self { kind, place, to, from, pair, private })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: JoinPlace = JoinPlace { number: 0x12_3456, key: 0x7fff_0001, lid: 3, gid: [9; 16] };

    fn message(kind: JoinKind) -> JoinMessage {
        let private = Private::new(&[1, 2, 3]).unwrap();
        JoinMessage { kind, place: PLACE, to: u64::MAX, from: 7, pair: [5; PAIR_BYTES], private }
    }

    #[test]
    fn encoded_datagrams_are_decoded() {
        for kind in JoinKind::ALL {
            let full = Private::new(&[6; MOST_PRIVATE_BYTES]).unwrap();
            for sent in [message(kind), JoinMessage { private: full, ..message(kind) }] {
                assert_eq!(JoinMessage::from_bytes(&sent.to_bytes()), Some(sent));
            }
        }
        let ended = JoinMessage { from: 0, ..message(JoinKind::Ended) };
        assert_eq!(JoinMessage::from_bytes(&ended.to_bytes()), Some(ended));
    }

    #[test]
    fn bytes_that_are_no_datagram_are_refused() {
        let good = message(JoinKind::Accept).to_bytes();
        for (at, value) in [(0, 0), (1, 2), (2, 0), (2, 7), (3, MOST_PRIVATE_BYTES as u8 + 1), (7, 1)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(JoinMessage::from_bytes(&bad), None, "byte {at}");
        }
        let anonymous = JoinMessage { from: 0, ..message(JoinKind::End) };
        assert_eq!(JoinMessage::from_bytes(&anonymous.to_bytes()), None);
        for place in [
            JoinPlace { number: 0, ..PLACE },
            JoinPlace { number: 1 << 24, ..PLACE },
            JoinPlace { lid: 0, gid: [0; 16], ..PLACE },
        ] {
            let bad = JoinMessage { place, ..message(JoinKind::Request) };
            assert_eq!(JoinMessage::from_bytes(&bad.to_bytes()), None, "{place:?}");
        }
        for len in [0, JOIN_BYTES - 1] {
            assert_eq!(JoinMessage::from_bytes(&good[..len]), None);
        }
        assert_eq!(JoinMessage::from_bytes(&[&good[..], &[0]].concat()), None);
    }
}
