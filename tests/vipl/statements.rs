//! Every statement about the interface has a case, and every return code and status bit occurs while the suite runs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use crate::{SUITE, can_run, suite, text_of};

/// The return codes by their numbers.
const CODES: [&str; 17] = [
    "SUCCESS",
    "NOT_DONE",
    "INVALID_PARAMETER",
    "ERROR_RESOURCE",
    "TIMEOUT",
    "REJECT",
    "INVALID_RELIABILITY_LEVEL",
    "INVALID_MTU",
    "INVALID_QOS",
    "INVALID_PTAG",
    "INVALID_RDMAREAD",
    "DESCRIPTOR_ERROR",
    "INVALID_STATE",
    "ERROR_NAMESERVICE",
    "NO_MATCH",
    "NOT_REACHABLE",
    "ERROR_NOT_SUPPORTED",
];
/// The statuses of finished descriptors that must occur in a queue: operation and flag bits, and one error bit or none.
const STATUSES: [(&str, u32); 18] = [
    ("send", 0x1),
    ("send", 0x3),
    ("send", 0x5),
    ("send", 0x9),
    ("send", 0x21),
    ("send", 0x101),
    ("send", 0x2_0001),
    ("send", 0x2_0081),
    ("send", 0x4_0001),
    ("send", 0x4_0041),
    ("send", 0x4_0081),
    ("receive", 0x1_0001),
    ("receive", 0x1_0003),
    ("receive", 0x1_0005),
    ("receive", 0x1_0009),
    ("receive", 0x1_0021),
    ("receive", 0x9_0001),
    ("receive", 0xb_0001),
];

/// Returns the rows of the tables with two columns below a heading of `statements.md`, without the heads.
fn rows(text: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<(&str, &str)> {
    let sections = text.split("\n## ").skip(1);
    let wanted = sections.filter(|section| is_wanted(section.lines().next().unwrap_or_default()));
    let row = |line: &str| -> Option<(usize, usize, usize)> {
        let middle = line.get(2..)?.find(" | ")? + 2;
        line.ends_with(" |").then_some((2, middle, line.len() - 2))
    };
    wanted
        .flat_map(str::lines)
        .filter(|line| line.starts_with("| "))
        .filter_map(|line| row(line).map(|(from, middle, end)| (&line[from..middle], &line[middle + 3..end])))
        .filter(|(name, _)| !["name", "function"].contains(name))
        .collect()
}

/// Returns the names after each `statement:` in a text, to the end of their line.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let lists = text.lines().filter_map(|line| line.split_once("statement: ").map(|(_, list)| list));
    let names = lists.flat_map(|list| list.trim_end_matches("*/").split(','));
    names.map(|name| name.trim().trim_end_matches('.')).filter(|name| !name.is_empty())
}

/// Returns what is wrong: statements without a case, and names that no statement has.
fn wrong(statements: &BTreeSet<&str>, cases: &BTreeSet<&str>) -> Vec<String> {
    let without = statements.difference(cases).map(|name| format!("`{name}` has no case"));
    let unknown = cases.difference(statements).map(|name| format!("`{name}` is no statement"));
    without.chain(unknown).collect()
}

#[test]
fn every_statement_has_a_case_and_every_case_a_statement() -> Result<(), String> {
    let table = text_of("tests/vipl/statements.md")?;
    let statements: BTreeSet<&str> =
        rows(&table, |heading| heading != "Return codes").into_iter().map(|(name, _)| name).collect();
    let mut texts = String::new();
    for program in SUITE {
        texts += &text_of(&format!("tests/vipl/{program}.c"))?;
    }
    texts += &text_of("tests/vipl/main.rs")?;
    let cases: BTreeSet<&str> = named(&texts).collect();
    let line = format!("libvipl: {} statements, each with a case\n", statements.len());
    std::io::stdout().write_all(line.as_bytes()).map_err(|error| error.to_string())?;
    assert!(statements.len() > 70, "{statements:?}");
    assert_eq!(wrong(&statements, &cases), Vec::<String>::new());
    Ok(())
}

#[test]
fn a_statement_without_a_case_and_an_unknown_name_are_found() {
    let statements = BTreeSet::from(["one", "two"]);
    let cases: BTreeSet<&str> = named("/* A case.\n * statement: one, three */\n").collect();
    assert_eq!(wrong(&statements, &cases), ["`two` has no case", "`three` is no statement"]);
}

/// The codes that each function has returned, and the statuses of descriptors by queue.
type Coverage = (BTreeMap<String, BTreeSet<String>>, BTreeSet<(String, u32)>);

/// Returns what the lines of the programs report.
fn coverage(lines: &str) -> Result<Coverage, String> {
    let (mut codes, mut statuses) = Coverage::default();
    for line in lines.lines() {
        let malformed = || format!("`{line}` is no line of coverage");
        let (name, value) = line.split_once(' ').ok_or_else(malformed)?;
        if let Some(digits) = value.strip_prefix("0x") {
            let status = u32::from_str_radix(digits, 16).map_err(|_| malformed())?;
            statuses.insert((name.to_owned(), status));
        } else {
            let code =
                value.parse::<usize>().ok().and_then(|number| CODES.get(number)).ok_or_else(malformed)?;
            codes.entry(name.to_owned()).or_default().insert((*code).to_owned());
        }
    }
    Ok((codes, statuses))
}

/// Returns the pairs of a function and a code that are documented and did not occur, or the other way round.
fn differences(rows: &[(&str, &str)], seen: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut documented: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (function, codes) in rows {
        documented.entry(function).or_default().extend(codes.split(' '));
    }
    let mut found = Vec::new();
    let empty = BTreeSet::new();
    for (function, codes) in &documented {
        let seen = seen.get(*function).unwrap_or(&empty);
        let required = codes.iter().filter(|code| !code.ends_with('?'));
        found.extend(
            required
                .filter(|code| !seen.contains(**code))
                .map(|code| format!("{function} has never returned {code}")),
        );
        let is_known = |code: &&String| codes.iter().any(|known| known.trim_end_matches('?') == **code);
        found.extend(
            seen.iter()
                .filter(|code| !is_known(code))
                .map(|code| format!("{function} has returned {code}, which is not documented")),
        );
    }
    let is_listed = |name: &&String| documented.contains_key(name.as_str());
    found.extend(
        seen.keys().filter(|name| !is_listed(name)).map(|name| format!("{name} is not in the table")),
    );
    found
}

#[test]
fn every_function_returns_its_documented_codes_and_no_others() -> Result<(), String> {
    if !can_run("every_function_returns_its_documented_codes_and_no_others", &["cc"]) {
        return Ok(());
    }
    let mut lines = String::new();
    for program in SUITE {
        lines += &suite(program)?.1;
    }
    let (codes, statuses) = coverage(&lines)?;
    let table = text_of("tests/vipl/statements.md")?;
    let documented = rows(&table, |heading| heading == "Return codes");
    let pairs: usize = codes.values().map(BTreeSet::len).sum();
    let mut summary = format!(
        "libvipl: {} functions, {pairs} pairs of a function and a return code, {} statuses\n",
        codes.len(),
        statuses.len()
    );
    for (function, codes) in &codes {
        summary += &format!("    {function}: {}\n", codes.iter().cloned().collect::<Vec<_>>().join(" "));
    }
    std::io::stdout().write_all(summary.as_bytes()).map_err(|error| error.to_string())?;
    assert_eq!(differences(&documented, &codes), Vec::<String>::new());
    let missing: Vec<_> = STATUSES
        .iter()
        .filter(|(queue, status)| !statuses.contains(&((*queue).to_owned(), *status)))
        .collect();
    assert!(missing.is_empty(), "these statuses did not occur: {missing:x?}");
    Ok(())
}

#[test]
fn a_code_that_is_missing_or_not_documented_is_found() {
    let (seen, _) = coverage("VipOpenNic 0\nVipOpenNic 4\nVipNew 0\nsend 0x1\n").unwrap_or_default();
    let documented = [("VipOpenNic", "SUCCESS ERROR_RESOURCE REJECT?")];
    let expected = [
        "VipOpenNic has never returned ERROR_RESOURCE",
        "VipOpenNic has returned TIMEOUT, which is not documented",
        "VipNew is not in the table",
    ];
    assert_eq!(differences(&documented, &seen), expected);
    assert!(coverage("VipOpenNic 99\n").is_err());
}
