//! MPI's matching rules (MPI 4.1, section 3.5), for all programs that check an engine against them.
//!
//! | oracle | knows | used by |
//! |---|---|---|
//! | [`Oracle`] | the order of arrival of all messages of a rank | the simulation (`src/sim`) |
//! | [`MatchingOracle`] | what each sender sends to a rank, and no order between senders | the conformance suite |
//!
//! [`Oracle`] is two plain vectors, obviously correct and slow. It gets the posted receives and the source of each
//! message that arrives. Only the choice between two senders is taken from the port. The sender has declared the
//! message itself.
#![forbid(unsafe_code)]

mod after;

pub use after::{ExpectedMessage, MatchingOracle};

use nemesia_core::matching::{Pattern, Source};

/// A message, by its source and its number among those that the source sent to this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The rank that has sent it.
    pub source: u32,
    /// Its number among the messages of the source to this rank.
    pub number: usize,
}

/// A message that has arrived and was not received.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// The message.
    pub name: Name,
    /// Its matching context.
    pub context: u16,
    /// Its tag.
    pub tag: u64,
}

/// The result of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageEnd {
    /// No result yet.
    Posted,
    /// It has matched this message.
    Matched(Name),
    /// It was withdrawn before a message has matched it.
    Withdrawn,
    /// Its source is gone.
    Failed,
}

/// The state of one rank.
#[derive(Debug, Default)]
pub struct Oracle {
    /// Posted receives by number, in the order of posting.
    posted: Vec<(usize, Pattern)>,
    /// Waiting messages, in the order of arrival.
    waiting: Vec<Waiting>,
    /// The result of each receive, by its number in the order of posting.
    message_ends: Vec<MessageEnd>,
}

/// Returns whether a receive with this pattern may take a message. No code of the engine decides that.
pub fn matches(pattern: &Pattern, source: u32, (context, tag): (u16, u64)) -> bool {
    let accepts = match pattern.source {
        Source::Any => true,
        Source::Rank(rank) => rank == source,
    };
    accepts && pattern.context == context && (pattern.tag | pattern.ignore) == (tag | pattern.ignore)
}

impl Waiting {
    fn is_for(&self, pattern: &Pattern) -> bool {
        matches(pattern, self.name.source, (self.context, self.tag))
    }
}

impl Oracle {
    /// Posts a receive. Returns its number.
    pub fn post(&mut self, pattern: Pattern) -> usize {
        let number = self.message_ends.len();
        match self.waiting.iter().position(|message| message.is_for(&pattern)) {
            Some(at) => self.message_ends.push(MessageEnd::Matched(self.waiting.remove(at).name)),
            None => {
                self.message_ends.push(MessageEnd::Posted);
                self.posted.push((number, pattern));
            }
        }
        number
    }

    /// Posts a receive that has its message already. Returns its number.
    pub fn matched(&mut self, name: Name) -> usize {
        self.message_ends.push(MessageEnd::Matched(name));
        self.message_ends.len() - 1
    }

    /// Delivers a message. Returns the receive that takes it.
    pub fn arrive(&mut self, message: Waiting) -> Option<usize> {
        let Some(at) = self.would_take(&message) else {
            self.waiting.push(message);
            return None;
        };
        let (number, _) = self.posted.remove(at);
        self.message_ends[number] = MessageEnd::Matched(message.name);
        Some(number)
    }

    fn would_take(&self, message: &Waiting) -> Option<usize> {
        self.posted.iter().position(|(_, pattern)| message.is_for(pattern))
    }

    /// Returns the receive that a message would match if it arrived now.
    pub fn awaits(&self, message: &Waiting) -> Option<usize> {
        self.would_take(message).map(|at| self.posted[at].0)
    }

    /// Returns the message that a receive would take if it were posted now.
    pub fn find(&self, pattern: &Pattern) -> Option<Name> {
        self.waiting.iter().find(|message| message.is_for(pattern)).map(|message| message.name)
    }

    /// Returns the result of a receive.
    pub fn message_end(&self, receive: usize) -> MessageEnd {
        self.message_ends[receive]
    }

    /// Withdraws a receive. Returns false if it is too late.
    pub fn withdraw(&mut self, receive: usize) -> bool {
        let withdrawn = self.message_ends[receive] == MessageEnd::Posted;
        if withdrawn {
            self.message_ends[receive] = MessageEnd::Withdrawn;
            self.posted.retain(|(number, _)| *number != receive);
        }
        withdrawn
    }

    /// Removes a receive that was never posted after all: the newest message, which it would have taken, waits.
    pub fn undo(&mut self, receive: usize, message: Waiting) {
        self.message_ends[receive] = MessageEnd::Withdrawn;
        self.waiting.push(message);
    }

    /// Fails a rank: receives from it fail, and receives from any source too if its failure means that.
    /// Receives that have matched are unaffected.
    pub fn fail(&mut self, peer: u32, concerns_any: bool) {
        let listens = |pattern: &Pattern| match pattern.source {
            Source::Any => concerns_any,
            Source::Rank(rank) => rank == peer,
        };
        for (number, _) in self.posted.iter().filter(|(_, pattern)| listens(pattern)) {
            self.message_ends[*number] = MessageEnd::Failed;
        }
        self.posted.retain(|(_, pattern)| !listens(pattern));
    }

    /// Removes a waiting message: it was claimed, or will never be whole.
    pub fn forget(&mut self, name: Name) {
        self.waiting.retain(|message| message.name != name);
    }

    /// Returns the number of receives that wait for a message.
    pub fn posted(&self) -> usize {
        self.posted.len()
    }

    /// Returns whether a receive with this context waits.
    pub fn listens_in(&self, context: u16) -> bool {
        self.posted.iter().any(|(_, pattern)| pattern.context == context)
    }

    /// Returns the messages that wait for a receive, in the order of arrival.
    pub fn waiting(&self) -> &[Waiting] {
        &self.waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(source: Source, tag: u64, ignore: u64) -> Pattern {
        Pattern { source, context: 1, tag, ignore }
    }

    fn message(source: u32, number: usize, tag: u64) -> Waiting {
        Waiting { name: Name { source, number }, context: 1, tag }
    }

    #[test]
    fn first_receive_takes_first_message() {
        let mut oracle = Oracle::default();
        let any = oracle.post(pattern(Source::Any, 4, 3));
        let exact = oracle.post(pattern(Source::Rank(2), 6, 0));
        assert_eq!((oracle.awaits(&message(2, 0, 6)), oracle.awaits(&message(1, 0, 8))), (Some(any), None));
        assert_eq!(oracle.arrive(message(1, 0, 8)), None);
        assert_eq!(oracle.arrive(message(2, 0, 6)), Some(any));
        assert_eq!(oracle.arrive(message(2, 1, 6)), Some(exact));
        oracle.arrive(message(2, 2, 8));
        assert_eq!(oracle.find(&pattern(Source::Rank(2), 8, 0)), Some(Name { source: 2, number: 2 }));
        let late = oracle.post(pattern(Source::Any, 0, u64::MAX));
        assert_eq!(oracle.message_end(late), MessageEnd::Matched(Name { source: 1, number: 0 }));
        assert_eq!((oracle.waiting().len(), oracle.posted()), (1, 0));
    }

    #[test]
    fn contexts_do_not_mix() {
        let mut oracle = Oracle::default();
        oracle.post(pattern(Source::Any, 0, u64::MAX));
        assert_eq!(oracle.arrive(Waiting { context: 2, ..message(0, 0, 0) }), None);
        assert!(oracle.listens_in(1) && !oracle.listens_in(2));
    }

    #[test]
    fn failure_ends_those_who_listen() {
        let mut oracle = Oracle::default();
        let (one, any) =
            (oracle.post(pattern(Source::Rank(1), 0, 0)), oracle.post(pattern(Source::Any, 0, 0)));
        oracle.fail(1, false);
        assert_eq!(
            (oracle.message_end(one), oracle.message_end(any)),
            (MessageEnd::Failed, MessageEnd::Posted)
        );
        oracle.fail(2, true);
        assert_eq!(oracle.message_end(any), MessageEnd::Failed);
        assert!(!oracle.withdraw(any));
    }
}
