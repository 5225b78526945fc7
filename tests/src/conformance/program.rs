//! The program `conformance`: one rank of the suite, under any launcher that Nemesia knows.
//!
//! `conformance [--seed N] [--steps N] [--cases WORD,...] [--list]`. Without `--cases` it runs every case after
//! which all ranks are still there, one after the other in the same world. A case in which a rank ends needs a
//! world of its own, so it runs only if `--cases` names it alone. Every rank prints one line for each case.
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | every case has passed |
//! | 1 | a case has failed, or this process could not join its world; one line says why |
//! | 64 | wrong arguments |

use std::io::{Write, stdout};
use std::process::ExitCode;

use super::RunPlan;
use super::actor::{Abilities, Actor};
use super::cases::{Case, Need, cases};
use super::endpoint::EndpointActor;
use super::world::complete;
use crate::memory_port::Verdict;

/// What processes can do. Whether a rank is started again is the launcher's choice.
pub const ABILITIES: Abilities = Abilities { deaths: true, endings: true, restarts: true };

/// The arguments.
struct Arguments {
    plan: RunPlan,
    words: Vec<String>,
    lists: bool,
}

fn parse(args: &[String]) -> Result<Arguments, String> {
    let mut found = Arguments { plan: RunPlan { seed: 1, steps: 2000 }, words: Vec::new(), lists: false };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--list" {
            found.lists = true;
            continue;
        }
        let value = args.next().ok_or_else(|| format!("{arg} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{value} is not a number"));
        match &arg[..] {
            "--seed" => found.plan.seed = number()?,
            "--steps" => found.plan.steps = number()?,
            "--cases" => found.words = value.split(',').map(str::to_owned).collect(),
            _ => return Err(format!("unknown argument {arg}: --seed, --steps, --cases and --list exist")),
        }
    }
    Ok(found)
}

/// Returns the cases that these words name.
fn chosen(words: &[String]) -> Result<Vec<Case<EndpointActor>>, String> {
    let mut found = cases();
    if words.is_empty() {
        found.retain(|case| case.facts.need == Need::Nothing);
    } else {
        found.retain(|case| words.iter().any(|word| case.facts.name.contains(&word[..])));
    }
    let lonely = found.iter().find(|case| case.facts.need != Need::Nothing);
    match lonely {
        _ if found.is_empty() => Err(format!("no case has one of {words:?} in its name")),
        Some(case) if found.len() > 1 => {
            Err(format!("{} needs a world of its own: name it alone", case.facts.name))
        }
        _ => Ok(found),
    }
}

/// Runs the program.
pub fn run(args: &[String]) -> ExitCode {
    let arguments = match parse(args).and_then(|arguments| Ok((chosen(&arguments.words)?, arguments))) {
        Ok(arguments) => arguments,
        Err(why) => {
            crate::say(&why);
            return ExitCode::from(64);
        }
    };
    let (chosen, Arguments { plan, lists, .. }) = arguments;
    let done = if lists { list(&chosen) } else { play(&chosen, plan) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            crate::say(&why);
            ExitCode::FAILURE
        }
    }
}

fn tell(line: &str) -> Verdict {
    writeln!(stdout(), "{line}").map_err(|error| error.to_string())
}

fn list(chosen: &[Case<EndpointActor>]) -> Verdict {
    chosen.iter().try_for_each(|case| tell(case.facts.name))
}

fn play(chosen: &[Case<EndpointActor>], plan: RunPlan) -> Verdict {
    let mut actor = EndpointActor::open(ABILITIES)?;
    let (rank, size) = (actor.rank(), actor.size() as usize);
    for case in chosen {
        if size < case.facts.ranks {
            return Err(format!("{} needs {} ranks", case.facts.name, case.facts.ranks));
        }
        let verdict = complete((case.run)(&mut actor, plan));
        verdict.map_err(|why| format!("rank {rank}, {}, seed {}: {why}", case.facts.name, plan.seed))?;
        tell(&format!("rank {rank}: {} passed", case.facts.name))?;
    }
    complete(Box::pin(actor.close()))
}
