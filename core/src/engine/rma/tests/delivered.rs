//! Puts and accumulates that are complete when their target has executed them.

use std::vec;
use std::vec::Vec;

use super::forged::{forge, protocol};
use super::{ALL, BYTES};
use crate::engine::rma::{
    Access, Addressing, CompleteAt, Datatype, Reduction, Refusal, RemoteKey, Target, WINDOW,
};
use crate::engine::tests::world::{AMPLE, RequestHandle, World, WorldRoom};
use crate::engine::{CompletionError, Failure, RequestId, StartError, Status};
use crate::port::{PeerId, PortFault};
use crate::shared::tests::contents;
use crate::shared::tests::fabric::WorldShape;
use crate::shared::tests::fabric::{Fabric, FabricRegion, tiny};
use crate::wire::Kind;
use crate::wire::rma::{Confirm, Head, RmaOperation, Verb};

impl World<'_> {
    fn deliver(
        &mut self,
        from: PeerId,
        key: &RemoteKey,
        bytes: &[u8],
        notify: bool,
    ) -> Result<RequestHandle, StartError> {
        let (loan, buf) = self.lender.send(from, bytes.to_vec());
        let target = Target { key, offset: key.base };
        let started = self.engine(from).put(&target, buf, notify, CompleteAt::Target);
        self.handle(from, loan, started)
    }
}

const fn refused(refusal: Refusal) -> CompletionError {
    CompletionError::Refused { peer: 1, refusal, count: 1 }
}

#[test]
fn a_delivered_put_is_complete_when_its_bytes_are_there() {
    for len in [0, 8, 300, BYTES] {
        let fabric = Fabric::new(tiny(2));
        let memory = FabricRegion::new(BYTES);
        let mut world = World::new(&fabric, AMPLE);
        let (id, key) = world.expose(1, &memory, ALL, 7);
        let bytes = contents(len as u64, len);
        let put = world.deliver(0, &key, &bytes, true).unwrap();
        let outcome = loop {
            world.engine(0).progress();
            if let Some((outcome, _)) = world.test(put) {
                break outcome;
            }
            world.engine(1).progress();
        };
        assert_eq!(outcome, Ok(Status { peer: 1, tag: 0, len, immediate: None }));
        assert_eq!(memory.copy()[..len], bytes[..]);
        assert_eq!(world.engine(1).notifications(id), Some(1), "one for all packets");
        assert!(!world.engine(0).is_unflushed(1), "a flush has nothing to wait for");
        assert_eq!(world.flush(0, 1).unwrap().id, RequestId::SENT);
        world.assert_empty(&[0, 1], "delivered");
    }
}

#[test]
fn a_refusal_is_reported_by_the_delivered_operation_and_not_by_a_flush() {
    let fabric = Fabric::new(tiny(2));
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    world.expose(1, &memory, Access::Read, 7);
    let forged = RemoteKey::new(1, 7);
    let unasked = world.put(0, &forged, 0, &[1; 8]).unwrap();
    let put = world.deliver(0, &forged, &[1; 600], true).unwrap();
    let (loan, buf) = world.lender.send(0, vec![1; 8]);
    let sum = (Datatype::U64, Reduction::Sum);
    let target = Target { key: &forged, offset: 0 };
    let started = world.engine(0).accumulate(&target, sum, buf, CompleteAt::Target);
    let add = world.handle(0, loan, started).unwrap();
    let flush = world.flush(0, 1).unwrap();
    world.settle();
    world.good(unasked);
    assert_eq!(world.done(put).0, Err(refused(Refusal::Access)));
    assert_eq!(world.done(add).0, Err(refused(Refusal::Access)));
    assert_eq!(world.done(flush).0, Err(refused(Refusal::Access)), "that of the first put alone");
    let flush = world.flush(0, 1).unwrap();
    world.good(flush);
    assert_eq!(memory.copy(), vec![0; BYTES]);
    world.assert_empty(&[0, 1], "refused");
}

#[test]
fn a_refused_packet_in_the_middle_is_reported_with_the_last() {
    let fabric = Fabric::new(WorldShape { cells: 4, fastbox_slots: 4, ..tiny(2) });
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    let (id, key) = world.expose(1, &memory, ALL, 7);
    let put = world.deliver(0, &key, &[1; BYTES], false).unwrap();
    // The first packets are executed, the next ones are refused, and the rest is executed again.
    world.engine(1).progress();
    assert!(world.engine(1).unexpose(id));
    world.engine(0).progress();
    world.engine(1).progress();
    assert!(world.test(put).is_none());
    world.engine(1).expose(memory.exposed(), ALL, 7, Addressing::Offset).unwrap();
    world.settle();
    let copy = memory.copy();
    assert!(copy[0] == 1 && copy[BYTES - 1] == 1 && copy.contains(&0), "only the middle is missing");
    assert_eq!(world.done(put).0, Err(refused(Refusal::Key)));
    let next = world.deliver(0, &key, &[2; BYTES], false).unwrap();
    world.settle();
    world.good(next);
    world.assert_empty(&[0, 1], "refused");
}

#[test]
fn a_target_that_fails_before_its_answer_fails_the_delivered_put() {
    let fabric = Fabric::new(tiny(2));
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    let (_, key) = world.expose(1, &memory, ALL, 7);
    let put = world.deliver(0, &key, &[1; 8], false).unwrap();
    assert!(world.test(put).is_none());
    world.engine(0).fail(1, Failure::Died);
    let failed = CompletionError::PeerFailed { peer: 1, failure: Failure::Died };
    assert_eq!(world.done(put).0, Err(failed));
    assert!(world.engine(0).flush(1).is_err(), "its outcome is not known");
    world.assert_empty(&[0], "dead");
}

#[test]
fn many_delivered_puts_wait_for_the_window_and_need_slots() {
    let fabric = Fabric::new(WorldShape { fastbox_slots: 4096, ..tiny(2) });
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, WorldRoom { requests: 3 * WINDOW as usize, ..AMPLE });
    let (_, key) = world.expose(1, &memory, ALL, 7);
    let puts: Vec<_> = (0..3 * WINDOW).map(|_| world.deliver(0, &key, &[1; 8], false).unwrap()).collect();
    let full = Some(StartError::Requests { capacity: 3 * WINDOW as usize });
    assert_eq!(world.deliver(0, &key, &[2; 8], false).err(), full);
    world.settle();
    puts.into_iter().for_each(|put| drop(world.good(put)));
    assert_eq!(memory.copy()[..9], [1, 1, 1, 1, 1, 1, 1, 1, 0], "a put without a slot has not begun");
    // To oneself, it is executed at once.
    let own = FabricRegion::new(BYTES);
    let (_, key) = world.expose(0, &own, ALL, 7);
    let put = world.deliver(0, &key, &[3; 8], false).unwrap();
    assert_eq!((put.id, own.copy()[0]), (RequestId::SENT, 3));
    let refused = world.deliver(0, &RemoteKey::new(0, 8), &[3; 8], false).err();
    assert_eq!(refused, Some(StartError::Refused(Refusal::Key)));
}

#[test]
fn answers_that_no_delivered_put_awaits_are_faults() {
    for (context, bytes) in [(0, &[1][..]), (6, &[]), (1, &[0; 8])] {
        let fabric = Fabric::new(WorldShape { fastbox_slots: 64, ..tiny(2) });
        let memory = FabricRegion::new(BYTES);
        let mut world = World::new(&fabric, AMPLE);
        let (_, key) = world.expose(1, &memory, ALL, 7);
        let put = world.deliver(0, &key, &[1; 8], false).unwrap();
        let failure = forge(&mut world, Kind::RmaReply, context, put.id.to_bits(), bytes);
        assert_eq!(failure, protocol(Kind::RmaReply), "{context} {bytes:?}");
        assert!(world.done(put).0.is_err());
    }
    // The last packets have not left.
    let fabric = Fabric::new(WorldShape { cells: 4, fastbox_slots: 4, ..tiny(2) });
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    let (_, key) = world.expose(1, &memory, ALL, 7);
    let put = world.deliver(0, &key, &[1; BYTES], false).unwrap();
    let failure = forge(&mut world, Kind::RmaReply, 0, put.id.to_bits(), &[]);
    assert_eq!(failure, protocol(Kind::RmaReply));
    assert!(world.done(put).0.is_err());
}

#[test]
fn more_confirmed_puts_than_the_window_are_a_fault_and_not_memory() {
    let fabric = Fabric::new(WorldShape { fastbox_slots: 4096, ..tiny(2) });
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    world.expose(0, &memory, ALL, 7);
    let head = Head { key: 7, offset: 0, value: 0, expected: 0 }.encode();
    let put = Verb { confirm: Confirm::Now, ..Verb::plain(RmaOperation::Put) };
    for asked in 1.. {
        let failure = forge(&mut world, Kind::Rma, put.encode(), asked, &head[..put.head_bytes()]);
        if failure.is_some() {
            assert_eq!(failure, Some(Failure::Fault(PortFault::Window)));
            break;
        }
        assert!(world.engine(0).replies.used() <= WINDOW as usize);
        assert!(asked < 100_000, "answers leave no bound");
    }
    assert_eq!(world.engine(0).replies.used(), 0);
}
