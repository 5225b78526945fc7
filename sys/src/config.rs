//! Configuration: defaults, builder methods, environment.

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
pub const VARIABLES: [Variable; 12] = [
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
        values: "bytes",
        help: "ceiling for the payload of messages that nobody has asked for yet",
    },
    Variable {
        name: "NEMESIA_UNEXPECTED_MESSAGES",
        values: "1 to 16777216",
        help: "ceiling for their number",
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
        help: "polls without a message before a waiting process sleeps; default by load",
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
    pub(crate) unexpected_messages: usize,
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
            unexpected_messages: 1 << 20,
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
            "NEMESIA_UNEXPECTED_BYTES" => self.unexpected_bytes = value.parse().ok()?,
            "NEMESIA_UNEXPECTED_MESSAGES" => self.unexpected_messages = ranged(value, 1, 1 << 24)?,
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
            "NEMESIA_LOCK_MEMORY" => {
                self.segments.lock = match value {
                    "0" => false,
                    "1" => true,
                    _ => return None,
                }
            }
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

    /// Ceiling for the payload bytes of messages that nobody has asked for yet. Memory is committed as it is used.
    #[must_use]
    pub fn unexpected_bytes(mut self, bytes: usize) -> Self {
        self.unexpected_bytes = bytes;
        self
    }

    /// Ceiling for the number of messages that nobody has asked for yet.
    #[must_use]
    pub fn unexpected_messages(mut self, messages: usize) -> Self {
        self.unexpected_messages = messages.max(1);
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

    /// Polls without a message before a waiting process sleeps.
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
        let good = ["128", "512", "8", "100", "4096", "10", "64", "try", "devshm", "1", "5", "7"];
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
