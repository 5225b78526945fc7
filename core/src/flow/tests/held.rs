//! Held peers and free units.

use std::vec;

use super::{FlowOp, FlowTwin};
use crate::flow::Account;
use crate::shared::tests::{Rng, portion};

/// If the caller asks after each event that may free units, until nothing more is granted, no peer stays
/// blocked while there is free space.
#[test]
fn no_peer_stays_blocked_while_there_is_free_space() {
    let mut rng = Rng::new(7);
    let (mut found, worlds) = (0, portion(2000));
    for _ in 0..worlds {
        let (peers, packet) = (2 + rng.below(4), 1 + rng.below(20) as u32);
        let (ceiling, window) = (rng.below(400) as u32, rng.below(200) as u32);
        let Some(mut twin) = FlowTwin::new(ceiling, peers as u32, window, packet) else { continue };
        for _ in 0..300 {
            let at = rng.below(peers);
            twin.apply(match rng.below(10) {
                0..=3 => FlowOp::Send(at, 1 + rng.below(packet as usize) as u32),
                4..=7 => FlowOp::Arrive(at, rng.below(4) > 0),
                8 => FlowOp::Remove(at, rng.below(100)),
                _ => FlowOp::Learn(at),
            });
            while let Some((peer, total)) = twin.ledger.next_regrant(&mut twin.accounts) {
                twin.publish(peer as usize, total);
                found += 1;
            }
            let held = |account: &Account| account.is_starved() && account.window() < packet;
            let idle = twin.ledger.can_regrant() && twin.accounts.iter().any(held);
            assert!(!idle, "{} units are free: {:?}", twin.ledger.free(), twin.accounts);
        }
    }
    // About five in a world.
    assert!(found > worlds, "{found} grants in {worlds} worlds");
}

/// Senders have more to send than fits, and a receiver takes messages in any order. All messages arrive, and
/// a blocked sender always has a stored message that can be received.
#[test]
fn nothing_deadlocks_at_the_ceiling() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let (peers, packet) = (1 + rng.below(5), 1 + rng.below(12) as u32);
        let ceiling = peers as u32 * packet + rng.below(200) as u32;
        let mut twin = FlowTwin::new(ceiling, peers as u32, rng.below(100) as u32, packet).unwrap();
        let mut left = vec![300; peers];
        while left.iter().any(|&left| left > 0) {
            let at = rng.below(peers);
            match rng.below(8) {
                0..=2 if left[at] > 0 => {
                    let flying = twin.peers[at].flying.len();
                    twin.apply(FlowOp::Send(at, 1 + rng.below(packet as usize) as u32));
                    left[at] -= twin.peers[at].flying.len() - flying;
                }
                3..=4 => twin.apply(FlowOp::Arrive(at, rng.one_in(2))),
                5 if rng.one_in(2) => twin.apply(FlowOp::Remove(at, rng.below(1000))),
                6 => twin.apply(FlowOp::Regrant),
                _ => twin.apply(FlowOp::Learn(at)),
            }
            for peer in twin.peers.iter().filter(|peer| peer.flying.is_empty() && peer.stored.is_empty()) {
                let mut allowance = peer.allowance;
                allowance.raise(peer.published);
                assert!(allowance.may(packet), "the sender is blocked forever");
            }
        }
        twin.finish();
    }
}
