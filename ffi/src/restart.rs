//! Ranks that were started again.

use crate::boundary::{Out, missing};
use crate::endpoint::{Endpoint, on, rank_of};
use crate::status::{Fault, NEMESIA_ERR_RANK, NEMESIA_OK};

/// How often the rank of this process had been started before, by a launcher that starts ranks again (`nemesia run
/// --restart N`).
///
/// A process that was started again knows nothing of what its predecessor did. It is connected with each survivor from
/// when that readmits it; until then what is started with the survivor stays pending, and agreements wait. Ranks that
/// are gone when it comes have failed.
///
/// - `endpoint`: an open endpoint.
/// - `out_incarnation`: 0 for a process that was started with its world, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or NEMESIA_ERR_PANIC.
/// Threads: one at a time for an endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_incarnation(
    endpoint: *mut Endpoint,
    out_incarnation: *mut u64,
) -> i32 {
    let work = |endpoint: &mut nemesia::Endpoint| {
        // SAFETY: the caller's pointer, null or good.
        let out = unsafe { Out::required(out_incarnation, "out_incarnation") }?;
        out.write(endpoint.incarnation());
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// The ranks that have failed, were started again, and wait to be readmitted. Does not wait for ranks that are not
/// there yet: call it again after progress.
///
/// - `endpoint`: an open endpoint.
/// - `out_ranks`: room for as many ranks as the world has; the ranks, rising, written on success.
/// - `out_count`: how many there are, written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT; NEMESIA_ERR_NO_RESTART if the launcher of this world starts no rank
/// again; NEMESIA_ERR_BOOTSTRAP if the launcher could not be asked; NEMESIA_ERR_PANIC.
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
        // SAFETY: the caller's pointer, null or good.
        let out_count = unsafe { Out::required(out_count, "out_count") }?;
        let ranks = endpoint.restarted()?;
        for (at, rank) in ranks.iter().enumerate() {
            // SAFETY: the caller has room for every rank of the world, and each is named once.
            unsafe { out_ranks.add(at).write(rank_of(*rank)) };
        }
        out_count.write(rank_of(ranks.len()));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Takes a rank back that had failed and was started again. From now on operations are with the new process, with which
/// everything begins anew; until now they end with NEMESIA_ERR_PEER_FAILED.
///
/// What was under way with the process before has failed, and stays so. Messages that it had sent whole could be
/// received until now; those that were not are dropped, except those that a matched probe has taken out. Receives from
/// any source that are posted go on, and the failure of this rank counts as acknowledged. Keys of its regions are void.
/// In `nemesia_endpoint_agree` and `nemesia_endpoint_shrink` it takes part again: all survivors readmit it between the
/// same two agreements.
///
/// - `endpoint`: an open endpoint.
/// - `rank`: the rank.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT; NEMESIA_ERR_RANK; NEMESIA_ERR_NOT_RESTARTED as long as
/// `nemesia_endpoint_restarted` does not name the rank; NEMESIA_ERR_AGREEMENT if an agreement is not finished;
/// NEMESIA_ERR_PEER if its settings are others; NEMESIA_ERR_NO_RESTART, NEMESIA_ERR_BOOTSTRAP or NEMESIA_ERR_PANIC.
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
