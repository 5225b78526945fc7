//! Agreement among the living: one process's part in it, step by step.
//!
//! Every rank of a world takes part with a word of flags and the ranks that it knows to be gone; all that decide, decide
//! the same: the AND of the flags of all that took part to the end, and one set of ranks that are gone. This is what MPI's
//! ULFM builds `MPI_Comm_agree` and `MPI_Comm_shrink` on (Bland, Bouteiller, Herault, Bosilca, Dongarra, *Post-failure
//! recovery of MPI communication capability*, IJHPCA 27(3), 2013).
//!
//! **Algorithm.** Non-blocking (three-phase) commit with a central site (Skeen, *Nonblocking commit protocols*, SIGMOD 1981,
//! section 6), where a site's death makes the next rank the coordinator, as in the rotating coordinator of Chandra and
//! Toueg (*Unreliable failure detectors for reliable distributed systems*, JACM 43(2), 1996, section 6.1). The coordinator
//! is the lowest rank that is not gone.
//!
//! 1. Everyone reports to the coordinator its flags and whom it misses.
//! 2. The coordinator, when it has heard from everyone that is not gone, proposes what it has itself accepted of a coordinator
//!    before it, or else the AND and the union of the reports. Everyone accepts.
//! 3. When everyone that is not gone has accepted, the coordinator has decided.
//! 4. Whoever has decided tells everyone, and ends when everyone that is not gone has told it.
//!
//! Without failures that is two round trips and one exchange of all with all; each death of a coordinator costs one more
//! round. At most *n* coordinators: it ends.
//!
//! **Why all decide the same**, those that die after deciding included: a coordinator decides what every living rank has
//! accepted, the next coordinator among them, which therefore proposes the same, and so on. What the next coordinator has not
//! accepted, nobody has decided. **Why nobody is left behind** (4): a rank that ends has heard from every living
//! rank that it has decided; nothing of this agreement comes after that, and nobody waits for it.
//!
//! **What it relies on.** Ranks only crash. Messages between two ranks come whole and in order; those of a rank that died
//! may be lost from some point on. A failure is told ([`Agreement::failed`]) only of a rank that takes no part any more, for
//! every such rank in the end, and after the last message that is taken of it: a perfect failure detector, which a machine's
//! kernel is for its own processes. A rank that breaks the rules of the transport is failed by its peer only; if others can
//! still hear it, they tell it that it is [excluded](Decision::excluded).
//!
//! What a peer sends is checked; one that lies well-formed can make the others decide differently, and do no other harm. The
//! messages say of which agreement they are (their tag); of one that is not due, whoever hears it has failed
//! ([`PortFault::Agreement`](crate::port::PortFault::Agreement)).
#![forbid(unsafe_code)]

mod message;
#[cfg(test)]
mod tests;

use core::borrow::BorrowMut;

use message::{Kind, Message};
pub use message::{Malformed, message_bytes, words};

use crate::port::PeerId;

/// The matching context of agreements: reserved, no other message may have it. The tag is the number of the agreement.
pub const CONTEXT: u16 = 0xffff;

/// A set of ranks over lent words, one bit each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ranks<W> {
    words: W,
}

impl<W: BorrowMut<[u64]>> Ranks<W> {
    /// None.
    fn new(mut words: W) -> Self {
        words.borrow_mut().fill(0);
        Self { words }
    }

    /// Whether this rank is one of them.
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

/// What has to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Send [`Agreement::message`], then call [`Agreement::sent`]. A peer that is gone need not be sent anything.
    Send(PeerId),
    /// Wait for a message of this peer, then call [`Agreement::received`]; or for its end, then [`Agreement::failed`].
    Receive(PeerId),
    /// Nothing: there is a [`Agreement::decision`].
    Done,
}

/// What was agreed on; [`Agreement::is_gone`] tells the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    /// The AND of the flags.
    pub flags: u64,
    /// The others have agreed that this rank is gone.
    pub excluded: bool,
}

/// What a rank does, and with whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// Finds out who coordinates.
    Elect,
    /// As coordinator.
    Gather(PeerId),
    Propose(PeerId),
    Collect(PeerId),
    /// Under a coordinator.
    Report(PeerId),
    Await(PeerId),
    Accept(PeerId),
    Confirm(PeerId),
    /// Has decided.
    Tell(PeerId),
    Hear(PeerId),
    Done,
}

/// One rank's part in an agreement. Driven: [`Agreement::step`] says what to do, and is told what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Agreement<W> {
    rank: PeerId,
    size: u32,
    stage: Stage,
    /// Whom we do not hear any more.
    gone: Ranks<W>,
    /// Whether we have accepted a proposal.
    accepted: bool,
    /// The proposal; before there is one, what it would be as far as we know.
    flags: u64,
    missing: Ranks<W>,
    /// Who has told us of the decision first.
    teller: Option<PeerId>,
}

impl<W: BorrowMut<[u64]>> Agreement<W> {
    /// The part of rank `rank` of `size`, with its flags. Lends two sets of [`words`]`(size)` words.
    pub fn new(rank: PeerId, size: u32, flags: u64, (gone, missing): (W, W)) -> Self {
        let (gone, missing) = (Ranks::new(gone), Ranks::new(missing));
        Self { rank, size, stage: Stage::Elect, gone, accepted: false, flags, missing, teller: None }
    }

    /// A rank that is known to be gone before the first step; nothing of it will be received.
    pub fn begin_without(&mut self, rank: PeerId) {
        if rank < self.size && rank != self.rank {
            self.lose(rank);
        }
    }

    /// What has to be done next. The same until it is done.
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
                    // Who is excluded is not told by those that have lost it.
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

    /// Writes the message of a [`Step::Send`]; returns its bytes, [`message_bytes`]`(size)`, or 0 when `out` has less room.
    pub fn message(&self, out: &mut [u8]) -> usize {
        let kind = match self.stage {
            Stage::Propose(_) => Kind::Proposal,
            Stage::Accept(_) => Kind::Acceptance,
            Stage::Tell(_) => Kind::Decision,
            _ => Kind::Report,
        };
        Message { kind, flags: self.flags, missing: () }.write(self.missing.words.borrow(), out)
    }

    /// The message of a [`Step::Send`] is on its way, or its receiver is gone.
    pub fn sent(&mut self) {
        self.stage = match self.stage {
            Stage::Propose(peer) => Stage::Propose(peer + 1),
            Stage::Tell(peer) => Stage::Tell(peer + 1),
            Stage::Report(leader) => Stage::Await(leader),
            Stage::Accept(leader) => Stage::Confirm(leader),
            stage => stage,
        };
    }

    /// The next message of the peer of a [`Step::Receive`].
    ///
    /// # Errors
    /// It breaks the rules, and nothing has changed: its sender has failed.
    pub fn received(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let message = Message::read(bytes, self.size)?;
        match (self.stage, message.kind) {
            // Others may have been told of a decision before a coordinator died.
            (Stage::Hear(peer), Kind::Decision) => self.stage = Stage::Hear(peer + 1),
            // It reported to us before it heard of a decision.
            (Stage::Hear(_), _) => {}
            (
                Stage::Gather(peer) | Stage::Collect(peer) | Stage::Await(peer) | Stage::Confirm(peer),
                Kind::Decision,
            ) => {
                self.adopt(&message);
                self.teller = Some(peer);
                self.stage = Stage::Tell(0);
            }
            (Stage::Gather(peer), Kind::Report) => {
                self.merge(&message);
                self.stage = Stage::Gather(peer + 1);
            }
            (Stage::Collect(peer), Kind::Acceptance) => self.stage = Stage::Collect(peer + 1),
            (Stage::Await(leader), Kind::Proposal) => {
                self.adopt(&message);
                self.stage = Stage::Accept(leader);
            }
            _ => return Err(Malformed),
        }
        Ok(())
    }

    /// The peer of a [`Step::Receive`] is gone, and every message that has come of it was given.
    pub fn failed(&mut self) {
        let (peer, then) = match self.stage {
            Stage::Gather(peer) | Stage::Collect(peer) | Stage::Hear(peer) => (peer, self.stage),
            Stage::Await(leader) | Stage::Confirm(leader) => (leader, Stage::Elect),
            _ => return,
        };
        self.lose(peer);
        self.stage = then;
    }

    /// What was agreed on, once [`Step::Done`] is reached.
    pub fn decision(&self) -> Option<Decision> {
        (self.stage == Stage::Done).then(|| self.current())
    }

    /// Whether a rank was agreed to be gone, when there is a [`Agreement::decision`].
    pub fn is_gone(&self, rank: PeerId) -> bool {
        self.missing.contains(rank)
    }

    /// Whether a rank was lost to this process, agreed on or not.
    pub fn is_lost(&self, rank: PeerId) -> bool {
        self.gone.contains(rank)
    }

    fn current(&self) -> Decision {
        Decision { flags: self.flags, excluded: self.missing.contains(self.rank) }
    }

    /// The first from `at` on that is another and not gone.
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
        // What was proposed stays as it is.
        if !self.accepted {
            self.missing.insert(rank);
        }
    }

    /// A report to the coordinator.
    fn merge(&mut self, report: &Message<impl Iterator<Item = u64> + Clone>) {
        if !self.accepted {
            self.flags &= report.flags;
            let words = self.missing.words.borrow_mut().iter_mut();
            words.zip(report.missing.clone()).for_each(|(word, more)| *word |= more);
        }
    }

    fn adopt(&mut self, message: &Message<impl Iterator<Item = u64> + Clone>) {
        self.accepted = true;
        self.flags = message.flags;
        let words = self.missing.words.borrow_mut().iter_mut();
        words.zip(message.missing.clone()).for_each(|(word, new)| *word = new);
    }
}
