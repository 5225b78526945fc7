//! Ledgers of processes whose peers come one by one, and leave.
#![forbid(unsafe_code)]

use super::{Account, CeilingError, Ledger, larger, smaller};

impl Ledger {
    /// Returns a ledger over `ceiling` units for peers that come later, whose packets cost at most `packet` each, and
    /// of which at most `most` are there at the same time.
    ///
    /// Half of the ceiling is set aside for their reserves. A reserve is an equal share for each of `most` peers, but
    /// at least a largest packet and at most a window. So `most` accounts can be open, or as many as there are reserves
    /// in the half that is set aside, if that is less. The window is that of [`Ledger::new`].
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

    /// Returns the units that another reserve takes out of the pool. In a world of one process, which has no reserves,
    /// these are an eighth of a window, but at least a largest packet.
    pub const fn next_reserve(&self) -> u32 {
        if self.reserve > 0 { self.reserve } else { larger(self.window / 8, self.packet) }
    }

    /// Adds a reserve for a process that joins a world later. Of its units, `pooled` come out of the pool. The others
    /// are part of the ceiling, but were not in the pool yet ([`backing`](super::backing)). Returns `false`, and
    /// changes nothing, if the pool has not so many.
    pub const fn add_reserve(&mut self, pooled: u32) -> bool {
        let Some(free) = self.free.checked_sub(pooled) else { return false };
        self.free = free;
        self.reserve = self.next_reserve();
        (self.reserves, self.most, self.unopened) = (self.reserves + 1, self.most + 1, self.unopened + 1);
        true
    }

    /// Takes the reserve of a closed account without stored units.
    pub(super) const fn release_reserve(&mut self, account: &mut Account) {
        if account.reserved && !account.open && account.stored == 0 {
            account.reserved = false;
            self.unopened += 1;
        }
    }
}
