//! The messages by which processes without a world call each other between machines.
//!
//! The caller connects with a byte stream to the network address that is a part of the callee's address. The callee
//! sends a *challenge*. The caller sends its *request*, with the proof that it knows the key of the job
//! ([`job_key`](crate::job_key)). The callee sends its *acceptance* with its own proof, or a *refusal*. The caller
//! *confirms* the acceptance, and requests the connection of the [channel](crate::port::channel) at the address in the
//! acceptance. Either may *leave* instead of the next message.
//!
//! A process that leaves tells it to the ranks of its world that it has not met: its *departure* is the only message of
//! a connection, and is sent without a challenge. It cannot be misused if it is sent again: its sender has left, and no
//! other process gets the same address.
//!
//! Every message has [`CALL_MESSAGE_BYTES`]. All integers are little-endian; all other bytes are 0. Bytes 0 and 1: the
//! identity stamp `0x434e`; 2 and 3: [`CALL_VERSION`]; 4: the kind.
//!
//! | kind | code | further bytes |
//! |---|---|---|
//! | [`CallMessage::Challenge`] | 1 | 8-11: its number; 12-27: its random bytes |
//! | [`CallMessage::Request`] | 2 | 8-31: introduction; 32-95: address of the caller; 96-99: number of the challenge; 104-111: nonce; 240-255: proof |
//! | [`CallMessage::Acceptance`] | 3 | 8-31: introduction; 32-95: address of the callee; 96: length of the channel's address; 97-204: that address; 240-255: proof |
//! | [`CallMessage::Refusal`] | 4 | 8: length of the reason; 9-255: the reason, printable ASCII |
//! | [`CallMessage::Leave`] | 5 | 8: 0 if the sender has finished, 1 if its endpoint was dropped |
//! | [`CallMessage::Confirmation`] | 6 | none |
//! | [`CallMessage::Departure`] | 7 | 8: as in kind 5; 32-95: address of the sender; 240-255: proof |
//!
//! **Introduction.** 8-15: the number of the call; in an acceptance, the number of calls of the callee so far. 16-23:
//! the random token that the sender presents to the receiver on the channel. 24-27: the number by which the sender
//! knows the receiver. 28-31: payload bytes of the largest packet.
#![forbid(unsafe_code)]

use super::PeerId;
use super::channel::CloseReason;
use super::fabric::{Address, MOST_ADDRESS_BYTES};
use super::hello::{CALL_BYTES, Challenge, PROOF_BYTES, Proof};

/// Version of the messages on this page.
pub const CALL_VERSION: u16 = 2;
/// Bytes of a message.
pub const CALL_MESSAGE_BYTES: usize = 256;
/// Most bytes of the reason of a refusal.
pub const MOST_REASON_BYTES: usize = CALL_MESSAGE_BYTES - REASON - 1;

/// Bytes of the address of a process.
const ADDRESS_BYTES: usize = 64;
const MARK: u16 = 0x434e;
const INTRODUCTION: usize = 8;
const ADDRESS: usize = 32;
const AFTER_ADDRESS: usize = ADDRESS + ADDRESS_BYTES;
const NONCE: usize = 104;
const REASON: usize = 8;
const PROOF: usize = CALL_MESSAGE_BYTES - PROOF_BYTES;

/// The bytes of a message.
pub type CallBytes = [u8; CALL_MESSAGE_BYTES];

/// What each side of a call says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallIntroduction {
    /// The number of the call, or the number of calls so far.
    pub calls: u64,
    /// The random number that the sender presents to the receiver on the channel.
    pub token: u64,
    /// The number by which the sender knows the receiver.
    pub number: PeerId,
    /// Payload bytes of the largest packet.
    pub packet_bytes: u32,
}

/// The request of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallRequest {
    /// What the caller says about itself.
    pub introduction: CallIntroduction,
    /// The address of the caller.
    pub address: [u8; ADDRESS_BYTES],
    /// The number of the challenge that it answers.
    pub challenge: u32,
    /// A number that the caller uses once.
    pub nonce: u64,
    /// Proves that the caller knows the key.
    pub proof: Proof,
}

/// The acceptance of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallAcceptance {
    /// What the callee says about itself.
    pub introduction: CallIntroduction,
    /// The address of the callee.
    pub address: [u8; ADDRESS_BYTES],
    /// The address of its channel.
    pub channel: Address,
    /// Proves that the callee knows the key.
    pub proof: Proof,
}

/// The departure of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallDeparture {
    /// The address of the process that leaves.
    pub address: [u8; ADDRESS_BYTES],
    /// How it leaves.
    pub reason: CloseReason,
    /// Proves that the process knows the key ([`JobKey::departure_proof`](crate::job_key::JobKey::departure_proof)).
    pub proof: Proof,
}

/// The reason of a refusal: text of the other process, in printable ASCII.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RefusalReason {
    len: u8,
    bytes: [u8; MOST_REASON_BYTES],
}

/// A message of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallMessage {
    /// The first message of the callee.
    Challenge(Challenge),
    /// The first message of the caller.
    Request(CallRequest),
    /// The callee accepts.
    Acceptance(CallAcceptance),
    /// The callee refuses.
    Refusal(RefusalReason),
    /// The sender does not want the connection any more.
    Leave(CloseReason),
    /// The caller has the acceptance.
    Confirmation,
    /// A process with which there is no connection leaves.
    Departure(CallDeparture),
}

/// The reason why bytes are not a message of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallMessageError {
    /// They are those of another protocol, or were changed.
    #[error("it sends what is not a call: is another program behind the address?")]
    Malformed,
    /// Its version differs.
    #[error("its calls have version {theirs}, ours {CALL_VERSION}: use the same nemesia in both processes")]
    Version {
        /// The version of the sender.
        theirs: u16,
    },
}

impl core::fmt::Debug for RefusalReason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Debug::fmt(self.text(), f)
    }
}

impl RefusalReason {
    /// Returns the reason with this text, cut to [`MOST_REASON_BYTES`]. Other characters than printable ASCII become
    /// `?`.
    pub fn new(text: &str) -> Self {
        let mut reason = Self { len: 0, bytes: [0; MOST_REASON_BYTES] };
        for (to, character) in reason.bytes.iter_mut().zip(text.chars()) {
            *to =
                if is_printable(&(character as u8)) && character.is_ascii() { character as u8 } else { b'?' };
            reason.len += 1;
        }
        reason
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        let bytes = self.bytes.get(..usize::from(self.len)).unwrap_or(&[]);
        core::str::from_utf8(bytes).unwrap_or("")
    }
}

const fn is_printable(byte: &u8) -> bool {
    matches!(byte, b' '..=b'~')
}

/// Writes a field into a message. It fits.
fn put(bytes: &mut CallBytes, at: usize, field: &[u8]) {
    if let Some(to) = bytes.get_mut(at..at + field.len()) {
        to.copy_from_slice(field);
    }
}

/// Reads a field of a message. It lies inside.
fn field<const N: usize>(bytes: &CallBytes, at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

impl CallIntroduction {
    /// Returns what a proof covers of a request, besides its address and nonce.
    pub fn common(&self) -> [u8; CALL_BYTES] {
        let mut bytes = [0; CALL_BYTES];
        let [a, b] = MARK.to_le_bytes();
        let [c, d] = CALL_VERSION.to_le_bytes();
        let first = [a, b, c, d];
        let (calls, token) = (self.calls.to_le_bytes(), self.token.to_le_bytes());
        let (number, packet) = (self.number.to_le_bytes(), self.packet_bytes.to_le_bytes());
        let all = first.iter().chain(&calls).chain(&token).chain(&number).chain(&packet);
        bytes.iter_mut().zip(all).for_each(|(to, from)| *to = *from);
        bytes
    }

    fn put(&self, bytes: &mut CallBytes) {
        put(bytes, INTRODUCTION, self.common().get(4..).unwrap_or(&[]));
    }

    fn decode(bytes: &CallBytes) -> Self {
        Self {
            calls: u64::from_le_bytes(field(bytes, 8)),
            token: u64::from_le_bytes(field(bytes, 16)),
            number: u32::from_le_bytes(field(bytes, 24)),
            packet_bytes: u32::from_le_bytes(field(bytes, 28)),
        }
    }
}

impl CallAcceptance {
    /// Returns the bytes of the acceptance that its proof covers.
    pub fn proven(&self) -> [u8; PROOF] {
        let bytes = CallMessage::Acceptance(*self).encode();
        field(&bytes, 0)
    }
}

impl CallDeparture {
    /// Returns the bytes of the departure that its proof covers.
    pub fn proven(&self) -> [u8; PROOF] {
        let bytes = CallMessage::Departure(*self).encode();
        field(&bytes, 0)
    }
}

/// Returns the code of the manner in which a process leaves.
const fn code_of(reason: CloseReason) -> u8 {
    match reason {
        CloseReason::Finished => 0,
        CloseReason::Dropped => 1,
    }
}

/// Returns the manner in which a process leaves.
const fn reason_of(code: u8) -> Result<CloseReason, CallMessageError> {
    match code {
        0 => Ok(CloseReason::Finished),
        1 => Ok(CloseReason::Dropped),
        _ => Err(CallMessageError::Malformed),
    }
}

impl CallMessage {
    /// Encodes the message.
    pub fn encode(&self) -> CallBytes {
        let mut bytes = [0; CALL_MESSAGE_BYTES];
        put(&mut bytes, 0, &MARK.to_le_bytes());
        put(&mut bytes, 2, &CALL_VERSION.to_le_bytes());
        let kind = match self {
            Self::Challenge(challenge) => {
                put(&mut bytes, 8, &challenge.number.to_le_bytes());
                put(&mut bytes, 12, &challenge.random);
                1
            }
            Self::Request(request) => {
                request.introduction.put(&mut bytes);
                put(&mut bytes, ADDRESS, &request.address);
                put(&mut bytes, AFTER_ADDRESS, &request.challenge.to_le_bytes());
                put(&mut bytes, NONCE, &request.nonce.to_le_bytes());
                put(&mut bytes, PROOF, &request.proof.0);
                2
            }
            Self::Acceptance(acceptance) => {
                acceptance.introduction.put(&mut bytes);
                put(&mut bytes, ADDRESS, &acceptance.address);
                let channel = acceptance.channel.bytes();
                put(&mut bytes, AFTER_ADDRESS, &[channel.len() as u8]);
                put(&mut bytes, AFTER_ADDRESS + 1, channel);
                put(&mut bytes, PROOF, &acceptance.proof.0);
                3
            }
            Self::Refusal(reason) => {
                put(&mut bytes, REASON, &[reason.len]);
                put(&mut bytes, REASON + 1, &reason.bytes);
                4
            }
            Self::Leave(reason) => {
                put(&mut bytes, REASON, &[code_of(*reason)]);
                5
            }
            Self::Confirmation => 6,
            Self::Departure(departure) => {
                put(&mut bytes, REASON, &[code_of(departure.reason)]);
                put(&mut bytes, ADDRESS, &departure.address);
                put(&mut bytes, PROOF, &departure.proof.0);
                7
            }
        };
        put(&mut bytes, 4, &[kind]);
        bytes
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// See [`CallMessageError`].
    pub fn decode(bytes: &CallBytes) -> Result<Self, CallMessageError> {
        use CallMessageError::Malformed;
        if u16::from_le_bytes(field(bytes, 0)) != MARK {
            return Err(Malformed);
        }
        let theirs = u16::from_le_bytes(field(bytes, 2));
        if theirs != CALL_VERSION {
            return Err(CallMessageError::Version { theirs });
        }
        let ([kind], [code]) = (field(bytes, 4), field(bytes, REASON));
        let message = match kind {
            1 => {
                let (number, random) = (u32::from_le_bytes(field(bytes, 8)), field(bytes, 12));
                Self::Challenge(Challenge { number, random })
            }
            2 => Self::Request(CallRequest {
                introduction: CallIntroduction::decode(bytes),
                address: field(bytes, ADDRESS),
                challenge: u32::from_le_bytes(field(bytes, AFTER_ADDRESS)),
                nonce: u64::from_le_bytes(field(bytes, NONCE)),
                proof: Proof(field(bytes, PROOF)),
            }),
            3 => {
                let [len] = field(bytes, AFTER_ADDRESS);
                let all: [u8; MOST_ADDRESS_BYTES] = field(bytes, AFTER_ADDRESS + 1);
                let channel = all.get(..usize::from(len)).and_then(Address::new).ok_or(Malformed)?;
                Self::Acceptance(CallAcceptance {
                    introduction: CallIntroduction::decode(bytes),
                    address: field(bytes, ADDRESS),
                    channel,
                    proof: Proof(field(bytes, PROOF)),
                })
            }
            4 => {
                let [len] = field(bytes, REASON);
                let reason = RefusalReason { len, bytes: field(bytes, REASON + 1) };
                let text = reason.bytes.get(..usize::from(len)).ok_or(Malformed)?;
                if !text.iter().all(is_printable) {
                    return Err(Malformed);
                }
                Self::Refusal(reason)
            }
            5 => Self::Leave(reason_of(code)?),
            6 => Self::Confirmation,
            7 => Self::Departure(CallDeparture {
                address: field(bytes, ADDRESS),
                reason: reason_of(code)?,
                proof: Proof(field(bytes, PROOF)),
            }),
            _ => return Err(Malformed),
        };
        // Nothing else may be set: a later version may use the other bytes.
        if message.encode() == *bytes { Ok(message) } else { Err(Malformed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn introduction() -> CallIntroduction {
        CallIntroduction { calls: u64::MAX - 4, token: 1 << 63 | 5, number: 77, packet_bytes: 8192 }
    }

    fn messages() -> [CallMessage; 10] {
        let (address, proof) = ([9; ADDRESS_BYTES], Proof([4; PROOF_BYTES]));
        let (challenge, nonce) = (u32::MAX - 3, u64::MAX - 5);
        let introduction = introduction();
        let channel = Address::new(&[6; MOST_ADDRESS_BYTES]).unwrap();
        [
            CallMessage::Challenge(Challenge { number: 8, random: [3; PROOF_BYTES] }),
            CallMessage::Request(CallRequest { introduction, address, challenge, nonce, proof }),
            CallMessage::Acceptance(CallAcceptance { introduction, address, channel, proof }),
            CallMessage::Refusal(RefusalReason::new("no place")),
            CallMessage::Refusal(RefusalReason::new(&"x".repeat(500))),
            CallMessage::Leave(CloseReason::Finished),
            CallMessage::Leave(CloseReason::Dropped),
            CallMessage::Confirmation,
            CallMessage::Departure(CallDeparture { address, reason: CloseReason::Finished, proof }),
            CallMessage::Departure(CallDeparture { address, reason: CloseReason::Dropped, proof }),
        ]
    }

    #[test]
    fn messages_survive_their_bytes() {
        for message in messages() {
            assert_eq!(CallMessage::decode(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn changed_bytes_are_another_message_or_none() {
        for message in messages() {
            for at in 0..CALL_MESSAGE_BYTES {
                let mut bytes = message.encode();
                bytes[at] ^= 0x80;
                match CallMessage::decode(&bytes) {
                    Ok(other) => assert!(other != message && other.encode() == bytes, "byte {at}"),
                    Err(CallMessageError::Version { .. }) => assert!((2..4).contains(&at)),
                    Err(CallMessageError::Malformed) => {}
                }
            }
        }
        assert_eq!(CallMessage::decode(&[0; CALL_MESSAGE_BYTES]), Err(CallMessageError::Malformed));
    }

    #[test]
    fn a_proof_covers_all_of_an_acceptance_or_departure_but_itself() {
        let [_, _, CallMessage::Acceptance(acceptance), .., CallMessage::Departure(departure)] = messages()
        else {
            panic!()
        };
        let proven = acceptance.proven();
        let bytes = CallMessage::Acceptance(acceptance).encode();
        assert_eq!((&bytes[..PROOF], &bytes[PROOF..]), (&proven[..], &acceptance.proof.0[..]));
        let other = CallAcceptance { proof: Proof::default(), ..acceptance };
        assert_eq!(other.proven(), proven);
        let bytes = CallMessage::Departure(departure).encode();
        assert_eq!((&bytes[..PROOF], &bytes[PROOF..]), (&departure.proven()[..], &departure.proof.0[..]));
    }

    #[test]
    fn a_reason_has_printable_characters_only() {
        assert_eq!(RefusalReason::new("one\ntwo \u{1b}[31m\u{141}").text(), "one?two ?[31m?");
        assert_eq!(RefusalReason::new(&"x".repeat(500)).text().len(), MOST_REASON_BYTES);
        let mut bytes = CallMessage::Refusal(RefusalReason::new("a")).encode();
        bytes[9] = 0x1b;
        assert_eq!(CallMessage::decode(&bytes), Err(CallMessageError::Malformed));
    }
}
