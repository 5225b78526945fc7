//! The memory that a store is lent, and that is committed in steps.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

/// The unit of the memory, and of credit.
pub type Unit = [u8; UNIT];

/// Bytes of a [`Unit`].
pub const UNIT: usize = 64;

/// The memory of a store. It has its addresses from the start. Its units are committed from the first on, in steps,
/// before the store uses them and before a peer gets credit for them. A slice or a `Vec` is committed as a whole.
pub trait UnitMemory {
    /// Returns the units, committed or not.
    fn units(&self) -> &[Unit];

    /// Returns the units for modification.
    fn units_mut(&mut self) -> &mut [Unit];

    /// Returns the number of units that may be used before the first [`Engine::raise_ceiling`].
    ///
    /// [`Engine::raise_ceiling`]: crate::engine::Engine::raise_ceiling
    fn ceiling(&self) -> u32 {
        count(self.units())
    }

    /// Commits the first `units` units, in bounded time. Returns the number of units that are committed: more if
    /// the memory rounds up, fewer if there is not enough. An access to a committed unit never fails.
    fn commit(&mut self, units: u32) -> u32 {
        let _ = units;
        count(self.units())
    }
}

impl<T: BorrowMut<[Unit]>> UnitMemory for T {
    #[inline(always)]
    fn units(&self) -> &[Unit] {
        self.borrow()
    }

    #[inline(always)]
    fn units_mut(&mut self) -> &mut [Unit] {
        self.borrow_mut()
    }
}

fn count(units: &[Unit]) -> u32 {
    u32::try_from(units.len()).unwrap_or(u32::MAX)
}
