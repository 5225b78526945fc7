//! Small packets to a rank on another machine. `fast-path ROUNDS`: ranks 0 and 1 exchange messages of all small sizes,
//! one at a time and many at once, and report by which path their packets went.

use nemesia::{Endpoint, Error, Source, Tag};

use super::{Arena, Outcome, broken, ensure, open, tell};
use crate::content::{difference, filled};

/// The messages that are under way at once: more than a ring has slots.
const MANY: u64 = 150;
/// Longer than what fits into a slot of a ring.
const LONGEST: u64 = 700;

pub(super) fn run(rounds: u64) -> Outcome {
    let mut endpoint = open()?;
    let peer = 1 - endpoint.rank();
    for round in 0..rounds {
        // One at a time, which keeps the ring almost empty; every second round, far more than it holds.
        let count = if round % 2 == 0 { 1 } else { MANY };
        if endpoint.rank() == 0 {
            send(&mut endpoint, peer, (round, count))?;
        }
        receive(&mut endpoint, peer, (round, count))?;
        if endpoint.rank() == 1 {
            send(&mut endpoint, peer, (round, count))?;
        }
    }
    let Some(counters) = endpoint.peer_counters(peer) else { return broken("there are no counters") };
    tell(&format!(
        "{} written, {} read, {} found no slot",
        counters.ring_sent, counters.ring_received, counters.ring_full
    ))?;
    Ok(endpoint.close()?)
}

/// Returns the content of a message of a round.
fn content(round: u64, number: u64) -> Vec<u8> {
    filled(round * MANY + number, ((37 * round + 11 * number) % LONGEST) as usize)
}

fn send(endpoint: &mut Endpoint, peer: usize, (round, count): (u64, u64)) -> Outcome {
    let mut arena = Arena::default();
    let sends = (0..count).map(|number| arena.isend(endpoint, peer, number, &content(round, number)));
    for request in sends.collect::<Result<Vec<_>, Error>>()? {
        endpoint.wait(request)?;
    }
    Ok(())
}

/// Receives the messages of a round, and checks order and contents.
fn receive(endpoint: &mut Endpoint, peer: usize, (round, count): (u64, u64)) -> Outcome {
    let mut got = [0; LONGEST as usize];
    for number in 0..count {
        let status = endpoint.recv(Source::Rank(peer), Tag::Any, &mut got)?;
        ensure(status.tag == number, || format!("round {round}: {} before {number}", status.tag))?;
        let (bytes, wanted) = (&got[..status.len], content(round, number));
        let wrong = difference(round * MANY + number, bytes);
        ensure(status.len == wanted.len() && wrong.is_none(), || {
            format!("round {round}, message {number}: {} bytes, wrong at {wrong:?}", status.len)
        })?;
    }
    Ok(())
}
