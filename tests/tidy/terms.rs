//! One term for one thing: retired names do not come back, a type name is used once in a crate, and lines stay short.
//!
//! `core/GLOSSARY.md` has the terms that replace the retired ones.

use std::collections::{BTreeMap, HashMap};

use proc_macro2::Ident;
use syn::visit::{self, Visit};
use syn::{ItemEnum, ItemStruct, ItemTrait, ItemType, ItemUnion};

use crate::source::{File, Finding};
use crate::syntax::parse;

/// The largest number of columns in a line.
const COLUMNS: usize = 120;
/// Kinds of files that people write, beside scripts without an ending.
const WRITTEN: [&str; 7] = [".rs", ".md", ".h", ".c", ".cc", ".sh", ".py"];
/// Files that programs write, or that come from elsewhere.
const GENERATED: [&str; 2] = ["ffi/include/nemesia.h", "sys/rdma-core-sys/src/bindings.rs"];
/// The path of this rule, which names the words that it forbids.
const SELF: &str = "tests/tidy/terms.rs";

/// Words that no name and no sentence may use.
const RETIRED: [&str; 24] = [
    "blunder",
    "blunders",
    "conceal",
    "concealed",
    "conceals",
    "crumb",
    "crumbs",
    "farewell",
    "farewells",
    "greeting",
    "greetings",
    "newcomer",
    "newcomers",
    "roster",
    "rosters",
    "scribble",
    "scribbled",
    "scribbles",
    "scribbling",
    "scribbler",
    "untold",
    "napping",
    "revived",
    "revives",
];
/// Words that prose may use, but no name.
const RETIRED_IN_NAMES: [&str; 23] = [
    "crowd", "crowded", "crowding", "fate", "fates", "hungry", "knock", "knocked", "nap", "owe", "owed",
    "owes", "owing", "revive", "rude", "seat", "seats", "spy", "stir", "stirred", "vain", "warmed",
    "warming",
];
/// Groups of words that no name may contain.
const RETIRED_GROUPS: [&str; 8] =
    ["hang_up", "hung_up", "let_go", "lie_down", "past_caches", "pay_owed", "stream_past", "in_vain"];
/// Crates that are not a directory of their own below a package, longest path first.
const CRATES: [&str; 18] = [
    "core/src",
    "ffi/interpose",
    "ffi/src",
    "ffi/vipl/src",
    "sys/rdma-core-sys/examples/regenerate",
    "sys/rdma-core-sys/tests",
    "sys/rdma-core-sys/src",
    "sys/src",
    "tests/c",
    "tests/memory_port",
    "tests/processes",
    "tests/src",
    "tests/tidy",
    "tests/tool/src",
    "tests/verbs",
    "verification/bare",
    "verification/src/regcache",
    "verification/src/sim",
];
/// Files of which only one is compiled, so they share their names.
const ALTERNATIVES: [&str; 2] = ["core/src/sync/model.rs", "core/src/sync/real.rs"];

/// Reports retired words in names, and those words that no text may use.
pub(crate) fn retired(path: &str, text: &str) -> Vec<Finding> {
    if path == SELF || GENERATED.contains(&path) || path.ends_with(".lock") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    // A text has the same words again and again.
    let mut checked = HashMap::new();
    for (at, line) in text.lines().enumerate() {
        let prose = comment_of(path, line);
        for (from, word) in words(line) {
            let is_prose = from >= prose;
            if let Some(term) =
                *checked.entry((word, is_prose)).or_insert_with(|| retired_word(word, is_prose))
            {
                findings.push(Finding::new(
                    path,
                    at + 1,
                    format!("`{word}`: `{term}` is retired, see core/GLOSSARY.md"),
                ));
            }
        }
    }
    findings
}

/// Returns the position at which the prose of a line begins. Words in prose are not checked as names unless
/// they look like names.
fn comment_of(path: &str, line: &str) -> usize {
    if path.ends_with(".rs") {
        let code = line.find('"').into_iter().chain(line.find("//")).min();
        return code.unwrap_or(line.len());
    }
    0
}

/// Returns the identifiers and words of a line with their positions.
fn words(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + line.get(at..)?.find(is_part)?;
        let rest = &line[start..];
        let len = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        at = start + len;
        Some((start, &line[start..at]))
    })
}

fn retired_word(word: &str, is_prose: bool) -> Option<&'static str> {
    let parts = parts(word);
    let all = RETIRED.into_iter().find(|term| parts.iter().any(|part| part == term));
    let is_name = !is_prose || parts.len() > 1;
    let joined = format!("_{}_", parts.join("_"));
    all.or_else(|| RETIRED_IN_NAMES.into_iter().find(|term| is_name && parts.iter().any(|part| part == term)))
        .or_else(|| RETIRED_GROUPS.into_iter().find(|group| joined.contains(&format!("_{group}_"))))
}

/// Returns the parts of a name: `PastCaches`, `past_caches` and `PAST_CACHES` are `past` and `caches`.
fn parts(word: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for piece in word.split('_') {
        let mut part = String::new();
        let mut before = None;
        for c in piece.chars() {
            if c.is_ascii_uppercase() && before.is_some_and(|before: char| !before.is_ascii_uppercase()) {
                parts.push(std::mem::take(&mut part));
            }
            part.push(c.to_ascii_lowercase());
            before = Some(c);
        }
        parts.push(part);
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// Reports lines that are too long. Rows of a table and lines without a space are exempt, because they cannot
/// be broken.
pub(crate) fn columns(path: &str, text: &str) -> Vec<Finding> {
    let written = WRITTEN.iter().any(|end| path.ends_with(end)) || text.starts_with("#!/");
    if !written || GENERATED.contains(&path) {
        return Vec::new();
    }
    let lines = text.lines().enumerate().map(|(at, line)| (at, line, line.chars().count()));
    lines
        .filter(|&(_, line, count)| count > COLUMNS && !is_whole(line))
        .map(|(at, _, count)| Finding::new(path, at + 1, format!("{count} columns, at most {COLUMNS}")))
        .collect()
}

fn is_whole(line: &str) -> bool {
    let text = line.trim_start_matches(['/', '!', '#', ' ', '*']);
    text.starts_with('|') || !text.trim().contains(' ')
}

/// The names of types, and the lines of their declarations.
struct Types {
    found: Vec<(String, usize)>,
}

impl Types {
    fn see(&mut self, name: &Ident) {
        self.found.push((name.to_string(), name.span().start().line));
    }
}

impl<'ast> Visit<'ast> for Types {
    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        self.see(&item.ident);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
        self.see(&item.ident);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_union(&mut self, item: &'ast ItemUnion) {
        self.see(&item.ident);
        visit::visit_item_union(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        self.see(&item.ident);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast ItemType) {
        self.see(&item.ident);
        visit::visit_item_type(self, item);
    }
}

/// Reports types of one crate that have one name in two files. In one file, a name stands twice only behind a
/// `cfg`.
pub(crate) fn homonyms(files: &[File]) -> Vec<Finding> {
    let mut first: BTreeMap<(String, String), String> = BTreeMap::new();
    let mut findings = Vec::new();
    let written = files.iter().filter(|file| file.path.ends_with(".rs") && !GENERATED.contains(&&*file.path));
    for file in written {
        let Ok(syntax) = parse(&file.path, &file.text) else { continue };
        let mut types = Types { found: Vec::new() };
        types.visit_file(&syntax);
        for (name, line) in types.found {
            let other =
                first.entry((crate_of(&file.path), name.clone())).or_insert_with(|| file.path.clone());
            let alternative = ALTERNATIVES.contains(&&**other) && ALTERNATIVES.contains(&&*file.path);
            if *other != file.path && !alternative {
                let what = format!("`{name}` is also a type of {other}: qualify it by what it is");
                findings.push(Finding::new(&file.path, line, what));
            }
        }
    }
    findings
}

/// Returns the crate of a file: a directory of the list, a whole program in one file, or the models.
fn crate_of(path: &str) -> String {
    let known = CRATES.into_iter().filter(|root| path.starts_with(&format!("{root}/")));
    let longest = known.max_by_key(|root| root.len());
    let models = path.starts_with("verification/src/").then_some("verification/src");
    longest.or(models).unwrap_or(path).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(findings: &[Finding]) -> Vec<usize> {
        findings.iter().map(Finding::line).collect()
    }

    #[test]
    fn retired_words_are_found_in_names_of_every_style_and_in_prose() {
        let text = "let crumb = 1;\nstruct OldRoster;\nfn lie_down() {}\n// the blunder\nconst PAST_CACHES: u8 = 0;\n";
        assert_eq!(lines(&retired("core/src/a.rs", text)), [1, 2, 3, 4, 5]);
        assert_eq!(lines(&retired("README.md", "fine\nits greeting\n`cell_past_caches`\n")), [2, 3]);
    }

    #[test]
    fn words_that_english_needs_may_stand_in_prose_only() {
        let text = "// a crowd\nlet text = \"a crowd\";\nlet crowd = 1;\n// `is_crowded`\n";
        assert_eq!(lines(&retired("core/src/a.rs", text)), [3, 4]);
    }

    #[test]
    fn parts_of_other_words_are_no_retired_words() {
        assert_eq!(retired("core/src/a.rs", "let (vanity, seating, nape) = (crumble, knocks, snap);\n"), []);
    }

    #[test]
    fn long_lines_are_reported_unless_they_can_not_be_broken() {
        let (long, table, word) = ("a ".repeat(61), format!("//! | {} |", "a ".repeat(61)), "a".repeat(130));
        let text = format!("fine\n{long}\n{table}\n// {word}\n");
        assert_eq!(lines(&columns("core/src/a.rs", &text)), [2]);
        assert_eq!(lines(&columns("tests/run", &format!("#!/bin/sh\n{long}\n"))), [2]);
        assert_eq!(columns("ffi/include/nemesia.h", &text), []);
        assert_eq!(columns("Cargo.lock", &text), []);
    }

    #[test]
    fn a_type_name_that_two_files_of_a_crate_use_is_reported() {
        let file =
            |path: &str| File::new(path, "struct Place;\nimpl Trait for Place { type Answer = u8; }\n");
        let both = homonyms(&[file("core/src/a.rs"), file("core/src/b.rs")]);
        assert_eq!(lines(&both), [1]);
        assert_eq!(homonyms(&[file("core/src/a.rs"), file("sys/src/b.rs")]), []);
        assert_eq!(homonyms(&[file(ALTERNATIVES[0]), file(ALTERNATIVES[1])]), []);
        assert_eq!(homonyms(&[file("sys/examples/a.rs"), file("sys/examples/b.rs")]), []);
    }
}
