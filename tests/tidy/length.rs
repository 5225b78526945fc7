//! Functions of at most 70 lines, files of at most 600.

use proc_macro2::Span;
use syn::visit::{self, Visit};
use syn::{Block, Item, Signature};

use crate::source::Finding;
use crate::syntax::{only_under, parse};

/// Counted from the line of `fn` to the closing brace, both included.
const FUNCTION: usize = 70;
/// Counts all lines, comments and blanks included, except the bodies of `#[cfg(test)] mod`.
const FILE: usize = 600;
/// A file with this word in one of its first lines is generated.
const MARKER: &str = concat!("@", "generated");
const MARKED_WITHIN: usize = 10;

/// Checks every function of a Rust file, including nested functions and those of tests.
pub(crate) fn functions(path: &str, text: &str) -> Vec<Finding> {
    if !path.ends_with(".rs") || is_generated(text) {
        return Vec::new();
    }
    match parse(path, text) {
        Ok(file) => {
            let mut long = Long { path, findings: Vec::new() };
            long.visit_file(&file);
            long.findings
        }
        Err(finding) => vec![finding],
    }
}

/// Checks the length of a source file.
pub(crate) fn file(path: &str, text: &str) -> Vec<Finding> {
    if !is_source(path, text) || is_generated(text) {
        return Vec::new();
    }
    let lines = text.lines().count() - if path.ends_with(".rs") { test_lines(path, text) } else { 0 };
    if lines > FILE {
        vec![Finding::new(path, lines, format!("{lines} lines, at most {FILE}: divide the file"))]
    } else {
        Vec::new()
    }
}

fn is_source(path: &str, text: &str) -> bool {
    let known = [".rs", ".c", ".h", ".cc", ".cpp", ".hpp", ".sh", ".py"];
    known.iter().any(|extension| path.ends_with(extension)) || text.starts_with("#!/")
}

fn is_generated(text: &str) -> bool {
    text.lines().take(MARKED_WITHIN).any(|line| line.contains(MARKER))
}

fn test_lines(path: &str, text: &str) -> usize {
    let Ok(file) = parse(path, text) else { return 0 };
    let bodies = file.items.iter().filter_map(|item| match item {
        Item::Mod(module) if only_under(&module.attrs, &["test"]) => module.content.as_ref(),
        _ => None,
    });
    bodies.map(|(brace, _)| brace.span.close().end().line - brace.span.open().start().line).sum()
}

struct Long<'a> {
    path: &'a str,
    findings: Vec<Finding>,
}

impl Long<'_> {
    fn measure(&mut self, signature: &Signature, block: &Block) {
        let start = first(signature.fn_token.span);
        let lines = block.brace_token.span.close().end().line - start + 1;
        if lines > FUNCTION {
            let what = format!("`{}` has {lines} lines, at most {FUNCTION}", signature.ident);
            self.findings.push(Finding::new(self.path, start, what));
        }
    }
}

fn first(span: Span) -> usize {
    span.start().line
}

impl<'ast> Visit<'ast> for Long<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.measure(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.measure(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.measure(&function.sig, block);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function_of(lines: usize) -> String {
        format!("// a comment\nfn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_of_71_lines_is_reported_where_it_begins() {
        assert_eq!(functions("a.rs", &function_of(70)), []);
        let expected = Finding::new("a.rs", 2, "`long` has 71 lines, at most 70");
        assert_eq!(functions("a.rs", &function_of(71)), [expected]);
    }

    #[test]
    fn methods_and_default_methods_are_measured() {
        for head in ["impl A", "trait A", "mod a"] {
            let text = format!("{head} {{\n{}}}\n", function_of(71));
            assert_eq!(functions("a.rs", &text).len(), 1, "{head}");
        }
    }

    #[test]
    fn a_file_of_601_lines_is_reported_in_rust_in_c_and_in_shell() {
        let long = "// line\n".repeat(601);
        for path in ["a.rs", "a.c", "a.h"] {
            assert_eq!(file(path, &long).len(), 1, "{path}");
        }
        assert_eq!(file("tests/run", &format!("#!/bin/bash\n{long}")).len(), 1);
        assert_eq!(file("a.rs", &"// line\n".repeat(600)), []);
    }

    #[test]
    fn the_bodies_of_test_modules_do_not_count_and_others_do() {
        let filler = "// line\n".repeat(400);
        let tests = format!("{filler}#[cfg(test)]\nmod tests {{\n{filler}}}\n");
        assert_eq!(file("a.rs", &tests), []);
        assert_eq!(file("a.rs", &tests.replace("cfg(test)", "cfg(unix)")).len(), 1);
    }

    #[test]
    fn a_generated_file_is_left_alone() {
        let text = format!("// {MARKER} by a program\n{}{}", function_of(99), "// line\n".repeat(600));
        assert_eq!(functions("a.rs", &text), []);
        assert_eq!(file("a.rs", &text), []);
    }

    #[test]
    fn what_does_not_parse_is_reported() {
        assert_eq!(functions("a.rs", "fn (").len(), 1);
    }
}
