//! Probes and matched probes.

use nemesia_core::engine::Status;
use nemesia_core::matching::Source;

use super::RunPlan;
use super::actor::Actor;
use super::buffer::Buffer;
use super::script::{CONTEXT, accept, any_tag, barrier, content, exactly, neighbours, succeed, text, until};
use crate::memory_port::{Verdict, ensure, equal};

const SIZES: [usize; 5] = [0, 8, 1000, 20_000, 150_000];

/// A probe reports sender, tag and length of the message that a receive gets next, and leaves it.
pub async fn a_probe_sees_what_a_receive_gets<A: Actor>(actor: &mut A, plan: RunPlan) -> Verdict {
    let (me, (next, previous)) = (actor.rank(), neighbours(actor));
    for (number, len) in (0..).zip(SIZES) {
        let message = Buffer::filled(content(plan.seed, me, next, number), len);
        let sent = actor.send(next, CONTEXT, number, message, number % 2 == 1).map_err(text)?;
        let pattern = any_tag(Source::Any);
        let wanted = Some(Status { peer: previous, tag: number, len, immediate: None });
        until(actor, "a message to probe", |actor| actor.probe(&pattern).is_some()).await?;
        equal("the first probe", actor.probe(&pattern), wanted)?;
        equal("the second probe", actor.probe(&exactly(Source::Rank(previous), number)), wanted)?;
        equal("a probe for another tag", actor.probe(&exactly(Source::Any, number + 1)), None)?;
        accept(actor, pattern, (content(plan.seed, previous, me, number), len)).await?;
        equal("a probe after the receive", actor.probe(&pattern), None)?;
        succeed(actor, "a send", sent).await?;
        barrier(actor).await?;
    }
    Ok(())
}

/// A matched probe takes its message out of the queue: only its claim receives it, in any order.
pub async fn a_matched_probe_reserves_its_message<A: Actor>(actor: &mut A, plan: RunPlan) -> Verdict {
    let (me, (next, previous)) = (actor.rank(), neighbours(actor));
    let mut sends = Vec::new();
    for (number, len) in (0..).zip(SIZES) {
        let message = Buffer::filled(content(plan.seed, me, next, number), len);
        sends.push(actor.send(next, CONTEXT, number, message, false).map_err(text)?);
    }
    let pattern = any_tag(Source::Rank(previous));
    let mut claims = Vec::new();
    for (number, len) in (0..).zip(SIZES).take(SIZES.len() - 1) {
        let mut claimed = Ok(None);
        until(actor, "a message to claim", |actor| {
            claimed = actor.claim(&pattern);
            !matches!(claimed, Ok(None))
        })
        .await?;
        let (claim, status) = claimed.map_err(text)?.ok_or("no claim")?;
        equal("what is claimed", status, Status { peer: previous, tag: number, len, immediate: None })?;
        claims.push((claim, number, len));
    }
    // A receive gets the one message that no probe has claimed.
    let (last, len) = (SIZES.len() as u64 - 1, SIZES[SIZES.len() - 1]);
    let status = accept(actor, pattern, (content(plan.seed, previous, me, last), len)).await?;
    equal("the tag that no probe has claimed", status.tag, last)?;
    for (claim, number, len) in claims.into_iter().rev() {
        let received = actor.receive_claimed(claim, Buffer::room(len)).map_err(text)?;
        let (status, buffer) = succeed(actor, "a receive of a claimed message", received).await?;
        equal("its length", status.len, len)?;
        equal("its content", buffer.wrong(content(plan.seed, previous, me, number), len), None)?;
        ensure(actor.receive_claimed(claim, Buffer::room(len)).is_err(), || "a claim is used twice".into())?;
    }
    for sent in sends {
        succeed(actor, "a send", sent).await?;
    }
    barrier(actor).await
}
