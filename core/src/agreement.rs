//! Agreement of the surviving processes: one process's part in it, step by step.
//!
//! Every rank of a world takes part with a word of flags and the set of ranks that it knows to have failed.
//! All ranks that decide reach the same decision: the AND of the flags of all ranks that took part to the
//! end, and one set of failed ranks. MPI's ULFM builds `MPI_Comm_agree` and `MPI_Comm_shrink` on this (Bland,
//! Bouteiller, Herault, Bosilca, Dongarra, *Post-failure recovery of MPI communication capability*, IJHPCA
//! 27(3), 2013).
//!
//! **Algorithm.** Non-blocking (three-phase) commit with a central site (Skeen, *Nonblocking commit
//! protocols*, SIGMOD 1981, section 6). If the coordinator fails, the next rank replaces it, as in the
//! rotating coordinator of Chandra and Toueg (*Unreliable failure detectors for reliable distributed
//! systems*, JACM 43(2), 1996, section 6.1). The coordinator is the lowest rank that has not failed.
//!
//! 1. Every rank reports its flags and its set of failed ranks to the coordinator.
//! 2. When the coordinator has a report of every rank that has not failed, it sends a proposal. The proposal
//!    is the one that the coordinator itself accepted from an earlier coordinator, else the AND and the union
//!    of the reports. Every rank accepts.
//! 3. When every rank that has not failed has accepted, the coordinator has decided.
//! 4. A rank that has decided sends the decision to every rank, and ends when every rank that has not failed
//!    has sent the decision to it.
//!
//! Without failures the cost is two round trips and one exchange of all with all. Each failure of a
//! coordinator costs one more round. There are at most *n* coordinators, so the algorithm ends.
//!
//! **Why all decisions are equal**, those of ranks that fail later included: a coordinator decides what every
//! surviving rank has accepted, the next coordinator included. The next coordinator therefore proposes the
//! same, and so on. If the next coordinator has not accepted a proposal, no rank has decided it. **Why no
//! rank waits forever** (4): a rank that ends has received the decision of every surviving rank. No message
//! of this agreement follows, and no rank waits for it.
//!
//! **Assumptions.** Ranks fail only by crashing. Messages between two ranks arrive whole and in order; those
//! of a failed rank may be lost from some point on. A failure is reported ([`Agreement::failed`]) only for a
//! rank that no longer takes part, eventually for every such rank, and after the last message that is
//! accepted from it: a perfect failure detector, which a machine's kernel is for its own processes. If a rank
//! violates the transport's protocol, only the affected peer fails it. Other ranks that still communicate
//! with it inform it that it is [excluded](Decision::excluded).
//!
//! Messages of peers are checked. A peer that sends well-formed but false messages can change the decision of
//! the others, and do no other harm. The tag of a message is the number of its agreement. If a message
//! belongs to an agreement other than the next one, its receiver fails the sender
//! ([`PortFault::Agreement`](crate::port::PortFault::Agreement)).
#![forbid(unsafe_code)]

mod message;
#[cfg(test)]
mod tests;

use core::borrow::BorrowMut;

use message::{AgreementKind, AgreementMessage};
pub use message::{Malformed, message_bytes, words};

use crate::port::PeerId;

/// The matching context reserved for agreements. The tag is the number of the agreement.
pub const CONTEXT: u16 = 0xffff;

/// A set of ranks, one bit each, over lent words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ranks<W> {
    words: W,
}

impl<W: BorrowMut<[u64]>> Ranks<W> {
    /// Returns the empty set.
    fn new(mut words: W) -> Self {
        words.borrow_mut().fill(0);
        Self { words }
    }

    /// Returns whether the set contains this rank.
    pub fn contains(&self, rank: PeerId) -> bool {
        let word = self.words.borrow().get(rank as usize / 64);
        word.is_some_and(|word| word >> (rank % 64) & 1 == 1)
    }

    fn insert(&mut self, rank: PeerId) {
        if let Some(word) = self.words.borrow_mut().get_mut(rank as usize / 64) {
            *word |= 1 << (rank % 64);
        }
    }
}

/// The next action of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Send [`Agreement::message`], then call [`Agreement::sent`]. Nothing must be sent to a failed peer.
    Send(PeerId),
    /// Wait for a message of this peer, then call [`Agreement::received`]; if the peer fails, call
    /// [`Agreement::failed`].
    Receive(PeerId),
    /// The agreement is complete: [`Agreement::decision`] returns the result.
    Done,
}

/// The result of an agreement; [`Agreement::is_gone`] returns the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    /// The AND of the flags.
    pub flags: u64,
    /// Whether the others have agreed that this rank failed.
    pub excluded: bool,
}

/// The action of a rank, and its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// Determines the coordinator.
    Elect,
    /// Stages of the coordinator.
    Gather(PeerId),
    Propose(PeerId),
    Collect(PeerId),
    /// Stages of other ranks.
    Report(PeerId),
    Await(PeerId),
    Accept(PeerId),
    Confirm(PeerId),
    /// Stages after the decision.
    Tell(PeerId),
    Hear(PeerId),
    Done,
}

/// One rank's part in an agreement. The caller drives it: [`Agreement::step`] returns the next action, and
/// the caller reports its result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Agreement<W> {
    rank: PeerId,
    size: u32,
    stage: Stage,
    /// Ranks that this process no longer receives from.
    gone: Ranks<W>,
    /// Whether this process has accepted a proposal.
    accepted: bool,
    /// The proposal; before there is one, the proposal according to the reports so far.
    flags: u64,
    missing: Ranks<W>,
    /// The rank that first sent the decision to this process.
    teller: Option<PeerId>,
}

impl<W: BorrowMut<[u64]>> Agreement<W> {
    /// Returns the part of rank `rank` of `size` in an agreement, with its flags. The caller lends two sets
    /// of [`words`]`(size)` words.
    pub fn new(rank: PeerId, size: u32, flags: u64, (gone, missing): (W, W)) -> Self {
        let (gone, missing) = (Ranks::new(gone), Ranks::new(missing));
        Self { rank, size, stage: Stage::Elect, gone, accepted: false, flags, missing, teller: None }
    }

    /// Records, before the first step, a rank that has failed. No message of it will be received.
    pub fn begin_without(&mut self, rank: PeerId) {
        if rank < self.size && rank != self.rank {
            self.lose(rank);
        }
    }

    /// Returns the next action. The result does not change until the action is done.
    pub fn step(&mut self) -> Step {
        loop {
            match self.stage {
                Stage::Elect => self.stage = self.elect(),
                Stage::Gather(at) => match self.next(at) {
                    Some(peer) => return self.receive(Stage::Gather(peer), peer),
                    None => self.propose(),
                },
                Stage::Propose(at) => match self.next(at) {
                    Some(peer) => return self.send(Stage::Propose(peer), peer),
                    None => self.stage = Stage::Collect(0),
                },
                Stage::Collect(at) => match self.next(at) {
                    Some(peer) => return self.receive(Stage::Collect(peer), peer),
                    None => self.stage = Stage::Tell(0),
                },
                Stage::Report(leader) | Stage::Accept(leader) => return Step::Send(leader),
                Stage::Await(leader) | Stage::Confirm(leader) => return Step::Receive(leader),
                Stage::Tell(at) => match self.next(at) {
                    Some(peer) => return self.send(Stage::Tell(peer), peer),
                    // No rank that has lost an excluded rank sends it the decision.
                    None if self.missing.contains(self.rank) => self.stage = Stage::Done,
                    None => self.stage = Stage::Hear(0),
                },
                Stage::Hear(at) if self.teller == Some(at) => self.stage = Stage::Hear(at + 1),
                Stage::Hear(at) => match self.next(at) {
                    Some(peer) if self.teller == Some(peer) => self.stage = Stage::Hear(peer),
                    Some(peer) => return self.receive(Stage::Hear(peer), peer),
                    None => self.stage = Stage::Done,
                },
                Stage::Done => return Step::Done,
            }
        }
    }

    /// Writes the message of a [`Step::Send`]. Returns its length, [`message_bytes`]`(size)`, or 0 if `out`
    /// is too short.
    pub fn message(&self, out: &mut [u8]) -> usize {
        let kind = match self.stage {
            Stage::Propose(_) => AgreementKind::Proposal,
            Stage::Accept(_) => AgreementKind::Acceptance,
            Stage::Tell(_) => AgreementKind::Decision,
            _ => AgreementKind::Report,
        };
        AgreementMessage { kind, flags: self.flags, missing: () }.write(self.missing.words.borrow(), out)
    }

    /// Records that the message of a [`Step::Send`] was sent, or that its receiver has failed.
    pub fn sent(&mut self) {
        self.stage = match self.stage {
            Stage::Propose(peer) => Stage::Propose(peer + 1),
            Stage::Tell(peer) => Stage::Tell(peer + 1),
            Stage::Report(leader) => Stage::Await(leader),
            Stage::Accept(leader) => Stage::Confirm(leader),
            stage => stage,
        };
    }

    /// Processes the next message of the peer of a [`Step::Receive`].
    ///
    /// # Errors
    /// The message is invalid and was ignored; the caller must fail its sender.
    pub fn received(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let message = AgreementMessage::read(bytes, self.size)?;
        match (self.stage, message.kind) {
            // Other ranks may have received the decision before a coordinator failed.
            (Stage::Hear(peer), AgreementKind::Decision) => self.stage = Stage::Hear(peer + 1),
            // The peer reported to this process before it received the decision.
            (Stage::Hear(_), _) => {}
            (
                Stage::Gather(peer) | Stage::Collect(peer) | Stage::Await(peer) | Stage::Confirm(peer),
                AgreementKind::Decision,
            ) => {
                self.adopt(&message);
                self.teller = Some(peer);
                self.stage = Stage::Tell(0);
            }
            (Stage::Gather(peer), AgreementKind::Report) => {
                self.merge(&message);
                self.stage = Stage::Gather(peer + 1);
            }
            (Stage::Collect(peer), AgreementKind::Acceptance) => self.stage = Stage::Collect(peer + 1),
            (Stage::Await(leader), AgreementKind::Proposal) => {
                self.adopt(&message);
                self.stage = Stage::Accept(leader);
            }
            _ => return Err(Malformed),
        }
        Ok(())
    }

    /// Records that the peer of a [`Step::Receive`] has failed, after all its messages were processed.
    pub fn failed(&mut self) {
        let (peer, then) = match self.stage {
            Stage::Gather(peer) | Stage::Collect(peer) | Stage::Hear(peer) => (peer, self.stage),
            Stage::Await(leader) | Stage::Confirm(leader) => (leader, Stage::Elect),
            _ => return,
        };
        self.lose(peer);
        self.stage = then;
    }

    /// Returns the decision after [`Step::Done`].
    pub fn decision(&self) -> Option<Decision> {
        (self.stage == Stage::Done).then(|| self.current())
    }

    /// Returns whether the decision lists the rank as failed. Valid when [`Agreement::decision`] returns a
    /// decision.
    pub fn is_gone(&self, rank: PeerId) -> bool {
        self.missing.contains(rank)
    }

    /// Returns whether this process has lost the rank, whatever the decision.
    pub fn is_lost(&self, rank: PeerId) -> bool {
        self.gone.contains(rank)
    }

    fn current(&self) -> Decision {
        Decision { flags: self.flags, excluded: self.missing.contains(self.rank) }
    }

    /// Returns the first other rank from `at` on that has not failed.
    fn next(&self, at: PeerId) -> Option<PeerId> {
        (at..self.size).find(|&peer| peer != self.rank && !self.gone.contains(peer))
    }

    const fn send(&mut self, stage: Stage, to: PeerId) -> Step {
        self.stage = stage;
        Step::Send(to)
    }

    const fn receive(&mut self, stage: Stage, from: PeerId) -> Step {
        self.stage = stage;
        Step::Receive(from)
    }

    fn elect(&self) -> Stage {
        match self.next(0) {
            Some(leader) if leader < self.rank => Stage::Report(leader),
            _ => Stage::Gather(0),
        }
    }

    fn propose(&mut self) {
        self.accepted = true;
        self.stage = Stage::Propose(0);
    }

    fn lose(&mut self, rank: PeerId) {
        self.gone.insert(rank);
        // A proposal is never changed.
        if !self.accepted {
            self.missing.insert(rank);
        }
    }

    /// Merges a report to the coordinator.
    fn merge(&mut self, report: &AgreementMessage<impl Iterator<Item = u64> + Clone>) {
        if !self.accepted {
            self.flags &= report.flags;
            let words = self.missing.words.borrow_mut().iter_mut();
            words.zip(report.missing.clone()).for_each(|(word, more)| *word |= more);
        }
    }

    fn adopt(&mut self, message: &AgreementMessage<impl Iterator<Item = u64> + Clone>) {
        self.accepted = true;
        self.flags = message.flags;
        let words = self.missing.words.borrow_mut().iter_mut();
        words.zip(message.missing.clone()).for_each(|(word, new)| *word = new);
    }
}
