//! What a simulation finds.

use std::fmt;

/// A promise that was broken, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) String);

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Whether a promise holds.
pub(crate) type Check = Result<(), Violation>;

/// Leaves the function with a [`Violation`], in the words given, unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($words:tt)+) => {
        if !$condition {
            return Err($crate::violation::Violation(format!($($words)+)));
        }
    };
}

pub(crate) use ensure;
