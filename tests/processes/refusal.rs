//! Impossible requests are refused: exit code 2, and one line with the reason and the remedy.

use std::process::Command;
use std::time::Duration;

use nemesia::bootstrap::ExitKind;
use nemesia_core::wire::LAYOUT_VERSION;
use nemesia_tests::job::{Job, Rank, World, report};
use nemesia_tests::skip;

const PEER: &str = env!("CARGO_BIN_EXE_peer");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");
const LIMIT: Duration = Duration::from_secs(120);
/// How long an honest process waits for an impostor, in seconds. The impostor must have started by then.
const TIMEOUT: &str = "30";
const REFUSED: ExitKind = ExitKind::Exited(2);

fn open() -> Job {
    Job::new(PEER, SCRATCH, "open")
}

/// Returns whether a rank was refused in one line that has all of these parts.
fn refused(rank: &Rank, parts: &[&str]) -> bool {
    rank.kind == REFUSED
        && rank.errors.lines().count() == 1
        && parts.iter().all(|part| rank.errors.contains(part))
}

/// Checks that a world of one is refused so.
fn alone(job: &Job, parts: &[&str]) -> Result<(), String> {
    let ranks = job.spawn(1)?.wait(LIMIT)?;
    assert!(refused(&ranks[0], parts), "{parts:?} wanted:\n{}", report(&ranks));
    Ok(())
}

/// Returns whether a shell command succeeds here.
fn permitted(command: &str) -> bool {
    Command::new("sh").args(["-c", command]).output().is_ok_and(|output| output.status.success())
}

#[test]
fn a_bad_value_of_any_variable_is_named_with_what_it_may_be() -> Result<(), String> {
    for nemesia::Variable { name, values, .. } in nemesia::VARIABLES {
        // Any word may be the name of a device.
        let bad = if *name == "NEMESIA_NET_DEVICE" { "no/name" } else { "nonsense" };
        // A name that no interface has is answered with those that there are.
        let taken =
            if *name == "NEMESIA_NET_ADDRESS" { "names no interface of this machine" } else { values };
        alone(&open().env(name, bad), &[name, bad, taken])?;
    }
    alone(&open().env("NEMESIA_CELLS", "5"), &["NEMESIA_CELLS=5", "a power of two, 4 to 4096"])?;
    alone(&open().env("NEMESIA_CELL_BYTES", "100"), &["NEMESIA_CELL_BYTES=100", "multiple of 64"])?;
    alone(&open().env("NEMESIA_FASTBOX_SLOTS", "0"), &["NEMESIA_FASTBOX_SLOTS=0", "a power of two"])?;
    alone(&open().env("NEMESIA_TIMEOUT", "0"), &["NEMESIA_TIMEOUT=0", "1 to 86400"])
}

#[test]
fn in_strict_mode_a_preference_that_cannot_be_met_is_an_error_with_the_remedy() -> Result<(), String> {
    let strict = || open().env("NEMESIA_STRICT", "1");
    strict().succeed(2)?;
    for (name, value, parts) in [
        ("NEMESIA_CELS", "8", ["there is no variable NEMESIA_CELS", "did you mean NEMESIA_CELLS?"]),
        ("NEMESIA_FASTBOX_LIMIT", "99999", ["carries 760 bytes at most", "raise NEMESIA_FASTBOX_SLOTS"]),
        ("NEMESIA_BACKING", "devshm", ["cannot be sealed", "use NEMESIA_BACKING=memfd"]),
    ] {
        alone(&strict().env(name, value), &[parts[0], parts[1], "NEMESIA_STRICT"])?;
        open().env(name, value).succeed(2)?;
    }
    Ok(())
}

#[test]
fn a_mistake_in_the_configuration_file_is_named_with_its_line() -> Result<(), String> {
    let path = std::path::Path::new(SCRATCH).join(format!("mistake-{}.conf", std::process::id()));
    std::fs::write(&path, "NEMESIA_CELLS = 64\nNEMESIA_SPIN = fast\n").map_err(|error| error.to_string())?;
    let named = path.display().to_string();
    let outcome = alone(&open().env("NEMESIA_CONFIG", &named), &[&format!("{named}:2: NEMESIA_SPIN=fast")]);
    std::fs::remove_file(&path).map_err(|error| error.to_string())?;
    outcome
}

#[test]
fn low_limits_are_named_with_the_command_that_raises_them() -> Result<(), String> {
    alone(&open().before("ulimit -f 16"), &["file size limit is", "ulimit -f unlimited"])?;
    let large = open().env("NEMESIA_CELL_BYTES", "16777216");
    alone(&large.clone().before("ulimit -v 300000"), &["address space limit is", "ulimit -v "])?;
    // The limit, and not the setting, is what is too low.
    let room = open().env("NEMESIA_UNEXPECTED_BYTES", "1073741824").before("ulimit -v 600000");
    alone(&room, &["address space limit is", "ulimit -v ", "or set NEMESIA_UNEXPECTED_BYTES lower"])?;
    let parts = ["data limit is 20000 KiB", "ulimit -d ", "or set NEMESIA_UNEXPECTED_BYTES lower"];
    alone(&open().before("ulimit -d 20000"), &parts)?;
    // A world of one opens too few descriptors to meet a limit, and so does one without connections.
    let ranks =
        open().env("NEMESIA_CONNECT", "start").wrapper("prlimit --nofile=14").spawn(2)?.wait(LIMIT)?;
    let parts = ["open file limit is 14", "20 more wanted", "ulimit -n "];
    assert!(ranks.iter().any(|rank| refused(rank, &parts)), "{}", report(&ranks));
    let named = report(&ranks).split("ulimit -n ").nth(1).and_then(|rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().ok()
    });
    let sufficient = format!("prlimit --nofile={}", named.ok_or("no number is named")?);
    open().env("NEMESIA_CONNECT", "start").wrapper(&sufficient).succeed(2)?;
    // 4096 cells of 16 MiB.
    alone(&large.env("NEMESIA_CELLS", "4096"), &["64.", "GiB of shared memory wanted", "available in"])
}

#[test]
fn a_low_memlock_limit_is_named_with_the_command_that_raises_it() -> Result<(), String> {
    // Root may exceed the limit, unless it gives the capability away.
    const DROP: &str = "setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock";
    let job = open().env("NEMESIA_LOCK_MEMORY", "1").before("ulimit -l 64");
    let parts = ["memlock limit is 64 KiB", "wanted", "ulimit -l "];
    if permitted(&format!("{DROP} true")) {
        alone(&job.wrapper(DROP), &parts)
    } else if permitted("[ $(id -u) != 0 ]") {
        alone(&job, &parts)
    } else {
        let name = "a_low_memlock_limit_is_named_with_the_command_that_raises_it";
        skip(name, "root, and setpriv (package util-linux) cannot give CAP_IPC_LOCK away");
        Ok(())
    }
}

#[test]
fn a_full_dev_shm_is_named_with_its_remedy() -> Result<(), String> {
    const SMALL: &str = "unshare -m sh -c 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec \"$@\"' sh";
    if !permitted(&format!("{SMALL} true")) {
        skip("a_full_dev_shm_is_named_with_its_remedy", "unshare -m is not permitted here");
        return Ok(());
    }
    let job = open().env("NEMESIA_BACKING", "devshm").wrapper(SMALL);
    alone(&job, &["/dev/shm is full", "wanted, 1 MiB available", "mount -o remount,size="])
}

#[test]
fn half_of_a_launcher_is_refused() -> Result<(), String> {
    let names = ["PMI_FD", "PMI_RANK", "PMI_SIZE"];
    for (set, missing) in [("PMI_RANK", "PMI_FD"), ("PMI_FD", "PMI_RANK"), ("PMI_SIZE", "PMI_FD")] {
        let mut command = Command::new(PEER);
        for name in names {
            command.env_remove(name);
        }
        let output = command.arg("open").env(set, "1").output().map_err(|error| error.to_string())?;
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words}");
        let parts = [set, missing, "start with mpiexec.hydra or `nemesia run`"];
        assert!(words.lines().count() == 1 && parts.iter().all(|part| words.contains(part)), "{words}");
    }
    Ok(())
}

#[test]
fn different_sizes_are_refused_on_both_sides_with_both_values() -> Result<(), String> {
    for (name, value, parts) in [
        ("NEMESIA_CELLS", "32", ["NEMESIA_CELLS is 32 there, and 64 here", "set it alike"]),
        ("NEMESIA_CELL_BYTES", "1024", ["NEMESIA_CELL_BYTES is 1024 there, and 33792 here", "set it alike"]),
        ("NEMESIA_FASTBOX_SLOTS", "4", ["NEMESIA_FASTBOX_SLOTS is 4 there, and 128 here", "set it alike"]),
    ] {
        let job = open().before(&format!("[ $PMI_RANK = 1 ] && export {name}={value}"));
        let [one, two] = parts;
        for connect in ["demand", "start"] {
            let ranks = job.clone().env("NEMESIA_CONNECT", connect).spawn(2)?.wait(LIMIT)?;
            assert!(refused(&ranks[0], &["rank 1", one, two]), "{}", report(&ranks));
            assert!(refused(&ranks[1], &["rank 0", two]), "{}", report(&ranks));
        }
    }
    Ok(())
}

/// The deviation of each impostor; the message if rank 0, which answers, is the impostor, empty if it has no such
/// deviation; and the message if rank 1, which calls, is the impostor. `OURS` is the version of the layout, `NEXT` the
/// one after it. An incomprehensible rank 1 does not end the world: it counts as an unauthenticated connection, and
/// rank 1 as missing.
const IMPOSTORS: [(&str, &str, &str); 32] = [
    (
        "address-version",
        "layout is version NEXT, ours is OURS: build both",
        "layout is version NEXT, ours is OURS: build both",
    ),
    ("address-garbage", "not one of nemesia: mixed programs", "not one of nemesia: mixed programs"),
    ("address-facts", "is malformed: mixed programs", "is malformed: mixed programs"),
    ("address-name", "not one of nemesia: mixed programs", "not one of nemesia: mixed programs"),
    ("message-version", "versions of links differ", "it never connected"),
    ("message-garbage", "malformed", "it never connected"),
    ("message-short", "malformed", "it never connected"),
    ("message-long", "malformed", "it never connected"),
    ("message-proof", "is not by the process", "it never connected"),
    ("message-rank", "", "it never connected"),
    ("message-number", "by the number 4096, but the largest is 4095", "by the number 4096"),
    ("message-cells", "NEMESIA_CELLS is 32 there", "NEMESIA_CELLS is 32 there"),
    ("silent", "it never connected", "it never connected"),
    ("closes", "it has ended", "it has ended"),
    ("descriptors-none", "0 descriptors instead of 3", "0 descriptors instead of 3"),
    ("descriptors-many", "malformed", "it never connected"),
    ("life-writable", "could remove pages from it", "could remove pages from it"),
    ("segment-short", "segment of", "segment of"),
    ("segment-swapped", "segment of", "segment of"),
    ("segment-file", "not a file in memory", "not a file in memory"),
    ("segment-device", "not a", "not a"),
    ("segment-pipe", "not a file in memory", "not a file in memory"),
    ("segment-sparse", "pages are not reserved", "pages are not reserved"),
    ("segment-unsealed", "its size is not sealed", "its size is not sealed"),
    ("segment-writable", "could remove pages from it", "could remove pages from it"),
    ("segment-unreadable", "mapping a segment of a peer: Permission denied", "Permission denied"),
    ("segment-unwritable", "mapping a segment of a peer: Permission denied", "Permission denied"),
    ("header-magic", "header: magic is", "header: magic is"),
    (
        "header-version",
        "layout is version NEXT, ours is OURS: rebuild both",
        "layout is version NEXT, ours is OURS",
    ),
    ("header-unready", "has not completed its segment header", "has not completed its segment header"),
    ("header-epoch", "header: epoch is", "header: epoch is"),
    ("header-number", "header: number is", "header: number is"),
];

/// A world of an impostor, as this rank, and an honest process.
struct ImpostorWorld {
    kind: &'static str,
    impostor: usize,
    /// What the error of the honest process contains.
    expected: String,
    world: World,
}

impl ImpostorWorld {
    fn start(kind: &'static str, impostor: usize, expected: &str) -> Result<Self, String> {
        let [ours, next] = [LAYOUT_VERSION, LAYOUT_VERSION + 1].map(|version| version.to_string());
        let expected = expected.replace("OURS", &ours).replace("NEXT", &next);
        let script = format!("[ $PMI_RANK = {impostor} ] && set -- \"$1\" impostor {kind}");
        let world = open().before(&script).env("NEMESIA_TIMEOUT", TIMEOUT).spawn(2)?;
        Ok(Self { kind, impostor, expected, world })
    }

    fn check(self) -> Result<(), String> {
        let Self { kind, impostor, expected, world } = self;
        let ranks = world.wait(LIMIT)?;
        let (false_one, honest) = (&ranks[impostor], &ranks[1 - impostor]);
        let name = format!("rank {impostor}");
        let reported = false_one.kind.is_success();
        if !(refused(honest, &[&name, &expected]) && reported) {
            return Err(format!("{kind} as rank {impostor}, {expected:?} wanted:\n{}", report(&ranks)));
        }
        // A caller that was understood also receives the reason.
        let understood = !expected.contains("never connected") && !kind.starts_with("address");
        let hears = understood && !matches!(kind, "closes" | "other-user");
        if hears && impostor == 1 && !false_one.output.contains("refused: ") {
            return Err(format!("{kind} as rank {impostor} received no reason:\n{}", report(&ranks)));
        }
        Ok(())
    }
}

/// Runs impostors as this rank, each beside an honest process. The worlds whose honest process waits until its limit
/// wait at the same time.
fn meet(impostor: usize, kinds: impl Iterator<Item = (&'static str, &'static str)>) -> Result<(), String> {
    let mut waiting = Vec::new();
    for (kind, expected) in kinds {
        let world = ImpostorWorld::start(kind, impostor, expected)?;
        if ["timed out", "it never connected"].contains(&expected) {
            waiting.push(world);
        } else {
            world.check()?;
        }
    }
    waiting.into_iter().try_for_each(ImpostorWorld::check)
}

#[test]
fn an_impostor_that_is_called_is_refused_and_named() -> Result<(), String> {
    let kinds = IMPOSTORS.into_iter().map(|(kind, expected, _)| (kind, expected));
    meet(0, kinds.filter(|(_, expected)| !expected.is_empty()))
}

#[test]
fn an_impostor_that_calls_is_refused_and_named() -> Result<(), String> {
    meet(1, IMPOSTORS.into_iter().map(|(kind, _, expected)| (kind, expected)))
}

#[test]
fn a_process_of_another_user_is_refused() -> Result<(), String> {
    if !permitted("[ $(id -u) = 0 ]") {
        skip("a_process_of_another_user_is_refused", "only root can become another user");
        return Ok(());
    }
    let expected = "runs as uid 65534, this process as uid 0";
    [0, 1].into_iter().try_for_each(|impostor| meet(impostor, std::iter::once(("other-user", expected))))
}
