//! Properties of the thread that calls: its stack, and its cancellation.

use crate::two_with;

/// The stack in KiB of the small thread, with all that the C library keeps there, as in `ffi/README.md`. Without
/// optimisation, functions need more.
const KIB: &str = if cfg!(debug_assertions) { "80" } else { "32" };

#[test]
fn a_thread_with_a_small_stack_opens_exchanges_and_closes() -> Result<(), String> {
    let test = "a_thread_with_a_small_stack_opens_exchanges_and_closes";
    two_with("thread", test, KIB, &[])?;
    two_with("thread", test, KIB, &[("NEMESIA_LOCAL", "off")])
}

#[test]
fn a_cancelled_thread_ends_outside_of_the_library() -> Result<(), String> {
    let test = "a_cancelled_thread_ends_outside_of_the_library";
    two_with("thread", test, "cancel", &[])?;
    two_with("thread", test, "cancel", &[("NEMESIA_LOCAL", "off")])
}
