//! An early end of the program: one line, and an exit status.
#![forbid(unsafe_code)]

use std::fmt::Display;

/// Exit status: the request cannot be met here.
const UNUSABLE: u8 = 2;
/// Exit status: the attempt failed.
const FAILED: u8 = 1;

/// The reason for an early end of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: u8,
    pub(crate) message: String,
}

impl Failure {
    /// Makes a failure for a request that cannot be met here.
    pub(crate) fn unusable(message: impl Display) -> Self {
        Self { status: UNUSABLE, message: one_line(&message.to_string()) }
    }

    /// Makes a failure for an attempt that failed.
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
