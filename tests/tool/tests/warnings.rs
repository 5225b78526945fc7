//! The warnings of `perf` about unknown settings, and about preferences that cannot be met.

use std::process::{Command, Output};

/// Runs a short measurement with a variable set.
fn perf(name: &str, value: &str, strict: &str) -> Result<Output, String> {
    let program = std::env::var_os("NEMESIA_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_nemesia").into());
    let mut command = Command::new("timeout");
    command.arg("600").arg(program).args(["perf", "--sizes", "8", "--iterations", "64", "--rounds", "1"]);
    command.args(["--tests", "rate", "--no-pin", "--no-plot"]).env("NEMESIA_CONFIG", "");
    command.env(name, value).env("NEMESIA_STRICT", strict).output().map_err(|error| error.to_string())
}

#[test]
fn a_variable_that_does_not_exist_is_reported_once_and_is_an_error_in_strict_mode() -> Result<(), String> {
    const MEANT: &str = "there is no variable NEMESIA_CELLZ: did you mean NEMESIA_CELLS?";
    let tolerant = perf("NEMESIA_CELLZ", "64", "0")?;
    let errors = String::from_utf8_lossy(&tolerant.stderr);
    assert!(tolerant.status.success() && errors.matches(MEANT).count() == 1, "{errors}");
    assert!(String::from_utf8_lossy(&tolerant.stdout).contains("rate msg/s"));

    let strict = perf("NEMESIA_CELLZ", "64", "1")?;
    let errors = String::from_utf8_lossy(&strict.stderr);
    assert_eq!((strict.status.code(), errors.lines().count()), (Some(2), 1), "{errors}");
    assert!(errors.contains(MEANT) && errors.contains("NEMESIA_STRICT"), "{errors}");
    assert!(strict.stdout.is_empty());
    Ok(())
}

#[test]
fn the_launcher_names_a_variable_that_does_not_exist() -> Result<(), String> {
    let program = std::env::var_os("NEMESIA_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_nemesia").into());
    let mut command = Command::new(program);
    command.args(["run", "-n", "2", "--env", "NEMESIA_SPINN=1", "--", "true"]).env("NEMESIA_CELLZ", "64");
    let output = command.env("NEMESIA_CONFIG", "").output().map_err(|error| error.to_string())?;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    for meant in ["NEMESIA_CELLZ: did you mean NEMESIA_CELLS?", "NEMESIA_SPINN: did you mean NEMESIA_SPIN?"] {
        assert_eq!(errors.matches(&format!("warning: there is no variable {meant}")).count(), 1, "{errors}");
    }
    Ok(())
}

#[test]
fn a_preference_that_only_the_processes_can_check_is_reported_too() -> Result<(), String> {
    let output = perf("NEMESIA_BACKING", "devshm", "0")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.matches("cannot be sealed").count() == 1, "{errors}");
    Ok(())
}
