//! Writes and reads longer than a message. A port may execute them as several work requests; the caller cannot
//! see that.

use nemesia_core::port::memory::{
    CompletionSource, Connection, MemoryPort, PostError, ReceiveQueue, RegionAccess, Slice, Work, WorkOutcome,
};

use super::bench::{Bench, Memory};
use super::{Check, Fabric, Verdict, ensure, equal};
use crate::content::{difference, filled};

pub(super) fn checks<F: Fabric>() -> Vec<(&'static str, Check<F>)> {
    vec![
        ("what_is_longer_than_a_message_arrives_whole", transfers),
        ("what_is_too_long_is_refused", limits),
        ("a_full_queue_takes_all_of_a_long_one_or_nothing", full),
        ("a_quiet_long_one_gives_its_places_back", quiet),
        ("a_fence_holds_back_a_long_one", fence),
        ("a_long_one_that_is_refused_fails_once", refused),
        ("a_long_one_of_a_lost_peer_fails_once", lost),
    ]
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Returns the longest message and a longer transfer that is worth its time; `None` if messages have no limit.
fn lens<F: Fabric>(bench: &mut Bench<F>) -> Result<Option<(u32, u32)>, String> {
    let message = bench.facts()?.message_bytes;
    let times = if message > 1 << 20 { 2 } else { 3 };
    let most = bench.most_transfer()?.min(message.saturating_mul(times));
    Ok((most > message).then_some((message, most)))
}

/// Both ends with memory: the source of writes, the target of writes and reads, and the destination of reads.
type LongEnds = ((Connection, Connection), [Memory; 3]);

fn ends<F: Fabric>(bench: &mut Bench<F>, len: u32) -> Result<LongEnds, String> {
    bench.open(2)?;
    let pair = bench.connect(0, 1)?;
    let len = len as usize;
    Ok((pair, [bench.memory(0, len, RegionAccess::NONE)?, bench.open_memory(1, len)?, bench.sink(0, len)?]))
}

/// Opens with as much memory as the longest transfer needs.
fn long_ends<F: Fabric>(bench: &mut Bench<F>) -> Result<Option<(u32, u32, LongEnds)>, String> {
    bench.open(1)?;
    let Some((message, most)) = lens(bench)? else { return Ok(None) };
    bench.nodes.clear();
    Ok(Some((message, most, ends(bench, most)?)))
}

fn is_right(what: &str, memory: &Memory, seed: u64, len: u32) -> Verdict {
    equal(
        &format!("byte of {len} that is wrong, {what}"),
        difference(seed, &memory.get(0, len as usize)),
        None,
    )
}

/// Returns two parts, the second at the lower address, if two parts are allowed.
fn halves(memory: &Memory, len: u32, most_parts: u32) -> Vec<Slice> {
    let first = if most_parts > 1 { len / 3 } else { 0 };
    let all = [memory.slice((len - first).into(), first), memory.slice(0, len - first)];
    all[usize::from(most_parts < 2)..].to_vec()
}

fn transfers<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    let Some((message, most, ((a, b), [from, to, sink]))) = long_ends(bench)? else { return Ok(()) };
    let facts = bench.facts()?;
    let tried = [message, message + 1, most / 2, most / 2 + 1, most - 1, most];
    for (id, len) in (1..).zip(tried.into_iter().filter(|len| (message..=most).contains(len))) {
        let bytes = filled(id, len as usize);
        let first = halves(&from, len, facts.slices)[0].len as usize;
        let first = if facts.slices > 1 { first } else { 0 };
        from.put((len as usize - first) as u64, &bytes[..first]);
        from.put(0, &bytes[first..]);
        let parts = halves(&from, len, facts.slices);
        to.put(0, &vec![0; most as usize]);
        bench
            .port(0)?
            .write(Work::new(a, id), CompletionSource::Gather(&parts), to.at(0), None)
            .map_err(text)?;
        bench.succeeds(0, id).map_err(|why| format!("write of {len} bytes: {why}"))?;
        bench.flush((0, a), (1, b))?;
        is_right("written", &to, id, len)?;
        sink.put(0, &vec![0; most as usize]);
        let into = halves(&sink, len, facts.read_slices);
        bench.port(0)?.read(Work::new(a, id), &into, to.at(0)).map_err(text)?;
        bench.succeeds(0, id).map_err(|why| format!("read of {len} bytes: {why}"))?;
        let found: Vec<u8> = into.iter().flat_map(|part| sink.get(part.offset, part.len as usize)).collect();
        equal(&format!("byte of {len} that is wrong, read"), difference(id, &found), None)?;
        if facts.immediates {
            to.put(0, &vec![0; most as usize]);
            bench.port(1)?.receive(ReceiveQueue::Of(b), id, &[]).map_err(text)?;
            let posted =
                bench.port(0)?.write(Work::new(a, id), CompletionSource::Gather(&parts), to.at(0), Some(len));
            posted.map_err(text)?;
            let (reported, immediate, written) = bench.received(1, id)?;
            ensure(reported <= len && immediate == Some(len) && written, || {
                format!("{reported} {immediate:?}")
            })?;
            is_right("written with immediate", &to, id, len)?;
            bench.succeeds(0, id).map_err(|why| format!("write with immediate of {len} bytes: {why}"))?;
        }
    }
    bench.rest();
    ensure(bench.nodes.iter().all(|node| node.done.is_empty()), || "more has completed".into())
}

fn limits<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let facts = bench.facts()?;
    // The same memory many times, where a whole one would be too large.
    let len = (facts.transfer_bytes / facts.read_slices.min(facts.slices)).saturating_add(1);
    if len > bench.fabric.most_bytes() {
        return Ok(());
    }
    let (memory, to) = (bench.sink(0, len as usize)?, bench.open_memory(1, 64)?);
    let parts = |limit: u32| -> Vec<Slice> {
        let (whole, rest) = ((limit + 1) / len, (limit + 1) % len);
        let rest = (rest > 0).then(|| memory.slice(0, rest));
        (0..whole).map(|_| memory.slice(0, len)).chain(rest).collect()
    };
    let (long, message) = (parts(facts.transfer_bytes), parts(facts.message_bytes));
    let work = Work::new(a, 1);
    let too_long = Err(PostError::Length { limit: facts.transfer_bytes });
    let port = bench.port(0)?;
    equal("write", port.write(work, CompletionSource::Gather(&long), to.at(0), None), too_long)?;
    equal("read", port.read(work, &long, to.at(0)), too_long)?;
    let too_long = Err(PostError::Length { limit: facts.message_bytes });
    equal("send", port.send(work, CompletionSource::Gather(&message), None), too_long)?;
    bench.works((0, a), (1, b))?;
    ensure(bench.nodes[0].done.is_empty(), || format!("{:?}", bench.nodes[0].done))
}

fn full<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    let Some((message, most, ((a, b), [from, to, sink]))) = long_ends(bench)? else { return Ok(()) };
    let other = bench.open_memory(1, most as usize)?;
    let part = [from.slice(0, most)];
    for seed in 0..3 {
        from.put(0, &filled(seed, most as usize));
        let mut posted = 0;
        // Without a poll, nothing completes.
        loop {
            let work = Work::new(a, posted);
            let done = match posted % 2 {
                0 => bench.port(0)?.write(work, CompletionSource::Gather(&part), to.at(0), None),
                _ => bench.port(0)?.read(work, &[sink.slice(0, most)], to.at(0)),
            };
            match done {
                Ok(()) => posted += 1,
                Err(PostError::QueueFull) => break,
                Err(error) => return Err(format!("after {posted}: {error}")),
            }
        }
        let places = u64::from(most.div_ceil(message));
        let fit = u64::from(bench.facts()?.send_depth) / places;
        ensure(posted >= fit, || format!("full after {posted} of {places} places each"))?;
        // A transfer that does not fit leaves no part in the queue.
        let refused =
            bench.port(0)?.write(Work::new(a, 99), CompletionSource::Gather(&part), other.at(0), None);
        equal("one more", refused, Err(PostError::QueueFull))?;
        bench.until("all", |bench| bench.nodes[0].done.len() as u64 >= posted)?;
        let done: Vec<_> = bench.nodes[0].done.drain(..).map(|it| (it.id, it.outcome)).collect();
        equal("completions", done, (0..posted).map(|id| (id, WorkOutcome::Done)).collect())?;
        bench.flush((0, a), (1, b))?;
        is_right("written", &to, seed, most)?;
        ensure(other.get(0, most as usize).iter().all(|byte| *byte == 0), || "a part was written".into())?;
    }
    Ok(())
}

fn quiet<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    let Some((message, most, ((a, b), [from, to, _]))) = long_ends(bench)? else { return Ok(()) };
    let part = [from.slice(0, most)];
    // As many as fit: one is reported, the others are quiet.
    let fit = u64::from((bench.facts()?.send_depth / most.div_ceil(message)).min(8));
    for round in 0..4 {
        from.put(0, &filled(round, most as usize));
        for id in 1..=fit {
            let work = Work { quiet: id < fit, ..Work::new(a, id) };
            let posted = bench.port(0)?.write(work, CompletionSource::Gather(&part), to.at(0), None);
            posted.map_err(|error| format!("number {id} of round {round}: {error}"))?;
        }
        bench.succeeds(0, fit)?;
        ensure(bench.nodes[0].done.is_empty(), || format!("quiet, and yet {:?}", bench.nodes[0].done))?;
        bench.flush((0, a), (1, b))?;
        is_right("written", &to, round, most)?;
    }
    Ok(())
}

fn fence<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    let Some((message, most, ((a, b), [new, to, old]))) = long_ends(bench)? else { return Ok(()) };
    let len = most.min(message.saturating_mul(2));
    let depth = bench.facts()?.send_depth;
    for seed in 0..6 {
        to.put(0, &filled(seed, len as usize));
        new.put(0, &filled(seed + 100, len as usize));
        let (into, part) = ([old.slice(0, len)], [new.slice(0, len)]);
        bench.port(0)?.read(Work::new(a, 1), &into, to.at(0)).map_err(text)?;
        if depth < 4 {
            bench.succeeds(0, 1)?;
        }
        let work = Work { fence: true, ..Work::new(a, 2) };
        bench.port(0)?.write(work, CompletionSource::Gather(&part), to.at(0), None).map_err(text)?;
        if depth >= 4 {
            bench.succeeds(0, 1)?;
        }
        bench.succeeds(0, 2)?;
        is_right("read before", &old, seed, len)?;
        bench.flush((0, a), (1, b))?;
        is_right("written after", &to, seed + 100, len)?;
    }
    Ok(())
}

/// Checks that every request completes once and that the first fails.
fn all_fail<F: Fabric>(bench: &mut Bench<F>, connection: Connection, count: u64) -> Verdict {
    for id in 1..=count {
        let outcome = bench.completion(0, id)?.outcome;
        ensure(matches!(outcome, WorkOutcome::Failed(_)), || format!("number {id} of {count}: {outcome:?}"))?;
    }
    bench.lost(0, connection)?;
    bench.rest();
    ensure(bench.nodes[0].done.is_empty(), || format!("more has completed: {:?}", bench.nodes[0].done))?;
    bench.close(0, connection)
}

fn refused<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let Some((message, most)) = lens(bench)? else { return Ok(()) };
    let proves = bench.facts()?.write_proves_placement;
    let (own, to) = (bench.sink(0, most as usize)?, bench.open_memory(1, message as usize + 1)?);
    let len = most.min(message.saturating_mul(2));
    // The first or the second part is not allowed; the following requests are flushed.
    for (is_read, place) in [(true, 0), (true, 1 << 40), (false, 0), (false, 1 << 40)] {
        if !is_read && !proves {
            continue;
        }
        for is_quiet in [false, true] {
            let (a, b) = bench.connect(0, 1)?;
            let mut posted = 0;
            for _ in 0..4 {
                let work = Work { quiet: is_quiet, ..Work::new(a, posted + 1) };
                let (part, at) = ([own.slice(0, len)], to.at(place));
                let port = bench.port(0)?;
                let done = if is_read {
                    port.read(work, &part, at)
                } else {
                    port.write(work, CompletionSource::Gather(&part), at, None)
                };
                match done {
                    Ok(()) => posted += 1,
                    Err(PostError::QueueFull | PostError::NotReady) => break,
                    Err(error) => return Err(text(error)),
                }
            }
            ensure(posted > 0, || "nothing was posted".into())?;
            all_fail(bench, a, posted)?;
            bench.lost(1, b)?;
            bench.close(1, b)?;
        }
    }
    Ok(())
}

fn lost<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    let rounds = 3;
    bench.open(1 + rounds)?;
    let Some((_, most)) = lens(bench)? else { return Ok(()) };
    let own = bench.open_memory(0, most as usize)?;
    for victim in 1..=rounds {
        let theirs = bench.open_memory(victim, most as usize)?;
        let (a, _) = bench.connect(0, victim)?;
        let (mut posted, part) = (0, [own.slice(0, most)]);
        for number in 0..6 {
            let (port, work) = (bench.port(0)?, Work::new(a, posted + 1));
            let done = match number % 2 {
                0 => port.write(work, CompletionSource::Gather(&part), theirs.at(0), None),
                _ => port.read(work, &part, theirs.at(0)),
            };
            match done {
                Ok(()) => posted += 1,
                Err(PostError::QueueFull) => break,
                Err(error) => return Err(text(error)),
            }
        }
        let wait = bench.next_id();
        bench.port(0)?.receive(ReceiveQueue::Of(a), wait, &[]).map_err(text)?;
        for _ in 0..bench.random.below(20) {
            bench.turn();
        }
        if let Some(port) = bench.nodes[victim].port.take() {
            bench.fabric.kill(port);
        }
        let mut has_failed = false;
        for id in 1..=posted {
            let failed = matches!(bench.completion(0, id)?.outcome, WorkOutcome::Failed(_));
            ensure(failed || !has_failed, || format!("number {id}: success after failure"))?;
            has_failed |= failed;
        }
        bench.fails(0, wait)?;
        bench.lost(0, a)?;
        bench.rest();
        ensure(bench.nodes[0].done.is_empty(), || format!("more has completed: {:?}", bench.nodes[0].done))?;
        bench.close(0, a)?;
    }
    Ok(())
}
