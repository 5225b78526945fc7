//! Connections that end because the peer is killed.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nemesia::verbs::VerbsPort;
use nemesia_core::payload::LentMemory;
use nemesia_core::port::memory::{
    Address, Completion, CompletionSource, Connection, ConnectionState, Event, MemoryKey, MemoryPort, Offer,
    Private, RegionAccess, Work, WorkOutcome,
};

use crate::fabric::Devices;
use crate::usable;

/// Set in the process that is to be killed.
const ROLE: &str = "NEMESIA_TEST_VERBS_TARGET";
/// The limit for noticing a failure on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);
/// The time after which a wait counts as a hang.
const PATIENCE: Duration = Duration::from_secs(60);
const LEN: usize = 1 << 20;

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// Polls events until `like` accepts one.
fn event<T>(port: &mut VerbsPort, start: Instant, like: impl Fn(&Event) -> Option<T>) -> T {
    loop {
        let event = port.poll_event(start.elapsed());
        port.poll(&mut [Completion::EMPTY; 8]);
        if let Some(found) = event.as_ref().and_then(&like) {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "nothing happens");
    }
}

fn offer() -> Offer {
    Offer { private: Private::EMPTY, shared_receive: false, deadline: PATIENCE }
}

/// The process that is killed: lends memory, publishes it, accepts, and waits for its end.
fn target(mut port: VerbsPort) {
    let start = Instant::now();
    let memory = vec![0_u8; LEN].leak();
    // SAFETY: leaked, and not looked at.
    let lent = unsafe { LentMemory::from_raw(memory.as_mut_ptr(), LEN) };
    let region = port.register(lent, RegionAccess { remote_atomic: false, ..RegionAccess::ALL }).unwrap();
    let (address, key) = (port.address().unwrap(), port.key(region).unwrap());
    println!("target {} {}", hex(address.bytes()), hex(&key.to_bytes()));
    std::io::stdout().flush().unwrap();
    let asked = event(&mut port, start, |event| match event {
        Event::Requested { connection, .. } => Some(*connection),
        _ => None,
    });
    port.accept(asked, &offer()).unwrap();
    event(&mut port, start, |event| matches!(event, Event::Lost { .. }).then_some(()));
}

/// A process of this program that has published its address: on the other host, if there is one.
pub(crate) struct Target {
    child: Child,
    has_ended: bool,
    pub(crate) address: Address,
    pub(crate) key: MemoryKey,
}

impl Target {
    /// Starts a test in it, with its role in the environment.
    pub(crate) fn start(test: &str, role: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = if std::env::var("VM_HOSTS").is_ok_and(|hosts| hosts == "2") {
            let mut fabric = Command::new("fabric");
            fabric.args(["on", "1"]).arg(program);
            fabric
        } else {
            Command::new(program)
        };
        command.args(["--exact", test, "--nocapture"]).env(role, "1");
        // A process group of its own: a command on another host consists of several processes.
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn().unwrap();
        let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        // The test program prints its own text before, on the same line.
        let line = lines
            .map_while(Result::ok)
            .find_map(|line| line.split_once("target ").map(|(_, it)| it.to_string()));
        let line = line.expect("the target's address");
        let (address, key) = line.split_once(' ').unwrap();
        let key: [u8; 24] = unhex(key).try_into().unwrap();
        Self {
            child,
            has_ended: false,
            address: Address::new(&unhex(address)).unwrap(),
            key: MemoryKey::from_bytes(&key),
        }
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        // SAFETY: our child leads this group, and has not been waited for.
        assert_eq!(unsafe { libc::kill(-self.child.id().cast_signed(), libc::SIGKILL) }, 0);
        self.child.wait().unwrap();
        self.has_ended = true;
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // After a failed test.
        if !self.has_ended {
            self.kill();
        }
    }
}

/// Writes until the connection is lost. Returns how long that took after `end`.
fn write_until_lost(
    port: &mut VerbsPort,
    connection: Connection,
    key: &MemoryKey,
    end: impl FnOnce(),
) -> Duration {
    let memory = vec![7_u8; LEN].leak();
    // SAFETY: leaked, and not looked at.
    let lent = unsafe { LentMemory::from_raw(memory.as_mut_ptr(), LEN) };
    let region = port.register(lent, RegionAccess::NONE).unwrap();
    let part = [nemesia_core::port::memory::Slice { region, offset: 0, len: LEN as u32 }];
    let start = Instant::now();
    let (mut posted, mut done, mut lost, mut end, mut ended) = (0_u64, 0, None, Some(end), None);
    while lost.is_none() || done < posted {
        assert!(start.elapsed() < PATIENCE, "{done} of {posted} completed");
        if lost.is_none() && posted - done < 4 && port.state(connection) == ConnectionState::Ready {
            let work = Work::new(connection, posted);
            posted += u64::from(port.write(work, CompletionSource::Gather(&part), key.at(0), None).is_ok());
        }
        let mut room = [Completion::EMPTY; 4];
        let count = port.poll(&mut room);
        done += count as u64;
        if done >= 2
            && let Some(end) = end.take()
        {
            end();
            ended = Some(Instant::now());
        }
        assert!(
            ended.is_some() || room[..count].iter().all(|it| it.outcome == WorkOutcome::Done),
            "{room:?}"
        );
        if let Some(Event::Lost { connection: which, .. }) = port.poll_event(start.elapsed()) {
            assert_eq!(which, connection);
            lost = ended.map(|ended: Instant| ended.elapsed());
            assert!(lost.is_some(), "lost before anything happened");
        }
    }
    lost.unwrap()
}

#[test]
fn a_peer_that_is_killed_is_found_out() {
    let Some(addresses) = usable("a_peer_that_is_killed_is_found_out") else { return };
    let mut devices = Devices::new(&addresses);
    let mine = VerbsPort::open(&devices.options()).unwrap();
    if std::env::var_os(ROLE).is_some() {
        return target(VerbsPort::open(&devices.options()).unwrap());
    }
    let mut port = mine;
    let mut target = Target::start("ends::a_peer_that_is_killed_is_found_out", ROLE);
    let start = Instant::now();
    let connection = port.connect(&target.address, &Offer { deadline: PATIENCE, ..offer() }).unwrap();
    event(&mut port, start, |event| matches!(event, Event::Established { .. }).then_some(()));
    let key = target.key;
    let took = write_until_lost(&mut port, connection, &key, || target.kill());
    println!("found out after {took:?}");
    assert!(took < LIMIT, "found out after {took:?}");
    port.close(connection);
    event(&mut port, start, |event| matches!(event, Event::Closed { .. }).then_some(()));
}
