//! The two processes of `perf`: rank 0 measures, rank 1 takes part.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::Ordering;

use nemesia::bootstrap::Bootstrap;
use nemesia::{Config, Endpoint};
use serde::{Deserialize, Serialize};

use super::access::AccessLink;
use super::bare::BareCopy;
use super::command::LinkCommand;
use super::limits;
use super::link::{Link, WINDOW};
use super::page::{self, Page};
use super::plan::Plan;
use super::port;
use super::stats::{median, percentile};
use super::timer::Timer;
use super::traffic::{Seen, Traffic};
use crate::cli::{Memory, Operation, Port};

/// The approximate time of one round of one size.
const ROUND_NS: f64 = 15e6;
/// The fewest round trips of a round, so that its 99th percentile is meaningful.
const FEWEST_TRIPS: f64 = 100.0;
/// The time limit of a round, which overrides the fewest round trips.
const LONGEST_ROUND_NS: f64 = 150e6;
/// The most round trips of a round.
const MOST_TRIPS: f64 = 20_000.0;
/// The most windows of a round.
const MOST_WINDOWS: f64 = 4_000.0;
/// The smallest copy, in bytes. Smaller copies are too short to measure, and limit nothing.
const SMALLEST_COPY: usize = 1024;

/// The measurements that rank 0 reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) timer: String,
    /// A description of the measurement, if the port's name does not say it.
    pub(crate) about: Option<String>,
    pub(crate) hand_over_ns: f64,
    /// The number of measurements behind that median.
    pub(crate) hand_overs: usize,
    /// MB/s by size.
    pub(crate) memcpy: BTreeMap<usize, f64>,
    /// By size: median and 99th percentile of the one-way latency, in nanoseconds.
    pub(crate) latency: BTreeMap<usize, (f64, f64)>,
    /// By size: the hand-over measured just before and after its latency, in nanoseconds, and the median over the
    /// rounds of latency divided by hand-over.
    pub(crate) beside: BTreeMap<usize, (f64, f64)>,
    /// Messages a second by size.
    pub(crate) rate: BTreeMap<usize, f64>,
    /// By size, for allocated memory: one way in nanoseconds and messages a second without the library, and the median
    /// over the rounds of the library's speed divided by them.
    #[serde(default)]
    pub(crate) bare_latency: BTreeMap<usize, (f64, f64)>,
    #[serde(default)]
    pub(crate) bare_rate: BTreeMap<usize, (f64, f64)>,
    /// By size, for lists: the median latency of one way in nanoseconds, and the median over the rounds of that latency
    /// divided by the latency of contiguous messages.
    #[serde(default)]
    pub(crate) list_latency: BTreeMap<usize, (f64, f64)>,
}

/// The report of a process to `perf`, or its error. In a measurement: rank 0's measurements, and the findings
/// of both.
pub(crate) type Report<T> = Result<T, String>;

/// Takes part as the rank that the launcher assigned, and reports.
///
/// # Errors
/// This process was not started by `perf`.
pub(crate) fn work(plan: &str) -> Result<Report<(Option<Measured>, Seen)>, String> {
    let mut plan: Plan = serde_json::from_str(plan).map_err(|error| astray(&error.to_string()))?;
    let through = std::mem::take(&mut plan.through);
    if !through.is_empty() && rank() == Some(1) {
        return Err(elsewhere(&through, &plan));
    }
    let shared = page::inherit(plan.page).map_err(|error| astray(&error.to_string()))?;
    report(plan.reports, || take_part(&plan, &shared))
}

pub(crate) fn astray(problem: &str) -> String {
    format!("this is started by `nemesia perf` only: {problem}")
}

/// Takes part as the rank that the launcher assigned, and reports in the descriptor of that rank.
///
/// # Errors
/// This process was not started by `perf`.
pub(crate) fn report<T: Serialize>(
    reports: [RawFd; 2],
    take_part: impl FnOnce() -> Report<T>,
) -> Result<Report<T>, String> {
    let report = rank().and_then(|rank| reports.get(rank)).ok_or_else(|| astray("there is no rank"))?;
    let mut file = File::from(page::inherit(*report).map_err(|error| astray(&error.to_string()))?);
    let outcome = take_part();
    let text = serde_json::to_string(&outcome).map_err(|error| error.to_string())?;
    file.write_all(text.as_bytes()).map_err(|error| error.to_string())?;
    Ok(outcome)
}

fn rank() -> Option<usize> {
    std::env::var("PMI_RANK").ok()?.parse().ok()
}

/// Executes the same process elsewhere, by way of other programs. Returns only if that fails, with the reason.
fn elsewhere(through: &[String], plan: &Plan) -> String {
    let (Ok(program), Ok(plan), [first, rest @ ..]) =
        (std::env::current_exe(), serde_json::to_string(plan), through)
    else {
        return astray("this program can't be found");
    };
    let error = Command::new(first).args(rest).arg(program).args(["perf-worker", &plan]).exec();
    format!("the second process can't be started through {first}: {error}")
}

fn take_part(plan: &Plan, shared: &OwnedFd) -> Report<(Option<Measured>, Seen)> {
    let page = Page::map(shared).map_err(|error| format!("the shared page can't be mapped: {error}"))?;
    let most = plan.sizes.iter().copied().max().unwrap_or(0);
    let bootstrap = || Bootstrap::from_env().map_err(|error| error.to_string());
    match plan.port {
        Port::Shm | Port::Net => {
            let link = Link::new(endpoint(plan)?, most, plan.memory, plan.list)?;
            match plan.operation {
                Operation::Send => meet(plan, link, page),
                operation => meet(plan, AccessLink::new(link, most, operation == Operation::Get)?, page),
            }
        }
        Port::Tcp => meet(plan, port::over_tcp(bootstrap()?, most)?, page),
        Port::Verbs => meet(plan, port::over_verbs(bootstrap()?, most, plan)?, page),
    }
}

fn endpoint(plan: &Plan) -> Result<Endpoint, String> {
    let mut config = Config::from_env().map_err(|error| error.to_string())?;
    if plan.port == Port::Net {
        config = config.local(false);
    }
    if let Some(records) = plan.trace {
        config.set("NEMESIA_TRACE", &records.to_string()).map_err(|error| error.to_string())?;
    }
    Endpoint::open(&config).map_err(|error| error.to_string())
}

fn meet(plan: &Plan, link: impl Traffic, page: Page) -> Report<(Option<Measured>, Seen)> {
    let bare = bare(plan)?;
    if link.rank() == 0 {
        Driver::new(plan, link, page, bare).measure().map(|(measured, seen)| (Some(measured), seen))
    } else {
        serve(plan, link, &page, bare).map(|seen| (None, seen))
    }
}

/// Maps the memory for copies without the library, if there is one.
fn bare(plan: &Plan) -> Result<Option<BareCopy>, String> {
    let Some(copies) = plan.copies else { return Ok(None) };
    let most = plan.sizes.iter().copied().max().unwrap_or(0);
    let fd = page::inherit(copies).map_err(|error| astray(&error.to_string()))?;
    let mapped = BareCopy::map(&fd, most, plan.memory == Memory::Lent);
    mapped.map(Some).map_err(|error| format!("the memory of bare copies can't be mapped: {error}"))
}

fn serve(
    plan: &Plan,
    mut link: impl Traffic,
    page: &Page,
    mut bare: Option<BareCopy>,
) -> Result<Seen, String> {
    loop {
        match link.await_command()? {
            LinkCommand::HandOver => limits::hand_back(page.line(), || link.progress()),
            LinkCommand::Check { bytes } => link.check(bytes)?,
            LinkCommand::Trips { bytes, count } => link.pong(bytes, count)?,
            LinkCommand::Windows { bytes, count } => link.recv_windows(bytes, count)?,
            LinkCommand::BareTrips { bytes, count } => {
                bare.as_mut().ok_or_else(no_copies)?.pong(bytes, count, || link.progress());
            }
            LinkCommand::BareWindows { bytes, count } => {
                bare.as_mut().ok_or_else(no_copies)?.recv_windows(bytes, count, || link.progress());
            }
            LinkCommand::ListCheck { bytes } => link.check_lists(bytes)?,
            LinkCommand::ListTrips { bytes, count } => link.pong_lists(bytes, count)?,
            LinkCommand::Finish => {
                let seen = link.seen(plan.counters);
                return link.close().map(|()| seen);
            }
        }
    }
}

fn no_copies() -> String {
    "there is no memory for copies without the library".to_owned()
}

/// Rank 0.
struct Driver<'a, T> {
    plan: &'a Plan,
    link: T,
    page: Page,
    bare: Option<BareCopy>,
    timer: Timer,
    /// Time stamps of one round; allocated once.
    samples: Vec<u64>,
    hand_overs: Vec<f64>,
}

/// The values of all rounds, by size.
type Rounds<T> = BTreeMap<usize, Vec<T>>;

impl<'a, T: Traffic> Driver<'a, T> {
    fn new(plan: &'a Plan, link: T, page: Page, bare: Option<BareCopy>) -> Self {
        Self { plan, link, page, bare, timer: Timer::new(), samples: Vec::new(), hand_overs: Vec::new() }
    }

    fn measure(mut self) -> Result<(Measured, Seen), String> {
        let plan = self.plan;
        self.check_all()?;
        let (mut latency, mut rate, mut memcpy) = (Rounds::new(), Rounds::new(), Rounds::new());
        let (mut beside, mut bare_latency, mut bare_rate) = (Rounds::new(), Rounds::new(), Rounds::new());
        let mut list_latency = Rounds::new();
        for _ in 0..plan.rounds {
            for bytes in plan.sizes.iter().copied() {
                let before = self.hand_over()?;
                self.step();
                if plan.latency() {
                    let first = self.bare_latency(bytes)?;
                    let first_list = self.list_latency(bytes)?;
                    let measured = self.latency(bytes, false)?;
                    if let (Some(first), Some(second)) = (first_list, self.list_latency(bytes)?) {
                        let list = f64::midpoint(first, second);
                        list_latency
                            .entry(bytes)
                            .or_insert_with(Vec::new)
                            .push((list, ratio(list, measured.0)));
                    }
                    if let (Some(first), Some(second)) = (first, self.bare_latency(bytes)?) {
                        let bare = f64::midpoint(first, second);
                        let rounds = bare_latency.entry(bytes).or_insert_with(Vec::new);
                        rounds.push((bare, ratio(bare, measured.0)));
                    }
                    // The hypervisor moves cores within a run: a ratio of two states would mean nothing.
                    let hand_over = f64::midpoint(before, self.hand_over()?);
                    latency.entry(bytes).or_insert_with(Vec::new).push(measured);
                    beside
                        .entry(bytes)
                        .or_insert_with(Vec::new)
                        .push((hand_over, ratio(measured.0, hand_over)));
                    self.step();
                }
                if bytes >= SMALLEST_COPY {
                    memcpy.entry(bytes).or_insert_with(Vec::new).push(self.memcpy(bytes));
                }
                if plan.windows() {
                    let first = self.bare_rate(bytes)?;
                    let measured = self.rate(bytes)?;
                    rate.entry(bytes).or_insert_with(Vec::new).push(measured);
                    if let (Some(first), Some(second)) = (first, self.bare_rate(bytes)?) {
                        let bare = f64::midpoint(first, second);
                        bare_rate.entry(bytes).or_insert_with(Vec::new).push((bare, ratio(measured, bare)));
                    }
                    self.step();
                }
            }
        }
        self.link.command(LinkCommand::Finish)?;
        let (seen, about) = (self.link.seen(plan.counters), self.link.about());
        self.link.close()?;
        let measured = Measured {
            timer: self.timer.describe(),
            about,
            hand_over_ns: median(&self.hand_overs),
            hand_overs: self.hand_overs.len(),
            memcpy: medians(&memcpy),
            latency: latency.iter().map(|(bytes, rounds)| (*bytes, median_pair(rounds))).collect(),
            beside: beside.iter().map(|(bytes, rounds)| (*bytes, median_pair(rounds))).collect(),
            rate: medians(&rate),
            bare_latency: bare_latency.iter().map(|(bytes, rounds)| (*bytes, median_pair(rounds))).collect(),
            bare_rate: bare_rate.iter().map(|(bytes, rounds)| (*bytes, median_pair(rounds))).collect(),
            list_latency: list_latency.iter().map(|(bytes, rounds)| (*bytes, median_pair(rounds))).collect(),
        };
        Ok((measured, seen))
    }

    /// Checks the contents of one message of each size, each way.
    fn check_all(&mut self) -> Result<(), String> {
        let plan = self.plan;
        for bytes in &plan.sizes {
            self.link.command(LinkCommand::Check { bytes: *bytes })?;
            self.link.check(*bytes)?;
            if plan.list.is_some() {
                self.link.command(LinkCommand::ListCheck { bytes: *bytes })?;
                self.link.check_lists(*bytes)?;
            }
        }
        Ok(())
    }

    fn step(&self) {
        self.page.steps().fetch_add(1, Ordering::Relaxed);
    }

    /// Measures the hand-over of one cache line, one way, in nanoseconds.
    fn hand_over(&mut self) -> Result<f64, String> {
        self.link.command(LinkCommand::HandOver)?;
        let link = &mut self.link;
        limits::hand_over(self.page.line(), &self.timer, &mut self.samples, || link.progress());
        let one_way = limits::one_way(&mut self.samples, &self.timer);
        self.hand_overs.push(one_way);
        Ok(one_way)
    }

    fn memcpy(&mut self, bytes: usize) -> f64 {
        let (from, into) = self.link.buffers(bytes);
        limits::memcpy(from, into, &self.timer)
    }

    /// Returns the median of one round of lists, in nanoseconds one way; `None` if lists are not measured.
    fn list_latency(&mut self, bytes: usize) -> Result<Option<f64>, String> {
        if self.plan.list.is_none() {
            return Ok(None);
        }
        self.latency(bytes, true).map(|(median, _)| Some(median))
    }

    /// Returns the median and the 99th percentile of one round, in nanoseconds one way.
    fn latency(&mut self, bytes: usize, lists: bool) -> Result<(f64, f64), String> {
        self.trips(bytes, if bytes < 1 << 20 { 20 } else { 3 }, lists)?;
        let trip = self.timer.ns(percentile(&mut self.samples, 50)).max(1.0);
        let fewest = FEWEST_TRIPS.min(LONGEST_ROUND_NS / trip).max(1.0);
        let most = MOST_TRIPS.max(fewest);
        let count = match self.plan.iterations {
            Some(count) => count as usize,
            None => (ROUND_NS / trip).clamp(fewest, most) as usize,
        };
        self.trips(bytes, count + count / 10, lists)?;
        self.samples.drain(..count / 10);
        let (p50, p99) = (percentile(&mut self.samples, 50), percentile(&mut self.samples, 99));
        Ok((self.timer.ns(p50) / 2.0, self.timer.ns(p99) / 2.0))
    }

    /// Returns the median of copies each way without the library, in nanoseconds one way; `None` if the messages are
    /// not in allocated memory, or are empty.
    fn bare_latency(&mut self, bytes: usize) -> Result<Option<f64>, String> {
        let Some(bare) = self.bare.as_mut().filter(|_| bytes > 0) else { return Ok(None) };
        let (link, samples) = (&mut self.link, &mut self.samples);
        let mut trips = |count: usize| -> Result<f64, String> {
            samples.clear();
            samples.resize(count, 0);
            link.command(LinkCommand::BareTrips { bytes, count })?;
            bare.ping(bytes, &self.timer, samples, || link.progress());
            Ok(self.timer.ns(percentile(samples, 50)).max(1.0))
        };
        let count = match self.plan.iterations {
            Some(count) => count as usize,
            None => {
                let trip = trips(10)?;
                let fewest = FEWEST_TRIPS.min(LONGEST_ROUND_NS / trip).max(1.0);
                (ROUND_NS / trip).clamp(fewest, MOST_TRIPS) as usize
            }
        };
        trips(count).map(|trip| Some(trip / 2.0))
    }

    /// As [`Driver::bare_latency`], in messages per second, in windows.
    fn bare_rate(&mut self, bytes: usize) -> Result<Option<f64>, String> {
        let Some(bare) = self.bare.as_mut().filter(|_| bytes > 0) else { return Ok(None) };
        let link = &mut self.link;
        let mut windows = |count: usize| -> Result<f64, String> {
            link.command(LinkCommand::BareWindows { bytes, count })?;
            let start = self.timer.now();
            bare.send_windows(bytes, count, || link.progress());
            Ok(self.timer.since(start).max(1.0))
        };
        windows(1)?;
        let count = match self.plan.iterations {
            Some(messages) => (messages as usize).div_ceil(WINDOW),
            None => (ROUND_NS / windows(1)?).clamp(1.0, MOST_WINDOWS) as usize,
        };
        windows(count).map(|ns| Some((WINDOW * count) as f64 / ns * 1e9))
    }

    fn trips(&mut self, bytes: usize, count: usize, lists: bool) -> Result<(), String> {
        self.samples.clear();
        self.samples.resize(count, 0);
        if lists {
            self.link.command(LinkCommand::ListTrips { bytes, count })?;
            return self.link.ping_lists(bytes, &self.timer, &mut self.samples);
        }
        self.link.command(LinkCommand::Trips { bytes, count })?;
        self.link.ping(bytes, &self.timer, &mut self.samples)
    }

    /// Returns the messages per second of one round.
    fn rate(&mut self, bytes: usize) -> Result<f64, String> {
        let mut window = self.windows(bytes, 1)?;
        if window < ROUND_NS {
            window = self.windows(bytes, 1)?;
        }
        let count = match self.plan.iterations {
            Some(messages) => (messages as usize).div_ceil(WINDOW),
            None => (ROUND_NS / window).clamp(1.0, MOST_WINDOWS) as usize,
        };
        let ns = self.windows(bytes, count)?;
        Ok((WINDOW * count) as f64 / ns * 1e9)
    }

    /// Returns the nanoseconds of `count` windows.
    fn windows(&mut self, bytes: usize, count: usize) -> Result<f64, String> {
        self.link.command(LinkCommand::Windows { bytes, count })?;
        let start = self.timer.now();
        self.link.send_windows(bytes, count)?;
        Ok(self.timer.since(start).max(1.0))
    }
}

/// Divides a latency by the hand-over beside it; 0 if the hand-over was too short for the clock.
fn ratio(latency: f64, hand_over: f64) -> f64 {
    if hand_over > 0.0 { latency / hand_over } else { 0.0 }
}

fn medians(rounds: &Rounds<f64>) -> BTreeMap<usize, f64> {
    rounds.iter().map(|(bytes, values)| (*bytes, median(values))).collect()
}

fn median_pair(rounds: &[(f64, f64)]) -> (f64, f64) {
    let (first, second): (Vec<f64>, Vec<f64>) = rounds.iter().copied().unzip();
    (median(&first), median(&second))
}
