//! Places that several users share by dynamic threshold: a user may take another place only while it holds fewer
//! of them than are free (Choudhury and Hahne, *Dynamic queue length thresholds for shared-memory packet
//! switches*, IEEE/ACM ToN 6(2), 1998). So one user that gives nothing back ends with half of the places, and
//! two with a third each. If users that come one after the other give nothing back, the last place is taken in the end.
//! Places are therefore also reserved, or kept for users that hold none.
//!
//! The receives of connections ([`posted`](super::posted)), the stored replies ([`replies`](super::replies))
//! and the cells of the shared-memory port are shared in this way.
#![forbid(unsafe_code)]

/// Returns whether a user that holds `held` places may take another, of which `free` are free.
#[inline(always)]
pub const fn is_below_threshold(held: u32, free: u32) -> bool {
    held < free
}

/// The counts of a set of places (places, cells, or anything else that is taken and given back). Each user may
/// have reserved places; the rest is shared by dynamic threshold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SharedPool {
    /// Free places, and the number of them that are reserved for users that have not used all of their own.
    free: u32,
    outstanding: u32,
}

impl SharedPool {
    /// Returns a pool without places.
    pub const fn new() -> Self {
        Self { free: 0, outstanding: 0 }
    }

    /// Adds places.
    pub const fn add(&mut self, places: u32) {
        self.free += places;
    }

    /// Returns the number of free places.
    pub const fn free(&self) -> u32 {
        self.free
    }

    /// Returns the number of free places that are not reserved.
    pub const fn spare(&self) -> u32 {
        self.free.saturating_sub(self.outstanding)
    }

    /// Returns whether a user that holds `extra` shared places may take another. `absent` places are wanted for
    /// users that do not exist yet, out of `all` places.
    pub fn may_grow(&self, extra: u32, absent: u32, all: u32) -> bool {
        #[cfg(nemesia_injected_fault)]
        if crate::injected_fault::injected(crate::injected_fault::InjectedFault::GrowGreedily) {
            return self.spare() > 0;
        }
        #[cfg(nemesia_injected_fault)]
        if crate::injected_fault::injected(crate::injected_fault::InjectedFault::OverdrawPool) {
            return extra < self.free;
        }
        let half = all / 2;
        let kept = if absent < half { absent } else { half };
        is_below_threshold(extra, self.spare().saturating_sub(kept))
    }

    /// Reserves places. Returns `false` if too few are free.
    pub const fn reserve(&mut self, places: u32) -> bool {
        let can = places <= self.spare();
        if can {
            self.outstanding += places;
        }
        can
    }

    /// Cancels a reservation whose places are all back.
    pub const fn unreserve(&mut self, places: u32) {
        self.outstanding = self.outstanding.saturating_sub(places);
    }

    /// Takes a place: a reserved one if `own`, else a shared one. Returns `false` if there is none.
    pub fn take(&mut self, own: bool) -> bool {
        let can = if own { self.free > 0 } else { self.may_take() };
        if can {
            self.free -= 1;
            self.outstanding = self.outstanding.saturating_sub(u32::from(own));
        }
        can
    }

    fn may_take(&self) -> bool {
        #[cfg(nemesia_injected_fault)]
        if crate::injected_fault::injected(crate::injected_fault::InjectedFault::OverdrawPool) {
            return self.free > 0;
        }
        self.spare() > 0
    }

    /// Returns a place; if `own`, it is reserved for its user again.
    pub fn put(&mut self, own: bool) {
        self.free += 1;
        self.outstanding += u32::from(own);
    }

    /// Returns whether all reserved places are available.
    pub const fn is_sound(&self) -> bool {
        self.outstanding <= self.free
    }
}
