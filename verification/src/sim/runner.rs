//! Runs seeds, prints their results, and replays failures.

use std::cell::Cell;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use nemesia_verification::rdma::Fabric;
use nemesia_verification::streams::StreamFabric;

use crate::arguments::Options;
use crate::bug::{Bug, Subject};
use crate::cells::{CellsMemory, CellsWorld, MOST_CONNECTIONS, MOST_PROCESSES};
use crate::channel;
use crate::channel::direct::DirectWorld;
use crate::channel::fabric::ChannelFabric;
use crate::channel::world::ChannelWorld;
use crate::collect::CollectWorld;
use crate::joining::JoinsWorld;
use crate::keys::KeysWorld;
use crate::links::LinksWorld;
use crate::peers::PeersWorld;
use crate::port::SimPort;
use crate::rng::Rng;
use crate::shape::Shape;
use crate::shared::{SharedMedium, SharedPort};
use crate::simulation::Simulation;
use crate::tally::Tally;
use crate::trace::Trace;
use crate::violation::{Check, Violation};
use crate::vipl::ViplWorld;
use crate::world::WorldPort;
use crate::{complain, print};

/// The number of events shown before a failure.
const SHOWN: usize = 30;
/// The operations of one world, by kind; after that the same seed goes on with another world.
const WORLDS: [usize; 4] = [300, 2000, 10_000, usize::MAX];

/// The same for worlds over shared memory, which have memory for few processes.
const SHARED_WORLDS: [usize; 3] = [300, 1000, 2000];

thread_local! {
    /// The message of the last panic. A panic is a finding and is reported as one.
    static PANIC: Cell<String> = const { Cell::new(String::new()) };
}

/// The operations of one world of channels. So many operations of an engine take as long as one of a channel.
const CHANNEL_WORLDS: [usize; 3] = [300, 1500, 4000];
const ASSIST: usize = 4;
/// The same for links. The processes of a world of links become more and more, and so its steps become slower.
const LINKS: usize = 4;
const LINK_WORLDS: [usize; 3] = [100, 600, 2000];
/// One world of channels in so many runs over the placement.
const PLACEMENT: usize = 3;

/// One world of engines in so many has actors that use the completion queue, and at most so many operations.
const COLLECT: usize = 4;
const COLLECT_LIMIT: usize = 3000;

/// The result of one seed.
#[derive(Debug)]
struct Found {
    subject: Subject,
    seed: u64,
    worlds: usize,
    operations: usize,
    violation: Option<Violation>,
    events: Vec<String>,
    tally: Tally,
}

impl Found {
    fn new(subject: Subject, seed: u64) -> Self {
        let (events, tally) = (Vec::new(), Tally::default());
        Self { subject, seed, worlds: 0, operations: 0, violation: None, events, tally }
    }

    /// Lets a world live from start to end, and takes its result. A world that cannot be made is a finding, too.
    fn live<W>(
        &mut self,
        made: Result<W, Violation>,
        live: impl FnOnce(&mut W) -> Check,
        result: impl FnOnce(&mut W) -> (Tally, Vec<String>),
    ) {
        match made {
            Ok(mut world) => {
                let outcome = catch_unwind(AssertUnwindSafe(|| live(&mut world)));
                self.violation = outcome.unwrap_or_else(|_| Err(Violation(PANIC.take()))).err();
                let (tally, events) = result(&mut world);
                self.events = events;
                self.tally.add(&tally);
            }
            Err(violation) => self.violation = Some(violation),
        }
    }

    /// As [`Found::live`], for a further world that makes so many steps and then finishes.
    fn live_for<W>(
        &mut self,
        steps: usize,
        made: Result<W, Violation>,
        [step, finish]: [fn(&mut W) -> Check; 2],
        result: impl FnOnce(&mut W) -> (Tally, Vec<String>),
    ) {
        self.worlds += 1;
        let live = |world: &mut W| {
            (0..steps).try_for_each(|_| step(world))?;
            finish(world)
        };
        self.live(made, live, result);
        self.operations += steps;
    }
}

/// Runs the worlds of one seed.
fn run(options: &Options, subject: Subject, seed: u64, bug: Option<Bug>, traced: bool) -> Found {
    match subject {
        Subject::Engines => run_engines(options, seed, bug, traced),
        Subject::Shared => run_shared(options, seed, bug, traced),
        Subject::Channels => run_channels(options, seed, traced),
        Subject::Direct => run_direct(options, seed, traced),
        Subject::Peers => run_peers(options, seed, traced),
        Subject::Cells => run_cells(options, seed, traced),
        Subject::Keys => run_keys(options, seed, traced),
        Subject::Vipl => run_vipl(options, seed, traced),
        Subject::Joins => run_joins(options, seed, traced),
        Subject::Links => run_links(options, seed, traced),
    }
}

/// Runs worlds of channels with a share of the requested operations.
fn run_channels(options: &Options, seed: u64, traced: bool) -> Found {
    let mut found = Found::new(Subject::Channels, seed);
    while found.operations < options.operations.div_ceil(ASSIST) && found.violation.is_none() {
        let mut rng = Rng::new(seed, found.worlds as u64);
        let limit = rng.pick(&CHANNEL_WORLDS);
        if rng.one_in(PLACEMENT) {
            live_channels::<StreamFabric>(&mut found, limit, traced);
        } else {
            live_channels::<Fabric>(&mut found, limit, traced);
        }
    }
    found
}

/// Runs worlds of engines that use regions by remote memory access.
fn run_direct(options: &Options, seed: u64, traced: bool) -> Found {
    let new = |rng| DirectWorld::new(rng, Trace::new(traced));
    let live = [DirectWorld::step, DirectWorld::finish];
    let share = (ASSIST, CHANNEL_WORLDS);
    run_share(options, share, Found::new(Subject::Direct, seed), new, live, DirectWorld::result)
}

/// Runs worlds of one kind, each with a random number of steps. `step` makes one, and `finish` ends a world.
fn run_worlds<W>(
    options: &Options,
    mut found: Found,
    new: impl Fn(Rng) -> Result<W, Violation>,
    live: [fn(&mut W) -> Check; 2],
    result: fn(&mut W) -> (Tally, Vec<String>),
) -> Found {
    while found.operations < options.operations && found.violation.is_none() {
        let mut rng = Rng::new(found.seed, found.worlds as u64);
        let limit = rng.pick(&WORLDS).min(options.operations - found.operations);
        found.live_for(limit, new(rng), live, result);
    }
    found
}

/// Runs worlds of processes that call each other.
fn run_peers(options: &Options, seed: u64, traced: bool) -> Found {
    let new = |rng| Ok(PeersWorld::new(rng, Trace::new(traced)));
    let live = [PeersWorld::step, PeersWorld::finish];
    run_worlds(options, Found::new(Subject::Peers, seed), new, live, PeersWorld::result)
}

/// Runs worlds of processes that disconnect while messages lie in cells.
fn run_cells(options: &Options, seed: u64, traced: bool) -> Found {
    let mut found = Found::new(Subject::Cells, seed);
    while found.operations < options.operations && found.violation.is_none() {
        let mut rng = Rng::new(seed, found.worlds as u64);
        found.worlds += 1;
        let limit = rng.pick(&WORLDS).min(options.operations - found.operations);
        let memory = CellsMemory::new(&mut rng, MOST_PROCESSES, MOST_CONNECTIONS);
        let mut done = 0;
        let live = |world: &mut CellsWorld<'_>| {
            while done < limit && world.step()? {
                done += 1;
            }
            world.finish()
        };
        found.live(Ok(CellsWorld::new(rng, &memory, Trace::new(traced))), live, CellsWorld::result);
        found.operations += done.max(1);
    }
    found
}

/// Runs worlds of processes that prove that they know the key.
fn run_keys(options: &Options, seed: u64, traced: bool) -> Found {
    let new = |rng| KeysWorld::new(rng, Trace::new(traced));
    let live = [KeysWorld::step, KeysWorld::finish];
    run_worlds(options, Found::new(Subject::Keys, seed), new, live, KeysWorld::result)
}

/// Runs worlds of two processes with virtual interfaces.
fn run_vipl(options: &Options, seed: u64, traced: bool) -> Found {
    let new = |rng| ViplWorld::new(rng, Trace::new(traced));
    let live = [ViplWorld::step, ViplWorld::finish];
    run_worlds(options, Found::new(Subject::Vipl, seed), new, live, ViplWorld::result)
}

/// Runs worlds of ports that join queue pairs by datagrams.
fn run_joins(options: &Options, seed: u64, traced: bool) -> Found {
    let new = |rng| JoinsWorld::new(rng, Trace::new(traced));
    let live = [JoinsWorld::step, JoinsWorld::finish];
    run_worlds(options, Found::new(Subject::Joins, seed), new, live, JoinsWorld::result)
}

/// Runs worlds of processes whose links are driven by the machine of links, with a share of the requested operations.
fn run_links(options: &Options, seed: u64, traced: bool) -> Found {
    let new = |rng| LinksWorld::new(rng, Trace::new(traced));
    let live = [LinksWorld::step, LinksWorld::finish];
    run_share(options, (LINKS, LINK_WORLDS), Found::new(Subject::Links, seed), new, live, LinksWorld::result)
}

/// As [`run_worlds`], with one `share`-th of the requested operations, in worlds of one of these lengths.
fn run_share<W>(
    options: &Options,
    (share, lengths): (usize, [usize; 3]),
    mut found: Found,
    new: impl Fn(Rng) -> Result<W, Violation>,
    live: [fn(&mut W) -> Check; 2],
    result: fn(&mut W) -> (Tally, Vec<String>),
) -> Found {
    while found.operations < options.operations.div_ceil(share) && found.violation.is_none() {
        let mut rng = Rng::new(found.seed, found.worlds as u64);
        let limit = rng.pick(&lengths);
        found.live_for(limit, new(rng), live, result);
    }
    found
}

/// Runs one world of channels.
fn live_channels<F: ChannelFabric>(found: &mut Found, limit: usize, traced: bool) {
    let world = ChannelWorld::<F>::new(found.seed, found.worlds as u64, Trace::new(traced));
    let result = |world: &mut ChannelWorld<F>| (std::mem::take(&mut world.tally), world.trace.take());
    found.live_for(limit, world, [ChannelWorld::step, ChannelWorld::finish], result);
}

/// Runs worlds of engines over the simulated message port.
fn run_engines(options: &Options, seed: u64, bug: Option<Bug>, traced: bool) -> Found {
    let mut found = Found::new(Subject::Engines, seed);
    while found.operations < options.operations && found.violation.is_none() {
        let mut rng = Rng::new(seed, found.worlds as u64);
        let limit = rng.pick(&WORLDS).min(options.operations - found.operations);
        let shape = Shape::new(&mut rng, options.ranks);
        live_engines::<SimPort>(&mut found, (rng, shape), (), limit, (bug, traced));
    }
    found
}

/// Runs worlds of engines over the port for shared memory.
fn run_shared(options: &Options, seed: u64, bug: Option<Bug>, traced: bool) -> Found {
    let mut found = Found::new(Subject::Shared, seed);
    while found.operations < options.operations && found.violation.is_none() {
        let mut rng = Rng::new(seed, found.worlds as u64);
        let limit = rng.pick(&SHARED_WORLDS).min(options.operations - found.operations);
        let shape = Shape::shared(&mut rng, options.ranks);
        let medium = SharedMedium::new(&mut rng, &shape);
        live_engines::<SharedPort<'_>>(&mut found, (rng, shape), &medium, limit, (bug, traced));
    }
    found
}

/// Runs one world of engines. In some, all completions are taken from the completion queue.
fn live_engines<P: WorldPort>(
    found: &mut Found,
    (mut rng, shape): (Rng, Shape),
    medium: P::Medium,
    limit: usize,
    (bug, traced): (Option<Bug>, bool),
) {
    let trace = Trace::new(traced);
    if shape.conditions.ranks > 1 && rng.one_in(COLLECT) {
        let world = CollectWorld::<P>::new(rng, shape, medium, bug, trace);
        let live = [CollectWorld::step, CollectWorld::finish];
        return found.live_for(limit.min(COLLECT_LIMIT), world, live, |world| world.world.result());
    }
    found.worlds += 1;
    let mut done = 0;
    let simulation = Simulation::<P>::new(rng, shape, medium, bug, trace);
    found.live(simulation, |simulation| live(simulation, limit, &mut done), |it| it.world.result());
    found.operations += done.max(1);
}

/// Runs one world from start to end.
fn live<P: WorldPort>(simulation: &mut Simulation<P>, operations: usize, done: &mut usize) -> Check {
    let rest = simulation.shape.rest;
    while *done < operations && !simulation.is_desolate() {
        *done += usize::from(simulation.step()?);
        if simulation.rng.one_in(rest) {
            simulation.come_to_rest()?;
        }
    }
    simulation.finish()
}

/// Runs what the options ask for. The exit code tells whether every result is as required.
pub(crate) fn simulate(options: &Options) -> ExitCode {
    std::panic::set_hook(Box::new(|panic| PANIC.set(panic.to_string())));
    if options.bugs { find_all(options) } else { explore(options) }
}

fn explore(options: &Options) -> ExitCode {
    let start = Instant::now();
    Bug::arm(options.bug);
    let subjects = options.subjects();
    if subjects.contains(&Subject::Channels) && !prove() {
        return ExitCode::FAILURE;
    }
    let next = AtomicU64::new(0);
    let all = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let (at, which) = (at / subjects.len() as u64, at as usize % subjects.len());
                    if at >= options.seeds {
                        return;
                    }
                    let seed = options.seed.wrapping_add(at);
                    let found = run(options, subjects[which], seed, options.bug, options.verbose);
                    let failed = found.violation.is_some();
                    all.lock().unwrap_or_else(PoisonError::into_inner).push(found);
                    if failed {
                        next.store(options.seeds * subjects.len() as u64, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.sort_by_key(|found| (found.seed, found.subject));
    if options.verbose {
        let _ = print(
            &all.iter()
                .flat_map(|found| &found.events)
                .fold(String::new(), |text, event| text + event + "\n"),
        );
    }
    let operations: usize = all.iter().map(|found| found.operations).sum();
    let worlds: usize = all.iter().map(|found| found.worlds).sum();
    let seconds = start.elapsed().as_secs_f64();
    let mut tally = Tally::default();
    all.iter().for_each(|found| tally.add(&found.tally));
    let seeds = all.len() / subjects.len();
    let mut text = format!("{seeds} seeds, {worlds} worlds, {operations} operations; {seconds:.1} s\n");
    text += &tally.table();
    let failures: Vec<_> = all.iter().filter(|found| found.violation.is_some()).collect();
    if failures.is_empty() {
        text.push_str("every oracle agrees, and nothing is left behind\n");
    }
    let shown = print(&text);
    for found in &failures {
        report(options, found);
    }
    let missing = if options.is_whole { tally.missing() } else { Vec::new() };
    if failures.is_empty() && !missing.is_empty() {
        complain(&format!("NEVER HAPPENED, so nothing is known of it: {}", missing.join(", ")));
    }
    if failures.is_empty() && missing.is_empty() { shown } else { ExitCode::FAILURE }
}

/// Explores the credits of two ends. Returns whether they always come to rest.
fn prove() -> bool {
    match channel::model::prove() {
        Ok(states) => {
            print(&format!("credits: {states} states, and no deadlock in any\n")) == ExitCode::SUCCESS
        }
        Err(violation) => {
            complain(&format!("FAILED: credits: {violation}\n"));
            false
        }
    }
}

/// Reports a failure: the last events, what is wrong, and the command that repeats it.
fn report(options: &Options, found: &Found) {
    let again = run(options, found.subject, found.seed, options.bug, true);
    let mut text = String::new();
    for event in again.events.iter().skip(again.events.len().saturating_sub(SHOWN)) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{event}");
    }
    let what = found.violation.as_ref().map(ToString::to_string).unwrap_or_default();
    let _ = writeln!(
        text,
        "FAILED: seed {}, world {}, operation {}: {what}",
        found.seed, found.worlds, found.operations
    );
    text.push_str(&replay(options, found));
    complain(&text);
}

/// Returns the command that repeats a failure.
fn replay(options: &Options, found: &Found) -> String {
    let mut line = format!("cargo sim -- --seed {} --operations {}", found.seed, options.operations);
    if let Some(ranks) = options.ranks {
        line += &format!(" --ranks {ranks}");
    }
    match found.subject {
        Subject::Engines => {}
        Subject::Channels => line += " --channels",
        Subject::Direct => line += " --direct",
        Subject::Peers => line += " --peers",
        Subject::Cells => line += " --cells",
        Subject::Keys => line += " --keys",
        Subject::Vipl => line += " --vipl",
        Subject::Joins => line += " --joins",
        Subject::Links => line += " --links",
        Subject::Shared => line += " --shared",
    }
    if let Some(bug) = options.bug {
        line += &format!(" --bug {bug}");
    }
    line
}

/// Runs seeds with each injected fault until one seed finds the fault.
fn find_all(options: &Options) -> ExitCode {
    let mut good = true;
    let mut text = String::new();
    for bug in Bug::all() {
        Bug::arm(Some(bug));
        if bug.is_of_credits() {
            let found = channel::model::prove().err();
            good &= found.is_some();
            let what = found.map_or_else(|| "NOT FOUND".into(), |violation| violation.to_string());
            let _ = writeln!(text, "{:<24} | credits: {what}", bug.to_string());
        }
        let seeds = (0..options.seeds)
            .map(|at| run(options, bug.subject(), options.seed.wrapping_add(at), Some(bug), false));
        let found = seeds.into_iter().find(|found| found.violation.is_some());
        let _ = match found {
            Some(Found { seed, operations, violation: Some(violation), .. }) => {
                let what = violation.to_string();
                let what = what.lines().next().unwrap_or_default();
                writeln!(text, "{:<24} | seed {seed}, operation {operations}: {what}", bug.to_string())
            }
            _ => {
                good = false;
                writeln!(text, "{:<24} | NOT FOUND by {} seeds", bug.to_string(), options.seeds)
            }
        };
    }
    let shown = print(&text);
    if good { shown } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    use std::process::Command;

    use super::*;
    use crate::arguments::{Command as SimCommand, parse};

    fn options(line: &str) -> Options {
        match parse(line.split_whitespace().map(str::to_owned)) {
            Ok(SimCommand::Simulate(options)) => options,
            other => unreachable!("{other:?}"),
        }
    }

    /// If this variable is set, the program is the other process of the test below.
    const OTHER: &str = "NEMESIA_SIM_OTHER_PROCESS";

    /// Returns the events and the counts of a few seeds, for each kind of world.
    fn histories() -> Vec<(String, Vec<String>)> {
        let options = options("--operations 1500");
        let runs = [0, 9]
            .into_iter()
            .flat_map(|seed| options.subjects().iter().map(move |&subject| (subject, seed)));
        let history = |(subject, seed)| {
            let found = run(&options, subject, seed, None, true);
            assert_eq!(found.violation, None, "{subject:?}, seed {seed}");
            let tally = found.tally.table();
            (format!("{subject:?}, seed {seed}"), found.events.into_iter().chain([tally]).collect())
        };
        runs.map(history).collect()
    }

    /// Returns a line that differs if an event does.
    fn digest((name, history): &(String, Vec<String>)) -> String {
        let mut hasher = DefaultHasher::new();
        history.hash(&mut hasher);
        format!("history of {name}: {:016x}", hasher.finish())
    }

    #[test]
    fn a_seed_replays_itself_event_by_event_in_this_process_and_in_another() {
        let one = histories();
        assert!(one.iter().map(|(_, history)| history.len()).sum::<usize>() > 10_000);
        if std::env::var_os(OTHER).is_some() {
            let _ = print(&one.iter().map(|history| digest(history) + "\n").collect::<String>());
            return;
        }
        // The memory of the second run lies elsewhere, and that of the other process begins with pages.
        let taken: Vec<Vec<u8>> = (0..2000).map(|at| vec![0; at * 37 % 1500]).collect();
        let heap: Vec<_> = taken.into_iter().enumerate().filter(|(at, _)| at % 3 == 0).collect();
        for ((name, one), (_, two)) in one.iter().zip(histories()) {
            let differs = one.iter().zip(&two).find(|(one, two)| one != two);
            assert!(*one == two, "{name}: {differs:?}");
        }
        drop(heap);
        let name = "runner::tests::a_seed_replays_itself_event_by_event_in_this_process_and_in_another";
        let other = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", name])
            .envs([(OTHER, "1"), ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1")])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&other.stdout);
        assert!(other.status.success(), "{text}{}", String::from_utf8_lossy(&other.stderr));
        for line in one.iter().map(digest) {
            assert!(text.contains(&line), "the other process has not the {line}:\n{text}");
        }
    }

    #[test]
    fn the_command_that_is_printed_shows_the_same_failure() {
        let options = options("--operations 5000 --bug corrupt");
        let found = (0..40)
            .map(|seed| run_engines(&options, seed, options.bug, false))
            .find(|it| it.violation.is_some());
        let found = found.unwrap();
        let line = replay(&options, &found);
        let (_, line) = line.split_once("-- ").unwrap();
        let again = self::options(line);
        let again = run_engines(&again, again.seed, again.bug, true);
        assert_eq!((again.operations, again.violation), (found.operations, found.violation));
    }
}
