//! Ports in threads of their own, at full speed: what the models do step by step. ThreadSanitizer watches it
//! (`tests/sanitize`): here, as in no other test, both ends of every structure have the same addresses.

use std::vec::Vec;

use super::Rng;
use super::fabric::{Fabric, TestPort, tiny};
use super::port::{send, take};
use super::returned::send_copy;
use crate::port::{MessagePort, PeerId, Stores};
use crate::shared::layout::Geometry;

const RANKS: PeerId = 3;
/// From each to each.
const MESSAGES: u64 = if cfg!(debug_assertions) { 400 } else { 4000 };

/// A port on its way into another thread, or back.
struct Moved<'a>(TestPort<'a>);

// SAFETY: what a port shares with others is made of atomics and of bytes whose owner changes by them, but for the kernel that
// the tests put in its place: an `Rc`, which no thread here touches. Ports are made, and dropped, by one thread.
unsafe impl Send for Moved<'_> {}

/// Sends to all others and receives from them, as fast as there is room.
fn exchange(mut port: Moved<'_>, rank: PeerId, most: usize) -> Moved<'_> {
    let mut rng = Rng::new(rank.into());
    let (mut sent, mut got) = ([0; RANKS as usize], [0; RANKS as usize]);
    let others: Vec<PeerId> = (0..RANKS).filter(|other| *other != rank).collect();
    let done =
        |counts: &[u64; RANKS as usize]| others.iter().all(|other| counts[*other as usize] == MESSAGES);
    while !done(&sent) || !done(&got) {
        let to = rng.pick(&others);
        let next = &mut sent[to as usize];
        // Through the fastbox, and through cells of every size.
        let len = if rng.one_in(2) { most } else { rng.pick(&[0, 8, 60, 100, 200, 256]) };
        if *next < MESSAGES && (send_copy(&mut port.0, to, *next, len) || send(&mut port.0, to, *next, len)) {
            *next += 1;
        }
        while let Some((from, tag)) = take(&mut port.0, 1) {
            assert_eq!(tag, got[from as usize], "from {from}");
            got[from as usize] += 1;
        }
        port.0.pause();
        if rng.one_in(4) {
            std::thread::yield_now();
        }
    }
    port
}

#[test]
fn threads_exchange_through_tiny_structures() {
    // Nothing is learned: threads would share the clock.
    exchange_all(&Fabric::storing(tiny(RANKS), Stores::Cached));
}

/// Lines of the next cell are written to while peers read others.
#[test]
fn threads_exchange_through_cells_that_are_made_ready() {
    let geometry = Geometry { cells: 32, cell_bytes: 4096, fastbox_slots: 64, ..tiny(RANKS) };
    exchange_all(&Fabric::storing(geometry, Stores::Warmed));
}

fn exchange_all(fabric: &Fabric) {
    let most = fabric.geometry.cell_bytes as usize;
    let ports: Vec<_> = (0..RANKS).map(|rank| Moved(fabric.port(rank))).collect();
    let back: Vec<Moved<'_>> = std::thread::scope(|scope| {
        let spawn = |(port, rank)| scope.spawn(move || exchange(port, rank, most));
        let threads: Vec<_> = ports.into_iter().zip(0..RANKS).map(spawn).collect();
        // One by one: ThreadSanitizer does not see how a scope waits.
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(back.len(), RANKS as usize);
}
