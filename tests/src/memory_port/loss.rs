//! Lost peers, closed connections and deregistered memory, each in the middle of work.

use nemesia_core::port::memory::{
    CompletionSource, Connection, ConnectionState, Event, MemoryPort, PostError, ReceiveQueue, RegionAccess,
    RegisterError, Work, WorkOutcome,
};

use super::bench::{Bench, Memory};
use super::{Check, Fabric, Verdict, ensure, equal};
use crate::content::{difference, filled};

pub(super) fn checks<F: Fabric>() -> Vec<(&'static str, Check<F>)> {
    vec![
        ("a_peer_that_is_lost_fails_all_work_and_nothing_hangs", killed),
        ("a_peer_that_closes_fails_all_work", peer_closes),
        ("closing_flushes_all_work", we_close),
        ("other_connections_outlive_a_lost_one", bystander),
        ("memory_can_be_taken_back_while_it_is_used", deregister_source),
        ("memory_can_be_taken_back_while_peers_use_it", deregister_target),
        ("a_port_that_is_dropped_leaves_memory_alone", dropped),
    ]
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Starts work requests of all kinds. Returns their numbers.
fn start<F: Fabric>(
    bench: &mut Bench<F>,
    (node, connection): (usize, Connection),
    own: &Memory,
    theirs: &Memory,
    len: u32,
) -> Result<Vec<u64>, String> {
    let depth = bench.facts()?.send_depth.min(12);
    let mut posted = Vec::new();
    for number in 0..depth {
        let id = bench.next_id();
        let (work, part) = (Work::new(connection, id), [own.slice(0, len)]);
        let port = bench.port(node)?;
        let done = match number % 3 {
            0 => port.write(work, CompletionSource::Gather(&part), theirs.at(0), None),
            1 => port.read(work, &part, theirs.at(0)),
            _ => port.write(work, CompletionSource::Gather(&part[..0]), theirs.at(0), None),
        };
        match done {
            Ok(()) => posted.push(id),
            // The connection has ended meanwhile.
            Err(PostError::NotReady) => break,
            Err(other) => return Err(format!("number {number}: {other}")),
        }
    }
    let room = bench.facts()?.receive_depth.min(4);
    for _ in 0..room {
        let id = bench.next_id();
        match bench.port(node)?.receive(ReceiveQueue::Of(connection), id, &[own.slice(0, 8)]) {
            Ok(()) => posted.push(id),
            Err(PostError::NotReady) => break,
            Err(other) => return Err(format!("receive: {other}")),
        }
    }
    Ok(posted)
}

/// Checks that everything completes once, and that `Lost` comes once.
fn all_complete<F: Fabric>(
    bench: &mut Bench<F>,
    node: usize,
    connection: Connection,
    ids: &[u64],
) -> Result<Vec<WorkOutcome>, String> {
    let mut outcomes = Vec::new();
    for id in ids {
        outcomes.push(bench.completion(node, *id)?.outcome);
    }
    bench.rest();
    let more = bench.nodes[node].done.iter().filter(|it| it.connection == connection).count();
    equal("completions too many", more, 0)?;
    Ok(outcomes)
}

fn killed<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    let rounds = 6;
    bench.open(1 + rounds)?;
    let len = bench.most_bytes()?.min(4 << 20);
    let own = bench.open_memory(0, len as usize)?;
    for victim in 1..=rounds {
        let theirs = bench.open_memory(victim, len as usize)?;
        let (a, _) = bench.connect(0, victim)?;
        let ids = start(bench, (0, a), &own, &theirs, len)?;
        for _ in 0..bench.random.below(40) {
            bench.turn();
        }
        if let Some(port) = bench.nodes[victim].port.take() {
            bench.fabric.kill(port);
        }
        let outcomes = all_complete(bench, 0, a, &ids)?;
        let failed = outcomes.iter().position(|it| matches!(it, WorkOutcome::Failed(_)));
        let failed = failed.ok_or("nothing failed, not even receives")?;
        let depth = bench.facts()?.send_depth.min(12) as usize;
        let after = &outcomes[failed.min(depth)..depth.min(outcomes.len())];
        ensure(after.iter().all(|it| matches!(it, WorkOutcome::Failed(_))), || {
            format!("success after failure: {outcomes:?}")
        })?;
        bench.lost(0, a)?;
        equal("state", bench.port(0)?.state(a), ConnectionState::Lost)?;
        bench.close(0, a)?;
    }
    Ok(())
}

fn peer_closes<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let len = bench.most_bytes()?.min(1 << 20);
    let (own, theirs) = (bench.open_memory(0, len as usize)?, bench.open_memory(1, len as usize)?);
    for _ in 0..6 {
        let (a, b) = bench.connect(0, 1)?;
        let ids = start(bench, (0, a), &own, &theirs, len)?;
        let other = start(bench, (1, b), &theirs, &own, len)?;
        for _ in 0..bench.random.below(30) {
            bench.turn();
        }
        bench.port(1)?.close(b);
        all_complete(bench, 0, a, &ids)?;
        all_complete(bench, 1, b, &other)?;
        bench.lost(0, a)?;
        bench.close(0, a)?;
        bench.event(1, "closed", |event| (*event == Event::Closed { connection: b }).then_some(()))?;
    }
    Ok(())
}

fn we_close<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let len = bench.most_bytes()?.min(1 << 20);
    let (own, theirs) = (bench.open_memory(0, len as usize)?, bench.open_memory(1, len as usize)?);
    for _ in 0..6 {
        let (a, b) = bench.connect(0, 1)?;
        let ids = start(bench, (0, a), &own, &theirs, len)?;
        for _ in 0..bench.random.below(30) {
            bench.turn();
        }
        bench.port(0)?.close(a);
        let after = bench.port(0)?.send(Work::new(a, 1), CompletionSource::Gather(&[]), None);
        equal("send", after, Err(PostError::NotReady))?;
        all_complete(bench, 0, a, &ids)?;
        bench.event(0, "closed", |event| (*event == Event::Closed { connection: a }).then_some(()))?;
        let reported = bench.nodes[0]
            .events
            .iter()
            .any(|it| matches!(it, Event::Lost { connection, .. } if *connection == a));
        ensure(!reported, || "lost, after it was closed".into())?;
        bench.lost(1, b)?;
        bench.close(1, b)?;
    }
    Ok(())
}

fn bystander<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(3)?;
    let len = bench.most_bytes()?.min(1 << 20);
    let own = bench.open_memory(0, len as usize)?;
    let (theirs, other) = (bench.open_memory(1, len as usize)?, bench.open_memory(2, len as usize)?);
    let ((a, _), (c, d)) = (bench.connect(0, 1)?, bench.connect(0, 2)?);
    own.put(0, &filled(5, len as usize));
    let spoiled = bench.open_memory(0, len as usize)?;
    let ids = start(bench, (0, a), &spoiled, &theirs, len)?;
    let part = [own.slice(0, len)];
    bench
        .port(0)?
        .write(Work::new(c, 1), CompletionSource::Gather(&part), other.at(0), None)
        .map_err(text)?;
    if let Some(port) = bench.nodes[1].port.take() {
        bench.fabric.kill(port);
    }
    all_complete(bench, 0, a, &ids)?;
    bench.succeeds(0, 1)?;
    bench.works((0, c), (2, d))?;
    equal("byte that is wrong", difference(5, &other.get(0, len as usize)), None)
}

/// Deregisters, with as many attempts as necessary.
fn take_back<F: Fabric>(bench: &mut Bench<F>, node: usize, memory: &Memory) -> Verdict {
    let mut last = Ok(());
    bench.until("deregistered", |bench| {
        let Some(port) = bench.nodes[node].port.as_mut() else { return true };
        last = port.deregister(memory.region);
        last != Err(RegisterError::Busy)
    })?;
    last.map_err(|error| format!("deregister while in use: {error}"))
}

/// Deregisters memory of `node` in the middle of work of all kinds between `own` and `theirs`. From then on
/// nothing may touch the memory, and the connection must still end in good order.
fn taken_back<F: Fabric>(
    bench: &mut Bench<F>,
    round: usize,
    (own, theirs): (&Memory, &Memory),
    node: usize,
    len: u32,
) -> Verdict {
    let (taken, other) = if node == 0 { (own, theirs) } else { (theirs, own) };
    let (a, b) = bench.connect(0, 1)?;
    let ids = start(bench, (0, a), own, theirs, len)?;
    // In the middle, whether the fabric is fast or slow.
    for _ in 0..bench.random.below(if round.is_multiple_of(2) { 4 } else { 20 }) {
        bench.turn();
    }
    take_back(bench, node, taken)?;
    // From here on, nothing touches the memory.
    taken.put(0, &vec![0xcc; len as usize]);
    bench.rest();
    ensure(taken.get(0, len as usize).iter().all(|byte| *byte == 0xcc), || {
        "written after it was taken back".into()
    })?;
    bench.port(0)?.close(a);
    all_complete(bench, 0, a, &ids)?;
    bench.close(1, b)?;
    let is_forgiven = node == 1 && bench.fabric.answers_late();
    let is_stale = other.get(0, len as usize).contains(&0xcc);
    ensure(is_forgiven || !is_stale, || "read after it was taken back".into())
}

fn deregister_source<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let len = bench.most_bytes()?.min(16 << 20);
    let theirs = bench.open_memory(1, len as usize)?;
    for round in 0..10 {
        let own = bench.open_memory(0, len as usize)?;
        taken_back(bench, round, (&own, &theirs), 0, len)?;
    }
    Ok(())
}

fn deregister_target<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let len = bench.most_bytes()?.min(4 << 20);
    let own = bench.open_memory(0, len as usize)?;
    for round in 0..10 {
        let theirs = bench.open_memory(1, len as usize)?;
        taken_back(bench, round, (&own, &theirs), 1, len)?;
        bench.port(0)?.key(own.region).ok_or("the other side's region is gone")?;
    }
    Ok(())
}

fn dropped<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let len = bench.most_bytes()?.min(1 << 20);
    let (own, theirs) = (bench.open_memory(0, len as usize)?, bench.open_memory(1, len as usize)?);
    let from = bench.memory(0, len as usize, RegionAccess::NONE)?;
    let (a, _) = bench.connect(0, 1)?;
    from.put(0, &vec![0x11; len as usize]);
    let ids = start(bench, (0, a), &own, &theirs, len)?;
    let part = [from.slice(0, len)];
    let late = bench.port(0)?.write(Work::new(a, 1), CompletionSource::Gather(&part), theirs.at(0), None);
    ensure(matches!(late, Ok(()) | Err(PostError::QueueFull | PostError::NotReady)), || format!("{late:?}"))?;
    (0..3).for_each(|_| bench.turn());
    drop(bench.nodes[1].port.take());
    theirs.put(0, &vec![0xcc; len as usize]);
    bench.rest();
    ensure(theirs.get(0, len as usize).iter().all(|byte| *byte == 0xcc), || "written after the drop".into())?;
    for id in ids {
        bench.completion(0, id)?;
    }
    bench.lost(0, a)
}
