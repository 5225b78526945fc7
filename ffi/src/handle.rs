//! Handles: the values of the opaque pointers of C.
//!
//! The value of a `nemesia_endpoint *` or a `nemesia_config *` is not an address. It names an entry of a
//! table, the use of that entry, and the kind of object. The library looks the value up before it accesses an
//! object. A closed handle, a handle of another kind and a pointer of another origin are therefore errors of
//! the call, and never invalid accesses.
//!
//! ```text
//! bits  63..48  47..16      15..4  3..0
//!       MARK    generation  entry  kind
//! ```
//!
//! No address of user space begins with `MARK`, so no handle equals a pointer. An entry that is used again
//! gets another generation.
//!
//! A call *pins* its object: it increments a count that shares a word with the generation and the kind. A
//! caller takes an object out of the table only if it holds the only pin, so no object is freed while another
//! thread uses it. Calls do not pin an endpoint of one thread, because two locked instructions per call are
//! too slow there. Only the thread of that endpoint may close it, and [`Single`] records whether a call is in
//! progress.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::boundary::missing;
use crate::lent::Single;
use crate::status::{Fault, NEMESIA_ERR_HANDLE, NEMESIA_ERR_THREADS};

/// The number of entries in the table. A process can have one object less, because the first entry is reserved.
const ENTRIES: usize = 1 << ENTRY_BITS;
const ENTRY_BITS: u32 = 12;
const KIND_BITS: u32 = 4;
const GENERATION_AT: u32 = ENTRY_BITS + KIND_BITS;
const MARK_AT: u32 = 48;
/// "NM". An address with these bits is not canonical on x86-64, and not an address of user space on AArch64.
const MARK: u64 = 0x4e4d;
/// The bits of an entry's state that count pins; the kind and the generation lie above them.
const PIN_BITS: u32 = 24;
const PINS: u64 = (1 << PIN_BITS) - 1;

const _: () = assert!(usize::BITS == 64, "a handle has as many bits as a pointer");

/// The kind of object that a handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Kind {
    Endpoint = 1,
    Config = 2,
    /// It has no entry in the table: `active.rs` numbers messages.
    Incoming = 3,
    Channel = 4,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Endpoint => "nemesia_endpoint",
            Self::Config => "nemesia_config",
            Self::Incoming => "nemesia_incoming",
            Self::Channel => "nemesia_channel",
        }
    }

    pub(crate) fn of(handle: u64) -> Option<Self> {
        let kinds = [Self::Endpoint, Self::Config, Self::Incoming, Self::Channel];
        let is_kind = |kind: &Kind| handle & ((1 << KIND_BITS) - 1) == *kind as u64;
        kinds.into_iter().find(|kind| handle >> MARK_AT == MARK && is_kind(kind))
    }
}

/// An object that the table can hold.
pub(crate) trait Object: Send + Sync + Sized + 'static {
    const KIND: Kind;

    /// Returns the endpoint for the critical path, if one thread owns it.
    fn single(&self) -> Option<&Single> {
        None
    }
}

/// An entry of the table, in a cache line of its own.
#[repr(align(64))]
struct Entry {
    /// The handle to which `single` belongs.
    at_hand: AtomicUsize,
    /// The endpoint, if one thread at a time uses it and no panic has gone through it; else null.
    single: AtomicPtr<Single>,
    /// The object: valid while `state` has a kind.
    object: AtomicPtr<()>,
    /// Generation, kind (0: none), count of pins.
    state: AtomicU64,
}

static TABLE: [Entry; ENTRIES] = [const {
    Entry {
        at_hand: AtomicUsize::new(0),
        single: AtomicPtr::new(ptr::null_mut()),
        object: AtomicPtr::new(ptr::null_mut()),
        state: AtomicU64::new(0),
    }
}; ENTRIES];

/// One bit per entry in use. There is no lock, because a child could be forked while it is held, and would
/// find it held for ever. The first entry is always in use: NULL maps to it. The critical path thus finds no
/// endpoint for NULL, and needs no separate check.
static USED: [AtomicU64; ENTRIES / 64] = {
    let mut used = [const { AtomicU64::new(0) }; ENTRIES / 64];
    used[0] = AtomicU64::new(1);
    used
};

/// Returns a handle of `kind` with `bits` between the mark and the kind.
pub(crate) const fn marked(bits: u64, kind: Kind) -> u64 {
    MARK << MARK_AT | bits << KIND_BITS | kind as u64
}

/// The number of bits between the mark and the kind of a handle.
pub(crate) const FREE_BITS: u32 = MARK_AT - KIND_BITS;

const fn entry_of(handle: usize) -> &'static Entry {
    &TABLE[handle >> KIND_BITS & (ENTRIES - 1)]
}

/// Returns the upper part of the state that an entry has for a handle.
const fn state_of(handle: u64) -> u64 {
    let generation = handle >> GENERATION_AT & u32::MAX as u64;
    (generation << KIND_BITS | handle & ((1 << KIND_BITS) - 1)) << PIN_BITS
}

/// Puts an object into the table and returns its handle.
///
/// # Errors
/// The table is full.
pub(crate) fn insert<T: Object>(object: T) -> Result<*mut T, Fault> {
    let Some(at) = reserve() else { return Err(full()) };
    let entry = &TABLE[at];
    // No other thread changes the entry: it is reserved, and has no kind.
    let generation = (entry.state.load(Ordering::Relaxed) >> (PIN_BITS + KIND_BITS)) + 1;
    let handle = marked(generation << ENTRY_BITS | at as u64, T::KIND);
    let object = Box::new(object);
    let single = object.single().map_or(ptr::null_mut(), |single| ptr::from_ref(single).cast_mut());
    entry.object.store(Box::into_raw(object).cast(), Ordering::Relaxed);
    // Release: a thread that finds this state (`pin`) sees the object.
    entry.state.store(state_of(handle), Ordering::Release);
    entry.at_hand.store(handle as usize, Ordering::Relaxed);
    // Release: a thread that finds the endpoint (`at_hand`) sees its content.
    entry.single.store(single, Ordering::Release);
    Ok(ptr::without_provenance_mut(handle as usize))
}

/// Reserves a free entry and returns its index. An entry that has used up its generations never becomes free
/// again.
fn reserve() -> Option<usize> {
    for (at, word) in USED.iter().enumerate() {
        let mut used = word.load(Ordering::Relaxed);
        while used != u64::MAX {
            let bit = used.trailing_ones();
            // Acquire: the writes of the entry's last user (`Pinned::take`) come before those of this one.
            match word.compare_exchange(used, used | 1 << bit, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(at * 64 + bit as usize),
                Err(now) => used = now,
            }
        }
    }
    None
}

#[cold]
fn full() -> Fault {
    let most = ENTRIES - 1;
    let text = format!("{most} endpoints, configurations and channels exist, which is the limit: close some");
    Fault::new(NEMESIA_ERR_HANDLE, text)
}

/// Returns the endpoint of a handle, if one thread at a time uses it, it is open, and no panic has gone
/// through it. For the critical path.
///
/// # Safety
/// Only one thread at a time uses the endpoint, until it is closed. The caller promises this for such an
/// endpoint.
#[inline(always)]
pub(crate) unsafe fn at_hand<'a, T: Object>(handle: *const T) -> Option<&'a Single> {
    let entry = entry_of(handle.addr());
    // Acquire: see `insert`. Before the handle is compared: with the endpoint of a later use of the entry comes the
    // handle of that use, so a handle that was closed never finds another thread's new endpoint.
    let single = entry.single.load(Ordering::Acquire);
    if entry.at_hand.load(Ordering::Relaxed) != handle.addr() {
        return None;
    }
    // SAFETY: null, or the endpoint of this handle. Only `Pinned::take` removes it, which the same thread
    // calls later.
    unsafe { single.as_ref() }
}

/// Removes an endpoint from the critical path after a panic went through it.
#[cold]
pub(crate) fn withdraw<T: Object>(handle: *const T) {
    let entry = entry_of(handle.addr());
    if entry.at_hand.load(Ordering::Relaxed) == handle.addr() {
        entry.single.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

/// Returns the object of a handle and keeps it in the table until the result is dropped.
///
/// # Errors
/// NEMESIA_ERR_ARGUMENT for NULL; NEMESIA_ERR_HANDLE if the value is not a valid handle of this kind.
#[inline]
pub(crate) fn pin<T: Object>(handle: *const T, name: &str) -> Result<Pinned<T>, Fault> {
    let (bits, expected) = (handle.addr() as u64, state_of(handle.addr() as u64));
    let entry = entry_of(handle.addr());
    if Kind::of(bits) != Some(T::KIND) {
        return Err(wrong::<T>(bits, name));
    }
    let mut state = entry.state.load(Ordering::Relaxed);
    while state & !PINS == expected && state & PINS < PINS {
        // Acquire: see `insert`.
        match entry.state.compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Ok(Pinned { handle: handle.addr(), entry, object: PhantomData }),
            Err(now) => state = now,
        }
    }
    Err(closed::<T>(name))
}

/// An object that stays in the table while this value lives.
pub(crate) struct Pinned<T: Object> {
    handle: usize,
    entry: &'static Entry,
    object: PhantomData<fn() -> T>,
}

impl<T: Object> Pinned<T> {
    /// Takes the object out of the table, unless another call uses it.
    ///
    /// # Errors
    /// NEMESIA_ERR_THREADS; nothing has changed.
    pub(crate) fn take(self, name: &str) -> Result<Box<T>, Fault> {
        let entry = self.entry;
        let state = state_of(self.handle as u64);
        // The remaining bits are the generation, which the next user of the entry increments.
        let next = state >> (PIN_BITS + KIND_BITS) << (PIN_BITS + KIND_BITS);
        // The critical path first: the thread that uses it is the one that calls this.
        let single = entry.single.swap(ptr::null_mut(), Ordering::Relaxed);
        // AcqRel: the accesses of other calls before they dropped their pins come before those of this call.
        let taken = entry.state.compare_exchange(state + 1, next, Ordering::AcqRel, Ordering::Relaxed);
        if taken.is_err() {
            entry.single.store(single, Ordering::Release);
            return Err(in_use(name));
        }
        let object = entry.object.swap(ptr::null_mut(), Ordering::Relaxed).cast::<T>();
        let at = self.handle >> KIND_BITS & (ENTRIES - 1);
        std::mem::forget(self);
        if next >> (PIN_BITS + KIND_BITS) < u64::from(u32::MAX) {
            // Release: see `reserve`.
            USED[at / 64].fetch_and(!(1 << (at % 64)), Ordering::Release);
        }
        // SAFETY: `insert` made the pointer from a box of this type, as the kind shows. The state had this
        // pin only, and now has no kind, so no other call has the object or will get it.
        Ok(unsafe { Box::from_raw(object) })
    }
}

impl<T: Object> Deref for Pinned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the kind shows that the object is a `T`. It stays in the table while it is pinned, and is
        // only shared there.
        unsafe { &*self.entry.object.load(Ordering::Relaxed).cast::<T>() }
    }
}

impl<T: Object> Drop for Pinned<T> {
    #[inline]
    fn drop(&mut self) {
        // Release: see `take`.
        self.entry.state.fetch_sub(1, Ordering::Release);
    }
}

impl<T: Object> fmt::Debug for Pinned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({:#x})", self.handle)
    }
}

/// Describes what is wrong with a handle that is not of this kind.
#[cold]
pub(crate) fn wrong<T: Object>(handle: u64, name: &str) -> Fault {
    wrong_kind(handle, T::KIND, name)
}

/// As [`wrong`].
#[cold]
pub(crate) fn wrong_kind(handle: u64, kind: Kind, name: &str) -> Fault {
    let expected = kind.name();
    match Kind::of(handle) {
        _ if handle == 0 => missing(name),
        Some(other) if other != kind => {
            let text = format!("{name} is a {}, and must be a {expected}", other.name());
            Fault::new(NEMESIA_ERR_HANDLE, text)
        }
        _ => {
            let text = format!("{name} is {handle:#x}, which is not a {expected} that this library made");
            Fault::new(NEMESIA_ERR_HANDLE, text)
        }
    }
}

#[cold]
fn closed<T: Object>(name: &str) -> Fault {
    let how = match T::KIND {
        Kind::Config => "was destroyed",
        Kind::Channel => "was finalized",
        _ => "was closed",
    };
    Fault::new(NEMESIA_ERR_HANDLE, format!("{name} {how} before and cannot be used"))
}

#[cold]
pub(crate) fn in_use(name: &str) -> Fault {
    let text = format!("another call uses the {name}: try again after that call has returned");
    Fault::new(NEMESIA_ERR_THREADS, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::endpoint::Endpoint;
    use crate::status::NEMESIA_ERR_ARGUMENT;
    use std::sync::atomic::AtomicUsize;

    /// Counts its instances. The table takes it for a configuration.
    struct Counted(&'static AtomicUsize);

    impl Object for Counted {
        const KIND: Kind = Kind::Config;
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn counted(count: &'static AtomicUsize) -> *mut Counted {
        count.fetch_add(1, Ordering::Relaxed);
        insert(Counted(count)).unwrap()
    }

    fn code<T: Object>(outcome: Result<Pinned<T>, Fault>) -> i32 {
        outcome.map_or_else(|fault| fault.code(), |_| 0)
    }

    #[test]
    fn a_handle_is_refused_once_its_object_is_taken() {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let handle = counted(&COUNT);
        drop(pin(handle, "it").unwrap().take("it").unwrap());
        assert_eq!((COUNT.load(Ordering::Relaxed), code(pin(handle, "it"))), (0, NEMESIA_ERR_HANDLE));
        // The next object probably gets the same entry.
        let next = counted(&COUNT);
        assert_ne!(handle, next);
        assert_eq!(code(pin(handle, "it")), NEMESIA_ERR_HANDLE);
        drop(pin(next, "it").unwrap().take("it").unwrap());
    }

    #[test]
    fn an_object_that_is_pinned_is_not_taken() {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let handle = counted(&COUNT);
        let other = pin(handle, "it").unwrap();
        let refused = pin(handle, "it").unwrap().take("it").map(drop).unwrap_err();
        assert_eq!((refused.code(), COUNT.load(Ordering::Relaxed)), (NEMESIA_ERR_THREADS, 1));
        drop(other);
        drop(pin(handle, "it").unwrap().take("it").unwrap());
        assert_eq!(COUNT.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_invalid_handle_is_refused_and_not_followed() {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let handle = counted(&COUNT);
        let bits = handle.addr();
        assert_eq!(code(pin(ptr::null::<Endpoint>(), "it")), NEMESIA_ERR_ARGUMENT);
        let foreign = [
            1,
            bits ^ 1,
            bits + (1 << GENERATION_AT),
            bits & ((1 << MARK_AT) - 1),
            !0,
            !0 << 4 | Kind::Endpoint as usize,
            (&raw const COUNT).addr(),
        ];
        for bits in foreign {
            let endpoint = ptr::without_provenance::<Endpoint>(bits);
            assert_eq!(code(pin(endpoint, "it")), NEMESIA_ERR_HANDLE, "{bits:#x}");
            assert_eq!(
                code(pin(ptr::without_provenance::<Config>(bits), "it")),
                NEMESIA_ERR_HANDLE,
                "{bits:#x}"
            );
            // SAFETY: no such endpoint exists.
            assert!(unsafe { at_hand(endpoint) }.is_none(), "{bits:#x}");
        }
        assert_eq!(code(pin(handle.cast::<Endpoint>(), "it")), NEMESIA_ERR_HANDLE);
        drop(pin(handle, "it").unwrap().take("it").unwrap());
    }

    #[test]
    fn of_threads_that_take_one_object_one_succeeds() {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        for _ in 0..2_000 {
            let handle = counted(&COUNT).expose_provenance();
            let taken = std::thread::scope(|scope| {
                let take = || {
                    let handle = ptr::without_provenance::<Counted>(handle);
                    loop {
                        match pin(handle, "it").and_then(|pinned| pinned.take("it")) {
                            Ok(_) => return 1,
                            Err(fault) if fault.code() == NEMESIA_ERR_THREADS => {}
                            Err(_) => return 0,
                        }
                    }
                };
                let others: Vec<_> = (0..3).map(|_| scope.spawn(take)).collect();
                take() + others.into_iter().map(|other| other.join().unwrap()).sum::<usize>()
            });
            assert_eq!((taken, COUNT.load(Ordering::Relaxed)), (1, 0));
        }
    }
}
