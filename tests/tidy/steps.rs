//! The table of CONTRIBUTING.md has each step of `tests/run`, and no other one.

use std::collections::BTreeSet;

use crate::source::{File, Finding};

const SUITE: &str = "tests/run";
const PAGE: &str = "CONTRIBUTING.md";
/// The first line of the table.
const HEAD: &str = "| step |";

/// Returns the names in the array `STEPS` of the script: `"LANE SIZE KIND NAME=COMMAND"`.
fn steps(script: &str) -> BTreeSet<&str> {
    let lines = script.lines().skip_while(|line| !line.starts_with("readonly STEPS=(")).skip(1);
    lines
        .take_while(|line| *line != ")")
        .filter_map(|line| {
            let mut rest = line.trim().trim_matches('"');
            for _ in 0..3 {
                rest = rest.split_once(' ')?.1.trim_start();
            }
            rest.split_once('=').map(|(name, _)| name)
        })
        .collect()
}

/// Returns the names in the first column of the table; a row may have several.
fn rows(page: &str) -> BTreeSet<&str> {
    let rows = page.lines().skip_while(|line| !line.starts_with(HEAD)).skip(2);
    rows.take_while(|line| line.starts_with('|'))
        .filter_map(|line| line.split('|').nth(1))
        .flat_map(|names| names.split(','))
        .map(str::trim)
        .collect()
}

/// Compares the script with the table.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let text = |path: &str| files.iter().find(|file| file.path == path).map_or("", |file| file.text.as_str());
    let (steps, rows) = (steps(text(SUITE)), rows(text(PAGE)));
    let missing = steps.difference(&rows).map(|name| format!("the table lacks the step `{name}` of {SUITE}"));
    let unknown = rows.difference(&steps).map(|name| format!("{SUITE} has no step `{name}`"));
    missing.chain(unknown).map(|what| Finding::new(PAGE, 1, what)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str) -> Vec<String> {
        let script =
            "readonly STEPS=(\n    \"front both  step  a b=x y=1\"\n    \"aside all   tests c=z\"\n)\n";
        check(&[File::new(SUITE, script), File::new(PAGE, page)]).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_table_with_each_step_passes() {
        assert_eq!(found("| step | why |\n|---|---|\n| c, a b | x |\n"), [""; 0]);
    }

    #[test]
    fn a_step_that_only_one_of_them_has_is_reported() {
        let expected = [
            "CONTRIBUTING.md:1: the table lacks the step `c` of tests/run",
            "CONTRIBUTING.md:1: tests/run has no step `d`",
        ];
        assert_eq!(found("| step | why |\n|---|---|\n| a b | x |\n| d | x |\n\n| c | y |\n"), expected);
    }
}
