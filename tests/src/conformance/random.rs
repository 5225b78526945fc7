//! Random operations of all ranks at once. The seed determines what each rank sends to each other, so that
//! every receiver knows what must come; [`MatchingOracle`] checks in which order.
//!
//! The run consists of epochs. At the end of each, everything that was started is completed, and checked. An
//! operation of a rank is a step.

mod remote;

use std::collections::VecDeque;

use nemesia_core::engine::{SendOptions, Status};
use nemesia_core::matching::{Pattern, Source};
use nemesia_verification::oracle::{ExpectedMessage, MatchingOracle};

use super::RunPlan;
use super::actor::{Actor, ClaimId, Ended, OperationId, Trouble};
use super::buffer::Buffer;
use super::script::{CONTEXT, barrier, content, exactly, text, until};
use crate::content::{Random, seed_of};
use crate::memory_port::{Verdict, equal};
use remote::RandomRemote;

/// The steps of a rank in an epoch.
const EPOCH: u64 = 100;
/// The most messages from one rank to another in an epoch.
const MESSAGES: u64 = 30;
/// The kinds of tags, in the low bits; the number of the message is above.
const CLASSES: u64 = 3;
const CLASS_BITS: u32 = 8;
/// The most operations of one kind that are under way.
const MANY: usize = 20;
/// The longest message.
const LONGEST: u64 = 200_000;

/// Runs random operations: sends of all kinds, receives with all patterns, probes, claims, cancels, one-sided
/// operations and active messages.
pub async fn random_operations_agree_with_the_oracle<A: Actor>(actor: &mut A, plan: RunPlan) -> Verdict {
    let (me, size) = (actor.rank(), actor.size());
    let epochs = plan.steps.div_ceil(EPOCH * u64::from(size));
    let mut remote = RandomRemote::new(actor, plan).await?;
    for epoch in 0..epochs {
        let seed = seed_of(&[plan.seed, epoch]);
        let mut random = Random::new(seed_of(&[seed, me.into()]));
        let messages = (0..size).map(|from| messages(seed, from, me)).collect();
        let mut desk = RandomDesk {
            seed,
            to_send: (0..size).map(|to| messages_to(seed, me, to)).collect(),
            sends: Vec::new(),
            receives: Vec::new(),
            claims: Vec::new(),
            oracle: MatchingOracle::new(messages),
        };
        let done = epoch_steps(actor, &mut desk, &mut remote, &mut random).await;
        done.map_err(|why| format!("epoch {epoch} of {epochs}: {why}"))?;
    }
    remote.close(actor).await
}

async fn epoch_steps<A: Actor>(
    actor: &mut A,
    desk: &mut RandomDesk,
    remote: &mut RandomRemote,
    random: &mut Random,
) -> Verdict {
    for _ in 0..EPOCH {
        match random.below(20) {
            0..5 => desk.send(actor, random)?,
            5..10 => desk.receive(actor, random)?,
            10 => desk.cancel(actor, random)?,
            11 => desk.probe(actor, random)?,
            12 => desk.claim(actor, random)?,
            13 => desk.receive_claimed(actor, random)?,
            14..17 => remote.step(actor, random)?,
            17 => remote.send_active(actor, random)?,
            _ => actor.turn().await,
        }
        desk.collect(actor)?;
        remote.collect(actor)?;
    }
    desk.finish(actor, random).await?;
    remote.finish(actor).await?;
    barrier(actor).await?;
    desk.oracle.check()
}

/// Returns the messages of an epoch between two ranks.
fn messages(seed: u64, from: u32, to: u32) -> Vec<ExpectedMessage> {
    let mut random = Random::new(content(seed, from, to, 0));
    let message = |number| {
        let most = match random.below(40) {
            0 => LONGEST,
            1..6 => 20_000,
            6..20 => 2000,
            _ => 65,
        };
        let class = random.below(CLASSES);
        ExpectedMessage::new(number << CLASS_BITS | class, random.below(most + 1) as usize)
    };
    let count = Random::new(content(seed, from, to, 1)).below(MESSAGES + 1);
    (0..count).map(message).collect()
}

fn messages_to(seed: u64, from: u32, to: u32) -> VecDeque<ExpectedMessage> {
    messages(seed, from, to).into()
}

/// Returns the immediate data of the message with this content: every third message has some.
fn immediate(seed: u64) -> Option<u64> {
    let mut random = Random::new(!seed);
    let has = random.below(3) == 0;
    has.then(|| random.below(u64::MAX))
}

/// Cuts some buffers into lists.
fn maybe_cut(buffer: Buffer, random: &mut Random) -> Buffer {
    if random.below(4) > 0 {
        return buffer;
    }
    let most = buffer.len() as u64 + 1;
    let mut cuts: Vec<usize> = (0..random.below(5)).map(|_| random.below(most) as usize).collect();
    cuts.sort_unstable();
    buffer.cut(&cuts)
}

/// A receive that is under way.
#[derive(Clone, Copy, Debug)]
struct OpenReceive {
    operation: OperationId,
    room: usize,
    matching: ReceiveMatch,
}

/// The message of a receive.
#[derive(Clone, Copy, Debug)]
enum ReceiveMatch {
    /// Any that matches this receive of the oracle.
    Posted(usize),
    /// The message that a matched probe has removed from the queue: sender, tag and length.
    Claimed(u32, u64, usize),
}

/// The tagged messages of one rank in one epoch.
#[derive(Debug)]
struct RandomDesk {
    seed: u64,
    /// By destination.
    to_send: Vec<VecDeque<ExpectedMessage>>,
    sends: Vec<OperationId>,
    receives: Vec<OpenReceive>,
    /// Each claim with its message: sender, tag and length.
    claims: Vec<(ClaimId, u32, u64, usize)>,
    oracle: MatchingOracle,
}

impl RandomDesk {
    fn send<A: Actor>(&mut self, actor: &mut A, random: &mut Random) -> Verdict {
        let to = random.below(self.to_send.len() as u64) as usize;
        if self.sends.len() < MANY { self.send_to(actor, to, random) } else { Ok(()) }
    }

    fn send_to<A: Actor>(&mut self, actor: &mut A, to: usize, random: &mut Random) -> Verdict {
        let Some(ExpectedMessage { tag, len, .. }) = self.to_send[to].pop_front() else { return Ok(()) };
        let seed = content(self.seed, actor.rank(), to as u32, tag);
        let message = maybe_cut(Buffer::filled(seed, len), random);
        let options = SendOptions { immediate: immediate(seed), synchronous: random.below(6) == 0 };
        let sent = actor.send_with(to as u32, CONTEXT, tag, message, options);
        self.sends.push(sent.map_err(text)?);
        Ok(())
    }

    /// Returns a pattern: any source or one, and any tag, those of a class, or one.
    fn pattern(&self, random: &mut Random) -> Pattern {
        let rank = random.below(self.to_send.len() as u64) as u32;
        let source = if random.below(3) == 0 { Source::Any } else { Source::Rank(rank) };
        let class = random.below(CLASSES);
        let (tag, ignore) = match random.below(3) {
            0 => (0, u64::MAX),
            1 => (class, u64::MAX << CLASS_BITS),
            _ => (random.below(MESSAGES) << CLASS_BITS | class, 0),
        };
        Pattern { source, context: CONTEXT, tag, ignore }
    }

    fn receive<A: Actor>(&mut self, actor: &mut A, random: &mut Random) -> Verdict {
        if self.receives.len() >= MANY {
            return Ok(());
        }
        let pattern = self.pattern(random);
        let room = match random.below(20) {
            0 => LONGEST as usize,
            1..5 => 20_000,
            5..8 => random.below(70) as usize,
            _ => 2000,
        };
        self.post(actor, pattern, room, random)
    }

    fn post<A: Actor>(
        &mut self,
        actor: &mut A,
        pattern: Pattern,
        room: usize,
        random: &mut Random,
    ) -> Verdict {
        let operation = actor.receive(pattern, maybe_cut(Buffer::room(room), random)).map_err(text)?;
        let matching = ReceiveMatch::Posted(self.oracle.post(pattern));
        self.receives.push(OpenReceive { operation, room, matching });
        Ok(())
    }

    fn cancel<A: Actor>(&mut self, actor: &mut A, random: &mut Random) -> Verdict {
        if self.receives.is_empty() {
            return Ok(());
        }
        let at = random.below(self.receives.len() as u64) as usize;
        self.withdraw(actor, at)
    }

    /// Withdraws a receive if no message has matched it.
    fn withdraw<A: Actor>(&mut self, actor: &mut A, at: usize) -> Verdict {
        let OpenReceive { operation, matching, .. } = self.receives[at];
        if !actor.cancel(operation) {
            return Ok(());
        }
        let ReceiveMatch::Posted(receive) = matching else {
            return Err("a receive of a claimed message was cancelled".into());
        };
        self.receives.swap_remove(at);
        self.oracle.withdraw(receive);
        let ended = actor.test(operation).map(|(ended, _)| ended);
        equal("the end of a cancelled receive", ended, Some(Err(Trouble::Cancelled)))
    }

    fn probe<A: Actor>(&mut self, actor: &mut A, random: &mut Random) -> Verdict {
        let pattern = self.pattern(random);
        let Some(status) = actor.probe(&pattern) else { return Ok(()) };
        let len = self.oracle.probed(&pattern, status.peer, status.tag)?;
        equal("the length that a probe reports", status.len, len)?;
        self.check_immediate(actor.rank(), &status)
    }

    fn check_immediate(&self, me: u32, status: &Status) -> Verdict {
        let seed = content(self.seed, status.peer, me, status.tag);
        equal(&format!("the immediate data of {status:?}"), status.immediate, immediate(seed))
    }

    fn claim<A: Actor>(&mut self, actor: &mut A, random: &mut Random) -> Verdict {
        let pattern = self.pattern(random);
        let Some((claim, status)) = actor.claim(&pattern).map_err(text)? else { return Ok(()) };
        let receive = self.oracle.post(pattern);
        let len = self.oracle.take(receive, status.peer, status.tag)?;
        equal("the length that a matched probe reports", status.len, len)?;
        self.check_immediate(actor.rank(), &status)?;
        self.claims.push((claim, status.peer, status.tag, len));
        Ok(())
    }

    fn receive_claimed<A: Actor>(&mut self, actor: &mut A, random: &mut Random) -> Verdict {
        let count = self.claims.len() as u64;
        if count == 0 {
            return Ok(());
        }
        let (claim, from, tag, len) = self.claims.swap_remove(random.below(count) as usize);
        let operation = actor.receive_claimed(claim, Buffer::room(len)).map_err(text)?;
        let matching = ReceiveMatch::Claimed(from, tag, len);
        self.receives.push(OpenReceive { operation, room: len, matching });
        Ok(())
    }

    /// Checks what is complete.
    fn collect<A: Actor>(&mut self, actor: &mut A) -> Verdict {
        let mut sends = std::mem::take(&mut self.sends);
        let mut wrong = Ok(());
        sends.retain(|sent| match actor.test(*sent) {
            None => true,
            Some((ended, _)) => {
                wrong = wrong.clone().and(ended.map(drop).map_err(text));
                false
            }
        });
        self.sends = sends;
        wrong?;
        for it in std::mem::take(&mut self.receives) {
            match actor.test(it.operation) {
                None => self.receives.push(it),
                Some((ended, buffer)) => self.check(actor.rank(), it, ended, &buffer)?,
            }
        }
        Ok(())
    }

    fn check(&mut self, me: u32, it: OpenReceive, ended: Ended, buffer: &Buffer) -> Verdict {
        let (status, message) = match ended {
            Ok(status) => (status, status.len),
            Err(Trouble::Truncated { status, message }) => (status, message as usize),
            Err(trouble) => return Err(format!("{it:?}: {}", text(trouble))),
        };
        let len = match it.matching {
            ReceiveMatch::Posted(receive) => self.oracle.take(receive, status.peer, status.tag)?,
            ReceiveMatch::Claimed(from, tag, len) => {
                equal("the message that was claimed", (status.peer, status.tag), (from, tag))?;
                len
            }
        };
        equal("the length of a message", message, len)?;
        equal("the bytes received", status.len, len.min(it.room))?;
        self.check_immediate(me, &status)?;
        let seed = content(self.seed, status.peer, me, status.tag);
        equal(&format!("the content of {status:?}"), buffer.wrong(seed, status.len), None)
    }

    /// Sends and receives everything that is left.
    async fn finish<A: Actor>(&mut self, actor: &mut A, random: &mut Random) -> Verdict {
        for to in 0..self.to_send.len() {
            while !self.to_send[to].is_empty() {
                self.send_to(actor, to, random)?;
            }
        }
        while !self.claims.is_empty() {
            self.receive_claimed(actor, random)?;
        }
        for at in (0..self.receives.len()).rev() {
            self.withdraw(actor, at)?;
        }
        self.rest(actor, |desk| desk.receives.is_empty()).await?;
        for (from, message) in self.oracle.missing() {
            let pattern = exactly(Source::Rank(from), message.tag);
            self.post(actor, pattern, message.len, random)?;
        }
        self.rest(actor, |desk| desk.receives.is_empty() && desk.sends.is_empty()).await?;
        equal("the messages that were not received", self.oracle.missing().len(), 0)
    }

    async fn rest<A: Actor>(&mut self, actor: &mut A, is_done: impl Fn(&Self) -> bool) -> Verdict {
        let mut wrong = Ok(());
        until(actor, "the rest of an epoch", |actor| {
            wrong = self.collect(actor);
            wrong.is_err() || is_done(self)
        })
        .await?;
        wrong
    }
}
