//! Worlds of the program `conformance`, under a launcher: which cases they run, and whether all ranks have passed.

use nemesia::bootstrap::ExitKind;

use super::RunPlan;
use super::actor::Abilities;
use super::cases::{CaseFacts, Need, cases, unfit};
use super::endpoint::EndpointActor;
use crate::job::{Rank, report};
use crate::memory_port::{Verdict, is_wanted};

/// Returns the arguments of the program for the cases of these names, or for the quiet ones that are [`is_wanted`].
pub fn arguments(RunPlan { seed, steps }: RunPlan, cases: Option<&str>) -> String {
    let quiet = || all().into_iter().filter(|case| case.need == Need::Nothing).map(|case| case.name);
    let names = cases.map_or_else(|| quiet().collect::<Vec<_>>().join(","), str::to_owned);
    format!("--seed {seed} --steps {steps} --cases {names}")
}

/// Returns all cases that are [`is_wanted`].
pub fn all() -> Vec<CaseFacts> {
    cases::<EndpointActor>().into_iter().map(|case| case.facts).filter(|case| is_wanted(case.name)).collect()
}

/// Checks that every rank has passed these cases, and that no other rank than `mortal` has died.
fn check(ranks: &[Rank], names: &[&str], mortal: Option<usize>) -> Verdict {
    for (number, rank) in ranks.iter().enumerate() {
        let is_killed = matches!(rank.kind, ExitKind::Signaled(libc::SIGKILL)) && mortal == Some(number);
        let passed = |name: &&str| rank.output.contains(&format!("rank {number}: {name} passed"));
        if !(is_killed || rank.kind.is_success() && names.iter().all(passed)) {
            return Err(format!("rank {number}\n{}", report(ranks)));
        }
    }
    Ok(())
}

/// Runs all cases that this world can do: the quiet ones in one world, each other one in a world of its own. `play`
/// runs this case, or the quiet ones.
///
/// # Errors
/// The output of all ranks, if one of them has not passed.
pub fn pass(
    size: usize,
    abilities: Abilities,
    mut play: impl FnMut(Option<CaseFacts>) -> Result<Vec<Rank>, String>,
) -> Verdict {
    let fitting = all().into_iter().filter(|case| unfit(*case, abilities, size).is_none());
    let (quiet, ending): (Vec<_>, Vec<_>) = fitting.partition(|case| case.need == Need::Nothing);
    let names: Vec<&str> = quiet.iter().map(|case| case.name).collect();
    check(&play(None)?, &names, None)?;
    for case in ending {
        let mortal = (case.need == Need::Deaths).then_some(size - 1);
        check(&play(Some(case))?, &[case.name], mortal)?;
    }
    Ok(())
}
