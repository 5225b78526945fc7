//! The results of `perf --channel` as a picture: a curve for each design.
#![forbid(unsafe_code)]

use std::error::Error;

use plotters::prelude::*;

use super::{ChannelRow, ChannelRun};
use crate::sizes::short;

const PANEL: (u32, u32) = (640, 480);
const HEADING: u32 = 40;
const FONT: &str = "sans-serif";
const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(200, 60, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
    RGBColor(90, 90, 90),
    RGBColor(227, 119, 194),
    RGBColor(23, 170, 190),
];

/// Returns the value of a row that a panel shows.
type Picked = fn(&ChannelRow) -> f64;

/// Draws latency and bandwidth.
///
/// # Errors
/// The error of the drawing library.
pub(super) fn svg(port: &str, runs: &[ChannelRun]) -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (2 * PANEL.0, PANEL.1 + HEADING)).into_drawing_area();
        root.fill(&WHITE)?;
        let (top, rest) = root.split_vertically(HEADING);
        top.titled(&format!("RDMA Channel, port {port}, 2 processes"), (FONT, 20))?;
        let areas = rest.split_evenly((1, 2));
        let panels: [(&str, &str, Picked); 2] = [
            ("Latency, one way", "microseconds", |row| row.latency_ns / 1000.0),
            ("Bandwidth, one way", "MB/s (1 MB is 10^6 bytes)", |row| row.bandwidth),
        ];
        for (area, (caption, unit, pick)) in areas.iter().zip(panels) {
            let value = |row: &ChannelRow| pick(row).max(1e-3);
            let rows = || runs.iter().flat_map(|run| &run.rows);
            let (low, high) = rows()
                .fold((f64::MAX, 1e-3_f64), |(low, high), row| (low.min(value(row)), high.max(value(row))));
            let place = |bytes: usize| (bytes.max(1) as f64).log2();
            let most = rows().map(|row| place(row.bytes)).fold(1.0, f64::max);
            let mut chart = ChartBuilder::on(area)
                .caption(caption, (FONT, 18))
                .margin(15)
                .x_label_area_size(45)
                .y_label_area_size(75)
                .build_cartesian_2d(-0.5..most + 0.5, (low / 1.5..high * 4.0).log_scale())?;
            chart
                .configure_mesh()
                .x_desc("message size (bytes)")
                .y_desc(unit)
                .label_style((FONT, 13))
                .light_line_style(BLACK.mix(0.05))
                .x_labels(14)
                .x_label_formatter(&|at| if *at < 0.0 { String::new() } else { short(1 << *at as u32) })
                .draw()?;
            for (run, colour) in runs.iter().zip(COLOURS.iter().cycle()) {
                let points = run.rows.iter().map(|row| (place(row.bytes), value(row)));
                chart
                    .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
                    .label(run.design.clone())
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
            }
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperLeft)
                .label_font((FONT, 14))
                .background_style(WHITE.mix(0.9))
                .border_style(BLACK.mix(0.3))
                .draw()?;
        }
        root.present()?;
    }
    Ok(text)
}
