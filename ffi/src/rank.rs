//! Ranks in C, which are numbers of 32 bits with a sign.

use crate::status::{Fault, NEMESIA_ERR_RANK};

/// Checks that a rank of the caller's exists.
#[inline]
pub(crate) fn rank_in(endpoint: &nemesia::Endpoint, rank: i32) -> Result<usize, Fault> {
    let exists = usize::try_from(rank).ok().filter(|rank| *rank < endpoint.numbers());
    exists.ok_or_else(|| no_such_rank(rank, endpoint.numbers()))
}

#[cold]
fn no_such_rank(rank: i32, size: usize) -> Fault {
    let text = format!("rank {rank} does not exist: this world has ranks 0 to {}", size.saturating_sub(1));
    Fault::new(NEMESIA_ERR_RANK, text)
}

/// Converts a rank or a size for the caller. Worlds are smaller than 2^31, because each peer takes file
/// descriptors.
#[inline]
pub(crate) fn rank_of(rank: usize) -> i32 {
    i32::try_from(rank).unwrap_or(i32::MAX)
}
