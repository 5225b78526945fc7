//! Endpoints over the devices: worlds of processes that our launcher starts.
//!
//! In the virtual machine (`tests/vm/README.md`) the ranks run on two hosts. Processes share a host if their machines
//! have one boot and their hand-over sockets connect. The hosts of siw are network namespaces, so no socket connects
//! them. Those of rxe are one namespace, so the second host gets a boot of its own, in a mount namespace. Elsewhere all
//! processes use the first device, and `NEMESIA_LOCAL` keeps them apart.

use std::time::Duration;

use nemesia::verbs::survey;
use nemesia_tests::conformance::RunPlan;
use nemesia_tests::conformance::cases::Need;
use nemesia_tests::conformance::launched::{arguments, pass};
use nemesia_tests::conformance::program::ABILITIES;
use nemesia_tests::job::{Job, Rank, report};
use nemesia_tests::leftovers::OUTPUT;
use nemesia_tests::memory_port::Verdict;
use nemesia_tests::{quick, say, seed};

use crate::usable;

const CONFORMANCE: &str = env!("CARGO_BIN_EXE_conformance");
const PEER: &str = env!("CARGO_BIN_EXE_peer");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");
/// The limit of a world. An emulated processor is slow.
const LIMIT: Duration = Duration::from_secs(600);
/// The file that the kernel shows as the boot of this machine.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

const SECOND_BOOT: &str = "00000000-0000-4000-8000-000000000002";

/// The hosts of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spread {
    /// The hosts take turns, and no rank shares memory with another.
    Apart,
    /// Ranks 0 and 1 share a host, and ranks 2 and 3 another.
    Pairs,
}

impl Spread {
    /// Returns a world of this program over verbs, without other settings.
    fn job(self, program: &str, words: &str) -> Job {
        let job = Job::new(program, SCRATCH, words).env("NEMESIA_NET", "verbs").env("NEMESIA_TIMEOUT", "120");
        let job = if self == Self::Apart { job.env("NEMESIA_LOCAL", "off") } else { job };
        let Some(kind) = std::env::var_os("VM_KIND") else {
            return match self {
                Self::Apart => job,
                Self::Pairs => job.before("[ $PMI_RANK -ge 2 ] && export NEMESIA_LOCAL=off"),
            };
        };
        let host = if self == Self::Apart { "$((PMI_RANK % 2))" } else { "$((PMI_RANK / 2))" };
        let start = "NEMESIA_NET_ADDRESS=$VM_ADDRESS exec \"$@\"";
        if self == Self::Apart || kind != "rxe" {
            return job.wrapper(&format!("fabric on {host} sh -c '{start}' sh"));
        }
        let boot = format!("${OUTPUT}/boot$PMI_RANK");
        let mount = format!("echo {SECOND_BOOT} >{boot} && mount --bind {boot} {BOOT} || exit");
        job.wrapper(&format!(
            "unshare --mount fabric on {host} sh -c '[ $VM_HOST = 0 ] || {{ {mount}; }}; {start}' sh"
        ))
    }

    /// Runs a mode of `peer` on so many ranks. All must succeed.
    fn peers(self, size: usize, words: &str) -> Result<Vec<Rank>, String> {
        let ranks = self.job(PEER, words).spawn(size)?.wait(LIMIT)?;
        if ranks.iter().all(|rank| rank.kind.is_success()) {
            return Ok(ranks);
        }
        Err(format!("{self:?}, {words}\n{}", report(&ranks)))
    }

    /// Runs the conformance suite on so many ranks, with these settings: all cases that a world over a network can do.
    fn conforms(self, size: usize, settings: &[(&str, &str)]) -> Verdict {
        let steps = std::env::var("NEMESIA_TEST_STEPS").ok().and_then(|steps| steps.parse().ok());
        let plan = RunPlan { seed: seed(), steps: steps.unwrap_or(10_000) };
        pass(size, ABILITIES, |case| {
            let job = self.job(CONFORMANCE, &arguments(plan, case.map(|case| case.name)));
            let job = settings.iter().fold(job, |job, (name, value)| job.env(name, value));
            let restarts = u32::from(case.is_some_and(|case| case.need == Need::Restarts));
            job.restart(restarts).spawn(size)?.wait(LIMIT)
        })
    }
}

#[test]
fn three_endpoints_pass_over_verbs() -> Verdict {
    match usable("endpoints::three_endpoints_pass_over_verbs") {
        Some(_) => Spread::Apart.conforms(3, &[]),
        None => Ok(()),
    }
}

#[test]
fn two_endpoints_pass_over_verbs_with_the_smallest_structures() -> Verdict {
    let settings =
        [("NEMESIA_CELL_BYTES", "256"), ("NEMESIA_NET_PACKET_BYTES", "256"), ("NEMESIA_NET_RECEIVES", "3")];
    match usable("endpoints::two_endpoints_pass_over_verbs_with_the_smallest_structures") {
        Some(_) => Spread::Apart.conforms(2, &settings),
        None => Ok(()),
    }
}

/// Shared memory inside each host, verbs between them, with two connections for each pair of ranks.
#[test]
fn two_hosts_with_two_endpoints_each_pass() -> Verdict {
    match usable("endpoints::two_hosts_with_two_endpoints_each_pass") {
        Some(_) => Spread::Pairs.conforms(4, &[("NEMESIA_NET_STREAMS", "2")]),
        None => Ok(()),
    }
}

/// The library of a device promises what rings need, and the explanation has that promise. No software device makes it.
#[test]
fn small_messages_go_through_rings_if_the_setting_or_the_promise_of_the_device_says_so() -> Verdict {
    const NAME: &str =
        "endpoints::small_messages_go_through_rings_if_the_setting_or_the_promise_of_the_device_says_so";
    if usable(NAME).is_none() {
        return Ok(());
    }
    let is_software = std::env::var_os("VM_KIND").is_some();
    let settings = if quick() { &["auto", "on"][..] } else { &["auto", "off", "on"] };
    let words = if quick() { "fast-path 8" } else { "fast-path 40" };
    for &setting in settings {
        let job = Spread::Apart.job(PEER, words).env("NEMESIA_NET_FAST_PATH", setting);
        let ranks = job.env("NEMESIA_EXPLAIN", "1").spawn(2)?.wait(LIMIT)?;
        if setting == "on" && ranks.iter().any(|rank| rank.errors.contains("is an iWARP device")) {
            assert!(ranks.iter().all(|rank| !rank.kind.is_success()), "{}", report(&ranks));
            continue;
        }
        assert!(ranks.iter().all(|rank| rank.kind.is_success()), "{setting}:\n{}", report(&ranks));
        let no_promise = "the device does not promise to place the bytes of a write in order";
        let promises = ranks.iter().all(|rank| !rank.errors.contains(no_promise));
        if setting == "auto" {
            assert!(!(promises && is_software), "{}", report(&ranks));
        }
        let wants_rings = setting == "on" || setting == "auto" && promises;
        for rank in &ranks {
            let is_right = if wants_rings {
                !rank.output.starts_with("0 ") && !rank.output.contains(" 0 read")
            } else {
                rank.output.trim() == "0 written, 0 read, 0 found no slot"
            };
            assert!(is_right, "{setting}:\n{}", report(&ranks));
        }
        say(&format!("NEMESIA_NET_FAST_PATH={setting}: {}", ranks[0].output.trim()));
    }
    Ok(())
}

/// The whole suite with rings; without them it is that of the other tests.
#[test]
fn three_endpoints_pass_with_rings() -> Verdict {
    let Some(_) = usable("endpoints::three_endpoints_pass_with_rings") else { return Ok(()) };
    Spread::Apart.conforms(3, &[("NEMESIA_NET_FAST_PATH", "on"), ("NEMESIA_NET_FAST_PEERS", "1")])
}

#[test]
fn routes_over_verbs_are_explained() -> Verdict {
    if usable("endpoints::routes_over_verbs_are_explained").is_none() {
        return Ok(());
    }
    let explained = |spread: Spread, size| -> Result<Vec<String>, String> {
        let job = spread.job(PEER, "all-to-all 1 8").env("NEMESIA_EXPLAIN", "1");
        Ok(job.spawn(size)?.wait(LIMIT)?.into_iter().map(|rank| rank.errors).collect())
    };
    let apart = explained(Spread::Apart, 2)?;
    assert!(apart[0].contains("rank 0 of 2: rank 1 over verbs; "), "{apart:?}");
    assert!(apart[1].contains("not shm: NEMESIA_LOCAL is off; not tcp: NEMESIA_NET is verbs"), "{apart:?}");
    let pairs = explained(Spread::Pairs, 4)?;
    assert!(pairs[0].contains("rank 1 over shm") && pairs[0].contains("ranks 2-3 over verbs"), "{pairs:?}");
    if std::env::var_os("VM_KIND").is_some() {
        assert!(
            pairs[3].contains("rank 2 over shm") && pairs[3].contains("ranks 0-1 over verbs"),
            "{pairs:?}"
        );
    }
    Ok(())
}

/// The choice without settings: RDMA devices, because every process has one.
#[test]
fn devices_are_chosen_before_tcp_unless_asked_otherwise() -> Verdict {
    if usable("endpoints::devices_are_chosen_before_tcp_unless_asked_otherwise").is_none() {
        return Ok(());
    }
    for (net, used, unused) in [("auto", "over verbs", "not tcp: "), ("tcp", "over tcp", "not verbs: ")] {
        // The host of each rank, and nothing else, decides its device and its address.
        let on = std::env::var_os("VM_KIND").map_or("", |_| "fabric on $((PMI_RANK % 2))");
        let job = Job::new(PEER, SCRATCH, "ring 3").wrapper(on).env("NEMESIA_TIMEOUT", "120");
        let job = job.env("NEMESIA_LOCAL", "off").env("NEMESIA_NET", net).env("NEMESIA_STRICT", "1");
        let ranks = job.env("NEMESIA_EXPLAIN", "1").spawn(2)?.wait(LIMIT)?;
        let is_right = |rank: &Rank| {
            let lines = &rank.errors;
            rank.kind.is_success()
                && lines.contains(used)
                && lines.contains(unused)
                && !lines.contains("warning")
        };
        assert!(ranks.iter().all(is_right), "{net}:\n{}", report(&ranks));
    }
    Ok(())
}

#[test]
fn connections_cost_what_the_bill_says() -> Verdict {
    let Some(_) = usable("endpoints::connections_cost_what_the_bill_says") else { return Ok(()) };
    for rank in Spread::Apart.peers(3, "net-costs 3")? {
        say(rank.output.trim());
    }
    Ok(())
}

/// On rxe, whose hosts see both devices.
#[test]
fn endpoints_use_the_device_and_the_path_that_the_settings_choose() -> Verdict {
    if usable("endpoints::endpoints_use_the_device_and_the_path_that_the_settings_choose").is_none()
        || std::env::var_os("VM_KIND").is_none_or(|kind| kind != "rxe")
    {
        return Ok(());
    }
    let world = |device, settings: &[(&str, &str)]| {
        let job = Job::new(PEER, SCRATCH, "ring 3").wrapper("fabric on $((PMI_RANK % 2))");
        let job = job.env("NEMESIA_TIMEOUT", "120").env("NEMESIA_LOCAL", "off").env("NEMESIA_EXPLAIN", "1");
        let job = job.env("NEMESIA_NET", "verbs").env("NEMESIA_NET_DEVICE", device);
        settings.iter().fold(job, |job, (name, value)| job.env(name, value))
    };
    let path =
        [("NEMESIA_NET_PATH_MTU", "1024"), ("NEMESIA_NET_TRAFFIC_CLASS", "104"), ("NEMESIA_STRICT", "1")];
    let ranks = world("rxe1", &path).spawn(2)?.wait(LIMIT)?;
    let chosen = "path: rxe1 port 1 at 10.7.0.2 (GID 1, partition 0xffff), chosen by the name rxe1, path MTU at most \
                  1024, traffic class 0x68; the connection has a path MTU of 1024 bytes, GID 1 and traffic class 0x68";
    let is_right = |rank: &Rank| rank.kind.is_success() && rank.errors.contains(chosen);
    assert!(ranks.iter().all(is_right), "{}", report(&ranks));
    let wished =
        "NEMESIA_NET_DEVICE=mlx5_7: no RDMA device that can be used has the name mlx5_7: rxe0 port 1: ";
    for strict in ["0", "1"] {
        let ranks = world("mlx5_7", &[("NEMESIA_STRICT", strict)]).spawn(2)?.wait(LIMIT)?;
        let warns = |rank: &Rank| {
            let other = "; without it the choice is rxe0 port 1 at 10.7.0.1 (GID 1, partition 0xffff)";
            let is_named = rank.errors.contains(wished) && rank.errors.contains(other);
            is_named && rank.kind.is_success() == (strict == "0")
        };
        assert!(ranks.iter().all(warns), "{}", report(&ranks));
    }
    let without =
        "[ $PMI_RANK = 1 ] && export NEMESIA_NET=tcp || export NEMESIA_NET_DEVICE=rxe1 NEMESIA_NET=auto";
    let unmet =
        "NEMESIA_NET_DEVICE=rxe1: all processes use tcp, because rank 1 has no RDMA device that it can use";
    for strict in ["0", "1"] {
        // Rank 1 waits for this time if rank 0 has given up.
        let limit = if strict == "0" { "120" } else { "15" };
        let job = world("auto", &[("NEMESIA_STRICT", strict), ("NEMESIA_TIMEOUT", limit)]).before(without);
        let ranks = job.spawn(2)?.wait(LIMIT)?;
        let warned = ranks[0].errors.contains(unmet) && ranks[0].kind.is_success() == (strict == "0");
        assert!(warned && !ranks[1].errors.contains(unmet), "{}", report(&ranks));
    }
    let one = "[ $PMI_RANK = 1 ] && export NEMESIA_NET_PATH_MTU=512";
    let ranks = world("rxe0", &[]).before(one).spawn(2)?.wait(LIMIT)?;
    let refuses =
        |rank: &Rank| !rank.kind.is_success() && rank.errors.contains("set NEMESIA_NET_PATH_MTU alike");
    assert!(ranks.iter().all(refuses), "{}", report(&ranks));
    Ok(())
}

/// Ranks on both devices of rxe, whose connections are set up by datagrams, with these settings besides.
fn joined(words: &str) -> Job {
    let job =
        Job::new(PEER, SCRATCH, words).wrapper("fabric on $((PMI_RANK % 2))").env("NEMESIA_TIMEOUT", "120");
    let job = job.env("NEMESIA_LOCAL", "off").env("NEMESIA_NET", "verbs").env("NEMESIA_EXPLAIN", "1");
    job.env("NEMESIA_NET_SETUP", "datagrams").before("export NEMESIA_NET_DEVICE=rxe$((PMI_RANK % 2))")
}

/// With the addresses that `tests/vm/verbs` takes away for one of its parts, and without: those that are left are valid
/// on their link only, so that no peer elsewhere could use them.
#[test]
fn devices_without_ip_addresses_carry_worlds() -> Verdict {
    const NAME: &str = "endpoints::devices_without_ip_addresses_carry_worlds";
    let has_none = std::env::var_os("FABRIC_NETWORK").is_some();
    if std::env::var_os("VM_KIND").is_none_or(|kind| kind != "rxe") {
        return usable(NAME).map_or(Ok(()), |_| Ok(()));
    }
    let seen = survey().map_err(|error| error.to_string())?;
    assert!(seen.iter().all(|it| it.verdict.is_err() == has_none && !it.joined.is_empty()), "{seen:?}");
    let line = seen.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert_eq!(
        line.matches("with NEMESIA_NET_SETUP=datagrams").count(),
        if has_none { 2 } else { 0 },
        "{line}"
    );
    let ranks = joined("ring 100").spawn(4)?.wait(LIMIT)?;
    let is_right = |rank: &Rank| {
        let place = if has_none { " port 1 without an IP address (GID " } else { " port 1 at 10.7.0." };
        rank.kind.is_success()
            && [place, "connections set up by datagrams"].iter().all(|it| rank.errors.contains(it))
    };
    assert!(ranks.iter().all(is_right), "{}", report(&ranks));
    // RDMA-CM has no way, and says so with the remedy; processes that differ name the setting.
    let job = joined("ring 3").env("NEMESIA_TIMEOUT", "20");
    let device = "export NEMESIA_NET_DEVICE=rxe$((PMI_RANK % 2))";
    let differ = format!("{device}\n[ $PMI_RANK = 1 ] && export NEMESIA_NET_SETUP=rdmacm");
    let ranks = job.before(&differ).spawn(2)?.wait(LIMIT)?;
    let wanted =
        if has_none { "no IP address leads to it" } else { "set NEMESIA_NET_SETUP alike in all processes" };
    let is_named = ranks.iter().any(|rank| rank.errors.contains(wanted));
    assert!(is_named && ranks.iter().all(|rank| !rank.kind.is_success()), "{}", report(&ranks));
    Ok(())
}

/// A device that may lock no memory is not usable, so `auto` means TCP, and `verbs` is an error with the remedy.
#[test]
fn a_device_without_memory_counts_as_none() -> Verdict {
    const NAME: &str = "endpoints::a_device_without_memory_counts_as_none";
    if usable(NAME).is_none() {
        return Ok(());
    }
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        nemesia_tests::skip(
            NAME,
            "only root can give up the permission to exceed the limit of locked memory",
        );
        return Ok(());
    }
    let world = |net| {
        let job = Job::new(PEER, SCRATCH, "ring 3").env("NEMESIA_LOCAL", "off").env("NEMESIA_NET", net);
        let job = job.wrapper("setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock");
        job.before("ulimit -l 64").env("NEMESIA_EXPLAIN", "1").env("NEMESIA_TIMEOUT", "120")
    };
    let ranks = world("verbs").spawn(2)?.wait(LIMIT)?;
    let is_refused = |rank: &Rank| {
        let words = ["verbs: ", "ulimit -l", "NEMESIA_NET=auto"];
        !rank.kind.is_success() && words.iter().all(|word| rank.errors.contains(word))
    };
    assert!(ranks.iter().all(is_refused), "{}", report(&ranks));
    let ranks = world("auto").spawn(2)?.wait(LIMIT)?;
    let fell_back = |rank: &Rank| rank.kind.is_success() && rank.errors.contains("over tcp");
    assert!(ranks.iter().all(fell_back), "{}", report(&ranks));
    Ok(())
}

#[test]
fn a_rank_that_leaves_over_verbs_says_how() -> Verdict {
    if usable("endpoints::a_rank_that_leaves_over_verbs_says_how").is_none() {
        return Ok(());
    }
    for (how, said) in [
        (0, "dropped its endpoint without closing it"),
        (1, "dropped its endpoint without closing it"),
        (2, "closed"),
    ] {
        for (spread, size) in [(Spread::Apart, 3), (Spread::Pairs, 4)] {
            let ranks = spread.peers(size, &format!("leaves {how}"))?;
            let is_reported = |rank: &Rank| rank.output.contains("rank 0") && rank.output.contains(said);
            assert!(ranks[1..].iter().all(is_reported), "{said:?} wanted:\n{}", report(&ranks));
        }
    }
    for own in [0, 1] {
        Spread::Apart.peers(2, &format!("flush {own}"))?;
    }
    Ok(())
}

#[test]
fn survivors_of_a_death_go_on_over_verbs() -> Verdict {
    if usable("endpoints::survivors_of_a_death_go_on_over_verbs").is_none() {
        return Ok(());
    }
    // Rank 1 has accepted a connection and opened one.
    for victim in if quick() { 1..2 } else { 0..3 } {
        let world = Spread::Apart.job(PEER, &format!("survive {victim} 100")).spawn(3)?;
        let deadline = std::time::Instant::now() + LIMIT;
        while !(0..3).all(|rank| world.output(rank).contains("open")) && std::time::Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        world.signal(victim, libc::SIGKILL);
        let ranks = world.wait(LIMIT)?;
        let is_fine = |(rank, end): (usize, &Rank)| rank == victim || end.kind.is_success();
        assert!(ranks.iter().enumerate().all(is_fine), "without rank {victim}:\n{}", report(&ranks));
    }
    Ok(())
}

#[test]
fn a_forked_child_leaves_the_queue_pairs_of_its_parent_alone() -> Verdict {
    match usable("endpoints::a_forked_child_leaves_the_queue_pairs_of_its_parent_alone") {
        Some(_) => Spread::Apart.peers(2, "fork 0").map(drop),
        None => Ok(()),
    }
}

/// One sleep covers the device and shared memory: a message over either one ends it.
#[test]
fn a_message_over_verbs_ends_the_sleep_of_its_receiver() -> Verdict {
    if usable("endpoints::a_message_over_verbs_ends_the_sleep_of_its_receiver").is_none() {
        return Ok(());
    }
    for (spread, words) in
        [(Spread::Apart, "woken 20 1"), (Spread::Pairs, "woken 20 1"), (Spread::Pairs, "woken 20 2")]
    {
        let size = if spread == Spread::Pairs { 4 } else { 2 };
        let ranks = spread.peers(size, words)?;
        say(&format!("{spread:?}, {words}: {}", ranks[0].output.trim()));
    }
    Ok(())
}

#[test]
fn a_rank_without_a_device_is_named() -> Verdict {
    if usable("endpoints::a_rank_without_a_device_is_named").is_none() {
        return Ok(());
    }
    let ranks = Spread::Apart
        .job(PEER, "open")
        .before("[ $PMI_RANK = 1 ] && export NEMESIA_NET=tcp")
        .spawn(2)?
        .wait(LIMIT)?;
    assert!(ranks.iter().all(|rank| !rank.kind.is_success()), "{}", report(&ranks));
    assert!(ranks[0].errors.contains("verbs: rank 1 does not have it"), "{}", report(&ranks));
    Ok(())
}

#[test]
fn settings_that_differ_are_refused_over_verbs_with_the_remedy() -> Verdict {
    if usable("endpoints::settings_that_differ_are_refused_over_verbs_with_the_remedy").is_none() {
        return Ok(());
    }
    let job = Spread::Apart.job(PEER, "open");
    let job = job.before("[ $PMI_RANK = 1 ] && export NEMESIA_NET_PACKET_BYTES=4096");
    let ranks = job.env("NEMESIA_TIMEOUT", "30").spawn(2)?.wait(LIMIT)?;
    assert!(ranks.iter().all(|rank| !rank.kind.is_success()), "{}", report(&ranks));
    let words = &ranks[1].errors;
    assert!(words.contains("rank 0, verbs") && words.contains("packet bytes"), "{}", report(&ranks));
    Ok(())
}
