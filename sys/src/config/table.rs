//! Every variable: the one place that knows its name, its values and its purpose, and reads and writes it.
//!
//! A new variable is a field of [`Config`](super::Config), its default there, and an entry here. Files, environment,
//! [`Config::set`](super::Config::set), the C interface and `nemesia info` then know it.

mod place;

use std::fmt::Display;
use std::str::FromStr;

use nemesia_core::port::channel::RendezvousChoice;
use nemesia_core::rdma_channel::ChunkFill;
use nemesia_core::shared::layout::Geometry;

use super::{
    ChannelDesign, Config, ConfigError, FastPathChoice, JobKeySource, NetChoice, Origin, SingleCopy, Stores,
};
use crate::os::{HugePages, SegmentBacking, interfaces};
use crate::regcache::Telling;

/// A setting with a name: in the environment, in a file, and for [`Config::set`](super::Config::set).
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// The values that it takes, with the unit.
    pub values: &'static str,
    /// Its purpose.
    pub help: &'static str,
    get: fn(&Config) -> String,
    set: fn(&mut Config, &str) -> Option<()>,
}

impl Variable {
    /// Returns the variable of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        VARIABLES.iter().find(|variable| variable.name == name)
    }

    /// Returns its value in force.
    pub fn value(&self, config: &Config) -> String {
        (self.get)(config)
    }

    /// Returns its default value.
    pub fn default_value(&self) -> String {
        (self.get)(&Config::default())
    }

    /// Sets it; returns `None` and changes nothing if it does not take this value.
    pub(super) fn set(&self, config: &mut Config, value: &str) -> Option<()> {
        (self.set)(config, value)
    }
}

/// The value that leaves the choice to the library.
const AUTO: &str = "auto";
/// The value that disables something at every size.
const NEVER: &str = "never";
const HUGE: &[(&str, HugePages)] =
    &[("never", HugePages::Never), ("try", HugePages::Try), ("require", HugePages::Require)];
const BACKING: &[(&str, SegmentBacking)] =
    &[("memfd", SegmentBacking::Memfd), ("devshm", SegmentBacking::DevShm)];
const CELL_STORES: &[(&str, Option<Stores>)] = &[
    ("auto", None),
    ("cached", Some(Stores::Cached)),
    ("prefetched", Some(Stores::Prefetched)),
    ("non-temporal", Some(Stores::NonTemporal)),
];
const SINGLE_COPY: &[(&str, SingleCopy)] = &[
    ("auto", SingleCopy::Auto),
    ("prefer", SingleCopy::Prefer),
    ("off", SingleCopy::Off),
    ("require", SingleCopy::Require),
];
const NET: &[(&str, NetChoice)] = &[
    ("auto", NetChoice::Auto),
    ("tcp", NetChoice::Tcp),
    ("verbs", NetChoice::Verbs),
    ("off", NetChoice::Off),
];
const RENDEZVOUS: &[(&str, RendezvousChoice)] = &[
    ("auto", RendezvousChoice::Auto),
    ("read", RendezvousChoice::Read),
    ("write", RendezvousChoice::Write),
    ("write-notify", RendezvousChoice::WriteNotify),
    ("stream", RendezvousChoice::Stream),
];
const FAST_PATH: &[(&str, FastPathChoice)] =
    &[("auto", FastPathChoice::Auto), ("on", FastPathChoice::On), ("off", FastPathChoice::Off)];
const TELLING: &[(&str, Telling)] = &[
    ("kernel", Telling::Kernel),
    ("program", Telling::Program),
    ("interposed", Telling::Interposed),
    ("off", Telling::Nobody),
];
const CHUNK_FILL: &[(&str, ChunkFill)] = &[("flags", ChunkFill::TwoFlags), ("bottom", ChunkFill::Bottom)];
const REGISTRATIONS: &[(&str, bool)] = &[("drop", false), ("keep", true)];
const SWITCH: &[(&str, bool)] = &[("off", false), ("on", true)];
const ANY_SOURCE: &[(&str, bool)] = &[("end", false), ("outlive", true)];
const STRANGERS: &[(&str, bool)] = &[("refuse", false), ("admit", true)];
const CONNECT: &[(&str, bool)] = &[("start", false), ("demand", true)];
const FLAG: &[(&str, bool)] = &[("0", false), ("1", true)];
/// A valid geometry, which the checks vary.
const POSSIBLE: Geometry = Geometry { cells: 64, cell_bytes: 4096, fastbox_slots: 64 };

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

/// A power of two between two bounds, which its values name.
macro_rules! power {
    ($name:literal, ($low:literal, $high:literal), $($field:ident).+, $help:literal) => {
        Variable {
            name: $name,
            values: concat!("bytes, a power of two from ", $low, " to ", $high),
            help: $help,
            get: |config| config.$($field).+.to_string(),
            set: |config, value| {
                let bytes = ranged(value, $low, $high).filter(|bytes: &u32| bytes.is_power_of_two());
                put(&mut config.$($field).+, bytes)
            },
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

/// A size on which all processes of a world must agree, and which their segments can have.
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

/// Every variable, in the order of listing.
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
        help: "largest message that goes through a fastbox; auto is 232; the limit is a quarter of the fastbox",
        get: |config| config.fastbox_bytes().to_string(),
        set: |config, value| put(&mut config.fastbox_limit, or_auto(value)),
    },
    number!(
        "NEMESIA_UNEXPECTED_BYTES",
        "bytes, ",
        (65536, 274877906944),
        unexpected_bytes,
        "ceiling for unexpected messages; each takes 64 bytes or more"
    ),
    number!(
        "NEMESIA_UNEXPECTED_LIMIT",
        "bytes, ",
        (0, 274877906944),
        unexpected_limit,
        "where the ceiling holds back a message that is waited for, it grows up to this; 0, or less than the ceiling, \
        keeps it"
    ),
    number!(
        "NEMESIA_EAGER_BYTES",
        "bytes, ",
        (0, 16777216),
        eager_bytes,
        "largest message that is sent eagerly; at most a cell. Unless it is set, messages of up to 262144 bytes are \
        sent at once inside a machine, in several cells if need be"
    ),
    number!(
        "NEMESIA_CREDIT_BYTES",
        "bytes, ",
        (4096, 1073741824),
        credit_bytes,
        "room that each peer is granted ahead of its messages, and eight times as much if it is fast; less without room"
    ),
    words!(
        "NEMESIA_SINGLE_COPY",
        "auto, prefer, off or require",
        SINGLE_COPY,
        single_copy,
        "whether large messages move in a single copy, by reading the sender's memory through the kernel; auto \
        measures for each peer and size whether that is faster"
    ),
    Variable {
        name: "NEMESIA_ASSIST_BYTES",
        values: "bytes, or never",
        help: "smallest message for a sender-assisted copy, in which receiver and waiting sender each copy a \
               part, where that is measured to be faster; into memory allocated for reading and writing, from twice \
               NEMESIA_ASSIST_LEAST on",
        get: |config| config.assist_bytes.map_or_else(|| NEVER.to_owned(), |bytes| bytes.to_string()),
        set: |config, value| put(&mut config.assist_bytes, or_never(value)),
    },
    Variable {
        name: "NEMESIA_ASSIST_LEAST",
        values: "bytes, 4096 to 1073741824",
        help: "least that this process copies at once in a sender-assisted copy; a quarter of the rest, if more",
        get: |config| config.assist_pieces[0].to_string(),
        set: |config, value| put(&mut config.assist_pieces[0], ranged(value, 4096, 1 << 30)),
    },
    Variable {
        name: "NEMESIA_ASSIST_MOST",
        values: "bytes, 4096 to 1073741824",
        help: "most that this process copies at once in a sender-assisted copy",
        get: |config| config.pieces().most().to_string(),
        set: |config, value| put(&mut config.assist_pieces[1], ranged(value, 4096, 1 << 30)),
    },
    number!(
        "NEMESIA_PULL_BYTES",
        "bytes, ",
        (4096, 1073741824),
        pull_bytes,
        "bytes of a message that are read from a peer's memory before other work is done"
    ),
    number!(
        "NEMESIA_RUN_BYTES",
        "bytes, ",
        (0, 1073741824),
        run_bytes,
        "average length of a list's segments from which on a message is read into them one by one; into shorter ones \
        it is streamed"
    ),
    Variable {
        name: "NEMESIA_NON_TEMPORAL_BYTES",
        values: "bytes, auto or never",
        help: "smallest message, put or get that this process copies with non-temporal stores, unless the kernel \
            copies it; auto is half the size of the last cache",
        get: |config| from_or_never(config.non_temporal_from()),
        set: |config, value| put(&mut config.non_temporal_bytes, from_auto_or_never(value)),
    },
    words!(
        "NEMESIA_CELL_STORES",
        "auto, cached, prefetched or non-temporal",
        CELL_STORES,
        cell_stores,
        "how this process fills cells of 256 bytes and more: with plain stores, with write prefetch before plain \
        stores, or with non-temporal stores; auto measures for each peer and size which is fastest"
    ),
    words!(
        "NEMESIA_PTRACER",
        "0 or 1",
        FLAG,
        ptracer,
        "let every process of this user read this one's memory, where Yama reserves that to ancestors"
    ),
    words!(
        "NEMESIA_ANY_SOURCE",
        "end or outlive",
        ANY_SOURCE,
        any_source_outlives,
        "whether receives from any source end when a rank fails or the last other rank finishes, or outlive them"
    ),
    number!(
        "NEMESIA_CONNECTIONS",
        "",
        (1, 4095),
        connections,
        "most peers with which an endpoint is connected at once, ranks of its world apart"
    ),
    words!(
        "NEMESIA_STRANGERS",
        "refuse or admit",
        STRANGERS,
        strangers,
        "whether an endpoint takes calls of processes outside of its world whose address it was not given"
    ),
    words!(
        "NEMESIA_CONNECT",
        "demand or start",
        CONNECT,
        on_demand,
        "whether two ranks of a machine connect when one first names the other, or all when the world opens"
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
        "the kind of memory of the segments; devshm needs room in /dev/shm and cannot be sealed"
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
        help: "polls without a message before a waiting process sleeps; auto depends on the load",
        get: |config| config.spin.map_or_else(|| AUTO.to_owned(), |polls| polls.to_string()),
        set: |config, value| put(&mut config.spin, or_auto(value)),
    },
    words!(
        "NEMESIA_LOCAL",
        "on or off",
        SWITCH,
        local,
        "whether this process shares memory with others of its machine; off treats them as ranks on other machines"
    ),
    words!(
        "NEMESIA_NET",
        "auto, tcp, verbs or off",
        NET,
        net,
        "transport to ranks on other machines; auto is verbs if every process has a usable RDMA device, else tcp"
    ),
    place::ADDRESS,
    place::FAMILY,
    place::SET_UP,
    place::DEVICE,
    place::PORT,
    place::GID_INDEX,
    place::PARTITION_KEY,
    place::PATH_MTU,
    place::TRAFFIC_CLASS,
    place::SILENCE,
    Variable {
        name: "NEMESIA_JOB_KEY_FILE",
        values: "the absolute path of a file with 64 hexadecimal digits, or auto",
        help: "a key that connections between machines prove besides the addresses, the same in all processes of a \
            job; auto: none, or for ranks that connect at the start one that rank 0 draws, and the launcher's key \
            space carries; a file must be readable by its owner only",
        get: |config| config.job_key.to_string(),
        set: |config, value| put(&mut config.job_key, JobKeySource::parse(value)),
    },
    Variable {
        name: "NEMESIA_NET_PACKET_BYTES",
        values: "bytes, 256 to 16777216, or auto",
        help: "payload of the largest packet to another machine; auto is that of a cell, over TCP at least 128 KiB; \
               all processes must agree",
        get: |config| config.net_packet_bytes.map_or_else(|| AUTO.to_owned(), |bytes| bytes.to_string()),
        set: |config, value| {
            let bytes = if value == AUTO { None } else { Some(ranged(value, 256, 16 << 20)?) };
            put(&mut config.net_packet_bytes, Some(bytes))
        },
    },
    Variable {
        name: "NEMESIA_NET_EAGER_BYTES",
        values: "bytes, or auto",
        help: "largest message that is sent eagerly to another machine, if more than NEMESIA_EAGER_BYTES; at most a \
            packet; auto is a packet over TCP, unless NEMESIA_EAGER_BYTES is set, and NEMESIA_EAGER_BYTES over RDMA \
            devices",
        get: |config| config.net_eager_bytes.map_or_else(|| AUTO.to_owned(), |bytes| bytes.to_string()),
        set: |config, value| put(&mut config.net_eager_bytes, or_auto(value)),
    },
    number!(
        "NEMESIA_NET_RECEIVES",
        "packets, ",
        (3, 1024),
        net_receives,
        "most packets that each rank on another machine may send ahead; memory is taken as busy ranks need it"
    ),
    number!(
        "NEMESIA_NET_STREAMS",
        "connections, ",
        (1, 4),
        net_streams,
        "connections with each rank on another machine: small packets take the first, large ones the others in turn; \
        puts and gets travel in packets if there are several"
    ),
    words!(
        "NEMESIA_NET_RENDEZVOUS",
        "auto, read, write, write-notify or stream",
        RENDEZVOUS,
        net_rendezvous,
        "how large messages of other machines reach this process: it reads them, the sender writes them and reports \
        the end by a packet or by the last write, or they travel in packets; auto measures for each peer and size"
    ),
    place::DIRECT_BYTES,
    words!(
        "NEMESIA_NET_FAST_PATH",
        "auto, on or off",
        FAST_PATH,
        net_fast_path,
        "whether other machines write small packets into the memory of this process, which polls their last bytes; \
        auto does so on RDMA devices that promise to place the bytes of a write in order; on asserts this of the \
        device, whose promise is then not needed, and corrupts messages if it is false; iWARP devices refuse on"
    ),
    number!(
        "NEMESIA_NET_FAST_PEERS",
        "ranks, ",
        (1, 32),
        net_fast_peers,
        "ranks of other machines that may write small packets into the memory of this process at once, 32 KiB each"
    ),
    words!(
        "NEMESIA_REGISTRATIONS",
        "kernel, program, interposed or off",
        TELLING,
        registrations,
        "how the cache of memory registered with an RDMA device learns of unmapped memory: from the kernel \
        (userfaultfd), from nemesia_memory_released, or from libnemesia_interpose.so; off keeps no registration"
    ),
    Variable {
        name: "NEMESIA_CHANNEL_DESIGN",
        values: "auto, direct, basic, piggyback, pipelined, zero-copy, zero-copy-push or learned",
        help: "design of the pipes of the RDMA Channel; direct is Nemesia's own, in shared memory; auto is direct \
            inside a machine, else learned: zero-copy where that is measured to be faster; all processes must agree",
        get: |config| config.channel.design.name().to_owned(),
        set: |config, value| put(&mut config.channel.design, ChannelDesign::named(value)),
    },
    words!(
        "NEMESIA_CHANNEL_FILL",
        "flags or bottom",
        CHUNK_FILL,
        channel.fill,
        "how a chunk of the RDMA Channel proves its arrival: flags at both ends, or a header at its end"
    ),
    power!(
        "NEMESIA_CHANNEL_RING_BYTES",
        (4096, 1073741824),
        channel.ring_bytes,
        "ring of a pipe of the RDMA Channel in each direction; all processes must agree"
    ),
    power!(
        "NEMESIA_CHANNEL_CHUNK_BYTES",
        (64, 16777216),
        channel.chunk_bytes,
        "chunk of a pipe of the RDMA Channel with its header, at most half of the ring; all processes must agree"
    ),
    Variable {
        name: "NEMESIA_CHANNEL_ZERO_COPY_BYTES",
        values: "bytes, 1 to 4294967295",
        help: "size from which on the zero-copy designs of the RDMA Channel do not copy a buffer; all processes must \
            agree",
        get: |config| config.channel.zero_copy_from.to_string(),
        set: |config, value| put(&mut config.channel.zero_copy_from, ranged(value, 1, u32::MAX)),
    },
    words!(
        "NEMESIA_CHANNEL_REGISTRATIONS",
        "keep or drop",
        REGISTRATIONS,
        channel.keeps_registrations,
        "whether the zero-copy designs keep registrations of buffers with an RDMA device for their next use"
    ),
    number!(
        "NEMESIA_TIMEOUT",
        "seconds, ",
        (1, 86400),
        timeout_seconds,
        "time limit for connecting to the peers, and for flushing at the end"
    ),
    words!(
        "NEMESIA_PMI_TAKE_OVER",
        "0 or 1",
        FLAG,
        pmi_take_over,
        "open an endpoint on the launcher's connection although other code of this process has initialised it"
    ),
    words!(
        "NEMESIA_STRICT",
        "0 or 1",
        FLAG,
        strict,
        "a preference that cannot be met is an error instead of a warning"
    ),
    words!(
        "NEMESIA_EXPLAIN",
        "0 or 1",
        FLAG,
        explain,
        "print at start, on the standard error output, how each peer is reached, and why other transports are refused"
    ),
    number!(
        "NEMESIA_TRACE",
        "",
        (0, 16777216),
        trace,
        "number of function entries and exits to keep for the call tree; needs a build with the feature `trace`"
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

/// Names beginning with `NEMESIA_` that are no settings: the place of settings, the launcher's variables, and those of
/// the project's own tests.
const OTHERS: [&str; 6] = [
    "NEMESIA_CONFIG",
    "NEMESIA_INCARNATION",
    "NEMESIA_BIN",
    "NEMESIA_BLESS",
    "NEMESIA_QUICK",
    "NEMESIA_SKIP_LOG",
];
const TESTS: &str = "NEMESIA_TEST_";

/// Returns whether something other than the table uses a name.
pub(super) fn is_used_elsewhere(name: &str) -> bool {
    OTHERS.contains(&name) || name.starts_with(TESTS)
}

/// Returns why a value that this variable does not take is no address of this machine; `None` for other variables.
pub(super) fn wrong_address(variable: &Variable, value: &str) -> Option<String> {
    (variable.name == place::ADDRESS.name).then(|| interfaces::choose(Some(value), None).err())?
}

/// Returns a message for a name that does not exist, with the one that was probably meant. Returns the variable of this
/// name, or an error with the most similar one.
pub(super) fn known(name: &str, origin: Origin) -> Result<&'static Variable, ConfigError> {
    Variable::find(name).ok_or_else(|| ConfigError::Unknown { origin, reason: no_such(name).to_string() })
}

pub(super) fn no_such(name: &str) -> impl Display + use<> {
    let names = VARIABLES.iter().map(|variable| variable.name).chain([super::file::VARIABLE]);
    let nearest = names.min_by_key(|known| strsim::damerau_levenshtein(known, name));
    // All names begin alike: with more differences than a third of the rest, another word is meant.
    let is_near = |known: &&str| {
        strsim::damerau_levenshtein(known, name) <= (known.len() - "NEMESIA_".len()).div_ceil(3)
    };
    let remedy = match nearest.filter(is_near) {
        Some(known) => format!("did you mean {known}?"),
        None => "`nemesia info` lists those there are".to_owned(),
    };
    format!("there is no variable {name}: {remedy}")
}
