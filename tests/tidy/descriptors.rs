//! No descriptor of the library has the number of a standard stream.
//!
//! A function that makes a descriptor passes it through `sys/src/os/descriptor.rs`, or keeps those numbers taken while
//! another library makes it.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{ExprField, ExprMethodCall, ImplItemFn, ItemFn, Member};

use crate::source::{File, Finding};
use crate::syntax::{Lines, files_under, lines_under, parse, within};

/// The module that makes the others' descriptors.
const HOME: &str = "sys/src/os/descriptor.rs";
/// The sources that are linked into programs.
const LIBRARY: [&str; 4] = ["sys/src/", "ffi/src/", "ffi/ofi/src/", "ffi/vipl/src/"];
/// The ends of paths that make a descriptor.
const MAKERS: [&[&str]; 13] = [
    &["from_raw_fd"],
    &["TcpListener", "bind"],
    &["TcpStream", "connect"],
    &["TcpStream", "connect_timeout"],
    &["UdpSocket", "bind"],
    &["UnixListener", "bind"],
    &["UnixStream", "connect"],
    &["UnixStream", "pair"],
    &["UnixDatagram", "bind"],
    &["io", "pipe"],
    &["File", "open"],
    &["File", "options"],
    &["OpenOptions", "new"],
];
/// One of these words must stand in the same function.
const RAISERS: [&str; 2] = ["above_standard", "F_DUPFD_CLOEXEC"];
/// The functions of other libraries that make descriptors.
const FOREIGN: [&str; 5] = [
    "ibv_get_device_list",
    "ibv_open_device",
    "ibv_create_comp_channel",
    "rdma_create_event_channel",
    "rdma_create_id",
];
/// This word must stand in the same function.
const OCCUPIER: &str = "occupy_standard";
/// The receivers of a method `accept` that is not the standard library's.
const OWN_LISTENERS: [&str; 2] = ["source", "transport"];

/// Checks each function of the library that makes a descriptor.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let tests = files_under(files, &["test"]);
    let is_ours = |path: &str| {
        LIBRARY.iter().any(|place| path.starts_with(place)) && path.ends_with(".rs") && path != HOME
    };
    let ours = files.iter().filter(|file| is_ours(&file.path) && !tests.contains(&file.path.as_str()));
    ours.flat_map(|file| check_file(&file.path, &file.text)).collect()
}

fn check_file(path: &str, text: &str) -> Vec<Finding> {
    let file = match parse(path, text) {
        Ok(file) => file,
        Err(finding) => return vec![finding],
    };
    let tests = lines_under(&file, &["test"]);
    let mut made = Made::default();
    made.visit_file(&file);
    let lines: Vec<&str> = text.lines().collect();
    let has = |function: &Lines, word: &str| {
        let lines = lines.get(function.start() - 1..*function.end()).unwrap_or(&[]);
        lines.iter().any(|line| line.contains(word))
    };
    let mut findings = Vec::new();
    for (line, what, words) in made.found {
        let inner =
            made.functions.iter().filter(|function| function.contains(&line)).max_by_key(|it| *it.start());
        let is_raised = inner.is_some_and(|function| words.iter().any(|word| has(function, word)));
        if !within(&tests, line) && !is_raised {
            let what = format!("`{what}` may return 0, 1 or 2: use {words:?}, see {HOME}");
            findings.push(Finding::new(path, line, what));
        }
    }
    findings
}

/// The places that make descriptors, with the words of which one is necessary, and the functions.
#[derive(Default)]
struct Made {
    found: Vec<(usize, String, &'static [&'static str])>,
    functions: Vec<Lines>,
}

impl Made {
    fn note(&mut self, function: &impl Spanned) {
        let span = function.span();
        self.functions.push(span.start().line..=span.end().line);
    }
}

impl<'ast> Visit<'ast> for Made {
    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.note(function);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.note(function);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|it| it.ident.to_string()).collect();
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        if MAKERS.iter().any(|maker| segments.ends_with(maker)) {
            self.found.push((path.span().start().line, segments.join("::"), &RAISERS));
        }
        visit::visit_path(self, path);
    }

    fn visit_expr_field(&mut self, field: &'ast ExprField) {
        if let Member::Named(name) = &field.member
            && FOREIGN.iter().any(|foreign| name == foreign)
        {
            self.found.push((name.span().start().line, name.to_string(), &[OCCUPIER]));
        }
        visit::visit_expr_field(self, field);
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let is_own = match &*call.receiver {
            syn::Expr::Field(ExprField { member: Member::Named(name), .. }) => {
                OWN_LISTENERS.iter().any(|own| name == own)
            }
            syn::Expr::Path(name) => OWN_LISTENERS.iter().any(|own| name.path.is_ident(own)),
            _ => false,
        };
        if call.method == "accept" && call.args.is_empty() && !is_own {
            self.found.push((call.method.span().start().line, "accept".into(), &RAISERS));
        }
        visit::visit_expr_method_call(self, call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(body: &str) -> usize {
        check_file("sys/src/os/new.rs", &format!("fn make() {{\n{body}\n}}\nfn above_standard() {{}}\n"))
            .len()
    }

    #[test]
    fn a_descriptor_that_is_not_raised_is_reported() {
        for body in [
            "unsafe { OwnedFd::from_raw_fd(fd) }",
            "std::net::TcpListener::bind(at)?",
            "UnixStream::pair()?;",
            "self.listener.accept()?;",
            "File::options().read(true).open(path)",
            "(verbs()?.ibv_open_device)(device)",
        ] {
            assert_eq!(findings(body), 1, "{body}");
        }
    }

    #[test]
    fn a_descriptor_that_is_raised_or_made_by_our_own_function_passes() {
        for body in [
            "above_standard(TcpListener::bind(at)?)?",
            "let low = OwnedFd::from_raw_fd(fd);\nfcntl(low, F_DUPFD_CLOEXEC, 3)",
            "let _occupied = occupy_standard();\n(verbs()?.ibv_open_device)(device)",
            "self.source.accept()",
            "accept(&self.listener)?",
            "self.listener.accept(now)?",
        ] {
            assert_eq!(findings(body), 0, "{body}");
        }
    }

    #[test]
    fn test_code_may_make_any() {
        let text = "#[cfg(test)]\nmod tests {\nfn a() { UnixStream::pair(); }\n}\n";
        assert_eq!(check_file("sys/src/a.rs", text).len(), 0);
    }
}
