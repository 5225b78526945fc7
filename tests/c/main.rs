//! The C interface in the form in which users get it: installed by `ffi/install.sh`, compiled with `cc` and `c++`, and
//! run by the launcher.
//!
//! | file | content |
//! |---|---|
//! | `check.h` | checks that report the place and the library's error message |
//! | `pair.c` | cases for two processes; the argument selects one |
//! | `general.c` | the same, of messages that `nemesia_operation` describes |
//! | `remote.c` | active messages and one-sided operations, in the same form |
//! | `queue.c` | the completion queue, many requests at once, and inject, in the same form |
//! | `embed.c` | processes that connect through their own exchange, in several worlds |
//! | `alone.c` | endpoints that open alone, and their peers |
//! | `peer_groups.c` | collective calls of such endpoints, in processes of which one dies |
//! | `runtime.rs` | the whole small runtime of the embedding guide, also under tools that check every access |
//! | `reborn.c` | a launcher of its own that starts a rank again |
//! | `groups.c` | collective calls among some ranks; the room for unexpected messages; a world that meets a process |
//! | `thread.c` | a thread with a small stack, and one that is cancelled |
//! | `threads.c` | threads that share an endpoint, or have one endpoint each |
//! | `plus.cc` | the header in C++ |
//! | `host.c`, `host_library.c`, `host_mpi.c` | programs whose host runtime uses the launcher before |
//! | `progress.c` | a progress engine over the RDMA Channel, in the manner of an MPI |
//! | `channel_misuse.c` | the handle of the RDMA Channel, misused |
//! | `cmake` | a project that finds the library by CMake |
//! | `abi.rs` | the names, calls and layouts that the committed list has |
//! | `misuse.c` | handles that are closed, of another kind, or not made by the library |

mod abi;
mod channel;
mod header;
mod host;
mod misuse;
mod packages;
mod quickstart;
mod runtime;
mod thread;
mod toolchain;

use std::path::{Path, PathBuf};
use std::process::Command;

use nemesia::bootstrap::ExitKind;
use nemesia_tests::job::{Job, report};
use nemesia_tests::skip;

use toolchain::{Linking, compile, installed, lines, missing, output, scratch, source};

const STRICT_C: [&str; 6] = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O1"];
const STRICT_CXX: [&str; 6] = ["-std=c++11", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O1"];

/// Returns whether the tools are installed; if not, reports the test as skipped.
fn can_run(test: &str, tools: &[&str]) -> bool {
    let Some(tool) = missing(tools) else { return true };
    skip(test, &format!("`{tool}` is not installed"));
    false
}

/// Returns whether AddressSanitizer can be used; if not, reports the test as skipped.
fn can_sanitize(test: &str) -> Result<bool, String> {
    if !can_run(test, &["cc"]) {
        return Ok(false);
    }
    let empty = scratch().join(format!("{test}.c"));
    std::fs::write(&empty, "int main(void) { return 0; }\n").map_err(|error| error.to_string())?;
    let mut trial = Command::new("cc");
    trial.arg("-fsanitize=address").arg(&empty).arg("-o").arg(empty.with_extension("out"));
    let works = output(&mut trial).is_ok();
    if !works {
        skip(test, "the compiler has no AddressSanitizer");
    }
    Ok(works)
}

/// Runs one case of `pair.c` with two ranks, linked in both ways. Both must succeed.
fn pair(test: &str, case: &str) -> Result<(), String> {
    two("pair", test, case)
}

/// As `pair`, for another program.
fn two(name: &str, test: &str, case: &str) -> Result<(), String> {
    two_with(name, test, case, &[])
}

/// As [`two`], with these settings.
fn two_with(name: &str, test: &str, case: &str, settings: &[(&str, &str)]) -> Result<(), String> {
    if !can_run(test, &["cc"]) {
        return Ok(());
    }
    for &linking in Linking::each() {
        let file = source(&format!("tests/c/{name}.c"));
        let program = compile("cc", &STRICT_C, &file, linking, &format!("{name}-{case}"))?;
        let job = Job::new(program, scratch(), case);
        settings.iter().fold(job, |job, (name, value)| job.env(name, value)).succeed(2)?;
    }
    Ok(())
}

#[test]
fn messages_of_every_size_pass_in_both_directions() -> Result<(), String> {
    pair("messages_of_every_size_pass_in_both_directions", "ping-pong")
}

#[test]
fn a_window_of_requests_completes_in_both_directions() -> Result<(), String> {
    pair("a_window_of_requests_completes_in_both_directions", "window")
}

#[test]
fn wildcards_match_by_source_and_by_mask() -> Result<(), String> {
    pair("wildcards_match_by_source_and_by_mask", "wildcards")
}

#[test]
fn a_truncated_message_writes_the_status_and_no_byte_beyond() -> Result<(), String> {
    pair("a_truncated_message_writes_the_status_and_no_byte_beyond", "truncation")
}

#[test]
fn immediate_data_travel_with_messages_and_every_probe_shows_them() -> Result<(), String> {
    two("general", "immediate_data_travel_with_messages_and_every_probe_shows_them", "immediate")
}

#[test]
fn contexts_keep_messages_apart_and_probes_find_them() -> Result<(), String> {
    pair("contexts_keep_messages_apart_and_probes_find_them", "contexts")
}

#[test]
fn lists_are_gathered_and_scattered() -> Result<(), String> {
    two("general", "lists_are_gathered_and_scattered", "lists")
}

#[test]
fn operations_that_are_invalid_are_refused_with_a_reason() -> Result<(), String> {
    two("general", "operations_that_are_invalid_are_refused_with_a_reason", "refusals")
}

#[test]
fn every_wrong_argument_has_its_error_and_writes_nothing() -> Result<(), String> {
    pair("every_wrong_argument_has_its_error_and_writes_nothing", "errors")
}

#[test]
fn the_survivors_agree_and_shrink() -> Result<(), String> {
    pair("the_survivors_agree_and_shrink", "agreement")
}

#[test]
fn active_messages_call_functions_of_c() -> Result<(), String> {
    two("remote", "active_messages_call_functions_of_c", "active")
}

#[test]
fn memory_of_the_other_process_is_used_from_c() -> Result<(), String> {
    two("remote", "memory_of_the_other_process_is_used_from_c", "one-sided")
}

#[test]
fn messages_are_sent_from_allocated_memory_and_received_into_it() -> Result<(), String> {
    two(
        "remote",
        "messages_are_sent_from_allocated_memory_and_received_into_it",
        "messages-in-allocated-memory",
    )
}

#[test]
fn regions_are_used_by_a_chosen_key_and_by_address() -> Result<(), String> {
    two("remote", "regions_are_used_by_a_chosen_key_and_by_address", "keys")
}

#[test]
fn atomic_operations_work_on_small_values_and_are_queried() -> Result<(), String> {
    two("remote", "atomic_operations_work_on_small_values_and_are_queried", "atomics")
}

#[test]
fn delivered_and_waiting_operations_are_done_on_return() -> Result<(), String> {
    two("remote", "delivered_and_waiting_operations_are_done_on_return", "blocking")
}

#[test]
fn each_refusal_has_its_code() -> Result<(), String> {
    two("remote", "each_refusal_has_its_code", "refusals")
}

#[test]
fn an_event_loop_waits_for_the_descriptor() -> Result<(), String> {
    two("pair", "an_event_loop_waits_for_the_descriptor", "event-loop")
}

#[test]
fn counters_are_reported_in_a_structure_that_may_grow() -> Result<(), String> {
    // A first message that waits for its connection may come together with the next one, and both are counted.
    let settings = [("NEMESIA_CONNECT", "start")];
    two_with("pair", "counters_are_reported_in_a_structure_that_may_grow", "counters", &settings)
}

#[test]
fn how_peers_are_reached_is_reported_as_text() -> Result<(), String> {
    two("pair", "how_peers_are_reached_is_reported_as_text", "explanation")
}

#[test]
fn a_dead_peer_is_reported_by_rank_and_other_operations_continue() -> Result<(), String> {
    if !can_run("a_dead_peer_is_reported_by_rank_and_other_operations_continue", &["cc"]) {
        return Ok(());
    }
    let pair = source("tests/c/pair.c");
    let program = compile("cc", &STRICT_C, &pair, Linking::Shared, "pair-peer-failure")?;
    let ranks = Job::new(program, scratch(), "peer-failure").before("ulimit -c 0").run(2)?;
    assert!(ranks[0].kind.is_success(), "{}", report(&ranks));
    assert_eq!(ranks[1].kind, ExitKind::Signaled(libc::SIGABRT));
    Ok(())
}

#[test]
fn a_restarted_peer_is_readmitted() -> Result<(), String> {
    if !can_run("a_restarted_peer_is_readmitted", &["cc"]) {
        return Ok(());
    }
    let pair = source("tests/c/pair.c");
    let program = compile("cc", &STRICT_C, &pair, Linking::Shared, "pair-restart")?;
    let ranks = Job::new(program, scratch(), "restart").before("ulimit -c 0").restart(1).run(2)?;
    assert!(ranks.iter().all(|rank| rank.kind.is_success()), "{}", report(&ranks));
    Ok(())
}

#[test]
fn processes_connect_through_an_exchange_of_the_caller() -> Result<(), String> {
    if !can_run("processes_connect_through_an_exchange_of_the_caller", &["cc"]) {
        return Ok(());
    }
    let program = compile(
        "cc",
        &[&STRICT_C[..], &["-pthread"]].concat(),
        &source("tests/c/embed.c"),
        Linking::Shared,
        "embed",
    )?;
    output(&mut Command::new(program)).map(drop)
}

#[test]
fn endpoints_that_opened_alone_meet_by_their_addresses() -> Result<(), String> {
    const TEST: &str = "endpoints_that_opened_alone_meet_by_their_addresses";
    if !can_run(TEST, &["cc"]) {
        return Ok(());
    }
    for &linking in Linking::each() {
        let program = compile("cc", &STRICT_C, &source("tests/c/alone.c"), linking, "alone")?;
        for case in ["converse", "threads", "world", "arguments", "stale", "unreachable", "meeting"] {
            output(Command::new(&program).arg(case))?;
        }
    }
    Ok(())
}

#[test]
fn processes_without_a_world_meet_agree_and_go_on_without_one_that_died() -> Result<(), String> {
    if !can_run("processes_without_a_world_meet_agree_and_go_on_without_one_that_died", &["cc"]) {
        return Ok(());
    }
    let flags = [&STRICT_C[..], &["-pthread"]].concat();
    for &linking in Linking::each() {
        let program = compile("cc", &flags, &source("tests/c/peer_groups.c"), linking, "peer_groups")?;
        for case in ["processes", "arguments"] {
            output(Command::new(&program).arg(case))?;
        }
    }
    Ok(())
}

#[test]
fn a_launcher_of_the_caller_starts_a_rank_again() -> Result<(), String> {
    if !can_run("a_launcher_of_the_caller_starts_a_rank_again", &["cc"]) {
        return Ok(());
    }
    let flags = [&STRICT_C[..], &["-pthread"]].concat();
    let program = compile("cc", &flags, &source("tests/c/reborn.c"), Linking::Shared, "reborn")?;
    output(&mut Command::new(program)).map(drop)
}

#[test]
fn some_ranks_meet_and_agree_without_the_others() -> Result<(), String> {
    two("groups", "some_ranks_meet_and_agree_without_the_others", "members")
}

#[test]
fn a_caller_that_only_tests_learns_that_there_is_no_room() -> Result<(), String> {
    two("groups", "a_caller_that_only_tests_learns_that_there_is_no_room", "room")
}

#[test]
fn a_world_meets_a_process_outside_of_it() -> Result<(), String> {
    two("groups", "a_world_meets_a_process_outside_of_it", "grow")
}

#[test]
fn a_receive_from_any_source_outlives_the_other_rank() -> Result<(), String> {
    two("groups", "a_receive_from_any_source_outlives_the_other_rank", "any-source")
}

/// Builds `threads.c`, linked in one way.
fn threads(case: &str, linking: Linking) -> Result<PathBuf, String> {
    let flags = [&STRICT_C[..], &["-pthread"]].concat();
    compile("cc", &flags, &source("tests/c/threads.c"), linking, &format!("threads-{case}"))
}

#[test]
fn threads_share_an_endpoint_of_c() -> Result<(), String> {
    if !can_run("threads_share_an_endpoint_of_c", &["cc"]) {
        return Ok(());
    }
    for &linking in Linking::each() {
        Job::new(threads("together", linking)?, scratch(), "together").succeed(2)?;
    }
    Ok(())
}

#[test]
fn each_thread_can_have_an_endpoint_of_its_own() -> Result<(), String> {
    if !can_run("each_thread_can_have_an_endpoint_of_its_own", &["cc"]) {
        return Ok(());
    }
    output(Command::new(threads("several", Linking::Shared)?).arg("several")).map(drop)
}

#[test]
fn a_thread_that_uses_an_endpoint_of_another_thread_gets_an_error() -> Result<(), String> {
    if !can_run("a_thread_that_uses_an_endpoint_of_another_thread_gets_an_error", &["cc"]) {
        return Ok(());
    }
    output(Command::new(threads("alone", Linking::Shared)?).arg("alone")).map(drop)
}

#[test]
fn the_header_works_in_cxx() -> Result<(), String> {
    if !can_run("the_header_works_in_cxx", &["cc", "c++"]) {
        return Ok(());
    }
    for &linking in Linking::each() {
        let program = compile("c++", &STRICT_CXX, &source("tests/c/plus.cc"), linking, "plus")?;
        output(&mut Command::new(program))?;
    }
    Ok(())
}

#[test]
fn the_example_prints_the_one_way_time() -> Result<(), String> {
    if !can_run("the_example_prints_the_one_way_time", &["cc"]) {
        return Ok(());
    }
    let program = compile("cc", &STRICT_C, &source("ffi/examples/pingpong.c"), Linking::Shared, "pingpong")?;
    let ranks = Job::new(program, scratch(), "").succeed(2)?;
    assert!(ranks[0].output.starts_with("8 bytes, one way: "), "{}", report(&ranks));
    Ok(())
}

#[test]
fn operations_of_each_kind_run_to_their_end() -> Result<(), String> {
    two("queue", "operations_of_each_kind_run_to_their_end", "runs")
}

#[test]
fn completions_are_taken_from_the_queue() -> Result<(), String> {
    let test = "completions_are_taken_from_the_queue";
    ["completions", "errors", "kinds", "sleep"].into_iter().try_for_each(|case| two("queue", test, case))
}

#[test]
fn many_requests_are_tested_and_waited_for_at_once() -> Result<(), String> {
    two("queue", "many_requests_are_tested_and_waited_for_at_once", "many")
}

#[test]
fn inject_sends_now_or_returns_busy() -> Result<(), String> {
    two("queue", "inject_sends_now_or_returns_busy", "inject")
}

#[test]
fn probed_messages_are_received_into_lists() -> Result<(), String> {
    two("queue", "probed_messages_are_received_into_lists", "lists")
}

#[test]
fn buffers_receive_one_message_after_the_other() -> Result<(), String> {
    two("queue", "buffers_receive_one_message_after_the_other", "multi")
}

#[test]
fn only_names_of_nemesia_are_exported() -> Result<(), String> {
    if !can_run("only_names_of_nemesia_are_exported", &["cc", "nm"]) {
        return Ok(());
    }
    let library = installed()?.join("lib/libnemesia.so");
    let listing = output(Command::new("nm").args(["-D", "--defined-only"]).arg(library))?;
    let mut exported = lines(&listing, |line| line.split_whitespace().last());
    exported.sort();
    let declared = header::functions()?;
    assert!(declared.iter().any(|name| name == "nemesia_endpoint_open"), "{declared:?}");
    assert_eq!(exported, declared);
    Ok(())
}

#[test]
fn the_preloaded_library_is_installed_and_disturbs_no_program() -> Result<(), String> {
    const TEST: &str = "the_preloaded_library_is_installed_and_disturbs_no_program";
    if !can_run(TEST, &["cc", "c++", "nm"]) {
        return Ok(());
    }
    if !cfg!(target_env = "gnu") {
        skip(TEST, "the preloaded library is for glibc");
        return Ok(());
    }
    let library = installed()?.join("lib/libnemesia_interpose.so");
    let listing = output(Command::new("nm").args(["-D", "--defined-only"]).arg(&library))?;
    let exported = lines(&listing, |line| line.split_whitespace().last());
    for name in ["munmap", "madvise", "nemesia_interposer_1"] {
        assert!(exported.iter().any(|exported| exported == name), "{name}: {exported:?}");
    }
    let program = compile("c++", &STRICT_CXX, &source("tests/c/plus.cc"), Linking::Shared, "preloaded")?;
    output(Command::new(program).env("LD_PRELOAD", library)).map(drop)
}

#[test]
fn the_shared_library_is_found_by_its_soname() -> Result<(), String> {
    if !can_run("the_shared_library_is_found_by_its_soname", &["cc", "readelf"]) {
        return Ok(());
    }
    let lib = installed()?.join("lib");
    let listing = output(Command::new("readelf").arg("-d").arg(lib.join("libnemesia.so")))?;
    assert!(listing.contains("Library soname: [libnemesia.so.0]"), "{listing}");
    assert!(lib.join("libnemesia.so.0").is_file() && lib.join("libnemesia.a").is_file());
    let pc = std::fs::read_to_string(lib.join("pkgconfig/nemesia.pc")).map_err(|error| error.to_string())?;
    assert!(pc.contains(&format!("prefix={}\n", installed()?.display())), "{pc}");
    assert!(
        pc.contains("Libs: -L${libdir} -lnemesia -Wl,-rpath,${libdir}\n")
            && Path::new(&installed()?.join("include/nemesia.h")).is_file()
    );
    Ok(())
}
