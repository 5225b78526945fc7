//! Engines over the shared-memory port, all in one thread.

use nemesia_tests::conformance::RunPlan;
use nemesia_tests::conformance::cases::{run_cases, skip_unfit};
use nemesia_tests::conformance::in_memory::{ABILITIES, MemoryShape, in_memory};
use nemesia_tests::memory_port::Verdict;

use crate::plan;

const USUAL: MemoryShape =
    MemoryShape { cells: 64, cell_bytes: 4096, slots: 16, single_copy: true, announce: true };
/// As little of everything as there may be.
const TINY: MemoryShape =
    MemoryShape { cells: 4, cell_bytes: 256, slots: 4, single_copy: false, announce: true };

fn passes(name: &str, shape: MemoryShape, ranks: usize) -> Verdict {
    let plan @ RunPlan { seed, .. } = plan();
    run_cases(name, ABILITIES, ranks, |case| {
        in_memory(case, plan, shape, ranks).map_err(|why| format!("seed {seed}: {why}"))
    })
}

#[test]
fn shared_memory_passes() -> Verdict {
    passes("shared_memory_passes", USUAL, 3)
}

#[test]
fn the_smallest_structures_pass() -> Verdict {
    passes("the_smallest_structures_pass", TINY, 3)
}

#[test]
fn five_ranks_pass_with_a_receive_queue() -> Verdict {
    passes("five_ranks_pass_with_a_receive_queue", MemoryShape { announce: false, cells: 8, ..USUAL }, 5)
}

/// Processes over shared memory run these.
#[test]
fn cases_that_need_processes() {
    skip_unfit("cases_that_need_processes", ABILITIES, 3);
}
