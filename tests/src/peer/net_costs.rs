//! `net-costs HOSTS`: a world on so many hosts, whose ranks all talk with each other. Each rank compares what its
//! connections between machines have with the bill by the settings.

use std::process::Command;

use nemesia::{Config, Endpoint, Error, NetBill, NetUsage, Source, Tag};

use super::{Outcome, demand, ensure, tell};

/// The exchange with all others, the wait for the counts, and the end.
const TAGS: [u64; 3] = [1, 2, 3];

/// Sends an empty message to every other rank, and receives one from each.
fn meet(endpoint: &mut Endpoint, tag: u64) -> Outcome {
    let (rank, size) = (endpoint.rank(), endpoint.size());
    for step in 1..size {
        let (to, from) = ((rank + step) % size, (rank + size - step) % size);
        endpoint.scope(|scope| {
            scope.isend(to, tag, &[])?;
            Ok::<(), Error>(())
        })?;
        endpoint.recv(Source::Rank(from), Tag::Exactly(tag), &mut [])?;
    }
    Ok(())
}

/// Returns the queue pairs of this process, as the kernel counts them.
fn queue_pairs() -> Outcome<u32> {
    let shown = Command::new("rdma").args(["resource", "show", "qp"]).output()?;
    let own = format!(" pid {} ", std::process::id());
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    Ok(text.lines().filter(|line| format!("{line} ").contains(&own) && line.contains("type RC")).count()
        as u32)
}

pub(super) fn run(hosts: u64) -> Outcome {
    let config = Config::from_env().map_err(Error::from)?;
    // A launcher may have left some.
    let (before, inherited) = (descriptors()?, demand::listeners()?);
    let mut endpoint = Endpoint::open(&config)?;
    let opened = descriptors()?;
    meet(&mut endpoint, TAGS[0])?;
    let bill = NetBill::new(&config, endpoint.size() as u32, hosts as u32);
    let usage = endpoint.net_usage().ok_or_else(|| super::Fault::Broken("there is no port".into()))?;
    compare(&bill, &usage)?;
    let transport = bill.transports.into_iter().find(|it| it.transport == usage.transport);
    let transport = transport.ok_or_else(|| super::Fault::Broken("the bill has no such transport".into()))?;
    if transport.descriptors_per_connection > 0 {
        // The connection of a call ends a little after the one that it has made.
        let wanted = (transport.descriptors_per_connection * bill.connections) as usize;
        demand::settle(&mut endpoint, wanted)?;
        // With epoll, and without that of calls, which every endpoint has.
        let found = (demand::listeners()? - inherited) as u32;
        ensure(found == transport.descriptors, || format!("{found} descriptors, {transport:?}"))?;
    } else {
        let found = queue_pairs()?;
        ensure(found == transport.queue_pairs, || format!("{found} queue pairs, {transport:?}"))?;
        ensure(opened >= before + transport.descriptors as usize, || format!("{opened}, {transport:?}"))?;
    }
    // All stay until all have counted.
    meet(&mut endpoint, TAGS[1])?;
    meet(&mut endpoint, TAGS[2])?;
    tell(&format!("{usage:?}"))?;
    Ok(endpoint.close()?)
}

fn descriptors() -> Outcome<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

/// Compares what is there after one small message in each direction. With the fewest receives no buffer is added.
fn compare(bill: &NetBill, usage: &NetUsage) -> Outcome {
    let wrong = |what: &str| format!("{what}: {usage:?}, but the bill is {bill:?}");
    ensure(usage.connections == bill.connections, || wrong("connections"))?;
    // The packets of calls and messages may have shown that a peer lacks some.
    ensure((bill.first_buffers..=bill.most_buffers).contains(&usage.buffers), || wrong("buffers"))?;
    let Some(it) = bill.transports.iter().find(|it| it.transport == usage.transport) else {
        return super::broken(wrong("transport"));
    };
    let buffers = u64::from(usage.buffers) * it.buffer_bytes;
    ensure([buffers, buffers + it.ring_bytes].contains(&usage.bytes), || wrong("bytes"))?;
    ensure((usage.send_depth, usage.receive_depth) == (it.send_depth, it.receive_depth), || wrong("depths"))?;
    ensure(usage.completion_entries >= it.completion_entries, || wrong("completions"))?;
    ensure((usage.completion_entries == 0) == (it.completion_entries == 0), || wrong("completion queue"))
}
