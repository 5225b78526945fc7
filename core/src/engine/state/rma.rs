//! The state of one-sided operations.
#![forbid(unsafe_code)]

use super::active::Assembly;
use crate::payload::{RecvBuf, SendBuf};
use crate::port::PeerId;
use crate::slab::List;
use crate::wire::rma::{GROUP_BYTES, Head, Refusal, RmaOperation, Verb};

/// The identifier of an exposed region. It can be copied; the engine recognises stale identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionId {
    pub(in crate::engine) index: u32,
    pub(in crate::engine) generation: u32,
}

impl RegionId {
    /// Returns the identifier as one number, for C.
    pub const fn to_bits(self) -> u64 {
        (self.index as u64) << 32 | self.generation as u64
    }

    /// Returns the identifier that [`RegionId::to_bits`] encoded. Any number is safe; the engine recognises
    /// invalid ones.
    pub const fn from_bits(bits: u64) -> Self {
        Self { index: (bits >> 32) as u32, generation: bits as u32 }
    }
}

/// The RMA and active-message state of one peer.
#[derive(Debug, Default)]
pub(in crate::engine) struct RmaState {
    /// Requests that wait for space or a slot in the window, in order. Active messages are included.
    pub(in crate::engine) leaving: List,
    /// Requests that were sent and that the peer must answer, in order.
    pub(in crate::engine) awaited: List,
    /// Number of requests in `awaited`.
    pub(in crate::engine) in_flight: u32,
    /// Puts and accumulates sent that are not answered, and how many of them a flush has confirmed.
    pub(in crate::engine) issued: u64,
    pub(in crate::engine) flushed: u64,
    /// Replies of this process that wait for space, in order.
    pub(in crate::engine) replies: List,
    pub(in crate::engine) reply_count: u32,
    /// The first reason and the number of refusals to the peer since its last flush.
    pub(in crate::engine) refused: Option<(Refusal, u64)>,
    /// The first refusal of a packet of the peer's put or accumulate that is confirmed with its last packet.
    pub(in crate::engine) unconfirmed: Option<Refusal>,
    /// The puts and accumulates of the peer that were executed here, in packets, and how many of them were reported
    /// to it.
    pub(in crate::engine) executed: u64,
    pub(in crate::engine) reported: u64,
    /// Whether the rest must be reported before this process leaves.
    pub(in crate::engine) account_is_pending: bool,
    /// The refusals that the peer reported before it left and that no flush has returned.
    pub(in crate::engine) final_refusals: Refused,
    /// `issued` after the last of these packets that had bytes.
    pub(in crate::engine) issued_with_bytes: u64,
    /// Whether the peer has asked for the description of a region; the withdrawals that were announced to it, and those
    /// that it has answered.
    pub(in crate::engine) was_described: bool,
    pub(in crate::engine) withdrawals_sent: u32,
    pub(in crate::engine) withdrawals_answered: u32,
    /// The last withdrawal of the peer, and whether it must be answered.
    pub(in crate::engine) withdrawals_heard: u32,
    pub(in crate::engine) withdrawal_is_unanswered: bool,
    /// Whether the peer is gone, and a started operation is not known to be done.
    pub(in crate::engine) lost: bool,
    /// The active message from the peer that is partly received.
    pub(in crate::engine) assembly: Option<Assembly>,
}

impl RmaState {
    /// Returns whether a request or reply may leave without an answer from the peer.
    pub(in crate::engine) const fn has_work(&self) -> bool {
        !self.leaving.is_empty()
            || !self.replies.is_empty()
            || self.account_is_pending
            || self.withdrawal_is_unanswered
    }

    /// Returns whether the peer has confirmed all operations of this process.
    pub(in crate::engine) const fn is_flushed(&self) -> bool {
        self.issued == self.flushed && self.leaving.is_empty() && self.in_flight == 0
    }
}

/// Refused operations: the reason for the first, and their number.
pub(in crate::engine) type Refused = Option<(Refusal, u64)>;

/// Combines two refusals; the first reason counts.
pub(in crate::engine) const fn both(first: Refused, second: Refused) -> Refused {
    match (first, second) {
        (Some((refusal, some)), Some((_, more))) => Some((refusal, some.saturating_add(more))),
        (Some(one), None) | (None, Some(one)) => Some(one),
        (None, None) => None,
    }
}

/// A one-sided operation that is not complete.
#[derive(Debug)]
pub(in crate::engine) struct RemoteOperation {
    pub(in crate::engine) to: PeerId,
    pub(in crate::engine) verb: Verb,
    pub(in crate::engine) key: u64,
    pub(in crate::engine) offset: u64,
    /// The place of a direct operation in the table of these.
    pub(in crate::engine) direct: Option<u8>,
    /// Whether the operation travels in packets, although it could be direct.
    pub(in crate::engine) in_packets: bool,
    pub(in crate::engine) body: Body,
}

/// The data that an operation transfers.
#[derive(Debug)]
pub(in crate::engine) enum Body {
    /// Bytes or operands to send; `sent` bytes have left. `awaited`: all have, and the target answers.
    Out { buf: SendBuf, sent: usize, awaited: bool },
    /// Bytes or an old value to receive, of which `received` bytes have arrived; and operands.
    In { buf: RecvBuf, received: usize, awaited: bool, value: u64, expected: u64 },
    /// Operands to send, and a buffer for the old values, of which `received` bytes have arrived. `open` packets are
    /// unanswered. After a refusal nothing more is sent.
    Both { from: SendBuf, to: RecvBuf, received: usize, open: u32, refusal: Option<Refusal> },
    /// A flush without data. `issued` is the number of puts and accumulates sent before it.
    Nothing { awaited: bool, issued: u64 },
}

impl RemoteOperation {
    /// Describes an operation of which nothing has been sent, on the place with this key and offset.
    pub(in crate::engine) const fn new(
        to: PeerId,
        verb: Verb,
        (key, offset): (u64, u64),
        body: Body,
    ) -> Self {
        Self { to, verb, key, offset, direct: None, in_packets: false, body }
    }

    /// Describes a flush. It must be sent; or, if so many puts and accumulates were sent and their target has
    /// left, it waits for the target's account.
    pub(in crate::engine) const fn flush(to: PeerId, awaiting: Option<u64>) -> Self {
        let (awaited, issued) = match awaiting {
            Some(issued) => (true, issued),
            None => (false, 0),
        };
        let body = Body::Nothing { awaited, issued };
        Self::new(to, Verb::plain(RmaOperation::Flush), (0, 0), body)
    }

    /// Makes an unsent flush wait for the target's account. Returns `false` if this is no such flush.
    pub(in crate::engine) const fn await_account(&mut self, sent: u64) -> bool {
        let Body::Nothing { awaited, issued } = &mut self.body else { return false };
        (*awaited, *issued) = (true, sent);
        true
    }

    pub(in crate::engine) fn head(&self) -> Head {
        let Self { key, offset, .. } = *self;
        match &self.body {
            Body::Out { sent, .. } => {
                Head { key, offset: offset.wrapping_add(*sent as u64), ..Head::default() }
            }
            Body::In { buf, value, expected, .. } => {
                let wanted = self.verb.operation == RmaOperation::Get;
                let value = if wanted { buf.len() as u64 } else { *value };
                Head { key, offset, value, expected: *expected }
            }
            Body::Both { .. } => {
                Head { key, offset: offset.wrapping_add(self.body.sent() as u64), ..Head::default() }
            }
            Body::Nothing { .. } => Head::default(),
        }
    }

    pub(in crate::engine) const fn is_awaited(&self) -> bool {
        match self.body {
            Body::Out { awaited, .. } | Body::In { awaited, .. } | Body::Nothing { awaited, .. } => awaited,
            Body::Both { open, .. } => open > 0,
        }
    }
}

impl Body {
    /// Returns the number of bytes of a put or get.
    pub(in crate::engine) const fn direct_bytes(&self) -> usize {
        match self {
            Self::Out { buf, .. } => buf.len(),
            Self::In { buf, .. } => buf.len(),
            Self::Both { .. } | Self::Nothing { .. } => 0,
        }
    }

    /// Returns the address of the bytes of a put or get.
    pub(in crate::engine) fn direct_address(&self) -> u64 {
        match self {
            Self::Out { buf, .. } => buf.address(),
            Self::In { buf, .. } => buf.address(),
            Self::Both { .. } | Self::Nothing { .. } => 0,
        }
    }

    /// Returns whether a packet of a put or get was sent.
    pub(in crate::engine) const fn has_begun(&self) -> bool {
        match self {
            Self::Out { sent, awaited, .. } => *sent > 0 || *awaited,
            Self::In { received, awaited, .. } => *received > 0 || *awaited,
            Self::Both { .. } | Self::Nothing { .. } => true,
        }
    }

    /// Returns the number of bytes sent of operands whose old values are returned.
    pub(in crate::engine) fn sent(&self) -> usize {
        match self {
            Self::Both { to, refusal: Some(_), .. } => to.len(),
            Self::Both { to, received, open, .. } => to.len().min(received + *open as usize * GROUP_BYTES),
            _ => 0,
        }
    }

    pub(in crate::engine) fn is_unsent(&self) -> bool {
        matches!(self, Self::Both { to, .. } if self.sent() < to.len())
    }
}

impl RemoteOperation {
    /// Returns whether the operation may use a byte of the `len` bytes at address `base`.
    pub(in crate::engine) fn may_touch(&self, base: usize, len: usize) -> bool {
        match &self.body {
            Body::Out { buf, .. } => buf.may_touch(base, len),
            Body::In { buf, .. } => buf.may_touch(base, len),
            Body::Both { from, to, .. } => from.may_touch(base, len) || to.may_touch(base, len),
            Body::Nothing { .. } => false,
        }
    }
}
