//! Misuse of the handles of C: runs `misuse.c` alone, and under tools that check every access.

use std::path::PathBuf;
use std::process::Command;

use crate::toolchain::{Linking, compile, output, source};
use crate::{STRICT_C, can_run, can_sanitize};

/// Compiles the program; its file is named after `name`.
fn program(flags: &[&str], linking: Linking, name: &str) -> Result<PathBuf, String> {
    let flags = [&STRICT_C[..], &["-pthread"], flags].concat();
    compile("cc", &flags, &source("tests/c/misuse.c"), linking, &format!("misuse-{name}"))
}

fn case(test: &str, case: &str) -> Result<(), String> {
    if !can_run(test, &["cc"]) {
        return Ok(());
    }
    output(Command::new(program(&[], Linking::Shared, case)?).arg(case)).map(drop)
}

#[test]
fn a_second_close_is_an_error_and_closes_no_other_endpoint() -> Result<(), String> {
    case("a_second_close_is_an_error_and_closes_no_other_endpoint", "double-close")
}

#[test]
fn a_closed_endpoint_is_refused_by_every_call() -> Result<(), String> {
    case("a_closed_endpoint_is_refused_by_every_call", "use-after-close")
}

#[test]
fn a_destroyed_configuration_is_refused() -> Result<(), String> {
    case("a_destroyed_configuration_is_refused", "destroy-twice")
}

#[test]
fn a_handle_of_another_kind_is_refused() -> Result<(), String> {
    case("a_handle_of_another_kind_is_refused", "wrong-kind")
}

#[test]
fn a_pointer_that_is_not_a_handle_is_never_followed() -> Result<(), String> {
    case("a_pointer_that_is_not_a_handle_is_never_followed", "foreign")
}

#[test]
fn an_endpoint_with_a_thread_in_a_call_is_not_closed() -> Result<(), String> {
    case("an_endpoint_with_a_thread_in_a_call_is_not_closed", "close-while-waiting")
}

#[test]
fn a_reply_after_its_handler_is_refused() -> Result<(), String> {
    case("a_reply_after_its_handler_is_refused", "late-reply")
}

#[test]
fn a_forked_child_gets_an_error_from_the_endpoint_of_its_parent() -> Result<(), String> {
    case("a_forked_child_gets_an_error_from_the_endpoint_of_its_parent", "forked-child")
}

#[test]
fn a_handler_within_a_handler_uses_neither_endpoint() -> Result<(), String> {
    case("a_handler_within_a_handler_uses_neither_endpoint", "nested-handlers")
}

#[test]
fn a_probed_message_is_received_once() -> Result<(), String> {
    case("a_probed_message_is_received_once", "message-twice")
}

#[test]
fn misuse_makes_no_invalid_access_under_address_sanitizer() -> Result<(), String> {
    const TEST: &str = "misuse_makes_no_invalid_access_under_address_sanitizer";
    if !can_sanitize(TEST)? {
        return Ok(());
    }
    output(&mut Command::new(program(&["-fsanitize=address"], Linking::Static, "sanitized")?)).map(drop)
}

#[test]
fn misuse_makes_no_invalid_access_under_valgrind() -> Result<(), String> {
    const TEST: &str = "misuse_makes_no_invalid_access_under_valgrind";
    if !can_run(TEST, &["cc", "valgrind"]) {
        return Ok(());
    }
    let program = program(&[], Linking::Shared, "checked")?;
    output(Command::new("valgrind").args(["-q", "--error-exitcode=9"]).arg(program)).map(drop)
}
