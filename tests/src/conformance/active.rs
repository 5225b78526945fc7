//! Active messages.

use super::RunPlan;
use super::actor::{Actor, HANDLERS, HandledMessage};
use super::buffer::Buffer;
use super::script::{barrier, content, succeed, text, until};
use crate::content::{difference, seed_of};
use crate::memory_port::{Verdict, ensure, equal};

/// The header of a message: its number.
const HEADER: usize = 8;

/// Checks the next message of each sender among these. `sizes` returns the length of a message's payload.
fn check(
    plan: RunPlan,
    me: u32,
    next: &mut [u64],
    handled: Vec<HandledMessage>,
    len: impl Fn(u64) -> usize,
) -> Verdict {
    for message in handled {
        let HandledMessage { from, handler, header, payload } = message;
        let number = &mut next[from as usize];
        equal(&format!("the header from {from}"), &header[..], &number.to_le_bytes()[..])?;
        equal("its handler", u64::from(handler), *number % u64::from(HANDLERS))?;
        equal("its length", payload.len(), len(*number))?;
        let wrong = difference(content(plan.seed, from, me, *number), &payload);
        ensure(wrong.is_none(), || format!("message {number} from {from}: byte {wrong:?} is wrong"))?;
        *number += 1;
    }
    Ok(())
}

/// Sends each rank, this one included, `count` active messages, and checks those that arrive.
async fn exchange<A: Actor>(
    actor: &mut A,
    plan: RunPlan,
    count: u64,
    len: impl Fn(u64) -> usize + Copy,
) -> Verdict {
    let (me, size) = (actor.rank(), actor.size());
    let mut next = vec![0; size as usize];
    for number in 0..count {
        let mut open = Vec::new();
        for to in 0..size {
            let header = Buffer::of(&number.to_le_bytes());
            let payload = Buffer::filled(content(plan.seed, me, to, number), len(number));
            let handler = (number % u64::from(HANDLERS)) as u16;
            open.push(actor.send_active(to, handler, header, payload).map_err(text)?);
        }
        for sent in open {
            succeed(actor, "an active message", sent).await?;
        }
        check(plan, me, &mut next, actor.handled(), len)?;
    }
    let mut wrong = Ok(());
    until(actor, "the last active message", |actor| {
        wrong = check(plan, me, &mut next, actor.handled(), len);
        wrong.is_err() || next.iter().all(|next| *next == count)
    })
    .await?;
    wrong?;
    barrier(actor).await
}

/// Active messages of one packet reach their handlers, in the order sent between two ranks.
pub async fn active_messages_are_handled_in_order<A: Actor>(actor: &mut A, plan: RunPlan) -> Verdict {
    let len = |number| [0, 1, 8, 100, 240, 33][seed_of(&[plan.seed, number]) as usize % 6];
    exchange(actor, plan, 150, len).await?;
    // A message for which there is no handler is dropped, and the next one arrives.
    let (me, size) = (actor.rank(), actor.size());
    let to = (me + 1) % size;
    for handler in [HANDLERS + 5, 1] {
        let sent = actor.send_active(to, handler, Buffer::of(b"head"), Buffer::of(b"and body"));
        succeed(actor, "an active message", sent.map_err(text)?).await?;
    }
    let mut handled = Vec::new();
    until(actor, "the message after an unhandled one", |actor| {
        handled.extend(actor.handled());
        !handled.is_empty()
    })
    .await?;
    let from = (me + size - 1) % size;
    let (header, payload) = (b"head".to_vec(), b"and body".to_vec());
    equal("what is handled", handled, vec![HandledMessage { from, handler: 1, header, payload }])?;
    barrier(actor).await
}

/// Active messages of several packets arrive whole, up to the longest, in order with small ones. A longer one
/// is refused.
pub async fn active_messages_of_several_packets_arrive_whole<A: Actor>(
    actor: &mut A,
    plan: RunPlan,
) -> Verdict {
    let most = actor.active_bytes();
    let lengths = [5000, 3, 70_000, 1024, 0, 200_001, 9000, most - HEADER];
    exchange(actor, plan, lengths.len() as u64, |number| lengths[number as usize]).await?;
    let payload = Buffer::room(most - HEADER + 1);
    let sent = actor.send_active(0, 0, Buffer::of(&[0; HEADER]), payload);
    ensure(sent.is_err(), || format!("{} bytes are not too long", most + 1))?;
    barrier(actor).await
}
