//! Each Release has an Acquire of the same name.
//!
//! The variants of `Edge` in `core/src/sync.rs` name the synchronisation edges. The innermost call around an
//! edge decides which end it is: `cursor.store_release(Edge::Cell, next)` releases,
//! `cursor.load_acquire(Edge::Cell)` acquires, and an `acq_rel` does both. An edge that is a pair of fences
//! has a function for each end; see [`FENCES`].

use syn::visit::{self, Visit};
use syn::{Expr, Item, Token};

use crate::source::{File, Finding};
use crate::syntax::{files_under, lines_under, parse, within};

const DOOR: &str = "core/src/sync.rs";
const RELEASE: [&str; 2] = ["release", "publish"];
const ACQUIRE: [&str; 2] = ["acquire", "observe"];
const BOTH: &str = "acq_rel";
/// The edges that are pairs of fences: the function for the Release, and the function for the Acquire.
const FENCES: [(&str, &str, &str); 3] = [
    ("Sleep", "waker_fence", "sleeper_fence"),
    ("AssistClaim", "receiver_fence", "assist_fence"),
    ("Withdrawal", "withdrawal_fence", "withdrawn_fence"),
];

/// A place that names an edge.
#[derive(Debug, PartialEq, Eq)]
struct Use {
    edge: String,
    releases: bool,
    acquires: bool,
    line: usize,
}

/// Checks that every edge is released somewhere and acquired somewhere in `core`, outside `sync` and outside
/// tests.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let door = files.iter().find(|file| file.path == DOOR);
    let edges = match door.map(|door| variants(&door.text)) {
        Some(Ok(edges)) if !edges.is_empty() => edges,
        Some(Err(finding)) => return vec![finding],
        _ => return vec![Finding::new(DOOR, 1, "has no `pub enum Edge` with variants")],
    };
    let tests = files_under(files, &["test"]);
    let counts = |path: &str| {
        path.starts_with("core/src/") && path.ends_with(".rs") && path != DOOR && !tests.contains(&path)
    };
    let (mut uses, mut findings) = (Vec::new(), Vec::new());
    for file in files.iter().filter(|file| counts(&file.path)) {
        match uses_in(&file.path, &file.text) {
            Ok(found) => uses.extend(found.into_iter().map(|it| (file.path.as_str(), it))),
            Err(finding) => findings.push(finding),
        }
    }
    findings.extend(edges.iter().flat_map(|(edge, line)| judge(edge, *line, &uses)));
    findings
}

fn judge(edge: &str, line: usize, uses: &[(&str, Use)]) -> Vec<Finding> {
    let of: Vec<&(&str, Use)> = uses.iter().filter(|(_, it)| it.edge == edge).collect();
    let places: Vec<String> = of.iter().map(|(path, it)| format!("{path}:{}", it.line)).collect();
    let places =
        if places.is_empty() { "never used".into() } else { format!("used at {}", places.join(", ")) };
    let lacks = |what: &str| Finding::new(DOOR, line, format!("`Edge::{edge}` is never {what} ({places})"));
    let released = of.iter().any(|(_, it)| it.releases).then_some(());
    let acquired = of.iter().any(|(_, it)| it.acquires).then_some(());
    let missing =
        [released.map_or(Some("released"), |()| None), acquired.map_or(Some("acquired"), |()| None)];
    missing.into_iter().flatten().map(lacks).collect()
}

/// Returns the variants of `Edge` with their lines.
fn variants(text: &str) -> Result<Vec<(String, usize)>, Finding> {
    let file = parse(DOOR, text)?;
    let edge = file.items.iter().find_map(|item| match item {
        Item::Enum(item) if item.ident == "Edge" => Some(item),
        _ => None,
    });
    let variants = edge.into_iter().flat_map(|edge| &edge.variants);
    Ok(variants.map(|it| (it.ident.to_string(), it.ident.span().start().line)).collect())
}

fn uses_in(path: &str, text: &str) -> Result<Vec<Use>, Finding> {
    let file = parse(path, text)?;
    let tests = lines_under(&file, &["test"]);
    let mut positions = Positions { calls: Vec::new(), uses: Vec::new() };
    positions.visit_file(&file);
    positions.uses.retain(|it| !within(&tests, it.line));
    Ok(positions.uses)
}

struct Positions {
    /// The calls around the present place, outermost first.
    calls: Vec<String>,
    uses: Vec<Use>,
}

impl Positions {
    fn inside(&mut self, call: String, visit: impl FnOnce(&mut Self)) {
        self.calls.push(call);
        visit(self);
        self.calls.pop();
    }

    /// Returns whether the place releases and whether it acquires, by the innermost call that decides it.
    fn position(&self) -> (bool, bool) {
        let has = |call: &str, verbs: &[&str]| verbs.iter().any(|verb| call.contains(verb));
        let reported = self.calls.iter().rev().map(|call| {
            let both = call.contains(BOTH);
            (both || has(call, &RELEASE), both || has(call, &ACQUIRE))
        });
        reported.into_iter().find(|(releases, acquires)| *releases || *acquires).unwrap_or_default()
    }
}

impl<'ast> Visit<'ast> for Positions {
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.visit_expr(&call.receiver);
        self.inside(call.method.to_string(), |it| {
            call.args.iter().for_each(|argument| it.visit_expr(argument));
        });
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        let name = match &*call.func {
            Expr::Path(path) => path.path.segments.last().map(|it| it.ident.to_string()),
            _ => None,
        };
        let name = name.unwrap_or_default();
        for (edge, releases, acquires) in FENCES {
            if name == releases || name == acquires {
                let line = call.paren_token.span.open().start().line;
                let (releases, acquires) = (name == releases, name == acquires);
                self.uses.push(Use { edge: edge.into(), releases, acquires, line });
            }
        }
        self.inside(name, |it| visit::visit_expr_call(it, call));
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        let parser = syn::punctuated::Punctuated::<Expr, Token![,]>::parse_terminated;
        // An argument that is not a list of expressions contains no call that this rule can read.
        if let Ok(arguments) = invocation.parse_body_with(parser) {
            let mut inner = Positions { calls: self.calls.clone(), uses: Vec::new() };
            arguments.iter().for_each(|argument| inner.visit_expr(argument));
            self.uses.append(&mut inner.uses);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let mut segments = path.segments.iter().rev();
        if let (Some(edge), Some(owner)) = (segments.next(), segments.next())
            && owner.ident == "Edge"
        {
            let (releases, acquires) = self.position();
            let line = edge.ident.span().start().line;
            self.uses.push(Use { edge: edge.ident.to_string(), releases, acquires, line });
        }
        visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNC: &str = "/// Edges.\npub enum Edge {\n    Cell,\n}\n";

    /// Returns the findings for a queue with these statements, without file and line.
    fn found(body: &str) -> Vec<String> {
        let queue = format!("fn queue() {{\n{body}\n}}\n");
        let findings = check(&[File::new(DOOR, SYNC), File::new("core/src/shared/queue.rs", &queue)]);
        findings.iter().map(|it| it.to_string().replace("core/src/", "")).collect()
    }

    #[test]
    fn an_edge_with_both_ends_passes() {
        for body in [
            "a.store_release(Edge::Cell, 1); a.load_acquire(Edge::Cell);",
            "a.store_release(\n  sync::Edge::Cell,\n  1,\n);\na\n .load_acquire(\n Edge::Cell,\n );",
            "publish(a, Edge::Cell); if a.load_acquire(Edge::Cell) == 1 {}",
            "a.cas_release(Edge::Cell, 1, 2); assert!(a.load_acquire(Edge::Cell) == 1);",
            "a.swap_acq_rel(Edge::Cell, 1);",
        ] {
            assert_eq!(found(body), [""; 0], "{body}");
        }
    }

    #[test]
    fn an_edge_that_lacks_an_end_is_reported() {
        let released = ["sync.rs:3: `Edge::Cell` is never acquired (used at shared/queue.rs:2)"];
        assert_eq!(found("a.store_release(Edge::Cell, 1);"), released);
        let acquired = ["sync.rs:3: `Edge::Cell` is never released (used at shared/queue.rs:2)"];
        assert_eq!(found("a.load_acquire(Edge::Cell);"), acquired);
        assert_eq!(found("a.store(Edge::Cell, 1);").len(), 2);
        assert_eq!(found("").len(), 2);
    }

    #[test]
    fn the_innermost_call_determines_the_position() {
        let nested = "a.store_release(Edge::Other, b.load_acquire(Edge::Cell));";
        assert_eq!(found(nested), ["sync.rs:3: `Edge::Cell` is never released (used at shared/queue.rs:2)"]);
    }

    #[test]
    fn an_edge_of_fences_needs_both_functions() {
        let sleep = |body: &str| {
            let files = [
                File::new(DOOR, "pub enum Edge { Sleep }"),
                File::new("core/src/shared/sleep.rs", &format!("fn sleep() {{ {body} }}")),
            ];
            check(&files).len()
        };
        assert_eq!(sleep("sync::waker_fence(mode); sleeper_fence();"), 0);
        assert_eq!(sleep("waker_fence(mode);"), 1);
        assert_eq!(sleep("sleeper_fence();"), 1);
    }

    #[test]
    fn uses_in_tests_and_at_the_door_do_not_count() {
        let both = "a.store_release(Edge::Cell, 1); a.load_acquire(Edge::Cell);";
        let test = format!("#[cfg(test)]\nmod tests {{ fn a() {{ {both} }} }}\n");
        let door = format!("{SYNC}fn a() {{ {both} }}\n");
        assert_eq!(check(&[File::new(DOOR, &door), File::new("core/src/order.rs", &test)]).len(), 2);
    }

    #[test]
    fn a_tree_without_edges_is_reported() {
        assert_eq!(check(&[]).len(), 1);
        assert_eq!(check(&[File::new(DOOR, "pub enum Edge {}\n")]).len(), 1);
    }
}
