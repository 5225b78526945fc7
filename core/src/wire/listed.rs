//! The description of bytes that lie in several runs of their owner's memory. The owner keeps a table of the runs,
//! which a peer reads once and checks before it reads the runs.
//!
//! It is three words of 64 bits, little-endian in a [`Descriptor`]. Word 0: the address of the table in the owner's
//! memory. Word 1: bits 0-15 the number of runs, bits 16-63 the serial number of the list: a table of one number has
//! one content. Word 2: the bytes of all runs together.
//!
//! The table has two words of 64 bits for each run, little-endian: the address of the first byte, and the number of
//! bytes. A run may be empty, and runs may overlap.
//!
//! A list of two runs needs no table: its description is four words, the addresses and lengths of both runs.
#![forbid(unsafe_code)]

use super::rendezvous::Descriptor;

/// The largest number of runs that a list may have.
pub const MOST_RUNS: usize = 256;
/// Bytes of a run in the table.
pub const RUN_BYTES: usize = 16;

const COUNT_BITS: u32 = 16;

/// Bytes in several runs. A value from a peer is unchecked, except that `count` is from 1 to [`MOST_RUNS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedBytes {
    /// The address of the table in the owner's memory.
    pub table: u64,
    /// The number of runs.
    pub count: usize,
    /// The serial number, of 48 bits.
    pub serial: u64,
    /// The number of bytes of all runs.
    pub len: u64,
}

impl Descriptor {
    /// Method: the bytes are [`ListedBytes`], which peers read through the kernel.
    pub const LIST: u8 = 3;

    /// Returns the description of bytes in several runs. `None` if the number of runs is out of range.
    pub fn of_list(list: &ListedBytes) -> Option<Self> {
        let ListedBytes { table, count, serial, len } = *list;
        let words = [table, serial << COUNT_BITS | count as u64, len].map(u64::to_le_bytes);
        (1..=MOST_RUNS).contains(&count).then(|| Self::new(Self::LIST, words.as_flattened()))?
    }

    /// Method: the bytes are the table of two runs, which peers read through the kernel.
    pub const PAIR: u8 = 4;

    /// Returns the description of the bytes of two runs, of which these are the addresses and lengths.
    pub fn of_pair([first, second]: [(u64, u64); 2]) -> Option<Self> {
        let words = [first.0, first.1, second.0, second.1].map(u64::to_le_bytes);
        Self::new(Self::PAIR, words.as_flattened())
    }

    /// Returns the table of two runs, if the method is [`Descriptor::PAIR`] and the bytes are well-formed.
    pub fn pair(&self) -> Option<[[u8; RUN_BYTES]; 2]> {
        let (runs, rest) = self.bytes().as_chunks::<RUN_BYTES>();
        let runs = <[[u8; RUN_BYTES]; 2]>::try_from(runs).ok().filter(|_| rest.is_empty())?;
        (self.method() == Self::PAIR).then_some(runs)
    }

    /// Returns whether the description is well-formed and names bytes that peers read through the kernel, in one run
    /// or in several.
    pub fn is_readable(&self) -> bool {
        self.address().is_some() || self.list().is_some() || self.pair().is_some()
    }

    /// Returns whether the bytes lie in several runs.
    pub const fn is_list(&self) -> bool {
        matches!(self.method(), Self::LIST | Self::PAIR)
    }

    /// Returns the bytes in several runs, if the method is [`Descriptor::LIST`] and the bytes are well-formed.
    pub fn list(&self) -> Option<ListedBytes> {
        let (words, rest) = self.bytes().as_chunks::<8>();
        let words = <[[u8; 8]; 3]>::try_from(words).ok().filter(|_| rest.is_empty())?;
        let [table, numbers, len] = words.map(u64::from_le_bytes);
        let count = usize::from(numbers as u16);
        let list = ListedBytes { table, count, serial: numbers >> COUNT_BITS, len };
        (self.method() == Self::LIST && (1..=MOST_RUNS).contains(&count)).then_some(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: ListedBytes = ListedBytes { table: 0x7fff_1234_5678, count: 8, serial: 5, len: 1 << 20 };

    #[test]
    fn descriptions_of_lists_survive_the_wire() {
        for list in [
            LIST,
            ListedBytes { count: 1, serial: (1 << 48) - 1, ..LIST },
            ListedBytes { table: u64::MAX, count: MOST_RUNS, serial: 0, len: u64::MAX },
        ] {
            let descriptor = Descriptor::of_list(&list).unwrap();
            assert_eq!(descriptor.list(), Some(list));
            assert_eq!((descriptor.address(), descriptor.mappable()), (None, None));
        }
    }

    #[test]
    fn malformed_descriptions_of_lists_are_not_accepted() {
        for count in [0, MOST_RUNS + 1, 1 << 16, (1 << 16) + 1] {
            assert_eq!(Descriptor::of_list(&ListedBytes { count, ..LIST }), None, "{count}");
        }
        let content = Descriptor::of_list(&LIST).unwrap();
        for len in (0..content.bytes().len()).chain([25, 32]) {
            let mut bytes = content.bytes().to_vec();
            bytes.resize(len, 0);
            assert_eq!(Descriptor::new(Descriptor::LIST, &bytes).unwrap().list(), None, "{len}");
        }
        for count in [0_u16, MOST_RUNS as u16 + 1, u16::MAX] {
            let mut bytes = content.bytes().to_vec();
            bytes[8..10].copy_from_slice(&count.to_le_bytes());
            assert_eq!(Descriptor::new(Descriptor::LIST, &bytes).unwrap().list(), None, "{count}");
        }
        assert_eq!(Descriptor::new(Descriptor::ADDRESS, content.bytes()).unwrap().list(), None);
        let pair = Descriptor::of_pair([(1, 2), (3, u64::MAX)]).unwrap();
        assert_eq!((pair.pair().map(|[_, run]| run[0]), pair.list(), pair.is_list()), (Some(3), None, true));
        for (method, len) in [(Descriptor::PAIR, 31), (Descriptor::PAIR, 16), (Descriptor::LIST, 32)] {
            assert_eq!(Descriptor::new(method, &pair.bytes()[..len]).unwrap().pair(), None, "{len}");
        }
        assert_eq!(Descriptor::of_address(7).list(), None);
    }
}
