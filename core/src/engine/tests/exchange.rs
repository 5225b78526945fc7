//! An exchange of messages on every path.

use std::vec::Vec;

use super::world::World;
use crate::port::PeerId;
use crate::shared::tests::contents;

/// Exchanges messages between two ranks in both directions, on every path that messages take.
pub(in crate::engine) fn exchange(world: &mut World<'_>, ranks: [PeerId; 2], what: &str) {
    let lens = [0, 8, 60, 200, 256, 700, 3000];
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for [from, to] in [ranks, [ranks[1], ranks[0]]] {
        for (tag, len) in (100..).zip(lens) {
            if tag % 2 == 0 {
                receives.push((world.recv(to, from, tag, len), tag, len));
            }
            sends.push(world.isend(from, to, tag, contents(tag, len)));
        }
    }
    world.settle();
    for [from, to] in [ranks, [ranks[1], ranks[0]]] {
        for (tag, len) in (100..).zip(lens).filter(|(tag, _)| tag % 2 == 1) {
            receives.push((world.recv(to, from, tag, len), tag, len));
        }
    }
    world.settle();
    sends.into_iter().for_each(|send| _ = world.done(send).0.unwrap());
    for (receive, tag, len) in receives {
        assert_eq!(world.done(receive).1, contents(tag, len), "{what}: {tag}");
    }
}
