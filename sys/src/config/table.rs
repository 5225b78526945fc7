//! Every variable: the one place that knows its name, its values, what it is for, and how it is read and written.
//!
//! A new variable is a field of [`Config`](super::Config), its default there, and an entry here. Files, environment,
//! [`Config::set`](super::Config::set), the C interface and `nemesia info` then know it.

use std::fmt::Display;
use std::str::FromStr;

use super::{Config, SingleCopy};
use crate::os::{HugePages, SegmentBacking};

/// A setting that has a name: in the environment, in a file, and for [`Config::set`](super::Config::set).
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// Values it takes, with the unit.
    pub values: &'static str,
    /// What it is for.
    pub help: &'static str,
    get: fn(&Config) -> String,
    set: fn(&mut Config, &str) -> Option<()>,
}

impl Variable {
    /// The variable of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        VARIABLES.iter().find(|variable| variable.name == name)
    }

    /// Its value in force.
    pub fn value(&self, config: &Config) -> String {
        (self.get)(config)
    }

    /// Its value where nobody has set it.
    pub fn default_value(&self) -> String {
        (self.get)(&Config::default())
    }

    /// Sets it; `None`, and nothing is changed, if it does not take this value.
    pub(super) fn set(&self, config: &mut Config, value: &str) -> Option<()> {
        (self.set)(config, value)
    }
}

/// What a value says that is left to the library.
const AUTO: &str = "auto";
/// What a value says of something that is not to be done at any size.
const NEVER: &str = "never";
const HUGE: &[(&str, HugePages)] =
    &[("never", HugePages::Never), ("try", HugePages::Try), ("require", HugePages::Require)];
const BACKING: &[(&str, SegmentBacking)] =
    &[("memfd", SegmentBacking::Memfd), ("devshm", SegmentBacking::DevShm)];
const SINGLE_COPY: &[(&str, SingleCopy)] = &[
    ("auto", SingleCopy::Auto),
    ("prefer", SingleCopy::Prefer),
    ("off", SingleCopy::Off),
    ("require", SingleCopy::Require),
];
const FLAG: &[(&str, bool)] = &[("0", false), ("1", true)];

/// Every variable, in the order in which they are listed.
pub const VARIABLES: &[Variable] = &[
    Variable {
        name: "NEMESIA_CELLS",
        values: "power of two, 4 to 4096",
        help: "cells in each process's pool",
        get: |config| config.cells.to_string(),
        set: |config, value| put(&mut config.cells, value.parse().ok()),
    },
    Variable {
        name: "NEMESIA_CELL_BYTES",
        values: "bytes, multiple of 64, 256 to 16777216",
        help: "payload of a cell",
        get: |config| config.cell_bytes.to_string(),
        set: |config, value| put(&mut config.cell_bytes, value.parse().ok()),
    },
    Variable {
        name: "NEMESIA_FASTBOX_SLOTS",
        values: "power of two, 4 to 4096",
        help: "slots of 32 bytes in each fastbox",
        get: |config| config.fastbox_slots.to_string(),
        set: |config, value| put(&mut config.fastbox_slots, value.parse().ok()),
    },
    Variable {
        name: "NEMESIA_FASTBOX_LIMIT",
        values: "bytes, or auto",
        help: "largest message that goes through a fastbox; auto is 256; no more is possible than what a quarter of the fastbox holds",
        get: |config| config.fastbox_bytes().to_string(),
        set: |config, value| put(&mut config.fastbox_limit, or_auto(value)),
    },
    Variable {
        name: "NEMESIA_UNEXPECTED_BYTES",
        values: "bytes, 65536 to 274877906944",
        help: "ceiling for messages that nobody has asked for yet, 64 bytes and more each",
        get: |config| config.unexpected_bytes.to_string(),
        set: |config, value| put(&mut config.unexpected_bytes, ranged(value, 64 << 10, 256 << 30)),
    },
    Variable {
        name: "NEMESIA_EAGER_BYTES",
        values: "bytes, 0 to 16777216",
        help: "largest message that is sent before it is asked for; capped by a cell",
        get: |config| config.eager_bytes.to_string(),
        set: |config, value| put(&mut config.eager_bytes, ranged(value, 0, 16 << 20)),
    },
    Variable {
        name: "NEMESIA_CREDIT_BYTES",
        values: "bytes, 4096 to 1073741824",
        help: "room that each peer is promised ahead of what it has sent; less when there is less room",
        get: |config| config.credit_bytes.to_string(),
        set: |config, value| put(&mut config.credit_bytes, ranged(value, 4096, 1 << 30)),
    },
    Variable {
        name: "NEMESIA_SINGLE_COPY",
        values: "auto, prefer, off or require",
        help: "whether large messages move in one copy, by reading the sender's memory through the kernel; auto is where that is faster, as is measured for each peer and size",
        get: |config| word_for(config.single_copy, SINGLE_COPY),
        set: |config, value| put(&mut config.single_copy, meaning(value, SINGLE_COPY)),
    },
    Variable {
        name: "NEMESIA_SHARE_BYTES",
        values: "bytes, or never",
        help: "smallest message that moves in one copy of which receiver and waiting sender each copy a part",
        get: |config| config.share_bytes.map_or_else(|| NEVER.to_owned(), |bytes| bytes.to_string()),
        set: |config, value| put(&mut config.share_bytes, or_never(value)),
    },
    Variable {
        name: "NEMESIA_SHARE_LEAST",
        values: "bytes, 4096 to 1073741824",
        help: "least that this process copies at once of a message that both sides copy; a quarter of what is left, if that is more",
        get: |config| config.share_pieces[0].to_string(),
        set: |config, value| put(&mut config.share_pieces[0], ranged(value, 4096, 1 << 30)),
    },
    Variable {
        name: "NEMESIA_SHARE_MOST",
        values: "bytes, 4096 to 1073741824",
        help: "most that this process copies at once of a message that both sides copy",
        get: |config| config.pieces().most().to_string(),
        set: |config, value| put(&mut config.share_pieces[1], ranged(value, 4096, 1 << 30)),
    },
    Variable {
        name: "NEMESIA_PULL_BYTES",
        values: "bytes, 4096 to 1073741824",
        help: "bytes of a message that are read from a peer's memory before others have their turn",
        get: |config| config.pull_bytes.to_string(),
        set: |config, value| put(&mut config.pull_bytes, ranged(value, 4096, 1 << 30)),
    },
    Variable {
        name: "NEMESIA_RUN_BYTES",
        values: "bytes, 0 to 1073741824",
        help: "runs of a list, on average, from which on a message is read into it run by run; into smaller ones it is streamed",
        get: |config| config.run_bytes.to_string(),
        set: |config, value| put(&mut config.run_bytes, ranged(value, 0, 1 << 30)),
    },
    Variable {
        name: "NEMESIA_NON_TEMPORAL_BYTES",
        values: "bytes, auto or never",
        help: "smallest message, put or get that this process copies past the caches, where it does not leave that to the kernel; auto is half of what the last cache holds",
        get: |config| from_or_never(config.copies_past_caches_from()),
        set: |config, value| put(&mut config.non_temporal_bytes, from_auto_or_never(value)),
    },
    Variable {
        name: "NEMESIA_PTRACER",
        values: "0 or 1",
        help: "let every process of this user read this one's memory, where Yama reserves that to ancestors",
        get: |config| word_for(config.ptracer, FLAG),
        set: |config, value| put(&mut config.ptracer, meaning(value, FLAG)),
    },
    Variable {
        name: "NEMESIA_REQUESTS",
        values: "64 to 16777216",
        help: "most requests under way at once",
        get: |config| config.requests.to_string(),
        set: |config, value| put(&mut config.requests, ranged(value, 64, 1 << 24)),
    },
    Variable {
        name: "NEMESIA_HUGE_PAGES",
        values: "never, try or require",
        help: "huge pages for the segments",
        get: |config| word_for(config.segments.huge, HUGE),
        set: |config, value| put(&mut config.segments.huge, meaning(value, HUGE)),
    },
    Variable {
        name: "NEMESIA_BACKING",
        values: "memfd or devshm",
        help: "what segments are made of; devshm needs room in /dev/shm and cannot be sealed",
        get: |config| word_for(config.segments.backing, BACKING),
        set: |config, value| put(&mut config.segments.backing, meaning(value, BACKING)),
    },
    Variable {
        name: "NEMESIA_LOCK_MEMORY",
        values: "0 or 1",
        help: "lock the segments into memory; needs a memlock limit to match",
        get: |config| word_for(config.segments.lock, FLAG),
        set: |config, value| put(&mut config.segments.lock, meaning(value, FLAG)),
    },
    Variable {
        name: "NEMESIA_SPIN",
        values: "polls, or auto",
        help: "polls without a message before a waiting process sleeps; auto is by load",
        get: |config| config.spin.map_or_else(|| AUTO.to_owned(), |polls| polls.to_string()),
        set: |config, value| put(&mut config.spin, or_auto(value)),
    },
    Variable {
        name: "NEMESIA_TIMEOUT",
        values: "seconds, 1 to 86400",
        help: "how long connecting to the peers may take, and flushing at the end",
        get: |config| config.timeout_seconds.to_string(),
        set: |config, value| put(&mut config.timeout_seconds, ranged(value, 1, 86_400)),
    },
    Variable {
        name: "NEMESIA_STRICT",
        values: "0 or 1",
        help: "a wish that can't be met is an error and not a note",
        get: |config| word_for(config.strict, FLAG),
        set: |config, value| put(&mut config.strict, meaning(value, FLAG)),
    },
    Variable {
        name: "NEMESIA_EXPLAIN",
        values: "0 or 1",
        help: "print at start, on the standard error output, how each peer is reached and why not otherwise",
        get: |config| word_for(config.explain, FLAG),
        set: |config, value| put(&mut config.explain, meaning(value, FLAG)),
    },
    Variable {
        name: "NEMESIA_TRACE",
        values: "0 to 16777216",
        help: "entries and exits of functions to keep for the call tree; needs a build with the feature `trace`",
        get: |config| config.trace.to_string(),
        set: |config, value| put(&mut config.trace, ranged(value, 0, 1 << 24)),
    },
];

fn put<T>(place: &mut T, value: Option<T>) -> Option<()> {
    *place = value?;
    Some(())
}

fn ranged<T: FromStr + PartialOrd>(value: &str, low: T, high: T) -> Option<T> {
    value.parse().ok().filter(|number| (low..=high).contains(number))
}

fn or_auto<T: FromStr>(value: &str) -> Option<Option<T>> {
    if value == AUTO { Some(None) } else { value.parse().ok().map(Some) }
}

fn or_never<T: FromStr>(value: &str) -> Option<Option<T>> {
    if value == NEVER { Some(None) } else { value.parse().ok().map(Some) }
}

fn from_auto_or_never(value: &str) -> Option<Option<u64>> {
    if value == NEVER { Some(Some(u64::MAX)) } else { or_auto(value) }
}

fn from_or_never(bytes: u64) -> String {
    if bytes == u64::MAX { NEVER.to_owned() } else { bytes.to_string() }
}

fn meaning<T: Copy>(value: &str, words: &[(&str, T)]) -> Option<T> {
    words.iter().find(|(word, _)| *word == value).map(|(_, meaning)| *meaning)
}

fn word_for<T: PartialEq + Copy>(value: T, words: &[(&str, T)]) -> String {
    words
        .iter()
        .find(|(_, meaning)| *meaning == value)
        .map_or_else(String::new, |(word, _)| (*word).to_owned())
}

/// Names beginning with `NEMESIA_` that are not settings: where settings are read from, what the launcher says, and what the
/// project's own tests use.
const OTHERS: [&str; 6] = [
    "NEMESIA_CONFIG",
    "NEMESIA_INCARNATION",
    "NEMESIA_BIN",
    "NEMESIA_BLESS",
    "NEMESIA_QUICK",
    "NEMESIA_SKIP_LOG",
];
const TESTS: &str = "NEMESIA_TEST_";

/// Whether a name is used by something else than the table.
pub(super) fn is_used_elsewhere(name: &str) -> bool {
    OTHERS.contains(&name) || name.starts_with(TESTS)
}

/// A name that does not exist, with the one that was probably meant.
pub(super) fn no_such(name: &str) -> impl Display + use<> {
    let names = VARIABLES.iter().map(|variable| variable.name).chain([super::file::VARIABLE]);
    let nearest = names.min_by_key(|known| strsim::damerau_levenshtein(known, name));
    // All names begin alike: more differences than a third of the rest, and it is another word.
    let is_near = |known: &&str| {
        strsim::damerau_levenshtein(known, name) <= (known.len() - "NEMESIA_".len()).div_ceil(3)
    };
    let remedy = match nearest.filter(is_near) {
        Some(known) => format!("did you mean {known}?"),
        None => "`nemesia info` lists those there are".to_owned(),
    };
    format!("there is no variable {name}: {remedy}")
}
