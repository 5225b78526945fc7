//! The list of cases, and how a world runs them.
#![allow(clippy::print_stdout, reason = "visible with --nocapture only: how a slow world gets on")]

use std::time::Instant;

use super::actor::{Abilities, Actor, Script};
use super::endpoint::EndpointActor;
use super::{RunPlan, active, failure, large, matching, one_sided, probes, random, restart};
use crate::memory_port::{Verdict, is_wanted};
use crate::quick;

/// What a case needs from its world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing: all ranks are there at the end.
    Nothing,
    /// The last rank dies.
    Deaths,
    /// The last rank finishes before the others, and they see the difference.
    Endings,
    /// The last rank dies and comes back.
    Restarts,
}

/// A case, as far as all worlds have it in common.
#[derive(Clone, Copy, Debug)]
pub struct CaseFacts {
    /// The name: a promise.
    pub name: &'static str,
    /// The fewest ranks.
    pub ranks: usize,
    /// What it needs.
    pub need: Need,
}

/// A case for one kind of actor. The script of every rank is the same.
#[derive(Debug)]
pub struct Case<A> {
    /// What all worlds have in common.
    pub facts: CaseFacts,
    /// The script.
    pub run: for<'a> fn(&'a mut A, RunPlan) -> Script<'a>,
}

/// Makes a case of an async function.
macro_rules! case {
    ($ranks:literal, $need:ident, $run:path) => {
        Case {
            facts: CaseFacts { name: last_word(stringify!($run)), ranks: $ranks, need: Need::$need },
            run: |actor, plan| Box::pin($run(actor, plan)),
        }
    };
}

/// Returns the name of a function without its path.
fn last_word(path: &'static str) -> &'static str {
    path.rsplit("::").next().unwrap_or(path).trim()
}

/// Returns all cases.
pub fn cases<A: Actor>() -> Vec<Case<A>> {
    vec![
        case!(2, Nothing, matching::messages_match_in_the_order_sent),
        case!(2, Nothing, matching::receives_match_in_the_order_posted),
        case!(2, Nothing, matching::stored_messages_match_in_the_order_of_arrival),
        case!(2, Nothing, matching::a_receive_from_any_source_takes_each_message_once),
        case!(2, Nothing, matching::contexts_do_not_mix),
        case!(2, Nothing, matching::unexpected_floods_are_held_back_and_nothing_is_lost),
        case!(2, Nothing, matching::a_synchronous_send_waits_for_its_receive),
        case!(2, Nothing, matching::a_cancelled_receive_takes_no_message),
        case!(2, Nothing, matching::messages_to_oneself_arrive),
        case!(2, Nothing, probes::a_probe_sees_what_a_receive_gets),
        case!(2, Nothing, probes::a_matched_probe_reserves_its_message),
        case!(2, Nothing, large::messages_of_every_size_arrive),
        case!(2, Nothing, large::a_message_longer_than_its_buffer_is_truncated),
        case!(2, Nothing, large::lists_are_gathered_and_scattered),
        case!(2, Nothing, large::large_messages_pass_both_ways_at_once),
        case!(2, Nothing, one_sided::puts_and_gets_reach_every_byte),
        case!(2, Nothing, one_sided::atomic_operations_combine_values),
        case!(2, Nothing, one_sided::counters_of_all_ranks_add_up),
        case!(2, Nothing, one_sided::forged_keys_are_refused),
        case!(2, Nothing, one_sided::delivered_operations_are_visible_at_their_target),
        case!(2, Nothing, one_sided::notifications_follow_their_bytes),
        case!(2, Nothing, active::active_messages_are_handled_in_order),
        case!(2, Nothing, active::active_messages_of_several_packets_arrive_whole),
        case!(2, Nothing, random::random_operations_agree_with_the_oracle),
        case!(2, Deaths, failure::a_rank_that_dies_in_a_transfer_is_noticed),
        case!(3, Deaths, failure::survivors_go_on_after_a_death),
        case!(2, Endings, failure::a_rank_that_finishes_has_delivered_everything),
        case!(2, Restarts, restart::a_rank_that_died_comes_back),
    ]
}

/// Returns the script of a case for an actor.
///
/// # Errors
/// There is no such case.
pub fn script_of<A: Actor>(name: &str) -> Result<Case<A>, String> {
    let found = cases().into_iter().find(|it: &Case<A>| it.facts.name == name);
    found.ok_or_else(|| format!("no case {name}"))
}

/// Words in the names of the cases that depend on the protocol for large messages.
const PROTOCOL_CASES: [&str; 4] =
    ["large_messages", "puts_and_gets", "random_operations", "dies_in_a_transfer"];

/// Runs every case, or those whose names contain one of the comma-separated words in `NEMESIA_TEST_CHECK`, on worlds
/// of `ranks` ranks. What a world cannot run is left out; [`skip_unfit`] reports it.
///
/// # Errors
/// The failed cases, one on each line.
pub fn run_cases(
    world: &str,
    abilities: Abilities,
    ranks: usize,
    run: impl FnMut(CaseFacts) -> Verdict,
) -> Verdict {
    run_named(world, (abilities, ranks), &[""], run)
}

/// As [`run_cases`], on engines that use one protocol for all large messages. With `NEMESIA_QUICK` only the cases that
/// depend on the protocol run: engines that choose the protocol pass the others.
///
/// # Errors
/// The failed cases, one on each line.
pub fn run_protocol_cases(
    world: &str,
    abilities: Abilities,
    ranks: usize,
    run: impl FnMut(CaseFacts) -> Verdict,
) -> Verdict {
    run_named(world, (abilities, ranks), if quick() { &PROTOCOL_CASES } else { &[""] }, run)
}

/// As [`run_cases`], for the cases whose names contain one of these words.
fn run_named(
    world: &str,
    (abilities, ranks): (Abilities, usize),
    words: &[&str],
    mut run: impl FnMut(CaseFacts) -> Verdict,
) -> Verdict {
    let mut failures = Vec::new();
    for Case { facts: case, .. } in cases::<EndpointActor>() {
        let is_named = words.iter().any(|word| case.name.contains(word));
        if !is_named || !is_wanted(case.name) || unfit(case, abilities, ranks).is_some() {
            continue;
        }
        let start = Instant::now();
        let verdict = run(case);
        // On a slow device it is good to see which case runs.
        println!("{world}, {}: {:.1} s: {verdict:?}", case.name, start.elapsed().as_secs_f32());
        failures.extend(verdict.err().map(|why| format!("{}: {why}", case.name)));
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Reports the cases that a world cannot run, as a skip of this test.
pub fn skip_unfit(test: &str, abilities: Abilities, ranks: usize) {
    let all = cases::<EndpointActor>().into_iter().map(|case| case.facts);
    let reasons = all.filter_map(|case| Some(format!("{}: {}", case.name, unfit(case, abilities, ranks)?)));
    crate::skip(test, &reasons.collect::<Vec<_>>().join("; "));
}

/// Returns why a world cannot run a case.
pub fn unfit(case: CaseFacts, abilities: Abilities, ranks: usize) -> Option<&'static str> {
    match case.need {
        _ if ranks < case.ranks => Some("the world has too few ranks"),
        Need::Deaths if !abilities.deaths => Some("no rank of this world can die alone"),
        Need::Endings if !abilities.endings => Some("this world does not tell an end from a death"),
        Need::Restarts if !abilities.restarts => Some("no rank of this world is started again"),
        _ => None,
    }
}
