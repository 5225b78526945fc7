//! The life mark of a process: memory with a robust mutex that one of its threads holds until the end.
//!
//! A process that reads another one's memory by its number must know that the number still means that process, and that
//! it has not executed another program since. The kernel says so in the word of the mutex
//! ([`nemesia_core::shared::life`]), which costs the reader a load from its own cache. The thread that opens the first
//! endpoint holds it. When that thread ends, peers use the identity stamp instead ([`RemoteMemory`]), and the next
//! endpoint makes another mark.
//!
//! The mutex lies in memory of its own that peers can only read, because the C library keeps a list of a thread's
//! mutexes in them. Only the thread that holds a mutex can take it out of that list. So if another thread closes the
//! last endpoint, the mark stays, and the next endpoint finds it.
//!
//! [`RemoteMemory`]: super::RemoteMemory

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};

use nemesia_core::shared::life;
use nemesia_core::sync::Word32;

use super::segment::{Access, AttachLimits, Segment, SegmentOptions};
use super::{ForeignFd, ShmError};

/// Marks that a process leaves behind at most, each because its thread ended while the mark was in use, or because it
/// could not be made. Each costs a page and a descriptor until the process ends.
const MOST_LEFT: usize = 16;
/// The largest size of a page with a mark.
const MOST_BYTES: usize = 1 << 16;
/// Attempts to reach the mark of the process. Others use it for microseconds, or, in a process that was forked then,
/// for ever.
const ATTEMPTS: usize = 1000;

/// The mark of this process. A forked child inherits the words, without the memory.
static OWN: Mutex<OwnMark> = Mutex::new(OwnMark { process: 0, uses: 0, left: 0, mark: None });

struct OwnMark {
    process: u32,
    /// The number of [`LifeMark`]s.
    uses: usize,
    /// The marks that were left behind.
    left: usize,
    mark: Option<HeldMark>,
}

/// Memory with a mutex that a thread holds, or held.
#[derive(Debug)]
struct HeldMark {
    segment: &'static Segment,
    holder: u32,
}

impl HeldMark {
    /// Makes a mark that the calling thread holds.
    fn hold() -> Option<Self> {
        let len = size_of::<libc::pthread_mutex_t>();
        let segment = Segment::create_sealed("nemesia-life", len, &SegmentOptions::default()).ok()?;
        if !segment.write_sealed() || cfg!(not(target_env = "gnu")) {
            return None;
        }
        // From here on the C library may point to the memory. Only `take_away` frees it.
        let segment: &'static Segment = Box::leak(Box::new(segment));
        hold_robustly(segment.as_ptr().cast())?;
        Some(Self { segment, holder: life::holder_of(word_of(segment))? })
    }

    fn is_held(&self) -> bool {
        life::is_held_by(word_of(self.segment), self.holder)
    }

    /// Takes the mark away, if the calling thread holds it; else it stays.
    fn take_away(self) -> Result<(), Self> {
        // SAFETY: takes nothing.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) };
        if !self.is_held() || thread as u32 != self.holder {
            return Err(self);
        }
        // SAFETY: this thread holds the mutex, and no thread waits for it. `hold` has leaked the segment. No other
        // reference to it is left: `LifeMark`s borrow it, and the caller has counted that none exists.
        unsafe {
            let mutex: *mut libc::pthread_mutex_t = self.segment.as_ptr().as_ptr().cast();
            libc::pthread_mutex_unlock(mutex);
            libc::pthread_mutex_destroy(mutex);
            drop(Box::from_raw(std::ptr::from_ref(self.segment).cast_mut()));
        }
        Ok(())
    }
}

impl OwnMark {
    /// Returns the mark of this process; `None` if other threads use it without end.
    fn lock() -> Option<MutexGuard<'static, Self>> {
        let mut locked = (0..ATTEMPTS).find_map(|_| {
            OWN.try_lock().ok().or_else(|| {
                std::thread::yield_now();
                None
            })
        })?;
        if locked.process != std::process::id() {
            // The memory of the parent's mark is not here.
            *locked = Self { process: std::process::id(), uses: 0, left: 0, mark: None };
        }
        Some(locked)
    }

    /// Returns the mark, after another one was made if no thread holds it.
    fn held(&mut self) -> Option<&'static Segment> {
        if self.mark.as_ref().is_some_and(|mark| !mark.is_held()) {
            self.left += 1;
            self.mark = None;
        }
        if self.mark.is_none() && self.left < MOST_LEFT {
            self.mark = HeldMark::hold();
            self.left += usize::from(self.mark.is_none());
        }
        self.mark.as_ref().map(|mark| mark.segment)
    }
}

/// A use of the mark of this process, which is there as long as it is used.
#[derive(Debug)]
pub(crate) struct LifeMark {
    segment: &'static Segment,
    process: u32,
}

impl LifeMark {
    /// Returns the mark of this process. The calling thread makes it, if there is none that a thread holds. `None` if
    /// the kernel or the C library cannot provide it.
    pub(crate) fn own() -> Option<Self> {
        let mut own = OwnMark::lock()?;
        let segment = own.held()?;
        own.uses += 1;
        Some(Self { segment, process: own.process })
    }

    /// Returns the descriptor for peers.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.segment.fd()
    }
}

impl Drop for LifeMark {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        let Some(mut own) = OwnMark::lock() else { return };
        own.uses = own.uses.saturating_sub(1);
        if own.uses == 0
            && let Some(mark) = own.mark.take()
        {
            own.mark = mark.take_away().err();
        }
    }
}

/// Makes the calling thread hold a new robust mutex, whose word the kernel knows.
#[cfg(target_env = "gnu")]
fn hold_robustly(mutex: NonNull<libc::pthread_mutex_t>) -> Option<()> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    // SAFETY: the attributes are a local variable, initialised by the first call. The memory of the mutex is large
    // enough, aligned to a page, used by nothing else, never unmapped or moved, and written by this process only.
    let results = unsafe {
        let attributes = attributes.as_mut_ptr();
        [
            libc::pthread_mutexattr_init(attributes),
            libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED),
            libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST),
            libc::pthread_mutex_init(mutex.as_ptr(), attributes),
            libc::pthread_mutexattr_destroy(attributes),
            libc::pthread_mutex_lock(mutex.as_ptr()),
        ]
    };
    (results == [0; 6]).then_some(())
}

/// Other C libraries keep the word at another place.
#[cfg(not(target_env = "gnu"))]
fn hold_robustly(_: NonNull<libc::pthread_mutex_t>) -> Option<()> {
    None
}

/// Returns the word of the mutex in a segment with a mark: the first one, in glibc's mutexes.
fn word_of(segment: &Segment) -> &Word32 {
    // SAFETY: the segment has at least a page, is aligned to it, and stays mapped as long as the reference lives. Other
    // processes, the kernel and the C library use the word atomically.
    unsafe { segment.as_ptr().cast::<Word32>().as_ref() }
}

/// The life of a peer, by its mark.
#[derive(Debug)]
pub(crate) struct PeerLife {
    segment: Segment,
    holder: u32,
}

impl PeerLife {
    /// Maps the mark that a peer has sent. `None` if no thread holds it.
    ///
    /// # Errors
    /// The memory is not such that only the peer can write it ([`Segment::attach`]).
    pub(crate) fn attach(fd: ForeignFd) -> Result<Option<Self>, ShmError> {
        let limits = AttachLimits { lengths: 4..=MOST_BYTES, allow_unsealed: false, keeps_pages: true };
        let segment = Segment::attach(fd, Access::ReadOnly, limits)?;
        let holder = life::holder_of(word_of(&segment));
        Ok(holder.map(|holder| Self { segment, holder }))
    }

    /// Returns whether the peer has lived in the same memory since the mark was mapped. Otherwise it may have.
    #[inline]
    pub(crate) fn goes_on(&self) -> bool {
        life::is_held_by(word_of(&self.segment), self.holder)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;
    use crate::os::testing;

    /// Maps a mark as a peer does.
    fn seen(segment: &Segment) -> PeerLife {
        let fd = segment.fd().unwrap().try_clone_to_owned().unwrap();
        PeerLife::attach(ForeignFd::from(fd)).unwrap().unwrap()
    }

    #[test]
    fn a_mark_is_held_until_its_thread_ends() {
        let of_a_thread = std::thread::spawn(|| {
            let life = seen(HeldMark::hold().unwrap().segment);
            assert!(life.goes_on());
            life
        });
        let life = of_a_thread.join().unwrap();
        testing::eventually(|| !life.goes_on());
    }

    #[test]
    fn only_the_thread_that_holds_a_mark_takes_it_away() {
        let mark = HeldMark::hold().unwrap();
        let life = seen(mark.segment);
        let mark = std::thread::spawn(|| mark.take_away().unwrap_err()).join().unwrap();
        assert!(life.goes_on());
        mark.take_away().unwrap();
        assert!(!life.goes_on());
    }

    #[test]
    fn endpoints_share_a_mark_and_another_follows_one_whose_thread_has_ended() {
        let mut own = OwnMark { process: std::process::id(), uses: 0, left: 0, mark: None };
        let first = std::thread::spawn(move || {
            own.held().unwrap();
            own
        });
        let mut own = first.join().unwrap();
        testing::eventually(|| !own.mark.as_ref().unwrap().is_held());
        let second = own.held().unwrap();
        assert!(seen(second).goes_on() && std::ptr::eq(second, own.held().unwrap()));
        assert_eq!(own.left, 1);
        own.mark.take().unwrap().take_away().unwrap();
        (own.left, own.mark) = (MOST_LEFT, None);
        assert!(own.held().is_none());
    }

    /// The kernel takes the mutex when the process executes another program, although its number stays.
    #[test]
    fn a_mark_ends_with_its_process_and_with_another_program() {
        for program in [None, Some(c"/bin/sleep")] {
            let page = testing::forkable_page().cast::<Word32>();
            // SAFETY: a zeroed page that is never unmapped, used by both processes as an atomic word.
            let told = unsafe { page.as_ref() };
            let segment = Segment::create("test", 40, &SegmentOptions::default()).unwrap();
            let fd = segment.fd().unwrap().try_clone_to_owned().unwrap();
            drop(segment);
            let child = testing::fork(|| {
                let len = size_of::<libc::pthread_mutex_t>();
                // SAFETY: a new mapping; the C library allocates nothing for a mutex.
                let held = unsafe {
                    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
                    let at = libc::mmap(std::ptr::null_mut(), len, access, kind, fd.as_raw_fd(), 0);
                    NonNull::new(at.cast()).and_then(hold_robustly)
                };
                told.store_relaxed(1 + u32::from(held.is_some()));
                while told.load_relaxed() != 3 {}
                if let Some(program) = program {
                    let words = [program.as_ptr(), c"1000".as_ptr(), std::ptr::null()];
                    // SAFETY: the words end with a null, and live until the call.
                    unsafe { libc::execv(program.as_ptr(), words.as_ptr()) };
                }
                0
            });
            testing::eventually(|| told.load_relaxed() != 0);
            assert_eq!(told.load_relaxed(), 2, "the child holds no mutex");
            let limits = AttachLimits { lengths: 4..=MOST_BYTES, allow_unsealed: false, keeps_pages: false };
            let fd = ForeignFd::from(fd.try_clone().unwrap());
            let segment = Segment::attach(fd, Access::ReadOnly, limits).unwrap();
            let holder = life::holder_of(word_of(&segment)).unwrap();
            assert_eq!(holder as i32, child.pid());
            let life = PeerLife { segment, holder };
            assert!(life.goes_on());
            told.store_relaxed(3);
            testing::eventually(|| !life.goes_on());
            if program.is_some() {
                assert!(!child.has_ended(), "another program has the process");
            }
        }
    }

    #[test]
    fn a_mark_that_nobody_holds_is_none() {
        let segment = Segment::create_sealed("test", 40, &SegmentOptions::default()).unwrap();
        let fd = segment.fd().unwrap().try_clone_to_owned().unwrap();
        assert!(PeerLife::attach(ForeignFd::from(fd)).unwrap().is_none());
        let writable = Segment::create("test", 40, &SegmentOptions::default()).unwrap();
        let fd = writable.fd().unwrap().try_clone_to_owned().unwrap();
        assert!(PeerLife::attach(ForeignFd::from(fd)).is_err());
    }
}
