//! Collective operations: the barrier, and recovery from failed peers.

use nemesia::{Agreed, Endpoint as Inner, Error, Ranking};

use crate::boundary::{Out, missing};
use crate::endpoint::{Endpoint, blocking_on};
use crate::lent::Lent;
use crate::rank::rank_of;
use crate::status::{Fault, NEMESIA_OK};

/// Waits until every rank has called this function (as MPI_Barrier). Collective: all ranks call it, in the
/// same order as `nemesia_endpoint_agree` and `nemesia_endpoint_shrink`. Ranks that an agreement has excluded
/// do not take part. With NEMESIA_THREADS_MULTIPLE one thread of each rank calls it, and the others continue.
///
/// To end a program, call this and then `nemesia_endpoint_close`. After the barrier, no rank waits for a
/// message that another rank had to send before it. `nemesia_endpoint_close` waits until pending sends have
/// left this process, and then notifies the peers that this process has finished. After NEMESIA_ERR_TIMEOUT
/// some sends are lost.
///
/// - `endpoint`: an open endpoint.
///
/// Returns: NEMESIA_OK, or
/// - NEMESIA_ERR_PEER_FAILED if a rank has failed; `nemesia_last_error_rank` returns it. After
///   `nemesia_endpoint_shrink`, the next barrier is among the survivors. If the failed rank had entered the
///   barrier, some ranks may have left it with NEMESIA_OK;
/// - NEMESIA_ERR_EXCLUDED if the others have agreed that this rank has failed;
/// - NEMESIA_ERR_UNEXPECTED_FULL or NEMESIA_ERR_REQUESTS: another call continues the same barrier;
/// - NEMESIA_ERR_ARGUMENT, _HANDLE or _PANIC.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_barrier(endpoint: *mut Endpoint) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        endpoint.barrier()?;
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Agrees with all living ranks on the AND of their flags and on the number of failed ranks, even if more
/// ranks fail meanwhile (as `MPI_Comm_agree` of MPI's ULFM). Collective: every living rank calls this
/// function and `nemesia_endpoint_shrink` in the same order. Waits as a receive does.
///
/// - `endpoint`: an open endpoint.
/// - `flags`: this rank's flags.
/// - `out_flags`: the AND of the flags of all ranks that took part, written on success.
/// - `out_gone`: the number of failed ranks, the same in every rank, written on success; may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT; NEMESIA_ERR_EXCLUDED if the others have agreed that this rank
/// has failed; NEMESIA_ERR_UNEXPECTED_FULL or NEMESIA_ERR_REQUESTS: another call continues the agreement with
/// the flags of the first call; NEMESIA_ERR_PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_agree(
    endpoint: *mut Endpoint,
    flags: u64,
    out_flags: *mut u64,
    out_gone: *mut i32,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_flags, "out_flags") }?;
        // SAFETY: the caller's pointer, null or valid.
        let out_gone = unsafe { Out::optional(out_gone) };
        report_agreed(&endpoint.keep(|endpoint| endpoint.agree(flags))?, out, out_gone);
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Agrees with all living ranks on the list of survivors: the same list in each, even if more ranks fail
/// meanwhile (as `MPI_Comm_shrink` of MPI's ULFM). Collective: see `nemesia_endpoint_agree`. A survivor's
/// index in the list is its new rank.
///
/// - `endpoint`: an open endpoint.
/// - `out_ranks`: an array with one element per rank of the world; receives the survivors' ranks in the
///   world, ascending, on success.
/// - `out_count`: the number of survivors, written on success.
/// - `out_rank`: the new rank of this process, written on success; may be NULL.
///
/// Returns: as `nemesia_endpoint_agree`.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_shrink(
    endpoint: *mut Endpoint,
    out_ranks: *mut i32,
    out_count: *mut i32,
    out_rank: *mut i32,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        let ask = |endpoint: &mut Inner| endpoint.shrink();
        // SAFETY: the caller's pointers; the array has an element for every rank of the world.
        unsafe { report_survivors(&mut endpoint, ask, (out_ranks, out_count, out_rank)) }?;
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Writes the result of an agreement.
pub(crate) fn report_agreed(agreed: &Agreed, out_flags: Out<u64>, out_gone: Out<i32>) {
    out_flags.write(agreed.flags);
    out_gone.write(rank_of(agreed.gone.len()));
}

/// Asks for the survivors by `ask`, and writes their ranks, their number and the new rank of this process.
///
/// # Safety
/// The outputs are null or can be written. The first of them has an element for every rank that `ask` asks.
pub(crate) unsafe fn report_survivors(
    endpoint: &mut Lent<'_>,
    ask: impl FnOnce(&mut Inner) -> Result<Ranking, Error>,
    (out_ranks, out_count, out_rank): (*mut i32, *mut i32, *mut i32),
) -> Result<(), Fault> {
    if out_ranks.is_null() {
        return Err(missing("out_ranks"));
    }
    // SAFETY: the caller's pointer, null or valid.
    let out_count = unsafe { Out::required(out_count, "out_count") }?;
    // SAFETY: the caller's pointer, null or valid.
    let out_rank = unsafe { Out::optional(out_rank) };
    let ranking = endpoint.keep(ask)?;
    for (at, rank) in ranking.world().iter().enumerate() {
        // SAFETY: the caller's array has an element for every rank that was asked, and there are no more survivors.
        unsafe { out_ranks.add(at).write(rank_of(*rank)) };
    }
    out_count.write(rank_of(ranking.size()));
    out_rank.write(rank_of(ranking.rank()));
    Ok(())
}
