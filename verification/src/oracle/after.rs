//! MPI's matching rules, checked at one rank after the fact.
//!
//! A rank cannot know in which order messages of different senders arrive, so the oracle predicts nothing. It
//! checks what the rules exclude:
//!
//! - a message is received once, by a receive whose pattern matches it;
//! - if a receive takes a message, each earlier message of that sender that its pattern matches was taken by an
//!   earlier receive;
//! - a message that a later receive has taken did not match an earlier one that was still posted.

use nemesia_core::matching::Pattern;

use super::{Name, matches};

/// A message that a sender sends to this rank.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedMessage {
    /// The tag; it is unique among the messages of the sender.
    pub tag: u64,
    /// The length in bytes.
    pub len: usize,
    /// The receive that has taken it.
    taken: Option<usize>,
    /// The time at which that was seen.
    seen: u64,
}

impl ExpectedMessage {
    /// Returns a message that was not received yet.
    pub const fn new(tag: u64, len: usize) -> Self {
        Self { tag, len, taken: None, seen: 0 }
    }
}

/// A receive, or a matched probe that has found a message.
#[derive(Clone, Copy, Debug)]
struct PostedPattern {
    pattern: Pattern,
    /// The message that it has taken.
    taken: Option<Name>,
    /// The time at which it was withdrawn.
    withdrawn: Option<u64>,
}

/// What one rank has posted and received since the world was at rest.
#[derive(Debug, Default)]
pub struct MatchingOracle {
    messages: Vec<Vec<ExpectedMessage>>,
    posted: Vec<PostedPattern>,
    now: u64,
}

/// Returns whether a pattern matches a message in its context.
fn accepts(pattern: &Pattern, from: u32, tag: u64) -> bool {
    matches(pattern, from, (pattern.context, tag))
}

impl MatchingOracle {
    /// Returns the oracle of a rank to which each rank sends these messages, in this order.
    pub const fn new(messages: Vec<Vec<ExpectedMessage>>) -> Self {
        Self { messages, posted: Vec::new(), now: 0 }
    }

    /// Records a receive. Returns its number.
    pub fn post(&mut self, pattern: Pattern) -> usize {
        self.now += 1;
        self.posted.push(PostedPattern { pattern, taken: None, withdrawn: None });
        self.posted.len() - 1
    }

    /// Records that a receive was withdrawn.
    pub fn withdraw(&mut self, receive: usize) {
        self.now += 1;
        self.posted[receive].withdrawn = Some(self.now);
    }

    /// Records that a receive has taken a message. Returns the length of the message.
    ///
    /// # Errors
    /// There is no such message, another receive has taken it, or the pattern does not match it.
    pub fn take(&mut self, receive: usize, from: u32, tag: u64) -> Result<usize, String> {
        self.now += 1;
        let what = || format!("a message of {from} with tag {tag:#x}");
        let messages = self.messages.get_mut(from as usize).ok_or_else(what)?;
        let number = messages.iter().position(|message| message.tag == tag);
        let number = number.ok_or_else(|| format!("{}, which was not sent", what()))?;
        let PostedPattern { pattern, taken, .. } = &mut self.posted[receive];
        if !accepts(pattern, from, tag) {
            return Err(format!("{} does not match {pattern:?}", what()));
        }
        if messages[number].taken.is_some() {
            return Err(format!("{} is received twice", what()));
        }
        *taken = Some(Name { source: from, number });
        (messages[number].taken, messages[number].seen) = (Some(receive), self.now);
        Ok(messages[number].len)
    }

    /// Returns sender and message of each message that was not received yet.
    pub fn missing(&self) -> Vec<(u32, ExpectedMessage)> {
        let all = (0..).zip(&self.messages);
        let each = all.flat_map(|(from, messages)| messages.iter().map(move |message| (from, *message)));
        each.filter(|(_, message)| message.taken.is_none()).collect()
    }

    /// Returns the length of a message that a probe has found.
    ///
    /// # Errors
    /// No such message can be in the queue.
    pub fn probed(&self, pattern: &Pattern, from: u32, tag: u64) -> Result<usize, String> {
        let what = || format!("a probe finds a message of {from} with tag {tag:#x}");
        let messages = self.messages.get(from as usize).ok_or_else(what)?;
        let found = messages.iter().find(|message| message.tag == tag && message.taken.is_none());
        let found = found.filter(|_| accepts(pattern, from, tag));
        found.map(|message| message.len).ok_or_else(what)
    }

    /// Checks the order of everything that was received.
    ///
    /// # Errors
    /// The rule that was broken.
    pub fn check(&self) -> Result<(), String> {
        for (receive, it) in self.posted.iter().enumerate() {
            if let Some(name) = it.taken {
                self.check_earlier(receive, name)?;
            }
            if let Some(withdrawn) = it.withdrawn {
                self.check_withdrawn(receive, withdrawn)?;
            }
        }
        Ok(())
    }

    /// Checks that no earlier message of the same sender was left over for a later receive.
    fn check_earlier(&self, receive: usize, name: Name) -> Result<(), String> {
        let PostedPattern { pattern, .. } = self.posted[receive];
        for earlier in &self.messages[name.source as usize][..name.number] {
            let overtaken = earlier.taken.is_none_or(|by| by > receive);
            if overtaken && accepts(&pattern, name.source, earlier.tag) {
                return Err(format!(
                    "receive {receive} for {pattern:?} took {name:?}, but {earlier:?} came first"
                ));
            }
        }
        Ok(())
    }

    /// Checks that no message that a receive matched while it was posted went to a later one.
    fn check_withdrawn(&self, receive: usize, withdrawn: u64) -> Result<(), String> {
        let PostedPattern { pattern, .. } = self.posted[receive];
        for (from, messages) in (0..).zip(&self.messages) {
            for message in messages {
                let later = message.taken.is_some_and(|by| by > receive) && message.seen < withdrawn;
                if later && accepts(&pattern, from, message.tag) {
                    return Err(format!(
                        "{message:?} of {from} passed receive {receive} for {pattern:?}, which was posted"
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nemesia_core::matching::Source;

    use super::*;

    fn oracle() -> MatchingOracle {
        let message = |tag| ExpectedMessage::new(tag, 8);
        MatchingOracle::new(vec![vec![message(1), message(2), message(3)], vec![message(1)]])
    }

    const fn pattern(source: Source, ignore: u64) -> Pattern {
        Pattern { source, context: 0, tag: 2, ignore }
    }

    #[test]
    fn what_the_rules_allow_passes() {
        let mut oracle = oracle();
        let (any, two) = (oracle.post(pattern(Source::Any, u64::MAX)), oracle.post(pattern(Source::Any, 0)));
        assert_eq!((oracle.take(two, 0, 2), oracle.take(any, 1, 1)), (Ok(8), Ok(8)));
        let rest = oracle.post(pattern(Source::Rank(0), u64::MAX));
        assert_eq!(oracle.take(rest, 0, 1), Ok(8));
        assert_eq!(oracle.missing().len(), 1);
        // The message that `two` took matched `rest` as well, but `two` was posted before.
        assert_eq!(oracle.check(), Ok(()));
    }

    #[test]
    fn a_message_received_twice_or_by_a_wrong_receive_is_found() {
        let mut oracle = oracle();
        let (first, two) =
            (oracle.post(pattern(Source::Any, u64::MAX)), oracle.post(pattern(Source::Any, 0)));
        assert!(oracle.take(two, 0, 1).is_err() && oracle.take(two, 0, 9).is_err());
        assert!(oracle.take(first, 0, 1).is_ok() && oracle.take(first, 0, 1).is_err());
    }

    #[test]
    fn a_message_that_overtakes_is_found() {
        let mut oracle = oracle();
        let (one, two) =
            (oracle.post(pattern(Source::Rank(0), u64::MAX)), oracle.post(pattern(Source::Any, u64::MAX)));
        assert!(oracle.take(one, 0, 2).is_ok() && oracle.take(two, 0, 1).is_ok());
        assert!(oracle.check().is_err());
    }

    #[test]
    fn a_message_that_passes_a_posted_receive_is_found() {
        let mut oracle = oracle();
        let (posted, later) =
            (oracle.post(pattern(Source::Any, u64::MAX)), oracle.post(pattern(Source::Rank(0), u64::MAX)));
        assert!(oracle.take(later, 0, 1).is_ok());
        oracle.withdraw(posted);
        assert!(oracle.check().is_err());
    }
}
