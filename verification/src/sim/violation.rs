//! The findings of a simulation.

use std::fmt;

/// A broken promise, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) String);

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// The result of a check.
pub(crate) type Check = Result<(), Violation>;

/// Returns a [`Violation`] with these words from the function, unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($words:tt)+) => {
        if !$condition {
            return Err($crate::violation::Violation(format!($($words)+)));
        }
    };
}

pub(crate) use ensure;
