//! Whether a process answers its peer, or sends a stream.
#![forbid(unsafe_code)]

/// Limit of the counter of [`Turns`].
const TURNS: u8 = 16;

/// A counter that rises with each message sent after one from the peer, and falls with each other message. Messages
/// count as answers when it exceeds three quarters of its limit, and until it falls to one quarter.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turns {
    count: u8,
    answers: bool,
}

impl Turns {
    /// Takes note of a message that is sent, and returns whether it is an answer. `has_heard` is whether a message of
    /// the peer has arrived since the last one.
    #[inline(always)]
    pub(crate) fn take(&mut self, has_heard: bool) -> bool {
        self.count = if has_heard { TURNS.min(self.count + 1) } else { self.count.saturating_sub(1) };
        self.answers = self.count > if self.answers { TURNS / 4 } else { 3 * TURNS / 4 };
        self.answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_needs_several_messages() {
        let mut turns = Turns::default();
        let answers = [true; 14].map(|heard| turns.take(heard));
        assert_eq!(answers.iter().position(|it| *it), Some(12));
        let stream = [false; 14].map(|heard| turns.take(heard));
        assert_eq!(stream.iter().position(|it| !*it), Some(9));
    }
}
