//! Processes that are killed: the others are notified soon and continue, and nothing is left behind.

use std::time::{Duration, Instant};

use nemesia::bootstrap::ExitKind;
use nemesia_tests::content::Random;
use nemesia_tests::job::{Job, Rank, World, report};
use nemesia_tests::kills::{PEER_FAILED, one_of_two_is_killed};
use nemesia_tests::leftovers::Traces;
use nemesia_tests::{quick, say, seed, skip};

const PEER: &str = env!("CARGO_BIN_EXE_peer");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");
/// The other rank notices within a second. A machine that is busy with other programs may take longer.
const LIMIT: Duration = Duration::from_secs(120);

/// The number of activities in `tests/src/peer/crash.rs`.
const ACTIVITIES: u64 = 5;

/// Statistics of the deaths.
#[derive(Default)]
struct Tally {
    during_start: usize,
    slowest: Duration,
    sum: Duration,
    worst: String,
}

/// One test, so that nothing else runs beside the measurement.
#[test]
fn a_killed_process_is_reported_to_the_other_and_leaves_nothing_behind() -> Result<(), String> {
    // Bounded in `tests/run --quick`.
    let count = if quick() { 40 } else { 500 };
    let (seed, traces) = (seed(), Traces::now());
    let mut random = Random::new(seed);
    let mut tally = Tally::default();
    for kill in 0..count {
        kill_one(&mut random, &mut tally).map_err(|error| format!("seed {seed}, kill {kill}: {error}"))?;
    }
    let Tally { during_start, slowest, sum, worst } = tally;
    say(&format!(
        "{count} kills, {during_start} of them during start-up; from the kill to the end of the other: \
         {:?} on average, {slowest:?} at most ({worst})",
        sum / count
    ));
    assert_eq!(traces.new_ones(), [""; 0]);
    survivors_go_on(&mut random)?;
    a_death_is_noticed_under_traffic()?;
    assert_eq!(traces.new_ones(), [""; 0]);
    Ok(())
}

fn kill_one(random: &mut Random, tally: &mut Tally) -> Result<(), String> {
    let activity = random.below(ACTIVITIES);
    let job = Job::new(PEER, SCRATCH, &format!("crash {}", activity + ACTIVITIES * random.below(1000)));
    let world = job.spawn(2)?;
    let victim = random.below(2) as usize;
    // A third of the kills falls into the start, the others into the traffic: the duration of a start depends
    // on the machine.
    let traffic = random.below(3) > 0;
    if traffic {
        all_open(&world, 2);
    }
    let delay = Duration::from_micros(random.below(if traffic { 50_000 } else { 4_000 }));
    std::thread::sleep(delay);
    let opened = world.output(victim).contains("open");
    let killed = Instant::now();
    if !world.signal(victim, libc::SIGKILL) {
        return Err(format!("had ended before:\n{}", report(&world.wait(LIMIT)?)));
    }
    let ranks = world.wait(LIMIT)?;
    let other = &ranks[1 - victim];
    let facts = format!("rank {victim} killed after {delay:?}, activity {activity}, opened {opened}");
    if !named(other, victim) || ranks[victim].kind != ExitKind::Signaled(libc::SIGKILL) {
        return Err(format!("{facts}:\n{}", report(&ranks)));
    }
    let took = other.ended.saturating_duration_since(killed);
    tally.during_start += usize::from(!opened);
    tally.sum += took;
    if took > tally.slowest {
        tally.slowest = took;
        tally.worst = facts;
    }
    Ok(())
}

/// Waits until `size` ranks have joined. If they do not join within the limit, the next step fails.
fn all_open(world: &World, size: usize) {
    let deadline = Instant::now() + LIMIT;
    while !(0..size).all(|rank| world.output(rank).contains("open")) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns whether a rank has ended by an error of one line that names the dead rank.
fn named(rank: &Rank, dead: usize) -> bool {
    let names = [format!("rank {dead}"), format!("rank_{dead}")];
    rank.kind == PEER_FAILED
        && rank.errors.lines().count() == 1
        && names.iter().any(|name| rank.errors.contains(name))
}

fn survivors_go_on(random: &mut Random) -> Result<(), String> {
    for victim in [0, 1, 2].into_iter().cycle().take(if quick() { 3 } else { 9 }) {
        let world = Job::new(PEER, SCRATCH, &format!("survive {victim} 300")).spawn(3)?;
        all_open(&world, 3);
        std::thread::sleep(Duration::from_micros(random.below(50_000)));
        world.signal(victim, libc::SIGKILL);
        let ranks = world.wait(LIMIT)?;
        let survived = ranks.iter().enumerate().all(|(rank, end)| rank == victim || end.kind.is_success());
        if !survived {
            return Err(format!("without rank {victim}:\n{}", report(&ranks)));
        }
    }
    Ok(())
}

/// Sleeping processes check whether their peers live. Processes that never sleep must do so too.
fn a_death_is_noticed_under_traffic() -> Result<(), String> {
    let job = Job::new(PEER, SCRATCH, "notice").env("NEMESIA_SPIN", "4000000000");
    let ranks = job.spawn(3)?.wait(LIMIT)?;
    let fine = ranks[..2].iter().all(|rank| rank.kind.is_success());
    if fine { Ok(()) } else { Err(format!("under traffic:\n{}", report(&ranks))) }
}

/// The processes get empty directories as `/tmp` and `/dev/shm`, so that these contain no files of other
/// programs.
#[test]
fn no_file_is_made_that_outlives_a_killed_process() -> Result<(), String> {
    const NAME: &str = "no_file_is_made_that_outlives_a_killed_process";
    if PEER.starts_with("/tmp/") {
        skip(NAME, "the target directory lies in /tmp, which is replaced here");
        return Ok(());
    }
    let private = std::path::Path::new(SCRATCH).join(format!("private-{}", std::process::id()));
    std::fs::create_dir_all(&private).map_err(|error| error.to_string())?;
    let place = private.display();
    let script = format!("'mount --bind {place} /tmp && mount --bind {place} /dev/shm && exec \"$@\"' sh");
    let probe = std::process::Command::new("sh")
        .args(["-c", &format!("exec unshare -m sh -c {script} true")])
        .output()
        .is_ok_and(|output| output.status.success());
    if probe {
        let job = Job::new(PEER, SCRATCH, "crash 0").wrapper(&format!("unshare -m sh -c {script}"));
        let world = job.spawn(2)?;
        all_open(&world, 2);
        world.signal(1, libc::SIGKILL);
        let ranks = world.wait(LIMIT)?;
        assert!(named(&ranks[0], 1), "{}", report(&ranks));
        let left: Vec<_> = std::fs::read_dir(&private).into_iter().flatten().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
    } else {
        skip(NAME, "unshare -m is not permitted here");
    }
    std::fs::remove_dir_all(&private).map_err(|error| error.to_string())
}

#[test]
fn a_killed_process_returns_the_buffers_of_the_other() -> Result<(), String> {
    let count = if quick() { 4 } else { 25 };
    one_of_two_is_killed(count, |number| Job::new(PEER, SCRATCH, &format!("many-crash {number}")))?;
    one_of_two_is_killed(count / 4, |number| {
        Job::new(PEER, SCRATCH, &format!("many-crash {number}")).env("NEMESIA_SINGLE_COPY", "off")
    })
}
