//! `nemesia perf --channel DESIGN`: latency, bandwidth and two-way exchange of the pipes of the RDMA Channel, and the
//! bandwidth by chunk size. Over shared memory the engine's send and receive are measured beside them.

mod beside;
mod chart;
mod rendezvous;
mod table;
mod worker;

use std::os::fd::RawFd;

use nemesia::ChannelDesign;
use nemesia::rdma_channel::Design;
use serde::{Deserialize, Serialize};

use super::worker::{Report, astray, report};
use super::{Json, launch, pins, wait, without_result};
use crate::cli::{PerfArgs, Port};
use crate::failure::Failure;
use crate::output::Destination;

/// The word for all designs that a port can carry.
pub(crate) const ALL: &str = "all";
/// The word for rendezvous by RDMA write beside a pipe of the zero-copy design.
const RENDEZVOUS: &str = "write-rendezvous";
/// The chunk sizes of the sweep: those of the paper's figure 9, and one more on each side.
const CHUNKS: [u32; 8] = [512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// The message size of the sweep.
const SWEPT_BYTES: usize = 256 << 10;

/// The plan of the two processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ChannelPlan {
    pub(crate) design: String,
    pub(crate) port: Port,
    pub(crate) sizes: Vec<usize>,
    pub(crate) rounds: usize,
    pub(crate) iterations: Option<u32>,
    /// Whether registrations are kept.
    pub(crate) keep: bool,
    /// The bytes of a chunk; those of the settings if absent.
    pub(crate) chunk: Option<u32>,
    /// Whether only the bandwidth is measured.
    pub(crate) only_bandwidth: bool,
    /// The descriptors in which each rank reports.
    pub(crate) reports: [RawFd; 2],
}

/// The medians of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ChannelRow {
    pub(crate) bytes: usize,
    /// Half a round trip in nanoseconds.
    pub(crate) latency_ns: f64,
    /// The same of the engine, measured between two measurements of the channel, and the median of their ratio.
    pub(crate) engine_ns: Option<f64>,
    pub(crate) ratio: Option<f64>,
    /// MB/s in one direction, in windows.
    pub(crate) bandwidth: f64,
    /// MB/s of both directions together, each process sending and receiving one message at a time.
    pub(crate) exchange: f64,
}

/// The measurements of one design.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ChannelRun {
    pub(crate) design: String,
    /// How the two processes reach each other.
    pub(crate) about: String,
    pub(crate) chunk: Option<u32>,
    pub(crate) keep: bool,
    pub(crate) rows: Vec<ChannelRow>,
    /// Registrations found in the cache, and those that were made.
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

#[derive(Serialize)]
struct ChannelDocument<'a> {
    channel: &'a [ChannelRun],
    chunks: &'a [ChannelRun],
}

/// Measures and reports.
///
/// # Errors
/// What cannot be used, or what failed.
pub(super) fn measure(args: &PerfArgs, name: &str) -> Result<(), Failure> {
    let json = Json::open(args.json.as_deref())?;
    let picture = args.plot.as_deref().map(Destination::open).transpose()?;
    let (runs, swept) = measured(args, name)?;
    let port = args.port.name();
    let mut text = table::table(port, &runs, &swept);
    if let Some(picture) = picture {
        text += &format!("\npicture: {}\n", picture.path().display());
        let drawn = chart::svg(port, &runs)
            .map_err(|error| Failure::failed(format!("cannot draw the picture: {error}")))?;
        picture.write(&drawn)?;
    }
    let document = ChannelDocument { channel: &runs, chunks: &swept };
    json.write(&text, || {
        serde_json::to_string_pretty(&document).map(|text| text + "\n").map_err(Failure::failed)
    })
}

/// The runs of the designs, and those of the sweep of chunk sizes.
type ChannelResults = (Vec<ChannelRun>, Vec<ChannelRun>);

/// Returns the message sizes. A pipe carries no empty messages.
fn sizes(args: &PerfArgs) -> Vec<usize> {
    args.sizes.0.iter().copied().filter(|bytes| *bytes > 0).collect()
}

fn measured(args: &PerfArgs, name: &str) -> Result<ChannelResults, Failure> {
    let names = designs(name, args.port)?;
    let pin = pins(args.no_pin)?.is_some();
    let plan = |design: &str, reports: [RawFd; 2]| ChannelPlan {
        design: design.to_owned(),
        port: args.port,
        sizes: sizes(args),
        rounds: args.rounds as usize,
        iterations: args.iterations,
        keep: !args.drop_registrations,
        chunk: None,
        only_bandwidth: false,
        reports,
    };
    let mut runs = Vec::new();
    for design in &names {
        runs.push(run(pin, |reports| plan(design, reports))?);
    }
    let mut swept = Vec::new();
    if args.chunks {
        for chunk in CHUNKS {
            let plan = |reports| ChannelPlan {
                sizes: vec![SWEPT_BYTES],
                chunk: Some(chunk),
                only_bandwidth: true,
                ..plan(Design::Pipelined.name(), reports)
            };
            swept.push(run(pin, plan)?);
        }
    }
    Ok((runs, swept))
}

/// Returns the names of the designs to measure.
fn designs(name: &str, port: Port) -> Result<Vec<&'static str>, Failure> {
    if port == Port::Net {
        return Err(Failure::unusable("--channel is for --port shm, tcp and verbs"));
    }
    let direct = (port == Port::Shm).then_some(ChannelDesign::Direct);
    let pipes = direct.into_iter().chain(Design::ALL.map(ChannelDesign::Paper)).map(ChannelDesign::name);
    let all: Vec<&str> = pipes.chain([RENDEZVOUS]).collect();
    chosen(name, &all, &format!("--port {}", port.name()))
}

/// Returns the design of this name, or all.
fn chosen(name: &str, all: &[&'static str], with: &str) -> Result<Vec<&'static str>, Failure> {
    match all.iter().find(|it| **it == name) {
        _ if name == ALL => Ok(all.to_vec()),
        Some(design) => Ok(vec![design]),
        None => Err(Failure::unusable(format!(
            "--channel {name}: with {with} it must be {ALL}, {}",
            all.join(", ")
        ))),
    }
}

fn run(pin: bool, plan: impl FnOnce([RawFd; 2]) -> ChannelPlan) -> Result<ChannelRun, Failure> {
    let [run, _] = launch::<_, Option<ChannelRun>>("channel-worker", pin, plan, wait)?;
    run.ok_or_else(without_result)
}

/// Takes part as one of the two processes, and reports.
///
/// # Errors
/// This process was not started by `perf`.
pub(super) fn work(plan: &str) -> Result<Report<Option<ChannelRun>>, String> {
    let plan: ChannelPlan = serde_json::from_str(plan).map_err(|error| astray(&error.to_string()))?;
    report(plan.reports, || worker::take_part(&plan))
}
