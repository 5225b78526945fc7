//! A rank that dies and is started again.

use nemesia_core::matching::Source;

use super::RunPlan;
use super::actor::Actor;
use super::buffer::Buffer;
use super::script::{CONTEXT, accept, barrier, content, end, exactly, succeed, text, until};
use crate::memory_port::Verdict;

const GO: u64 = 1 << 51;
const LENGTHS: [usize; 4] = [8, 1000, 30_000, 200_000];

/// The last rank dies after it has exchanged messages with all. The others readmit its next process, exchange
/// messages with it, and nothing of the former process is left.
pub async fn a_rank_that_died_comes_back<A: Actor>(actor: &mut A, plan: RunPlan) -> Verdict {
    let (me, mortal) = (actor.rank(), actor.size() - 1);
    let first = actor.incarnation();
    for incarnation in first..2 {
        let others = if me == mortal { 0..mortal } else { mortal..mortal + 1 };
        for other in others {
            exchange(actor, plan, other, incarnation).await?;
        }
        if incarnation == 0 && me == mortal {
            // Messages that are never received.
            for to in 0..mortal {
                let sent = actor.send(to, CONTEXT, 77, Buffer::room(100), false).map_err(text)?;
                succeed(actor, "a send", sent).await?;
            }
            // Packets of a dead rank may be lost: the others must have what they wait for.
            for other in 0..mortal {
                accept(actor, exactly(Source::Rank(other), GO), (plan.seed, 8)).await?;
            }
            return actor.die().await;
        }
        if incarnation == 0 {
            let sent = actor.send(mortal, CONTEXT, GO, Buffer::filled(plan.seed, 8), false).map_err(text)?;
            // It may end after this rank's packet has arrived, and before the send is complete here.
            let _ = end(actor, "a send", sent).await?;
            until(actor, "the death", |actor| actor.failure(mortal).is_some()).await?;
            actor.acknowledge();
            let mut outcome = Ok(false);
            until(actor, "the next process", |actor| {
                outcome = actor.readmit(mortal);
                outcome != Ok(false)
            })
            .await?;
            outcome.map_err(text)?;
        }
    }
    if actor.probe(&exactly(Source::Any, 77)).is_some() {
        return Err("a message of the former process is still there".into());
    }
    barrier(actor).await
}

async fn exchange<A: Actor>(actor: &mut A, plan: RunPlan, other: u32, incarnation: u64) -> Verdict {
    let me = actor.rank();
    for (tag, len) in (0..).zip(LENGTHS) {
        let seed = |from, to| content(plan.seed ^ incarnation << 32, from, to, tag);
        let sent = actor.send(other, CONTEXT, tag, Buffer::filled(seed(me, other), len), false);
        let sent = sent.map_err(text)?;
        accept(actor, exactly(Source::Rank(other), tag), (seed(other, me), len)).await?;
        succeed(actor, "a send", sent).await?;
    }
    Ok(())
}
