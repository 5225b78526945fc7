//! Opening and closing an endpoint, and facts about its world.
//!
//! | file | contents |
//! |---|---|
//! | `open.rs` | opening; facts; closing |
//! | `open/memory.rs` | the memory for unexpected messages |
//! | `open/network.rs` | the port to peers on other machines that are connected one by one |
//! | `open/ports.rs` | shared memory and the port to other machines as one port |
//! | `open/end.rs` | the end of an endpoint that is dropped or forked |

mod end;
mod memory;
mod network;
mod ports;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nemesia_core::engine::rma::WINDOW;
use nemesia_core::engine::{Engine, Lent, Tuning};
use nemesia_core::flow::CeilingError;
use nemesia_core::port::PacketPort as _;
use nemesia_core::port::memory::Address;
use nemesia_core::slab::List;
use nemesia_core::spin::Oversubscription;
use nemesia_core::store;

use super::group::Agreements;
use super::message::Dropped;
use super::one_sided::Direct;
use super::peers::PeerTable;
use super::wait::Waiter;
use super::{Endpoint, Heap, active, observe};
pub(super) use memory::UnexpectedMemory;
pub(super) use ports::Ports;

use crate::bootstrap::{Bootstrap, Exchange, Singleton};
use crate::config::{Config, FIRST_REQUESTS};
use crate::error::Error;
use crate::events;
use crate::explain::Verdict;
use crate::opening;
use crate::os::Watch;
use crate::route;
use crate::shm::{self, Attached, Calls, ConnectTime};
use crate::transport::hosts::{MemberAddress, RemoteRanks};
use crate::transport::net::NetPort;

/// The most peers for which the fastest protocol of large messages is learned at a time, in about 3 KiB each.
const LEARNED_PEERS: usize = 16;

/// # Opening, closing and facts
///
/// A process opens one endpoint, uses it, and closes it. Only a closed endpoint has ended normally for its peers.
///
/// ```no_run
/// use nemesia::{Config, Endpoint};
///
/// let mut endpoint = Endpoint::open(&Config::from_env()?)?;
/// for warning in endpoint.warnings() {
///     eprintln!("rank {} of {}: {warning}", endpoint.rank(), endpoint.size());
/// }
/// endpoint.barrier()?;
/// endpoint.close()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Joins the world that the launcher describes. Without a launcher, the world has one rank.
    ///
    /// Two ranks connect when an operation of one first names the other, unless [`Config::connect_on_demand`] says
    /// otherwise. Such an operation waits until the other process makes progress. If ranks run on several machines,
    /// this is so over TCP only: over RDMA devices, all ranks connect before this returns.
    ///
    /// The launcher speaks PMI-1: `mpiexec.hydra` or `nemesia run`. It has one connection with each process. If other
    /// code of this process has initialised that connection, such as an MPI library, this is an error, unless
    /// [`Config::pmi_take_over`] is set. The endpoint of such a process is opened by [`Endpoint::open_with`].
    ///
    /// # Errors
    /// The error names what failed, on which rank, and the remedy.
    pub fn open(config: &Config) -> Result<Self, Error> {
        let bootstrap = if config.pmi_take_over { Bootstrap::take_over() } else { Bootstrap::from_env() };
        Self::open_with(config, Box::new(bootstrap?))
    }

    /// Joins a world through the caller's own key-value exchange. Collective: every process of the world calls it.
    ///
    /// # Errors
    /// The error names what failed, on which rank, and the remedy.
    pub fn open_with(config: &Config, mut exchange: Box<dyn Exchange + Send>) -> Result<Self, Error> {
        match Self::join(config, exchange.as_mut()) {
            Ok(mut endpoint) => {
                endpoint.exchange = Some(exchange);
                Ok(endpoint)
            }
            Err(error) => {
                exchange.start_failed();
                Err(error)
            }
        }
    }

    /// Opens an endpoint alone. It has no peers yet: see [`Endpoint::address`] and [`Endpoint::connect`].
    ///
    /// No other process takes part, and no launcher is needed. [`Endpoint::size`] is the number of places for peers,
    /// that of this process included, and [`Endpoint::rank`] is 0. Receives from any source outlive all peers
    /// ([`Config::any_source_outlives`]).
    ///
    /// # Errors
    /// The error names what failed, and the remedy.
    pub fn alone(config: &Config) -> Result<Self, Error> {
        let config = config.clone().any_source_outlives(true);
        let mut exchange = Singleton::default();
        let mut endpoint = Self::open_in(&config, &mut exchange, Some(config.connections))?;
        let calls = endpoint.listen()?;
        endpoint.peers = Some(Box::new(PeerTable::alone(calls, &config)?));
        endpoint.report_routes();
        Ok(endpoint)
    }

    /// Begins to listen for the calls of this machine, with a place for those of other ones.
    fn listen(&mut self) -> Result<Calls, Error> {
        let door = network::find_door(&self.config, &mut self.warnings)?;
        self.here.listen(&mut self.waiter.watch, door)
    }

    /// Joins the world. The endpoint does not have the exchange yet.
    fn join(config: &Config, exchange: &mut (dyn Exchange + Send)) -> Result<Self, Error> {
        let mut endpoint = Self::open_in(config, exchange, None)?;
        if endpoint.size() == 1 {
            // The only rank has not listened for others so far.
            let calls = endpoint.listen()?;
            let table = PeerTable::of_world(calls, 0, &[], config)?;
            endpoint.peers = Some(Box::new(table));
        }
        endpoint.report_routes();
        Ok(endpoint)
    }

    /// Joins the world of the exchange. With `growing` the world has one process, and the endpoint has up to so many
    /// peers later.
    fn open_in(
        config: &Config,
        exchange: &mut (dyn Exchange + Send),
        growing: Option<u32>,
    ) -> Result<Self, Error> {
        // Asked once: another answer later would not fit the structures of these sizes.
        let (rank, size) = (exchange.rank(), exchange.size());
        if rank >= size {
            return Err(Error::Rank { rank, last: size.saturating_sub(1) });
        }
        let _inside = events::open(rank, size);
        let mut warnings = config.given_up()?;
        // This comes before the first contact with a peer: a local lack of memory must not end the peers' world.
        let (units, stored) = memory::room(config, &mut warnings)?;
        let ranks = (u32::try_from(rank).unwrap_or(u32::MAX), u32::try_from(size).unwrap_or(u32::MAX));
        let attached = shm::attach(config, exchange, ranks)?;
        let Attached { port, sleep, mut watch, fence, load, mut facts, warnings: more, stamp, .. } = attached;
        let remote = attached.remote;
        let time = attached.calls.as_ref().map(|(_, time)| *time);
        let of_world = |(calls, _)| PeerTable::of_world(calls, ranks.0, &attached.ranks, config);
        let peers = attached.calls.map(of_world).transpose()?;
        warnings.extend(more);
        // The only rank of a world has further peers as an endpoint that opens alone.
        let is_alone = growing.is_some() || size == 1;
        let grows = is_alone || time == Some(ConnectTime::OnDemand);
        let mut net =
            connect_remote(config, remote, exchange.incarnation(), (&mut facts, &mut watch, &mut warnings))?;
        if net.is_none() && grows {
            let sizes = (ranks.0, port.packet_bytes());
            net = network::open_small(config, sizes, &attached.origin, (&mut watch, &mut warnings))?;
        }
        let net_address = net.as_ref().and_then(NetPort::address);
        let port = ports::join(port, net, &facts.remote);
        let engine = start(config, port, (rank, size), (growing, time.is_some()), (units, stored));
        let engine = engine.map_err(crate::ConfigError::from)?;
        let waiter = Waiter::new(config, load, sleep, watch, fence);
        let mut endpoint = Self {
            engine,
            waiter,
            agreements: Agreements::default(),
            exchange: None,
            leaving: Vec::new(),
            allocations: Vec::new(),
            buffers: Vec::new(),
            retired: Vec::new(),
            direct: Direct::default(),
            non_temporal_bytes: config.non_temporal_from(),
            operations: 0,
            peers: peers.map(Box::new),
            dropped: Arc::new(Dropped::new(Arc::clone(&attached.origin))),
            discarding: Vec::new(),
            finished: false,
            config: config.clone(),
            warnings,
            unreached: BTreeMap::new(),
            turns: 0,
            liveness_checked: Instant::now(),
            facts,
            here: attached.here,
            incarnations: vec![0; size],
            stamp,
            origin: attached.origin,
        };
        endpoint.incarnations[rank] = endpoint.here.incarnation();
        endpoint.begin_without(&attached.gone);
        endpoint.begin_connecting(time, exchange, net_address)?;
        Ok(endpoint)
    }

    /// Sends what is pending, notifies the peers that this process has finished, and leaves the launcher's world.
    ///
    /// Peers can still receive the messages that have left this process. A message to a peer that does not receive it
    /// is lost when that peer ends.
    ///
    /// # Errors
    /// The launcher's refusal. If pending sends did not leave within the configured time (NEMESIA_TIMEOUT):
    /// [`Error::Held`] if a receiver has no room for further unexpected messages, else [`Error::Timeout`]. The peers
    /// then see [`Failure::Dropped`](crate::Failure::Dropped).
    /// [`Error::Forked`]: only the process that opened the endpoint can close it.
    pub fn close(mut self) -> Result<(), Error> {
        self.check_origin()?;
        let flushed = self.flush_sends().and_then(|()| {
            // This is as late as possible: accumulated counts that arrive afterwards are lost to their senders.
            self.engine.settle_accounts();
            self.flush_sends()
        });
        // If the flush failed, the remaining sends are lost, and the peers must see a failure.
        self.finished = flushed.is_ok();
        let finalized = self.exchange.take().map_or(Ok(()), |mut exchange| exchange.finalize());
        flushed?;
        Ok(finalized?)
    }

    /// Returns the rank of this process, from 0.
    pub fn rank(&self) -> usize {
        self.engine.rank() as usize
    }

    /// Returns the number of processes in the world, without further peers. Of an endpoint that was opened alone: the
    /// number of places for peers, that of this process included; not each has a peer.
    pub fn size(&self) -> usize {
        match self.engine.ranks() {
            0 => self.numbers(),
            ranks => ranks as usize,
        }
    }

    /// Returns a number that is larger than every one by which operations name a process. Without further peers
    /// ([`Endpoint::connect`]) this is [`Endpoint::size`].
    pub fn numbers(&self) -> usize {
        self.engine.size() as usize
    }

    /// Returns the number of peers on this machine that this process is connected with.
    pub fn neighbours(&self) -> usize {
        self.waiter.neighbours().len()
    }

    /// Finds out how this process and its [neighbours](Self::neighbours) share the processors on which they may run,
    /// and adapts later waits. Returns whether they are more than those processors: then one that polls without a
    /// pause keeps others from running, and should wait ([`Endpoint::wait_progress`]).
    ///
    /// An endpoint does this when it is opened. One that was opened alone has no neighbours then. The call reads some
    /// files of the kernel for each neighbour.
    pub fn learn_load(&mut self) -> bool {
        let load = shm::load_beside(self.waiter.neighbours());
        self.waiter.set_load(load);
        load != Oversubscription::Room
    }

    /// Returns why a rank is gone; `None` if it is not.
    pub fn failure(&self, rank: usize) -> Option<crate::Failure> {
        self.engine.failure(u32::try_from(rank).ok()?)
    }

    /// Acknowledges the peers that have failed so far. Receives from any source can then be posted again.
    pub fn acknowledge_failures(&mut self) {
        self.engine.acknowledge();
    }

    /// Returns an error, with the reason and the remedy if it is that of a peer that cannot be connected with. The
    /// calls of an endpoint return such errors; those of [`Completion::result`](crate::Completion::result) lack the
    /// reason.
    pub fn with_reason(&self, mut error: Error) -> Error {
        if let Error::PeerFailed { rank, failure: crate::Failure::Unreachable, reason } = &mut error {
            *reason = self.unreached.get(rank).cloned();
        }
        error
    }

    /// Returns warnings about settings that could not be applied (huge pages with fallback, seals, cheap fences), about
    /// unknown variables, and about peers that could not be connected with. In strict mode all those of the opening but
    /// the first are errors at start. Later warnings follow the earlier ones.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl Endpoint {
    /// Connects with all ranks, unless that is done on demand. Those on other machines were connected before the engine
    /// was started. If the launcher restarts ranks, this process then joins, at this place of the network.
    fn begin_connecting(
        &mut self,
        time: Option<ConnectTime>,
        exchange: &mut (dyn Exchange + Send),
        net: Option<Address>,
    ) -> Result<(), Error> {
        if matches!(time, None | Some(ConnectTime::OnDemand)) {
            return Ok(());
        }
        let remote = (0..).zip(&self.facts.remote).filter(|(_, transport)| transport.is_some());
        let remote: Vec<u32> =
            remote.map(|(rank, _)| rank).filter(|rank| self.engine.is_unmet(*rank)).collect();
        self.with_peers(|peers, endpoint| {
            remote.into_iter().try_for_each(|rank| peers.begin_connected(rank, endpoint))
        })?;
        if time == Some(ConnectTime::Restart) {
            return self.call_missing();
        }
        self.connect_ranks()?;
        if exchange.restarts() {
            // The world is complete when all have joined.
            exchange.join(&MemberAddress { address: *self.address()?, net }.encode())?;
        }
        Ok(())
    }

    /// Reports how each rank is reached, and all warnings, to the subscribers of `tracing` (feature `tracing`); and
    /// prints it if the configuration asks for it.
    fn report_routes(&self) {
        if self.config.explain {
            opening::say(&self.explain());
        }
        if cfg!(feature = "tracing") {
            let explanation = self.explain();
            explanation.routes.iter().for_each(events::route);
            explanation.warnings.iter().for_each(|warning| events::warning(warning));
        }
    }
}

/// Connects with the ranks on other machines, unless they connect on demand, and records how they are reached. If this
/// process was started again, it only requests to be readmitted.
fn connect_remote(
    config: &Config,
    remote: RemoteRanks,
    incarnation: u64,
    (facts, watch, warnings): (&mut route::Facts, &mut Watch, &mut Vec<String>),
) -> Result<Option<NetPort>, Error> {
    let ranks = 0..facts.met.len();
    let is_remote: Vec<bool> = ranks.map(|rank| remote.contains(rank)).collect();
    warnings.extend(remote.warnings);
    let Some(mut port) = remote.port else { return Ok(None) };
    if port.is_growing() {
        // Each is called when it is first needed.
    } else if incarnation == 0 {
        let deadline = Instant::now() + Duration::from_secs(config.timeout_seconds.into());
        port.meet(deadline, config.explain)?;
    } else {
        port.hold_requests();
        remote.members.iter().for_each(|member| port.call(member));
    }
    let name = port.transport().name();
    facts.remote = is_remote.into_iter().map(|is_remote| is_remote.then_some(name)).collect();
    let unused = remote.refused.into_iter().map(|(other, why)| Verdict::new(other.name(), false, why));
    facts.unused = unused.collect();
    if let Some(descriptor) = port.descriptor() {
        watch.attend_net(descriptor)?;
    }
    Ok(Some(port))
}

/// Returns the memory that the engine is lent: for `size` processes from the start, and at most `most` later.
/// Starts the engine of a rank, or of an endpoint that is opened alone and may have so many peers. `is_unmet`: the
/// ranks connect on demand.
fn start(
    config: &Config,
    port: Ports,
    (rank, size): (usize, usize),
    (growing, is_unmet): (Option<u32>, bool),
    memory: (UnexpectedMemory, Vec<u32>),
) -> Result<Engine<Ports, Heap>, CeilingError> {
    let most = growing.map_or(size, |most| most as usize + 1);
    let met = if is_unmet { 0 } else { size.saturating_sub(1) };
    let lent = lent(config, [size, met, most], memory, port.packet_bytes());
    let tuning = tuning(config, config.non_temporal_from());
    match growing {
        None if is_unmet => Engine::unmet(rank as u32, port, tuning, lent),
        None => Engine::new(rank as u32, port, tuning, lent),
        Some(most) => Engine::alone(0, port, tuning, lent, most),
    }
}

fn lent(
    config: &Config,
    [size, met, most]: [usize; 3],
    (units, stored): (UnexpectedMemory, Vec<u32>),
    packet_bytes: usize,
) -> Lent<Heap> {
    Lent {
        requests: filled(FIRST_REQUESTS.min(config.requests)),
        peers: filled(size),
        units,
        stored,
        posted: vec![List::new(); FIRST_REQUESTS],
        regions: Vec::new(),
        replies: filled(met * WINDOW as usize),
        selections: filled(most.min(LEARNED_PEERS)),
        handlers: active::Dispatch::new(packet_bytes),
        trace: observe::recorder(config),
    }
}

fn tuning(config: &Config, non_temporal_bytes: u64) -> Tuning {
    Tuning {
        eager_bytes: config.eager_bytes,
        window: (config.credit_bytes / store::UNIT) as u32,
        assist_bytes: config.assist_bytes.unwrap_or(u64::MAX),
        // Shorter messages have no piece for each side.
        lent_assist_bytes: config
            .assist_bytes
            .map_or(u64::MAX, |_| config.assist_pieces[0].saturating_mul(2)),
        non_temporal_bytes,
        pull_bytes: config.pull_bytes,
        run_bytes: config.run_bytes,
        direct_bytes: config.net_direct_bytes.unwrap_or(u64::MAX),
    }
}

fn filled<T: Default>(len: usize) -> Vec<T> {
    std::iter::repeat_with(T::default).take(len).collect()
}
