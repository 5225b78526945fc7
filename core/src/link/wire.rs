//! The messages of links: one format for each carrier, service and stage, and one decoder.
//!
//! All integers are little-endian. What is not listed is zero. Each message begins with 24 bytes:
//!
//! | bytes | header |
//! |---|---|
//! | 0-1 | the mark `LN` |
//! | 2 | [`LINK_VERSION`] |
//! | 3 | kind |
//! | 4-5 | bytes of the whole message |
//! | 6 | service |
//! | 7 | flags: 0 |
//! | 8-15 | the receiver's number of the link; 0 if it is unknown |
//! | 16-23 | the sender's number of the link, random |
//!
//! | kind | after the header | bytes |
//! |---|---|---|
//! | 1 ask (datagrams) | 0, so that the answer is not longer than the question | 48 |
//! | 2 challenge | number 4, random 16 | 48 |
//! | 3 call | call 8, incarnation 8, number 4, packet bytes 4, challenge 4, count of offers 1, instance 3, nonce 8, own address with masked token 64, offers, proof 16 | 144 + offers |
//! | 4 answer | calls 8, incarnation 8, number 4, packet bytes 4, word of the service 8, chosen offer 4, count of offers 4, offers, proof 16 | 80 + offers |
//! | 5 confirm | chosen offer 1, length of the text 1, 0, text of at most 64: why the path is not a better one, proof 16 | 48 to 112 |
//! | 6 welcome, 9 hold, 10 done | nothing | 24 |
//! | 7 refuse | code 2, passing 1, length of the text 1, both values 16, text of at most 160 | 44 to 204 |
//! | 8 leave | how 1 (0 closed, 1 disconnected, 2 dropped); a departure (without a link) has masked address 64, nonce 8 and proof 16 more | 32, 120 |
//!
//! A refusal is decoded whatever its version is, so that two versions can tell each other why they do not connect: its
//! layout never changes. The *instance* of a call distinguishes links of the same service between two processes. A call
//! of the engine has there one more than the rank that the caller claims in the world of both, or 0.
#![forbid(unsafe_code)]

use core::fmt;

use super::bytes::{LinkBytes, MOST_LINK_BYTES};
use super::offers::{LinkOffers, OfferFault};
use super::refusal::is_printable;
pub use super::refusal::{LinkRefuse, LinkText, MOST_REFUSAL_TEXT, RefusalCode};
use crate::wire::hello::{Challenge, PROOF_BYTES, Proof};

/// Version of the messages.
pub const LINK_VERSION: u8 = 2;
/// Bytes of the header, and of the shortest messages.
pub const LINK_HEADER_BYTES: usize = 24;
/// Bytes of the longest message that may travel as a datagram.
pub const MOST_DATAGRAM_BYTES: usize = 256;
/// Most bytes of text in a confirmation.
pub const MOST_CONFIRM_TEXT: usize = 64;

const MARK: [u8; 2] = *b"LN";
const ASK_BYTES: usize = 48;
const ADDRESS_BYTES: usize = 64;
/// Place of the version, the length and the receiver's number in the header.
const VERSION: usize = 2;
const LENGTH: usize = 4;

/// The part of the engine, or the interface, for which a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LinkService {
    /// Packets of the engine.
    Engine = 1,
    /// A further stream of a link that is open.
    Stream = 2,
    /// A pipe of the RDMA Channel.
    Pipe = 3,
    /// A virtual interface.
    Interface = 4,
}

impl LinkService {
    const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Engine),
            2 => Some(Self::Stream),
            3 => Some(Self::Pipe),
            4 => Some(Self::Interface),
            _ => None,
        }
    }
}

/// The numbers by which both ends know a link, and its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkHeader {
    /// The version of the sender.
    pub version: u8,
    /// The service.
    pub service: LinkService,
    /// The receiver's number of the link; 0 if the sender does not know it.
    pub to: u64,
    /// The sender's number of the link.
    pub from: u64,
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkCall<'a> {
    /// The number of this call among those of the caller.
    pub call: u64,
    /// How often the caller's rank was started before.
    pub incarnation: u64,
    /// The number by which the caller knows the called process.
    pub number: u32,
    /// Payload bytes of the largest packet.
    pub packet_bytes: u32,
    /// The number of the challenge that the call answers.
    pub challenge: u32,
    /// See the page of this module; 24 bits.
    pub instance: u32,
    /// A number that the caller uses once.
    pub nonce: u64,
    /// The caller's address with a masked token.
    pub address: MaskedAddress,
    /// What the caller offers.
    pub offers: LinkOffers<'a>,
    /// The proof of the caller.
    pub proof: Proof,
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAnswer<'a> {
    /// How many calls the sender has made: it has abandoned those to the caller.
    pub calls: u64,
    /// How often the sender's rank was started before.
    pub incarnation: u64,
    /// The number by which the sender knows the caller.
    pub number: u32,
    /// Payload bytes of the largest packet.
    pub packet_bytes: u32,
    /// A word of the service.
    pub word: u64,
    /// The code of the offer that the sender has chosen.
    pub chosen: u8,
    /// What the sender offers.
    pub offers: LinkOffers<'a>,
    /// The proof of the sender.
    pub proof: Proof,
}

/// The confirmation of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfirm<'a> {
    /// The code of the offer whose path is up.
    pub chosen: u8,
    /// Why the path is not a better one.
    pub reason: LinkText<'a>,
    /// The proof of the caller.
    pub proof: Proof,
}

/// How a process leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaveManner {
    /// It closes its endpoint.
    Closed,
    /// It disconnects from this peer.
    Disconnected,
    /// It ends its endpoint without having closed it.
    Dropped,
}

/// The departure of a process, for a process with which it has no link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkDeparture {
    /// How it leaves.
    pub manner: LeaveManner,
    /// Its address with a masked token.
    pub address: MaskedAddress,
    /// A number that it uses once.
    pub nonce: u64,
    /// Its proof.
    pub proof: Proof,
}

/// An address whose token is masked by a key of both ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MaskedAddress(pub [u8; ADDRESS_BYTES]);

impl fmt::Debug for MaskedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MaskedAddress(..)")
    }
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkBody<'a> {
    /// A caller asks for a challenge.
    Ask,
    /// The called process sends random bytes, which the call must prove to know.
    Challenge(Challenge),
    /// A caller calls.
    Call(LinkCall<'a>),
    /// The called process answers.
    Answer(LinkAnswer<'a>),
    /// The caller confirms: the path is up.
    Confirm(LinkConfirm<'a>),
    /// The called process has the confirmation.
    Welcome,
    /// The sender refuses the call or the answer.
    Refuse(LinkRefuse<'a>),
    /// The sender ends the link.
    Leave(LeaveManner),
    /// A process without a link with the receiver closes its endpoint.
    Departure(LinkDeparture),
    /// The call is kept until it can be decided.
    Hold,
    /// The receiver need not repeat its message.
    Done,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkMessage<'a> {
    /// The header.
    pub header: LinkHeader,
    /// The content.
    pub body: LinkBody<'a>,
}

/// The reason why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkFault {
    /// They do not begin like a message.
    #[error("it sends what is no message of a link: is another program behind the address?")]
    Mark,
    /// The version differs.
    #[error("its links have version {theirs}, ours {ours}: use the same nemesia in both processes")]
    Version {
        /// The version of the sender.
        theirs: u8,
        /// The version of the receiver.
        ours: u8,
        /// The sender's number of the link.
        from: u64,
    },
    /// There is no such kind of message.
    #[error("its message has the unknown kind {0}")]
    Kind(u8),
    /// There is no such service.
    #[error("its message is for the unknown service {0}")]
    Service(u8),
    /// The length does not go with the kind.
    #[error("its message of kind {kind} has {bytes} bytes")]
    Length {
        /// The kind.
        kind: u8,
        /// The number of bytes.
        bytes: usize,
    },
    /// An offer is malformed.
    #[error("its message of kind {kind} is invalid: {fault}")]
    Offer {
        /// The kind of the message.
        kind: u8,
        /// What is wrong.
        fault: OfferFault,
    },
    /// A field has a value that this version does not know, or a reserved byte is not zero.
    #[error("its message of kind {0} has an invalid field, or a reserved byte that is not zero")]
    Field(u8),
}

/// Returns the number of bytes of the message that begins with this header, so that a carrier can read exactly this
/// message.
///
/// # Errors
/// [`LinkFault::Mark`], [`LinkFault::Length`].
pub fn length_of(header: &[u8; LINK_HEADER_BYTES]) -> Result<usize, LinkFault> {
    let bytes = usize::from(u16::from_le_bytes([header[LENGTH], header[LENGTH + 1]]));
    if header[..2] != MARK {
        return Err(LinkFault::Mark);
    }
    let is_valid = (LINK_HEADER_BYTES..=MOST_LINK_BYTES).contains(&bytes);
    if is_valid { Ok(bytes) } else { Err(LinkFault::Length { kind: header[3], bytes }) }
}

/// Returns the receiver's number in a message, so that a datagram finds its link before it is decoded.
pub fn receiver_of(message: &[u8]) -> u64 {
    Reader(message.get(8..).unwrap_or(&[])).word()
}

impl LinkBody<'_> {
    const fn kind(&self) -> u8 {
        match self {
            Self::Ask => 1,
            Self::Challenge(_) => 2,
            Self::Call(_) => 3,
            Self::Answer(_) => 4,
            Self::Confirm(_) => 5,
            Self::Welcome => 6,
            Self::Refuse(_) => 7,
            Self::Leave(_) | Self::Departure(_) => 8,
            Self::Hold => 9,
            Self::Done => 10,
        }
    }

    fn put(&self, bytes: &mut LinkBytes) {
        match self {
            Self::Ask => bytes.fill(ASK_BYTES),
            Self::Challenge(challenge) => {
                bytes.put(&challenge.number.to_le_bytes());
                bytes.put(&challenge.random);
                bytes.fill(ASK_BYTES);
            }
            Self::Call(call) => {
                bytes.put(&call.call.to_le_bytes());
                bytes.put(&call.incarnation.to_le_bytes());
                bytes.put(&call.number.to_le_bytes());
                bytes.put(&call.packet_bytes.to_le_bytes());
                bytes.put(&call.challenge.to_le_bytes());
                bytes.put(&[call.offers.count()]);
                let [a, b, c, _] = call.instance.to_le_bytes();
                bytes.put(&[a, b, c]);
                bytes.put(&call.nonce.to_le_bytes());
                bytes.put(&call.address.0);
                bytes.put(call.offers.bytes());
                bytes.put(&call.proof.0);
            }
            Self::Answer(answer) => {
                bytes.put(&answer.calls.to_le_bytes());
                bytes.put(&answer.incarnation.to_le_bytes());
                bytes.put(&answer.number.to_le_bytes());
                bytes.put(&answer.packet_bytes.to_le_bytes());
                bytes.put(&answer.word.to_le_bytes());
                bytes.put(&[answer.chosen, 0, 0, 0, answer.offers.count(), 0, 0, 0]);
                bytes.put(answer.offers.bytes());
                bytes.put(&answer.proof.0);
            }
            Self::Confirm(confirm) => {
                let text = confirm.reason.0;
                bytes.put(&[confirm.chosen, text.len() as u8, 0, 0, 0, 0, 0, 0]);
                bytes.put(text);
                bytes.put(&confirm.proof.0);
            }
            Self::Refuse(refuse) => {
                bytes.put(&refuse.code.code().to_le_bytes());
                bytes.put(&[u8::from(refuse.is_passing), refuse.text.0.len() as u8]);
                refuse.values.iter().for_each(|value| bytes.put(&value.to_le_bytes()));
                bytes.put(refuse.text.0);
            }
            Self::Leave(manner) => bytes.put(&[*manner as u8, 0, 0, 0, 0, 0, 0, 0]),
            Self::Departure(departure) => {
                bytes.put(&[departure.manner as u8, 0, 0, 0, 0, 0, 0, 0]);
                bytes.put(&departure.address.0);
                bytes.put(&departure.nonce.to_le_bytes());
                bytes.put(&departure.proof.0);
            }
            Self::Welcome | Self::Hold | Self::Done => {}
        }
    }
}

impl<'a> LinkMessage<'a> {
    /// Encodes the message.
    pub fn encode(&self) -> LinkBytes {
        let mut bytes = LinkBytes::EMPTY;
        let LinkHeader { version, service, to, from } = self.header;
        bytes.put(&[MARK[0], MARK[1], version, self.body.kind(), 0, 0, service as u8, 0]);
        bytes.put(&to.to_le_bytes());
        bytes.put(&from.to_le_bytes());
        self.body.put(&mut bytes);
        let len = bytes.get().len() as u16;
        bytes.set(LENGTH, len.to_le_bytes());
        bytes
    }

    /// Decodes a whole message for a receiver of this version.
    ///
    /// # Errors
    /// See [`LinkFault`].
    pub fn decode(bytes: &'a [u8], ours: u8) -> Result<Self, LinkFault> {
        let mut reader = Reader(bytes);
        let header = reader.take::<LINK_HEADER_BYTES>().ok_or(LinkFault::Mark)?;
        let (kind, theirs) = (header[3], header[VERSION]);
        if header[..2] != MARK {
            return Err(LinkFault::Mark);
        }
        let mut numbers = Reader(&header[8..]);
        let (to, from) = (numbers.word(), numbers.word());
        if theirs != ours && kind != 7 {
            return Err(LinkFault::Version { theirs, ours, from });
        }
        let bad_length = LinkFault::Length { kind, bytes: bytes.len() };
        if length_of(&header)? != bytes.len() {
            return Err(bad_length);
        }
        let service = LinkService::from_code(header[6]).ok_or(LinkFault::Service(header[6]))?;
        let body = reader.body(kind, bad_length)?;
        let message = Self { header: LinkHeader { version: theirs, service, to, from }, body };
        // Nothing else may be set: a later version may use the other bytes.
        if message.encode().get() == bytes { Ok(message) } else { Err(LinkFault::Field(kind)) }
    }
}

/// Reads fields one after the other. What is missing is zero, and is found by comparison with the encoding.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(self.take().unwrap_or_default())
    }

    fn half(&mut self) -> u32 {
        u32::from_le_bytes(self.take().unwrap_or_default())
    }

    fn proof(&mut self) -> Proof {
        Proof(self.take().unwrap_or_default())
    }

    /// Takes all bytes but those of the proof.
    fn until_proof(&mut self) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(self.0.len().saturating_sub(PROOF_BYTES));
        self.0 = rest;
        bytes
    }

    fn text(&mut self, len: u8, most: usize) -> Option<LinkText<'a>> {
        let (text, rest) = self.0.split_at_checked(usize::from(len))?;
        self.0 = rest;
        (text.len() <= most && text.iter().all(is_printable)).then_some(LinkText(text))
    }

    fn body(&mut self, kind: u8, bad_length: LinkFault) -> Result<LinkBody<'a>, LinkFault> {
        let body = match kind {
            1 => LinkBody::Ask,
            2 => LinkBody::Challenge(Challenge {
                number: self.half(),
                random: self.take().unwrap_or_default(),
            }),
            3 => LinkBody::Call(self.call(bad_length)?),
            4 => LinkBody::Answer(self.answer(bad_length)?),
            5 => {
                let [chosen, len, ..] = self.take::<8>().ok_or(bad_length)?;
                let reason = self.text(len, MOST_CONFIRM_TEXT).ok_or(LinkFault::Field(kind))?;
                LinkBody::Confirm(LinkConfirm { chosen, reason, proof: self.proof() })
            }
            6 => LinkBody::Welcome,
            7 => {
                let [a, b, passing, len] = self.take().ok_or(bad_length)?;
                let code = RefusalCode::from_code(u16::from_le_bytes([a, b]));
                let values = [self.word(), self.word()];
                let text = self.text(len, MOST_REFUSAL_TEXT).ok_or(LinkFault::Field(kind))?;
                LinkBody::Refuse(LinkRefuse { code, is_passing: passing == 1, values, text })
            }
            8 => {
                let [how, ..] = self.take::<8>().ok_or(bad_length)?;
                let manner = match how {
                    0 => LeaveManner::Closed,
                    1 => LeaveManner::Disconnected,
                    2 => LeaveManner::Dropped,
                    _ => return Err(LinkFault::Field(kind)),
                };
                if self.0.is_empty() {
                    return Ok(LinkBody::Leave(manner));
                }
                let address = MaskedAddress(self.take().ok_or(bad_length)?);
                let (nonce, proof) = (self.word(), self.proof());
                LinkBody::Departure(LinkDeparture { manner, address, nonce, proof })
            }
            9 => LinkBody::Hold,
            10 => LinkBody::Done,
            _ => return Err(LinkFault::Kind(kind)),
        };
        Ok(body)
    }

    fn call(&mut self, bad_length: LinkFault) -> Result<LinkCall<'a>, LinkFault> {
        let (call, incarnation, number, packet_bytes) = (self.word(), self.word(), self.half(), self.half());
        let challenge = self.half();
        let [count, a, b, c] = self.take().ok_or(bad_length)?;
        let instance = u32::from_le_bytes([a, b, c, 0]);
        let nonce = self.word();
        let address = MaskedAddress(self.take().ok_or(bad_length)?);
        let offers = LinkOffers::new(self.until_proof(), count, true);
        let offers = offers.map_err(|fault| LinkFault::Offer { kind: 3, fault })?;
        let proof = self.proof();
        Ok(LinkCall {
            call,
            incarnation,
            number,
            packet_bytes,
            challenge,
            instance,
            nonce,
            address,
            offers,
            proof,
        })
    }

    fn answer(&mut self, bad_length: LinkFault) -> Result<LinkAnswer<'a>, LinkFault> {
        let (calls, incarnation, number, packet_bytes) = (self.word(), self.word(), self.half(), self.half());
        let word = self.word();
        let [chosen, _, _, _, count, ..] = self.take::<8>().ok_or(bad_length)?;
        let offers = LinkOffers::new(self.until_proof(), count, false);
        let offers = offers.map_err(|fault| LinkFault::Offer { kind: 4, fault })?;
        Ok(LinkAnswer { calls, incarnation, number, packet_bytes, word, chosen, offers, proof: self.proof() })
    }
}

#[cfg(test)]
mod tests;
