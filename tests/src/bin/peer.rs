//! One process of a world, for the tests between processes: `peer MODE ARGUMENTS`. See `nemesia_tests::peer`.

use std::process::ExitCode;

fn main() -> ExitCode {
    nemesia_tests::peer::run(&std::env::args().skip(1).collect::<Vec<_>>())
}
