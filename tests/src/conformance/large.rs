//! Sizes, lists, and large messages.

use nemesia_core::engine::Status;
use nemesia_core::matching::Source;

use super::RunPlan;
use super::actor::{Actor, Trouble};
use super::buffer::Buffer;
use super::script::{CONTEXT, barrier, content, end, exactly, neighbours, succeed, text};
use crate::content::Random;
use crate::memory_port::{Verdict, equal};

/// The longest message of most cases.
const LONGEST: u64 = 200_000;
/// The messages of each direction that are under way together.
const BATCH: usize = 12;

/// Small sizes, sizes around powers of two and around the limits of fastboxes and cells, the largest, and odd
/// ones in between.
fn sizes(random: &mut Random) -> Vec<usize> {
    let mut all: Vec<u64> = (0..=72).collect();
    for power in 7..=17 {
        all.extend([(1 << power) - 1, 1 << power, (1 << power) + 1]);
    }
    all.extend([100, 231, 232, 233, 1500, 5000, 8191 - 16, 100_000, LONGEST - 1, LONGEST]);
    all.extend((0..20).map(|_| random.below(LONGEST) | 1));
    all.into_iter().map(|size| size as usize).collect()
}

/// Messages of 0 to 200,000 bytes arrive whole, in a ring, several at once. Every second receive of a batch is
/// posted after the message was sent.
pub async fn messages_of_every_size_arrive<A: Actor>(actor: &mut A, plan: RunPlan) -> Verdict {
    let (me, (next, previous)) = (actor.rank(), neighbours(actor));
    let sizes = sizes(&mut Random::new(plan.seed));
    for (batch, sizes) in sizes.chunks(BATCH).enumerate() {
        let tags = || (batch * BATCH) as u64..;
        let (mut receives, mut sends) = (Vec::new(), Vec::new());
        for late in [false, true] {
            for (tag, &len) in tags().zip(sizes).filter(|(tag, _)| (tag % 2 == 1) == late) {
                let posted = actor.receive(exactly(Source::Rank(previous), tag), Buffer::room(len + 3));
                receives.push((tag, len, posted.map_err(text)?));
            }
            for (tag, &len) in tags().zip(sizes).filter(|_| !late) {
                let message = Buffer::filled(content(plan.seed, me, next, tag), len);
                sends.push(actor.send(next, CONTEXT, tag, message, false).map_err(text)?);
                actor.turn().await;
            }
        }
        for (tag, len, posted) in receives {
            let (status, buffer) = succeed(actor, "a receive", posted).await?;
            equal("sender, tag and length", status, Status { peer: previous, tag, len, immediate: None })?;
            equal("the content", buffer.wrong(content(plan.seed, previous, me, tag), len), None)?;
        }
        for sent in sends {
            succeed(actor, "a send", sent).await?;
        }
    }
    barrier(actor).await
}

/// A message that is longer than its buffer fills it, and its receive reports the length. Later messages are
/// not affected.
pub async fn a_message_longer_than_its_buffer_is_truncated<A: Actor>(
    actor: &mut A,
    plan: RunPlan,
) -> Verdict {
    let (me, (next, previous)) = (actor.rank(), neighbours(actor));
    let lengths = [(8, 0), (8, 7), (1500, 1499), (60_000, 5), (60_000, 59_999), (9, 9)];
    for is_late in [false, true] {
        let mut sends = Vec::new();
        let mut receives = Vec::new();
        for step in [is_late, !is_late] {
            for (tag, &(len, room)) in (0..).zip(&lengths) {
                if step {
                    let message = Buffer::filled(content(plan.seed, me, next, tag), len);
                    sends.push(actor.send(next, CONTEXT, tag, message, false).map_err(text)?);
                } else {
                    let posted = actor.receive(exactly(Source::Rank(previous), tag), Buffer::room(room));
                    receives.push((tag, len, room, posted.map_err(text)?));
                }
            }
            actor.turn().await;
        }
        for (tag, len, room, posted) in receives {
            let (ended, buffer) = end(actor, "a receive", posted).await?;
            let status = Status { peer: previous, tag, len: room, immediate: None };
            let truncated = Err(Trouble::Truncated { status, message: len as u64 });
            equal("the end", ended, if room < len { truncated } else { Ok(status) })?;
            equal("the bytes that fit", buffer.wrong(content(plan.seed, previous, me, tag), room), None)?;
        }
        for sent in sends {
            succeed(actor, "a send of a truncated message", sent).await?;
        }
        barrier(actor).await?;
    }
    Ok(())
}

/// Messages are gathered from lists and scattered into lists, which are cut at other places.
pub async fn lists_are_gathered_and_scattered<A: Actor>(actor: &mut A, plan: RunPlan) -> Verdict {
    let (me, (next, previous)) = (actor.rank(), neighbours(actor));
    // What is random here is different at the two ends.
    let mut random = Random::new(plan.seed ^ u64::from(me) << 40);
    for (tag, len) in (0..).zip([0, 1, 8, 50, 232, 600, 1025, 5000, 20_000, 70_001, 200_000]) {
        let cuts = |random: &mut Random| -> Vec<usize> {
            let mut cuts: Vec<usize> =
                (0..1 + random.below(6)).map(|_| random.below(len + 1) as usize).collect();
            cuts.sort_unstable();
            cuts
        };
        let mut message = Buffer::filled(content(plan.seed, me, next, tag), len as usize);
        let mut room = Buffer::room(len as usize + 10);
        if tag % 3 != 1 {
            message = message.cut(&cuts(&mut random));
        }
        if tag % 3 != 2 {
            room = room.cut(&cuts(&mut random));
        }
        let early = random.below(2) == 0;
        let pattern = exactly(Source::Rank(previous), tag);
        let mut spare = Some(room);
        let mut posted = None;
        if early && let Some(room) = spare.take() {
            posted = Some(actor.receive(pattern, room).map_err(text)?);
        }
        let sent = actor.send(next, CONTEXT, tag, message, tag % 4 == 3).map_err(text)?;
        actor.turn().await;
        if let Some(room) = spare.take() {
            posted = Some(actor.receive(pattern, room).map_err(text)?);
        }
        let (status, buffer) = succeed(actor, "a receive into a list", posted.ok_or("none")?).await?;
        equal("the length", status.len, len as usize)?;
        equal("the content", buffer.wrong(content(plan.seed, previous, me, tag), len as usize), None)?;
        succeed(actor, "a send of a list", sent).await?;
    }
    barrier(actor).await
}

/// All ranks exchange large messages with all others, several at once in both directions.
pub async fn large_messages_pass_both_ways_at_once<A: Actor>(actor: &mut A, plan: RunPlan) -> Verdict {
    let (me, size) = (actor.rank(), actor.size());
    let lengths = [LONGEST as usize, 100_001, 65_536, 30_000, 300];
    let (mut receives, mut sends) = (Vec::new(), Vec::new());
    // The short form, in which the emulated devices run this.
    let rounds = if plan.steps < 100 { 2 } else { 4 };
    for round in 0..rounds {
        for other in (0..size).filter(|other| *other != me) {
            for (at, &len) in lengths.iter().enumerate() {
                let tag = round << 8 | at as u64;
                let message = Buffer::filled(content(plan.seed, me, other, tag), len);
                sends.push(actor.send(other, CONTEXT, tag, message, false).map_err(text)?);
                let posted = actor.receive(exactly(Source::Rank(other), tag), Buffer::room(len));
                receives.push((other, tag, len, posted.map_err(text)?));
            }
        }
        actor.turn().await;
    }
    for (other, tag, len, posted) in receives {
        let (status, buffer) = succeed(actor, "a receive", posted).await?;
        equal("the length", status.len, len)?;
        equal("the content", buffer.wrong(content(plan.seed, other, me, tag), len), None)?;
    }
    for sent in sends {
        succeed(actor, "a send", sent).await?;
    }
    barrier(actor).await
}
