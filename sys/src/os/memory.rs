//! Copies from and to another process's memory, by the kernel, in one pass.
//!
//! A process number may meanwhile belong to another process. So each process sends its peers the address and
//! the value of a random *identity stamp* in its memory, and every copy is tied to the memory that holds the
//! stamp:
//!
//! - A read requests the bytes and then the stamp in one `process_vm_readv`. The kernel looks the process up
//!   once per call, so both come from the same address space. If the stamp is wrong, the bytes are wiped and the
//!   read fails. The stamp comes last. So if a process overwrites its stamp before it reuses a buffer, no read of
//!   the new content succeeds. From the second read on, the stamp is left out as long as the peer's life mark says that
//!   the process has not changed since the first (`life.rs`).
//! - A write cannot be validated afterwards, and no single call reads the stamp and writes. So writes go to
//!   `/proc/PID/mem`. That file is opened once, and the stamp is read in it once: an open descriptor refers to
//!   one address space for ever, even if the process number is reused. When that address space is gone (its
//!   process has ended, or has called `exec`), writes fail.
//!
//! A copy waits for the pages of the other process, which may hold them back (`userfaultfd(2)`, FUSE); no signal but
//! SIGKILL ends the system call. So the page table is looked at first (`pagemap.rs`), and pages that are not there are
//! not copied ([`CopyError::Absent`]): the process that has them must touch them, and waits itself. Between look and
//! copy, pages can still leave. At first contact, when any process of this user may be the caller, nothing is read
//! ([`RemoteMemory::permitted`]).
//!
//! The kernel copies each page twice through `/proc/PID/mem`. Measured on one machine, a write takes 1.7 to 1.9
//! times as long as by `process_vm_writev`, and a read 1.5 times as long as by `process_vm_readv`: so reads do
//! not use it. The stamp costs a read 0.1 to 0.3 us.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use nemesia_core::payload::{MOST_RANGES, ReceiveList};
use nemesia_core::port::RemoteRun;
use nemesia_core::wire::listed::MOST_RUNS;

use super::background::PageFetch;
use super::call::{checked_long, uninterrupted};
use super::descriptor::above_standard;
use super::life::PeerLife;
use super::numa::page_size;
use super::pagemap::{self, PageTable, PageUse};

/// The bytes of an [`IdentityStamp`].
const STAMP_BYTES: usize = 8;
/// An address at which no process can have memory: the last page belongs to the kernel.
const NOWHERE: u64 = u64::MAX - 4095;

/// The address and value by which a process's memory is identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityStamp {
    /// The stamp's address in the process's memory.
    pub address: u64,
    /// The stamp's value.
    pub value: u64,
}

/// The reason why bytes were not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// The range is not all mapped, or not memory.
    Unreadable,
    /// The kernel refuses, with this error number.
    Refused(i32),
    /// The number belongs to another process.
    OtherProcess,
    /// Not all pages are in memory, or this cannot be found out now. Nothing was copied. Other copies may succeed.
    Absent,
    /// The kernel does not show which pages are in memory, with this error number.
    NoPageTable(i32),
}

/// The memory of another process.
#[derive(Debug)]
pub struct RemoteMemory {
    pid: i32,
    stamp: IdentityStamp,
    /// The life mark of the process, if there is one that says that it lives.
    life: Option<PeerLife>,
    /// Whether the stamp was found since the mark is known.
    is_found: bool,
    /// The page table, if it is open.
    pages: Option<PageTable>,
    writer: Writer,
}

/// The state of the descriptor by which a process's memory is written.
#[derive(Debug)]
enum Writer {
    /// Nothing has been written yet.
    Unopened,
    /// The process's `/proc/PID/mem`, in which the stamp was found.
    Open(File),
    /// The file cannot be opened, or belongs to another process.
    Refused(CopyError),
}

fn part(base: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: base.cast(), iov_len: len }
}

/// Describes part of the other process's memory: never dereferenced here, and checked by the kernel.
fn remote(address: u64, len: usize) -> libc::iovec {
    part(std::ptr::without_provenance_mut(address as usize), len)
}

/// Returns the first `N` descriptions, and their number.
fn array<const N: usize>(parts: impl Iterator<Item = libc::iovec>) -> ([libc::iovec; N], usize) {
    let (mut all, mut count) = ([part(std::ptr::null_mut(), 0); N], 0);
    for (place, part) in all.iter_mut().zip(parts) {
        *place = part;
        count += 1;
    }
    (all, count)
}

impl RemoteMemory {
    /// Returns the memory of process `pid` in our numbering, identified by `stamp`. `None` if the process has
    /// no number here because it is in another pid namespace.
    pub fn new(pid: i32, stamp: IdentityStamp) -> Option<Self> {
        let (life, pages, writer) = (None, None, Writer::Unopened);
        (pid > 0 && stamp.address != 0).then_some(Self { pid, stamp, life, is_found: false, pages, writer })
    }

    /// As [`RemoteMemory::new`], of a process whose life mark is known. A process that uses a buffer again while it
    /// lives must say so in another way than by its stamp.
    pub(crate) fn of_living(pid: i32, stamp: IdentityStamp, life: Option<PeerLife>) -> Option<Self> {
        Self::new(pid, stamp).map(|memory| Self { life, ..memory })
    }

    /// Checks that the kernel permits to read the memory, and shows which pages are there. It accesses no page of the
    /// process, which could keep this thread waiting for one: a process that has only called this one must not. Each
    /// read checks the stamp.
    ///
    /// # Errors
    /// See [`CopyError`].
    pub fn permitted(&self) -> Result<(), CopyError> {
        let mut byte = 0;
        // SAFETY: the local part names our own variable.
        match unsafe { transfer(self.pid, &[part(&raw mut byte, 1)], &[remote(NOWHERE, 1)]) } {
            // The kernel checks the permission first.
            Err(CopyError::Unreadable) => match PageTable::open(self.pid) {
                Err(error) if unknown(&error) != CopyError::Absent => {
                    Err(CopyError::NoPageTable(error.raw_os_error().unwrap_or(libc::EIO)))
                }
                _ => Ok(()),
            },
            Ok(_) => Err(CopyError::OtherProcess),
            Err(error) => Err(error),
        }
    }

    /// Checks that the memory still belongs to that process.
    fn check(&mut self) -> Result<(), CopyError> {
        self.look([].into_iter(), true, PageUse::Read)?;
        let mut stamp = [0; STAMP_BYTES];
        let own = part(stamp.as_mut_ptr(), STAMP_BYTES);
        // SAFETY: `own` names our own array.
        match unsafe { transfer(self.pid, &[own], &[remote(self.stamp.address, STAMP_BYTES)]) } {
            Ok(STAMP_BYTES) if u64::from_le_bytes(stamp) == self.stamp.value => Ok(()),
            // The process may be read, but its memory does not hold the stamp.
            Ok(_) | Err(CopyError::Unreadable) => Err(CopyError::OtherProcess),
            Err(error) => Err(error),
        }
    }

    /// Returns whether a read of these bytes would wait for no page.
    ///
    /// # Errors
    /// [`CopyError::Absent`] if it might wait; see [`CopyError`] for the others.
    pub fn is_present(&mut self, address: u64, len: usize) -> Result<(), CopyError> {
        self.look([(address, len)].into_iter(), !self.is_known(), PageUse::Read)
    }

    /// Looks whether these parts of the memory, and the stamp if it is needed too, can be used without waiting.
    fn look(
        &mut self,
        parts: impl Iterator<Item = (u64, usize)> + Clone,
        with_stamp: bool,
        use_: PageUse,
    ) -> Result<(), CopyError> {
        let stamp = with_stamp.then_some((self.stamp.address, STAMP_BYTES));
        let found = PageTable::look(&mut self.pages, self.pid, parts.chain(stamp), use_);
        match found {
            Ok(true) => Ok(()),
            Ok(false) => Err(CopyError::Absent),
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Err(CopyError::Unreadable),
            Err(error) => Err(unknown(&error)),
        }
    }

    /// Fills `to` from `address`, if all pages are there. After an error the content of `to` is unspecified, but never
    /// from another process.
    ///
    /// # Errors
    /// See [`CopyError`].
    pub fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), CopyError> {
        self.is_present(address, to.len())?;
        // SAFETY: the bytes are borrowed exclusively for the call.
        unsafe { self.read_into(address, to.as_mut_ptr(), to.len()) }
    }

    /// Reads as [`RemoteMemory::read`] does, to `len` bytes that threads of this process may use concurrently:
    /// no reference to them is made. Waits for pages that are not there ([`RemoteMemory::is_present`]).
    ///
    /// # Errors
    /// See [`CopyError`].
    ///
    /// # Safety
    /// The bytes are mapped writable, and may be written.
    pub unsafe fn read_into(&mut self, address: u64, to: *mut u8, len: usize) -> Result<(), CopyError> {
        let mut stamp = [0; STAMP_BYTES];
        let local = [part(to, len), part(stamp.as_mut_ptr(), STAMP_BYTES)];
        let remote = [remote(address, len), remote(self.stamp.address, STAMP_BYTES)];
        let parts = 1 + usize::from(!self.is_known());
        // SAFETY: the caller's promise about the bytes; the buffer of the stamp is a local variable.
        let moved = unsafe { transfer(self.pid, &local[..parts], &remote[..parts]) };
        let verdict = self.verdict(moved, len, stamp);
        if verdict.is_err() {
            // SAFETY: the caller's promise: the bytes may be written.
            unsafe { to.write_bytes(0, len) };
        }
        verdict
    }

    /// As [`RemoteMemory::read`], from several runs in sequence to several ranges, in one system call. Both have the
    /// same number of bytes. There are at most [`MOST_RUNS`] runs and [`MOST_RANGES`] ranges, or the read fails.
    ///
    /// # Errors
    /// See [`CopyError`].
    pub fn read_runs(
        &mut self,
        from: impl Iterator<Item = RemoteRun>,
        to: &mut ReceiveList<'_>,
    ) -> Result<(), CopyError> {
        let mut stamp = [0; STAMP_BYTES];
        let pieces = to.pieces().iter().map(|piece| part(piece.base, piece.len));
        let (local, locals) =
            array::<{ MOST_RANGES + 1 }>(pieces.chain([part(stamp.as_mut_ptr(), STAMP_BYTES)]));
        let runs = from.map(|run| remote(run.address, run.len as usize));
        let (remote, remotes) =
            array::<{ MOST_RUNS + 1 }>(runs.chain([remote(self.stamp.address, STAMP_BYTES)]));
        let unread = usize::from(self.is_known());
        let wanted =
            remote[..remotes - unread].iter().map(|part| (part.iov_base.addr() as u64, part.iov_len));
        self.look(wanted, false, PageUse::Read)?;
        // SAFETY: the list guarantees that its pieces may be written; the buffer of the stamp is a local variable.
        let moved = unsafe { transfer(self.pid, &local[..locals - unread], &remote[..remotes - unread]) };
        let verdict = self.verdict(moved, to.len(), stamp);
        if verdict.is_err() {
            for piece in to.pieces() {
                // SAFETY: the list guarantees that its pieces may be written.
                unsafe { piece.base.write_bytes(0, piece.len) };
            }
        }
        verdict
    }

    /// Returns whether a read needs no stamp: the process had it since the mark is known, which then decides.
    fn is_known(&self) -> bool {
        self.is_found && self.life.is_some()
    }

    /// Returns whether a read of `len` bytes succeeded, and of the stamp after them unless the process is known.
    fn verdict(
        &mut self,
        moved: Result<usize, CopyError>,
        len: usize,
        stamp: [u8; STAMP_BYTES],
    ) -> Result<(), CopyError> {
        if self.is_known() && moved == Ok(len) {
            if self.life.as_ref().is_some_and(PeerLife::goes_on) {
                return Ok(());
            }
            // The process may live on without the thread that held the mark. A number never returns to memory that it
            // has left: if the stamp is there now, it was there when the bytes were read.
            self.life = None;
            return self.check();
        }
        match moved {
            Ok(moved) if moved == len + STAMP_BYTES && u64::from_le_bytes(stamp) == self.stamp.value => {
                self.is_found = true;
                Ok(())
            }
            Ok(moved) if moved >= len => Err(CopyError::OtherProcess),
            Ok(_) | Err(CopyError::Unreadable) => Err(self.check().err().unwrap_or(CopyError::Unreadable)),
            Err(error) => Err(error),
        }
    }

    /// Begins to wait for the pages of these bytes in a thread of its own. `None` if there is no thread for that now.
    pub(crate) fn fetch(&self, address: u64, len: usize) -> Option<PageFetch> {
        let (pid, stamp) = (self.pid, self.stamp.address);
        let (start, end) = pagemap::pages_of(address, len)?;
        PageFetch::begin(move || {
            let pages = (start..end).step_by(page_size()).chain([stamp]);
            let mut byte = 0;
            for page in pages {
                // SAFETY: the local part names our own variable.
                if unsafe { transfer(pid, &[part(&raw mut byte, 1)], &[remote(page, 1)]) }.is_err() {
                    break;
                }
            }
        })
    }

    /// Copies `from` to `address`; the bytes there are unspecified after an error. `is_alive` is called once,
    /// when the memory is opened. It returns whether the process, of which the caller has a descriptor, still
    /// has its number. So a process that gives a wrong stamp cannot direct writes into its successor's memory.
    ///
    /// # Errors
    /// See [`CopyError`].
    ///
    /// # Safety
    /// If the other process is this one, or shares memory with it, then the bytes from `address` on may be written
    /// now: their owner allows it, and no reference to them is used meanwhile.
    pub unsafe fn write(
        &mut self,
        address: u64,
        from: &[u8],
        is_alive: impl FnOnce() -> bool,
    ) -> Result<(), CopyError> {
        self.look([(address, from.len())].into_iter(), false, PageUse::Write)?;
        if let Writer::Unopened = self.writer {
            self.writer = match self.open() {
                Ok(file) => Writer::Open(file),
                // Not final.
                Err(CopyError::Absent) => return Err(CopyError::Absent),
                Err(error) => Writer::Refused(error),
            };
            if !is_alive() {
                self.writer = Writer::Refused(CopyError::OtherProcess);
            }
        }
        match &self.writer {
            // Fails once the address space is gone: nothing is written.
            Writer::Open(file) => file.write_all_at(from, address).map_err(|error| refusal(&error)),
            Writer::Refused(why) => Err(*why),
            Writer::Unopened => Err(CopyError::OtherProcess),
        }
    }

    /// Opens the memory for writing, and checks the stamp in the opened file.
    fn open(&mut self) -> Result<File, CopyError> {
        self.look([].into_iter(), true, PageUse::Read)?;
        let file = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(format!("/proc/{}/mem", self.pid))
            .and_then(above_standard)
            .map_err(|error| refusal(&error))?;
        let mut stamp = [0; STAMP_BYTES];
        match file.read_exact_at(&mut stamp, self.stamp.address) {
            Ok(()) if u64::from_le_bytes(stamp) == self.stamp.value => Ok(file),
            _ => Err(CopyError::OtherProcess),
        }
    }
}

/// Reads `remote` of a process into `local`. Returns the number of bytes read.
///
/// # Safety
/// `local` names memory that is mapped writable and may be written during the call.
unsafe fn transfer(pid: i32, local: &[libc::iovec], remote: &[libc::iovec]) -> Result<usize, CopyError> {
    let (locals, remotes) = (local.len() as libc::c_ulong, remote.len() as libc::c_ulong);
    let moved = uninterrupted(|| {
        // SAFETY: the caller's promise about `local`; the kernel writes no more than its length, and checks
        // `remote` against the other process.
        checked_long(unsafe {
            libc::process_vm_readv(pid, local.as_ptr(), locals, remote.as_ptr(), remotes, 0)
        } as _)
    });
    moved.map(|moved| moved as usize).map_err(|error| refusal(&error))
}

/// Returns the error of a failed look at the page table. A shortage may pass.
fn unknown(error: &io::Error) -> CopyError {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => CopyError::Absent,
        Some(libc::ENOENT) => CopyError::Refused(libc::ESRCH),
        errno => CopyError::NoPageTable(errno.unwrap_or(libc::EIO)),
    }
}

fn refusal(error: &io::Error) -> CopyError {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => CopyError::Absent,
        Some(libc::EFAULT | libc::EIO) => CopyError::Unreadable,
        errno => CopyError::Refused(errno.unwrap_or(libc::EIO)),
    }
}

impl CopyError {
    /// Returns the reason and the remedy, for messages.
    pub fn explain(self) -> String {
        match self {
            CopyError::Unreadable => "the peer's memory can't be read at the address that it sent".into(),
            CopyError::Absent => "the peer's pages are not all in memory".into(),
            CopyError::NoPageTable(errno) => format!(
                "the kernel does not show which of the peer's pages are in memory (/proc/PID/pagemap: {}): mount \
                 /proc, from a kernel with CONFIG_PROC_PAGE_MONITOR",
                io::Error::from_raw_os_error(errno)
            ),
            CopyError::OtherProcess => "the peer's process number belongs to another process".into(),
            CopyError::Refused(libc::EPERM) => {
                "the kernel doesn't permit it (process_vm_readv: EPERM): run all as one user, and, when \
                 /proc/sys/kernel/yama/ptrace_scope is 1 or more, set NEMESIA_PTRACER=1 or lower it; containers \
                 need --cap-add=SYS_PTRACE"
                    .into()
            }
            CopyError::Refused(libc::ENOSYS) => {
                "the kernel or a sandbox has no process_vm_readv (ENOSYS)".into()
            }
            CopyError::Refused(libc::ESRCH) => "the peer's process is gone, or not visible here".into(),
            CopyError::Refused(errno) => {
                format!("process_vm_readv failed: {}", io::Error::from_raw_os_error(errno))
            }
        }
    }
}

/// Permits every process of this user to read our memory as a debugger could, where the kernel reserves that to
/// ancestors (Yama). True if the permission now holds, or was not needed.
pub fn allow_any_reader() -> bool {
    // SAFETY: changes a property of this process and touches no memory.
    let result = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    // A kernel without Yama does not know the call, and does not restrict reads.
    result == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::testing::{Pages, is_child, run_again, skipped, take_descriptors};

    fn ourselves(stamp: &u64) -> RemoteMemory {
        let stamp = IdentityStamp { address: std::ptr::from_ref(stamp) as u64, value: *stamp };
        RemoteMemory::new(std::process::id() as i32, stamp).unwrap()
    }

    #[test]
    fn our_own_memory_can_be_read_and_written() {
        let (stamp, bytes) = (77u64, [1u8, 2, 3, 4, 5]);
        let mut to = [0; 5];
        assert_eq!(ourselves(&stamp).read(bytes.as_ptr() as u64, &mut to), Ok(()));
        assert_eq!(to, bytes);
        // SAFETY: the array is a local variable, to which no other reference exists.
        assert_eq!(unsafe { ourselves(&stamp).write(to.as_mut_ptr() as u64, &[9; 5], || true) }, Ok(()));
        assert_eq!(to, [9; 5]);
    }

    #[test]
    fn memory_with_another_stamp_is_neither_delivered_nor_written() {
        let (mut stamp, bytes) = (77u64, [1u8; 5]);
        let mut remote = ourselves(&stamp);
        stamp += 1;
        let mut to = [9; 5];
        assert_eq!(remote.read(bytes.as_ptr() as u64, &mut to), Err(CopyError::OtherProcess));
        assert_eq!(to, [0; 5], "the other process's bytes are wiped");
        // SAFETY: nothing is written, because the stamp differs.
        let written = unsafe { remote.write(bytes.as_ptr() as u64, &[0; 5], || true) };
        assert_eq!(written, Err(CopyError::OtherProcess));
        assert_eq!((stamp, bytes), (78, [1; 5]));
    }

    #[test]
    fn memory_of_a_process_that_has_lost_its_number_is_not_written() {
        let (stamp, bytes) = (77u64, [1u8; 5]);
        let mut remote = ourselves(&stamp);
        // SAFETY: nothing is written, because the process has lost its number.
        let mut write = |alive| unsafe { remote.write(bytes.as_ptr() as u64, &[0; 5], || alive) };
        assert_eq!(write(false), Err(CopyError::OtherProcess));
        let again = write(true);
        assert_eq!(again, Err(CopyError::OtherProcess), "the refusal is final");
        assert_eq!(bytes, [1; 5]);
    }

    #[test]
    fn bytes_that_are_not_mapped_are_unreadable_wherever_they_begin() {
        let stamp = 77u64;
        let mut remote = ourselves(&stamp);
        for address in [0, 8, u64::MAX - 64, 1 << 63] {
            assert_eq!(remote.read(address, &mut [0; 5]), Err(CopyError::Unreadable), "{address:#x}");
            // SAFETY: nothing is mapped there.
            assert!(unsafe { remote.write(address, &[0; 5], || true) }.is_err(), "{address:#x}");
        }
    }

    #[test]
    fn a_stamp_that_is_not_mapped_is_another_process() {
        let bytes = [1u8; 5];
        let stamp = IdentityStamp { address: 8, value: 77 };
        let mut remote = RemoteMemory::new(std::process::id() as i32, stamp).unwrap();
        assert_eq!(remote.read(bytes.as_ptr() as u64, &mut [0; 5]), Err(CopyError::OtherProcess));
        assert_eq!(remote.check(), Err(CopyError::OtherProcess));
    }

    /// Returns what `copy` returns of a memory whose page in the middle never arrives; `None` if that takes long.
    fn with_withheld_page(
        copy: impl FnOnce(&mut RemoteMemory, &Pages) -> Result<(), CopyError> + Send + 'static,
    ) -> Option<Result<(), CopyError>> {
        let pages = Pages::private(64);
        (0..64).filter(|page| *page != 40).for_each(|page| pages.touch(page));
        let Some(withheld) = pages.withhold() else {
            skipped("the kernel does not let this user withhold pages from it (userfaultfd)");
            return Some(Err(CopyError::Absent));
        };
        let (say, hear) = std::sync::mpsc::channel();
        let copier = std::thread::spawn(move || {
            let stamp = 77u64;
            let _ = say.send(copy(&mut ourselves(&stamp), &pages));
        });
        let result = hear.recv_timeout(std::time::Duration::from_secs(30)).ok();
        // Ends the wait of a copy.
        drop(withheld);
        copier.join().unwrap();
        result
    }

    #[test]
    fn a_copy_does_not_wait_for_a_page_that_never_arrives() {
        let read =
            with_withheld_page(|memory, pages| memory.read(pages.address(0), &mut vec![0; pages.len()]));
        assert_eq!(read, Some(Err(CopyError::Absent)));
        let write = with_withheld_page(|memory, pages| {
            // SAFETY: to our own pages, to which no reference exists.
            unsafe { memory.write(pages.address(0), &vec![0; pages.len()], || true) }
        });
        assert_eq!(write, Some(Err(CopyError::Absent)));
        let present = with_withheld_page(|memory, pages| {
            memory.read(pages.address(1), &mut vec![0; 39 * page_size()])?;
            Err(CopyError::Absent)
        });
        assert_eq!(present, Some(Err(CopyError::Absent)));
    }

    #[test]
    fn without_descriptors_nothing_is_copied_and_later_everything_is() {
        if !is_child() {
            run_again(
                concat!(module_path!(), "::without_descriptors_nothing_is_copied_and_later_everything_is"),
                || Ok(()),
            );
            return;
        }
        let (stamp, bytes) = (77u64, [1u8; 5]);
        let (mut to, mut memory) = ([0; 5], ourselves(&stamp));
        let taken = take_descriptors();
        assert_eq!(memory.permitted(), Ok(()));
        assert_eq!(memory.read(bytes.as_ptr() as u64, &mut to), Err(CopyError::Absent));
        drop(taken);
        assert_eq!(memory.read(bytes.as_ptr() as u64, &mut to), Ok(()));
    }

    #[test]
    fn permission_is_tested_without_access_to_the_stamp() {
        let permitted = |pid, address| {
            let stamp = IdentityStamp { address, value: 77 };
            RemoteMemory::new(pid, stamp).unwrap().permitted()
        };
        // An access would fail.
        assert_eq!(permitted(std::process::id() as i32, 8), Ok(()));
        assert_eq!(permitted(i32::MAX, 8), Err(CopyError::Refused(libc::ESRCH)));
    }

    #[test]
    fn process_that_does_not_exist_is_refused() {
        let stamp = IdentityStamp { address: 8, value: 0 };
        assert!(RemoteMemory::new(0, stamp).is_none());
        let mut nobody = RemoteMemory::new(i32::MAX, stamp).unwrap();
        let refused = nobody.read(8, &mut [0; 8]);
        assert_eq!(refused, Err(CopyError::Refused(libc::ESRCH)));
        assert!(refused.unwrap_err().explain().contains("gone"));
    }
}
