//! Engines that were opened alone: ranks add each other while traffic runs, and are refused at limits.
//!
//! A rank adds another, and may send to it at once. The other adds it later ([`Simulation::readmit`]), and the two are
//! connected; or it cannot pay for the connection, and turns it away. A rank that was started again has the number of
//! the former process. Another rank can add it only when it has received all messages of that process.

use crate::simulation::{CreditView, Report, Simulation};
use crate::tally::Event;
use crate::violation::{Check, Violation, ensure};
use crate::world::{
    CeilingError, CompletionError, Failure, Pattern, RequestHandle, Source, WorldPort, limits,
};

/// A context in which no message is sent.
const UNUSED: u16 = 999;

impl<P: WorldPort> Simulation<P> {
    /// Lets one rank add another, or finish what the other has begun.
    pub(crate) fn one_meets(&mut self) -> Check {
        let alive = self.alive();
        if alive.is_empty() {
            return Ok(());
        }
        let (rank, peer) = (self.rng.pick(&alive), self.rng.pick(&alive));
        if self.can_readmit(rank, peer) {
            return self.readmit(rank, peer);
        }
        self.settle_call(rank, true)?;
        if self.rank(rank).gone.is_some() {
            return Ok(());
        }
        if !matches!(self.rank(rank).reported[peer as usize], Report::Failed(_)) {
            return self.add_again(rank, peer);
        }
        if self.rank(peer).gone.is_some() || !self.has_parted(peer, rank) || !self.adds(rank, peer)? {
            return Ok(());
        }
        self.note(|| format!("rank {rank} has added rank {peer}"));
        let (known, born) =
            (self.sent[peer as usize][rank as usize].len(), self.sent[rank as usize][peer as usize].len());
        let it = self.rank(rank);
        it.born[peer as usize] = born;
        it.arrived[peer as usize] = known;
        it.first[peer as usize] = known;
        self.begin_with(rank, peer);
        self.settle_call(rank, true)
    }

    /// Returns whether a rank has no connection with another, as far as it knows.
    fn has_parted(&self, rank: u32, peer: u32) -> bool {
        matches!(self.ranks[rank as usize].reported[peer as usize], Report::Failed(_))
    }

    /// Adds a peer a second time: nothing changes.
    fn add_again(&mut self, rank: u32, peer: u32) -> Check {
        let added = self.world.add_peer(rank, peer, false);
        ensure!(added.is_ok(), "rank {rank} can't add rank {peer} again: {added:?}");
        self.settle_call(rank, true)
    }

    /// Resets what a rank knows of another, which it has added.
    pub(crate) fn begin_with(&mut self, rank: u32, peer: u32) {
        let it = self.rank(rank);
        let at = peer as usize;
        it.asleep = false;
        it.past[at].extend(it.reported[at].failure());
        it.reported[at] = Report::Nothing;
        it.hasty[at] = false;
        it.blamed[at] = false;
        it.any_failed = it.blamed.contains(&true);
        it.charged[at] = 0;
        it.looks[at] = CreditView::default();
    }

    /// Lets a rank add a peer. Returns false if it is refused, which it must be at a limit and only there.
    pub(crate) fn adds(&mut self, rank: u32, peer: u32) -> Result<bool, Violation> {
        let due = self.refusal(rank, peer);
        let connects = self.ranks[peer as usize].reported[rank as usize] == Report::Nothing;
        let is_vacant = self.world.is_vacant(rank, peer);
        ensure!(
            is_vacant != matches!(due, Some(Refused::Stored)),
            "rank {rank} may use number {peer} again: {is_vacant}, but {due:?}"
        );
        let added = self.world.add_peer(rank, peer, connects && due.is_none());
        self.note(|| format!("rank {rank} adds rank {peer}: {added:?}"));
        let refused = match added {
            Ok(()) => None,
            Err(CeilingError::Stored { .. }) => Some(Refused::Stored),
            Err(CeilingError::Connections { .. } | CeilingError::Units { .. }) => Some(Refused::Limit),
            Err(error @ CeilingError::Memory { .. }) => {
                return Err(Violation(format!("rank {rank} can't add rank {peer}: {error}")));
            }
        };
        ensure!(refused == due, "rank {rank} adds rank {peer}: {added:?}, but {due:?} was due");
        self.count(match refused {
            None => Event::Added,
            Some(Refused::Stored) => Event::AddedLate,
            Some(Refused::Limit) => Event::AddedMany,
        });
        Ok(refused.is_none())
    }

    /// In a world that grows, posts a receive from a peer that is about to fail, for which no message comes.
    pub(crate) fn post_late(&mut self, rank: u32, peer: u32) -> Option<RequestHandle> {
        self.shape.terms.most_peers?;
        let pattern = Pattern { source: Source::Rank(peer), context: UNUSED, tag: 0, ignore: 0 };
        self.world.receive(rank, pattern, 0).ok()
    }

    /// Takes the outcome of that receive, which names the peer: until then its number is no other peer's.
    pub(crate) fn take_late(&mut self, late: Option<RequestHandle>, peer: u32, failure: Failure) -> Check {
        let Some(late) = late else { return Ok(()) };
        let rank = late.rank;
        ensure!(
            !self.world.is_vacant(rank, peer),
            "rank {rank} may use number {peer} again before the outcome that names it is taken"
        );
        self.count(Event::TakenLate);
        let outcome = self.world.test(late);
        self.world.fabric().memory.end(late.loan, |_| ())?;
        let due = Some(Err(CompletionError::PeerFailed { peer, failure }));
        ensure!(outcome == due, "rank {rank}: a receive from number {peer}, which has failed: {outcome:?}");
        Ok(())
    }

    /// Returns the reason for which a rank must refuse a peer.
    fn refusal(&self, rank: u32, peer: u32) -> Option<Refused> {
        let stores = |from: u32| {
            let waiting = self.ranks[rank as usize].oracle.waiting();
            waiting.iter().any(|waiting| waiting.name.source == from)
                || self.claims_kept(rank).any(|name| name.source == from)
        };
        if stores(peer) {
            return Some(Refused::Stored);
        }
        let others = (0..self.shape.conditions.ranks).filter(|&it| it != rank);
        let used = others.filter(|&it| !self.has_parted(rank, it) || stores(it)).count();
        (used >= limits(&self.shape).reserves as usize).then_some(Refused::Limit)
    }

    /// Tells a rank that a peer, which it has added, has refused it. Nothing of either has reached the other.
    pub(crate) fn turn_away(&mut self, rank: u32, peer: u32) -> Check {
        self.note(|| format!("rank {rank} is turned away by rank {peer}"));
        self.remotes.queue(rank, peer).clear();
        self.rank(peer).arrived[rank as usize] = self.sent[rank as usize][peer as usize].len();
        self.release(rank, peer, Failure::Dropped)
    }
}

/// The reason for which a peer is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// Messages of its former process are stored.
    Stored,
    /// The memory set aside for peers is in use.
    Limit,
}
