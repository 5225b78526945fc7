//! Hostile processes: they hand over descriptors that block, and remove the pages of memory that they have
//! lent. The other processes neither wait nor die.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nemesia_tests::job::{Job, World, report};
use nemesia_tests::skip;

const PEER: &str = env!("CARGO_BIN_EXE_peer");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");
const LIMIT: Duration = Duration::from_secs(120);
/// A user id that owns nothing.
const NOBODY: u32 = 65534;

/// A process that is not a rank. It is killed when this value is dropped.
struct Stranger(Child);

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn stranger(name: &str, silent: u32, lingering: u32, uid: u32) -> Result<Stranger, String> {
    let numbers = [silent, lingering, uid].map(|number| number.to_string());
    let mut command = Command::new(PEER);
    command.args(["stranger", name]).args(numbers).stdout(Stdio::null());
    command.spawn().map(Stranger).map_err(|error| error.to_string())
}

/// Returns the name of the socket on which a rank listens for the other ranks.
fn listener(world: &World, rank: usize) -> Option<String> {
    let pid = world.pid(rank)?;
    let sockets: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .ok()?
        .filter_map(|entry| {
            let link = std::fs::read_link(entry.ok()?.path()).ok()?;
            Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let unix = std::fs::read_to_string("/proc/net/unix").ok()?;
    unix.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, flags, _, _, inode, path] = fields[..] else { return None };
        let listens = flags == "00010000" && sockets.iter().any(|socket| socket == inode);
        listens.then(|| path.strip_prefix("@nemesia-").map(str::to_owned))?
    })
}

/// Starts a job in which rank 1 comes late, so that attackers connect to the socket of rank 0 first.
fn attacked(silent: u32, lingering: u32, uid: u32, restarts: u32) -> Result<(), String> {
    // The limit is less than any of the attacks takes, and more than a start takes.
    let job = Job::new(PEER, SCRATCH, "late 3000").env("NEMESIA_TIMEOUT", "50").restart(restarts);
    let world = job.spawn(2)?;
    let deadline = Instant::now() + LIMIT;
    let name = loop {
        if let Some(name) = listener(&world, 0) {
            break name;
        }
        if Instant::now() > deadline {
            return Err("rank 0 listens nowhere".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let _stranger = stranger(&name, silent, lingering, uid)?;
    let began = Instant::now();
    let ranks = world.wait(LIMIT)?;
    let took = began.elapsed();
    if ranks.iter().all(|rank| rank.kind.is_success()) && took < Duration::from_secs(50) {
        return Ok(());
    }
    Err(format!("{took:?}\n{}", report(&ranks)))
}

#[test]
fn descriptors_whose_close_blocks_do_not_delay_a_start() -> Result<(), String> {
    attacked(0, 8, 0, 0)?;
    attacked(0, 8, 0, 1)
}

#[test]
fn descriptors_of_another_user_do_not_delay_a_start() -> Result<(), String> {
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        skip("descriptors_of_another_user_do_not_delay_a_start", "only root can become another user");
        return Ok(());
    }
    attacked(100, 8, NOBODY, 0)?;
    attacked(100, 8, NOBODY, 1)
}

#[test]
fn hundreds_of_silent_connections_do_not_delay_a_start() -> Result<(), String> {
    attacked(900, 0, 0, 0)
}

#[test]
fn a_key_to_a_file_under_a_lease_does_not_hold_up_a_put() -> Result<(), String> {
    Job::new(PEER, SCRATCH, "leased").succeed(2).map(|_| ())
}

/// Runs with huge pages as well, where the machine has some: access to a hole in them would raise SIGBUS.
#[test]
fn a_process_survives_holes_in_its_inbox() -> Result<(), String> {
    for huge in ["never", "try"] {
        let ranks = Job::new(PEER, SCRATCH, "holes").env("NEMESIA_HUGE_PAGES", huge).spawn(2)?.wait(LIMIT)?;
        if !(ranks[0].kind.is_success() && ranks[0].output.contains("survived")) {
            return Err(report(&ranks));
        }
    }
    Ok(())
}

/// A memory cgroup with a limit. It is removed when this value is dropped.
struct Group(PathBuf);

impl Group {
    fn new(bytes: u64) -> Option<Self> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let name = format!("nemesia-test-{}", std::process::id());
        let made = |group: PathBuf, limit: &str| {
            std::fs::create_dir(&group).ok()?;
            let group = Self(group);
            std::fs::write(group.0.join(limit), bytes.to_string()).ok()?;
            Some(group)
        };
        let one = groups.lines().find_map(|line| line.split_once(":memory:").map(|(_, path)| path));
        if let Some(path) = one {
            return made(
                Path::new("/sys/fs/cgroup/memory").join(path.trim_start_matches('/')).join(name),
                "memory.limit_in_bytes",
            );
        }
        made(Path::new("/sys/fs/cgroup").join(name), "memory.max")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn lent_memory_whose_pages_are_taken_away_is_not_charged_to_the_one_that_reads() -> Result<(), String> {
    let job = Job::new(PEER, SCRATCH, "lent 96");
    job.succeed(2)?;
    let Some(group) = Group::new(64 << 20) else {
        let name = "lent_memory_whose_pages_are_taken_away_is_not_charged_to_the_one_that_reads";
        skip(name, "no memory cgroup can be made here");
        return Ok(());
    };
    let path = group.0.to_str().ok_or("a group without a name")?;
    let ranks = job.env("NEMESIA_TEST_CGROUP", path).run(2)?;
    if ranks.iter().all(|rank| rank.kind.is_success()) {
        return Ok(());
    }
    Err(report(&ranks))
}
