//! Mistakes of logic that the engine makes when the simulation asks for it: one that misses them does not look closely enough.
//!
//! Compiled only with the private cfg `nemesia_blunder`; nothing of it is in what ships. Where a mistake is made stands its
//! name, behind the cfg.
#![forbid(unsafe_code)]

use crate::sync::Word32;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Blunder {
    /// A receive with a wildcard that was posted first does not get the message.
    PreferExact,
    /// A small message overtakes those that wait.
    OvertakePending,
    /// A synchronous send is complete before it is matched.
    ForgetSynchronous,
    /// Room in the store that is free again is promised to nobody.
    KeepCredit,
    /// What a copy that broke off should have brought is not asked for again.
    SkipPart,
    /// What a dead process had announced can still be received.
    KeepOffers,
    /// What a dead process had announced can't be received although all of it came with the announcement.
    DropWhole,
    /// A flush does not wait for what was started before it.
    ForgetFlush,
    /// A flush takes what was sent to a process that has left for done.
    AssumeDone,
    /// A put overtakes the answer to a get in spite of the fence between them.
    ForgetFence,
    /// A packet that is not eager is not counted, and so looks like one that is.
    ForgetCount,
    /// What was spent with a process counts for the next one of the same rank.
    KeepAllowance,
    /// What a process has sent can still be received when the next one of the same rank is there.
    KeepMessages,
    /// An active message of several packets is handled before the last of them is here.
    RunEarly,
    /// The old values that a later packet brings go where those of the first are.
    MixGroups,
    /// Replies of handlers take places of the common pool only, as long as there are any.
    ForgetShare,
    /// The credit that is reserved for updates is used for other packets.
    SpendReserve,
    /// What a packet says of posted receives counts twice.
    CountCreditTwice,
    /// A connection that grows takes buffers that are kept for others.
    OverdrawPool,
    /// A receive that was taken is posted again, and the peer never learns of it by an update.
    ForgetUpdate,
    /// A packet that came too early is handed on at once.
    SkipWindow,
    /// The buffer of a packet without content is not given back.
    LeakBuffer,
    /// A connection grows as long as there are buffers, whoever else may want some.
    GrowGreedily,
}

impl Blunder {
    /// Every mistake.
    pub const ALL: [Blunder; 22] = [
        Blunder::PreferExact,
        Blunder::OvertakePending,
        Blunder::ForgetSynchronous,
        Blunder::KeepCredit,
        Blunder::SkipPart,
        Blunder::KeepOffers,
        Blunder::DropWhole,
        Blunder::ForgetFlush,
        Blunder::AssumeDone,
        Blunder::ForgetFence,
        Blunder::ForgetCount,
        Blunder::KeepAllowance,
        Blunder::KeepMessages,
        Blunder::RunEarly,
        Blunder::MixGroups,
        Blunder::ForgetShare,
        Blunder::SpendReserve,
        Blunder::CountCreditTwice,
        Blunder::OverdrawPool,
        Blunder::ForgetUpdate,
        Blunder::SkipWindow,
        Blunder::LeakBuffer,
        Blunder::GrowGreedily,
    ];

    /// Whether it is one of a [channel](crate::port::channel), and not of the engine.
    pub const fn is_of_channel(self) -> bool {
        self as u32 >= Blunder::SpendReserve as u32
    }
}

/// The mistake that is made, plus one; 0 is none.
static MADE: Word32 = Word32::new(0);

/// From now on this process makes this mistake, or none.
pub fn make(blunder: Option<Blunder>) {
    MADE.store_relaxed(blunder.map_or(0, |blunder| blunder as u32 + 1));
}

/// Whether this mistake is made.
pub(crate) fn made(blunder: Blunder) -> bool {
    MADE.load_relaxed() == blunder as u32 + 1
}
