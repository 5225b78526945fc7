//! Collective operations among a group of peers.

use nemesia::PeerGroup;

use crate::agree::report_agreed;
use crate::boundary::{Out, missing};
use crate::endpoint::{Endpoint, blocking_on};
use crate::lent::Lent;
use crate::peers::{NEMESIA_ADDRESS_BYTES, address_at};
use crate::rank::rank_of;
use crate::status::{Fault, NEMESIA_OK};

/// Reads a group. Its peers stay as they are.
///
/// # Safety
/// `group` is null, or readable for `count` addresses.
pub(crate) unsafe fn known_group(
    endpoint: &mut Lent<'_>,
    count: usize,
    group: *const u8,
) -> Result<PeerGroup, Fault> {
    if group.is_null() {
        return Err(missing("group"));
    }
    // SAFETY: the caller's array has `count` addresses; bytes have no alignment.
    let read = |at: usize| unsafe { address_at(group.add(at * NEMESIA_ADDRESS_BYTES)) };
    let addresses: Vec<_> = (0..count).map(read).collect();
    Ok(endpoint.keep(|endpoint| endpoint.known_group(&addresses))?)
}

/// As `nemesia_endpoint_barrier`, among a group of processes whose endpoints have addresses. All processes of the
/// group, and no others, call it with the same addresses in the same order. Two processes that are both in several
/// groups make their collective calls in the same order. After `nemesia_endpoint_meet`, one group followed by the other
/// is a group.
///
/// A call connects with the processes that it needs: a barrier with about 2 log2 `count` of them, an agreement with
/// all. A process is gone from the start if its connection has ended; one that was released is called again. If a call
/// finds that a process is gone, this process disconnects from it, and refuses its calls until
/// `nemesia_endpoint_connect` or `nemesia_endpoint_meet` is called with its address. So a process that lives, but could
/// not be reached, does not wait for this one.
///
/// - `endpoint`: an endpoint with an address.
/// - `count`: the number of processes.
/// - `group`: their addresses, NEMESIA_ADDRESS_BYTES bytes each, this process's included; none twice.
///
/// Returns: NEMESIA_OK, or
/// - NEMESIA_ERR_PEER_FAILED if a process is gone; `nemesia_last_error_rank` returns its position in the group, from 0.
///   Call `nemesia_endpoint_shrink_group`, and go on among the survivors;
/// - NEMESIA_ERR_ARGUMENT: this process is not in `group`, or an address is there twice;
/// - NEMESIA_ERR_CONNECTIONS, _NO_MEMORY or _ADDRESS, as `nemesia_endpoint_connect` and `_rank_of`: this
///   process has not entered the barrier;
/// - NEMESIA_ERR_UNEXPECTED_FULL or _REQUESTS: another call continues the same barrier;
/// - NEMESIA_ERR_AGREEMENT if a barrier of another group is not finished; _HANDLE, _BUSY, _FORKED or _PANIC.
///
/// Ownership: all addresses are copied. Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_barrier_group(
    endpoint: *mut Endpoint,
    count: usize,
    group: *const u8,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        // SAFETY: the caller's array.
        let group = unsafe { known_group(&mut endpoint, count, group) }?;
        match &mut endpoint {
            Lent::One(endpoint) => endpoint.among_peers(&group)?.barrier()?,
            Lent::All(endpoint) => endpoint.barrier_among_peers(&group)?,
        }
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// As `nemesia_endpoint_agree`, among a group of processes; see `nemesia_endpoint_barrier_group`.
///
/// - `endpoint`: an endpoint with an address.
/// - `count`: the number of processes.
/// - `group`: their addresses, NEMESIA_ADDRESS_BYTES bytes each, this process's included; none twice.
/// - `flags`: this process's flags.
/// - `out_flags`: the AND of the flags of all processes that took part, written on success.
/// - `out_gone`: the number of processes that are gone, the same in each process, written on success; may be NULL.
///
/// Returns: as `nemesia_endpoint_barrier_group`, but never NEMESIA_ERR_PEER_FAILED; NEMESIA_ERR_EXCLUDED if the others
/// have agreed that this process is gone, because one of them has lost it. Ownership: all addresses are copied.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_agree_group(
    endpoint: *mut Endpoint,
    count: usize,
    group: *const u8,
    flags: u64,
    out_flags: *mut u64,
    out_gone: *mut i32,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_flags, "out_flags") }?;
        // SAFETY: the caller's pointer, null or valid.
        let out_gone = unsafe { Out::optional(out_gone) };
        // SAFETY: the caller's array.
        let group = unsafe { known_group(&mut endpoint, count, group) }?;
        let agreed = endpoint.keep(|endpoint| endpoint.among_peers(&group)?.agree(flags))?;
        report_agreed(&agreed, out, out_gone);
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// As `nemesia_endpoint_shrink`, among a group of processes; see `nemesia_endpoint_barrier_group`. The addresses at the
/// positions that are written, in this order, are the group of the survivors.
///
/// - `endpoint`: an endpoint with an address.
/// - `count`: the number of processes.
/// - `group`: their addresses, NEMESIA_ADDRESS_BYTES bytes each, this process's included; none twice.
/// - `out_places`: an array with `count` elements; receives the survivors' positions in `group`, from 0, ascending, on
///   success.
/// - `out_count`: the number of survivors, written on success.
/// - `out_place`: the position of this process among the survivors, written on success; may be NULL.
///
/// Returns: as `nemesia_endpoint_agree_group`. Ownership: all addresses are copied. Threads: one at a time, or any
/// number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_shrink_group(
    endpoint: *mut Endpoint,
    count: usize,
    group: *const u8,
    out_places: *mut i32,
    out_count: *mut i32,
    out_place: *mut i32,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        if out_places.is_null() {
            return Err(missing("out_places"));
        }
        // SAFETY: the caller's pointer, null or valid.
        let out_count = unsafe { Out::required(out_count, "out_count") }?;
        // SAFETY: the caller's pointer, null or valid.
        let out_place = unsafe { Out::optional(out_place) };
        // SAFETY: the caller's array.
        let group = unsafe { known_group(&mut endpoint, count, group) }?;
        let gone = endpoint.keep(|endpoint| endpoint.among_peers(&group)?.agree(u64::MAX))?.gone;
        let survivors = || (0..group.size()).filter(|place| gone.binary_search(place).is_err());
        for (left, place) in survivors().enumerate() {
            // SAFETY: the caller's array has an element for every process, and there are no more survivors.
            unsafe { out_places.add(left).write(rank_of(place)) };
        }
        out_count.write(rank_of(survivors().count()));
        let own = survivors().position(|place| Some(place) == group.place());
        out_place.write(rank_of(own.unwrap_or_default()));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}
