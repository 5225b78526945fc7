//! The numbers of requests in C.

use nemesia::Request;

/// The offset between the numbers of C and of the engine: a request that was complete when it started is 0.
const FIRST: u64 = 1 << 32;

/// Returns the number of a request in C. The engine has fewer than 2^24 requests, so no number is
/// NEMESIA_REQUEST_DONE.
#[inline]
pub(crate) fn number(request: Request) -> u64 {
    request.to_bits().wrapping_add(FIRST)
}

/// Returns the request of a number.
#[inline]
pub(crate) fn named(number: u64) -> Request {
    Request::from_bits(number.wrapping_sub(FIRST))
}
