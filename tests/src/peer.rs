//! The program `peer`: one process of a world in a test. It uses Nemesia as any other program does.
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | every promise was kept |
//! | 2 | this process could not be set up: one line says why, and the remedy |
//! | 3 | a peer has failed: one line names it |
//! | 2 | this process could not be set up: one line has the reason and the remedy |
//! | 64 | wrong arguments |

mod active;
mod all_to_all;
mod allocated;
mod bystander;
mod corrupt;
mod crash;
mod cut;
mod demand;
mod ending;
mod exchange;
mod fast_path;
mod fork;
mod hostile;
mod idle;
mod impostor;
mod lists;
mod lone;
mod many;
mod memory;
mod net_costs;
mod net_impostor;
mod one_sided;
mod replies;
mod restart;
mod shrink;
mod slow;
mod unexpected;

use std::io::{Write, stdout};
use std::process::ExitCode;

use nemesia::bootstrap::BootstrapError;
use nemesia::{Config, Endpoint, Error, Request, Source, Tag};

/// The reason for an end without success.
#[derive(Debug)]
pub enum Fault {
    /// Wrong arguments.
    Usage(String),
    /// Nemesia reported an error.
    Library(Error),
    /// Nemesia broke a promise, or the system failed.
    Broken(String),
}

/// The result of a mode.
pub type Outcome<T = ()> = Result<T, Fault>;

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

impl Fault {
    fn code(&self, starting_is_failing: bool) -> u8 {
        match self {
            Self::Usage(_) => 64,
            Self::Broken(_) => 4,
            Self::Library(Error::PeerFailed { .. }) => 3,
            Self::Library(Error::Peer { .. } | Error::Bootstrap(BootstrapError::BarrierFailed { .. }))
                if starting_is_failing =>
            {
                3
            }
            Self::Library(
                Error::Config(_)
                | Error::Bootstrap(_)
                | Error::Shm(_)
                | Error::Layout(_)
                | Error::Peer { .. },
            ) => 2,
            Self::Library(_) => 4,
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Usage(text) | Self::Broken(text) => f.write_str(text),
            Self::Library(error) => error.fmt(f),
        }
    }
}

/// Runs the mode that the arguments name.
pub fn run(args: &[String]) -> ExitCode {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let Err(fault) = dispatch(&words) else { return ExitCode::SUCCESS };
    crate::say(&fault.to_string());
    // These modes test failures of peers at start.
    let starting_is_failing = matches!(words.first(), Some(&("crash" | "survive")));
    ExitCode::from(fault.code(starting_is_failing))
}

fn dispatch(words: &[&str]) -> Outcome {
    let (mode, numbers) = words.split_first().ok_or_else(|| Fault::Usage("no mode".into()))?;
    if *mode == "impostor" {
        return impostor::run(numbers.first().copied().unwrap_or_default());
    }
    if *mode == "stranger" {
        return hostile::stranger(numbers);
    }
    let number = |text: &&str| text.parse().map_err(|_| Fault::Usage(format!("{text} is not a number")));
    let numbers = numbers.iter().map(number).collect::<Outcome<Vec<u64>>>()?;
    match (*mode, &numbers[..]) {
        ("open", []) => Ok(open()?.close()?),
        ("unexpected", [how]) => unexpected::run(*how),
        ("exchange", [seed]) => exchange::run(*seed),
        ("all-to-all", [rounds, len]) => all_to_all::run(*rounds, *len as usize),
        ("active", [seed]) => active::run(*seed),
        ("one-sided", [seed, own]) => one_sided::run(*seed, *own != 0),
        ("one-sided-crash", [seed]) => one_sided::crash(*seed),
        ("allocated", [seed, mapped]) => allocated::run(*seed, *mapped != 0),
        ("allocated-freed", []) => allocated::freed(),
        ("allocated-replaced", []) => allocated::replaced(),
        ("allocated-crash", [seed]) => allocated::crash(*seed),
        ("sleeps", [rounds]) => all_to_all::sleeps(*rounds),
        ("ring", [rounds]) => all_to_all::ring(*rounds),
        ("crash", [seed]) => crash::run(*seed),
        ("survive", [victim, rounds]) => crash::survive(*victim as usize, *rounds),
        ("notice", []) => crash::notice(),
        ("shrink", [deaths]) => shrink::run(*deaths as usize),
        ("restart", [times]) => restart::run(*times),
        ("restart-two", [times]) => restart::two(*times),
        ("restart-impostor", []) => restart::impostor(),
        ("restart-impostor-net", []) => net_impostor::run(),
        ("corrupt", [seed]) => corrupt::run(*seed),
        ("lists", [seed]) => lists::run(*seed),
        ("many", [seed]) => many::run(*seed),
        ("many-crash", [seed]) => many::crash(*seed),
        ("doors", []) => memory::doors(),
        ("replies", []) => replies::run(),
        ("bystander", [seed, messages]) => bystander::run(*seed, *messages),
        ("flood", []) => bystander::flood(),
        ("leased", []) => hostile::leased(),
        ("holes", []) => hostile::holes(),
        ("lent", [mib]) => hostile::lent(*mib as usize),
        ("late", [millis]) => hostile::late(*millis),
        ("lone", [slot, life, seed]) => lone::run(*slot, *life, *seed),
        ("demand", []) => demand::connects(),
        ("demand-ends", [how]) => demand::ends(*how),
        ("demand-apart", []) => demand::apart(),
        ("net-costs", [hosts]) => net_costs::run(*hosts),
        ("fast-path", [rounds]) => fast_path::run(*rounds),
        ("fork", [shared]) => fork::run(*shared != 0),
        ("outlived", [by_pipe, raw]) => fork::outlived(*by_pipe != 0, *raw != 0),
        ("cut", [per_host, how]) => cut::run((*per_host).max(1) as usize, *how),
        ("computes", [seconds]) => cut::computes(*seconds),
        ("long-lost", []) => cut::long_lost(),
        ("leaves", [how]) => ending::leaves(*how),
        ("flush", [own]) => ending::flush(*own != 0),
        ("idle", [millis]) => idle::run(*millis),
        ("slow", [seconds]) => slow::run(*seconds),
        ("woken", [count, waker]) => idle::woken(*count, *waker as usize),
        _ => Err(Fault::Usage(format!("no such mode: {}", words.join(" ")))),
    }
}

/// Joins the world that the environment describes.
fn open() -> Outcome<Endpoint> {
    Ok(Endpoint::open(&Config::from_env().map_err(Error::from)?)?)
}

/// Prints a line for the test at once.
fn tell(line: &str) -> Outcome {
    Ok(writeln!(stdout(), "{line}")?)
}

fn broken<T>(text: impl Into<String>) -> Outcome<T> {
    Err(Fault::Broken(text.into()))
}

/// Returns what the open descriptors of this process are, that of the question itself included, and the number of the
/// page tables among them, which are left out: those of peers that it has read from may stay open.
fn descriptors() -> Outcome<(Vec<std::path::PathBuf>, usize)> {
    let open = std::fs::read_dir("/proc/self/fd")?.map_while(Result::ok);
    let open = open.map(|entry| std::fs::read_link(entry.path()).unwrap_or_default());
    let (tables, others): (Vec<_>, Vec<_>) = open.partition(|target| target.ends_with("pagemap"));
    Ok((others, tables.len()))
}

fn ensure(kept: bool, promise: impl FnOnce() -> String) -> Outcome {
    if kept { Ok(()) } else { broken(promise()) }
}

/// Waits until all ranks have arrived (dissemination: in round k rank r waits for r - 2^k).
fn barrier(endpoint: &mut Endpoint, tag: u64) -> Outcome {
    let (rank, size) = (endpoint.rank(), endpoint.size());
    let mut step = 1;
    while step < size {
        endpoint.send((rank + step) % size, tag, &[])?;
        endpoint.recv(Source::Rank((rank + size - step) % size), Tag::Exactly(tag), &mut [])?;
        step *= 2;
    }
    Ok(())
}

/// Buffers of operations that outlive every borrow. Each lives on the heap until the endpoint is gone, between
/// guard bytes.
#[derive(Debug, Default)]
struct Arena(Vec<Vec<u8>>);

const GUARD: usize = 64;
const GUARDED: u8 = 0xa5;

impl Arena {
    fn room(&mut self, len: usize) -> *mut u8 {
        let mut buf = vec![GUARDED; len + 2 * GUARD];
        let base = buf.as_mut_ptr().wrapping_add(GUARD);
        self.0.push(buf);
        base
    }

    /// Posts a receive into a new buffer.
    fn irecv(
        &mut self,
        endpoint: &mut Endpoint,
        from: Source,
        tag: Tag,
        len: usize,
    ) -> Result<Request, Error> {
        let base = self.room(len);
        // SAFETY: `base` has room for `len` initialised bytes that live, untouched, until the arena is dropped; all
        // callers drop the endpoint first or leave by the process's end.
        unsafe { endpoint.irecv(from, tag, base, len) }
    }

    /// Sends from a new buffer.
    fn isend(
        &mut self,
        endpoint: &mut Endpoint,
        to: usize,
        tag: u64,
        bytes: &[u8],
    ) -> Result<Request, Error> {
        let base = self.room(bytes.len());
        // SAFETY: the room is as long as the bytes, and new.
        unsafe { base.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        // SAFETY: as for a receive.
        unsafe { endpoint.isend(to, tag, base, bytes.len()) }
    }

    /// Returns the contents of a buffer that no request uses.
    fn bytes(&self, at: usize) -> &[u8] {
        let buf = &self.0[at];
        &buf[GUARD..buf.len() - GUARD]
    }

    /// Returns whether all guard bytes are unchanged.
    fn intact(&self) -> bool {
        let untouched = |part: &[u8]| part.iter().all(|byte| *byte == GUARDED);
        self.0.iter().all(|buf| untouched(&buf[..GUARD]) && untouched(&buf[buf.len() - GUARD..]))
    }
}
