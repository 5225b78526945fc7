//! Why the program ends early: one line, and an exit status.
#![forbid(unsafe_code)]

use std::fmt::Display;

/// Something was asked for that can't be used here.
const UNUSABLE: u8 = 2;
/// It was tried, and did not work.
const FAILED: u8 = 1;

/// Why the program ends early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: u8,
    pub(crate) message: String,
}

impl Failure {
    /// Something was asked for that can't be used here.
    pub(crate) fn unusable(message: impl Display) -> Self {
        Self { status: UNUSABLE, message: one_line(&message.to_string()) }
    }

    /// It was tried, and did not work.
    pub(crate) fn failed(message: impl Display) -> Self {
        Self { status: FAILED, message: one_line(&message.to_string()) }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line() {
        assert_eq!(Failure::failed("a\n  b\tc\n").message, "a b c");
    }
}
