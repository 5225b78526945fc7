//! The errors below the shared-memory port: one line each, which includes the remedy.

use std::fmt;
use std::io;

/// A number of bytes, shown in human units: `8 MiB`, `8196 KiB`, `7.2 GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        // Exact while the number stays short: a limit and a request slightly above it must not print the same
        // text.
        let (mut value, mut unit) = (self.0, 0);
        while value >= 1024 && value % 1024 == 0 && unit + 1 < UNITS.len() {
            (value, unit) = (value / 1024, unit + 1);
        }
        if value < 100_000 {
            return write!(f, "{value} {}", UNITS[unit]);
        }
        let mut tenths = u128::from(value) * 10;
        while tenths >= 10_240 && unit + 1 < UNITS.len() {
            (tenths, unit) = (tenths / 1024, unit + 1);
        }
        write!(f, "{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
    }
}

/// An error of the operating-system layer.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    /// A system call failed for a reason that has no better variant.
    #[error("{what}: {errno}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The kernel's reason.
        errno: io::Error,
    },
    /// This process, or the machine, is out of file descriptors.
    #[error("{what}: {errno}: raise the limit of open files, `ulimit -n` (now {limit})")]
    Descriptors {
        /// The operation that failed.
        what: &'static str,
        /// The kernel's reason.
        errno: io::Error,
        /// The present limit, as text.
        limit: String,
    },
    /// More file descriptors are wanted than this process may open.
    #[error(
        "open file limit is {limit}, {open} are open{}, {wanted} more wanted: ulimit -n {}",
        earlier(*.open, *.limit), open + wanted
    )]
    DescriptorLimit {
        /// The soft limit.
        limit: u64,
        /// The number of open descriptors.
        open: u64,
        /// The number of additional descriptors wanted.
        wanted: u64,
    },
    /// A segment of this length cannot be made or accepted.
    #[error("segment of {len} bytes refused: {why}")]
    Length {
        /// The length requested or found.
        len: u64,
        /// The rule that it breaks.
        why: String,
    },
    /// A name is not valid.
    #[error("{what} {name:?} is not valid: {rule}")]
    Name {
        /// The object that it would name.
        what: &'static str,
        /// The name.
        name: String,
        /// The rule for valid names.
        rule: &'static str,
    },
    /// Less memory is available than is wanted. Detected before any memory is reserved.
    #[error("{wanted} of shared memory wanted, {available} available in {bound_by}: {remedy}")]
    Memory {
        /// The bytes wanted.
        wanted: Bytes,
        /// The bytes available.
        available: Bytes,
        /// The source of the bound: the machine, or a memory cgroup.
        bound_by: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// The kernel refused to reserve the pages.
    #[error(
        "cannot reserve {wanted} of shared memory: {errno}: raise the memory limit of the container or cgroup, \
         or use fewer or smaller buffers"
    )]
    Reserve {
        /// The bytes wanted.
        wanted: Bytes,
        /// The kernel's reason.
        errno: io::Error,
    },
    /// `/dev/shm` is too small or too full.
    #[error(
        "/dev/shm is full: {wanted} wanted, {available} available: `mount -o remount,size=... /dev/shm`, \
         in a container `docker run --shm-size=...`"
    )]
    DevShmFull {
        /// The bytes wanted.
        wanted: Bytes,
        /// The bytes free in `/dev/shm`.
        available: Bytes,
    },
    /// The kernel or the container refuses anonymous memory files.
    #[error(
        "memfd_create is refused here: {errno}: set NEMESIA_BACKING=devshm, or permit the call (seccomp of a container)"
    )]
    NoMemfd {
        /// The kernel's reason.
        errno: io::Error,
    },
    /// There are not enough huge pages.
    #[error("{wanted} of huge pages wanted, {free} free: {errno}: sysctl vm.nr_hugepages={pages}")]
    HugePages {
        /// The bytes wanted.
        wanted: Bytes,
        /// The bytes free.
        free: Bytes,
        /// The kernel's reason.
        errno: io::Error,
        /// The pool size, in pages, that would suffice.
        pages: u64,
    },
    /// RLIMIT_FSIZE is too low; exceeding it would raise the signal SIGXFSZ.
    #[error("file size limit is {limit}, {wanted} wanted: ulimit -f unlimited")]
    FileSizeLimit {
        /// The soft limit.
        limit: Bytes,
        /// The bytes wanted.
        wanted: Bytes,
    },
    /// RLIMIT_AS or RLIMIT_DATA is too low.
    #[error(
        "{what} limit is {limit}, {used} in use, {wanted} more wanted: ulimit -{option} {}",
        (used.0 + wanted.0).div_ceil(1024)
    )]
    AddressSpaceLimit {
        /// What is limited.
        what: &'static str,
        /// The option of `ulimit` for it.
        option: char,
        /// The soft limit.
        limit: Bytes,
        /// The bytes that this process has already mapped.
        used: Bytes,
        /// The additional bytes wanted.
        wanted: Bytes,
    },
    /// RLIMIT_MEMLOCK is too low.
    #[error(
        "memlock limit is {limit}{}, {wanted} wanted: ulimit -l {}{}",
        in_use(*locked),
        (locked.0 + wanted.0).div_ceil(1024),
        hard_limit(*hard)
    )]
    MemlockLimit {
        /// The soft limit.
        limit: Bytes,
        /// The bytes that this process has already locked.
        locked: Bytes,
        /// The additional bytes wanted.
        wanted: Bytes,
        /// The hard limit, if it is too low as well: only an administrator can raise it.
        hard: Option<Bytes>,
    },
    /// A descriptor received from a peer is not memory that is safe to map.
    #[error("segment from a peer refused: {0}")]
    Untrustworthy(String),
    /// The peer runs as another user.
    #[error("process {pid} refused: it runs as uid {theirs}, this process as uid {ours}")]
    OtherUser {
        /// The peer's process id.
        pid: i32,
        /// The peer's effective user.
        theirs: u32,
        /// Our effective user.
        ours: u32,
    },
    /// The peer closed the connection, by its death or on purpose.
    #[error("peer process {pid} is gone (while {doing})")]
    PeerGone {
        /// Its process id; 0 when it lives in another pid namespace.
        pid: i32,
        /// The operation that was interrupted.
        doing: &'static str,
    },
    /// No process listens under this name.
    #[error(
        "no process listens under {name}: the peer is gone, or runs in another network namespace (container): {errno}"
    )]
    NotListening {
        /// The name.
        name: String,
        /// The kernel's reason.
        errno: io::Error,
    },
    /// The deadline passed.
    #[error("timed out while {doing}")]
    TimedOut {
        /// The operation that timed out.
        doing: &'static str,
    },
    /// A message does not have the agreed form.
    #[error("message from process {pid} refused: {why}")]
    BadMessage {
        /// Its process id.
        pid: i32,
        /// The rule that it violates.
        why: &'static str,
    },
}

/// Explains how more files are open than the limit permits.
const fn earlier(open: u64, limit: u64) -> &'static str {
    if open > limit { " since before it was lowered" } else { "" }
}

fn in_use(locked: Bytes) -> String {
    if locked.0 == 0 { String::new() } else { format!(" of which {locked} in use") }
}

fn hard_limit(hard: Option<Bytes>) -> String {
    hard.map_or_else(String::new, |hard| {
        format!(" (hard limit {hard}: memlock in /etc/security/limits.conf, LimitMEMLOCK=, docker --ulimit memlock=-1)")
    })
}

impl ShmError {
    /// Returns the error of a failed call, with the remedy if the cause is a lack of descriptors.
    pub(crate) fn system(what: &'static str, errno: io::Error) -> Self {
        match errno.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::ETOOMANYREFS) => {
                let limit = super::call::open_files().map_or_else(|| "unknown".into(), |n| n.to_string());
                Self::Descriptors { what, errno, limit }
            }
            _ => Self::System { what, errno },
        }
    }

    /// Returns whether the cause is a shortage of this process or machine, which may pass and concerns no peer.
    pub(crate) fn is_shortage(&self) -> bool {
        match self {
            Self::Descriptors { .. } | Self::DescriptorLimit { .. } => true,
            Self::AddressSpaceLimit { .. } | Self::Reserve { .. } | Self::DevShmFull { .. } => true,
            Self::System { errno, .. } => {
                matches!(errno.raw_os_error(), Some(libc::ENOMEM | libc::ENOBUFS | libc::EAGAIN))
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_in_the_largest_exact_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1, "1 B"),
            (4096, "4 KiB"),
            (8 << 20, "8 MiB"),
            ((8 << 20) + 4096, "8196 KiB"),
            (1 << 50, "1 PiB"),
            (7_730_941_133, "7.2 GiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn more_open_files_than_the_limit_and_a_refused_memfd_are_explained() {
        let text = |open| ShmError::DescriptorLimit { limit: 10, open, wanted: 4 }.to_string();
        assert_eq!(text(10), "open file limit is 10, 10 are open, 4 more wanted: ulimit -n 14");
        assert!(text(12).contains("12 are open since before it was lowered, 4 more"), "{}", text(12));
        let refused = ShmError::NoMemfd { errno: io::Error::from_raw_os_error(libc::EPERM) }.to_string();
        assert!(refused.contains("set NEMESIA_BACKING=devshm"), "{refused}");
    }

    #[test]
    fn memlock_error_names_the_command_that_cures_it() {
        let (limit, wanted) = (Bytes(8 << 20), Bytes(64 << 20));
        let error = ShmError::MemlockLimit { limit, wanted, locked: Bytes(0), hard: None };
        assert_eq!(error.to_string(), "memlock limit is 8 MiB, 64 MiB wanted: ulimit -l 65536");
        let error = ShmError::MemlockLimit { limit, wanted, locked: Bytes(1 << 20), hard: Some(limit) };
        let text = error.to_string();
        assert!(text.contains("of which 1 MiB in use") && text.contains("ulimit -l 66560"), "{text}");
        assert!(text.contains("hard limit 8 MiB") && !text.contains('\n'), "{text}");
    }
}
