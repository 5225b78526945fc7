//! What is broken on purpose: one end of an edge in the core, or a blunder in a model's own wrapper.

use std::fmt;

use nemesia_core::sync::{Edge, End};

/// Both ends of an edge.
pub(crate) const ENDS: [End; 2] = [End::Release, End::Acquire];

/// One thing that a run breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// This end of this edge is relaxed, or its fence left out, wherever the core names it.
    Weak(Edge, End),
    /// The model makes this mistake in its use of the core.
    Blunder(Blunder),
}

/// A mistake of logic. No ordering is weakened; a model that misses it does not look closely enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blunder {
    /// The fastbox's slots are given back before they are read.
    AckBeforeRead,
    /// A cell is given back before it is read.
    ReturnBeforeRead,
    /// A cell is enqueued before it is filled.
    EnqueueBeforePublish,
    /// The sleeper looks for work, then raises its flag.
    LookBeforeAnnounce,
    /// The waker wakes as the sleeper slept before.
    WakeAsBefore,
    /// The sleeper finds a message in its last look, and sleeps on for as many as before.
    CountTaken,
    /// The sleeper counts on fences of the waker that it has not asked for.
    AskTooLate,
    /// A thread that owes others the lock gives it to whoever comes first.
    GrabAgain,
    /// A thread falls asleep over any handing, and not over the one that it saw.
    ForgetHanding,
    /// The driver leaves, and does not wake the next one.
    LeaveNoDriver,
    /// A thread gives the lock back, then looks at the bell before it sleeps.
    ListenUnlocked,
    /// Who serves the driver wakes it as one that is not the driver.
    ForgetDriver,
    /// The owner refills a cell that nobody has given back.
    RefillUnreturned,
    /// The owner writes ahead to a cell that nobody has given back.
    WarmUnreturned,
    /// The writer publishes bytes, then writes them.
    PublishBeforeWrite,
    /// The sender leaves a shared copy, then writes its last part.
    LeaveBeforeWrite,
    /// A copy past the caches returns before its stores are done.
    Undrained,
    /// Memory is given away, then told of.
    TellLate,
}

impl Blunder {
    /// Every blunder.
    pub(crate) const ALL: [Blunder; 18] = [
        Blunder::AckBeforeRead,
        Blunder::ReturnBeforeRead,
        Blunder::EnqueueBeforePublish,
        Blunder::LookBeforeAnnounce,
        Blunder::WakeAsBefore,
        Blunder::CountTaken,
        Blunder::AskTooLate,
        Blunder::GrabAgain,
        Blunder::ForgetHanding,
        Blunder::LeaveNoDriver,
        Blunder::ListenUnlocked,
        Blunder::ForgetDriver,
        Blunder::RefillUnreturned,
        Blunder::WarmUnreturned,
        Blunder::PublishBeforeWrite,
        Blunder::LeaveBeforeWrite,
        Blunder::Undrained,
        Blunder::TellLate,
    ];
}

impl Mutant {
    /// Every weakened end, then every blunder.
    pub(crate) fn all() -> impl Iterator<Item = Mutant> {
        let weak = Edge::ALL.into_iter().flat_map(|edge| ENDS.map(|end| Mutant::Weak(edge, end)));
        weak.chain(Blunder::ALL.map(Mutant::Blunder))
    }

    /// The mutant of this name, as `Display` writes it.
    pub(crate) fn named(name: &str) -> Option<Mutant> {
        Mutant::all().find(|mutant| mutant.to_string() == name)
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mutant::Weak(edge, end) => write!(out, "{edge:?}:{end:?}"),
            Mutant::Blunder(blunder) => write!(out, "Blunder:{blunder:?}"),
        }
    }
}
