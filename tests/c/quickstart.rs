//! Runs the quick start of C as it is printed, against an installed prefix.

use std::process::Command;

use crate::can_run;
use crate::toolchain::{installed, missing, output, scratch, source};

/// The commands of the quick start, without the path of the prefix.
const COMPILE: &str = "cc quickstart.c $(pkg-config --cflags --libs nemesia) -o quickstart";
const RUN: &str = "nemesia run -n 2 ./quickstart";

#[test]
fn the_printed_quick_start_of_c_runs() -> Result<(), String> {
    const TEST: &str = "the_printed_quick_start_of_c_runs";
    if !can_run(TEST, &["cc"]) {
        return Ok(());
    }
    let (prefix, directory) = (installed()?, scratch().join("quickstart"));
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let text =
        std::fs::read_to_string(source("ffi/examples/quickstart.c")).map_err(|error| error.to_string())?;
    assert!(text.lines().count() <= 30, "{} lines", text.lines().count());
    std::fs::write(directory.join("quickstart.c"), text).map_err(|error| error.to_string())?;
    // If pkg-config is not installed, its output is taken from nemesia.pc.
    let compile = match missing(&["pkg-config"]) {
        None => COMPILE.to_owned(),
        Some(_) => COMPILE.replace("$(pkg-config --cflags --libs nemesia)", &flags()?),
    };
    let script = format!("{compile} && \"$1\"/bin/{RUN}");
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", &script, "sh"]).arg(&prefix).current_dir(&directory);
    shell.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).env("NEMESIA_CONFIG", "");
    let said = output(&mut shell)?;
    assert_eq!(said, "rank 1 of 2 received: hello\n");
    Ok(())
}

/// Returns the flags of the installed nemesia.pc.
fn flags() -> Result<String, String> {
    let prefix = installed()?;
    let pc = std::fs::read_to_string(prefix.join("lib/pkgconfig/nemesia.pc"));
    let pc = pc.map_err(|error| error.to_string())?;
    let of = |name: &str| pc.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned();
    let place = |text: String, dir: &str| {
        text.replace(&format!("${{{dir}dir}}"), &prefix.join(dir).display().to_string())
    };
    let include = of("Cflags: ").replace("${includedir}", &prefix.join("include").display().to_string());
    Ok(format!("{include} {}", place(of("Libs: "), "lib")))
}

#[test]
fn the_installed_program_prints_its_version_and_its_usage() -> Result<(), String> {
    if !can_run("the_installed_program_prints_its_version_and_its_usage", &["cc"]) {
        return Ok(());
    }
    let program = installed()?.join("bin/nemesia");
    let version = output(Command::new(&program).arg("--version"))?;
    assert_eq!(version, format!("nemesia {}\n", env!("CARGO_PKG_VERSION")));
    let help = output(Command::new(&program).args(["run", "--help"]))?;
    assert!(help.contains("nemesia run -n N"), "{help}");
    Ok(())
}
