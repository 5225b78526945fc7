//! The memory for unexpected messages is committed before it is promised, and its ceiling grows on request.

use std::vec::Vec;

use crate::engine::Tuning;
use crate::engine::tests::world::{AMPLE, TUNING, World, WorldRoom, pattern};
use crate::matching::Source;
use crate::shared::tests::contents;
use crate::shared::tests::fabric::{Fabric, tiny};

const WINDOW: Tuning = Tuning { window: 8, ..TUNING };

#[test]
fn memory_is_committed_as_it_is_used_and_never_after_it_is_promised() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, WorldRoom { units: 2000, tuning: WINDOW, ..AMPLE });
    let first = world.engine(1).store.committed_units();
    assert!(first < 100, "{first} units are committed before any message");
    let mut last = first;
    for tag in 0..200 {
        world.isend(0, 1, tag, contents(tag, 8));
        world.settle();
        let now = world.engine(1).store.committed_units();
        assert!(now < first + 2 * (tag as u32 + 8), "{now} units for {tag} messages");
        last = last.max(now);
    }
    assert_eq!((world.engine(1).unexpected_messages(), last > 200), (200, true));
    for tag in 0..200 {
        let receive = world.recv(1, 0, tag, 8);
        assert_eq!(world.done(receive).1, contents(tag, 8));
    }
    // Freed memory is used again.
    for tag in 0..150 {
        world.isend(0, 1, tag, contents(tag, 8));
    }
    world.settle();
    assert_eq!(world.engine(1).store.committed_units(), last);
}

#[test]
fn sender_is_held_while_there_is_no_memory_and_goes_on_once_there_is() {
    let fabric = Fabric::new(tiny(2));
    let room = WorldRoom { units: 2000, tuning: WINDOW, ..AMPLE };
    let mut world = World::growing(&fabric, room, 2000, 60);
    let sends: Vec<_> = (0..100).map(|tag| world.isend(0, 1, tag, contents(tag, 8))).collect();
    world.settle();
    assert!(world.engine(1).is_held(0) && world.engine(1).lacks_memory());
    assert!(world.engine(1).committed_bytes() <= 60 * 64);
    for tag in 0..100 {
        let receive = world.recv(1, 0, tag, 8);
        world.settle();
        assert_eq!(world.done(receive).1, contents(tag, 8));
    }
    assert!(sends.into_iter().all(|send| world.done(send).0.is_ok()));
    world.assert_empty(&[0, 1], "after a lack of memory");
}

#[test]
fn ceiling_grows_to_the_limit_where_it_holds_back_an_awaited_message() {
    let fabric = Fabric::new(tiny(2));
    let room = WorldRoom { units: 300, tuning: WINDOW, ..AMPLE };
    let mut world = World::growing(&fabric, room, 100, u32::MAX);
    assert_eq!(world.engine(1).growth_units(), 200);
    let sends: Vec<_> = (0..250).map(|tag| world.isend(0, 1, tag, contents(tag, 8))).collect();
    world.settle();
    let stored = world.engine(1).unexpected_messages();
    assert!(world.engine(1).is_held(0) && (80..100).contains(&stored), "{stored}");
    assert!(!world.engine(1).is_growth_due(), "rank 1 waits for nothing");
    let last = world.irecv(1, pattern(Source::Rank(0), 249), 8).unwrap();
    assert!(world.engine(1).is_growth_due());
    let mut steps = 0;
    while world.test(last).is_none() {
        assert!(world.engine(1).is_growth_due());
        assert_eq!(world.engine(1).raise_ceiling(40), 40);
        world.settle();
        steps += 1;
    }
    assert_eq!((steps, world.engine(1).unexpected_messages()), (4, 249));
    assert_eq!((world.engine(1).raise_ceiling(100), world.engine(1).raise_ceiling(1)), (40, 0));
    for tag in 0..249 {
        let receive = world.recv(1, 0, tag, 8);
        assert_eq!(world.done(receive).1, contents(tag, 8));
    }
    assert!(sends.into_iter().all(|send| world.done(send).0.is_ok()));
}

#[test]
fn ceiling_grows_for_processes_that_only_send_to_each_other() {
    let fabric = Fabric::new(tiny(2));
    let room = WorldRoom { units: 300, tuning: WINDOW, ..AMPLE };
    let mut world = World::growing(&fabric, room, 60, u32::MAX);
    let send = |world: &mut World<'_>, from: u32| -> Vec<_> {
        (0..100).map(|tag| world.isend(from, 1 - from, tag, contents(tag, 8))).collect()
    };
    let sends = [send(&mut world, 0), send(&mut world, 1)].concat();
    world.settle();
    assert!(world.engine(0).is_growth_due() && world.engine(1).is_growth_due());
    for rank in [0, 1] {
        world.engine(rank).raise_ceiling(100);
    }
    world.settle();
    assert!(
        sends.into_iter().all(|send| world.test(send).is_some()),
        "each message is stored by its receiver"
    );
}

#[test]
fn messages_to_the_own_rank_use_the_raised_ceiling() {
    let fabric = Fabric::new(tiny(2));
    let room = WorldRoom { units: 200, tuning: WINDOW, ..AMPLE };
    let mut world = World::growing(&fabric, room, 50, u32::MAX);
    let sends: Vec<_> = (0..100).map(|tag| world.isend(0, 0, tag, contents(tag, 8))).collect();
    world.settle();
    assert!(world.engine(0).is_growth_due() && world.engine(0).is_held(0));
    world.engine(0).raise_ceiling(150);
    world.settle();
    assert!(sends.into_iter().all(|send| world.test(send).is_some()));
    assert_eq!(world.engine(0).unexpected_messages(), 100);
}
