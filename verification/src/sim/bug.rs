//! What is broken on purpose: a simulation that no bug disturbs looks at nothing.

use std::fmt;

#[cfg(nemesia_blunder)]
use nemesia_core::blunder::{self, Blunder};

/// What a world is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Engines over a simulated message port.
    Engines,
    /// Channels over a simulated RDMA fabric.
    Channels,
}

/// One mistake, made now and then while a simulation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Made by the simulated network, or by the simulated application.
    Slip(Slip),
    /// Made by the engine itself, or by the channel.
    #[cfg(nemesia_blunder)]
    Blunder(Blunder),
}

/// A mistake of the network, or of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slip {
    /// A packet on one path overtakes the earlier one on the other.
    Overtake,
    /// Two packets on one path change places.
    Swap,
    /// A packet is lost.
    Lose,
    /// The last packet of a rendezvous is lost.
    LoseFin,
    /// A packet comes twice.
    Duplicate,
    /// A packet is sent, and its sender is told that there was no room.
    DenySent,
    /// A byte of a message changes on the way.
    Corrupt,
    /// A cell does not come back.
    LoseCell,
    /// A grant is lost, for good.
    LoseGrant,
    /// A grant promises more than was granted.
    InflateGrant,
    /// A single copy yields what the memory held before.
    StalePull,
    /// A single copy leaves out the last byte.
    ShortPull,
    /// The sender's part of a copy leaves out the last byte.
    ShortPush,
    /// The application reuses its buffer before the send is complete.
    ReuseBuffer,
}

impl Slip {
    const ALL: [(Slip, &str); 14] = [
        (Slip::Overtake, "overtake"),
        (Slip::Swap, "swap"),
        (Slip::Lose, "lose"),
        (Slip::LoseFin, "lose-fin"),
        (Slip::Duplicate, "duplicate"),
        (Slip::DenySent, "deny-sent"),
        (Slip::Corrupt, "corrupt"),
        (Slip::LoseCell, "lose-cell"),
        (Slip::LoseGrant, "lose-grant"),
        (Slip::InflateGrant, "inflate-grant"),
        (Slip::StalePull, "stale-pull"),
        (Slip::ShortPull, "short-pull"),
        (Slip::ShortPush, "short-push"),
        (Slip::ReuseBuffer, "reuse-buffer"),
    ];

    /// Opportunities for one mistake; there are few for some.
    pub(crate) const fn opportunities(self) -> usize {
        match self {
            Slip::ShortPush => 4,
            Slip::LoseGrant | Slip::InflateGrant => 30,
            _ => 100,
        }
    }
}

impl Bug {
    /// Every bug that this build can make.
    pub(crate) fn all() -> impl Iterator<Item = Bug> {
        let slips = Slip::ALL.into_iter().map(|(slip, _)| Bug::Slip(slip));
        #[cfg(nemesia_blunder)]
        let slips = slips.chain(Blunder::ALL.map(Bug::Blunder));
        slips
    }

    /// Which worlds it disturbs.
    pub(crate) const fn subject(self) -> Subject {
        match self {
            #[cfg(nemesia_blunder)]
            Bug::Blunder(blunder) if blunder.is_of_channel() => Subject::Channels,
            _ => Subject::Engines,
        }
    }

    /// Whether the exhaustive model of credits must find it.
    pub(crate) const fn is_of_credits(self) -> bool {
        match self {
            #[cfg(nemesia_blunder)]
            Bug::Blunder(blunder) => matches!(
                blunder,
                Blunder::SpendReserve
                    | Blunder::CountCreditTwice
                    | Blunder::OverdrawPool
                    | Blunder::GrowGreedily
            ),
            _ => false,
        }
    }

    /// Makes the engines of this process make the mistake, if it is theirs; and no other.
    pub(crate) fn arm(bug: Option<Bug>) {
        #[cfg(nemesia_blunder)]
        blunder::make(match bug {
            Some(Bug::Blunder(blunder)) => Some(blunder),
            _ => None,
        });
        #[cfg(not(nemesia_blunder))]
        let _ = bug;
    }

    /// The bug of this name, as `Display` writes it.
    pub(crate) fn named(name: &str) -> Option<Bug> {
        Bug::all().find(|bug| bug.to_string() == name)
    }
}

impl fmt::Display for Slip {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Slip::ALL.iter().find(|(slip, _)| slip == self);
        out.write_str(named.map_or("", |(_, name)| name))
    }
}

impl fmt::Display for Bug {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bug::Slip(slip) => slip.fmt(out),
            #[cfg(nemesia_blunder)]
            Bug::Blunder(blunder) if blunder.is_of_channel() => write!(out, "channel:{blunder:?}"),
            #[cfg(nemesia_blunder)]
            Bug::Blunder(blunder) => write!(out, "engine:{blunder:?}"),
        }
    }
}

/// The names of all bugs, a line each.
pub(crate) fn list() -> String {
    Bug::all().map(|bug| format!("{bug}\n")).collect()
}
