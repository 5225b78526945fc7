//! Restarted ranks.

use crate::boundary::{Out, missing};
use crate::endpoint::{Endpoint, on};
use crate::rank::rank_of;
use crate::status::{Fault, NEMESIA_ERR_RANK, NEMESIA_OK};

/// Writes how many times the launcher had started the rank of this process before, under a launcher that
/// restarts ranks (`nemesia run --restart N`).
///
/// A restarted process has no state of its predecessor. It is connected with a survivor from the moment at
/// which the survivor readmits it. Until then, operations with that survivor stay pending, and agreements
/// wait. Ranks that have failed before the restart have failed for it, too.
///
/// - `endpoint`: an open endpoint.
/// - `out_incarnation`: 0 for a process that was started with its world; written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or NEMESIA_ERR_PANIC.
/// Threads: one at a time for an endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_incarnation(
    endpoint: *mut Endpoint,
    out_incarnation: *mut u64,
) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_incarnation, "out_incarnation") }?;
        out.write(endpoint.incarnation());
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Writes the ranks that have failed, were restarted, and wait to be readmitted. Does not wait for ranks that
/// have not arrived yet: call it again after progress.
///
/// - `endpoint`: an open endpoint.
/// - `out_ranks`: an array with one element per rank of the world; receives the ranks, ascending, on success.
/// - `out_count`: the number of these ranks, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT; NEMESIA_ERR_NO_RESTART if the launcher of this world does not
/// restart ranks; NEMESIA_ERR_BOOTSTRAP if the exchange with the launcher failed; NEMESIA_ERR_PANIC.
/// Threads: one at a time for an endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_restarted(
    endpoint: *mut Endpoint,
    out_ranks: *mut i32,
    out_count: *mut i32,
) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        if out_ranks.is_null() {
            return Err(missing("out_ranks"));
        }
        // SAFETY: the caller's pointer, null or valid.
        let out_count = unsafe { Out::required(out_count, "out_count") }?;
        let ranks = endpoint.restarted()?;
        for (at, rank) in ranks.iter().enumerate() {
            // SAFETY: the caller's array has an element for every rank of the world, and each rank occurs
            // once.
            unsafe { out_ranks.add(at).write(rank_of(*rank)) };
        }
        out_count.write(rank_of(ranks.len()));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Readmits a rank that had failed and was restarted. From this call on, operations with the rank go to the
/// new process, and all state with it starts anew. Until this call they return NEMESIA_ERR_PEER_FAILED.
/// - Operations with the earlier process have failed, and stay failed.
/// - Messages that the earlier process had sent completely could be received until this call. The others are
///   dropped, except those that a matched probe has removed.
/// - Posted receives from any source continue, and the failure of this rank counts as acknowledged.
/// - Keys of regions of the earlier process are void.
/// - The rank takes part again in `nemesia_endpoint_agree` and `nemesia_endpoint_shrink`. All survivors must
///   readmit it between the same two agreements.
///
/// - `endpoint`: an open endpoint.
/// - `rank`: the rank.
///
/// Returns: NEMESIA_OK, or
/// - NEMESIA_ERR_ARGUMENT or NEMESIA_ERR_RANK;
/// - NEMESIA_ERR_NOT_RESTARTED while `nemesia_endpoint_restarted` does not list the rank;
/// - NEMESIA_ERR_AGREEMENT if an agreement is not finished;
/// - NEMESIA_ERR_PEER if the new process has other settings;
/// - NEMESIA_ERR_NO_RESTART, NEMESIA_ERR_BOOTSTRAP or NEMESIA_ERR_PANIC.
///
/// Threads: one at a time for an endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_readmit(endpoint: *mut Endpoint, rank: i32) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        let Ok(rank) = usize::try_from(rank) else {
            return Err(Fault::new(NEMESIA_ERR_RANK, format!("rank {rank} does not exist")));
        };
        endpoint.readmit(rank)?;
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}
