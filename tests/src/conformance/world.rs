//! Worlds in one thread: the script of each rank is a coroutine, and a seed decides which one runs next.

use std::task::{Context, Poll, Waker};

use super::RunPlan;
use super::actor::{Actor, Script};
use super::cases::Case;
use super::engine::Registry;
use crate::content::{Random, seed_of};
use crate::memory_port::Verdict;

/// The most turns that a rank takes in succession.
const BURST: u64 = 30;

/// What a world in one thread has besides its actors.
pub trait Stage<A> {
    /// Lets a little time pass.
    fn pass(&mut self) {}

    /// Returns the number of turns after which the world counts as hanging; `None` if time is real.
    fn most_turns(&self) -> Option<u64> {
        None
    }

    /// Returns the next process of a rank that died.
    ///
    /// # Errors
    /// The world starts no rank again.
    fn restart(&mut self, rank: usize) -> Result<A, String> {
        Err(format!("rank {rank} is not started again in this world"))
    }
}

/// A world in which nothing but the actors acts.
impl<A> Stage<A> for () {}

/// Runs a case on a world of these actors until every script has ended.
///
/// # Errors
/// The first script that fails, with its rank.
pub fn play<A: Actor>(
    case: &Case<A>,
    plan: RunPlan,
    actors: Vec<A>,
    registry: &Registry,
    stage: &mut impl Stage<A>,
) -> Verdict {
    let run = case.run;
    let script = |mut actor: A| -> Script<'_> {
        Box::pin(async move {
            run(&mut actor, plan).await?;
            actor.close().await
        })
    };
    let mut scripts: Vec<Option<Script<'_>>> = actors.into_iter().map(|actor| Some(script(actor))).collect();
    let mut random = Random::new(seed_of(&[plan.seed, 77]));
    let mut context = Context::from_waker(Waker::noop());
    for turn in 0_u64.. {
        if stage.most_turns().is_some_and(|most| turn > most) {
            return Err("the world does not come to its end".into());
        }
        for rank in (0..scripts.len()).filter(|rank| registry.is_wanted(*rank)) {
            registry.restart(rank);
            scripts[rank] = Some(script(stage.restart(rank)?));
        }
        let running: Vec<usize> = (0..scripts.len()).filter(|rank| scripts[*rank].is_some()).collect();
        if running.is_empty() {
            return Ok(());
        }
        let rank = random.pick(&running);
        // Now and then a rank gets ahead of the others.
        let turns = if random.below(8) == 0 { 1 + random.below(BURST) } else { 1 };
        for _ in 0..turns {
            stage.pass();
            let Some(script) = &mut scripts[rank] else { break };
            match script.as_mut().poll(&mut context) {
                Poll::Pending => {}
                Poll::Ready(verdict) => {
                    verdict.map_err(|why| format!("rank {rank}: {why}"))?;
                    scripts[rank] = None;
                }
            }
            if registry.is_dead(rank) {
                scripts[rank] = None;
            }
        }
    }
    Ok(())
}

/// Runs the script of the only rank in this process.
///
/// # Errors
/// That of the script.
pub fn complete(mut script: Script<'_>) -> Verdict {
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(verdict) = script.as_mut().poll(&mut context) {
            return verdict;
        }
        // The peers may need this processor.
        std::thread::yield_now();
    }
}
