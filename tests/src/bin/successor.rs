//! `successor read|write`: two ranks. Rank 1 dies just before rank 0's system call copies, and an unrelated
//! process gets its process id. Rank 0 must neither deliver that process's bytes nor change them.
//!
//! The moment is exact, because this program defines the copying functions of the C library itself. They act as
//! if the kernel did not run rank 0 for a while. The test needs a pid namespace in which it may choose process
//! ids (`ns_last_pid`). The buffers of all processes have one address. Exit code 0: no memory of the successor
//! was read or changed. 4: some was, or the test did not happen.

use std::ffi::{c_int, c_ulong, c_void};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nemesia::{Config, Endpoint, Error, Source, Tag};
use nemesia_tests::say;

/// The address of the buffers in all processes.
const AT: usize = 0x7000_0000_0000;
/// More than is sent eagerly, and too little for a sender-assisted copy.
const READ: usize = 40 << 10;
/// Enough for a sender-assisted copy.
const WRITE: usize = 16 << 20;
/// Copies of at least this many bytes belong to the message.
const PAYLOAD: usize = 4 << 10;
/// The contents of the successor's memory.
const STRANGE: u8 = 0xee;
const LIMIT: Duration = Duration::from_secs(60);

/// The process that is to be replaced before the next copy in this direction. 0 if none.
static READ_FROM: AtomicI32 = AtomicI32::new(0);
static WRITTEN_TO: AtomicI32 = AtomicI32::new(0);
/// Whether the receiver is slow, so that the sender assists.
static SLOW: AtomicBool = AtomicBool::new(false);
/// The ends of pipes to the successor: for the question and for the answer.
static ASK: AtomicI32 = AtomicI32::new(-1);
static ANSWER: AtomicI32 = AtomicI32::new(-1);

/// # Safety
/// As the system call of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn process_vm_readv(
    pid: libc::pid_t,
    local: *const libc::iovec,
    locals: c_ulong,
    remote: *const libc::iovec,
    remotes: c_ulong,
    flags: c_ulong,
) -> libc::ssize_t {
    // SAFETY: the array is the caller's.
    let bytes = unsafe { std::slice::from_raw_parts(remote, remotes as usize) };
    if bytes.iter().map(|part| part.iov_len).sum::<usize>() >= PAYLOAD {
        replace_before(&READ_FROM, pid);
        if SLOW.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    // SAFETY: the caller fulfils the system call's conditions.
    unsafe {
        libc::syscall(libc::SYS_process_vm_readv, pid, local, locals, remote, remotes, flags) as libc::ssize_t
    }
}

/// # Safety
/// As the system call of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn process_vm_writev(
    pid: libc::pid_t,
    local: *const libc::iovec,
    locals: c_ulong,
    remote: *const libc::iovec,
    remotes: c_ulong,
    flags: c_ulong,
) -> libc::ssize_t {
    replace_before(&WRITTEN_TO, pid);
    // SAFETY: the caller fulfils the system call's conditions.
    unsafe {
        libc::syscall(libc::SYS_process_vm_writev, pid, local, locals, remote, remotes, flags)
            as libc::ssize_t
    }
}

/// # Safety
/// As the system call of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(
    fd: c_int,
    from: *const c_void,
    len: usize,
    at: libc::off64_t,
) -> libc::ssize_t {
    if len >= PAYLOAD && (at as usize) >= AT {
        replace_before(&WRITTEN_TO, WRITTEN_TO.load(Relaxed));
    }
    // SAFETY: the caller fulfils the system call's conditions.
    unsafe { libc::syscall(libc::SYS_pwrite64, fd, from, len, at) as libc::ssize_t }
}

/// Ends a process once, and starts another process with the same process id.
fn replace_before(doomed: &AtomicI32, pid: libc::pid_t) {
    if pid == 0 || doomed.compare_exchange(pid, 0, Relaxed, Relaxed).is_err() {
        return;
    }
    let deadline = Instant::now() + LIMIT;
    // SAFETY: takes numbers only. The launcher of both ranks reaps the process, which frees its process id.
    while unsafe { libc::kill(pid, libc::SIGKILL) } == 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (ask, answer) = (pipe(), pipe());
    while Instant::now() < deadline {
        // If the write fails, the loop below notices: the process id does not come.
        let _ = std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string());
        // SAFETY: this process has one thread; the child calls nothing that allocates or locks.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: numbers only.
            if unsafe { libc::getpid() } == pid {
                be_strange(ask[0], answer[1]);
            }
            // SAFETY: ends the child, which has nothing to drop.
            unsafe { libc::_exit(0) };
        }
        if child == pid {
            ASK.store(ask[1], Relaxed);
            ANSWER.store(answer[0], Relaxed);
            let ready = read_number(answer[0]);
            assert_eq!(ready, READY, "the stranger is not there");
            return;
        }
        // SAFETY: a child of this process.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    }
}

const READY: u64 = u64::MAX;

/// Runs the successor: fills its memory, waits, and reports how many bytes were changed.
fn be_strange(ask: c_int, answer: c_int) {
    // SAFETY: this process has inherited the mapping, and nothing else uses it.
    let memory = unsafe { std::slice::from_raw_parts_mut(AT as *mut u8, WRITE) };
    memory.fill(STRANGE);
    write_number(answer, READY);
    read_number(ask);
    // SAFETY: as above; volatile, as another process may have written.
    let changed =
        (0..WRITE).filter(|at| unsafe { ((AT + at) as *const u8).read_volatile() } != STRANGE).count();
    write_number(answer, changed as u64);
}

fn pipe() -> [c_int; 2] {
    let mut ends = [-1; 2];
    // SAFETY: room for two numbers.
    let made = unsafe { libc::pipe(ends.as_mut_ptr()) };
    assert_eq!(made, 0, "no pipe");
    ends
}

fn read_number(fd: c_int) -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: eight bytes of room.
    unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), 8) };
    u64::from_ne_bytes(bytes)
}

fn write_number(fd: c_int, number: u64) {
    // SAFETY: eight bytes.
    unsafe { libc::write(fd, number.to_ne_bytes().as_ptr().cast(), 8) };
}

fn map() -> Result<&'static mut [u8], String> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: new memory where there is none.
    let at = unsafe { libc::mmap(AT as *mut c_void, WRITE, rights, flags, -1, 0) };
    if at.addr() != AT {
        return Err("the address is taken".into());
    }
    // SAFETY: just mapped, for ever, and used by nothing else.
    Ok(unsafe { std::slice::from_raw_parts_mut(at.cast(), WRITE) })
}

fn run(write: bool) -> Result<(), String> {
    let text = |error: Error| error.to_string();
    let memory = map()?;
    // A message in pages that were never written is streamed.
    memory.fill(0);
    let config = Config::from_env().map_err(|error| error.to_string())?;
    let mut endpoint = Endpoint::open(&config).map_err(text)?;
    if endpoint.rank() == 1 {
        endpoint.send(0, 1, &std::process::id().to_le_bytes()).map_err(text)?;
        SLOW.store(write, Relaxed);
        memory.fill(1);
        // It does not return from here.
        let ended = match write {
            true => endpoint.recv(Source::Rank(0), Tag::Exactly(2), memory).map(drop),
            false => endpoint.send(0, 2, &memory[..READ]),
        };
        return Err(format!("rank 1 was not replaced: {ended:?}"));
    }
    let mut pid = [0; 4];
    endpoint.recv(Source::Rank(1), Tag::Exactly(1), &mut pid).map_err(text)?;
    let pid = i32::from_le_bytes(pid);
    let (outcome, delivered) = if write {
        WRITTEN_TO.store(pid, Relaxed);
        (endpoint.send(1, 2, memory), 0)
    } else {
        READ_FROM.store(pid, Relaxed);
        let outcome = endpoint.recv(Source::Rank(1), Tag::Exactly(2), &mut memory[..READ]).map(drop);
        (outcome, memory.iter().filter(|byte| **byte == STRANGE).count())
    };
    if ASK.load(Relaxed) < 0 {
        return Err(format!("rank 1 was not replaced: {outcome:?}"));
    }
    write_number(ASK.load(Relaxed), 1);
    let changed = read_number(ANSWER.load(Relaxed));
    say(&format!("{delivered} bytes of the stranger delivered, {changed} changed; {outcome:?}"));
    match outcome {
        Err(Error::PeerFailed { .. }) if delivered == 0 && changed == 0 => Ok(()),
        _ => Err("a stranger was taken for rank 1".into()),
    }
}

fn main() -> ExitCode {
    let Some(write) = std::env::args().nth(1).map(|mode| mode == "write") else { return ExitCode::from(64) };
    match run(write) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            say(&problem);
            ExitCode::from(4)
        }
    }
}
