//! The memory of Nemesia that a process can reach, and `doors`: rank 1 tries every way to write rank 0's own
//! segment.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use nemesia::{Source, Tag};

use super::{Outcome, ensure, open};

/// A mapping of one of Nemesia's segments in this process.
#[derive(Clone, Debug)]
pub(super) struct Mapping {
    base: usize,
    len: usize,
    /// Only one process may write it: an own segment or a link segment.
    own: bool,
    writable: bool,
}

impl Mapping {
    /// Words of 8 bytes.
    pub(super) fn words(&self) -> u64 {
        self.len as u64 / 8
    }

    /// Returns one word, counted from the start and wrapped at the end.
    pub(super) fn word(&self, index: u64) -> &AtomicU64 {
        let offset = 8 * (index % self.words()) as usize;
        // SAFETY: the mapping lies in shared memory, is aligned to a page, and stays until the endpoint is
        // dropped, which no user of this outlives; every access by any process is atomic or tolerates any
        // value.
        unsafe { AtomicU64::from_ptr((self.base + offset) as *mut u64) }
    }

    /// Overwrites every word.
    pub(super) fn fill(&self, mut value: impl FnMut() -> u64) {
        for index in 0..self.words() {
            self.word(index).store(value(), Ordering::Relaxed);
        }
    }
}

/// Returns Nemesia's segments in this process, from `/proc/self/maps`.
fn mappings() -> Outcome<Vec<Mapping>> {
    let text = std::fs::read_to_string("/proc/self/maps")?;
    let parse = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let base = number(start)?;
        let (writable, own) = (rest.starts_with("rw-s"), is_own(line));
        line.contains("memfd:nemesia-").then_some(Mapping { base, len: number(end)? - base, own, writable })
    };
    Ok(text.lines().filter_map(parse).collect())
}

/// Returns whether a line or a path names a segment that only its owner may write.
fn is_own(name: &str) -> bool {
    ["memfd:nemesia-own", "memfd:nemesia-link", "memfd:nemesia-life"].iter().any(|own| name.contains(own))
}

/// Returns those that can be written.
pub(super) fn writable() -> Outcome<Vec<Mapping>> {
    Ok(mappings()?.into_iter().filter(|mapping| mapping.writable).collect())
}

pub(super) fn doors() -> Outcome {
    let mut endpoint = open()?;
    let mut pid = [0; 4];
    if endpoint.rank() == 0 {
        endpoint.send(1, 1, &std::process::id().to_le_bytes())?;
        endpoint.recv(Source::Rank(1), Tag::Exactly(2), &mut [])?;
        return Ok(endpoint.close()?);
    }
    endpoint.recv(Source::Rank(0), Tag::Exactly(1), &mut pid)?;
    let all = mappings()?;
    let count = |own, writable| all.iter().filter(|it| it.own == own && it.writable == writable).count();
    let counts = [count(true, true), count(true, false), count(false, true), count(false, false)];
    ensure(counts == [3, 3, 2, 0], || format!("own and inbox, writable and not: {counts:?}"))?;
    for theirs in all.iter().filter(|it| it.own && !it.writable) {
        // SAFETY: a mapping of this process; making it writable harms nothing here.
        let result = unsafe {
            libc::mprotect(theirs.base as *mut libc::c_void, theirs.len, libc::PROT_READ | libc::PROT_WRITE)
        };
        ensure(result != 0, || "mprotect has made a peer's own segment writable".into())?;
    }
    by_descriptor(u32::from_le_bytes(pid))?;
    endpoint.send(0, 2, &[])?;
    Ok(endpoint.close()?)
}

/// Opens rank 0's descriptors through `/proc` and tries to change them.
fn by_descriptor(pid: u32) -> Outcome {
    let mut seen = [0, 0];
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = entry?.path();
        let target = std::fs::read_link(&path)?.to_string_lossy().into_owned();
        if !target.contains("memfd:nemesia-") {
            continue;
        }
        let own = is_own(&target);
        seen[usize::from(own)] += 1;
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        for (what, succeeded) in attempts(&file, own) {
            ensure(!succeeded, || format!("{what} has succeeded on {target}"))?;
        }
    }
    // A link segment has no descriptor once its peer is connected. The other own one is the life mark.
    ensure(seen == [1, 2], || format!("inboxes and own segments of rank 0 seen: {seen:?}"))
}

/// Returns the forbidden operations on a segment, and whether each succeeded.
fn attempts(file: &File, own: bool) -> Vec<(&'static str, bool)> {
    let fd = file.as_raw_fd();
    // SAFETY: none of these takes a pointer.
    let mut attempts = unsafe {
        vec![
            ("shrinking", libc::ftruncate(fd, 0) == 0),
            ("growing", libc::ftruncate(fd, 1 << 30) == 0),
            ("sealing", libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) == 0),
        ]
    };
    if own {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_SHARED, fd, 0) };
        // SAFETY: the bytes outlive the call.
        let written = unsafe { libc::pwrite(fd, [0_u8; 8].as_ptr().cast(), 8, 0) };
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: takes no pointer.
        let punched = unsafe { libc::fallocate(fd, hole, 0, 4096) };
        attempts.extend([
            ("mapping for writing", mapped != libc::MAP_FAILED),
            ("writing", written >= 0),
            ("punching a hole", punched == 0),
        ]);
    }
    attempts
}
