//! `all-to-all ROUNDS LEN`, `sleeps ROUNDS` and `ring ROUNDS`: many ranks at once.

use nemesia::{Endpoint, Source, Tag};

use super::{Outcome, barrier, broken, ensure, open, tell};
use crate::content::{difference, filled, seed_of};

const BARRIER: u64 = 1 << 40;

/// In each round every rank sends to every rank. In every second round the messages arrive before their
/// receives are posted.
pub(super) fn run(rounds: u64, len: usize) -> Outcome {
    let mut endpoint = open()?;
    run_in(&mut endpoint, rounds, len)?;
    barrier(&mut endpoint, BARRIER)?;
    let (rank, size) = (endpoint.rank(), endpoint.size());
    tell(&format!("rank {rank}: {} messages of {len} bytes", rounds * size as u64))?;
    Ok(endpoint.close()?)
}

/// The same with an endpoint that is open.
pub(super) fn run_in(endpoint: &mut Endpoint, rounds: u64, len: usize) -> Outcome {
    let (rank, size) = (endpoint.rank(), endpoint.size());
    let mut bufs = vec![vec![0; len]; size];
    for round in 0..rounds {
        let content = |from: usize, to: usize| seed_of(&[round, from as u64, to as u64]);
        let out: Vec<_> = (0..size).map(|to| filled(content(rank, to), len)).collect();
        exchange(endpoint, round, &out, &mut bufs)?;
        for (from, buf) in bufs.iter().enumerate() {
            if let Some(at) = difference(content(from, rank), buf) {
                return broken(format!("round {round}: from rank {from}, wrong at byte {at} of {len}"));
            }
        }
    }
    Ok(())
}

fn exchange(endpoint: &mut Endpoint, round: u64, out: &[Vec<u8>], bufs: &mut [Vec<u8>]) -> Outcome {
    let size = bufs.len();
    let tag = Tag::Exactly(round);
    endpoint.scope(move |scope| {
        let mut receives = bufs.iter_mut().enumerate().map(|(from, buf)| (Source::Rank(from), buf));
        // Even rounds post all receives first, odd rounds none.
        if round.is_multiple_of(2) {
            for (from, buf) in receives.by_ref() {
                scope.irecv(from, tag, buf)?;
            }
        }
        // Each rank begins with another destination.
        for to in (0..size).map(|step| (round as usize + step) % size) {
            scope.isend(to, round, &out[to])?;
        }
        for (from, buf) in receives {
            scope.irecv(from, tag, buf)?;
        }
        scope.wait_all()
    })?;
    Ok(())
}

/// An all-to-all of 8 bytes; each rank reports how often it slept.
pub(super) fn sleeps(rounds: u64) -> Outcome {
    let mut endpoint = open()?;
    let size = endpoint.size();
    let (out, mut bufs) = (vec![vec![1; 8]; size], vec![vec![0; 8]; size]);
    let before = endpoint.counters().waits.sleeps;
    for round in 0..rounds {
        // All receives are posted first.
        exchange(&mut endpoint, 2 * round, &out, &mut bufs)?;
    }
    tell(&(endpoint.counters().waits.sleeps - before).to_string())?;
    barrier(&mut endpoint, BARRIER)?;
    Ok(endpoint.close()?)
}

/// Passes a token of 8 bytes round the ranks; every rank adds one.
pub(super) fn ring(rounds: u64) -> Outcome {
    let mut endpoint = open()?;
    let (rank, size) = (endpoint.rank(), endpoint.size());
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let mut buf = [0; 8];
    for round in 0..rounds {
        let wanted = round * size as u64 + rank as u64;
        if rank == 0 {
            endpoint.send(next, round, &(wanted + 1).to_le_bytes())?;
            endpoint.recv(Source::Rank(before), Tag::Exactly(round), &mut buf)?;
            let token = u64::from_le_bytes(buf);
            ensure(token == wanted + size as u64, || format!("round {round}: the token is {token}"))?;
        } else {
            endpoint.recv(Source::Rank(before), Tag::Exactly(round), &mut buf)?;
            let token = u64::from_le_bytes(buf);
            ensure(token == wanted, || format!("round {round}: the token is {token}, not {wanted}"))?;
            endpoint.send(next, round, &(token + 1).to_le_bytes())?;
        }
    }
    barrier(&mut endpoint, BARRIER)?;
    Ok(endpoint.close()?)
}
