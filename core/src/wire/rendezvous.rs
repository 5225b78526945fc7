//! The packets of the rendezvous protocol (paper 4, section 3.2): payloads of [`Kind::Rts`](super::Kind::Rts),
//! [`Kind::Cts`](super::Kind::Cts) and [`Kind::Fin`](super::Kind::Fin), in words of 64 bits, little-endian.
//!
//! - **RTS**. Word 0: bytes of the message; 1: the sender's request; 2: address of the bytes at the sender, 0
//!   if they cannot be read there; 3: the protocol by which the sender receives such messages, 0 if unknown,
//!   see [`Rts::protocol_number`]. Then the first bytes of the message.
//! - **CTS**. Word 0: the sender's request; 1: the receiver's request; 2: first byte requested; 3: end of the
//!   bytes requested; 4: the copy policy for the sender, the code of [`Stores`].
//! - **FIN**. Word 0: the sender's request.
//!
//! A `Data` packet carries the receiver's request as its tag, and the next requested bytes. The packets of a
//! message arrive in order. A receiver that has all bytes that it wants sends FIN, unless it received them in
//! `Data` packets.
//!
//! A request is a number that its owner checks when the number returns. An address is used only by the
//! kernel, which checks it.
#![forbid(unsafe_code)]

/// Bytes of an RTS without the first bytes of the message.
pub const RTS_BYTES: usize = 32;
/// Bytes of a CTS.
pub const CTS_BYTES: usize = 40;
/// Number of protocols that an RTS can name.
pub const MOST_PROTOCOLS: u8 = 3;
/// Bytes of a FIN.
pub const FIN_BYTES: usize = 8;

/// The content of an RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rts {
    /// Bytes of the message.
    pub total: u64,
    /// The sender's request.
    pub sender: u64,
    /// Address of the bytes in the sender's memory; 0 if they cannot be read there.
    pub address: u64,
    /// The protocol by which the sender currently receives messages of this size from the receiver, a number
    /// from 1 to [`MOST_PROTOCOLS`]; 0 if unknown. If one side tries a protocol, the other may try it too.
    pub protocol_number: u8,
}

/// The content of a CTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cts {
    /// The sender's request, from the RTS.
    pub sender: u64,
    /// The receiver's request, which the `Data` packets must name.
    pub receiver: u64,
    /// First byte requested.
    pub start: u64,
    /// End of the bytes requested.
    pub end: u64,
    /// The copy policy for the sender.
    pub stores: Stores,
}

/// The copy policy: how bytes are written where the other side reads them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Stores {
    /// The copying side selects the fastest policy.
    #[default]
    Learned = 0,
    /// Plain stores.
    Cached = 1,
    /// Non-temporal stores, if the processor has them.
    NonTemporal = 2,
    /// Plain stores to lines that were write-prefetched.
    Prefetched = 3,
}

impl Stores {
    const fn from_code(code: u64) -> Option<Self> {
        match code {
            0 => Some(Self::Learned),
            1 => Some(Self::Cached),
            2 => Some(Self::NonTemporal),
            3 => Some(Self::Prefetched),
            _ => None,
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(8 * at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

fn encode<const N: usize>(words: &[u64]) -> [u8; N] {
    let mut bytes = [0; N];
    for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    bytes
}

impl Rts {
    /// Encodes the RTS; the first bytes of the message follow it.
    pub fn encode(&self) -> [u8; RTS_BYTES] {
        encode(&[self.total, self.sender, self.address, self.protocol_number.into()])
    }

    /// Decodes a packet of `len` bytes that begins with `bytes`. `None` if it violates the protocol: it is
    /// too short, or carries more first bytes than the message has.
    pub fn decode(bytes: &[u8; RTS_BYTES], len: usize) -> Option<Self> {
        let protocol_number = u8::try_from(word(bytes, 3)?)
            .ok()
            .filter(|protocol_number| *protocol_number <= MOST_PROTOCOLS)?;
        let rts = Self {
            total: word(bytes, 0)?,
            sender: word(bytes, 1)?,
            address: word(bytes, 2)?,
            protocol_number,
        };
        let first = len.checked_sub(RTS_BYTES)?;
        (first as u64 <= rts.total && rts.total <= isize::MAX as u64).then_some(rts)
    }
}

impl Cts {
    /// Encodes the CTS.
    pub fn encode(&self) -> [u8; CTS_BYTES] {
        encode(&[self.sender, self.receiver, self.start, self.end, self.stores as u64])
    }

    /// Decodes a packet.
    pub fn decode(bytes: &[u8; CTS_BYTES]) -> Option<Self> {
        let cts = Self {
            sender: word(bytes, 0)?,
            receiver: word(bytes, 1)?,
            start: word(bytes, 2)?,
            end: word(bytes, 3)?,
            stores: Stores::from_code(word(bytes, 4)?)?,
        };
        (cts.start < cts.end).then_some(cts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_survive_the_wire() {
        let rts = Rts { total: 70, sender: u64::MAX, address: 0x1234_5678_9abc, protocol_number: 3 };
        for first in [0, 1, 70] {
            assert_eq!(Rts::decode(&rts.encode(), RTS_BYTES + first), Some(rts));
        }
        for stores in [Stores::Learned, Stores::Cached, Stores::NonTemporal, Stores::Prefetched] {
            let cts = Cts { sender: 1, receiver: u64::MAX, start: 3, end: 4, stores };
            assert_eq!(Cts::decode(&cts.encode()), Some(cts));
        }
    }

    #[test]
    fn invalid_packets_are_not_decoded() {
        let rts = Rts { total: 70, sender: 1, address: 2, protocol_number: 0 };
        assert_eq!(Rts::decode(&rts.encode(), RTS_BYTES - 1), None);
        assert_eq!(Rts::decode(&rts.encode(), RTS_BYTES + 71), None);
        let huge = Rts { total: 1 << 63, ..rts };
        assert_eq!(Rts::decode(&huge.encode(), RTS_BYTES), None);
        assert_eq!(Rts::decode(&Rts { protocol_number: 4, ..rts }.encode(), RTS_BYTES), None);
        for (start, end) in [(0, 0), (4, 4), (5, 4)] {
            let cts = Cts { sender: 1, receiver: 2, start, end, stores: Stores::Learned };
            assert_eq!(Cts::decode(&cts.encode()), None);
        }
        let mut bytes = Cts { sender: 1, receiver: 2, start: 3, end: 4, stores: Stores::Learned }.encode();
        bytes[32] = 4;
        assert_eq!(Cts::decode(&bytes), None);
    }
}
