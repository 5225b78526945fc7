//! What all ranks do together: the barrier, and going on without the peers that are gone.

use crate::boundary::{Out, missing};
use crate::endpoint::{Endpoint, blocking_on, rank_of};
use crate::lent::Lent;
use crate::status::NEMESIA_OK;

/// Waits until every rank has called this (as MPI_Barrier). Collective: all ranks call it, in the same order as
/// `nemesia_endpoint_agree` and `nemesia_endpoint_shrink`; ranks that were agreed to be gone do not take part. With
/// NEMESIA_THREADS_MULTIPLE one thread of each rank calls it, and the others go on.
///
/// To end a program, call this and then `nemesia_endpoint_close`: after the barrier no rank waits for what another one
/// had to send before it. `nemesia_endpoint_close` waits until pending sends have left this process, and then tells the
/// peers that it has finished; after NEMESIA_ERR_TIMEOUT some sends are lost.
///
/// - `endpoint`: an open endpoint.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_PEER_FAILED if a rank is gone, which `nemesia_last_error_rank` names: after
/// `nemesia_endpoint_shrink` the next barrier is among the survivors (some ranks may have left the same barrier with
/// NEMESIA_OK, if the rank had entered it); NEMESIA_ERR_EXCLUDED if the others have agreed that this rank is gone;
/// NEMESIA_ERR_UNEXPECTED_FULL or NEMESIA_ERR_REQUESTS, after which another call goes on with the same barrier;
/// NEMESIA_ERR_ARGUMENT, _HANDLE or _PANIC.
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

/// Agrees with all living ranks on the AND of everyone's flags and on how many ranks are gone, whoever dies meanwhile
/// (as `MPI_Comm_agree` of MPI's ULFM). Collective: every rank that lives calls this and `nemesia_endpoint_shrink` in
/// the same order. Waits as a receive does.
///
/// - `endpoint`: an open endpoint.
/// - `flags`: this rank's flags.
/// - `out_flags`: the AND of the flags of all that took part, written on success.
/// - `out_gone`: how many ranks are gone, the same number in every rank, written on success; may be NULL.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT; NEMESIA_ERR_EXCLUDED if the others have agreed that this rank is gone;
/// NEMESIA_ERR_UNEXPECTED_FULL or NEMESIA_ERR_REQUESTS, after which another call goes on, and the flags of the first
/// count; NEMESIA_ERR_PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_agree(
    endpoint: *mut Endpoint,
    flags: u64,
    out_flags: *mut u64,
    out_gone: *mut i32,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::required(out_flags, "out_flags") }?;
        // SAFETY: the caller's pointer, null or good.
        let out_gone = unsafe { Out::optional(out_gone) };
        let agreed = endpoint.keep(|endpoint| endpoint.agree(flags))?;
        out.write(agreed.flags);
        out_gone.write(rank_of(agreed.gone.len()));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Agrees with all living ranks on who they are: the same list in each, even if more die meanwhile (as
/// `MPI_Comm_shrink` of MPI's ULFM). Collective: see `nemesia_endpoint_agree`. The index in the list is a survivor's
/// new rank.
///
/// - `endpoint`: an open endpoint.
/// - `out_ranks`: room for as many ranks as the world has; the survivors' ranks in the world, rising, written on
///   success.
/// - `out_count`: how many there are, written on success.
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
        if out_ranks.is_null() {
            return Err(missing("out_ranks"));
        }
        // SAFETY: the caller's pointer, null or good.
        let out_count = unsafe { Out::required(out_count, "out_count") }?;
        // SAFETY: the caller's pointer, null or good.
        let out_rank = unsafe { Out::optional(out_rank) };
        let ranking = endpoint.keep(|endpoint| endpoint.shrink())?;
        for (at, rank) in ranking.world().iter().enumerate() {
            // SAFETY: the caller has room for every rank of the world, and there are no more survivors.
            unsafe { out_ranks.add(at).write(rank_of(*rank)) };
        }
        out_count.write(rank_of(ranking.size()));
        out_rank.write(rank_of(ranking.rank()));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}
