//! Runs one model with at most one mutant in a process of its own. If it crashes, the other runs go on.

use std::panic::PanicHookInfo;
use std::process::ExitCode;

use nemesia_core::sync::model::set_mutant;

use crate::complain;
use crate::models::Model;
use crate::mutant::Mutant;
use crate::stage::{self, Extent, Run};
use crate::table;

/// Exit code: an assertion of the model failed, or loom found a violation.
pub(crate) const VIOLATED: i32 = 10;
/// Exit code: a limit was reached, or loom itself failed. The code under test is neither proved nor refuted.
pub(crate) const UNDECIDED: i32 = 11;
/// A model that holds prints this text before the number of executions.
pub(crate) const EXECUTIONS: &str = "executions ";

/// The task of a child process.
#[derive(Clone, Copy)]
pub(crate) struct Task {
    pub(crate) model: &'static Model,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) extent: Extent,
}

/// Runs the model. If the model fails, the panic hook ends the process and this function does not return.
pub(crate) fn run(task: &Task) -> ExitCode {
    // Loom unwinds its coroutines one by one and may panic again meanwhile. The first panic is the verdict.
    std::panic::set_hook(Box::new(|panic| {
        complain(&panic.to_string());
        std::process::exit(verdict(panic));
    }));
    let injected_fault = match task.mutant {
        Some(Mutant::InjectedFault(injected_fault)) => Some(injected_fault),
        Some(Mutant::Weak(edge, end)) => {
            set_mutant(Some((edge, end)));
            None
        }
        None => None,
    };
    (task.model.run)(&Run { extent: task.extent, injected_fault });
    table::print(&format!("{EXECUTIONS}{}\n", stage::executions()))
}

/// Returns the exit code for a panic. Loom's own panics are violations only if they report what the program
/// under test did.
fn verdict(panic: &PanicHookInfo<'_>) -> i32 {
    let ours = panic.location().is_some_and(|location| !location.file().contains("/loom-"));
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let message = text.or(payload.downcast_ref::<String>().map(String::as_str)).unwrap_or_default();
    if ours || message.contains("Causality violation") || message.starts_with("deadlock") {
        VIOLATED
    } else {
        UNDECIDED
    }
}
