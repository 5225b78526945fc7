//! Reads and their answers while both ends send.

use nemesia_core::port::memory::{CompletionSource, Connection, MemoryPort, Work};

use super::bench::{Bench, Memory};
use super::{Check, Fabric, Verdict, ensure, equal};

pub(super) fn checks<F: Fabric>() -> Vec<(&'static str, Check<F>)> {
    vec![
        ("an_empty_read_changes_no_memory", empty_read_changes_nothing),
        ("empty_reads_succeed_while_the_peer_sends", empty_reads_succeed),
        ("short_payloads_across_the_end_of_a_page_arrive_whole", payloads_across_a_page_end),
        ("both_ends_may_wait_at_a_fence", both_ends_fence),
        ("both_ends_may_have_many_reads_under_way", both_ends_read),
    ]
}

const PAGE: usize = 4096;
/// The lengths of short payloads, which fabrics may copy in another way than longer ones.
const SHORT: [u32; 8] = [2, 3, 5, 8, 17, 31, 32, 33];

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Bytes that differ from their neighbours and from the bytes one page away.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 256) as u8).collect()
}

/// A read without a part could use the part of an earlier work request from the same slot of the queue.
fn empty_read_changes_nothing<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, _) = bench.connect(0, 1)?;
    let (mine, theirs) = (bench.open_memory(0, PAGE)?, bench.open_memory(1, PAGE)?);
    mine.put(0, &[0x11; PAGE]);
    theirs.put(0, &[0xee; PAGE]);
    // Every slot of the queue has been used.
    for _ in 0..bench.facts()?.send_depth + 16 {
        let id = bench.next_id();
        let part = [mine.slice(0, 64)];
        bench
            .port(0)?
            .write(Work::new(a, id), CompletionSource::Gather(&part), theirs.at(2048), None)
            .map_err(text)?;
        bench.succeeds(0, id)?;
    }
    for parts in [&[][..], &[mine.slice(1000, 0)]] {
        let id = bench.next_id();
        bench.port(0)?.read(Work::new(a, id), parts, theirs.at(0)).map_err(text)?;
        bench.succeeds(0, id)?;
    }
    bench.rest();
    equal("byte that changed", mine.get(0, PAGE).iter().position(|byte| *byte != 0x11), None)
}

/// The requests come while the peer's queue is busy, so the peer answers them later.
fn empty_reads_succeed<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let len = bench.most_bytes()?.min(8 << 20);
    let (mine, theirs) = (bench.open_memory(0, len as usize)?, bench.open_memory(1, len as usize)?);
    let sink = bench.sink(0, PAGE)?;
    for _ in 0..4 {
        let (a, b) = bench.connect(0, 1)?;
        let mut writes = Vec::new();
        let depth = bench.facts()?.send_depth;
        for len in [len, 100.min(len), len, 100.min(len)].into_iter().take(depth as usize) {
            let id = bench.next_id();
            let part = [theirs.slice(0, len)];
            bench
                .port(1)?
                .write(Work::new(b, id), CompletionSource::Gather(&part), mine.at(0), None)
                .map_err(text)?;
            writes.push(id);
        }
        let reads = depth.min(12);
        let first = bench.next_id();
        for number in 0..reads {
            let id = if number == 0 { first } else { bench.next_id() };
            bench.port(0)?.read(Work::new(a, id), &[sink.slice(0, 0)], theirs.at(0)).map_err(text)?;
            for _ in 0..bench.random.below(200) {
                bench.turn();
            }
        }
        (first..first + u64::from(reads)).try_for_each(|id| bench.succeeds(0, id))?;
        writes.into_iter().try_for_each(|id| bench.succeeds(1, id))?;
        bench.works((0, a), (1, b))?;
        bench.close(0, a)?;
        bench.close(1, b)?;
    }
    Ok(())
}

fn payloads_across_a_page_end<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let long = bench.most_bytes()?.min(1 << 16) as usize;
    let (mine, theirs) = (bench.open_memory(0, long.max(2 * PAGE))?, bench.open_memory(1, 2 * PAGE)?);
    // Writes may be placed in any order, so the short write has its own place behind the long one.
    let (sink, into) = (bench.sink(0, PAGE)?, bench.open_memory(1, long + PAGE)?);
    let is_deep = bench.facts()?.send_depth > 1;
    mine.put(0, &pattern(2 * PAGE));
    theirs.put(0, &pattern(2 * PAGE));
    for len in SHORT {
        for before in 1..len {
            let (at, id) = ((PAGE as u32 - before).into(), bench.next_id());
            bench.port(0)?.read(Work::new(a, id), &[sink.slice(0, len)], theirs.at(at)).map_err(text)?;
            bench.succeeds(0, id)?;
            let is_whole = sink.get(0, len as usize) == theirs.get(at, len as usize);
            ensure(is_whole, || format!("a read of {len} bytes, {before} of them before the end of a page"))?;
        }
        for before in 1..len {
            // The device is busy with the long write when the short write reaches it.
            let (at, mut ids) = (u64::from(PAGE as u32 - before), Vec::new());
            let writes = [(mine.slice(0, long as u32), 0), (mine.slice(at, len), long as u64)];
            for (part, to) in writes.into_iter().skip(usize::from(!is_deep)) {
                ids.push(bench.next_id());
                let work = Work::new(a, ids[ids.len() - 1]);
                bench
                    .port(0)?
                    .write(work, CompletionSource::Gather(&[part]), into.at(to), None)
                    .map_err(text)?;
            }
            ids.into_iter().try_for_each(|id| bench.succeeds(0, id))?;
            bench.flush((0, a), (1, b))?;
            let is_whole = into.get(long as u64, len as usize) == mine.get(at, len as usize);
            ensure(is_whole, || {
                format!("a write of {len} bytes, {before} of them before the end of a page")
            })?;
        }
    }
    Ok(())
}

/// The two ends of a connection, each with memory for the other end and a sink.
struct Ends {
    connections: [Connection; 2],
    memories: [Memory; 2],
    sinks: [Memory; 2],
}

fn ends<F: Fabric>(bench: &mut Bench<F>) -> Result<Ends, String> {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let memories = [bench.open_memory(0, PAGE)?, bench.open_memory(1, PAGE)?];
    let sinks = [bench.sink(0, PAGE)?, bench.sink(1, PAGE)?];
    memories[0].put(0, &[0xa0; PAGE]);
    memories[1].put(0, &[0xb1; PAGE]);
    Ok(Ends { connections: [a, b], memories, sinks })
}

/// Each answer could wait behind the other end's fence.
fn both_ends_fence<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    let Ends { connections, memories, sinks } = ends(bench)?;
    if bench.facts()?.send_depth < 2 {
        return Ok(());
    }
    for round in 0..10 {
        let mut ids = [[0; 2]; 2];
        for end in [0, 1] {
            ids[end] = [bench.next_id(), bench.next_id()];
            let (own, target) = (&memories[end], memories[1 - end].at(2000));
            let read = Work::new(connections[end], ids[end][0]);
            let write = Work { fence: true, ..Work::new(connections[end], ids[end][1]) };
            let port = bench.port(end)?;
            port.read(read, &[sinks[end].slice(0, 100)], memories[1 - end].at(0)).map_err(text)?;
            port.write(write, CompletionSource::Gather(&[own.slice(0, 100)]), target, None).map_err(text)?;
        }
        for end in [0, 1] {
            ids[end].iter().try_for_each(|id| bench.succeeds(end, *id))?;
            let wanted = memories[1 - end].get(0, 100);
            ensure(sinks[end].get(0, 100) == wanted, || format!("end {end}, round {round}: what it read"))?;
        }
    }
    Ok(())
}

/// Each answer could wait behind a read for which the other end's device has no room.
fn both_ends_read<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    let Ends { connections, memories, sinks } = ends(bench)?;
    let count = bench.facts()?.send_depth.min(40);
    for round in 0..4 {
        let mut ids = [Vec::new(), Vec::new()];
        for end in [0, 1] {
            for number in 0..u64::from(count) {
                let id = bench.next_id();
                let (work, part) = (Work::new(connections[end], id), [sinks[end].slice(number * 100, 100)]);
                bench.port(end)?.read(work, &part, memories[1 - end].at(number)).map_err(text)?;
                ids[end].push(id);
            }
        }
        for end in [0, 1] {
            ids[end].iter().try_for_each(|id| bench.succeeds(end, *id))?;
            let (found, wanted) = (sinks[end].get(0, count as usize * 100), memories[1 - end].get(0, 1)[0]);
            let is_whole = found.iter().all(|byte| *byte == wanted);
            ensure(is_whole, || format!("end {end}, round {round}: what it read"))?;
        }
    }
    Ok(())
}
