//! Random one-sided operations and active messages. Each rank has an area of its own in the region of each
//! other, so it knows what the area must hold; one counter is shared by all.

use nemesia_core::engine::rma::{
    Access, Comparison, CompleteAt, Datatype, Reduction, RemoteKey, combine, swap,
};

use super::super::RunPlan;
use super::super::actor::{Actor, ExposureId, OperationId, RemoteVerb};
use super::super::buffer::Buffer;
use super::super::one_sided::{exposed, kinds};
use super::super::script::{barrier, content, gather, succeed, text, until};
use crate::content::{Random, difference};
use crate::memory_port::{Verdict, ensure, equal};

/// The bytes of an area, and the largest put or get.
const AREA: u64 = 4096;
const WORD: u64 = 8;
/// The most operations under way.
const MANY: usize = 16;
/// The seed of the contents of active messages.
const ACTIVE: u64 = 0xac71;

/// An operation under way, with the bytes that it must return.
#[derive(Debug)]
struct OpenRemote {
    operation: OperationId,
    wanted: Option<Vec<u8>>,
}

/// The one-sided operations and active messages of one rank.
#[derive(Debug)]
pub(super) struct RandomRemote {
    region: ExposureId,
    keys: Vec<RemoteKey>,
    /// The content of this rank's area at each rank.
    shadows: Vec<Vec<u8>>,
    open: Vec<OpenRemote>,
    /// What this rank has added to the counter.
    added: u64,
    /// The active messages sent to each rank, and those that have come from each.
    sent: Vec<u64>,
    come: Vec<u64>,
}

impl RandomRemote {
    pub(super) async fn new<A: Actor>(actor: &mut A, plan: RunPlan) -> Result<Self, String> {
        let size = actor.size() as usize;
        let bytes = size * AREA as usize + WORD as usize;
        let (region, keys) = exposed(actor, bytes, Access::ReadWrite, kinds(plan)).await?;
        let shadows = vec![vec![0; AREA as usize]; size];
        Ok(Self {
            region,
            keys,
            shadows,
            open: Vec::new(),
            added: 0,
            sent: vec![0; size],
            come: vec![0; size],
        })
    }

    /// Starts a one-sided operation.
    pub(super) fn step<A: Actor>(&mut self, actor: &mut A, random: &mut Random) -> Verdict {
        if self.open.len() >= MANY {
            return Ok(());
        }
        let (to, kind) = (random.below(self.keys.len() as u64) as usize, random.below(8));
        let base = u64::from(actor.rank()) * AREA;
        let most = if random.below(4) == 0 { AREA } else { 100 };
        let len = random.below(most + 1);
        let at = random.below(AREA - len + 1);
        let bytes = at as usize..(at + len) as usize;
        let word = random.below(AREA / WORD) * WORD;
        let shadow = &mut self.shadows[to];
        let (at, verb, buffer, wanted) = match kind {
            0..3 => {
                let buffer = Buffer::filled(random.next(), len as usize);
                shadow[bytes].copy_from_slice(&buffer.bytes());
                let complete = random.pick(&[CompleteAt::Origin, CompleteAt::Target]);
                (base + at, RemoteVerb::Put { notify: random.below(2) == 0, complete }, buffer, None)
            }
            3..5 => {
                let wanted = shadow[bytes].to_vec();
                (base + at, RemoteVerb::Get, Buffer::room(len as usize), Some(wanted))
            }
            5 => {
                let one = 1 + random.below(9);
                self.added += one;
                let complete = random.pick(&[CompleteAt::Origin, CompleteAt::Target]);
                let verb = RemoteVerb::Accumulate(Datatype::U64, Reduction::Sum, complete);
                return self.start(
                    actor,
                    0,
                    (AREA * self.keys.len() as u64, verb, Buffer::of(&one.to_le_bytes()), None),
                );
            }
            _ => {
                let (verb, buffer, wanted) = change(shadow, word as usize, kind == 6, random);
                (base + word, verb, buffer, wanted)
            }
        };
        let is_get = matches!(verb, RemoteVerb::Get);
        self.start(actor, to, (at, verb, buffer, wanted))?;
        // A get may see what was started after it, unless a fence is between.
        if is_get { actor.fence(to as u32).map_err(text) } else { Ok(()) }
    }

    fn start<A: Actor>(
        &mut self,
        actor: &mut A,
        to: usize,
        (at, verb, buffer, wanted): (u64, RemoteVerb, Buffer, Option<Vec<u8>>),
    ) -> Verdict {
        let operation = actor.remote(&self.keys[to], at, verb, buffer).map_err(text)?;
        self.open.push(OpenRemote { operation, wanted });
        Ok(())
    }

    /// Starts an active message.
    pub(super) fn send_active<A: Actor>(&mut self, actor: &mut A, random: &mut Random) -> Verdict {
        if self.open.len() >= MANY {
            return Ok(());
        }
        let (me, to) = (actor.rank(), random.below(self.sent.len() as u64) as usize);
        let longest = if random.below(20) == 0 { 20_000 } else { 300 };
        let number = self.sent[to];
        self.sent[to] += 1;
        let payload = Buffer::filled(content(ACTIVE, me, to as u32, number), random.below(longest) as usize);
        let header = Buffer::of(&number.to_le_bytes());
        let operation = actor.send_active(to as u32, 1, header, payload).map_err(text)?;
        self.open.push(OpenRemote { operation, wanted: None });
        Ok(())
    }

    /// Checks what is complete, and what has come.
    pub(super) fn collect<A: Actor>(&mut self, actor: &mut A) -> Verdict {
        for it in std::mem::take(&mut self.open) {
            match actor.test(it.operation) {
                None => self.open.push(it),
                Some((ended, buffer)) => {
                    ended.map_err(text)?;
                    let is_right = it.wanted.is_none_or(|wanted| wanted == buffer.bytes());
                    ensure(is_right, || "a one-sided operation returns something else".into())?;
                    equal("bytes beside a buffer", buffer.overrun(), None)?;
                }
            }
        }
        for message in actor.handled() {
            let number = &mut self.come[message.from as usize];
            equal("the number of an active message", &message.header[..], &number.to_le_bytes()[..])?;
            let seed = content(ACTIVE, message.from, actor.rank(), *number);
            equal("an active message, wrong at", difference(seed, &message.payload), None)?;
            *number += 1;
        }
        Ok(())
    }

    /// Completes everything, and compares with what the others have done.
    pub(super) async fn finish<A: Actor>(&mut self, actor: &mut A) -> Verdict {
        self.rest(actor, |it| it.open.is_empty()).await?;
        for to in 0..actor.size() {
            let flush = actor.flush(to).map_err(text)?;
            succeed(actor, "a flush", flush).await?;
        }
        let counts: Vec<u64> = self.sent.iter().copied().chain([self.added]).collect();
        let counts: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
        let counts = gather(actor, &counts).await?;
        let count = |from: usize, at: usize| -> u64 {
            let word = counts[from].get(8 * at..8 * at + 8).and_then(|word| word.try_into().ok());
            word.map_or(0, u64::from_le_bytes)
        };
        let (me, size) = (actor.rank() as usize, actor.size() as usize);
        self.rest(actor, |it| (0..size).all(|from| it.come[from] >= count(from, me))).await?;
        if me == 0 {
            // All have flushed before their counts came.
            let sum: u64 = (0..size).map(|from| count(from, size)).sum();
            let counter = actor.look(self.region, size * AREA as usize, 8).map_err(text)?;
            equal("the counter", &counter[..], &sum.to_le_bytes()[..])?;
        }
        Ok(())
    }

    async fn rest<A: Actor>(&mut self, actor: &mut A, is_done: impl Fn(&Self) -> bool) -> Verdict {
        let mut wrong = Ok(());
        until(actor, "the one-sided operations and active messages of an epoch", |actor| {
            wrong = self.collect(actor);
            wrong.is_err() || is_done(self)
        })
        .await?;
        wrong
    }

    pub(super) async fn close<A: Actor>(self, actor: &mut A) -> Verdict {
        barrier(actor).await?;
        actor.unexpose(self.region).map_err(text)?;
        barrier(actor).await
    }
}

/// Returns an atomic operation on a value in a word of an area, and what it returns; changes the shadow.
fn change(
    shadow: &mut [u8],
    at: usize,
    compares: bool,
    random: &mut Random,
) -> (RemoteVerb, Buffer, Option<Vec<u8>>) {
    let datatype = random.pick(&Datatype::ALL);
    let width = datatype.bytes();
    let place = &mut shadow[at..at + width];
    let old = place.to_vec();
    let value = old.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    let operand = random.next();
    let (verb, new) = if compares {
        let expected = if random.below(2) == 0 { value } else { random.next() };
        let some = random.pick(&Comparison::ALL);
        let comparison = if datatype.allows_comparison(some) { some } else { Comparison::Equal };
        let new = swap(datatype, comparison, value, [expected, operand]);
        (RemoteVerb::CompareSwap(datatype, comparison, [expected, operand]), new)
    } else {
        // The bits of a NaN that arithmetic returns depend on the compiler.
        let floats = [Reduction::Replace, Reduction::Nothing, Reduction::LogicalAnd, Reduction::LogicalXor];
        let reduction = match datatype {
            Datatype::F32 | Datatype::F64 => random.pick(&floats),
            _ => random.pick(&Reduction::ALL),
        };
        let new = combine(datatype, reduction, value, operand);
        (RemoteVerb::Fetch(datatype, reduction, operand), new)
    };
    place.copy_from_slice(&new.to_le_bytes()[..width]);
    (verb, Buffer::room(width), Some(old))
}
