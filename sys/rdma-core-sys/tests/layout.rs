//! The layout of every struct and union: in Rust, and by the C compiler of this machine.

mod headers;
mod probe;

use std::path::Path;

use headers::Roots;
use rdma_core_sys::{LAYOUTS, Layout};

/// Prints why a test could not run, as every test of this repository does.
#[allow(clippy::print_stderr, reason = "this is how a test says that it did not run")]
fn skip(test: &str, reason: &str) {
    use std::io::Write as _;
    let line = format!("SKIPPED: {test}: {}\n", reason.lines().next().unwrap_or_default());
    eprint!("{line}");
    if let Some(log) = std::env::var_os("NEMESIA_SKIP_LOG") {
        let log = std::fs::OpenOptions::new().append(true).create(true).open(log);
        if let Err(error) = log.and_then(|mut log| log.write_all(line.as_bytes())) {
            eprintln!("the log of skips: {error}");
        }
    }
}

fn asked() -> Vec<(String, Vec<String>)> {
    let fields = |layout: &Layout| layout.fields.iter().map(|(field, _)| (*field).to_string()).collect();
    LAYOUTS.iter().map(|layout| (layout.name.to_string(), fields(layout))).collect()
}

/// Returns the differences. A later release may append to a structure, but moves no field.
fn differences(answers: &[probe::Answer], is_same_release: bool) -> Vec<String> {
    let mut found = Vec::new();
    for (layout, c) in LAYOUTS.iter().zip(answers) {
        let size_differs = if is_same_release { c.size != layout.size } else { c.size < layout.size };
        if size_differs || c.align != layout.align {
            found.push(format!("{}: {} bytes, {} in C", layout.name, layout.size, c.size));
        }
        for ((field, rust), c) in layout.fields.iter().zip(&c.offsets) {
            if rust != c {
                found.push(format!("{}::{field}: at {rust}, {c} in C", layout.name));
            }
        }
    }
    found
}

#[test]
fn every_struct_and_field_lies_where_c_puts_it() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rdma-core");
    let roots = match Roots::find(&scratch, false) {
        Ok(roots) => roots,
        Err(reason) => return skip("every_struct_and_field_lies_where_c_puts_it", &reason),
    };
    if std::process::Command::new("cc").arg("--version").output().is_err() {
        return skip("every_struct_and_field_lies_where_c_puts_it", "no C compiler; install gcc");
    }
    let answers = probe::ask_c(&asked(), &roots.include_arguments(), &scratch).expect("the C program runs");
    let is_same_release = roots.version().as_deref() == Ok(headers::committed_version());
    let found = differences(&answers, is_same_release);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_field_that_lies_elsewhere_is_found() {
    let mut answers: Vec<probe::Answer> = LAYOUTS
        .iter()
        .map(|layout| probe::Answer {
            size: layout.size,
            align: layout.align,
            offsets: layout.fields.iter().map(|(_, offset)| *offset).collect(),
        })
        .collect();
    assert_eq!(differences(&answers, true), [""; 0]);
    answers[3].offsets[1] += 4;
    answers[5].size += 8;
    assert_eq!(differences(&answers, true).len(), 2);
    assert_eq!(differences(&answers, false).len(), 1);
}

#[test]
fn the_list_holds_what_the_critical_path_uses() {
    let fields = |name| LAYOUTS.iter().find(|layout| layout.name == name).map(|layout| layout.fields.len());
    assert!(LAYOUTS.len() > 120, "{} types", LAYOUTS.len());
    assert_eq!(fields("struct ibv_wc"), Some(14));
    assert_eq!(fields("struct ibv_sge"), Some(3));
    assert_eq!(fields("struct ibv_context_ops"), Some(32));
    let nested = |field| {
        let layout = LAYOUTS.iter().find(|layout| layout.name == "struct ibv_send_wr");
        layout.and_then(|layout| layout.fields.iter().find(|(name, _)| *name == field)).is_some()
    };
    assert!(nested("wr.atomic.compare_add") && nested("imm_data") && nested("bind_mw.bind_info"));
}
