//! `allocated SEED MAPPED`: two ranks exchange messages in memory that they have allocated. If MAPPED is not 0, the
//! kernel copies no message, and none may be streamed.
//!
//! `allocated-freed`: regions are freed while messages are under way. `allocated-replaced`: the descriptors of regions
//! lead elsewhere, so that the receiver cannot map them. `allocated-crash SEED`: two ranks exchange messages for ever.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nemesia::{Access, Endpoint, Region, Source, Tag};

use super::{Outcome, barrier, broken, ensure, open, tell};
use crate::content::{Random, difference, fill, seed_of};

const BARRIER: u64 = 1 << 32;
const DATA: u64 = 2 << 32;
const MIB: usize = 1 << 20;
/// More than the longest message, its offset, and the guard bytes.
const BYTES: usize = 5 * MIB;
const GUARD: usize = 64;
const GUARDED: u8 = 0xa5;
const SIZES: [usize; 10] = [1, 8, 4095, 20_001, 65_536, 100_000, 262_143, MIB, MIB + 12_345, (4 << 20) + 3];
const OFFSETS: [usize; 5] = [0, 1, 63, 4097, 12_345];

/// AllocatedMemory from which messages are sent and into which they are received. It outlives all messages.
#[derive(Clone, Copy)]
struct AllocatedMemory {
    base: *mut u8,
    len: usize,
}

impl AllocatedMemory {
    fn of_region(endpoint: &mut Endpoint, len: usize, access: Access) -> Outcome<(Region, Self)> {
        let region = endpoint.allocate(len, access)?;
        match endpoint.region_memory(region) {
            Some((base, len)) => Ok((region, Self { base, len })),
            None => broken("an allocated region without memory"),
        }
    }

    /// Returns bytes that no message uses now.
    fn bytes(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(at + len <= self.len);
        // SAFETY: in memory that lives until the endpoint is gone; the callers have no message under way there.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(at), len) }
    }

    fn isend(self, endpoint: &mut Endpoint, tag: u64, at: usize, len: usize) -> Outcome<nemesia::Request> {
        let to = 1 - endpoint.rank();
        // SAFETY: as above; the bytes stay unchanged until the caller has waited.
        Ok(unsafe { endpoint.isend(to, tag, self.base.wrapping_add(at), len) }?)
    }

    fn irecv(self, endpoint: &mut Endpoint, tag: u64, at: usize, len: usize) -> Outcome<nemesia::Request> {
        let from = Source::Rank(1 - endpoint.rank());
        let base = self.base.wrapping_add(at);
        // SAFETY: as above; nothing but this receive uses the bytes until the caller has waited.
        Ok(unsafe { endpoint.irecv(from, Tag::Exactly(tag), base, len) }?)
    }
}

pub(super) fn run(seed: u64, mapped: bool) -> Outcome {
    let mut endpoint = open()?;
    let mut buffers = [endpoint.allocate_buffer(BYTES)?, endpoint.allocate_buffer(BYTES)?];
    let [buffer, into] =
        buffers.each_mut().map(|buffer| AllocatedMemory { base: buffer.as_mut_ptr(), len: BYTES });
    let (_, readable) = AllocatedMemory::of_region(&mut endpoint, BYTES, Access::Read)?;
    let (_, lent) = AllocatedMemory::of_region(&mut endpoint, BYTES, Access::ReadWrite)?;
    let (_, lent_into) = AllocatedMemory::of_region(&mut endpoint, BYTES, Access::ReadWrite)?;
    let mut own = vec![0; BYTES];
    let own = AllocatedMemory { base: own.as_mut_ptr(), len: BYTES };
    let mut pairs = vec![(buffer, into), (readable, into), (lent, lent_into), (buffer, own), (lent, own)];
    if !mapped {
        pairs.push((own, lent_into));
    }
    for (turn, (from, to)) in (0..).zip(pairs) {
        contents(&mut endpoint, seed_of(&[seed, turn]), from, to)?;
        both_ways(&mut endpoint, seed_of(&[seed, turn]), from, to)?;
    }
    safely(&mut endpoint, seed)?;
    assisted(&mut endpoint, lent, lent_into)?;
    partly(&mut endpoint, seed)?;
    barrier(&mut endpoint, BARRIER)?;
    let Some(counts) = endpoint.peer_counters(1 - endpoint.rank()) else { return broken("no counters") };
    tell(&format!(
        "{} pulled, {} assisted, {} pushed, {} streamed",
        counts.large_pulled, counts.large_assisted, counts.large_pushed, counts.large_streamed
    ))?;
    Ok(endpoint.close()?)
}

/// Messages of all sizes from and to all offsets, each way: the receiver has exactly their bytes.
fn contents(
    endpoint: &mut Endpoint,
    seed: u64,
    mut from: AllocatedMemory,
    mut to: AllocatedMemory,
) -> Outcome {
    for (size, len) in (0..).zip(SIZES) {
        for (turn, offset) in (0..).zip(OFFSETS) {
            let (seed, into) =
                (seed_of(&[seed, size, turn]), GUARD + OFFSETS[(turn as usize + 2) % OFFSETS.len()]);
            for sender in 0..2 {
                if endpoint.rank() == sender {
                    fill(seed, from.bytes(offset, len));
                    let request = from.isend(endpoint, DATA, offset, len)?;
                    endpoint.wait(request)?;
                } else {
                    to.bytes(into - GUARD, len + 2 * GUARD).fill(GUARDED);
                    let request = to.irecv(endpoint, DATA, into, len)?;
                    endpoint.wait(request)?;
                    check(seed, to.bytes(into - GUARD, len + 2 * GUARD))?;
                }
            }
        }
    }
    Ok(())
}

/// Checks a message between guard bytes.
fn check(seed: u64, guarded: &[u8]) -> Outcome {
    let (bytes, len) = (&guarded[GUARD..guarded.len() - GUARD], guarded.len() - 2 * GUARD);
    if let Some(wrong) = difference(seed, bytes) {
        return broken(format!("{len} bytes: wrong at byte {wrong}"));
    }
    let guards = guarded[..GUARD].iter().chain(&guarded[GUARD + len..]);
    ensure(guards.copied().all(|byte| byte == GUARDED), || format!("{len} bytes: written beside"))
}

/// Both ranks send and receive at once, several messages each.
fn both_ways(
    endpoint: &mut Endpoint,
    seed: u64,
    mut from: AllocatedMemory,
    mut to: AllocatedMemory,
) -> Outcome {
    const LEN: usize = MIB + 1;
    let peer = 1 - endpoint.rank();
    let seeds = |rank: usize, number: usize| seed_of(&[seed, rank as u64, number as u64, 77]);
    let mut requests = Vec::new();
    for number in 0..4 {
        fill(seeds(endpoint.rank(), number), from.bytes(number * LEN, LEN));
        to.bytes(number * (LEN + GUARD), LEN + 2 * GUARD).fill(GUARDED);
    }
    for number in 0..4 {
        requests.push(to.irecv(endpoint, DATA + 1 + number as u64, number * (LEN + GUARD) + GUARD, LEN)?);
        requests.push(from.isend(endpoint, DATA + 1 + number as u64, number * LEN, LEN)?);
    }
    for request in requests {
        endpoint.wait(request)?;
    }
    for number in 0..4 {
        check(seeds(peer, number), to.bytes(number * (LEN + GUARD), LEN + 2 * GUARD))?;
    }
    Ok(())
}

/// Rank 0 sends until it has written a part of a message itself. On a busy machine its receiver may be faster for a
/// while.
fn assisted(endpoint: &mut Endpoint, from: AllocatedMemory, to: AllocatedMemory) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(60);
    let pushed =
        |endpoint: &Endpoint| endpoint.peer_counters(1).is_some_and(|counts| counts.large_pushed > 0);
    loop {
        let mut goes_on = [0];
        if endpoint.rank() == 0 {
            goes_on = [u8::from(!pushed(endpoint) && Instant::now() < deadline)];
            endpoint.send(1, DATA, &goes_on)?;
        } else {
            endpoint.recv(Source::Rank(0), Tag::Exactly(DATA), &mut goes_on)?;
        }
        if goes_on == [0] {
            return Ok(());
        }
        let request = match endpoint.rank() {
            0 => from.isend(endpoint, DATA, 0, 4 * MIB)?,
            _ => to.irecv(endpoint, DATA, 0, 4 * MIB)?,
        };
        endpoint.wait(request)?;
    }
}

/// The same through the safe interface, in a buffer that is dropped while the endpoint lives.
fn safely(endpoint: &mut Endpoint, seed: u64) -> Outcome {
    for turn in 0..20 {
        let mut buffer = endpoint.allocate_buffer(3 * MIB)?;
        let len = 2 * MIB + turn as usize;
        let seed = seed_of(&[seed, turn, 99]);
        if endpoint.rank() == turn as usize % 2 {
            fill(seed, &mut buffer[17..][..len]);
            endpoint.send(1 - endpoint.rank(), DATA, &buffer[17..][..len])?;
        } else {
            endpoint.recv(Source::Any, Tag::Exactly(DATA), &mut buffer[5..][..len])?;
            ensure(difference(seed, &buffer[5..][..len]).is_none(), || format!("turn {turn}: wrong bytes"))?;
            ensure(buffer[..5] == [0; 5], || "bytes before the message were written".into())?;
        }
    }
    Ok(())
}

/// Messages that begin in a region and end behind it, in memory that the region's owner may use.
fn partly(endpoint: &mut Endpoint, seed: u64) -> Outcome {
    // The pages of the region end some bytes after the region.
    const REGION: usize = 101_000;
    for access in [Access::Read, Access::ReadWrite] {
        let (region, inside) = AllocatedMemory::of_region(endpoint, REGION, access)?;
        let mut whole = AllocatedMemory { len: REGION + 1000, ..inside };
        let (at, len) = (20_000, REGION + 500 - 20_000);
        let seed = seed_of(&[seed, access as u64, 55]);
        if endpoint.rank() == 0 {
            fill(seed, whole.bytes(at, len));
            let request = whole.isend(endpoint, DATA, at, len)?;
            endpoint.wait(request)?;
        } else {
            let request = whole.irecv(endpoint, DATA, at, len)?;
            endpoint.wait(request)?;
            ensure(difference(seed, whole.bytes(at, len)).is_none(), || format!("{access:?}: wrong bytes"))?;
        }
        barrier(endpoint, BARRIER)?;
        endpoint.unexpose(region)?;
    }
    Ok(())
}

/// Returns the number of this process's own regions: each has a descriptor. Regions of the peer that are mapped here
/// have none.
fn own_regions() -> Outcome<usize> {
    let fds = std::fs::read_dir("/proc/self/fd")?.flatten();
    let links = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    Ok(links.filter(|link| link.to_string_lossy().contains("nemesia-region")).count())
}

/// Moves a message of `len` bytes from or into a region that one rank frees meanwhile: before the message begins to
/// move, or `late`.
fn free_one(endpoint: &mut Endpoint, access: Access, len: usize, (receives, late): (bool, bool)) -> Outcome {
    const SEED: u64 = 7;
    let (region, mut memory) = AllocatedMemory::of_region(endpoint, len, access)?;
    let lender = usize::from(receives);
    if endpoint.rank() == lender {
        fill(SEED, memory.bytes(0, len));
        let request = match receives {
            true => memory.irecv(endpoint, DATA, 0, len)?,
            false => memory.isend(endpoint, DATA, 0, len)?,
        };
        if late {
            barrier(endpoint, BARRIER)?;
            endpoint.progress();
            endpoint.unexpose(region)?;
        } else {
            endpoint.unexpose(region)?;
            barrier(endpoint, BARRIER)?;
        }
        let status = endpoint.wait(request)?;
        ensure(!receives || status.len == len, || format!("{len} bytes: {status:?}"))?;
    } else {
        barrier(endpoint, BARRIER)?;
        if receives {
            fill(SEED, memory.bytes(0, len));
            let request = memory.isend(endpoint, DATA, 0, len)?;
            endpoint.wait(request)?;
        } else {
            let request = memory.irecv(endpoint, DATA, 0, len)?;
            endpoint.wait(request)?;
            let wrong = difference(SEED, memory.bytes(0, len));
            ensure(wrong.is_none(), || format!("{access:?}, {len} bytes, late {late}: wrong at {wrong:?}"))?;
        }
        endpoint.unexpose(region)?;
    }
    barrier(endpoint, BARRIER)
}

pub(super) fn freed() -> Outcome {
    let mut endpoint = open()?;
    let cases = || {
        let each = [Access::Read, Access::ReadWrite].into_iter();
        let each = each.flat_map(|access| [100_000, MIB, 3 * MIB].map(|len| (access, len)));
        each.flat_map(|(access, len)| [false, true].map(|receives| (access, len, receives)))
    };
    for (access, len, receives) in cases() {
        free_one(&mut endpoint, access, len, (receives, false))?;
    }
    // The last messages are complete, so the next use of the allocator frees the last region.
    let empty = endpoint.allocate_buffer(0)?;
    let exist = own_regions()?;
    ensure(exist == 1, || format!("{exist} regions exist, although all were freed"))?;
    drop(empty);
    ensure(own_regions()? == 0, || "a buffer that was dropped exists".into())?;
    for _ in 0..10 {
        for (access, len, receives) in cases() {
            free_one(&mut endpoint, access, len, (receives, true))?;
        }
    }
    barrier(&mut endpoint, BARRIER)?;
    tell("all are freed")?;
    Ok(endpoint.close()?)
}

pub(super) fn replaced() -> Outcome {
    let mut endpoint = open()?;
    let null = std::fs::File::open("/dev/null")?;
    for access in [Access::Read, Access::ReadWrite] {
        let (_, mut memory) = AllocatedMemory::of_region(&mut endpoint, 2 * MIB, access)?;
        let fds: Vec<_> = std::fs::read_dir("/proc/self/fd")?.flatten().collect();
        let mut replaced = 0;
        for fd in fds {
            let link = std::fs::read_link(fd.path()).unwrap_or_default();
            let number = fd.file_name().to_string_lossy().parse().unwrap_or(-1);
            if link.to_string_lossy().contains("nemesia-region") {
                // SAFETY: the descriptor keeps its number; the library only closes it.
                replaced += i32::from(unsafe { libc::dup2(null.as_raw_fd(), number) } == number);
            }
        }
        ensure(replaced > 0, || "no region has a descriptor".into())?;
        for turn in 0..4 {
            for sender in 0..2 {
                if endpoint.rank() == sender {
                    fill(turn, memory.bytes(0, 2 * MIB));
                    let request = memory.isend(&mut endpoint, DATA, 0, 2 * MIB)?;
                    endpoint.wait(request)?;
                } else {
                    memory.bytes(0, 2 * MIB).fill(0);
                    let request = memory.irecv(&mut endpoint, DATA, 0, 2 * MIB)?;
                    endpoint.wait(request)?;
                    let wrong = difference(turn, memory.bytes(0, 2 * MIB));
                    ensure(wrong.is_none(), || format!("{access:?}, turn {turn}: wrong at {wrong:?}"))?;
                }
            }
        }
    }
    barrier(&mut endpoint, BARRIER)?;
    tell("all arrived without a mapping")?;
    Ok(endpoint.close()?)
}

/// Ends only by an error.
pub(super) fn crash(seed: u64) -> Outcome {
    let mut endpoint = open()?;
    let (_, from) = AllocatedMemory::of_region(&mut endpoint, BYTES, Access::ReadWrite)?;
    let (_, to) = AllocatedMemory::of_region(&mut endpoint, BYTES, Access::ReadWrite)?;
    let mut random = Random::new(seed);
    barrier(&mut endpoint, BARRIER)?;
    tell("at work")?;
    std::io::stdout().flush()?;
    loop {
        let len = random.pick(&[100_000, MIB, 2 * MIB, 4 * MIB + 1]);
        let sent = from.isend(&mut endpoint, DATA, 0, len)?;
        let received = to.irecv(&mut endpoint, DATA, 0, BYTES)?;
        let (sent, received) = (endpoint.wait(sent), endpoint.wait(received));
        sent.and(received)?;
    }
}
