//! Ports in separate threads at full speed; the models run the same steps one by one. ThreadSanitizer checks
//! these tests (`tests/sanitize`): only here do both ends of every structure have the same addresses.

use crate::port::ShortPath as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::vec::Vec;

use super::Rng;
use super::fabric::{Fabric, TestPort, tiny};
use super::port::{send, take};
use super::returned::send_copy;
use crate::port::{PeerId, Stores};
use crate::shared::tests::fabric::WorldShape;

const RANKS: PeerId = 3;
/// Messages from each rank to each other rank.
const MESSAGES: u64 = if cfg!(debug_assertions) { 400 } else { 4000 };

/// Cells of the smallest size of which copies are measured.
const MEASURED: WorldShape = WorldShape { cells: 32, cell_bytes: 4096, fastbox_slots: 64, ..tiny(RANKS) };

/// A port that moves to another thread, or back.
struct Moved<'a>(TestPort<'a>);

// SAFETY: a port of `Fabric::apart` shares with others only atomics, and bytes whose ownership changes through them.
// Its replacement of the kernel, an `Rc`, has no other owner.
unsafe impl Send for Moved<'_> {}

/// Tells the other threads that this one has failed, so that they do not wait for it.
struct TellFailure<'a>(&'a AtomicBool);

impl Drop for TellFailure<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Sends to all other ranks and receives from them, as fast as there is space.
fn exchange<'a>(mut port: Moved<'a>, rank: PeerId, most: usize, has_failed: &AtomicBool) -> Moved<'a> {
    let _tell = TellFailure(has_failed);
    let mut rng = Rng::new(rank.into());
    let (mut sent, mut got) = ([0; RANKS as usize], [0; RANKS as usize]);
    let others: Vec<PeerId> = (0..RANKS).filter(|other| *other != rank).collect();
    let done =
        |counts: &[u64; RANKS as usize]| others.iter().all(|other| counts[*other as usize] == MESSAGES);
    while !done(&sent) || !done(&got) {
        assert!(!has_failed.load(Ordering::Relaxed), "another thread has failed");
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
    exchange_all(tiny(RANKS), Some(Stores::Cached));
}

/// Cells of which one in four is measured by both sides.
#[test]
fn threads_exchange_through_cells_whose_stores_they_learn() {
    exchange_all(MEASURED, None);
}

/// Lines of the next cell are write-prefetched while peers read other lines.
#[test]
fn threads_exchange_through_write_prefetched_cells() {
    exchange_all(MEASURED, Some(Stores::Prefetched));
}

fn exchange_all(geometry: WorldShape, stores: Option<Stores>) {
    let fabric = Fabric::apart(geometry, stores);
    let has_failed = AtomicBool::new(false);
    let most = fabric.geometry.cell_bytes as usize;
    let ports: Vec<_> = (0..RANKS).map(|rank| Moved(fabric.port(rank))).collect();
    let back: Vec<Moved<'_>> = std::thread::scope(|scope| {
        let has_failed = &has_failed;
        let spawn = |(port, rank)| scope.spawn(move || exchange(port, rank, most, has_failed));
        let threads: Vec<_> = ports.into_iter().zip(0..RANKS).map(spawn).collect();
        // Joined one by one, because ThreadSanitizer does not recognise the waiting of a scope.
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(back.len(), RANKS as usize);
}
