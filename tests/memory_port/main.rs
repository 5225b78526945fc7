//! Every memory port passes the one suite of `nemesia_tests::memory_port`.

mod hostile;
mod hostile_ranks;
mod processes;
mod shared_memory;
mod simulated;
mod tcp;
