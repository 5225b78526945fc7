//! Ranks on other machines: worlds whose processes do not share memory and reach each other over TCP.

use std::time::Duration;

use nemesia::Config;
use nemesia_tests::job::{DEADLINE, Job, Rank, report};
use nemesia_tests::leftovers::Traces;
use nemesia_tests::{quick, say, seed, skip};

const PEER: &str = env!("CARGO_BIN_EXE_peer");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

/// A world without shared memory.
fn job(args: &str) -> Job {
    Job::new(PEER, SCRATCH, args).env("NEMESIA_LOCAL", "off").env("NEMESIA_NET", "tcp")
}

/// A world of two machines: ranks 0 and 1 share memory, and the others do not.
fn mixed(args: &str) -> Job {
    Job::new(PEER, SCRATCH, args)
        .env("NEMESIA_NET", "tcp")
        .before("[ $PMI_RANK -ge 2 ] && export NEMESIA_LOCAL=off")
}

#[test]
fn two_processes_exchange_every_size_over_tcp() -> Result<(), String> {
    let ranks = job(&format!("exchange {}", seed())).succeed(2)?;
    assert!(ranks.iter().all(|rank| rank.output.contains("sizes in both directions")), "{}", report(&ranks));
    Ok(())
}

#[test]
fn connections_cost_what_the_bill_says() -> Result<(), String> {
    for receives in ["3", "32", "1024"] {
        job("net-costs 4").env("NEMESIA_NET_RECEIVES", receives).succeed(4)?;
    }
    job("net-costs 3").env("NEMESIA_NET_PACKET_BYTES", "256").succeed(3)?;
    job("net-costs 3")
        .env("NEMESIA_NET_FAST_PATH", "on")
        .env("NEMESIA_NET_FAST_PEERS", "2")
        .succeed(3)
        .map(drop)
}

#[test]
fn four_processes_exchange_all_to_all_over_tcp() -> Result<(), String> {
    let (small, large) = if quick() { (40, 5) } else { (200, 20) };
    job(&format!("all-to-all {small} 8")).succeed(4)?;
    job(&format!("all-to-all {large} 102400")).succeed(4).map(drop)
}

#[test]
fn the_smallest_packets_and_fewest_receives_suffice() -> Result<(), String> {
    let tiny = |job: Job| {
        let job = job.env("NEMESIA_CELL_BYTES", "256").env("NEMESIA_CELLS", "4");
        job.env("NEMESIA_NET_PACKET_BYTES", "256").env("NEMESIA_NET_RECEIVES", "3")
    };
    tiny(job("all-to-all 20 8")).succeed(3)?;
    tiny(job("all-to-all 5 20000")).succeed(3)?;
    tiny(mixed("all-to-all 5 20000")).succeed(4).map(drop)
}

#[test]
fn lists_and_active_messages_work_over_tcp() -> Result<(), String> {
    job(&format!("lists {}", seed())).succeed(2)?;
    job(&format!("active {}", seed())).succeed(3)?;
    job(&format!("many {}", seed())).succeed(3)?;
    mixed(&format!("many {}", seed())).succeed(4).map(drop)
}

/// Returns what a rank of `one-sided` has reported of its puts and gets: all bytes, those that moved directly, and
/// those that travelled in packets.
fn moved(rank: &Rank) -> Option<[u64; 3]> {
    let (_, line) = rank.output.lines().find_map(|line| line.split_once(" put into and got from "))?;
    let (_, counts) = line.split_once(": ")?;
    let mut counts = counts.split(", ").map(|count| count.split(' ').next()?.parse().ok());
    Some([counts.next()??, counts.next()??, counts.next()??])
}

#[test]
fn one_sided_operations_work_over_tcp_directly_or_in_packets_as_the_setting_says() -> Result<(), String> {
    let direct = |job: Job| job.env("NEMESIA_NET_DIRECT_BYTES", "16");
    // The first operations travel in packets, until the region is described.
    let is_direct = |rank: &Rank| {
        moved(rank).is_some_and(|[all, direct, packets]| direct > all / 10 * 9 && packets < all / 10)
    };
    // The short form moves bytes of allocated memory directly, and those of other memory in packets.
    for own in if quick() { 0..1 } else { 0..2 } {
        let ranks = direct(job(&format!("one-sided {} {own}", seed()))).succeed(3)?;
        assert!(ranks.iter().all(is_direct), "{}", report(&ranks));
    }
    for own in if quick() { 1..2 } else { 0..2 } {
        let ranks = job(&format!("one-sided {} {own}", seed())).succeed(3)?;
        let is_in_packets =
            |rank: &Rank| moved(rank).is_some_and(|[all, direct, packets]| direct == 0 && packets >= all);
        assert!(ranks.iter().all(is_in_packets), "{}", report(&ranks));
    }
    let ranks = direct(mixed(&format!("one-sided {} 0", seed()))).succeed(4)?;
    assert!(ranks.iter().all(is_direct), "{}", report(&ranks));
    direct(mixed(&format!("many {}", seed()))).succeed(4).map(drop)
}

#[test]
fn processes_of_one_machine_share_memory_in_a_world_of_several_machines() -> Result<(), String> {
    let ranks = mixed("all-to-all 20 8").env("NEMESIA_EXPLAIN", "1").succeed(4)?;
    let explained = |rank: usize, words: &str| ranks[rank].errors.contains(words);
    assert!(explained(0, "rank 1 over shm") && explained(1, "rank 0 over shm"), "{}", report(&ranks));
    assert!(
        explained(0, "ranks 2-3 over tcp") && explained(2, "ranks 0-1, 3 over tcp"),
        "{}",
        report(&ranks)
    );
    mixed("all-to-all 10 102400").succeed(4)?;
    mixed(&format!("exchange {}", seed())).succeed(3)?;
    mixed(&format!("active {}", seed())).succeed(4)?;
    mixed(&format!("one-sided {} 0", seed())).succeed(4).map(drop)
}

#[test]
fn a_rank_that_closes_has_finished_and_one_that_drops_its_endpoint_has_not() -> Result<(), String> {
    for (how, said) in [
        (0, "dropped its endpoint without closing it"),
        (1, "dropped its endpoint without closing it"),
        (2, "closed"),
    ] {
        for job in [job(&format!("leaves {how}")), mixed(&format!("leaves {how}"))] {
            let ranks = job.succeed(3)?;
            let reported =
                ranks[1..].iter().all(|rank| rank.output.contains("rank 0") && rank.output.contains(said));
            assert!(reported, "{said:?} wanted:\n{}", report(&ranks));
        }
    }
    (0..5).try_for_each(|_| job("flush 0").succeed(2).map(drop))
}

#[test]
fn survivors_of_a_death_are_told_and_go_on_over_tcp() -> Result<(), String> {
    let traces = Traces::now();
    for victim in 0..3 {
        let world = job(&format!("survive {victim} 100")).spawn(3)?;
        let deadline = std::time::Instant::now() + DEADLINE;
        while !(0..3).all(|rank| world.output(rank).contains("open")) && std::time::Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        world.signal(victim, libc::SIGKILL);
        let ranks = world.wait(DEADLINE)?;
        let is_fine = |(rank, end): (usize, &Rank)| rank == victim || end.kind.is_success();
        assert!(ranks.iter().enumerate().all(is_fine), "without rank {victim}:\n{}", report(&ranks));
    }
    assert_eq!(traces.new_ones(), [""; 0]);
    Ok(())
}

#[test]
fn a_forked_child_leaves_the_connections_of_its_parent_alone() -> Result<(), String> {
    job("fork 0").succeed(2).map(drop)
}

#[test]
fn waiting_for_other_machines_costs_almost_no_processor_time() -> Result<(), String> {
    for job in [job("idle 2000"), mixed("idle 2000")] {
        let ranks = job.succeed(4)?;
        let shares =
            ranks.iter().enumerate().filter(|(rank, _)| *rank != 1).map(|(_, it)| it.output.trim().parse());
        let shares: Vec<f64> = shares.collect::<Result<_, _>>().map_err(|_| report(&ranks))?;
        say(&format!("waiting: {shares:?} % of a processor"));
        assert!(shares.iter().all(|share| *share < 25.0), "{shares:?} % of a processor");
    }
    Ok(())
}

#[test]
fn a_message_from_another_machine_ends_the_sleep_of_its_receiver() -> Result<(), String> {
    // The second waker shares memory with the receiver, which waits for both kinds of peers.
    for job in [job("woken 20 1"), mixed("woken 20 1"), mixed("woken 20 2")] {
        say(job.succeed(3)?[0].output.trim());
    }
    Ok(())
}

#[test]
fn a_world_without_a_transport_is_refused_by_name_on_every_rank() -> Result<(), String> {
    let ranks =
        Job::new(PEER, SCRATCH, "open").env("NEMESIA_LOCAL", "off").env("NEMESIA_NET", "off").run(2)?;
    for (rank, end) in ranks.iter().enumerate() {
        let named =
            end.errors.contains(&format!("rank {}", 1 - rank)) && end.errors.contains("NEMESIA_NET is off");
        assert!(!end.kind.is_success() && named, "{}", report(&ranks));
    }
    // If one side has no TCP, both sides name the rank that lacks it.
    let ranks = job("open").before("[ $PMI_RANK = 1 ] && export NEMESIA_NET=verbs").run(2)?;
    assert!(ranks.iter().all(|end| !end.kind.is_success()), "{}", report(&ranks));
    assert!(ranks[0].errors.contains("tcp: rank 1 does not have it"), "{}", report(&ranks));
    Ok(())
}

/// Without a device, `verbs` is an error with the remedy, also in strict mode. `auto` then means TCP, which is no
/// preference that could not be met.
#[test]
fn verbs_without_a_device_is_an_error_and_auto_falls_back_to_tcp() -> Result<(), String> {
    const NAME: &str = "verbs_without_a_device_is_an_error_and_auto_falls_back_to_tcp";
    if nemesia::explain(&Config::default()).iter().any(|verdict| verdict.name == "verbs" && verdict.usable) {
        skip(NAME, "this machine has an RDMA device");
        return Ok(());
    }
    for strict in ["0", "1"] {
        let world = |net| Job::new(PEER, SCRATCH, "open").env("NEMESIA_LOCAL", "off").env("NEMESIA_NET", net);
        let ranks = world("verbs").env("NEMESIA_STRICT", strict).run(2)?;
        for (rank, end) in ranks.iter().enumerate() {
            let wanted = [&format!("rank {}", 1 - rank), "verbs: ", "NEMESIA_NET=auto"];
            let named = wanted.iter().all(|words| end.errors.contains(words));
            assert!(!end.kind.is_success() && named, "{}", report(&ranks));
        }
        let ranks = world("auto").env("NEMESIA_STRICT", strict).env("NEMESIA_EXPLAIN", "1").succeed(2)?;
        for end in &ranks {
            let fell_back = end.errors.contains("over tcp") && end.errors.contains("not verbs: ");
            assert!(fell_back && !end.errors.contains("warning"), "{}", report(&ranks));
        }
    }
    Ok(())
}

#[test]
fn settings_that_differ_are_refused_with_the_remedy() -> Result<(), String> {
    let one = "[ $PMI_RANK = 1 ] && export NEMESIA_NET_PACKET_BYTES=4096";
    let ranks = job("open").env("NEMESIA_TIMEOUT", "30").before(one).run(2)?;
    assert!(ranks.iter().all(|end| !end.kind.is_success()), "{}", report(&ranks));
    assert!(
        ranks[1].errors.contains("rank 0, tcp") && ranks[1].errors.contains("packet bytes"),
        "{}",
        report(&ranks)
    );
    Ok(())
}
