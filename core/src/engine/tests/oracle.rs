//! MPI's matching rules over two plain vectors. The test reports arrivals and posted receives to the oracle.

use std::collections::BTreeSet;
use std::vec;
use std::vec::Vec;

use crate::matching::{Pattern, Source};
use crate::port::PeerId;

/// A message, by its source and its number among the messages of that source to this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) source: PeerId,
    pub(super) number: usize,
}

#[derive(Clone, Copy, Debug)]
struct WaitingReceive {
    name: Name,
    context: u16,
    tag: u64,
}

/// The state of a receive, which is identified by its number in the order of posting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageEnd {
    Posted,
    Matched(Name),
    Withdrawn,
    Failed,
}

/// The oracle of one rank.
#[derive(Debug)]
pub(super) struct Oracle {
    /// Posted receives, in the order of posting.
    posted: Vec<(usize, Pattern)>,
    /// Stored messages, in the order of arrival.
    waiting: Vec<WaitingReceive>,
    pub(super) receives: Vec<MessageEnd>,
    /// For each source, the messages that have arrived or were announced.
    arrived: Vec<usize>,
    /// Messages that were announced.
    announced: BTreeSet<Name>,
    /// Announced messages whose bytes all travelled with the announcement.
    along: BTreeSet<Name>,
    /// Messages that a receive has matched.
    matched: BTreeSet<Name>,
    /// Sources that failed.
    gone: BTreeSet<PeerId>,
}

fn matches(pattern: &Pattern, message: &WaitingReceive) -> bool {
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
                self.receives.push(MessageEnd::Posted);
                self.posted.push((number, pattern));
            }
        }
    }

    /// Returns the first stored message that matches.
    pub(super) fn first(&self, pattern: &Pattern) -> Option<Name> {
        self.waiting.iter().find(|message| matches(pattern, message)).map(|message| message.name)
    }

    /// Removes the first matching message from the queue.
    pub(super) fn take(&mut self, pattern: &Pattern) -> Option<Name> {
        let name = self.first(pattern)?;
        self.waiting.retain(|message| message.name != name);
        Some(name)
    }

    /// Receives a message that was removed from the queue.
    pub(super) fn receive(&mut self, name: Name) {
        self.matched.insert(name);
        self.receives.push(MessageEnd::Matched(name));
    }

    /// Returns whether a receive would find a stored message.
    pub(super) fn has(&self, pattern: &Pattern) -> bool {
        self.first(pattern).is_some()
    }

    /// Records the next message of a source. If it was announced, its bytes arrive later.
    pub(super) fn arrive(&mut self, source: PeerId, context: u16, tag: u64, announced: bool) -> Name {
        let number = self.arrived[source as usize];
        self.arrived[source as usize] += 1;
        let name = Name { source, number };
        let message = WaitingReceive { name, context, tag };
        if announced {
            self.announced.insert(name);
        }
        match self.posted.iter().position(|(_, pattern)| matches(pattern, &message)) {
            Some(at) => {
                self.matched.insert(name);
                self.receives[self.posted.remove(at).0] = MessageEnd::Matched(name);
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

    /// Records that all bytes of a message travelled with its announcement.
    pub(super) fn came_along(&mut self, name: Name) {
        self.along.insert(name);
    }

    /// Returns whether no more bytes of a message will arrive: it was announced, and its source failed.
    pub(super) fn is_over(&self, name: Name) -> bool {
        self.is_announced(name) && self.gone.contains(&name.source)
    }

    /// Returns whether the bytes of a message may be lost with its source.
    pub(super) fn may_be_lost(&self, name: Name) -> bool {
        self.is_over(name) && !self.along.contains(&name)
    }

    pub(super) fn withdraw(&mut self, receive: usize) -> bool {
        let withdrawn = self.receives[receive] == MessageEnd::Posted;
        if withdrawn {
            self.receives[receive] = MessageEnd::Withdrawn;
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
            self.receives[*number] = MessageEnd::Failed;
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
