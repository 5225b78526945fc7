//! The results as a picture: latency beside the hand-over, bandwidth beside memcpy.
#![forbid(unsafe_code)]

use std::error::Error;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::report::{Layout, bandwidth, places};
use super::worker::Measured;
use crate::cli::Test;
use crate::sizes::short;

const PANEL: (u32, u32) = (640, 520);
const HEADING: u32 = 40;
/// The position of empty messages on the axis.
const NOTHING: f64 = -2.0;
const FONT: &str = "sans-serif";
const BLUE: RGBColor = RGBColor(31, 119, 180);
const LIGHT_BLUE: RGBColor = RGBColor(158, 202, 225);
const RED: RGBColor = RGBColor(200, 60, 40);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The contents of one panel.
struct Panel {
    caption: &'static str,
    unit: &'static str,
    curves: Vec<Curve>,
}

struct Curve {
    name: String,
    colour: RGBColor,
    /// Whether each point is a measured one.
    marked: bool,
    points: Vec<(f64, f64)>,
}

/// Draws the panels for which there are results.
///
/// # Errors
/// The error of the drawing library.
pub(crate) fn svg(layout: &Layout<'_>, measured: &Measured) -> Result<String, Box<dyn Error>> {
    let panels: Vec<Panel> = layout
        .tests
        .iter()
        .filter_map(|test| match test {
            Test::Latency => Some(latency(layout, measured)),
            Test::Bandwidth => Some(throughput(layout, measured)),
            Test::Rate => None,
        })
        .collect();
    let count = panels.len().max(1);
    let mut text = String::new();
    {
        let size = (PANEL.0 * count as u32, PANEL.1 + HEADING);
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (top, rest) = root.split_vertically(HEADING);
        let heading = format!("Nemesia, port {}, 2 processes {}", layout.port, places(layout));
        top.titled(&heading, (FONT, 20))?;
        for (area, panel) in rest.split_evenly((1, count)).iter().zip(panels) {
            draw(area, places_of(layout.sizes), panel)?;
        }
        root.present()?;
    }
    Ok(text)
}

fn latency(layout: &Layout<'_>, measured: &Measured) -> Panel {
    let curve = |name: &str, colour, pick: fn(&(f64, f64)) -> f64| {
        let points = measured.latency.iter().map(|(bytes, values)| (place(*bytes), pick(values) / 1000.0));
        Curve { name: name.to_owned(), colour, marked: true, points: points.collect() }
    };
    let range = places_of(layout.sizes);
    let hand_over = measured.hand_over_ns / 1000.0;
    let limit = Curve {
        name: format!("hand-over of a cache line, median {:.0} ns", measured.hand_over_ns),
        colour: RED,
        marked: false,
        points: if measured.beside.is_empty() {
            vec![(range.start, hand_over), (range.end, hand_over)]
        } else {
            measured.beside.iter().map(|(bytes, (ns, _))| (place(*bytes), ns / 1000.0)).collect()
        },
    };
    let curves = vec![
        curve("99th percentile", LIGHT_BLUE, |values| values.1),
        curve("median", BLUE, |values| values.0),
        limit,
    ];
    Panel { caption: "Latency, one way", unit: "microseconds", curves }
}

fn throughput(layout: &Layout<'_>, measured: &Measured) -> Panel {
    let memcpy = measured.memcpy.iter().map(|(bytes, value)| (place(*bytes), value / 1000.0)).collect();
    let sizes = layout.sizes.iter().filter(|bytes| **bytes > 0);
    let points =
        sizes.filter_map(|bytes| Some((place(*bytes), bandwidth(*bytes, measured)? / 1000.0))).collect();
    let curves = vec![
        Curve { name: "memcpy in one process".to_owned(), colour: RED, marked: true, points: memcpy },
        Curve { name: "windows of 64 messages".to_owned(), colour: BLUE, marked: true, points },
    ];
    Panel { caption: "Bandwidth", unit: "GB/s (1 GB is 10^9 bytes)", curves }
}

fn draw(area: &Area<'_>, range: Range<f64>, panel: Panel) -> Result<(), Box<dyn Error>> {
    let values = || panel.curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.1));
    let high = values().fold(1e-6, f64::max);
    let low = values().fold(high, f64::min).max(1e-6) / 1.5;
    let mut chart = ChartBuilder::on(area)
        .caption(panel.caption, (FONT, 18))
        .margin(15)
        .x_label_area_size(45)
        .y_label_area_size(75)
        // The legend takes the upper quarter.
        .build_cartesian_2d(range, (low..high * (high / low).powf(0.3)).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("message size (bytes)")
        .y_desc(panel.unit)
        .axis_desc_style((FONT, 15))
        .label_style((FONT, 13))
        .light_line_style(BLACK.mix(0.05))
        .x_labels(14)
        .x_label_formatter(&|at| size_at(*at))
        .y_label_formatter(&|value| format!("{value}"))
        .draw()?;
    for Curve { name, colour, marked, points } in panel.curves {
        let marks = if marked { points.clone() } else { Vec::new() };
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
        chart.draw_series(marks.into_iter().map(|point| Circle::new(point, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font((FONT, 14))
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

/// Returns the position of a size on the axis: its logarithm, and two steps left of 1 for 0.
fn place(bytes: usize) -> f64 {
    if bytes == 0 { NOTHING } else { (bytes as f64).log2() }
}

fn places_of(sizes: &[usize]) -> Range<f64> {
    let places = || sizes.iter().map(|bytes| place(*bytes));
    let (low, high) = (places().fold(f64::INFINITY, f64::min), places().fold(NOTHING, f64::max));
    low.min(high) - 0.5..high + 0.5
}

fn size_at(at: f64) -> String {
    if at.fract() != 0.0 || !(NOTHING..=40.0).contains(&at) {
        return String::new();
    }
    if at < 0.0 {
        return if at == NOTHING { "0".to_owned() } else { String::new() };
    }
    short(1 << at as u32)
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{ALL, measured};
    use super::*;
    use crate::cli::Operation;

    #[test]
    fn the_picture_names_axes_units_and_curves() {
        let layout = Layout {
            port: "shm",
            operation: Operation::Send,
            pins: None,
            rounds: 5,
            tests: &ALL,
            sizes: &[0, 8, 1024, 65_536],
        };
        let text = svg(&layout, &measured()).unwrap();
        for words in [
            "Latency",
            "microseconds",
            "hand-over of a cache line, median 100 ns",
            "GB/s",
            "memcpy",
            "message size",
        ] {
            assert!(text.contains(words), "{words} is missing");
        }
    }

    #[test]
    fn one_size_and_one_test_can_be_drawn() {
        for (size, test) in
            [(0, Test::Latency), (8, Test::Bandwidth), (0, Test::Bandwidth), (65_536, Test::Latency)]
        {
            let layout = Layout {
                port: "shm",
                operation: Operation::Send,
                pins: None,
                rounds: 5,
                tests: &[test],
                sizes: &[size],
            };
            assert!(svg(&layout, &measured()).unwrap().ends_with("</svg>\n"));
        }
    }
}
