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
//! | 224 | 16 | [machine](SetupNetwork::machine) of the process |
//! | 240 | 16 | random part of the challenge |
//! | 256 | 4 | number of the challenge |
//! | 264 | 8 | nonce |
//! | 272 | 16 | proof |
//! | 288 | 1 | bytes of the address of the memory port |
//! | 289 | 1 | kinds of memory ports: [`PORT_TCP`], [`PORT_VERBS`] |
//! | 292 | 64 | that address |
//!
//! # Between machines
//! Processes of one machine meet there, and the kernel tells them which user the other one is. Between machines, both
//! prove that they know the key of the job ([`crate::job_key`]): the first answer has a challenge, the confirmation has
//! a nonce and the caller's proof, and the acceptance has the proof of the called process. Each proof covers all bytes
//! of its frame. The confirmation names the kinds of memory ports that the caller has, and the address of its port over
//! an RDMA device. The called process chooses one of these kinds. The acceptance names it and the address of the memory
//! port, and its `meeting` is the ticket that the caller presents there.
#![forbid(unsafe_code)]

use super::attributes::ViAttributes;
use super::codes::Reliability;
use crate::job_key::{CallTerms, JobKey};
use crate::wire::fabric::Address;
use crate::wire::hello::{CALL_BYTES, Challenge, Proof};

/// The first word of a frame.
pub const SETUP_MAGIC: u64 = u64::from_le_bytes(*b"nemesiav");
/// The version of the frames.
pub const SETUP_VERSION: u16 = 3;
/// Bytes of a frame.
pub const SETUP_BYTES: usize = 384;
/// Bytes of a host address.
pub const HOST_BYTES: usize = 4;
/// Most bytes of a discriminator.
pub const MOST_DISCRIMINATOR_BYTES: usize = 64;
/// Most bytes of the address of a memory port in a frame.
pub const MOST_PORT_BYTES: usize = 64;
/// A memory port over TCP.
pub const PORT_TCP: u8 = 1;
/// A memory port over an RDMA device.
pub const PORT_VERBS: u8 = 2;
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
    /// The name of the meeting place, where the processes exchange shared memory; between machines, the ticket for the
    /// memory port.
    pub meeting: [u8; 16],
    /// The address of the sender.
    pub local: ViaAddress,
    /// The address of the receiver.
    pub remote: ViaAddress,
    /// What only connections between machines need.
    pub network: SetupNetwork,
}

/// The part of a frame that connections between machines need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetupNetwork {
    /// A number of the sender's machine and network namespace: two processes with the same number can meet there.
    pub machine: [u8; 16],
    /// In a first answer and in a confirmation: the challenge of the called process.
    pub challenge: Challenge,
    /// In a confirmation: the number of the caller that it uses once.
    pub nonce: u64,
    /// In a confirmation and in an acceptance: the proof that the sender knows the key of the job.
    pub proof: Proof,
    /// In a confirmation: the kinds of memory ports that the caller has. In an acceptance: the kind of the connection.
    pub ports: u8,
    /// In a confirmation: the memory port of the caller over an RDMA device, if it has one. In an acceptance: the
    /// memory port of the called process. At most [`MOST_PORT_BYTES`].
    pub port: Option<Address>,
}

impl SetupNetwork {
    /// Returns the part without challenge, proof and port.
    pub const fn new(machine: [u8; 16]) -> Self {
        let challenge = Challenge { number: 0, random: [0; 16] };
        Self { machine, challenge, nonce: 0, proof: Proof([0; 16]), ports: 0, port: None }
    }

    fn encode(&self, bytes: &mut [u8; SETUP_BYTES]) {
        bytes[224..240].copy_from_slice(&self.machine);
        bytes[240..256].copy_from_slice(&self.challenge.random);
        bytes[256..260].copy_from_slice(&self.challenge.number.to_le_bytes());
        bytes[264..272].copy_from_slice(&self.nonce.to_le_bytes());
        bytes[272..288].copy_from_slice(&self.proof.0);
        bytes[289] = self.ports;
        let port = self.port.as_ref().map_or(&[][..], Address::bytes);
        // A longer address is left out.
        if let Some(place) = bytes[292..292 + MOST_PORT_BYTES].get_mut(..port.len()) {
            place.copy_from_slice(port);
            bytes[288] = port.len() as u8;
        }
    }

    fn decode(bytes: &[u8; SETUP_BYTES]) -> Option<Self> {
        let port = match usize::from(bytes[288]) {
            0 => None,
            len => Some(Address::new(bytes[292..292 + MOST_PORT_BYTES].get(..len)?)?),
        };
        let number = u32::from_le_bytes(*bytes[256..].first_chunk()?);
        Some(Self {
            machine: *bytes[224..].first_chunk()?,
            challenge: Challenge { number, random: *bytes[240..].first_chunk()? },
            nonce: u64::from_le_bytes(*bytes[264..].first_chunk()?),
            proof: Proof(*bytes[272..].first_chunk()?),
            ports: bytes[289],
            port,
        })
    }
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
        self.network.encode(&mut bytes);
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
            network: SetupNetwork::decode(bytes)?,
        };
        // Whatever is not listed is zero, also the magic number and the version are those that would be written.
        let is_known = frame.network.ports & !(PORT_TCP | PORT_VERBS) == 0;
        (is_known && frame.encode() == *bytes && frame.attributes.check().is_ok()).then_some(frame)
    }

    /// Returns the bytes that a proof covers: all of them, without the proof.
    fn covered(&self) -> [u8; SETUP_BYTES] {
        Self { network: SetupNetwork { proof: Proof([0; 16]), ..self.network }, ..*self }.encode()
    }

    fn terms<'a>(&self, covered: &'a [u8; SETUP_BYTES]) -> CallTerms<'a> {
        CallTerms {
            world: u64::from_le_bytes(*b"vipl\0\0\0\0"),
            challenge: self.network.challenge,
            nonce: self.network.nonce,
            caller: [0; CALL_BYTES],
            caller_address: covered,
            callee: 0,
            callee_address: &[],
        }
    }

    /// Returns a confirmation with the caller's proof.
    #[must_use]
    pub fn prove_request(&self, key: &JobKey) -> Self {
        let proof = key.request_proof(&self.terms(&self.covered()));
        Self { network: SetupNetwork { proof, ..self.network }, ..*self }
    }

    /// Returns whether a confirmation was made by a process that knows the key. The challenge must be one of this
    /// process that is still valid.
    pub fn is_request_proven(&self, key: &JobKey) -> bool {
        key.accepts_request(&self.terms(&self.covered()), &self.network.proof)
    }

    /// Returns an acceptance with the proof of the called process: it is the answer to this confirmation.
    #[must_use]
    pub fn prove_answer(&self, key: &JobKey, request: &Self) -> Self {
        let proof = key.answer_proof(&request.network.proof, request.network.nonce, &self.covered());
        Self { network: SetupNetwork { proof, ..self.network }, ..*self }
    }

    /// Returns whether an acceptance was made by a process that knows the key, as the answer to this confirmation.
    pub fn is_answer_proven(&self, key: &JobKey, request: &Self) -> bool {
        let Self { network, .. } = request;
        key.accepts_answer(&network.proof, network.nonce, &self.covered(), &self.network.proof)
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
            network: SetupNetwork {
                machine: [5; 16],
                challenge: Challenge { number: 6, random: [8; 16] },
                nonce: 0x0102,
                proof: Proof([4; 16]),
                ports: PORT_TCP,
                port: Address::new(b"tcp1 and a place"),
            },
        }
    }

    #[test]
    fn the_bytes_of_a_frame_are_those_of_version_3() {
        let bytes = frame().encode();
        assert_eq!(bytes[..12], *b"nemesiav\x03\0\x04\x06");
        assert_eq!((&bytes[16..32], &bytes[32..40]), (&[7; 16][..], &[0, 0, 0, 0, 0, 1, 0, 0][..]));
        assert_eq!(bytes[40..64], *b"\0\x10\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\x01\0\0\0\0\0");
        assert_eq!((&bytes[64..80], &bytes[80..84]), (&[9; 16][..], &[4, 12, 0, 0][..]));
        assert_eq!(bytes[84..100], *b"\x7f\0\0\x01twelve bytes");
        assert_eq!(bytes[152..160], [4, 0, 0, 0, 10, 0, 0, 1]);
        assert_eq!((&bytes[224..240], &bytes[240..256]), (&[5; 16][..], &[8; 16][..]));
        assert_eq!(bytes[256..272], [6, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!((&bytes[272..288], &bytes[288..292]), (&[4; 16][..], &[16, 1, 0, 0][..]));
        assert_eq!(bytes[292..308], *b"tcp1 and a place");
    }

    #[test]
    fn a_proof_covers_every_byte_of_its_frame_and_the_request() {
        let (key, other) = (JobKey::from_bytes([1; 32]), JobKey::from_bytes([2; 32]));
        let request = SetupFrame { kind: SetupKind::Confirm, reason: 0, ..frame() }.prove_request(&key);
        let answer =
            SetupFrame { kind: SetupKind::Accepted, reason: 0, ..frame() }.prove_answer(&key, &request);
        assert!(request.is_request_proven(&key) && answer.is_answer_proven(&key, &request));
        assert!(!request.is_request_proven(&other) && !answer.is_answer_proven(&other, &request));
        assert!(!request.is_answer_proven(&key, &request), "a proof that was sent back");
        let another = SetupFrame { vi: 9, ..request }.prove_request(&key);
        assert!(!answer.is_answer_proven(&key, &another), "the answer to another request");
        for at in 0..SETUP_BYTES {
            for (frame, is_request) in [(&request, true), (&answer, false)] {
                let mut bytes = frame.encode();
                bytes[at] ^= 1;
                let Some(changed) = SetupFrame::decode(&bytes) else { continue };
                let is_proven = if is_request {
                    changed.is_request_proven(&key)
                } else {
                    changed.is_answer_proven(&key, &request)
                };
                assert!(!is_proven, "byte {at}");
            }
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
                let is_fixed = at < 10
                    || (12..16).contains(&at)
                    || (60..64).contains(&at)
                    || (260..264).contains(&at)
                    || at >= 308;
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
