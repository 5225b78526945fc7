//! How the processes of a job find each other before they can talk: an out-of-band exchange of short texts.
//!
//! A process calls [`Bootstrap::from_env`], puts what the others need to reach it (in hexadecimal), enters
//! a barrier, and gets what the others put. The exchange goes through the launcher that started the job,
//! by the PMI-1 protocol: MPICH's `mpiexec.hydra`, or [`Launcher`], which is `nemesia run`. [`Launcher`] can also start
//! a rank that died again, for which two requests were added to the protocol. A process that no
//! launcher started is a world of one. A runtime with an exchange of its own implements [`Exchange`].
//!
//! Environment variables are read, never changed. No thread is started and no signal handler is installed
//! here, except that [`Launcher`] starts one thread to look after its processes and one for their output.

mod error;
mod forward;
mod launcher;
mod members;
mod outcome;
mod pmi;
mod poll;
mod process;
mod server;
mod supervise;
mod threads;
mod wire;

pub use error::BootstrapError;
pub use launcher::{Interrupter, LaunchError, Launcher, Running};
pub use members::Member;
pub use outcome::{ExitKind, Outcome, RankExit, RankRestart};
pub use pmi::PmiClient;
pub use threads::{ThreadExchange, threads};
pub use wire::WireError;

use std::collections::HashMap;
use std::ffi::OsString;
use std::num::NonZeroU64;
use std::time::Duration;

/// How long a request to the launcher may take, unless another deadline is given.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(120);

/// How the table of our launcher is called, with a number.
const KVSNAME: &str = "kvs_nemesia_";
/// How often the rank of a process was started before, by a launcher that starts ranks again: in the environment.
const INCARNATION: &str = "NEMESIA_INCARNATION";

/// Longest key and value of a world of one, in bytes: those of Hydra, so that what works alone works together.
const SINGLETON_MAX_KEY: usize = 63;
const SINGLETON_MAX_VALUE: usize = 1023;

/// The out-of-band exchange between the processes of one job. A runtime that embeds Nemesia may bring its own.
///
/// Calls block. One thread at a time uses an exchange. All processes call `barrier` the same number of times.
pub trait Exchange {
    /// The number of this process, from 0 to `size() - 1`.
    fn rank(&self) -> usize;

    /// The number of processes in the job, at least 1.
    fn size(&self) -> usize;

    /// Makes `value` known under `key` to all processes, from the next barrier on. Each key is put once in
    /// a job. Keys and values are printable ASCII without spaces (callers use hexadecimal), keys without `=`.
    ///
    /// # Errors
    /// When the text cannot be carried, or the exchange has failed.
    fn put(&mut self, key: &str, value: &str) -> Result<(), BootstrapError>;

    /// The value that a process put under `key` before the last barrier.
    ///
    /// # Errors
    /// [`BootstrapError::KeyNotFound`] when nobody did, or the exchange has failed.
    fn get(&mut self, key: &str) -> Result<String, BootstrapError>;

    /// Waits until all processes are in the barrier.
    ///
    /// # Errors
    /// When a process is gone, so that it never comes, or the deadline has passed, or the exchange has failed.
    fn barrier(&mut self) -> Result<(), BootstrapError>;

    /// Takes leave of the launcher. Calling it again does nothing; other calls fail afterwards.
    ///
    /// # Errors
    /// When the exchange has failed.
    fn finalize(&mut self) -> Result<(), BootstrapError>;

    /// How often the rank of this process was started before in this job: 0 for those that were started with it. One that
    /// was started again enters no barrier: it joins ([`Exchange::join`]), and asks for the [`Exchange::member`]s.
    fn incarnation(&self) -> u64 {
        0
    }

    /// Whether a rank that dies may be started again in this job. All processes say the same. If so, each of them joins.
    fn restarts(&self) -> bool {
        false
    }

    /// Enters this process in the list of members, with the address at which others meet it, printable ASCII without
    /// spaces. Returns a number greater than that of all who joined before, in the whole job.
    ///
    /// # Errors
    /// [`BootstrapError::NoRestart`], or the exchange has failed.
    fn join(&mut self, address: &str) -> Result<NonZeroU64, BootstrapError> {
        let _ = address;
        Err(BootstrapError::NoRestart)
    }

    /// The process that is a member as this rank now; none when the last one has ended, or the next has not joined.
    ///
    /// # Errors
    /// [`BootstrapError::NoRestart`], or the exchange has failed.
    fn member(&mut self, rank: usize) -> Result<Option<Member>, BootstrapError> {
        let _ = rank;
        Err(BootstrapError::NoRestart)
    }
}

/// A world of one: the exchange of a process that no launcher started. It keeps what was put in memory.
#[derive(Debug, Default)]
pub struct Singleton {
    pairs: HashMap<String, String>,
    finalized: bool,
}

impl Singleton {
    /// A world of one in which nothing has been put yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn check_open(&self, during: &'static str) -> Result<(), BootstrapError> {
        if self.finalized { Err(BootstrapError::Finalized { during }) } else { Ok(()) }
    }
}

impl Exchange for Singleton {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), BootstrapError> {
        self.check_open("put")?;
        pmi::check_pair(key, value, SINGLETON_MAX_KEY, SINGLETON_MAX_VALUE)?;
        if self.pairs.contains_key(key) {
            return Err(BootstrapError::KeyTaken { key: key.to_owned() });
        }
        self.pairs.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn get(&mut self, key: &str) -> Result<String, BootstrapError> {
        self.check_open("get")?;
        pmi::check_key(key, SINGLETON_MAX_KEY)?;
        self.pairs.get(key).cloned().ok_or_else(|| BootstrapError::KeyNotFound {
            key: key.to_owned(),
            reason: "this process is alone and has not put it".to_owned(),
        })
    }

    fn barrier(&mut self) -> Result<(), BootstrapError> {
        self.check_open("barrier")
    }

    fn finalize(&mut self) -> Result<(), BootstrapError> {
        self.finalized = true;
        Ok(())
    }
}

/// The exchange that the environment offers to this process.
#[derive(Debug)]
pub enum Bootstrap {
    /// No launcher: a world of one.
    Singleton(Singleton),
    /// A launcher that speaks PMI-1.
    Pmi(PmiClient),
}

impl Bootstrap {
    /// Finds the launcher in the environment (PMI_FD, PMI_RANK, PMI_SIZE) and greets it, with
    /// [`DEFAULT_DEADLINE`]. It succeeds once in a process: the connection cannot be shared.
    ///
    /// # Errors
    /// When the variables contradict each other, when several processes were started by a launcher that
    /// does not offer PMI-1, or when the launcher does not answer. It never falls back to a world of one.
    pub fn from_env() -> Result<Self, BootstrapError> {
        Self::from_lookup(|name| std::env::var_os(name), DEFAULT_DEADLINE)
    }

    /// The same, with the environment as a function from a variable's name to its value, and with the
    /// deadline that each request gets.
    ///
    /// If all three variables are set, the descriptor that PMI_FD names becomes this object's own: nothing
    /// else in the process may use or close it.
    ///
    /// # Errors
    /// See [`Bootstrap::from_env`].
    pub fn from_lookup(
        lookup: impl Fn(&str) -> Option<OsString>,
        deadline: Duration,
    ) -> Result<Self, BootstrapError> {
        match discover(&lookup)? {
            None => Ok(Self::Singleton(Singleton::new())),
            Some(Announcement { fd, rank, size, incarnation }) => {
                let socket = pmi::open_inherited(fd)?;
                let mut client = PmiClient::connect(socket, rank, size, deadline)?;
                if let Some(incarnation) = incarnation {
                    client.set_incarnation(incarnation);
                }
                Ok(Self::Pmi(client))
            }
        }
    }

    /// Whether this is a world of one because no launcher was found.
    #[must_use]
    pub fn is_singleton(&self) -> bool {
        matches!(self, Self::Singleton(_))
    }

    /// One line that says which exchange this is.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Singleton(_) => {
                "world of one: no launcher found (none of PMI_FD, PMI_RANK, PMI_SIZE is set)".to_owned()
            }
            Self::Pmi(client) => {
                format!(
                    "rank {} of {}, started by a launcher that speaks PMI-1",
                    client.rank(),
                    client.size()
                )
            }
        }
    }

    /// Sets how long every later request to the launcher may take. A world of one never waits.
    pub fn set_deadline(&mut self, deadline: Duration) {
        if let Self::Pmi(client) = self {
            client.set_deadline(deadline);
        }
    }

    /// The longest key that can be put, in bytes.
    #[must_use]
    pub fn max_key_len(&self) -> usize {
        match self {
            Self::Singleton(_) => SINGLETON_MAX_KEY,
            Self::Pmi(client) => client.max_key_len(),
        }
    }

    /// The longest value that can be put, in bytes.
    #[must_use]
    pub fn max_value_len(&self) -> usize {
        match self {
            Self::Singleton(_) => SINGLETON_MAX_VALUE,
            Self::Pmi(client) => client.max_value_len(),
        }
    }

    fn exchange(&mut self) -> &mut dyn Exchange {
        match self {
            Self::Singleton(singleton) => singleton,
            Self::Pmi(client) => client,
        }
    }
}

impl Exchange for Bootstrap {
    fn rank(&self) -> usize {
        match self {
            Self::Singleton(singleton) => singleton.rank(),
            Self::Pmi(client) => client.rank(),
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Singleton(singleton) => singleton.size(),
            Self::Pmi(client) => client.size(),
        }
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), BootstrapError> {
        self.exchange().put(key, value)
    }

    fn get(&mut self, key: &str) -> Result<String, BootstrapError> {
        self.exchange().get(key)
    }

    fn barrier(&mut self) -> Result<(), BootstrapError> {
        self.exchange().barrier()
    }

    fn finalize(&mut self) -> Result<(), BootstrapError> {
        self.exchange().finalize()
    }

    fn incarnation(&self) -> u64 {
        match self {
            Self::Singleton(singleton) => singleton.incarnation(),
            Self::Pmi(client) => client.incarnation(),
        }
    }

    fn restarts(&self) -> bool {
        match self {
            Self::Singleton(singleton) => singleton.restarts(),
            Self::Pmi(client) => client.restarts(),
        }
    }

    fn join(&mut self, address: &str) -> Result<NonZeroU64, BootstrapError> {
        self.exchange().join(address)
    }

    fn member(&mut self, rank: usize) -> Result<Option<Member>, BootstrapError> {
        self.exchange().member(rank)
    }
}

/// What the environment says about this process.
#[derive(Debug, PartialEq, Eq)]
struct Announcement {
    fd: i32,
    rank: usize,
    size: usize,
    incarnation: Option<u64>,
}

type Lookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Reads the three variables; none when there is no launcher.
fn discover(lookup: Lookup<'_>) -> Result<Option<Announcement>, BootstrapError> {
    const NAMES: [&str; 3] = ["PMI_FD", "PMI_RANK", "PMI_SIZE"];
    let present = NAMES.into_iter().find(|name| lookup(name).is_some());
    let missing = NAMES.into_iter().find(|name| lookup(name).is_none());
    match (present, missing) {
        (None, _) => refuse_foreign_launcher(lookup).map(|()| None),
        (Some(present), Some(missing)) => Err(BootstrapError::Missing { present, missing }),
        (Some(_), None) => {
            let fd = number(lookup, "PMI_FD", "a file descriptor")?;
            let rank = number(lookup, "PMI_RANK", "a rank from 0")?;
            let size = number(lookup, "PMI_SIZE", "a number of processes from 1")?;
            if rank >= size {
                return Err(BootstrapError::RankOutOfRange { rank, size });
            }
            let incarnation = match lookup(INCARNATION) {
                Some(_) => Some(number(lookup, INCARNATION, "a number of restarts")?),
                None => None,
            };
            Ok(Some(Announcement { fd, rank, size, incarnation }))
        }
    }
}

fn text(lookup: Lookup<'_>, name: &str) -> Option<String> {
    lookup(name).map(|value| value.to_string_lossy().into_owned())
}

/// A variable that must hold decimal digits and nothing else.
fn number<T: std::str::FromStr>(
    lookup: Lookup<'_>,
    name: &'static str,
    wanted: &'static str,
) -> Result<T, BootstrapError> {
    let value = text(lookup, name).unwrap_or_default();
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    value.parse().ok().filter(|_| digits).ok_or_else(|| BootstrapError::BadVariable {
        name,
        value: wire::excerpt(&value),
        wanted,
    })
}

/// A launcher that counts several processes, but offers no PMI-1, must not become several worlds of one.
fn refuse_foreign_launcher(lookup: Lookup<'_>) -> Result<(), BootstrapError> {
    const COUNTS: [&str; 4] =
        ["SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "MPI_LOCALNRANKS"];
    // A rank without a count, or an address in place of a descriptor: a launcher that this cannot talk to.
    const SIGNS: [&str; 2] = ["PMIX_RANK", "PMI_PORT"];
    let refuse = |name, value: String| BootstrapError::ForeignLauncher { name, value: wire::excerpt(&value) };
    let mut alone = false;
    for name in COUNTS {
        if let Some(value) = text(lookup, name) {
            if value.trim() != "1" {
                return Err(refuse(name, value));
            }
            alone = true;
        }
    }
    for name in SIGNS {
        match text(lookup, name) {
            Some(value) if !alone => return Err(refuse(name, value)),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
