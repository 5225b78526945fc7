//! One world from one seed: random operations at random ranks, each checked against the oracles.

use crate::bug::Bug;
use crate::credit::Look;
use crate::fabric::Fabric;
use crate::memory::Loan;
use crate::oracle::{Name, Oracle};
use crate::remote::Remotes;
use crate::rng::Rng;
use crate::shape::{Operation, Shape};
use crate::tally::Event;
use crate::trace::Trace;
use crate::violation::{Check, Violation};
use crate::world::{Claim, Failure, Outcome, Outgoing, Ticket, World};

/// How the first packet of a message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It has not come.
    Not,
    /// Whole.
    Whole,
    /// Announced; the bytes are to follow.
    Offered,
    /// It never left its rank.
    Own,
}

/// A message that was sent.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) is: Outgoing,
    pub(crate) arrival: Arrival,
    /// It was announced, and all its bytes came along.
    pub(crate) along: bool,
    /// A receive, or a matched probe, has taken it.
    pub(crate) matched: bool,
    /// Its send has succeeded.
    pub(crate) sent: bool,
    /// It is where it was to go.
    pub(crate) received: bool,
    /// What it takes in its destination's store, at least, from when it has come.
    pub(crate) units: u32,
}

/// A receive that is not complete, or whose outcome nobody has looked at.
#[derive(Debug)]
pub(crate) struct Receive {
    /// `None` if it was never a request.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) loan: Loan,
    /// Its number at its rank's oracle.
    pub(crate) number: usize,
    pub(crate) room: usize,
    pub(crate) outcome: Option<Outcome>,
}

/// A send that is not complete.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) ticket: Ticket,
    pub(crate) to: u32,
    pub(crate) number: usize,
}

/// What a rank was told of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Nothing,
    /// It is gone, but what it has sent is still to be taken.
    Departed(Failure),
    Failed(Failure),
}

impl Told {
    pub(crate) const fn failure(self) -> Option<Failure> {
        match self {
            Told::Nothing => None,
            Told::Departed(failure) | Told::Failed(failure) => Some(failure),
        }
    }
}

/// What is known of a rank.
#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) oracle: Oracle,
    pub(crate) sends: Vec<Sending>,
    pub(crate) receives: Vec<Receive>,
    /// Messages that were taken out of the queue, to be received later.
    pub(crate) claims: Vec<(Claim, Name)>,
    /// Messages of each rank that have come.
    pub(crate) arrived: Vec<usize>,
    /// Units of credit that they have used.
    pub(crate) charged: Vec<u64>,
    pub(crate) looks: Vec<Look>,
    pub(crate) told: Vec<Told>,
    pub(crate) gone: Option<Failure>,
    /// Whom it let go of in haste: what that one had sent last is lost.
    pub(crate) hasty: Vec<bool>,
    /// Receives from any source are refused until the failures are acknowledged.
    pub(crate) any_failed: bool,
    /// Because of whom.
    pub(crate) blamed: Vec<bool>,
    /// Of each rank the first message to this one that its process has sent; of each rank the number of messages to it that
    /// the processes before this one had sent; and how the processes of each rank before this one had failed.
    pub(crate) first: Vec<usize>,
    pub(crate) born: Vec<usize>,
    pub(crate) past: Vec<Vec<Failure>>,
    /// It does nothing until then.
    stalled: u64,
    /// It found nothing to do, and sleeps until it is woken.
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
            charged: vec![0; ranks],
            looks: vec![Look::default(); ranks],
            told: vec![Told::Nothing; ranks],
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

    /// Requests that take a slot.
    pub(crate) fn slots(&self) -> usize {
        let sends = self.sends.iter().filter(|send| send.ticket.is_kept()).count();
        let receives = self.receives.iter().filter(|it| it.ticket.is_some() && it.outcome.is_none()).count();
        sends + receives + self.claims.len()
    }
}

/// A world under way.
#[derive(Debug)]
pub(crate) struct Simulation {
    pub(crate) rng: Rng,
    pub(crate) shape: Shape,
    pub(crate) world: World,
    pub(crate) ranks: Vec<Rank>,
    /// By source and destination.
    pub(crate) sent: Vec<Vec<Vec<Message>>>,
    pub(crate) remotes: Remotes,
}

impl Simulation {
    /// A world of this shape, in which nothing has happened.
    pub(crate) fn new(mut rng: Rng, shape: Shape, bug: Option<Bug>, trace: Trace) -> Result<Self, Violation> {
        let mut fabric = Fabric::new(shape.conditions, Rng::new(rng.next(), 0), bug, trace);
        fabric.trace.note(0, || format!("{shape:?}"));
        let count = shape.conditions.ranks as usize;
        let none = || std::iter::repeat_with(Vec::new).take(count).collect();
        Ok(Self {
            rng,
            shape,
            world: World::new(fabric, shape.terms)?,
            ranks: std::iter::repeat_with(|| Rank::new(count)).take(count).collect(),
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

    /// Whether there are too few left for anything to happen.
    pub(crate) fn is_desolate(&self) -> bool {
        self.alive().len() < 2.min(self.ranks.len())
    }

    /// One random operation, and what follows from it; false when nobody did anything.
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

    /// After a call at a rank: whether it died in it, what it has taken, what is complete.
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
