//! Collective operations among a list of ranks.

use nemesia::Endpoint as Inner;

use crate::agree::{report_agreed, report_survivors};
use crate::boundary::{Out, missing};
use crate::endpoint::{Endpoint, blocking_on};
use crate::lent::Lent;
use crate::status::{Fault, NEMESIA_ERR_RANK, NEMESIA_OK};

/// Reads a list of ranks.
///
/// # Safety
/// `ranks` is null, or readable for `count` ranks.
unsafe fn members(count: usize, ranks: *const i32) -> Result<Vec<usize>, Fault> {
    if ranks.is_null() {
        return Err(missing("ranks"));
    }
    let rank = |at: usize| {
        // SAFETY: the caller's array has that many elements.
        let rank = unsafe { ranks.add(at).read() };
        usize::try_from(rank).map_err(|_| Fault::new(NEMESIA_ERR_RANK, format!("rank {rank} does not exist")))
    };
    (0..count).map(rank).collect()
}

/// As `nemesia_endpoint_barrier`, among a list of ranks. All of these ranks, and no others, call it with the same
/// list. Two ranks that are both in several lists, or in a list and the world, make their collective calls in the
/// same order.
///
/// - `endpoint`: an open endpoint.
/// - `count`: the number of ranks.
/// - `ranks`: the ranks, in rising order, this one included.
///
/// Returns: as `nemesia_endpoint_barrier`, except that a member that has failed is always an error;
/// NEMESIA_ERR_ARGUMENT if the list is not in rising order or lacks this rank; NEMESIA_ERR_RANK;
/// NEMESIA_ERR_AGREEMENT if a barrier of other members is not finished.
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_barrier_among(
    endpoint: *mut Endpoint,
    count: usize,
    ranks: *const i32,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        // SAFETY: the caller's array.
        let members = unsafe { members(count, ranks) }?;
        match &mut endpoint {
            Lent::One(endpoint) => endpoint.among(&members)?.barrier()?,
            Lent::All(endpoint) => endpoint.barrier_among(&members)?,
        }
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// As `nemesia_endpoint_agree`, among a list of ranks; see `nemesia_endpoint_barrier_among`. Agreements of all ranks
/// are not affected. A restarted process takes part once the members have readmitted it.
///
/// - `endpoint`: an open endpoint.
/// - `count`: the number of ranks.
/// - `ranks`: the ranks, in rising order, this one included.
/// - `flags`: this rank's flags.
/// - `out_flags`: the AND of the flags of all ranks that took part, written on success.
/// - `out_gone`: the number of failed members, the same in every member, written on success; may be NULL.
///
/// Returns: as `nemesia_endpoint_agree`; NEMESIA_ERR_EXCLUDED concerns this agreement only; NEMESIA_ERR_ARGUMENT if
/// the list is not in rising order or lacks this rank; NEMESIA_ERR_RANK; NEMESIA_ERR_AGREEMENT if an agreement of
/// other members is not finished.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_agree_among(
    endpoint: *mut Endpoint,
    count: usize,
    ranks: *const i32,
    flags: u64,
    out_flags: *mut u64,
    out_gone: *mut i32,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        // SAFETY: the caller's array.
        let members = unsafe { members(count, ranks) }?;
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_flags, "out_flags") }?;
        // SAFETY: the caller's pointer, null or valid.
        let out_gone = unsafe { Out::optional(out_gone) };
        report_agreed(&endpoint.keep(|endpoint| endpoint.among(&members)?.agree(flags))?, out, out_gone);
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// As `nemesia_endpoint_shrink`, among a list of ranks; see `nemesia_endpoint_barrier_among`. A survivor's index in
/// the list that is written is its new rank.
///
/// - `endpoint`: an open endpoint.
/// - `count`: the number of ranks.
/// - `ranks`: the ranks, in rising order, this one included.
/// - `out_ranks`: an array with `count` elements; receives the survivors' ranks in the world, ascending, on success.
/// - `out_count`: the number of survivors, written on success.
/// - `out_rank`: the new rank of this process, written on success; may be NULL.
///
/// Returns: as `nemesia_endpoint_agree_among`.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_shrink_among(
    endpoint: *mut Endpoint,
    count: usize,
    ranks: *const i32,
    out_ranks: *mut i32,
    out_count: *mut i32,
    out_rank: *mut i32,
) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        // SAFETY: the caller's array.
        let members = unsafe { members(count, ranks) }?;
        let ask = |endpoint: &mut Inner| endpoint.among(&members)?.shrink();
        // SAFETY: the caller's pointers; the array has an element for every member.
        unsafe { report_survivors(&mut endpoint, ask, (out_ranks, out_count, out_rank)) }?;
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}
