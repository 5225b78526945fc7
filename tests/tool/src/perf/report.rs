//! The results, as a table and as JSON.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::link::WINDOW;
use super::traffic::Seen;
use super::worker::Measured;
use crate::cli::{Operation, Test};
use crate::failure::Failure;
use crate::sizes::short;

/// Copies of so many sizes stand in one line.
const COPIES_IN_A_LINE: usize = 5;

/// What was asked for, as far as it shows in the results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout<'a> {
    pub(crate) port: &'static str,
    pub(crate) operation: Operation,
    /// The cores of the two processes, if they were bound.
    pub(crate) pins: Option<[usize; 2]>,
    pub(crate) rounds: u32,
    pub(crate) tests: &'a [Test],
    pub(crate) sizes: &'a [usize],
}

#[derive(Debug, Serialize)]
struct ReportDocument {
    /// What was measured, where the name of the port does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    measures: Option<String>,
    limits: Limits,
    results: Vec<Entry>,
    /// The counters of each rank by name, if they were requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    counters: Vec<BTreeMap<String, u64>>,
}

#[derive(Debug, Serialize)]
struct Limits {
    handover_ns: f64,
    #[serde(rename = "memcpy_MBps")]
    memcpy: BTreeMap<usize, f64>,
}

#[derive(Debug, Serialize)]
struct Entry {
    port: &'static str,
    test: Test,
    bytes: usize,
    #[serde(flatten)]
    value: Value,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Value {
    Latency {
        p50_ns: f64,
        p99_ns: f64,
        /// Measured just before and after the latency of this size.
        #[serde(skip_serializing_if = "Option::is_none")]
        handover_ns: Option<f64>,
        /// The same copies without the library.
        #[serde(skip_serializing_if = "Option::is_none")]
        bare_ns: Option<f64>,
        /// The same bytes in lists.
        #[serde(skip_serializing_if = "Option::is_none")]
        list_ns: Option<f64>,
    },
    Bandwidth {
        #[serde(rename = "MBps")]
        megabytes: f64,
        /// The same copies without the library.
        #[serde(rename = "bare_MBps", skip_serializing_if = "Option::is_none")]
        bare: Option<f64>,
    },
    Rate {
        per_s: f64,
    },
}

/// Returns the results as JSON, with a final newline.
///
/// # Errors
/// A value has no form in JSON.
pub(crate) fn json(layout: &Layout<'_>, measured: &Measured, seen: &[Seen]) -> Result<String, Failure> {
    let entries = layout.tests.iter().flat_map(|test| {
        layout.sizes.iter().filter_map(|bytes| {
            value(*test, *bytes, measured).map(|value| Entry {
                port: layout.port,
                test: *test,
                bytes: *bytes,
                value,
            })
        })
    });
    let memcpy = measured.memcpy.iter().map(|(bytes, value)| (*bytes, rounded(*value))).collect();
    let limits = Limits { handover_ns: rounded(measured.hand_over_ns), memcpy };
    let document = ReportDocument {
        measures: measured.about.clone(),
        limits,
        results: entries.collect(),
        counters: super::counters::by_name(seen),
    };
    serde_json::to_string(&document).map(|text| text + "\n").map_err(Failure::failed)
}

fn value(test: Test, bytes: usize, measured: &Measured) -> Option<Value> {
    Some(match test {
        Test::Latency => {
            let (p50, p99) = *measured.latency.get(&bytes)?;
            let handover_ns = measured.beside.get(&bytes).map(|(ns, _)| rounded(*ns));
            let bare_ns = measured.bare_latency.get(&bytes).map(|(ns, _)| rounded(*ns));
            let list_ns = measured.list_latency.get(&bytes).map(|(ns, _)| rounded(*ns));
            Value::Latency { p50_ns: rounded(p50), p99_ns: rounded(p99), handover_ns, bare_ns, list_ns }
        }
        Test::Bandwidth => {
            let bare = measured.bare_rate.get(&bytes).map(|(rate, _)| rounded(rate * bytes as f64 / 1e6));
            Value::Bandwidth { megabytes: rounded(bandwidth(bytes, measured)?), bare }
        }
        Test::Rate => Value::Rate { per_s: measured.rate.get(&bytes)?.round() },
    })
}

/// Returns megabytes (10^6 bytes) per second.
pub(crate) fn bandwidth(bytes: usize, measured: &Measured) -> Option<f64> {
    measured.rate.get(&bytes).map(|rate| rate * bytes as f64 / 1e6)
}

/// Rounds to one digit after the point.
fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// Returns the results as a table.
pub(crate) fn table(layout: &Layout<'_>, measured: &Measured) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_limits(&mut out, layout, measured).and_then(|()| write_table(&mut out, layout, measured));
    out
}

/// Says on which cores the processes ran.
pub(crate) fn places(layout: &Layout<'_>) -> String {
    layout.pins.map_or_else(|| "not pinned".to_owned(), |[one, other]| format!("on cores {one} and {other}"))
}

fn write_limits(out: &mut String, layout: &Layout<'_>, measured: &Measured) -> std::fmt::Result {
    writeln!(out, "port {}, 2 processes {}, timed by {}", layout.port, places(layout), measured.timer)?;
    if let Some(about) = &measured.about {
        writeln!(out, "{about}")?;
    }
    writeln!(out)?;
    writeln!(out, "Limits of this machine, measured in the same run without the library")?;
    let hand_over = measured.hand_over_ns;
    writeln!(
        out,
        "  hand-over   {hand_over:.1} ns for one cache line, one way (median of {})",
        measured.hand_overs
    )?;
    let copies: Vec<String> =
        measured.memcpy.iter().map(|(bytes, value)| format!("{:>6} {value:>7.0}", short(*bytes))).collect();
    for (at, line) in copies.chunks(COPIES_IN_A_LINE).enumerate() {
        let head = if at == 0 { "memcpy MB/s" } else { "" };
        writeln!(out, "  {head:<11} {}", line.join(" "))?;
    }
    writeln!(out)
}

fn write_table(out: &mut String, layout: &Layout<'_>, measured: &Measured) -> std::fmt::Result {
    let rounds = layout.rounds;
    let mut columns = vec![("size", layout.sizes.iter().map(|bytes| short(*bytes)).collect::<Vec<_>>())];
    for (head, cell) in cells(layout.tests, measured) {
        let text = |bytes: &usize| cell(*bytes, measured).unwrap_or_else(|| "-".to_owned());
        columns.push((head, layout.sizes.iter().map(text).collect()));
    }
    let mut lines = vec![String::new(); layout.sizes.len() + 1];
    for (head, cells) in &columns {
        let width = cells.iter().map(String::len).fold(head.len(), usize::max);
        for (line, cell) in
            lines.iter_mut().zip(std::iter::once(*head).chain(cells.iter().map(String::as_str)))
        {
            write!(line, "  {cell:>width$}")?;
        }
    }
    writeln!(out, "{}", lines.join("\n"))?;
    writeln!(out)?;
    if layout.tests.contains(&Test::Latency) {
        let what = match layout.operation {
            Operation::Send => "half a round trip",
            Operation::Put => "half a round trip of puts with notification",
            Operation::Get => "of a get, until its bytes are here",
        };
        writeln!(
            out,
            "latency: {what}; p50 and p99 of each round, and of these the median of {rounds} rounds"
        )?;
        writeln!(
            out,
            "hand-over: one cache line, one way, without the library, just before and after each latency"
        )?;
    }
    if layout.tests.iter().any(|test| *test != Test::Latency) {
        let what = match layout.port {
            // The description of a memory port says how many requests are under way.
            "tcp" | "verbs" => "RDMA writes, until the target has confirmed the last".to_owned(),
            _ => {
                let what = match layout.operation {
                    Operation::Send => "messages",
                    Operation::Put => "puts, until they are in place",
                    Operation::Get => "gets",
                };
                format!("windows of {WINDOW} {what}")
            }
        };
        writeln!(out, "bandwidth, rate: {what}; median of {rounds} rounds; 1 MB is 10^6 bytes")?;
    }
    Ok(())
}

type Cell = fn(usize, &Measured) -> Option<String>;

fn cells(tests: &[Test], measured: &Measured) -> Vec<(&'static str, Cell)> {
    let mut columns: Vec<(&'static str, Cell)> = Vec::new();
    if tests.contains(&Test::Latency) {
        columns.push(("latency p50 ns", |bytes, measured| {
            Some(format!("{:.1}", measured.latency.get(&bytes)?.0))
        }));
        columns.push(("p99 ns", |bytes, measured| Some(format!("{:.0}", measured.latency.get(&bytes)?.1))));
        columns
            .push(("hand-over ns", |bytes, measured| Some(format!("{:.1}", measured.beside.get(&bytes)?.0))));
        if !measured.bare_latency.is_empty() {
            columns.push(("bare copy ns", |bytes, measured| {
                Some(format!("{:.0}", measured.bare_latency.get(&bytes)?.0))
            }));
            columns.push(("of bare", |bytes, measured| {
                Some(format!("{:.2}", measured.bare_latency.get(&bytes)?.1))
            }));
        }
        if !measured.list_latency.is_empty() {
            columns.push(("list ns", |bytes, measured| {
                Some(format!("{:.0}", measured.list_latency.get(&bytes)?.0))
            }));
            columns.push(("x contiguous", |bytes, measured| {
                Some(format!("{:.2}", measured.list_latency.get(&bytes)?.1))
            }));
        }
        columns.push(("x hand-over", |bytes, measured| {
            Some(format!("{:.2}", Some(measured.beside.get(&bytes)?.1).filter(|ratio| *ratio > 0.0)?))
        }));
    }
    if tests.contains(&Test::Bandwidth) {
        columns.push(("bandwidth MB/s", |bytes, measured| {
            bandwidth(bytes, measured).filter(|_| bytes > 0).map(|value| format!("{value:.1}"))
        }));
        columns.push(("% of memcpy", |bytes, measured| {
            let memcpy = measured.memcpy.get(&bytes).filter(|value| **value > 0.0)?;
            Some(format!("{:.1}", bandwidth(bytes, measured)? / memcpy * 100.0))
        }));
        if !measured.bare_rate.is_empty() {
            columns.push(("bare copy MB/s", |bytes, measured| {
                Some(format!("{:.0}", measured.bare_rate.get(&bytes)?.0 * bytes as f64 / 1e6))
            }));
            columns.push(("of bare", |bytes, measured| {
                Some(format!("{:.2}", measured.bare_rate.get(&bytes)?.1))
            }));
        }
    }
    if tests.contains(&Test::Rate) {
        columns.push(("rate msg/s", |bytes, measured| Some(format!("{:.0}", measured.rate.get(&bytes)?))));
    }
    columns
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const ALL: [Test; 3] = [Test::Latency, Test::Bandwidth, Test::Rate];

    pub(crate) fn measured() -> Measured {
        Measured {
            timer: "a clock".to_owned(),
            about: None,
            hand_over_ns: 100.04,
            hand_overs: 5,
            memcpy: [(1024, 20_000.0), (65_536, 18_000.26)].into(),
            latency: [
                (0, (150.0, 170.0)),
                (8, (160.04, 200.0)),
                (1024, (400.0, 500.0)),
                (65_536, (9e3, 1e4)),
            ]
            .into(),
            beside: [(0, (100.0, 1.5)), (8, (100.04, 1.6)), (1024, (50.0, 8.0)), (65_536, (100.0, 90.0))]
                .into(),
            rate: [(0, 2e7), (8, 1e7), (1024, 2e6), (65_536, 2e5)].into(),
            ..Measured::default()
        }
    }

    #[test]
    fn json_has_the_keys_that_its_readers_rely_on() {
        let layout = Layout {
            port: "shm",
            operation: Operation::Send,
            pins: Some([0, 1]),
            rounds: 5,
            tests: &ALL,
            sizes: &[8, 1024],
        };
        let expected = concat!(
            r#"{"limits":{"handover_ns":100.0,"memcpy_MBps":{"1024":20000.0,"65536":18000.3}},"results":["#,
            r#"{"port":"shm","test":"latency","bytes":8,"p50_ns":160.0,"p99_ns":200.0,"handover_ns":100.0},"#,
            r#"{"port":"shm","test":"latency","bytes":1024,"p50_ns":400.0,"p99_ns":500.0,"handover_ns":50.0},"#,
            r#"{"port":"shm","test":"bandwidth","bytes":8,"MBps":80.0},"#,
            r#"{"port":"shm","test":"bandwidth","bytes":1024,"MBps":2048.0},"#,
            r#"{"port":"shm","test":"rate","bytes":8,"per_s":10000000.0},"#,
            r#"{"port":"shm","test":"rate","bytes":1024,"per_s":2000000.0}]}"#,
            "\n"
        );
        assert_eq!(json(&layout, &measured(), &[Seen::default(), Seen::default()]).unwrap(), expected);
    }

    #[test]
    fn only_what_was_asked_for_is_reported() {
        let layout = Layout {
            port: "shm",
            operation: Operation::Send,
            pins: None,
            rounds: 5,
            tests: &[Test::Rate],
            sizes: &[8],
        };
        let text = json(&layout, &measured(), &[]).unwrap();
        assert!(text.contains("per_s") && !text.contains("p50_ns") && !text.contains(r#""MBps""#), "{text}");
        let text = table(&layout, &measured());
        assert!(text.contains("rate msg/s") && !text.contains("p50") && !text.contains("% of"), "{text}");
    }

    #[test]
    fn the_table_sets_results_against_the_limits() {
        let layout = Layout {
            port: "shm",
            operation: Operation::Send,
            pins: Some([0, 1]),
            rounds: 5,
            tests: &ALL,
            sizes: &[0, 8, 1024],
        };
        let text = table(&layout, &measured());
        let row = |head: &str| -> Vec<&str> {
            text.lines()
                .map(|line| line.split_whitespace().collect::<Vec<_>>())
                .find(|row| row.first() == Some(&head))
                .unwrap()
        };
        assert_eq!(row("0"), ["0", "150.0", "170", "100.0", "1.50", "-", "-", "20000000"]);
        assert_eq!(row("8"), ["8", "160.0", "200", "100.0", "1.60", "80.0", "-", "10000000"]);
        assert_eq!(row("1Ki"), ["1Ki", "400.0", "500", "50.0", "8.00", "2048.0", "10.2", "2000000"]);
    }
}
