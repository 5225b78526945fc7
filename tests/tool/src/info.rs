//! `nemesia info`: what can be used here, why something can't, what it costs, and what is set.
#![forbid(unsafe_code)]

use std::fmt::Write;

use nemesia::bootstrap::{Bootstrap, Exchange};
use nemesia::{Bill, Config, VARIABLES, Verdict};
use serde::Serialize;

use crate::cli::InfoArgs;
use crate::failure::Failure;
use crate::output;

/// What each variable stands for when it is not set; a test compares them with the library's own.
const DEFAULTS: [(&str, &str); 15] = [
    ("NEMESIA_CELLS", "64"),
    ("NEMESIA_CELL_BYTES", "32768"),
    ("NEMESIA_FASTBOX_SLOTS", "64"),
    // Computed, see `default_of`.
    ("NEMESIA_FASTBOX_LIMIT", ""),
    ("NEMESIA_UNEXPECTED_BYTES", "67108864"),
    ("NEMESIA_EAGER_BYTES", "8192"),
    ("NEMESIA_CREDIT_BYTES", "262144"),
    ("NEMESIA_SINGLE_COPY", "auto"),
    ("NEMESIA_PTRACER", "0"),
    ("NEMESIA_REQUESTS", "1048576"),
    ("NEMESIA_HUGE_PAGES", "never"),
    ("NEMESIA_BACKING", "memfd"),
    ("NEMESIA_LOCK_MEMORY", "0"),
    ("NEMESIA_SPIN", "by load"),
    ("NEMESIA_TIMEOUT", "60"),
];

#[derive(Debug, Serialize)]
struct Overview {
    facilities: Vec<Facility>,
    launcher: Situation,
    memory: Memory,
    variables: Vec<Setting>,
}

#[derive(Debug, Serialize)]
struct Facility {
    name: &'static str,
    usable: bool,
    reason: String,
}

/// What there is of a launcher.
#[derive(Debug, Serialize)]
struct Situation {
    usable: bool,
    description: String,
}

/// The memory of one process, in bytes.
#[derive(Debug, Serialize)]
struct Memory {
    processes: u32,
    segments: u64,
    cells: u64,
    per_further_peer: u64,
    private_at_start: u64,
    private_ceiling: u64,
}

#[derive(Debug, Serialize)]
struct Setting {
    name: &'static str,
    value: String,
    source: &'static str,
    values: &'static str,
    help: &'static str,
}

/// Prints the overview; the status is 0 if shared memory can be used.
///
/// # Errors
/// When the configuration can't be used, or the output can't be written.
pub(crate) fn info(args: &InfoArgs) -> Result<u8, Failure> {
    let config = Config::from_env().map_err(Failure::unusable)?;
    let overview = Overview {
        memory: memory(&config, args.processes)?,
        facilities: nemesia::explain(&config).into_iter().map(facility).collect(),
        launcher: situation(),
        variables: settings(&config, |name| std::env::var(name).ok()),
    };
    let text = if args.json {
        serde_json::to_string_pretty(&overview).map_err(Failure::failed)? + "\n"
    } else {
        written(&overview)
    };
    output::print(&text)?;
    match overview.facilities.iter().find(|facility| facility.name == "shm") {
        Some(shm) if shm.usable => Ok(0),
        Some(shm) => Err(Failure::unusable(format!("shm can't be used here: {}", shm.reason))),
        None => Err(Failure::unusable("shm is not part of this version")),
    }
}

fn facility(Verdict { name, usable, reason }: Verdict) -> Facility {
    Facility { name, usable, reason }
}

fn memory(config: &Config, processes: u32) -> Result<Memory, Failure> {
    let bill = Bill::new(config, processes)
        .map_err(|error| Failure::unusable(format!("a world of {processes} processes: {error}")))?;
    Ok(Memory {
        processes: bill.processes,
        segments: bill.segments,
        cells: bill.cells,
        per_further_peer: bill.per_peer,
        private_at_start: bill.private_at_start,
        private_ceiling: bill.private_ceiling,
    })
}

/// Greets the launcher, if there is one, and takes leave of it again.
fn situation() -> Situation {
    let asked = Bootstrap::from_env().and_then(|mut bootstrap| {
        let description = bootstrap.describe();
        bootstrap.finalize().map(|()| description)
    });
    match asked {
        Ok(description) => Situation { usable: true, description },
        Err(error) => Situation { usable: false, description: error.to_string() },
    }
}

fn settings(config: &Config, lookup: impl Fn(&str) -> Option<String>) -> Vec<Setting> {
    let setting = |variable: &nemesia::Variable| {
        let set = lookup(variable.name);
        let source = if set.is_some() { "environment" } else { "default" };
        let value = match set {
            // What is asked for may be more than a fastbox has room for.
            _ if variable.name == "NEMESIA_FASTBOX_LIMIT" => config.fastbox_bytes().to_string(),
            Some(value) => value.trim().to_owned(),
            None => default_of(variable.name).to_owned(),
        };
        Setting { name: variable.name, value, source, values: variable.values, help: variable.help }
    };
    VARIABLES.iter().map(setting).collect()
}

fn default_of(name: &str) -> &'static str {
    DEFAULTS.iter().find(|(known, _)| *known == name).map_or("unknown to this program", |(_, value)| value)
}

fn written(overview: &Overview) -> String {
    let mut out = String::new();
    // Writing to a text can't fail.
    let _ = write_all(&mut out, overview);
    out
}

fn write_all(out: &mut String, overview: &Overview) -> std::fmt::Result {
    writeln!(out, "What can be used here")?;
    for Facility { name, usable, reason } in &overview.facilities {
        writeln!(out, "  {name:<13} {:<4} {reason}", if *usable { "yes" } else { "no" })?;
    }
    let Situation { usable, description } = &overview.launcher;
    writeln!(out, "\nLauncher\n  {}{description}", if *usable { "" } else { "not usable: " })?;
    let memory = &overview.memory;
    writeln!(out, "\nMemory of each process in a world of {}", memory.processes)?;
    for (what, bytes) in [
        ("shared segments, reserved at start", memory.segments),
        ("  of which cells for messages", memory.cells),
        ("  added by each further peer", memory.per_further_peer),
        ("private memory at start", memory.private_at_start),
        ("private memory at most (unexpected messages, requests)", memory.private_ceiling),
    ] {
        writeln!(out, "  {what:<56} {:>10} {bytes:>12} bytes", human(bytes))?;
    }
    writeln!(out, "\nConfiguration")?;
    for Setting { name, value, source, values, help } in &overview.variables {
        writeln!(out, "  {name}={value} ({source})\n      {help}; {values}")?;
    }
    Ok(())
}

/// Bytes in the largest binary unit of which there is at least one.
fn human(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(bits, _)| bytes >> bits > 0) {
        Some((bits, unit)) => format!("{:.1} {unit}", bytes as f64 / (1_u64 << bits) as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_shown_are_those_of_the_library() {
        for variable in &VARIABLES {
            let shown = default_of(variable.name);
            if matches!(variable.name, "NEMESIA_FASTBOX_LIMIT" | "NEMESIA_SPIN") {
                continue;
            }
            let config = Config::from_lookup(|name| (name == variable.name).then(|| shown.to_owned()));
            assert_eq!(config, Ok(Config::default()), "{}={shown}", variable.name);
        }
    }

    #[test]
    fn a_variable_that_is_set_shows_what_is_in_force() {
        let lookup = |name: &str| match name {
            "NEMESIA_CELLS" => Some(" 128 ".to_owned()),
            "NEMESIA_FASTBOX_LIMIT" => Some("999999999".to_owned()),
            _ => None,
        };
        let config = Config::from_lookup(lookup).unwrap();
        let settings = settings(&config, lookup);
        let of = |name| settings.iter().find(|setting| setting.name == name).unwrap();
        assert_eq!((of("NEMESIA_CELLS").value.as_str(), of("NEMESIA_CELLS").source), ("128", "environment"));
        assert_eq!(of("NEMESIA_FASTBOX_LIMIT").value, Config::default().fastbox_bytes().to_string());
        assert_eq!((of("NEMESIA_SPIN").value.as_str(), of("NEMESIA_SPIN").source), ("by load", "default"));
    }

    #[test]
    fn bytes_are_readable() {
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(64 << 20), "64.0 MiB");
        assert_eq!(human(3 << 30), "3.0 GiB");
    }
}
