//! Ranks of a world over the devices that use their connections against the protocol.

use std::net::IpAddr;

use nemesia::{Config, NetChoice};
use nemesia_tests::hostile_ranks::{run, run_with_rings};
use nemesia_tests::memory_port::Verdict;

use crate::fabric::Devices;
use crate::usable;

/// Returns the settings of a rank. If there are two devices, rank 0 has the last one, and all others the first.
fn settings(addresses: &[IpAddr], rank: usize) -> Config {
    let address = if rank == 0 { addresses.last() } else { addresses.first() };
    let address = address.map(ToString::to_string);
    Config::default().net(NetChoice::Verbs).net_address(address.as_deref())
}

#[test]
fn hostile_ranks_lose_their_connections_and_nobody_else_loses_anything() -> Verdict {
    const NAME: &str = "hostile::hostile_ranks_lose_their_connections_and_nobody_else_loses_anything";
    let Some(addresses) = usable(NAME) else { return Ok(()) };
    run(|| Devices::new(&addresses), |rank| settings(&addresses, rank))
}

/// Not on iWARP, which has no rings.
#[test]
fn hostile_ranks_that_write_into_rings_lose_their_connections() -> Verdict {
    const NAME: &str = "hostile::hostile_ranks_that_write_into_rings_lose_their_connections";
    let Some(addresses) = usable(NAME) else { return Ok(()) };
    run_with_rings(|| Devices::new(&addresses), |rank| settings(&addresses, rank))
}
