//! One rank of the conformance suite, under any launcher: see `nemesia_tests::conformance::program`.

use std::process::ExitCode;

fn main() -> ExitCode {
    nemesia_tests::conformance::program::run(&std::env::args().skip(1).collect::<Vec<_>>())
}
