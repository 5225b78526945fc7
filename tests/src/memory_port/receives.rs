//! Receives: too short, none posted, the shared queue.

use nemesia_core::port::memory::{
    CompletionSource, ConnectError, MemoryPort, PostError, ReceiveQueue, RegionAccess, Work, WorkError,
    WorkOutcome,
};

use super::bench::Bench;
use super::{Check, Fabric, Verdict, ensure, equal};

pub(super) fn checks<F: Fabric>() -> Vec<(&'static str, Check<F>)> {
    vec![
        ("messages_take_receives_in_order", order),
        ("a_receive_that_is_too_short_fails_both_sides", short),
        ("a_message_without_a_receive_waits_or_fails", none),
        ("a_shared_queue_serves_several_connections", shared),
        ("a_shared_queue_survives_its_connections", survives),
    ]
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn order<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let facts = bench.facts()?;
    let depth = u64::from(facts.receive_depth.min(facts.send_depth).min(16));
    let (from, to) =
        (bench.memory(0, 1024, RegionAccess::NONE)?, bench.memory(1, 1024, RegionAccess::LOCAL)?);
    for round in 0..4 {
        for id in 0..depth {
            let into = [to.slice(8 * id, 8)];
            bench.port(1)?.receive(ReceiveQueue::Of(b), id, &into).map_err(text)?;
            from.put(8 * id, &(1000 * round + id).to_ne_bytes());
        }
        for id in 0..depth {
            let part = [from.slice(8 * id, 8)];
            bench.port(0)?.send(Work::new(a, id), CompletionSource::Gather(&part), None).map_err(text)?;
        }
        bench
            .until("all messages", |bench| bench.nodes.iter().all(|node| node.done.len() as u64 == depth))?;
        for node in &mut bench.nodes {
            let ids: Vec<u64> = node.done.drain(..).map(|it| it.id).collect();
            equal("order of completions", ids, (0..depth).collect())?;
        }
        for id in 0..depth {
            equal("message", to.word(8 * id), 1000 * round + id)?;
        }
    }
    Ok(())
}

fn short<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let (from, to) =
        (bench.memory(0, 1024, RegionAccess::NONE)?, bench.memory(1, 1024, RegionAccess::LOCAL)?);
    from.put(0, &[1; 1024]);
    bench.port(1)?.receive(ReceiveQueue::Of(b), 1, &[to.slice(0, 99)]).map_err(text)?;
    bench.port(1)?.receive(ReceiveQueue::Of(b), 2, &[to.slice(0, 512)]).map_err(text)?;
    let part = [from.slice(0, 100)];
    bench.port(0)?.send(Work::new(a, 1), CompletionSource::Gather(&part), None).map_err(text)?;
    let error = bench.fails(1, 1)?;
    let said = matches!(error, WorkError::Length | WorkError::Local | WorkError::Flushed);
    ensure(said, || format!("the receive that was too short: {error}"))?;
    bench.fails(1, 2)?;
    if bench.facts()?.write_proves_placement {
        bench.fails(0, 1)?;
    } else {
        bench.completion(0, 1)?;
    }
    bench.lost(1, b)?;
    bench.lost(0, a)?;
    equal("beyond the receive", to.get(99, 900), vec![0; 900])
}

fn none<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let waits = bench.facts()?.waits_for_receive;
    let from = bench.memory(0, 64, RegionAccess::NONE)?;
    let to = bench.memory(1, 64, RegionAccess::LOCAL)?;
    from.put(0, b"eight by");
    let part = [from.slice(0, 8)];
    bench.port(0)?.send(Work::new(a, 1), CompletionSource::Gather(&part), None).map_err(text)?;
    if !waits {
        bench.completion(0, 1)?;
        bench.lost(1, b)?;
        return bench.lost(0, a);
    }
    bench.rest();
    ensure(bench.nodes[0].done.is_empty(), || format!("{:?} before there is room", bench.nodes[0].done))?;
    bench.port(1)?.receive(ReceiveQueue::Of(b), 2, &[to.slice(0, 64)]).map_err(text)?;
    equal("message", bench.received(1, 2)?, (8, None, false))?;
    bench.succeeds(0, 1)?;
    equal("bytes", to.get(0, 8), b"eight by".to_vec())?;
    bench.works((0, a), (1, b))
}

fn shared<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(3)?;
    let facts = bench.facts()?;
    if facts.shared_receive_depth == 0 {
        let posted = bench.port(0)?.receive(ReceiveQueue::Shared, 1, &[]);
        equal("shared receive", posted, Err(PostError::Unsupported))?;
        let address = bench.port(1)?.address().ok_or("no address")?;
        let offer = bench.offer(&[], true);
        let asked = bench.port(0)?.connect(&address, &offer);
        return equal("shared queue", asked, Err(ConnectError::Unsupported));
    }
    let ends = [bench.connect_with(0, 2, (false, true))?, bench.connect_with(1, 2, (false, true))?];
    let own = bench.port(2)?.receive(ReceiveQueue::Of(ends[0].1), 1, &[]);
    equal("own receive of a sharing connection", own, Err(PostError::NotReady))?;
    let count = u64::from(facts.shared_receive_depth.min(32));
    let to = bench.memory(2, 16 * 64, RegionAccess::LOCAL)?;
    let from = [bench.memory(0, 64, RegionAccess::NONE)?, bench.memory(1, 64, RegionAccess::NONE)?];
    for round in 0..3 {
        for id in 0..count {
            let into = [to.slice(16 * id, 16)];
            bench.port(2)?.receive(ReceiveQueue::Shared, id, &into).map_err(text)?;
        }
        let more = bench.port(2)?.receive(ReceiveQueue::Shared, 99, &[to.slice(0, 8)]);
        ensure(more.is_ok() || more == Err(PostError::QueueFull), || {
            format!("one more shared receive: {more:?}")
        })?;
        let mut seen = [0, 0];
        for number in 0..count {
            let node = bench.random.below(2) as usize;
            from[node].put(0, &(round << 32 | number).to_ne_bytes());
            let part = [from[node].slice(0, 8)];
            let work = Work::new(ends[node].0, 7);
            bench.port(node)?.send(work, CompletionSource::Gather(&part), None).map_err(text)?;
            bench.succeeds(node, 7)?;
            seen[node] += 1;
        }
        let mut left = count;
        while left > 0 {
            bench.until("a message", |bench| !bench.nodes[2].done.is_empty())?;
            let completion = bench.nodes[2].done.remove(0);
            let from = ends.iter().position(|(_, end)| *end == completion.connection);
            let from = from.ok_or_else(|| format!("on what connection came {completion:?}"))?;
            let wanted = WorkOutcome::Received { len: 8, immediate: None, written: false };
            equal("message", completion.outcome, wanted)?;
            equal("round", to.word(16 * completion.id) >> 32, round)?;
            seen[from] -= 1;
            left -= 1;
        }
        equal("messages of each", seen, [0, 0])?;
        if more.is_ok() {
            // It is the oldest request of the next round.
            bench.send_small(0, ends[0].0)?;
            bench.completion(2, 99)?;
            return Ok(());
        }
    }
    Ok(())
}

fn survives<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(3)?;
    if bench.facts()?.shared_receive_depth == 0 {
        return Ok(());
    }
    let first = bench.connect_with(0, 2, (false, true))?;
    let second = bench.connect_with(1, 2, (false, true))?;
    let id = bench.post_small(2, ReceiveQueue::Shared)?;
    bench.close(0, first.0)?;
    bench.lost(2, first.1)?;
    bench.close(2, first.1)?;
    ensure(bench.nodes[2].done.is_empty(), || format!("{:?} with a connection", bench.nodes[2].done))?;
    bench.send_small(1, second.0)?;
    equal("connection", bench.completion(2, id)?.connection, second.1)
}
