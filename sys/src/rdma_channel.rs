//! The RDMA Channel of paper 1: five functions, between any two processes of a world a pipe of bytes in each direction.
//!
//! | function of the paper | here | in C |
//! |---|---|---|
//! | init of the process group | [`ChannelGroup::begin`] or `begin_among` | `nemesia_channel_init_process_group` |
//! | init | [`ChannelGroup::connect`] or `connect_among` | `nemesia_channel_init` |
//! | put | [`ChannelGroup::put`], [`ChannelGroup::put_raw`] | `nemesia_channel_put` |
//! | get | [`ChannelGroup::get`], [`ChannelGroup::get_raw`] | `nemesia_channel_get` |
//! | finalize | [`ChannelGroup::finalize`] | `nemesia_channel_finalize` |
//!
//! Bytes that a put has counted need not have left this process: they leave in later calls of this group. If the
//! process dies before [`ChannelGroup::is_flushed`] has returned `true`, they may be lost. Afterwards the peer gets
//! them all, also after the death of this process; between machines over TCP, unless the connection is reset. The
//! direct design hands them over within the put; only the last run waits for a later call if the records are full.
//!
//! Put and get return at once, with the number of bytes done. What their callers rely on is in
//! [`nemesia_core::rdma_channel`], with the designs. The setting `NEMESIA_CHANNEL_DESIGN` chooses the design, and
//! [`ChannelGroup::set_design`] that of a single pipe. [`ChannelGroup::explain`] tells for each peer which design and
//! port are in use, and why.
//!
//! | file | contents |
//! |---|---|
//! | `open` | which port reaches which rank; connecting |
//! | `direct` | pipes in memory that both processes have mapped |
//! | `fabric` | pipes over one memory port: TCP, RDMA devices, shared memory |
//! | `host` | the port of pipes, and the registrations of the caller's buffers |
//! | `rendezvous` | rendezvous by RDMA write, beside the pipes |
//! | `wait` | which rank has bytes, and sleeping until one has |
//! | `memory` | memory that is lent to a port |
//!
//! ```no_run
//! use std::io::{IoSlice, IoSliceMut};
//!
//! use nemesia::Config;
//! use nemesia::rdma_channel::ChannelGroup;
//!
//! let mut group = ChannelGroup::begin(&Config::from_env()?)?;
//! group.connect()?;
//! let other = 1 - group.rank();
//! let (bytes, mut into) = ([7; 40], [0; 40]);
//! let (mut put, mut got) = (0, 0);
//! while put < 40 || got < 40 {
//!     put += group.put(other, &[IoSlice::new(&bytes[put..])])?;
//!     got += group.get(other, &mut [IoSliceMut::new(&mut into[got..])])?;
//! }
//! group.finalize()?;
//! # Ok::<(), nemesia::Error>(())
//! ```

mod direct;
mod fabric;
mod host;
mod memory;
mod open;
mod rendezvous;
mod wait;

use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use nemesia_core::payload::{Gather, RecvBuf, Scatter, Segment, SendBuf};
use nemesia_core::port::memory::MemoryPort;
pub use nemesia_core::rdma_channel::{Design, PipeError};

use crate::bootstrap::{Bootstrap, BootstrapError, Exchange};
use crate::config::{ChannelDesign, Config};
use crate::endpoint::{Endpoint, PeerGroup};
use crate::error::Error;
use crate::os::ProcessOrigin;
pub use crate::regcache::Counts as RegistrationCounts;
use crate::shm::pipe::ShmMemoryPort;
use crate::tcp::TcpPort;
use crate::verbs::VerbsPort;
use direct::DirectLink;
use fabric::ChannelFabric;
pub use rendezvous::{ADMISSION_BYTES, Admission, PastWrite};

/// The calls in a row that do nothing, of puts and gets together, after which the process lets others run. A process of
/// a busy machine else keeps its core from the peer that it waits for.
const YIELD_EVERY: u32 = 256;
/// The time for the announcement of an end.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// What a call over a network counts there: it takes as long as so many calls in shared memory.
const PORT_CALL: u32 = 16;

/// How a rank is reached.
#[derive(Debug)]
enum ChannelLink {
    /// It is not connected, or it is this process.
    None,
    /// By memory that both have mapped.
    Direct(Box<DirectLink>),
    /// By the pipe at this place of a port.
    Shm(usize),
    Tcp(usize),
    Verbs(usize),
}

/// The pipes of a process to all others of its world. Not shared by threads.
///
/// If it is dropped instead of finalized, bytes that have not left are lost, and the peers' pipes end.
pub struct ChannelGroup {
    rank: usize,
    size: usize,
    config: Config,
    /// The design for each rank, where it is not that of the settings.
    designs: Vec<Option<ChannelDesign>>,
    links: Vec<ChannelLink>,
    shm: Option<ChannelFabric<ShmMemoryPort>>,
    tcp: Option<ChannelFabric<TcpPort>>,
    verbs: Option<ChannelFabric<VerbsPort>>,
    /// Calls in a row that did nothing.
    idle: u32,
    /// The ranks of which a get has returned an error.
    over: Vec<bool>,
    /// The rank at which the next look for bytes begins.
    next: usize,
    is_connected: bool,
    warnings: Vec<String>,
    /// `None` if the group was begun among peers of an endpoint.
    exchange: Option<Box<dyn Exchange + Send>>,
    origin: ProcessOrigin,
}

impl std::fmt::Debug for ChannelGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("ChannelGroup");
        f.field("rank", &self.rank)
            .field("size", &self.size)
            .field("links", &self.links)
            .finish_non_exhaustive()
    }
}

impl ChannelGroup {
    /// Finds the process group by the launcher: `mpiexec.hydra` or `nemesia run`. Without a launcher, the group has one
    /// process. It succeeds once in a process.
    ///
    /// # Errors
    /// The launcher's, or the process cannot be told from its children.
    pub fn begin(config: &Config) -> Result<Self, Error> {
        let bootstrap = if config.pmi_take_over { Bootstrap::take_over() } else { Bootstrap::from_env() };
        Self::begin_with(config, Box::new(bootstrap?))
    }

    /// Finds the process group by the caller's own key-value exchange.
    ///
    /// # Errors
    /// The exchange gives an impossible rank, or the process cannot be told from its children.
    pub fn begin_with(config: &Config, exchange: Box<dyn Exchange + Send>) -> Result<Self, Error> {
        Self::of(config, (exchange.rank(), exchange.size()), Some(exchange))
    }

    /// Makes the process group of the peers of an endpoint, in their order: processes that know each other's addresses,
    /// without a launcher. The endpoint may be used for other purposes, before and after
    /// [`ChannelGroup::connect_among`].
    ///
    /// ```
    /// use std::io::{IoSlice, IoSliceMut};
    ///
    /// use nemesia::rdma_channel::ChannelGroup;
    /// use nemesia::{Config, Endpoint};
    ///
    /// # let threads = nemesia::bootstrap::threads(2).into_iter().map(|mut exchange| std::thread::spawn(move || {
    /// let config = Config::default();
    /// let mut endpoint = Endpoint::alone(&config)?;
    /// // Gives its address to the others, and makes the group of all.
    /// let peers = endpoint.group_with(&mut exchange)?;
    /// let mut group = ChannelGroup::begin_among(&config, &peers)?;
    /// group.connect_among(&mut endpoint, &peers)?;
    /// let (other, bytes, mut into) = (1 - group.rank(), [7; 40], [0; 40]);
    /// let (mut put, mut got) = (0, 0);
    /// while put < 40 || got < 40 {
    ///     put += group.put(other, &[IoSlice::new(&bytes[put..])])?;
    ///     got += group.get(other, &mut [IoSliceMut::new(&mut into[got..])])?;
    /// }
    /// group.finalize()?;
    /// endpoint.among_peers(&peers)?.barrier()?;
    /// endpoint.close()
    /// # }));
    /// # for thread in threads.collect::<Vec<_>>() { thread.join().expect("a thread")?; }
    /// # Ok::<(), nemesia::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Members`] if this process is not in the group. The process cannot be told from its children.
    pub fn begin_among(config: &Config, peers: &PeerGroup) -> Result<Self, Error> {
        let rank = peers.place().ok_or(Error::Members)?;
        Self::of(config, (rank, peers.size()), None)
    }

    fn of(
        config: &Config,
        (rank, size): (usize, usize),
        exchange: Option<Box<dyn Exchange + Send>>,
    ) -> Result<Self, Error> {
        if rank >= size {
            return Err(Error::Rank { rank, last: size.saturating_sub(1) });
        }
        Ok(Self {
            rank,
            size,
            config: config.clone(),
            designs: vec![None; size],
            links: (0..size).map(|_| ChannelLink::None).collect(),
            shm: None,
            tcp: None,
            verbs: None,
            idle: 0,
            over: vec![false; size],
            next: 0,
            is_connected: false,
            warnings: config.given_up()?,
            exchange,
            origin: ProcessOrigin::here(1)?,
        })
    }

    /// Returns the rank of this process, from 0.
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of processes in the group.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Returns whether the group was spawned by another one. Groups are never spawned here.
    pub const fn has_parent(&self) -> bool {
        false
    }

    /// Returns warnings about settings that could not be applied, and about variables that do not exist. In strict mode
    /// they are errors at start.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Chooses the design of the pipe to a rank, before [`ChannelGroup::connect`]. The other process chooses the same.
    ///
    /// # Errors
    /// There is no such rank, or the group is connected.
    pub fn set_design(&mut self, rank: usize, design: ChannelDesign) -> Result<(), Error> {
        let last = self.size - 1;
        if self.is_connected {
            let problem = "its pipe is open: choose the design before".into();
            return Err(Error::Net { rank, transport: "RDMA Channel", problem });
        }
        *self.designs.get_mut(rank).ok_or(Error::Rank { rank, last })? = Some(design);
        Ok(())
    }

    /// Connects with all other processes. Collective. Afterwards every process can reach every other.
    ///
    /// # Errors
    /// The error names what failed, with which rank, and the remedy. The group must be dropped then.
    pub fn connect(&mut self) -> Result<(), Error> {
        self.check_origin()?;
        if self.is_connected {
            return Ok(());
        }
        let Some(mut exchange) = self.exchange.take() else {
            return Err(Error::Bootstrap(BootstrapError::caller(
                "connect",
                "the process group was begun among peers: connect it with connect_among",
            )));
        };
        let result = self.connect_by(&mut |key, own| published(exchange.as_mut(), key, own));
        if result.is_err() {
            exchange.start_failed();
        }
        self.exchange = Some(exchange);
        result
    }

    /// As [`ChannelGroup::connect`], for a group of [`ChannelGroup::begin_among`]. The processes exchange their ports'
    /// addresses by the endpoint, in messages that no receive of the caller's can match. Collective: all processes of
    /// the group call it, in the same order as other collective calls among the same peers.
    ///
    /// # Errors
    /// [`Error::Members`] if these are not the peers of the group; [`Error::MemberFailed`] if one is gone, and
    /// [`Error::Timeout`] if one does not call this within the configured time (NEMESIA_TIMEOUT). Else as for
    /// [`ChannelGroup::connect`]. The group must be dropped then.
    ///
    /// If a process cannot open its ports, or refuses the design or the port of another, all return with its reason. If
    /// a process fails later, while the pipes are being connected, those that wait for it return after the configured
    /// time.
    pub fn connect_among(&mut self, endpoint: &mut Endpoint, peers: &PeerGroup) -> Result<(), Error> {
        self.check_origin()?;
        if self.is_connected {
            return Ok(());
        }
        if (peers.place(), peers.size()) != (Some(self.rank), self.size) {
            return Err(Error::Members);
        }
        let limit = Duration::from_secs(self.config.timeout_seconds.into());
        let mut all = endpoint.among_peers(peers)?;
        // One call of the group, whatever fails later: its next call has the same number everywhere.
        let (series, mut number) = (all.begin_exchanges()?, 0);
        self.connect_by(&mut |_, own| {
            number += 1;
            all.exchange((series, number), own, limit)
        })
    }

    fn connect_by(&mut self, spread: Spread<'_>) -> Result<(), Error> {
        let result = open::connect(self, spread);
        self.is_connected = result.is_ok();
        if self.is_connected && self.config.explain {
            crate::opening::say(&self.explain());
        }
        result
    }

    #[inline(always)]
    fn check_origin(&self) -> Result<(), Error> {
        if self.origin.is_elsewhere() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Puts bytes from the beginning of the list into the pipe to a rank. Returns how many; the list of the next call
    /// begins after them. 0 is a normal result, and the caller repeats the call. The bytes that are counted belong to
    /// the caller again. All bytes are copied; [`ChannelGroup::put_raw`] can do without.
    ///
    /// # Errors
    /// There is no such rank, or its pipe has failed.
    pub fn put(&mut self, rank: usize, from: &[IoSlice<'_>]) -> Result<usize, Error> {
        let list: Vec<Segment> = from.iter().map(|part| segment(part.as_ptr(), part.len())).collect();
        // SAFETY: the list and the bytes are borrowed during the call. They are not lent, so nothing uses them later.
        let Some(buf) = (unsafe { SendBuf::from_list(list.as_ptr(), list.len()) }) else {
            return Err(Error::List);
        };
        self.put_some(rank, &mut Gather::new(buf), false)
    }

    /// As [`ChannelGroup::put`], with a list of `count` segments. Long segments may be used without a copy: those that
    /// the zero-copy design exposes count as 0 until the peer has read them.
    ///
    /// # Errors
    /// As [`ChannelGroup::put`].
    ///
    /// # Safety
    /// There are `count` segments at `list`, which do not change during the call. The bytes of each segment that is
    /// NEMESIA_CHANNEL_ZERO_COPY_BYTES long or longer are readable, stay at their address and do not change until this
    /// function has counted them, has returned an error for this rank, or the group is dropped. Those of shorter ones
    /// do so during the call.
    #[inline]
    pub unsafe fn put_raw(
        &mut self,
        rank: usize,
        list: *const Segment,
        count: usize,
    ) -> Result<usize, Error> {
        // SAFETY: the caller's promise.
        let Some(buf) = (unsafe { SendBuf::from_list(list, count) }) else { return Err(Error::List) };
        self.put_some(rank, &mut Gather::new(buf), true)
    }

    #[inline]
    fn put_some(&mut self, rank: usize, from: &mut Gather, may_lend: bool) -> Result<usize, Error> {
        self.check_origin()?;
        let result = match self.links.get_mut(rank) {
            Some(ChannelLink::Direct(link)) => link.put(from),
            Some(_) => return self.put_over_port(rank, from, may_lend),
            None => return Err(Error::Rank { rank, last: self.size - 1 }),
        };
        self.counted(rank, result, 1)
    }

    fn put_over_port(&mut self, rank: usize, from: &mut Gather, may_lend: bool) -> Result<usize, Error> {
        let result = match self.links[rank] {
            ChannelLink::Shm(at) => self.shm.as_mut().map(|fabric| fabric.put(at, from, may_lend)),
            ChannelLink::Tcp(at) => self.tcp.as_mut().map(|fabric| fabric.put(at, from, may_lend)),
            ChannelLink::Verbs(at) => self.verbs.as_mut().map(|fabric| fabric.put(at, from, may_lend)),
            ChannelLink::None | ChannelLink::Direct(_) => None,
        };
        let Some(result) = result else { return Err(self.unconnected(rank)) };
        self.counted(rank, result, self.call_cost(rank))
    }

    /// Gets bytes from the pipe from a rank into the list, from its beginning. Returns how many; the list of the next
    /// call begins after them. 0 is a normal result. Bytes that arrived before the peer was lost are still returned.
    ///
    /// # Errors
    /// There is no such rank, or its pipe has failed and no further byte can be read.
    pub fn get(&mut self, rank: usize, into: &mut [IoSliceMut<'_>]) -> Result<usize, Error> {
        let list: Vec<Segment> = into.iter_mut().map(|part| segment(part.as_mut_ptr(), part.len())).collect();
        // SAFETY: the list and the bytes are borrowed during the call. They are not lent, so nothing uses them later.
        let Some(buf) = (unsafe { RecvBuf::from_list(list.as_ptr(), list.len()) }) else {
            return Err(Error::List);
        };
        self.get_some(rank, &mut Scatter::new(buf), false)
    }

    /// As [`ChannelGroup::get`], with a list of `count` segments. Into long segments the port may place bytes without a
    /// copy; they count as 0 until they are there.
    ///
    /// # Errors
    /// As [`ChannelGroup::get`].
    ///
    /// # Safety
    /// There are `count` segments at `list`, which do not change during the call. The bytes of each segment that is
    /// NEMESIA_CHANNEL_ZERO_COPY_BYTES long or longer are initialised and writable, stay at their address, and nothing
    /// else uses them until this function has counted them, has returned an error for this rank, or the group is
    /// dropped. Those of shorter ones do so during the call.
    #[inline]
    pub unsafe fn get_raw(
        &mut self,
        rank: usize,
        list: *const Segment,
        count: usize,
    ) -> Result<usize, Error> {
        // SAFETY: the caller's promise.
        let Some(buf) = (unsafe { RecvBuf::from_list(list, count) }) else { return Err(Error::List) };
        self.get_some(rank, &mut Scatter::new(buf), true)
    }

    #[inline]
    fn get_some(&mut self, rank: usize, into: &mut Scatter, may_lend: bool) -> Result<usize, Error> {
        self.check_origin()?;
        let result = match self.links.get_mut(rank) {
            Some(ChannelLink::Direct(link)) => link.get(into),
            Some(_) => return self.get_over_port(rank, into, may_lend),
            None => return Err(Error::Rank { rank, last: self.size - 1 }),
        };
        self.over[rank] |= result.is_err();
        self.counted(rank, result, 1)
    }

    fn get_over_port(&mut self, rank: usize, into: &mut Scatter, may_lend: bool) -> Result<usize, Error> {
        let result = match self.links[rank] {
            ChannelLink::Shm(at) => self.shm.as_mut().map(|fabric| fabric.get(at, into, may_lend)),
            ChannelLink::Tcp(at) => self.tcp.as_mut().map(|fabric| fabric.get(at, into, may_lend)),
            ChannelLink::Verbs(at) => self.verbs.as_mut().map(|fabric| fabric.get(at, into, may_lend)),
            ChannelLink::None | ChannelLink::Direct(_) => None,
        };
        let Some(result) = result else { return Err(self.unconnected(rank)) };
        self.over[rank] |= result.is_err();
        self.counted(rank, result, self.call_cost(rank))
    }

    /// Returns what a call for a rank that a port reaches counts.
    fn call_cost(&self, rank: usize) -> u32 {
        if matches!(self.links[rank], ChannelLink::Shm(_)) { 1 } else { PORT_CALL }
    }

    /// Counts the calls that do nothing, and names the rank in an error.
    #[inline]
    fn counted(&mut self, rank: usize, result: Result<usize, PipeError>, calls: u32) -> Result<usize, Error> {
        match result {
            Ok(0) => {
                self.idle += calls;
                if self.idle >= YIELD_EVERY {
                    self.idle = 0;
                    std::thread::yield_now();
                }
                Ok(0)
            }
            Ok(count) => {
                self.idle = 0;
                Ok(count)
            }
            Err(problem) => Err(Error::Pipe { rank, problem }),
        }
    }

    #[cold]
    fn unconnected(&self, rank: usize) -> Error {
        let problem = match rank == self.rank {
            true => "a process has no pipe to itself".into(),
            false => "the group is not connected: call connect first".into(),
        };
        Error::Net { rank, transport: "RDMA Channel", problem }
    }

    /// Waits until all bytes that were put have left, announces to each peer that nothing more follows, and
    /// disconnects. A peer can still get the bytes; its next get, and each of its puts, then ends with
    /// [`PipeError::Ended`], where the death of this process, or the drop of the group, is [`PipeError::Lost`]. No
    /// process waits for another to call this, and the order of the calls is free. But over a port bytes leave only
    /// while their receiver makes progress, and bytes that a peer puts afterwards are lost: processes that need them
    /// first agree that they have got them, as in a barrier.
    ///
    /// # Errors
    /// [`Error::Timeout`] if bytes did not leave within the configured time (NEMESIA_TIMEOUT): they are lost. The
    /// launcher's refusal.
    pub fn finalize(mut self) -> Result<(), Error> {
        self.check_origin()?;
        let limit = Duration::from_secs(self.config.timeout_seconds.into());
        let flushed = self.flush(limit);
        if flushed.is_ok() {
            self.announce_end();
        }
        self.close();
        let finalized = self.exchange.as_mut().map_or(Ok(()), |exchange| exchange.finalize());
        flushed?;
        Ok(finalized?)
    }

    fn flush(&mut self, limit: Duration) -> Result<(), Error> {
        let begun = Instant::now();
        while !self.is_flushed() {
            if begun.elapsed() > limit {
                return Err(Error::Timeout(limit));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Makes progress with all pipes. Returns whether all bytes that were put have left. A process that does not put or
    /// get for a while calls this until it returns `true`: bytes over TCP move only when both processes make progress.
    pub fn is_flushed(&mut self) -> bool {
        let mut all = self.shm.as_mut().is_none_or(ChannelFabric::flush);
        all &= self.tcp.as_mut().is_none_or(ChannelFabric::flush);
        all &= self.verbs.as_mut().is_none_or(ChannelFabric::flush);
        for link in &mut self.links {
            if let ChannelLink::Direct(link) = link {
                let has_left = link.push();
                if !has_left {
                    link.look();
                }
                all &= has_left;
            }
        }
        all
    }

    /// Announces to each peer that nothing more follows. One whose receives are all in use for as long as this waits
    /// sees a loss instead.
    fn announce_end(&mut self) {
        for link in &self.links {
            if let ChannelLink::Direct(link) = link {
                link.finish();
            }
        }
        let begun = Instant::now();
        while begun.elapsed() < LAST_WORDS {
            let mut all = self.shm.as_mut().is_none_or(ChannelFabric::finish);
            all &= self.tcp.as_mut().is_none_or(ChannelFabric::finish);
            all &= self.verbs.as_mut().is_none_or(ChannelFabric::finish);
            if all {
                return;
            }
            std::thread::yield_now();
        }
    }

    fn close(&mut self) {
        self.shm.as_mut().map(ChannelFabric::close);
        self.tcp.as_mut().map(ChannelFabric::close);
        self.verbs.as_mut().map(ChannelFabric::close);
        self.links.clear();
    }

    /// Explains, a line for each rank, by which design and port it is reached, and why.
    pub fn explain(&self) -> String {
        let mut lines = String::new();
        for (rank, link) in self.links.iter().enumerate() {
            let how = match link {
                ChannelLink::None if rank == self.rank => "this process".to_owned(),
                ChannelLink::None => "not connected".to_owned(),
                ChannelLink::Direct(link) => format!("shared memory, direct; {}", link.explain()),
                ChannelLink::Shm(at) => explained("shared memory", self.shm.as_ref(), *at),
                ChannelLink::Tcp(at) => explained("tcp", self.tcp.as_ref(), *at),
                ChannelLink::Verbs(at) => explained("verbs", self.verbs.as_ref(), *at),
            };
            lines += &format!("rank {rank}: {how}\n");
        }
        lines
    }

    /// Returns what the registration caches have counted: of the RDMA device, if there is one.
    pub fn registrations(&self) -> RegistrationCounts {
        self.verbs.as_ref().map(ChannelFabric::counts).unwrap_or_default()
    }
}

/// Gives a text to all processes under a key, and returns the texts of all, by rank.
type Spread<'a> = &'a mut dyn FnMut(&str, &str) -> Result<Vec<String>, Error>;

/// As [`Spread`], by the launcher's or the caller's exchange.
fn published(exchange: &mut dyn Exchange, key: &str, own: &str) -> Result<Vec<String>, Error> {
    let (rank, size) = (exchange.rank(), exchange.size());
    exchange.put(&format!("{key}-{rank}"), own)?;
    exchange.barrier()?;
    (0..size).map(|rank| Ok(exchange.get(&format!("{key}-{rank}"))?)).collect()
}

fn explained<P: MemoryPort>(port: &str, fabric: Option<&ChannelFabric<P>>, at: usize) -> String {
    format!("{port}, {}", fabric.map(|fabric| fabric.explain(at)).unwrap_or_default())
}

fn segment(base: *const u8, len: usize) -> Segment {
    Segment { base: base.cast_mut(), len }
}

#[cfg(test)]
mod tests;
