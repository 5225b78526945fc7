//! The first part of a message, copied before the receiver has requested it.

use super::rendezvous::assert_received;
use crate::engine::Failure;
use crate::engine::tests::world::{AMPLE, World};
use crate::shared::tests::contents;
use crate::shared::tests::fabric::{Fabric, Reading, WorldShape, tiny};

#[test]
fn the_first_part_of_a_stream_is_copied_while_the_receiver_answers() {
    let fabric = Fabric::reading(WorldShape { cells: 32, ..tiny(2) }, Reading::Never, 1);
    let mut world = World::new(&fabric, AMPLE);
    // Those that have come back count; an RTS takes one.
    let free = |world: &mut World<'_>| {
        let port = &mut world.engine(0).port_mut().port;
        port.collect_all().unwrap();
        port.free_cells()
    };
    let all = free(&mut world);
    // The sender learns by the answer to the first message that such messages are streamed.
    for (turn, cells) in [(0, 0), (1, 1), (2, 1)] {
        let send = world.isend(0, 1, turn, contents(turn, 2000));
        assert_eq!(free(&mut world), all - 1 - cells, "message {turn}");
        let receive = world.recv(1, 0, turn, 2000);
        world.settle();
        world.done(send).0.unwrap();
        assert_eq!(world.done(receive).1, contents(turn, 2000));
    }
    // Of another message nothing is copied while one waits: the first part is that of one message.
    let sends = [7, 8].map(|tag| world.isend(0, 1, tag, contents(tag, 2000)));
    assert_eq!(free(&mut world), all - 3);
    // A receiver that wants less than the part gets what it wants.
    let receives = [8, 7].map(|tag| world.recv(1, 0, tag, 100 * tag as usize));
    world.settle();
    for (receive, tag) in receives.into_iter().zip([8, 7]) {
        assert_received(&mut world, receive, 0, tag, 2000, 100 * tag as usize);
    }
    for send in sends {
        world.done(send).0.unwrap();
    }
    world.assert_empty(&[0, 1], "prepared");
    assert_eq!(free(&mut world), all);
    // The end of the receiver frees the cell.
    let send = world.isend(0, 1, 9, contents(9, 2000));
    assert_eq!(free(&mut world), all - 2);
    world.engine(0).fail(1, Failure::Died);
    assert!(world.done(send).0.is_err());
    assert_eq!(free(&mut world), all);
}
