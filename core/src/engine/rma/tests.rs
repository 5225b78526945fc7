//! One-sided operations: each by itself, refusals, waiting, failures; then forged packets.

mod account;
mod arrays;
mod delivered;
mod forged;
mod keys;

use std::vec;
use std::vec::Vec;

use crate::engine::rma::{
    Access, Addressing, Comparison, CompleteAt, Datatype, ExposeError, Reduction, Refusal, RegionId,
    RemoteKey, Target, WINDOW,
};
use crate::engine::tests::world::{AMPLE, REGIONS, RequestHandle, World, WorldRoom};
use crate::engine::{CompletionError, Failure, RequestId, StartError, Status};
use crate::port::PeerId;
use crate::shared::tests::contents;
use crate::shared::tests::fabric::WorldShape;
use crate::shared::tests::fabric::{Fabric, FabricRegion, tiny};

/// Bytes of a region in these tests: one page.
const BYTES: usize = 4096;
const ALL: Access = Access::ReadWrite;

impl World<'_> {
    /// Exposes memory with a key that the test chooses.
    fn expose(
        &mut self,
        rank: PeerId,
        memory: &FabricRegion,
        access: Access,
        key: u64,
    ) -> (RegionId, RemoteKey) {
        let id = self.engine(rank).expose(memory.exposed(), access, key, Addressing::Offset).unwrap();
        (id, self.engine(rank).remote_key(id).unwrap())
    }

    fn put(
        &mut self,
        from: PeerId,
        key: &RemoteKey,
        offset: u64,
        bytes: &[u8],
    ) -> Result<RequestHandle, StartError> {
        let (loan, buf) = self.lender.send(from, bytes.to_vec());
        let started = self.engine(from).put(&Target { key, offset }, buf, false, CompleteAt::Origin);
        self.handle(from, loan, started)
    }

    fn get(
        &mut self,
        from: PeerId,
        key: &RemoteKey,
        offset: u64,
        len: usize,
    ) -> Result<RequestHandle, StartError> {
        let (loan, mut buf) = self.lender.receive(from, len);
        let started = self.engine(from).get(&Target { key, offset }, &mut buf);
        self.handle(from, loan, started)
    }

    fn fetch(
        &mut self,
        from: PeerId,
        (key, offset): (&RemoteKey, u64),
        datatype: Datatype,
        reduction: Reduction,
        operand: u64,
    ) -> Result<RequestHandle, StartError> {
        let (loan, mut old) = self.lender.receive(from, datatype.bytes());
        let target = Target { key, offset };
        let started = self.engine(from).fetch(&target, datatype, reduction, operand, &mut old);
        self.handle(from, loan, started)
    }

    fn compare_swap(
        &mut self,
        from: PeerId,
        (key, offset): (&RemoteKey, u64),
        datatype: Datatype,
        values: [u64; 2],
    ) -> Result<RequestHandle, StartError> {
        let (loan, mut old) = self.lender.receive(from, datatype.bytes());
        let target = Target { key, offset };
        let started =
            self.engine(from).compare_swap(&target, (datatype, Comparison::Equal), values, &mut old);
        self.handle(from, loan, started)
    }

    fn accumulate(
        &mut self,
        from: PeerId,
        (key, offset): (&RemoteKey, u64),
        datatype: Datatype,
        reduction: Reduction,
        operands: &[u8],
    ) -> Result<RequestHandle, StartError> {
        let (loan, buf) = self.lender.send(from, operands.to_vec());
        let target = Target { key, offset };
        let started = self.engine(from).accumulate(&target, (datatype, reduction), buf, CompleteAt::Origin);
        self.handle(from, loan, started)
    }

    fn fetch_accumulate(
        &mut self,
        from: PeerId,
        (key, offset): (&RemoteKey, u64),
        what: (Datatype, Reduction),
        operands: &[u8],
        len: usize,
    ) -> Result<RequestHandle, StartError> {
        let (_, buf) = self.lender.send(from, operands.to_vec());
        let (loan, mut old) = self.lender.receive(from, len);
        let target = Target { key, offset };
        let started = self.engine(from).fetch_accumulate(&target, what.0, what.1, buf, &mut old);
        self.handle(from, loan, started)
    }

    fn flush(&mut self, from: PeerId, to: PeerId) -> Result<RequestHandle, StartError> {
        let (loan, _) = self.lender.send(from, vec![]);
        let started = self.engine(from).flush(to);
        self.handle(from, loan, started)
    }

    fn good(&mut self, handle: RequestHandle) -> Vec<u8> {
        let (outcome, bytes) = self.done(handle);
        outcome.unwrap();
        bytes
    }
}

#[test]
fn put_bytes_are_there_after_a_flush_and_a_get_returns_them() {
    for slots in [4, 64] {
        let fabric = Fabric::new(WorldShape { fastbox_slots: slots, ..tiny(2) });
        let memory = FabricRegion::new(BYTES);
        let mut world = World::new(&fabric, AMPLE);
        let (_, key) = world.expose(1, &memory, ALL, 77);
        for (salt, len) in [0, 1, 7, 8, 24, 25, 208, 209, 232, 233, 256, 1000, BYTES].into_iter().enumerate()
        {
            let (bytes, offset) = (contents(salt as u64, len), ((BYTES - len) / 2) as u64);
            let put = world.put(0, &key, offset, &bytes).unwrap();
            let flush = world.flush(0, 1).unwrap();
            world.settle();
            world.good(put);
            world.good(flush);
            assert_eq!(memory.copy()[offset as usize..][..len], bytes, "{len}");
            let get = world.get(0, &key, offset, len).unwrap();
            world.settle();
            assert_eq!(world.good(get), bytes, "{len}");
        }
        assert!(!world.engine(0).is_unflushed(1));
        assert_eq!(world.flush(0, 1).unwrap().id, RequestId::SENT, "there is nothing to flush");
        world.assert_empty(&[0, 1], "put and get");
    }
}

#[test]
fn atomic_operations_return_the_old_value() {
    let fabric = Fabric::new(tiny(2));
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    let (_, key) = world.expose(1, &memory, ALL, 77);
    for rank in [0, 1] {
        memory.fill(&5u64.to_le_bytes());
        let value = |world: &mut World<'_>, handle: Result<RequestHandle, _>| {
            let handle: RequestHandle = handle.unwrap();
            world.settle();
            let bytes = world.good(handle);
            bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
        };
        let at = (&key, 0);
        let handle = world.fetch(rank, at, Datatype::U64, Reduction::Sum, 7);
        assert_eq!(value(&mut world, handle), 5);
        let handle = world.compare_swap(rank, at, Datatype::U64, [5, 9]);
        assert_eq!(value(&mut world, handle), 12);
        let handle = world.compare_swap(rank, at, Datatype::U64, [12, u64::MAX]);
        assert_eq!(value(&mut world, handle), 12);
        let handle = world.fetch(rank, at, Datatype::I32, Reduction::Max, 3);
        assert_eq!(value(&mut world, handle), u64::from(u32::MAX), "of -1 and 3");
        let handle = world.compare_swap(rank, (&key, 4), Datatype::U32, [u64::MAX, 1 << 40 | 6]);
        assert_eq!(value(&mut world, handle), u64::from(u32::MAX), "the high halves are ignored");
        let handle = world.fetch(rank, at, Datatype::U64, Reduction::Nothing, 1);
        assert_eq!(value(&mut world, handle), 6 << 32 | 3);
    }
    world.assert_empty(&[0, 1], "atomics");
}

#[test]
fn arrays_are_accumulated_value_by_value_over_several_packets() {
    let fabric = Fabric::new(tiny(2));
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    let (_, key) = world.expose(1, &memory, ALL, 77);
    let values =
        |scale: f32| (0..500u16).flat_map(|n| (f32::from(n) * scale).to_le_bytes()).collect::<Vec<u8>>();
    for rank in [0, 1] {
        memory.fill(&values(1.0));
        let handle = world.accumulate(rank, (&key, 0), Datatype::F32, Reduction::Sum, &values(2.0)).unwrap();
        let flush = world.flush(rank, 1).unwrap();
        world.settle();
        world.good(handle);
        world.good(flush);
        assert_eq!(memory.copy()[..2000], values(3.0));
    }
}

#[test]
fn key_predicts_refusals() {
    let fabric = Fabric::new(tiny(2));
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    let refused = |refusal| Some(StartError::Refused(refusal));
    let (_, read) = world.expose(1, &memory, Access::Read, 1);
    let (_, write) = world.expose(1, &memory, Access::Write, 2);
    let (_, both) = world.expose(1, &memory, ALL, 3);
    assert_eq!(world.put(0, &read, 0, &[1]).err(), refused(Refusal::Access));
    assert_eq!(world.get(0, &write, 0, 1).err(), refused(Refusal::Access));
    let sum = |world: &mut World<'_>, at| world.fetch(0, at, Datatype::I64, Reduction::Sum, 1).err();
    assert_eq!(sum(&mut world, (&write, 0)), refused(Refusal::Access), "an atomic operation also reads");
    assert_eq!(sum(&mut world, (&both, BYTES as u64 - 7)), refused(Refusal::Bounds));
    for offset in [BYTES as u64 - 1, BYTES as u64, u64::MAX] {
        assert_eq!(world.put(0, &both, offset, &[1, 2]).err(), refused(Refusal::Bounds));
        assert_eq!(world.get(0, &both, offset, 2).err(), refused(Refusal::Bounds));
    }
    let and = world.fetch(0, (&both, 0), Datatype::F64, Reduction::And, 1).err();
    assert_eq!(and, refused(Refusal::Undefined));
    let odd = world.accumulate(0, (&both, 0), Datatype::I64, Reduction::Sum, &[0; 12]).err();
    assert_eq!(odd, refused(Refusal::Alignment));
    let elsewhere = RemoteKey { rank: 9, ..both };
    assert_eq!(world.put(0, &elsewhere, 0, &[1]).err(), Some(StartError::Rank { rank: 9, size: 2 }));
    world.assert_empty(&[0, 1], "nothing was sent");
}

#[test]
fn target_refuses_and_reports_requests_that_the_key_does_not_reveal_as_invalid() {
    let fabric = Fabric::new(tiny(2));
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    let (id, key) = world.expose(1, &memory, Access::Read, 1);
    let forged = |key| RemoteKey { access: ALL, len: u64::MAX, ..key };
    let get = |world: &mut World<'_>, key, offset| {
        let handle = world.get(0, &key, offset, 8).unwrap();
        world.settle();
        world.done(handle).0
    };
    let refused = |refusal| Err(CompletionError::Refused { peer: 1, refusal, count: 1 });
    for (wrong, offset, refusal) in [
        (RemoteKey { key: 2, ..key }, 0, Refusal::Key),
        (RemoteKey { key: u64::MAX, ..key }, 0, Refusal::Key),
        (forged(key), BYTES as u64 - 7, Refusal::Bounds),
        (forged(key), u64::MAX - 8, Refusal::Bounds),
    ] {
        assert_eq!(get(&mut world, wrong, offset), refused(refusal));
    }
    let fetch = world.fetch(0, (&forged(key), 0), Datatype::U64, Reduction::Sum, 1).unwrap();
    world.settle();
    assert_eq!(world.done(fetch).0, refused(Refusal::Access));
    for offset in [0, 9] {
        let put = world.put(0, &forged(key), offset, &[1; 300]).unwrap();
        world.settle();
        world.good(put);
    }
    let flush = world.flush(0, 1).unwrap();
    world.settle();
    let completion_error = CompletionError::Refused { peer: 1, refusal: Refusal::Access, count: 4 };
    assert_eq!(world.done(flush).0, Err(completion_error), "two packets each");
    assert!(world.engine(1).unexpose(id) && !world.engine(1).unexpose(id));
    assert_eq!(get(&mut world, key, 0), refused(Refusal::Key));
    assert_eq!(memory.copy(), vec![0; BYTES]);
    let (_, again) = world.expose(1, &memory, ALL, 5);
    assert_eq!(get(&mut world, key, 0), refused(Refusal::Key), "an old key opens nothing new");
    let fetch = world.fetch(0, (&again, 4), Datatype::U64, Reduction::Sum, 1).unwrap();
    world.settle();
    assert_eq!(world.done(fetch).0, refused(Refusal::Alignment));
    assert_eq!((world.engine(0).failure(1), world.engine(1).failure(0)), (None, None));
    world.assert_empty(&[0, 1], "refusals");
}

#[test]
fn region_that_is_unexposed_in_the_middle_of_a_get_ends_it() {
    let fabric = Fabric::new(tiny(2));
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    let (id, key) = world.expose(1, &memory, ALL, 1);
    let get = world.get(0, &key, 0, BYTES).unwrap();
    world.engine(1).progress();
    assert!(world.engine(1).unexpose(id));
    world.settle();
    assert_eq!(world.done(get).0, Err(CompletionError::Refused { peer: 1, refusal: Refusal::Key, count: 1 }));
    world.assert_empty(&[0, 1], "unexposed");
}

#[test]
fn two_ranks_that_flood_each_other_with_gets_finish() {
    let fabric = Fabric::new(tiny(2));
    let memories = [FabricRegion::new(BYTES), FabricRegion::new(BYTES)];
    memories.iter().zip(0..).for_each(|(memory, salt)| memory.fill(&contents(salt, BYTES)));
    let mut world = World::new(&fabric, AMPLE);
    let keys = [0, 1].map(|rank| world.expose(rank, &memories[rank as usize], ALL, 1).1);
    let mut gets = vec![];
    for number in 0..200u32 {
        let rank = number % 2;
        gets.push((rank, world.get(rank, &keys[1 - rank as usize], 0, 2000).unwrap()));
    }
    world.settle();
    for (rank, get) in gets {
        assert_eq!(world.good(get), contents(1 - u64::from(rank), BYTES)[..2000]);
    }
    world.assert_empty(&[0, 1], "flood");
}

#[test]
fn window_bounds_the_replies_that_a_target_stores() {
    let fabric = Fabric::new(WorldShape { cells: 4, fastbox_slots: 256, ..tiny(2) });
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    let (_, key) = world.expose(1, &memory, ALL, 1);
    let gets: Vec<_> = (0..100).map(|_| world.get(0, &key, 0, 2000).unwrap()).collect();
    for _ in 0..50 {
        world.engine(1).progress();
    }
    // Some replies have found space.
    let waiting = world.engine(1).replies.used();
    assert!((WINDOW as usize / 2..=WINDOW as usize).contains(&waiting), "{waiting}");
    world.settle();
    gets.into_iter().for_each(|get| drop(world.good(get)));
}

/// Progress handles a message to the process itself. Operations that start while the message waits are queued behind
/// it, and keep their order.
#[test]
fn operations_on_own_memory_keep_their_order_when_one_has_to_wait() {
    let fabric = Fabric::new(tiny(1));
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    let (_, key) = world.expose(0, &memory, ALL, 1);
    let first = world.put(0, &key, 0, &7_u64.to_le_bytes()).unwrap();
    world.good(first);
    let (_, header) = world.lender.send(0, vec![]);
    let (_, payload) = world.lender.send(0, vec![]);
    world.engine(0).send_active(0, 1, header, payload).unwrap();
    let get = world.get(0, &key, 0, 8).unwrap();
    world.engine(0).fence(0).unwrap();
    let fetch = world.fetch(0, (&key, 0), Datatype::U64, Reduction::Sum, 1).unwrap();
    let put = world.put(0, &key, 0, &100_u64.to_le_bytes()).unwrap();
    let add = world.accumulate(0, (&key, 0), Datatype::U64, Reduction::Sum, &5_u64.to_le_bytes()).unwrap();
    let flush = world.flush(0, 0).unwrap();
    assert_eq!(memory.copy()[..8], 7_u64.to_le_bytes(), "no operation overtakes a queued one");
    assert!([get, fetch, put, add, flush].into_iter().all(|handle| world.test(handle).is_none()));
    world.engine(0).progress();
    assert_eq!(world.done(get).1, 7_u64.to_le_bytes());
    assert_eq!(world.done(fetch).1, 7_u64.to_le_bytes());
    for handle in [put, add, flush] {
        world.done(handle).0.unwrap();
    }
    assert_eq!(memory.copy()[..8], 105_u64.to_le_bytes());
    // A refused operation reports the refusal when it is executed.
    let (_, empty) = world.lender.send(0, vec![]);
    world.engine(0).send_active(0, 1, empty.alias(), empty).unwrap();
    let late = world.put(0, &RemoteKey { key: 9, ..key }, 0, &[1]).unwrap();
    world.engine(0).progress();
    let refused = CompletionError::Refused { peer: 0, refusal: Refusal::Key, count: 1 };
    assert_eq!(world.done(late).0, Err(refused));
}

#[test]
fn lists_are_refused_as_buffers_of_one_sided_operations() {
    let fabric = Fabric::new(tiny(2));
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    for owner in [0, 1] {
        let (_, key) = world.expose(owner, &memory, ALL, 1);
        let target = Target { key: &key, offset: 0 };
        world.lender.scatter(3);
        let lists = core::iter::repeat_with(|| world.lender.send(0, vec![1; 800]).1);
        let list = lists.take(50).find(crate::payload::SendBuf::is_list).unwrap();
        let rooms = core::iter::repeat_with(|| world.lender.receive(0, 800).1);
        let mut room = rooms.take(50).find(crate::payload::RecvBuf::is_list).unwrap();
        let (_, empty) = world.lender.send(0, vec![]);
        let refused = Some(StartError::List);
        let engine = world.engine(0);
        assert_eq!(engine.put(&target, list.alias(), false, CompleteAt::Origin).err(), refused);
        let sum = (Datatype::U64, Reduction::Sum);
        assert_eq!(engine.accumulate(&target, sum, list.alias(), CompleteAt::Origin).err(), refused);
        assert_eq!(engine.get(&target, &mut room).err(), refused);
        assert_eq!(room.len(), 800, "the caller keeps the buffer");
        assert_eq!(engine.send_active(owner, 1, list.alias(), empty.alias()).err(), refused);
        assert_eq!(engine.send_active(owner, 1, empty, list).err(), refused);
        assert_eq!(engine.requests.used(), 0);
        world.settle();
        assert_eq!(memory.copy(), vec![0; BYTES]);
    }
}

#[test]
fn fence_keeps_a_get_from_reading_a_later_put() {
    let fabric = Fabric::new(WorldShape { fastbox_slots: 64, ..tiny(2) });
    for fenced in [true, false] {
        let memory = FabricRegion::new(BYTES);
        memory.fill(&[1; BYTES]);
        let mut world = World::new(&fabric, AMPLE);
        let (_, key) = world.expose(1, &memory, ALL, 1);
        let get = world.get(0, &key, 0, BYTES).unwrap();
        if fenced {
            world.engine(0).fence(1).unwrap();
        }
        let put = world.put(0, &key, BYTES as u64 - 8, &[2; 8]).unwrap();
        world.settle();
        let bytes = world.good(get);
        world.good(put);
        assert_eq!(bytes == vec![1; BYTES], fenced, "without a fence the put overtakes the tail of the get");
        assert_eq!(memory.copy()[BYTES - 8..], [2; 8]);
        let flush = world.flush(0, 1).unwrap();
        world.settle();
        world.good(flush);
        world.engine(0).fence(1).unwrap();
        world.assert_empty(&[0, 1], "fence");
        drop(world);
        return_to_start(&fabric);
    }
}

#[test]
fn flush_is_not_complete_before_a_get_that_was_started_earlier() {
    let fabric = Fabric::new(tiny(2));
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    let (_, key) = world.expose(1, &memory, ALL, 1);
    let get = world.get(0, &key, 0, BYTES).unwrap();
    let flush = world.flush(0, 1).unwrap();
    let mut got = false;
    for _ in 0..1000 {
        // One packet at a time: the flush arrives when there is space for its reply, while part of the get's reply is
        // unsent.
        world.engine(1).step();
        world.engine(0).step();
        got = got || world.test(get).is_some();
        if world.test(flush).is_some() {
            assert!(got, "the flush completed before the get");
            return;
        }
    }
    panic!("the flush did not complete");
}

/// Erases the fabric, because new engines need fresh memory.
fn return_to_start(fabric: &Fabric) {
    (0..fabric.geometry.peers).for_each(|rank| fabric.wipe(rank));
}

#[test]
fn notifications_arrive_after_the_bytes_and_complete_waiting_requests() {
    let fabric = Fabric::new(tiny(3));
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    let (id, key) = world.expose(1, &memory, ALL, 1);
    let wait = |world: &mut World<'_>, count| {
        let (loan, _) = world.lender.send(1, vec![]);
        let started = world.engine(1).await_notifications(id, count);
        world.handle(1, loan, started).unwrap()
    };
    let (one, two, far) = (wait(&mut world, 1), wait(&mut world, 2), wait(&mut world, 9));
    let notify = |world: &mut World<'_>, from, bytes: Vec<u8>| {
        let (loan, buf) = world.lender.send(from, bytes);
        let started = world.engine(from).put(&Target { key: &key, offset: 0 }, buf, true, CompleteAt::Origin);
        world.handle(from, loan, started).unwrap()
    };
    let long = notify(&mut world, 0, vec![3; BYTES]);
    for _ in 0..1000 {
        if world.engine(1).notifications(id) == Some(1) {
            break;
        }
        assert_eq!(world.test(one), None, "before the last byte is there");
        world.engine(0).progress();
        world.engine(1).step();
    }
    assert_eq!(memory.copy(), vec![3; BYTES]);
    world.good(one);
    assert_eq!(world.test(two), None);
    let empty = notify(&mut world, 1, vec![]);
    world.good(two);
    world.settle();
    world.good(long);
    world.good(empty);
    let past = wait(&mut world, 2);
    world.good(past);
    assert!(world.engine(1).cancel(far.id));
    assert_eq!(world.done(far).0, Err(CompletionError::Cancelled));
    let left = wait(&mut world, 9);
    world.engine(1).fail(2, Failure::Died);
    assert_eq!(world.done(left).0, Err(CompletionError::PeerFailed { peer: 2, failure: Failure::Died }));
    world.engine(1).acknowledge();
    let unexposed = wait(&mut world, 9);
    world.engine(1).unexpose(id);
    assert_eq!(world.done(unexposed).0, Err(CompletionError::Cancelled));
    assert_eq!(world.engine(1).await_notifications(id, 1), Err(StartError::Region));
    world.assert_empty(&[0, 1], "notifications");
}

#[test]
fn death_of_the_target_ends_all_requests_to_it() {
    let fabric = Fabric::new(tiny(3));
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, AMPLE);
    let (_, key) = world.expose(1, &memory, ALL, 1);
    let (_, other) = world.expose(2, &memory, ALL, 1);
    let asked: Vec<_> = (0..50).map(|_| world.get(0, &key, 0, 2000).unwrap()).collect();
    world.engine(0).fence(1).unwrap();
    let last = world.flush(0, 1).unwrap();
    // Some replies have arrived, and one only in part.
    world.engine(1).progress();
    world.engine(0).progress();
    world.engine(0).fail(1, Failure::Died);
    let completion_error = Err(CompletionError::PeerFailed { peer: 1, failure: Failure::Died });
    let ends: Vec<_> = asked.into_iter().map(|get| world.done(get).0).collect();
    assert!(
        ends.iter().all(|end| *end == completion_error || end.is_ok())
            && ends.last() == Some(&completion_error)
    );
    assert_eq!(world.done(last).0, completion_error);
    let gone = StartError::PeerFailed { peer: 1, failure: Failure::Died };
    assert_eq!(world.get(0, &key, 0, 8).err(), Some(gone));
    assert_eq!(world.engine(0).fence(1), Err(gone));
    assert!(!world.engine(0).is_unflushed(1));
    let get = world.get(0, &other, 0, 8).unwrap();
    for _ in 0..50 {
        world.engine(0).progress();
        world.engine(2).progress();
    }
    world.good(get);
    // The origin dies; its replies are dropped.
    world.engine(1).fail(0, Failure::Died);
    assert_eq!(world.engine(1).replies.used(), 0);
    world.assert_empty(&[0], "a dead target");
}

#[test]
fn only_so_many_regions_exist_and_no_more_requests_than_there_are() {
    let fabric = Fabric::new(tiny(2));
    let memory = FabricRegion::new(BYTES);
    let mut world = World::new(&fabric, WorldRoom { requests: 1, ..AMPLE });
    for key in 0..REGIONS {
        world.expose(1, &memory, ALL, key as u64);
    }
    assert_eq!(world.engine(1).region_count(), (REGIONS, REGIONS));
    let refused = world.engine(1).expose(memory.exposed(), ALL, 99, Addressing::Offset);
    assert_eq!(refused, Err(ExposeError::Full { capacity: REGIONS }));
    let key = RemoteKey::new(1, 0);
    let get = world.get(0, &key, 0, 8).unwrap();
    let full = Some(StartError::Requests { capacity: 1 });
    assert_eq!(world.get(0, &key, 0, 8).err(), full);
    assert_eq!(world.accumulate(0, (&key, 0), Datatype::U64, Reduction::Sum, &[1; 1000]).err(), full);
    world.settle();
    world.good(get);
    assert_eq!(memory.copy(), vec![0; BYTES], "an operation without a slot has not begun");
    let put = world.put(0, &key, 0, &[1; 8]).unwrap();
    assert_eq!(put.id, RequestId::SENT, "a small put takes no slot");
    assert_eq!(world.done(put).0, Ok(Status { peer: 0, tag: 0, len: 0, immediate: None }));
}
