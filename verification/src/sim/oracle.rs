//! MPI's matching rules (MPI 4.1, section 3.5) over two plain vectors: obviously correct, and slow.
//!
//! The oracle of a rank is told what is posted there and which peer's next message has come; which of two peers was first
//! is the fabric's choice, and the only thing that is taken from it. What a message is, its sender has said.

use crate::world::{Pattern, Source};

/// A message, by its source and its number among those that the source sent to this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) source: u32,
    pub(crate) number: usize,
}

/// A message that has come and that nobody has received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) name: Name,
    pub(crate) context: u16,
    pub(crate) tag: u64,
}

/// What became of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nothing yet.
    Posted,
    /// This message is its own.
    Matched(Name),
    Withdrawn,
    /// Whom it listened to is gone.
    Failed,
}

/// One rank.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    /// In the order of posting, by number.
    posted: Vec<(usize, Pattern)>,
    /// In the order of coming.
    waiting: Vec<Waiting>,
    /// Of every receive, by its number in the order of posting.
    fates: Vec<Fate>,
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
    /// A receive is posted; returns its number.
    pub(crate) fn post(&mut self, pattern: Pattern) -> usize {
        let number = self.fates.len();
        match self.waiting.iter().position(|message| matches(&pattern, message)) {
            Some(at) => self.fates.push(Fate::Matched(self.waiting.remove(at).name)),
            None => {
                self.fates.push(Fate::Posted);
                self.posted.push((number, pattern));
            }
        }
        number
    }

    /// A receive is posted that has its message already; returns its number.
    pub(crate) fn matched(&mut self, name: Name) -> usize {
        self.fates.push(Fate::Matched(name));
        self.fates.len() - 1
    }

    /// A message has come; returns the receive that it belongs to.
    pub(crate) fn arrive(&mut self, message: Waiting) -> Option<usize> {
        let Some(at) = self.would_take(&message) else {
            self.waiting.push(message);
            return None;
        };
        let (number, _) = self.posted.remove(at);
        self.fates[number] = Fate::Matched(message.name);
        Some(number)
    }

    fn would_take(&self, message: &Waiting) -> Option<usize> {
        self.posted.iter().position(|(_, pattern)| matches(pattern, message))
    }

    /// The receive that a message would find if it came now.
    pub(crate) fn awaits(&self, message: &Waiting) -> Option<usize> {
        self.would_take(message).map(|at| self.posted[at].0)
    }

    /// The message that a receive posted now would take.
    pub(crate) fn find(&self, pattern: &Pattern) -> Option<Name> {
        self.waiting.iter().find(|message| matches(pattern, message)).map(|message| message.name)
    }

    /// What became of a receive.
    pub(crate) fn fate(&self, receive: usize) -> Fate {
        self.fates[receive]
    }

    /// A receive is withdrawn; false when it is too late.
    pub(crate) fn withdraw(&mut self, receive: usize) -> bool {
        let withdrawn = self.fates[receive] == Fate::Posted;
        if withdrawn {
            self.fates[receive] = Fate::Withdrawn;
            self.posted.retain(|(number, _)| *number != receive);
        }
        withdrawn
    }

    /// A receive was never posted after all: the newest message, which it would have taken, waits.
    pub(crate) fn undo(&mut self, receive: usize, message: Waiting) {
        self.fates[receive] = Fate::Withdrawn;
        self.waiting.push(message);
    }

    /// A rank is gone: nobody listens to it any more, nor to anyone if that is what its failure means. Receives that
    /// are matched already are not concerned.
    pub(crate) fn fail(&mut self, peer: u32, concerns_any: bool) {
        let listens = |pattern: &Pattern| match pattern.source {
            Source::Any => concerns_any,
            Source::Rank(rank) => rank == peer,
        };
        for (number, _) in self.posted.iter().filter(|(_, pattern)| listens(pattern)) {
            self.fates[*number] = Fate::Failed;
        }
        self.posted.retain(|(_, pattern)| !listens(pattern));
    }

    /// A message that waits is not to be found any more: it was claimed, or will never be whole.
    pub(crate) fn forget(&mut self, name: Name) {
        self.waiting.retain(|message| message.name != name);
    }

    /// Receives that wait for a message.
    pub(crate) fn posted(&self) -> usize {
        self.posted.len()
    }

    /// Whether a receive with this context waits.
    pub(crate) fn listens_in(&self, context: u16) -> bool {
        self.posted.iter().any(|(_, pattern)| pattern.context == context)
    }

    /// Messages that wait for a receive, in the order they came.
    pub(crate) fn waiting(&self) -> &[Waiting] {
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
        assert_eq!(oracle.fate(late), Fate::Matched(Name { source: 1, number: 0 }));
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
        assert_eq!((oracle.fate(one), oracle.fate(any)), (Fate::Failed, Fate::Posted));
        oracle.fail(2, true);
        assert_eq!(oracle.fate(any), Fate::Failed);
        assert!(!oracle.withdraw(any));
    }
}
