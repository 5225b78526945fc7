//! MPI's matching rules over two plain vectors, told what arrives and what is posted.

use std::vec;
use std::vec::Vec;

use crate::matching::{Pattern, Source};
use crate::port::PeerId;

/// A message by its source and its number among those that the source sent here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) source: PeerId,
    pub(super) number: usize,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    name: Name,
    context: u16,
    tag: u64,
}

/// What became of a receive, by its number in the order of posting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Posted,
    Matched(Name),
    Withdrawn,
    Failed,
}

/// One rank.
#[derive(Debug)]
pub(super) struct Oracle {
    /// In the order of posting.
    posted: Vec<(usize, Pattern)>,
    /// In the order of arrival.
    waiting: Vec<Waiting>,
    pub(super) receives: Vec<Fate>,
    /// For each source, the messages that have begun to arrive, and the bytes still to come of the last.
    arrived: Vec<usize>,
    rest: Vec<u64>,
}

fn matches(pattern: &Pattern, message: &Waiting) -> bool {
    let source = match pattern.source {
        Source::Any => true,
        Source::Rank(rank) => rank == message.name.source,
    };
    source
        && pattern.context == message.context
        && (pattern.tag | pattern.ignore) == (message.tag | pattern.ignore)
}

impl Oracle {
    pub(super) fn new(peers: u32) -> Self {
        let peers = peers as usize;
        Self {
            posted: vec![],
            waiting: vec![],
            receives: vec![],
            arrived: vec![0; peers],
            rest: vec![0; peers],
        }
    }

    pub(super) fn post(&mut self, pattern: Pattern) {
        let number = self.receives.len();
        if let Some(at) = self.waiting.iter().position(|message| matches(&pattern, message)) {
            self.receives.push(Fate::Matched(self.waiting.remove(at).name));
        } else {
            self.receives.push(Fate::Posted);
            self.posted.push((number, pattern));
        }
    }

    /// Whether a receive would find its message waiting.
    pub(super) fn has(&self, pattern: &Pattern) -> bool {
        self.waiting.iter().any(|message| matches(pattern, message))
    }

    /// The first packet of the source's next message; `rest` bytes are still to come.
    pub(super) fn arrive(&mut self, source: PeerId, context: u16, tag: u64, rest: u64) -> Name {
        let number = self.arrived[source as usize];
        assert_eq!(self.rest[source as usize], 0, "a message begins before the last is whole");
        self.arrived[source as usize] += 1;
        self.rest[source as usize] = rest;
        let message = Waiting { name: Name { source, number }, context, tag };
        match self.posted.iter().position(|(_, pattern)| matches(pattern, &message)) {
            Some(at) => self.receives[self.posted.remove(at).0] = Fate::Matched(message.name),
            None => self.waiting.push(message),
        }
        message.name
    }

    pub(super) fn more(&mut self, source: PeerId, bytes: u64) {
        self.rest[source as usize] -= bytes;
    }

    /// Whether all of a message that a receive has matched is there.
    pub(super) fn is_whole(&self, name: Name) -> bool {
        let source = name.source as usize;
        name.number + 1 < self.arrived[source] || self.rest[source] == 0
    }

    pub(super) fn withdraw(&mut self, receive: usize) -> bool {
        let withdrawn = self.receives[receive] == Fate::Posted;
        if withdrawn {
            self.receives[receive] = Fate::Withdrawn;
            self.posted.retain(|(number, _)| *number != receive);
        }
        withdrawn
    }

    pub(super) fn fail(&mut self, peer: PeerId, concerns_any: bool) {
        if self.rest[peer as usize] > 0 {
            let half = Name { source: peer, number: self.arrived[peer as usize] - 1 };
            self.waiting.retain(|message| message.name != half);
            for fate in self.receives.iter_mut().filter(|fate| **fate == Fate::Matched(half)) {
                *fate = Fate::Failed;
            }
        }
        let listens = |pattern: &Pattern| match pattern.source {
            Source::Any => concerns_any,
            Source::Rank(rank) => rank == peer,
        };
        for (number, _) in self.posted.iter().filter(|(_, pattern)| listens(pattern)) {
            self.receives[*number] = Fate::Failed;
        }
        self.posted.retain(|(_, pattern)| !listens(pattern));
    }

    pub(super) fn posted(&self) -> usize {
        self.posted.len()
    }

    pub(super) fn listens_in(&self, context: u16) -> bool {
        self.posted.iter().any(|(_, pattern)| pattern.context == context)
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn arrived(&self, source: PeerId) -> usize {
        self.arrived[source as usize]
    }
}
