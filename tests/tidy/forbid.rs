//! Unsafe code in `core` is confined: every other module forbids it.

use syn::{Attribute, Meta};

use crate::source::{File, Finding};
use crate::syntax::{files_under, parse};

/// The files outside `sync` and `shared` that may touch payload memory.
const ALLOWED: [&str; 16] = [
    "core/src/payload.rs",
    "core/src/payload/exposed.rs",
    "core/src/payload/lent.rs",
    "core/src/payload/lists.rs",
    "core/src/payload/range.rs",
    // Lends the memory of messages to a memory port.
    "core/src/port/channel/access.rs",
    // Lends a part of the memory of rings to a memory port.
    "core/src/port/channel/fast/ring.rs",
    // These files declare or implement an unsafe trait, and do nothing unsafe.
    "core/src/port/memory.rs",
    "core/src/port/packets_only.rs",
    "core/src/port/pair.rs",
    "core/src/port/placement.rs",
    "core/src/port/placement/stream.rs",
    "core/src/port/remote.rs",
    // The parent of these files: below `forbid` the lint could not be allowed again, below `deny` it can.
    "core/src/port.rs",
    "core/src/port/channel.rs",
    "core/src/port/channel/fast.rs",
];
/// The modules that hold atomics and shared memory.
const CONFINED: [&str; 2] = ["core/src/sync", "core/src/shared"];

const LIB: &str = "core/src/lib.rs";
const FORBID: &str = "#![forbid(unsafe_code)]";

/// Checks that every module file of `core` begins with `forbid` or is one of the files that may hold unsafe
/// code.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let tests = files_under(files, &["test"]);
    let modules = files.iter().filter(|file| {
        file.path.starts_with("core/src/")
            && file.path.ends_with(".rs")
            && !tests.contains(&file.path.as_str())
    });
    let mut findings: Vec<Finding> = modules.flat_map(|file| check_file(&file.path, &file.text)).collect();
    for allowed in ALLOWED {
        if !files.iter().any(|file| file.path == allowed) {
            findings.push(Finding::new(
                allowed,
                1,
                "is allowed unsafe code but does not exist: shorten the list",
            ));
        }
    }
    findings
}

fn check_file(path: &str, text: &str) -> Vec<Finding> {
    let file = match parse(path, text) {
        Ok(file) => file,
        Err(finding) => return vec![finding],
    };
    let forbids = sets(&file.attrs, "forbid", "unsafe_code") || forbids_but_in_tests(&file.attrs);
    let mut whats = Vec::new();
    if path == LIB {
        if !sets(&file.attrs, "deny", "unsafe_op_in_unsafe_fn") {
            whats.push("lacks `#![deny(unsafe_op_in_unsafe_fn)]`".to_string());
        }
        if !file.attrs.iter().any(|attribute| attribute.path().is_ident("no_std")) {
            whats.push("lacks `#![no_std]`".to_string());
        }
    } else if ALLOWED.contains(&path) {
        if forbids || !text.contains("unsafe") {
            whats.push("is allowed unsafe code but needs none: shorten the list".to_string());
        }
    } else if !forbids && !is_confined(path) {
        whats.push(format!("lacks `{FORBID}` after its documentation"));
    }
    whats.into_iter().map(|what| Finding::new(path, 1, what)).collect()
}

/// Returns whether the module forbids unsafe code outside tests, which implement a trait that has obligations.
fn forbids_but_in_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg_attr") => {
            let words: String = list.tokens.to_string().split_whitespace().collect();
            words == "not(test),forbid(unsafe_code)"
        }
        _ => false,
    })
}

fn is_confined(path: &str) -> bool {
    CONFINED
        .iter()
        .any(|module| path.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/')))
}

fn sets(attributes: &[Attribute], level: &str, lint: &str) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident(level) && list.tokens.to_string().contains(lint),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_without_forbid_is_reported() {
        let expected =
            Finding::new("core/src/order.rs", 1, format!("lacks `{FORBID}` after its documentation"));
        assert_eq!(check_file("core/src/order.rs", "//! Order.\nuse core::fmt;\n"), [expected]);
        assert_eq!(check_file("core/src/order.rs", "//! Order.\n#![deny(unsafe_code)]\n").len(), 1);
        assert_eq!(check_file("core/src/order.rs", "//! Order.\n// #![forbid(unsafe_code)]\n").len(), 1);
        assert_eq!(check_file("core/src/synchrony.rs", "//! Not sync.\n").len(), 1);
    }

    #[test]
    fn a_module_with_forbid_passes() {
        assert_eq!(
            check_file("core/src/order.rs", "//! Order.\n#![forbid(unsafe_code)]\nuse core::fmt;\n"),
            []
        );
    }

    #[test]
    fn a_module_that_forbids_it_in_what_ships_passes() {
        let only = |when: &str| format!("//! A port.\n#![cfg_attr({when}, forbid(unsafe_code))]\n");
        assert_eq!(check_file("core/src/port/channel/peer.rs", &only("not(test)")), []);
        assert_eq!(check_file("core/src/port/channel/peer.rs", &only("test")).len(), 1);
    }

    #[test]
    fn sync_and_shared_may_hold_unsafe_code() {
        for path in [
            "core/src/sync.rs",
            "core/src/sync/model.rs",
            "core/src/shared/ring.rs",
            "core/src/shared/mod.rs",
        ] {
            assert_eq!(check_file(path, "//! Shared.\n"), [], "{path}");
        }
    }

    #[test]
    fn the_root_needs_no_std_and_its_own_lint() {
        assert_eq!(check_file(LIB, "//! Core.\n").len(), 2);
        assert_eq!(check_file(LIB, "//! Core.\n#![no_std]\n#![deny(unsafe_op_in_unsafe_fn)]\n"), []);
    }

    #[test]
    fn an_exemption_that_nothing_needs_is_reported() {
        assert_eq!(check_file(ALLOWED[0], "//! Copies.\nfn copy() {}\n").len(), 1);
        assert_eq!(check_file(ALLOWED[0], "//! Copies.\nunsafe fn copy() {}\n"), []);
        assert_eq!(check(&[]).len(), ALLOWED.len());
    }
}
