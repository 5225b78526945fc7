//! The processors and memory nodes on which this process runs.

use std::ffi::{c_int, c_uint, c_ulong};
use std::fs;
use std::ptr::{self, NonNull};

use super::call::checked_long;
use super::error::ShmError;

const NODE_WORDS: usize = 16; // 1024 nodes: the most that Linux can be built for
const BITS: usize = c_ulong::BITS as usize;

/// The words of the largest affinity mask that is read: more than the 8192 CPUs that Linux can be built for.
const CPU_WORDS: usize = 16384 / BITS;

/// Parses the kernel's list format: `0-3,8` is 0, 1, 2, 3, 8. `None` if the text is not in that format.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if last.checked_sub(first)? > 1 << 16 {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// Returns the memory nodes of the machine; only node 0 if the kernel does not list them.
pub fn nodes() -> Vec<usize> {
    fs::read_to_string("/sys/devices/system/node/online")
        .ok()
        .and_then(|text| parse_list(&text))
        .filter(|nodes| !nodes.is_empty())
        .unwrap_or_else(|| vec![0])
}

/// Returns the CPU and the memory node on which the calling thread runs at this moment.
///
/// # Errors
/// A sandbox refuses `getcpu`.
pub fn current_cpu_and_node() -> Result<(usize, usize), ShmError> {
    let (mut cpu, mut node): (c_uint, c_uint) = (0, 0);
    // SAFETY: the kernel writes two integers, both local variables; the third argument is unused since Linux
    // 2.6.24.
    let result = unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, &raw mut node, ptr::null::<u8>()) };
    checked_long(result).map_err(|errno| ShmError::system("finding the current CPU", errno))?;
    Ok((cpu as usize, node as usize))
}

/// Requests that the pages of the range which are not touched yet come from the node of the calling thread, or
/// from another if that one is full. False, without effect, if the machine has one node.
///
/// In a shared mapping the preference belongs to the memory, whichever process touches it first.
///
/// # Errors
/// The kernel or a sandbox refuses `mbind`. The memory is usable nonetheless.
///
/// # Safety
/// The range is page-aligned and mapped, and the caller controls its placement.
pub unsafe fn prefer_local(base: NonNull<u8>, len: usize) -> Result<bool, ShmError> {
    if nodes().len() < 2 {
        return Ok(false);
    }
    let (_, node) = current_cpu_and_node()?;
    // SAFETY: promised by the caller.
    unsafe { prefer_node(base, len, node) }
}

/// # Safety
/// As for [`prefer_local`].
unsafe fn prefer_node(base: NonNull<u8>, len: usize, node: usize) -> Result<bool, ShmError> {
    let mut mask: [c_ulong; NODE_WORDS] = [0; NODE_WORDS];
    let Some(word) = mask.get_mut(node / BITS) else { return Ok(false) };
    *word |= 1 << (node % BITS);
    // The kernel reads one bit less than the number passed.
    let bits = mask.len() * BITS + 1;
    // SAFETY: the caller vouches for the range; the mask has the bits announced and outlives the call.
    let result = unsafe {
        libc::syscall(libc::SYS_mbind, base.as_ptr(), len, libc::MPOL_PREFERRED, mask.as_ptr(), bits, 0_u32)
    };
    checked_long(result).map_err(|errno| ShmError::system("placing memory on the local NUMA node", errno))?;
    Ok(true)
}

/// Returns the CPUs on which the calling thread may run, ascending; never empty.
///
/// # Errors
/// A sandbox refuses the system call.
pub fn allowed_cpus() -> Result<Vec<usize>, ShmError> {
    allowed_cpus_of(0)
}

/// Returns the CPUs on which the first thread of a process may run, by its number; 0 is the calling thread.
///
/// # Errors
/// The process is gone, or a sandbox refuses the system call.
pub(crate) fn allowed_cpus_of(pid: i32) -> Result<Vec<usize>, ShmError> {
    // The raw call: the C library's `cpu_set_t` ends at 1024 CPUs.
    let mut mask: [c_ulong; CPU_WORDS] = [0; CPU_WORDS];
    // SAFETY: the kernel writes at most the size announced into `mask`.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_getaffinity, pid, size_of_val(&mask), mask.as_mut_ptr()) };
    checked_long(result).map_err(|errno| ShmError::system("reading the CPU affinity", errno))?;
    let allowed = |cpu: &usize| mask[cpu / BITS] >> (cpu % BITS) & 1 == 1;
    Ok((0..CPU_WORDS * BITS).filter(allowed).collect())
}

/// Returns the bytes of the first CPU's largest cache; `None` if the kernel does not report them. Reads some
/// small files.
pub fn last_cache_bytes() -> Option<u64> {
    let caches = fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let sizes =
        caches.filter_map(|cache| parse_size(&fs::read_to_string(cache.ok()?.path().join("size")).ok()?));
    sizes.max()
}

/// Parses the kernel's format of cache sizes: `32768K`.
fn parse_size(text: &str) -> Option<u64> {
    let kib: u64 = text.trim().strip_suffix('K')?.parse().ok()?;
    kib.checked_mul(1024).filter(|bytes| *bytes > 0)
}

/// Returns the page size of this machine in bytes.
pub fn page_size() -> usize {
    sysconf(libc::_SC_PAGESIZE).unwrap_or(4096)
}

fn sysconf(name: c_int) -> Option<usize> {
    // SAFETY: takes and returns integers.
    let value = unsafe { libc::sysconf(name) };
    usize::try_from(value).ok().filter(|value| *value > 0)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Restricts the calling thread to this CPU, which it must be allowed to use.
    pub(crate) fn pin_to_cpu(cpu: usize) {
        let mut mask: [c_ulong; CPU_WORDS] = [0; CPU_WORDS];
        mask[cpu / BITS] |= 1 << (cpu % BITS);
        // SAFETY: the kernel reads the size announced from `mask`.
        let result =
            unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(&mask), mask.as_ptr()) };
        checked_long(result).unwrap();
    }

    #[test]
    fn kernel_lists_are_read_and_nonsense_is_refused() {
        assert_eq!(parse_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list("0\n"), Some(vec![0]));
        assert_eq!(parse_list(""), Some(vec![]));
        for nonsense in ["a", "3-1", "0-99999999999", "-", "1-"] {
            assert_eq!(parse_list(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_pinned_thread_may_use_its_cpu_only_and_runs_there() {
        let allowed = allowed_cpus().unwrap();
        assert!(!allowed.is_empty() && !nodes().is_empty());
        std::thread::spawn(move || {
            for cpu in &allowed {
                pin_to_cpu(*cpu);
                assert_eq!(allowed_cpus().unwrap(), [*cpu]);
                assert_eq!(current_cpu_and_node().unwrap().0, *cpu);
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn memory_can_be_asked_of_a_node_that_is_there_and_of_no_other() {
        let page = crate::os::testing::forkable_page();
        // SAFETY: the page is ours and stays mapped.
        match unsafe { prefer_node(page, 4096, current_cpu_and_node().unwrap().1) } {
            Ok(done) => assert!(done),
            Err(why) => crate::os::testing::skipped(&why.to_string()),
        }
        // SAFETY: as above.
        assert!(unsafe { prefer_node(page, 4096, 1023) }.is_err());
        // SAFETY: as above.
        assert!(!unsafe { prefer_node(page, 4096, 1 << 20) }.unwrap());
        // SAFETY: as above.
        assert_eq!(unsafe { prefer_local(page, 4096) }.unwrap_or(true), nodes().len() > 1);
    }

    #[test]
    fn sizes_of_caches_are_read_and_nonsense_is_none() {
        assert_eq!(parse_size("32768K\n"), Some(32 << 20));
        for nonsense in ["", "0K", "K", "32768", "1M", "-1K", "99999999999999999999K"] {
            assert_eq!(parse_size(nonsense), None, "{nonsense}");
        }
        assert!(last_cache_bytes().is_none_or(|bytes| bytes >= 16 << 10));
    }

    #[test]
    fn pages_have_a_sane_size() {
        assert!(page_size().is_power_of_two() && page_size() >= 4096);
    }
}
