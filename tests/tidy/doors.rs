//! `core/src/sync.rs` is the only door to atomics, cells and spinning, and `core` stands without std.

use syn::visit::Visit;

use crate::source::{File, Finding};
use crate::syntax::{Named, files_under, lines_under, named, only_under, parse, within};

/// Paths that only `core/src/sync.rs` may name.
const BEHIND: [&[&str]; 6] = [
    &["core", "sync"],
    &["std", "sync"],
    &["core", "cell"],
    &["std", "cell"],
    &["core", "hint", "*"],
    &["std", "hint", "*"],
];
/// Names that must come from `core/src/sync.rs`, wherever else they exist.
const NAMES: [&str; 3] = ["UnsafeCell", "spin_loop", "compiler_fence"];
/// The cfgs under which std exists: tests and models.
const HOSTED: [&str; 2] = ["test", "nemesia_loom"];

/// Checks that the rest of `core` names no atomic, cell, fence, spin hint or loom of its own.
pub(crate) fn check_doors(files: &[File]) -> Vec<Finding> {
    let is_door = |path: &str| path == "core/src/sync.rs" || path.starts_with("core/src/sync/");
    modules(files, &["test"])
        .filter(|file| !is_door(&file.path))
        .flat_map(|file| doors(&file.path, &file.text))
        .collect()
}

/// Checks that `core` names neither `std` nor `alloc`, except in its tests and models.
pub(crate) fn check_std(files: &[File]) -> Vec<Finding> {
    modules(files, &HOSTED).flat_map(|file| std(&file.path, &file.text)).collect()
}

/// Returns the files of `core` that also exist outside `cfgs`.
fn modules<'a>(files: &'a [File], cfgs: &[&str]) -> impl Iterator<Item = &'a File> {
    let only = files_under(files, cfgs);
    let counts =
        move |path: &str| path.starts_with("core/src/") && path.ends_with(".rs") && !only.contains(&path);
    files.iter().filter(move |file| counts(&file.path))
}

fn doors(path: &str, text: &str) -> Vec<Finding> {
    let file = match parse(path, text) {
        Ok(file) => file,
        Err(finding) => return vec![finding],
    };
    let tests = lines_under(&file, &["test"]);
    let named = named(&file);
    let through: Vec<&str> = named.iter().filter(|it| it.imported && passes(it)).filter_map(last).collect();
    let bypasses = |it: &&Named| {
        let bare = it.segments.len() == 1 && last(it).is_some_and(|name| through.contains(&name));
        !within(&tests, it.line) && !bare && bypasses(it)
    };
    let what = |it: &Named| format!("`{}`: take it from `crate::sync`", it.segments.join("::"));
    named.iter().filter(bypasses).map(|it| Finding::new(path, it.line, what(it))).collect()
}

fn last(it: &Named) -> Option<&str> {
    it.segments.last().map(String::as_str)
}

/// Returns whether a path goes through `sync`: `sync` is one of its modules, and not that of `core`.
fn passes(it: &Named) -> bool {
    let foreign = ["core", "std", "loom"];
    !it.segments.first().is_some_and(|first| foreign.contains(&first.as_str()))
        && it.segments.iter().rev().skip(1).any(|segment| segment == "sync")
}

fn bypasses(it: &Named) -> bool {
    let segments: Vec<&str> = it.segments.iter().map(String::as_str).collect();
    let hidden = it.imported && matches!(segments[..], ["core" | "std"]);
    BEHIND.iter().any(|behind| segments.starts_with(behind))
        || segments.first() == Some(&"loom")
        || hidden
        || (!passes(it) && segments.iter().any(|segment| NAMES.contains(segment)))
}

fn std(path: &str, text: &str) -> Vec<Finding> {
    let file = match parse(path, text) {
        Ok(file) => file,
        Err(finding) => return vec![finding],
    };
    let hosted = lines_under(&file, &HOSTED);
    let mut crates = Crates(Vec::new());
    crates.visit_file(&file);
    let is_std = |it: &&Named| matches!(it.segments.first().map(String::as_str), Some("std" | "alloc"));
    let paths = named(&file);
    let uses = paths.iter().filter(is_std).filter(|it| it.segments.len() > 1 || it.imported);
    let uses = uses.map(|it| (it.line, it.segments.join("::")));
    let mut all: Vec<(usize, String)> = crates.0.into_iter().chain(uses).collect();
    all.retain(|(line, _)| !within(&hosted, *line));
    all.into_iter()
        .map(|(line, name)| Finding::new(path, line, format!("`{name}` in a crate without std")))
        .collect()
}

struct Crates(Vec<(usize, String)>);

impl<'ast> Visit<'ast> for Crates {
    fn visit_item_extern_crate(&mut self, item: &'ast syn::ItemExternCrate) {
        let name = item.ident.to_string();
        if (name == "std" || name == "alloc") && !only_under(&item.attrs, &HOSTED) {
            self.0.push((item.extern_token.span.start().line, format!("extern crate {name}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(findings: &[Finding]) -> Vec<usize> {
        findings.iter().map(Finding::line).collect()
    }

    #[test]
    fn each_way_around_the_door_is_reported() {
        for text in [
            "use core::sync::atomic::AtomicU32;",
            "use core::{fmt, sync::atomic::{AtomicU32, Ordering}};",
            "use std::sync::atomic::AtomicU32;",
            "use core::sync;",
            "use core::cell::Cell;",
            "use core::cell::{self};",
            "use core::hint::*;",
            "use core as c;",
            "use loom::sync::atomic::AtomicU32;",
            "fn a() { core::sync::atomic::fence(x); }",
            "fn a() { core::hint::spin_loop(); }",
            "fn a() { hint::spin_loop(); }",
            "fn a() { check!(core::cell::Cell::new(1)); }",
            "struct A(UnsafeCell<u8>);",
            "fn a() { atomic::compiler_fence(x); }",
        ] {
            assert!(!doors("core/src/order.rs", text).is_empty(), "{text}");
        }
    }

    #[test]
    fn the_line_is_that_of_the_name() {
        assert_eq!(lines(&doors("core/src/order.rs", "use core::fmt;\n\nuse core::cell::Cell;\n")), [3]);
    }

    #[test]
    fn what_comes_through_the_door_passes() {
        for text in [
            "use crate::sync::{AtomicU32, UnsafeCell};\nstruct A(UnsafeCell<u8>, AtomicU32);",
            "use crate::sync;\nfn a() { sync::spin_loop(); }",
            "fn a() { crate::sync::spin_loop(); }",
            "/// Not `core::cell::Cell`.\nfn a() {}",
            "use core::hint::black_box;",
            "#[cfg(test)]\nmod tests {\n    use core::cell::Cell;\n}",
        ] {
            assert_eq!(doors("core/src/order.rs", text), [], "{text}");
        }
    }

    #[test]
    fn the_door_itself_may_and_its_neighbours_may_not() {
        let text = "use core::sync::atomic::AtomicU32;\n";
        assert_eq!(
            check_doors(&[File::new("core/src/sync.rs", text), File::new("sys/src/lib.rs", text)]),
            []
        );
        assert_eq!(check_doors(&[File::new("core/src/shared/ring.rs", text)]).len(), 1);
    }

    #[test]
    fn std_and_alloc_are_reported() {
        for text in [
            "extern crate std;",
            "extern crate alloc;",
            "#[cfg(feature = \"std\")]\nextern crate std;",
            "use std::vec::Vec;",
            "use alloc::boxed::Box;",
            "fn a() { std::process::exit(1); }",
        ] {
            assert_eq!(check_std(&[File::new("core/src/lib.rs", text)]).len(), 1, "{text}");
        }
    }

    #[test]
    fn std_in_tests_and_models_passes() {
        let gated = "#[cfg(any(test, nemesia_loom))]\nextern crate std;\n#[cfg(test)]\nmod tests {\n    use \
            std::vec;\n}\n";
        assert_eq!(std("core/src/lib.rs", gated), []);
        for cfg in HOSTED {
            let declared = format!("#[cfg({cfg})]\nmod oracle;\n");
            let files =
                [File::new("core/src/lib.rs", &declared), File::new("core/src/oracle.rs", "use std::vec;\n")];
            assert_eq!(check_std(&files), [], "{cfg}");
        }
    }
}
