//! A world under the real Hydra on two hosts: see `nemesia_tests::hosts`.

use std::os::unix::fs::PermissionsExt;

use nemesia_tests::hosts::{Hosts, HydraWorld, hosts};
use nemesia_tests::job::{Rank, report};
use nemesia_tests::{quick, say, seed, skip};

const PEER: &str = env!("CARGO_BIN_EXE_peer");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

/// Runs a mode of `peer` on all processes, with these settings, and returns what they print.
fn peer(hosts: &Hosts, words: &str, settings: &[(&str, &str)]) -> Result<(String, String), String> {
    let HydraWorld { ranks, hydra } = hosts.run((PEER, words), settings, false)?;
    if !ranks.iter().all(|rank| rank.kind.is_success()) {
        return Err(format!("{words}: {}{hydra}", report(&ranks)));
    }
    let all = |of: fn(&Rank) -> &str| ranks.iter().map(of).collect::<Vec<_>>().concat();
    Ok((all(|rank| &rank.output), all(|rank| &rank.errors)))
}

#[test]
fn a_world_on_two_hosts_shares_memory_inside_and_uses_tcp_between_them() -> Result<(), String> {
    let Some(hosts) = hosts("a_world_on_two_hosts_shares_memory_inside_and_uses_tcp_between_them", SCRATCH)
    else {
        return Ok(());
    };
    let (_, explained) = peer(&hosts, "all-to-all 1 8", &[("NEMESIA_EXPLAIN", "1")])?;
    let routes = [
        (0, "rank 1 over shm"),
        (0, "ranks 2-3 over tcp"),
        (3, "rank 2 over shm"),
        (3, "ranks 0-1 over tcp"),
    ];
    for (rank, route) in routes {
        let line = format!("rank {rank} of 4: {route}");
        assert!(explained.contains(&line), "{line:?} wanted:\n{explained}");
    }
    let (said, errors) = peer(&hosts, &format!("exchange {}", seed()), &[])?;
    assert_eq!(said.matches("sizes in both directions").count(), 4, "{said}{errors}");
    peer(&hosts, "all-to-all 20 8", &[])?;
    peer(&hosts, "all-to-all 20 8", &[("NEMESIA_CONNECT", "start")])?;
    peer(&hosts, "all-to-all 5 102400", &[])?;
    peer(&hosts, &format!("lists {}", seed()), &[])?;
    let (said, errors) = peer(&hosts, &format!("active {}", seed()), &[])?;
    assert_eq!(said.matches("all answered").count(), 4, "{said}{errors}");
    // In the short form `net` has allocated memory, and this test that of the processes.
    for own in if quick() { 1..2 } else { 0..2 } {
        peer(&hosts, &format!("one-sided {} {own}", seed()), &[])?;
    }
    peer(&hosts, "leaves 2", &[])?;
    let (said, errors) = peer(&hosts, "idle 2000", &[])?;
    let shares: Vec<f64> = said.split_whitespace().filter_map(|share| share.parse().ok()).collect();
    say(&format!("waiting: {shares:?} % of a processor"));
    assert!(shares.len() == 3 && shares.iter().all(|share| *share < 25.0), "{said}{errors}");
    Ok(())
}

/// The interface, the family and the traffic class are settings that are equal on all hosts.
#[test]
fn hosts_are_reached_at_the_address_that_the_settings_choose() -> Result<(), String> {
    const NAME: &str = "hosts_are_reached_at_the_address_that_the_settings_choose";
    let Some(hosts) = hosts(NAME, SCRATCH) else { return Ok(()) };
    let wide = [("NEMESIA_NET_ADDRESS", "10.77.0.0/16"), ("NEMESIA_NET_TRAFFIC_CLASS", "104")];
    let ipv6 = [("NEMESIA_NET_FAMILY", "ipv6"), ("NEMESIA_STRICT", "1")];
    let prefix = [("NEMESIA_NET_ADDRESS", "fd77::/64"), ("NEMESIA_CONNECT", "demand")];
    for (settings, address, why) in [
        (wide, "10.77.0.2", "which NEMESIA_NET_ADDRESS contains), traffic class 0x68"),
        (ipv6, "fd77::2", "the first address that is not local to this machine)"),
        (prefix, "fd77::2", "which NEMESIA_NET_ADDRESS contains)"),
    ] {
        if address.contains(':') && !hosts.has_ipv6() {
            skip(NAME, "the kernel has no IPv6");
            return Ok(());
        }
        let explaining: Vec<_> = settings.into_iter().chain([("NEMESIA_EXPLAIN", "1")]).collect();
        let (_, explained) = peer(&hosts, "open", &explaining)?;
        let line = format!("path: at {address} (v2, {why}");
        assert!(explained.contains(&line), "{line:?} wanted:\n{explained}");
        peer(&hosts, "all-to-all 20 8", &settings)?;
        peer(&hosts, "all-to-all 5 102400", &settings)?;
    }
    Ok(())
}

/// An address that other hosts cannot reach is an error with the rank and the remedy, not a hang.
#[test]
fn hosts_without_a_way_between_them_are_refused_by_name() -> Result<(), String> {
    let Some(hosts) = hosts("hosts_without_a_way_between_them_are_refused_by_name", SCRATCH) else {
        return Ok(());
    };
    for connect in ["demand", "start"] {
        let settings =
            [("NEMESIA_NET_ADDRESS", "lo"), ("NEMESIA_TIMEOUT", "30"), ("NEMESIA_CONNECT", connect)];
        // Hydra kills all ranks when the first one leaves the world, which is after that rank has printed why.
        let HydraWorld { ranks, hydra } = hosts.run((PEER, "open"), &settings, false)?;
        let refused = |rank: &Rank| {
            rank.errors.contains(", tcp: one of both has an address that does not leave its machine")
                && rank.errors.contains("NEMESIA_NET_ADDRESS")
        };
        assert!(ranks.iter().any(refused), "{}{hydra}", report(&ranks));
        assert!(ranks.iter().all(|rank| !rank.kind.is_success()), "{}{hydra}", report(&ranks));
    }
    Ok(())
}

#[test]
fn ranks_of_two_hosts_connect_when_they_talk_and_only_then() -> Result<(), String> {
    let Some(hosts) = hosts("ranks_of_two_hosts_connect_when_they_talk_and_only_then", SCRATCH) else {
        return Ok(());
    };
    let times = if quick() { 2 } else { 10 };
    (0..times).try_for_each(|_| peer(&hosts, "demand", &[]).map(drop))?;
    // With a key of its own, the job uses the same connections.
    let key = hosts.place().join("key");
    let written = std::fs::write(&key, "5a".repeat(32));
    let permitted = written.and_then(|()| std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)));
    permitted.map_err(|error| error.to_string())?;
    peer(&hosts, "demand", &[("NEMESIA_JOB_KEY_FILE", &key.to_string_lossy())]).map(drop)
}

#[test]
fn the_end_of_a_rank_that_was_never_met_is_known_on_the_other_host() -> Result<(), String> {
    let Some(hosts) = hosts("the_end_of_a_rank_that_was_never_met_is_known_on_the_other_host", SCRATCH)
    else {
        return Ok(());
    };
    for how in 0..3 {
        for _ in 0..if quick() { 1 } else { 5 } {
            let words = format!("demand-ends {how}");
            let HydraWorld { ranks, hydra } = hosts.run((PEER, &words), &[], true)?;
            let is_fine = |(rank, end): (usize, &Rank)| end.kind.is_success() == (rank < 3 || how < 2);
            if !ranks.iter().enumerate().all(is_fine) {
                return Err(format!("{words}: {}{hydra}", report(&ranks)));
            }
        }
    }
    Ok(())
}

#[test]
fn a_rank_to_which_no_way_leads_is_named_by_the_first_operation_with_it() -> Result<(), String> {
    let Some(hosts) = hosts("a_rank_to_which_no_way_leads_is_named_by_the_first_operation_with_it", SCRATCH)
    else {
        return Ok(());
    };
    peer(&hosts, "demand-apart", &[("NEMESIA_TIMEOUT", "3")])?;
    Ok(())
}
