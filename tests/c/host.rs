//! Processes in which a host runtime has initialised the launcher's connection before an endpoint is opened.

use std::process::Command;

use nemesia_tests::job::{Job, report};

use crate::toolchain::{Linking, compile, output, scratch, source};
use crate::{STRICT_C, can_run, skip};

/// Runs one case of `host.c` with two ranks.
fn host(case: &str, library: &str) -> Result<(), String> {
    let flags = [&STRICT_C[..], &["-ldl"]].concat();
    for linking in Linking::BOTH {
        let program = compile("cc", &flags, &source("tests/c/host.c"), linking, &format!("host-{case}"))?;
        Job::new(program, scratch(), &format!("{case} {library}")).succeed(2)?;
    }
    Ok(())
}

#[test]
fn a_connection_that_the_program_has_initialised_is_refused_and_taken_over_on_request() -> Result<(), String>
{
    if !can_run("a_connection_that_the_program_has_initialised_is_refused_and_taken_over_on_request", &["cc"])
    {
        return Ok(());
    }
    host("raw", "none")
}

#[test]
fn a_library_that_is_initialised_owns_the_connection() -> Result<(), String> {
    if !can_run("a_library_that_is_initialised_owns_the_connection", &["cc"]) {
        return Ok(());
    }
    let library = scratch().join("libpmi-of-a-test.so");
    let mut make = Command::new("cc");
    make.args(["-shared", "-fPIC"]).arg(source("tests/c/host_library.c")).arg("-o").arg(&library);
    output(&mut make)?;
    host("library", &library.display().to_string())
}

#[test]
fn an_endpoint_beside_mpi_is_refused_and_mpi_continues() -> Result<(), String> {
    if !can_run("an_endpoint_beside_mpi_is_refused_and_mpi_continues", &["mpicc.mpich", "mpiexec.hydra"]) {
        return Ok(());
    }
    // The compiler's package does not bring the headers.
    let empty = scratch().join("host-mpi-headers.c");
    std::fs::write(&empty, "#include <mpi.h>\n").map_err(|error| error.to_string())?;
    if output(Command::new("mpicc.mpich").arg("-E").arg(&empty)).is_err() {
        skip(
            "an_endpoint_beside_mpi_is_refused_and_mpi_continues",
            "the headers of MPICH are not installed (Debian: libmpich-dev)",
        );
        return Ok(());
    }
    let file = source("tests/c/host_mpi.c");
    let program =
        compile("mpicc.mpich", &["-Wall", "-Wextra", "-Werror"], &file, Linking::Shared, "host-mpi")?;
    let said = output(Command::new("mpiexec.hydra").args(["-n", "2"]).arg(&program))?;
    assert_eq!(said, "finalized\nfinalized\n");
    let ranks = Job::new(program, scratch(), "").succeed(2)?;
    assert!(ranks.iter().all(|rank| rank.output == "finalized\n"), "{}", report(&ranks));
    Ok(())
}
