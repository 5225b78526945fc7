//! The memory for unexpected messages. The addresses are there from the start, and the pages are committed in steps,
//! before a peer gets credit for them (invariant 4).

use nemesia_core::store::{self, UNIT, Unit, UnitMemory};

use crate::config::{Config, ConfigError};
use crate::error::Error;
use crate::os::reserve::ReservedMemory;
use crate::os::{Bytes, ShmError, limits};

/// The least and the most that is committed at a time, in units: 1 MiB and 8 MiB. Between them it is a quarter of what
/// is committed.
const STEPS: (u32, u32) = ((1 << 20) / UNIT as u32, (8 << 20) / UNIT as u32);
/// The number of attempts that are skipped after the machine had no memory. Each attempt reads files of `/proc`.
const SKIPPED: u32 = 255;

/// The units of the store.
#[derive(Debug)]
pub(in crate::endpoint) struct UnexpectedMemory {
    memory: ReservedMemory,
    /// All units, and those below the ceiling.
    limit: u32,
    ceiling: u32,
    /// The attempts to skip.
    skip: u32,
}

impl UnexpectedMemory {
    fn committed(&self) -> u32 {
        ((self.memory.committed() / UNIT) as u32).min(self.limit)
    }
}

impl UnitMemory for UnexpectedMemory {
    #[inline(always)]
    fn units(&self) -> &[Unit] {
        &self.memory.bytes().as_chunks().0[..self.limit as usize]
    }

    #[inline(always)]
    fn units_mut(&mut self) -> &mut [Unit] {
        &mut self.memory.bytes_mut().as_chunks_mut().0[..self.limit as usize]
    }

    fn ceiling(&self) -> u32 {
        self.ceiling
    }

    fn commit(&mut self, units: u32) -> u32 {
        let committed = self.committed();
        if units <= committed {
            return committed;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return committed;
        }
        let step = committed.saturating_add((committed / 4).clamp(STEPS.0, STEPS.1));
        // Nothing is committed beyond the ceiling before it is raised.
        let bound = if units > self.ceiling { self.limit } else { self.ceiling };
        let most = units.max(step.min(bound));
        let bytes = |units: u32| units as usize * UNIT;
        if self.memory.commit(bytes(most)).is_err() && self.memory.commit(bytes(units)).is_err() {
            self.skip = SKIPPED;
        }
        self.committed()
    }
}

/// Returns the storage for unexpected messages and for the lists that find them. At the ceiling they take
/// `Config::unexpected_bytes` together, and at the limit no more than `Config::unexpected_limit`. Only the lists are
/// committed. What lies between both is a preference: it needs addresses, of which at most half of those that are left
/// are taken, and no more than the machine has memory.
pub(super) fn room(
    config: &Config,
    warnings: &mut Vec<String>,
) -> Result<(UnexpectedMemory, Vec<u32>), Error> {
    let bytes = config.unexpected_bytes;
    let refused = |name, bytes| Error::from(ConfigError::TooLarge { name, bytes });
    if limits::available_memory().is_some_and(|available| bytes as u64 > available.bytes) {
        return Err(refused("NEMESIA_UNEXPECTED_BYTES", bytes));
    }
    let (ceiling, lists) = store::split(bytes);
    let wanted = config.unexpected_limit.saturating_sub(bytes);
    let more = wanted.min(usable_addresses().saturating_sub(bytes));
    if more < wanted && limits::has_address_limit() {
        let given = Bytes((bytes + more) as u64);
        let why = format!(
            "NEMESIA_UNEXPECTED_LIMIT={}: {given} are used, as addresses are limited: raise ulimit -v",
            config.unexpected_limit
        );
        config.give_up(why, warnings)?;
    }
    let more = more / UNIT;
    let count = |units: usize| u32::try_from(units).unwrap_or(u32::MAX);
    let limit = count(ceiling.saturating_add(more));
    let memory = ReservedMemory::new(limit as usize * UNIT);
    let name = if more == 0 { "NEMESIA_UNEXPECTED_BYTES" } else { "NEMESIA_UNEXPECTED_LIMIT" };
    let memory = memory.map_err(|error| match error {
        ShmError::AddressSpaceLimit { .. } | ShmError::MemlockLimit { .. } => {
            ConfigError::Limited { name, limit: error.to_string() }.into()
        }
        _ if error.is_shortage() => refused(name, bytes.max(config.unexpected_limit)),
        _ => error.into(),
    })?;
    let mut stored = Vec::new();
    stored.try_reserve_exact(lists).map_err(|_| refused("NEMESIA_UNEXPECTED_BYTES", bytes))?;
    // This writes every list, so their pages are committed.
    stored.resize(lists, 0);
    Ok((UnexpectedMemory { memory, limit, ceiling: count(ceiling).min(limit), skip: 0 }, stored))
}

/// Returns the bytes that an endpoint may reserve beyond what it needs: half of the addresses that are left to this
/// process, and not more than the memory of the machine.
fn usable_addresses() -> usize {
    let left = limits::addresses_left().map_or(u64::MAX, |left| left / 2);
    usize::try_from(left.min(limits::total_memory().unwrap_or(u64::MAX))).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Endpoint;
    use crate::os::testing;

    fn room_of(config: &Config) -> Result<(UnexpectedMemory, Vec<u32>), Error> {
        room(config, &mut Vec::new())
    }

    /// The provider of libfabric asks for 16 GiB.
    #[test]
    fn an_endpoint_with_a_large_limit_opens_under_a_limit_of_512_mib_of_addresses() {
        const NAME: &str = concat!(
            module_path!(),
            "::an_endpoint_with_a_large_limit_opens_under_a_limit_of_512_mib_of_addresses"
        );
        const LIMIT: u64 = 512 << 20;
        if !testing::is_child() {
            return testing::run_again(NAME, || testing::set_limit(libc::RLIMIT_AS, LIMIT));
        }
        let config = Config::default().local(true).unexpected_limit(16 << 30);
        let (memory, _) = room_of(&config).unwrap();
        let reserved = memory.units().len() * UNIT;
        assert!(reserved >= config.unexpected_bytes / 2 && reserved < LIMIT as usize, "{reserved}");
        drop(memory);
        let endpoint = Endpoint::alone(&config).unwrap();
        let warning = endpoint.warnings().iter().find(|it| it.contains("NEMESIA_UNEXPECTED_LIMIT"));
        assert!(warning.is_some_and(|it| it.contains("ulimit -v")), "{:?}", endpoint.warnings());
        endpoint.close().unwrap();
    }

    #[test]
    fn no_more_addresses_are_reserved_than_the_machine_has_memory() {
        let Some(total) = limits::total_memory() else { return };
        let config = Config::default().unexpected_limit(1 << 44);
        let (memory, _) = room_of(&config).unwrap();
        assert!((memory.units().len() * UNIT) as u64 <= total);
    }

    #[test]
    fn memory_is_committed_in_steps_up_to_the_ceiling_and_beyond_it_only_if_that_is_asked_for() {
        let config = Config::default().unexpected_bytes(16 << 20).unexpected_limit(64 << 20);
        let (mut units, lists) = room_of(&config).unwrap();
        let (ceiling, listed) = store::split(16 << 20);
        assert_eq!((units.ceiling() as usize, lists.len()), (ceiling, listed));
        assert_eq!(units.units().len(), ceiling + (48 << 20) / UNIT);
        assert_eq!(units.commit(0), 0);
        let first = units.commit(1);
        assert_eq!(first, STEPS.0, "the least step");
        let mut steps = 1;
        let mut last = first;
        while last < units.ceiling() {
            let next = units.commit(last + 1);
            assert!(next > last && next as usize * UNIT <= (16 << 20), "{next} of {ceiling} units");
            (last, steps) = (next, steps + 1);
        }
        assert!((4..=16).contains(&steps), "{steps} steps");
        assert!(units.commit(last + 1) > last);
        assert_eq!(units.commit(u32::MAX).min(units.limit), units.limit);
        units.units_mut()[last as usize + 1] = [3; UNIT];
        assert_eq!(units.units()[last as usize + 1], [3; UNIT]);
    }

    #[test]
    fn memory_that_the_machine_does_not_have_is_not_promised() {
        let Some(available) = limits::available_memory() else { return };
        let limit = usize::try_from(available.bytes).unwrap().saturating_mul(2);
        let config = Config::default().unexpected_bytes(1 << 20).unexpected_limit(limit);
        let Ok((mut units, _)) = room_of(&config) else { return };
        let committed = units.commit(100);
        assert!(committed >= 100);
        assert_eq!(units.commit(units.limit), committed);
        assert_eq!(units.commit(committed + 1), committed, "the next attempts are skipped");
        (1..SKIPPED).for_each(|_| assert_eq!(units.commit(committed + 1), committed));
        assert!(units.commit(committed + 1) > committed, "and then made again");
    }
}
