//! How arrivals are found, by the facts of the port.
#![forbid(unsafe_code)]

use crate::port::memory::Facts;

/// How a receiver learns that written bytes are placed. The port's facts decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PipeArrival {
    /// The port places in order: the receiver polls memory, as in the paper.
    Polled = 1,
    /// The port may place bytes in any order, so no byte proves that another is there. The sender sends its pointers as
    /// messages, because a message arrives after all writes before it. The same holds where only the connecting end may
    /// speak first: its first message allows the other end to speak.
    Announced = 2,
}

impl PipeArrival {
    /// Returns how bytes arrive on a port of these facts.
    pub const fn of(facts: &Facts) -> Self {
        let is_ordered = facts.ordered_within_write && facts.ordered_among_writes;
        if is_ordered && !facts.active_speaks_first { Self::Polled } else { Self::Announced }
    }

    /// Returns the reason, for explanations.
    pub const fn explain(self) -> &'static str {
        match self {
            Self::Polled => "the port places in order: pointers and flags are polled in memory",
            Self::Announced => {
                "the port does not promise placement in order, or lets only one end speak first: flags prove \
                 nothing, so pointers are sent as messages"
            }
        }
    }
}
