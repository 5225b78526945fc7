//! Rust syntax for the rules: parsed files, lines that only tests see, and named paths.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::rc::Rc;

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Meta, UseTree};

use crate::source::{File, Finding};

/// Lines, counted from one.
pub(crate) type Lines = RangeInclusive<usize>;

/// Parses a file, once in this thread. A file that does not parse is a finding.
pub(crate) fn parse(path: &str, text: &str) -> Result<Rc<syn::File>, Finding> {
    thread_local! {
        static PARSED: RefCell<HashMap<String, Rc<syn::File>>> = RefCell::default();
    }
    if let Some(file) = PARSED.with_borrow(|parsed| parsed.get(text).cloned()) {
        return Ok(file);
    }
    let file = syn::parse_file(text)
        .map_err(|e| Finding::new(path, e.span().start().line, format!("does not parse: {e}")))?;
    let file = Rc::new(file);
    PARSED.with_borrow_mut(|parsed| parsed.insert(text.into(), Rc::clone(&file)));
    Ok(file)
}

/// Returns whether code with these attributes exists only if one of `cfgs` is set, or is a test function.
pub(crate) fn only_under(attributes: &[Attribute], cfgs: &[&str]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test") && cfgs.contains(&"test"),
        Meta::List(list) if list.path.is_ident("cfg") => {
            list.parse_args::<Meta>().is_ok_and(|predicate| implies(&predicate, cfgs))
        }
        _ => false,
    })
}

/// Returns whether a cfg predicate can hold only if one of `cfgs` is set.
fn implies(predicate: &Meta, cfgs: &[&str]) -> bool {
    let Meta::List(list) = predicate else {
        return cfgs.iter().any(|cfg| predicate.path().is_ident(cfg));
    };
    let Ok(parts) =
        list.parse_args_with(syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated)
    else {
        return false;
    };
    if list.path.is_ident("all") {
        parts.iter().any(|part| implies(part, cfgs))
    } else {
        list.path.is_ident("any") && !parts.is_empty() && parts.iter().all(|part| implies(part, cfgs))
    }
}

/// Returns the lines of the items that exist only under one of `cfgs`; the whole file if its own attributes say
/// so.
pub(crate) fn lines_under(file: &syn::File, cfgs: &[&str]) -> Vec<Lines> {
    if only_under(&file.attrs, cfgs) {
        return vec![1..=usize::MAX];
    }
    let mut collector = Collector { cfgs, lines: Vec::new() };
    collector.visit_file(file);
    collector.lines
}

/// Returns whether `line` lies in one of `ranges`.
pub(crate) fn within(ranges: &[Lines], line: usize) -> bool {
    ranges.iter().any(|range| range.contains(&line))
}

struct Collector<'a> {
    cfgs: &'a [&'a str],
    lines: Vec<Lines>,
}

impl Collector<'_> {
    fn note(&mut self, attributes: &[Attribute], node: &impl Spanned) -> bool {
        let only = only_under(attributes, self.cfgs);
        if only {
            let span = node.span();
            self.lines.push(span.start().line..=span.end().line);
        }
        only
    }
}

impl<'ast> Visit<'ast> for Collector<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !self.note(attributes(item), item) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.note(&function.attrs, function);
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// A path that a file names in an expression, a type, a macro's arguments, or an import.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// The segments. A glob import ends in `*`.
    pub(crate) segments: Vec<String>,
    pub(crate) line: usize,
    pub(crate) imported: bool,
    /// The name under which a path is imported, if that is not its last segment.
    pub(crate) alias: Option<String>,
}

/// Returns every path that the file names, in no particular order.
pub(crate) fn named(file: &syn::File) -> Vec<Named> {
    let mut paths = Paths(Vec::new());
    paths.visit_file(file);
    paths.0
}

/// Returns every path that these items name, except in modules among them.
pub(crate) fn named_in(items: &[Item]) -> Vec<Named> {
    let mut paths = Paths(Vec::new());
    items.iter().filter(|item| !matches!(item, Item::Mod(_))).for_each(|item| paths.visit_item(item));
    paths.0
}

struct Paths(Vec<Named>);

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        flatten(&item.tree, &mut Vec::new(), &mut self.0);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.0.push(Named { segments, line: path.span().start().line, imported: false, alias: None });
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        in_tokens(invocation.tokens.clone(), &mut self.0);
        visit::visit_macro(self, invocation);
    }
}

fn flatten(tree: &UseTree, before: &mut Vec<String>, found: &mut Vec<Named>) {
    let leaf = |name: String, line: usize, alias: Option<String>, found: &mut Vec<Named>| {
        let segments = before.iter().cloned().chain((name != "self").then_some(name)).collect();
        found.push(Named { segments, line, imported: true, alias });
    };
    match tree {
        UseTree::Name(name) => leaf(name.ident.to_string(), name.ident.span().start().line, None, found),
        UseTree::Rename(name) => {
            let alias = name.rename.to_string();
            leaf(name.ident.to_string(), name.ident.span().start().line, Some(alias), found);
        }
        UseTree::Glob(glob) => leaf("*".into(), glob.span().start().line, None, found),
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, found);
            before.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|item| flatten(item, before, found)),
    }
}

fn in_tokens(tokens: TokenStream, found: &mut Vec<Named>) {
    let mut colons = 0;
    let mut open = false;
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => {
                let line = ident.span().start().line;
                match found.last_mut().filter(|_| open && colons == 2) {
                    Some(path) => path.segments.push(ident.to_string()),
                    None => {
                        let segments = vec![ident.to_string()];
                        found.push(Named { segments, line, imported: false, alias: None });
                    }
                }
                (open, colons) = (true, 0);
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
            TokenTree::Group(group) => {
                in_tokens(group.stream(), found);
                open = false;
            }
            _ => open = false,
        }
        if !open {
            colons = 0;
        }
    }
}

/// Returns the files of modules that another file declares to exist only under one of `cfgs`.
pub(crate) fn files_under<'a>(files: &'a [File], cfgs: &[&str]) -> Vec<&'a str> {
    let mut stems = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        let Ok(parsed) = parse(&file.path, &file.text) else { continue };
        let directory = module_directory(&file.path);
        for item in &parsed.items {
            if let Item::Mod(module) = item
                && module.content.is_none()
                && only_under(&module.attrs, cfgs)
            {
                stems.push(format!("{directory}/{}", module.ident));
            }
        }
    }
    let belongs = |path: &str| {
        stems.iter().any(|stem| {
            path.strip_prefix(stem.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    };
    files.iter().map(|file| file.path.as_str()).filter(|path| belongs(path)).collect()
}

/// Returns the directory of the modules that a file declares.
pub(crate) fn module_directory(path: &str) -> &str {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    match name {
        "lib.rs" | "main.rs" | "mod.rs" => directory,
        _ => path.trim_end_matches(".rs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str, cfgs: &[&str]) -> Vec<Lines> {
        lines_under(&parse("a.rs", text).unwrap(), cfgs)
    }

    fn paths(text: &str) -> Vec<String> {
        named(&parse("a.rs", text).unwrap()).iter().map(|path| path.segments.join("::")).collect()
    }

    #[test]
    fn a_test_module_is_seen_and_its_opposite_is_not() {
        assert_eq!(lines("fn a() {}\n#[cfg(test)]\nmod tests {\n}\n", &["test"]), [2..=4]);
        assert_eq!(lines("#[cfg(not(test))]\nmod a {\n}\n", &["test"]), []);
        assert_eq!(lines("#[cfg(any(test, feature = \"x\"))]\nmod a {}\n", &["test"]), []);
        assert_eq!(lines("#[cfg(all(test, unix))]\nmod a {}\n", &["test"]), [1..=2]);
    }

    #[test]
    fn a_model_is_test_code_only_where_the_rule_says_so() {
        let text = "#[cfg(any(test, nemesia_loom))]\nextern crate std;\n";
        assert_eq!(lines(text, &["test"]), []);
        assert_eq!(lines(text, &["test", "nemesia_loom"]), [1..=2]);
    }

    #[test]
    fn imports_are_flattened() {
        assert_eq!(
            paths("use core::{cell::{self, Cell as C}, hint::*};"),
            ["core::cell", "core::cell::Cell", "core::hint::*"]
        );
    }

    #[test]
    fn paths_inside_macros_are_seen() {
        let found = paths("fn a() { check!(x, core::hint::spin_loop(), y: Z); }");
        assert!(found.contains(&"core::hint::spin_loop".to_string()), "{found:?}");
        assert!(found.contains(&"Z".to_string()), "{found:?}");
    }

    #[test]
    fn the_file_of_a_test_module_is_a_test_file() {
        let files = [
            File::new("core/src/engine/mod.rs", "#[cfg(test)]\nmod tests;\nmod peer;\n"),
            File::new("core/src/engine/peer.rs", "#[cfg(test)]\nmod oracle;\n"),
            File::new("core/src/engine/peer/oracle.rs", ""),
            File::new("core/src/engine/tests.rs", ""),
            File::new("core/src/engine/tests/slow.rs", ""),
        ];
        let expected =
            ["core/src/engine/peer/oracle.rs", "core/src/engine/tests.rs", "core/src/engine/tests/slow.rs"];
        assert_eq!(files_under(&files, &["test"]), expected);
        assert_eq!(files_under(&files, &["nemesia_loom"]), [""; 0]);
    }
}
