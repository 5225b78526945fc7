//! `nemesia run`: starts a job on this machine.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::ErrorKind;
use std::thread::Builder;

use nemesia::Config;
use nemesia::bootstrap::{Interrupter, LaunchError, Launcher, Outcome};

use crate::cli::RunArgs;
use crate::failure::Failure;
use crate::keeper::{Signals, keep};
use crate::output;
use crate::signals::ends_job;

/// Runs the job. Returns the status of its first failure.
///
/// # Errors
/// The job cannot be started or watched.
pub(crate) fn run(args: &RunArgs) -> Result<u8, Failure> {
    warn_of_settings(args);
    let mut launcher = launcher(args)?;
    for variable in &args.env {
        launcher = launcher.env(&variable.name, &variable.value);
    }
    keep(|signals| launch(&launcher, signals))
}

fn launch(launcher: &Launcher, signals: Signals) -> Result<u8, Failure> {
    let running = launcher.spawn().map_err(|error| launch_failure(&error))?;
    pass_on(signals, running.interrupter().map_err(|error| launch_failure(&error))?)?;
    let mut pids = running.pids().to_vec();
    let outcome = running.wait().map_err(|error| launch_failure(&error))?;
    for restart in &outcome.restarts {
        output::remark(&restart.to_string());
        pids[restart.rank] = restart.pid;
    }
    if let Some(line) = report(&outcome, &pids) {
        output::remark(&line);
    }
    Ok(u8::try_from(outcome.exit_code()).unwrap_or(1))
}

/// Prints the warnings about the settings that the processes inherit: an endpoint returns them only to a program that
/// asks, and a misspelt variable would have no effect. Settings that cannot be used are errors of the processes.
fn warn_of_settings(args: &RunArgs) {
    let given = args.env.iter().map(|it| (it.name.clone(), it.value.clone()));
    let config = Config::from_vars(std::env::vars_os().chain(given));
    for warning in config.map(|config| config.warnings()).unwrap_or_default() {
        output::remark(&format!("warning: {warning}"));
    }
}

/// Starts a thread that passes signals on to the job. It ends with this program.
fn pass_on(mut signals: Signals, interrupter: Interrupter) -> Result<(), Failure> {
    let pass_on = move || {
        while let Some(signal) = signals.next() {
            if ends_job(signal) { interrupter.interrupt(signal) } else { interrupter.pass_on(signal) }
        }
        // The process that the user started has been killed: the second signal kills at once.
        interrupter.interrupt(libc::SIGKILL);
        interrupter.interrupt(libc::SIGKILL);
    };
    let thread = Builder::new().name("nemesia-signals".to_owned()).spawn(pass_on);
    thread.map(drop).map_err(|source| launch_failure(&LaunchError::Thread { source }))
}

fn launcher(args: &RunArgs) -> Result<Launcher, Failure> {
    let (program, arguments): (&OsString, &[OsString]) =
        args.program.split_first().ok_or_else(|| Failure::unusable("there is no program to run"))?;
    Ok(Launcher::new(args.processes as usize, program.clone(), arguments.to_vec())
        .prefix_output(args.prefix)
        .keep_going(args.keep_going)
        .restart(args.restart)
        .bind(args.bind)
        .adopt_orphans(true))
}

/// Converts a launch error: a missing program cannot be used; everything else has failed.
pub(crate) fn launch_failure(error: &LaunchError) -> Failure {
    match error {
        LaunchError::Start { source, .. }
            if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) =>
        {
            Failure::unusable(error)
        }
        _ => Failure::failed(error),
    }
}

/// Returns one line on how the job failed, if it did.
fn report(outcome: &Outcome, pids: &[u32]) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(signal) = outcome.interrupted {
        parts.push(format!("signal {signal} was passed on to all ranks"));
    }
    if let Some((rank, kind)) = outcome.first_failure {
        parts.push(format!("{} {kind}", name(rank, pids)));
        let rest = || outcome.ranks.iter().enumerate().filter(|(other, _)| *other != rank);
        let ended = rest().filter(|(_, exit)| exit.ended_by_launcher).count();
        let failed = rest().filter(|(_, exit)| !exit.ended_by_launcher && !exit.kind.is_success()).count();
        if failed > 0 {
            parts.push(format!("{failed} more failed"));
        }
        if ended > 0 {
            parts.push(format!("the launcher ended {ended}"));
        }
    }
    for (rank, fault) in &outcome.faults {
        parts.push(format!("the launcher and {}: {fault}", name(*rank, pids)));
    }
    if let Some(reason) = &outcome.lost_output {
        parts.push(format!("output was lost: {reason}"));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Returns the name of a rank in reports.
pub(crate) fn name(rank: usize, pids: &[u32]) -> String {
    match pids.get(rank) {
        Some(pid) => format!("rank {rank} of {} (pid {pid})", pids.len()),
        None => format!("rank {rank} of {}", pids.len()),
    }
}
