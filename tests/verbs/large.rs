//! 64 MiB at once, which is more than one work request of soft `RoCE` may carry.

use nemesia_core::port::memory::{CompletionSource, MemoryPort, PostError, ReceiveQueue, RegionAccess, Work};
use nemesia_tests::content::{difference, filled};
use nemesia_tests::memory_port::bench::Bench;

use crate::fabric::Devices;
use crate::usable;

const LEN: u32 = 64 << 20;

#[test]
fn sixty_four_mebibytes_are_written_and_read_whole() {
    let Some(addresses) = usable("sixty_four_mebibytes_are_written_and_read_whole") else { return };
    let mut bench = Bench::new(Devices::new(&addresses));
    bench.open(2).unwrap();
    let facts = bench.facts().unwrap();
    println!("messages of up to {} bytes, transfers of up to {}", facts.message_bytes, facts.transfer_bytes);
    assert!(facts.transfer_bytes >= LEN);
    let (a, b) = bench.connect(0, 1).unwrap();
    let size = LEN as usize;
    let (from, to) =
        (bench.memory(0, size, RegionAccess::NONE).unwrap(), bench.open_memory(1, size).unwrap());
    let back = bench.sink(0, size).unwrap();
    let part = [from.slice(0, LEN)];
    from.put(0, &filled(1, size));
    bench.port(0).unwrap().write(Work::new(a, 1), CompletionSource::Gather(&part), to.at(0), None).unwrap();
    bench.succeeds(0, 1).unwrap();
    bench.flush((0, a), (1, b)).unwrap();
    assert_eq!(difference(1, &to.get(0, size)), None);
    bench.port(0).unwrap().read(Work::new(a, 2), &[back.slice(0, LEN)], to.at(0)).unwrap();
    bench.succeeds(0, 2).unwrap();
    assert_eq!(difference(1, &back.get(0, size)), None);
    if facts.immediates {
        from.put(0, &filled(3, size));
        bench.port(1).unwrap().receive(ReceiveQueue::Of(b), 3, &[]).unwrap();
        bench
            .port(0)
            .unwrap()
            .write(Work::new(a, 3), CompletionSource::Gather(&part), to.at(0), Some(33))
            .unwrap();
        let (reported, immediate, written) = bench.received(1, 3).unwrap();
        println!("the immediate reported {reported} of the bytes that were written");
        assert_eq!((immediate, written, difference(3, &to.get(0, size))), (Some(33), true, None));
        bench.succeeds(0, 3).unwrap();
    }
    bench.port(1).unwrap().receive(ReceiveQueue::Of(b), 4, &[to.slice(0, LEN)]).unwrap();
    from.put(0, &filled(4, size));
    let sent = bench.port(0).unwrap().send(Work::new(a, 4), CompletionSource::Gather(&part), None);
    if facts.message_bytes < LEN {
        // A message is one work request: its bound is the device's, and the error names it.
        assert_eq!(sent, Err(PostError::Length { limit: facts.message_bytes }));
        let most = [from.slice(0, facts.message_bytes)];
        bench.port(0).unwrap().send(Work::new(a, 4), CompletionSource::Gather(&most), None).unwrap();
    } else {
        sent.unwrap();
    }
    let len = LEN.min(facts.message_bytes);
    assert_eq!(bench.received(1, 4).unwrap(), (len, None, false));
    assert_eq!(difference(4, &to.get(0, len as usize)), None);
    bench.succeeds(0, 4).unwrap();
}
