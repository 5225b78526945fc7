//! What the paper's raw figures predict, in place of measurements.
#![forbid(unsafe_code)]

use std::fmt::Write;

use nemesia::rdma_channel::Design;
use nemesia_verification::pipes::cost::{CHUNK_BYTES, CostModel, CostWay, ZERO_COPY_BYTES};

use super::{CHUNKS, ChannelRow, ChannelRun, RENDEZVOUS, SWEPT_BYTES};
use crate::failure::Failure;

/// The designs of which the model knows the costs. The learned design measures, and the direct one has no port.
const DESIGNS: [Design; 5] =
    [Design::Basic, Design::Piggyback, Design::Pipelined, Design::ZeroCopy, Design::ZeroCopyPush];

/// Returns the names of what can be predicted.
pub(super) fn names() -> Vec<&'static str> {
    DESIGNS.map(Design::name).into_iter().chain([RENDEZVOUS]).collect()
}

/// Returns the predictions for a design, with chunks of another size if one is given.
pub(super) fn run(
    model: CostModel,
    name: &str,
    chunk: Option<u32>,
    sizes: &[usize],
) -> Result<ChannelRun, Failure> {
    let design = DESIGNS.into_iter().find(|design| design.name() == name);
    let bytes = chunk.unwrap_or(CHUNK_BYTES);
    let way = design.map_or(CostWay::Rendezvous, |design| CostWay::Pipe(design, bytes));
    let rows = sizes.iter().map(|&bytes| {
        let cost = model.cost(way, bytes).map_err(Failure::failed)?;
        Ok(ChannelRow {
            bytes,
            latency_ns: cost.latency * 1000.0,
            bandwidth: cost.bandwidth,
            exchange: cost.exchange,
            ..ChannelRow::default()
        })
    });
    Ok(ChannelRun {
        design: name.to_owned(),
        about: format!(
            "chunks of {bytes} bytes, no copy from {ZERO_COPY_BYTES} bytes on in the zero-copy designs"
        ),
        chunk,
        rows: rows.collect::<Result<_, Failure>>()?,
        ..ChannelRun::default()
    })
}

/// Returns the predictions for the sweep of chunk sizes.
pub(super) fn sweep(model: CostModel) -> Result<Vec<ChannelRun>, Failure> {
    CHUNKS.iter().map(|chunk| run(model, Design::Pipelined.name(), Some(*chunk), &[SWEPT_BYTES])).collect()
}

/// Returns a table of the paper's figures beside the predictions.
pub(super) fn figures(model: CostModel) -> Result<String, Failure> {
    let mut text = String::from("figure of the paper   there   predicted\n");
    for figure in model.predictions().map_err(Failure::failed)? {
        let percent = figure.difference() * 100.0;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:<20} {:>6.1} {:>11.1} ({percent:+.0} %)",
            figure.name, figure.measured, figure.predicted
        );
    }
    Ok(text)
}
