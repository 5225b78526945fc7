//! Inside a crate, modules form no circle of imports.
//!
//! A crate is a tree of modules. Module A depends on its sibling B if code in A, or in a module below A, names B,
//! a module below B, or an item that a common ancestor imports from there. Neither test code nor documentation
//! counts. Two uses are no dependency between siblings: a module may use what its parent defines, and a parent may
//! use its children. A circle is a set of siblings in which each depends on each other, directly or through the
//! others.

use std::collections::{BTreeMap, BTreeSet};

use syn::Item;

use crate::source::{File, Finding};
use crate::syntax::{Lines, Named, lines_under, module_directory, named_in, only_under, parse, within};

/// Circles that are not broken yet: the directory of the siblings, and their names. Entries may only shrink.
const KNOWN: &[(&str, &[&str])] = &[];

/// The number of imports that are followed from one name. It ends the search if imports form a loop.
const DEPTH: usize = 16;

/// Checks every crate: each library and each program with modules.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    check_against(files, KNOWN)
}

fn check_against(files: &[File], known: &[(&str, &[&str])]) -> Vec<Finding> {
    let is_root = |file: &&File| file.path.ends_with("/lib.rs") || file.path.ends_with("/main.rs");
    let mut findings = Vec::new();
    let mut current = BTreeSet::new();
    for root in files.iter().filter(is_root) {
        for circle in Crate::read(files, root).circles() {
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

/// A module, and what its code names.
struct Module {
    name: String,
    file: String,
    /// The directory of its children's files.
    directory: String,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    defined: BTreeSet<String>,
    imports: BTreeMap<String, Vec<String>>,
    /// Modules of which everything is imported.
    globs: Vec<Vec<String>>,
    named: Vec<Named>,
}

/// Where a path leads: the modules that it names or passes through imports, and the last one if the path ends in a
/// module.
#[derive(Default)]
struct Trace {
    passed: Vec<usize>,
    end: Option<usize>,
}

/// The modules of one crate; the first is its root.
struct Crate(Vec<Module>);

impl Crate {
    fn read(files: &[File], root: &File) -> Self {
        let files: BTreeMap<&str, &str> =
            files.iter().map(|file| (file.path.as_str(), file.text.as_str())).collect();
        let mut modules = Self(Vec::new());
        modules.read_file(&files, &root.path, String::new(), None);
        modules
    }

    /// Adds the module in a file, and the modules below it. Another rule reports files that do not parse.
    fn read_file(
        &mut self,
        files: &BTreeMap<&str, &str>,
        path: &str,
        name: String,
        parent: Option<usize>,
    ) -> Option<usize> {
        let parsed = parse(path, files.get(path)?).ok()?;
        let tests = lines_under(&parsed, &["test"]);
        Some(self.read_items(files, (path, module_directory(path), &tests), &parsed.items, name, parent))
    }

    /// Adds the module that consists of `items`. `place` is its file, the directory of its modules, and the lines of
    /// the file that only tests see.
    fn read_items(
        &mut self,
        files: &BTreeMap<&str, &str>,
        place: (&str, &str, &[Lines]),
        items: &[Item],
        name: String,
        parent: Option<usize>,
    ) -> usize {
        let (path, below, tests) = place;
        let index = self.0.len();
        let named = named_in(items).into_iter().filter(|it| !within(tests, it.line)).collect::<Vec<_>>();
        self.0.push(Module {
            name,
            file: path.into(),
            directory: below.into(),
            parent,
            children: BTreeMap::new(),
            defined: items.iter().filter_map(defined).collect(),
            imports: imports(&named),
            globs: globs(&named),
            named,
        });
        for item in items {
            let Item::Mod(declared) = item else { continue };
            if only_under(&declared.attrs, &["test"]) {
                continue;
            }
            let name = declared.ident.to_string();
            let inside = format!("{below}/{name}");
            let child = match &declared.content {
                Some((_, items)) => {
                    Some(self.read_items(files, (path, &inside, tests), items, name.clone(), Some(index)))
                }
                None => [format!("{inside}.rs"), format!("{inside}/mod.rs")]
                    .into_iter()
                    .find_map(|file| self.read_file(files, &file, name.clone(), Some(index))),
            };
            self.0[index].children.extend(child.map(|child| (name, child)));
        }
        index
    }

    /// Follows a path that code of `module` names.
    fn trace(&self, module: usize, path: &[String], depth: usize) -> Trace {
        let Some((first, rest)) = path.split_first().filter(|_| depth > 0) else { return Trace::default() };
        let mut trace = match first.as_str() {
            "crate" => Trace { passed: vec![0], end: Some(0) },
            "self" => Trace { passed: vec![], end: Some(module) },
            "super" => Trace { passed: vec![], end: self.0[module].parent },
            name => self.lookup(module, name, depth),
        };
        for name in rest {
            let Some(module) = trace.end else { break };
            let next = match name.as_str() {
                "super" => Trace { passed: vec![], end: self.0[module].parent },
                name => self.lookup(module, name, depth),
            };
            trace.passed.extend(next.passed);
            trace.end = next.end;
        }
        trace
    }

    /// Finds a name in the scope of a module: a child, an item, an import.
    fn lookup(&self, module: usize, name: &str, depth: usize) -> Trace {
        let scope = &self.0[module];
        if let Some(child) = scope.children.get(name) {
            return Trace { passed: vec![*child], end: Some(*child) };
        }
        if scope.defined.contains(name) {
            return Trace { passed: vec![module], end: None };
        }
        if let Some(path) = scope.imports.get(name) {
            return self.trace(module, path, depth - 1);
        }
        for glob in &scope.globs {
            let mut found = self.trace(module, glob, depth - 1);
            let Some(from) = found.end.filter(|_| depth > 1) else { continue };
            let item = self.lookup(from, name, depth - 1);
            if !item.passed.is_empty() {
                found.passed.extend(item.passed);
                return Trace { passed: found.passed, end: item.end };
            }
        }
        Trace::default()
    }

    /// The module and its ancestors, the root first.
    fn line_of(&self, module: usize) -> Vec<usize> {
        let mut line: Vec<usize> =
            std::iter::successors(Some(module), |module| self.0[*module].parent).collect();
        line.reverse();
        line
    }

    /// Returns the pair of siblings of which one contains `from` and the other contains `to`. `None` if one of the
    /// two modules contains the other.
    fn siblings(&self, from: usize, to: usize) -> Option<(usize, usize)> {
        let (from, to) = (self.line_of(from), self.line_of(to));
        from.into_iter().zip(to).find(|(from, to)| from != to)
    }

    /// Returns the first place of each dependency between siblings.
    fn dependencies(&self) -> BTreeMap<(usize, usize), (&str, usize)> {
        let mut found = BTreeMap::new();
        for (index, module) in self.0.iter().enumerate() {
            for named in &module.named {
                for to in self.trace(index, &named.segments, DEPTH).passed {
                    if let Some(pair) = self.siblings(index, to) {
                        found.entry(pair).or_insert((module.file.as_str(), named.line));
                    }
                }
            }
        }
        found
    }

    fn circles(&self) -> Vec<Circle> {
        let edges = self.dependencies();
        let reached: Vec<BTreeSet<usize>> = (0..self.0.len()).map(|from| reach(&edges, from)).collect();
        let together = |a: usize, b: usize| reached[a].contains(&b) && reached[b].contains(&a);
        let mut circles = Vec::new();
        for first in 0..self.0.len() {
            let members: Vec<usize> = (0..self.0.len()).filter(|other| together(first, *other)).collect();
            if members.first() != Some(&first) {
                continue;
            }
            let name = |module: usize| self.0[module].name.clone();
            let inside =
                edges.iter().filter(|((from, to), _)| members.contains(from) && members.contains(to));
            circles.push(Circle {
                parent: self.0[first]
                    .parent
                    .map_or_else(String::new, |parent| self.0[parent].directory.clone()),
                members: members.iter().map(|member| name(*member)).collect(),
                edges: inside
                    .map(|((from, to), (file, line))| (name(*from), name(*to), file.to_string(), *line))
                    .collect(),
            });
        }
        circles
    }
}

/// Returns the path behind each imported name.
fn imports(named: &[Named]) -> BTreeMap<String, Vec<String>> {
    let local = |it: &Named| it.alias.as_ref().or(it.segments.last()).cloned();
    let imported = named.iter().filter(|it| it.imported);
    imported.filter_map(|it| Some((local(it)?, it.segments.clone()))).collect()
}

/// Returns the modules of which everything is imported.
fn globs(named: &[Named]) -> Vec<Vec<String>> {
    let module = |it: &Named| {
        let (last, module) = it.segments.split_last()?;
        (it.imported && last == "*").then(|| module.to_vec())
    };
    named.iter().filter_map(module).collect()
}

/// Returns the name that an item defines.
fn defined(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
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
