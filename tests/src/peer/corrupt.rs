//! `corrupt SEED`: rank 1 corrupts all memory that it shares with rank 0. Rank 0 must not crash, hang, or
//! write outside its buffers. It may receive anything: its peer could have sent anything.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nemesia::{Endpoint, Error, Request, Source, Tag};

use super::memory::{self, Mapping};
use super::{Arena, Outcome, ensure, open};
use crate::content::{Random, filled};

/// How memory is corrupted.
#[derive(Clone, Copy, Debug)]
enum Pattern {
    /// Random words everywhere.
    Noise,
    /// Zeros everywhere.
    Zeros,
    /// Ones everywhere.
    Ones,
    /// Random words at random places.
    Words,
    /// One bit at random places.
    Flips,
    /// Words copied from another place: most are plausible.
    Copies,
    /// Words a little larger or smaller in one of their fields.
    Steps,
}

const PATTERNS: [Pattern; 7] = [
    Pattern::Flips,
    Pattern::Noise,
    Pattern::Steps,
    Pattern::Zeros,
    Pattern::Copies,
    Pattern::Ones,
    Pattern::Words,
];
/// The messages that are exchanged before the first corruption.
const HONEST: u64 = 4;
/// The bytes at the start of a segment that hold its structures. Most of the rest is payload.
const STRUCTURES: u64 = 32 << 10;
/// How long the corruption goes on.
const CORRUPTING: Duration = Duration::from_millis(12);
/// The time limit for reporting a peer that ended long ago.
const PATIENCE: Duration = Duration::from_secs(30);
const SIZES: [usize; 7] = [0, 8, 60, 300, 2000, 40_000, 400_000];

pub(super) fn run(seed: u64) -> Outcome {
    let mut endpoint = open()?;
    let mut buf = [0; 8];
    let (rank, partner) = (endpoint.rank(), endpoint.rank() ^ 1);
    for tag in 0..HONEST {
        endpoint.send(partner, tag, &tag.to_le_bytes())?;
        endpoint.recv(Source::Rank(partner), Tag::Exactly(tag), &mut buf)?;
        ensure(buf == tag.to_le_bytes(), || format!("before any corrupt: {buf:?}"))?;
    }
    if rank == 0 {
        // From here on, nothing that arrives can be relied on.
        endpoint.send(partner, HONEST, &[])?;
        suffer(endpoint, seed)
    } else {
        endpoint.recv(Source::Rank(partner), Tag::Exactly(HONEST), &mut [])?;
        let pattern = PATTERNS[seed as usize % PATTERNS.len()];
        let mut traffic = Traffic::new(seed);
        let mut random = Random::new(!seed);
        corrupt(pattern, &mut random, CORRUPTING, || traffic.turn(&mut endpoint).map(drop))?;
        // The kernel cleans up. Without a handshake, the last writes stay as they are.
        std::process::exit(0);
    }
}

/// Corrupts all writable memory for this time, with other operations in between.
fn corrupt(
    pattern: Pattern,
    random: &mut Random,
    time: Duration,
    mut between: impl FnMut() -> Outcome,
) -> Outcome {
    let mappings = memory::writable()?;
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        once(pattern, random, &mappings);
        // Operations of the misbehaving rank itself may fail in any way.
        let _ = between();
    }
    Ok(())
}

fn once(pattern: Pattern, random: &mut Random, mappings: &[Mapping]) {
    let target = &mappings[random.below(mappings.len() as u64) as usize];
    match pattern {
        Pattern::Noise => target.fill(|| random.next()),
        Pattern::Zeros => target.fill(|| 0),
        Pattern::Ones => target.fill(|| u64::MAX),
        Pattern::Words | Pattern::Flips | Pattern::Copies | Pattern::Steps => {
            for _ in 0..=random.below(8) {
                let word = target.word(place(random, target));
                let old = word.load(Ordering::Relaxed);
                let new = match pattern {
                    Pattern::Words => random.next(),
                    Pattern::Flips => old ^ 1 << random.below(64),
                    Pattern::Copies => target.word(place(random, target)).load(Ordering::Relaxed),
                    _ => old.wrapping_add(random.pick(&[
                        1,
                        u64::MAX,
                        1 << 8,
                        1 << 16,
                        1 << 32,
                        u64::MAX << 32,
                    ])),
                };
                word.store(new, Ordering::Relaxed);
            }
        }
    }
}

/// Returns the number of a word, in most cases one that holds structure.
fn place(random: &mut Random, target: &Mapping) -> u64 {
    let bytes = if random.below(8) == 0 { 8 * target.words() } else { STRUCTURES };
    random.below(bytes / 8)
}

/// Corrupts everything that one rank can write.
pub(super) fn everything(seed: u64, time: Duration) -> Outcome {
    let mut random = Random::new(seed);
    let mut patterns = PATTERNS.iter().cycle().skip(seed as usize % PATTERNS.len());
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        let pattern = *patterns.next().unwrap_or(&Pattern::Noise);
        let pause = random.below(200);
        let between = || {
            std::thread::sleep(Duration::from_micros(pause));
            Ok(())
        };
        corrupt(pattern, &mut random, Duration::from_millis(5), between)?;
    }
    Ok(())
}

/// Random sends and receives with one peer.
struct Traffic {
    random: Random,
    arena: Arena,
    open: Vec<(Request, usize)>,
}

impl Traffic {
    fn new(seed: u64) -> Self {
        Self { random: Random::new(seed), arena: Arena::default(), open: Vec::new() }
    }

    /// Starts an operation and waits briefly for one. Returns whether the peer is known to be gone.
    fn turn(&mut self, endpoint: &mut Endpoint) -> Outcome<bool> {
        let partner = endpoint.rank() ^ 1;
        let random = &mut self.random;
        if self.open.len() < 24 {
            let (len, tag) = (random.pick(&SIZES), random.below(3));
            let from = random.pick(&[Source::Any, Source::Rank(partner)]);
            let which = random.pick(&[Tag::Any, Tag::Exactly(tag)]);
            let started = match random.below(2) {
                0 => self.arena.isend(endpoint, partner, tag, &filled(tag, len)),
                _ => self.arena.irecv(endpoint, from, which, len),
            };
            match started {
                Ok(request) => self.open.push((request, len)),
                Err(error) => tolerable(&error, partner)?,
            }
        }
        if !self.open.is_empty() {
            let at = random.below(self.open.len() as u64) as usize;
            let limit = Duration::from_micros(random.below(300));
            self.settle(endpoint, at, limit)?;
        }
        Ok(endpoint.failure(partner).is_some())
    }

    /// Waits for one request. Returns whether it is complete.
    fn settle(&mut self, endpoint: &mut Endpoint, at: usize, limit: Duration) -> Outcome<bool> {
        let (request, len) = self.open[at];
        let partner = endpoint.rank() ^ 1;
        match endpoint.wait_timeout(request, limit) {
            Ok(status) => {
                ensure(status.len <= len, || format!("{status:?} in a buffer of {len} bytes"))?;
            }
            Err(Error::Timeout(_) | Error::Unexpected { .. }) => return Ok(false),
            Err(error) => tolerable(&error, partner)?,
        }
        let _ = self.open.swap_remove(at);
        Ok(true)
    }
}

/// Returns an error unless a peer that violates the protocol may cause this error.
fn tolerable(error: &Error, partner: usize) -> Outcome {
    let kept = match error {
        Error::PeerFailed { rank, .. } => *rank == partner,
        Error::Truncated(_) | Error::Unexpected { .. } => true,
        _ => false,
    };
    ensure(kept, || format!("a peer's corrupts have led to: {error}"))
}

/// Goes on until the peer is known to be gone; then every request must end.
fn suffer(mut endpoint: Endpoint, seed: u64) -> Outcome {
    let mut traffic = Traffic::new(seed ^ 0x5eed);
    let deadline = Instant::now() + PATIENCE;
    while !traffic.turn(&mut endpoint)? {
        ensure(Instant::now() < deadline, || "the peer has ended and is not reported".into())?;
    }
    while !traffic.open.is_empty() {
        let ended = traffic.settle(&mut endpoint, 0, PATIENCE)?;
        ensure(ended, || "the peer is gone, and a request does not end".into())?;
    }
    let send = endpoint.send(1, 1, &[]);
    ensure(matches!(send, Err(Error::PeerFailed { rank: 1, .. })), || {
        format!("a send afterwards: {send:?}")
    })?;
    ensure(traffic.arena.intact(), || "bytes beside a buffer were written".into())?;
    Ok(endpoint.close()?)
}
