//! The messages by which two groups of processes meet.
//!
//! One process of each group leads. The calling leader sends its *call* with the addresses of its group, in their
//! order. The accepting leader *answers* with those of its own group, or *refuses*. The caller then *confirms*, or
//! *withdraws* its call if it has not waited for the answer. Both leaders then send the *members* of the other group to
//! their own members, or that the meeting has *failed*. Before all that, the ranks of the leader's world
//! say to it that they are *present*: they take calls of the other group from now on.
//!
//! All integers are little-endian. A list of addresses travels in as many messages as it needs, in order.
//!
//! | bytes | content |
//! |---|---|
//! | 0-3 | the kind: the position in [`MeetingKind`], from 1 |
//! | 4-7 | the addresses of the whole list |
//! | 8-11 | the position of the first one of this message |
//! | 12-15 | 0 |
//! | 16-23 | the token of the call, which its sender has drawn; between a leader and its members, that of the meeting |
//! | 24- | the addresses, of 64 bytes each |
#![forbid(unsafe_code)]

/// Bytes before the addresses.
pub const MEETING_HEAD_BYTES: usize = 24;
/// Most addresses of a message.
pub const MOST_ADDRESSES: usize = 63;
/// Most bytes of a message.
pub const MOST_MEETING_BYTES: usize = MEETING_HEAD_BYTES + MOST_ADDRESSES * ADDRESS_BYTES;
/// Most processes of a group that meets another one.
pub const MOST_MEMBERS: u32 = 1 << 16;

const ADDRESS_BYTES: usize = 64;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeetingKind {
    /// A leader asks another one to meet.
    Call,
    /// The other one agrees.
    Answer,
    /// The other one does not: the groups overlap, or the call is invalid.
    Refusal,
    /// The caller has taken the answer.
    Confirmation,
    /// The caller has not waited for the answer.
    Withdrawal,
    /// The members of the other group, for a member of the own one.
    Members,
    /// There was no meeting.
    Failed,
    /// A member has begun to meet.
    Present,
}

impl MeetingKind {
    const ALL: [Self; 8] = [
        Self::Call,
        Self::Answer,
        Self::Refusal,
        Self::Confirmation,
        Self::Withdrawal,
        Self::Members,
        Self::Failed,
        Self::Present,
    ];

    /// Returns whether such messages have a list of addresses. It is never empty.
    pub const fn has_list(self) -> bool {
        matches!(self, Self::Call | Self::Answer | Self::Members)
    }
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeetingMessage<'a> {
    /// Its kind.
    pub kind: MeetingKind,
    /// The token.
    pub token: u64,
    /// The number of addresses in the whole list.
    pub total: u32,
    /// The position of the first one here.
    pub first: u32,
    /// The bytes of the addresses here.
    pub addresses: &'a [u8],
}

impl<'a> MeetingMessage<'a> {
    /// Returns a message without a list.
    pub const fn bare(kind: MeetingKind, token: u64) -> Self {
        Self { kind, token, total: 0, first: 0, addresses: &[] }
    }

    /// Encodes the message. Returns the bytes that it takes; 0 if there are too many addresses.
    pub fn encode(&self, to: &mut [u8; MOST_MEETING_BYTES]) -> usize {
        let len = MEETING_HEAD_BYTES + self.addresses.len();
        let Some(body) = to.get_mut(MEETING_HEAD_BYTES..len) else { return 0 };
        body.copy_from_slice(self.addresses);
        let kind = MeetingKind::ALL.iter().position(|kind| *kind == self.kind).unwrap_or(0) as u32 + 1;
        let words = [kind, self.total, self.first, 0].map(u32::to_le_bytes);
        to[..16].copy_from_slice(words.as_flattened());
        to[16..MEETING_HEAD_BYTES].copy_from_slice(&self.token.to_le_bytes());
        len
    }

    /// Decodes a message that any process may have sent. `None` if it is invalid.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (head, addresses) = bytes.split_at_checked(MEETING_HEAD_BYTES)?;
        let (words, token) = head.split_at(16);
        let word = |at: usize| words.as_chunks::<4>().0.get(at).map_or(0, |word| u32::from_le_bytes(*word));
        let kind = *MeetingKind::ALL.get((word(0) as usize).checked_sub(1)?)?;
        let (total, first) = (word(1), word(2));
        let count = addresses.len() / ADDRESS_BYTES;
        let whole = addresses.len().is_multiple_of(ADDRESS_BYTES) && count <= MOST_ADDRESSES && word(3) == 0;
        let fits = match kind.has_list() {
            true => total <= MOST_MEMBERS && first < total && (1..=total - first).contains(&(count as u32)),
            false => (total, first, count) == (0, 0, 0),
        };
        let token = u64::from_le_bytes(*token.first_chunk()?);
        (whole && fits).then_some(Self { kind, token, total, first, addresses })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_decoded_as_they_were_encoded_and_others_are_refused() {
        let addresses = [7; 3 * ADDRESS_BYTES];
        let call =
            MeetingMessage { kind: MeetingKind::Call, token: 5, total: 9, first: 6, addresses: &addresses };
        let failed = MeetingMessage::bare(MeetingKind::Failed, 1);
        let mut bytes = [0; MOST_MEETING_BYTES];
        for message in [call, failed, MeetingMessage::bare(MeetingKind::Present, 2)] {
            let len = message.encode(&mut bytes);
            assert_eq!(MeetingMessage::decode(&bytes[..len]), Some(message));
            assert_eq!(MeetingMessage::decode(&bytes[..len - 1]), None);
            assert_eq!(MeetingMessage::decode(&[&bytes[..len], &[0]].concat()), None);
        }
        // Beyond its list, with another number of addresses in all, an empty one, and one that is too long.
        for wrong in [
            MeetingMessage { first: 7, ..call },
            MeetingMessage { total: MOST_MEMBERS + 1, ..call },
            MeetingMessage { addresses: &[], ..call },
            MeetingMessage { total: 1, ..failed },
            MeetingMessage { kind: MeetingKind::Failed, ..call },
        ] {
            let len = wrong.encode(&mut bytes);
            assert_eq!(MeetingMessage::decode(&bytes[..len]), None, "{wrong:?}");
        }
        let long = [0; 64 * ADDRESS_BYTES];
        assert_eq!(MeetingMessage { addresses: &long, ..call }.encode(&mut bytes), 0);
        for kind in [0, 9, u32::MAX] {
            let len = failed.encode(&mut bytes);
            bytes[..4].copy_from_slice(&kind.to_le_bytes());
            assert_eq!(MeetingMessage::decode(&bytes[..len]), None);
        }
    }
}
