//! Ledgers whose accounts come and leave: their reserves, beside a model.

use std::vec;
use std::vec::Vec;

use super::{Account, ArrivedBytes, CeilingError, Ledger, WINDOW};
use crate::shared::tests::{Rng, portion};

#[test]
fn half_of_the_ceiling_is_set_aside_and_divided_into_reserves() {
    // The ceiling, the most peers, the window and a largest packet; the reserve, and the number of reserves.
    let cases = [
        ([1000, 5, WINDOW, 10], (100, 5)),
        ([1000, 5, 60, 10], (60, 5)),
        // An equal share is shorter than a largest packet.
        ([1000, 100, WINDOW, 10], (10, 50)),
        ([1000, u32::MAX, WINDOW, 10], (10, 50)),
        // A quarter of the ceiling is the window.
        ([1000, 1, WINDOW, 10], (250, 1)),
        ([20, 3, WINDOW, 10], (10, 1)),
        ([1 << 20, 4096, WINDOW, 138], (138, 3799)),
        ([u32::MAX, u32::MAX, u32::MAX, 0], (1, u32::MAX / 2)),
        ([7, 0, WINDOW, 10], (0, 0)),
    ];
    for ([ceiling, most, window, packet], (reserve, reserves)) in cases {
        let ledger = Ledger::growing(ceiling, most, window, packet).unwrap();
        assert_eq!((ledger.reserve(), ledger.reserves()), (reserve, reserves), "{ceiling} for {most}");
        assert_eq!((ledger.free(), ledger.reserves_used()), (ceiling - reserve * reserves, 0));
    }
    let error = CeilingError::Units { ceiling: 19, peers: 1, needed: 20 };
    assert_eq!(Ledger::growing(19, 3, WINDOW, 10), Err(error));
}

#[test]
fn shortage_names_the_limit_that_was_reached() {
    let few = Ledger::growing(1000, 100, WINDOW, 10).unwrap();
    assert_eq!(few.shortage(1000, 10), CeilingError::Units { ceiling: 1000, peers: 51, needed: 1020 });
    assert!(Ledger::growing(1020, 100, WINDOW, 10).unwrap().reserves() >= 51);
    let all = Ledger::growing(1000, 50, WINDOW, 10).unwrap();
    assert_eq!(all.shortage(1000, 10), CeilingError::Connections { peers: 50, needed: 51 });
}

/// A ledger, its accounts, and for each account the costs of its stored messages.
struct GrowingTwin {
    ceiling: u32,
    ledger: Ledger,
    accounts: Vec<Account>,
    stored: Vec<Vec<u32>>,
    open: Vec<bool>,
}

impl GrowingTwin {
    /// Returns whether the account has a reserve: it is open, or has stored messages.
    fn has_reserve(&self, at: usize) -> bool {
        self.open[at] || !self.stored[at].is_empty()
    }

    fn open(&mut self, at: usize) {
        let used = (0..self.accounts.len()).filter(|&at| self.has_reserve(at)).count() as u32;
        let may = self.has_reserve(at) || used < self.ledger.reserves();
        let before = self.open[at];
        let granted = self.ledger.open(&mut self.accounts, at as u32);
        self.open[at] |= may;
        if may && !before {
            let stored: u32 = self.stored[at].iter().sum();
            assert_eq!(granted, u64::from(self.ledger.reserve().saturating_sub(stored)));
        }
        assert!(may || self.accounts[at].window() == 0, "credit for more accounts than there are reserves");
    }

    fn arrive(&mut self, at: usize, rng: &mut Rng) {
        let window = self.accounts[at].window();
        if window == 0 {
            return;
        }
        let (cost, stored) = (1 + rng.below(window as usize) as u32, rng.below(3) > 0);
        let arrived = self.ledger.arrived(&mut self.accounts, at as u32, cost, stored);
        assert_ne!(arrived, ArrivedBytes::Overdrawn);
        if stored {
            self.stored[at].push(cost);
        }
    }

    fn remove(&mut self, at: usize, which: usize) {
        if !self.stored[at].is_empty() {
            let which = which % self.stored[at].len();
            let units = self.stored[at].swap_remove(which);
            self.ledger.removed(&mut self.accounts, at as u32, units);
        }
    }

    fn check(&self) {
        let used = (0..self.accounts.len()).filter(|&at| self.has_reserve(at)).count() as u32;
        assert_eq!(self.ledger.reserves_used(), used, "a reserve was lost, or taken twice");
        assert!(used <= self.ledger.reserves());
        let pooled: u32 = self.accounts.iter().map(|account| account.pooled).sum();
        let booked = self.ledger.free() + pooled + self.ledger.reserves() * self.ledger.reserve();
        assert_eq!(booked, self.ceiling, "units were lost or created");
        let held: u32 = self.accounts.iter().map(Account::charge).sum();
        assert!(held + self.ledger.free() <= self.ceiling, "credit without memory");
        for (at, account) in self.accounts.iter().enumerate() {
            assert_eq!(account.stored(), self.stored[at].iter().sum::<u32>());
            assert_eq!(account.has_reserve(), self.has_reserve(at));
            assert!(self.open[at] || account.window() == 0);
        }
    }
}

#[test]
fn reserve_of_an_account_that_is_closed_returns_when_its_messages_are_taken() {
    let mut refused = 0;
    for seed in 0..portion(300) {
        let mut rng = Rng::new(seed);
        let (ceiling, packet) = (20 + rng.below(400) as u32, 1 + rng.below(10) as u32);
        let (most, window) = (1 + rng.below(6) as u32, 1 + rng.below(200) as u32);
        let ledger = Ledger::growing(ceiling, most, window, packet).unwrap();
        let count = 1 + rng.below(8);
        let (accounts, stored) = (vec![Account::default(); count], vec![vec![]; count]);
        let mut twin = GrowingTwin { ceiling, ledger, accounts, stored, open: vec![false; count] };
        for _ in 0..400 {
            let at = rng.below(count);
            match rng.below(12) {
                0..2 => {
                    twin.open(at);
                    refused += usize::from(!twin.open[at]);
                }
                2 => {
                    twin.ledger.close(&mut twin.accounts, at as u32);
                    twin.open[at] = false;
                }
                3..8 => twin.arrive(at, &mut rng),
                8..11 => twin.remove(at, rng.below(100)),
                _ => _ = twin.ledger.next_regrant(&mut twin.accounts),
            }
            twin.check();
        }
        for at in 0..count {
            twin.ledger.close(&mut twin.accounts, at as u32);
            twin.open[at] = false;
            while !twin.stored[at].is_empty() {
                twin.remove(at, 0);
                twin.check();
            }
        }
        assert_eq!(twin.ledger.reserves_used(), 0, "a reserve was lost");
    }
    assert!(refused > 0, "no account was refused");
}
