//! `scribble SEED`: rank 1 writes nonsense over all memory that it shares with rank 0, which must not crash, hang, or
//! write beside its buffers. It may see anything else: its peer could have sent anything.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nemesia::{Endpoint, Error, Request, Source, Tag};

use super::memory::{self, Mapping};
use super::{Arena, Outcome, ensure, open};
use crate::content::{Random, filled};

/// How nonsense is written.
#[derive(Clone, Copy, Debug)]
enum Pattern {
    /// Random words everywhere.
    Noise,
    /// Zeros everywhere.
    Zeros,
    /// Ones everywhere.
    Ones,
    /// Random words here and there.
    Words,
    /// One bit here and there.
    Flips,
    /// Words from one place at another: most are plausible.
    Copies,
    /// Words a little larger or smaller, in one of their fields.
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
/// Messages that are exchanged before the first scribble.
const HONEST: u64 = 4;
/// Bytes at a segment's start that hold its structures: most of the rest is payload.
const STRUCTURES: u64 = 32 << 10;
/// How long the scribbler goes on.
const SCRIBBLING: Duration = Duration::from_millis(12);
/// When a peer that has ended long since is still not reported.
const PATIENCE: Duration = Duration::from_secs(30);
const SIZES: [usize; 7] = [0, 8, 60, 300, 2000, 40_000, 400_000];

pub(super) fn run(seed: u64) -> Outcome {
    let mut endpoint = open()?;
    let mut buf = [0; 8];
    let (rank, partner) = (endpoint.rank(), endpoint.rank() ^ 1);
    for tag in 0..HONEST {
        endpoint.send(partner, tag, &tag.to_le_bytes())?;
        endpoint.recv(Source::Rank(partner), Tag::Exactly(tag), &mut buf)?;
        ensure(buf == tag.to_le_bytes(), || format!("before any scribble: {buf:?}"))?;
    }
    if rank == 0 {
        // From here on nothing that comes can be relied on.
        endpoint.send(partner, HONEST, &[])?;
        suffer(endpoint, seed)
    } else {
        endpoint.recv(Source::Rank(partner), Tag::Exactly(HONEST), &mut [])?;
        let pattern = PATTERNS[seed as usize % PATTERNS.len()];
        let mut traffic = Traffic::new(seed);
        let mut random = Random::new(!seed);
        scribble(pattern, &mut random, SCRIBBLING, || traffic.turn(&mut endpoint).map(drop))?;
        // The kernel clears up. No goodbye: what was written last stays as it is.
        std::process::exit(0);
    }
}

/// Scribbles for so long over all memory that can be written, with something else in between.
fn scribble(
    pattern: Pattern,
    random: &mut Random,
    time: Duration,
    mut between: impl FnMut() -> Outcome,
) -> Outcome {
    let mappings = memory::writable()?;
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        once(pattern, random, &mappings);
        // A scribbler's own operations may fail in any way.
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

/// A word's number: mostly one that holds structure.
fn place(random: &mut Random, target: &Mapping) -> u64 {
    let bytes = if random.below(8) == 0 { 8 * target.words() } else { STRUCTURES };
    random.below(bytes / 8)
}

/// One rank over everything that it can write, for the bystanders' sake.
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
        scribble(pattern, &mut random, Duration::from_millis(5), between)?;
    }
    Ok(())
}

/// Random sends and receives with the one peer.
struct Traffic {
    random: Random,
    arena: Arena,
    open: Vec<(Request, usize)>,
}

impl Traffic {
    fn new(seed: u64) -> Self {
        Self { random: Random::new(seed), arena: Arena::default(), open: Vec::new() }
    }

    /// Starts something and waits a little for something; whether the peer is known to be gone.
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

    /// Waits for one request; whether it is complete.
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

/// What a peer without manners may cause.
fn tolerable(error: &Error, partner: usize) -> Outcome {
    let kept = match error {
        Error::PeerFailed { rank, .. } => *rank == partner,
        Error::Truncated(_) | Error::Unexpected { .. } => true,
        _ => false,
    };
    ensure(kept, || format!("a peer's scribbles have led to: {error}"))
}

/// Goes on until the peer is known to be gone; then everything that was begun must end.
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
