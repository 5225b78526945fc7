//! The ways in which a user's project finds the library: pkg-config, static and shared, and CMake. And the example in
//! the header, as it is printed.

use std::path::{Path, PathBuf};
use std::process::Command;

use nemesia_tests::job::{Job, report};
use nemesia_tests::skip;

use crate::toolchain::{installed, output, scratch, source};
use crate::{STRICT_C, can_run};

/// Each way has its own directory.
fn directory(name: &str) -> Result<PathBuf, String> {
    let directory = scratch().join(name);
    std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    Ok(directory)
}

/// Runs the quick start with two ranks.
fn runs(program: &Path) -> Result<(), String> {
    let ranks = Job::new(program, scratch(), "").succeed(2)?;
    let said: Vec<&str> = ranks.iter().map(|rank| rank.output.as_str()).collect();
    assert_eq!(said, ["", "rank 1 of 2 received: hello\n"], "{}", report(&ranks));
    Ok(())
}

/// Compiles the quick start with the flags that pkg-config returns for a package.
fn with_pkg_config(package: &str, more: &[&str], name: &str) -> Result<PathBuf, String> {
    let mut ask = Command::new("pkg-config");
    ask.args(more.iter().filter(|flag| flag.starts_with("--"))).args(["--cflags", "--libs", package]);
    let flags = output(ask.env("PKG_CONFIG_PATH", installed()?.join("lib/pkgconfig")))?;
    let program = directory("packages")?.join(name);
    let mut compile = Command::new("cc");
    compile.args(more.iter().filter(|flag| !flag.starts_with("--")));
    compile.arg(source("ffi/examples/quickstart.c")).args(flags.split_whitespace()).arg("-o").arg(&program);
    output(&mut compile).map(|_| program)
}

/// Returns what the loader has to load for a program.
fn needed(program: &Path) -> Result<String, String> {
    output(Command::new("readelf").arg("-ld").arg(program))
}

#[test]
fn pkg_config_static_links_a_program_without_shared_libraries() -> Result<(), String> {
    const TEST: &str = "pkg_config_static_links_a_program_without_shared_libraries";
    if !can_run(TEST, &["cc", "pkg-config", "readelf"]) {
        return Ok(());
    }
    let empty = directory("packages")?.join("empty.c");
    std::fs::write(&empty, "int main(void) { return 0; }\n").map_err(|error| error.to_string())?;
    let mut try_static = Command::new("cc");
    try_static.arg("-static").arg(&empty).arg("-o").arg(empty.with_extension("out"));
    if output(&mut try_static).is_err() {
        skip(TEST, "the C library has no archive");
        return Ok(());
    }
    let program = with_pkg_config("nemesia", &["--static", "-static"], "all-static")?;
    let needs = needed(&program)?;
    assert!(!needs.contains("NEEDED") && !needs.contains("INTERP"), "{needs}");
    runs(&program)
}

#[test]
fn the_static_package_links_only_nemesia_statically() -> Result<(), String> {
    if !can_run("the_static_package_links_only_nemesia_statically", &["cc", "pkg-config", "readelf"]) {
        return Ok(());
    }
    let program = with_pkg_config("nemesia-static", &[], "static")?;
    let needs = needed(&program)?;
    assert!(needs.contains("NEEDED") && !needs.contains("libnemesia"), "{needs}");
    runs(&program)?;
    // The opposite: the plain package needs the shared library, by its soname.
    let program = with_pkg_config("nemesia", &[], "shared")?;
    let needs = needed(&program)?;
    assert!(needs.contains("[libnemesia.so.0]"), "{needs}");
    runs(&program)
}

#[test]
fn cmake_finds_the_package_and_links_both_libraries() -> Result<(), String> {
    if !can_run("cmake_finds_the_package_and_links_both_libraries", &["cc", "cmake", "readelf"]) {
        return Ok(());
    }
    // The package must not depend on the place where it was installed.
    let moved = directory("cmake")?.join("moved");
    let _ = std::fs::remove_dir_all(&moved);
    output(Command::new("cp").arg("-a").arg(installed()?).arg(&moved))?;
    let build = directory("cmake")?.join("build");
    let _ = std::fs::remove_dir_all(&build);
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(source("tests/c/cmake")).arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", moved.display()));
    output(configure.arg(format!("-DQUICKSTART={}", source("ffi/examples/quickstart.c").display())))?;
    output(Command::new("cmake").arg("--build").arg(&build))?;
    for (library, is_shared) in [("shared", true), ("Nemesia", true), ("static", false)] {
        let program = build.join(format!("quickstart-{library}"));
        let needs = needed(&program)?;
        assert_eq!(needs.contains("[libnemesia.so.0]"), is_shared, "{library}: {needs}");
        runs(&program)?;
    }
    Ok(())
}

#[test]
fn the_example_in_the_header_runs() -> Result<(), String> {
    if !can_run("the_example_in_the_header_runs", &["cc"]) {
        return Ok(());
    }
    for (header, lines) in [("nemesia.h", 15), ("nemesia_rdma_channel.h", 18)] {
        example_of(header, lines)?;
    }
    Ok(())
}

/// Compiles the example in a header, which has so many lines, and runs it with two ranks.
fn example_of(header: &str, lines: usize) -> Result<(), String> {
    let text =
        std::fs::read_to_string(source("ffi/include").join(header)).map_err(|error| error.to_string())?;
    let example: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.starts_with(" * Example"))
        .skip(1)
        .map_while(|line| line.strip_prefix(" *     "))
        .collect();
    assert_eq!(example.len(), lines, "{example:#?}");
    let file = directory("packages")?.join(header).with_extension("c");
    std::fs::write(&file, example.join("\n") + "\n").map_err(|error| error.to_string())?;
    let name = format!("example-{header}");
    let program = crate::compile("cc", &STRICT_C, &file, crate::Linking::Shared, &name)?;
    let ranks = Job::new(program, scratch(), "").succeed(2)?;
    assert_eq!((&*ranks[0].output, &*ranks[1].output), ("", "hello\n"), "{}", report(&ranks));
    Ok(())
}

#[test]
fn the_index_of_the_header_names_every_function_and_no_other() -> Result<(), String> {
    let header =
        std::fs::read_to_string(source("ffi/include/nemesia.h")).map_err(|error| error.to_string())?;
    let functions = crate::header::functions_of("ffi/include/nemesia.h")?;
    let index: Vec<String> = header
        .lines()
        .skip_while(|line| !line.starts_with(" * Index of functions"))
        .skip(1)
        .map_while(|line| line.strip_prefix(" *   "))
        .flat_map(|line| line.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_'))
        .map(
            |word| {
                if word.starts_with("nemesia_") { word.into() } else { format!("nemesia_endpoint_{word}") }
            },
        )
        .collect();
    for function in &functions {
        assert!(index.contains(function), "the index does not have {function}");
    }
    // Other words, the names of the groups, have no underscore.
    for word in index.iter().filter(|word| word.trim_start_matches("nemesia_endpoint_").contains('_')) {
        assert!(functions.contains(word), "the index has {word}, which does not exist");
    }
    assert!(index.len() > 50, "{index:?}");
    Ok(())
}
