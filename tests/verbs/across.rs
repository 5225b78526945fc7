//! Two processes, on two hosts if there are two (see `tests/vm/README.md`). Each has a port, and gets the
//! address of the other's memory only by a message.

use nemesia_core::port::memory::{
    Address, CompletionSource, Event, MemoryKey, MemoryPort, ReceiveQueue, RegionAccess, Work, WorkOutcome,
};
use nemesia_tests::content::{difference, filled};
use nemesia_tests::memory_port::bench::{Bench, Memory};

use crate::device::{resources, until_resources};
use crate::ends::{Target, hex};
use crate::fabric::Devices;
use crate::usable;

const NAME: &str = "across::a_hundred_connections_to_another_process_carry_data_and_leave_nothing";
/// Set in the other process.
const ROLE: &str = "NEMESIA_TEST_VERBS_PEER";
const CONNECTIONS: u64 = 100;
const SIZES: [u32; 5] = [1, 64, 4097, 70_000, 1 << 20];
/// The bytes of the last connection: more than one work request of soft `RoCE` may carry.
const LEN: usize = 64 << 20;
/// The words of a message: seed and length, or the position of wrong content.
const WORDS: u32 = 16;

fn words(memory: &Memory, at: u64, first: u64, second: u64) {
    memory.put(at, &first.to_ne_bytes());
    memory.put(at + 8, &second.to_ne_bytes());
}

/// Lends memory, publishes it, and answers each connection whether the written bytes are right. Ends when it is
/// killed.
fn serve(mut bench: Bench<Devices>) -> Result<(), String> {
    bench.open(1)?;
    let (memory, control) = (bench.open_memory(0, LEN)?, bench.memory(0, 64, RegionAccess::LOCAL)?);
    let address = bench.port(0)?.address().ok_or("no address")?;
    println!("target {} {}", hex(address.bytes()), hex(&memory.key.to_bytes()));
    loop {
        let connection = bench.event(0, "request", |event| match event {
            Event::Requested { connection, .. } => Some(*connection),
            _ => None,
        })?;
        let offer = bench.offer(&[], false);
        let mut id = bench.next_id();
        let (into, from) = ([control.slice(0, WORDS)], [control.slice(32, WORDS)]);
        let receives = ReceiveQueue::Of(connection);
        bench.port(0)?.receive(receives, id, &into).map_err(|error| error.to_string())?;
        bench.port(0)?.accept(connection, &offer).map_err(|error| error.to_string())?;
        // A message may arrive before this event; nothing can be sent before it.
        bench.event(0, "established", |event| matches!(event, Event::Established { .. }).then_some(()))?;
        while let WorkOutcome::Received { .. } = bench.completion(0, id)?.outcome {
            let (seed, len) = (control.word(0), control.word(8));
            let wrong = difference(seed, &memory.get(0, len as usize)).map_or(0, |at| at as u64 + 1);
            memory.put(0, &filled(seed + 1, len as usize));
            words(&control, 32, wrong, len);
            id = bench.next_id();
            bench.port(0)?.receive(receives, id, &into).map_err(|error| error.to_string())?;
            let reply = bench.next_id();
            let posted =
                bench.port(0)?.send(Work::new(connection, reply), CompletionSource::Gather(&from), None);
            posted.map_err(|error| error.to_string())?;
            bench.succeeds(0, reply)?;
        }
        bench.lost(0, connection)?;
        bench.close(0, connection)?;
    }
}

/// Makes one connection: writes, asks whether the bytes arrived, reads them back, closes.
fn visit(
    bench: &mut Bench<Devices>,
    (address, key): (&Address, &MemoryKey),
    (memory, control): (&Memory, &Memory),
    round: u64,
) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| format!("connection {round}: {error}");
    let (seed, len) = match round + 1 {
        CONNECTIONS => (round * 2, LEN as u32),
        _ => (round * 2, SIZES[round as usize % SIZES.len()]),
    };
    let offer = bench.offer(&[], false);
    let connection = bench.port(0)?.connect(address, &offer).map_err(|error| text(&error))?;
    bench.event(0, "established", |event| matches!(event, Event::Established { .. }).then_some(()))?;
    let (answer, [write, ask, read]) = (bench.next_id(), [bench.next_id(), bench.next_id(), bench.next_id()]);
    memory.put(0, &filled(seed, len as usize));
    words(control, 0, seed, len.into());
    let part = [memory.slice(0, len)];
    let port = bench.port(0)?;
    let into = [control.slice(32, WORDS)];
    port.receive(ReceiveQueue::Of(connection), answer, &into).map_err(|error| text(&error))?;
    let posted = port.write(Work::new(connection, write), CompletionSource::Gather(&part), key.at(0), None);
    posted.map_err(|error| text(&error))?;
    let message = [control.slice(0, WORDS)];
    let posted = port.send(Work::new(connection, ask), CompletionSource::Gather(&message), None);
    posted.map_err(|error| text(&error))?;
    let received = bench.received(0, answer)?;
    let wrong = (control.word(32), control.word(40));
    if received.0 != WORDS || wrong != (0, len.into()) {
        return Err(text(&format!("{received:?}, and {wrong:?} is wrong of {len} bytes written")));
    }
    bench.succeeds(0, write)?;
    bench.succeeds(0, ask)?;
    let posted = bench.port(0)?.read(Work::new(connection, read), &part, key.at(0));
    posted.map_err(|error| text(&error))?;
    bench.succeeds(0, read)?;
    if let Some(at) = difference(seed + 1, &memory.get(0, len as usize)) {
        return Err(text(&format!("byte {at} of {len} that were read is wrong")));
    }
    bench.close(0, connection)
}

#[test]
fn a_hundred_connections_to_another_process_carry_data_and_leave_nothing() {
    let Some(addresses) = usable(NAME) else { return };
    let is_peer = std::env::var_os(ROLE).is_some();
    let Some(before) = resources() else { return nemesia_tests::skip(NAME, "no `rdma`; install iproute2") };
    // The last address: if both hosts are visible, the other process does not use it.
    let own = if is_peer { addresses[addresses.len() - 1] } else { addresses[0] };
    let mut bench = Bench::new(Devices::new(&[own]));
    if is_peer {
        panic!("{:?}", serve(bench));
    }
    let mut target = Target::start(NAME, ROLE);
    bench.open(1).unwrap();
    let (memory, control) =
        (bench.open_memory(0, LEN).unwrap(), bench.memory(0, 64, RegionAccess::LOCAL).unwrap());
    for round in 0..CONNECTIONS {
        visit(&mut bench, (&target.address, &target.key), (&memory, &control), round).unwrap();
    }
    target.kill();
    assert_ne!(resources().unwrap(), before, "what is in use is counted");
    drop(bench);
    until_resources(&before);
}
