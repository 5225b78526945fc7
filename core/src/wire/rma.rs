//! The packets of one-sided operations: [`Kind::Rma`](super::Kind::Rma) from origin to target, and
//! [`Kind::RmaReply`](super::Kind::RmaReply) back; and the format of a remote key. Words of 64 bits,
//! little-endian.
//!
//! **Request.** Its context encodes the operation: bits 0-3 the [`RmaOperation`], 4-7 the [`Reduction`], or of a
//! compare and swap the [`Comparison`], 8-11 the [`Datatype`], bit 12 is set if the target must count a
//! notification of the region afterwards, 13-14 the [`Confirm`] of a put or accumulate; bit 15 is 0. Its tag is the
//! origin's request, and 0 if there is no answer. The payload:
//!
//! | operation | code | word 0 | word 1 | word 2 | word 3 | then | answered |
//! |---|---|---|---|---|---|---|---|
//! | put | 1 | key | offset | | | the bytes | if confirmed |
//! | get | 2 | key | offset | bytes requested | | | with the bytes |
//! | accumulate | 3 | key | offset | | | the operands | if confirmed |
//! | fetch | 4 | key | offset | operand | | | with the old value |
//! | compare and swap | 5 | key | offset | new value | expected value | | with the old value |
//! | flush | 6 | | | | | | when all earlier ones are done |
//! | fetch and accumulate | 7 | key | offset | | | the operands | with the old values |
//!
//! The key names one region of the target, at most one at a time. The offset counts from the first byte of the
//! region; in a region that is exposed by address, it is the address of the byte in the target's memory.
//!
//! A longer put or accumulate takes several packets, each with its own offset. So does a fetch and accumulate
//! of more than [`GROUP_BYTES`]: each packet except the last has this size, is answered separately, and
//! counts against the window. Shorter values occupy the low bytes of their word. Requests are not
//! stored: a target executes each on arrival. An origin has at most [`WINDOW`] requests in flight that one
//! target must answer.
//!
//! **Reply.** Its tag is the request's, its context the code of a [`Refusal`], or 0. The payload of a get is
//! the next requested bytes, in one packet or several; of fetch, and compare and swap, the old value in the
//! bytes of its type; of a confirmed put or accumulate, nothing: the code is that of its first refused
//! packet; of fetch and accumulate, as many old values as there were operands, or a refusal for each packet;
//! of a flush, one word: the number of requests refused since the last flush, of which the first was refused
//! for the reason in the context. Other refusals have no payload, and end the request.
//!
//! **Confirmation.** Each packet of a put or accumulate that the target must answer is marked: the last one as
//! [`Confirm::Now`], with the origin's request as its tag, and the others as [`Confirm::Later`]. The target answers the
//! last one when it is executed or refused. It does not report refusals of these packets to a flush, and they do not
//! count in an account. The answered packet counts against the window.
//!
//! **Account.** An unrequested reply from a target that leaves. Bit 15 of its context is set; bits 0-14 are
//! the code of a [`Refusal`], or 0. Its tag is the number of puts and accumulates, in packets that are not
//! confirmed, that the target has executed or refused since the connection began. Its payload is one word, as
//! in the reply to a flush. Without it, a flush that is started after the target has left could not determine
//! what is done.
//!
//! **Description.** An origin whose port accesses the memory of peers asks for the description of a region:
//! `describe`, code 8, word 0: the key. The tag is the key too. The target registers the region when it is first
//! asked. The answer is a reply with bit 13 of its context set and bits 0-12 the code of a [`Refusal`], or 0; its tag
//! is the key, and its payload the five words of a [`DirectRegion`](super::direct::DirectRegion). A refusal has no
//! payload: [`Refusal::Undefined`] if the region is used in packets only. A request for a description counts against
//! the window.
//!
//! **Withdrawal.** A target that unexposes a described region sends `withdraw`, code 9, to each peer that has asked for
//! a description: word 0 is the key, and the tag the number of the withdrawal, counted from 1. From then on the peer
//! begins no access by that description. When all its accesses have ended, it answers with a reply without payload,
//! whose context is [`WITHDRAWN`] and whose tag is the number. The answer is about all withdrawals up to that number.
//!
//! **Remote key.** Four words. Word 0: bits 0-15 [`KEY_VERSION`], 16-23 [`Access`], 32-63 the region's share:
//! 0, or one more than the number of the owner's descriptor of a shared region. Word 1: the key. Word 2: bytes
//! of the region. Word 3: the offset of the first byte: its address if the region is exposed by address, else 0.
//! The owner is not part of it: each process numbers its peers itself.
//!
//! **Shared region.** A segment that peers can map. Its first word is the key, or 0 after the region was
//! unexposed; its bytes begin at [`SHARED_BYTES`]. A process that has mapped it accesses it without its
//! owner: puts and gets are copies, atomic operations are those of the processor. Its size and pages are
//! fixed before the key is published.
#![forbid(unsafe_code)]

use super::PeerId;

/// Most requests to one target in flight that the target must answer.
pub const WINDOW: u32 = 32;
/// Bytes of a put or accumulate request before the data or operands.
pub const HEAD_BYTES: usize = 16;
/// Bytes of the longest request without data or operands.
pub const MOST_HEAD_BYTES: usize = 32;
/// Bytes of a remote key.
pub const KEY_BYTES: usize = 32;
/// Version of the format of a remote key.
pub const KEY_VERSION: u16 = 2;

/// Offset of the bytes of a shared region in its segment.
pub const SHARED_BYTES: usize = 4096;

/// Bytes of operands in a packet of fetch and accumulate. The target stores as many bytes of old values for
/// each slot of the window.
pub const GROUP_BYTES: usize = 24;

/// In the context of a reply: it is an account.
pub const ACCOUNT: u16 = 1 << 15;
/// Bytes of an account.
pub const ACCOUNT_BYTES: usize = 8;

/// In the context of a reply: it describes a region.
pub const DESCRIBED: u16 = 1 << 13;
/// The context of a reply: regions are withdrawn.
pub const WITHDRAWN: u16 = 1 << 14;

const NOTIFY: u16 = 1 << 12;
const CONFIRM_AT: u16 = 13;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RmaOperation {
    /// Write bytes.
    Put = 1,
    /// Read bytes.
    Get = 2,
    /// Combine operands into values.
    Accumulate = 3,
    /// Combine one operand into one value, and return the old value.
    Fetch = 4,
    /// Replace one value if it equals the expected one, and return the old value.
    CompareSwap = 5,
    /// Report when all earlier requests are done.
    Flush = 6,
    /// Combine operands into values, and return the old values.
    FetchAccumulate = 7,
    /// Describe a region for direct access.
    Describe = 8,
    /// Stop direct access to a region.
    Withdraw = 9,
}

impl RmaOperation {
    /// Returns the name of the operation.
    pub const fn name(self) -> &'static str {
        match self {
            RmaOperation::Put => "put",
            RmaOperation::Get => "get",
            RmaOperation::Accumulate => "accumulate",
            RmaOperation::Fetch => "fetch",
            RmaOperation::CompareSwap => "compare_swap",
            RmaOperation::Flush => "flush",
            RmaOperation::FetchAccumulate => "fetch_accumulate",
            RmaOperation::Describe => "describe",
            RmaOperation::Withdraw => "withdraw",
        }
    }
}

/// The reduction that combines an operand with the value in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Addition; integers wrap.
    Sum = 0,
    /// Multiplication; integers wrap.
    Product = 1,
    /// The smaller value; if one is a NaN, the other.
    Min = 2,
    /// The larger value; if one is a NaN, the other.
    Max = 3,
    /// Bitwise and; integers only.
    And = 4,
    /// Bitwise or; integers only.
    Or = 5,
    /// Bitwise exclusive or; integers only.
    Xor = 6,
    /// The operand itself.
    Replace = 7,
    /// The unchanged value: an atomic read.
    Nothing = 8,
    /// Logical and: 1 if neither is 0, else 0.
    LogicalAnd = 9,
    /// Logical or: 1 if one is not 0, else 0.
    LogicalOr = 10,
    /// Logical exclusive or: 1 if exactly one is not 0, else 0.
    LogicalXor = 11,
}

/// The condition of a compare and swap, between the expected value and the value in memory. For example,
/// [`Comparison::Less`] swaps if the expected value is less than the value in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Comparison {
    /// Their bits are equal.
    #[default]
    Equal = 0,
    /// Their bits differ.
    NotEqual = 1,
    /// The expected value is less or equal. As for the next three, a NaN is in no order: it is not swapped.
    LessOrEqual = 2,
    /// The expected value is less.
    Less = 3,
    /// The expected value is greater or equal.
    GreaterOrEqual = 4,
    /// The expected value is greater.
    Greater = 5,
    /// No condition: the bits that are set in the expected value are replaced. Integers only.
    Masked = 6,
}

/// Whether the target answers a put or an accumulate when it is executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Confirm {
    /// It does not. A flush reports a refusal.
    #[default]
    No = 0,
    /// It answers a later packet of the same operation.
    Later = 1,
    /// It answers this packet, which is the last of the operation.
    Now = 2,
}

/// The type of the values that an operation combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datatype {
    /// 32 bits, signed.
    I32 = 0,
    /// 64 bits, signed.
    I64 = 1,
    /// 32 bits, unsigned.
    U32 = 2,
    /// 64 bits, unsigned.
    U64 = 3,
    /// IEEE single precision.
    F32 = 4,
    /// IEEE double precision.
    F64 = 5,
    /// 8 bits, signed.
    I8 = 6,
    /// 8 bits, unsigned.
    U8 = 7,
    /// 16 bits, signed.
    I16 = 8,
    /// 16 bits, unsigned.
    U16 = 9,
}

/// The access rights of peers to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Gets only.
    Read = 1,
    /// Puts only; atomic operations also need the right to read.
    Write = 2,
    /// All operations.
    ReadWrite = 3,
}

/// The reason why a target refused an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No region is exposed with this key: it was unexposed, or never exposed.
    #[error("no region is exposed with this key")]
    Key,
    /// Some bytes lie outside the region.
    #[error("some of the requested bytes lie outside the region")]
    Bounds,
    /// The rights of the region do not allow the access.
    #[error("the region does not allow this access")]
    Access,
    /// The value does not lie at a multiple of its size.
    #[error("the value does not lie at a multiple of its size")]
    Alignment,
    /// The reduction is undefined for the type.
    #[error("the operation is not defined for that type")]
    Undefined,
}

impl RmaOperation {
    const ALL: [Self; 9] = [
        Self::Put,
        Self::Get,
        Self::Accumulate,
        Self::Fetch,
        Self::CompareSwap,
        Self::Flush,
        Self::FetchAccumulate,
        Self::Describe,
        Self::Withdraw,
    ];
}

impl Reduction {
    /// All reductions, in the order of their codes.
    pub const ALL: [Self; 12] = [
        Self::Sum,
        Self::Product,
        Self::Min,
        Self::Max,
        Self::And,
        Self::Or,
        Self::Xor,
        Self::Replace,
        Self::Nothing,
        Self::LogicalAnd,
        Self::LogicalOr,
        Self::LogicalXor,
    ];
}

impl Datatype {
    /// All types, in the order of their codes.
    pub const ALL: [Self; 10] = [
        Self::I32,
        Self::I64,
        Self::U32,
        Self::U64,
        Self::F32,
        Self::F64,
        Self::I8,
        Self::U8,
        Self::I16,
        Self::U16,
    ];

    /// Returns the bytes of a value.
    pub const fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Returns whether the reduction is defined for this type.
    pub const fn allows(self, reduction: Reduction) -> bool {
        let bitwise = matches!(reduction, Reduction::And | Reduction::Or | Reduction::Xor);
        !(bitwise && matches!(self, Self::F32 | Self::F64))
    }

    /// Returns whether a compare and swap with this comparison is defined for this type.
    pub const fn allows_comparison(self, comparison: Comparison) -> bool {
        !(matches!(comparison, Comparison::Masked) && matches!(self, Self::F32 | Self::F64))
    }
}

impl Comparison {
    /// All comparisons, in the order of their codes.
    pub const ALL: [Self; 7] = [
        Self::Equal,
        Self::NotEqual,
        Self::LessOrEqual,
        Self::Less,
        Self::GreaterOrEqual,
        Self::Greater,
        Self::Masked,
    ];
}

impl Confirm {
    const ALL: [Self; 3] = [Self::No, Self::Later, Self::Now];

    /// Returns the value for one packet of an operation that has this value.
    pub const fn of_packet(self, last: bool) -> Self {
        match self {
            Self::Now if !last => Self::Later,
            other => other,
        }
    }
}

impl Access {
    pub(super) const ALL: [Self; 3] = [Self::Read, Self::Write, Self::ReadWrite];

    /// Returns whether these rights include `wanted`.
    pub const fn allows(self, wanted: Self) -> bool {
        self as u8 & wanted as u8 == wanted as u8
    }
}

impl Refusal {
    const ALL: [Self; 5] = [Self::Key, Self::Bounds, Self::Access, Self::Alignment, Self::Undefined];

    /// Returns the code in a reply.
    pub const fn code(self) -> u16 {
        self as u16 + 1
    }

    /// Decodes a reply's code: `None` for an invalid code, `Some(None)` if the request was not refused.
    pub fn from_code(code: u16) -> Option<Option<Self>> {
        match code.checked_sub(1) {
            None => Some(None),
            Some(at) => Self::ALL.get(usize::from(at)).copied().map(Some),
        }
    }
}

/// The operation of a request, as encoded in its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verb {
    /// The operation.
    pub operation: RmaOperation,
    /// Accumulate and fetch: the reduction.
    pub reduction: Reduction,
    /// Accumulate, fetch, compare and swap: the type of the values.
    pub datatype: Datatype,
    /// Compare and swap: the condition.
    pub comparison: Comparison,
    /// Put: whether to count a notification of the region afterwards.
    pub notify: bool,
    /// Put and accumulate: whether the target answers.
    pub confirm: Confirm,
}

impl Verb {
    /// Returns a verb whose other fields are not significant.
    pub const fn plain(operation: RmaOperation) -> Self {
        Self {
            operation,
            reduction: Reduction::Sum,
            datatype: Datatype::I32,
            comparison: Comparison::Equal,
            notify: false,
            confirm: Confirm::No,
        }
    }

    /// Returns whether the target answers a packet of this operation.
    pub const fn is_answered(self) -> bool {
        match self.operation {
            RmaOperation::Put | RmaOperation::Accumulate => matches!(self.confirm, Confirm::Now),
            _ => true,
        }
    }

    /// Encodes the verb as a context.
    pub const fn encode(self) -> u16 {
        let notify = if self.notify { NOTIFY } else { 0 };
        let how = match self.operation {
            RmaOperation::CompareSwap => self.comparison as u16,
            _ => self.reduction as u16,
        };
        let confirm = (self.confirm as u16) << CONFIRM_AT;
        self.operation as u16 | how << 4 | (self.datatype as u16) << 8 | notify | confirm
    }

    /// Decodes a context; `None` if it violates the protocol.
    pub fn decode(context: u16) -> Option<Self> {
        let code = |shift: u16| usize::from(context >> shift & 0xf);
        let operation = *RmaOperation::ALL.get(code(0).checked_sub(1)?)?;
        let compares = operation == RmaOperation::CompareSwap;
        let how = |is: bool| if is { code(4) } else { 0 };
        let verb = Self {
            operation,
            reduction: *Reduction::ALL.get(how(!compares))?,
            datatype: *Datatype::ALL.get(code(8))?,
            comparison: *Comparison::ALL.get(how(compares))?,
            notify: context & NOTIFY != 0,
            confirm: *Confirm::ALL.get(usize::from(context >> CONFIRM_AT & 3))?,
        };
        let confirmable = matches!(operation, RmaOperation::Put | RmaOperation::Accumulate);
        let valid = confirmable || verb.confirm == Confirm::No;
        (valid && verb.encode() == context).then_some(verb)
    }

    /// Returns the bytes of the payload before data or operands.
    pub const fn head_bytes(self) -> usize {
        match self.operation {
            RmaOperation::Put | RmaOperation::Accumulate | RmaOperation::FetchAccumulate => HEAD_BYTES,
            RmaOperation::Get | RmaOperation::Fetch => 24,
            RmaOperation::CompareSwap => 32,
            RmaOperation::Describe | RmaOperation::Withdraw => 8,
            RmaOperation::Flush => 0,
        }
    }
}

/// The words before data or operands. The operation determines which of them are significant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The region's key.
    pub key: u64,
    /// Offset in the region, in bytes, or the target's address.
    pub offset: u64,
    /// Get: bytes requested. Fetch: operand. Compare and swap: new value.
    pub value: u64,
    /// Compare and swap: expected value.
    pub expected: u64,
}

impl Head {
    /// Encodes the words; only the first [`Verb::head_bytes`] are sent.
    pub fn encode(&self) -> [u8; MOST_HEAD_BYTES] {
        let mut bytes = [0; MOST_HEAD_BYTES];
        let words = [self.key, self.offset, self.value, self.expected];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    /// Decodes the words; those that were not sent are 0. Any bytes are words.
    pub fn decode(bytes: &[u8; MOST_HEAD_BYTES]) -> Self {
        let mut words = [0; 4];
        for (to, word) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *to = u64::from_le_bytes(*word);
        }
        let [key, offset, value, expected] = words;
        Self { key, offset, value, expected }
    }
}

/// A region of a peer: its owner and its key, which are enough to use it; and what is known about it. All but the
/// owner are plain bytes that may travel by any means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteKey {
    /// The owner, as this process numbers it. Not part of the bytes.
    pub rank: PeerId,
    /// The key that grants access.
    pub key: u64,
    /// Length of the region in bytes; [`u64::MAX`] if it is not known here, so that only the owner checks it.
    pub len: u64,
    /// Access rights of peers; those not known here are checked by the owner.
    pub access: Access,
    /// The offset of the first byte: its address if the region is exposed by address, else 0. Also 0 if it is not
    /// known here.
    pub base: u64,
    /// 0, or one more than the number of the owner's descriptor of a shared region.
    pub share: u32,
}

impl RemoteKey {
    /// Returns the region that a peer exposes with this key, of which nothing else is known. Only the owner
    /// checks the operations on it.
    pub const fn new(rank: PeerId, key: u64) -> Self {
        Self { rank, key, len: u64::MAX, access: Access::ReadWrite, base: 0, share: 0 }
    }

    /// Returns where `len` bytes at `offset` begin in the region. `None` if they do not lie in it.
    pub fn place(&self, offset: u64, len: u64) -> Option<u64> {
        let at = offset.checked_sub(self.base)?;
        (at.checked_add(len)? <= self.len).then_some(at)
    }

    /// Encodes the key, without its owner.
    pub fn to_bytes(self) -> [u8; KEY_BYTES] {
        let first = u64::from(KEY_VERSION) | (self.access as u64) << 16 | u64::from(self.share) << 32;
        let mut bytes = [0; KEY_BYTES];
        let words = [first, self.key, self.len, self.base];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    /// Decodes the key of a peer; `None` if the bytes are not a key of this version. A forged key is harmless,
    /// because the owner checks it.
    pub fn from_bytes(rank: PeerId, bytes: &[u8; KEY_BYTES]) -> Option<Self> {
        let mut words = [0; 4];
        for (to, word) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *to = u64::from_le_bytes(*word);
        }
        let [first, key, len, base] = words;
        let access = *Access::ALL.get(usize::from((first >> 16) as u8).checked_sub(1)?)?;
        let read = Self { rank, key, len, access, base, share: (first >> 32) as u32 };
        (read.to_bytes() == *bytes).then_some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_context_is_understood_as_it_was_written_or_not_at_all() {
        let mut understood = 0;
        for context in 0..=u16::MAX {
            if let Some(verb) = Verb::decode(context) {
                assert_eq!(verb.encode(), context);
                assert!(verb.head_bytes() <= MOST_HEAD_BYTES);
                understood += 1;
            }
        }
        // Get, fetch, flush, fetch and accumulate, describe, withdraw; compare and swap; put and accumulate.
        assert_eq!(understood, (6 * 12 + 7 + 2 * 12 * 3) * 10 * 2);
    }

    #[test]
    fn heads_survive_the_wire() {
        let head = Head { key: u64::MAX, offset: 1 << 40, value: 3, expected: 4 };
        assert_eq!(Head::decode(&head.encode()), head);
    }

    #[test]
    fn refusals_survive_the_wire() {
        for refusal in Refusal::ALL {
            assert_eq!(Refusal::from_code(refusal.code()), Some(Some(refusal)));
        }
        assert_eq!(Refusal::from_code(0), Some(None));
        assert_eq!(Refusal::from_code(6), None);
    }

    #[test]
    fn keys_survive_any_means_and_other_bytes_are_no_keys() {
        for access in Access::ALL {
            let key = RemoteKey { rank: 7, key: u64::MAX - 1, len: 1 << 50, access, base: 9, share: 5 };
            let bytes = key.to_bytes();
            assert_eq!(RemoteKey::from_bytes(7, &bytes), Some(key));
            assert_eq!(RemoteKey::from_bytes(3, &bytes), Some(RemoteKey { rank: 3, ..key }));
            for (at, value) in [(0, 1), (1, 1), (2, 0), (2, 4), (3, 1)] {
                let mut wrong = bytes;
                wrong[at] = value;
                assert_eq!(RemoteKey::from_bytes(7, &wrong), None, "byte {at}");
            }
        }
    }

    #[test]
    fn a_place_lies_in_the_region_or_there_is_none() {
        let key = RemoteKey { len: 100, base: 1000, ..RemoteKey::new(0, 1) };
        assert_eq!([key.place(1000, 100), key.place(1100, 0)], [Some(0), Some(100)]);
        for (offset, len) in [(999, 1), (1000, 101), (1100, 1), (0, 0), (u64::MAX, 2), (1001, u64::MAX)] {
            assert_eq!(key.place(offset, len), None, "{len} at {offset}");
        }
        assert_eq!(RemoteKey::new(0, 1).place(u64::MAX - 8, 8), Some(u64::MAX - 8));
    }
}
