//! Every operation, of every size, with its contents.

use nemesia_core::payload::GatherList;
use nemesia_core::port::memory::{
    CompletionSource, MemoryPort, PostError, ReceiveQueue, RegionAccess, Slice, Work, WorkOutcome,
};

use super::bench::{Bench, Memory};
use super::{Check, Fabric, Verdict, ensure, equal};
use crate::content::{difference, filled};

pub(super) fn checks<F: Fabric>() -> Vec<(&'static str, Check<F>)> {
    vec![
        ("writes_of_all_sizes", writes),
        ("reads_of_all_sizes", reads),
        ("sends_of_all_sizes", sends),
        ("messages_that_leave_from_where_their_bytes_are", at_once),
        ("a_message_behind_an_empty_write_takes_the_next_receive", behind_empty),
        ("immediates", immediates),
        ("inline_bytes_are_copied_by_the_call", inline),
        ("lists_of_parts", lists),
        ("regions_of_no_bytes", empty),
        ("both_directions_at_once", both),
        ("a_write_completes_although_its_target_stops_after_the_message", stops),
    ]
}

/// Returns sizes around the boundaries of implementations.
fn sizes(most: u32) -> Vec<u32> {
    let powers = [8, 64, 128, 1024, 4096, 16384, 65536, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
    let mut all = vec![0, 1, 2, 3];
    all.extend(powers.into_iter().flat_map(|size: u32| match size {
        ..=65536 => vec![size - 1, size, size + 1],
        _ => vec![size],
    }));
    all.push(most);
    all.retain(|size| *size <= most);
    all.sort_unstable();
    all.dedup();
    all
}

/// The guard bytes before and after, which must not change.
const MARGIN: u64 = 64;

fn frame(memory: &Memory, len: u32) {
    memory.put(0, &[0xa5; MARGIN as usize]);
    memory.put(MARGIN, &vec![0x5a; len as usize]);
    memory.put(MARGIN + u64::from(len), &[0xa5; MARGIN as usize]);
}

fn check_frame(memory: &Memory, seed: u64, len: u32) -> Verdict {
    let found = memory.get(MARGIN, len as usize);
    if let Some(at) = difference(seed, &found) {
        return Err(format!("{len} bytes: byte {at} is wrong"));
    }
    let (before, after) =
        (memory.get(0, MARGIN as usize), memory.get(MARGIN + u64::from(len), MARGIN as usize));
    ensure(before.iter().chain(&after).all(|byte| *byte == 0xa5), || format!("{len} bytes: more was written"))
}

fn writes<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let (most, proves) = (bench.most_transfer()?, bench.facts()?.write_proves_placement);
    let room = most as usize + 2 * MARGIN as usize;
    let (from, to) = (bench.memory(0, room, RegionAccess::NONE)?, bench.open_memory(1, room)?);
    for (id, len) in (1..).zip(sizes(most)) {
        frame(&to, len);
        from.put(3, &filled(id, len as usize));
        let part = [from.slice(3, len)];
        let posted =
            bench.port(0)?.write(Work::new(a, id), CompletionSource::Gather(&part), to.at(MARGIN), None);
        posted.map_err(|error| format!("{len} bytes: {error}"))?;
        bench.succeeds(0, id)?;
        if proves {
            check_frame(&to, id, len)?;
        }
        bench.flush((0, a), (1, b))?;
        check_frame(&to, id, len)?;
    }
    Ok(())
}

fn reads<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let most = bench.most_transfer()?;
    let room = most as usize + 2 * MARGIN as usize;
    let from = bench.memory(1, room, RegionAccess { remote_read: true, ..RegionAccess::NONE })?;
    let to = bench.sink(0, room)?;
    for (id, len) in (1..).zip(sizes(most)) {
        frame(&to, len);
        from.put(5, &filled(id, len as usize));
        let part = [to.slice(MARGIN, len)];
        let posted = bench.port(0)?.read(Work::new(a, id), &part, from.at(5));
        posted.map_err(|error| format!("{len} bytes: {error}"))?;
        bench.succeeds(0, id)?;
        check_frame(&to, id, len)?;
    }
    bench.works((0, a), (1, b))
}

fn sends<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let most = bench.most_bytes()?;
    let room = most as usize + 2 * MARGIN as usize;
    let (from, to) =
        (bench.memory(0, room, RegionAccess::NONE)?, bench.memory(1, room, RegionAccess::LOCAL)?);
    for (id, len) in (1..).zip(sizes(most)) {
        frame(&to, len);
        from.put(1, &filled(id, len as usize));
        // More room than needed, where that is possible.
        let spare = (most - len).min(MARGIN as u32);
        let into = [to.slice(MARGIN, len + spare)];
        let posted = bench.port(1)?.receive(ReceiveQueue::Of(b), id, &into);
        posted.map_err(|error| format!("receive of {len} bytes: {error}"))?;
        let part = [from.slice(1, len)];
        let posted = bench.port(0)?.send(Work::new(a, id), CompletionSource::Gather(&part), None);
        posted.map_err(|error| format!("{len} bytes: {error}"))?;
        equal("message", bench.received(1, id)?, (len, None, false))?;
        check_frame(&to, id, len)?;
        bench.succeeds(0, id)?;
    }
    Ok(())
}

/// Bytes that the port does not take at once are found in the room of the message.
fn at_once<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let most = bench.most_bytes()?;
    let room = most as usize + 2 * MARGIN as usize;
    let (from, to) =
        (bench.memory(0, room, RegionAccess::LOCAL)?, bench.memory(1, room, RegionAccess::LOCAL)?);
    let (can, mut left) = (bench.port(0)?.sends_at_once(), 0);
    for (id, len) in (1..).zip(sizes(most)) {
        frame(&to, len);
        let into = [to.slice(MARGIN, len)];
        let posted = bench.port(1)?.receive(ReceiveQueue::Of(b), id, &into);
        posted.map_err(|error| format!("receive of {len} bytes: {error}"))?;
        // The peer reports that there is room for a message.
        if can {
            bench.rest();
        }
        let bytes = filled(id, len as usize);
        let (head, body) = bytes.split_at(bytes.len().min(40));
        let mut list = GatherList::new();
        list.push(head);
        list.push(body);
        let (work, part) = (Work::new(a, id), from.slice(1, len));
        let taken = bench.port(0)?.send_at_once(work, &list, part);
        match taken.map_err(|error| format!("{len} bytes: {error}"))? {
            Some(taken) => {
                from.put(1 + taken as u64, &bytes[taken..]);
                left += 1;
            }
            None => {
                from.put(1, &bytes);
                let posted = bench.port(0)?.send(work, CompletionSource::Gather(&[part]), None);
                posted.map_err(|error| format!("{len} bytes: {error}"))?;
            }
        }
        equal("message", bench.received(1, id)?, (len, None, false))?;
        check_frame(&to, id, len)?;
        bench.succeeds(0, id)?;
    }
    ensure(can == (left > 0), || format!("{left} messages left at once"))?;
    bench.works((0, a), (1, b))
}

/// A port may expect what came last. An empty write with an immediate has no bytes, but takes a receive.
fn behind_empty<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let (facts, len) = (bench.facts()?, bench.most_bytes()?.min(5000));
    if !facts.immediates || facts.send_depth.min(facts.receive_depth) < 2 {
        return bench.works((0, a), (1, b));
    }
    let room = 2 * (len as usize + 2 * MARGIN as usize);
    let (from, to) = (bench.memory(0, room, RegionAccess::NONE)?, bench.open_memory(1, room)?);
    let (empty, second) = (to.slice(0, len), u64::from(len) + MARGIN);
    for round in 0..8 {
        let (write, send) = (2 * round + 1, 2 * round + 2);
        to.put(0, &vec![0; room]);
        from.put(0, &filled(send, len as usize));
        for (id, part) in [(write, empty), (send, to.slice(second, len))] {
            let posted = bench.port(1)?.receive(ReceiveQueue::Of(b), id, &[part]);
            posted.map_err(|error| format!("round {round}: a receive: {error}"))?;
        }
        bench.rest();
        let port = bench.port(0)?;
        let written = port.write(Work::new(a, write), CompletionSource::Gather(&[]), to.at(0), Some(7));
        let part = [from.slice(0, len)];
        let sent = port.send(Work::new(a, send), CompletionSource::Gather(&part), None);
        written.and(sent).map_err(|error| format!("round {round}: {error}"))?;
        bench.received(1, write)?;
        equal("message", bench.received(1, send)?, (len, None, false))?;
        let found = difference(send, &to.get(second, len as usize));
        ensure(found.is_none(), || format!("round {round}: byte {found:?} is wrong"))?;
        equal("the receive of the empty write", to.get(0, len as usize), vec![0; len as usize])?;
        bench.succeeds(0, write)?;
        bench.succeeds(0, send)?;
    }
    Ok(())
}

fn immediates<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let (has, message) = (bench.facts()?.immediates, bench.facts()?.message_bytes);
    let most = bench.most_transfer()?.min(100_000);
    let room = most as usize + 2 * MARGIN as usize;
    let (from, to) = (bench.memory(0, room, RegionAccess::NONE)?, bench.open_memory(1, room)?);
    let part = [from.slice(0, 8)];
    if !has {
        for immediate in [Some(0), Some(u32::MAX)] {
            let port = bench.port(0)?;
            let sent = port.send(Work::new(a, 1), CompletionSource::Gather(&part), immediate);
            equal("send with immediate", sent, Err(PostError::Unsupported))?;
            let written = port.write(Work::new(a, 1), CompletionSource::Gather(&part), to.at(0), immediate);
            equal("write with immediate", written, Err(PostError::Unsupported))?;
        }
        return bench.works((0, a), (1, b));
    }
    for (id, len) in (1..).zip(sizes(most)) {
        frame(&to, len);
        from.put(0, &filled(id, len as usize));
        let immediate = 0xdead_beef_u32.rotate_left(id as u32);
        // The memory of a receive that a write consumes is not written.
        let nowhere = bench.port(1)?.receive(ReceiveQueue::Of(b), id, &[]);
        nowhere.map_err(|error| format!("receive without memory: {error}"))?;
        let part = [from.slice(0, len)];
        let write = bench.port(0)?.write(
            Work::new(a, id),
            CompletionSource::Gather(&part),
            to.at(MARGIN),
            Some(immediate),
        );
        write.map_err(|error| format!("{len} bytes: {error}"))?;
        let (reported, found, written) = bench.received(1, id)?;
        let is_known = reported == len || reported == 0 || len > message && reported < len;
        ensure(is_known, || format!("{len} bytes written, {reported} reported"))?;
        equal("immediate", (found, written), (Some(immediate), true))?;
        check_frame(&to, id, len)?;
        bench.succeeds(0, id)?;
    }
    let into = [to.slice(MARGIN, 8)];
    bench.port(1)?.receive(ReceiveQueue::Of(b), 900, &into).map_err(|error| error.to_string())?;
    let posted = bench.port(0)?.send(Work::new(a, 901), CompletionSource::Gather(&part), Some(7));
    posted.map_err(|error| error.to_string())?;
    equal("send with immediate", bench.received(1, 900)?, (8, Some(7), false))?;
    bench.succeeds(0, 901)
}

fn inline<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let limit = bench.facts()?.inline_bytes;
    let to = bench.open_memory(1, limit as usize + 2 * MARGIN as usize)?;
    for (id, len) in (1..).zip(sizes(limit)) {
        frame(&to, len);
        let mut bytes = filled(id, len as usize);
        let posted =
            bench.port(0)?.write(Work::new(a, id), CompletionSource::Inline(&bytes), to.at(MARGIN), None);
        posted.map_err(|error| format!("{len} bytes inline: {error}"))?;
        bytes.fill(0xee);
        drop(bytes);
        bench.succeeds(0, id)?;
        bench.flush((0, a), (1, b))?;
        check_frame(&to, id, len)?;
        frame(&to, len);
        let mut bytes = filled(id, len as usize);
        let into = [to.slice(MARGIN, len)];
        bench.port(1)?.receive(ReceiveQueue::Of(b), id, &into).map_err(|error| error.to_string())?;
        let posted = bench.port(0)?.send(Work::new(a, id), CompletionSource::Inline(&bytes), None);
        posted.map_err(|error| format!("{len} bytes inline: {error}"))?;
        bytes.fill(0xee);
        equal("message", bench.received(1, id)?, (len, None, false))?;
        check_frame(&to, id, len)?;
        bench.succeeds(0, id)?;
    }
    let long = vec![1; limit as usize + 1];
    let posted = bench.port(0)?.write(Work::new(a, 1), CompletionSource::Inline(&long), to.at(0), None);
    equal("one byte more inline", posted, Err(PostError::Length { limit }))?;
    bench.works((0, a), (1, b))
}

/// Returns parts of one memory, of random sizes, in another order than their addresses.
fn parts<F: Fabric>(bench: &mut Bench<F>, memory: &Memory, total: u32, count: u32) -> Vec<Slice> {
    let mut ends: Vec<u32> =
        (1..count).map(|_| bench.random.below(u64::from(total) + 1) as u32).chain([total]).collect();
    ends.sort_unstable();
    let starts = [0].into_iter().chain(ends.clone());
    let lens: Vec<u32> = starts.zip(&ends).map(|(start, end)| end - start).collect();
    let mut offset = 0;
    let mut slices: Vec<Slice> = lens
        .into_iter()
        .map(|len| {
            let slice = memory.slice(offset, len);
            offset += u64::from(len) + 3;
            slice
        })
        .collect();
    slices.reverse();
    slices
}

fn gathered(memory: &Memory, slices: &[Slice]) -> Vec<u8> {
    slices.iter().flat_map(|slice| memory.get(slice.offset, slice.len as usize)).collect()
}

fn lists<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let (facts, most) = (bench.facts()?, bench.most_bytes()?);
    let room = 70_000;
    let (from, to) = (bench.memory(0, room, RegionAccess::NONE)?, bench.open_memory(1, room)?);
    let sink = bench.sink(0, room)?;
    from.put(0, &filled(7, room));
    for id in 1..=20_u64 {
        let count = bench.random.below(facts.slices.into()) as u32 + 1;
        let total = most.min(bench.random.below(60_000) as u32);
        let (source, into) = (parts(bench, &from, total, count), parts(bench, &to, total, facts.slices));
        let wanted = gathered(&from, &source);
        bench.port(1)?.receive(ReceiveQueue::Of(b), id, &into).map_err(|error| error.to_string())?;
        let posted = bench.port(0)?.send(Work::new(a, id), CompletionSource::Gather(&source), None);
        posted.map_err(|error| format!("send of {count} parts: {error}"))?;
        equal("message", bench.received(1, id)?, (total, None, false))?;
        ensure(gathered(&to, &into) == wanted, || format!("send of {count} parts, {total} bytes: wrong"))?;
        bench.succeeds(0, id)?;

        to.put(0, &vec![0; room]);
        let posted =
            bench.port(0)?.write(Work::new(a, id), CompletionSource::Gather(&source), to.at(1), None);
        posted.map_err(|error| format!("write of {count} parts: {error}"))?;
        bench.succeeds(0, id)?;
        bench.flush((0, a), (1, b))?;
        ensure(to.get(1, total as usize) == wanted, || {
            format!("write of {count} parts, {total} bytes: wrong")
        })?;

        let into = parts(bench, &sink, total, facts.read_slices);
        let posted = bench.port(0)?.read(Work::new(a, id), &into, to.at(1));
        posted.map_err(|error| format!("read to {} parts: {error}", into.len()))?;
        bench.succeeds(0, id)?;
        ensure(gathered(&sink, &into) == wanted, || format!("read to {} parts: wrong", into.len()))?;
    }
    let many = vec![from.slice(0, 1); facts.slices as usize + 1];
    let posted = bench.port(0)?.send(Work::new(a, 1), CompletionSource::Gather(&many), None);
    equal("one part more", posted, Err(PostError::Slices { limit: facts.slices }))?;
    let many = vec![sink.slice(0, 1); facts.read_slices as usize + 1];
    let posted = bench.port(0)?.read(Work::new(a, 1), &many, to.at(0));
    equal("one part more of a read", posted, Err(PostError::Slices { limit: facts.read_slices }))
}

fn empty<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let to = bench.open_memory(1, 16)?;
    to.put(0, &[9; 16]);
    // A list without parts.
    let posted = bench.port(0)?.write(Work::new(a, 1), CompletionSource::Gather(&[]), to.at(16), None);
    posted.map_err(|error| format!("write of nothing: {error}"))?;
    bench.succeeds(0, 1)?;
    bench.port(1)?.receive(ReceiveQueue::Of(b), 2, &[]).map_err(|error| error.to_string())?;
    bench
        .port(0)?
        .send(Work::new(a, 2), CompletionSource::Gather(&[]), None)
        .map_err(|error| error.to_string())?;
    equal("message", bench.received(1, 2)?, (0, None, false))?;
    bench.succeeds(0, 2)?;
    bench
        .port(0)?
        .read(Work::new(a, 3), &[], to.at(0))
        .map_err(|error| format!("read of nothing: {error}"))?;
    bench.succeeds(0, 3)?;
    equal("untouched", to.get(0, 16), vec![9; 16])
}

fn both<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let len = bench.most_transfer()?.min(8 << 20);
    let ends = [(0, a), (1, b)];
    let mut memories = Vec::new();
    for (node, _) in ends {
        let (from, to) =
            (bench.memory(node, len as usize, RegionAccess::NONE)?, bench.open_memory(node, len as usize)?);
        from.put(0, &filled(node as u64 + 40, len as usize));
        memories.push((from, to));
    }
    // Neither side may wait until the other stops sending.
    for (node, connection) in ends {
        let (part, target) = ([memories[node].0.slice(0, len)], memories[1 - node].1.at(0));
        let posted =
            bench.port(node)?.write(Work::new(connection, 1), CompletionSource::Gather(&part), target, None);
        posted.map_err(|error| error.to_string())?;
    }
    for (node, _) in ends {
        equal("write", bench.completion(node, 1)?.outcome, WorkOutcome::Done)?;
    }
    bench.works((0, a), (1, b))?;
    for (node, (_, to)) in memories.iter().enumerate() {
        let wrong = difference(41 - node as u64, &to.get(0, len as usize));
        equal("byte that is wrong", wrong, None)?;
    }
    Ok(())
}

/// Writes, each known to the target by its immediate or by a message after it. The target then makes no more calls.
fn stops<F: Fabric>(bench: &mut Bench<F>) -> Verdict {
    bench.open(2)?;
    let (a, b) = bench.connect(0, 1)?;
    let facts = bench.facts()?;
    // A longer write may take several places of the queue.
    let most = bench.most_bytes()?.min(300_000);
    let (from, to) =
        (bench.memory(0, most as usize, RegionAccess::NONE)?, bench.open_memory(1, most as usize)?);
    let can = |is_message: bool| if is_message { facts.send_depth > 1 } else { facts.immediates };
    let ways = [false, true].into_iter().filter(|is_message| can(*is_message));
    for (id, (len, is_message)) in
        (1..).zip(sizes(most).into_iter().flat_map(|len| ways.clone().map(move |way| (len, way))))
    {
        let part = [from.slice(0, len)];
        bench.port(1)?.receive(ReceiveQueue::Of(b), id, &[]).map_err(|error| error.to_string())?;
        let immediate = (!is_message).then_some(7);
        let written =
            bench.port(0)?.write(Work::new(a, id), CompletionSource::Gather(&part), to.at(0), immediate);
        written.map_err(|error| format!("{len} bytes: {error}"))?;
        if is_message {
            let sent = bench.port(0)?.send(Work::new(a, 1000 + id), CompletionSource::Inline(&[]), None);
            sent.map_err(|error| format!("message after {len} bytes: {error}"))?;
        }
        bench.received(1, id)?;
        bench.only = Some(0);
        bench.succeeds(0, id)?;
        bench.only = None;
        if is_message {
            bench.succeeds(0, 1000 + id)?;
        }
    }
    Ok(())
}
