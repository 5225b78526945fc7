//! A host that is cut off from the others in the middle of a job: see `tests/src/peer/cut.rs`. Hosts are network
//! namespaces.

use std::time::{Duration, Instant};

use nemesia::bootstrap::ExitKind;
use nemesia_tests::hosts::{Hosts, HydraWorld, PROCESSES, four_hosts, namespaces};
use nemesia_tests::job::{DEADLINE, Job, Rank, World, report};
use nemesia_tests::leftovers::Traces;
use nemesia_tests::{quick, say, skip};

const PEER: &str = env!("CARGO_BIN_EXE_peer");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");
/// `NEMESIA_NET_SILENCE` in seconds.
const SILENCE: &str = "3";
/// The most milliseconds from the last message to the failure. Without the setting it would take a quarter of an hour:
/// the kernel's own limit of data that are not confirmed. A busy machine may need much longer than the setting.
const MOST_MILLIS: u64 = 60_000;
/// The host that is cut off. Hydra itself runs on host 0.
const CUT: usize = 2;

/// Starts one rank on each of two hosts.
fn pair(hosts: &Hosts, words: &str, silence: &str, settings: &[(&str, &str)]) -> Result<World, String> {
    let [first, second] = [0, 1].map(|host| hosts.starter(host).join(" "));
    let enter = format!("$([ $PMI_RANK = 0 ] && echo {first} || echo {second})");
    let job = Job::new(PEER, SCRATCH, words).env("NEMESIA_NET_SILENCE", silence);
    let job = settings.iter().fold(job, |job, (name, value)| job.env(name, value));
    job.env("NEMESIA_NET", "tcp").env("NEMESIA_TEST_STOP", &stop(hosts)).wrapper(&enter).spawn(2)
}

/// Returns the file that ends the exchange.
fn stop(hosts: &Hosts) -> String {
    hosts.place().join("stop").to_string_lossy().into_owned()
}

/// Waits until both ranks have printed a line that begins so.
fn await_line(world: &World, begin: &str) -> Result<(), String> {
    let deadline = Instant::now() + DEADLINE;
    while !(0..2).all(|rank| world.output(rank).lines().any(|line| line.starts_with(begin))) {
        if Instant::now() > deadline {
            return Err(format!("{begin:?} wanted: {}{}", world.output(0), world.output(1)));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Returns the failures that a rank has reported: the rank that failed, and the time from the last message.
fn failures(rank: &Rank) -> Vec<(usize, u64)> {
    let reported = |line: &str| {
        let (gone, rest) = line.strip_prefix("rank ")?.split_once(" gone after ")?;
        let (millis, failure) = rest.split_once(" ms: ")?;
        let is_silent = failure.contains("the peer does not respond");
        Some((gone.parse().ok()?, millis.parse().ok()?)).filter(|_| is_silent)
    };
    rank.output.lines().filter_map(reported).collect()
}

/// Checks that each of these ranks has reported the failures of exactly the ranks that it does not reach, in time.
fn check(ranks: &[Rank], is_cut: impl Fn(usize) -> bool) -> Result<(), String> {
    let mut slowest = 0;
    for (rank, end) in ranks.iter().enumerate() {
        let mut failed = failures(end);
        failed.sort_unstable();
        let wanted = (0..ranks.len()).filter(|it| is_cut(*it) != is_cut(rank));
        let is_right = wanted.eq(failed.iter().map(|(rank, _)| *rank));
        if !end.kind.is_success() || !is_right || failed.iter().any(|(_, millis)| *millis > MOST_MILLIS) {
            return Err(format!("rank {rank}: {failed:?}\n{}", report(ranks)));
        }
        slowest = slowest.max(failed.iter().map(|(_, millis)| *millis).max().unwrap_or(0));
    }
    say(&format!("NEMESIA_NET_SILENCE={SILENCE}: reported after {slowest} ms at most"));
    Ok(())
}

/// With data that are not confirmed, and in a wait without any data, which only the kernel's probes can end.
#[test]
fn a_silent_host_is_given_up_within_the_setting() -> Result<(), String> {
    let traces = Traces::now();
    let Some(hosts) = namespaces("a_silent_host_is_given_up_within_the_setting", SCRATCH) else {
        return Ok(());
    };
    for (how, line) in [(0, "round 5"), (1, "silent")] {
        let world = pair(&hosts, &format!("cut 1 {how}"), SILENCE, &[])?;
        await_line(&world, line)?;
        hosts.set_joined(1, false)?;
        let ranks = world.wait(DEADLINE)?;
        hosts.set_joined(1, true)?;
        check(&ranks, |rank| rank == 1)?;
    }
    drop(hosts);
    assert_eq!(traces.new_ones(), [""; 0]);
    Ok(())
}

/// Connections and short messages pass, so nothing but the length tells this network from a good one.
#[test]
fn a_way_that_loses_long_packets_is_named_with_the_mtu() -> Result<(), String> {
    const NAME: &str = "a_way_that_loses_long_packets_is_named_with_the_mtu";
    let Some(hosts) = namespaces(NAME, SCRATCH) else { return Ok(()) };
    hosts.lose_long_packets()?;
    let ranks = pair(&hosts, "long-lost", SILENCE, &[])?.wait(DEADLINE)?;
    assert!(ranks.iter().all(|rank| rank.kind.is_success()), "{}", report(&ranks));
    // The other one may see first that the connection was closed.
    let named = "(only large ones, if an MTU on the way is smaller";
    assert!(ranks.iter().any(|rank| rank.output.contains(named)), "{}", report(&ranks));
    assert!(ranks[1].output.starts_with("short\n"), "{}", report(&ranks));
    Ok(())
}

/// The kernel of the other host answers, although it has no room for more: the host is there.
#[test]
fn a_rank_that_computes_for_longer_than_the_limit_is_waited_for() -> Result<(), String> {
    const NAME: &str = "a_rank_that_computes_for_longer_than_the_limit_is_waited_for";
    let Some(hosts) = namespaces(NAME, SCRATCH) else { return Ok(()) };
    // The first packets that may be sent ahead are then more than a kernel takes.
    let bytes = "1048576";
    let large =
        ["NEMESIA_CELL_BYTES", "NEMESIA_NET_PACKET_BYTES", "NEMESIA_EAGER_BYTES"].map(|name| (name, bytes));
    let ranks = pair(&hosts, "computes 8", "2", &large)?.wait(DEADLINE)?;
    assert!(ranks.iter().all(|rank| rank.kind.is_success()), "{}", report(&ranks));
    say(ranks[0].output.trim());
    Ok(())
}

/// Longer than the default of the setting: it is the setting that counts.
#[test]
fn a_link_that_comes_back_before_the_limit_has_lost_nothing() -> Result<(), String> {
    const NAME: &str = "a_link_that_comes_back_before_the_limit_has_lost_nothing";
    if quick() {
        skip(NAME, "it waits for longer than the default limit: not with --quick");
        return Ok(());
    }
    let Some(hosts) = namespaces(NAME, SCRATCH) else { return Ok(()) };
    let world = pair(&hosts, "cut 1 2", "600", &[])?;
    await_line(&world, "round 5")?;
    hosts.set_joined(1, false)?;
    std::thread::sleep(Duration::from_secs(13));
    hosts.set_joined(1, true)?;
    std::fs::write(stop(&hosts), "").map_err(|error| error.to_string())?;
    let ranks = world.wait(DEADLINE)?;
    let is_fine = |rank: &Rank| rank.kind.is_success() && rank.output.contains("of 2 went on with [0, 1]");
    assert!(ranks.iter().all(is_fine), "{}", report(&ranks));
    Ok(())
}

/// Hydra itself does not notice that the link is cut: it would learn only of processes that end. Each rank ends by
/// itself, also those that were cut off. Then the link comes back, so that Hydra learns of their ends and ends as well.
#[test]
fn survivors_on_four_hosts_go_on_without_the_host_that_was_cut_off() -> Result<(), String> {
    const NAME: &str = "survivors_on_four_hosts_go_on_without_the_host_that_was_cut_off";
    let traces = Traces::now();
    let Some(hosts) = four_hosts(NAME, SCRATCH) else { return Ok(()) };
    let settings = [("NEMESIA_NET_SILENCE", SILENCE), ("NEMESIA_NET", "tcp"), ("NEMESIA_EXPLAIN", "1")];
    let words = format!("cut {PROCESSES} 0");
    let running = hosts.start((PEER, &words), &settings, true)?;
    running.wait_until("exchanging", |ranks| ranks.iter().all(|rank| rank.output.contains("round 20\n")))?;
    hosts.set_joined(CUT, false)?;
    let ended = running.wait_until("ended", |ranks| ranks.iter().all(|rank| rank.kind != ExitKind::Unknown));
    hosts.set_joined(CUT, true)?;
    check(&ended?, |rank| rank / PROCESSES == CUT)?;
    let HydraWorld { ranks, hydra } = running.wait()?;
    let lines = [
        (0, "rank 0 of 8: rank 1 over shm"),
        (0, "rank 0 of 8: ranks 2-7 over tcp"),
        (4, "rank 4 of 8: rank 5 over shm"),
        (4, "rank 4 of 8: ranks 0-3, 6-7 over tcp"),
    ];
    for (rank, line) in lines {
        assert!(ranks[rank].errors.contains(line), "{line:?} wanted:\n{}{hydra}", report(&ranks));
    }
    for (rank, end) in ranks.iter().enumerate() {
        let left = if rank / PROCESSES == CUT { "[4, 5]" } else { "[0, 1, 2, 3, 6, 7]" };
        let line = format!("rank {rank} of 8 went on with {left}\n");
        assert!(end.output.contains(&line), "{line:?} wanted:\n{}{hydra}", report(&ranks));
    }
    drop(hosts);
    assert_eq!(traces.new_ones(), [""; 0]);
    Ok(())
}
