//! The memory behind the credit: units are committed before they are promised.
//!
//! A [`Ledger`](super::Ledger) promises units to peers from its pool, and to each account from its reserve. The memory
//! behind these units is committed later than the ledger is made, in steps. The ledger's pool therefore contains only
//! committed units; the rest is counted here.
#![forbid(unsafe_code)]

/// The units of the ceiling that are committed and promised to nobody, and those that are not committed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backing {
    /// Committed units that are neither in a reserve nor in the pool.
    spare: u32,
    /// Units of the pool that are not committed.
    unbacked: u32,
    /// Units above the ceiling, which [`Backing::raise`] adds to the pool.
    beyond: u32,
    /// Reserves of accounts that have memory, in use or free.
    reserves: u32,
}

impl Backing {
    /// Returns the backing of a pool of `pool` units, all of them without memory so far. Of the memory, `committed`
    /// units are usable, and `beyond` units are above the ceiling.
    pub const fn new(committed: u32, pool: u32, beyond: u32) -> Self {
        Self { spare: committed, unbacked: pool, beyond, reserves: 0 }
    }

    /// Takes units for a reserve. `commit` commits more units and returns how many were added. Returns `false`, and
    /// takes nothing, if there are not enough.
    pub fn take(&mut self, units: u32, commit: impl FnOnce(u32) -> u32) -> bool {
        if self.spare < units {
            self.spare += commit(units - self.spare);
        }
        match self.spare.checked_sub(units) {
            Some(spare) => {
                self.spare = spare;
                true
            }
            None => false,
        }
    }

    /// Takes memory so that `count` reserves of `units` units each have some. A reserve keeps its memory when its
    /// account is closed. Returns `false`, and takes nothing, if there is not enough.
    pub fn take_reserves(&mut self, count: u32, units: u32, commit: impl FnOnce(u32) -> u32) -> bool {
        let more = count.saturating_sub(self.reserves);
        let taken = more == 0 || self.take(more * units, commit);
        self.reserves += if taken { more } else { 0 };
        taken
    }

    /// Turns units of the pool into a reserve: as many as have no memory, which `commit` commits, and of the others
    /// `pooled`, which have some. Returns `false`, and takes nothing, if there is not enough memory.
    pub fn add_reserve(&mut self, units: u32, pooled: u32, commit: impl FnOnce(u32) -> u32) -> bool {
        let more = units.saturating_sub(pooled);
        let Some(unbacked) = self.unbacked.checked_sub(more) else { return false };
        let taken = self.take(more, commit);
        if taken {
            self.unbacked = unbacked;
            self.reserves += 1;
        }
        taken
    }

    /// Returns the units of the pool without memory.
    pub const fn unbacked(&self) -> u32 {
        self.unbacked
    }

    /// Returns whether the pool has units without memory.
    #[inline(always)]
    pub const fn is_due(&self) -> bool {
        self.unbacked > 0
    }

    /// Backs at least `units` units of the pool if possible, and all that have memory already. Returns how many may
    /// join the pool.
    pub fn back(&mut self, units: u32, commit: impl FnOnce(u32) -> u32) -> u32 {
        let wanted = units.min(self.unbacked);
        if self.spare < wanted {
            self.spare += commit(wanted - self.spare);
        }
        let backed = self.spare.min(self.unbacked);
        self.spare -= backed;
        self.unbacked -= backed;
        backed
    }

    /// Raises the ceiling by up to `units` units. Returns by how many.
    pub fn raise(&mut self, units: u32) -> u32 {
        let added = units.min(self.beyond);
        self.beyond -= added;
        self.unbacked += added;
        added
    }

    /// Returns the units by which the ceiling can still be raised.
    pub const fn beyond(&self) -> u32 {
        self.beyond
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::tests::Rng;

    #[test]
    fn no_unit_is_given_out_before_it_is_committed_and_none_twice() {
        let mut rng = Rng::new(14);
        let mut below = |end: u32| rng.below(end as usize) as u32;
        for _ in 0..200 {
            let (pool, beyond, reserves) = (below(500), below(500), 1 + below(199));
            let mut committed = below(50);
            let mut backing = Backing::new(committed, pool, beyond);
            let (mut given, mut raised, mut reserved) = (0, 0, 0);
            let (mut count, most, size) = (0, below(8), 1 + below(30));
            for _ in 0..300 {
                // The memory rounds up, or has nothing left.
                let (limit, more) = (reserves + most * size + pool + raised + 20, below(2) * (1 + below(30)));
                let mut commit = |units: u32| {
                    let left = if more > 0 { limit.saturating_sub(committed) } else { 0 };
                    let added = (units + more).min(left);
                    committed += added;
                    added
                };
                match below(4) {
                    0 => given += backing.back(below(40), &mut commit),
                    1 if reserved < reserves => {
                        let units = below(reserves - reserved + 1);
                        reserved += if backing.take(units, &mut commit) { units } else { 0 };
                    }
                    1 | 2 if count < most => {
                        count += u32::from(backing.take_reserves(count + 1, size, &mut commit));
                        // A reserve that has memory keeps it.
                        assert!(backing.clone().take_reserves(count, size, |_| 0));
                    }
                    _ => raised += backing.raise(below(20)),
                }
                let reserved = reserved + count * size;
                assert!(given + reserved <= committed, "a unit without memory was given out");
                assert!(given <= pool + raised && raised <= beyond, "more than the ceiling was given out");
                assert_eq!((backing.is_due(), backing.beyond()), (given < pool + raised, beyond - raised));
            }
        }
    }
}
