//! Worlds without a launcher, for tests: each rank is a thread of this process.
#![forbid(unsafe_code)]

use std::panic::resume_unwind;
use std::thread;

use crate::bootstrap::threads;
use crate::{Config, Endpoint, Error};

/// Runs `body` for each rank of a world of `size`, in a thread of its own and with the endpoint of that rank.
/// Returns the results by rank. The configuration is that of the environment ([`Config::from_env`]).
///
/// ```
/// use nemesia::{Source, Tag, testing};
///
/// let received = testing::world(4, |mut endpoint| {
///     let (rank, size) = (endpoint.rank(), endpoint.size());
///     let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
///     let mut from = [0];
///     endpoint.send(next, 7, &[rank as u8])?;
///     endpoint.recv(Source::Rank(previous), Tag::Exactly(7), &mut from)?;
///     endpoint.barrier()?;
///     endpoint.close()?;
///     Ok::<_, nemesia::Error>(from[0])
/// })?;
/// let received: Result<Vec<u8>, _> = received.into_iter().collect();
/// assert_eq!(received?, [3, 0, 1, 2]);
/// # Ok::<(), nemesia::Error>(())
/// ```
///
/// # Errors
/// The error of the lowest rank that could not open its endpoint; `body` has then not run for that rank.
///
/// # Panics
/// If `body` panics: after all threads have ended. The endpoint of a thread that panics is dropped, so the
/// other ranks do not wait for it.
pub fn world<T: Send>(size: usize, body: impl Fn(Endpoint) -> T + Sync) -> Result<Vec<T>, Error> {
    world_with(&Config::from_env()?, size, body)
}

/// Does the same as [`world`], with a configuration.
///
/// # Errors
/// See [`world`].
///
/// # Panics
/// See [`world`].
pub fn world_with<T: Send>(
    config: &Config,
    size: usize,
    body: impl Fn(Endpoint) -> T + Sync,
) -> Result<Vec<T>, Error> {
    let body = &body;
    thread::scope(|scope| {
        let run = |exchange| scope.spawn(move || Endpoint::open_with(config, Box::new(exchange)).map(body));
        let ranks: Vec<_> = threads(size).into_iter().map(run).collect();
        let ends: Vec<_> = ranks.into_iter().map(|rank| rank.join()).collect();
        ends.into_iter().map(|end| end.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Exchange as _;
    use crate::{Source, Tag};

    #[test]
    fn a_world_of_threads_exchanges_without_a_launcher() {
        let sums = world_with(&Config::default(), 3, |mut endpoint| {
            let (rank, size) = (endpoint.rank(), endpoint.size());
            for to in 0..size {
                endpoint.send(to, 1, &[rank as u8 + 1]).unwrap();
            }
            let mut sum = 0;
            for from in 0..size {
                let mut got = [0];
                endpoint.recv(Source::Rank(from), Tag::Exactly(1), &mut got).unwrap();
                sum += got[0];
            }
            endpoint.barrier().unwrap();
            endpoint.close().unwrap();
            sum
        });
        assert_eq!(sums.unwrap(), [6, 6, 6]);
    }

    #[test]
    fn a_panic_in_one_thread_ends_the_world_and_reaches_the_caller() {
        let outcome = std::panic::catch_unwind(|| {
            world_with(&Config::default(), 2, |mut endpoint| {
                assert!(endpoint.rank() == 0, "on purpose");
                let error = endpoint.recv(Source::Rank(1), Tag::Any, &mut [0]).unwrap_err();
                assert!(matches!(error, Error::PeerFailed { rank: 1, .. }), "{error}");
            })
        });
        let panic = outcome.unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    }

    #[test]
    fn a_dropped_exchange_fails_the_barriers_of_the_other_threads() {
        let mut exchanges = threads(3);
        drop(exchanges.pop());
        for mut exchange in exchanges {
            let error = exchange.barrier().unwrap_err().to_string();
            assert!(error.contains("rank 2"), "{error}");
        }
    }
}
