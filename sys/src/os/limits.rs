//! Checks before reservations: of each limit that would otherwise end in a signal, in the out-of-memory killer,
//! or in an error number without a remedy.
//!
//! Each check holds for one moment only. The checks make the usual mistakes readable; they reserve nothing. If
//! many processes start together, each may count the same free memory.
//! [`Segment::create`](super::Segment::create) makes the reservation itself.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use super::call::{Resource, ResourceLimit, checked_long, open_files, resource_limit};
use super::error::{Bytes, ShmError};

fn limit_of(resource: Resource) -> Result<ResourceLimit, ShmError> {
    resource_limit(resource).map_err(|errno| ShmError::system("reading a resource limit", errno))
}

/// Returns a line `Name:  123 kB` of `/proc/self/status` or `/proc/meminfo`, in bytes.
pub(super) fn kib_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

pub(super) fn own_field(name: &str) -> u64 {
    fs::read_to_string("/proc/self/status").ok().and_then(|text| kib_field(&text, name)).unwrap_or(0)
}

/// Checks that `bytes` more may be locked into memory.
///
/// # Errors
/// [`ShmError::MemlockLimit`], with the command that raises the limit.
pub fn require_memlock(bytes: usize) -> Result<(), ShmError> {
    let limit = limit_of(libc::RLIMIT_MEMLOCK)?;
    let verdict = memlock_verdict(limit, own_field("VmLck"), bytes as u64);
    if verdict.is_err() && may_exceed_memlock() { Ok(()) } else { verdict }
}

fn memlock_verdict(limit: ResourceLimit, locked: u64, wanted: u64) -> Result<(), ShmError> {
    let total = locked.saturating_add(wanted);
    match limit.soft {
        Some(soft) if total > soft => Err(ShmError::MemlockLimit {
            limit: Bytes(soft),
            locked: Bytes(locked),
            wanted: Bytes(wanted),
            hard: limit.hard.filter(|hard| total > *hard).map(Bytes),
        }),
        _ => Ok(()),
    }
}

/// Returns whether the kernel ignores the memlock limit for this process. That requires CAP_IPC_LOCK in the
/// *initial* user namespace, which root of a rootless container does not have. If undecided, returns true: the
/// kernel then decides.
fn may_exceed_memlock() -> bool {
    const INITIAL_USER_NAMESPACE: u64 = 0xEFFF_FFFD; // PROC_USER_INIT_INO
    const CAP_IPC_LOCK: u32 = 14;
    const VERSION_3: u32 = 0x2008_0522;
    let header: [u32; 2] = [VERSION_3, 0];
    let mut sets = [[0_u32; 3]; 2]; // effective, permitted, inheritable; low and high half
    // SAFETY: version 3 reads a header of two words and writes two triples; both live here.
    let result = unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) };
    let capable = checked_long(result).is_ok() && sets[0][0] >> CAP_IPC_LOCK & 1 == 1;
    capable && fs::metadata("/proc/self/ns/user").map_or(true, |ns| ns.ino() == INITIAL_USER_NAMESPACE)
}

/// Checks that `bytes` more may be mapped.
///
/// # Errors
/// [`ShmError::AddressSpaceLimit`] against RLIMIT_AS.
pub fn require_address_space(bytes: usize) -> Result<(), ShmError> {
    mapped_verdict(libc::RLIMIT_AS, "VmSize", ("address space", 'v'), bytes)
}

/// As [`require_address_space`], for private memory that may be written.
///
/// # Errors
/// [`ShmError::AddressSpaceLimit`] against RLIMIT_AS or RLIMIT_DATA.
pub(super) fn require_private(bytes: usize) -> Result<(), ShmError> {
    require_address_space(bytes)?;
    mapped_verdict(libc::RLIMIT_DATA, "VmData", ("data", 'd'), bytes)
}

/// Checks that `bytes` more may be mapped. `field` has what is mapped now.
fn mapped_verdict(
    resource: Resource,
    field: &str,
    (what, option): (&'static str, char),
    bytes: usize,
) -> Result<(), ShmError> {
    let (wanted, used) = (bytes as u64, own_field(field));
    match limit_of(resource)?.soft {
        Some(limit) if used.saturating_add(wanted) > limit => {
            let [limit, used, wanted] = [limit, used, wanted].map(Bytes);
            Err(ShmError::AddressSpaceLimit { what, option, limit, used, wanted })
        }
        _ => Ok(()),
    }
}

/// Returns the bytes of addresses that this process may still map; `None` if they are not limited.
pub(crate) fn addresses_left() -> Option<u64> {
    let limit = limit_of(libc::RLIMIT_AS).ok()?.soft?;
    Some(limit.saturating_sub(own_field("VmSize")))
}

/// Returns whether the addresses of this process are limited.
pub(crate) fn has_address_limit() -> bool {
    addresses_left().is_some()
}

/// Returns the memory of the machine, with its swap space.
pub(crate) fn total_memory() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    Some(kib_field(&meminfo, "MemTotal")?.saturating_add(kib_field(&meminfo, "SwapTotal").unwrap_or(0)))
}

/// Checks that a file of `bytes` may be made: above RLIMIT_FSIZE the kernel sends SIGXFSZ, which kills the
/// process.
///
/// # Errors
/// [`ShmError::FileSizeLimit`].
pub fn require_file_size(bytes: usize) -> Result<(), ShmError> {
    match limit_of(libc::RLIMIT_FSIZE)?.soft {
        Some(soft) if bytes as u64 > soft => {
            Err(ShmError::FileSizeLimit { limit: Bytes(soft), wanted: Bytes(bytes as u64) })
        }
        _ => Ok(()),
    }
}

/// The descriptors of a process with an endpoint without connections. One of them serves all endpoints of the process.
pub(crate) const DESCRIPTORS: u32 = 7;
/// The descriptors that a peer of this machine takes: its connection and its pidfd.
pub(crate) const DESCRIPTORS_PER_PEER: u32 = 2;
/// Those that it takes while it is connected: also the segment that this process has made for it.
const PER_CALL: u64 = 3;
/// Those that a process takes for a moment: of a caller, and of the packet that the caller has sent.
const SPARE: u64 = 16;

/// Returns a limit of open files that suffices for so many further peers, if none is left now. `None`: there is no
/// limit.
pub(crate) fn sufficient_files(peers: u64) -> Option<u64> {
    open_files().map(|limit| limit.saturating_add(peers.saturating_mul(PER_CALL)).saturating_add(SPARE))
}

/// Checks that the descriptors for so many peers may be opened, all of which connect at the same time. A packet of one
/// brings those of its segments beside.
///
/// # Errors
/// As for [`require_descriptors`].
pub(crate) fn require_peers(peers: usize) -> Result<(), ShmError> {
    require_descriptors(peers.saturating_mul(PER_CALL as usize + 1).saturating_add(SPARE as usize))
}

/// Checks that `more` descriptors may be opened.
///
/// # Errors
/// [`ShmError::DescriptorLimit`], with the command that raises the limit.
pub fn require_descriptors(more: usize) -> Result<(), ShmError> {
    let Some(limit) = open_files() else { return Ok(()) };
    // The directory listing itself holds one descriptor open. If there is none left for it, all are in use.
    let open =
        fs::read_dir("/proc/self/fd").map_or(limit, |entries| entries.count().saturating_sub(1) as u64);
    let wanted = more as u64;
    if open.saturating_add(wanted) > limit {
        return Err(ShmError::DescriptorLimit { limit, open, wanted });
    }
    Ok(())
}

/// The memory that this process can still reserve, and the source of that bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Available {
    /// The number of bytes.
    pub bytes: u64,
    /// `this machine`, or the cgroup with its limit.
    pub bound_by: String,
    in_cgroup: bool,
}

/// Returns the memory that can still be reserved, by `/proc/meminfo` and by the memory limits of all enclosing
/// cgroups (version 2 and version 1). `None` if `/proc` is not readable. Reclaimable memory, such as file
/// cache, counts as available, as does swap.
pub fn available_memory() -> Option<Available> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let swap = kib_field(&meminfo, "SwapFree").unwrap_or(0);
    let bytes = kib_field(&meminfo, "MemAvailable")?.saturating_add(swap);
    let machine = Available { bytes, bound_by: "this machine".into(), in_cgroup: false };
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    groups.lines().filter_map(|line| tightest_cgroup(line, swap)).chain([machine]).min_by_key(|a| a.bytes)
}

/// Returns the tightest bound along one line of `/proc/self/cgroup`, such as `0::/user.slice` or
/// `4:memory:/job/7`.
fn tightest_cgroup(line: &str, swap: u64) -> Option<Available> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let (roots, files): (&[&str], _) = match controllers {
        "" => (&["/sys/fs/cgroup", "/sys/fs/cgroup/unified"], &VERSION_2),
        _ if controllers.split(',').any(|name| name == "memory") => (&["/sys/fs/cgroup/memory"], &VERSION_1),
        _ => return None,
    };
    let below: Vec<_> = Path::new(path).components().filter(|c| matches!(c, Component::Normal(_))).collect();
    let mut tightest: Option<Available> = None;
    for root in roots {
        for depth in 0..=below.len() {
            let mut group = Path::new(root).to_path_buf();
            group.extend(&below[..depth]);
            let found = files.headroom(&group, swap);
            tightest = tightest.into_iter().chain(found).min_by_key(|a| a.bytes);
        }
    }
    tightest
}

/// The files of one version of the memory controller.
struct CgroupFiles {
    max: &'static str,
    current: &'static str,
    /// The lines of `memory.stat` that the kernel can reclaim.
    reclaimable: [&'static str; 2],
    swap_max: &'static str,
}

const VERSION_2: CgroupFiles = CgroupFiles {
    max: "memory.max",
    current: "memory.current",
    reclaimable: ["inactive_file", "active_file"],
    swap_max: "memory.swap.max",
};

const VERSION_1: CgroupFiles = CgroupFiles {
    max: "memory.limit_in_bytes",
    current: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file"],
    swap_max: "",
};

impl CgroupFiles {
    fn headroom(&self, group: &Path, swap: u64) -> Option<Available> {
        let read = |file: &str| fs::read_to_string(group.join(file)).ok();
        let number = |file: &str| read(file)?.trim().parse::<u64>().ok(); // "max" is no number
        let (max, current) = (number(self.max)?, number(self.current)?);
        let stat = read("memory.stat").unwrap_or_default();
        let swap =
            if self.swap_max.is_empty() { swap } else { number(self.swap_max).unwrap_or(swap).min(swap) };
        let bytes = headroom(max, current, reclaimable(&stat, &self.reclaimable)).saturating_add(swap);
        let bound_by = format!("cgroup {} ({} is {})", group.display(), self.max, Bytes(max));
        Some(Available { bytes, bound_by, in_cgroup: true })
    }
}

fn headroom(max: u64, current: u64, reclaimable: u64) -> u64 {
    max.saturating_sub(current.saturating_sub(reclaimable))
}

fn reclaimable(stat: &str, names: &[&str]) -> u64 {
    let value = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        names.contains(&name).then(|| value.trim().parse::<u64>().ok())?
    };
    stat.lines().filter_map(value).fold(0, u64::saturating_add)
}

/// The number of bytes from which a limit counts as unlimited: version 1 of the memory controller writes a
/// large number.
const UNLIMITED: u64 = 1 << 60;

/// Checks that `bytes` of memory that process `pid` owns may be charged to this process instead. That holds if
/// no cgroup limits the memory of this process, if both processes are in the same cgroup (the charge then moves
/// within it), or if there is room for all.
///
/// # Errors
/// The limit that is too low, and the remedy.
pub(crate) fn require_to_bear(pid: i32, bytes: u64) -> Result<(), String> {
    let groups = |process: &str| fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
    let (ours, theirs) = (groups("self"), groups(&pid.to_string()));
    let bounds = ours.lines().filter_map(|line| tightest_cgroup(line, 0));
    let Some(tightest) = bounds.min_by_key(|bound| bound.bytes) else { return Ok(()) };
    if tightest.bytes >= bytes || tightest.bytes >= UNLIMITED || share_memory_limits(&ours, &theirs) {
        return Ok(());
    }
    Err(format!(
        "its owner is in another memory cgroup, and could have {} charged to {}, where {} are left: start both in one \
         cgroup, or raise the limit",
        Bytes(bytes),
        tightest.bound_by,
        Bytes(tightest.bytes)
    ))
}

/// Returns whether two `cgroup` files of `/proc` name the same memory cgroups.
fn share_memory_limits(ours: &str, theirs: &str) -> bool {
    let counts = |line: &&str| {
        let controllers = line.split(':').nth(1).unwrap_or_default();
        controllers.is_empty() || controllers.split(',').any(|name| name == "memory")
    };
    !ours.is_empty() && ours.lines().filter(counts).eq(theirs.lines().filter(counts))
}

/// Checks that `bytes` of memory are available. Without this check, reserving more than a cgroup allows ends in
/// the out-of-memory killer instead of an error.
///
/// # Errors
/// [`ShmError::Memory`], with the bytes wanted, the bytes available, the source of the bound, and the remedy.
pub fn require_memory(bytes: usize) -> Result<(), ShmError> {
    available_memory().map_or(Ok(()), |available| memory_verdict(available, bytes as u64))
}

fn memory_verdict(available: Available, wanted: u64) -> Result<(), ShmError> {
    if wanted <= available.bytes {
        return Ok(());
    }
    let remedy = if available.in_cgroup {
        "raise the limit (docker --memory, Slurm --mem, systemd MemoryMax), or use fewer or smaller buffers"
    } else {
        "use fewer or smaller buffers, or fewer processes on this machine"
    };
    let (wanted, available, bound_by) = (Bytes(wanted), Bytes(available.bytes), available.bound_by);
    Err(ShmError::Memory { wanted, available, bound_by, remedy })
}

/// Returns the free and total huge pages of the default size, and that size in bytes. `None` if the kernel has
/// no huge pages.
pub(super) fn huge_pages() -> Option<HugePool> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let count = |name| kib_field(&meminfo, name).map(|value| value / 1024); // counts, not kB
    let page =
        usize::try_from(kib_field(&meminfo, "Hugepagesize")?).ok().filter(|size| size.is_power_of_two())?;
    let free = count("HugePages_Free")?.saturating_sub(count("HugePages_Rsvd").unwrap_or(0));
    Some(HugePool { page, free, total: count("HugePages_Total")? })
}

/// The machine's pool of huge pages, in pages of `page` bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct HugePool {
    pub(super) page: usize,
    pub(super) free: u64,
    pub(super) total: u64,
}

impl HugePool {
    /// Returns the error that states the necessary pool size.
    pub(super) fn too_small(self, bytes: usize, errno: io::Error) -> ShmError {
        let (page, wanted) = (self.page as u64, bytes as u64);
        let pages = self.total + wanted.div_ceil(page).saturating_sub(self.free);
        ShmError::HugePages { wanted: Bytes(wanted), free: Bytes(self.free * page), errno, pages }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::testing;

    const MIB: u64 = 1 << 20;

    #[test]
    fn memlock_counts_memory_that_is_already_locked() {
        let limit = ResourceLimit { soft: Some(8 * MIB), hard: Some(16 * MIB) };
        assert!(memlock_verdict(limit, 0, 8 * MIB).is_ok());
        assert!(memlock_verdict(limit, MIB, 7 * MIB).is_ok());
        assert!(memlock_verdict(limit, MIB, 8 * MIB).unwrap_err().to_string().contains("ulimit -l 9216"));
        let beyond_hard = memlock_verdict(limit, 0, 17 * MIB).unwrap_err().to_string();
        assert!(beyond_hard.contains("hard limit 16 MiB"), "{beyond_hard}");
        assert!(memlock_verdict(ResourceLimit { soft: None, hard: None }, 0, u64::MAX).is_ok());
    }

    #[test]
    fn a_petabyte_is_refused_before_anything_is_taken() {
        let error = require_memory(1 << 50).unwrap_err().to_string();
        assert!(error.starts_with("1 PiB of shared memory wanted, "), "{error}");
        assert!(error.contains(" available in ") && !error.contains('\n'), "{error}");
        require_memory(4096).unwrap();
    }

    #[test]
    fn a_cgroup_leaves_its_limit_less_the_unreclaimable_memory() {
        assert_eq!(headroom(100, 60, 20), 60);
        assert_eq!(headroom(100, 160, 20), 0);
        assert_eq!(headroom(100, 10, 20), 100);
        let stat = "anon 5\ninactive_file 7\nactive_file 11\nfile 100\nbroken\n";
        assert_eq!(reclaimable(stat, &VERSION_2.reclaimable), 18);
        let bound =
            Available { bytes: MIB, bound_by: "cgroup /job (memory.max is 1 MiB)".into(), in_cgroup: true };
        let error = memory_verdict(bound, 2 * MIB).unwrap_err().to_string();
        assert!(error.contains("2 MiB of shared memory wanted, 1 MiB available in cgroup /job"), "{error}");
        assert!(error.contains("raise the limit"), "{error}");
    }

    #[test]
    fn every_enclosing_cgroup_is_asked() {
        for line in ["0::/", "0::/../x", "4:memory:/a/b", "4:memory,cpu:/", "9:pids:/", "nonsense", ""] {
            // The result depends on the machine; the test is that any line is accepted without a panic.
            let _ = tightest_cgroup(line, 0);
        }
        assert!(tightest_cgroup("9:pids:/", 0).is_none());
    }

    #[test]
    fn memory_of_a_peer_is_charged_within_one_cgroup_or_where_there_is_room() {
        let (ours, cpu) = ("4:memory:/a\n1:cpu:/x\n0::/\n", "4:memory:/a\n1:cpu:/y\n0::/\n");
        assert!(share_memory_limits(ours, ours) && share_memory_limits(ours, cpu));
        for theirs in ["4:memory:/b\n1:cpu:/x\n0::/\n", "4:memory:/a\n1:cpu:/x\n0::/b\n", ""] {
            assert!(!share_memory_limits(ours, theirs), "{theirs}");
        }
        assert!(!share_memory_limits("", ""), "both groups are unknown");
        let ourselves = super::super::call::process_id();
        assert_eq!(require_to_bear(ourselves, u64::MAX), Ok(()));
        assert_eq!(require_to_bear(i32::MAX, 0), Ok(()));
    }

    #[test]
    fn fields_are_matched_by_their_whole_name() {
        let text = "VmLckX:\t  9 kB\nVmLck:\t      12 kB\n";
        assert_eq!(kib_field(text, "VmLck"), Some(12 << 10));
        assert_eq!(kib_field(text, "Vm"), None);
    }

    #[test]
    fn low_limits_are_clear_errors() {
        const NAME: &str = concat!(module_path!(), "::low_limits_are_clear_errors");
        if !testing::is_child() {
            let (as_limit, small) = (own_field("VmSize") + 512 * MIB, MIB);
            testing::run_again(NAME, move || {
                testing::set_limit(libc::RLIMIT_AS, as_limit)?;
                testing::set_limit(libc::RLIMIT_FSIZE, small)?;
                testing::set_limit(libc::RLIMIT_NOFILE, 64)
            });
            return;
        }
        let error = require_address_space(1 << 40).unwrap_err().to_string();
        assert!(error.starts_with("address space limit is ") && error.contains("ulimit -v"), "{error}");
        let error = require_file_size(1 << 21).unwrap_err().to_string();
        assert_eq!(error, "file size limit is 1 MiB, 2 MiB wanted: ulimit -f unlimited");
        require_file_size(1 << 20).unwrap();
        let error = require_descriptors(64).unwrap_err().to_string();
        assert!(error.starts_with("open file limit is 64, "), "{error}");
        require_descriptors(1).unwrap();
    }
}
