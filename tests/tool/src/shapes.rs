//! How the bytes of a message lie in memory.
#![forbid(unsafe_code)]

use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The bytes between two runs: more than a page, and no multiple of one, so that no two runs share a page or an
/// alignment.
pub(crate) const GAP: usize = 4096 + 64;
const MOST_RUNS: usize = 64;

/// How the bytes of a message lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ListShape {
    /// In one run.
    Whole,
    /// A header of so many bytes, and the rest.
    Header(usize),
    /// So many runs of nearly equal length.
    Equal(usize),
}

/// The shapes of a message at its sender and at its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListShapes {
    pub(crate) from: ListShape,
    pub(crate) to: ListShape,
}

impl FromStr for ListShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("{text}: write `whole`, a header as `64+`, or equal runs as `/8`");
        let number = |digits: &str| digits.parse::<usize>().map_err(|_| unknown());
        match (text.strip_suffix('+'), text.strip_prefix('/')) {
            _ if text == "whole" => Ok(Self::Whole),
            (Some(header), None) => number(header).map(Self::Header),
            (None, Some(count)) => match number(count)? {
                count @ 2..=MOST_RUNS => Ok(Self::Equal(count)),
                _ => Err(format!("{text}: from 2 to {MOST_RUNS} runs")),
            },
            _ => Err(unknown()),
        }
    }
}

impl FromStr for ListShapes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (from, to) =
            text.split_once(':').ok_or("write the sender's shape, a colon, the receiver's shape")?;
        Ok(Self { from: from.parse()?, to: to.parse()? })
    }
}

impl ListShape {
    /// Returns the runs of a message in a buffer, which may be empty.
    pub(crate) fn runs(self, bytes: usize) -> Vec<Range<usize>> {
        let ends: Vec<usize> = match self {
            Self::Whole => vec![bytes],
            Self::Header(header) => vec![header.min(bytes), bytes],
            Self::Equal(count) => (1..=count).map(|part| part * bytes / count).collect(),
        };
        let starts = std::iter::once(0).chain(ends.iter().copied());
        starts.zip(&ends).enumerate().map(|(at, (start, end))| start + at * GAP..end + at * GAP).collect()
    }

    /// Returns the bytes of a buffer for messages of at most `most` bytes.
    pub(crate) fn room(self, most: usize) -> usize {
        self.runs(most).last().map_or(0, |run| run.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_as_they_are_written() {
        let shapes = |from, to| Ok(ListShapes { from, to });
        assert_eq!("64+:whole".parse(), shapes(ListShape::Header(64), ListShape::Whole));
        assert_eq!("/8:/2".parse(), shapes(ListShape::Equal(8), ListShape::Equal(2)));
        for wrong in
            ["", "whole", "64:whole", "/1:whole", "/65:whole", "+:whole", "whole:", "/:whole", "/8+:whole"]
        {
            assert!(wrong.parse::<ListShapes>().is_err(), "{wrong}");
        }
    }
}
