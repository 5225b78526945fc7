//! Full queues, quiet work, order, sleeping.

use std::time::{Duration, Instant};

use nemesia_core::port::memory::{
    Armed, Completion, CompletionSource, MemoryPort, PostError, ReceiveQueue, RegionAccess, Work, WorkOutcome,
};

use super::bench::Bench;
use super::{Check, Fabric, Verdict, ensure, equal};
use crate::content::{difference, filled};

pub(super) fn checks<F: Fabric>() -> Vec<(&'static str, Check<F>)> {
    vec![
        ("a_full_send_queue_says_so_and_loses_nothing", full_send),
        ("a_full_receive_queue_says_so", full_receive),
        ("work_completes_in_the_order_posted", order),
        ("quiet_work_completes_only_by_what_follows", quiet),
        ("a_fence_holds_back_what_follows_a_read", fence),
        ("several_connections_complete_in_any_order", several),
        ("a_message_proves_the_writes_before_it", placement),
        ("a_poll_returns_at_most_what_is_asked_for", bounded),
        ("who_sleeps_is_woken", sleep),
    ]
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn full_send<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let depth = u64::from(bench.facts()?.send_depth);
    let len = bench.most_bytes()?.min(4096);
    let (from, to) =
        (bench.memory(0, len as usize, RegionAccess::NONE)?, bench.open_memory(1, len as usize)?);
    from.put(0, &filled(1, len as usize));
    let part = [from.slice(0, len)];
    for _ in 0..3 {
        let mut posted = 0;
        // Without a poll nothing completes, so the queue gets full.
        loop {
            match bench.port(0)?.write(Work::new(a, posted), CompletionSource::Gather(&part), to.at(0), None)
            {
                Ok(()) => posted += 1,
                Err(PostError::QueueFull) => break,
                Err(other) => return Err(format!("after {posted}: {other}")),
            }
            ensure(posted < 1 << 20, || "it is never full".into())?;
        }
        ensure(posted >= depth, || format!("full after {posted}, not {depth}"))?;
        bench.until("one completion", |bench| !bench.nodes[0].done.is_empty())?;
        // There is room again.
        let more =
            bench.port(0)?.write(Work::new(a, posted), CompletionSource::Gather(&part), to.at(0), None);
        more.map_err(|error| format!("after one completion: {error}"))?;
        for id in 0..=posted {
            bench.succeeds(0, id)?;
        }
    }
    bench.works((0, a), (1, b))?;
    equal("byte that is wrong", difference(1, &to.get(0, len as usize)), None)
}

fn full_receive<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let depth = u64::from(bench.facts()?.receive_depth);
    let mut posted = 0;
    loop {
        match bench.port(1)?.receive(ReceiveQueue::Of(b), posted, &[]) {
            Ok(()) => posted += 1,
            Err(PostError::QueueFull) => break,
            Err(other) => return Err(format!("after {posted}: {other}")),
        }
        ensure(posted < 1 << 20, || "it is never full".into())?;
    }
    ensure(posted >= depth, || format!("full after {posted}, not {depth}"))?;
    bench.port(0)?.send(Work::new(a, 1), CompletionSource::Gather(&[]), None).map_err(text)?;
    bench.received(1, 0)?;
    bench.port(1)?.receive(ReceiveQueue::Of(b), posted, &[]).map_err(text)?;
    bench.succeeds(0, 1)?;
    bench.close(1, b)?;
    // Every posted receive has come back once.
    let mut ids: Vec<u64> = bench.nodes[1].done.iter().map(|it| it.id).collect();
    ids.sort_unstable();
    equal("flushed receives", ids, (1..=posted).collect())
}

fn order<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let facts = bench.facts()?;
    let depth = u64::from(facts.send_depth.min(facts.receive_depth).min(64));
    let len = bench.most_bytes()?.min(100_000);
    let (from, to) = (bench.sink(0, len as usize)?, bench.open_memory(1, len as usize)?);
    for _ in 0..6 {
        for id in 0..depth {
            let size = bench.random.below(u64::from(len) + 1) as u32;
            let (part, work) = ([from.slice(0, size)], Work::new(a, id));
            let kind = bench.random.below(3);
            if kind == 2 {
                let into = [to.slice(0, len)];
                bench.port(1)?.receive(ReceiveQueue::Of(b), id, &into).map_err(text)?;
            }
            let port = bench.port(0)?;
            let posted = match kind {
                0 => port.write(work, CompletionSource::Gather(&part), to.at(0), None),
                1 => port.read(work, &part, to.at(0)),
                _ => port.send(work, CompletionSource::Gather(&part), None),
            };
            posted.map_err(|error| format!("operation {kind} of {size} bytes: {error}"))?;
        }
        bench.until("all work", |bench| bench.nodes[0].done.len() as u64 == depth)?;
        let done: Vec<_> = bench.nodes[0].done.drain(..).map(|it| (it.id, it.outcome)).collect();
        equal("completions", done, (0..depth).map(|id| (id, WorkOutcome::Done)).collect())?;
        bench.nodes[1].done.clear();
        bench.flush((0, a), (1, b))?;
        bench.nodes[1].done.clear();
    }
    Ok(())
}

fn quiet<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let depth = u64::from(bench.facts()?.send_depth.min(64));
    let (from, to) = (bench.memory(0, 64, RegionAccess::NONE)?, bench.open_memory(1, 64)?);
    let part = [from.slice(0, 8)];
    // More than fit at once: one completion frees the places of all requests before it.
    for round in 0..4 {
        for id in 0..depth {
            let work = Work { quiet: id + 1 < depth, ..Work::new(a, id) };
            from.put(0, &(100 * round + id).to_ne_bytes());
            let posted = bench.port(0)?.write(work, CompletionSource::Gather(&part), to.at(0), None);
            posted.map_err(|error| format!("number {id} of round {round}: {error}"))?;
        }
        bench.succeeds(0, depth - 1)?;
        ensure(bench.nodes[0].done.is_empty(), || format!("quiet, and yet {:?}", bench.nodes[0].done))?;
    }
    bench.flush((0, a), (1, b))?;
    equal("last value", to.word(0), 300 + depth - 1)?;
    // A failure is not quiet.
    let bad = to.at(1 << 30);
    let sink = bench.sink(0, 64)?;
    let work = Work { quiet: true, ..Work::new(a, 77) };
    bench.port(0)?.read(work, &[sink.slice(0, 8)], bad).map_err(text)?;
    bench.fails(0, 77)?;
    bench.lost(0, a)
}

fn fence<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let len = bench.most_bytes()?.min(50_000);
    let (old, new) = (bench.sink(0, len as usize)?, bench.memory(0, len as usize, RegionAccess::NONE)?);
    let to = bench.open_memory(1, len as usize)?;
    for seed in 0..10 {
        to.put(0, &filled(seed, len as usize));
        new.put(0, &filled(seed + 100, len as usize));
        let (into, part) = ([old.slice(0, len)], [new.slice(0, len)]);
        bench.port(0)?.read(Work::new(a, 1), &into, to.at(0)).map_err(text)?;
        let work = Work { fence: true, ..Work::new(a, 2) };
        bench.port(0)?.write(work, CompletionSource::Gather(&part), to.at(0), None).map_err(text)?;
        bench.succeeds(0, 1)?;
        bench.succeeds(0, 2)?;
        equal("byte of what was read before", difference(seed, &old.get(0, len as usize)), None)?;
        bench.flush((0, a), (1, b))?;
        equal("byte of what was written after", difference(seed + 100, &to.get(0, len as usize)), None)?;
    }
    Ok(())
}

fn several<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let count = u64::from(bench.facts()?.connections.min(8));
    let len = bench.most_bytes()?.min(200_000);
    let mut ends = Vec::new();
    for _ in 0..count {
        ends.push(bench.connect(0, 1)?);
    }
    let size = len as usize;
    let (from, to) =
        (bench.memory(0, size, RegionAccess::NONE)?, bench.open_memory(1, size * count as usize)?);
    from.put(0, &filled(3, size));
    for (at, (a, _)) in (0..).zip(&ends) {
        // The first ones are the longest.
        let short = len / (at as u32 + 1);
        for (id, len) in [(2 * at, short), (2 * at + 1, 1.min(short))] {
            let part = [from.slice(0, len)];
            let target = to.at(at * size as u64);
            bench
                .port(0)?
                .write(Work::new(*a, id), CompletionSource::Gather(&part), target, None)
                .map_err(text)?;
        }
    }
    bench.until("all writes", |bench| bench.nodes[0].done.len() as u64 == 2 * count)?;
    for (at, (a, b)) in (0..).zip(ends) {
        let own: Vec<Completion> =
            bench.nodes[0].done.iter().filter(|it| it.connection == a).copied().collect();
        let found: Vec<_> = own.iter().map(|it| (it.id, it.outcome)).collect();
        equal("completions", found, vec![(2 * at, WorkOutcome::Done), (2 * at + 1, WorkOutcome::Done)])?;
        bench.flush((0, a), (1, b))?;
        let short = size / (at as usize + 1);
        equal("byte that is wrong", difference(3, &to.get(at * size as u64, short)), None)?;
    }
    Ok(())
}

fn placement<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let len = bench.most_bytes()?.min(64 << 10);
    let (from, to) =
        (bench.memory(0, len as usize, RegionAccess::NONE)?, bench.open_memory(1, len as usize)?);
    let sink = bench.sink(0, len as usize)?;
    for seed in 0..30 {
        from.put(0, &filled(seed, len as usize));
        let part = [from.slice(0, len)];
        let id = bench.post_small(1, ReceiveQueue::Of(b))?;
        let work = Work { quiet: true, ..Work::new(a, 1) };
        bench.port(0)?.write(work, CompletionSource::Gather(&part), to.at(0), None).map_err(text)?;
        bench.port(0)?.send(Work::new(a, 2), CompletionSource::Gather(&part[..0]), None).map_err(text)?;
        bench.received(1, id)?;
        equal("byte not there with the message", difference(seed, &to.get(0, len as usize)), None)?;
        bench.succeeds(0, 2)?;
        // A read returns what was written before it.
        from.put(0, &filled(seed + 1000, len as usize));
        bench.port(0)?.write(work, CompletionSource::Gather(&part), to.at(0), None).map_err(text)?;
        bench.port(0)?.read(Work::new(a, 3), &[sink.slice(0, len)], to.at(0)).map_err(text)?;
        bench.succeeds(0, 3)?;
        equal("byte not there for the read", difference(seed + 1000, &sink.get(0, len as usize)), None)?;
    }
    Ok(())
}

fn bounded<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let depth = u64::from(bench.facts()?.send_depth.min(16));
    let to = bench.open_memory(1, 8)?;
    for id in 0..depth {
        bench
            .port(0)?
            .write(Work::new(a, id), CompletionSource::Gather(&[]), to.at(0), None)
            .map_err(text)?;
    }
    equal("a poll for none", bench.port(0)?.poll(&mut []), 0)?;
    let (mut seen, mut wrong) = (0, Vec::new());
    let (start, mut turns, most) = (Instant::now(), 0, bench.fabric.most_turns().unwrap_or(u64::MAX));
    while seen < depth && turns < most && start.elapsed() < Duration::from_secs(60) {
        turns += 1;
        bench.now = bench.fabric.pass();
        bench.port(1)?.poll(&mut []);
        let mut two = [Completion::EMPTY; 2];
        let count = bench.port(0)?.poll(&mut two[..1]);
        if count > 0 {
            if count > 1 || two[0].id != seen || two[1] != Completion::EMPTY {
                wrong.push((count, two));
            }
            seen += 1;
        }
    }
    ensure(seen == depth && wrong.is_empty(), || format!("{seen} of {depth}, and wrong: {wrong:?}"))?;
    bench.works((0, a), (1, b))
}

/// Waits for a short time until a descriptor is readable.
fn wait(descriptor: i32) -> bool {
    let mut one = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut one, 1, 100) > 0 }
}

fn sleep<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let Some(descriptor) = bench.port(1)?.descriptor() else {
        return equal("arm without a descriptor", bench.port(1)?.arm(), Armed::Poll);
    };
    for _ in 0..20 {
        let id = bench.post_small(1, ReceiveQueue::Of(b))?;
        bench.rest();
        // Armed: nothing comes, and the descriptor is not readable.
        bench.until("armed", |bench| {
            let port = bench.nodes[1].port.as_mut();
            port.is_some_and(|port| port.arm() == Armed::Sleep) && {
                bench.turn();
                !wait_now(descriptor)
            }
        })?;
        let own = bench.next_id();
        bench.port(0)?.send(Work::new(a, own), CompletionSource::Gather(&[]), None).map_err(text)?;
        bench.until("woken", |bench| {
            // The sender makes progress while the sleeper sleeps.
            let mut room = [Completion::EMPTY; 4];
            let done = bench.nodes[0].port.as_mut().map_or(0, |port| port.poll(&mut room));
            bench.nodes[0].done.extend_from_slice(&room[..done]);
            wait(descriptor)
        })?;
        bench.received(1, id)?;
        bench.succeeds(0, own)?;
    }
    Ok(())
}

fn wait_now(descriptor: i32) -> bool {
    let mut one = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut one, 1, 0) > 0 }
}
