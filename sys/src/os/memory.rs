//! Reading and writing another process's memory in one copy, by the kernel (`process_vm_readv`, `process_vm_writev`).
//!
//! A process number alone may by now be another process. So each process tells its peers the address and the value of a
//! random *mark* in its memory, which is read first, unless that was done within the last millisecond: the kernel gives
//! out numbers in turn, and none comes back that soon.

use std::io;
use std::time::{Duration, Instant};

use super::call::{checked_long, uninterrupted};

/// Bytes of a [`Mark`].
const MARK_BYTES: usize = 8;

/// What a process is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Where it stands in the process's memory.
    pub address: u64,
    /// What stands there.
    pub value: u64,
}

/// Why bytes could not be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// Not these bytes: they are not all mapped, or not memory.
    Unreadable,
    /// The kernel refuses it, with this error number.
    Refused(i32),
    /// It is another process.
    Stranger,
}

/// The memory of another process.
#[derive(Clone, Copy, Debug)]
pub struct RemoteMemory {
    pid: i32,
    mark: Mark,
    /// When the mark was last seen.
    known: Option<Instant>,
}

/// How long a process number can be relied on.
const KNOWN_FOR: Duration = Duration::from_millis(1);

fn part(base: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: base.cast(), iov_len: len }
}

/// Part of the other process's memory: never followed here, and checked by the kernel.
fn remote(address: u64, len: usize) -> libc::iovec {
    part(std::ptr::without_provenance_mut(address as usize), len)
}

impl RemoteMemory {
    /// The memory of process `pid` in our numbering, known by `mark`. `None` when it has no number here, as it is of another
    /// pid namespace.
    pub fn new(pid: i32, mark: Mark) -> Option<Self> {
        (pid > 0 && mark.address != 0).then_some(Self { pid, mark, known: None })
    }

    /// Whether it is still that process.
    ///
    /// # Errors
    /// See [`CopyError`].
    pub fn check(&mut self) -> Result<(), CopyError> {
        let now = Instant::now();
        if self.known.is_some_and(|known| now.duration_since(known) < KNOWN_FOR) {
            return Ok(());
        }
        let mut mark = [0; MARK_BYTES];
        self.transfer(self.mark.address, part(mark.as_mut_ptr(), MARK_BYTES), libc::process_vm_readv)?;
        if u64::from_le_bytes(mark) != self.mark.value {
            return Err(CopyError::Stranger);
        }
        self.known = Some(now);
        Ok(())
    }

    /// Fills `to` from `address`; what it holds is unspecified after an error.
    ///
    /// # Errors
    /// See [`CopyError`].
    pub fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), CopyError> {
        self.check()?;
        self.transfer(address, part(to.as_mut_ptr(), to.len()), libc::process_vm_readv)
    }

    /// As [`RemoteMemory::read`], to `len` bytes that threads of this process may use meanwhile: no reference to them is made.
    ///
    /// # Errors
    /// See [`CopyError`].
    ///
    /// # Safety
    /// The bytes are mapped writable, and may be written.
    pub unsafe fn read_into(&mut self, address: u64, to: *mut u8, len: usize) -> Result<(), CopyError> {
        self.check()?;
        self.transfer(address, part(to, len), libc::process_vm_readv)
    }

    /// Copies `from` to `address`; what is there is unspecified after an error.
    ///
    /// # Errors
    /// See [`CopyError`].
    ///
    /// # Safety
    /// If the other process is this one, or shares memory with it, then the bytes from `address` on may be written now: whatever owns them
    /// allows it, and no reference to them is used meanwhile.
    pub unsafe fn write(&mut self, address: u64, from: &[u8]) -> Result<(), CopyError> {
        self.check()?;
        self.transfer(address, part(from.as_ptr().cast_mut(), from.len()), libc::process_vm_writev)
    }

    /// `local` is ours for the length of the call: writable for a read, readable for a write.
    fn transfer(&self, address: u64, local: libc::iovec, call: Transfer) -> Result<(), CopyError> {
        let remote = remote(address, local.iov_len);
        let moved = uninterrupted(|| {
            // SAFETY: `local` names memory that the callers above borrow for as long, or by their own contract may use; the kernel moves no more than its
            // length, in the direction of `call`, and checks `remote` against the other process.
            checked_long(unsafe { call(self.pid, &raw const local, 1, &raw const remote, 1, 0) } as _)
        });
        match moved {
            Ok(moved) if moved as usize == local.iov_len => Ok(()),
            Ok(_) => Err(CopyError::Unreadable),
            Err(error) => Err(refusal(&error)),
        }
    }
}

/// One of the two system calls.
type Transfer = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

fn refusal(error: &io::Error) -> CopyError {
    match error.raw_os_error() {
        Some(libc::EFAULT) => CopyError::Unreadable,
        errno => CopyError::Refused(errno.unwrap_or(libc::EIO)),
    }
}

impl CopyError {
    /// What it is, and the remedy, for people.
    pub fn explain(self) -> String {
        match self {
            CopyError::Unreadable => "the peer's memory can't be read at the address that it told".into(),
            CopyError::Stranger => "the process with the peer's number is another one".into(),
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

/// Lets every process of this user read our memory as a debugger could, where the kernel reserves that to ancestors (Yama).
/// True when it applies now, or was not needed.
pub fn allow_any_reader() -> bool {
    // SAFETY: changes a property of this process and touches no memory.
    let result = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    // Without Yama the call is unknown, and the memory open already.
    result == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ourselves(mark: &u64) -> RemoteMemory {
        let mark = Mark { address: std::ptr::from_ref(mark) as u64, value: *mark };
        RemoteMemory::new(std::process::id() as i32, mark).unwrap()
    }

    #[test]
    fn our_own_memory_can_be_read_and_written() {
        let (mark, bytes) = (77u64, [1u8, 2, 3, 4, 5]);
        let mut to = [0; 5];
        assert_eq!(ourselves(&mark).read(bytes.as_ptr() as u64, &mut to), Ok(()));
        assert_eq!(to, bytes);
        // SAFETY: it is our own array, to which no other reference exists.
        assert_eq!(unsafe { ourselves(&mark).write(to.as_mut_ptr() as u64, &[9; 5]) }, Ok(()));
        assert_eq!(to, [9; 5]);
    }

    #[test]
    fn another_mark_is_another_process() {
        let (mut mark, bytes) = (77u64, [1u8; 5]);
        let mut remote = ourselves(&mark);
        mark += 1;
        assert_eq!(remote.read(bytes.as_ptr() as u64, &mut [0; 5]), Err(CopyError::Stranger));
        // SAFETY: nothing is written, as the mark is another.
        assert_eq!(unsafe { remote.write(bytes.as_ptr() as u64, &[0; 5]) }, Err(CopyError::Stranger));
        assert_eq!(mark, 78);
    }

    #[test]
    fn what_is_not_mapped_is_unreadable_wherever_it_begins() {
        let mark = 77u64;
        let mut remote = ourselves(&mark);
        for address in [0, 8, u64::MAX - 64, 1 << 63] {
            assert_eq!(remote.read(address, &mut [0; 5]), Err(CopyError::Unreadable), "{address:#x}");
        }
    }

    #[test]
    fn process_that_does_not_exist_is_refused() {
        let mark = Mark { address: 8, value: 0 };
        assert!(RemoteMemory::new(0, mark).is_none());
        let mut nobody = RemoteMemory::new(i32::MAX, mark).unwrap();
        let refused = nobody.read(8, &mut [0; 8]);
        assert_eq!(refused, Err(CopyError::Refused(libc::ESRCH)));
        assert!(refused.unwrap_err().explain().contains("gone"));
    }
}
