//! Hosts for worlds under the real Hydra: network namespaces with two processes each.
//!
//! Namespaces share the boot of the machine, but no hand-over socket connects them, so they count as hosts.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nemesia::bootstrap::ExitKind;

use crate::job::{DEADLINE, Rank, report};
use crate::leftovers::{self, OUTPUT};
use crate::skip;

/// The processes of each host.
pub const PROCESSES: usize = 2;
/// Hydra ends a world that takes longer, in seconds.
const LIMIT: &str = "300";
/// Starts a rank, as a shell script, and keeps its output and its exit code in files: Hydra loses output when a process
/// dies. If Hydra lets the others go on, it sends them SIGUSR1. If a process of Hydra's were ended by a signal, Hydra
/// would now and then kill the others of that host, so the shell exits instead, with the code for the signal.
const RANK: &str = "trap '' USR1; world=$1/$PMI_RANK; shift; \"$@\" >$world.out 2>$world.err; code=$?; \
                    echo $code >$world.end; exit $code";

/// Network namespaces, with the files that Hydra needs. Two are joined by a pair of interfaces, and each has a second
/// address, to which the other has no route. More are joined by a bridge in a namespace of its own. Everything is
/// removed at the end.
#[derive(Debug)]
pub struct Hosts {
    names: Vec<String>,
    /// The namespace of the bridge.
    switch: Option<String>,
    place: PathBuf,
    worlds: AtomicU32,
}

/// Runs a command and returns its output. An error of the command is an error with its words.
fn run(command: &mut Command) -> Result<Output, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(output);
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

fn ip(words: &str) -> Result<(), String> {
    run(Command::new("ip").args(words.split(' '))).map(drop)
}

impl Hosts {
    /// Makes the hosts, or returns why this machine cannot have them.
    fn new(scratch: &Path, count: usize) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let names = (1..=count).map(|host| format!("nemesia-{id}-{host}")).collect();
        let switch = (count > 2).then(|| format!("nemesia-{id}-switch"));
        let place = scratch.join(format!("hosts-{id}"));
        let hosts = Self { names, switch, place, worlds: AtomicU32::new(0) };
        match &hosts.switch {
            Some(switch) => hosts.connect_by(switch)?,
            None => hosts.connect()?,
        }
        hosts.write().map_err(|error| format!("{}: {error}", hosts.place.display()))?;
        Ok(hosts)
    }

    fn connect(&self) -> Result<(), String> {
        let (first, second) = (&self.names[0], &self.names[1]);
        ip(&format!("netns add {first}"))?;
        ip(&format!("netns add {second}"))?;
        ip(&format!("link add v1 netns {first} type veth peer name v2 netns {second}"))?;
        let places = [
            (first, "v1", ["10.77.0.1/24", "10.78.0.1/32"]),
            (second, "v2", ["10.77.0.2/24", "10.79.0.1/32"]),
        ];
        for (name, interface, addresses) in places {
            for address in addresses {
                ip(&format!("-n {name} address add {address} dev {interface}"))?;
            }
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link set {interface} up"))?;
        }
        // A kernel without IPv6 refuses them: see `Hosts::has_ipv6`.
        for (name, interface, number) in [(first, "v1", 1), (second, "v2", 2)] {
            let _ = ip(&format!("-n {name} address add fd77::{number}/64 dev {interface} nodad"));
        }
        Ok(())
    }

    fn connect_by(&self, switch: &str) -> Result<(), String> {
        ip(&format!("netns add {switch}"))?;
        ip(&format!("-n {switch} link add bridge type bridge"))?;
        ip(&format!("-n {switch} link set bridge up"))?;
        for (number, name) in (1..).zip(&self.names) {
            ip(&format!("netns add {name}"))?;
            ip(&format!("link add v{number} netns {name} type veth peer name p{number} netns {switch}"))?;
            ip(&format!("-n {switch} link set p{number} master bridge up"))?;
            ip(&format!("-n {name} address add 10.77.0.{number}/24 dev v{number}"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link set v{number} up"))?;
        }
        Ok(())
    }

    /// Cuts a host, counted from 0, off from the others: nothing passes any more, and no process is told. Or joins it
    /// again.
    ///
    /// # Errors
    /// The system's reason.
    pub fn set_joined(&self, host: usize, is_joined: bool) -> Result<(), String> {
        let state = if is_joined { "up" } else { "down" };
        let number = host + 1;
        match &self.switch {
            Some(switch) => ip(&format!("-n {switch} link set p{number} {state}")),
            None => ip(&format!("-n {} link set v{number} {state}", self.names[host])),
        }
    }

    /// Makes the way from host 0 to host 1 lose all packets longer than 1,500 bytes, about which no host is informed:
    /// both believe that 9,000 bytes pass.
    ///
    /// # Errors
    /// The system's reason.
    pub fn lose_long_packets(&self) -> Result<(), String> {
        let (first, second) = (&self.names[0], &self.names[1]);
        // Without segments that only the device would cut.
        ip(&format!("-n {first} link set v1 mtu 9000 gso_max_segs 1"))?;
        ip(&format!("-n {second} route replace 10.77.0.0/24 dev v2 src 10.77.0.2 advmss 8960"))
    }

    /// Returns whether the hosts have IPv6 addresses, `fd77::1` and `fd77::2`.
    pub fn has_ipv6(&self) -> bool {
        let shown =
            run(Command::new("ip").args(["-n", &self.names[1], "-6", "address", "show", "dev", "v2"]));
        shown.is_ok_and(|shown| String::from_utf8_lossy(&shown.stdout).contains("fd77::2"))
    }

    /// Returns the words before a command that start it on a host, counted from 0. The process is that of the command.
    pub fn starter(&self, host: usize) -> [&str; 4] {
        ["ip", "netns", "exec", &self.names[host % self.names.len()]]
    }

    /// Returns the file of the network namespace of a host, counted from 0, for `setns(2)`.
    pub fn namespace(&self, host: usize) -> PathBuf {
        Path::new("/run/netns").join(&self.names[host % self.names.len()])
    }

    /// Returns the address at which the others reach a host, 0 or 1.
    pub const fn address(host: usize) -> &'static str {
        ["10.77.0.1", "10.77.0.2"][host % 2]
    }

    /// Returns the directory of the hosts, for files of a test.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Writes the list of hosts, and the program with which Hydra starts a command on one of them.
    fn write(&self) -> std::io::Result<()> {
        std::fs::create_dir_all(&self.place)?;
        let hosts = || (1..).zip(&self.names);
        let list: String = hosts().map(|(number, _)| format!("10.77.0.{number}:{PROCESSES}\n")).collect();
        std::fs::write(self.place.join("hosts"), list)?;
        let cases: String =
            hosts().map(|(number, name)| format!("10.77.0.{number}) host={name};; ")).collect();
        let script = format!(
            "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\n\
             case $1 in {cases}*) exit 1;; esac\n\
             shift\nexec ip netns exec $host sh -c \"$*\"\n"
        );
        let shell = self.place.join("rsh");
        std::fs::write(&shell, script)?;
        std::fs::set_permissions(&shell, std::os::unix::fs::PermissionsExt::from_mode(0o755))
    }

    /// Runs a program with arguments split at spaces on all processes, with these settings. If `goes_on`, Hydra lets
    /// the other processes go on when one dies.
    ///
    /// # Errors
    /// Hydra cannot be started, or a rank has not ended in time.
    pub fn run(
        &self,
        command: (&str, &str),
        settings: &[(&str, &str)],
        goes_on: bool,
    ) -> Result<HydraWorld, String> {
        self.start(command, settings, goes_on)?.wait()
    }

    /// As [`Hosts::run`], without waiting for the end.
    ///
    /// # Errors
    /// Hydra cannot be started.
    pub fn start(
        &self,
        (program, words): (&str, &str),
        settings: &[(&str, &str)],
        goes_on: bool,
    ) -> Result<RunningHydra, String> {
        let mut hydra = Command::new("ip");
        hydra.args(["netns", "exec", &self.names[0], "timeout", "-k", "10", LIMIT]);
        hydra.args(["mpiexec.hydra", "-iface", "v1", "-launcher", "rsh", "-launcher-exec"]);
        hydra.arg(self.place.join("rsh")).arg("-f").arg(self.place.join("hosts"));
        if goes_on {
            hydra.arg("-disable-auto-cleanup");
        }
        // The configuration files of the user do not count.
        for (name, value) in [("NEMESIA_CONFIG", "")].iter().chain(settings) {
            hydra.args(["-genv", name, value]);
        }
        let world = self.place.join(format!("world-{}", self.worlds.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir_all(&world).map_err(|error| format!("{}: {error}", world.display()))?;
        let ranks = self.names.len() * PROCESSES;
        hydra.args(["-n", &ranks.to_string(), "/bin/sh", "-c", RANK, "sh"]).arg(&world);
        hydra.arg(program).args(words.split(' ')).env(OUTPUT, &world);
        hydra.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = hydra.spawn().map_err(|error| error.to_string())?;
        leftovers::started(&world, &[child.id()]);
        Ok(RunningHydra { child: Some(child), world, ranks, words: words.to_owned(), goes_on })
    }
}

/// A world under Hydra that runs. Hydra is ended if this is dropped.
#[derive(Debug)]
pub struct RunningHydra {
    child: Option<Child>,
    world: PathBuf,
    ranks: usize,
    words: String,
    goes_on: bool,
}

impl RunningHydra {
    /// Returns what each rank has printed so far, and its end if it has ended.
    pub fn ranks(&self) -> Vec<Rank> {
        (0..self.ranks).map(|rank| read_rank(&self.world, rank)).collect()
    }

    /// Waits until something is true of the ranks.
    ///
    /// # Errors
    /// It has not become true in time; the error has what the ranks have printed.
    pub fn wait_until(&self, what: &str, is_so: impl Fn(&[Rank]) -> bool) -> Result<Vec<Rank>, String> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let ranks = self.ranks();
            if is_so(&ranks) {
                return Ok(ranks);
            }
            if Instant::now() > deadline {
                return Err(format!("{}: not {what}:\n{}", self.words, report(&ranks)));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the end of Hydra and of all ranks.
    ///
    /// # Errors
    /// A rank has not ended in time.
    pub fn wait(mut self) -> Result<HydraWorld, String> {
        let child = self.child.take().ok_or("Hydra has ended before")?;
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        // Hydra may end before the others do if a process dies.
        let deadline = self.goes_on.then(|| Instant::now() + DEADLINE);
        let ranks: Option<Vec<Rank>> =
            (0..self.ranks).map(|rank| wait_for(&self.world, rank, deadline)).collect();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let hydra = format!("{}: {}{}", output.status, text(&output.stdout), text(&output.stderr));
        let ranks = ranks.ok_or_else(|| format!("{}: a rank has not ended; Hydra: {hydra}", self.words))?;
        Ok(HydraWorld { ranks, hydra })
    }
}

impl Drop for RunningHydra {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // SAFETY: a signal to a process that this value has started and not waited for.
        unsafe { libc::kill(child.id().cast_signed(), libc::SIGTERM) };
        // It has a time limit of its own.
        let _ = child.wait();
    }
}

/// The end of a world under Hydra.
#[derive(Clone, Debug)]
pub struct HydraWorld {
    /// The end and the output of every rank. The end of a rank that Hydra has killed is unknown.
    pub ranks: Vec<Rank>,
    /// The end of Hydra, and its own words, among them what a rank gave for its abort.
    pub hydra: String,
}

/// Waits for the end of a rank. `None`: it has not ended by the deadline. Without a deadline, Hydra has ended it.
fn wait_for(world: &Path, rank: usize, deadline: Option<Instant>) -> Option<Rank> {
    loop {
        let found = read_rank(world, rank);
        if found.kind != ExitKind::Unknown {
            return Some(found);
        }
        match deadline {
            None => return Some(found),
            Some(deadline) if Instant::now() > deadline => return None,
            Some(_) => {}
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the end and the output of a rank, from its files in the directory of its world. Its end is unknown if it has
/// not ended by itself.
fn read_rank(world: &Path, rank: usize) -> Rank {
    let read = |kind: &str| std::fs::read(world.join(format!("{rank}.{kind}")));
    let text =
        |kind| read(kind).map_or_else(|_| String::new(), |it| String::from_utf8_lossy(&it).into_owned());
    let code = text("end").trim().parse::<i32>().ok();
    let kind = match code {
        None => ExitKind::Unknown,
        // The shell's way of naming a signal.
        Some(code) if code > 128 => ExitKind::Signaled(code - 128),
        Some(code) => ExitKind::Exited(code),
    };
    Rank { kind, output: text("out"), errors: text("err"), ended: Instant::now() }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in self.names.iter().chain(&self.switch) {
            // It may not exist, if making it has failed.
            let _ = ip(&format!("netns delete {name}"));
        }
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

/// Returns two hosts; `None` if the test cannot run here, which it reports.
pub fn hosts(test: &str, scratch: impl AsRef<Path>) -> Option<Hosts> {
    with_programs(test, scratch.as_ref(), 2, &[IP, HYDRA])
}

/// As [`hosts`], four of them, with a switch between them.
pub fn four_hosts(test: &str, scratch: impl AsRef<Path>) -> Option<Hosts> {
    with_programs(test, scratch.as_ref(), 4, &[IP, HYDRA])
}

/// As [`hosts`], for a test that starts its processes itself, without Hydra.
pub fn namespaces(test: &str, scratch: impl AsRef<Path>) -> Option<Hosts> {
    with_programs(test, scratch.as_ref(), 2, &[IP])
}

/// The program that makes namespaces, its package, and an argument with which it does nothing.
const IP: (&str, &str, &str) = ("ip", "iproute2", "-V");
/// The launcher.
const HYDRA: (&str, &str, &str) = ("mpiexec.hydra", "mpich", "--version");

fn with_programs(test: &str, scratch: &Path, count: usize, programs: &[(&str, &str, &str)]) -> Option<Hosts> {
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        skip(test, "only root can make network namespaces");
        return None;
    }
    for (program, package, argument) in programs {
        if Command::new(program).arg(argument).output().is_err() {
            skip(test, &format!("{program} is not installed (package {package})"));
            return None;
        }
    }
    match Hosts::new(scratch, count) {
        Ok(hosts) => Some(hosts),
        Err(reason) => {
            skip(test, &format!("network namespaces cannot be made here: {reason}"));
            None
        }
    }
}
