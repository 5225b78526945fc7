//! Configuration: defaults, files, environment, the program; each counts more than the ones before it.
//!
//! | source | what |
//! |---|---|
//! | default | [`Config::default`] |
//! | file | `/etc/nemesia/nemesia.conf`, then `$XDG_CONFIG_HOME/nemesia/nemesia.conf` (or `$HOME/.config/...`), as far as they are there; instead of both the file that `NEMESIA_CONFIG` names, or none if that is empty |
//! | environment | the variables of [`VARIABLES`] |
//! | program | [`Config`]'s methods |

mod file;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use nemesia_core::flow::CeilingError;
use nemesia_core::shared::fastbox;
use nemesia_core::shared::layout::{Geometry, LayoutError};
pub use nemesia_core::shared::port::Stores;
use nemesia_core::shared::share::Pieces;

use crate::os::SegmentOptions;
use crate::os::numa::last_cache_bytes;

use file::Places;
pub use table::{VARIABLES, Variable};

const PREFIX: &str = "NEMESIA_";

/// Where a value comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// Nobody has set it.
    #[default]
    Default,
    /// A line of a file, from 1.
    File {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
    },
    /// The environment.
    Environment,
    /// The program, by a method of [`Config`].
    Program,
}

impl Origin {
    /// What a message about the value begins with.
    fn place(&self) -> String {
        if let Self::File { .. } = self { format!("{self}: ") } else { String::new() }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment => f.write_str("environment"),
            Self::Program => f.write_str("program"),
        }
    }
}

/// A value that can't be used.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A variable's value is not one of those it takes.
    #[error("{}{name}={value}: must be {values}", .origin.place())]
    Variable {
        /// Where it was set.
        origin: Origin,
        /// The variable.
        name: &'static str,
        /// What it says.
        value: String,
        /// What it may say.
        values: &'static str,
    },
    /// There is no variable of this name.
    #[error("{}{reason}", .origin.place())]
    Unknown {
        /// Where it was set.
        origin: Origin,
        /// The name, and the one that was probably meant.
        reason: String,
    },
    /// A line of a file says nothing that can be understood.
    #[error("{}must be NAME = value, or a comment after #", .origin.place())]
    Line {
        /// The line.
        origin: Origin,
    },
    /// A file can't be read.
    #[error("{}: {reason}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why, and the remedy.
        reason: String,
    },
    /// More memory is asked for than there is.
    #[error("{name}: {bytes} bytes are more than this process can have: set {name} lower")]
    TooLarge {
        /// The variable.
        name: &'static str,
        /// Bytes asked for.
        bytes: usize,
    },
    /// A size is out of range.
    #[error("configuration: {0}")]
    Geometry(#[from] LayoutError),
    /// There is no room for messages from so many peers.
    #[error("NEMESIA_UNEXPECTED_BYTES is too low: {0} (a unit is 64 bytes)")]
    Ceiling(#[from] CeilingError),
    /// In strict mode, a wish that can't be met.
    #[error("{0} (an error because NEMESIA_STRICT is 1)")]
    Strict(String),
}

/// Whether large messages move in one copy, by reading the sender's memory through the kernel (`process_vm_readv`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SingleCopy {
    /// Where the kernel permits it, tried for each peer, and as long as it is faster than two copies through cells, in which
    /// both sides copy at the same time: that is measured, for each peer and size, and looked at again now and then.
    #[default]
    Auto,
    /// Wherever the kernel permits it.
    Prefer,
    /// Never, and our memory is not offered to the peers either.
    Off,
    /// Always: a peer whose memory can't be read is an error at start.
    Require,
}

/// Largest message that goes through a fastbox unless something else is wished, ten slots: beyond it a cell, announced in the
/// fastbox, is faster (measured: 256 bytes take 133 ns instead of 170, but 192 bytes 153 ns instead of 118).
const FASTBOX_BYTES: usize = 232;

/// How an endpoint is to be set up. All processes of a world must agree on the sizes of cells and fastboxes;
/// a difference is refused at start, with both values named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub(crate) cells: u32,
    pub(crate) cell_bytes: u32,
    pub(crate) fastbox_slots: u32,
    pub(crate) fastbox_limit: Option<usize>,
    pub(crate) unexpected_bytes: usize,
    pub(crate) eager_bytes: usize,
    pub(crate) credit_bytes: usize,
    pub(crate) single_copy: SingleCopy,
    pub(crate) share_bytes: Option<u64>,
    pub(crate) share_pieces: [u64; 2],
    pub(crate) pull_bytes: u64,
    pub(crate) run_bytes: u64,
    /// `None` is by the size of the caches.
    pub(crate) non_temporal_bytes: Option<u64>,
    pub(crate) cell_stores: Stores,
    pub(crate) ptracer: bool,
    pub(crate) requests: usize,
    pub(crate) segments: SegmentOptions,
    pub(crate) spin: Option<u32>,
    pub(crate) timeout_seconds: u32,
    pub(crate) strict: bool,
    pub(crate) explain: bool,
    pub(crate) trace: usize,
    sources: Sources,
}

/// Where the values come from. Two configurations with the same values are equal, wherever those come from.
#[derive(Clone, Debug, Default)]
struct Sources {
    /// Of the variables that somebody has set.
    origins: BTreeMap<&'static str, Origin>,
    /// The files that were read.
    files: Vec<PathBuf>,
    /// Remarks on variables of the environment that do not exist.
    unknown: Vec<String>,
}

impl PartialEq for Sources {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Sources {}

impl Default for Config {
    fn default() -> Self {
        Self {
            cells: 64,
            cell_bytes: 32 << 10,
            fastbox_slots: 128,
            fastbox_limit: None,
            unexpected_bytes: 64 << 20,
            eager_bytes: 8 << 10,
            credit_bytes: 256 << 10,
            single_copy: SingleCopy::Auto,
            share_bytes: Some(48 << 10),
            share_pieces: [32 << 10, 256 << 10],
            pull_bytes: 256 << 10,
            run_bytes: 4 << 10,
            non_temporal_bytes: None,
            cell_stores: Stores::Learned,
            ptracer: false,
            requests: 1 << 20,
            segments: SegmentOptions { numa_local: true, ..SegmentOptions::default() },
            spin: None,
            timeout_seconds: 60,
            strict: false,
            explain: false,
            trace: 0,
            sources: Sources::default(),
        }
    }
}

impl Config {
    /// The defaults, changed by the configuration files, then by the environment. See [`VARIABLES`]; a variable that
    /// begins with `NEMESIA_` and does not exist is among the [`notes`](Self::notes).
    ///
    /// # Errors
    /// A file that can't be read, a line of it that can't be understood or names no variable, and the first value that
    /// can't be used.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_vars(std::env::vars_os())
    }

    /// As [`Config::from_env`], with the environment given by the caller.
    ///
    /// # Errors
    /// See [`Config::from_env`].
    pub fn from_vars(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Self, ConfigError> {
        let vars = vars.into_iter().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        let vars: BTreeMap<String, OsString> = vars.collect();
        let mut config = Self::default();
        match file::places(|name| vars.get(name).cloned()) {
            Places::Named(path) => config.read_file(&path)?,
            Places::Usual(paths) => {
                for path in paths {
                    config.read_if_there(&path)?;
                }
            }
        }
        for (name, value) in vars.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
            match Variable::find(name) {
                Some(variable) => config.assign_from_env(variable, value)?,
                None if table::is_used_elsewhere(name) => {}
                None => config.sources.unknown.push(table::no_such(name).to_string()),
            }
        }
        config.geometry(1)?;
        Ok(config)
    }

    /// Reads a file of lines `NAME = value`, with the names of [`VARIABLES`]. What it sets counts more than what was set
    /// before.
    ///
    /// # Errors
    /// See [`Config::from_env`].
    pub fn read_file(&mut self, path: impl AsRef<Path>) -> Result<(), ConfigError> {
        let path = path.as_ref();
        if self.read_if_there(path)? {
            return Ok(());
        }
        Err(ConfigError::File { path: path.to_owned(), reason: "there is no such file".into() })
    }

    fn read_if_there(&mut self, path: &Path) -> Result<bool, ConfigError> {
        let Some(text) = file::read(path)? else { return Ok(false) };
        let at = |line| Origin::File { path: path.to_owned(), line };
        for assignment in file::assignments(&text) {
            let file::Assignment { line, name, value } =
                assignment.map_err(|line| ConfigError::Line { origin: at(line) })?;
            self.assign(known(name, at(line))?, value, at(line))?;
        }
        self.sources.files.push(path.to_owned());
        Ok(true)
    }

    /// Sets a variable of [`VARIABLES`] by name.
    ///
    /// # Errors
    /// There is no such variable, or it does not take this value; nothing is changed.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        self.assign(known(name, Origin::Program)?, value.trim(), Origin::Program)
    }

    /// The value in force of a variable of [`VARIABLES`].
    ///
    /// # Errors
    /// There is no such variable.
    pub fn get(&self, name: &str) -> Result<String, ConfigError> {
        Ok(known(name, Origin::Default)?.value(self))
    }

    /// Where the value of a variable of [`VARIABLES`] comes from.
    pub fn origin(&self, name: &str) -> Origin {
        self.sources.origins.get(name).cloned().unwrap_or_default()
    }

    /// The configuration files that were read, in rising precedence.
    pub fn files(&self) -> &[PathBuf] {
        &self.sources.files
    }

    /// Remarks on wishes that can't be met, and on variables that do not exist. They are among
    /// [`Endpoint::notes`](crate::Endpoint::notes); in strict mode no endpoint opens with any.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.sources.unknown.clone();
        let possible = self.most_fastbox_bytes();
        if let Some(wanted) = self.fastbox_limit.filter(|wanted| *wanted > possible) {
            notes.push(format!(
                "NEMESIA_FASTBOX_LIMIT={wanted}: a fastbox of {} slots carries {possible} bytes at most: \
                 raise NEMESIA_FASTBOX_SLOTS",
                self.fastbox_slots
            ));
        }
        if self.trace > 0 && !cfg!(feature = "trace") {
            notes.push(format!(
                "NEMESIA_TRACE={}: this build has no call tree: build with the feature `trace`",
                self.trace
            ));
        }
        let [least, most] = self.share_pieces;
        if least > most {
            notes.push(format!(
                "NEMESIA_SHARE_MOST={most}: it is {least}, as pieces have at least that many bytes: lower NEMESIA_SHARE_LEAST"
            ));
        }
        let (wanted, possible) = (self.eager_bytes, self.cell_bytes as usize);
        if wanted > possible && self.origin("NEMESIA_EAGER_BYTES") != Origin::Default {
            notes.push(format!(
                "NEMESIA_EAGER_BYTES={wanted}: a cell carries {possible} bytes at most: raise NEMESIA_CELL_BYTES"
            ));
        }
        notes
    }

    /// A wish that can't be met: a note, or in strict mode an error.
    ///
    /// # Errors
    /// [`ConfigError::Strict`] in strict mode.
    pub(crate) fn give_up(&self, wish: String, notes: &mut Vec<String>) -> Result<(), ConfigError> {
        if self.strict {
            return Err(ConfigError::Strict(wish));
        }
        notes.push(wish);
        Ok(())
    }

    fn assign_from_env(&mut self, variable: &Variable, value: &OsStr) -> Result<(), ConfigError> {
        let origin = Origin::Environment;
        match value.to_str() {
            Some(text) => self.assign(variable, text.trim(), origin),
            None => {
                let Variable { name, values, .. } = *variable;
                let value = value.to_string_lossy().into_owned();
                Err(ConfigError::Variable { origin, name, value, values })
            }
        }
    }

    fn assign(&mut self, variable: &Variable, value: &str, origin: Origin) -> Result<(), ConfigError> {
        let Variable { name, values, .. } = *variable;
        if variable.set(self, value).is_none() {
            return Err(ConfigError::Variable { origin, name, value: value.to_owned(), values });
        }
        self.sources.origins.insert(name, origin);
        Ok(())
    }

    /// A change by the program.
    fn with<const N: usize>(mut self, names: [&'static str; N], change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self.sources.origins.extend(names.map(|name| (name, Origin::Program)));
        self
    }

    /// Cells in each process's pool: a power of two, 4 to 4096.
    #[must_use]
    pub fn cells(self, cells: u32) -> Self {
        self.with(["NEMESIA_CELLS"], |config| config.cells = cells)
    }

    /// Payload bytes of a cell: a multiple of 64, 256 to 16 MiB.
    #[must_use]
    pub fn cell_bytes(self, bytes: u32) -> Self {
        self.with(["NEMESIA_CELL_BYTES"], |config| config.cell_bytes = bytes)
    }

    /// Slots of each fastbox, of 32 bytes: a power of two, 4 to 4096.
    #[must_use]
    pub fn fastbox_slots(self, slots: u32) -> Self {
        self.with(["NEMESIA_FASTBOX_SLOTS"], |config| config.fastbox_slots = slots)
    }

    /// Largest message that goes through a fastbox, in bytes.
    #[must_use]
    pub fn fastbox_limit(self, bytes: usize) -> Self {
        self.with(["NEMESIA_FASTBOX_LIMIT"], |config| config.fastbox_limit = Some(bytes))
    }

    /// Ceiling for messages that nobody has asked for yet, at least 64 KiB: each takes 64 bytes, and more when it has more
    /// than 32. Memory is committed as it is used.
    #[must_use]
    pub fn unexpected_bytes(self, bytes: usize) -> Self {
        self.with(["NEMESIA_UNEXPECTED_BYTES"], |config| config.unexpected_bytes = bytes.max(64 << 10))
    }

    /// Largest message, in bytes, that is sent before it is asked for (eagerly); capped by a cell. A larger one moves when a
    /// receive has matched it.
    #[must_use]
    pub fn eager_bytes(self, bytes: usize) -> Self {
        self.with(["NEMESIA_EAGER_BYTES"], |config| config.eager_bytes = bytes)
    }

    /// Room that each peer is promised ahead of what it has sent, in bytes; less when there is less room.
    #[must_use]
    pub fn credit_bytes(self, bytes: usize) -> Self {
        self.with(["NEMESIA_CREDIT_BYTES"], |config| config.credit_bytes = bytes.clamp(4096, 1 << 30))
    }

    /// Whether large messages move in one copy. All processes should agree.
    #[must_use]
    pub fn single_copy(self, single_copy: SingleCopy) -> Self {
        self.with(["NEMESIA_SINGLE_COPY"], |config| config.single_copy = single_copy)
    }

    /// Smallest message, in bytes, of which a sender that waits copies a part, as its receiver copies the others, so that both
    /// processors do; `None` is never. Only where large messages move in one copy.
    #[must_use]
    pub fn share_bytes(self, bytes: Option<u64>) -> Self {
        self.with(["NEMESIA_SHARE_BYTES"], |config| config.share_bytes = bytes)
    }

    /// Least and most bytes that this process copies at once of a message that both sides copy: 4096 to 1 GiB. The peers may have
    /// chosen otherwise.
    #[must_use]
    pub fn share_pieces(self, least: u64, most: u64) -> Self {
        let names = ["NEMESIA_SHARE_LEAST", "NEMESIA_SHARE_MOST"];
        self.with(names, |config| config.share_pieces = [least, most].map(|bytes| bytes.clamp(4096, 1 << 30)))
    }

    /// Bytes of a message that this process reads from a peer's memory before others have their turn: 4096 to 1 GiB.
    #[must_use]
    pub fn pull_bytes(self, bytes: u64) -> Self {
        self.with(["NEMESIA_PULL_BYTES"], |config| config.pull_bytes = bytes.clamp(4096, 1 << 30))
    }

    /// Bytes of a run of a list, on average, from which on a message is read into it run by run, and not streamed.
    #[must_use]
    pub fn run_bytes(self, bytes: u64) -> Self {
        self.with(["NEMESIA_RUN_BYTES"], |config| config.run_bytes = bytes)
    }

    /// Smallest message, put or get, in bytes, that a copy of this process's own, out of cells or to and from mapped memory, moves
    /// past the caches (with non-temporal stores, where the processor has them); `u64::MAX` is never. Without this, half of what the
    /// last cache holds. What the kernel copies is the kernel's.
    #[must_use]
    pub fn non_temporal_bytes(self, bytes: u64) -> Self {
        self.with(["NEMESIA_NON_TEMPORAL_BYTES"], |config| config.non_temporal_bytes = Some(bytes))
    }

    /// How this process fills cells, of messages of 256 bytes and more: with plain stores, with plain stores to lines that it has taken
    /// back from the receiver's core while it had nothing else to do (of the next cell, after each message), past the caches
    /// (non-temporal stores, where the processor has them), or as it measures to be fastest, for each peer and size.
    #[must_use]
    pub fn cell_stores(self, stores: Stores) -> Self {
        self.with(["NEMESIA_CELL_STORES"], |config| config.cell_stores = stores)
    }

    /// Whether every process of this user may read this one's memory, where Yama reserves that to ancestors. Stays so until
    /// the process ends.
    #[must_use]
    pub fn ptracer(self, allow: bool) -> Self {
        self.with(["NEMESIA_PTRACER"], |config| config.ptracer = allow)
    }

    /// Most requests under way at once, at least 64. Memory is taken as they are used.
    #[must_use]
    pub fn requests(self, requests: usize) -> Self {
        self.with(["NEMESIA_REQUESTS"], |config| config.requests = requests.max(64))
    }

    /// How the segments are made.
    #[must_use]
    pub fn segments(self, options: SegmentOptions) -> Self {
        let names = ["NEMESIA_HUGE_PAGES", "NEMESIA_BACKING", "NEMESIA_LOCK_MEMORY"];
        self.with(names, |config| config.segments = options)
    }

    /// Polls without a message before a waiting process sleeps. Without this, that is learned from how long it waits and
    /// from who else wants the core.
    #[must_use]
    pub fn spin(self, polls: u32) -> Self {
        self.with(["NEMESIA_SPIN"], |config| config.spin = Some(polls))
    }

    /// How long connecting to the peers may take, and at the end of an endpoint the peers that have not taken what was sent, or
    /// that still copy into a buffer of it, in seconds.
    #[must_use]
    pub fn timeout_seconds(self, seconds: u32) -> Self {
        self.with(["NEMESIA_TIMEOUT"], |config| config.timeout_seconds = seconds.max(1))
    }

    /// Strict mode: a wish that can't be met (see [`Config::notes`], and for what turns up at start
    /// [`Endpoint::notes`](crate::Endpoint::notes)) is an error and not a note.
    #[must_use]
    pub fn strict(self, strict: bool) -> Self {
        self.with(["NEMESIA_STRICT"], |config| config.strict = strict)
    }

    /// Prints [`Endpoint::explain`](crate::Endpoint::explain) on the standard error output at start.
    #[must_use]
    pub fn explain(self, explain: bool) -> Self {
        self.with(["NEMESIA_EXPLAIN"], |config| config.explain = explain)
    }

    /// Whether a wish that can't be met is an error.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// The sizes that a world of `peers` processes has to agree on.
    ///
    /// # Errors
    /// The first size that is out of range.
    pub fn geometry(&self, peers: u32) -> Result<Geometry, LayoutError> {
        let Self { cells, cell_bytes, fastbox_slots, .. } = *self;
        let geometry = Geometry { peers, cells, cell_bytes, fastbox_slots };
        geometry.validate()?;
        Ok(geometry)
    }

    /// Largest message that goes through a fastbox, in bytes.
    pub fn fastbox_bytes(&self) -> usize {
        let most = self.most_fastbox_bytes();
        self.fastbox_limit.unwrap_or(FASTBOX_BYTES).min(most)
    }

    /// Smallest message that is copied past the caches; `u64::MAX` is never.
    pub(crate) fn copies_past_caches_from(&self) -> u64 {
        // What is copied has to find room there as well as where it goes. With a cache of 32 MiB, streams of 4 MiB were a
        // quarter slower past the caches, of 8 MiB level, and of 16, 32 and 64 MiB faster by 19, 8 and 3 %.
        self.non_temporal_bytes.unwrap_or_else(|| last_cache_bytes().map_or(u64::MAX, |bytes| bytes / 2))
    }

    pub(crate) fn pieces(&self) -> Pieces {
        let [least, most] = self.share_pieces;
        Pieces::new(least, most)
    }

    fn most_fastbox_bytes(&self) -> usize {
        // Fewer are refused by `geometry`, but may be asked about before.
        fastbox::max_payload(self.fastbox_slots.max(4) as usize)
    }
}

/// The variable of this name, or who is meant.
fn known(name: &str, origin: Origin) -> Result<&'static Variable, ConfigError> {
    Variable::find(name)
        .ok_or_else(|| ConfigError::Unknown { origin, reason: table::no_such(name).to_string() })
}
