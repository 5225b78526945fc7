//! The bootstrap: an out-of-band exchange of short texts, by which the processes of a job find each other
//! before they can exchange messages.
//!
//! A process calls [`Bootstrap::from_env`], puts the data that the others need to reach it (in hexadecimal),
//! enters a barrier, and gets the data of the others. The exchange goes through the launcher that started the
//! job, by the PMI-1 protocol: MPICH's `mpiexec.hydra`, or [`Launcher`], which is `nemesia run`. [`Launcher`]
//! can also restart a dead rank, for which two requests were added to the protocol. A process without a
//! launcher is a world of one. A runtime with an exchange of its own implements [`Exchange`].
//!
//! Environment variables are read and never changed. No thread is started and no signal handler is installed
//! here, except that [`Launcher`] starts one thread to supervise its processes and one for their output.

mod descendants;
mod error;
mod forward;
mod launcher;
mod members;
mod outcome;
mod owner;
mod pmi;
mod poll;
mod prefix;
mod process;
mod server;
mod supervise;
mod threads;
mod wire;

pub use error::{BootstrapError, LaunchError};
pub use launcher::{Interrupter, Launcher, Running};
pub use members::Member;
pub use outcome::{ExitKind, Outcome, RankExit, RankRestart};
pub use pmi::PmiClient;
pub use prefix::{PREFIX_BYTES, Prefixed};
pub use threads::{ThreadExchange, threads};
pub use wire::WireError;

use std::collections::HashMap;
use std::ffi::OsString;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

/// The time limit of a request to the launcher, unless another deadline is given.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(120);

/// The prefix of the name of our launcher's table; a number follows.
const KVSNAME: &str = "kvs_nemesia_";
/// The environment variable in which a launcher passes the number of previous starts of the rank.
const INCARNATION: &str = "NEMESIA_INCARNATION";

/// The longest key of a world of one, in bytes, as Hydra's, so that a program that works alone also works under
/// Hydra.
const SINGLETON_MAX_KEY: usize = 63;
const SINGLETON_MAX_VALUE: usize = 1023;

/// The out-of-band exchange between the processes of one job. An embedding runtime may supply its own. If one of its
/// methods fails for a reason of the runtime, it returns [`BootstrapError::caller`], and the call that opens the
/// endpoint returns that to the runtime. [`Prefixed`] lets one key space carry several worlds.
///
/// Calls block. One thread at a time uses an exchange. All processes call `barrier` the same number of times.
pub trait Exchange {
    /// Returns the number of this process, from 0 to `size() - 1`.
    fn rank(&self) -> usize;

    /// Returns the number of processes in the job, at least 1.
    fn size(&self) -> usize;

    /// Publishes `value` under `key` for all processes, from the next barrier on. Each key is put once in a
    /// job. Keys and values are printable ASCII without spaces (callers use hexadecimal), keys without `=`.
    ///
    /// # Errors
    /// The text cannot be carried, or the exchange has failed.
    fn put(&mut self, key: &str, value: &str) -> Result<(), BootstrapError>;

    /// Returns the value that a process put under `key` before the last barrier. If ranks may be started again
    /// ([`Exchange::restarts`]), the values that the first processes put stay, and a restarted process gets them.
    ///
    /// # Errors
    /// [`BootstrapError::KeyNotFound`] if no process did, or the exchange has failed.
    fn get(&mut self, key: &str) -> Result<String, BootstrapError>;

    /// Waits until all processes are in the barrier.
    ///
    /// # Errors
    /// A process is gone and will never come, the deadline has passed, or the exchange has failed.
    fn barrier(&mut self) -> Result<(), BootstrapError>;

    /// Reports that this process could not join its world. The exchange is dropped next, and the caller then reports
    /// the error. If a launcher ends a process whose connection ends, the connection should stay until this process
    /// ends, so that the report is not lost.
    fn start_failed(&mut self) {}

    /// Ends the connection to the launcher. A second call has no effect; other calls fail afterwards.
    ///
    /// # Errors
    /// The exchange has failed.
    fn finalize(&mut self) -> Result<(), BootstrapError>;

    /// Returns the number of previous starts of this process's rank in this job: 0 for a process that started
    /// with the job. A restarted process enters no barrier: it joins ([`Exchange::join`]), and queries the
    /// [`Exchange::member`]s.
    fn incarnation(&self) -> u64 {
        0
    }

    /// Returns whether a rank that dies may be started again in this job. All processes return the same. If so,
    /// each of them joins.
    fn restarts(&self) -> bool {
        false
    }

    /// Adds this process to the list of members, with the address at which others reach it, in printable ASCII
    /// without spaces. Returns a number greater than that of every member that joined before, in the whole job.
    ///
    /// # Errors
    /// [`BootstrapError::NoRestart`], or the exchange has failed.
    fn join(&mut self, address: &str) -> Result<NonZeroU64, BootstrapError> {
        let _ = address;
        Err(BootstrapError::NoRestart)
    }

    /// Returns the present member for this rank; `None` if the last one has ended, or the next has not joined.
    ///
    /// # Errors
    /// [`BootstrapError::NoRestart`], or the exchange has failed.
    fn member(&mut self, rank: usize) -> Result<Option<Member>, BootstrapError> {
        let _ = rank;
        Err(BootstrapError::NoRestart)
    }
}

/// A world of one: the exchange of a process without a launcher. It keeps the values in memory.
#[derive(Debug, Default)]
pub struct Singleton {
    pairs: HashMap<String, String>,
    finalized: bool,
}

impl Singleton {
    /// Makes a world of one without values.
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
    /// Finds the launcher in the environment (PMI_FD, PMI_RANK, PMI_SIZE) and connects to it, with
    /// [`DEFAULT_DEADLINE`]. It succeeds once in a process: the connection cannot be shared. The descriptor that
    /// PMI_FD names is duplicated, marked close-on-exec, and never closed.
    ///
    /// # Errors
    /// The variables contradict each other, a launcher without PMI-1 started several processes, or the launcher
    /// does not answer. [`BootstrapError::Owned`] if other code of this process, such as an MPI library, has
    /// initialised the connection. It never falls back to a world of one.
    pub fn from_env() -> Result<Self, BootstrapError> {
        Self::from_lookup(|name| std::env::var_os(name), DEFAULT_DEADLINE, false)
    }

    /// Connects as [`Bootstrap::from_env`] does, also if other code of this process has initialised the connection.
    /// That code must not use it any longer: its requests and ours would get each other's answers.
    ///
    /// # Errors
    /// As for [`Bootstrap::from_env`], except [`BootstrapError::Owned`].
    pub fn take_over() -> Result<Self, BootstrapError> {
        Self::from_lookup(|name| std::env::var_os(name), DEFAULT_DEADLINE, true)
    }

    /// The same, with the environment as a function from a variable's name to its value, and with the
    /// deadline that each request gets. Programs that have the socket itself use [`PmiClient::connect`].
    fn from_lookup(
        lookup: impl Fn(&str) -> Option<OsString>,
        deadline: Duration,
        take_over: bool,
    ) -> Result<Self, BootstrapError> {
        match discover(&lookup)? {
            None => Ok(Self::Singleton(Singleton::new())),
            Some(Announcement { fd, rank, size, incarnation }) => {
                if let Some(by) = owner::initialized_runtime().filter(|_| !take_over) {
                    return Err(BootstrapError::Owned { by });
                }
                // The code that had the connection before may have changed its flags.
                if !take_over {
                    pmi::check_inherited(fd)?;
                }
                let socket = pmi::open_inherited(fd)?;
                let client = PmiClient::connect_as(socket, (rank, size), deadline, take_over);
                if let Err(BootstrapError::Owned { .. }) = &client {
                    pmi::forget_inherited(fd);
                }
                let mut client = client?;
                if let Some(incarnation) = incarnation {
                    client.set_incarnation(incarnation);
                }
                Ok(Self::Pmi(client))
            }
        }
    }

    /// Returns whether this is a world of one because no launcher was found.
    #[must_use]
    pub fn is_singleton(&self) -> bool {
        matches!(self, Self::Singleton(_))
    }

    /// Describes the exchange in one line.
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

    /// Sets the time limit of every later request to the launcher. A world of one never waits.
    pub fn set_deadline(&mut self, deadline: Duration) {
        if let Self::Pmi(client) = self {
            client.set_deadline(deadline);
        }
    }

    /// Returns the longest key that can be put, in bytes.
    #[must_use]
    pub fn max_key_len(&self) -> usize {
        match self {
            Self::Singleton(_) => SINGLETON_MAX_KEY,
            Self::Pmi(client) => client.max_key_len(),
        }
    }

    /// Returns the longest value that can be put, in bytes.
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

    fn start_failed(&mut self) {
        self.exchange().start_failed();
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

/// The environment's statement about this process.
#[derive(Debug, PartialEq, Eq)]
struct Announcement {
    fd: i32,
    rank: usize,
    size: usize,
    incarnation: Option<u64>,
}

type Lookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Reads the three variables; `None` if there is no launcher.
fn discover(lookup: Lookup<'_>) -> Result<Option<Announcement>, BootstrapError> {
    const NAMES: [&str; 3] = ["PMI_FD", "PMI_RANK", "PMI_SIZE"];
    // An empty variable is as one that is not set.
    let is_set = |name: &&str| lookup(name).is_some_and(|value| !value.is_empty());
    let present: Vec<&str> = NAMES.into_iter().filter(is_set).collect();
    match NAMES.into_iter().find(|name| !is_set(name)) {
        Some(_) if present.is_empty() => refuse_foreign_launcher(lookup).map(|()| None),
        Some(missing) => Err(BootstrapError::Missing { present: present.join(" and "), missing }),
        None => {
            let fd = number(lookup, "PMI_FD", "a file descriptor")?;
            let rank = number::<u32>(lookup, "PMI_RANK", "a rank from 0 to 4294967295")? as usize;
            let wanted = "a number of processes from 1 to 4294967295";
            let size = number::<NonZeroU32>(lookup, "PMI_SIZE", wanted)?.get() as usize;
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

/// Parses a variable that must hold decimal digits and nothing else.
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

/// Refuses a launcher that counts several processes but offers no PMI-1: they must not become several worlds of
/// one.
fn refuse_foreign_launcher(lookup: Lookup<'_>) -> Result<(), BootstrapError> {
    const COUNTS: [&str; 4] =
        ["SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "MPI_LOCALNRANKS"];
    // A rank without a size, or an address in place of a descriptor: signs of a launcher with another protocol.
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
