//! A small runtime on Nemesia, with its own launcher and key-value store: the Rust form of `ffi/examples/runtime.c`,
//! which `ffi/README.md` explains piece by piece.
//!
//! ```sh
//! cargo run --release --example runtime -- 4
//! ```
//!
//! The launcher starts processes, which meet through files. They connect when they first need to. The launcher kills
//! the last one, and the others go on.

use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nemesia::{
    ADDRESS_BYTES, Arm, Completion, Config, Endpoint, PeerAddress, PeerError, PeerRef, RecvOp, SendOp,
    Source, Tag,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The tags of the two rounds.
const RING: u64 = 1;
const ALL: u64 = 2;
/// Whatever happens, no process waits longer.
const LIMIT: Duration = Duration::from_secs(120);

/// The key-value store: a directory, with a file for each key. A name appears when its value is whole.
struct Store(PathBuf);

impl Store {
    fn name(&self, key: &str, rank: usize) -> PathBuf {
        self.0.join(format!("{key}.{rank}"))
    }

    fn put(&self, key: &str, rank: usize, value: &[u8]) -> io::Result<()> {
        let partial = self.name("partial", rank);
        fs::write(&partial, value)?;
        fs::rename(partial, self.name(key, rank))
    }

    fn get(&self, key: &str, rank: usize) -> Outcome<Vec<u8>> {
        let start = Instant::now();
        loop {
            match fs::read(self.name(key, rank)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                Err(_) if start.elapsed() > LIMIT => return Err(format!("no {key} of rank {rank}").into()),
                Err(_) => sleep(Duration::from_millis(1)),
                Ok(value) => return Ok(value),
            }
        }
    }
}

/// An operation under way. Its completion carries the key of [`Process::pending`].
enum Operation {
    Send { _word: Box<[u8; 8]> },
    Receive { from: usize, word: Box<[u8; 8]> },
}

/// A process of this runtime.
struct Process {
    // Before `pending`: an endpoint that is dropped accesses no buffer any more.
    endpoint: Endpoint,
    store: Store,
    /// The table from this runtime's ranks to peers.
    world: HashMap<usize, PeerRef>,
    pending: HashMap<u64, Operation>,
    started: u64,
    sum: u64,
    lost: usize,
}

impl Process {
    fn peer_at(&mut self, rank: usize) -> Outcome<PeerRef> {
        if let Some(peer) = self.world.get(&rank) {
            return Ok(*peer);
        }
        let address: [u8; ADDRESS_BYTES] =
            self.store.get("address", rank)?.try_into().map_err(|_| "not an address")?;
        let peer = self.endpoint.connect(&PeerAddress::from_bytes(address))?;
        self.world.insert(rank, peer);
        Ok(peer)
    }

    fn send(&mut self, to: usize, tag: u64, word: u64) -> Outcome<()> {
        let (peer, key, word) = (self.peer_at(to)?, self.next_key(), Box::new(word.to_le_bytes()));
        let started = self.endpoint.rank_of(peer).and_then(|number| {
            let endpoint = self.endpoint.with_completion(key);
            // SAFETY: `pending` has the bytes until the completion was taken, or the endpoint is closed.
            unsafe { endpoint.isend_op(SendOp::from_raw(number, tag, word.as_ptr(), word.len())) }
        });
        if is_gone(started.map(drop))? {
            return Ok(());
        }
        self.pending.insert(key, Operation::Send { _word: word });
        Ok(())
    }

    /// Receives a word of a rank, from any source if `from_any`.
    fn receive(&mut self, from: usize, tag: u64, from_any: bool) -> Outcome<()> {
        let (peer, key, mut word) = (self.peer_at(from)?, self.next_key(), Box::new([0; 8]));
        let source = if from_any { Ok(Source::Any) } else { self.endpoint.rank_of(peer).map(Source::Rank) };
        let started = source.and_then(|source| {
            let endpoint = self.endpoint.with_completion(key);
            // SAFETY: as in `send`; nothing else accesses the bytes meanwhile.
            unsafe {
                endpoint.irecv_op(RecvOp::from_raw(source, Tag::Exactly(tag), word.as_mut_ptr(), word.len()))
            }
        });
        if is_gone(started.map(drop))? {
            self.lost += 1;
            return Ok(());
        }
        self.pending.insert(key, Operation::Receive { from, word });
        Ok(())
    }

    fn next_key(&mut self) -> u64 {
        self.started += 1;
        self.started
    }

    fn finish(&mut self, done: &Completion) -> Outcome<()> {
        let operation = self.pending.remove(&done.context).ok_or("an unknown completion")?;
        let Operation::Receive { from, word } = operation else { return Ok(()) };
        match done.result() {
            Err(nemesia::Error::PeerFailed { .. }) => self.lost += 1,
            Err(error) => return Err(error.into()),
            Ok(status) => {
                if self.endpoint.peer_of(status.rank) != Some(self.peer_at(from)?) {
                    return Err("a message of another process".into());
                }
                self.sum += u64::from_le_bytes(*word);
            }
        }
        Ok(())
    }

    /// Takes completions until there are none, then sleeps by the descriptor.
    fn complete_all(&mut self) -> Outcome<()> {
        let start = Instant::now();
        while !self.pending.is_empty() {
            let mut done = [Completion::default(); 16];
            let count = self.endpoint.completions(&mut done);
            done[..count].iter().try_for_each(|done| self.finish(done))?;
            if count == 0 && self.endpoint.arm() == Arm::Armed {
                let fd = self.endpoint.event_fd()?.as_raw_fd();
                let mut event = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                // SAFETY: one structure of this thread.
                unsafe { libc::poll(&raw mut event, 1, 1000) };
            }
            if start.elapsed() > LIMIT {
                return Err("no end of the operations".into());
            }
        }
        Ok(())
    }
}

/// Returns whether an operation could not be started because its peer is gone.
fn is_gone(started: Result<(), nemesia::Error>) -> Outcome<bool> {
    match started {
        Err(nemesia::Error::NoPeer(PeerError::Ended(_)) | nemesia::Error::PeerFailed { .. }) => Ok(true),
        started => Ok(started.map(|()| false)?),
    }
}

/// One process: a message to the right; then, after the last rank was killed, a message to each of the others.
fn run(rank: usize, size: usize, store: Store) -> Outcome<()> {
    let endpoint = Endpoint::alone(&Config::from_env()?)?;
    store.put("address", rank, endpoint.address()?.bytes())?;
    let (world, pending) = (HashMap::new(), HashMap::new());
    let mut process = Process { endpoint, store, world, pending, started: 0, sum: 0, lost: 0 };
    let left = (rank + size - 1) % size;
    process.receive(left, RING, true)?;
    process.send((rank + 1) % size, RING, 1000 + rank as u64)?;
    process.complete_all()?;
    if process.sum != 1000 + left as u64 {
        return Err("the word of another rank".into());
    }
    process.store.put("met", rank, b"")?;
    if rank == size - 1 {
        sleep(LIMIT);
        return Err("not killed".into());
    }
    process.sum = 0;
    for other in (0..size).filter(|other| *other != rank) {
        process.receive(other, ALL, false)?;
        process.send(other, ALL, 1 + rank as u64)?;
    }
    process.complete_all()?;
    process.endpoint.close()?;
    Ok(writeln!(io::stdout(), "rank {rank}: sum {}, lost {}", process.sum, process.lost)?)
}

/// Starts the processes, kills the last one, and removes the store.
fn launch(size: usize) -> Outcome<()> {
    let directory = PathBuf::from(format!("runtime-{}", std::process::id()));
    // Who reads an address may call.
    fs::DirBuilder::new().mode(0o700).create(&directory)?;
    let store = Store(directory.clone());
    let program = std::env::current_exe()?;
    let start = |rank: usize| {
        let words = [size.to_string(), rank.to_string()];
        Command::new(&program).args(words).arg(&directory).spawn()
    };
    let mut children: Vec<Child> = (0..size).map(start).collect::<io::Result<_>>()?;
    let outcome = (0..size).try_for_each(|rank| store.get("met", rank).map(drop));
    if let Some(last) = children.last_mut() {
        last.kill()?;
    }
    let mut failed = 0;
    for (rank, child) in children.iter_mut().enumerate() {
        let status = child.wait()?;
        let is_expected = if rank == size - 1 { status.signal() == Some(9) } else { status.success() };
        failed += usize::from(!is_expected);
    }
    fs::remove_dir_all(directory)?;
    outcome?;
    if failed > 0 { Err(format!("{failed} processes ended in another way").into()) } else { Ok(()) }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<usize>().ok());
    let outcome = match (number(0), number(1), words.get(2)) {
        (Some(size), Some(rank), Some(store)) => run(rank, size, Store(Path::new(store).to_owned())),
        (Some(size), None, None) if size > 1 => launch(size),
        _ => Err("usage: runtime SIZE".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "runtime: {error}");
            ExitCode::FAILURE
        }
    }
}
