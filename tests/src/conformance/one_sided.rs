//! One-sided operations.

use nemesia_core::engine::rma::{
    Access, Comparison, CompleteAt, Datatype, Reduction, Refusal, RemoteKey, combine, swap,
};

use super::RunPlan;
use super::actor::{Actor, ExposureId, ExposureKind, RemoteVerb, Trouble};
use super::buffer::Buffer;
use super::script::{barrier, content, end, gather, neighbours, succeed, text, until};
use crate::content::filled;
use crate::memory_port::{Verdict, ensure, equal};

const PUT: RemoteVerb = RemoteVerb::Put { notify: false, complete: CompleteAt::Origin };
/// A put that is complete at its target.
const DELIVERED: RemoteVerb = RemoteVerb::Put { notify: false, complete: CompleteAt::Target };

/// Exposes memory, and returns the region and the keys of all ranks. `kind` is that of each rank.
pub(super) async fn exposed<A: Actor>(
    actor: &mut A,
    len: usize,
    access: Access,
    kind: impl Fn(u32) -> ExposureKind,
) -> Result<(ExposureId, Vec<RemoteKey>), String> {
    let region = actor.expose(len, access, kind(actor.rank())).map_err(text)?;
    let key = actor.key(region).map_err(text)?;
    let keys = gather(actor, &key).await?;
    let key_of = |(rank, bytes): (u32, &Vec<u8>)| match kind(rank) {
        // The number is enough.
        ExposureKind::Chosen(key) => Ok(RemoteKey::new(rank, key)),
        _ => {
            let key = bytes[..].try_into().ok().and_then(|bytes| RemoteKey::from_bytes(rank, bytes));
            key.ok_or_else(|| format!("rank {rank} sends no key"))
        }
    };
    Ok((region, (0..).zip(&keys).map(key_of).collect::<Result<_, _>>()?))
}

/// Returns how each rank exposes its memory.
pub(super) fn kinds(plan: RunPlan) -> impl Fn(u32) -> ExposureKind {
    move |rank| match (plan.seed ^ u64::from(rank)) % 4 {
        0 => ExposureKind::Mapped,
        1 => ExposureKind::Chosen(plan.seed % 3),
        2 => ExposureKind::Packets,
        _ => ExposureKind::ByAddress,
    }
}

/// Lets no rank map the memory of another.
const fn packets(_: u32) -> ExposureKind {
    ExposureKind::Packets
}

/// Runs an operation to its end, and returns its buffer.
async fn run<A: Actor>(
    actor: &mut A,
    (key, offset): (&RemoteKey, u64),
    verb: RemoteVerb,
    buffer: Buffer,
) -> Result<Buffer, String> {
    let started = actor.remote(key, offset, verb, buffer).map_err(text)?;
    Ok(succeed(actor, "a one-sided operation", started).await?.1)
}

/// Waits until all operations with a rank are done.
async fn flush<A: Actor>(actor: &mut A, rank: u32) -> Verdict {
    let flush = actor.flush(rank).map_err(text)?;
    succeed(actor, "a flush", flush).await.map(drop)
}

/// Ends the exposure when no rank uses it any more.
async fn unexpose<A: Actor>(actor: &mut A, region: ExposureId) -> Verdict {
    barrier(actor).await?;
    actor.unexpose(region).map_err(text)?;
    barrier(actor).await
}

/// Puts and gets of many lengths, at odd offsets too, reach exactly their bytes: in the memory of another rank
/// and in one's own.
pub async fn puts_and_gets_reach_every_byte<A: Actor>(actor: &mut A, plan: RunPlan) -> Verdict {
    const LEN: usize = 120_000;
    let (region, keys) = exposed(actor, LEN, Access::ReadWrite, kinds(plan)).await?;
    let (me, (next, previous)) = (actor.rank(), neighbours(actor));
    let mut shadow = vec![0; LEN];
    let mut at = 1;
    for (number, len) in (0..).zip([1, 3, 8, 31, 231, 1000, 1025, 5001, 40_003, 0, 65_536]) {
        let bytes = filled(content(plan.seed, me, next, number), len);
        run(actor, (&keys[next as usize], at as u64), PUT, Buffer::of(&bytes)).await?;
        shadow[at..at + len].copy_from_slice(&bytes);
        let back = run(actor, (&keys[next as usize], at as u64), RemoteVerb::Get, Buffer::room(len)).await?;
        ensure(back.bytes() == bytes, || format!("{len} bytes at {at} come back changed"))?;
        at += len + 2;
    }
    flush(actor, next).await?;
    let all = run(actor, (&keys[next as usize], 0), RemoteVerb::Get, Buffer::room(LEN)).await?;
    ensure(all.bytes() == shadow, || "bytes beside the puts have changed".into())?;
    barrier(actor).await?;
    // The owner sees what was put.
    let first = actor.look(region, 1, 1).map_err(text)?;
    equal("the owner's first byte", first, filled(content(plan.seed, previous, me, 0), 1))?;
    barrier(actor).await?;
    run(actor, (&keys[me as usize], 7), PUT, Buffer::of(b"oneself")).await?;
    equal("a put to oneself", actor.look(region, 7, 7).map_err(text)?, b"oneself".to_vec())?;
    unexpose(actor, region).await
}

/// Atomic operations of every kind change values as the arithmetic says, and return the old ones.
pub async fn atomic_operations_combine_values<A: Actor>(actor: &mut A, plan: RunPlan) -> Verdict {
    let (region, keys) = exposed(actor, 4096, Access::ReadWrite, kinds(plan)).await?;
    let (me, (next, _)) = (actor.rank(), neighbours(actor));
    let key = &keys[next as usize];
    for datatype in Datatype::ALL {
        let width = datatype.bytes();
        // Small whole numbers, which every type has exactly.
        let value = |number: u64| match datatype {
            Datatype::F32 => u64::from((number as f32).to_bits()),
            Datatype::F64 => (number as f64).to_bits(),
            _ => number,
        };
        let bytes = |values: &[u64]| -> Vec<u8> {
            values.iter().flat_map(|value| value.to_le_bytes()[..width].to_vec()).collect()
        };
        for (number, reduction) in (0..).zip(Reduction::ALL) {
            if !datatype.allows(reduction) {
                continue;
            }
            let at = 8 * (1 + number);
            let start: Vec<u64> = (0..20).map(|index| value(index + u64::from(me))).collect();
            let operands: Vec<u64> = (0..20).map(|index| value(3 + index * (plan.seed % 5))).collect();
            let after = |values: &[u64]| -> Vec<u64> {
                let each = values.iter().zip(&operands);
                each.map(|(value, operand)| combine(datatype, reduction, *value, *operand)).collect()
            };
            run(actor, (key, at), PUT, Buffer::of(&bytes(&start))).await?;
            let verb = RemoteVerb::Accumulate(datatype, reduction, CompleteAt::Origin);
            run(actor, (key, at), verb, Buffer::of(&bytes(&operands))).await?;
            let verb = RemoteVerb::FetchAccumulate(datatype, reduction);
            let old = run(actor, (key, at), verb, Buffer::of(&bytes(&operands))).await?;
            let (once, twice) = (after(&start), after(&after(&start)));
            let what = format!("{reduction:?} of {datatype:?}");
            equal(&format!("old values, {what}"), old.bytes(), bytes(&once))?;
            let verb = RemoteVerb::Fetch(datatype, reduction, operands[0]);
            let old = run(actor, (key, at), verb, Buffer::room(width)).await?;
            equal(&format!("fetch, {what}"), old.bytes(), bytes(&twice[..1]))?;
        }
        let at = (key, 8 * 40);
        let mut present = value(5);
        run(actor, at, PUT, Buffer::of(&bytes(&[present]))).await?;
        for comparison in Comparison::ALL {
            for (expected, new) in [(5, 9), (6, 10), (9, 5), (3, 7), (7, 3)] {
                let verb = RemoteVerb::CompareSwap(datatype, comparison, [value(expected), value(new)]);
                if !datatype.allows_comparison(comparison) {
                    refused(actor, at, verb, Refusal::Undefined).await?;
                    continue;
                }
                let old = run(actor, at, verb, Buffer::room(width)).await?;
                let what = format!("{comparison:?} of {datatype:?} and {expected}");
                equal(&what, old.bytes(), bytes(&[present]))?;
                present = swap(datatype, comparison, present, [value(expected), value(new)]);
            }
        }
    }
    unexpose(actor, region).await
}

/// All ranks add to the same values at once: no addition is lost, and no two see the same old value.
pub async fn counters_of_all_ranks_add_up<A: Actor>(actor: &mut A, plan: RunPlan) -> Verdict {
    const TIMES: u64 = 100;
    let (region, keys) = exposed(actor, 16, Access::ReadWrite, kinds(plan)).await?;
    let size = u64::from(actor.size());
    let mut last = None;
    for time in 0..TIMES {
        let verb = RemoteVerb::Fetch(Datatype::U64, Reduction::Sum, 1);
        let old = run(actor, (&keys[0], 0), verb, Buffer::room(8)).await?.bytes();
        let old = u64::from_le_bytes(old.try_into().unwrap_or_default());
        ensure(last < Some(old), || format!("{old} after {last:?}"))?;
        ensure(old < size * TIMES, || format!("{old} in {size} ranks that add {TIMES} each"))?;
        last = Some(old);
        let verb = RemoteVerb::Accumulate(Datatype::U64, Reduction::Sum, CompleteAt::Origin);
        run(actor, (&keys[0], 8), verb, Buffer::of(&time.to_le_bytes())).await?;
    }
    flush(actor, 0).await?;
    barrier(actor).await?;
    if actor.rank() == 0 {
        let sums = actor.look(region, 0, 16).map_err(text)?;
        let wanted = [(size * TIMES).to_le_bytes(), (size * TIMES * (TIMES - 1) / 2).to_le_bytes()];
        equal("the sums", sums, wanted.concat())?;
    }
    unexpose(actor, region).await
}

/// Starts an operation that the target, or this process, must refuse for this reason.
async fn refused<A: Actor>(
    actor: &mut A,
    (key, offset): (&RemoteKey, u64),
    verb: RemoteVerb,
    reason: Refusal,
) -> Verdict {
    let to = key.rank;
    let mut ended = match actor.remote(key, offset, verb, Buffer::of(&[7; 8])) {
        Ok(started) => end(actor, "an operation to be refused", started).await?.0,
        Err(trouble) => Err(trouble),
    };
    if ended.is_ok() {
        // The outcome of a put is known only after a flush.
        let flush = actor.flush(to).map_err(text)?;
        ended = end(actor, "a flush", flush).await?.0;
    }
    let is_right = matches!(ended, Err(Trouble::Refused { refusal, count: 1 }) if refusal == reason);
    ensure(is_right, || format!("{verb:?} at {offset}: {ended:?} instead of {reason:?}"))?;
    flush(actor, to).await
}

/// A forged key opens nothing in memory that cannot be mapped, and neither does the key of a region that was
/// unexposed. What is refused does not affect what is allowed.
pub async fn forged_keys_are_refused<A: Actor>(actor: &mut A, _: RunPlan) -> Verdict {
    let (readable, read_keys) = exposed(actor, 64, Access::Read, packets).await?;
    let (region, keys) = exposed(actor, 64, Access::ReadWrite, packets).await?;
    let (next, _) = neighbours(actor);
    let key = keys[next as usize];
    let add = RemoteVerb::Fetch(Datatype::U64, Reduction::Sum, 1);
    let forged = RemoteKey { key: key.key ^ 0x400, ..key };
    for verb in [PUT, DELIVERED, RemoteVerb::Get, add] {
        refused(actor, (&forged, 0), verb, Refusal::Key).await?;
        refused(actor, (&key, 57), verb, Refusal::Bounds).await?;
        refused(actor, (&key, u64::MAX - 3), verb, Refusal::Bounds).await?;
        // The origin believes that the region is longer.
        let longer = RemoteKey { len: 1000, ..key };
        refused(actor, (&longer, 64), verb, Refusal::Bounds).await?;
    }
    refused(actor, (&key, 4), add, Refusal::Alignment).await?;
    let mut writable = read_keys[next as usize];
    refused(actor, (&writable, 0), PUT, Refusal::Access).await?;
    // The origin believes that it may write.
    writable.access = Access::ReadWrite;
    refused(actor, (&writable, 0), PUT, Refusal::Access).await?;
    run(actor, (&key, 3), PUT, Buffer::of(b"still")).await?;
    flush(actor, next).await?;
    barrier(actor).await?;
    let seen = actor.look(region, 0, 64).map_err(text)?;
    let mut wanted = [0; 64];
    wanted[3..8].copy_from_slice(b"still");
    equal("the memory", &seen[..], &wanted[..])?;
    unexpose(actor, region).await?;
    refused(actor, (&key, 0), PUT, Refusal::Key).await?;
    refused(actor, (&key, 0), RemoteVerb::Get, Refusal::Key).await?;
    unexpose(actor, readable).await
}

/// When a delivered put or accumulate is complete, its target sees it. A message that is sent after it proves that,
/// because messages and one-sided operations have no order.
pub async fn delivered_operations_are_visible_at_their_target<A: Actor>(
    actor: &mut A,
    plan: RunPlan,
) -> Verdict {
    const LEN: usize = 20_000;
    let (region, keys) = exposed(actor, LEN + 8, Access::ReadWrite, kinds(plan)).await?;
    let (me, (next, previous)) = (actor.rank(), neighbours(actor));
    let key = keys[next as usize];
    for time in 1..30 {
        let len = if time % 7 == 0 { LEN } else { 1 + time as usize * 11 };
        let bytes = filled(content(plan.seed, me, next, time), len);
        let put = actor.remote(&key, 0, DELIVERED, Buffer::of(&bytes)).map_err(text)?;
        let verb = RemoteVerb::Accumulate(Datatype::U64, Reduction::Sum, CompleteAt::Target);
        let add = actor.remote(&key, LEN as u64, verb, Buffer::of(&1_u64.to_le_bytes())).map_err(text)?;
        succeed(actor, "a delivered put", put).await?;
        succeed(actor, "a delivered accumulate", add).await?;
        barrier(actor).await?;
        let seen = actor.look(region, 0, len).map_err(text)?;
        ensure(seen == filled(content(plan.seed, previous, me, time), len), || {
            format!("put {time} is not there")
        })?;
        equal("the sum", actor.look(region, LEN, 8).map_err(text)?, time.to_le_bytes().to_vec())?;
        barrier(actor).await?;
    }
    unexpose(actor, region).await
}

/// A notification is counted after the bytes of its put, and those of earlier puts, are there.
pub async fn notifications_follow_their_bytes<A: Actor>(actor: &mut A, plan: RunPlan) -> Verdict {
    const TIMES: u64 = 30;
    const LEN: usize = 3000;
    let (region, keys) = exposed(actor, TIMES as usize * LEN, Access::ReadWrite, kinds(plan)).await?;
    let (me, (next, previous)) = (actor.rank(), neighbours(actor));
    let mut open = Vec::new();
    for time in 0..TIMES {
        let message = Buffer::filled(content(plan.seed, me, next, time), LEN);
        let verb = RemoteVerb::Put { notify: true, complete: CompleteAt::Origin };
        let put = actor.remote(&keys[next as usize], time * LEN as u64, verb, message).map_err(text)?;
        open.push(put);
        actor.turn().await;
    }
    for time in 0..TIMES {
        let counted = |actor: &mut A| actor.notifications(region).is_ok_and(|count| count > time);
        until(actor, "a notification", counted).await?;
        let seen = actor.look(region, time as usize * LEN, LEN).map_err(text)?;
        let wanted = filled(content(plan.seed, previous, me, time), LEN);
        ensure(seen == wanted, || format!("notification {time} came before its bytes"))?;
    }
    for put in open {
        succeed(actor, "a put", put).await?;
    }
    flush(actor, next).await?;
    barrier(actor).await?;
    equal("the notifications", actor.notifications(region).map_err(text)?, TIMES)?;
    unexpose(actor, region).await
}
