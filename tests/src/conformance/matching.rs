//! Which message a receive gets.

use nemesia_core::matching::{Pattern, Source};

use super::RunPlan;
use super::actor::{Actor, OperationId, Trouble};
use super::buffer::Buffer;
use super::script::{
    CONTEXT, accept, any_tag, barrier, content, end, exactly, neighbours, succeed, text, turns,
};
use crate::content::seed_of;
use crate::memory_port::{Verdict, ensure, equal};

/// The messages of each pair in the tests of order.
const MANY: u64 = 40;
/// Small messages, messages in one packet, and large ones, in turn.
const MIXED: [usize; 7] = [8, 700, 0, 20_000, 3, 1500, 64];

fn mixed(number: u64) -> usize {
    MIXED[number as usize % MIXED.len()]
}

/// Messages between two ranks match in the order sent, whatever their sizes are; half of the receives are
/// posted first.
pub async fn messages_match_in_the_order_sent<A: Actor>(actor: &mut A, plan: RunPlan) -> Verdict {
    let (me, size) = (actor.rank(), actor.size());
    let (mut receives, mut sends) = (Vec::new(), Vec::new());
    for numbers in [0..MANY / 2, MANY / 2..MANY] {
        for number in numbers.clone() {
            for other in 0..size {
                let posted = actor.receive(any_tag(Source::Rank(other)), Buffer::room(MIXED[3]));
                receives.push((other, number, posted.map_err(text)?));
            }
        }
        for number in (0..MANY).filter(|_| numbers.start == 0) {
            for other in 0..size {
                let message = Buffer::filled(content(plan.seed, me, other, number), mixed(number));
                sends.push(actor.send(other, CONTEXT, number, message, number % 9 == 5).map_err(text)?);
            }
        }
        // The second half of the messages comes before its receives.
        turns(actor, 30).await;
    }
    for (from, number, posted) in receives {
        let (status, buffer) = succeed(actor, "a receive", posted).await?;
        let (len, seed) = (mixed(number), content(plan.seed, from, me, number));
        equal("sender, tag and length", (status.peer, status.tag, status.len), (from, number, len))?;
        equal("the content", buffer.wrong(seed, len), None)?;
    }
    for sent in sends {
        succeed(actor, "a send", sent).await?;
    }
    barrier(actor).await
}

/// The tags of the messages of the next two cases, and the receives as tag and ignored bits.
const TAGS: [u64; 5] = [0x10, 0x27, 7, 0x19, 0x33];
const RECEIVES: [(u64, u64); 5] = [(0x20, 0xf), (7, 0), (0, u64::MAX), (0x10, 0xf), (0, u64::MAX)];

/// Posted receives take messages in the order posted, by exact tags, masks and wildcards.
pub async fn receives_match_in_the_order_posted<A: Actor>(actor: &mut A, plan: RunPlan) -> Verdict {
    // For each receive, the number of its message.
    const TAKEN: [usize; 5] = [1, 2, 0, 3, 4];
    let (next, previous) = neighbours(actor);
    for source in [Source::Rank(previous), Source::Any] {
        let mut posted = Vec::new();
        for (tag, ignore) in RECEIVES {
            let pattern = Pattern { source, context: CONTEXT, tag, ignore };
            posted.push(actor.receive(pattern, Buffer::room(500)).map_err(text)?);
        }
        barrier(actor).await?;
        let sends = send_tags(actor, plan, next)?;
        check_tags(actor, plan, previous, (posted, sends), TAKEN).await?;
        barrier(actor).await?;
    }
    Ok(())
}

/// Messages that wait are taken in the order of arrival, by exact tags, masks and wildcards.
pub async fn stored_messages_match_in_the_order_of_arrival<A: Actor>(
    actor: &mut A,
    plan: RunPlan,
) -> Verdict {
    const TAKEN: [usize; 5] = [1, 2, 0, 3, 4];
    let (next, previous) = neighbours(actor);
    for source in [Source::Rank(previous), Source::Any] {
        let sends = send_tags(actor, plan, next)?;
        // The messages of the neighbour arrive before its barrier message, on which this one depends.
        barrier(actor).await?;
        let mut posted = Vec::new();
        for (tag, ignore) in RECEIVES {
            let pattern = Pattern { source, context: CONTEXT, tag, ignore };
            posted.push(actor.receive(pattern, Buffer::room(500)).map_err(text)?);
        }
        check_tags(actor, plan, previous, (posted, sends), TAKEN).await?;
        barrier(actor).await?;
    }
    Ok(())
}

/// Starts the sends of messages with these tags. The larger ones may need a receive to be complete.
fn send_tags<A: Actor>(actor: &mut A, plan: RunPlan, to: u32) -> Result<Vec<OperationId>, String> {
    let me = actor.rank();
    let mut sends = Vec::new();
    for (number, tag) in (0..).zip(TAGS) {
        let message = Buffer::filled(content(plan.seed, me, to, number), 100 * number as usize);
        sends.push(actor.send(to, CONTEXT, tag, message, false).map_err(text)?);
    }
    Ok(sends)
}

async fn check_tags<A: Actor>(
    actor: &mut A,
    plan: RunPlan,
    from: u32,
    (posted, sends): (Vec<OperationId>, Vec<OperationId>),
    taken: [usize; 5],
) -> Verdict {
    let me = actor.rank();
    for (receive, (posted, number)) in posted.into_iter().zip(taken).enumerate() {
        let (status, buffer) = succeed(actor, "a receive", posted).await?;
        let seed = content(plan.seed, from, me, number as u64);
        let found = (status.peer, status.tag, buffer.wrong(seed, 100 * number));
        equal(&format!("the message of receive {receive}"), found, (from, TAGS[number], None))?;
    }
    for sent in sends {
        succeed(actor, "a send", sent).await?;
    }
    Ok(())
}

/// Rank 0 receives from any source what all others send, each message once, and in order for each sender.
pub async fn a_receive_from_any_source_takes_each_message_once<A: Actor>(
    actor: &mut A,
    plan: RunPlan,
) -> Verdict {
    let (me, size) = (actor.rank(), actor.size());
    if me != 0 {
        for number in 0..MANY {
            let message = Buffer::filled(content(plan.seed, me, 0, number), mixed(number));
            let sent = actor.send(0, CONTEXT, number, message, number % 5 == 0).map_err(text)?;
            succeed(actor, "a send", sent).await?;
        }
        return barrier(actor).await;
    }
    let mut next = vec![0; size as usize];
    for _ in 0..MANY * u64::from(size - 1) {
        let posted = actor.receive(any_tag(Source::Any), Buffer::room(MIXED[3])).map_err(text)?;
        let (status, buffer) = succeed(actor, "a receive", posted).await?;
        let number = &mut next[status.peer as usize];
        equal(&format!("the tag from {}", status.peer), status.tag, *number)?;
        equal(
            "the content",
            buffer.wrong(content(plan.seed, status.peer, 0, *number), mixed(*number)),
            None,
        )?;
        *number += 1;
    }
    equal("the messages of each rank", &next[1..], &vec![MANY; size as usize - 1][..])?;
    barrier(actor).await
}

/// Messages of equal tags in several contexts do not mix.
pub async fn contexts_do_not_mix<A: Actor>(actor: &mut A, plan: RunPlan) -> Verdict {
    const CONTEXTS: [u16; 4] = [9, 0, 40_000, 10];
    let (me, (next, previous)) = (actor.rank(), neighbours(actor));
    let mut open = Vec::new();
    for context in CONTEXTS {
        let message = Buffer::filled(content(plan.seed, me, next, context.into()), 300);
        open.push(actor.send(next, context, 5, message, false).map_err(text)?);
    }
    let mut sorted = CONTEXTS;
    sorted.sort_unstable();
    for context in sorted {
        let pattern = Pattern { source: Source::Any, context, tag: 5, ignore: u64::MAX };
        let posted = actor.receive(pattern, Buffer::room(300)).map_err(text)?;
        let (_, buffer) = succeed(actor, "a receive", posted).await?;
        let seed = content(plan.seed, previous, me, context.into());
        equal(&format!("the message in context {context}"), buffer.wrong(seed, 300), None)?;
    }
    for sent in open {
        succeed(actor, "a send", sent).await?;
    }
    barrier(actor).await
}

/// Every rank sends rank 0 more than it can store. Senders are held back, and all messages arrive in order.
pub async fn unexpected_floods_are_held_back_and_nothing_is_lost<A: Actor>(
    actor: &mut A,
    plan: RunPlan,
) -> Verdict {
    const FLOOD: u64 = 600;
    const UNDER_WAY: usize = 60;
    let (me, size) = (actor.rank(), actor.size());
    let len = |from: u32, number: u64| (seed_of(&[plan.seed, from.into(), number]) % 1100) as usize;
    if me != 0 {
        let mut open = std::collections::VecDeque::new();
        for number in 0..FLOOD {
            let message = Buffer::filled(content(plan.seed, me, 0, number), len(me, number));
            open.push_back(actor.send(0, CONTEXT, number, message, false).map_err(text)?);
            while open.len() >= UNDER_WAY
                && let Some(sent) = open.pop_front()
            {
                succeed(actor, "a send of a flood", sent).await?;
            }
        }
        for sent in open {
            succeed(actor, "a send of a flood", sent).await?;
        }
        return barrier(actor).await;
    }
    turns(actor, 3000).await;
    for number in 0..FLOOD {
        for from in 1..size {
            let wanted = (content(plan.seed, from, 0, number), len(from, number));
            accept(actor, exactly(Source::Rank(from), number), wanted).await?;
        }
    }
    barrier(actor).await
}

/// A synchronous send is complete only when a receive has matched it, however small it is.
pub async fn a_synchronous_send_waits_for_its_receive<A: Actor>(actor: &mut A, plan: RunPlan) -> Verdict {
    let (me, (next, previous)) = (actor.rank(), neighbours(actor));
    for (number, len) in (0..).zip([0, 8, 3000, 50_000]) {
        let message = Buffer::filled(content(plan.seed, me, next, number), len);
        let sent = actor.send(next, CONTEXT, number, message, true).map_err(text)?;
        for _ in 0..100 {
            actor.turn().await;
            ensure(actor.test(sent).is_none(), || format!("a send of {len} bytes ended too early"))?;
        }
        // No rank posts a receive before every rank has seen this.
        barrier(actor).await?;
        accept(actor, exactly(Source::Any, number), (content(plan.seed, previous, me, number), len)).await?;
        succeed(actor, "a synchronous send", sent).await?;
    }
    barrier(actor).await
}

/// A receive that was cancelled takes no message; one that has a message cannot be cancelled.
pub async fn a_cancelled_receive_takes_no_message<A: Actor>(actor: &mut A, plan: RunPlan) -> Verdict {
    let (me, (next, previous)) = (actor.rank(), neighbours(actor));
    for (number, len) in (0..).zip([8, 20_000]) {
        let pattern = exactly(Source::Rank(previous), number);
        let first = actor.receive(pattern, Buffer::room(len)).map_err(text)?;
        let second = actor.receive(pattern, Buffer::room(len)).map_err(text)?;
        ensure(actor.cancel(first), || "a posted receive cannot be cancelled".into())?;
        let (ended, buffer) = end(actor, "a cancelled receive", first).await?;
        equal("the end of a cancelled receive", ended, Err(Trouble::Cancelled))?;
        equal("its buffer", buffer.wrong(0, 0), None)?;
        barrier(actor).await?;
        let message = Buffer::filled(content(plan.seed, me, next, number), len);
        let sent = actor.send(next, CONTEXT, number, message, false).map_err(text)?;
        succeed(actor, "a send", sent).await?;
        let (ended, buffer) = end(actor, "the other receive", second).await?;
        equal("the bytes received", ended.map(|status| status.len), Ok(len))?;
        equal("the content", buffer.wrong(content(plan.seed, previous, me, number), len), None)?;
        ensure(!actor.cancel(second), || "a complete receive was cancelled".into())?;
        barrier(actor).await?;
    }
    Ok(())
}

/// Messages of a rank to itself arrive, whether the receive or the send comes first.
pub async fn messages_to_oneself_arrive<A: Actor>(actor: &mut A, plan: RunPlan) -> Verdict {
    let me = actor.rank();
    for (number, len) in (0..).zip([0, 8, 900, 70_000]) {
        let seed = content(plan.seed, me, me, number);
        for synchronous in [false, true] {
            let sent = actor.send(me, CONTEXT, number, Buffer::filled(seed, len), synchronous);
            let sent = sent.map_err(text)?;
            accept(actor, exactly(Source::Any, number), (seed, len)).await?;
            succeed(actor, "a send to oneself", sent).await?;
            let posted = actor.receive(exactly(Source::Rank(me), number), Buffer::room(len)).map_err(text)?;
            let sent = actor.send(me, CONTEXT, number, Buffer::filled(seed, len), synchronous);
            succeed(actor, "a send to oneself", sent.map_err(text)?).await?;
            let (_, buffer) = succeed(actor, "a receive from oneself", posted).await?;
            equal("the content", buffer.wrong(seed, len), None)?;
        }
    }
    barrier(actor).await
}
