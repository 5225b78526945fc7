//! The counters of the two processes, and the call tree of the first, as text.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt::Write;

use super::traffic::Seen;

/// Returns the counters side by side, without those that are 0 at both, and the call tree of rank 0; empty if
/// neither exists.
pub(crate) fn table(seen: &[Seen]) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_counters(&mut out, seen).and_then(|()| write_tree(&mut out, seen));
    out
}

/// Returns the counters of each rank by name; empty if they were not requested.
pub(crate) fn by_name(seen: &[Seen]) -> Vec<BTreeMap<String, u64>> {
    let ranks = seen.iter().filter(|it| !it.counters.is_empty());
    ranks.map(|it| it.counters.iter().map(|(name, _, value)| (name.clone(), *value)).collect()).collect()
}

fn write_counters(out: &mut String, seen: &[Seen]) -> std::fmt::Result {
    let Some(first) = seen.first().filter(|it| !it.counters.is_empty()) else { return Ok(()) };
    writeln!(out, "\nCounters since the start, but for those that are 0")?;
    write!(out, "  {:<24} {:<10}", "counter", "unit")?;
    for rank in 0..seen.len() {
        write!(out, " {:>16}", format!("rank {rank}"))?;
    }
    writeln!(out)?;
    for (at, (name, unit, _)) in first.counters.iter().enumerate() {
        let values: Vec<u64> =
            seen.iter().map(|it| it.counters.get(at).map_or(0, |counter| counter.2)).collect();
        if values.iter().all(|value| *value == 0) {
            continue;
        }
        write!(out, "  {name:<24} {unit:<10}")?;
        for value in values {
            write!(out, " {value:>16}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn write_tree(out: &mut String, seen: &[Seen]) -> std::fmt::Result {
    match seen.first() {
        Some(Seen { tree, .. }) if !tree.is_empty() => write!(out, "\nRank 0: {tree}"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(values: [u64; 3]) -> Seen {
        let names = ["eager_sent", "puts", "slept_ns"].into_iter().zip(["packets", "operations", "ns"]);
        let counters =
            names.zip(values).map(|((name, unit), value)| (name.to_owned(), unit.to_owned(), value));
        let tree = "call tree of 1 entries\nsend 8\n".to_owned();
        Seen { counters: counters.collect(), tree, warnings: Vec::new() }
    }

    #[test]
    fn counters_stand_side_by_side_without_those_that_are_zero() {
        let both = [seen([12, 0, 5]), seen([3, 0, 0])];
        let text = table(&both);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(rows.contains(&vec!["eager_sent", "packets", "12", "3"]), "{text}");
        assert!(rows.contains(&vec!["slept_ns", "ns", "5", "0"]) && !text.contains("puts"), "{text}");
        assert!(text.contains("Rank 0: call tree of 1 entries"), "{text}");
        let names = by_name(&both);
        assert_eq!((names.len(), names[1]["eager_sent"], names[0]["puts"]), (2, 3, 0));
    }

    #[test]
    fn nothing_is_said_unless_it_was_asked_for() {
        let none = [Seen::default(), Seen::default()];
        assert_eq!((table(&none), by_name(&none).len()), (String::new(), 0));
    }
}
