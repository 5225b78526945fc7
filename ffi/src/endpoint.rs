//! Endpoints: open, close, and their properties.

use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nemesia::Failure;
use nemesia::bootstrap::Prefixed;

use crate::boundary::{Out, c_texts, guard, guard_with_room, read_versioned, write_text};
use crate::config::{self, Config};
use crate::exchange::{Exchange, Foreign, prefix_of};
use crate::handle::{self, Kind, Object, Pinned, in_use, pin};
use crate::lent::{Lent, Owner, Single};
use crate::rank::{rank_in, rank_of};
use crate::running::is_in_handler;
use crate::status::{Fault, NEMESIA_ERR_PANIC, NEMESIA_OK};

/// The peer has not failed.
pub const NEMESIA_FAILURE_NONE: i32 = 0;
/// The peer's process died.
pub const NEMESIA_FAILURE_DIED: i32 = 1;
/// The peer has finished in good order: it called `nemesia_endpoint_close`.
pub const NEMESIA_FAILURE_FINISHED: i32 = 2;
/// The connection to the peer has ended: the peer violated the transport's protocol, or it sent an active message for
/// which this process has no memory.
pub const NEMESIA_FAILURE_FAULT: i32 = 3;
/// The peer dropped its endpoint without closing it, or its `nemesia_endpoint_close` failed.
pub const NEMESIA_FAILURE_DROPPED: i32 = 4;
/// No peer has this rank. Only for an endpoint that was opened alone.
pub const NEMESIA_FAILURE_ABSENT: i32 = 5;
/// The peer cannot be connected with: it refuses, or does not answer. The message of a failed call has the reason
/// (`nemesia_last_error_message`), and so has a warning (`nemesia_endpoint_warning`).
pub const NEMESIA_FAILURE_UNREACHABLE: i32 = 6;

/// The membership of a process in a world.
#[derive(Debug)]
pub struct Endpoint {
    owner: Owner,
    /// Those that `nemesia_endpoint_warning` has returned, or those of the opening. Only more of them come.
    warnings: Mutex<Vec<CString>>,
    /// A panic went through the endpoint; it can only be closed.
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
        let warnings = Mutex::new(c_texts(inner.warnings()));
        let owner = if multiple { Owner::All(inner.into_shared()) } else { Owner::One(Single::new(inner)) };
        handle::insert(Self { owner, warnings, poisoned: AtomicBool::new(false) })
    }

    fn warnings(&self) -> MutexGuard<'_, Vec<CString>> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Joins the world that the launcher describes (`mpiexec.hydra`, `nemesia run`). Without a launcher, the world has one
/// process. Collective: every process of the world calls it. It succeeds once in a process.
///
/// Processes of one machine, or of two over TCP, connect when an operation of one first names the other. That operation
/// waits until the other process makes progress. The setting NEMESIA_CONNECT=start connects all of them here.
///
/// If an MPI library or other code of this process has initialised the launcher's connection, the call returns
/// NEMESIA_ERR_BOOTSTRAP and does not touch the connection: use `nemesia_endpoint_open_with`. The setting
/// NEMESIA_PMI_TAKE_OVER=1 takes the connection over from code that no longer uses it.
///
/// - `config`: a configuration, or NULL for the settings of `nemesia_config_from_environment`.
/// - `out_endpoint`: the endpoint, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _HANDLE, _CONFIG, _BOOTSTRAP, _SYSTEM, _PEER or _PANIC. Ownership: the
/// caller owns the endpoint and ends it with `nemesia_endpoint_close`. `config` is copied. Threads: any. One thread at
/// a time uses the endpoint, which may move between threads. `nemesia_config_set_threads` allows several.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_open(
    config: *const Config,
    out_endpoint: *mut *mut Endpoint,
) -> i32 {
    // SAFETY: the caller's pointer, null or valid.
    unsafe { publish_opened(config, out_endpoint, |config| Ok(nemesia::Endpoint::open(config)?)) }
}

/// Joins a world through the caller's own exchange. A runtime embeds Nemesia with this function. Collective: every
/// process of the world calls it. It may be called again for another world.
///
/// - `config`: a configuration, or NULL for the settings of `nemesia_config_from_environment`.
/// - `exchange`: see `nemesia_exchange`.
/// - `out_endpoint`: the endpoint, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _HANDLE, _CONFIG, _BOOTSTRAP, _SYSTEM, _PEER or _PANIC. Ownership: the
/// caller owns the endpoint and ends it with `nemesia_endpoint_close`. `config` and `exchange` are copied; the library
/// does not use the exchange after this call, unless it restarts ranks. Threads: any; this thread calls the functions
/// of the exchange. For the endpoint see `nemesia_endpoint_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_open_with(
    config: *const Config,
    exchange: *const Exchange,
    out_endpoint: *mut *mut Endpoint,
) -> i32 {
    let open = |config: &nemesia::Config| {
        // SAFETY: the caller's pointer, null or valid.
        let exchange = unsafe { read_versioned(exchange) }?;
        // SAFETY: the caller's text, null or valid.
        let prefix = unsafe { prefix_of(&exchange) }?;
        // SAFETY: the caller's functions.
        let exchange = unsafe { Foreign::new(&exchange) }?;
        let exchange = Prefixed::new(&prefix, exchange).map_err(nemesia::Error::from)?;
        Ok(nemesia::Endpoint::open_with(config, Box::new(exchange))?)
    };
    // SAFETY: the caller's pointer, null or valid.
    unsafe { publish_opened(config, out_endpoint, open) }
}

/// Opens an endpoint with this configuration, and writes its handle.
///
/// # Safety
/// `out_endpoint` is null, or valid for a write.
pub(crate) unsafe fn publish_opened(
    config: *const Config,
    out_endpoint: *mut *mut Endpoint,
    open: impl FnOnce(&nemesia::Config) -> Result<nemesia::Endpoint, Fault>,
) -> i32 {
    let work = || {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::required(out_endpoint, "out_endpoint") }?;
        let (config, multiple) = config::resolve(config)?;
        out.write(Endpoint::publish(open(&config)?, multiple)?);
        Ok(NEMESIA_OK)
    };
    guard_with_room(work)
}

/// Sends pending messages, notifies the peers that this process has finished, and leaves the world. May block for at
/// most NEMESIA_TIMEOUT_SECONDS. The receivers can still receive messages that have left this process. A process that
/// ends without this call has failed, from its peers' point of view. So has a process whose call returns
/// NEMESIA_ERR_TIMEOUT or NEMESIA_ERR_UNEXPECTED_FULL.
///
/// In a forked child the call has no effect on the world of the parent. It returns NEMESIA_ERR_FORKED, or
/// NEMESIA_ERR_THREADS if another thread was in a call on the endpoint during the fork.
///
/// - `endpoint`: an open endpoint. The call closes it, unless it returns NEMESIA_ERR_THREADS, _ARGUMENT or
///   _HANDLE. Every later use of the handle, including another close, returns NEMESIA_ERR_HANDLE.
///
/// Returns: NEMESIA_OK, or
/// - NEMESIA_ERR_TIMEOUT if a message could not be sent, or NEMESIA_ERR_UNEXPECTED_FULL if that is because its
///   receiver has no room for further unexpected messages;
/// - NEMESIA_ERR_BOOTSTRAP if the launcher refused the end of the session;
/// - NEMESIA_ERR_FORKED in a forked child;
/// - NEMESIA_ERR_PANIC if an earlier call or this one had an internal error;
/// - NEMESIA_ERR_THREADS if another thread is in a call on the endpoint, which stays open: close it again
///   after that call has returned;
/// - NEMESIA_ERR_ARGUMENT for NULL, and in a handler of this endpoint;
/// - NEMESIA_ERR_HANDLE.
///
/// Ownership: takes the endpoint. Its requests end, and the caller may reuse their buffers. Threads: any; no other
/// thread may use the endpoint.
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
    guard_with_room(work)
}

/// Writes the rank of this process in its world.
///
/// - `endpoint`: an open endpoint.
/// - `out_rank`: from 0, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or _PANIC. Threads: one at a time, or any number with
/// NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_rank(endpoint: *mut Endpoint, out_rank: *mut i32) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_rank, "out_rank") }?;
        out.write(rank_of(endpoint.rank()));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Writes the number of processes in the world.
///
/// - `endpoint`: an open endpoint.
/// - `out_size`: at least 1, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or _PANIC. Threads: one at a time, or any number with
/// NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_size(endpoint: *mut Endpoint, out_size: *mut i32) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_size, "out_size") }?;
        out.write(rank_of(endpoint.size()));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Returns a warning about a feature that was requested and is not available (huge pages, seals, cheap fences), about a
/// variable that does not exist, or about a peer that cannot be connected with. Warnings come while the endpoint is in
/// use: each gets the next index and keeps it.
///
/// - `endpoint`: an open endpoint. In one of its handlers, the call returns only warnings that it has returned before.
/// - `index`: from 0; increment it until NULL is returned.
///
/// Returns: one line of text; NULL if there is no warning with this index or the handle is invalid. Ownership: the text
/// is the endpoint's and is valid until it is closed. Threads: one at a time, or any number with
/// NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_warning(endpoint: *mut Endpoint, index: usize) -> *const c_char {
    let Ok(pinned) = pin(endpoint, "endpoint") else { return ptr::null() };
    let known = pinned.warnings().len();
    if index >= known && !is_in_handler(endpoint) {
        let mut later = Vec::new();
        let look = |inner: &mut nemesia::Endpoint| {
            later = c_texts(inner.warnings().get(known..).unwrap_or_default());
            Ok(NEMESIA_OK)
        };
        // SAFETY: the caller's endpoint.
        unsafe { on(endpoint, look) };
        let mut warnings = pinned.warnings();
        // Otherwise another thread has added them.
        if warnings.len() == known {
            warnings.append(&mut later);
        }
    }
    // The text lies on the heap, where it stays when the list grows.
    pinned.warnings().get(index).map_or(ptr::null(), |warning| warning.as_ptr())
}

/// Writes how each rank is reached, which mechanisms are used with it, and why others were refused. The text includes
/// the warnings of `nemesia_endpoint_warning`.
///
/// - `endpoint`: an open endpoint.
/// - `bytes`: the size of `out_text`.
/// - `out_text`: lines of text, terminated; may be NULL if `bytes` is 0.
/// - `out_len`: the length of the whole text without its terminator; may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_TRUNCATED if `out_text` is too small: the part that fits is written, terminated,
/// and `out_len` is written; NEMESIA_ERR_ARGUMENT or _PANIC. Threads: one at a time, or any number with
/// NEMESIA_THREADS_MULTIPLE.
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

/// Writes whether a peer has failed, and why. Failures are detected while the process waits or makes progress.
///
/// - `endpoint`: an open endpoint.
/// - `rank`: the peer.
/// - `out_failure`: NEMESIA_FAILURE_NONE, _DIED, _FINISHED, _FAULT, _DROPPED, _ABSENT or _UNREACHABLE, written on
///   success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _RANK or _PANIC. Threads: one at a time, or any number with
/// NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_peer_failure(
    endpoint: *mut Endpoint,
    rank: i32,
    out_failure: *mut i32,
) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_failure, "out_failure") }?;
        let rank = rank_in(endpoint, rank)?;
        out.write(match endpoint.failure(rank) {
            None => NEMESIA_FAILURE_NONE,
            Some(Failure::Died) => NEMESIA_FAILURE_DIED,
            Some(Failure::Finished) => NEMESIA_FAILURE_FINISHED,
            Some(Failure::Dropped) => NEMESIA_FAILURE_DROPPED,
            Some(Failure::Fault(_)) => NEMESIA_FAILURE_FAULT,
            Some(Failure::Absent) => NEMESIA_FAILURE_ABSENT,
            Some(Failure::Unreachable) => NEMESIA_FAILURE_UNREACHABLE,
        });
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Acknowledges the peers that have failed so far. A receive from NEMESIA_ANY_SOURCE fails after a peer died; after
/// this call, it can be posted again.
///
/// - `endpoint`: an open endpoint.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or _PANIC. Threads: one at a time, or any number with
/// NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_acknowledge_failures(endpoint: *mut Endpoint) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        endpoint.acknowledge_failures();
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Runs `work`, which does not block, on an endpoint. Checks the endpoint first, and poisons it if `work` panics.
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

/// As [`on`], for `work` that may block.
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

/// Returns the endpoint for a function of a few instructions that calls no code of the caller's and does not panic.
/// There is no guard, because a guard passes all values through memory. `None` in every exceptional case and for a
/// shared endpoint: the caller then takes [`on`], which reports the cause.
///
/// # Safety
/// As [`on`], and as [`Single::at_hand`].
#[inline(always)]
pub(crate) unsafe fn at_hand<'a>(endpoint: *mut Endpoint) -> Option<&'a mut nemesia::Endpoint> {
    // SAFETY: the caller's promise.
    unsafe { handle::at_hand(endpoint)?.at_hand() }
}

/// An endpoint for the duration of a call.
enum Held<'a> {
    /// An endpoint of one thread: no other thread may close it, and it records whether a call is in progress.
    One(&'a Single),
    /// A shared endpoint, or one that another call is closing.
    Pinned(Pinned<Endpoint>),
}

/// Performs the checks of [`on`] and [`blocking_on`]: the endpoint is open, no panic has gone through it, and this
/// thread is not in one of its handlers.
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

/// Marks the endpoint after a panic: it can only be closed.
#[cold]
fn spoil(endpoint: *mut Endpoint) {
    handle::withdraw(endpoint);
    if let Ok(pinned) = pin(endpoint, "endpoint") {
        pinned.poisoned.store(true, Ordering::Relaxed);
    }
}

#[cold]
fn in_handler() -> Fault {
    Fault::argument(
        "the endpoint cannot be used in one of its own handlers: reply, or make the call after progress",
    )
}

#[cold]
fn poison() -> Fault {
    Fault::new(NEMESIA_ERR_PANIC, "the endpoint can only be closed: an earlier call had an internal error")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{NEMESIA_ERR_PEER_FAILED, NEMESIA_ERR_RANK, nemesia_last_error_message};
    use std::ffi::CStr;

    /// Returns an endpoint of a world of one, which every test process can have.
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
        // SAFETY: open, and not used elsewhere.
        assert_eq!(unsafe { on(endpoint, |_| panic!("on purpose")) }, NEMESIA_ERR_PANIC);
        // SAFETY: open, and not used elsewhere.
        assert_eq!(unsafe { nemesia_endpoint_rank(endpoint, &raw mut rank) }, NEMESIA_ERR_PANIC);
        assert_eq!(rank, -7);
        // SAFETY: open, and not used after this.
        assert_eq!(unsafe { nemesia_endpoint_close(endpoint) }, NEMESIA_ERR_PANIC);
    }

    #[test]
    fn a_refused_call_has_its_reason_in_the_error_and_in_a_warning_that_comes_later() {
        let config = nemesia::Config::default();
        let mut closed = nemesia::Endpoint::alone(&config.clone().strangers(false)).unwrap();
        let address = *closed.address().unwrap();
        let caller = nemesia::Endpoint::alone(&config).unwrap();
        let known = caller.warnings().len();
        let endpoint = Endpoint::publish(caller, false).unwrap();
        // SAFETY: open, and not used elsewhere.
        let warning = |index| unsafe { nemesia_endpoint_warning(endpoint, index) };
        // SAFETY: the library's texts are terminated, and valid while the endpoint is open.
        let text = |text| unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned();
        assert!(warning(known).is_null());
        let call = |inner: &mut nemesia::Endpoint| {
            let peer = inner.connect(&address)?;
            let rank = inner.rank_of(peer)?;
            while inner.failure(rank).is_none() {
                inner.progress();
                closed.progress();
            }
            inner.send(rank, 1, b"late")?;
            Ok(NEMESIA_OK)
        };
        // SAFETY: open, and not used elsewhere.
        assert_eq!(unsafe { on(endpoint, call) }, NEMESIA_ERR_PEER_FAILED);
        let error = text(nemesia_last_error_message());
        assert!(error.contains("admits no unknown peers"), "{error}");
        let later = warning(known);
        assert!(text(later).contains("admits no unknown peers"), "{}", text(later));
        assert!(warning(known + 1).is_null());
        assert_eq!(warning(known), later, "its text stays where it is");
        // SAFETY: open, and not used after this.
        assert_eq!(unsafe { nemesia_endpoint_close(endpoint) }, NEMESIA_OK);
    }

    #[test]
    fn ranks_that_do_not_exist_are_refused() {
        let endpoint = alone();
        let mut failure = -7;
        for rank in [-1, 1, i32::MAX, i32::MIN] {
            // SAFETY: open, and not used elsewhere.
            let code = unsafe { nemesia_endpoint_peer_failure(endpoint, rank, &raw mut failure) };
            assert_eq!((code, failure), (NEMESIA_ERR_RANK, -7), "{rank}");
        }
        // SAFETY: open, and not used after this.
        assert_eq!(unsafe { nemesia_endpoint_close(endpoint) }, NEMESIA_OK);
    }
}
