//! Every memory port passes the one suite of `nemesia_tests::memory_port`.

mod simulated;
