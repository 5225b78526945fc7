//! Ranks that die or finish. The last rank does; the others go on.

use nemesia_core::engine::Failure;
use nemesia_core::matching::{Pattern, Source};

use super::RunPlan;
use super::actor::{Actor, Trouble};
use super::buffer::Buffer;
use super::script::{
    CONTEXT, accept, any_tag, barrier, barrier_among, content, end, exactly, succeed, text, turns, until,
};
use crate::content::{Random, seed_of};
use crate::memory_port::{Verdict, ensure, equal};

const LENGTHS: [usize; 6] = [200_000, 8, 60_000, 3000, 100, 150_001];
const TO_ANYONE: u64 = 1 << 50;

/// A rank dies while it sends and receives. Every operation with it ends, each message that counts as received
/// is whole, and receives from any source report the failure until it is acknowledged.
pub async fn a_rank_that_dies_in_a_transfer_is_noticed<A: Actor>(actor: &mut A, plan: RunPlan) -> Verdict {
    let (me, victim) = (actor.rank(), actor.size() - 1);
    all_are_there(actor, plan, victim).await?;
    let (mut open, mut anyone) = (Vec::new(), None);
    let others = if me == victim { 0..victim } else { victim..victim + 1 };
    for other in others {
        for (tag, &len) in (0..).zip(&LENGTHS) {
            let message = Buffer::filled(content(plan.seed, me, other, tag), len);
            for posts in [tag % 2 == 0, tag % 2 == 1] {
                let started = if posts {
                    actor.receive(exactly(Source::Rank(other), tag), Buffer::room(len)).map(|op| (op, true))
                } else {
                    let message = Buffer::of(&message.bytes());
                    actor.send(other, CONTEXT, tag, message, false).map(|op| (op, false))
                };
                match started {
                    Ok((operation, receives)) => open.push((operation, receives, tag, len)),
                    Err(Trouble::PeerFailed { peer, .. }) if peer == other && me != victim => {}
                    Err(trouble) => return Err(text(trouble)),
                }
            }
        }
    }
    if me == victim {
        let lifetime = Random::new(seed_of(&[plan.seed, 9])).below(60);
        turns(actor, lifetime as usize).await;
        return actor.die().await;
    }
    match actor.receive(exactly(Source::Any, TO_ANYONE), Buffer::room(8)) {
        Ok(posted) => anyone = Some(posted),
        Err(Trouble::PeerFailed { peer, .. }) if peer == victim => {}
        Err(trouble) => return Err(text(trouble)),
    }
    for (operation, receives, tag, len) in open {
        let (ended, buffer) = end(actor, "an operation with a dead rank", operation).await?;
        match ended {
            Ok(status) if receives => {
                equal("the length", status.len, len)?;
                equal("the content", buffer.wrong(content(plan.seed, victim, me, tag), len), None)?;
            }
            Ok(_) => {}
            Err(Trouble::PeerFailed { peer, .. }) if peer == victim => {}
            Err(trouble) => return Err(format!("tag {tag}: {}", text(trouble))),
        }
    }
    until(actor, "the failure", |actor| actor.failure(victim).is_some()).await?;
    if let Some(posted) = anyone {
        let (ended, _) = end(actor, "a receive from any source", posted).await?;
        let is_right = matches!(ended, Err(Trouble::PeerFailed { peer, .. }) if peer == victim);
        ensure(is_right, || format!("a receive from any source: {ended:?}"))?;
    }
    noticed(actor, victim)?;
    actor.acknowledge();
    exchange_among(actor, plan, victim).await
}

/// Waits until all ranks are there; the last one does not go on before the others have received what it sent, because
/// packets of a dead rank may be lost.
async fn all_are_there<A: Actor>(actor: &mut A, plan: RunPlan, victim: u32) -> Verdict {
    const GO: u64 = 1 << 51;
    let me = actor.rank();
    barrier(actor).await?;
    if me != victim {
        let sent = actor.send(victim, CONTEXT, GO, Buffer::filled(plan.seed, 8), false).map_err(text)?;
        return succeed(actor, "a send", sent).await.map(drop);
    }
    for other in 0..victim {
        accept(actor, exactly(Source::Rank(other), GO), (plan.seed, 8)).await?;
    }
    Ok(())
}

/// Checks that a rank counts as dead, and that nothing can be sent to it.
fn noticed<A: Actor>(actor: &mut A, victim: u32) -> Verdict {
    let failure = actor.failure(victim);
    ensure(failure.is_some() && failure != Some(Failure::Finished), || format!("it is {failure:?}"))?;
    for synchronous in [false, true] {
        let sent = actor.send(victim, CONTEXT, 1, Buffer::room(8), synchronous);
        let is_right = matches!(sent, Err(Trouble::PeerFailed { peer, .. }) if peer == victim);
        ensure(is_right, || format!("a send to a dead rank: {sent:?}"))?;
    }
    for other in (0..actor.size()).filter(|other| *other != victim) {
        equal(&format!("the failure of {other}"), actor.failure(other), None)?;
    }
    Ok(())
}

/// The first `size` ranks exchange messages in a ring, from any source.
async fn exchange_among<A: Actor>(actor: &mut A, plan: RunPlan, size: u32) -> Verdict {
    let me = actor.rank();
    let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
    barrier_among(actor, size).await?;
    for (tag, len) in (100..).zip([8, 30_000, 500]) {
        let message = Buffer::filled(content(plan.seed, me, next, tag), len);
        let sent = actor.send(next, CONTEXT, tag, message, false).map_err(text)?;
        accept(actor, exactly(Source::Any, tag), (content(plan.seed, previous, me, tag), len)).await?;
        end(actor, "a send", sent).await?.0.map_err(text)?;
    }
    barrier_among(actor, size).await
}

/// The survivors exchange messages before, during and after the death of the last rank.
pub async fn survivors_go_on_after_a_death<A: Actor>(actor: &mut A, plan: RunPlan) -> Verdict {
    let (me, victim) = (actor.rank(), actor.size() - 1);
    all_are_there(actor, plan, victim).await?;
    if me == victim {
        for number in 0..3 {
            for to in 0..victim {
                actor.send(to, CONTEXT, number, Buffer::room(300), false).map_err(text)?;
            }
            actor.turn().await;
        }
        return actor.die().await;
    }
    let (next, previous) = ((me + 1) % victim, (me + victim - 1) % victim);
    let mut number = 1000;
    // All must agree on the end: ten messages after everyone has seen the failure.
    let mut after = 0;
    while after < 10 {
        let len = LENGTHS[number as usize % LENGTHS.len()];
        let message = Buffer::filled(content(plan.seed, me, next, number), len);
        let sent = actor.send(next, CONTEXT, number, message, false).map_err(text)?;
        let seed = content(plan.seed, previous, me, number);
        accept(actor, exactly(Source::Rank(previous), number), (seed, len)).await?;
        succeed(actor, "a send", sent).await?;
        let seen = actor.failure(victim).is_some();
        after = if all_say(actor, number, victim, seen).await? { after + 1 } else { 0 };
        number += 1;
    }
    noticed(actor, victim)?;
    actor.acknowledge();
    exchange_among(actor, plan, victim).await
}

/// Returns whether all of the first `size` ranks say yes.
async fn all_say<A: Actor>(actor: &mut A, number: u64, size: u32, yes: bool) -> Result<bool, String> {
    const VOTE: u16 = CONTEXT + 1;
    let mut open = Vec::new();
    for other in 0..size {
        let pattern = Pattern { context: VOTE, ..exactly(Source::Rank(other), number) };
        let posted = actor.receive(pattern, Buffer::room(1)).map_err(text)?;
        let sent = actor.send(other, VOTE, number, Buffer::of(&[u8::from(yes)]), false).map_err(text)?;
        open.push((posted, sent));
    }
    let mut all = true;
    for (posted, sent) in open {
        all &= succeed(actor, "a vote", posted).await?.1.bytes() == [1];
        succeed(actor, "a send of a vote", sent).await?;
    }
    Ok(all)
}

/// A rank sends messages and finishes. All its messages can be received afterwards; then it counts as finished,
/// and not as dead, and receives from any source do not fail.
pub async fn a_rank_that_finishes_has_delivered_everything<A: Actor>(
    actor: &mut A,
    plan: RunPlan,
) -> Verdict {
    const SMALL: u64 = 20;
    let (me, leaver) = (actor.rank(), actor.size() - 1);
    let small = |number: u64| 10 * number as usize;
    barrier(actor).await?;
    if me == leaver {
        let mut open = Vec::new();
        for to in 0..leaver {
            for number in 0..SMALL {
                let message = Buffer::filled(content(plan.seed, me, to, number), small(number));
                open.push(actor.send(to, CONTEXT, number, message, false).map_err(text)?);
            }
            let message = Buffer::filled(content(plan.seed, me, to, SMALL), LENGTHS[0]);
            open.push(actor.send(to, CONTEXT, SMALL, message, false).map_err(text)?);
        }
        for sent in open {
            end(actor, "a send", sent).await?.0.map_err(text)?;
        }
        return Ok(());
    }
    let anyone = actor.receive(exactly(Source::Any, TO_ANYONE), Buffer::room(8)).map_err(text)?;
    let source = Source::Rank(leaver);
    accept(actor, exactly(source, SMALL), (content(plan.seed, leaver, me, SMALL), LENGTHS[0])).await?;
    until(actor, "the end of the last rank", |actor| actor.failure(leaver).is_some()).await?;
    equal("the end of the last rank", actor.failure(leaver), Some(Failure::Finished))?;
    for number in 0..SMALL {
        let wanted = (content(plan.seed, leaver, me, number), small(number));
        let status = accept(actor, any_tag(source), wanted).await?;
        equal("the tag", status.tag, number)?;
    }
    let posted = actor.receive(any_tag(source), Buffer::room(8));
    let is_right = matches!(posted, Err(Trouble::PeerFailed { failure: Failure::Finished, .. }));
    ensure(is_right, || format!("a receive from a finished rank: {posted:?}"))?;
    if leaver > 1 {
        ensure(actor.test(anyone).is_none(), || "a receive from any source has failed".into())?;
        ensure(actor.cancel(anyone), || "it is not posted any more".into())?;
    }
    let (ended, _) = end(actor, "a receive from any source", anyone).await?;
    ensure(ended.is_err(), || format!("a receive from any source got {ended:?}"))?;
    exchange_among(actor, plan, leaver).await
}
