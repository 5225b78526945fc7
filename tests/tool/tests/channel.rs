//! `perf --channel`: each design runs end to end over ports that every machine has. What is measured is not checked.

use std::process::{Command, Output};

use serde_json::Value;

/// What is measured over ports.
const NAMES: [&str; 7] =
    ["basic", "piggyback", "pipelined", "zero-copy", "zero-copy-push", "learned", "write-rendezvous"];

/// The messages of one process in a measurement of one size with two iterations: 8 trips and 8 exchanges for a trial, 2
/// of each measured, and 3 windows of 16.
const LONG: u64 = 2 * (8 + 2) + 3 * 16;

fn perf(words: &[&str]) -> Result<Output, String> {
    let program = std::env::var_os("NEMESIA_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_nemesia").into());
    let mut command = Command::new("timeout");
    command.args(["600".as_ref(), program.as_os_str(), "perf".as_ref()]);
    command.args(words).env("NEMESIA_CONFIG", "").output().map_err(|error| error.to_string())
}

/// Returns the results as JSON.
fn results(words: &[&str]) -> Result<Value, String> {
    let output = perf(&[words, &["--json", "-"]].concat())?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words:?}: {errors}");
    serde_json::from_slice(&output.stdout).map_err(|error| format!("{error}: {errors}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Checks that there are these designs, each with numbers for each size.
fn is_complete(document: &Value, names: &[&str], sizes: &[u64]) {
    let runs = list(&document["channel"]);
    let found: Vec<_> = runs.iter().map(|run| run["design"].as_str().unwrap_or_default()).collect();
    assert_eq!(found, names);
    for run in runs {
        let rows = list(&run["rows"]);
        let found: Vec<_> = rows.iter().map(|row| row["bytes"].as_u64().unwrap_or_default()).collect();
        assert_eq!(found, sizes, "{run}");
        for (row, what) in
            rows.iter().flat_map(|row| ["latency_ns", "bandwidth", "exchange"].map(|it| (row, it)))
        {
            assert!(row[what].as_f64().is_some_and(|value| value > 0.0), "{what}: {run}");
        }
    }
}

/// Returns the number before these words in the explanation of a pipe; 0 if the words are not there.
fn count(about: &str, words: &str) -> u64 {
    let before = about.split_once(words).map_or("", |(before, _)| before);
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Checks by the explanation of a pipe that its messages moved as the design of this name moves them.
fn moved_as(name: &str, about: &str) {
    let pipe = match name {
        "direct" => ", direct; ",
        // The packets of a rendezvous go through such a pipe.
        "write-rendezvous" => ", zero-copy, rings of ",
        _ => &format!(", {name}, rings of "),
    };
    assert!(about.contains(pipe), "{name}: {about}");
    let words = [
        " long runs of this process were read by the peer",
        " written into its buffers",
        " copied",
        " buffers of this process were advertised",
    ];
    let [read, written, copied, advertised] = words.map(|words| count(about, words));
    let is_right = match name {
        "zero-copy" => (read, written + copied + advertised) == (LONG, 0),
        "zero-copy-push" => (read + written, copied) == (LONG, 0),
        "learned" => read + written + copied == LONG,
        // All bytes are copied, or no long message goes through the pipe.
        _ => read + written + copied + advertised == 0,
    };
    assert!(is_right, "{name}: {about}");
}

/// Measures all designs with messages below and above NEMESIA_CHANNEL_ZERO_COPY_BYTES.
fn measures(port: &str, names: &[&str]) -> Result<(), String> {
    let sizes = ["--sizes", "8,40000", "--rounds", "1", "--iterations", "2", "--no-pin"];
    let document = results(&[&["--channel", "all", "--port", port], &sizes[..]].concat())?;
    is_complete(&document, names, &[8, 40_000]);
    for run in list(&document["channel"]) {
        moved_as(run["design"].as_str().unwrap_or_default(), run["about"].as_str().unwrap_or_default());
    }
    Ok(())
}

#[test]
fn every_design_moves_its_messages_in_its_own_way_over_shared_memory() -> Result<(), String> {
    measures("shm", &[&["direct"], &NAMES[..]].concat())
}

#[test]
fn every_design_moves_its_messages_in_its_own_way_over_tcp() -> Result<(), String> {
    measures("tcp", &NAMES)
}

#[test]
fn what_cannot_be_measured_is_refused() -> Result<(), String> {
    for (words, why) in [
        (&["--channel", "direct", "--port", "tcp"][..], "must be all, basic"),
        (&["--channel", "all", "--matching"], "cannot be used with"),
        (&["--chunks"], "--channel"),
    ] {
        let output = perf(words)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && errors.contains(why), "{words:?}: {errors}");
    }
    Ok(())
}
