//! Formats and prints the tables.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use crate::models;
use crate::mutant::Mutant;

/// Writes to standard output. The exit code is a failure if the write fails.
pub(crate) fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Returns the list of models and of the mutants that each must kill.
pub(crate) fn list() -> String {
    let mut text = String::new();
    for model in models::ALL {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}\n    {}: {}", model.name, model.structure, model.property);
        let mutants: Vec<_> = model.mutants().map(|mutant| mutant.to_string()).collect();
        if !mutants.is_empty() {
            let _ = writeln!(text, "    kills {}", mutants.join(", "));
        }
    }
    let unclaimed: Vec<_> = unclaimed().map(|mutant| mutant.to_string()).collect();
    if !unclaimed.is_empty() {
        let _ = writeln!(text, "no model kills {}", unclaimed.join(", "));
    }
    text
}

/// Returns the mutants that no model claims to kill.
pub(crate) fn unclaimed() -> impl Iterator<Item = Mutant> {
    Mutant::all().filter(|mutant| !models::ALL.iter().any(|model| model.mutants().any(|has| has == *mutant)))
}

/// Formats the rows of one table; each column is as wide as its widest entry.
pub(crate) fn rows<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, text) in widths.iter_mut().zip(row) {
            *width = text.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        line(&mut text, row, &widths);
        if index == 0 {
            line(&mut text, &widths.map(|width| "-".repeat(width)), &widths);
        }
    }
    text
}

fn line(text: &mut String, row: &[String], widths: &[usize]) {
    let cells: Vec<_> = row.iter().zip(widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
    text.push_str(cells.join(" | ").trim_end());
    text.push('\n');
}
