//! The words of which the scripts are made.

use std::time::{Duration, Instant};

use nemesia_core::engine::Status;
use nemesia_core::matching::{Pattern, Source};

use super::actor::{Actor, Ended, OperationId, Trouble};
use super::buffer::Buffer;
use crate::content::seed_of;
use crate::memory_port::{Verdict, ensure};

/// The time after which a wait counts as a hang. No run is expected to come near.
const PATIENCE: Duration = Duration::from_secs(120);
/// The contexts of the suite.
pub(super) const CONTEXT: u16 = 3;
const BARRIER: u16 = 900;
const KEYS: u16 = 901;

/// Returns a pattern for one tag.
pub(super) const fn exactly(source: Source, tag: u64) -> Pattern {
    Pattern { source, context: CONTEXT, tag, ignore: 0 }
}

/// Returns a pattern for every tag.
pub(super) const fn any_tag(source: Source) -> Pattern {
    Pattern { source, context: CONTEXT, tag: 0, ignore: u64::MAX }
}

/// Returns the text of a trouble.
pub(super) fn text(trouble: Trouble) -> String {
    match trouble {
        Trouble::Other(text) => text,
        other => format!("{other:?}"),
    }
}

/// Takes turns until the condition holds.
pub(super) async fn until<A: Actor>(
    actor: &mut A,
    what: &str,
    mut holds: impl FnMut(&mut A) -> bool,
) -> Verdict {
    let start = Instant::now();
    while !holds(actor) {
        if start.elapsed() > PATIENCE {
            return Err(format!("never: {what}"));
        }
        actor.turn().await;
    }
    Ok(())
}

/// Takes this many turns.
pub(super) async fn turns<A: Actor>(actor: &mut A, count: usize) {
    for _ in 0..count {
        actor.turn().await;
    }
}

/// Waits for the end of an operation.
pub(super) async fn end<A: Actor>(
    actor: &mut A,
    what: &str,
    operation: OperationId,
) -> Result<(Ended, Buffer), String> {
    let mut ended = None;
    until(actor, what, |actor| {
        ended = actor.test(operation);
        ended.is_some()
    })
    .await?;
    ended.ok_or_else(|| what.into())
}

/// Waits for the success of an operation.
pub(super) async fn succeed<A: Actor>(
    actor: &mut A,
    what: &str,
    operation: OperationId,
) -> Result<(Status, Buffer), String> {
    let (ended, buffer) = end(actor, what, operation).await?;
    let status = ended.map_err(|trouble| format!("{what}: {}", text(trouble)))?;
    ensure(buffer.overrun().is_none(), || format!("{what}: {:?}", buffer.overrun()))?;
    Ok((status, buffer))
}

/// Posts a receive and waits for its message, which must have the content of this seed.
pub(super) async fn accept<A: Actor>(
    actor: &mut A,
    pattern: Pattern,
    (seed, len): (u64, usize),
) -> Result<Status, String> {
    let posted = actor.receive(pattern, Buffer::room(len)).map_err(text)?;
    let (status, buffer) = succeed(actor, "a receive", posted).await?;
    let what = || format!("{pattern:?} got {status:?}");
    ensure(status.len == len, || format!("{} instead of {len} bytes", what()))?;
    ensure(buffer.wrong(seed, len).is_none(), || format!("{}: {:?}", what(), buffer.wrong(seed, len)))?;
    Ok(status)
}

/// Waits until all ranks have come here (dissemination: in step k rank r waits for rank r - 2^k).
pub(super) async fn barrier<A: Actor>(actor: &mut A) -> Verdict {
    let size = actor.size();
    barrier_among(actor, size).await
}

/// As [`barrier`], among the first `size` ranks.
pub(super) async fn barrier_among<A: Actor>(actor: &mut A, size: u32) -> Verdict {
    let rank = actor.rank();
    let mut step = 1;
    while step < size {
        let source = Source::Rank((rank + size - step) % size);
        let pattern = Pattern { source, context: BARRIER, tag: step.into(), ignore: 0 };
        let posted = actor.receive(pattern, Buffer::room(0)).map_err(text)?;
        let to = (rank + step) % size;
        let sent = actor.send(to, BARRIER, step.into(), Buffer::room(0), false).map_err(text)?;
        succeed(actor, "a send of a barrier", sent).await?;
        succeed(actor, "a barrier", posted).await?;
        step *= 2;
    }
    Ok(())
}

/// Sends these bytes to all ranks, and returns those of each rank.
pub(super) async fn gather<A: Actor>(actor: &mut A, bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let mut open = Vec::new();
    for rank in 0..actor.size() {
        let pattern = Pattern { source: Source::Rank(rank), context: KEYS, tag: 0, ignore: 0 };
        let posted = actor.receive(pattern, Buffer::room(bytes.len())).map_err(text)?;
        let sent = actor.send(rank, KEYS, 0, Buffer::of(bytes), false).map_err(text)?;
        open.push((posted, sent));
    }
    let mut all = Vec::new();
    for (posted, sent) in open {
        all.push(succeed(actor, "a gathered message", posted).await?.1.bytes());
        succeed(actor, "a send of a gathered message", sent).await?;
    }
    Ok(all)
}

/// Returns the seed of the content of a message.
pub(super) fn content(seed: u64, from: u32, to: u32, number: u64) -> u64 {
    seed_of(&[seed, from.into(), to.into(), number])
}

/// Returns the rank after this one, and the rank before it, in a ring.
pub(super) fn neighbours<A: Actor>(actor: &A) -> (u32, u32) {
    let (rank, size) = (actor.rank(), actor.size());
    ((rank + 1) % size, (rank + size - 1) % size)
}
