//! Operations that a target refuses, and operations that are refused before they are posted.

use nemesia_core::payload::LentMemory;
use nemesia_core::port::memory::{
    CompletionSource, Connection, MemoryPort, PortRegion, PostError, ReceiveQueue, RegionAccess,
    RegisterError, RemoteRange, Slice, Work, WorkError, WorkOutcome,
};

use super::bench::{Bench, Memory};
use super::{Check, Fabric, Verdict, ensure, equal};

pub(super) fn checks<F: Fabric>() -> Vec<(&'static str, Check<F>)> {
    vec![
        ("a_target_refuses_what_it_has_not_allowed", target),
        ("keys_of_deregistered_regions_are_refused", stale_key),
        ("own_mistakes_are_refused_before_they_are_posted", local),
        ("registrations_have_a_limit", registrations),
        ("unknown_regions_and_connections_are_refused", unknown),
    ]
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Attempts an access that the target must refuse; another connection to the target goes on.
fn refused<F: Fabric>(
    bench: &mut Bench<F>,
    what: &str,
    victim: &Memory,
    post: impl Fn(&mut F::Port, Connection) -> Result<(), PostError>,
    proves: bool,
) -> Verdict {
    let (good, bad) = (bench.connect(0, 1)?, bench.connect(0, 1)?);
    let len = victim.key.len as usize;
    let before = vec![0x77; len];
    victim.put(0, &before);
    let wait = bench.post_small(1, ReceiveQueue::Of(bad.1))?;
    post(bench.port(0)?, bad.0).map_err(|error| format!("{what}: {error}"))?;
    let outcome = bench.completion(0, 5)?.outcome;
    if proves {
        let allowed = [
            WorkOutcome::Failed(WorkError::Refused),
            WorkOutcome::Failed(WorkError::Invalid),
            // The answer may be lost with the connection.
            WorkOutcome::Failed(WorkError::Flushed),
        ];
        ensure(allowed.contains(&outcome), || format!("{what}: {outcome:?}"))?;
    }
    bench.fails(1, wait).map_err(|error| format!("{what}: {error}"))?;
    bench.lost(1, bad.1)?;
    bench.lost(0, bad.0)?;
    ensure(victim.get(0, len) == before, || format!("{what}: was done"))?;
    bench.works((0, good.0), (1, good.1)).map_err(|error| format!("another connection, {what}: {error}"))?;
    for (node, connection) in [(0, good.0), (0, bad.0), (1, good.1), (1, bad.1)] {
        bench.close(node, connection)?;
    }
    Ok(())
}

fn target<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let proves = bench.facts()?.write_proves_placement;
    let (from, victim) = (bench.memory(0, 256, RegionAccess::NONE)?, bench.open_memory(1, 128)?);
    let sink = bench.sink(0, 256)?;
    let read_only = bench.memory(1, 128, RegionAccess { remote_read: true, ..RegionAccess::LOCAL })?;
    let write_only = bench.memory(1, 128, RegionAccess { remote_write: true, ..RegionAccess::LOCAL })?;
    let wrong_key = |at: RemoteRange| RemoteRange { key: at.key ^ 0x55, ..at };
    let cases: [(&str, RemoteRange, u32, &Memory); 8] = [
        ("wrong key", wrong_key(victim.at(0)), 8, &victim),
        ("key 0", RemoteRange { key: 0, ..victim.at(0) }, 8, &victim),
        ("one byte too long", victim.at(0), 129, &victim),
        ("beyond the end", victim.at(121), 8, &victim),
        ("before the start", victim.at(0_u64.wrapping_sub(1)), 8, &victim),
        ("wrapping around", victim.at(u64::MAX - 3), 8, &victim),
        ("far away", victim.at(1 << 40), 8, &victim),
        ("at address 0", RemoteRange { address: 0, ..victim.at(0) }, 8, &victim),
    ];
    for (what, at, len, memory) in cases {
        let part = [from.slice(0, len)];
        let write =
            |port: &mut F::Port, to| port.write(Work::new(to, 5), CompletionSource::Gather(&part), at, None);
        refused(bench, &format!("write, {what}"), memory, write, proves)?;
        let part = [sink.slice(0, len)];
        let read = |port: &mut F::Port, to| port.read(Work::new(to, 5), &part, at);
        refused(bench, &format!("read, {what}"), memory, read, true)?;
        equal("nothing was read", sink.get(0, 256), vec![0; 256])?;
    }
    let part = [from.slice(0, 8)];
    let write = |port: &mut F::Port, to| {
        port.write(Work::new(to, 5), CompletionSource::Gather(&part), read_only.at(0), None)
    };
    refused(bench, "write where only reading is allowed", &read_only, write, proves)?;
    let part = [sink.slice(0, 8)];
    let read = |port: &mut F::Port, to| port.read(Work::new(to, 5), &part, write_only.at(0));
    // siw checks only the key and the bounds of a read.
    if proves {
        refused(bench, "read where only writing is allowed", &write_only, read, true)
    } else {
        Ok(())
    }
}

fn stale_key<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let proves = bench.facts()?.write_proves_placement;
    let from = bench.memory(0, 64, RegionAccess::NONE)?;
    for _ in 0..3 {
        let victim = bench.open_memory(1, 64)?;
        let old = victim.at(0);
        bench.port(1)?.deregister(victim.region).map_err(text)?;
        equal("key", bench.port(1)?.key(victim.region), None)?;
        let again = bench.port(1)?.deregister(victim.region);
        equal("deregistered again", again, Err(RegisterError::Unknown))?;
        // Most likely at the same address.
        let next = bench.open_memory(1, 64)?;
        ensure(next.region != victim.region, || "a number is used again".into())?;
        ensure(next.key.key != victim.key.key, || "a key is used again at once".into())?;
        let part = [from.slice(0, 8)];
        let write =
            |port: &mut F::Port, to| port.write(Work::new(to, 5), CompletionSource::Gather(&part), old, None);
        refused(bench, "write with an old key", &next, write, proves)?;
        bench.port(1)?.deregister(next.region).map_err(text)?;
    }
    Ok(())
}

fn local<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let facts = bench.facts()?;
    let (from, to) = (bench.memory(0, 64, RegionAccess::NONE)?, bench.open_memory(1, 64)?);
    let gone = bench.memory(0, 64, RegionAccess::LOCAL)?;
    bench.port(0)?.deregister(gone.region).map_err(text)?;
    let port = bench.port(0)?;
    let work = Work::new(a, 1);
    let bounds = Err(PostError::Bounds { part: 0 });
    for slice in [from.slice(0, 65), from.slice(60, 5), from.slice(u64::MAX, 1), from.slice(65, 0)] {
        equal("send", port.send(work, CompletionSource::Gather(&[slice]), None), bounds)?;
        equal("write", port.write(work, CompletionSource::Gather(&[slice]), to.at(0), None), bounds)?;
        equal("receive", port.receive(ReceiveQueue::Of(a), 1, &[slice]), bounds)?;
    }
    let stale = Err(PostError::Region { part: 0 });
    equal("send", port.send(work, CompletionSource::Gather(&[gone.slice(0, 8)]), None), stale)?;
    equal("read", port.read(work, &[gone.slice(0, 8)], to.at(0)), stale)?;
    equal("receive", port.receive(ReceiveQueue::Of(a), 1, &[gone.slice(0, 8)]), stale)?;
    let access = Err(PostError::Access { part: 0 });
    equal("read into what we may not write", port.read(work, &[from.slice(0, 8)], to.at(0)), access)?;
    let receive = port.receive(ReceiveQueue::Of(a), 1, &[from.slice(0, 8)]);
    equal("receive into what we may not write", receive, access)?;
    if facts.atomics {
        let add = port.fetch_add(work, from.slice(0, 8), to.at(0), 1);
        equal("result into what we may not write", add, access)?;
    }
    if facts.slices > 1 {
        let two = [from.slice(0, 8), from.slice(0, 65)];
        let second = Err(PostError::Bounds { part: 1 });
        equal("second part", port.send(work, CompletionSource::Gather(&two), None), second)?;
    }
    // None of them was posted or did harm.
    bench.works((0, a), (1, b))?;
    ensure(bench.nodes[0].done.is_empty(), || format!("{:?}", bench.nodes[0].done))
}

fn registrations<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(1)?;
    let limit = bench.facts()?.regions;
    let nothing = || {
        // SAFETY: no bytes.
        unsafe { LentMemory::from_raw(std::ptr::null_mut(), 0) }
    };
    let inconsistent = RegionAccess { local_write: false, ..RegionAccess::ALL };
    equal("rights", bench.port(0)?.register(nothing(), inconsistent), Err(RegisterError::Rights))?;
    if !bench.facts()?.atomics {
        // Some devices accept the right and have no operation that uses it.
        let got = bench.port(0)?.register(nothing(), RegionAccess::ALL);
        let said = matches!(got, Ok(_) | Err(RegisterError::Unsupported));
        ensure(said, || format!("right to atomic operations: {got:?}"))?;
        if let Ok(region) = got {
            bench.port(0)?.deregister(region).map_err(text)?;
        }
    }
    if limit > 1000 {
        return Ok(());
    }
    let mut all = Vec::new();
    for _ in 0..limit {
        all.push(bench.memory(0, 16, RegionAccess::LOCAL)?.region);
    }
    let more = bench.port(0)?.register(nothing(), RegionAccess::NONE);
    equal("one more", more, Err(RegisterError::Full { limit }))?;
    for region in all {
        bench.port(0)?.deregister(region).map_err(text)?;
    }
    bench.memory(0, 16, RegionAccess::LOCAL).map(|_| ())
}

fn unknown<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let from = bench.memory(0, 64, RegionAccess::LOCAL)?;
    for (index, generation) in
        [(u32::MAX, 0), (u32::MAX, u32::MAX), (from.region.index, u32::MAX), (1 << 20, 1)]
    {
        let region = PortRegion { index, generation };
        let port = bench.port(0)?;
        equal("key", port.key(region), None)?;
        equal("deregister", port.deregister(region), Err(RegisterError::Unknown))?;
        let part = [Slice { region, offset: 0, len: 1 }];
        let sent = port.send(Work::new(a, 1), CompletionSource::Gather(&part), None);
        equal("send", sent, Err(PostError::Region { part: 0 }))?;
        let connection = Connection { index, generation };
        let sent = port.send(Work::new(connection, 1), CompletionSource::Gather(&[]), None);
        equal("send", sent, Err(PostError::NotReady))?;
        equal("receive", port.receive(ReceiveQueue::Of(connection), 1, &[]), Err(PostError::NotReady))?;
        port.close(connection);
    }
    bench.works((0, a), (1, b))
}
