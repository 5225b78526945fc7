//! The suite over the transport of [`crate::pipe`], between two processes: this program starts itself as rank 1,
//! whose standard input is the other end of the pipe.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use nemesia_core::engine::Tuning;
use nemesia_core::port::PacketsOnly;
use nemesia_tests::conformance::RunPlan;
use nemesia_tests::conformance::actor::{Abilities, Actor};
use nemesia_tests::conformance::cases::{CaseFacts, Need, run_cases, script_of, skip_unfit};
use nemesia_tests::conformance::engine::{EngineActor, PortDriver, Registry};
use nemesia_tests::conformance::world::complete;
use nemesia_tests::memory_port::Verdict;

use crate::pipe::PipePort;
use crate::plan;

/// The case for rank 1, the seed and the steps.
const CASE: &str = "NEMESIA_CONFORMANCE_CASE";
const ABILITIES: Abilities = Abilities { deaths: true, endings: false, restarts: false };

/// The pipe needs nothing besides the engine's calls.
struct NoDriver;

impl PortDriver<PacketsOnly<PipePort>> for NoDriver {
    fn drive(&mut self, _: &mut PacketsOnly<PipePort>) -> Vec<u32> {
        Vec::new()
    }

    fn has_sent_all(&self, PacketsOnly(port): &PacketsOnly<PipePort>) -> bool {
        port.is_flushed()
    }
}

type PipeActor = EngineActor<PacketsOnly<PipePort>, NoDriver>;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Runs the script of one of the two ranks.
fn take_part(rank: u32, stream: UnixStream, case: &str, plan: RunPlan) -> Verdict {
    let port = PipePort::new(1 - rank, stream).map_err(text)?;
    let registry = Registry::alone(2, ABILITIES);
    let case = script_of::<PipeActor>(case)?;
    let mut actor = EngineActor::new(rank, (PacketsOnly(port), NoDriver), Tuning::default(), &registry)?;
    complete(Box::pin(async move {
        (case.run)(&mut actor, plan).await?;
        actor.close().await
    }))
}

/// Runs the part of rank 1; does nothing if this process is not the child.
#[test]
fn child() -> Verdict {
    let Ok(words) = std::env::var(CASE) else { return Ok(()) };
    let [name, seed, steps] = words.split(' ').collect::<Vec<_>>()[..] else {
        return Err(format!("{words} names no case"));
    };
    let plan = RunPlan { seed: seed.parse().map_err(text)?, steps: steps.parse().map_err(text)? };
    let stream = std::io::stdin().as_fd().try_clone_to_owned().map_err(text)?;
    take_part(1, UnixStream::from(stream), name, plan)
}

/// Kills the child when dropped.
struct Rank1(Child);

impl Drop for Rank1 {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(case: CaseFacts, plan: RunPlan) -> Verdict {
    let (mine, theirs) = UnixStream::pair().map_err(text)?;
    let mut command = Command::new(std::env::current_exe().map_err(text)?);
    command.args(["--exact", "over_pipe::child", "--nocapture"]);
    command.env(CASE, format!("{} {} {}", case.name, plan.seed, plan.steps));
    command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null());
    let mut child = Rank1(command.spawn().map_err(text)?);
    // This process must not hold the other end: it would never see the end of the stream.
    drop(command);
    take_part(0, mine, case.name, plan)?;
    let status = child.0.wait().map_err(text)?;
    let dies = case.need == Need::Deaths && status.signal() == Some(libc::SIGKILL);
    if dies || status.success() { Ok(()) } else { Err(format!("rank 1: {status}")) }
}

#[test]
fn a_transport_of_200_lines_passes() -> Verdict {
    let lines = include_str!("pipe.rs").lines().count();
    assert!(lines <= 200, "the pipe has {lines} lines");
    let plan @ RunPlan { seed, .. } = plan();
    run_cases("a_transport_of_200_lines_passes", ABILITIES, 2, |case| {
        run(case, plan).map_err(|why| format!("seed {seed}: {why}"))
    })
}

/// A pipe connects two ranks only. When it ends, a rank does not learn why.
#[test]
fn cases_that_need_more_than_a_pipe() {
    skip_unfit("cases_that_need_more_than_a_pipe", ABILITIES, 2);
}
