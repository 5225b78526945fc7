//! The packets of the rendezvous protocol (paper 4, section 3.2): payloads of [`Kind::Rts`](super::Kind::Rts),
//! [`Kind::Cts`](super::Kind::Cts) and [`Kind::Fin`](super::Kind::Fin), in words of 64 bits, little-endian.
//!
//! - **RTS**. Word 0: bytes of the message; 1: the sender's request; 2: bits 0-7 the protocol by which the sender
//!   receives such messages, 0 if unknown, see [`Rts::protocol_number`]; bits 8-23 the head of a [`Descriptor`] of
//!   the message's bytes in the sender's memory; bits 24-31 the origin; bit 32 whether the message has immediate
//!   data; bit 33 whether its bytes follow unasked; bit 34 whether it would have left at once if there had been credit
//!   for it; the other bits are 0. Then the immediate data, a word, if there are any. Then the bytes of the descriptor,
//!   filled with zeros to whole words. Then the first bytes of the message.
//! - **CTS**. Word 0: the sender's request; 1: the receiver's request; 2: first byte requested; 3: end of the
//!   bytes requested; 4: bits 8-23 the head of a descriptor of the receiver's buffer; the other bits are 0.
//!   Then the bytes of the descriptor, as in RTS.
//! - **FIN**. Word 0: the sender's request.
//!
//! The origin is the number of bytes at the beginning of the message that the descriptor does not describe, because
//! they lie elsewhere in the sender's memory (a short header before a long payload). They travel with the RTS. Byte
//! `n` of the message is byte `n - origin` of the described memory. Without a descriptor the origin is 0.
//!
//! The head of a descriptor: bits 0-7 the method, bits 8-15 the number of bytes. A receiver that does not know the
//! method treats it as none, and requests a stream.
//!
//! A `Data` packet carries the receiver's request as its tag, and the next requested bytes. The packets of a
//! message arrive in order. A `Data` packet without bytes says that the sender has put the remaining
//! requested bytes into the buffer that the CTS describes. A receiver that has all bytes that it wants sends
//! FIN, unless it received them in `Data` packets.
//!
//! If the bytes of a message follow unasked, its RTS has neither descriptor nor first bytes, and word 1 is 0.
//! The sender has credit for the whole message, and sends its bytes in `Data` packets with the tag [`UNASKED`].
//! The receiver does not answer. A sender begins such a message when the last bytes of its former one have left.
//!
//! A request is a number that its owner checks when the number returns. A descriptor is used only by the port, which
//! checks it.
#![forbid(unsafe_code)]

/// Bytes of an RTS without immediate data, descriptor and first bytes.
pub const RTS_BYTES: usize = 24;
/// Bytes of the immediate data in an RTS.
pub const IMMEDIATE_BYTES: usize = 8;
/// Most bytes of an RTS without the first bytes of the message.
pub const MOST_RTS_BYTES: usize = RTS_BYTES + IMMEDIATE_BYTES + DESCRIPTOR_BYTES;
/// Bytes of a CTS without descriptor.
pub const CTS_BYTES: usize = 40;
/// Most bytes of a CTS.
pub const MOST_CTS_BYTES: usize = CTS_BYTES + DESCRIPTOR_BYTES;
/// Tag of the `Data` packets that the receiver has not asked for. No request has this number.
pub const UNASKED: u64 = u64::MAX;
/// Number of protocols that an RTS can name.
pub const MOST_PROTOCOLS: u8 = 3;
/// Bytes of a FIN.
pub const FIN_BYTES: usize = 8;
/// Most bytes of a descriptor: enough for an address, a key and a length of 64 bits each, and one word more.
pub const DESCRIPTOR_BYTES: usize = 32;

/// The description of a buffer in a process's memory, by which a peer's port can access it. Only ports look into
/// it: it is opaque to the protocols.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    method: u8,
    len: u8,
    bytes: [u8; DESCRIPTOR_BYTES],
}

impl Descriptor {
    /// The description of memory that peers cannot access.
    pub const NONE: Self = Self { method: 0, len: 0, bytes: [0; DESCRIPTOR_BYTES] };
    /// Method: the bytes are the address in the process's memory, which peers read through the kernel.
    pub const ADDRESS: u8 = 1;

    /// Returns the description by a method, not 0. `None` if there are too many bytes.
    pub fn new(method: u8, content: &[u8]) -> Option<Self> {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes.get_mut(..content.len())?.copy_from_slice(content);
        (method != 0).then_some(Self { method, len: content.len() as u8, bytes })
    }

    /// Returns the description of bytes that start at this address ([`Descriptor::ADDRESS`]).
    pub fn of_address(address: u64) -> Self {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        Self { method: Self::ADDRESS, len: 8, bytes }
    }

    /// Returns the address, if the method is [`Descriptor::ADDRESS`] or [`Descriptor::MAPPABLE`] and the bytes are
    /// well-formed.
    pub fn address(&self) -> Option<u64> {
        if self.method == Self::MAPPABLE {
            return self.mappable().map(|bytes| bytes.address);
        }
        let bytes = self.bytes().try_into().ok().filter(|_| self.method == Self::ADDRESS)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Returns the number of the method; 0 if peers cannot access the memory.
    pub const fn method(&self) -> u8 {
        self.method
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&[])
    }

    /// Returns whether peers cannot access the memory.
    pub const fn is_none(&self) -> bool {
        self.method == 0
    }

    /// Returns the bytes that the descriptor takes in a packet.
    const fn room(&self) -> usize {
        (self.len as usize).next_multiple_of(8)
    }

    const fn head(&self) -> u64 {
        self.method as u64 | (self.len as u64) << 8
    }

    /// Decodes a descriptor with this head, of at most 16 bits, and the bytes that follow it.
    fn decode(head: u64, rest: &[u8]) -> Option<Self> {
        let [method, len, ..] = head.to_le_bytes();
        let mut bytes = [0; DESCRIPTOR_BYTES];
        if head >> 16 != 0 || (method == 0 && len != 0) {
            return None;
        }
        let content = rest.get(..usize::from(len))?;
        bytes.get_mut(..content.len())?.copy_from_slice(content);
        Some(Self { method, len, bytes })
    }
}

impl core::fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Descriptor({}, {:x?})", self.method, self.bytes())
    }
}

/// An encoded packet of at most `N` bytes.
#[derive(Clone, Copy, Debug)]
pub struct Encoded<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Encoded<N> {
    fn new(words: &[u64], descriptor: &Descriptor) -> Self {
        let mut bytes = [0; N];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        let head = 8 * words.len();
        for (to, byte) in bytes.iter_mut().skip(head).zip(descriptor.bytes()) {
            *to = *byte;
        }
        Self { bytes, len: head + descriptor.room() }
    }
}

impl<const N: usize> core::ops::Deref for Encoded<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }
}

/// The content of an RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rts {
    /// Bytes of the message.
    pub total: u64,
    /// The sender's request.
    pub sender: u64,
    /// The message's bytes in the sender's memory, from byte `origin` on.
    pub descriptor: Descriptor,
    /// Number of bytes at the beginning of the message that are not described.
    pub origin: u8,
    /// The protocol by which the sender currently receives messages of this size from the receiver, a number
    /// from 1 to [`MOST_PROTOCOLS`]; 0 if unknown. If one side tries a protocol, the other may try it too.
    pub protocol_number: u8,
    /// The immediate data, if the message has them.
    pub immediate: Option<u64>,
    /// Whether the bytes of the message follow unasked.
    pub is_unasked: bool,
    /// Whether the message is announced only because its sender lacks credit.
    pub lacks_credit: bool,
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
    /// The receiver's buffer in its memory.
    pub descriptor: Descriptor,
}

/// The stores by which bytes are copied to where another core reads them. As a preference, `None` means that
/// the copying side selects the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stores {
    /// Plain stores.
    Cached = 1,
    /// Plain stores to lines that were write-prefetched, because the other core holds them.
    Prefetched = 2,
    /// Non-temporal stores, if the processor has them.
    NonTemporal = 3,
}

impl Stores {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 3] = [Self::Cached, Self::Prefetched, Self::NonTemporal];
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(8 * at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

impl Rts {
    /// Returns the RTS of a message of `total` bytes that peers cannot access, and which the receiver asks for.
    pub const fn of(total: u64, sender: u64, immediate: Option<u64>) -> Self {
        Self {
            total,
            sender,
            descriptor: Descriptor::NONE,
            origin: 0,
            protocol_number: 0,
            immediate,
            is_unasked: false,
            lacks_credit: false,
        }
    }

    /// Returns the number of bytes that follow the RTS unasked.
    pub const fn following(&self) -> usize {
        if self.is_unasked { self.total as usize } else { 0 }
    }

    /// Returns the bytes of the RTS without the first bytes of the message.
    pub const fn bytes(&self) -> usize {
        self.head_bytes() + self.descriptor.room()
    }

    const fn head_bytes(&self) -> usize {
        if self.immediate.is_some() { RTS_BYTES + IMMEDIATE_BYTES } else { RTS_BYTES }
    }

    /// Returns how many bytes of the message a receiver has that has stored the RTS with what has come behind it,
    /// together `len` bytes. In the stored RTS of a message whose bytes follow unasked, their number stands in place of
    /// the sender's request.
    pub const fn arrived(&self, len: usize) -> u64 {
        if self.is_unasked { self.sender } else { len.saturating_sub(self.bytes()) as u64 }
    }

    /// Encodes the RTS; the first bytes of the message follow it.
    pub fn encode(&self) -> Encoded<MOST_RTS_BYTES> {
        let word = u64::from(self.protocol_number)
            | self.descriptor.head() << 8
            | u64::from(self.origin) << 24
            | u64::from(self.immediate.is_some()) << 32
            | u64::from(self.is_unasked) << 33
            | u64::from(self.lacks_credit) << 34;
        let words = [self.total, self.sender, word, self.immediate.unwrap_or(0)];
        Encoded::new(words.get(..self.head_bytes() / 8).unwrap_or(&words), &self.descriptor)
    }

    /// Decodes a packet of `len` bytes that begins with `bytes`, which are at least [`MOST_RTS_BYTES`] or the whole
    /// packet. `None` if it violates the protocol: it is too short, or carries more first bytes than the message
    /// has, or fewer than the origin.
    pub fn decode(bytes: &[u8], len: usize) -> Option<Self> {
        let last = word(bytes, 2)?;
        let origin = (last >> 24) as u8;
        let head = last >> 8 & 0xffff | last >> 35 << 16;
        let (is_unasked, lacks_credit) = (last >> 33 & 1 != 0, last >> 34 & 1 != 0);
        let immediate = if last >> 32 & 1 == 0 { None } else { Some(word(bytes, 3)?) };
        let at = if immediate.is_some() { RTS_BYTES + IMMEDIATE_BYTES } else { RTS_BYTES };
        let descriptor = Descriptor::decode(head, bytes.get(at..)?)?;
        let protocol_number =
            Some(last as u8).filter(|protocol_number| *protocol_number <= MOST_PROTOCOLS)?;
        let (total, sender) = (word(bytes, 0)?, word(bytes, 1)?);
        let rts =
            Self { total, sender, descriptor, origin, protocol_number, immediate, is_unasked, lacks_credit };
        let first = len.checked_sub(rts.bytes())?;
        let has_origin = usize::from(origin) <= first && (origin == 0 || !descriptor.is_none());
        let is_plain = descriptor.is_none() && rts.total > 0;
        (has_origin
            && first as u64 <= rts.total
            && rts.total <= isize::MAX as u64
            && (is_plain || !is_unasked))
            .then_some(rts)
    }
}

impl Cts {
    /// Encodes the CTS.
    pub fn encode(&self) -> Encoded<MOST_CTS_BYTES> {
        let word = self.descriptor.head() << 8;
        Encoded::new(&[self.sender, self.receiver, self.start, self.end, word], &self.descriptor)
    }

    /// Decodes a packet. `None` if it violates the protocol.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let last = word(bytes, 4)?;
        if last & 0xff != 0 {
            return None;
        }
        let descriptor = Descriptor::decode(last >> 8, bytes.get(CTS_BYTES..)?)?;
        let cts = Self {
            sender: word(bytes, 0)?,
            receiver: word(bytes, 1)?,
            start: word(bytes, 2)?,
            end: word(bytes, 3)?,
            descriptor,
        };
        (cts.start < cts.end && bytes.len() == CTS_BYTES + descriptor.room()).then_some(cts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rts() -> Rts {
        let descriptor = Descriptor::of_address(0x1234_5678_9abc);
        Rts { descriptor, protocol_number: 3, ..Rts::of(70, u64::MAX, None) }
    }

    fn descriptors() -> [Descriptor; 4] {
        let new = |method, bytes: &[u8]| Descriptor::new(method, bytes).unwrap();
        [Descriptor::NONE, Descriptor::of_address(7), new(200, &[1; DESCRIPTOR_BYTES]), new(3, &[5; 9])]
    }

    #[test]
    fn packets_survive_the_wire() {
        for descriptor in descriptors() {
            for (first, immediate) in
                [0, 1, 70].into_iter().flat_map(|it| [(it, None), (it, Some(!0)), (it, Some(0))])
            {
                let rts = Rts { descriptor, immediate, ..rts() };
                let mut packet = rts.encode().to_vec();
                assert_eq!(packet.len(), rts.bytes());
                packet.resize(rts.bytes() + first, 0xff);
                assert_eq!(Rts::decode(&packet, packet.len()), Some(rts));
                assert!(rts.bytes() <= MOST_RTS_BYTES);
            }
            let cts = Cts { sender: 1, receiver: u64::MAX, start: 3, end: 4, descriptor };
            assert_eq!(Cts::decode(&cts.encode()), Some(cts));
            assert_eq!(Cts::decode(&[&cts.encode()[..], &[0]].concat()), None);
        }
        let rts = Rts { origin: 48, ..rts() };
        for first in [48, 70] {
            let mut packet = rts.encode().to_vec();
            packet.resize(rts.bytes() + first, 0xff);
            assert_eq!(Rts::decode(&packet, packet.len()), Some(rts));
        }
        assert_eq!(Descriptor::of_address(9).address(), Some(9));
        assert_eq!(Descriptor::new(2, &9_u64.to_le_bytes()).unwrap().address(), None);
        assert_eq!(Descriptor::new(Descriptor::ADDRESS, &[1; 9]).unwrap().address(), None);
        assert_eq!((Descriptor::new(1, &[0; 33]), Descriptor::new(0, &[])), (None, None));
    }

    #[test]
    fn invalid_packets_are_not_decoded() {
        let rts = rts();
        let packet = rts.encode();
        for len in 0..packet.len() {
            assert_eq!(Rts::decode(&packet[..len], len), None, "{len}");
        }
        assert_eq!(Rts::decode(&packet, rts.bytes() + 71), None);
        let immediate = Rts { immediate: Some(5), descriptor: Descriptor::NONE, ..rts };
        for len in 0..immediate.bytes() {
            assert_eq!(Rts::decode(&immediate.encode()[..len], len), None, "{len}");
        }
        let huge = Rts { total: 1 << 63, ..rts };
        assert_eq!(Rts::decode(&huge.encode(), rts.bytes()), None);
        assert_eq!(
            Rts::decode(&Rts { protocol_number: MOST_PROTOCOLS + 1, ..rts }.encode(), rts.bytes()),
            None
        );
        // Bytes that neither travel with the RTS nor are described; an origin of nothing; a reserved bit.
        let described = Rts { origin: 48, ..rts };
        assert_eq!(Rts::decode(&described.encode(), rts.bytes() + 47), None);
        let mut undescribed = Rts { descriptor: Descriptor::NONE, origin: 1, ..rts }.encode().to_vec();
        undescribed.push(0);
        assert_eq!(Rts::decode(&undescribed, undescribed.len()), None);
        for at in 20..24 {
            let mut bytes = rts.encode().to_vec();
            bytes[at] = 2;
            assert_eq!(Rts::decode(&bytes, bytes.len()), None, "{at}");
        }
        let descriptor = Descriptor::NONE;
        for (start, end) in [(0, 0), (4, 4), (5, 4)] {
            let cts = Cts { sender: 1, receiver: 2, start, end, descriptor };
            assert_eq!(Cts::decode(&cts.encode()), None);
        }
        let cts = Cts { sender: 1, receiver: 2, start: 3, end: 4, descriptor };
        for len in 0..CTS_BYTES {
            assert_eq!(Cts::decode(&cts.encode()[..len]), None, "{len}");
        }
        // A reserved byte; bytes without a method; more bytes than there are; too many; a reserved bit.
        for (at, byte) in [(32, 4), (34, 1), (34, 8), (34, 33), (35, 1), (39, 1)] {
            let mut bytes = cts.encode().to_vec();
            bytes[at] = byte;
            assert_eq!(Cts::decode(&bytes), None, "{at} {byte}");
        }
    }
}
