//! Helpers of this layer's tests: children, forks, skips.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use super::call::{checked, uninterrupted};
use super::descriptor::own;
use super::numa::page_size;

const CHILD: &str = "NEMESIA_TEST_CHILD";

/// Prints that a test could not run here.
pub(crate) fn skipped(why: &str) {
    // Not `eprintln`, whose output the test runner captures.
    writeln!(io::stderr(), "SKIPPED {}: {why}", std::thread::current().name().unwrap_or("?")).unwrap();
}

/// Returns whether this is a process started by [`run_again`].
pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Waits until the condition holds. For conditions that follow a close: a child that another test forks at the
/// same moment may hold a copy of the descriptor for a while.
pub(super) fn eventually(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "the condition never held");
        std::thread::yield_now();
    }
}

/// Returns the command that runs only this test of the test binary, named with its crate and modules.
/// `argument` is the value that [`child_argument`] returns there.
pub(super) fn again(test: &str, argument: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let (_crate, test) = test.split_once("::").unwrap();
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, argument);
    command
}

pub(super) fn child_argument() -> String {
    std::env::var(CHILD).unwrap()
}

/// Runs this one test again, in a process of its own after `prepare`. Fails unless the test passes there.
pub(crate) fn run_again(test: &str, prepare: impl FnMut() -> io::Result<()> + Send + Sync + 'static) {
    let mut command = again(test, "1");
    // SAFETY: the functions passed here only make system calls.
    let output = unsafe { command.pre_exec(prepare) }.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("1 passed"), "no test of that name: {text}");
}

#[cfg(target_env = "musl")]
type LimitedResource = std::ffi::c_int;
#[cfg(not(target_env = "musl"))]
type LimitedResource = libc::__rlimit_resource_t;

/// Sets the soft limit.
pub(crate) fn set_limit(resource: LimitedResource, soft: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills and reads a structure that is a local variable.
    unsafe {
        checked(libc::getrlimit(resource, &raw mut limit))?;
        limit.rlim_cur = soft;
        checked(libc::setrlimit(resource, &raw const limit))?;
    }
    Ok(())
}

/// Makes a mount namespace with a `/dev/shm` of one MiB; for [`run_again`].
pub(super) fn small_dev_shm() -> io::Result<()> {
    let (private, none) = (libc::MS_REC | libc::MS_PRIVATE, ptr::null());
    // SAFETY: strings that end with zero, or null where the kernel permits it.
    unsafe {
        checked(libc::unshare(libc::CLONE_NEWNS))?;
        checked(libc::mount(c"none".as_ptr(), c"/".as_ptr(), none, private, ptr::null()))?;
        let options = c"size=1m".as_ptr().cast();
        checked(libc::mount(c"tmpfs".as_ptr(), c"/dev/shm".as_ptr(), c"tmpfs".as_ptr(), 0, options))?;
    }
    Ok(())
}

/// Returns whether [`small_dev_shm`] works here.
pub(super) fn private_dev_shm_is_possible() -> bool {
    fork(|| i32::from(small_dev_shm().is_err())).exit_code() == Some(0)
}

/// Returns one zeroed page that is shared with children made by [`fork`]; never unmapped.
pub(super) fn forkable_page() -> NonNull<u8> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = unsafe { libc::mmap(ptr::null_mut(), 4096, access, kind, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    NonNull::new(page.cast()).unwrap()
}

/// A forked child, which is killed and reaped on drop.
pub(super) struct Forked(libc::pid_t);

/// Forks. The child runs `body`, which must only make system calls, and exits with its result.
pub(super) fn fork(body: impl FnOnce() -> i32) -> Forked {
    // SAFETY: the child makes system calls only and leaves by `_exit`.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", io::Error::last_os_error()),
        // SAFETY: ends the child without running any code of the parent.
        0 => unsafe { libc::_exit(body()) },
        pid => Forked(pid),
    }
}

/// Sleeps until a signal ends the process.
pub(super) fn sleep_forever() -> i32 {
    loop {
        // SAFETY: takes nothing.
        unsafe { libc::pause() };
    }
}

impl Forked {
    pub(super) fn pid(&self) -> i32 {
        self.0
    }

    pub(super) fn kill(&self) {
        // SAFETY: an unreaped child of ours.
        assert_eq!(unsafe { libc::kill(self.0, libc::SIGKILL) }, 0);
    }

    /// Returns whether the child has ended; it stays unreaped.
    pub(super) fn has_ended(&self) -> bool {
        self.wait_id(libc::WNOHANG | libc::WNOWAIT).0 != 0
    }

    /// Waits for the child's end and leaves it unreaped; `None` if a signal ended it.
    pub(super) fn exit_code(&self) -> Option<i32> {
        let (_, code, status) = self.wait_id(libc::WNOWAIT);
        (code == libc::CLD_EXITED).then_some(status)
    }

    fn wait_id(&self, options: i32) -> (libc::pid_t, i32, i32) {
        let id = libc::id_t::try_from(self.0).unwrap();
        // SAFETY: all zeroes is a valid siginfo_t, which the kernel fills.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        uninterrupted(|| {
            // SAFETY: `info` is a local variable.
            checked(unsafe { libc::waitid(libc::P_PID, id, &raw mut info, options | libc::WEXITED) })
        })
        .unwrap();
        // SAFETY: filled by waitid, or zero.
        unsafe { (info.si_pid(), info.si_code, info.si_status()) }
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        self.kill();
        // SAFETY: reaps our own child.
        unsafe { libc::waitpid(self.0, ptr::null_mut(), 0) };
    }
}

/// Takes all descriptors that this process may still have; for [`run_again`].
pub(crate) fn take_descriptors() -> Vec<File> {
    set_limit(libc::RLIMIT_NOFILE, 64).unwrap();
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// Lets the kernel refuse a system call to this thread, and those that it starts, as a container does; for
/// [`run_again`].
pub(crate) fn refuse_call(number: libc::c_long) {
    let instruction = |code: u32, jump_unequal: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: jump_unequal,
        k,
    };
    let refusal = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut filter = [
        // The number of the call is the first word.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, number as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, refusal),
        instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: takes numbers only.
    checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }).unwrap();
    // SAFETY: the kernel copies the program, which is a local variable.
    checked(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) })
        .unwrap();
}

/// Leaves this process addresses for small objects only, until the result is dropped; for [`run_again`].
pub(crate) fn take_addresses() -> AddressesTaken {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills a structure that is a local variable.
    checked(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut before) }).unwrap();
    set_limit(libc::RLIMIT_AS, super::limits::own_field("VmSize") + SMALL).unwrap();
    AddressesTaken { before: before.rlim_cur }
}

/// The addresses that remain.
const SMALL: u64 = 256 << 10;

/// See [`take_addresses`].
pub(crate) struct AddressesTaken {
    before: u64,
}

impl Drop for AddressesTaken {
    fn drop(&mut self) {
        set_limit(libc::RLIMIT_AS, self.before).unwrap();
    }
}

/// Untouched pages, which are unmapped on drop.
pub(crate) struct Pages {
    base: NonNull<u8>,
    count: usize,
}

impl Pages {
    pub(crate) fn private(count: usize) -> Self {
        Self::new(count, libc::MAP_PRIVATE)
    }

    pub(crate) fn shared(count: usize) -> Self {
        Self::new(count, libc::MAP_SHARED)
    }

    fn new(count: usize, kind: i32) -> Self {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let len = count * page_size();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, access, kind | libc::MAP_ANONYMOUS, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        // SAFETY: our own mapping. An old kernel without huge pages refuses it.
        unsafe { libc::madvise(base, len, libc::MADV_NOHUGEPAGE) };
        Self { base: NonNull::new(base.cast()).unwrap(), count }
    }

    /// Returns the address of a page.
    pub(crate) fn address(&self, page: usize) -> u64 {
        self.at(page).addr().get() as u64
    }

    pub(crate) fn at(&self, page: usize) -> NonNull<u8> {
        assert!(page < self.count);
        // SAFETY: inside the mapping.
        unsafe { self.base.add(page * page_size()) }
    }

    pub(crate) fn len(&self) -> usize {
        self.count * page_size()
    }

    /// Writes to a page, so that it is there.
    pub(crate) fn touch(&self, page: usize) {
        // SAFETY: our own mapping, to which no reference exists.
        unsafe { self.at(page).write_volatile(1) };
    }

    /// Keeps the pages that are not there from everybody who touches them, until the result is dropped. `None` if the
    /// kernel does not permit it.
    pub(crate) fn withhold(&self) -> Option<OwnedFd> {
        // <linux/userfaultfd.h>: API, and register with the mode of missing pages.
        const API: libc::Ioctl = libc::_IOWR::<[u64; 3]>(0xaa, 0x3f);
        const REGISTER: libc::Ioctl = libc::_IOWR::<[u64; 4]>(0xaa, 0x00);
        // SAFETY: the call takes flags only.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        // SAFETY: a new descriptor, given to us alone; the kernel's numbers fit.
        let fd = unsafe { own(fd as i32) }.ok()?;
        let mut api = [0xaa, 0, 0_u64];
        // SAFETY: the kernel writes to the array, which has the size that the request names.
        checked(unsafe { libc::ioctl(fd.as_raw_fd(), API, api.as_mut_ptr()) }).ok()?;
        let mut range = [self.address(0), self.len() as u64, 1, 0];
        // SAFETY: as above.
        checked(unsafe { libc::ioctl(fd.as_raw_fd(), REGISTER, range.as_mut_ptr()) }).ok()?;
        Some(fd)
    }
}

// SAFETY: the mapping belongs to no thread.
unsafe impl Send for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which no reference is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len()) };
    }
}
