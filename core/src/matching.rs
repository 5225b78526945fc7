//! What a receive asks for, and whether a message is it.
//!
//! A message matches a receive when the context is the same, the source is the one asked for (or any), and the
//! tags agree in every bit that the receive does not ignore. Of several receives that match, the one posted
//! first takes the message; of several messages, the one that came first is taken (MPI 4.1, section 3.5).
#![forbid(unsafe_code)]

use crate::port::PeerId;
use crate::wire::Envelope;

/// Whom a receive listens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Everyone.
    Any,
    /// One rank.
    Rank(PeerId),
}

impl Source {
    /// Whether a message from this rank is listened to.
    #[inline(always)]
    pub fn accepts(self, rank: PeerId) -> bool {
        match self {
            Source::Any => true,
            Source::Rank(wanted) => wanted == rank,
        }
    }
}

/// What a receive asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Whom it listens to.
    pub source: Source,
    /// Matching context.
    pub context: u16,
    /// The tag.
    pub tag: u64,
    /// Bits of the tag that do not count; `u64::MAX` accepts every tag.
    pub ignore: u64,
}

impl Pattern {
    /// Whether a message from `source` is what this asks for.
    #[inline(always)]
    pub fn matches(&self, source: PeerId, envelope: &Envelope) -> bool {
        self.context == envelope.context
            && (self.tag ^ envelope.tag) & !self.ignore == 0
            && self.source.accepts(source)
    }
}
