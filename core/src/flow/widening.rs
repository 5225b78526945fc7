//! Wider windows for peers that have more under way than the usual one.
#![forbid(unsafe_code)]

use super::{Account, Ledger, account, larger};
use crate::wire::PeerId;

/// The most doublings of a window.
const MOST_DOUBLINGS: u8 = 3;
/// A window is widened while the pool has so many of the wider ones.
const SPARE_WINDOWS: u32 = 4;

impl Ledger {
    /// Returns the units that the pool should have, so that each account can be refilled.
    pub const fn widest(&self) -> u32 {
        self.widest
    }

    /// Doubles the window of a peer that had no credit for a message which a receive was waiting for: more of its
    /// messages are under way than the window has room for. Does so up to three times, while no account waits for the
    /// pool, and `spare` units, which are free now or can be, are four such windows. Returns the peer's new total if it
    /// has changed.
    pub fn widen<T: AsMut<Account>>(&mut self, accounts: &mut [T], peer: PeerId, spare: u32) -> Option<u64> {
        let account = account(accounts, peer)?;
        let wider = self.window_of(account).saturating_mul(2);
        let is_waited_for = !self.packetless.is_empty() || !self.windowless.is_empty();
        let is_widest = account.doublings >= MOST_DOUBLINGS;
        if !account.open || is_waited_for || is_widest || wider > spare / SPARE_WINDOWS {
            return None;
        }
        account.doublings += 1;
        self.widest = larger(self.widest, wider);
        self.settle(accounts, peer, false, self.minimum_grant())
    }

    /// Returns the window to which this account is refilled.
    pub(super) const fn window_of(&self, account: &Account) -> u32 {
        self.window << account.doublings
    }

    /// Returns the units below which this account is refilled.
    pub(super) const fn low_of(&self, account: &Account) -> u32 {
        larger(self.low, self.window_of(account) / 2)
    }
}
