//! Runs every model and every mutant in child processes, and judges the results.

use std::collections::VecDeque;
use std::io::Read;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::arguments::Options;
use crate::child::{EXECUTIONS, Task, UNDECIDED, VIOLATED};
use crate::complain;
use crate::models::{self, Model};
use crate::mutant::Mutant;
use crate::stage::Extent;
use crate::table;

/// The time limit of a child. A child that takes longer is undecided. `tests/run` lets the models run at low priority
/// beside other steps, where one took longer than 180 s.
const LIMIT: Duration = Duration::from_secs(1800);
/// The time limit of a child in a long run.
const LONG_LIMIT: Duration = Duration::from_secs(6 * 3600);
/// The interval at which a child is polled.
const TICK: Duration = Duration::from_millis(5);

/// The result of a child.
enum Verdict {
    /// The model holds; the number of executions.
    Holds(u64),
    /// An assertion of the model, or loom, reports a violation.
    Violated(String),
    /// A limit, a signal or a failure of loom: the result is unknown.
    Undecided(String),
}

struct Outcome {
    task: Task,
    verdict: Verdict,
}

/// Runs what the options ask for and prints the table. The exit code tells whether every result is as required.
pub(crate) fn prove(options: &Options) -> ExitCode {
    let start = Instant::now();
    let tasks = tasks(options);
    if tasks.is_empty() {
        complain("proofs: no such model claims such a mutant; see `cargo proofs --list`");
        return ExitCode::FAILURE;
    }
    let outcomes = run(tasks, options.jobs);
    let _ = table::print(&report(&outcomes));
    let mut good = true;
    for outcome in &outcomes {
        if let Some(problem) = problem(outcome) {
            complain(&problem);
            good = false;
        }
    }
    if options.models.is_empty() && options.mutants.is_empty() {
        for mutant in table::unclaimed() {
            complain(&format!("UNCLAIMED: no model kills {mutant}"));
            good = false;
        }
    }
    let _ = table::print(&summary(&outcomes, start.elapsed()));
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns each chosen model unchanged, then with each chosen mutant that it must kill; in a short run only with those
/// that no earlier model must kill.
fn tasks(options: &Options) -> VecDeque<Task> {
    let mut tasks = VecDeque::new();
    let mut seen = Vec::new();
    let chosen =
        |model: &&Model| options.models.is_empty() || options.models.iter().any(|m| m.name == model.name);
    for model in models::ALL.iter().filter(chosen) {
        // Some mutants need all preemptions.
        let extent = |mutant: Option<_>| match options.extent {
            Extent::Short if mutant.is_some() => Extent::Usual,
            extent => extent,
        };
        let task = |mutant| Task { model, mutant, extent: extent(mutant) };
        if options.mutants.is_empty() {
            tasks.push_back(task(None));
            let mutants: Vec<_> = model
                .mutants()
                .filter(|mutant| options.extent != Extent::Short || !seen.contains(mutant))
                .collect();
            tasks.extend(mutants.iter().map(|mutant| task(Some(*mutant))));
            seen.extend(mutants);
        } else {
            let asked = options.mutants.iter().copied();
            let claims =
                |mutant: &Mutant| !options.models.is_empty() || model.mutants().any(|m| m == *mutant);
            tasks.extend(asked.filter(claims).map(|mutant| task(Some(mutant))));
        }
    }
    tasks
}

/// Runs the tasks, `jobs` at a time. The outcomes are in the order of the tasks.
fn run(tasks: VecDeque<Task>, jobs: usize) -> Vec<Outcome> {
    let queue = Mutex::new(tasks.into_iter().enumerate().collect::<VecDeque<_>>());
    let outcomes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some((index, task)) = next else { return };
                    let outcome = Outcome { task, verdict: judge(&task) };
                    outcomes.lock().unwrap_or_else(PoisonError::into_inner).push((index, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

fn judge(task: &Task) -> Verdict {
    let limit = if task.extent == Extent::Long { LONG_LIMIT } else { LIMIT };
    let child = match spawn(task) {
        Ok(child) => child,
        Err(error) => return Verdict::Undecided(format!("cannot start: {error}")),
    };
    match wait(child, limit) {
        Ok(Some(verdict)) => verdict,
        Ok(None) => Verdict::Undecided(format!("took longer than {} s", limit.as_secs())),
        Err(error) => Verdict::Undecided(format!("cannot wait: {error}")),
    }
}

fn spawn(task: &Task) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--child", "--model", task.model.name]);
    if let Some(mutant) = task.mutant {
        command.args(["--mutant", &mutant.to_string()]);
    }
    match task.extent {
        Extent::Short => _ = command.arg("--short"),
        Extent::Usual => {}
        Extent::Long => _ = command.arg("--long"),
    }
    // Loom reads limits from its environment; a stray limit would make the proof worthless.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LOOM_")) {
        command.env_remove(name);
    }
    command.env_remove("RUST_BACKTRACE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// Waits for a child. Returns its verdict, or `None` if it takes too long. A child's output fits into a pipe.
fn wait(mut child: Child, limit: Duration) -> std::io::Result<Option<Verdict>> {
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(TICK);
    };
    let (mut reported, mut complaint) = (String::new(), String::new());
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_string(&mut reported)?;
    }
    if let Some(mut pipe) = child.stderr.take() {
        pipe.read_to_string(&mut complaint)?;
    }
    let complaint = complaint.trim().to_owned();
    let executions = reported.lines().find_map(|line| line.strip_prefix(EXECUTIONS)?.parse().ok());
    Ok(Some(match (status.code(), executions) {
        (Some(0), Some(executions)) => Verdict::Holds(executions),
        (Some(VIOLATED), _) => Verdict::Violated(complaint),
        (Some(UNDECIDED), _) => Verdict::Undecided(complaint),
        _ => Verdict::Undecided(format!("{status}: {complaint}")),
    }))
}

/// Returns what is wrong with an outcome, if anything.
fn problem(outcome: &Outcome) -> Option<String> {
    let name = outcome.task.model.name;
    let what = match outcome.task.mutant {
        None => name.to_owned(),
        Some(mutant) => format!("{name} with {mutant}"),
    };
    match (&outcome.verdict, outcome.task.mutant) {
        (Verdict::Holds(_), None) | (Verdict::Violated(_), Some(_)) => None,
        (Verdict::Holds(count), Some(_)) => Some(format!("SURVIVED: {what}, in {count} executions")),
        (Verdict::Violated(how), None) => Some(format!("FAILED: {what}: {how}")),
        (Verdict::Undecided(why), _) => Some(format!("UNDECIDED: {what}: {why}")),
    }
}

/// Returns one row for each model. The outcomes of a model are adjacent.
fn report(outcomes: &[Outcome]) -> String {
    let head = ["model", "structure", "property", "executions", "mutants killed"];
    let mut rows = vec![head.map(str::to_owned)];
    for group in outcomes.chunk_by(|a, b| a.task.model.name == b.task.model.name) {
        let Some(Outcome { task: Task { model, .. }, .. }) = group.first() else { continue };
        let executions = match group.iter().find(|outcome| outcome.task.mutant.is_none()) {
            Some(Outcome { verdict: Verdict::Holds(count), .. }) => format!("{count:>10}"),
            Some(Outcome { verdict: Verdict::Violated(_), .. }) => "FAILED".to_owned(),
            Some(_) => "UNDECIDED".to_owned(),
            None => "-".to_owned(),
        };
        let (killed, mutants) = count(group);
        let killed = if mutants == 0 { "-".to_owned() } else { format!("{killed}/{mutants}") };
        rows.push([model.name.into(), model.structure.into(), model.property.into(), executions, killed]);
    }
    table::rows(&rows)
}

/// Returns the number of killed mutants, and of all mutants.
fn count(outcomes: &[Outcome]) -> (usize, usize) {
    let mutants = || outcomes.iter().filter(|outcome| outcome.task.mutant.is_some());
    (mutants().filter(|outcome| matches!(outcome.verdict, Verdict::Violated(_))).count(), mutants().count())
}

fn summary(outcomes: &[Outcome], took: Duration) -> String {
    let models = || outcomes.iter().filter(|outcome| outcome.task.mutant.is_none());
    let hold = models().filter(|outcome| matches!(outcome.verdict, Verdict::Holds(_))).count();
    let executions: u64 =
        models().map(|outcome| if let Verdict::Holds(count) = outcome.verdict { count } else { 0 }).sum();
    let (killed, mutants) = count(outcomes);
    let distinct = Mutant::all().filter(|mutant| {
        outcomes.iter().any(|o| o.task.mutant == Some(*mutant) && matches!(o.verdict, Verdict::Violated(_)))
    });
    format!(
        "\n{hold} of {} models hold, in {executions} executions; {killed} of {mutants} mutant runs killed, {} of \
         {} mutants; {} s\n",
        models().count(),
        distinct.count(),
        Mutant::all().count(),
        took.as_secs(),
    )
}
