//! The modules of a crate, and what each of them names: for the rules about imports.

use std::collections::{BTreeMap, BTreeSet};

use syn::Item;

use crate::source::File;
use crate::syntax::{Lines, Named, lines_under, module_directory, named_in, only_under, parse, within};

/// The number of imports that are followed from one name. It ends the search if imports form a loop.
const DEPTH: usize = 16;

/// A module, and what its code names.
pub(crate) struct Module {
    pub(crate) name: String,
    file: String,
    /// The directory of its children's files.
    pub(crate) directory: String,
    pub(crate) parent: Option<usize>,
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
pub(crate) struct Crate(pub(crate) Vec<Module>);

impl Crate {
    pub(crate) fn read(files: &[File], root: &File) -> Self {
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

    /// Returns each use of a module by another: the user, the module, and the file and the line of the use.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (usize, usize, &str, usize)> {
        self.0.iter().enumerate().flat_map(move |(from, module)| {
            module.named.iter().flat_map(move |named| {
                let used = self.trace(from, &named.segments, DEPTH).passed;
                used.into_iter().map(move |to| (from, to, module.file.as_str(), named.line))
            })
        })
    }

    /// Returns the first place of each dependency between siblings.
    pub(crate) fn dependencies(&self) -> BTreeMap<(usize, usize), (&str, usize)> {
        let mut found = BTreeMap::new();
        for (from, to, file, line) in self.uses() {
            if let Some(pair) = self.siblings(from, to) {
                found.entry(pair).or_insert((file, line));
            }
        }
        found
    }
}

/// Returns every crate: each library and each program with modules.
pub(crate) fn roots(files: &[File]) -> impl Iterator<Item = Crate> {
    let is_root = |file: &&File| file.path.ends_with("/lib.rs") || file.path.ends_with("/main.rs");
    files.iter().filter(is_root).map(|root| Crate::read(files, root))
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
