//! Whether pages of another process are in memory, from `/proc/PID/pagemap`.
//!
//! A thread that touches a page which is not in memory waits until the page is there. A FUSE or network file system, or
//! a process that provides its pages itself (`userfaultfd(2)`), may never provide it. No signal but SIGKILL ends such a
//! wait. The page table shows which pages are not there, without a wait.
//!
//! Linux 6.7 or later answers for a range in one call (`PAGEMAP_SCAN`: 1 to 1.4 us, and 3 ns a page). Older kernels
//! return eight bytes for each page, which takes three times as long.

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use super::call::{checked, open_files, uninterrupted};
use super::descriptor::above_standard;
use super::numa::page_size;

/// Parts that have at most so many bytes between them are looked up together: the pages between cost less than
/// another call.
const NEAR: u64 = 64 << 10;
/// The number of pages whose entries are read at once.
const ENTRIES: usize = 128;
/// The bits of an entry: the page is there; it belongs to a file, or is shared.
const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_FILE: u64 = 1 << 61;

// <linux/fs.h>
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGEMAP_SCAN: libc::Ioctl = libc::_IOWR::<ScanArguments>(b'f' as u32, 16);

#[repr(C)]
#[derive(Default)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// What the pages are needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageUse {
    /// To be read: they must be there.
    Read,
    /// To be written: they must also be private memory without a file. The first write to a page of a file may wait
    /// for the file system.
    Write,
}

/// The page table of a process. It belongs to the memory that the process had when it was opened.
#[derive(Debug)]
pub(crate) struct PageTable {
    file: File,
    /// Whether the kernel may know `PAGEMAP_SCAN`.
    scans: bool,
    /// Whether the descriptor may stay open: connections need descriptors more than page tables do, and the kernel
    /// gives the smallest number that is free. The limit is read once: another system call at each look would cost as
    /// much as the look.
    may_stay: bool,
}

impl PageTable {
    /// Opens the page table of a process.
    ///
    /// # Errors
    /// The process is gone, `/proc` is not mounted, or no descriptor is left.
    pub(super) fn open(pid: i32) -> io::Result<Self> {
        let file = File::open(format!("/proc/{pid}/pagemap")).and_then(above_standard)?;
        let may_stay = open_files().is_none_or(|limit| (file.as_raw_fd() as u64) < limit / 2);
        Ok(Self { file, scans: true, may_stay })
    }

    /// As [`PageTable::has_all`], for the page table of a process, which is opened if it is not open.
    ///
    /// # Errors
    /// Those of [`PageTable::open`] and of [`PageTable::has_all`].
    pub(crate) fn look(
        kept: &mut Option<Self>,
        pid: i32,
        parts: impl Iterator<Item = (u64, usize)> + Clone,
        use_: PageUse,
    ) -> io::Result<bool> {
        let mut pages = kept.take().map_or_else(|| Self::open(pid), Ok)?;
        let answer = pages.has_all(parts, use_);
        *kept = Some(pages).filter(|pages| pages.may_stay);
        answer
    }

    /// Returns whether a use of these parts of the memory waits for no page. A part that is not mapped counts as if it
    /// did not: its use fails at once.
    ///
    /// # Errors
    /// EFAULT: no process has memory there.
    fn has_all(
        &mut self,
        parts: impl Iterator<Item = (u64, usize)> + Clone,
        use_: PageUse,
    ) -> io::Result<bool> {
        // No process may ever touch the pages between two parts. If one of them is absent, the parts alone count.
        Ok(self.has_near(parts.clone(), NEAR, use_)? || self.has_near(parts, 0, use_)?)
    }

    /// As [`PageTable::has_all`], with all pages between parts that have at most `near` bytes between them.
    fn has_near(
        &mut self,
        parts: impl Iterator<Item = (u64, usize)>,
        near: u64,
        use_: PageUse,
    ) -> io::Result<bool> {
        let mut whole: Option<(u64, u64)> = None;
        for (address, len) in parts.filter(|(_, len)| *len > 0) {
            let (start, end) = pages_of(address, len).ok_or(io::Error::from_raw_os_error(libc::EFAULT))?;
            whole = match whole {
                Some((first, last)) if start >= first && start <= last.saturating_add(near) => {
                    Some((first, last.max(end)))
                }
                Some(done) if !self.has(done, use_)? => return Ok(false),
                _ => Some((start, end)),
            };
        }
        whole.map_or(Ok(true), |rest| self.has(rest, use_))
    }

    /// Returns whether all mapped pages of a range can be used. The range has whole pages.
    fn has(&mut self, range: (u64, u64), use_: PageUse) -> io::Result<bool> {
        if self.scans {
            match self.scan(range, use_) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => {
                    self.scans = false;
                }
                result => return result,
            }
        }
        self.read_entries(range, use_)
    }

    fn scan(&self, (start, end): (u64, u64), use_: PageUse) -> io::Result<bool> {
        let unfit = match use_ {
            PageUse::Read => PAGE_IS_PRESENT,
            PageUse::Write => PAGE_IS_PRESENT | PAGE_IS_FILE,
        };
        // One result: the start, the end and the categories of pages.
        let mut found = [0_u64; 3];
        let mut arguments = ScanArguments {
            size: size_of::<ScanArguments>() as u64,
            start,
            end,
            vec: found.as_mut_ptr().expose_provenance() as u64,
            vec_len: 1,
            max_pages: 1,
            category_inverted: PAGE_IS_PRESENT,
            category_anyof_mask: unfit,
            return_mask: unfit,
            ..ScanArguments::default()
        };
        let request = || {
            // SAFETY: the kernel writes to the arguments, and to `found`, which has room for one result.
            checked(unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &raw mut arguments) })
        };
        // The number of results: pages that cannot be used.
        Ok(uninterrupted(request)? == 0)
    }

    fn read_entries(&self, (start, end): (u64, u64), use_: PageUse) -> io::Result<bool> {
        let page = page_size() as u64;
        let (wanted, unfit) = match use_ {
            PageUse::Read => (ENTRY_PRESENT, 0),
            PageUse::Write => (ENTRY_PRESENT, ENTRY_FILE),
        };
        let mut bytes = [0; ENTRIES * size_of::<u64>()];
        let mut next = start / page;
        while next < end / page {
            let count = usize::try_from(end / page - next).map_or(ENTRIES, |left| left.min(ENTRIES));
            let entries = &mut bytes[..count * size_of::<u64>()];
            match self.file.read_exact_at(entries, next.saturating_mul(size_of::<u64>() as u64)) {
                // Behind the last address that a process can have, or of a process that has ended.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(io::Error::from_raw_os_error(libc::EFAULT));
                }
                read => read?,
            }
            let (entries, _) = entries.as_chunks();
            if entries.iter().any(|entry| u64::from_ne_bytes(*entry) & (wanted | unfit) != wanted) {
                return Ok(false);
            }
            next += count as u64;
        }
        Ok(true)
    }
}

/// Returns the pages of a part: the first address, and the one behind the last. `None` if there are no such addresses.
pub(super) fn pages_of(address: u64, len: usize) -> Option<(u64, u64)> {
    let page = page_size() as u64;
    let end = address.checked_add(len as u64)?.checked_next_multiple_of(page)?;
    Some((address - address % page, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::testing::{self, Pages};

    const COUNT: usize = 300;

    fn tables() -> [PageTable; 2] {
        let table = || PageTable::open(std::process::id() as i32).unwrap();
        [table(), PageTable { scans: false, ..table() }]
    }

    #[test]
    fn a_page_between_two_parts_need_not_be_there() {
        let page = page_size();
        let pages = Pages::private(4);
        [0, 2].into_iter().for_each(|at| pages.touch(at));
        let part = |at: usize| (pages.address(at), page);
        for mut table in tables() {
            assert!(table.has_all([part(0), part(2)].into_iter(), PageUse::Read).unwrap());
            assert!(!table.has_all([part(0), part(1)].into_iter(), PageUse::Read).unwrap());
        }
    }

    #[test]
    fn pages_that_nobody_has_touched_are_not_there() {
        let page = page_size();
        let pages = Pages::private(COUNT);
        for at in [0, 7, 200, COUNT - 1] {
            pages.touch(at);
        }
        for mut table in tables() {
            let mut has = |at: usize, len: usize, use_| {
                table.has_all(std::iter::once((pages.address(0) + at as u64, len)), use_).unwrap()
            };
            for use_ in [PageUse::Read, PageUse::Write] {
                assert!(has(0, page, use_) && has(7 * page + 9, 1, use_) && has(200 * page, page, use_));
                assert!(!has(0, page + 1, use_) && !has(page, 1, use_) && !has(200 * page, 100 * page, use_));
                assert!(has(page, 0, use_), "no bytes are always there");
            }
        }
    }

    #[test]
    fn pages_of_files_are_read_but_not_written() {
        let page = page_size();
        let pages = Pages::shared(COUNT);
        (0..COUNT).for_each(|at| pages.touch(at));
        for mut table in tables() {
            let mut has = |use_| table.has_all(std::iter::once((pages.address(0), COUNT * page)), use_);
            assert!(has(PageUse::Read).unwrap());
            assert!(!has(PageUse::Write).unwrap());
        }
    }

    #[test]
    fn parts_at_any_distance_are_all_looked_up() {
        let page = page_size();
        let pages = Pages::private(COUNT);
        let absent = [3, 150, 299];
        (0..COUNT).filter(|at| !absent.contains(at)).for_each(|at| pages.touch(at));
        for mut table in tables() {
            for far in [20, 40, 149, 150, 151, 298, 299] {
                for (first, last) in [(9, far), (far, 9)] {
                    let parts = [first, last].map(|at| (pages.address(at), page));
                    let found = table.has_all(parts.into_iter(), PageUse::Read).unwrap();
                    assert_eq!(found, !absent.contains(&far), "{first} and {last}");
                }
            }
        }
    }

    #[test]
    fn a_look_reads_no_limit_and_an_open_table_stays() {
        const NAME: &str = concat!(module_path!(), "::a_look_reads_no_limit_and_an_open_table_stays");
        if !testing::is_child() {
            return testing::run_again(NAME, || Ok(()));
        }
        let (pages, mut kept) = (Pages::private(1), None);
        pages.touch(0);
        let look = |kept: &mut Option<PageTable>| {
            let part = std::iter::once((pages.address(0), 1));
            assert!(PageTable::look(kept, std::process::id() as i32, part, PageUse::Read).unwrap());
            kept.is_some()
        };
        assert!(look(&mut kept));
        testing::set_limit(libc::RLIMIT_NOFILE, 4).unwrap();
        assert!(look(&mut kept), "the limit was read again");
        testing::set_limit(libc::RLIMIT_NOFILE, 64).unwrap();
        let taken: Vec<_> = (0..40).map_while(|_| File::open("/dev/null").ok()).collect();
        assert!(!look(&mut None), "its descriptor is one that connections need");
        drop(taken);
    }

    #[test]
    fn addresses_beyond_all_memory_are_an_error() {
        for mut table in tables() {
            for (address, len) in [(u64::MAX - 64, 5), (u64::MAX, 9), (1 << 63, 5), (8, usize::MAX)] {
                let found = table.has_all(std::iter::once((address, len)), PageUse::Read);
                assert_eq!(found.unwrap_err().raw_os_error(), Some(libc::EFAULT), "{address:#x}");
            }
        }
    }
}
