//! One world from one seed: random operations at random ranks, each checked against the oracles.

use nemesia_verification::oracle::{Name, Oracle};

use crate::bug::Bug;
use crate::fabric::Fabric;
use crate::memory::Loan;
use crate::remotes::Remotes;
use crate::rng::Rng;
use crate::shape::{Operation, Shape};
use crate::tally::Event;
use crate::trace::Trace;
use crate::violation::{Check, Violation};
use crate::world::{Claim, Failure, Outcome, Outgoing, RequestHandle, World, WorldPort};

/// How the first packet of a message arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It has not arrived.
    Not,
    /// With the whole message.
    Whole,
    /// With the announcement only; the bytes follow.
    Offered,
    /// With the announcement, and so many bytes that follow unasked are still missing.
    Unasked(u64),
    /// It never left its rank.
    Own,
}

impl Arrival {
    /// Returns whether bytes of the message are still at its sender, or the sender waits for an answer.
    pub(crate) const fn is_announced(self) -> bool {
        matches!(self, Arrival::Offered | Arrival::Unasked(_))
    }
}

/// A message that was sent.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) is: Outgoing,
    pub(crate) arrival: Arrival,
    /// Whether it was announced and all its bytes came along, or it was sent whole and is acknowledged.
    pub(crate) along: bool,
    /// Whether a receive or a matched probe has taken it.
    pub(crate) matched: bool,
    /// Whether its send has succeeded.
    pub(crate) sent: bool,
    /// Whether its bytes are at their destination.
    pub(crate) received: bool,
    /// The least number of units that it takes in its destination's store after its arrival.
    pub(crate) units: u32,
}

/// A receive that is not complete, or whose outcome was not read.
#[derive(Debug)]
pub(crate) struct Receive {
    /// `None` if it was never a request.
    pub(crate) handle: Option<RequestHandle>,
    pub(crate) loan: Loan,
    /// Its number at its rank's oracle.
    pub(crate) number: usize,
    pub(crate) room: usize,
    pub(crate) outcome: Option<Outcome>,
}

/// A send that is not complete.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) handle: RequestHandle,
    pub(crate) to: u32,
    pub(crate) number: usize,
}

/// What a rank knows of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    Nothing,
    /// The other is gone, but its last messages are still to be taken.
    Departed(Failure),
    Failed(Failure),
}

impl Report {
    pub(crate) const fn failure(self) -> Option<Failure> {
        match self {
            Report::Nothing => None,
            Report::Departed(failure) | Report::Failed(failure) => Some(failure),
        }
    }
}

/// The credit of one peer at its last grant.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CreditView {
    pub(crate) granted: u64,
    /// The units used now, and before the last grant.
    pub(crate) now: u64,
    pub(crate) then: u64,
}

impl CreditView {
    /// Records the total granted and the units charged.
    pub(crate) const fn see(&mut self, granted: u64, charged: u64) {
        if self.granted != granted {
            self.granted = granted;
            self.then = self.now;
        }
        self.now = charged;
    }
}

/// The simulation's state of one rank.
#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) oracle: Oracle,
    pub(crate) sends: Vec<Sending>,
    pub(crate) receives: Vec<Receive>,
    /// Messages that a matched probe took out of the queue, to be received later.
    pub(crate) claims: Vec<(Claim, Name)>,
    /// The number of messages of each rank that have arrived.
    pub(crate) arrived: Vec<usize>,
    /// Of each rank, the message whose bytes follow unasked.
    pub(crate) unasked: Vec<Option<Name>>,
    /// The units of credit that these have used.
    pub(crate) charged: Vec<u64>,
    pub(crate) looks: Vec<CreditView>,
    pub(crate) reported: Vec<Report>,
    pub(crate) gone: Option<Failure>,
    /// Ranks that it disconnected in haste: their last messages are lost.
    pub(crate) hasty: Vec<bool>,
    /// Whether receives from any source are refused until the failures are acknowledged.
    pub(crate) any_failed: bool,
    /// The ranks whose failures cause that.
    pub(crate) blamed: Vec<bool>,
    /// For each rank: the number of the first message to this rank that its present process has sent; the
    /// number of messages to it that the former processes of this rank had sent; and how the former processes
    /// of each rank failed.
    pub(crate) first: Vec<usize>,
    pub(crate) born: Vec<usize>,
    pub(crate) past: Vec<Vec<Failure>>,
    /// The time until which it does nothing.
    stalled: u64,
    /// Whether it found nothing to do and sleeps until it is woken.
    pub(crate) asleep: bool,
}

impl Rank {
    pub(crate) fn new(ranks: usize) -> Self {
        Self {
            oracle: Oracle::default(),
            sends: Vec::new(),
            receives: Vec::new(),
            claims: Vec::new(),
            arrived: vec![0; ranks],
            unasked: vec![None; ranks],
            charged: vec![0; ranks],
            looks: vec![CreditView::default(); ranks],
            reported: vec![Report::Nothing; ranks],
            gone: None,
            hasty: vec![false; ranks],
            any_failed: false,
            blamed: vec![false; ranks],
            first: vec![0; ranks],
            born: vec![0; ranks],
            past: vec![Vec::new(); ranks],
            stalled: 0,
            asleep: false,
        }
    }

    /// Returns the state of a process that has started. If its engine was opened alone, it has no peer.
    pub(crate) fn started(shape: &Shape, rank: u32) -> Self {
        let mut it = Self::new(shape.conditions.ranks as usize);
        if shape.terms.most_peers.is_some() {
            it.reported.fill(Report::Failed(Failure::Absent));
            it.reported[rank as usize] = Report::Nothing;
        }
        it
    }

    /// Returns the number of requests that take a slot.
    pub(crate) fn slots(&self) -> usize {
        let sends = self.sends.iter().filter(|send| send.handle.is_kept()).count();
        let receives = self.receives.iter().filter(|it| it.handle.is_some() && it.outcome.is_none()).count();
        sends + receives + self.claims.len()
    }
}

/// A running world.
#[derive(Debug)]
pub(crate) struct Simulation<P: WorldPort> {
    pub(crate) rng: Rng,
    pub(crate) shape: Shape,
    pub(crate) world: World<P>,
    pub(crate) ranks: Vec<Rank>,
    /// Messages by source and destination.
    pub(crate) sent: Vec<Vec<Vec<Message>>>,
    pub(crate) remotes: Remotes,
}

impl<P: WorldPort> Simulation<P> {
    /// Makes a world of this shape in which nothing has happened.
    pub(crate) fn new(
        mut rng: Rng,
        shape: Shape,
        medium: P::Medium,
        bug: Option<Bug>,
        trace: Trace,
    ) -> Result<Self, Violation> {
        let mut fabric = Fabric::new(shape.conditions, Rng::new(rng.next(), 0), bug, trace);
        fabric.trace.note(0, || format!("{shape:?}"));
        let count = shape.conditions.ranks as usize;
        let none = || std::iter::repeat_with(Vec::new).take(count).collect();
        Ok(Self {
            rng,
            shape,
            world: World::new(fabric, medium, shape.terms)?,
            ranks: (0..shape.conditions.ranks).map(|rank| Rank::started(&shape, rank)).collect(),
            sent: std::iter::repeat_with(none).take(count).collect(),
            remotes: Remotes::new(shape.conditions.ranks),
        })
    }

    pub(crate) fn rank(&mut self, rank: u32) -> &mut Rank {
        &mut self.ranks[rank as usize]
    }

    pub(crate) fn message(&mut self, to: u32, name: Name) -> &mut Message {
        &mut self.sent[name.source as usize][to as usize][name.number]
    }

    pub(crate) fn alive(&self) -> Vec<u32> {
        (0..self.shape.conditions.ranks).filter(|&rank| self.ranks[rank as usize].gone.is_none()).collect()
    }

    pub(crate) fn note(&self, event: impl FnOnce() -> String) {
        let mut fabric = self.world.fabric();
        let now = fabric.now;
        fabric.trace.note(now, event);
    }

    pub(crate) fn count(&self, event: Event) {
        self.world.fabric().tally.count(event);
    }

    /// Returns whether too few ranks are left for anything to happen.
    pub(crate) fn is_desolate(&self) -> bool {
        self.alive().len() < 2.min(self.ranks.len())
    }

    /// Runs one random operation and its consequences. Returns false if no rank did anything.
    pub(crate) fn step(&mut self) -> Result<bool, Violation> {
        let time = self.rng.below(3) as u64;
        let now = {
            let mut fabric = self.world.fabric();
            fabric.now += time;
            fabric.now
        };
        let Shape { stall, death, restart, weights, .. } = self.shape;
        if self.rng.one_in(death) {
            self.one_dies()?;
        }
        if death > 0 && self.rng.one_in(20) {
            self.one_learns()?;
        }
        if self.rng.one_in(restart) {
            self.one_restarts()?;
        }
        if restart > 0 && self.rng.one_in(20) {
            self.one_readmits()?;
        }
        if self.shape.terms.most_peers.is_some() && self.rng.one_in(10) {
            self.one_meets()?;
        }
        if self.shape.terms.unmet && self.rng.one_in(10) {
            self.one_calls()?;
        }
        let alive = self.alive();
        if alive.is_empty() {
            return Ok(false);
        }
        let rank = self.rng.pick(&alive);
        if self.rng.one_in(stall) {
            self.rank(rank).stalled = now + self.rng.below(600) as u64;
        }
        if self.rank(rank).stalled > now {
            return Ok(false);
        }
        let at = self.rng.below(weights.iter().sum());
        match self.shape.operation(at) {
            Operation::Send => self.send(rank, false)?,
            Operation::SendSynchronous => self.send(rank, true)?,
            Operation::Receive => self.receive_any(rank)?,
            Operation::Progress => drop(self.progress(rank)?),
            Operation::Cancel => self.cancel(rank)?,
            Operation::Probe => self.probe(rank)?,
            Operation::Claim => self.claim(rank)?,
            Operation::ReceiveClaimed => self.receive_claimed(rank)?,
            Operation::Bypass => self.bypass(rank)?,
            Operation::Remote => self.start_remote(rank)?,
            Operation::Await => self.await_notifications(rank)?,
            Operation::Acknowledge => self.acknowledge(rank),
            Operation::Grow => self.world.grow(rank),
        }
        self.settle_call(rank, false)?;
        Ok(true)
    }

    /// Checks after a call at a rank: whether it died in the call, what it has taken, and what is complete.
    pub(crate) fn settle_call(&mut self, rank: u32, all: bool) -> Check {
        if self.bury_if_dead(rank) {
            return Ok(());
        }
        self.listen(rank)?;
        self.complete_remote(rank)?;
        self.complete(rank, all)?;
        self.bury_if_dead(rank);
        Ok(())
    }
}
