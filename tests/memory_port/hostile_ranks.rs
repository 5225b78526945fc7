//! Ranks of a world over TCP that use their connections against the protocol.

use nemesia::{Config, NetChoice};
use nemesia_tests::hostile_ranks::{run, run_with_rings};
use nemesia_tests::memory_port::Verdict;

use crate::tcp::Tcp;

fn settings(_: usize) -> Config {
    Config::default().net(NetChoice::Tcp).net_address(Some("127.0.0.1"))
}

#[test]
fn hostile_ranks_lose_their_connections_over_tcp_and_nobody_else_loses_anything() -> Verdict {
    run(Tcp::large, settings)
}

#[test]
fn hostile_ranks_that_write_into_rings_lose_their_connections_over_tcp() -> Verdict {
    run_with_rings(Tcp::large, settings)
}
