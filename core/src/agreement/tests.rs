//! Worlds of agreements whose ranks crash at any step: every interleaving of small worlds, and random runs of
//! larger ones.

use std::collections::{HashSet, VecDeque};
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::message::AgreementKind;
use super::{Agreement, Malformed, Stage, Step, message_bytes, words};
use crate::shared::tests::{Rng, cases, portion};

type AgreementPart = Agreement<Vec<u64>>;

/// Ranks, the messages between them, and which ranks have crashed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct AgreementWorld {
    parts: Vec<AgreementPart>,
    /// Messages by sender, then receiver.
    links: Vec<Vec<VecDeque<Vec<u8>>>>,
    alive: Vec<bool>,
    /// Ranks that were dead before the start.
    absent: Vec<bool>,
}

fn part(rank: usize, size: usize, flags: u64) -> AgreementPart {
    let set = || vec![u64::MAX; words(size as u32)];
    Agreement::new(rank as u32, size as u32, flags, (set(), set()))
}

impl AgreementWorld {
    /// Every rank clears one flag, so that the decision shows which ranks took part.
    fn new(size: usize, absent: Vec<bool>) -> Self {
        let parts = (0..size).map(|rank| part(rank, size, !(1 << (rank % 64)))).collect();
        let alive = absent.iter().map(|absent| !absent).collect();
        Self { parts, links: vec![vec![VecDeque::new(); size]; size], alive, absent }
    }

    fn size(&self) -> usize {
        self.parts.len()
    }

    /// Executes one step of a rank. Returns `false` if the rank cannot make a step.
    fn turn(&mut self, rank: usize) -> bool {
        if !self.alive[rank] {
            return false;
        }
        match self.parts[rank].step() {
            Step::Done => false,
            Step::Send(to) => {
                let mut bytes = vec![0; message_bytes(self.size() as u32)];
                assert_eq!(self.parts[rank].message(&mut bytes), bytes.len());
                if self.alive[to as usize] {
                    self.links[rank][to as usize].push_back(bytes);
                }
                self.parts[rank].sent();
                true
            }
            Step::Receive(from) => match self.links[from as usize][rank].pop_front() {
                Some(bytes) => {
                    self.parts[rank].received(&bytes).unwrap();
                    true
                }
                None if !self.alive[from as usize] => {
                    self.parts[rank].failed();
                    true
                }
                None => false,
            },
        }
    }

    fn crash(&mut self, rank: usize) {
        self.alive[rank] = false;
        for links in &mut self.links {
            links[rank].clear();
        }
    }

    /// Loses the last message of a dead rank to another.
    fn lose(&mut self, from: usize, to: usize) -> bool {
        !self.alive[from] && self.links[from][to].pop_back().is_some()
    }

    fn ranks(&self) -> impl Iterator<Item = usize> + use<> {
        0..self.size()
    }

    /// Checks that all decisions are equal and valid.
    fn check(&self) {
        let mut agreed = None;
        for rank in self.ranks() {
            // A rank that is sending the decision has decided too, not only one that has finished.
            if !matches!(self.parts[rank].stage, Stage::Tell(_) | Stage::Hear(_) | Stage::Done) {
                continue;
            }
            let decision = self.parts[rank].current();
            let gone: Vec<bool> = self.ranks().map(|other| self.parts[rank].is_gone(other as u32)).collect();
            assert!(!decision.excluded);
            for other in self.ranks() {
                assert!(!gone[other] || !self.alive[other], "rank {other} lives");
                assert!(gone[other] || !self.absent[other], "rank {other} was dead");
                let took_part = decision.flags >> (other % 64) & 1 == 0;
                assert!(took_part || !self.alive[other] || self.size() > 64, "rank {other}");
            }
            let decided = (decision.flags, gone);
            assert_eq!(agreed.get_or_insert_with(|| decided.clone()), &decided, "rank {rank}");
        }
    }

    /// Checks that no rank waits forever, and that no message between surviving ranks is left over.
    fn check_end(&mut self) {
        for rank in self.ranks().filter(|&rank| self.alive[rank]) {
            // Only a call of `step` shows that nothing is left to do.
            let _ = self.parts[rank].step();
        }
        self.check();
        for rank in self.ranks().filter(|&rank| self.alive[rank]) {
            assert!(self.parts[rank].decision().is_some(), "rank {rank} waits");
            for other in self.ranks().filter(|&other| self.alive[other]) {
                assert!(self.links[other][rank].is_empty(), "undelivered messages from {other} to {rank}");
            }
        }
    }
}

/// Explores every interleaving of steps and crashes. Returns the number of states.
fn explore(size: usize, crashes: usize) -> usize {
    let mut seen = HashSet::new();
    let mut open = vec![(AgreementWorld::new(size, vec![false; size]), crashes)];
    while let Some((world, crashes)) = open.pop() {
        if !seen.insert((world.clone(), crashes)) {
            continue;
        }
        let mut moved = false;
        for rank in world.ranks() {
            let mut next = world.clone();
            if next.turn(rank) {
                moved = true;
                open.push((next, crashes));
            }
            if world.alive[rank] && crashes > 0 {
                let mut next = world.clone();
                next.crash(rank);
                open.push((next, crashes - 1));
            }
            for to in world.ranks() {
                let mut next = world.clone();
                if next.lose(rank, to) {
                    open.push((next, crashes));
                }
            }
        }
        if !moved {
            world.clone().check_end();
        }
    }
    seen.len()
}

#[test]
fn every_interleaving_of_three_ranks_and_their_crashes_agrees() {
    assert!(explore(2, 2) > 50);
    assert!(explore(3, 3) > 2000);
}

/// Executes one random run.
fn simulate(seed: u64) {
    let mut rng = Rng::new(seed);
    let size = rng.pick(&[1, 2, 4, 5, 7, 12, 63, 64, 65]);
    let absent: Vec<bool> = (0..size).map(|_| rng.one_in(6)).collect();
    let mut world = AgreementWorld::new(size, absent);
    // Crashes are as likely in a short run as in a long one.
    let (mut crashes, every) = (rng.below(size + 1), 1 + rng.below(4 * size * size));
    loop {
        let start = rng.below(size);
        if crashes > 0 && rng.one_in(every) {
            crashes -= 1;
            world.crash(start);
            for to in 0..size {
                while rng.one_in(2) && world.lose(start, to) {}
            }
        }
        if !(start..start + size).any(|rank| world.turn(rank % size)) {
            break;
        }
    }
    world.check_end();
}

#[test]
fn random_worlds_agree_whichever_ranks_crash() {
    for seed in 0..if cfg!(miri) { 20 } else { portion(1000) } {
        simulate(seed);
    }
}

#[test]
fn the_first_coordinators_may_all_die_at_any_step() {
    for step in 0..40 {
        let mut world = AgreementWorld::new(5, vec![false; 5]);
        for victim in 0..4 {
            for _ in 0..step {
                (0..5).filter(|&rank| world.turn(rank)).count();
            }
            world.crash(victim);
        }
        while (0..5).any(|rank| world.turn(rank)) {}
        world.check_end();
        assert_eq!(world.parts[4].decision().map(|decision| decision.excluded), Some(false));
    }
}

#[test]
fn a_rank_alone_decides_at_once() {
    let mut alone = part(0, 1, 7);
    assert_eq!(alone.step(), Step::Done);
    assert_eq!(alone.decision().map(|decision| decision.flags), Some(7));
}

#[test]
fn a_rank_that_others_have_lost_is_informed_of_its_exclusion() {
    let mut world = AgreementWorld::new(3, vec![false; 3]);
    // Ranks 1 and 2 have lost each other; rank 0 has no report of this yet.
    world.parts[1].begin_without(2);
    world.parts[2].begin_without(1);
    while (0..3).any(|rank| world.turn(rank)) {}
    let decided: Vec<_> = world.parts.iter().map(|part| part.decision().unwrap()).collect();
    assert!(!decided[0].excluded && decided[1].excluded && decided[2].excluded, "{decided:?}");
    assert!(world.parts.iter().all(|part| part.is_gone(1) && part.is_gone(2) && !part.is_gone(0)));
}

#[test]
fn a_message_at_the_wrong_time_is_refused_and_changes_nothing() {
    let message = |kind: u64, gone: u64| {
        [kind, 5, gone].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>()
    };
    let mut one = part(1, 3, 7);
    assert_eq!(one.step(), Step::Send(0));
    one.sent();
    assert_eq!(one.step(), Step::Receive(0));
    let before = one.clone();
    let (report, proposal, acceptance) =
        (AgreementKind::Report as u64, AgreementKind::Proposal as u64, AgreementKind::Acceptance as u64);
    // The last message names a rank that does not exist.
    for wrong in [message(report, 0), message(acceptance, 0), message(5, 0), message(proposal, 8)] {
        assert_eq!(one.received(&wrong), Err(Malformed));
        assert_eq!(one, before);
    }
    one.received(&message(proposal, 4)).unwrap();
    assert_eq!(one.step(), Step::Send(0));
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..40), size in 2_u32..130, kind in 0_u8..6) {
        let mut zero = part(0, size as usize, 7);
        prop_assert_eq!(zero.step(), Step::Receive(1));
        let mut bytes = bytes;
        bytes.resize(message_bytes(size), 0);
        bytes[..8].copy_from_slice(&u64::from(kind).to_le_bytes());
        let before = zero.clone();
        if zero.received(&bytes).is_err() {
            prop_assert_eq!(&zero, &before);
            zero.failed();
        }
        prop_assert!(zero.step() != Step::Receive(1));
        prop_assert!((size..size + 70).all(|rank| !zero.is_gone(rank)));
        prop_assert_eq!(before.clone().received(&bytes[..bytes.len() - 1]), Err(Malformed));
        prop_assert_eq!(zero.message(&mut [0; 15]), 0);
    }
}
