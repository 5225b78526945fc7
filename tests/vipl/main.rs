//! The VI Provider Library in the form in which users get it: installed by `ffi/install.sh`, and used by programs in C
//! that know `vipl.h` alone (and `vipl_nemesia.h` for allocated memory).
//!
//! | file | content |
//! |---|---|
//! | `statements.md` | the statements about the interface by name, and the return codes of each function |
//! | `statements.rs` | checks that each statement has a case, and that each code and status occurs |
//! | `coverage.h` | records the return codes and statuses that occur |
//! | `common.h` | checks, two processes that meet, memory of either kind, descriptors |
//! | `interface.c` | signatures, types and constants, and a child process |
//! | `calls.c` | each function and each return code that one process alone can see |
//! | `transfer.c` | data transfers: each operation, each status bit, each reliability level |
//! | `connect.c` | connections of both kinds, time limits, false servers, unauthenticated connections |
//! | `complete.c` | completion queues, callbacks, errors without a descriptor, threads |
//! | `kills.c` | processes that are killed at random times |
//! | `clients.c` | what programs of that time rely on, beyond the text of the interface |
//! | `strangers.c` | processes that claim to be on this machine, or that a call waits in them |
//! | `trust.c`, `hostile.c` | whom a process connects on other machines, and a process that violates the protocol |
//! | `machines.rs` | the programs between two network namespaces; `hosts.h` moves their processes there |
//! | `storm.c` | many connections |
//! | `beside.c` | a benchmark, which no test runs: `ffi/vipl.md` |
//!
//! The tests of functions and constants print what the programs cover.
//!
//! `VIPL_KILLS` is the number of killed processes: 30, or 10 in the suite for every change, unless it is set. One
//! thousand takes about six minutes: `VIPL_KILLS=1000 cargo test -p nemesia-tests --test vipl killed -- --nocapture`.

// Shared with `tests/c`, which uses the rest.
#[allow(dead_code, reason = "tests/c uses all of it")]
#[path = "../c/toolchain.rs"]
mod toolchain;

mod machines;
mod statements;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use nemesia_tests::leftovers::Traces;
use nemesia_tests::{quick, skip};

use toolchain::{installed, lines, missing, output, scratch, source};

/// The programs whose text must contain every function and every constant.
const PROGRAMS: [&str; 7] = ["interface", "calls", "transfer", "connect", "complete", "kills", "storm"];
/// The programs whose calls are recorded.
const SUITE: [&str; 6] = ["interface", "calls", "transfer", "connect", "complete", "storm"];
const FLAGS: [&str; 5] = ["-std=gnu99", "-O1", "-Wall", "-Wextra", "-Wno-unused-function"];
/// Constants that no program of this provider can see, each with the reason.
const NEVER: [(&str, &str); 12] = [
    ("VIP_STATUS_PARTIAL_ERROR", "a transfer is published as a whole or not at all"),
    ("VIP_ERROR_RDMAW_DATA", "memory does not damage data"),
    ("VIP_ERROR_RDMAW_ABORT", "a process that dies during a write is reported as a lost connection"),
    ("VIP_ERROR_RDMA_TRANSPORT", "memory has no transport errors"),
    ("VIP_ERROR_CATASTROPHIC", "the provider has no such state"),
    (
        "VIP_ERROR_RDMAW_PROT",
        "only a process with another library sends such a write: core/src/via/vi/tests.rs",
    ),
    ("VIP_ERROR_RDMAR_PROT", "as before"),
    ("VIP_RESOURCE_NIC", "no error concerns a NIC"),
    ("VIP_STATUS_RESERVED", "a mask of bits that are not used"),
    ("VIP_STATUS_OP_MASK", "a mask"),
    ("VIP_CONTROL_OP_MASK", "a mask"),
    ("VIP_CONTROL_RESERVED", "a mask"),
];

/// Returns whether the tools are installed; if not, reports the test as skipped.
fn can_run(test: &str, tools: &[&str]) -> bool {
    let Some(tool) = missing(tools) else { return true };
    skip(test, &format!("`{tool}` is not installed"));
    false
}

/// Compiles a program against the installed library, once in this process. To link the static library takes seconds.
fn compile(name: &str, is_static: bool, more: &[&str]) -> Result<PathBuf, String> {
    static PROGRAMS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let prefix = installed()?;
    let lib = prefix.join("lib");
    let program = scratch().join(format!("vipl-{name}-{}", if is_static { "static" } else { "shared" }));
    let mut programs = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    if programs.contains(&program) {
        return Ok(program);
    }
    let mut command = Command::new("cc");
    command.args(FLAGS).arg("-I").arg(prefix.join("include"));
    command.arg(source(&format!("tests/vipl/{name}.c"))).arg("-o").arg(&program);
    if is_static {
        let system = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"];
        command.arg(lib.join("libvipl.a")).args(system);
    } else {
        command.arg(format!("-L{}", lib.display())).arg(format!("-Wl,-rpath,{}", lib.display()));
        command.args(["-lvipl", "-lpthread", "-ldl"]);
    }
    output(command.args(more))?;
    programs.insert(program.clone());
    Ok(program)
}

/// Compiles and runs a program.
fn run(test: &str, name: &str, arguments: &[&str]) -> Result<String, String> {
    if !can_run(test, &["cc"]) {
        return Ok(String::new());
    }
    output(Command::new(compile(name, false, &[])?).args(arguments))
}

/// Runs a program of the suite once, for the test that asks first. Returns its output and the lines that it recorded.
fn suite(name: &str) -> Result<(String, String), String> {
    type Outcome = Result<(String, String), String>;
    static RUNS: [OnceLock<Outcome>; SUITE.len()] = [const { OnceLock::new() }; SUITE.len()];
    let place = SUITE.iter().position(|program| *program == name).ok_or("not in the suite")?;
    let execute = || {
        let file = scratch().join(format!("vipl-{name}-coverage"));
        let _ = std::fs::remove_file(&file);
        let mut command = Command::new(compile(name, false, &[])?);
        let printed = output(command.args((name == "storm").then_some("40")).env("VIPL_COVERAGE", &file))?;
        let lines = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        Ok((printed, lines))
    };
    RUNS[place].get_or_init(execute).clone()
}

#[test]
fn the_interface_has_its_types_and_constants() -> Result<(), String> {
    if !can_run("the_interface_has_its_types_and_constants", &["cc"]) {
        return Ok(());
    }
    let (printed, _) = suite("interface")?;
    assert_eq!(printed.lines().count(), 9, "{printed}");
    Ok(())
}

#[test]
fn each_call_of_one_process_has_its_return_codes() -> Result<(), String> {
    const TEST: &str = "each_call_of_one_process_has_its_return_codes";
    if !can_run(TEST, &["cc"]) {
        return Ok(());
    }
    for printed in [suite("calls")?.0, output(&mut Command::new(compile("calls", true, &[])?))?] {
        assert_eq!(printed.lines().count(), 12, "{printed}");
    }
    Ok(())
}

#[test]
fn each_transfer_has_its_status_at_each_level_with_each_kind_of_memory() -> Result<(), String> {
    if !can_run("each_transfer_has_its_status_at_each_level_with_each_kind_of_memory", &["cc"]) {
        return Ok(());
    }
    let (printed, _) = suite("transfer")?;
    assert_eq!(printed.lines().count(), 90, "{printed}");
    Ok(())
}

#[test]
fn connections_of_both_kinds_are_made_refused_and_interrupted() -> Result<(), String> {
    if !can_run("connections_of_both_kinds_are_made_refused_and_interrupted", &["cc"]) {
        return Ok(());
    }
    suite("connect").map(drop)
}

#[test]
fn completions_reach_queues_callbacks_and_threads() -> Result<(), String> {
    if !can_run("completions_reach_queues_callbacks_and_threads", &["cc"]) {
        return Ok(());
    }
    suite("complete").map(drop)
}

#[test]
fn a_process_whose_peer_is_killed_comes_to_an_end() -> Result<(), String> {
    let count = std::env::var("VIPL_KILLS").unwrap_or_else(|_| if quick() { "10" } else { "30" }.into());
    let traces = Traces::now();
    let printed = run("a_process_whose_peer_is_killed_comes_to_an_end", "kills", &[&count])?;
    std::io::stdout().write_all(printed.as_bytes()).map_err(|error| error.to_string())?;
    assert_eq!(traces.new_ones(), Vec::<String>::new(), "left behind");
    Ok(())
}

#[test]
fn many_connections_exist_at_once() -> Result<(), String> {
    if !can_run("many_connections_exist_at_once", &["cc"]) {
        return Ok(());
    }
    suite("storm").map(drop)
}

#[test]
fn old_programs_find_what_they_rely_on_beyond_the_text_of_the_interface() -> Result<(), String> {
    const TEST: &str = "old_programs_find_what_they_rely_on_beyond_the_text_of_the_interface";
    if !can_run(TEST, &["cc"]) {
        return Ok(());
    }
    let program = compile("clients", false, &[])?;
    for case in ["last-word", "no-tag", "past-end", "names"] {
        output(Command::new(&program).arg(case))?;
    }
    Ok(())
}

#[test]
fn a_connection_that_ends_in_good_order_prints_nothing() -> Result<(), String> {
    const TEST: &str = "a_connection_that_ends_in_good_order_prints_nothing";
    if !can_run(TEST, &["cc"]) {
        return Ok(());
    }
    let program = compile("clients", false, &[])?;
    let ended = Command::new(program).arg("quiet-end").output().map_err(|error| error.to_string())?;
    assert!(ended.status.success() && ended.stderr.is_empty(), "{}", String::from_utf8_lossy(&ended.stderr));
    Ok(())
}

#[test]
fn another_user_reaches_no_program_and_holds_up_none() -> Result<(), String> {
    use std::os::unix::fs::MetadataExt as _;
    const TEST: &str = "another_user_reaches_no_program_and_holds_up_none";
    if !can_run(TEST, &["cc"]) {
        return Ok(());
    }
    if std::fs::metadata("/proc/self").map_err(|error| error.to_string())?.uid() != 0 {
        skip(TEST, "only root can start a process of another user");
        return Ok(());
    }
    let program = compile("strangers", false, &[])?;
    for case in ["request", "squatter"] {
        output(Command::new(&program).arg(case))?;
    }
    Ok(())
}

#[test]
fn the_benchmark_compiles_against_both_installed_libraries() -> Result<(), String> {
    if !can_run("the_benchmark_compiles_against_both_installed_libraries", &["cc"]) {
        return Ok(());
    }
    compile("beside", false, &["-lnemesia"]).map(drop)
}

/// Returns the words of a text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
}

fn text_of(path: &str) -> Result<String, String> {
    std::fs::read_to_string(source(path)).map_err(|error| format!("{path}: {error}"))
}

/// Returns the functions that the headers declare.
fn functions() -> Result<Vec<String>, String> {
    let text = text_of("ffi/include/vipl.h")? + &text_of("ffi/include/vipl_nemesia.h")?;
    let is_declared =
        |line: &&str| ["VIP_RETURN Vip", "VIP_PVOID Vip", "void Vip"].iter().any(|it| line.starts_with(it));
    let name = |line: &str| words(line).nth(1).map(str::to_owned);
    Ok(text.lines().filter(is_declared).filter_map(name).collect())
}

#[test]
fn the_programs_use_every_function_and_every_constant() -> Result<(), String> {
    let programs: Result<Vec<String>, String> =
        PROGRAMS.iter().map(|name| text_of(&format!("tests/vipl/{name}.c"))).collect();
    let programs = programs?.concat() + &text_of("tests/vipl/common.h")?;
    let used: BTreeSet<&str> = words(&programs).collect();
    let functions = functions()?;
    assert!(functions.len() >= 50, "{functions:?}");
    let header = text_of("ffi/include/vipl.h")?;
    let is_constant = |word: &&str| {
        ["VIP_STATUS_", "VIP_CONTROL_", "VIP_STATE_", "VIP_ERROR_", "VIP_RESOURCE_", "VIP_SERVICE_"]
            .iter()
            .any(|start| word.starts_with(start))
    };
    // The rest of a line that begins with a type is no constant.
    let lines = header.lines().filter(|line| line.starts_with("#define") || line.starts_with("    VIP_"));
    let constants: Vec<&str> = lines.filter_map(|line| words(line).find(is_constant)).collect();
    let types = ["VIP_ERROR_HANDLER", "VIP_ERROR_CODE", "VIP_RESOURCE_CODE", "VIP_CONTROL_SEGMENT"];
    let constants: Vec<&str> = constants.into_iter().filter(|word| !types.contains(word)).collect();
    let is_missing = |name: &&str| !used.contains(name) && NEVER.iter().all(|(never, _)| never != name);
    let missing: Vec<&str> =
        functions.iter().map(String::as_str).chain(constants.iter().copied()).filter(is_missing).collect();
    let mut coverage = format!("libvipl: {} functions and {} constants\n", functions.len(), constants.len());
    for (never, reason) in NEVER {
        coverage += &format!("    not covered: {never}: {reason}\n");
    }
    std::io::stdout().write_all(coverage.as_bytes()).map_err(|error| error.to_string())?;
    assert!(missing.is_empty(), "no program uses {missing:?}");
    Ok(())
}

#[test]
fn the_library_exports_what_the_headers_declare() -> Result<(), String> {
    if !can_run("the_library_exports_what_the_headers_declare", &["cc", "nm"]) {
        return Ok(());
    }
    let library = installed()?.join("lib/libvipl.so");
    let listing = output(Command::new("nm").args(["-D", "--defined-only"]).arg(library))?;
    let mut exported = lines(&listing, |line| line.split_whitespace().last());
    let mut declared = functions()?;
    exported.sort();
    declared.sort();
    assert_eq!(exported, declared);
    Ok(())
}

/// statement: source-compatible
#[test]
fn pkg_config_finds_the_library_and_old_member_names_compile() -> Result<(), String> {
    const TEST: &str = "pkg_config_finds_the_library_and_old_member_names_compile";
    if !can_run(TEST, &["cc", "c++", "pkg-config"]) {
        return Ok(());
    }
    let prefix = installed()?;
    let flags = output(
        Command::new("pkg-config")
            .args(["--cflags", "--libs", "vipl"])
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")),
    )?;
    let text = "#define VIPL10\n#include <vipl.h>\n#include <vipl_nemesia.h>\nint main(void) {\n    \
                VIP_NIC_HANDLE nic;\n    VIP_DESCRIPTOR one;\n    one.Control.SegCount = 1;\n    \
                one.Data[0].Length = 4;\n    if (one.Data[0].Length != 4) return 1;\n    \
                return VipOpenNic(\"nic0\", &nic) + VipCloseNic(nic);\n}\n";
    for (compiler, ending) in [("cc", "c"), ("c++", "cc")] {
        let file = scratch().join(format!("vipl-names.{ending}"));
        std::fs::write(&file, text).map_err(|error| error.to_string())?;
        let program = file.with_extension(format!("{ending}.out"));
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Werror"]).arg(&file).arg("-o").arg(&program);
        output(command.args(flags.split_whitespace()))?;
        output(&mut Command::new(&program))?;
    }
    Ok(())
}
