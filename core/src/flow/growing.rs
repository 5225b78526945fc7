//! Ledgers of processes whose peers come one by one, and leave.
#![forbid(unsafe_code)]

use super::{Account, CeilingError, Ledger, larger, smaller};

impl Ledger {
    /// Returns a ledger over `ceiling` units for peers that come later, whose packets cost at most `packet` each, and
    /// of which at most `most` are there at the same time.
    ///
    /// Half of the ceiling is set aside for their reserves. A reserve is an equal share for each of `most` peers, but
    /// at least a largest packet and at most a window. So `most` accounts can be open, or as many as there are
    /// reserves in the half that is set aside, if that is less. The window is that of [`Ledger::new`].
    ///
    /// # Errors
    /// The ceiling is too low for one reserve.
    pub const fn growing(ceiling: u32, most: u32, window: u32, packet: u32) -> Result<Self, CeilingError> {
        // Every packet must cost something.
        let packet = larger(packet, 1);
        let set_aside = ceiling / 2;
        let window = larger(smaller(window, ceiling / 4), packet);
        let (reserve, reserves) = match set_aside.checked_div(most) {
            Some(share) => {
                let reserve = smaller(larger(share, packet), window);
                (reserve, smaller(set_aside / reserve, most))
            }
            None => (0, 0),
        };
        if most > 0 && reserves == 0 {
            return Err(CeilingError::Units { ceiling, peers: 1, needed: 2 * packet as u64 });
        }
        Ok(Self::of(ceiling, (reserves, most), reserve, window, packet))
    }

    /// Returns the number of reserves: the most accounts that can be open at the same time.
    pub const fn reserves(&self) -> u32 {
        self.reserves
    }

    /// Returns the number of reserves that accounts have: of all open accounts, and of closed ones with stored units.
    pub const fn reserves_used(&self) -> u32 {
        self.reserves - self.unopened
    }

    /// Returns the reason why no further account can be opened under a ceiling of `ceiling` units. A largest packet
    /// costs `packet` units if the ceiling does not limit it.
    pub const fn shortage(&self, ceiling: u32, packet: u32) -> CeilingError {
        let peers = self.reserves.saturating_add(1);
        if self.reserves >= self.most {
            return CeilingError::Connections { peers: self.reserves, needed: peers };
        }
        CeilingError::Units { ceiling, peers, needed: 2 * peers as u64 * larger(packet, 1) as u64 }
    }

    /// Takes the reserve of a closed account without stored units.
    pub(super) const fn release_reserve(&mut self, account: &mut Account) {
        if account.reserved && !account.open && account.stored == 0 {
            account.reserved = false;
            self.unopened += 1;
        }
    }
}
