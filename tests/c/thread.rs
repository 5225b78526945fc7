//! Properties of the thread that calls.

use crate::two_with;

#[test]
fn a_cancelled_thread_ends_outside_of_the_library() -> Result<(), String> {
    let test = "a_cancelled_thread_ends_outside_of_the_library";
    two_with("thread", test, "cancel", &[])?;
    two_with("thread", test, "cancel", &[("NEMESIA_LOCAL", "off")])
}
