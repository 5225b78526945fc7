//! Two processes: this program starts itself as the peer, exchanges bytes with it, and kills it in the middle.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nemesia::shm::pipe::{self, Copying};
use nemesia::tcp::{self, Options};
use nemesia_core::port::memory::{
    Address, CompletionSource, Connection, ConnectionState, Event, MemoryPort, Private, ReceiveQueue,
    RegionAccess, Work, WorkOutcome,
};
use nemesia_tests::content::{Random, difference, filled};
use nemesia_tests::memory_port::bench::Bench;
use nemesia_tests::memory_port::{Fabric, Verdict};
use nemesia_tests::{quick, seed};

/// Tells the child where to connect: the kind of port and the address, in hexadecimal digits.
const PLACE: &str = "NEMESIA_MEMORY_PORT_PARENT";
/// The bytes that the child writes again and again.
const LEN: u32 = 3 << 20;
/// The limit for noticing a dead peer on a busy machine.
const NOTICED: Duration = Duration::from_secs(30);

/// A process with one port.
struct Single<P> {
    open: fn() -> Result<P, String>,
    start: Instant,
}

impl<P: MemoryPort> Fabric for Single<P> {
    type Port = P;

    fn port(&mut self) -> Result<P, String> {
        (self.open)()
    }

    fn pass(&mut self) -> Duration {
        self.start.elapsed()
    }
}

fn bench<P: MemoryPort>(open: fn() -> Result<P, String>) -> Result<Bench<Single<P>>, String> {
    let mut bench = Bench::new(Single { open, start: Instant::now() });
    bench.open(1)?;
    Ok(bench)
}

fn over_tcp() -> Result<tcp::TcpPort, String> {
    tcp::listen(([127, 0, 0, 1], 0).into(), &Options::default()).map_err(|error| error.to_string())
}

fn over_rings() -> Result<pipe::ShmMemoryPort, String> {
    pipe::listen(Copying::Rings, &Options::default()).map_err(|error| error.to_string())
}

fn by_the_kernel() -> Result<pipe::ShmMemoryPort, String> {
    // The child is not an ancestor of ours. Under a strict Yama it could not read our memory without this.
    pipe::allow_any_reader();
    pipe::listen(Copying::Kernel, &Options::default()).map_err(|error| error.to_string())
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Runs the child's part; does nothing if this process is not the child.
#[test]
fn child() -> Verdict {
    let Ok(place) = std::env::var(PLACE) else { return Ok(()) };
    let (kind, digits) = place.split_once(' ').ok_or("no address")?;
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2).unwrap_or("x"), 16);
    let bytes = (0..digits.len()).step_by(2).map(byte).collect::<Result<Vec<u8>, _>>().map_err(text)?;
    let address = Address::new(&bytes).ok_or("too long")?;
    match kind {
        "tcp" => write_for_ever(&mut bench(over_tcp)?, &address),
        "rings" => write_for_ever(&mut bench(over_rings)?, &address),
        _ => write_for_ever(&mut bench(by_the_kernel)?, &address),
    }
}

/// Connects, exchanges keys with the parent, and writes until it is killed.
fn write_for_ever<F: Fabric>(bench: &mut Bench<F>, parent: &Address) -> Verdict {
    let (from, words) = (bench.open_memory(0, LEN as usize)?, bench.memory(0, 64, RegionAccess::LOCAL)?);
    from.put(0, &filled(77, LEN as usize));
    let offer = bench.offer(&from.key.to_bytes(), false);
    let connection = bench.port(0)?.connect(parent, &offer).map_err(text)?;
    let queue = ReceiveQueue::Of(connection);
    bench.port(0)?.receive(queue, 1, &[words.slice(0, 24)]).map_err(text)?;
    bench.received(0, 1)?;
    let key = words.get(0, 24).try_into().map_err(|_| "no key")?;
    let target = nemesia_core::port::memory::MemoryKey::from_bytes(&key);
    for id in 2.. {
        let part = [from.slice(0, LEN)];
        let port = bench.port(0)?;
        port.write(Work::new(connection, id), CompletionSource::Gather(&part), target.at(0), Some(id as u32))
            .map_err(text)?;
        bench.succeeds(0, id)?;
    }
    Ok(())
}

/// Kills the child when dropped.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(kind: &str, address: &Address) -> Result<Peer, String> {
    let digits: String = address.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let program = std::env::current_exe().map_err(text)?;
    let mut command = Command::new(program);
    command.args(["--exact", "processes::child", "--nocapture"]).env(PLACE, format!("{kind} {digits}"));
    command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
    command.spawn().map(Peer).map_err(text)
}

/// Returns the child's connection and its key.
fn meet<F: Fabric>(
    bench: &mut Bench<F>,
) -> Result<(Connection, nemesia_core::port::memory::MemoryKey), String> {
    let (connection, private) = bench.event(0, "request", |event| match event {
        Event::Requested { connection, private } => Some((*connection, *private)),
        _ => None,
    })?;
    let offer = bench.offer(&[], false);
    bench.port(0)?.accept(connection, &offer).map_err(text)?;
    let key: &[u8; 24] = Private::bytes(&private).try_into().map_err(|_| "no key")?;
    Ok((connection, nemesia_core::port::memory::MemoryKey::from_bytes(key)))
}

fn killed<P: MemoryPort>(kind: &str, open: fn() -> Result<P, String>) -> Verdict {
    let mut bench = bench(open)?;
    let mut random = Random::new(seed());
    let (to, into) = (bench.open_memory(0, LEN as usize)?, bench.open_memory(0, LEN as usize)?);
    let words = bench.memory(0, 64, RegionAccess::LOCAL)?;
    let address = bench.port(0)?.address().ok_or("no address")?;
    for round in 0..if quick() { 3 } else { 10 } {
        let mut peer = start(kind, &address)?;
        let (connection, theirs) = meet(&mut bench)?;
        let ids: Vec<u64> = (0..20).map(|_| bench.next_id()).collect();
        for id in &ids[..10] {
            bench.port(0)?.receive(ReceiveQueue::Of(connection), *id, &[]).map_err(text)?;
        }
        words.put(0, &to.key.to_bytes());
        let sent = bench.next_id();
        let part = [words.slice(0, 24)];
        bench
            .port(0)?
            .send(Work::new(connection, sent), CompletionSource::Gather(&part), None)
            .map_err(text)?;
        bench.succeeds(0, sent)?;
        // Some connections complete a few transfers first.
        let whole = random.below(3) as usize;
        for id in &ids[..whole] {
            bench.received(0, *id)?;
            assert_eq!(difference(77, &to.get(0, LEN as usize)), None, "round {round}");
        }
        // The parent also reads and writes the child's memory.
        for id in &ids[10..] {
            let (work, part) = (Work::new(connection, *id), [into.slice(0, LEN)]);
            bench.port(0)?.read(work, &part, theirs.at(0)).map_err(text)?;
        }
        (0..random.below(300)).for_each(|_| bench.turn());
        peer.0.kill().map_err(text)?;
        let dead = Instant::now();
        for id in &ids[whole..] {
            bench.completion(0, *id)?;
        }
        bench.lost(0, connection)?;
        assert!(dead.elapsed() < NOTICED, "round {round}: noticed after {:?}", dead.elapsed());
        assert_eq!(bench.port(0)?.state(connection), ConnectionState::Lost);
        bench.close(0, connection)?;
        let more = bench.nodes[0]
            .done
            .iter()
            .any(|it| it.connection == connection && it.outcome == WorkOutcome::Done);
        assert!(!more, "round {round}: {:?}", bench.nodes[0].done);
        bench.nodes[0].done.clear();
    }
    Ok(())
}

#[test]
fn a_process_that_is_killed_is_noticed_over_tcp() -> Verdict {
    killed("tcp", over_tcp)
}

#[test]
fn a_process_that_is_killed_is_noticed_over_rings() -> Verdict {
    killed("rings", over_rings)
}

#[test]
fn a_process_that_is_killed_is_noticed_by_the_kernel() -> Verdict {
    killed("kernel", by_the_kernel)
}
