//! Injected faults. A simulation that no fault disturbs checks nothing.

use std::fmt;

#[cfg(nemesia_injected_fault)]
use nemesia_core::injected_fault::{self, InjectedFault};

/// The parts of which a world is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// Engines over a simulated message port.
    Engines,
    /// Engines over the port for shared memory.
    Shared,
    /// Channels over a simulated RDMA fabric, or over the placement.
    Channels,
    /// Engines that use regions by remote memory access, over such channels.
    Direct,
    /// Processes that call each other.
    Peers,
    /// Processes that disconnect while messages lie in cells of shared memory.
    Cells,
    /// Processes that prove that they know the key of the job, on a network that an adversary owns.
    Keys,
    /// Virtual interfaces.
    Vipl,
    /// Ports that join queue pairs by datagrams.
    Joins,
    /// Processes whose links are driven by the machine of links.
    Links,
}

/// One injected fault, triggered now and then while a simulation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A fault of the simulated network or of the simulated application.
    Slip(Slip),
    /// A fault of the engine or of what is below it, or of the table of peers.
    #[cfg(nemesia_injected_fault)]
    InjectedFault(InjectedFault),
}

/// A fault of the network or of the application.
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
    /// A packet arrives twice.
    Duplicate,
    /// A packet is sent, but its sender gets the result that there was no room.
    DenySent,
    /// A byte of a message changes on the way.
    Corrupt,
    /// A cell is not returned.
    LoseCell,
    /// A grant is lost for ever.
    LoseGrant,
    /// A grant promises more than was granted.
    InflateGrant,
    /// A single copy returns the earlier contents of the memory.
    StalePull,
    /// A single copy leaves out the last byte.
    ShortPull,
    /// The sender's part of a sender-assisted copy leaves out the last byte.
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

    /// Returns how many opportunities there are on average for one occurrence; some faults have few
    /// opportunities.
    pub(crate) const fn opportunities(self) -> usize {
        match self {
            Slip::ShortPush => 4,
            Slip::LoseGrant | Slip::InflateGrant => 30,
            _ => 100,
        }
    }
}

impl Bug {
    /// Returns every injected fault that this build contains.
    pub(crate) fn all() -> impl Iterator<Item = Bug> {
        let slips = Slip::ALL.into_iter().map(|(slip, _)| Bug::Slip(slip));
        #[cfg(nemesia_injected_fault)]
        let slips = slips.chain(InjectedFault::ALL.map(Bug::InjectedFault));
        slips
    }

    /// Returns the kind of worlds that the fault disturbs.
    pub(crate) const fn subject(self) -> Subject {
        match self {
            #[cfg(nemesia_injected_fault)]
            Bug::InjectedFault(injected_fault) if injected_fault.is_of_channel() => Subject::Channels,
            #[cfg(nemesia_injected_fault)]
            Bug::InjectedFault(injected_fault) if injected_fault.is_of_direct_access() => Subject::Direct,
            #[cfg(nemesia_injected_fault)]
            Bug::InjectedFault(injected_fault) if injected_fault.is_of_peers() => Subject::Peers,
            #[cfg(nemesia_injected_fault)]
            Bug::InjectedFault(injected_fault) if injected_fault.is_of_keys() => Subject::Keys,
            #[cfg(nemesia_injected_fault)]
            Bug::InjectedFault(injected_fault) if injected_fault.is_of_cells() => Subject::Cells,
            #[cfg(nemesia_injected_fault)]
            Bug::InjectedFault(injected_fault) if injected_fault.is_of_vipl() => Subject::Vipl,
            #[cfg(nemesia_injected_fault)]
            Bug::InjectedFault(injected_fault) if injected_fault.is_of_joining() => Subject::Joins,
            #[cfg(nemesia_injected_fault)]
            Bug::InjectedFault(injected_fault) if injected_fault.is_of_links() => Subject::Links,
            _ => Subject::Engines,
        }
    }

    /// Returns whether the exhaustive model of credits must find the fault.
    pub(crate) const fn is_of_credits(self) -> bool {
        match self {
            #[cfg(nemesia_injected_fault)]
            Bug::InjectedFault(injected_fault) => matches!(
                injected_fault,
                InjectedFault::SpendReserve
                    | InjectedFault::CountCreditTwice
                    | InjectedFault::OverdrawPool
                    | InjectedFault::GrowGreedily
            ),
            _ => false,
        }
    }

    /// Enables the fault in the engines of this process if it is a fault of engines, and disables all others.
    pub(crate) fn arm(bug: Option<Bug>) {
        #[cfg(nemesia_injected_fault)]
        injected_fault::make(match bug {
            Some(Bug::InjectedFault(injected_fault)) => Some(injected_fault),
            _ => None,
        });
        #[cfg(not(nemesia_injected_fault))]
        let _ = bug;
    }

    /// Returns the fault of this name, as `Display` writes it.
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
            #[cfg(nemesia_injected_fault)]
            Bug::InjectedFault(injected_fault) if injected_fault.is_of_channel() => {
                write!(out, "channel:{injected_fault:?}")
            }
            #[cfg(nemesia_injected_fault)]
            Bug::InjectedFault(injected_fault) if injected_fault.is_of_peers() => {
                write!(out, "peers:{injected_fault:?}")
            }
            #[cfg(nemesia_injected_fault)]
            Bug::InjectedFault(injected_fault) if injected_fault.is_of_keys() => {
                write!(out, "keys:{injected_fault:?}")
            }
            #[cfg(nemesia_injected_fault)]
            Bug::InjectedFault(injected_fault) if injected_fault.is_of_cells() => {
                write!(out, "cells:{injected_fault:?}")
            }
            #[cfg(nemesia_injected_fault)]
            Bug::InjectedFault(injected_fault) if injected_fault.is_of_vipl() => {
                write!(out, "vipl:{injected_fault:?}")
            }
            #[cfg(nemesia_injected_fault)]
            Bug::InjectedFault(injected_fault) if injected_fault.is_of_joining() => {
                write!(out, "joins:{injected_fault:?}")
            }
            #[cfg(nemesia_injected_fault)]
            Bug::InjectedFault(injected_fault) if injected_fault.is_of_links() => {
                write!(out, "links:{injected_fault:?}")
            }
            #[cfg(nemesia_injected_fault)]
            Bug::InjectedFault(injected_fault) => write!(out, "engine:{injected_fault:?}"),
        }
    }
}

/// Returns the names of all faults, one on each line.
pub(crate) fn list() -> String {
    Bug::all().map(|bug| format!("{bug}\n")).collect()
}
