//! Unexpected messages between two processes take no more memory than declared, and none is lost.

use std::process::Command;

use serde_json::Value;

/// The memory that the program itself and the check may take in addition.
const SLACK: u64 = 1 << 20;

/// Returns a number of messages, or of the bytes for them, in the whole suite or in the one for every change.
fn amount(whole: u64) -> u64 {
    if std::env::var_os("NEMESIA_QUICK").is_some() { whole / 4 } else { whole }
}

/// Runs the program, which checks every byte. Returns its report about the receiver.
fn shown(ceiling: u64, messages: u64, bytes: u64) -> Result<Value, String> {
    let program = std::env::var_os("NEMESIA_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_nemesia").into());
    let output = Command::new("timeout")
        .arg("600")
        .arg(program)
        .args(["perf", "--json", "-", "--unexpected", &messages.to_string()])
        .args(["--unexpected-size", &bytes.to_string()])
        .env("NEMESIA_CONFIG", "")
        .env("NEMESIA_UNEXPECTED_BYTES", ceiling.to_string())
        .output()
        .map_err(|error| error.to_string())?;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    let mut document: Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    Ok(document["unexpected"].take())
}

fn number(shown: &Value, name: &str) -> Result<u64, String> {
    shown[name].as_u64().ok_or_else(|| format!("no {name} in {shown}"))
}

fn assert_declared(shown: &Value) -> Result<(), String> {
    let of = |name| number(shown, name);
    let private = of("ceiling")? + of("private_at_start")? + SLACK;
    assert!(of("private_growth")? <= private, "own memory: {shown}");
    // The segments of its own and the sender's, which it maps.
    assert!(of("shared_growth")? <= 2 * of("segments")?, "shared memory: {shown}");
    Ok(())
}

#[test]
fn messages_of_one_byte_stay_under_the_ceiling_and_are_received_in_reverse() -> Result<(), String> {
    let messages = amount(1_000_000);
    let shown = shown(64 << 20, messages, 1)?;
    assert_eq!((number(&shown, "most_stored")?, number(&shown, "held")?), (messages, 0), "{shown}");
    assert!(number(&shown, "private_growth")? >= messages * 64, "they were somewhere: {shown}");
    assert_declared(&shown)
}

#[test]
fn beyond_the_ceiling_senders_are_held_and_nothing_is_lost() -> Result<(), String> {
    // Messages of one byte are held back. Longer messages are announced while there is room, then held back.
    for (messages, bytes) in [(200_000, 1), (100_000, 100), (3_000, 9_000)] {
        let ceiling = if bytes > 1_000 { 64 << 10 } else { amount(4 << 20) };
        let messages = if bytes > 1_000 { messages } else { amount(messages) };
        let shown = shown(ceiling, messages, bytes)?;
        assert!(number(&shown, "held")? >= 1, "{shown}");
        assert!(number(&shown, "most_stored")? < messages, "{shown}");
        assert_declared(&shown)?;
    }
    Ok(())
}
