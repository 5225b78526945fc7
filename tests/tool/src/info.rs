//! `nemesia info`: usable transports, why others are refused, the memory bill, and the settings.
#![forbid(unsafe_code)]

use std::fmt::Write;

use nemesia::bootstrap::{Bootstrap, Exchange};
use nemesia::{Bill, Config, ConfigError, NetBill, TransportBill, VARIABLES, Variable, Verdict};
use serde::Serialize;

use crate::cli::InfoArgs;
use crate::failure::Failure;
use crate::output;

#[derive(Debug, Serialize)]
struct Overview {
    facilities: Vec<Facility>,
    launcher: Situation,
    memory: MemoryOverview,
    between_hosts: Option<HostsOverview>,
    /// The configuration files that were read.
    files: Vec<String>,
    variables: Vec<Setting>,
    /// Preferences that cannot be met, and variables that do not exist.
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Facility {
    name: &'static str,
    usable: bool,
    reason: String,
}

/// The state of the launcher.
#[derive(Debug, Serialize)]
struct Situation {
    usable: bool,
    description: String,
}

/// The memory of one process, in bytes.
#[derive(Debug, Serialize)]
struct MemoryOverview {
    processes: u32,
    segments: u64,
    cells: u64,
    per_further_peer: u64,
    private_at_start: u64,
    private_per_further_peer: u64,
    private_per_rank: u64,
    private_ceiling: u64,
    net_per_remote_peer: u64,
    descriptors: u32,
    descriptors_per_peer: u32,
}

/// The costs of reaching the ranks on other machines, for one process. Sizes are in bytes.
#[derive(Debug, Serialize)]
struct HostsOverview {
    hosts: u32,
    remote_ranks: u32,
    connections: u32,
    first_buffers: u32,
    most_buffers: u32,
    state_per_remote_rank: u64,
    transports: Vec<TransportOverview>,
}

#[derive(Debug, Serialize)]
struct TransportOverview {
    name: &'static str,
    buffer: u64,
    rings: u64,
    queue_pairs: u32,
    send_depth: u32,
    receive_depth: u32,
    completion_entries: u32,
    descriptors: u32,
    descriptors_per_connection: u32,
}

#[derive(Debug, Serialize)]
struct Setting {
    name: &'static str,
    value: String,
    default: String,
    /// `default`, `environment`, or file and line.
    source: String,
    values: &'static str,
    help: &'static str,
}

/// Prints the overview. The status is 0 if the requested port can be used.
///
/// # Errors
/// The configuration cannot be used, or the output cannot be written.
pub(crate) fn info(args: &InfoArgs) -> Result<u8, Failure> {
    let config = Config::from_env().map_err(Failure::unusable)?;
    let overview = Overview {
        memory: memory(&config, args.processes)?,
        between_hosts: between_hosts(&config, args.processes, args.hosts),
        facilities: nemesia::explain(&config).into_iter().map(facility).collect(),
        launcher: situation(),
        files: config.files().iter().map(|path| path.display().to_string()).collect(),
        variables: VARIABLES.iter().map(|variable| setting(&config, variable)).collect(),
        warnings: config.warnings(),
    };
    let text = if args.json {
        serde_json::to_string_pretty(&overview).map_err(Failure::failed)? + "\n"
    } else {
        written(&overview)
    };
    output::print(&text)?;
    if let (true, Some(warning)) = (config.is_strict(), overview.warnings.first()) {
        return Err(Failure::unusable(ConfigError::Strict(warning.clone())));
    }
    let port = args.port.as_str();
    match overview.facilities.iter().find(|facility| facility.name == port) {
        Some(facility) if facility.usable => Ok(0),
        Some(facility) => Err(Failure::unusable(format!("{port} can't be used here: {}", facility.reason))),
        None => Err(Failure::unusable(format!("{port} is not part of this version"))),
    }
}

fn facility(Verdict { name, usable, reason }: Verdict) -> Facility {
    Facility { name, usable, reason }
}

fn memory(config: &Config, processes: u32) -> Result<MemoryOverview, Failure> {
    let bill = Bill::new(config, processes)
        .map_err(|error| Failure::unusable(format!("a world of {processes} processes: {error}")))?;
    Ok(MemoryOverview {
        processes: bill.processes,
        segments: bill.segments,
        cells: bill.cells,
        per_further_peer: bill.per_peer,
        private_at_start: bill.private_at_start,
        private_per_further_peer: bill.private_per_peer,
        private_per_rank: bill.private_per_rank,
        private_ceiling: bill.private_ceiling,
        net_per_remote_peer: bill.net_per_peer,
        descriptors: bill.descriptors,
        descriptors_per_peer: bill.descriptors_per_peer,
    })
}

/// Returns the costs between hosts; `None` if there is one host.
fn between_hosts(config: &Config, processes: u32, hosts: u32) -> Option<HostsOverview> {
    let bill = NetBill::new(config, processes, hosts);
    let transport = |it: &TransportBill| TransportOverview {
        name: it.transport,
        buffer: it.buffer_bytes,
        rings: it.ring_bytes,
        queue_pairs: it.queue_pairs,
        send_depth: it.send_depth,
        receive_depth: it.receive_depth,
        completion_entries: it.completion_entries,
        descriptors: it.descriptors,
        descriptors_per_connection: it.descriptors_per_connection,
    };
    (bill.remote > 0).then(|| HostsOverview {
        hosts: bill.hosts,
        remote_ranks: bill.remote,
        connections: bill.connections,
        first_buffers: bill.first_buffers,
        most_buffers: bill.most_buffers,
        state_per_remote_rank: bill.state_per_peer,
        transports: bill.transports.iter().map(transport).collect(),
    })
}

/// Opens and closes a connection to the launcher, if there is one.
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

fn setting(config: &Config, variable: &Variable) -> Setting {
    let Variable { name, values, help, .. } = *variable;
    let (value, default) = (variable.value(config), variable.default_value());
    Setting { name, value, default, source: config.origin(name).to_string(), values, help }
}

fn written(overview: &Overview) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
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
        ("shared segments, if it is connected with all", memory.segments),
        ("  of which cells for messages", memory.cells),
        ("  added by each connection", memory.per_further_peer),
        ("private memory, if it is connected with all", memory.private_at_start),
        ("  added by each rank and its connection", memory.private_per_further_peer),
        ("  added by each rank before its connection", memory.private_per_rank),
        ("private memory at most (messages not taken, requests)", memory.private_ceiling),
        ("packets at most, for each rank on another machine", memory.net_per_remote_peer),
    ] {
        writeln!(out, "  {what:<56} {:>10} {bytes:>12} bytes", human(bytes))?;
    }
    let MemoryOverview { processes, descriptors, descriptors_per_peer: each, .. } = memory;
    let all = u64::from(*descriptors) + u64::from(*each) * u64::from(processes.saturating_sub(1));
    writeln!(
        out,
        "  descriptors, if it is connected with all {processes} on this machine: {all}; {descriptors} without \
         connections and {each} for each"
    )?;
    if let Some(hosts) = &overview.between_hosts {
        write_hosts(out, memory.processes, hosts)?;
    }
    write_configuration(out, overview)
}

fn write_hosts(out: &mut String, processes: u32, it: &HostsOverview) -> std::fmt::Result {
    let HostsOverview { hosts, remote_ranks, connections, .. } = it;
    writeln!(
        out,
        "\nBetween hosts, for each process in a world of {processes} on {hosts} hosts: {connections} connections with \
         {remote_ranks} ranks"
    )?;
    let mut line = |what: &str, bytes| writeln!(out, "  {what:<56} {:>10} {bytes:>12} bytes", human(bytes));
    line("state of each rank before its connection", it.state_per_remote_rank)?;
    for TransportOverview { name, buffer, .. } in &it.transports {
        let buffers = |count: u32| u64::from(count) * buffer;
        line(&format!("over {name}: a buffer of the process for a packet"), *buffer)?;
        line("  all buffers, if it is connected with all", buffers(it.first_buffers))?;
        line("  all buffers at most, if all send at once", buffers(it.most_buffers))?;
    }
    for it in &it.transports {
        let TransportOverview { name, send_depth, receive_depth, descriptors, .. } = it;
        let all =
            u64::from(*descriptors) + u64::from(it.descriptors_per_connection) * u64::from(*connections);
        write!(
            out,
            "  over {name:<6} {all} descriptors; queues of {send_depth} sends and {receive_depth} receives"
        )?;
        if it.queue_pairs > 0 {
            let (pairs, entries) = (it.queue_pairs, it.completion_entries);
            write!(out, " in each of {pairs} queue pairs, one completion queue of {entries} entries")?;
        }
        match it.rings {
            0 => writeln!(out)?,
            bytes => writeln!(out, "; rings, if the device keeps the order of bytes: {}", human(bytes))?,
        }
    }
    Ok(())
}

fn write_configuration(out: &mut String, overview: &Overview) -> std::fmt::Result {
    let files = match &overview.files[..] {
        [] => "no file".to_owned(),
        files => files.join(", "),
    };
    writeln!(
        out,
        "\nConfiguration, from {files} and the environment (NEMESIA_CONFIG names a file to read instead)"
    )?;
    for Setting { name, value, default, source, values, help } in &overview.variables {
        let from = if source == "default" { source } else { &format!("{source}; default {default}") };
        writeln!(out, "  {name}={value} ({from})\n      {help} ({values})")?;
    }
    if !overview.warnings.is_empty() {
        writeln!(out, "\nWarnings\n  {}", overview.warnings.join("\n  "))?;
    }
    Ok(())
}

/// Formats bytes in the largest binary unit of which there is at least one.
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
    fn a_variable_that_is_set_shows_its_value_and_its_origin() {
        let pairs =
            [("NEMESIA_CONFIG", ""), ("NEMESIA_CELLS", " 128 "), ("NEMESIA_FASTBOX_LIMIT", "999999999")];
        let config = Config::from_vars(pairs.map(|(name, value)| (name.into(), value.into()))).unwrap();
        let of = |name| setting(&config, Variable::find(name).unwrap());
        let cells = of("NEMESIA_CELLS");
        assert_eq!((&*cells.value, &*cells.source, &*cells.default), ("128", "environment", "64"));
        // A preference that cannot be met shows the value in use.
        assert_eq!(of("NEMESIA_FASTBOX_LIMIT").value, config.fastbox_bytes().to_string());
        assert!(config.fastbox_bytes() < 999_999_999);
        assert_eq!((&*of("NEMESIA_SPIN").value, &*of("NEMESIA_SPIN").source), ("auto", "default"));
    }

    #[test]
    fn bytes_are_readable() {
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(64 << 20), "64.0 MiB");
        assert_eq!(human(3 << 30), "3.0 GiB");
    }
}
