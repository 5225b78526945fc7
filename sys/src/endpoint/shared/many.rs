//! Waits of several threads for the completion queue, for any of many requests, and until anything happens.

use std::time::{Duration, Instant};

use super::super::{Completion, EndedRequest, Endpoint, RequestPlace, Status};
use super::{Ask, SharedEndpoint};
use crate::error::Error;

/// The time limit of a wait that consists of several.
struct Deadline(Option<Instant>);

impl Deadline {
    fn new(limit: Option<Duration>) -> Self {
        // A time beyond the end of the clock never comes.
        Self(limit.and_then(|limit| Instant::now().checked_add(limit)))
    }

    fn left(&self) -> Option<Duration> {
        self.0.map(|end| end.saturating_duration_since(Instant::now()))
    }
}

impl SharedEndpoint {
    /// Takes completions out of the queue; see [`Endpoint::completions`](Endpoint::completions). Each completion
    /// goes to one thread.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn completions(&self, into: &mut [Completion]) -> Result<usize, Error> {
        self.with(|endpoint| endpoint.completions(into))
    }

    /// Waits for completions; see [`Endpoint::wait_completions`](Endpoint::wait_completions). Any number of
    /// threads may wait.
    ///
    /// # Errors
    /// As for that method.
    pub fn wait_completions(&self, into: &mut [Completion], limit: Option<Duration>) -> Result<usize, Error> {
        let deadline = Deadline::new(limit);
        loop {
            let count = self.completions(into)?;
            let left = deadline.left();
            if count > 0 || into.is_empty() || left == Some(Duration::ZERO) {
                return Ok(count);
            }
            match self.0.wait(Ask::Completions, left) {
                // Another thread may have taken them.
                Ok(_) => {}
                Err(Error::Timeout(_)) => return Ok(0),
                Err(error) => return Err(error),
            }
        }
    }

    /// Tests several requests; see [`Endpoint::test_some`](Endpoint::test_some).
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn test_some(
        &self,
        requests: &mut [impl RequestPlace],
        done: impl FnMut(usize, Result<Status, Error>),
    ) -> Result<usize, Error> {
        self.with(|endpoint| endpoint.test_some(requests, done))
    }

    /// Waits until one of several requests is complete; see [`Endpoint::wait_any`](Endpoint::wait_any). No other
    /// thread waits for these requests.
    ///
    /// # Errors
    /// As for that method, except [`Error::Unexpected`].
    pub fn wait_any(
        &self,
        requests: &mut [impl RequestPlace],
        limit: Option<Duration>,
    ) -> Result<Option<EndedRequest>, Error> {
        if requests.iter().all(|place| place.request().is_none()) {
            return Ok(None);
        }
        let deadline = Deadline::new(limit);
        loop {
            let (found, seen) = self.look(|endpoint| endpoint.take_first(requests))?;
            if found.is_some() {
                return Ok(found);
            }
            self.0.wait(Ask::Change(seen), deadline.left())?;
        }
    }

    /// Waits until anything happens; see [`Endpoint::wait_progress`](Endpoint::wait_progress). A call of another
    /// thread counts as an event.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn wait_progress(&self, limit: Option<Duration>) -> Result<bool, Error> {
        let mut before = None;
        let (ready, seen) = self.look(|endpoint| {
            before.get_or_insert(endpoint.waiter.changes);
            endpoint.has_completions().then_some(())
        })?;
        if ready.is_some() || before != Some(seen) {
            return Ok(true);
        }
        match self.0.wait(Ask::Change(seen), limit) {
            Ok(_) => Ok(true),
            Err(Error::Timeout(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Searches with `find`, twice if progress was made in between. Also returns the count of events. Unlike a call of
    /// [`SharedEndpoint::with`], this is no event by itself: two threads that search in turn would wake each other
    /// forever.
    fn look<T>(&self, mut find: impl FnMut(&mut Endpoint) -> Option<T>) -> Result<(Option<T>, u64), Error> {
        let mut inner = self.0.lock()?;
        let mut found = find(&mut inner.endpoint);
        if found.is_none() && inner.endpoint.advance_once() {
            found = find(&mut inner.endpoint);
            self.0.serve(&mut inner);
        }
        Ok((found, inner.endpoint.waiter.changes))
    }
}
