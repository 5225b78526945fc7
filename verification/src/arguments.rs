//! Parses the command line of `cargo proofs`.

use crate::child::Task;
use crate::models::{self, Model};
use crate::mutant::Mutant;
use crate::stage::Extent;

/// The text that `--help` prints.
pub(crate) const HELP: &str = "\
Usage: cargo proofs [--model NAME]... [--mutant MUTANT]... [--short | --long] [--jobs N]
       cargo proofs --list

Runs every loom model of the shared structures, and every mutant that it must catch: a weakened end of an edge of
core/src/sync.rs, or an injected fault of logic. Fails when a model fails or a mutant survives.

  --model NAME      this model only (may be repeated); see --list
  --mutant MUTANT   this mutant only, such as QueueTail:Acquire or InjectedFault:AckBeforeRead (may be repeated);
                    with --model, also a mutant that the model does not claim
  --short           unchanged models with one preemption less; each mutant in the first model only that claims it
  --long            more preemptions and more messages: hours instead of minutes
  --jobs N          models that run at the same time (default 2)
  --list            the models and the mutants that each must kill
  --help            this text
";

/// What the command line asks for.
pub(crate) enum Command {
    Help,
    List,
    /// Run one model with at most one mutant in this process.
    Child(Task),
    Prove(Options),
}

/// Which models and mutants to run, and how thoroughly.
pub(crate) struct Options {
    /// The models to run; empty stands for all models.
    pub(crate) models: Vec<&'static Model>,
    /// The mutants to run; empty stands for all mutants and for the unchanged code.
    pub(crate) mutants: Vec<Mutant>,
    /// How much each model explores. In a short run each mutant runs only in the first model that claims it.
    pub(crate) extent: Extent,
    pub(crate) jobs: usize,
}

/// Parses the arguments after the program's name.
pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut options = Options { models: Vec::new(), mutants: Vec::new(), extent: Extent::Usual, jobs: 2 };
    let mut child = false;
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--help" | "-h" => return Ok(Command::Help),
            "--list" => return Ok(Command::List),
            "--short" => options.extent = Extent::Short,
            "--long" => options.extent = Extent::Long,
            "--child" => child = true,
            "--jobs" => options.jobs = jobs(&value()?)?,
            "--model" => options.models.push(model(&value()?)?),
            "--mutant" => options.mutants.push(mutant(&value()?)?),
            _ => return Err(format!("unknown argument `{argument}`")),
        }
    }
    match options.models[..] {
        [model] if child => {
            let mutant = options.mutants.first().copied();
            Ok(Command::Child(Task { model, mutant, extent: options.extent }))
        }
        _ if child => Err("--child needs one --model".into()),
        _ => Ok(Command::Prove(options)),
    }
}

fn jobs(value: &str) -> Result<usize, String> {
    match value.parse() {
        Ok(jobs) if jobs > 0 => Ok(jobs),
        _ => Err(format!("--jobs {value} is not a number of at least 1")),
    }
}

fn model(name: &str) -> Result<&'static Model, String> {
    models::ALL.iter().find(|model| model.name == name).ok_or_else(|| format!("no model `{name}`"))
}

fn mutant(name: &str) -> Result<Mutant, String> {
    Mutant::named(name).ok_or_else(|| format!("no mutant `{name}`"))
}
