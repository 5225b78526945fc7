//! Many requests without a completion queue, and waits until anything happens.

use std::time::Duration;

use nemesia_core::engine::Progress;
use nemesia_core::sync::spin_hint;

use crate::endpoint::wait::{Awaited, Wait};
use crate::endpoint::{Endpoint, Request, Status};
use crate::error::Error;

/// The index of a request that has ended, and its result.
pub type EndedRequest = (usize, Result<Status, Error>);

/// An element of an array of requests. Implement it to pass an array of your own.
pub trait RequestPlace {
    /// Returns the request that is here, if there is one.
    fn request(&self) -> Option<Request>;

    /// Removes the request, because it has ended.
    fn clear(&mut self);
}

impl RequestPlace for Option<Request> {
    #[inline]
    fn request(&self) -> Option<Request> {
        *self
    }

    #[inline]
    fn clear(&mut self) {
        *self = None;
    }
}

/// # Many requests at once
///
/// An element of an array of requests is `None` where there is none ([`RequestPlace`]). The calls put `None` in place
/// of each request that ends.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// use nemesia::{Source, Tag};
///
/// let peer = 1 - endpoint.rank();
/// let mut bufs = [[0; 8]; 2];
/// let mut requests = [None; 2];
/// for (tag, (buf, request)) in (0..).zip(bufs.iter_mut().zip(&mut requests)) {
///     // SAFETY: the buffers live, unused, until the requests are complete.
///     *request = Some(unsafe { endpoint.irecv(Source::Rank(peer), Tag::Exactly(tag), buf.as_mut_ptr(), 8) }?);
/// }
/// endpoint.send(peer, 1, b"nemesia!")?;
/// endpoint.send(peer, 0, b"nemesia!")?;
/// // In the order in which they end, until there are no requests.
/// while let Some((at, status)) = endpoint.wait_any(&mut requests, None)? {
///     assert_eq!((status?.tag, requests[at]), (at as u64, None));
/// }
/// assert_eq!(requests, [None; 2]);
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Tests several requests, and passes the index and the result of each that is complete to `done`. Returns their
    /// number.
    ///
    /// If none is complete, the call makes progress as [`Endpoint::progress`] does, and tests them once more. It never
    /// blocks. In a forked child the result is 0.
    pub fn test_some(
        &mut self,
        requests: &mut [impl RequestPlace],
        mut done: impl FnMut(usize, Result<Status, Error>),
    ) -> usize {
        if self.is_forked() {
            return 0;
        }
        let count = self.take_complete(requests, &mut done);
        if count > 0 {
            self.call_succeeded();
            if self.is_progress_due() {
                self.advance();
            }
            return count;
        }
        let packets = self.advance();
        let count = self.take_complete(requests, &mut done);
        if count == 0 {
            self.count_call(packets);
        }
        count
    }

    /// Waits until one of several requests is complete, for at most `limit`, and returns its index and its result.
    /// `None` if there is no request. It spins, then sleeps.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::Unexpected`] if none of the requests can complete before stored messages are
    /// received; [`Error::Forked`]. The requests stay as they are.
    pub fn wait_any(
        &mut self,
        requests: &mut [impl RequestPlace],
        limit: Option<Duration>,
    ) -> Result<Option<EndedRequest>, Error> {
        self.check_origin()?;
        if requests.iter().all(|place| place.request().is_none()) {
            return Ok(None);
        }
        let mut wait = Wait::new(limit);
        loop {
            if let Some(found) = self.take_first(requests) {
                self.call_succeeded();
                return Ok(Some(found));
            }
            if limit == Some(Duration::ZERO) {
                let packets = self.advance();
                return match self.take_first(requests) {
                    None => Err(self.out_of_time(packets)),
                    found => Ok(found),
                };
            }
            // The requests are tested again when one of them may be complete, not after each poll.
            let packets = loop {
                let step = self.engine.step();
                if step != Progress::default() {
                    break step.packets.max(1);
                }
                if !self.keep_polling(&mut wait, 0) {
                    break 0;
                }
                spin_hint();
            };
            let awaited = &|at| requests.iter().filter_map(RequestPlace::request).nth(at);
            self.pause(&mut wait, packets, Awaited::Any(awaited))?;
        }
    }

    /// Waits until anything happens, for at most `limit`: a message or another packet has come, pending work has
    /// progressed, a completion is in the queue, or a peer is gone. It spins, then sleeps. Returns false if the limit
    /// has passed.
    ///
    /// The requests that this has completed are for the caller to test. The call may return early, with nothing new.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn wait_progress(&mut self, limit: Option<Duration>) -> Result<bool, Error> {
        self.check_origin()?;
        let seen = self.waiter.changes;
        let mut wait = Wait::new(limit);
        loop {
            if self.advance_once() || self.engine.has_completions() || self.waiter.changes != seen {
                self.call_succeeded();
                return Ok(true);
            }
            if limit == Some(Duration::ZERO) {
                self.count_call(0);
                return Ok(false);
            }
            match self.pause(&mut wait, 0, Awaited::Other) {
                Ok(()) => {}
                Err(Error::Timeout(_)) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes progress, and returns whether anything happened.
    pub(in crate::endpoint) fn advance_once(&mut self) -> bool {
        let step = self.engine.progress();
        if self.is_clock_due(step.packets) {
            self.look_at_clock();
        }
        let happened = step != Progress::default();
        self.waiter.changes += u64::from(happened);
        happened
    }

    /// Counts an attempt without success of a call that may not wait, and returns its error.
    pub(in crate::endpoint) fn out_of_time(&mut self, packets: usize) -> Error {
        self.count_call(packets);
        Error::Timeout(Duration::ZERO)
    }

    /// Ends the requests that are complete.
    fn take_complete(
        &mut self,
        requests: &mut [impl RequestPlace],
        done: &mut impl FnMut(usize, Result<Status, Error>),
    ) -> usize {
        let mut count = 0;
        for (at, place) in requests.iter_mut().enumerate() {
            if let Some(outcome) = self.take_if_complete(place) {
                done(at, outcome);
                count += 1;
            }
        }
        count
    }

    /// Ends the first request that is complete.
    pub(in crate::endpoint) fn take_first(
        &mut self,
        requests: &mut [impl RequestPlace],
    ) -> Option<EndedRequest> {
        let mut places = requests.iter_mut().enumerate();
        places.find_map(|(at, place)| self.take_if_complete(place).map(|outcome| (at, outcome)))
    }

    #[inline]
    fn take_if_complete(&mut self, place: &mut impl RequestPlace) -> Option<Result<Status, Error>> {
        let outcome = self.outcome_without_poll(place.request()?).transpose()?;
        place.clear();
        Some(outcome)
    }
}
