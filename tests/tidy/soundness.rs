//! The two documents `SOUNDNESS.md` are complete and up to date: they name every public safe function that safe
//! code can misuse, and the functions, types, tests and files that they name exist.

use std::collections::{BTreeSet, HashSet};

use syn::visit::{self, Visit};
use syn::{Attribute, ImplItemFn, ItemFn, ItemImpl, ItemMod, Signature, Type, Visibility};

use crate::source::{File, Finding};
use crate::syntax::{files_under, only_under, parse};

const SYS: &str = "sys/SOUNDNESS.md";
const CORE: &str = "core/SOUNDNESS.md";
/// The private modules of `nemesia`, which its document covers as a whole.
const PRIVATE: [&str; 5] =
    ["sys/src/os", "sys/src/cm", "sys/src/placement", "sys/src/internals", "sys/src/via"];
/// The start of unsafe code.
const UNSAFE: [&str; 3] = ["unsafe {", "unsafe fn", "unsafe impl"];
/// Shorter names are not checked: they are letters of prose, or lifetimes.
const SHORTEST: usize = 3;

/// Checks both documents.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = covered(files, SYS, |file| {
        let path = file.path.as_str();
        let is_private =
            |dir: &&str| path.strip_prefix(*dir).is_some_and(|rest| rest.starts_with(['/', '.']));
        path.starts_with("sys/src/") && !PRIVATE.iter().any(is_private)
    });
    findings.extend(covered(files, CORE, |file| {
        file.path.starts_with("core/src/") && UNSAFE.iter().any(|start| file.text.contains(start))
    }));
    let sources = files.iter().filter(|file| file.path.ends_with(".rs") || file.path.ends_with(".toml"));
    // A set that sorts would compare each of millions of words several times.
    let known: HashSet<&str> = sources.flat_map(|file| words(&file.text)).collect();
    let known = known.into_iter().collect();
    for document in files.iter().filter(|file| [SYS, CORE].contains(&file.path.as_str())) {
        findings.extend(existing(document, files, &known));
    }
    findings
}

/// The public safe functions in files of `scope` that the document does not name.
fn covered(files: &[File], document: &str, scope: impl Fn(&File) -> bool) -> Vec<Finding> {
    let Some(text) = files.iter().find(|file| file.path == document).map(|file| &file.text) else {
        return vec![Finding::new(document, 1, "does not exist")];
    };
    let named: BTreeSet<&str> = words(text).collect();
    let tests = files_under(files, &["test", "nemesia_loom"]);
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs") && scope(file)) {
        if tests.contains(&file.path.as_str()) {
            continue;
        }
        let Ok(syntax) = parse(&file.path, &file.text) else { continue };
        let mut functions = Functions { owner: None, found: Vec::new() };
        functions.visit_file(&syntax);
        for (owner, name, line) in functions.found {
            let whole = owner.as_ref().is_some_and(|owner| text.contains(&format!("{owner}::*")));
            if !whole && !named.contains(name.as_str()) {
                let owner = owner.map_or(String::new(), |owner| format!("{owner}::"));
                findings.push(Finding::new(
                    &file.path,
                    line,
                    format!("{document} does not name `{owner}{name}`"),
                ));
            }
        }
    }
    findings
}

/// The public safe functions of a file: type, name and line.
struct Functions {
    owner: Option<String>,
    found: Vec<(Option<String>, String, usize)>,
}

impl Functions {
    fn see(&mut self, attributes: &[Attribute], visibility: &Visibility, signature: &Signature) {
        let is_public = matches!(visibility, Visibility::Public(_));
        if is_public
            && !matches!(signature.safety, syn::Safety::Unsafe(_))
            && !only_under(attributes, &["test", "nemesia_loom"])
        {
            let line = signature.ident.span().start().line;
            self.found.push((self.owner.clone(), signature.ident.to_string(), line));
        }
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !only_under(&item.attrs, &["test", "nemesia_loom"]) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let Type::Path(path) = &*item.self_ty else { return };
        self.owner = path.path.segments.last().map(|segment| segment.ident.to_string());
        visit::visit_item_impl(self, item);
        self.owner = None;
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.see(&item.attrs, &item.vis, &item.sig);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.see(&item.attrs, &item.vis, &item.sig);
    }
}

/// The names and paths in code spans of a document that the repository does not have; `known` are its names.
fn existing(document: &File, files: &[File], known: &BTreeSet<&str>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, text) in (1..).zip(document.text.lines()) {
        for span in text.split('`').skip(1).step_by(2).filter(|span| !span.starts_with('/')) {
            let missing = if span.contains('/') {
                !files.iter().any(|file| is_part(&file.path, span))
            } else {
                let starts =
                    |start: &str| known.range(start..).next().is_some_and(|word| word.starts_with(start));
                let is_known = |word: &str| known.contains(word) || span.contains("_*") && starts(word);
                words(span).any(|word| word.len() >= SHORTEST && !is_known(word))
            };
            if missing {
                findings.push(Finding::new(&document.path, line, format!("`{span}` does not exist")));
            }
        }
    }
    findings
}

/// Returns whether a file is `part`, ends with it, or lies in such a directory.
fn is_part(path: &str, part: &str) -> bool {
    let part = part.trim_end_matches('/');
    path.contains(part) && format!("/{path}/").contains(&format!("/{part}/"))
}

/// Returns the words of a text that are names of Rust.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    parts.filter(|word| word.starts_with(|c: char| c.is_alphabetic() || c == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "pub struct Port;\nimpl Port {\n    pub fn open() {}\n    pub unsafe fn raw() {}\n    \
                          fn own() {}\n}\n#[cfg(test)]\nmod tests {\n    pub fn helper() {}\n}\npub fn find() {}\n";

    fn found(document: &str) -> Vec<Finding> {
        let files = [File::new(SYS, document), File::new("sys/src/a.rs", SOURCE), File::new(CORE, "")];
        check(&files)
    }

    #[test]
    fn a_public_safe_function_that_no_row_names_is_reported() {
        let expected = [
            Finding::new("sys/src/a.rs", 3, format!("{SYS} does not name `Port::open`")),
            Finding::new("sys/src/a.rs", 11, format!("{SYS} does not name `find`")),
        ];
        assert_eq!(found("| `Port` | |\n"), expected);
        assert_eq!(found("| `Port::*`, `find` | |\n"), []);
        assert_eq!(found("| `Port::{open}`, `find` | |\n"), []);
    }

    #[test]
    fn a_name_that_does_not_exist_is_reported() {
        let all = "`Port::*`, `find`";
        let expected = Finding::new(SYS, 2, "`closed` does not exist");
        assert_eq!(found(&format!("{all}\n`closed`, `hel_*` and `sys/src`\n"))[..1], [expected]);
        assert_eq!(found(&format!("{all}\n`helpe_*`\n")).len(), 1);
        assert_eq!(found(&format!("{all}\n`sys/src`, `src/a.rs`, `/proc`\n")), []);
        assert_eq!(found(&format!("{all}\n`src/b.rs`\n")).len(), 1);
    }

    #[test]
    fn private_modules_and_safe_files_of_core_are_left_out() {
        let files = |path: &str, text: &str| {
            check(&[File::new(SYS, ""), File::new(CORE, ""), File::new(path, text)]).len()
        };
        assert_eq!(files("sys/src/os/a.rs", SOURCE), 0);
        assert_eq!(files("sys/src/cm.rs", SOURCE), 0);
        assert_eq!(files("core/src/a.rs", "pub fn find() {}\n"), 0);
        assert_eq!(files("core/src/a.rs", "pub fn find() { unsafe { raw() } }\n"), 1);
    }
}
