//! Three ranks. One misbehaves, and the two others must not suffer from it.
//!
//! `bystander SEED MESSAGES`: rank 2 corrupts all memory that it can write. `flood`: rank 1 never stops
//! sending.

use std::time::{Duration, Instant};

use nemesia::{Endpoint, Error, Failure, Source, Tag};

use super::{Arena, Outcome, barrier, broken, corrupt, ensure, open};
use crate::content::{difference, filled, seed_of};

const SIZES: [usize; 6] = [8, 0, 500, 5000, 100, 100_000];
const BARRIER: u64 = 1 << 40;
/// How long the corruption goes on: once in a burst and once throughout.
const CORRUPTING: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(1500)];

pub(super) fn run(seed: u64, messages: u64) -> Outcome {
    let mut endpoint = open()?;
    let mut arena = Arena::default();
    barrier(&mut endpoint, BARRIER)?;
    // Not before both have passed the barrier: the corruption would destroy messages on their way to them.
    if endpoint.rank() < 2 {
        endpoint.send(2, BARRIER + 1, &[])?;
    } else {
        for rank in 0..2 {
            endpoint.recv(Source::Rank(rank), Tag::Exactly(BARRIER + 1), &mut [])?;
        }
        corrupt::everything(seed, CORRUPTING[seed as usize % 2])?;
        std::process::exit(0);
    }
    for message in 0..messages {
        // The effect on the misbehaving rank itself does not matter.
        if message % 50 == 0 {
            of_rank_2(arena.isend(&mut endpoint, 2, message, &[1; 100]).map(drop))?;
            of_rank_2(arena.irecv(&mut endpoint, Source::Rank(2), Tag::Any, 100).map(drop))?;
        }
        let len = SIZES[(seed + message) as usize % SIZES.len()];
        exchange(&mut endpoint, message, len)?;
    }
    ensure(arena.intact(), || "bytes beside a buffer were written".into())?;
    // Requests with rank 2 may still be open, and rank 2 may never take what was sent.
    drop(endpoint);
    Ok(())
}

fn of_rank_2(outcome: Result<(), Error>) -> Outcome {
    match outcome {
        Ok(()) | Err(Error::PeerFailed { rank: 2, .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Ranks 0 and 1 send each other the next message of two streams: one with one tag, one with a new tag each
/// time.
fn exchange(endpoint: &mut Endpoint, message: u64, len: usize) -> Outcome {
    const STREAM: u64 = 1 << 50;
    let (rank, partner) = (endpoint.rank(), endpoint.rank() ^ 1);
    let content = |from: usize| seed_of(&[from as u64, message]);
    let out = filled(content(rank), len);
    let (mut buf, mut number) = (vec![0; len], [0; 8]);
    let own_number = message.to_le_bytes();
    let (from, into, sent, heard) = (&out, &mut buf, &own_number, &mut number);
    let status = endpoint.scope(move |scope| {
        let stream = scope.irecv(Source::Rank(partner), Tag::Exactly(STREAM), heard)?;
        let receive = scope.irecv(Source::Rank(partner), Tag::Exactly(message), into)?;
        scope.isend(partner, STREAM, sent)?;
        scope.isend(partner, message, from)?;
        scope.wait(stream)?;
        let status = scope.wait(receive)?;
        scope.wait_all()?;
        Ok(status)
    })?;
    ensure(status.len == len && status.rank == partner, || format!("message {message}: {status:?}"))?;
    ensure(number == own_number, || format!("message {message} came as {}", u64::from_le_bytes(number)))?;
    match difference(content(partner), &buf) {
        None => Ok(()),
        Some(at) => broken(format!("message {message} of {len} bytes: wrong at byte {at}")),
    }
}

/// More than is sent in the time of any test. Only address space is needed.
const FLOOD: usize = 64 << 30;

/// Rank 1 sends one endless message. Rank 0 still keeps its deadlines, and detects rank 2's death.
pub(super) fn flood() -> Outcome {
    let mut endpoint = open()?;
    match endpoint.rank() {
        0 => beside_a_flood(endpoint),
        1 => {
            // SAFETY: a new mapping at a place of the kernel's choice, never written.
            let base = unsafe {
                let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                libc::mmap(std::ptr::null_mut(), FLOOD, libc::PROT_READ, kind, -1, 0)
            };
            ensure(base != libc::MAP_FAILED, || "no address space for a flood".into())?;
            // SAFETY: mapped readable until the process ends.
            let request = unsafe { endpoint.isend(0, 1, base.cast(), FLOOD) }?;
            let outcome = endpoint.wait(request);
            let dropped = Failure::Dropped;
            let ended =
                matches!(outcome, Err(Error::PeerFailed { rank: 0, failure, .. }) if failure == dropped);
            ensure(ended, || format!("the flood ended with {outcome:?}"))
        }
        _ => {
            endpoint.recv(Source::Rank(0), Tag::Exactly(3), &mut [])?;
            // SAFETY: ends this process.
            unsafe { libc::raise(libc::SIGKILL) };
            Ok(())
        }
    }
}

/// Returns room for the whole flood: a few pages of memory, mapped again and again in sequence.
fn reservoir() -> Outcome<*mut u8> {
    const PAGES: usize = 16 << 20;
    let failed = |what: &str| super::Fault::Broken(format!("{what}: {}", std::io::Error::last_os_error()));
    let map = |at: *mut libc::c_void, len, flags, fd| {
        // SAFETY: a new mapping, or one over the range that was reserved for it just before.
        let base = unsafe { libc::mmap(at, len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
        if base == libc::MAP_FAILED { Err(failed("mmap")) } else { Ok(base) }
    };
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let base = map(std::ptr::null_mut(), FLOOD, anonymous, -1)?;
    // SAFETY: a name that ends in 0.
    let fd = unsafe { libc::memfd_create(c"reservoir".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: a descriptor of ours.
    if fd < 0 || unsafe { libc::ftruncate(fd, PAGES as i64) } < 0 {
        return Err(failed("memfd"));
    }
    for at in (0..FLOOD).step_by(PAGES) {
        map(base.wrapping_byte_add(at), PAGES, libc::MAP_SHARED | libc::MAP_FIXED, fd)?;
    }
    Ok(base.cast())
}

fn beside_a_flood(mut endpoint: Endpoint) -> Outcome {
    let (limit, generous) = (Duration::from_millis(100), Duration::from_secs(60));
    let mut arena = Arena::default();
    // SAFETY: mapped until the process ends, and used for nothing else.
    let flooded = unsafe { endpoint.irecv(Source::Rank(1), Tag::Exactly(1), reservoir()?, FLOOD) }?;
    let never = arena.irecv(&mut endpoint, Source::Rank(2), Tag::Exactly(2), 8)?;
    // The flood counts as begun when rank 0 has received from it for a while.
    let start = Instant::now();
    for _ in 0..3 {
        let outcome = endpoint.wait_timeout(never, limit);
        ensure(matches!(outcome, Err(Error::Timeout(_))), || format!("nothing was sent: {outcome:?}"))?;
    }
    ensure(start.elapsed() < generous, || format!("3 waits of {limit:?} took {:?}", start.elapsed()))?;
    endpoint.send(2, 3, &[])?;
    let start = Instant::now();
    let outcome = endpoint.wait_timeout(never, generous);
    let died = matches!(outcome, Err(Error::PeerFailed { rank: 2, failure: Failure::Died, .. }));
    ensure(died, || format!("rank 2 has died: {outcome:?} after {:?}", start.elapsed()))?;
    ensure(endpoint.test(flooded)?.is_none() && arena.intact(), || "the flood has ended early".into())?;
    // Without a flush: the flood is cut off.
    drop(endpoint);
    Ok(())
}
