//! Configuration. Precedence, lowest first: default, file, environment, program.
//!
//! | source | what |
//! |---|---|
//! | default | [`Config::default`] |
//! | file | `/etc/nemesia/nemesia.conf`, then `$XDG_CONFIG_HOME/nemesia/nemesia.conf` (or `$HOME/.config/...`),
//! if they exist; instead of both, the file that `NEMESIA_CONFIG` names, or none if that is empty |
//! | environment | the variables of [`VARIABLES`] |
//! | program | [`Config`]'s methods |

mod channel;
mod file;
mod job_key;
mod local;
mod net;
mod peers;
mod place;
mod start;
mod table;
#[cfg(test)]
mod tests;
mod unexpected;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nemesia_core::flow::CeilingError;
use nemesia_core::port::channel::RendezvousChoice;
use nemesia_core::shared::layout::LayoutError;
pub use nemesia_core::shared::port::Stores;

use crate::os::SegmentOptions;
use crate::regcache::Telling;
use crate::tcp::DEFAULT_SILENCE;
use crate::verbs::SetUpChoice;

pub use channel::ChannelDesign;
pub(crate) use channel::ChannelSettings;
use file::Places;
pub(crate) use job_key::{JobKeySource, key_from_hex};
pub use net::{FastPathChoice, NetChoice};
pub(crate) use place::PlacePreference;
pub use table::{VARIABLES, Variable};

const PREFIX: &str = "NEMESIA_";

/// The number of requests for which there is room at start. The storage grows as needed.
pub(crate) const FIRST_REQUESTS: usize = 1024;

/// The source of a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The default: no source has set it.
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
    /// Returns the beginning of a message about the value.
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

/// A value that cannot be used.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A variable does not take this value.
    #[error("{}{name}={value}: must be {values}", .origin.place())]
    Variable {
        /// Where it was set.
        origin: Origin,
        /// The variable.
        name: &'static str,
        /// The value.
        value: String,
        /// The accepted values.
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
    /// A line of a file is neither an assignment nor a comment.
    #[error("{}must be NAME = value, or a comment after #", .origin.place())]
    Line {
        /// The line.
        origin: Origin,
    },
    /// A file cannot be read.
    #[error("{}: {reason}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason, and the remedy.
        reason: String,
    },
    /// More memory is requested than exists.
    #[error("{name}: {bytes} bytes are more than this process can have: set {name} lower")]
    TooLarge {
        /// The variable.
        name: &'static str,
        /// The number of bytes requested.
        bytes: usize,
    },
    /// A limit of the system leaves too little memory for what a variable requests.
    #[error("{limit}, or set {name} lower")]
    Limited {
        /// The variable.
        name: &'static str,
        /// The limit, and the command that raises it.
        limit: String,
    },
    /// An address that this machine does not have.
    #[error("{}{problem}", .origin.place())]
    Address {
        /// Where it was set.
        origin: Origin,
        /// The value, and the addresses that there are.
        problem: String,
    },
    /// A size is out of range.
    #[error("configuration: {0}")]
    Geometry(#[from] LayoutError),
    /// There is no room for messages from so many peers.
    #[error("NEMESIA_UNEXPECTED_BYTES is too low: {0} (a unit is 64 bytes)")]
    Ceiling(#[from] CeilingError),
    /// In strict mode, a preference that cannot be met.
    #[error("{0} (an error because NEMESIA_STRICT is 1)")]
    Strict(String),
}

/// Whether large messages move in a single copy, by reading the sender's memory through the kernel
/// (`process_vm_readv`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SingleCopy {
    /// If the kernel permits it, which is tried for each peer, and as long as it is faster than two copies through
    /// cells, which both sides make at the same time. The speed is measured for each peer and size, and measured again
    /// now and then.
    #[default]
    Auto,
    /// Whenever the kernel permits it.
    Prefer,
    /// Never, and this process's memory is not offered to the peers either.
    Off,
    /// Always: a peer whose memory cannot be read is an error at start.
    Require,
}

/// The default for the largest message that goes through a fastbox, ten slots. Beyond it a cell, announced in the
/// fastbox, is faster (measured: 256 bytes take 133 ns instead of 170, but 192 bytes 153 ns instead of
/// 118).
const FASTBOX_BYTES: usize = 232;

/// The settings of an endpoint. All processes of a world must agree on the sizes of cells and fastboxes; a difference
/// is refused at start, and the error names both values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub(crate) cells: u32,
    pub(crate) cell_bytes: u32,
    pub(crate) fastbox_slots: u32,
    pub(crate) fastbox_limit: Option<usize>,
    pub(crate) unexpected_bytes: usize,
    pub(crate) unexpected_limit: usize,
    pub(crate) any_source_outlives: bool,
    pub(crate) eager_bytes: usize,
    pub(crate) credit_bytes: usize,
    pub(crate) single_copy: SingleCopy,
    pub(crate) assist_bytes: Option<u64>,
    pub(crate) assist_pieces: [u64; 2],
    pub(crate) pull_bytes: u64,
    pub(crate) run_bytes: u64,
    /// `None`: chosen by the size of the caches.
    pub(crate) non_temporal_bytes: Option<u64>,
    pub(crate) cell_stores: Option<Stores>,
    pub(crate) ptracer: bool,
    pub(crate) requests: usize,
    pub(crate) connections: u32,
    pub(crate) strangers: bool,
    pub(crate) on_demand: bool,
    pub(crate) segments: SegmentOptions,
    pub(crate) spin: Option<u32>,
    pub(crate) local: bool,
    pub(crate) net: NetChoice,
    /// `None`: chosen by the interfaces of this machine.
    pub(crate) net_address: Option<String>,
    pub(crate) place: PlacePreference,
    /// `None`: as a cell.
    pub(crate) net_packet_bytes: Option<u32>,
    /// `None`: chosen by the transport.
    pub(crate) net_eager_bytes: Option<u32>,
    pub(crate) net_receives: u32,
    pub(crate) net_streams: u32,
    /// Whole seconds.
    pub(crate) net_silence: Duration,
    pub(crate) net_rendezvous: RendezvousChoice,
    pub(crate) net_set_up: SetUpChoice,
    pub(crate) net_fast_path: FastPathChoice,
    pub(crate) net_fast_peers: u32,
    pub(crate) net_direct_bytes: Option<u64>,
    pub(crate) registrations: Telling,
    pub(crate) channel: ChannelSettings,
    pub(crate) job_key: JobKeySource,
    pub(crate) timeout_seconds: u32,
    pub(crate) pmi_take_over: bool,
    pub(crate) strict: bool,
    pub(crate) explain: bool,
    pub(crate) trace: usize,
    sources: Sources,
}

/// The sources of the values. Two configurations with the same values are equal, whatever their sources.
#[derive(Clone, Debug, Default)]
struct Sources {
    /// The sources of the variables that were set.
    origins: BTreeMap<&'static str, Origin>,
    /// The files that were read.
    files: Vec<PathBuf>,
    /// Warnings about environment variables that do not exist, and about files that cannot be read.
    ignored: Vec<String>,
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
            // Room for 32 KiB with a prefix; and cells of a power of two would share the same sets of a cache.
            cell_bytes: 33 << 10,
            fastbox_slots: 128,
            fastbox_limit: None,
            unexpected_bytes: 64 << 20,
            unexpected_limit: 0,
            any_source_outlives: false,
            connections: 1024,
            strangers: true,
            on_demand: true,
            eager_bytes: 8 << 10,
            credit_bytes: 256 << 10,
            single_copy: SingleCopy::Auto,
            assist_bytes: Some(1 << 20),
            assist_pieces: [32 << 10, 256 << 10],
            pull_bytes: 256 << 10,
            run_bytes: 4 << 10,
            non_temporal_bytes: None,
            cell_stores: None,
            ptracer: false,
            requests: 1 << 20,
            segments: SegmentOptions { numa_local: true, ..SegmentOptions::default() },
            spin: None,
            local: true,
            net: NetChoice::Auto,
            net_address: None,
            place: PlacePreference::default(),
            net_packet_bytes: None,
            net_eager_bytes: None,
            net_receives: 32,
            net_streams: 1,
            net_silence: DEFAULT_SILENCE,
            net_rendezvous: RendezvousChoice::Auto,
            net_set_up: SetUpChoice::Auto,
            net_fast_path: FastPathChoice::Auto,
            net_fast_peers: 8,
            net_direct_bytes: None,
            registrations: Telling::Kernel,
            channel: ChannelSettings::default(),
            job_key: JobKeySource::Exchange,
            timeout_seconds: 60,
            pmi_take_over: false,
            strict: false,
            explain: false,
            trace: 0,
            sources: Sources::default(),
        }
    }
}

impl Config {
    /// Returns the defaults, changed by the configuration files, then by the environment. See [`VARIABLES`]; an unknown
    /// variable that begins with `NEMESIA_` is among the [`warnings`](Self::warnings), and so is a file that cannot be
    /// read, unless NEMESIA_CONFIG names it. An empty variable is as one that is not set.
    ///
    /// # Errors
    /// The file of NEMESIA_CONFIG cannot be read, a line of a file is malformed or names no variable, or a value cannot
    /// be used; the first of these.
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
                    match config.read_if_there(&path) {
                        // No one has asked for the file.
                        Err(error @ ConfigError::File { .. }) => {
                            config.sources.ignored.push(format!("{error}; it is ignored"));
                        }
                        read => _ = read?,
                    }
                }
            }
        }
        for (name, value) in vars.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
            match Variable::find(name) {
                Some(variable) => config.assign_from_env(variable, value)?,
                None if table::is_used_elsewhere(name) => {}
                None => config.sources.ignored.push(table::no_such(name).to_string()),
            }
        }
        config.geometry()?;
        Ok(config)
    }

    /// Reads a file of lines `NAME = value`, with the names of [`VARIABLES`]. Its values override values that were set
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
            self.assign(table::known(name, at(line))?, value, at(line))?;
        }
        self.sources.files.push(path.to_owned());
        Ok(true)
    }

    /// Sets a variable of [`VARIABLES`] by name.
    ///
    /// # Errors
    /// There is no such variable, or it does not take this value; nothing is changed.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        self.assign(table::known(name, Origin::Program)?, value.trim(), Origin::Program)
    }

    /// Returns the value in force of a variable of [`VARIABLES`].
    ///
    /// # Errors
    /// There is no such variable.
    pub fn get(&self, name: &str) -> Result<String, ConfigError> {
        Ok(table::known(name, Origin::Default)?.value(self))
    }

    /// Returns the source of the value of a variable of [`VARIABLES`].
    pub fn origin(&self, name: &str) -> Origin {
        self.sources.origins.get(name).cloned().unwrap_or_default()
    }

    /// Returns the configuration files that were read, in rising precedence.
    pub fn files(&self) -> &[PathBuf] {
        &self.sources.files
    }

    /// Returns warnings about preferences that cannot be met, and about variables that do not exist. They are among
    /// [`Endpoint::warnings`](crate::Endpoint::warnings); in strict mode no endpoint opens with any.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.sources.ignored.clone();
        let possible = self.most_fastbox_bytes();
        if let Some(wanted) = self.fastbox_limit.filter(|wanted| *wanted > possible) {
            warnings.push(format!(
                "NEMESIA_FASTBOX_LIMIT={wanted}: a fastbox of {} slots carries {possible} bytes at most: \
                 raise NEMESIA_FASTBOX_SLOTS",
                self.fastbox_slots
            ));
        }
        if self.trace > 0 && !cfg!(feature = "trace") {
            warnings.push(format!(
                "NEMESIA_TRACE={}: this build has no call tree: build with the feature `trace`",
                self.trace
            ));
        }
        if self.net_streams > 1 && self.net_direct_bytes.is_some() {
            warnings.push(format!(
                "NEMESIA_NET_DIRECT_BYTES: with NEMESIA_NET_STREAMS={} puts and gets travel in packets: set one of the \
                two",
                self.net_streams
            ));
        }
        warnings.extend(self.unused_place());
        let [least, most] = self.assist_pieces;
        if least > most {
            warnings.push(format!(
                "NEMESIA_ASSIST_MOST={most}: it is {least}, as pieces have at least that many bytes: lower \
                NEMESIA_ASSIST_LEAST"
            ));
        }
        let (wanted, possible) = (self.eager_bytes, self.cell_bytes as usize);
        if wanted > possible && self.origin("NEMESIA_EAGER_BYTES") != Origin::Default {
            warnings.push(format!(
                "NEMESIA_EAGER_BYTES={wanted}: a cell carries {possible} bytes at most: raise NEMESIA_CELL_BYTES"
            ));
        }
        warnings
    }

    /// Handles a preference that cannot be met: a warning, or in strict mode an error.
    ///
    /// # Errors
    /// [`ConfigError::Strict`] in strict mode.
    pub(crate) fn give_up(&self, preference: String, warnings: &mut Vec<String>) -> Result<(), ConfigError> {
        if self.strict {
            return Err(ConfigError::Strict(preference));
        }
        warnings.push(preference);
        Ok(())
    }

    /// Returns the preferences that cannot be met, as warnings.
    ///
    /// # Errors
    /// [`ConfigError::Strict`] if there is one, in strict mode.
    pub(crate) fn given_up(&self) -> Result<Vec<String>, ConfigError> {
        let mut warnings = Vec::new();
        for preference in self.warnings() {
            self.give_up(preference, &mut warnings)?;
        }
        Ok(warnings)
    }

    fn assign_from_env(&mut self, variable: &Variable, value: &OsStr) -> Result<(), ConfigError> {
        let origin = Origin::Environment;
        match value.to_str() {
            // Scripts set a variable so that has no value.
            Some(text) if text.trim().is_empty() => Ok(()),
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
            if let Some(problem) = table::wrong_address(variable, value) {
                return Err(ConfigError::Address { origin, problem });
            }
            return Err(ConfigError::Variable { origin, name, value: value.to_owned(), values });
        }
        self.sources.origins.insert(name, origin);
        Ok(())
    }

    /// Applies a change by the program.
    fn with<const N: usize>(mut self, names: [&'static str; N], change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self.sources.origins.extend(names.map(|name| (name, Origin::Program)));
        self
    }

    /// Sets whether every process of this user may read this one's memory, where Yama reserves that to ancestors. It
    /// stays so until the process ends.
    #[must_use]
    pub fn ptracer(self, allow: bool) -> Self {
        self.with(["NEMESIA_PTRACER"], |config| config.ptracer = allow)
    }

    /// Sets the most requests under way at once, at least 64. Memory is taken as they are used.
    #[must_use]
    pub fn requests(self, requests: usize) -> Self {
        self.with(["NEMESIA_REQUESTS"], |config| config.requests = requests.max(64))
    }

    /// Sets how the segments are made.
    #[must_use]
    pub fn segments(self, options: SegmentOptions) -> Self {
        let names = ["NEMESIA_HUGE_PAGES", "NEMESIA_BACKING", "NEMESIA_LOCK_MEMORY"];
        self.with(names, |config| config.segments = options)
    }

    /// Sets the number of polls without a message before a waiting process sleeps. Without this, the process learns it
    /// from the durations of its waits and from other demand for the core.
    #[must_use]
    pub fn spin(self, polls: u32) -> Self {
        self.with(["NEMESIA_SPIN"], |config| config.spin = Some(polls))
    }

    /// Sets the time limit, in seconds, for connecting to the peers, and at the end of an endpoint for peers that have
    /// not taken what was sent or still copy into one of its buffers.
    #[must_use]
    pub fn timeout_seconds(self, seconds: u32) -> Self {
        self.with(["NEMESIA_TIMEOUT"], |config| config.timeout_seconds = seconds.max(1))
    }
}
