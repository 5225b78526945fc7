//! `nemesia perf`: two processes of this program measure each other, beside the limits of the machine.

mod access;
mod bare;
mod channel;
mod command;
mod counters;
mod limits;
mod link;
mod list;
mod matching;
mod page;
mod plan;
mod plot;
mod port;
mod progress;
mod report;
mod stats;
mod timer;
mod traffic;
mod unexpected;
mod worker;

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use nemesia::bootstrap::{ExitKind, LaunchError, Launcher, Outcome, Running};
use nemesia::internals::os::{limits as room, numa};
use nemesia::verbs::{self, DevicePreference};
use nemesia::{Config, ConfigError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cli::{Memory, Operation, PerfArgs, Port, Test, WorkerArgs};
use crate::failure::Failure;
use crate::output::{self, Destination};
use crate::run;
use bare::BareCopy;
use page::Page;
use plan::Plan;
use report::Layout;
use traffic::Seen;
use worker::Measured;

const DEFAULT_PLOT: &str = "nemesia-perf.svg";
/// The buffers of the largest message in both processes: of the engine, and of a memory port, which also checks
/// patterns.
const BUFFERS: usize = 4;
const PORT_BUFFERS: usize = 10;

/// Measures and reports.
///
/// # Errors
/// What cannot be used, or what failed.
pub(crate) fn perf(args: &PerfArgs) -> Result<(), Failure> {
    if args.trace.is_some() && !cfg!(feature = "trace") {
        let problem =
            "--trace: this build has no call tree; build with `cargo build --release --features trace`";
        return Err(Failure::unusable(problem));
    }
    if let Some(design) = &args.channel {
        return channel::measure(args, design);
    }
    check_port(args)?;
    if args.matching {
        let json = Json::open(args.json.as_deref())?;
        let rows = matching::measure()?;
        return json.write(&matching::table(&rows), || matching::json(&rows));
    }
    if let Some(messages) = args.unexpected {
        return unexpected(args, messages);
    }
    let mut tests = args.tests.clone();
    tests.sort_unstable();
    tests.dedup();
    let largest = args.sizes.0.iter().copied().max().unwrap_or(0);
    let buffers = if args.port.is_memory_port() {
        PORT_BUFFERS
    } else if args.memory == Memory::Own && args.list.is_none() {
        BUFFERS
    } else {
        2 * BUFFERS
    };
    room::require_memory(buffers * largest).map_err(Failure::unusable)?;
    let files = Files::open(args, &tests)?;
    let pins = pins(args.no_pin)?;
    let (measured, seen) = measure(args, &tests, pins.is_some())?;
    report_warnings(&seen);
    let (port, rounds) = (args.port.name(), args.rounds);
    let layout =
        Layout { port, operation: args.operation, pins, rounds, tests: &tests, sizes: &args.sizes.0 };
    files.write(&layout, &measured, &seen)
}

/// Sends messages before any receive is posted.
fn unexpected(args: &PerfArgs, messages: u64) -> Result<(), Failure> {
    let json = Json::open(args.json.as_deref())?;
    let pin = pins(args.no_pin)?.is_some();
    let bytes = args.unexpected_size as usize;
    let plan = |reports| unexpected::UnexpectedPlan { messages, bytes, reports };
    let [shown, _] = launch::<_, Option<unexpected::Shown>>("unexpected-worker", pin, plan, wait)?;
    let shown = shown.ok_or_else(without_result)?;
    json.write(&unexpected::text(&shown), || unexpected::json(&shown))
}

fn wait(running: Running) -> Result<Outcome, LaunchError> {
    running.wait()
}

/// Takes part as one of the two processes. Every error is reported to the process that started this one.
pub(crate) fn work(args: &WorkerArgs) -> u8 {
    status(worker::work(&args.plan))
}

/// As [`work`], for `perf --unexpected`.
pub(crate) fn work_unexpected(args: &WorkerArgs) -> u8 {
    status(unexpected::work(&args.plan))
}

/// As [`work`], for `perf --channel`.
pub(crate) fn work_channel(args: &WorkerArgs) -> u8 {
    status(channel::work(&args.plan))
}

fn status<T>(worked: Result<worker::Report<T>, String>) -> u8 {
    match worked {
        Ok(Ok(_)) => 0,
        Ok(Err(_)) => 1,
        Err(astray) => {
            output::remark(&Failure::unusable(astray).message);
            2
        }
    }
}

/// Checks that the port can be used and that the options fit it.
fn check_port(args: &PerfArgs) -> Result<(), Failure> {
    let of_verbs = [
        ("--device", !args.device.is_empty()),
        ("--last-byte", args.last_byte),
        ("--inline", args.inline.is_some()),
    ];
    if let Some((option, _)) = of_verbs.iter().find(|(_, given)| *given && args.port != Port::Verbs) {
        return Err(Failure::unusable(format!("{option} is for --port verbs")));
    }
    if !args.second_through.is_empty() && !matches!(args.port, Port::Net | Port::Verbs) {
        return Err(Failure::unusable("--second-through is for --port net and verbs"));
    }
    if args.memory != Memory::Own && args.port != Port::Shm {
        return Err(Failure::unusable("--memory is for --port shm"));
    }
    if args.list.is_some() && args.port != Port::Shm {
        return Err(Failure::unusable("--list is for --port shm"));
    }
    if args.operation != Operation::Send && args.port.is_memory_port() {
        return Err(Failure::unusable("--operation is for --port shm and net"));
    }
    if args.port == Port::Shm {
        return if args.matching { Ok(()) } else { check_shm() };
    }
    if args.port == Port::Net {
        // Whether the transport can be used is known when the processes connect.
        let other = args.matching || args.unexpected.is_some();
        let why = "--matching and --unexpected are for --port shm";
        return if other { Err(Failure::unusable(why)) } else { Ok(()) };
    }
    let engine = [
        ("--matching", args.matching),
        ("--unexpected", args.unexpected.is_some()),
        ("--counters", args.counters),
        ("--trace", args.trace.is_some()),
    ];
    if let Some((option, _)) = engine.iter().find(|(_, given)| *given) {
        let port = args.port.name();
        return Err(Failure::unusable(format!(
            "{option} is of the engine, which --port {port} measures without"
        )));
    }
    if args.port == Port::Tcp {
        return Ok(());
    }
    let devices: Vec<Option<String>> = match &args.device[..] {
        [] => vec![None],
        [_, _, _, ..] => return Err(Failure::unusable("--device names at most two, one for each process")),
        // Devices in another namespace cannot be seen from here.
        names if !args.second_through.is_empty() => names.iter().take(1).cloned().map(Some).collect(),
        names => names.iter().cloned().map(Some).collect(),
    };
    for device in devices {
        let preference = DevicePreference { device, ..DevicePreference::default() };
        verbs::choose(&preference)
            .map_err(|why| Failure::unusable(format!("verbs can't be used here: {why}")))?;
    }
    Ok(())
}

/// Prints the warnings of the processes, each once.
fn report_warnings(seen: &[Seen]) {
    let mut reported: Vec<&String> = Vec::new();
    for warning in seen.iter().flat_map(|seen| &seen.warnings) {
        if !reported.contains(&warning) {
            output::remark(warning);
            reported.push(warning);
        }
    }
}

fn check_shm() -> Result<(), Failure> {
    let config = Config::from_env().map_err(Failure::unusable)?;
    if config.is_strict()
        && let Some(warning) = config.warnings().into_iter().next()
    {
        return Err(Failure::unusable(ConfigError::Strict(warning)));
    }
    match nemesia::explain(&config).into_iter().find(|verdict| verdict.name == "shm" && !verdict.usable) {
        Some(verdict) => Err(Failure::unusable(format!("shm can't be used here: {}", verdict.reason))),
        None => Ok(()),
    }
}

/// Returns the cores to which the two processes are bound; `None` if they are not bound.
fn pins(no_pin: bool) -> Result<Option<[usize; 2]>, Failure> {
    let cores = numa::allowed_cpus().map_err(Failure::failed)?;
    match cores[..] {
        [first, second, ..] => {
            let pins = (!no_pin).then_some([first, second]);
            if pins.is_some() && share_a_core(first, second) {
                output::remark(&format!(
                    "processors {first} and {second} are two threads of one core: latencies differ from those \
                     between cores; choose others with taskset -c"
                ));
            }
            Ok(pins)
        }
        _ => {
            let core = cores.first().map_or_else(String::new, |core| format!(" ({core})"));
            output::remark(&format!(
                "only one core{core} can be used here: the two processes are not pinned and take turns, so the \
                 hand-over is one of the scheduler"
            ));
            Ok(None)
        }
    }
}

fn share_a_core(one: usize, other: usize) -> bool {
    let path = format!("/sys/devices/system/cpu/cpu{one}/topology/thread_siblings_list");
    let siblings = std::fs::read_to_string(path).unwrap_or_default();
    siblings.trim().split(',').any(|part| {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        matches!((low.parse(), high.parse()), (Ok(low), Ok(high)) if (low..=high).contains(&other))
    })
}

/// The files for the results, opened before the measurement.
struct Files {
    plot: Option<Destination>,
    json: Json,
}

enum Json {
    None,
    Standard,
    File(Destination),
}

impl Json {
    fn open(path: Option<&Path>) -> Result<Self, Failure> {
        Ok(match path {
            None => Self::None,
            Some(path) if path == Path::new("-") => Self::Standard,
            Some(path) => Self::File(Destination::open(path)?),
        })
    }

    /// The file comes first: a reader of the table may close the pipe early.
    fn write(self, table: &str, json: impl FnOnce() -> Result<String, Failure>) -> Result<(), Failure> {
        match self {
            Self::None => output::print(table),
            Self::File(destination) => {
                destination.write(&json()?)?;
                output::print(table)
            }
            Self::Standard => {
                output::print_aside(table);
                output::print(&json()?)
            }
        }
    }
}

impl Files {
    fn open(args: &PerfArgs, tests: &[Test]) -> Result<Self, Failure> {
        if args.plot.is_some() && args.plot == args.json {
            return Err(Failure::unusable("--plot and --json name the same file"));
        }
        let json = Json::open(args.json.as_deref())?;
        Ok(Self { plot: open_plot(args, tests)?, json })
    }

    /// The files come first: a reader of the table may close the pipe early.
    fn write(self, layout: &Layout<'_>, measured: &Measured, seen: &[Seen]) -> Result<(), Failure> {
        let mut table = report::table(layout, measured) + &counters::table(seen);
        if let Some(destination) = self.plot {
            table = format!("{table}\npicture: {}\n", destination.path().display());
            let picture = plot::svg(layout, measured)
                .map_err(|error| Failure::failed(format!("cannot draw the picture: {error}")))?;
            destination.write(&picture)?;
        }
        self.json.write(&table, || report::json(layout, measured, seen))
    }
}

/// Opens the file of the picture. If no option asked for a picture and the file cannot be written, there is no
/// picture.
fn open_plot(args: &PerfArgs, tests: &[Test]) -> Result<Option<Destination>, Failure> {
    let drawn = tests.iter().any(|test| *test != Test::Rate);
    match &args.plot {
        _ if args.no_plot => Ok(None),
        Some(_) if !drawn => {
            Err(Failure::unusable("--plot shows latency and bandwidth, and --tests has neither"))
        }
        Some(path) => Destination::open(path).map(Some),
        None if !drawn => Ok(None),
        None => Ok(Destination::open(&PathBuf::from(DEFAULT_PLOT))
            .map_err(|failure| output::remark(&format!("no picture: {}", failure.message)))
            .ok()),
    }
}

/// Starts the two processes, and waits for their results.
fn measure(args: &PerfArgs, tests: &[Test], pin: bool) -> Result<(Measured, Vec<Seen>), Failure> {
    let failed = |error| Failure::failed(format!("cannot make memory to share: {error}"));
    let shared = page::inherited_memory(Page::LEN).map_err(failed)?;
    let most = args.sizes.0.iter().copied().max().unwrap_or(0);
    let copies = match args.memory {
        Memory::Own => None,
        _ => Some(page::inherited_memory(BareCopy::bytes(most)).map_err(failed)?),
    };
    let page = Page::map(&shared).map_err(failed)?;
    let plan = |reports| Plan {
        port: args.port,
        devices: args.device.clone(),
        sizes: args.sizes.0.clone(),
        tests: tests.to_vec(),
        iterations: args.iterations,
        rounds: args.rounds as usize,
        last_byte: args.last_byte,
        inline: args.inline,
        through: args.second_through.clone(),
        counters: args.counters,
        trace: args.trace,
        memory: args.memory,
        list: args.list,
        operation: args.operation,
        page: shared.as_raw_fd(),
        copies: copies.as_ref().map(AsRawFd::as_raw_fd),
        reports,
    };
    let steps = plan([-1; 2]).steps();
    match launch("perf-worker", pin, plan, |running| progress::show(&page, steps, || running.wait()))? {
        [(Some(measured), first), (_, second)] => Ok((measured, vec![first, second])),
        _ => Err(without_result()),
    }
}

/// Starts this program twice, with a plan that contains the descriptors for reports. Returns the report of each
/// rank.
fn launch<P: Serialize, T: DeserializeOwned>(
    worker: &str,
    pin: bool,
    plan: impl FnOnce([RawFd; 2]) -> P,
    wait: impl FnOnce(Running) -> Result<Outcome, LaunchError>,
) -> Result<[T; 2], Failure> {
    let failed = |error| Failure::failed(format!("cannot make memory to share: {error}"));
    let reports = [page::inherited_memory(0).map_err(failed)?, page::inherited_memory(0).map_err(failed)?];
    let plan = plan(reports.each_ref().map(AsRawFd::as_raw_fd));
    let text = serde_json::to_string(&plan).map_err(Failure::failed)?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("cannot find this program: {error}")))?;
    let words: Vec<OsString> = vec![worker.into(), text.into()];
    let running = Launcher::new(2, program.into(), words)
        .bind(pin)
        .spawn()
        .map_err(|error| run::launch_failure(&error))?;
    let pids = running.pids().to_vec();
    verdict(&wait(running).map_err(|error| run::launch_failure(&error))?, &pids, reports)
}

/// Returns the reports, or the likeliest reason for their absence.
fn verdict<T: DeserializeOwned>(
    outcome: &Outcome,
    pids: &[u32],
    reports: [OwnedFd; 2],
) -> Result<[T; 2], Failure> {
    let said = reports.map(|report| -> Option<worker::Report<T>> {
        serde_json::from_str(&page::contents(report).ok()?).ok()
    });
    let violent = outcome
        .ranks
        .iter()
        .position(|exit| matches!(exit.kind, ExitKind::Signaled(_)) && !exit.ended_by_launcher);
    let first = outcome.first_failure.map(|(rank, _)| rank);
    if let Some(rank) = violent.or(first) {
        let name = run::name(rank, pids);
        let reason = match (said.get(rank), outcome.ranks.get(rank)) {
            (Some(Some(Err(problem))), _) => format!("{name}: {problem}"),
            (_, Some(exit)) => format!("{name} {}", exit.kind),
            (_, None) => format!("{name} failed"),
        };
        return Err(Failure::failed(format!("the measurement is incomplete: {reason}")));
    }
    match said {
        [Some(Ok(first)), Some(Ok(second))] => Ok([first, second]),
        _ => Err(without_result()),
    }
}

fn without_result() -> Failure {
    Failure::failed("the measurement is incomplete: the two processes ended without a result")
}

#[cfg(test)]
#[cfg(not(feature = "trace"))]
mod tests {
    use super::*;
    use crate::cli::{Command, parse};

    #[test]
    fn a_call_tree_that_this_build_can_not_make_is_an_error_with_the_remedy() {
        let Ok(Some(Command::Perf(args))) = parse(["nemesia", "perf", "--trace"].map(Into::into).into())
        else {
            panic!("not perf")
        };
        assert_eq!(args.trace, Some(256));
        let failure = perf(&args).unwrap_err();
        assert!(failure.status == 2 && failure.message.contains("--features trace"), "{}", failure.message);
    }
}
