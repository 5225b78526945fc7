//! Counters report the events that happened, and derived counters agree with stored ones.

use crate::counters::{EngineCounters, PeerCounters};
use crate::engine::rma::{Access, Addressing, CompleteAt, Target};
use crate::engine::tests::world::{AMPLE, TUNING, World, WorldRoom, pattern};
use crate::engine::{Bypass, Failure, Tuning};
use crate::matching::Source;
use crate::port::PacketPieces;
use crate::port::PacketPort;
use crate::shared::tests::contents;
use crate::shared::tests::fabric::{Fabric, Reading, tiny};
use crate::wire::rendezvous::RTS_BYTES;
use crate::wire::{Envelope, Kind};

fn counted(world: &mut World<'_>, rank: u32, peer: u32) -> PeerCounters {
    world.engine(rank).peer_counters(peer).unwrap()
}

#[test]
fn each_way_to_match_and_each_path_is_counted_once() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let early = world.recv(1, 0, 1, 8);
    world.isend(0, 1, 1, contents(1, 8));
    world.settle();
    world.done(early).0.unwrap();
    for (tag, len) in [(2, 3), (3, 200)] {
        world.isend(0, 1, tag, contents(tag, len));
    }
    world.settle();
    let kept = world.engine(1).engine_counters();
    assert_eq!((kept.unexpected_now, kept.unexpected_most), (2, 2));
    for (tag, len) in [(2, 3), (3, 200)] {
        let receive = world.recv(1, 0, tag, len);
        world.done(receive).0.unwrap();
    }
    // In one slot of the fastbox, like the first two; a longer message might not fit.
    world.isend(0, 1, 4, contents(4, 12));
    let (loan, mut buf) = world.lender.receive(1, 12);
    let step = world.engine(1).receive_step(&pattern(Source::Any, 4), &mut buf);
    assert!(matches!(step, Bypass::Done(Ok(_))));
    world.lender.end(loan);
    let (sent, received) = (counted(&mut world, 0, 1), counted(&mut world, 1, 0));
    assert_eq!((sent.eager_sent, sent.eager_sent_bytes), (4, 223));
    assert_eq!((received.eager_received, received.eager_received_bytes), (4, 223));
    assert_eq!(
        (sent.fastbox_sent, sent.fastbox_sent_bytes, sent.cell_sent, sent.cell_sent_bytes),
        (3, 23, 1, 200)
    );
    assert_eq!((received.fastbox_received, received.cell_received_bytes), (3, 200));
    assert_eq!((received.matched_posted, received.matched_bypass), (1, 1));
    assert_eq!((received.unexpected, received.unexpected_bytes), (2, 203));
    assert_eq!((sent.credit_spent, sent.credit_received), (received.credit_used, received.credit_granted));
    let kept = world.engine(1).engine_counters();
    assert_eq!((kept.unexpected_now, kept.unexpected_most), (0, 2));
    assert!(kept.unexpected_most_bytes >= 203 && kept.unexpected_most_bytes.is_multiple_of(64));
    assert_eq!(world.engine(1).counters(), received, "there is one peer");
}

#[test]
fn large_messages_are_counted_by_protocol() {
    for (reading, synchronous, len) in
        [(Reading::Never, false, 2000), (Reading::Always, false, 1000), (Reading::Always, false, 5000)]
    {
        let fabric = Fabric::reading(tiny(2), reading, 1);
        let mut world = World::new(&fabric, AMPLE);
        assert!(!synchronous);
        let send = world.isend(0, 1, 1, contents(1, len));
        let receive = world.recv(1, 0, 1, len);
        world.settle();
        world.done(send).0.unwrap();
        world.done(receive).0.unwrap();
        let (sent, it) = (counted(&mut world, 0, 1), counted(&mut world, 1, 0));
        assert_eq!((sent.rts_sent, it.rts_received, it.rts_received_bytes), (1, 1, sent.rts_sent_bytes));
        let counts = (it.large_pulled, it.large_assisted, it.large_streamed, it.large_fallbacks);
        let bytes = it.large_pulled_bytes + it.large_assisted_bytes + it.large_streamed_bytes;
        assert_eq!(bytes, len as u64);
        match (reading, len) {
            (Reading::Never, _) => {
                assert_eq!(counts, (0, 0, 1, 0));
                let along = sent.rts_sent_bytes - (RTS_BYTES + size_of::<u64>()) as u64;
                assert_eq!((sent.cts_received, sent.data_sent_bytes), (1, len as u64 - along));
            }
            (_, 1000) => assert_eq!((counts, sent.fin_received), ((1, 0, 0, 0), 1)),
            _ => assert_eq!((counts, sent.fin_received), ((0, 1, 0, 0), 1)),
        }
    }
}

#[test]
fn copy_that_is_refused_midway_is_a_fallback() {
    let fallbacks: u64 = (0..40)
        .map(|seed| {
            let fabric = Fabric::reading(tiny(2), Reading::Refused(15), seed);
            let mut world = World::new(&fabric, AMPLE);
            let send = world.isend(0, 1, 1, contents(1, 5000));
            let receive = world.recv(1, 0, 1, 5000);
            world.settle();
            world.done(send).0.unwrap();
            assert_eq!(world.done(receive).1, contents(1, 5000));
            let it = counted(&mut world, 1, 0);
            assert_eq!(it.large_pulled + it.large_assisted + it.large_streamed, 1);
            assert_eq!(it.large_fallbacks, it.large_streamed.min(it.cts_sent));
            assert_eq!(it.large_fallbacks, counted(&mut world, 0, 1).cts_received);
            it.large_fallbacks
        })
        .sum();
    assert!((1..40).contains(&fallbacks), "{fallbacks}");
}

#[test]
fn waiting_for_credit_and_for_cells_is_counted_once_however_often_it_is_tried() {
    let fabric = Fabric::new(tiny(2));
    // Five units for the peer, all granted at once, and one for this process itself.
    let room = WorldRoom { units: 6, tuning: Tuning { window: 1, ..TUNING }, ..AMPLE };
    let mut world = World::new(&fabric, room);
    let sends: [_; 60] = core::array::from_fn(|tag| world.isend(0, 1, tag as u64, contents(tag as u64, 100)));
    world.settle();
    let held = counted(&mut world, 0, 1);
    assert_eq!(held.credit_holds, 1);
    assert!(held.credit_demoted > 0 && held.credit_demoted == held.rts_sent, "{held:?}");
    for (tag, send) in sends.into_iter().enumerate() {
        let receive = world.recv(1, 0, tag as u64, 100);
        world.settle();
        world.done(receive).0.unwrap();
        world.done(send).0.unwrap();
    }
    let (sent, received) = (counted(&mut world, 0, 1), counted(&mut world, 1, 0));
    assert_eq!(sent.credit_spent, received.credit_used);
    assert!(received.credit_grants > 1 && received.credit_granted >= received.credit_used);

    let mut world = World::new(&fabric, AMPLE);
    for tag in 0..60 {
        world.isend(0, 1, tag, contents(tag, 100));
    }
    for _ in 0..10 {
        world.engine(0).progress();
    }
    assert_eq!(counted(&mut world, 0, 1).cell_exhausted, 1);
}

#[test]
fn messages_to_self_are_counted_at_both_ends_and_under_no_path() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    for (tag, len) in [(1, 8), (2, 2000)] {
        let early = world.recv(0, 0, tag, len);
        let posted = world.isend(0, 0, tag, contents(tag, len));
        world.settle();
        world.done(early).0.unwrap();
        world.done(posted).0.unwrap();
        let send = world.isend(0, 0, tag, contents(tag, len));
        let late = world.recv(0, 0, tag, len);
        world.done(late).0.unwrap();
        world.done(send).0.unwrap();
    }
    let it = counted(&mut world, 0, 0);
    assert_eq!((it.eager_sent, it.eager_sent_bytes), (4, 4016));
    assert_eq!((it.eager_received, it.eager_received_bytes), (4, 4016));
    assert_eq!((it.matched_posted, it.matched_bypass, it.unexpected), (2, 0, 2));
    assert_eq!(it.fastbox_sent + it.cell_sent + it.fastbox_received + it.cell_received, 0);
}

#[test]
fn one_sided_operations_and_active_messages_are_counted_as_such() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let memory = crate::shared::tests::fabric::FabricRegion::new(4096);
    let id = world.engine(1).expose(memory.exposed(), Access::ReadWrite, 5, Addressing::Offset).unwrap();
    let key = world.engine(1).remote_key(id).unwrap();
    let (put, buf) = world.lender.send(0, contents(1, 40));
    world.engine(0).put(&Target { key: &key, offset: 0 }, buf, false, CompleteAt::Origin).unwrap();
    let (got, mut room) = world.lender.receive(0, 16);
    let get = world.engine(0).get(&Target { key: &key, offset: 0 }, &mut room).unwrap();
    let flush = world.engine(0).flush(1).unwrap();
    let (header, head) = world.lender.send(0, contents(3, 0));
    let (active, buf) = world.lender.send(0, contents(2, 5));
    world.engine(0).send_active(1, 1, head, buf).unwrap();
    world.engine(0).count_direct(1, crate::wire::rma::RmaOperation::Put, 8);
    world.settle();
    assert!(world.engine(0).test(get).is_some() && world.engine(0).test(flush).is_some());
    for loan in [put, got, header, active] {
        world.lender.end(loan);
    }
    let (origin, target) = (counted(&mut world, 0, 1), counted(&mut world, 1, 0));
    assert_eq!((origin.puts, origin.put_bytes, origin.direct, origin.direct_bytes), (2, 48, 1, 8));
    assert_eq!((origin.gets, origin.get_bytes, origin.flushes), (1, 16, 1));
    assert_eq!((origin.rma_sent, origin.rma_sent_bytes), (3, target.rma_received_bytes));
    assert_eq!((target.rma_reply_sent, target.rma_reply_sent_bytes), (2, 24));
    assert_eq!((origin.active_sent_bytes, target.active_received, target.eager_received), (5, 1, 0));
}

#[test]
fn counters_outlive_the_peer_and_failures_are_counted_by_their_kind() {
    let fabric = Fabric::new(tiny(4));
    let mut world = World::new(&fabric, AMPLE);
    for peer in 1..4 {
        world.isend(0, peer, 1, contents(1, 300));
        world.isend(0, peer, 1, contents(1, 8));
    }
    let before = counted(&mut world, 0, 1);
    world.engine(0).fail(1, Failure::Died);
    world.engine(0).fail(2, Failure::Finished);
    let forged = Envelope { kind: Kind::Rts, context: 0, tag: 1, total: 3 };
    assert_eq!(world.engine(3).port_mut().send(0, &forged, PacketPieces::Whole(&[1; 3])), Ok(true));
    world.settle();
    let it = world.engine(0).engine_counters();
    assert_eq!((it.peers_died, it.peers_finished, it.peers_at_fault), (1, 1, 1));
    assert_eq!(
        counted(&mut world, 0, 1),
        PeerCounters { credit_granted: 0, ..before },
        "but for the promise"
    );
    let (fault, sender) = (counted(&mut world, 0, 3), counted(&mut world, 3, 0));
    assert_eq!((fault.rts_received, fault.eager_received), (1, 0));
    assert_eq!(sender.fastbox_sent, 1, "packets that the engine did not send are counted by the port");
    assert!(world.engine(0).peer_counters(4).is_none());
}

#[test]
fn lists_of_counters_name_each_once_and_sums_add_them_up() {
    let mut names = std::vec![];
    PeerCounters::default().each(|field, value| {
        assert_eq!(value, 0);
        assert!(
            ["packets", "messages", "bytes", "units", "operations", "times"].contains(&field.unit),
            "{field:?}"
        );
        names.push(field.name);
    });
    assert_eq!(names.len(), PeerCounters::FIELDS.len());
    names.extend(EngineCounters::FIELDS.iter().map(|field| field.name));
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
    let one = PeerCounters { puts: 1, wakes_sent: 3, ..PeerCounters::default() };
    let two = one.plus(&one);
    assert_eq!((two.puts, two.wakes_sent, two.gets), (2, 6, 0));
}
