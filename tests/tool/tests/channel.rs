//! `perf --channel`: every design is measured end to end over ports that every machine has, and predicted.

use std::process::{Command, Output};

use serde_json::Value;

/// What is measured over ports.
const NAMES: [&str; 7] =
    ["basic", "piggyback", "pipelined", "zero-copy", "zero-copy-push", "learned", "write-rendezvous"];

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

fn measures(port: &str, names: &[&str]) -> Result<(), String> {
    // Long messages go past the pipe, short ones through it.
    let sizes = ["--sizes", "8,40000", "--rounds", "1", "--iterations", "2", "--no-pin"];
    let document = results(&[&["--channel", "all", "--port", port], &sizes[..]].concat())?;
    is_complete(&document, names, &[8, 40_000]);
    Ok(())
}

#[test]
fn every_design_is_measured_over_shared_memory() -> Result<(), String> {
    measures("shm", &[&["direct"], &NAMES[..]].concat())
}

#[test]
fn every_design_is_measured_over_tcp() -> Result<(), String> {
    measures("tcp", &NAMES)
}

#[test]
fn the_papers_raw_figures_predict_its_others() -> Result<(), String> {
    let words = ["--channel", "all", "--model", "--sizes", "44,65536,1048576", "--chunks"];
    let document = results(&words)?;
    let names: Vec<_> = NAMES.into_iter().filter(|name| *name != "learned").collect();
    is_complete(&document, &names, &[44, 65_536, 1_048_576]);
    let of = |name: &str, at: usize, what: &str| {
        let run = list(&document["channel"]).iter().find(|run| run["design"] == name).unwrap();
        run["rows"][at][what].as_f64().unwrap()
    };
    // Figures 5 and 11 of the paper, within a fifth; and figure 13: the write rendezvous is ahead.
    assert!((of("basic", 2, "bandwidth") / 230.0 - 1.0).abs() < 0.2);
    assert!((of("zero-copy", 2, "bandwidth") / 857.0 - 1.0).abs() < 0.2);
    assert!(of("write-rendezvous", 1, "bandwidth") > 1.1 * of("zero-copy", 1, "bandwidth"));
    assert_eq!(document["chunks"].as_array().map(Vec::len), Some(8));
    // A slow read makes messages slower that are read, and no others.
    let slow = results(&[&words[..], &["--read-penalty", "10"]].concat())?;
    let latency =
        |document: &Value, at: usize| document["channel"][at]["rows"][2]["latency_ns"].as_f64().unwrap();
    let zero_copy = names.iter().position(|name| *name == "zero-copy").unwrap();
    assert!((latency(&slow, zero_copy) - latency(&document, zero_copy) - 10_000.0).abs() < 1.0);
    assert!((latency(&slow, 0) - latency(&document, 0)).abs() < 1.0);
    let text = perf(&words)?.stdout;
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("figure of the paper") && text.contains("basic, us"), "{text}");
    Ok(())
}

#[test]
fn what_cannot_be_predicted_or_measured_is_refused() -> Result<(), String> {
    for (words, why) in [
        (&["--channel", "learned", "--model"][..], "must be all, basic"),
        (&["--channel", "direct", "--port", "tcp"], "must be all, basic"),
        (&["--channel", "all", "--model", "--port", "tcp"], "cannot be used with"),
        (&["--model"], "--channel"),
    ] {
        let output = perf(words)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && errors.contains(why), "{words:?}: {errors}");
    }
    Ok(())
}
