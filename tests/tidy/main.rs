//! The house rules that neither the compiler nor clippy can check.
//!
//! Each rule is one module: a pure function over paths and texts that returns [`source::Finding`]s, with
//! tests that feed it a bad sample, so that a rule that can no longer fail is noticed. The tests in this file
//! apply the rules to the repository.
//!
//! | module | rule |
//! |---|---|
//! | [`length`] | functions of at most 70 lines, files of at most 600 |
//! | [`layers`] | dependencies run one way: `core` <- `sys` <- `ffi` |
//! | [`circles`] | no circle of imports between the modules of a crate |
//! | [`rooms`] | in the core, the engine and the transports use nothing of each other |
//! | [`api`] | the package `nemesia` makes only its user interface public |
//! | [`forbid`] | `forbid(unsafe_code)` in every module of `core` but a short list |
//! | [`descriptors`] | no descriptor of the library has the number of a standard stream |
//! | [`doors`] | atomics, cells and spinning only through `core/src/sync.rs`; no `std`, no `alloc` |
//! | [`edges`] | every Release has an Acquire of the same name |
//! | [`hosts`] | no path of one machine and no registry host in a text file |
//! | [`top_level`] | the names that are allowed at the top of the repository |
//! | [`terms`] | retired terms stay retired, a type name is used once in a crate, lines of at most 120 columns |
//! | [`soundness`] | `SOUNDNESS.md` names every function that it must, and nothing that does not exist |
//! | [`readme`] | the commands of the README exist, and CI runs what the README says |

mod api;
mod circles;
mod descriptors;
mod doors;
mod edges;
mod forbid;
mod hosts;
mod layers;
mod length;
mod modules;
mod readme;
mod rooms;
mod soundness;
mod source;
mod steps;
mod syntax;
mod terms;
mod top_level;

use source::{assert_keeps, assert_none, each, names};

#[test]
fn functions_are_at_most_70_lines() {
    assert_keeps(|files| each(files, length::functions));
}

#[test]
fn files_are_at_most_600_lines() {
    assert_keeps(|files| each(files, length::file));
}

#[test]
fn dependencies_run_one_way() {
    assert_none(&layers::check(&layers::metadata()));
}

#[test]
fn modules_form_no_circle_of_imports() {
    assert_keeps(circles::check);
}

#[test]
fn the_engine_and_the_transports_stand_apart() {
    assert_keeps(rooms::check);
}

#[test]
fn what_is_no_interface_for_users_is_private() {
    assert_keeps(api::check);
}

#[test]
fn core_modules_forbid_unsafe_code() {
    assert_keeps(forbid::check);
}

#[test]
fn atomics_cells_and_spinning_come_from_sync() {
    assert_keeps(doors::check_doors);
}

#[test]
fn descriptors_are_above_those_of_the_standard_streams() {
    assert_keeps(descriptors::check);
}

#[test]
fn core_uses_neither_std_nor_alloc() {
    assert_keeps(doors::check_std);
}

#[test]
fn each_release_has_an_acquire_of_the_same_name() {
    assert_keeps(edges::check);
}

#[test]
fn text_files_name_no_machine_and_no_registry_host() {
    assert_keeps(|files| each(files, hosts::check));
}

#[test]
fn top_level_holds_only_what_it_may() {
    assert_none(&top_level::check(&names()));
}

#[test]
fn retired_terms_are_not_used() {
    assert_keeps(|files| each(files, terms::retired));
}

#[test]
fn the_table_of_contributing_has_each_step_of_the_suite() {
    assert_keeps(steps::check);
}

#[test]
fn lines_are_at_most_120_columns() {
    assert_keeps(|files| each(files, terms::columns));
}

#[test]
fn a_type_name_is_used_once_in_a_crate() {
    assert_keeps(terms::homonyms);
}

#[test]
fn soundness_documents_are_complete_and_current() {
    assert_keeps(soundness::check);
}

#[test]
fn commands_of_the_readme_exist() {
    assert_keeps(|files| readme::check(files, &readme::executables()));
}
