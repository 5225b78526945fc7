//! What a run breaks on purpose: one end of an edge in the core, or an injected fault in a model's own wrapper.

use std::fmt;

use nemesia_core::sync::{Edge, End};

/// Both ends of an edge.
pub(crate) const ENDS: [End; 2] = [End::Release, End::Acquire];

/// One thing that a run breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// This end of this edge is relaxed, or its fence left out, wherever the core names the edge.
    Weak(Edge, End),
    /// The model makes this mistake in its use of the core.
    InjectedFault(InjectedFault),
}

/// A mistake of logic; no ordering is weakened. A model that misses it checks too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    /// The receiver gives the fastbox's slots back before it reads them.
    AckBeforeRead,
    /// The receiver gives a cell back before it reads it.
    ReturnBeforeRead,
    /// The sender enqueues a cell before it fills it.
    EnqueueBeforePublish,
    /// The sleeper checks for work, then raises its flag.
    CheckBeforeAnnounce,
    /// The waker uses the kind of an earlier sleep.
    WakeAsBefore,
    /// The sleeper finds a message in its last check, and still sleeps for as many messages as before.
    CountTaken,
    /// The sleeper relies on fences of the waker that it has not requested.
    AskTooLate,
    /// A thread that must hand the lock over gives it to the first thread that comes.
    GrabAgain,
    /// A thread sleeps on any hand-over state instead of the one that it saw.
    ForgetHanding,
    /// The driver leaves without waking the next one.
    LeaveNoDriver,
    /// A thread releases the lock, then reads the event count before it sleeps.
    ListenUnlocked,
    /// The thread that serves the driver wakes it as if it were not the driver.
    ForgetDriver,
    /// The owner refills a cell that was not given back.
    RefillUnreturned,
    /// The receiver looks whether a cell was taken back, then reads it.
    LookBeforeReading,
    /// The owner writes ahead to a cell that was not given back.
    PrefetchUnreturned,
    /// The writer publishes bytes, then writes them.
    PublishBeforeWrite,
    /// The sender leaves a sender-assisted copy, then writes its last part.
    LeaveBeforeWrite,
    /// A non-temporal copy returns before its stores are done.
    Undrained,
    /// A thread gives memory away, then reports it.
    ReportLate,
}

impl InjectedFault {
    /// All injected faults.
    pub(crate) const ALL: [InjectedFault; 19] = [
        InjectedFault::AckBeforeRead,
        InjectedFault::ReturnBeforeRead,
        InjectedFault::EnqueueBeforePublish,
        InjectedFault::CheckBeforeAnnounce,
        InjectedFault::WakeAsBefore,
        InjectedFault::CountTaken,
        InjectedFault::AskTooLate,
        InjectedFault::GrabAgain,
        InjectedFault::ForgetHanding,
        InjectedFault::LeaveNoDriver,
        InjectedFault::ListenUnlocked,
        InjectedFault::ForgetDriver,
        InjectedFault::RefillUnreturned,
        InjectedFault::LookBeforeReading,
        InjectedFault::PrefetchUnreturned,
        InjectedFault::PublishBeforeWrite,
        InjectedFault::LeaveBeforeWrite,
        InjectedFault::Undrained,
        InjectedFault::ReportLate,
    ];
}

impl Mutant {
    /// Returns every weakened end, then every injected fault.
    pub(crate) fn all() -> impl Iterator<Item = Mutant> {
        let weak = Edge::ALL.into_iter().flat_map(|edge| ENDS.map(|end| Mutant::Weak(edge, end)));
        weak.chain(InjectedFault::ALL.map(Mutant::InjectedFault))
    }

    /// Returns the mutant of this name, as `Display` writes it.
    pub(crate) fn named(name: &str) -> Option<Mutant> {
        Mutant::all().find(|mutant| mutant.to_string() == name)
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mutant::Weak(edge, end) => write!(out, "{edge:?}:{end:?}"),
            Mutant::InjectedFault(injected_fault) => write!(out, "InjectedFault:{injected_fault:?}"),
        }
    }
}
