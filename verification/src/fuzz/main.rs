//! `cargo fuzz`: the fuzz targets of this package, with random bytes or with those of a file.

#[path = "../sim/rng.rs"]
mod rng;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nemesia_verification::targets::{TARGETS, Target};
use rng::Rng;

const HELP: &str = "\
Usage: cargo fuzz -- [--runs N] [--seed S] [TARGET [FILE]]

Calls every target, or TARGET, with random bytes. A target takes what a peer sends, and fails if that breaks a \
promise.
With FILE it is called once, with the bytes of the file: so other fuzzers can drive it. FILE may be a directory, such as
verification/corpus/TARGET: then it is called with each of its files.

  --runs N         calls of each target (default 100000)
  --seed S         the first seed (default 1); a failure prints the command that shows it again
  --help           this text

Targets:
";

/// The longest input that is made.
const MOST_BYTES: usize = 800;

/// What the command line asks for.
struct FuzzOptions {
    runs: u64,
    seed: u64,
    target: Option<String>,
    file: Option<String>,
    help: bool,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<FuzzOptions, String> {
    let mut options = FuzzOptions { runs: 100_000, seed: 1, target: None, file: None, help: false };
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let value = arguments.next().ok_or_else(|| format!("{argument} needs a value"))?;
            value.parse().map_err(|_| format!("`{value}` is not a number"))
        };
        match argument.as_str() {
            "--" => {}
            "--help" | "-h" => options.help = true,
            "--runs" => options.runs = number()?,
            "--seed" => options.seed = number()?,
            _ if argument.starts_with('-') => return Err(format!("unknown argument `{argument}`")),
            _ if options.target.is_none() => options.target = Some(argument),
            _ if options.file.is_none() => options.file = Some(argument),
            _ => return Err(format!("`{argument}` is one argument too many")),
        }
    }
    Ok(options)
}

/// Returns random bytes, of which many are small.
fn input(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed, 0);
    let (len, small) = (rng.below(MOST_BYTES), rng.pick(&[1, 2, 3, 4]));
    let byte = |rng: &mut Rng| if rng.one_in(small) { rng.next() as u8 } else { rng.below(16) as u8 };
    (0..len).map(|_| byte(&mut rng)).collect()
}

fn fuzz(target: Target, options: &FuzzOptions) -> Result<(), String> {
    for seed in options.seed..options.seed.saturating_add(options.runs) {
        (target.run)(&input(seed)).map_err(|what| {
            format!("{}: {what}\nagain: cargo fuzz -- --seed {seed} --runs 1 {}", target.name, target.name)
        })?;
    }
    Ok(())
}

/// Returns the bytes of a file, or of all files of a directory, with their names.
fn inputs(path: &Path) -> std::io::Result<Vec<(PathBuf, Vec<u8>)>> {
    if !path.is_dir() {
        return Ok(vec![(path.to_owned(), std::fs::read(path)?)]);
    }
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry?.path();
        let bytes = std::fs::read(&path)?;
        Ok((path, bytes))
    };
    std::fs::read_dir(path)?.map(read).collect()
}

fn run(options: &FuzzOptions) -> Result<String, String> {
    let wanted = |target: &Target| options.target.as_ref().is_none_or(|name| name == target.name);
    let targets: Vec<Target> = TARGETS.iter().copied().filter(wanted).collect();
    if targets.is_empty() {
        return Err("no such target; see `cargo fuzz -- --help`".into());
    }
    if let Some(file) = &options.file {
        let inputs = inputs(Path::new(file)).map_err(|error| format!("{file}: {error}"))?;
        for (input, bytes) in &inputs {
            let broken = |what| format!("{}: {what}", input.display());
            targets.iter().try_for_each(|target| (target.run)(bytes)).map_err(broken)?;
        }
        return Ok(format!("{} files: no promise is broken\n", inputs.len()));
    }
    targets.iter().try_for_each(|target| fuzz(*target, options))?;
    Ok(format!("{} targets, {} runs of each: no promise is broken\n", targets.len(), options.runs))
}

fn main() -> ExitCode {
    let done = parse(std::env::args().skip(1)).and_then(|options| {
        let names: String = TARGETS.iter().map(|target| format!("  {}\n", target.name)).collect();
        if options.help { Ok(format!("{HELP}{names}")) } else { run(&options) }
    });
    match done {
        Ok(text) if std::io::stdout().write_all(text.as_bytes()).is_ok() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "fuzz: {error}");
            ExitCode::FAILURE
        }
    }
}
