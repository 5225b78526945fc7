//! Rendezvous packets that violate the protocol: the connection fails, and nothing else is affected.

use crate::engine::tests::world::{AMPLE, RequestHandle, World, pattern};
use crate::engine::{CompletionError, Failure, RequestId, Status};
use crate::matching::Source;
use crate::port::PacketPieces;
use crate::port::{PacketPort, PeerId, PortFault};
use crate::shared::tests::contents;
use crate::shared::tests::fabric::{Fabric, Reading, tiny};
use crate::wire::listed::ListedBytes;
use crate::wire::rendezvous::{Cts, Descriptor, RTS_BYTES, Rts};
use crate::wire::{Envelope, Kind};

use std::vec;
use std::vec::Vec;

/// Three ranks. Rank 1 has a message of 3000 bytes in progress to rank 0, and rank 0 one to rank 1. Rank 2 is
/// honest and waits too.
struct ProtocolStage<'a> {
    world: World<'a>,
    receive: RequestHandle,
    send: RequestHandle,
    /// Rank 0's operations with rank 2.
    others: [RequestHandle; 2],
}

const LEN: usize = 3000;

impl<'a> ProtocolStage<'a> {
    fn new(fabric: &'a Fabric) -> Self {
        let mut world = World::new(fabric, AMPLE);
        let receive = world.recv(0, 1, 1, LEN);
        let send = world.isend(0, 1, 2, contents(2, LEN));
        let others = [world.recv(0, 2, 1, LEN), world.isend(0, 2, 2, contents(2, LEN))];
        Self { world, receive, send, others }
    }

    fn packet(&mut self, from: PeerId, kind: Kind, tag: u64, payload: &[u8]) -> Option<Failure> {
        let envelope = Envelope { kind, context: 0, tag, total: payload.len() as u64 };
        assert_eq!(
            self.world.engine(from).port_mut().send(0, &envelope, PacketPieces::Whole(payload)),
            Ok(true)
        );
        self.world.engine(0).progress();
        self.world.engine(0).failure(from)
    }

    fn rts(&mut self, rts: Rts) -> Option<Failure> {
        self.packet(1, Kind::Rts, 1, &rts.encode())
    }

    fn cts(&mut self, cts: Cts) -> Option<Failure> {
        self.packet(1, Kind::Cts, 0, &cts.encode())
    }

    /// Rank 0 announces its message, and matches one of rank 1.
    fn begin(&mut self) {
        let rts = Rts::of(LEN as u64, 77, None);
        assert_eq!(self.rts(rts), None);
    }

    /// Checks that rank 1 was failed for this packet, that operations with it end, and that all others
    /// continue.
    fn assert_found_out(mut self, found: Option<Failure>, kind: Kind) {
        let failure = Failure::Fault(PortFault::Protocol { kind });
        assert_eq!(found, Some(failure));
        let completion_error = Err(CompletionError::PeerFailed { peer: 1, failure });
        assert_eq!(self.world.done(self.receive).0, completion_error);
        assert_eq!(self.world.done(self.send).0, completion_error);
        self.assert_untouched();
        self.world.assert_empty(&[0], "after a violation by rank 1");
    }

    fn assert_untouched(&mut self) {
        assert_eq!(self.world.engine(0).failure(2), None);
        let [receive, send] = self.others;
        let take = self.world.recv(2, 0, 2, LEN);
        let give = self.world.isend(2, 0, 1, contents(1, LEN));
        for _ in 0..50 {
            self.world.engine(0).progress();
            self.world.engine(2).progress();
        }
        assert_eq!(self.world.done(receive).1, contents(1, LEN));
        assert_eq!(self.world.done(take).1, contents(2, LEN));
        self.world.done(send).0.unwrap();
        self.world.done(give).0.unwrap();
    }
}

#[test]
fn invalid_rts_is_a_fault() {
    let good = Rts::of(70, 1, None);
    let mut long = good.encode().to_vec();
    long.extend([7; 71]);
    let huge = Rts { total: 1 << 63, ..good }.encode().to_vec();
    let cases: [Vec<u8>; 5] =
        [Vec::new(), good.encode()[..8].to_vec(), good.encode()[..RTS_BYTES - 1].to_vec(), long, huge];
    for payload in cases {
        // Once for a posted receive, and once for the store.
        for tag in [1, 9] {
            let fabric = Fabric::new(tiny(3));
            let mut stage = ProtocolStage::new(&fabric);
            let found = stage.packet(1, Kind::Rts, tag, &payload);
            stage.assert_found_out(found, Kind::Rts);
        }
    }
}

#[test]
fn rts_that_changes_after_it_was_checked_changes_nothing() {
    for probed in [false, true] {
        let fabric = Fabric::new(tiny(3));
        let mut stage = ProtocolStage::new(&fabric);
        stage.world.engine(0).port_mut().twist = true;
        let rts = Rts::of(70, 1, None);
        assert_eq!(stage.packet(1, Kind::Rts, 9, &rts.encode()), None);
        stage.world.engine(0).port_mut().twist = false;
        let wanted = pattern(Source::Rank(1), 9);
        assert_eq!(
            stage.world.engine(0).iprobe(&wanted),
            Some(Status { peer: 1, tag: 9, len: 70, immediate: None })
        );
        let receive = match probed {
            true => {
                let (id, _) = stage.world.improbe(0, wanted).unwrap();
                stage.world.imrecv(0, id, 70).unwrap()
            }
            false => stage.world.irecv(0, wanted, 70).unwrap(),
        };
        assert_eq!(stage.packet(1, Kind::Data, receive.id.to_bits(), &[3; 70]), None);
        assert_eq!(
            stage.world.done(receive),
            (Ok(Status { peer: 1, tag: 9, len: 70, immediate: None }), std::vec![3; 70])
        );
        stage.assert_untouched();
    }
}

#[test]
fn malformed_active_messages_and_one_sided_packets_end_messages_too() {
    for kind in [Kind::Active, Kind::Rma, Kind::RmaReply] {
        let fabric = Fabric::new(tiny(3));
        let mut stage = ProtocolStage::new(&fabric);
        let found = stage.packet(1, kind, u64::MAX, &[1; 32]);
        stage.assert_found_out(found, kind);
    }
}

#[test]
fn cts_that_answers_nothing_or_requests_too_much_is_a_fault() {
    type Wrong = fn(&ProtocolStage<'_>, Cts) -> Cts;
    let cases: [Wrong; 11] = [
        |_, cts| Cts { sender: cts.sender ^ 1, ..cts },
        |_, cts| Cts { sender: cts.sender ^ 1 << 32, ..cts },
        |_, cts| Cts { sender: u64::MAX, ..cts },
        |_, cts| Cts { sender: RequestId::SENT.to_bits(), ..cts },
        |stage, cts| Cts { sender: stage.receive.id.to_bits(), ..cts },
        |stage, cts| Cts { sender: stage.others[0].id.to_bits(), ..cts },
        // A message for another rank.
        |stage, cts| Cts { sender: stage.others[1].id.to_bits(), ..cts },
        |_, cts| Cts { end: cts.end + 1, ..cts },
        |_, cts| Cts { end: u64::MAX, start: u64::MAX - 1, ..cts },
        |_, cts| Cts { start: cts.end, ..cts },
        |_, cts| Cts { start: cts.end - 1, end: 1, ..cts },
    ];
    for wrong in cases {
        let fabric = Fabric::new(tiny(3));
        let mut stage = ProtocolStage::new(&fabric);
        let right = Cts {
            sender: stage.send.id.to_bits(),
            receiver: 5,
            start: 0,
            end: LEN as u64,
            descriptor: Descriptor::NONE,
        };
        let wrong = wrong(&stage, right);
        let found = stage.cts(wrong);
        stage.assert_found_out(found, Kind::Cts);
    }
}

#[test]
fn answer_of_the_wrong_length_is_a_fault() {
    for (kind, len) in
        [(Kind::Cts, 0), (Kind::Cts, 32), (Kind::Cts, 48), (Kind::Fin, 0), (Kind::Fin, 7), (Kind::Fin, 16)]
    {
        let fabric = Fabric::new(tiny(3));
        let mut stage = ProtocolStage::new(&fabric);
        let mut payload = Cts {
            sender: stage.send.id.to_bits(),
            receiver: 5,
            start: 0,
            end: 1,
            descriptor: Descriptor::NONE,
        }
        .encode()
        .to_vec();
        payload.resize(len, 0);
        let found = stage.packet(1, kind, 0, &payload);
        stage.assert_found_out(found, kind);
    }
}

#[test]
fn second_answer_is_a_fault() {
    for first in [Kind::Cts, Kind::Fin] {
        for second in [Kind::Cts, Kind::Fin] {
            let fabric = Fabric::new(tiny(3));
            let mut stage = ProtocolStage::new(&fabric);
            let sender = stage.send.id.to_bits();
            let cts =
                Cts { sender, receiver: 5, start: 0, end: LEN as u64, descriptor: Descriptor::NONE }.encode();
            let payload = |kind| if kind == Kind::Cts { cts.to_vec() } else { sender.to_le_bytes().to_vec() };
            assert_eq!(stage.packet(1, first, 0, &payload(first)), None);
            let found = stage.packet(1, second, 0, &payload(second));
            let failure = Failure::Fault(PortFault::Protocol { kind: second });
            assert_eq!(found, Some(failure));
            let (outcome, _) = stage.world.done(stage.send);
            assert_eq!(outcome.is_ok(), first == Kind::Fin, "a complete request stays complete");
            assert!(stage.world.done(stage.receive).0.is_err());
            stage.assert_untouched();
            stage.world.assert_empty(&[0], "after a second answer");
        }
    }
}

#[test]
fn fin_that_ends_nothing_is_a_fault() {
    type Wrong = fn(&ProtocolStage<'_>) -> u64;
    let cases: [Wrong; 6] = [
        |stage| stage.send.id.to_bits() ^ 1,
        |stage| stage.receive.id.to_bits(),
        |stage| stage.others[0].id.to_bits(),
        |stage| stage.others[1].id.to_bits(),
        |_| u64::MAX,
        |_| RequestId::SENT.to_bits(),
    ];
    for wrong in cases {
        let fabric = Fabric::new(tiny(3));
        let mut stage = ProtocolStage::new(&fabric);
        let wrong = wrong(&stage).to_le_bytes();
        let found = stage.packet(1, Kind::Fin, 0, &wrong);
        stage.assert_found_out(found, Kind::Fin);
    }
}

#[test]
fn data_before_it_was_cleared_is_a_fault() {
    for matched in [false, true] {
        // The port must be able to read, so that the receive is not streamed. Rank 0 does not progress to the
        // failing read.
        let fabric = Fabric::reading(tiny(3), Reading::Always, 1);
        let mut stage = ProtocolStage::new(&fabric);
        let bits = stage.receive.id.to_bits();
        if matched {
            let envelope = Envelope { kind: Kind::Rts, context: 0, tag: 1, total: RTS_BYTES as u64 + 8 };
            let bytes = contents(7, LEN);
            let (_, buf) = stage.world.lender.send(1, bytes);
            let rts =
                Rts { descriptor: Descriptor::of_address(buf.address()), ..Rts::of(LEN as u64, 77, None) };
            let port = stage.world.engine(1).port_mut();
            assert_eq!(port.send(0, &envelope, PacketPieces::Whole(&rts.encode())), Ok(true));
            stage.world.engine(0).step();
        }
        let found = stage.packet(1, Kind::Data, bits, &[1; 100]);
        stage.assert_found_out(found, Kind::Data);
    }
}

#[test]
fn data_that_names_nothing_or_does_not_fit_is_a_fault() {
    type Wrong = fn(&ProtocolStage<'_>) -> (PeerId, u64, usize);
    let cases: [Wrong; 8] = [
        |stage| (1, stage.receive.id.to_bits() ^ 1, 100),
        |stage| (1, stage.receive.id.to_bits() ^ 1 << 32, 100),
        |_| (1, u64::MAX, 100),
        |stage| (1, stage.send.id.to_bits(), 100),
        |stage| (1, stage.others[0].id.to_bits(), 100),
        |stage| (1, stage.receive.id.to_bits(), 0),
        |stage| (1, stage.receive.id.to_bits(), 201),
        // Another rank's message.
        |stage| (2, stage.receive.id.to_bits(), 100),
    ];
    for wrong in cases {
        let fabric = Fabric::new(tiny(3));
        let mut stage = ProtocolStage::new(&fabric);
        stage.begin();
        let bits = stage.receive.id.to_bits();
        for _ in 0..14 {
            assert_eq!(stage.packet(1, Kind::Data, bits, &[0xaa; 200]), None);
        }
        let (from, tag, len) = wrong(&stage);
        let found = stage.packet(from, Kind::Data, tag, &[1; 256][..len]);
        if from == 1 {
            stage.assert_found_out(found, Kind::Data);
            continue;
        }
        // Rank 1 obeyed the protocol, and its message continues.
        assert_eq!(found, Some(Failure::Fault(PortFault::Protocol { kind: Kind::Data })));
        assert_eq!(stage.world.engine(0).failure(1), None);
        assert_eq!(stage.packet(1, Kind::Data, bits, &[0xaa; 200]), None);
        let (outcome, bytes) = stage.world.done(stage.receive);
        assert!(outcome.is_ok() && bytes.iter().all(|&byte| byte == 0xaa));
        for handle in stage.others {
            assert!(matches!(stage.world.done(handle).0, Err(CompletionError::PeerFailed { peer: 2, .. })));
        }
    }
}

#[test]
fn data_after_the_last_is_a_fault() {
    let fabric = Fabric::new(tiny(3));
    let mut stage = ProtocolStage::new(&fabric);
    stage.begin();
    let bits = stage.receive.id.to_bits();
    for _ in 0..15 {
        assert_eq!(stage.packet(1, Kind::Data, bits, &[0xaa; 200]), None);
    }
    let found = stage.packet(1, Kind::Data, bits, &[0xbb; 1]);
    assert_eq!(found, Some(Failure::Fault(PortFault::Protocol { kind: Kind::Data })));
    let (outcome, bytes) = stage.world.done(stage.receive);
    assert!(outcome.is_ok() && bytes.iter().all(|&byte| byte == 0xaa), "the receive was complete");
    assert!(stage.world.done(stage.send).0.is_err());
    stage.assert_untouched();
    stage.world.assert_empty(&[0], "too much data");
}

#[test]
fn address_that_is_unreadable_fails_the_read_and_nothing_else() {
    for address in [1, 4096, u64::MAX, u64::MAX - 2000] {
        let fabric = Fabric::reading(tiny(3), Reading::Always, 1);
        let mut stage = ProtocolStage::new(&fabric);
        assert_eq!(
            stage.rts(Rts { descriptor: Descriptor::of_address(address), ..Rts::of(LEN as u64, 77, None) }),
            None
        );
        for _ in 0..10 {
            stage.world.engine(0).progress();
        }
        // Rank 0 now requests the bytes as a stream.
        let bits = stage.receive.id.to_bits();
        for _ in 0..15 {
            assert_eq!(stage.packet(1, Kind::Data, bits, &[0xaa; 200]), None);
        }
        let (outcome, bytes) = stage.world.done(stage.receive);
        assert!(outcome.is_ok() && bytes.iter().all(|&byte| byte == 0xaa), "address {address:#x}");
        stage.assert_untouched();
    }
}

/// The sender's list can name anything. Runs may be empty or overlap, as in an honest list.
#[test]
fn a_hostile_list_of_runs_fails_the_read_and_nothing_else() {
    const EMPTY: (u64, u64) = (u64::MAX, 0);
    /// Returns runs, and the described length, for a readable buffer of [`LEN`] bytes at this address.
    type Runs = fn(u64) -> (Vec<(u64, u64)>, u64);
    let len = LEN as u64;
    let cases: [(bool, Runs); 10] = [
        (true, |base| (vec![(base, 1), EMPTY, (base + 1, LEN as u64 - 1), EMPTY], LEN as u64)),
        (true, |base| (vec![(base, LEN as u64 - 10), (base + 5, 10)], LEN as u64)),
        // More bytes, and fewer, than the description; fewer than the message.
        (false, |base| (vec![(base, LEN as u64), (base, 1)], LEN as u64)),
        (false, |base| (vec![(base, LEN as u64 - 1), EMPTY], LEN as u64)),
        (false, |base| (vec![(base, 100), (base, 100)], 200)),
        (false, |_| (vec![EMPTY; 8], 0)),
        // Runs that are not memory of the sender, and that go beyond it.
        (false, |base| (vec![(base, 100), (4096, LEN as u64 - 100)], LEN as u64)),
        (false, |base| (vec![(base + LEN as u64 - 100, LEN as u64)], LEN as u64)),
        // Sums that exceed the largest number.
        (false, |base| (vec![(base, u64::MAX), (base, LEN as u64 + 1)], LEN as u64)),
        (false, |_| (vec![(u64::MAX - 1, LEN as u64)], LEN as u64)),
    ];
    // The table itself may be elsewhere, or nowhere.
    let cases = cases.into_iter().enumerate();
    for (number, (is_read, runs), shift) in cases.flat_map(|(at, case)| [0, 1].map(|shift| (at, case, shift)))
    {
        let fabric = Fabric::reading(tiny(3), Reading::Always, 1);
        let mut stage = ProtocolStage::new(&fabric);
        let (_, buf) = stage.world.lender.send(1, vec![0xaa; LEN]);
        let (runs, described) = runs(buf.address());
        let words = runs.iter().flat_map(|(address, len)| [*address, *len]);
        let (_, table) = stage.world.lender.send(1, words.flat_map(u64::to_le_bytes).collect());
        let table = table.address() + shift;
        let list = ListedBytes { table, count: runs.len(), serial: 1, len: described };
        let descriptor = Descriptor::of_list(&list).unwrap();
        let rts = Rts { descriptor, ..Rts::of(len, 77, None) };
        assert_eq!(stage.rts(rts), None);
        for _ in 0..10 {
            stage.world.engine(0).progress();
        }
        let read = fabric.with_memory(|memory| memory.pulled);
        assert!(read <= 2 * len, "{read} bytes in case {number}");
        if !is_read || shift > 0 {
            // Rank 0 now requests the missing bytes as a stream.
            let bits = stage.receive.id.to_bits();
            for _ in 0..15 {
                assert_eq!(stage.packet(1, Kind::Data, bits, &[0xaa; 200]), None, "case {number}");
            }
        }
        let (outcome, bytes) = stage.world.done(stage.receive);
        assert!(outcome.is_ok() && bytes.iter().all(|&byte| byte == 0xaa), "case {number}");
        stage.assert_untouched();
    }
}
