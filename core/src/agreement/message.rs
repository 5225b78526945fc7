//! The messages of an agreement, in little-endian words of 64 bits. Word 0: kind; word 1: flags; from word 2
//! on: the failed ranks, 64 a word, rank 0 in bit 0 of the first; bits after the last rank are 0.
#![forbid(unsafe_code)]

const HEAD_BYTES: usize = 16;

/// Error: the message violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an agreement message is malformed")]
pub struct Malformed;

/// Returns the words of a set of `size` ranks.
pub const fn words(size: u32) -> usize {
    size.div_ceil(64) as usize
}

/// Returns the bytes of every message of an agreement among `size` ranks.
pub const fn message_bytes(size: u32) -> usize {
    HEAD_BYTES + 8 * words(size)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AgreementKind {
    /// To the coordinator: flags and failed ranks.
    Report = 1,
    /// From the coordinator: the proposal.
    Proposal = 2,
    /// To the coordinator: the proposal is accepted.
    Acceptance = 3,
    /// From every rank to every rank: the decision.
    Decision = 4,
}

/// A message. The failed ranks are supplied separately, or read from its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct AgreementMessage<M> {
    pub(super) kind: AgreementKind,
    pub(super) flags: u64,
    pub(super) missing: M,
}

impl AgreementMessage<()> {
    pub(super) fn write(&self, missing: &[u64], out: &mut [u8]) -> usize {
        let len = HEAD_BYTES + 8 * missing.len();
        let Some(out) = out.get_mut(..len) else { return 0 };
        let head = [self.kind as u64, self.flags];
        for (bytes, word) in out.chunks_exact_mut(8).zip(head.iter().chain(missing)) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        len
    }
}

impl AgreementMessage<()> {
    /// Checks and decodes a message among `size` ranks.
    pub(super) fn read(
        bytes: &[u8],
        size: u32,
    ) -> Result<AgreementMessage<impl Iterator<Item = u64> + Clone + '_>, Malformed> {
        if bytes.len() != message_bytes(size) {
            return Err(Malformed);
        }
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let mut words = bytes.chunks_exact(8).map(word);
        let (head, flags) = (words.next().unwrap_or(0), words.next().unwrap_or(0));
        let kind = match head {
            1 => AgreementKind::Report,
            2 => AgreementKind::Proposal,
            3 => AgreementKind::Acceptance,
            4 => AgreementKind::Decision,
            _ => return Err(Malformed),
        };
        let beyond = match size % 64 {
            0 => 0,
            used => words.clone().next_back().unwrap_or(0) >> used,
        };
        if beyond != 0 {
            return Err(Malformed);
        }
        Ok(AgreementMessage { kind, flags, missing: words })
    }
}
