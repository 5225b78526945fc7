//! Inside a crate, modules form no circle of imports.
//!
//! A crate is a tree of modules. Module A depends on its sibling B if code in A, or in a module below A, names B,
//! a module below B, or an item that a common ancestor imports from there. Neither test code nor documentation
//! counts. Two uses are no dependency between siblings: a module may use what its parent defines, and a parent may
//! use its children. A circle is a set of siblings in which each depends on each other, directly or through the
//! others.

use std::collections::{BTreeMap, BTreeSet};

use crate::modules::{Crate, roots};
use crate::source::{File, Finding};

/// Circles that are not broken yet: the directory of the siblings, and their names. Entries may only shrink.
const KNOWN: &[(&str, &[&str])] = &[];

/// Checks every crate: each library and each program with modules.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    check_against(files, KNOWN)
}

fn check_against(files: &[File], known: &[(&str, &[&str])]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut current = BTreeSet::new();
    for modules in roots(files) {
        for circle in Circle::all(&modules) {
            let listed =
                known.iter().find(|(parent, _)| *parent == circle.parent).map(|(_, members)| *members);
            let is_known = |member: &&String| listed.is_some_and(|listed| listed.contains(&member.as_str()));
            if !circle.members.iter().all(|member| is_known(&member)) {
                findings.push(circle.finding());
            }
            current.extend(circle.members.iter().map(|member| (circle.parent.clone(), member.clone())));
        }
    }
    for (parent, members) in known {
        let gone = members.iter().filter(|it| !current.contains(&(parent.to_string(), it.to_string())));
        findings.extend(gone.map(|member| {
            let what = format!("`{member}` of {parent} is in no circle any longer: remove it from `KNOWN`");
            Finding::new("tests/tidy/circles.rs", 1, what)
        }));
    }
    findings
}

/// Siblings that depend on each other.
struct Circle {
    /// The directory of their files, which stands for the module that contains them.
    parent: String,
    members: Vec<String>,
    /// Dependent, dependency, file and line: the first place of each.
    edges: Vec<(String, String, String, usize)>,
}

impl Circle {
    /// Returns the circles of a crate.
    fn all(modules: &Crate) -> Vec<Self> {
        let edges = modules.dependencies();
        let reached: Vec<BTreeSet<usize>> = (0..modules.0.len()).map(|from| reach(&edges, from)).collect();
        let together = |a: usize, b: usize| reached[a].contains(&b) && reached[b].contains(&a);
        let mut circles = Vec::new();
        for first in 0..modules.0.len() {
            let members: Vec<usize> = (0..modules.0.len()).filter(|other| together(first, *other)).collect();
            if members.first() != Some(&first) {
                continue;
            }
            let name = |module: usize| modules.0[module].name.clone();
            let inside =
                edges.iter().filter(|((from, to), _)| members.contains(from) && members.contains(to));
            circles.push(Self {
                parent: modules.0[first]
                    .parent
                    .map_or_else(String::new, |parent| modules.0[parent].directory.clone()),
                members: members.iter().map(|member| name(*member)).collect(),
                edges: inside
                    .map(|((from, to), (file, line))| (name(*from), name(*to), file.to_string(), *line))
                    .collect(),
            });
        }
        circles
    }

    fn finding(&self) -> Finding {
        let (_, _, file, line) = &self.edges[0];
        let edge = |(from, to, file, line): &(String, String, String, usize)| {
            format!("\n    {from} -> {to}: {file}:{line}")
        };
        let edges: String = self.edges.iter().map(edge).collect();
        let members = self.members.join(", ");
        Finding::new(file, *line, format!("circle of imports in {}: {members}{edges}", self.parent))
    }
}

/// Returns the modules on which a module depends, directly or not.
fn reach(edges: &BTreeMap<(usize, usize), (&str, usize)>, from: usize) -> BTreeSet<usize> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        for ((_, to), _) in edges.range((module, 0)..=(module, usize::MAX)) {
            if found.insert(*to) {
                open.push(*to);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The circles in a crate of these files, each as its text.
    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        texts(files, &[])
    }

    fn texts(files: &[(&str, &str)], known: &[(&str, &[&str])]) -> Vec<String> {
        let files: Vec<File> =
            files.iter().map(|(path, text)| File::new(&format!("core/src/{path}"), text)).collect();
        check_against(&files, known).iter().map(Finding::to_string).collect()
    }

    const ROOT: (&str, &str) = ("lib.rs", "mod a;\nmod b;\nmod c;\n");

    #[test]
    fn siblings_that_import_each_other_are_reported_with_each_edge() {
        let found = circles(&[
            ROOT,
            ("a.rs", "use crate::b::B;\nuse crate::c::C;\npub struct A;\n"),
            ("b.rs", "pub struct B;\nfn f() { crate::a::g(); }\n"),
            ("c.rs", "pub struct C;\n"),
        ]);
        let expected = "core/src/a.rs:1: circle of imports in core/src: a, b\
            \n    a -> b: core/src/a.rs:1\n    b -> a: core/src/b.rs:2";
        assert_eq!(found, [expected]);
    }

    #[test]
    fn a_circle_of_three_is_one_circle() {
        let found = circles(&[
            ROOT,
            ("a.rs", "use super::b;\n"),
            ("b.rs", "use super::c;\n"),
            ("c.rs", "use super::a;\n"),
        ]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("a, b, c\n"), "{found:?}");
    }

    #[test]
    fn modules_below_count_for_the_siblings_that_contain_them() {
        let found = circles(&[
            ("lib.rs", "mod a;\nmod b { fn f() { super::a::g(); } }\n"),
            ("a.rs", "pub mod below;\npub fn g() {}\n"),
            ("a/below.rs", "fn h(it: crate::b::B) {}\n"),
        ]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("b -> a: core/src/lib.rs:2"), "{found:?}");
    }

    #[test]
    fn siblings_at_a_lower_level_are_checked() {
        let found = circles(&[
            ("lib.rs", "mod a;\n"),
            ("a/mod.rs", "mod x;\nmod y;\n"),
            ("a/x.rs", "use super::y::Y;\n"),
            ("a/y.rs", "check!(crate::a::x::X, 1);\n"),
        ]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("circle of imports in core/src/a: x, y"), "{found:?}");
    }

    #[test]
    fn what_an_ancestor_imports_from_a_sibling_is_that_siblings() {
        for parent in ["pub use b::B;", "use self::b::{B as B};", "pub use crate::b::*;"] {
            for child in
                ["use super::B;", "use crate::B;", "use super::*;\nstruct A(B);", "struct A(super::B);"]
            {
                let root = format!("mod a;\nmod b;\n{parent}\n");
                let found = circles(&[
                    ("lib.rs", &root),
                    ("a.rs", child),
                    ("b.rs", "use crate::a;\npub struct B;\n"),
                ]);
                assert_eq!(found.len(), 1, "{parent} {child}");
            }
        }
    }

    #[test]
    fn a_parent_and_its_children_form_no_circle() {
        let found = circles(&[
            ("lib.rs", "mod a;\nuse a::A;\npub struct Root(A);\npub mod b { use crate::Root; }\n"),
            ("a.rs", "use crate::Root;\nuse super::b;\npub struct A;\n"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn tests_and_documentation_do_not_count() {
        let found = circles(&[
            ("lib.rs", "mod a;\nmod b;\n#[cfg(test)]\nmod c;\n"),
            ("a.rs", "use crate::b;\n"),
            (
                "b.rs",
                "//! As [`crate::a`].\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n#[cfg(test)]\nuse super::a;\n",
            ),
            ("c.rs", "use crate::a;\n"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn imports_that_form_a_loop_end_the_search() {
        assert_eq!(
            circles(&[(
                "lib.rs",
                "use crate::x;\nuse self::*;\nuse y::x as y;\nfn f(it: x::Y, y: y::Z) {}\n"
            )]),
            [""; 0]
        );
    }

    #[test]
    fn a_known_circle_passes_until_it_grows_or_shrinks() {
        let files = [ROOT, ("a.rs", "use crate::b;\n"), ("b.rs", "use crate::a;\n"), ("c.rs", "")];
        assert_eq!(texts(&files, &[("core/src", &["a", "b"])]), [""; 0]);
        let grown = texts(&files, &[("core/src", &["b"])]);
        assert!(grown.len() == 1 && grown[0].contains("circle of imports"), "{grown:?}");
        let shrunk = texts(&files, &[("core/src", &["a", "b", "c"])]);
        assert!(shrunk.len() == 1 && shrunk[0].contains("`c` of core/src is in no circle"), "{shrunk:?}");
    }
}
