//! What the two ends of a link offer each other: ways to carry its packets.
//!
//! | offer | code | bytes in call, answer | contents |
//! |---|---|---|---|
//! | segments | 1 | 104, 104 | flags 4 (from 4 on), geometry 12, 0 4, stamp 8, processors 64, credit 8; descriptors travel beside it |
//! | stream | 2 | 16, 16 | version of the placement 1, streams wanted 1, 0, receives 2, port 2, token 8: the connection of the call becomes the stream; port and token are those at which the sender takes further streams |
//! | pairs | 3 | 24 + 8n, the same | n of 1 to 4 1, MTU 1, reads 1, receives 2, LID 2, GID 16; of each queue pair its number 4 and its first PSN 4 |
//! | manager | 4 | 8, 24 | in the answer port 2 (from 2 on) and IP 16 of an iWARP listener; both ends derive the ticket |
//! | pipe | 5 | 40, 40 | design 1, 0, ring bytes 4, shape 8, key of the inbox 24 |
//! | virtual interface | 6 | 176, 32 | flags 1, reliability 2, 0 4, transfer size 8, quality 8, numbers 8; in the call two addresses of 72 |
//!
//! The first byte of an offer is its code. No code comes twice in a message.
#![forbid(unsafe_code)]

use super::bytes::LinkBytes;

/// Bytes of a list of offers in the longest message.
pub const MOST_OFFER_BYTES: usize = 224;
/// Most queue pairs of an offer.
pub const MOST_PAIRS: usize = 4;
/// Bytes of the address of a virtual interface.
pub const INTERFACE_ADDRESS_BYTES: usize = 72;

/// Segments of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentsOffer {
    /// Sizes and counts of the structures.
    pub geometry: [u32; 3],
    /// Which structures there are.
    pub flags: u32,
    /// The identity stamp of the process.
    pub stamp: u64,
    /// The processors on which the process may run.
    pub processors: [u64; 8],
    /// The credit that the sender has granted.
    pub credit: u64,
}

/// The connection of the call as a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOffer {
    /// The version of the placement.
    pub version: u8,
    /// How many streams the sender wants in all.
    pub streams: u8,
    /// The receives that are posted.
    pub receives: u16,
    /// The port, at the IP of its address, where the sender takes further streams; and the token for them.
    pub port: u16,
    /// See `port`.
    pub token: u64,
}

/// Queue pairs, made before they are offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairsOffer {
    /// The code of the path MTU.
    pub mtu: u8,
    /// RDMA reads at the same time.
    pub reads: u8,
    /// The receives that are posted.
    pub receives: u16,
    /// LID and GID of the port.
    pub lid: u16,
    /// See `lid`.
    pub gid: [u8; 16],
    /// The number and the first PSN of each queue pair; the first so many count.
    pub pairs: [[u32; 2]; MOST_PAIRS],
    /// The number of queue pairs, from 1.
    pub count: u8,
}

/// A pipe of the RDMA Channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipeOffer {
    /// The code of the design.
    pub design: u8,
    /// Bytes of the ring of a direct pipe, for which a descriptor travels beside the message; or 0.
    pub ring_bytes: u32,
    /// The sizes that both ends must agree on.
    pub shape: u64,
    /// The key of the inbox.
    pub key: [u8; 24],
}

/// A virtual interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceOffer {
    /// Bit 0: RDMA writes are permitted; bit 1: RDMA reads.
    pub flags: u8,
    /// The reliability level.
    pub reliability: u16,
    /// The maximum transfer size, the quality of service, and the number of the interface.
    pub transfer: u64,
    /// See `transfer`.
    pub quality: u64,
    /// See `transfer`.
    pub number: u64,
    /// In a call, the addresses of both interfaces.
    pub addresses: Option<[[u8; INTERFACE_ADDRESS_BYTES]; 2]>,
}

/// One way to carry packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkOffer {
    /// Shared memory.
    Segments(SegmentsOffer),
    /// The connection of the call.
    Stream(StreamOffer),
    /// Queue pairs whose descriptions are here.
    Pairs(PairsOffer),
    /// Queue pairs that RDMA-CM connects; in the answer with port and IPv6 address.
    Manager(Option<(u16, [u8; 16])>),
    /// A pipe.
    Pipe(PipeOffer),
    /// A virtual interface.
    Interface(InterfaceOffer),
}

/// The reason why bytes are no list of offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfferFault {
    /// There is no such offer.
    #[error("it has an unknown offer {0}")]
    Code(u8),
    /// An offer comes twice.
    #[error("it offers {0} twice")]
    Twice(u8),
    /// The bytes end within an offer.
    #[error("offer {0} is not complete")]
    Short(u8),
    /// A field of an offer is invalid.
    #[error("offer {0} has an invalid field, or a reserved byte that is not zero")]
    Field(u8),
    /// There are more or fewer offers than the message says.
    #[error("it says that it has {said} offers, and has {found}")]
    Count {
        /// The count in the message.
        said: u8,
        /// The count of the offers.
        found: u8,
    },
}

impl LinkOffer {
    /// Returns the code.
    pub const fn code(&self) -> u8 {
        match self {
            Self::Segments(_) => 1,
            Self::Stream(_) => 2,
            Self::Pairs(_) => 3,
            Self::Manager(_) => 4,
            Self::Pipe(_) => 5,
            Self::Interface(_) => 6,
        }
    }

    fn put(&self, bytes: &mut LinkBytes) {
        let code = self.code();
        match self {
            Self::Segments(SegmentsOffer { geometry, flags, stamp, processors, credit }) => {
                bytes.put(&[code, 0, 0, 0]);
                bytes.put(&flags.to_le_bytes());
                geometry.iter().for_each(|word| bytes.put(&word.to_le_bytes()));
                bytes.put(&[0; 4]);
                bytes.put(&stamp.to_le_bytes());
                processors.iter().for_each(|word| bytes.put(&word.to_le_bytes()));
                bytes.put(&credit.to_le_bytes());
            }
            Self::Stream(StreamOffer { version, streams, receives, port, token }) => {
                bytes.put(&[code, *version, *streams, 0]);
                bytes.put(&receives.to_le_bytes());
                bytes.put(&port.to_le_bytes());
                bytes.put(&token.to_le_bytes());
            }
            Self::Pairs(offer) => {
                bytes.put(&[code, offer.count, offer.mtu, offer.reads]);
                bytes.put(&offer.receives.to_le_bytes());
                bytes.put(&offer.lid.to_le_bytes());
                bytes.put(&offer.gid);
                let pairs = offer.pairs.iter().take(offer.count.into()).flatten();
                pairs.for_each(|word| bytes.put(&word.to_le_bytes()));
            }
            Self::Manager(place) => {
                let (port, ip) = place.unwrap_or_default();
                let [a, b] = port.to_le_bytes();
                bytes.put(&[code, 0, a, b, 0, 0, 0, 0]);
                if place.is_some() {
                    bytes.put(&ip);
                }
            }
            Self::Pipe(PipeOffer { design, ring_bytes, shape, key }) => {
                bytes.put(&[code, *design, 0, 0]);
                bytes.put(&ring_bytes.to_le_bytes());
                bytes.put(&shape.to_le_bytes());
                bytes.put(key);
            }
            Self::Interface(offer) => {
                let [a, b] = offer.reliability.to_le_bytes();
                bytes.put(&[code, offer.flags, a, b, 0, 0, 0, 0]);
                [offer.transfer, offer.quality, offer.number]
                    .iter()
                    .for_each(|word| bytes.put(&word.to_le_bytes()));
                offer.addresses.iter().flatten().for_each(|address| bytes.put(address));
            }
        }
    }

    /// Takes the first offer from bytes, and returns it with the rest.
    fn take(bytes: &[u8], is_call: bool) -> Result<(Self, &[u8]), OfferFault> {
        let code = *bytes.first().ok_or(OfferFault::Code(0))?;
        let count = usize::from(bytes.get(1).copied().unwrap_or(0));
        let len = match code {
            1 => 104,
            2 => 16,
            3 if (1..=MOST_PAIRS).contains(&count) => 24 + 8 * count,
            3 => return Err(OfferFault::Field(code)),
            4 if is_call => 8,
            4 => 24,
            5 => 40,
            6 if is_call => 32 + 2 * INTERFACE_ADDRESS_BYTES,
            6 => 32,
            _ => return Err(OfferFault::Code(code)),
        };
        let (bytes, rest) = bytes.split_at_checked(len).ok_or(OfferFault::Short(code))?;
        let offer = Self::decode(code, bytes, is_call);
        let mut again = LinkBytes::EMPTY;
        offer.put(&mut again);
        if again.get() == bytes { Ok((offer, rest)) } else { Err(OfferFault::Field(code)) }
    }

    /// Decodes an offer whose length is right.
    fn decode(code: u8, bytes: &[u8], is_call: bool) -> Self {
        let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
        let pair = |at: usize| u16::from_le_bytes([byte(at), byte(at + 1)]);
        let half = |at: usize| u32::from_le_bytes(field(bytes, at));
        let word = |at: usize| u64::from_le_bytes(field(bytes, at));
        match code {
            1 => Self::Segments(SegmentsOffer {
                flags: half(4),
                geometry: [half(8), half(12), half(16)],
                stamp: word(24),
                processors: core::array::from_fn(|at| word(32 + 8 * at)),
                credit: word(96),
            }),
            2 => Self::Stream(StreamOffer {
                version: byte(1),
                streams: byte(2),
                receives: pair(4),
                port: pair(6),
                token: word(8),
            }),
            3 => Self::Pairs(PairsOffer {
                count: byte(1),
                mtu: byte(2),
                reads: byte(3),
                receives: pair(4),
                lid: pair(6),
                gid: field(bytes, 8),
                pairs: core::array::from_fn(|at| [half(24 + 8 * at), half(28 + 8 * at)]),
            }),
            4 => Self::Manager((!is_call).then(|| (pair(2), field(bytes, 8)))),
            5 => Self::Pipe(PipeOffer {
                design: byte(1),
                ring_bytes: half(4),
                shape: word(8),
                key: field(bytes, 16),
            }),
            _ => Self::Interface(InterfaceOffer {
                flags: byte(1),
                reliability: pair(2),
                transfer: word(8),
                quality: word(16),
                number: word(24),
                addresses: is_call.then(|| [field(bytes, 32), field(bytes, 32 + INTERFACE_ADDRESS_BYTES)]),
            }),
        }
    }
}

/// Returns a field; zeros if the bytes end before.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

/// Offers that were checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkOffers<'a> {
    bytes: &'a [u8],
    count: u8,
    is_call: bool,
}

impl<'a> LinkOffers<'a> {
    /// Checks the bytes of offers; `count` is what the message says.
    ///
    /// # Errors
    /// See [`OfferFault`].
    pub fn new(bytes: &'a [u8], count: u8, is_call: bool) -> Result<Self, OfferFault> {
        let (mut rest, mut found, mut codes) = (bytes, 0, 0_u8);
        while !rest.is_empty() {
            let (offer, after) = LinkOffer::take(rest, is_call)?;
            let bit = 1 << offer.code();
            if codes & bit != 0 {
                return Err(OfferFault::Twice(offer.code()));
            }
            (rest, found, codes) = (after, found + 1, codes | bit);
        }
        if found == count {
            Ok(Self { bytes, count, is_call })
        } else {
            Err(OfferFault::Count { said: count, found })
        }
    }

    /// Returns the offers, those that the sender prefers first.
    pub fn iter(&self) -> impl Iterator<Item = LinkOffer> + use<'a> {
        let (mut rest, is_call) = (self.bytes, self.is_call);
        core::iter::from_fn(move || {
            let (offer, after) = LinkOffer::take(rest, is_call).ok()?;
            rest = after;
            Some(offer)
        })
    }

    pub(super) const fn count(&self) -> u8 {
        self.count
    }

    pub(super) const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// A list of offers that is being made.
#[derive(Clone, Copy, Debug)]
pub struct OfferList {
    bytes: LinkBytes,
    count: u8,
}

impl OfferList {
    /// No offer.
    pub const EMPTY: Self = Self { bytes: LinkBytes::EMPTY, count: 0 };

    /// Adds an offer. Returns whether there was room for it.
    pub fn add(&mut self, offer: &LinkOffer) -> bool {
        let mut longer = self.bytes;
        offer.put(&mut longer);
        let fits = longer.get().len() <= MOST_OFFER_BYTES;
        if fits {
            (self.bytes, self.count) = (longer, self.count + 1);
        }
        fits
    }

    /// Returns the offers for a call, or for an answer. A list that is none for such a message is empty.
    pub fn get(&self, is_call: bool) -> LinkOffers<'_> {
        let none = LinkOffers { bytes: &[], count: 0, is_call };
        LinkOffers::new(self.bytes.get(), self.count, is_call).unwrap_or(none)
    }
}
