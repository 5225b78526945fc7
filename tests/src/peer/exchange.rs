//! `exchange SEED`: all operations of the endpoint between all ranks of a world, with checked contents.

use std::time::Duration;

use nemesia::{Endpoint, Error, Source, Tag};

use super::{Outcome, barrier, broken, ensure, open, tell};
use crate::content::{Random, difference, fill, filled, seed_of};
use crate::quick;

/// The largest message in bytes.
const MOST: usize = 3 << 20;
/// Every size up to this one is sent. It is beyond the largest fastbox packet of the default geometry (760
/// bytes).
const DENSE: usize = 1000;
/// The payload of a cell in the default geometry, in bytes.
const CELL: usize = 33 << 10;
/// The first tags of the kinds of exchanges, so that kinds do not mix.
const TIMEOUTS: u64 = 1 << 32;
const WILD: u64 = 2 << 32;
const GATHER: u64 = 3 << 32;
const BARRIER: u64 = 4 << 32;

pub(super) fn run(seed: u64) -> Outcome {
    let mut endpoint = open()?;
    let rank = endpoint.rank();
    to_itself(&mut endpoint, seed)?;
    refusals(&mut endpoint)?;
    // In a world of odd size, the last rank takes part only in collective steps.
    let partner = Some(rank ^ 1).filter(|partner| *partner < endpoint.size());
    if let Some(partner) = partner {
        let sizes = sizes(seed);
        both_at_once(&mut endpoint, partner, &sizes, seed)?;
        one_by_one(&mut endpoint, partner, &sizes, seed)?;
        unasked(&mut endpoint, partner, &sizes, seed)?;
        wildcards(&mut endpoint, partner)?;
        truncation(&mut endpoint, partner)?;
        timeouts(&mut endpoint, partner)?;
        tell(&format!("rank {rank}: {} sizes in both directions", sizes.len()))?;
    }
    gather(&mut endpoint, seed)?;
    barrier(&mut endpoint, BARRIER)?;
    Ok(endpoint.close()?)
}

/// Returns every small size, the sizes around every limit, and some random sizes.
fn sizes(seed: u64) -> Vec<usize> {
    let around = |size: usize| [size - 1, size, size + 1];
    let mut sizes: Vec<usize> = (0..=DENSE).collect();
    sizes.extend((10..=21).flat_map(|power| around(1 << power)));
    sizes.extend((1..=8).flat_map(|cells| around(cells * CELL)));
    // All cells of a pool, and one more.
    sizes.extend(around(64 * CELL).into_iter().chain(around(65 * CELL)));
    sizes.extend([MOST - 1, MOST]);
    let mut random = Random::new(seed);
    // They are most of the bytes.
    sizes.extend((0..if quick() { 8 } else { 40 }).map(|_| random.below(MOST as u64) as usize));
    sizes
}

fn check(what: &str, seed: u64, buf: &[u8]) -> Outcome {
    match difference(seed, buf) {
        None => Ok(()),
        Some(at) => broken(format!("{what}: {} bytes, wrong at byte {at}", buf.len())),
    }
}

fn to_itself(endpoint: &mut Endpoint, seed: u64) -> Outcome {
    let rank = endpoint.rank();
    for len in [0, 1, 31, 32, 33, 48, 256, 257, 760, 888, 2043, 2044, 2045, 4088, CELL, CELL + 1, 1 << 20] {
        let bytes = filled(seed_of(&[seed, len as u64]), len);
        // First unexpected, then expected. A large message is complete only when it is received.
        let mut buf = vec![0; len];
        let (into, from) = (&mut buf, &bytes);
        let status = endpoint.scope(move |scope| {
            scope.isend(rank, 1, from)?;
            let receive = scope.irecv(Source::Rank(rank), Tag::Exactly(1), into)?;
            scope.wait(receive)
        })?;
        ensure(status.len == len && status.rank == rank && status.tag == 1, || format!("{status:?}"))?;
        check("to itself, unexpected", seed_of(&[seed, len as u64]), &buf)?;
        buf.fill(0);
        let (into, from) = (&mut buf, &bytes);
        let status = endpoint.scope(move |scope| {
            let receive = scope.irecv(Source::Rank(rank), Tag::Any, into)?;
            scope.isend(rank, 2, from)?;
            scope.wait(receive)
        })?;
        ensure(status.len == len && status.tag == 2, || format!("{status:?}"))?;
        check("to itself, expected", seed_of(&[seed, len as u64]), &buf)?;
    }
    Ok(())
}

/// Checks that impossible calls return errors and have no other effect.
fn refusals(endpoint: &mut Endpoint) -> Outcome {
    let size = endpoint.size();
    let nobody = endpoint.send(size, 0, &[1]);
    ensure(matches!(nobody, Err(Error::Rank { .. })), || format!("a send to no rank: {nobody:?}"))?;
    let nobody = endpoint.recv(Source::Rank(usize::MAX), Tag::Any, &mut [0]);
    ensure(matches!(nobody, Err(Error::Rank { .. })), || format!("a receive from no rank: {nobody:?}"))?;
    let never = endpoint.test(nemesia::Request::from_bits(77));
    ensure(matches!(never, Err(Error::Stale)), || format!("a request that never was: {never:?}"))
}

/// Both sides send and receive each size at the same time, by requests.
fn both_at_once(endpoint: &mut Endpoint, partner: usize, sizes: &[usize], seed: u64) -> Outcome {
    let rank = endpoint.rank();
    let content = |from: usize, index: usize| seed_of(&[seed, from as u64, index as u64]);
    for (index, len) in sizes.iter().enumerate() {
        let out = filled(content(rank, index), *len);
        let mut buf = vec![0; *len];
        let (into, from, tag) = (&mut buf, &out, index as u64);
        let status = endpoint.scope(move |scope| {
            let receive = scope.irecv(Source::Rank(partner), Tag::Exactly(tag), into)?;
            let send = scope.isend(partner, tag, from)?;
            let status = scope.wait(receive)?;
            scope.wait(send)?;
            Ok(status)
        })?;
        ensure(status.len == *len && status.rank == partner && status.tag == tag, || format!("{status:?}"))?;
        check("both at once", content(partner, index), &buf)?;
    }
    Ok(())
}

/// The even rank sends and the odd rank answers with the same bytes, by blocking calls.
fn one_by_one(endpoint: &mut Endpoint, partner: usize, sizes: &[usize], seed: u64) -> Outcome {
    let mut buf = vec![0; MOST];
    for (index, len) in sizes.iter().enumerate().step_by(3).chain(sizes.iter().enumerate().skip(DENSE)) {
        let (tag, content) = (index as u64, seed_of(&[seed, 7, index as u64]));
        let buf = &mut buf[..*len];
        if endpoint.rank() < partner {
            fill(content, buf);
            endpoint.send(partner, tag, buf)?;
            buf.fill(0);
        }
        let status = endpoint.recv(Source::Rank(partner), Tag::Exactly(tag), buf)?;
        ensure(status.len == *len, || format!("{status:?}, {len} bytes wanted"))?;
        check("one by one", content, buf)?;
        if endpoint.rank() > partner {
            endpoint.send(partner, tag, buf)?;
        }
    }
    Ok(())
}

/// Messages arrive before their receives, which are posted in another order.
fn unasked(endpoint: &mut Endpoint, partner: usize, sizes: &[usize], seed: u64) -> Outcome {
    let rank = endpoint.rank();
    let content = |from: usize, index: usize| seed_of(&[seed, 9, from as u64, index as u64]);
    let some: Vec<_> = sizes.iter().copied().enumerate().step_by(40).collect();
    let out: Vec<_> = some.iter().map(|(index, len)| filled(content(rank, *index), *len)).collect();
    let mut bufs: Vec<_> = some.iter().map(|(_, len)| vec![0; *len]).collect();
    let (sent, into) = (&out, &mut bufs);
    let statuses = endpoint.scope(move |scope| {
        for (bytes, tag) in sent.iter().zip(0..) {
            scope.isend(partner, tag, bytes)?;
        }
        let receives = into.iter_mut().enumerate().rev();
        let receives: Vec<_> = receives
            .map(|(tag, buf)| scope.irecv(Source::Any, Tag::Exactly(tag as u64), buf))
            .collect::<Result<_, _>>()?;
        receives.into_iter().map(|receive| scope.wait(receive)).collect::<Result<Vec<_>, _>>()
    })?;
    for (((index, len), buf), status) in some.iter().zip(&bufs).zip(statuses.iter().rev()) {
        ensure(status.rank == partner && status.len == *len, || format!("{status:?}"))?;
        check("unasked", content(partner, *index), buf)?;
    }
    Ok(())
}

/// Messages of one tag arrive in the order sent. Masks match what they should, and leave the rest.
fn wildcards(endpoint: &mut Endpoint, partner: usize) -> Outcome {
    let sent: Vec<u64> = (0..64).map(|index| WILD | (index % 4) << 8 | index).collect();
    for tag in &sent {
        endpoint.send(partner, *tag, &tag.to_le_bytes())?;
    }
    // In a larger world others may be ahead, and their messages do not belong here.
    let anybody = if endpoint.size() == 2 { Source::Any } else { Source::Rank(partner) };
    let class = |class: u64| Tag::Masked { value: WILD | class << 8, ignore: 0xff };
    let mut receive = |from, tag| -> Outcome<u64> {
        let mut buf = [0; 8];
        let status = endpoint.recv(from, tag, &mut buf)?;
        ensure(status.rank == partner && status.tag == u64::from_le_bytes(buf), || format!("{status:?}"))?;
        Ok(status.tag)
    };
    let of_class = |wanted: u64| sent.iter().copied().filter(move |tag| tag >> 8 & 3 == wanted);
    for wanted in of_class(2) {
        let tag = receive(Source::Any, class(2))?;
        ensure(tag == wanted, || format!("masked: {tag:#x} before {wanted:#x}"))?;
    }
    for wanted in of_class(1) {
        let tag = receive(Source::Rank(partner), class(1))?;
        ensure(tag == wanted, || format!("masked, of a rank: {tag:#x} before {wanted:#x}"))?;
    }
    for wanted in sent.iter().copied().filter(|tag| matches!(tag >> 8 & 3, 0 | 3)) {
        let tag = receive(anybody, Tag::Any)?;
        ensure(tag == wanted, || format!("any: {tag:#x} before {wanted:#x}"))?;
    }
    Ok(())
}

/// A message longer than its buffer is reported, fills the buffer, and harms neither its neighbours nor the
/// next message.
fn truncation(endpoint: &mut Endpoint, partner: usize) -> Outcome {
    for len in [9, 500, 5000, 200_000] {
        let bytes = filled(len as u64, len);
        let mut buf = [0; 16];
        let (mut four, out, into) = ([0; 4], &bytes, &mut buf[..8]);
        let rest = &mut four;
        let outcome = endpoint.scope(move |scope| {
            let sends = [scope.isend(partner, 1, out)?, scope.isend(partner, 2, &out[..4])?];
            let receive = scope.irecv(Source::Rank(partner), Tag::Exactly(1), into)?;
            let outcome = scope.wait(receive);
            let receive = scope.irecv(Source::Rank(partner), Tag::Exactly(2), rest)?;
            let status = scope.wait(receive)?;
            for send in sends {
                scope.wait(send)?;
            }
            Ok((outcome, status))
        });
        let (outcome, status) = outcome?;
        ensure(matches!(outcome, Err(Error::Truncated(_))), || format!("{len} bytes into 8: {outcome:?}"))?;
        ensure(buf[..8] == bytes[..8] && buf[8..] == [0; 8], || format!("{len} bytes into 8: {buf:?}"))?;
        ensure(status.len == 4 && four == bytes[..4], || format!("after it: {status:?}"))?;
    }
    Ok(())
}

/// A wait that times out leaves the request unchanged; a withdrawn receive takes nothing.
fn timeouts(endpoint: &mut Endpoint, partner: usize) -> Outcome {
    let limit = Duration::from_millis(20);
    let mut buf = [0_u8; 8];
    let base = buf.as_mut_ptr();
    // SAFETY: the buffer outlives the request, which is complete before this returns, or the process ends; it
    // is not touched before.
    let request = unsafe { endpoint.irecv(Source::Rank(partner), Tag::Exactly(TIMEOUTS), base, 8) }?;
    for _ in 0..3 {
        let early = endpoint.wait_timeout(request, limit);
        ensure(matches!(early, Err(Error::Timeout(_))), || format!("nothing was sent: {early:?}"))?;
    }
    ensure(endpoint.test(request)?.is_none(), || "nothing was sent, but the test reports a message".into())?;
    barrier_of_two(endpoint, partner)?;
    endpoint.send(partner, TIMEOUTS, &42_u64.to_le_bytes())?;
    let status = endpoint.wait(request)?;
    ensure(status.len == 8 && u64::from_le_bytes(buf) == 42, || format!("{status:?}"))?;
    let again = endpoint.wait(request);
    ensure(matches!(again, Err(Error::Stale)), || format!("waited for twice: {again:?}"))?;
    let base = buf.as_mut_ptr();
    // SAFETY: as above; withdrawn at once.
    let request = unsafe { endpoint.irecv(Source::Rank(partner), Tag::Exactly(TIMEOUTS + 1), base, 8) }?;
    ensure(endpoint.cancel(request) && !endpoint.cancel(request), || "not withdrawn once".into())?;
    let outcome = endpoint.wait(request);
    ensure(matches!(outcome, Err(Error::Cancelled)), || format!("withdrawn: {outcome:?}"))?;
    barrier_of_two(endpoint, partner)?;
    endpoint.send(partner, TIMEOUTS + 1, &43_u64.to_le_bytes())?;
    endpoint.recv(Source::Rank(partner), Tag::Exactly(TIMEOUTS + 1), &mut buf)?;
    ensure(u64::from_le_bytes(buf) == 43, || format!("{buf:?}"))
}

fn barrier_of_two(endpoint: &mut Endpoint, partner: usize) -> Outcome {
    endpoint.send(partner, TIMEOUTS + 2, &[])?;
    endpoint.recv(Source::Rank(partner), Tag::Exactly(TIMEOUTS + 2), &mut [])?;
    Ok(())
}

/// Every rank receives from every rank, itself included, in any order.
fn gather(endpoint: &mut Endpoint, seed: u64) -> Outcome {
    const LEN: usize = 5000;
    let (rank, size) = (endpoint.rank(), endpoint.size());
    let mine = filled(seed_of(&[seed, 11, rank as u64]), LEN);
    let (mut heard, mut bufs) = (vec![false; size], vec![vec![0; LEN]; size]);
    let (sent, into) = (&mine, &mut bufs);
    let statuses = endpoint.scope(move |scope| {
        for to in 0..size {
            scope.isend(to, GATHER, sent)?;
        }
        let mut statuses = Vec::with_capacity(size);
        for buf in into {
            let receive = scope.irecv(Source::Any, Tag::Exactly(GATHER), buf)?;
            statuses.push(scope.wait(receive)?);
        }
        Ok(statuses)
    })?;
    for (status, buf) in statuses.iter().zip(&bufs) {
        check("gather", seed_of(&[seed, 11, status.rank as u64]), buf)?;
        let twice = std::mem::replace(&mut heard[status.rank], true);
        ensure(!twice, || format!("rank {} was heard twice", status.rank))?;
    }
    Ok(())
}
