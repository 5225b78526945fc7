//! The sender's side of credit.
#![forbid(unsafe_code)]

/// The sender's side for one peer: the units that may be sent to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Units that may still be sent.
    left: u64,
    /// Total units that the peer has granted.
    limit: u64,
}

impl Allowance {
    /// Returns an allowance with the peer's first total.
    pub const fn new(limit: u64) -> Self {
        Self { left: limit, limit }
    }

    /// Returns whether a packet of this cost may be sent.
    #[inline(always)]
    pub const fn may(&self, cost: u32) -> bool {
        cost as u64 <= self.left
    }

    /// Charges a packet that is sent.
    #[inline(always)]
    pub const fn spend(&mut self, cost: u32) {
        debug_assert!(self.may(cost));
        self.left -= cost as u64;
    }

    /// Updates the total that the peer has published. Returns `true` if it has grown.
    ///
    /// The total is untrusted. A smaller one is outdated or forged, and is ignored, because grants are never withdrawn.
    /// An impossibly large one is accepted: no size, index or loop depends on it, and if the peer then faults this
    /// process for exceeding its credit, it loses only its own connection.
    #[inline(always)]
    pub const fn raise(&mut self, limit: u64) -> bool {
        let more = limit > self.limit;
        if more {
            self.left += limit - self.limit;
            self.limit = limit;
        }
        more
    }

    /// Returns the total units sent.
    pub const fn spent(&self) -> u64 {
        self.limit - self.left
    }

    /// Returns the total units that the peer has granted, as last read.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the units that may still be sent.
    pub const fn left(&self) -> u64 {
        self.left
    }
}
