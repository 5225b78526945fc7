//! Opening and closing an endpoint, and facts about its world.

use std::sync::Arc;
use std::time::Instant;

use nemesia_core::engine::rma::WINDOW;
use nemesia_core::engine::{Engine, Lent, Tuning};
use nemesia_core::port::MessagePort as _;
use nemesia_core::slab::List;
use nemesia_core::store::{self, Unit};

use super::agree::Agreements;
use super::probe::Dropped;
use super::wait::Waiter;
use super::{Endpoint, FIRST_REQUESTS, Heap, active, direct, trace};
use crate::bootstrap::{Bootstrap, Exchange};
use crate::config::Config;
use crate::error::Error;
use crate::events;
use crate::os::limits;
use crate::route;
use crate::shm::{self, Attached};

impl Endpoint {
    /// Joins the world that the launcher describes; without a launcher, a world of one.
    ///
    /// # Errors
    /// What failed, on which rank, and the remedy.
    pub fn open(config: &Config) -> Result<Self, Error> {
        Self::open_with(config, Box::new(Bootstrap::from_env()?))
    }

    /// Joins a world through the caller's own key-value exchange. Collective: every process of the world calls it.
    ///
    /// # Errors
    /// What failed, on which rank, and the remedy.
    pub fn open_with(config: &Config, mut exchange: Box<dyn Exchange + Send>) -> Result<Self, Error> {
        // Asked once: another answer later would not fit what is made from these.
        let (rank, size) = (exchange.rank(), exchange.size());
        if rank >= size {
            return Err(Error::Rank { rank, last: size.saturating_sub(1) });
        }
        let _inside = events::open(rank, size);
        let mut warnings = Vec::new();
        for preference in config.warnings() {
            config.give_up(preference, &mut warnings)?;
        }
        // Before anybody is met: what can't be had here must not end their world.
        let (units, stored) = room(config.unexpected_bytes)?;
        let ranks = (u32::try_from(rank).unwrap_or(u32::MAX), u32::try_from(size).unwrap_or(u32::MAX));
        let attached = shm::attach(config, exchange.as_mut(), ranks)?;
        let Attached { port, sleep, watch, fence, load, facts, warnings: remarks, stamp, .. } = attached;
        warnings.extend(remarks);
        let lent = Lent::<Heap> {
            requests: filled(FIRST_REQUESTS.min(config.requests)),
            peers: filled(size),
            units,
            stored,
            posted: vec![List::new(); FIRST_REQUESTS],
            regions: Vec::new(),
            replies: filled(size.saturating_sub(1) * WINDOW as usize),
            handlers: active::Dispatch::new(port.packet_bytes()),
            trace: trace::recorder(config),
        };
        let window = (config.credit_bytes / store::UNIT) as u32;
        let non_temporal_bytes = config.non_temporal_from();
        let tuning = tuning(config, window, non_temporal_bytes);
        let engine = Engine::new(rank as u32, port, tuning, lent).map_err(crate::ConfigError::from)?;
        let waiter = Waiter::new(config, load, sleep, watch, fence);
        let mut endpoint = Self {
            engine,
            waiter,
            agreements: Agreements::default(),
            exchange: Some(exchange),
            leaving: Vec::new(),
            allocations: Vec::new(),
            direct: direct::Direct::default(),
            non_temporal_bytes,
            operations: 0,
            dropped: Arc::new(Dropped::new(Arc::clone(&attached.origin))),
            discarding: Vec::new(),
            finished: false,
            config: config.clone(),
            warnings,
            turns: 0,
            liveness_checked: Instant::now(),
            facts,
            rejoin: attached.rejoin,
            incarnations: vec![0; size],
            stamp,
            origin: attached.origin,
        };
        endpoint.incarnations[rank] = endpoint.rejoin.incarnation();
        endpoint.begin_without(&attached.gone);
        endpoint.report_routes();
        if config.explain {
            route::say(&endpoint.explain());
        }
        Ok(endpoint)
    }

    /// Flushes what is pending, tells the peers that this process has finished, and leaves the launcher's world.
    ///
    /// Messages that have left can be received after this; those to a peer that does not receive them are lost with
    /// it.
    ///
    /// # Errors
    /// The launcher's refusal, or a send that could not be flushed within the configured time; to the peers the latter
    /// is [`Failure::Dropped`](crate::Failure::Dropped). [`Error::Forked`]: only the process that opened it can close
    /// it.
    pub fn close(mut self) -> Result<(), Error> {
        self.check_origin()?;
        let flushed = self.flush_sends().and_then(|()| {
            // As late as it can be: what comes after this is lost to those that have sent it.
            self.engine.settle_accounts();
            self.flush_sends()
        });
        // Otherwise the rest is lost, and the peers are to know.
        self.finished = flushed.is_ok();
        let finalized = self.exchange.take().map_or(Ok(()), |mut exchange| exchange.finalize());
        flushed?;
        Ok(finalized?)
    }

    /// Our rank, from 0.
    pub fn rank(&self) -> usize {
        self.engine.rank() as usize
    }

    /// Processes in the world.
    pub fn size(&self) -> usize {
        self.engine.size() as usize
    }

    /// Why a rank is gone, if it is.
    pub fn failure(&self, rank: usize) -> Option<crate::Failure> {
        self.engine.failure(u32::try_from(rank).ok()?)
    }

    /// The caller knows of the peers that have failed so far: receives from any source can be posted again.
    pub fn acknowledge_failures(&mut self) {
        self.engine.acknowledge();
    }

    /// Remarks on what was asked for and could not be had: huge pages that were to be tried, seals, cheap fences,
    /// variables that do not exist. In strict mode all but the first are errors at start.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl Endpoint {
    /// Tells how each rank is reached to whoever listens (feature `tracing`).
    fn report_routes(&self) {
        if cfg!(feature = "tracing") {
            let explanation = self.explain();
            explanation.routes.iter().for_each(events::route);
            explanation.warnings.iter().for_each(|warning| events::warning(warning));
        }
    }
}

const fn tuning(config: &Config, window: u32, non_temporal_bytes: u64) -> Tuning {
    Tuning {
        eager_bytes: config.eager_bytes,
        window,
        assist_bytes: match config.assist_bytes {
            Some(bytes) => bytes,
            None => u64::MAX,
        },
        non_temporal_bytes,
        pull_bytes: config.pull_bytes,
        run_bytes: config.run_bytes,
    }
}

/// Room for unexpected messages, and the lists that find them: together no more than so many bytes, zeroed by the
/// kernel and committed as they are used.
fn room(bytes: usize) -> Result<(Vec<Unit>, Vec<u32>), Error> {
    let refused = || Error::from(crate::ConfigError::TooLarge { name: "NEMESIA_UNEXPECTED_BYTES", bytes });
    limits::require_address_space(bytes)?;
    if limits::available_memory().is_some_and(|available| bytes as u64 > available.bytes) {
        return Err(refused());
    }
    let (units, lists) = store::split(bytes);
    // Nothing is touched yet: the allocator can only fail for want of addresses.
    Vec::<Unit>::new().try_reserve_exact(units).map_err(|_| refused())?;
    Ok((vec![[0; store::UNIT]; units], vec![0; lists]))
}

fn filled<T: Default>(len: usize) -> Vec<T> {
    std::iter::repeat_with(T::default).take(len).collect()
}
