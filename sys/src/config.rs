//! Configuration: defaults, builder methods, environment.

use nemesia_core::flow::CeilingError;
use nemesia_core::shared::fastbox;
use nemesia_core::shared::layout::{Geometry, LayoutError};

use crate::os::{HugePages, SegmentBacking, SegmentOptions};

/// A variable of the environment that [`Config::from_env`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// Values it takes, with the unit.
    pub values: &'static str,
    /// What it is for.
    pub help: &'static str,
}

/// Every variable that [`Config::from_env`] reads.
pub const VARIABLES: [Variable; 15] = [
    Variable {
        name: "NEMESIA_CELLS",
        values: "power of two, 4 to 4096",
        help: "cells in each process's pool",
    },
    Variable {
        name: "NEMESIA_CELL_BYTES",
        values: "bytes, multiple of 64, 256 to 16777216",
        help: "payload of a cell",
    },
    Variable {
        name: "NEMESIA_FASTBOX_SLOTS",
        values: "power of two, 4 to 4096",
        help: "cache lines in each fastbox",
    },
    Variable {
        name: "NEMESIA_FASTBOX_LIMIT",
        values: "bytes",
        help: "largest message that goes through a fastbox; capped by a quarter of the fastbox",
    },
    Variable {
        name: "NEMESIA_UNEXPECTED_BYTES",
        values: "bytes, 65536 to 274877906944",
        help: "ceiling for messages that nobody has asked for yet, 64 bytes and more each",
    },
    Variable {
        name: "NEMESIA_EAGER_BYTES",
        values: "bytes, 0 to 16777216",
        help: "largest message that is sent before it is asked for; capped by a cell",
    },
    Variable {
        name: "NEMESIA_CREDIT_BYTES",
        values: "bytes, 4096 to 1073741824",
        help: "room that each peer is promised ahead of what it has sent; less when there is less room",
    },
    Variable {
        name: "NEMESIA_SINGLE_COPY",
        values: "auto, off or require",
        help: "whether large messages move in one copy, by reading the sender's memory through the kernel",
    },
    Variable {
        name: "NEMESIA_PTRACER",
        values: "0 or 1",
        help: "let every process of this user read this one's memory, where Yama reserves that to ancestors",
    },
    Variable { name: "NEMESIA_REQUESTS", values: "64 to 16777216", help: "most requests under way at once" },
    Variable {
        name: "NEMESIA_HUGE_PAGES",
        values: "never, try or require",
        help: "huge pages for the segments",
    },
    Variable {
        name: "NEMESIA_BACKING",
        values: "memfd or devshm",
        help: "what segments are made of; devshm needs room in /dev/shm and cannot be sealed",
    },
    Variable {
        name: "NEMESIA_LOCK_MEMORY",
        values: "0 or 1",
        help: "lock the segments into memory; needs a memlock limit to match",
    },
    Variable {
        name: "NEMESIA_SPIN",
        values: "polls",
        help: "polls without a message before a waiting process sleeps; learned unless set",
    },
    Variable {
        name: "NEMESIA_TIMEOUT",
        values: "seconds, 1 to 86400",
        help: "how long connecting to the peers may take",
    },
];

/// A value that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A variable's value is not one of those it takes.
    #[error("{name}={value}: must be {values}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// What it says.
        value: String,
        /// What it may say.
        values: &'static str,
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
}

/// Whether large messages move in one copy, by reading the sender's memory through the kernel (`process_vm_readv`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SingleCopy {
    /// Where the kernel permits it, tried for each peer; else two copies through cells.
    #[default]
    Auto,
    /// Never, and our memory is not offered to the peers either.
    Off,
    /// A peer whose memory can't be read is an error at start.
    Require,
}

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
    pub(crate) ptracer: bool,
    pub(crate) requests: usize,
    pub(crate) segments: SegmentOptions,
    pub(crate) spin: Option<u32>,
    pub(crate) timeout_seconds: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cells: 64,
            cell_bytes: 32 << 10,
            fastbox_slots: 64,
            fastbox_limit: None,
            unexpected_bytes: 64 << 20,
            eager_bytes: 8 << 10,
            credit_bytes: 256 << 10,
            single_copy: SingleCopy::Auto,
            ptracer: false,
            requests: 1 << 20,
            segments: SegmentOptions { numa_local: true, ..SegmentOptions::default() },
            spin: None,
            timeout_seconds: 60,
        }
    }
}

impl Config {
    /// The defaults, changed by the variables of the environment that are set. See [`VARIABLES`].
    ///
    /// # Errors
    /// The first variable whose value can't be used.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// As [`Config::from_env`], with the variables looked up by the caller.
    ///
    /// # Errors
    /// The first variable whose value can't be used.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        for variable in &VARIABLES {
            if let Some(value) = lookup(variable.name)
                && config.set(variable.name, value.trim()).is_none()
            {
                let Variable { name, values, .. } = *variable;
                return Err(ConfigError::Variable { name, value, values });
            }
        }
        config.geometry(1)?;
        Ok(config)
    }

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "NEMESIA_CELLS" => self.cells = value.parse().ok()?,
            "NEMESIA_CELL_BYTES" => self.cell_bytes = value.parse().ok()?,
            "NEMESIA_FASTBOX_SLOTS" => self.fastbox_slots = value.parse().ok()?,
            "NEMESIA_FASTBOX_LIMIT" => self.fastbox_limit = Some(value.parse().ok()?),
            "NEMESIA_UNEXPECTED_BYTES" => self.unexpected_bytes = ranged(value, 64 << 10, 256 << 30)?,
            "NEMESIA_EAGER_BYTES" => self.eager_bytes = ranged(value, 0, 16 << 20)?,
            "NEMESIA_CREDIT_BYTES" => self.credit_bytes = ranged(value, 4096, 1 << 30)?,
            "NEMESIA_SINGLE_COPY" => {
                self.single_copy = match value {
                    "auto" => SingleCopy::Auto,
                    "off" => SingleCopy::Off,
                    "require" => SingleCopy::Require,
                    _ => return None,
                }
            }
            "NEMESIA_PTRACER" => self.ptracer = flag(value)?,
            "NEMESIA_REQUESTS" => self.requests = ranged(value, 64, 1 << 24)?,
            "NEMESIA_HUGE_PAGES" => {
                self.segments.huge = match value {
                    "never" => HugePages::Never,
                    "try" => HugePages::Try,
                    "require" => HugePages::Require,
                    _ => return None,
                }
            }
            "NEMESIA_BACKING" => {
                self.segments.backing = match value {
                    "memfd" => SegmentBacking::Memfd,
                    "devshm" => SegmentBacking::DevShm,
                    _ => return None,
                }
            }
            "NEMESIA_LOCK_MEMORY" => self.segments.lock = flag(value)?,
            "NEMESIA_SPIN" => self.spin = Some(value.parse().ok()?),
            "NEMESIA_TIMEOUT" => self.timeout_seconds = u32::try_from(ranged(value, 1, 86_400)?).ok()?,
            _ => return None,
        }
        Some(())
    }

    /// Cells in each process's pool: a power of two, 4 to 4096.
    #[must_use]
    pub fn cells(mut self, cells: u32) -> Self {
        self.cells = cells;
        self
    }

    /// Payload bytes of a cell: a multiple of 64, 256 to 16 MiB.
    #[must_use]
    pub fn cell_bytes(mut self, bytes: u32) -> Self {
        self.cell_bytes = bytes;
        self
    }

    /// Cache lines of each fastbox: a power of two, 4 to 4096.
    #[must_use]
    pub fn fastbox_slots(mut self, slots: u32) -> Self {
        self.fastbox_slots = slots;
        self
    }

    /// Largest message that goes through a fastbox, in bytes.
    #[must_use]
    pub fn fastbox_limit(mut self, bytes: usize) -> Self {
        self.fastbox_limit = Some(bytes);
        self
    }

    /// Ceiling for messages that nobody has asked for yet, at least 64 KiB: each takes 64 bytes, and more when it has more
    /// than 32. Memory is committed as it is used.
    #[must_use]
    pub fn unexpected_bytes(mut self, bytes: usize) -> Self {
        self.unexpected_bytes = bytes.max(64 << 10);
        self
    }

    /// Largest message, in bytes, that is sent before it is asked for (eagerly); capped by a cell. A larger one moves when a
    /// receive has matched it.
    #[must_use]
    pub fn eager_bytes(mut self, bytes: usize) -> Self {
        self.eager_bytes = bytes;
        self
    }

    /// Room that each peer is promised ahead of what it has sent, in bytes; less when there is less room.
    #[must_use]
    pub fn credit_bytes(mut self, bytes: usize) -> Self {
        self.credit_bytes = bytes.clamp(4096, 1 << 30);
        self
    }

    /// Whether large messages move in one copy. All processes should agree.
    #[must_use]
    pub fn single_copy(mut self, single_copy: SingleCopy) -> Self {
        self.single_copy = single_copy;
        self
    }

    /// Whether every process of this user may read this one's memory, where Yama reserves that to ancestors. Stays so until
    /// the process ends.
    #[must_use]
    pub fn ptracer(mut self, allow: bool) -> Self {
        self.ptracer = allow;
        self
    }

    /// Most requests under way at once, at least 64. Memory is taken as they are used.
    #[must_use]
    pub fn requests(mut self, requests: usize) -> Self {
        self.requests = requests.max(64);
        self
    }

    /// How the segments are made.
    #[must_use]
    pub fn segments(mut self, options: SegmentOptions) -> Self {
        self.segments = options;
        self
    }

    /// Polls without a message before a waiting process sleeps. Without this, that is learned from how long it waits and
    /// from who else wants the core.
    #[must_use]
    pub fn spin(mut self, polls: u32) -> Self {
        self.spin = Some(polls);
        self
    }

    /// How long connecting to the peers may take, in seconds.
    #[must_use]
    pub fn timeout_seconds(mut self, seconds: u32) -> Self {
        self.timeout_seconds = seconds.max(1);
        self
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
        let most = fastbox::max_payload(self.fastbox_slots as usize);
        self.fastbox_limit.map_or(most, |limit| limit.min(most))
    }
}

fn flag(value: &str) -> Option<bool> {
    match value {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn ranged(value: &str, low: usize, high: usize) -> Option<usize> {
    value.parse().ok().filter(|number| (low..=high).contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> Result<Config, ConfigError> {
        Config::from_lookup(|wanted| (wanted == name).then(|| value.to_owned()))
    }

    #[test]
    fn every_variable_changes_something_and_refuses_nonsense() {
        let good = [
            "128", "512", "8", "100", "65536", "4096", "8192", "off", "1", "64", "try", "devshm", "1", "5",
            "7",
        ];
        for (variable, value) in VARIABLES.iter().zip(good) {
            assert_ne!(with(variable.name, value), Ok(Config::default()), "{}", variable.name);
            let error = with(variable.name, "nonsense").unwrap_err().to_string();
            assert!(error.contains(variable.name) && error.contains("nonsense"), "{error}");
        }
    }

    #[test]
    fn sizes_out_of_range_name_the_range() {
        let error = with("NEMESIA_CELLS", "5").unwrap_err().to_string();
        assert!(error.contains("cells is 5") && error.contains("power of two"), "{error}");
    }
}
