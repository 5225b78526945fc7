//! MPI's matching rules over two plain vectors, told what arrives and what is posted.

use std::collections::BTreeSet;
use std::vec;
use std::vec::Vec;

use crate::matching::{Pattern, Source};
use crate::port::PeerId;

/// A message by its source and its number among those that the source sent here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    /// For each source, the messages that have arrived, or were announced.
    arrived: Vec<usize>,
    /// Those whose bytes come later.
    announced: BTreeSet<Name>,
    /// Those of them whose bytes have all come along.
    along: BTreeSet<Name>,
    /// Those that a receive has matched.
    matched: BTreeSet<Name>,
    /// Sources that are gone.
    gone: BTreeSet<PeerId>,
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
        Self {
            posted: vec![],
            waiting: vec![],
            receives: vec![],
            arrived: vec![0; peers as usize],
            announced: BTreeSet::new(),
            along: BTreeSet::new(),
            matched: BTreeSet::new(),
            gone: BTreeSet::new(),
        }
    }

    pub(super) fn post(&mut self, pattern: Pattern) {
        let number = self.receives.len();
        match self.take(&pattern) {
            Some(name) => self.receive(name),
            None => {
                self.receives.push(Fate::Posted);
                self.posted.push((number, pattern));
            }
        }
    }

    /// The first message that waits and matches.
    pub(super) fn first(&self, pattern: &Pattern) -> Option<Name> {
        self.waiting.iter().find(|message| matches(pattern, message)).map(|message| message.name)
    }

    /// Takes it out of the queue.
    pub(super) fn take(&mut self, pattern: &Pattern) -> Option<Name> {
        let name = self.first(pattern)?;
        self.waiting.retain(|message| message.name != name);
        Some(name)
    }

    /// A receive of a message that was taken out.
    pub(super) fn receive(&mut self, name: Name) {
        self.matched.insert(name);
        self.receives.push(Fate::Matched(name));
    }

    /// Whether a receive would find its message waiting.
    pub(super) fn has(&self, pattern: &Pattern) -> bool {
        self.first(pattern).is_some()
    }

    /// The source's next message, whose bytes come later if it was announced.
    pub(super) fn arrive(&mut self, source: PeerId, context: u16, tag: u64, announced: bool) -> Name {
        let number = self.arrived[source as usize];
        self.arrived[source as usize] += 1;
        let name = Name { source, number };
        let message = Waiting { name, context, tag };
        if announced {
            self.announced.insert(name);
        }
        match self.posted.iter().position(|(_, pattern)| matches(pattern, &message)) {
            Some(at) => {
                self.matched.insert(name);
                self.receives[self.posted.remove(at).0] = Fate::Matched(name);
            }
            None => self.waiting.push(message),
        }
        name
    }

    pub(super) fn is_announced(&self, name: Name) -> bool {
        self.announced.contains(&name)
    }

    pub(super) fn is_matched(&self, name: Name) -> bool {
        self.matched.contains(&name)
    }

    /// All bytes of a message have come with its announcement.
    pub(super) fn came_along(&mut self, name: Name) {
        self.along.insert(name);
    }

    /// Whether nothing more will come of a message: it was announced, and its source is gone.
    pub(super) fn is_over(&self, name: Name) -> bool {
        self.is_announced(name) && self.gone.contains(&name.source)
    }

    /// Whether the bytes of a message may have gone with its source.
    pub(super) fn may_be_lost(&self, name: Name) -> bool {
        self.is_over(name) && !self.along.contains(&name)
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
        self.gone.insert(peer);
        let (announced, along) = (&self.announced, &self.along);
        let lost = |name: &Name| name.source == peer && announced.contains(name) && !along.contains(name);
        self.waiting.retain(|message| !lost(&message.name));
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
