//! `cut PER_HOST HOW`: ranks exchange messages all-to-all, round by round, while the test cuts one host off. There are
//! PER_HOST ranks on each host, numbered host by host.
//!
//! | HOW | the ranks |
//! |---|---|
//! | 0 | exchange rounds until each rank that they do not reach has failed, then go on without it |
//! | 1 | do the same, but wait in silence from the third round on |
//! | 2 | exchange rounds until the file `NEMESIA_TEST_STOP` exists; no rank may fail |
//!
//! The ranks of the host that was cut off see all others fail, and go on as well.
//!
//! `computes SECONDS`: rank 1 calls nothing for so long, while more waits for it than its kernel has room for.
//!
//! `long-lost`: rank 0 sends rank 1 a short message, which arrives, and a long one, which the network loses.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nemesia::{Endpoint, Error, Failure, Source, Tag};
use nemesia_core::port::PortFault;
use nemesia_core::port::memory::{LostError, WorkError};

use super::{Outcome, broken, ensure, open, tell};
use crate::content::{difference, filled, seed_of};

/// The bytes of content of the messages; one more byte follows, so that they travel in all ways and have odd sizes.
const CONTENT: [usize; 6] = [0, 6, 254, 9_998, 65_536, 300_000];
const QUIET_ROUNDS: u64 = 2;
/// The rounds among those that are left.
const LAST_ROUNDS: u64 = 12;

/// The ranks that have failed, each with the reason.
type GoneRanks = BTreeMap<usize, Failure>;

struct Exchange {
    endpoint: Endpoint,
    round: u64,
    gone: GoneRanks,
}

pub(super) fn run(per_host: usize, how: u64) -> Outcome {
    let stop = PathBuf::from(std::env::var_os("NEMESIA_TEST_STOP").unwrap_or_default());
    let mut exchange = Exchange { endpoint: open()?, round: 0, gone: GoneRanks::new() };
    let (rank, size) = (exchange.endpoint.rank(), exchange.endpoint.size());
    let mut is_settled = false;
    loop {
        if how == 1 && exchange.round == QUIET_ROUNDS {
            exchange.wait_in_silence(per_host)?;
        }
        let is_done = is_settled || how == 2 && stop.exists();
        let (failed, are_done) = exchange.exchange(is_done)?;
        tell(&format!("round {}", exchange.round))?;
        if is_done && are_done {
            break;
        }
        // A rank that was not reached in the last round may still be heard in the one before.
        is_settled = !exchange.gone.is_empty() && failed == 0;
    }
    ensure((how == 2) == exchange.gone.is_empty(), || format!("failed: {:?}", exchange.gone))?;
    let host = |rank: usize| rank / per_host;
    let left: Vec<usize> = exchange.left();
    let is_whole = |it: usize| left.iter().filter(|of| host(**of) == host(it)).count() == per_host;
    ensure(left.contains(&rank) && left.iter().all(|it| is_whole(*it)), || format!("left: {left:?}"))?;
    exchange.go_on(&left)?;
    tell(&format!("rank {rank} of {size} went on with {left:?}"))?;
    Ok(exchange.endpoint.close()?)
}

impl Exchange {
    /// Returns the ranks that have not failed.
    fn left(&self) -> Vec<usize> {
        (0..self.endpoint.size()).filter(|rank| !self.gone.contains_key(rank)).collect()
    }

    /// Sends to each rank that has not failed, and receives from it. The last byte has whether the sender is done.
    /// Returns the number of ranks that have failed, and whether all others are done.
    fn exchange(&mut self, is_done: bool) -> Outcome<(usize, bool)> {
        let (rank, round, begun) = (self.endpoint.rank(), self.round, Instant::now());
        let others: Vec<usize> = self.left().into_iter().filter(|it| *it != rank).collect();
        let len = |from: usize, to: usize| CONTENT[(from + 2 * to + round as usize) % CONTENT.len()];
        let seed = |from: usize, to: usize| seed_of(&[round, from as u64, to as u64]);
        let out: Vec<Vec<u8>> = others
            .iter()
            .map(|to| [filled(seed(rank, *to), len(rank, *to)), vec![is_done.into()]].concat())
            .collect();
        let mut bufs: Vec<Vec<u8>> = others.iter().map(|from| vec![2; len(*from, rank) + 1]).collect();
        let failed = transfer(&mut self.endpoint, round, &others, (&out, &mut bufs))?;
        self.round += 1;
        let mut are_done = true;
        for (from, buf) in others.iter().zip(&bufs).filter(|(from, _)| !failed.contains_key(from)) {
            let (content, flag) = buf.split_at(buf.len() - 1);
            if let Some(at) = difference(seed(*from, rank), content) {
                return broken(format!(
                    "round {round}: from rank {from}, wrong at byte {at} of {}",
                    buf.len()
                ));
            }
            ensure(flag[0] < 2, || format!("round {round}: from rank {from}, the last byte is {flag:?}"))?;
            are_done &= flag == [1];
        }
        self.note(&failed, begun)?;
        Ok((failed.len(), are_done))
    }

    /// Receives what no rank sends, until the ranks of other hosts that are cut off have failed.
    fn wait_in_silence(&mut self, per_host: usize) -> Outcome {
        const NEVER_SENT: u64 = u64::MAX;
        let (rank, begun) = (self.endpoint.rank(), Instant::now());
        let others: Vec<usize> =
            self.left().into_iter().filter(|it| it / per_host != rank / per_host).collect();
        tell("silent")?;
        let mut failed = GoneRanks::new();
        for other in others {
            match self.endpoint.recv(Source::Rank(other), Tag::Exactly(NEVER_SENT), &mut []) {
                Err(Error::PeerFailed { rank, failure, .. }) if rank == other => {
                    failed.insert(rank, failure);
                }
                outcome => return broken(format!("from rank {other}: {outcome:?}")),
            }
        }
        self.note(&failed, begun)
    }

    /// Checks how ranks have failed, and prints it.
    fn note(&mut self, failed: &GoneRanks, begun: Instant) -> Outcome {
        for (rank, failure) in failed {
            let millis = begun.elapsed().as_millis();
            tell(&format!("rank {rank} gone after {millis} ms: {failure}"))?;
            // The port reports the operation that got no answer, or the connection, whichever is seen first.
            let is_silent = matches!(
                failure,
                Failure::Fault(
                    PortFault::Lost(LostError::Unreachable) | PortFault::Work(WorkError::PeerLost)
                )
            );
            ensure(is_silent, || format!("rank {rank}: {failure:?}"))?;
            ensure(self.endpoint.failure(*rank) == Some(*failure), || {
                format!("rank {rank} has two failures")
            })?;
        }
        self.gone.extend(failed);
        Ok(())
    }

    /// Agrees with those that are left on who they are, and exchanges messages with them as before.
    fn go_on(&mut self, left: &[usize]) -> Outcome {
        let agreed = self.endpoint.agree(u64::MAX)?;
        ensure(agreed.gone.iter().eq(self.gone.keys()), || format!("{agreed:?} instead of {:?}", self.gone))?;
        let ranking = self.endpoint.shrink()?;
        ensure(ranking.world() == left, || format!("{ranking:?} instead of {left:?}"))?;
        for _ in 0..LAST_ROUNDS {
            let (failed, _) = self.exchange(true)?;
            ensure(failed == 0, || format!("round {}: {:?}", self.round, self.gone))?;
        }
        // No rank leaves while others still need a message from it.
        self.endpoint.agree(0).map(drop).map_err(Into::into)
    }
}

/// Messages that are sent without asking the receiver, if the settings permit it, and that its kernel has no room for.
const WAITING: usize = 12;
const WAITING_BYTES: usize = 1_000_000;
const BEGIN: u64 = 0;

pub(super) fn computes(seconds: u64) -> Outcome {
    let mut endpoint = open()?;
    let (rank, time) = (endpoint.rank(), Duration::from_secs(seconds));
    ensure(endpoint.size() == 2, || "two ranks are needed".into())?;
    let content = |number: usize| seed_of(&[number as u64]);
    let out: Vec<Vec<u8>> = (0..WAITING).map(|number| filled(content(number), WAITING_BYTES)).collect();
    if rank == 1 {
        endpoint.send(0, BEGIN, &[])?;
        std::thread::sleep(time);
        let mut buf = vec![0; WAITING_BYTES];
        for number in 0..WAITING {
            endpoint.recv(Source::Rank(0), Tag::Exactly(1), &mut buf)?;
            let wrong = difference(content(number), &buf);
            ensure(wrong.is_none(), || format!("message {number}: wrong at byte {wrong:?}"))?;
        }
        endpoint.send(0, BEGIN, &[])?;
    } else {
        endpoint.recv(Source::Rank(1), Tag::Exactly(BEGIN), &mut [])?;
        let begun = Instant::now();
        endpoint.scope(|scope| {
            for message in &out {
                scope.isend(1, 1, message)?;
            }
            scope.wait_all()
        })?;
        let waited = begun.elapsed();
        tell(&format!("sent after {} ms", waited.as_millis()))?;
        endpoint.recv(Source::Rank(1), Tag::Exactly(BEGIN), &mut [])?;
        // Otherwise everything has found room, and the test has tested nothing.
        ensure(waited > time / 2, || format!("all messages were sent after {waited:?}"))?;
    }
    Ok(endpoint.close()?)
}

pub(super) fn long_lost() -> Outcome {
    let mut endpoint = open()?;
    let (mut short, mut long) = ([7_u8; 8], vec![8_u8; 300_000]);
    let lost = if endpoint.rank() == 0 {
        endpoint.send(1, BEGIN, &short)?;
        endpoint.send(1, 1, &long).and_then(|()| endpoint.recv(Source::Rank(1), Tag::Exactly(1), &mut []))
    } else {
        endpoint.recv(Source::Rank(0), Tag::Exactly(BEGIN), &mut short)?;
        tell("short")?;
        endpoint.recv(Source::Rank(0), Tag::Exactly(1), &mut long)
    };
    match lost {
        Err(error @ Error::PeerFailed { .. }) => tell(&error.to_string()),
        outcome => broken(format!("{outcome:?}")),
    }
}

/// Exchanges one message with each of these ranks. Returns those that have failed.
fn transfer(
    endpoint: &mut Endpoint,
    round: u64,
    others: &[usize],
    (out, bufs): (&[Vec<u8>], &mut [Vec<u8>]),
) -> Outcome<GoneRanks> {
    let failed = endpoint.scope(|scope| {
        let (mut failed, mut pending) = (GoneRanks::new(), Vec::new());
        for (other, buf) in others.iter().zip(bufs) {
            pending.push((*other, scope.irecv(Source::Rank(*other), Tag::Exactly(round), buf)));
        }
        for (other, message) in others.iter().zip(out) {
            pending.push((*other, scope.isend(*other, round, message)));
        }
        for (other, started) in pending {
            match started.and_then(|operation| scope.wait(operation)) {
                Ok(_) => {}
                Err(Error::PeerFailed { rank, failure, .. }) if rank == other => {
                    failed.insert(rank, failure);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(failed)
    })?;
    Ok(failed)
}
