//! `shrink DEATHS`: ranks exchange messages with a neighbour and agree, round by round, while `DEATHS` of them
//! are killed from outside. Then the survivors shrink their world and pass a word round in it.

use nemesia::{Endpoint, Error, Ranking, Source, Tag};

use super::{Fault, Outcome, ensure, open, tell};
use crate::content::{difference, filled, seed_of};

/// Sizes for an eager message, an announced one, and a sender-assisted copy.
const SIZES: [usize; 3] = [100, 20_000, 1 << 20];

pub(super) fn run(deaths: usize) -> Outcome {
    let mut endpoint = open()?;
    tell("open")?;
    let (rank, size) = (endpoint.rank(), endpoint.size());
    for round in 0_u64.. {
        let len = SIZES[round as usize % SIZES.len()];
        for turn in [rank ^ 1, size - 1 - rank] {
            meet(&mut endpoint, turn, round, len)?;
        }
        let agreed = endpoint.agree(!(1 << rank))?;
        tell(&format!("round {round}: {:x} {:?}", agreed.flags, agreed.gone))?;
        ensure(agreed.flags >> rank & 1 == 0, || format!("{agreed:?} without rank {rank}"))?;
        if agreed.gone.len() == deaths {
            break;
        }
    }
    let ranking = endpoint.shrink()?;
    tell(&format!("survivors: {:?}", ranking.world()))?;
    ensure(endpoint.survivors() == ranking.world(), || format!("{:?}", endpoint.survivors()))?;
    go_round(&mut endpoint, &ranking)?;
    Ok(endpoint.close()?)
}

/// Exchanges a message with another rank, which may be dead or die.
fn meet(endpoint: &mut Endpoint, other: usize, round: u64, len: usize) -> Outcome {
    let rank = endpoint.rank();
    if other == rank || other >= endpoint.size() {
        return Ok(());
    }
    let (out, mut buf) = (filled(seed_of(&[rank as u64, round]), len), vec![0; len]);
    let (from, into) = (&out, &mut buf);
    let met = endpoint.scope(|scope| {
        let receive = scope.irecv(Source::Rank(other), Tag::Exactly(round), into)?;
        let send = scope.isend(other, round, from)?;
        scope.wait(receive)?;
        scope.wait(send).map(drop)
    });
    match met {
        Ok(()) => {
            let wrong = difference(seed_of(&[other as u64, round]), &buf);
            ensure(wrong.is_none(), || format!("round {round}, from {other}: wrong at byte {wrong:?}"))
        }
        Err(Error::PeerFailed { rank, .. }) if rank == other => Ok(()),
        Err(error) => Err(Fault::Library(error)),
    }
}

/// Passes a word once round the shrunken world.
fn go_round(endpoint: &mut Endpoint, ranking: &Ranking) -> Outcome {
    let (rank, size) = (ranking.rank(), ranking.size());
    let at = |rank: usize| ranking.to_world(rank % size).unwrap_or(usize::MAX);
    ensure(ranking.from_world(endpoint.rank()) == Some(rank), || format!("{ranking:?}"))?;
    let mut word = [0];
    if rank > 0 {
        endpoint.recv(Source::Rank(at(rank - 1)), Tag::Exactly(u64::MAX), &mut word)?;
    }
    word[0] += 1;
    endpoint.send(at(rank + 1), u64::MAX, &word)?;
    if rank == 0 {
        endpoint.recv(Source::Rank(at(size - 1)), Tag::Exactly(u64::MAX), &mut word)?;
        ensure(usize::from(word[0]) == size, || format!("{} of {size} were met", word[0]))?;
    }
    // No rank leaves while others still need a message from it.
    Ok(endpoint.agree(0).map(drop)?)
}
