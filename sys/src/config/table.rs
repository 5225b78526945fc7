//! Every variable: the one place that knows its name, its values, what it is for, and how it is read and written.
//!
//! A new variable is a field of [`Config`](super::Config), its default there, and an entry here. Files, environment,
//! [`Config::set`](super::Config::set), the C interface and `nemesia info` then know it.

use std::fmt::Display;
use std::str::FromStr;

use nemesia_core::shared::layout::Geometry;

use super::{Config, SingleCopy, Stores};
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
const CELL_STORES: &[(&str, Stores)] = &[
    ("auto", Stores::Learned),
    ("cached", Stores::Cached),
    ("warmed", Stores::Warmed),
    ("past-caches", Stores::PastCaches),
];
const SINGLE_COPY: &[(&str, SingleCopy)] = &[
    ("auto", SingleCopy::Auto),
    ("prefer", SingleCopy::Prefer),
    ("off", SingleCopy::Off),
    ("require", SingleCopy::Require),
];
const FLAG: &[(&str, bool)] = &[("0", false), ("1", true)];
/// Sizes that segments can have.
const POSSIBLE: Geometry = Geometry { peers: 1, cells: 64, cell_bytes: 4096, fastbox_slots: 64 };

/// A number between two bounds, which its values name.
macro_rules! number {
    ($name:literal, $unit:literal, ($low:literal, $high:literal), $field:ident, $help:literal) => {
        Variable {
            name: $name,
            values: concat!($unit, $low, " to ", $high),
            help: $help,
            get: |config| config.$field.to_string(),
            set: |config, value| put(&mut config.$field, ranged(value, $low, $high)),
        }
    };
}

/// One of some words.
macro_rules! words {
    ($name:literal, $values:literal, $words:ident, $($field:ident).+, $help:literal) => {
        Variable {
            name: $name,
            values: $values,
            help: $help,
            get: |config| word_for(config.$($field).+, $words),
            set: |config, value| put(&mut config.$($field).+, meaning(value, $words)),
        }
    };
}

/// A size on which all processes of a world have to agree, and which their segments can have.
macro_rules! agreed {
    ($name:literal, $values:literal, $field:ident, $help:literal) => {
        Variable {
            name: $name,
            values: $values,
            help: $help,
            get: |config| config.$field.to_string(),
            set: |config, value| {
                let $field = value.parse().ok()?;
                Geometry { $field, ..POSSIBLE }.validate().ok()?;
                put(&mut config.$field, Some($field))
            },
        }
    };
}

/// Every variable, in the order in which they are listed.
pub const VARIABLES: &[Variable] = &[
    agreed!("NEMESIA_CELLS", "a power of two, 4 to 4096", cells, "cells in each process's pool"),
    agreed!(
        "NEMESIA_CELL_BYTES",
        "bytes, a multiple of 64, 256 to 16777216",
        cell_bytes,
        "payload of a cell"
    ),
    agreed!(
        "NEMESIA_FASTBOX_SLOTS",
        "a power of two, 4 to 4096",
        fastbox_slots,
        "slots of 32 bytes in each fastbox"
    ),
    Variable {
        name: "NEMESIA_FASTBOX_LIMIT",
        values: "bytes, or auto",
        help: "largest message that goes through a fastbox; auto is 232; no more is possible than what a quarter of the fastbox holds",
        get: |config| config.fastbox_bytes().to_string(),
        set: |config, value| put(&mut config.fastbox_limit, or_auto(value)),
    },
    number!(
        "NEMESIA_UNEXPECTED_BYTES",
        "bytes, ",
        (65536, 274877906944),
        unexpected_bytes,
        "ceiling for messages that nobody has asked for yet, 64 bytes and more each"
    ),
    number!(
        "NEMESIA_EAGER_BYTES",
        "bytes, ",
        (0, 16777216),
        eager_bytes,
        "largest message that is sent before it is asked for; capped by a cell"
    ),
    number!(
        "NEMESIA_CREDIT_BYTES",
        "bytes, ",
        (4096, 1073741824),
        credit_bytes,
        "room that each peer is promised ahead of what it has sent; less when there is less room"
    ),
    words!(
        "NEMESIA_SINGLE_COPY",
        "auto, prefer, off or require",
        SINGLE_COPY,
        single_copy,
        "whether large messages move in one copy, by reading the sender's memory through the kernel; auto is where that is faster, as is measured for each peer and size"
    ),
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
    number!(
        "NEMESIA_PULL_BYTES",
        "bytes, ",
        (4096, 1073741824),
        pull_bytes,
        "bytes of a message that are read from a peer's memory before others have their turn"
    ),
    number!(
        "NEMESIA_RUN_BYTES",
        "bytes, ",
        (0, 1073741824),
        run_bytes,
        "runs of a list, on average, from which on a message is read into it run by run; into smaller ones it is streamed"
    ),
    Variable {
        name: "NEMESIA_NON_TEMPORAL_BYTES",
        values: "bytes, auto or never",
        help: "smallest message, put or get that this process copies past the caches, where it does not leave that to the kernel; auto is half of what the last cache holds",
        get: |config| from_or_never(config.copies_past_caches_from()),
        set: |config, value| put(&mut config.non_temporal_bytes, from_auto_or_never(value)),
    },
    words!(
        "NEMESIA_CELL_STORES",
        "auto, cached, warmed or past-caches",
        CELL_STORES,
        cell_stores,
        "how this process fills cells of 256 bytes and more: with plain stores, with such to lines that were taken back from the receiver's core while nothing came, or with stores that go past the caches; auto is as is fastest, as is measured for each peer and size"
    ),
    words!(
        "NEMESIA_PTRACER",
        "0 or 1",
        FLAG,
        ptracer,
        "let every process of this user read this one's memory, where Yama reserves that to ancestors"
    ),
    number!("NEMESIA_REQUESTS", "", (64, 16777216), requests, "most requests under way at once"),
    words!(
        "NEMESIA_HUGE_PAGES",
        "never, try or require",
        HUGE,
        segments.huge,
        "huge pages for segments that peers do not write"
    ),
    words!(
        "NEMESIA_BACKING",
        "memfd or devshm",
        BACKING,
        segments.backing,
        "what segments are made of; devshm needs room in /dev/shm and cannot be sealed"
    ),
    words!(
        "NEMESIA_LOCK_MEMORY",
        "0 or 1",
        FLAG,
        segments.lock,
        "lock the segments into memory; needs a memlock limit to match"
    ),
    Variable {
        name: "NEMESIA_SPIN",
        values: "polls, at most 4294967295, or auto",
        help: "polls without a message before a waiting process sleeps; auto is by load",
        get: |config| config.spin.map_or_else(|| AUTO.to_owned(), |polls| polls.to_string()),
        set: |config, value| put(&mut config.spin, or_auto(value)),
    },
    number!(
        "NEMESIA_TIMEOUT",
        "seconds, ",
        (1, 86400),
        timeout_seconds,
        "how long connecting to the peers may take, and flushing at the end"
    ),
    words!("NEMESIA_STRICT", "0 or 1", FLAG, strict, "a wish that can't be met is an error and not a note"),
    words!(
        "NEMESIA_EXPLAIN",
        "0 or 1",
        FLAG,
        explain,
        "print at start, on the standard error output, how each peer is reached and why not otherwise"
    ),
    number!(
        "NEMESIA_TRACE",
        "",
        (0, 16777216),
        trace,
        "entries and exits of functions to keep for the call tree; needs a build with the feature `trace`"
    ),
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
