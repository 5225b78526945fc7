//! `perf` and `info` of the memory ports: TCP is measured end to end, and a missing RDMA device is reported.

use std::process::{Command, Output};

use serde_json::Value;

/// Runs the program.
fn nemesia(words: &[&str]) -> Result<Output, String> {
    let program = std::env::var_os("NEMESIA_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_nemesia").into());
    let mut command = Command::new("timeout");
    command.arg("600").arg(program).args(words).env("NEMESIA_CONFIG", "");
    command.output().map_err(|error| error.to_string())
}

/// Returns the standard error output; checks that it is one line and that the status is 2.
fn refused(words: &[&str]) -> Result<String, String> {
    let output = nemesia(words)?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{words:?}: {errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    Ok(errors)
}

/// Returns whether `info` finds a usable device.
fn has_device() -> Result<bool, String> {
    let output = nemesia(&["info", "--json"])?;
    let document: Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let facilities = document["facilities"].as_array().ok_or("no facilities")?;
    let verbs = facilities.iter().find(|it| it["name"] == "verbs").ok_or("verbs is not listed")?;
    verbs["usable"].as_bool().ok_or_else(|| verbs.to_string())
}

/// The program `peer` compares the same numbers with those of real connections.
#[test]
fn info_shows_what_connections_between_hosts_cost() -> Result<(), String> {
    let document = |words: &[&str]| -> Result<Value, String> {
        let output = nemesia(&[&["info", "--json", "--processes", "8"], words].concat())?;
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
    };
    assert!(document(&[])?["between_hosts"].is_null(), "one host");
    for (hosts, remote) in [("2", 4), ("3", 6), ("8", 7), ("99", 7)] {
        let it = &document(&["--hosts", hosts])?["between_hosts"];
        assert_eq!((&it["remote_ranks"], &it["connections"]), (&remote.into(), &remote.into()));
        let number = |name: &str| it[name].as_u64().ok_or_else(|| format!("{name}: {it}"));
        assert!(number("first_buffers")? < number("most_buffers")?);
        let [verbs, tcp] = [0, 1].map(|at| it["transports"][at].clone());
        assert_eq!((&verbs["name"], &verbs["queue_pairs"]), (&"verbs".into(), &remote.into()));
        // One queue for all connections, and some that end or are refused, with a probe for each.
        let depth = |name: &str| verbs[name].as_u64().unwrap_or(0);
        assert_eq!(
            depth("completion_entries"),
            (8 + 16) * (depth("send_depth") + depth("receive_depth") + 1)
        );
        assert_eq!((&tcp["name"], &tcp["descriptors_per_connection"]), (&"tcp".into(), &1.into()));
    }
    let text = nemesia(&["info", "--processes", "8", "--hosts", "2"])?.stdout;
    let text = String::from_utf8_lossy(&text);
    for line in [
        "Between hosts, for each process in a world of 8 on 2 hosts: 4 connections with 4 ranks",
        "over verbs  5 descriptors; queues of 64 sends and 32 receives in each of 4 queue pairs, one completion queue \
         of 2328 entries; rings, if the device keeps the order of bytes: 256.0 KiB",
        "over tcp    6 descriptors; queues of 64 sends and 32 receives\n",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    Ok(())
}

/// What the description of a memory port says, in the results and in the table.
const PORT: (&str, &str) = ("RDMA writes", "without the engine");

/// Measures a port. Every size has every result, and every byte is checked.
fn measures(port: &str, (what, whole): (&str, &str), more: &[&str]) -> Result<(), String> {
    let sizes = [0, 1, 8, 4096, 100_000];
    let list = sizes.map(|bytes| bytes.to_string()).join(",");
    let mut words = vec![
        "perf",
        "--port",
        port,
        "--no-plot",
        "--json",
        "-",
        "--iterations",
        "70",
        "--rounds",
        "1",
        "--sizes",
        &list,
    ];
    words.extend(more);
    let output = nemesia(&words)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    assert!(errors.contains(whole), "{errors}");
    assert_eq!(errors.contains("windows of 64"), ["shm", "net"].contains(&port), "{errors}");
    let document: Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let measures = document["measures"].as_str().unwrap_or_default();
    assert!(measures.contains(what), "{document}");
    let results = document["results"].as_array().ok_or("no results")?;
    for (test, value) in [("latency", "p50_ns"), ("bandwidth", "MBps"), ("rate", "per_s")] {
        for bytes in sizes {
            let wanted = |it: &&Value| it["port"] == port && it["test"] == test && it["bytes"] == bytes;
            let number = results.iter().find(wanted).and_then(|it| it[value].as_f64());
            // On a busy machine the bandwidth of a few bytes is rounded to zero.
            let least = if test == "bandwidth" && bytes < 4096 { 0.0 } else { f64::MIN_POSITIVE };
            assert!(number.is_some_and(|number| number >= least), "{test} {bytes}: {document}");
        }
    }
    Ok(())
}

#[test]
fn tcp_is_measured_in_both_ways() -> Result<(), String> {
    measures("tcp", PORT, &[])?;
    assert!(nemesia(&["info", "--port", "tcp"])?.status.success());
    Ok(())
}

#[test]
fn the_engine_is_measured_between_machines() -> Result<(), String> {
    measures("net", ("engine over", "windows of 64 messages"), &[])
}

#[test]
fn one_sided_operations_are_measured_inside_a_machine_and_between_machines() -> Result<(), String> {
    for port in ["shm", "net"] {
        measures(port, ("puts", "windows of 64 puts"), &["--operation", "put"])?;
        measures(port, ("gets", "latency: of a get"), &["--operation", "get"])?;
    }
    assert!(refused(&["perf", "--port", "tcp", "--operation", "put"])?.contains("--operation is for --port"));
    Ok(())
}

#[test]
fn verbs_is_measured_where_there_is_a_device_and_elsewhere_the_reason_is_said() -> Result<(), String> {
    if has_device()? {
        assert!(nemesia(&["info", "--port", "verbs"])?.status.success());
        return measures("verbs", PORT, &[]);
    }
    for words in [&["perf", "--port", "verbs", "--no-plot"][..], &["info", "--port", "verbs"]] {
        let errors = refused(words)?;
        assert!(errors.contains("verbs can't be used here"), "{errors}");
        assert!(
            ["install", "load", "rdma", "ulimit"].iter().any(|remedy| errors.contains(remedy)),
            "{errors}"
        );
    }
    Ok(())
}

#[test]
fn a_device_that_is_not_there_is_refused() -> Result<(), String> {
    let errors = refused(&["perf", "--port", "verbs", "--device", "no-such-device"])?;
    assert!(errors.contains("verbs can't be used here"), "{errors}");
    Ok(())
}

#[test]
fn what_a_memory_port_does_not_have_is_refused() -> Result<(), String> {
    for words in [
        &["perf", "--port", "tcp", "--counters"][..],
        &["perf", "--port", "tcp", "--unexpected", "5"],
        &["perf", "--port", "verbs", "--matching"],
    ] {
        assert!(refused(words)?.contains("is of the engine"));
    }
    for words in [&["perf", "--device", "mlx5_0"][..], &["perf", "--port", "tcp", "--device", "mlx5_0"]] {
        assert!(refused(words)?.contains("--device is for --port verbs"));
    }
    for (words, option) in
        [(&["perf", "--last-byte"][..], "--last-byte"), (&["perf", "--inline", "0"], "--inline")]
    {
        assert!(refused(words)?.contains(&format!("{option} is for --port verbs")));
    }
    for port in ["shm", "tcp"] {
        let errors = refused(&["perf", "--port", port, "--second-through", "env"])?;
        assert!(errors.contains("--second-through is for --port net and verbs"), "{errors}");
    }
    for words in
        [&["perf", "--port", "net", "--matching"][..], &["perf", "--port", "net", "--unexpected", "5"]]
    {
        assert!(refused(words)?.contains("for --port shm"));
    }
    assert!(refused(&["perf", "--port", "net", "--channel", "all"])?.contains("--channel is for --port"));
    assert!(refused(&["info", "--port", "net"])?.contains("net"));
    Ok(())
}
