//! The runs of a peer's memory that a list names.
#![forbid(unsafe_code)]

use super::{AccessError, PeerId};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::payload::SendRuns;
use crate::wire::listed::{ListedBytes, MOST_RUNS, RUN_BYTES};
use crate::wire::rendezvous::Descriptor;

/// The largest number of runs in a table. The models read no lists, and their threads have small stacks.
const MOST_ENTRIES: usize = if cfg!(nemesia_loom) { 2 } else { MOST_RUNS };

/// A run of a peer's memory. The peer has named it, and only the kernel checks that it is mapped there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRun {
    /// The address of the first byte in the peer's memory.
    pub address: u64,
    /// The number of bytes.
    pub len: u64,
}

impl RemoteRun {
    const fn of_entry(entry: &[u8; RUN_BYTES]) -> Self {
        let words = u128::from_le_bytes(*entry);
        Self { address: words as u64, len: (words >> 64) as u64 }
    }
}

/// Returns the description of a list in this process's memory. `serial` numbers the lists with a table. The table is
/// the caller's list, which has the layout of the wire only on some machines; [`Descriptor::NONE`] on the others.
pub fn describe_runs(runs: &SendRuns, serial: &mut u64) -> Descriptor {
    if cfg!(not(all(target_pointer_width = "64", target_endian = "little"))) {
        return Descriptor::NONE;
    }
    if let Some(pair) = runs.pair() {
        return Descriptor::of_pair(pair).unwrap_or(Descriptor::NONE);
    }
    *serial += 1;
    let (table, count, len) = (runs.table(), runs.count(), runs.len() as u64);
    Descriptor::of_list(&ListedBytes { table, count, serial: *serial, len }).unwrap_or(Descriptor::NONE)
}

/// The table of the list from which bytes were read last. A table is copied here once for each list and then checked: a
/// peer that changes its table later changes nothing.
#[derive(Debug)]
pub struct RunTable {
    /// The peer, and its list, if the table is that of a list.
    of: Option<(PeerId, Descriptor)>,
    /// The number of runs, and of their bytes.
    count: usize,
    len: u64,
    entries: [[u8; RUN_BYTES]; MOST_ENTRIES],
}

impl RunTable {
    /// Returns the table of no list.
    pub const fn new() -> Self {
        Self { of: None, count: 0, len: 0, entries: [[0; RUN_BYTES]; MOST_ENTRIES] }
    }

    /// Makes this the table of a peer's list. If it is another one and not part of the description, `read` reads it:
    /// the function gets the address of the table and its destination.
    ///
    /// # Errors
    /// The description is not that of a list, the table cannot be read, or its runs contradict the description.
    pub fn hold(
        &mut self,
        peer: PeerId,
        list: &Descriptor,
        read: impl FnOnce(u64, &mut [u8]) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let is_held = self.of == Some((peer, *list));
        #[cfg(nemesia_injected_fault)]
        let is_held = is_held || (injected(InjectedFault::KeepRuns) && self.is_similar(peer, list));
        if is_held {
            return Ok(());
        }
        self.of = None;
        let described = list.list();
        let count = described.map_or(2, |described| described.count);
        let entries = self.entries.get_mut(..count).ok_or(AccessError::List)?;
        match (&described, list.pair()) {
            (Some(described), _) => read(described.table, entries.as_flattened_mut())?,
            (None, Some(pair)) => entries.copy_from_slice(&pair),
            (None, None) => return Err(AccessError::List),
        }
        let add = |sum: u64, entry: &[u8; RUN_BYTES]| {
            let RemoteRun { address, len } = RemoteRun::of_entry(entry);
            address.checked_add(len)?;
            sum.checked_add(len)
        };
        let sum = entries.iter().try_fold(0, add).ok_or(AccessError::List)?;
        if described.is_some_and(|described| described.len != sum) {
            return Err(AccessError::List);
        }
        (self.of, self.count, self.len) = (Some((peer, *list)), count, sum);
        Ok(())
    }

    /// Returns whether the table is that of a list of the same peer with at least as many bytes.
    #[cfg(nemesia_injected_fault)]
    fn is_similar(&self, peer: PeerId, list: &Descriptor) -> bool {
        let is_long = list.list().is_some_and(|list| self.len >= list.len);
        is_long && self.of.is_some_and(|(of, held)| of == peer && held.list().is_some())
    }

    /// Returns the runs that make up `len` bytes from `at` on. `None` if the list has fewer bytes.
    pub fn part(&self, at: u64, len: u64) -> Option<impl Iterator<Item = RemoteRun>> {
        self.of?;
        at.checked_add(len).filter(|end| *end <= self.len)?;
        let entries = self.entries.get(..self.count)?;
        let clip = move |(skip, left): &mut (u64, u64), entry: &[u8; RUN_BYTES]| {
            let run = RemoteRun::of_entry(entry);
            let skipped = run.len.min(*skip);
            let taken = (run.len - skipped).min(*left);
            (*skip, *left) = (*skip - skipped, *left - taken);
            Some(RemoteRun { address: run.address + skipped, len: taken })
        };
        Some(entries.iter().scan((at, len), clip).filter(|run| run.len > 0))
    }

    /// Forgets the table if it is that of a list of this peer. The next process of the same rank may number its lists
    /// as this one did.
    pub fn forget(&mut self, peer: PeerId) {
        self.of = self.of.filter(|(of, _)| *of != peer);
    }
}

impl Default for RunTable {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn list(runs: &[(u64, u64)]) -> ListedBytes {
        let len = runs.iter().fold(0, |sum: u64, (_, len)| sum.wrapping_add(*len));
        ListedBytes { table: 77, count: runs.len(), serial: 1, len }
    }

    fn described(list: &ListedBytes) -> Descriptor {
        Descriptor::of_list(list).unwrap()
    }

    /// Lets a table hold a list with these runs.
    fn hold(table: &mut RunTable, list: &ListedBytes, runs: &[(u64, u64)]) -> Result<(), AccessError> {
        table.hold(3, &described(list), |address, to| {
            assert_eq!((address, to.len()), (77, RUN_BYTES * list.count));
            let words = runs.iter().flat_map(|(address, len)| [*address, *len]);
            to.copy_from_slice(words.flat_map(u64::to_le_bytes).collect::<Vec<_>>().as_slice());
            Ok(())
        })
    }

    fn part(table: &RunTable, at: u64, len: u64) -> Option<Vec<(u64, u64)>> {
        Some(table.part(at, len)?.map(|run| (run.address, run.len)).collect())
    }

    const RUNS: [(u64, u64); 4] = [(1000, 10), (0, 0), (2000, 5), (1005, 20)];

    #[test]
    fn each_part_of_a_list_is_cut_from_its_runs() {
        let mut table = RunTable::new();
        assert_eq!(part(&table, 0, 0), None, "there is no list");
        hold(&mut table, &list(&RUNS), &RUNS).unwrap();
        assert_eq!(part(&table, 0, 35).unwrap(), [(1000, 10), (2000, 5), (1005, 20)]);
        assert_eq!(part(&table, 0, 4).unwrap(), [(1000, 4)]);
        assert_eq!(part(&table, 9, 3).unwrap(), [(1009, 1), (2000, 2)]);
        assert_eq!(part(&table, 10, 5).unwrap(), [(2000, 5)]);
        assert_eq!(part(&table, 34, 1).unwrap(), [(1024, 1)]);
        assert_eq!(part(&table, 35, 0).unwrap(), []);
        for (at, len) in [(0, 36), (35, 1), (36, 0), (u64::MAX, 1), (1, u64::MAX)] {
            assert_eq!(part(&table, at, len), None, "{len} bytes from {at}");
        }
    }

    #[test]
    fn a_table_is_read_once_for_each_list_and_again_for_the_next_process() {
        let mut table = RunTable::new();
        let first = list(&RUNS);
        hold(&mut table, &first, &RUNS).unwrap();
        let unread = |_: u64, _: &mut [u8]| -> Result<(), AccessError> { unreachable!("it is held") };
        table.hold(3, &described(&first), unread).unwrap();
        table.forget(2);
        table.hold(3, &described(&first), unread).unwrap();
        // The same table describes another message, or belongs to another peer, or to the next process of the rank.
        let other = ListedBytes { serial: 2, ..first };
        hold(&mut table, &other, &[(5, 35), (0, 0), (0, 0), (0, 0)]).unwrap();
        assert_eq!(part(&table, 0, 35).unwrap(), [(5, 35)]);
        assert_eq!(
            table.hold(4, &described(&other), |_, _| Err(AccessError::Refused)),
            Err(AccessError::Refused)
        );
        assert_eq!(part(&table, 0, 1), None, "a table that was not read is not used");
        hold(&mut table, &other, &RUNS).unwrap();
        table.forget(3);
        assert_eq!(part(&table, 0, 1), None);
    }

    #[test]
    fn runs_that_contradict_the_description_are_not_used() {
        let mut table = RunTable::new();
        let bad: [(ListedBytes, &[(u64, u64)]); 5] = [
            (ListedBytes { len: 34, ..list(&RUNS) }, &RUNS),
            (ListedBytes { len: 36, ..list(&RUNS) }, &RUNS),
            (ListedBytes { len: 0, ..list(&RUNS) }, &RUNS),
            // The sum, and the end of a run, exceed the largest number.
            (ListedBytes { len: 1, ..list(&[(0, 0); 2]) }, &[(0, u64::MAX), (0, 2)]),
            (ListedBytes { len: 6, ..list(&[(0, 0)]) }, &[(u64::MAX - 4, 6)]),
        ];
        for (list, runs) in bad {
            assert_eq!(hold(&mut table, &list, runs), Err(AccessError::List), "{list:?}");
            assert_eq!(part(&table, 0, 0), None);
        }
        assert_eq!(table.hold(3, &Descriptor::of_address(5), |_, _| Ok(())), Err(AccessError::List));
    }

    #[test]
    fn two_runs_are_held_without_a_table() {
        let mut table = RunTable::new();
        let unread = |_: u64, _: &mut [u8]| -> Result<(), AccessError> { unreachable!("there is no table") };
        table.hold(3, &Descriptor::of_pair([(1000, 10), (2000, 5)]).unwrap(), unread).unwrap();
        assert_eq!(part(&table, 8, 4).unwrap(), [(1008, 2), (2000, 2)]);
        table.hold(3, &Descriptor::of_pair([(1000, 1), (3000, 5)]).unwrap(), unread).unwrap();
        assert_eq!((part(&table, 0, 6).unwrap(), part(&table, 0, 7)), ([(1000, 1), (3000, 5)].into(), None));
        for bad in [[(0, u64::MAX), (0, 1)], [(u64::MAX, 2), (0, 1)]] {
            let bad = Descriptor::of_pair(bad).unwrap();
            assert_eq!(table.hold(3, &bad, unread), Err(AccessError::List));
            assert_eq!(part(&table, 0, 0), None);
        }
    }
}
