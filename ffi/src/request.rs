//! The numbers of requests in C.

use nemesia::{Request, RequestPlace};

/// The offset between the numbers of C and of the engine: a request that was complete when it started is 0.
const FIRST: u64 = 1 << 32;

/// The number in place of a request that has ended: NEMESIA_REQUEST_DONE.
pub(crate) const DONE: u64 = u64::MAX;

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

/// The number of a request in an array of the caller's.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct RequestNumber(u64);

impl RequestNumber {
    /// Returns the numbers of an array as places of requests.
    pub(crate) fn all(numbers: &mut [u64]) -> &mut [Self] {
        // SAFETY: the type is a number in memory, and the array is borrowed as long as the result.
        unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), numbers.len()) }
    }
}

impl RequestPlace for RequestNumber {
    #[inline]
    fn request(&self) -> Option<Request> {
        (self.0 != DONE).then(|| named(self.0))
    }

    #[inline]
    fn clear(&mut self) {
        self.0 = DONE;
    }
}
