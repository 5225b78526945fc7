//! Endpoints: open, close, and what they know.

use std::cell::Cell;
use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use nemesia::Failure;

use crate::active::runs_handler_of;
use crate::boundary::{Out, guard, read_versioned, write_text};
use crate::config::{self, Config};
use crate::exchange::{Exchange, Foreign};
use crate::handle::{self, Kind, Object, Pinned, in_use, pin};
use crate::lent::{Lent, Owner, Single};
use crate::status::{Fault, NEMESIA_ERR_PANIC, NEMESIA_ERR_RANK, NEMESIA_OK};

/// The peer is there.
pub const NEMESIA_FAILURE_NONE: i32 = 0;
/// The peer's process died.
pub const NEMESIA_FAILURE_DIED: i32 = 1;
/// The peer has finished, in good order: it has called `nemesia_endpoint_close`.
pub const NEMESIA_FAILURE_FINISHED: i32 = 2;
/// The connection to the peer is over: it broke the rules of the transport, or sent an active message for which this
/// process has no memory.
pub const NEMESIA_FAILURE_FAULT: i32 = 3;
/// The peer has given up its endpoint without closing it, or closing it failed.
pub const NEMESIA_FAILURE_DROPPED: i32 = 4;

/// A process's place in its world.
#[derive(Debug)]
pub struct Endpoint {
    owner: Owner,
    warnings: Vec<CString>,
    /// A panic went through it; it can only be closed.
    poisoned: AtomicBool,
}

impl Object for Endpoint {
    const KIND: Kind = Kind::Endpoint;

    fn single(&self) -> Option<&Single> {
        match &self.owner {
            Owner::One(single) => Some(single),
            Owner::All(_) => None,
        }
    }
}

impl Endpoint {
    /// Makes the handle of an endpoint.
    fn publish(inner: nemesia::Endpoint, multiple: bool) -> Result<*mut Self, Fault> {
        let warnings =
            inner.warnings().iter().map(|warning| CString::new(warning.as_str()).unwrap_or_default());
        let warnings = warnings.collect();
        let owner = if multiple { Owner::All(inner.into_shared()) } else { Owner::One(Single::new(inner)) };
        handle::insert(Self { owner, warnings, poisoned: AtomicBool::new(false) })
    }
}

/// Joins the world that the launcher describes (`mpiexec.hydra`, `nemesia run`); without a launcher, a world of one.
/// Collective: every process of the world calls it. It succeeds once in a process.
///
/// - `config`: a configuration; NULL: as `nemesia_config_from_environment` makes it.
/// - `out_endpoint`: the endpoint, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _CONFIG, _BOOTSTRAP, _SYSTEM, _PEER or _PANIC.
/// Ownership: the endpoint is the caller's, to be given back with `nemesia_endpoint_close`. `config` is copied.
/// Threads: any. An endpoint may move between threads, and is used by one at a time, unless it is opened for several:
/// `nemesia_config_set_threads`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_open(
    config: *const Config,
    out_endpoint: *mut *mut Endpoint,
) -> i32 {
    let work = || {
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::required(out_endpoint, "out_endpoint") }?;
        let (config, multiple) = config::resolve(config)?;
        out.write(Endpoint::publish(nemesia::Endpoint::open(&config)?, multiple)?);
        Ok(NEMESIA_OK)
    };
    guard(work, || ())
}

/// Joins a world through the caller's own exchange: this is how a runtime embeds Nemesia. Collective: every process
/// of the world calls it. It may be called again for another world.
///
/// - `config`: a configuration; NULL: as `nemesia_config_from_environment` makes it.
/// - `exchange`: see `nemesia_exchange`.
/// - `out_endpoint`: the endpoint, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _CONFIG, _BOOTSTRAP, _SYSTEM, _PEER or _PANIC.
/// Ownership: the endpoint is the caller's, to be given back with `nemesia_endpoint_close`. `config` and `exchange` are
/// copied; the exchange is not used after this call.
/// Threads: any; the exchange's functions are called by this thread. For the endpoint see `nemesia_endpoint_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_open_with(
    config: *const Config,
    exchange: *const Exchange,
    out_endpoint: *mut *mut Endpoint,
) -> i32 {
    let work = || {
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::required(out_endpoint, "out_endpoint") }?;
        let (config, multiple) = config::resolve(config)?;
        // SAFETY: the caller's pointer, null or good.
        let exchange = unsafe { read_versioned(exchange) }?;
        // SAFETY: the caller's functions.
        let exchange = unsafe { Foreign::new(&exchange) }?;
        let inner = nemesia::Endpoint::open_with(&config, Box::new(exchange))?;
        out.write(Endpoint::publish(inner, multiple)?);
        Ok(NEMESIA_OK)
    };
    guard(work, || ())
}

/// Sends what is pending, tells the peers that this process has finished, and leaves the world. May block for as long
/// as `timeout_seconds` of the configuration. Messages that have left can still be received by their receivers. A
/// process that ends without this call, or whose call returns NEMESIA_ERR_TIMEOUT, has failed for its peers.
///
/// In a forked child it returns NEMESIA_ERR_FORKED and does nothing to the world of the parent.
///
/// - `endpoint`: an open endpoint. The call closes it, whatever it returns, unless that is NEMESIA_ERR_THREADS,
///   _ARGUMENT or _HANDLE. Every later use of the handle, another close among them, returns NEMESIA_ERR_HANDLE.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_TIMEOUT if something could not be sent; NEMESIA_ERR_BOOTSTRAP if the launcher did
/// not take leave; NEMESIA_ERR_FORKED in a forked child; NEMESIA_ERR_PANIC if the endpoint, or this call, met an error
/// of Nemesia's own; NEMESIA_ERR_THREADS if another thread is in a call on the endpoint, which stays open: let that
/// call return, and close again; NEMESIA_ERR_ARGUMENT for NULL, and from a handler of this endpoint;
/// NEMESIA_ERR_HANDLE. Ownership: takes the endpoint. Its requests end, and their buffers are the caller's again.
/// Threads: any; no other thread may be using the endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_close(endpoint: *mut Endpoint) -> i32 {
    let work = || {
        let pinned = pin(endpoint, "endpoint")?;
        if is_in_handler(endpoint) {
            return Err(in_handler());
        }
        if pinned.single().is_some_and(Single::is_busy) {
            return Err(in_use("endpoint"));
        }
        let Endpoint { owner, poisoned, .. } = *pinned.take("endpoint")?;
        if poisoned.into_inner() {
            drop(owner);
            return Err(poison());
        }
        match owner {
            Owner::One(single) => single.into_inner().close()?,
            Owner::All(shared) => shared.close()?,
        }
        Ok(NEMESIA_OK)
    };
    guard(work, || ())
}

/// The rank of this process in its world.
///
/// - `endpoint`: an open endpoint.
/// - `out_rank`: from 0, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_rank(endpoint: *mut Endpoint, out_rank: *mut i32) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::required(out_rank, "out_rank") }?;
        out.write(rank_of(endpoint.rank()));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// The number of processes in the world.
///
/// - `endpoint`: an open endpoint.
/// - `out_size`: at least 1, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_size(endpoint: *mut Endpoint, out_size: *mut i32) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::required(out_size, "out_size") }?;
        out.write(rank_of(endpoint.size()));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// A remark on what was asked for and could not be had: huge pages, seals, cheap fences, variables that do not exist.
///
/// - `endpoint`: an open endpoint.
/// - `index`: from 0; count up until NULL is returned.
///
/// Returns: one line of text, or NULL if there is none with this index, or `endpoint` is no open endpoint.
/// Ownership: the text is the endpoint's, until it is closed.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_warning(endpoint: *mut Endpoint, index: usize) -> *const c_char {
    let Ok(endpoint) = pin(endpoint, "endpoint") else { return ptr::null() };
    endpoint.warnings.get(index).map_or(ptr::null(), |warning| warning.as_ptr())
}

/// How each rank is reached, what is used with it, and why what is not used was refused; and the remarks of
/// `nemesia_endpoint_warning`.
///
/// - `endpoint`: an open endpoint.
/// - `bytes`: room in `out_text`.
/// - `out_text`: lines of text, terminated; may be NULL if `bytes` is 0.
/// - `out_len`: bytes of the whole text, without its end; may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_TRUNCATED if there is too little room: what fits is written, terminated, and
/// `out_len` is; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_explain(
    endpoint: *mut Endpoint,
    bytes: usize,
    out_text: *mut c_char,
    out_len: *mut usize,
) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        let text = endpoint.explain().to_string();
        // SAFETY: the caller's buffer of this size.
        unsafe { write_text(&text, bytes, out_text, out_len, "out_text") }
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Whether a peer is gone, and why. It is found out while waiting and making progress.
///
/// - `endpoint`: an open endpoint.
/// - `rank`: the peer.
/// - `out_failure`: NEMESIA_FAILURE_NONE, _DIED, _FINISHED, _FAULT or _DROPPED, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _RANK or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_peer_failure(
    endpoint: *mut Endpoint,
    rank: i32,
    out_failure: *mut i32,
) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::required(out_failure, "out_failure") }?;
        let rank = rank_in(endpoint, rank)?;
        out.write(match endpoint.failure(rank) {
            None => NEMESIA_FAILURE_NONE,
            Some(Failure::Died) => NEMESIA_FAILURE_DIED,
            Some(Failure::Finished) => NEMESIA_FAILURE_FINISHED,
            Some(Failure::Dropped) => NEMESIA_FAILURE_DROPPED,
            Some(Failure::Fault(_)) => NEMESIA_FAILURE_FAULT,
        });
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Says that the caller knows of the peers that have failed so far: receives from NEMESIA_ANY_SOURCE, which fail after
/// a peer died, can be posted again.
///
/// - `endpoint`: an open endpoint.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_acknowledge_failures(endpoint: *mut Endpoint) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        endpoint.acknowledge_failures();
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Runs what uses an endpoint and does not block: checks that it is there and sound, and poisons it if `work` panics.
///
/// # Safety
/// If `endpoint` is an open endpoint of one thread, no other thread uses it meanwhile.
#[inline]
pub(crate) unsafe fn on(
    endpoint: *mut Endpoint,
    work: impl FnOnce(&mut nemesia::Endpoint) -> Result<i32, Fault>,
) -> i32 {
    // SAFETY: the caller's promise.
    let held = match unsafe { hold(endpoint) } {
        Ok(held) => held,
        Err(fault) => return fault.report(),
    };
    let work = || match &held {
        // SAFETY: the caller's promise.
        Held::One(single) => unsafe { single.lend(work) }?,
        Held::Pinned(pinned) => match &pinned.owner {
            // SAFETY: no function of this crate swaps, replaces or takes the endpoint that it is lent.
            Owner::All(shared) => unsafe { shared.with_endpoint(work) }?,
            // SAFETY: the caller's promise.
            Owner::One(single) => unsafe { single.lend(work) }?,
        },
    };
    guard(work, || spoil(endpoint))
}

/// As [`on`], of what may block.
///
/// # Safety
/// As [`on`].
#[inline]
pub(crate) unsafe fn blocking_on(
    endpoint: *mut Endpoint,
    work: impl FnOnce(Lent<'_>) -> Result<i32, Fault>,
) -> i32 {
    // SAFETY: the caller's promise.
    let held = match unsafe { hold(endpoint) } {
        Ok(held) => held,
        Err(fault) => return fault.report(),
    };
    let work = || match &held {
        // SAFETY: the caller's promise.
        Held::One(single) => unsafe { single.lend(|inner| work(Lent::One(inner))) }?,
        Held::Pinned(pinned) => match &pinned.owner {
            Owner::All(shared) => work(Lent::All(shared)),
            // SAFETY: the caller's promise.
            Owner::One(single) => unsafe { single.lend(|inner| work(Lent::One(inner))) }?,
        },
    };
    guard(work, || spoil(endpoint))
}

/// The endpoint, for what is over after some instructions, calls nothing of the caller's and does not panic: no guard,
/// which hands everything over in memory. `None` when anything is out of the ordinary, or it is all threads'; [`on`]
/// will tell.
///
/// # Safety
/// As [`on`], and as [`Single::at_hand`].
#[inline(always)]
pub(crate) unsafe fn at_hand<'a>(endpoint: *mut Endpoint) -> Option<&'a mut nemesia::Endpoint> {
    // SAFETY: the caller's promise.
    unsafe { handle::at_hand(endpoint)?.at_hand() }
}

/// An endpoint for the length of a call.
enum Held<'a> {
    /// One thread's: nobody else may close it, and it says whether a call has it.
    One(&'a Single),
    /// All threads', or about to be closed.
    Pinned(Pinned<Endpoint>),
}

/// What both do: checks that the endpoint is open and sound, and that this is no handler of its own.
///
/// # Safety
/// As [`on`].
#[inline]
unsafe fn hold<'a>(endpoint: *mut Endpoint) -> Result<Held<'a>, Fault> {
    if is_in_handler(endpoint) {
        return Err(in_handler());
    }
    // SAFETY: the caller's promise.
    if let Some(single) = unsafe { handle::at_hand(endpoint) } {
        return Ok(Held::One(single));
    }
    let pinned = pin(endpoint, "endpoint")?;
    if pinned.poisoned.load(Ordering::Relaxed) { Err(poison()) } else { Ok(Held::Pinned(pinned)) }
}

/// After a panic the endpoint can only be closed.
#[cold]
fn spoil(endpoint: *mut Endpoint) {
    handle::withdraw(endpoint);
    if let Ok(pinned) = pin(endpoint, "endpoint") {
        pinned.poisoned.store(true, Ordering::Relaxed);
    }
}

fn is_in_handler(endpoint: *mut Endpoint) -> bool {
    IN_HANDLER.get() != 0 && runs_handler_of(endpoint.addr())
}

thread_local! {
    /// The handle of the endpoint whose handler this thread is in, or 0. Of nested handlers: the innermost.
    pub(crate) static IN_HANDLER: Cell<usize> = const { Cell::new(0) };
}

#[cold]
fn in_handler() -> Fault {
    Fault::argument("the endpoint can't be used from a handler of its own: reply, or do it after progress")
}

#[cold]
fn poison() -> Fault {
    Fault::new(
        NEMESIA_ERR_PANIC,
        "the endpoint can only be closed: an earlier call met an error of nemesia's own",
    )
}

/// A rank of the caller's, which exists.
#[inline]
pub(crate) fn rank_in(endpoint: &nemesia::Endpoint, rank: i32) -> Result<usize, Fault> {
    let exists = usize::try_from(rank).ok().filter(|rank| *rank < endpoint.size());
    exists.ok_or_else(|| no_such_rank(rank, endpoint.size()))
}

#[cold]
fn no_such_rank(rank: i32, size: usize) -> Fault {
    let text = format!("rank {rank} does not exist: this world has ranks 0 to {}", size.saturating_sub(1));
    Fault::new(NEMESIA_ERR_RANK, text)
}

/// A rank or a size for the caller. Worlds are smaller than 2^31: each peer takes file descriptors.
#[inline]
pub(crate) fn rank_of(rank: usize) -> i32 {
    i32::try_from(rank).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The world of one that every test process is.
    fn alone() -> *mut Endpoint {
        let exchange = nemesia::bootstrap::Singleton::new();
        let config = nemesia::Config::default();
        let inner = nemesia::Endpoint::open_with(&config, Box::new(exchange)).unwrap();
        Endpoint::publish(inner, false).unwrap()
    }

    #[test]
    fn a_panic_leaves_an_endpoint_that_can_only_be_closed() {
        let endpoint = alone();
        let mut rank = -7;
        // SAFETY: open, and ours alone.
        assert_eq!(unsafe { on(endpoint, |_| panic!("on purpose")) }, NEMESIA_ERR_PANIC);
        // SAFETY: open, and ours alone.
        assert_eq!(unsafe { nemesia_endpoint_rank(endpoint, &raw mut rank) }, NEMESIA_ERR_PANIC);
        assert_eq!(rank, -7);
        // SAFETY: open, and not used after this.
        assert_eq!(unsafe { nemesia_endpoint_close(endpoint) }, NEMESIA_ERR_PANIC);
    }

    #[test]
    fn ranks_that_do_not_exist_are_refused() {
        let endpoint = alone();
        let mut failure = -7;
        for rank in [-1, 1, i32::MAX, i32::MIN] {
            // SAFETY: open, and ours alone.
            let code = unsafe { nemesia_endpoint_peer_failure(endpoint, rank, &raw mut failure) };
            assert_eq!((code, failure), (NEMESIA_ERR_RANK, -7), "{rank}");
        }
        // SAFETY: open, and not used after this.
        assert_eq!(unsafe { nemesia_endpoint_close(endpoint) }, NEMESIA_OK);
    }
}
