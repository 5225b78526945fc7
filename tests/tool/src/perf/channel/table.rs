//! The results of `perf --channel` as text.
#![forbid(unsafe_code)]

use std::fmt::Write;

use super::ChannelRun;
use crate::sizes::short;

/// Returns the tables of all designs and of the sweep of chunk sizes.
pub(super) fn table(port: &str, runs: &[ChannelRun], swept: &[ChannelRun]) -> String {
    let mut text = String::new();
    for run in runs {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "RDMA Channel, port {port}, design {}", run.design);
        let _ = writeln!(text, "{}", run.about);
        if run.hits + run.misses > 0 {
            let kept = if run.keep { "kept" } else { "dropped" };
            let _ = writeln!(text, "registrations ({kept}): {} found, {} made", run.hits, run.misses);
        }
        let engine = run.rows.iter().any(|row| row.ratio.is_some());
        let beside = if engine { "   engine us  ratio" } else { "" };
        let _ = writeln!(text, "{:>9}  latency us{beside}   one way MB/s  two ways MB/s", "bytes");
        for row in &run.rows {
            let _ = write!(text, "{:>9}  {:>10.3}", short(row.bytes), row.latency_ns / 1000.0);
            if let (Some(ns), Some(ratio)) = (row.engine_ns, row.ratio) {
                let _ = write!(text, "  {:>10.3}  {ratio:>5.2}", ns / 1000.0);
            }
            let _ = writeln!(text, "  {:>13.1}  {:>13.1}", row.bandwidth, row.exchange);
        }
        text.push('\n');
    }
    if !swept.is_empty() {
        let _ =
            writeln!(text, "chunk bytes  MB/s one way, pipelined, messages of {}", short(super::SWEPT_BYTES));
        for run in swept {
            let (chunk, rate) =
                (run.chunk.unwrap_or_default(), run.rows.first().map_or(0.0, |row| row.bandwidth));
            let _ = writeln!(text, "{:>11}  {rate:>12.1}", short(chunk as usize));
        }
    }
    text
}
