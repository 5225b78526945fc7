//! The program `nemesia`: measures (`perf`), explains (`info`), starts jobs (`run`) and sets MPIs up (`mpi-env`).
//!
//! An error is one line on the standard error output. The exit status is 2 if a request cannot be met, and 1
//! if an attempt failed. `run` ends with the status of the first process that failed.

mod cli;
mod failure;
mod info;
mod keeper;
mod mpi_env;
mod output;
mod perf;
mod run;
mod shapes;
mod signals;
mod sizes;

use std::process::ExitCode;

use cli::Command;
use failure::Failure;

fn main() -> ExitCode {
    signals::hear_of_children();
    let outcome = match cli::parse(std::env::args_os().collect()) {
        Ok(Some(command)) => dispatch(&command),
        Ok(None) => Ok(0),
        Err(failure) => Err(failure),
    };
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            output::remark(&failure.message);
            ExitCode::from(failure.status)
        }
    }
}

fn dispatch(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Perf(args) => perf::perf(args).map(|()| 0),
        Command::Info(args) => info::info(args),
        Command::Run(args) => run::run(args),
        Command::MpiEnv(args) => mpi_env::mpi_env(args).map(|()| 0),
        Command::Worker(args) => Ok(perf::work(args)),
        Command::Unexpected(args) => Ok(perf::work_unexpected(args)),
        Command::Channel(args) => Ok(perf::work_channel(args)),
    }
}
