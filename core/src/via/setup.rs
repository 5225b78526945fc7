//! The frames that two processes exchange over TCP before their VIs are connected (paper 2, section 1.4.1): one
//! protocol for client-server and for peer-to-peer requests.
//!
//! A request is sent to every process that may wait. A process in which a call waits under the address answers that the
//! request is pending; the requesting process confirms one of these answers. Only then does the program learn of the
//! request. So a process that is stopped, or slow, holds up nobody.
//!
//! Any process can send a frame, so every byte is checked. All words are little-endian; what is not listed is zero.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | [`SETUP_MAGIC`] |
//! | 8 | 2 | [`SETUP_VERSION`] |
//! | 10 | 1 | kind |
//! | 11 | 1 | the reason of a refusal: a return code |
//! | 16 | 16 | number of the process, random |
//! | 32 | 8 | number of the VI |
//! | 40 | 8 | maximum transfer size |
//! | 48 | 8 | quality of service |
//! | 56 | 2 | reliability level |
//! | 58 | 2 | bit 0: RDMA writes permitted, bit 1: RDMA reads permitted |
//! | 64 | 16 | the name of the meeting place, where the processes exchange shared memory |
//! | 80 | 72 | local address: bytes of host and discriminator (1 each), host (4 from 4 on), discriminator (64) |
//! | 152 | 72 | remote address |
#![forbid(unsafe_code)]

use super::attributes::ViAttributes;
use super::codes::Reliability;

/// The first word of a frame.
pub const SETUP_MAGIC: u64 = u64::from_le_bytes(*b"nemesiav");
/// The version of the frames.
pub const SETUP_VERSION: u16 = 1;
/// Bytes of a frame.
pub const SETUP_BYTES: usize = 256;
/// Bytes of a host address.
pub const HOST_BYTES: usize = 4;
/// Most bytes of a discriminator.
pub const MOST_DISCRIMINATOR_BYTES: usize = 64;
const ADDRESS_BYTES: usize = 8 + MOST_DISCRIMINATOR_BYTES;

/// The address of a waiting or requesting VI: a host, and a discriminator that programs choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViaAddress {
    /// The host: an IPv4 address.
    pub host: [u8; HOST_BYTES],
    /// The discriminator, padded with zeros.
    discriminator: [u8; MOST_DISCRIMINATOR_BYTES],
    len: u8,
}

impl ViaAddress {
    /// Returns an address; `None` if the discriminator is too long.
    pub fn new(host: [u8; HOST_BYTES], discriminator: &[u8]) -> Option<Self> {
        let mut padded = [0; MOST_DISCRIMINATOR_BYTES];
        padded.get_mut(..discriminator.len())?.copy_from_slice(discriminator);
        Some(Self { host, discriminator: padded, len: discriminator.len() as u8 })
    }

    /// Returns the discriminator.
    pub fn discriminator(&self) -> &[u8] {
        &self.discriminator[..usize::from(self.len)]
    }

    fn encode(&self) -> [u8; ADDRESS_BYTES] {
        let mut bytes = [0; ADDRESS_BYTES];
        (bytes[0], bytes[1]) = (HOST_BYTES as u8, self.len);
        bytes[4..8].copy_from_slice(&self.host);
        bytes[8..].copy_from_slice(&self.discriminator);
        bytes
    }

    fn decode(bytes: &[u8; ADDRESS_BYTES]) -> Option<Self> {
        let (len, host) = (usize::from(bytes[1]), *bytes[4..].first_chunk()?);
        let address = Self::new(host, bytes[8..].get(..len)?)?;
        (address.encode() == *bytes).then_some(address)
    }
}

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SetupKind {
    /// A client asks for a connection.
    Request = 1,
    /// A peer asks for a connection.
    PeerRequest = 2,
    /// The answer: nothing waits under that address.
    NoMatch = 3,
    /// The answer: the program rejects the connection, or the attributes do not match.
    Refused = 4,
    /// The answer: the connection is established at the meeting place.
    Accepted = 5,
    /// The answer: the peer's own request has precedence.
    Busy = 6,
    /// The first answer: a call or a request waits under the address.
    Pending = 7,
    /// A client confirms its request.
    Confirm = 8,
    /// A peer confirms its request.
    PeerConfirm = 9,
}

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetupFrame {
    /// The kind.
    pub kind: SetupKind,
    /// The reason of a refusal, as a return code; else 0.
    pub reason: u8,
    /// The number of the sending process, random.
    pub process: [u8; 16],
    /// The number of its VI.
    pub vi: u64,
    /// The attributes of its VI. The protection tag is not sent.
    pub attributes: ViAttributes,
    /// The name of the meeting place, where the processes exchange shared memory.
    pub meeting: [u8; 16],
    /// The address of the sender.
    pub local: ViaAddress,
    /// The address of the receiver.
    pub remote: ViaAddress,
}

impl SetupFrame {
    /// Returns the bytes of the frame.
    pub fn encode(&self) -> [u8; SETUP_BYTES] {
        let mut bytes = [0; SETUP_BYTES];
        bytes[..8].copy_from_slice(&SETUP_MAGIC.to_le_bytes());
        bytes[8..10].copy_from_slice(&SETUP_VERSION.to_le_bytes());
        (bytes[10], bytes[11]) = (self.kind as u8, self.reason);
        bytes[16..32].copy_from_slice(&self.process);
        bytes[32..40].copy_from_slice(&self.vi.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.attributes.max_transfer.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.attributes.qos.to_le_bytes());
        bytes[56..58].copy_from_slice(&(self.attributes.reliability as u16).to_le_bytes());
        bytes[58] = u8::from(self.attributes.rdma_write) | u8::from(self.attributes.rdma_read) << 1;
        bytes[64..80].copy_from_slice(&self.meeting);
        bytes[80..152].copy_from_slice(&self.local.encode());
        bytes[152..224].copy_from_slice(&self.remote.encode());
        bytes
    }

    /// Returns the frame in these bytes; `None` if they are no frame of this version.
    pub fn decode(bytes: &[u8; SETUP_BYTES]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let kind = match bytes[10] {
            1 => SetupKind::Request,
            2 => SetupKind::PeerRequest,
            3 => SetupKind::NoMatch,
            4 => SetupKind::Refused,
            5 => SetupKind::Accepted,
            6 => SetupKind::Busy,
            7 => SetupKind::Pending,
            8 => SetupKind::Confirm,
            9 => SetupKind::PeerConfirm,
            _ => return None,
        };
        let frame = Self {
            kind,
            reason: bytes[11],
            process: *bytes[16..].first_chunk()?,
            vi: word(32)?,
            attributes: ViAttributes {
                reliability: Reliability::from_bits(u16::from_le_bytes([bytes[56], bytes[57]]))?,
                max_transfer: word(40)?,
                qos: word(48)?,
                ptag: 0,
                rdma_write: bytes[58] & 1 != 0,
                rdma_read: bytes[58] & 2 != 0,
            },
            meeting: *bytes[64..].first_chunk()?,
            local: ViaAddress::decode(bytes[80..].first_chunk()?)?,
            remote: ViaAddress::decode(bytes[152..].first_chunk()?)?,
        };
        // Whatever is not listed is zero, also the magic number and the version are those that would be written.
        (frame.encode() == *bytes && frame.attributes.check().is_ok()).then_some(frame)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame() -> SetupFrame {
        SetupFrame {
            kind: SetupKind::Refused,
            reason: 6,
            process: [7; 16],
            vi: 1 << 40,
            attributes: ViAttributes {
                reliability: Reliability::Reception,
                max_transfer: 4096,
                qos: 3,
                ptag: 0,
                rdma_write: true,
                rdma_read: false,
            },
            meeting: [9; 16],
            local: ViaAddress::new([127, 0, 0, 1], b"twelve bytes").unwrap(),
            remote: ViaAddress::new([10, 0, 0, 1], &[]).unwrap(),
        }
    }

    #[test]
    fn a_frame_is_decoded_as_it_was_encoded() {
        assert_eq!(SetupFrame::decode(&frame().encode()), Some(frame()));
        assert_eq!(ViaAddress::new([0; 4], &[1; MOST_DISCRIMINATOR_BYTES + 1]), None);
        assert_eq!(frame().local.discriminator(), b"twelve bytes");
    }

    #[test]
    fn each_changed_byte_is_refused_or_changes_the_frame() {
        for at in 0..SETUP_BYTES {
            for change in [1, 0x80, 0xff] {
                let mut bytes = frame().encode();
                bytes[at] ^= change;
                let found = SetupFrame::decode(&bytes);
                assert_ne!(found, Some(frame()), "byte {at}");
                let is_fixed = at < 10 || (12..16).contains(&at) || (60..64).contains(&at) || at >= 224;
                assert!(!is_fixed || found.is_none(), "byte {at}");
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_decoded_is_encoded_to_the_same_bytes(
            changes in prop::collection::vec((0..SETUP_BYTES, any::<u8>()), 0..6),
        ) {
            let mut bytes = frame().encode();
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            if let Some(found) = SetupFrame::decode(&bytes) {
                prop_assert_eq!(found.encode(), bytes);
            }
        }
    }
}
