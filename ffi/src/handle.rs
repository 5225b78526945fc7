//! Handles: what the opaque pointers of C hold.
//!
//! The value of a `nemesia_endpoint *` or a `nemesia_config *` is not an address. It names an entry of a table, and
//! says which use of that entry and which kind of object it stands for. The library looks it up before it touches an
//! object. So a handle that was closed, that is of another kind, or that is a pointer of the caller's own, is an error
//! and never an access.
//!
//! ```text
//! bits  63..48  47..16      15..4  3..0
//!       MARK    generation  entry  kind
//! ```
//!
//! No address of user space begins with `MARK`, so no handle equals a pointer. An entry that is used again has another
//! generation.
//!
//! A call *pins* its object: it adds one to a count that stands in one word with the generation and the kind. An object
//! is only taken out of the table by a caller that holds its only pin, so nothing is freed under another thread.
//! Endpoints of one thread are not pinned in calls, because two locked instructions a call are too slow there: their
//! thread is the only one that may close them, and [`Single`] knows whether it is inside.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::boundary::missing;
use crate::lent::Single;
use crate::status::{Fault, NEMESIA_ERR_HANDLE, NEMESIA_ERR_THREADS};

/// Objects that a process can have at a time.
const ENTRIES: usize = 1 << ENTRY_BITS;
const ENTRY_BITS: u32 = 12;
const KIND_BITS: u32 = 4;
const GENERATION_AT: u32 = ENTRY_BITS + KIND_BITS;
const MARK_AT: u32 = 48;
/// "NM". An address with these bits is not canonical on x86-64, and not an address of user space on AArch64.
const MARK: u64 = 0x4e4d;
/// Bits of an entry's state that count pins; the kind and the generation lie above them.
const PIN_BITS: u32 = 24;
const PINS: u64 = (1 << PIN_BITS) - 1;

const _: () = assert!(usize::BITS == 64, "a handle has as many bits as a pointer");

/// What a handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Kind {
    Endpoint = 1,
    Config = 2,
    /// It has no entry: `active.rs` numbers messages.
    Incoming = 3,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Endpoint => "nemesia_endpoint",
            Self::Config => "nemesia_config",
            Self::Incoming => "nemesia_incoming",
        }
    }

    pub(crate) fn of(handle: u64) -> Option<Self> {
        let kinds = [Self::Endpoint, Self::Config, Self::Incoming];
        let is_kind = |kind: &Kind| handle & ((1 << KIND_BITS) - 1) == *kind as u64;
        kinds.into_iter().find(|kind| handle >> MARK_AT == MARK && is_kind(kind))
    }
}

/// What the table can hold.
pub(crate) trait Object: Send + Sync + Sized + 'static {
    const KIND: Kind;

    /// The endpoint for the critical path, if one thread owns it.
    fn single(&self) -> Option<&Single> {
        None
    }
}

/// One place of the table, in a cache line of its own.
#[repr(align(64))]
struct Entry {
    /// The handle for which `single` is.
    at_hand: AtomicUsize,
    /// The endpoint, if it belongs to one thread at a time and is sound; else null.
    single: AtomicPtr<Single>,
    /// The object: valid while `state` has a kind.
    object: AtomicPtr<()>,
    /// Generation, kind (0: none), pins.
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

/// A bit for each entry that is in use. No lock, because a child that is forked meanwhile would find it held. The first
/// entry is never free: it is that of NULL, which the critical path so finds without an endpoint and without a check of
/// its own.
static USED: [AtomicU64; ENTRIES / 64] = {
    let mut used = [const { AtomicU64::new(0) }; ENTRIES / 64];
    used[0] = AtomicU64::new(1);
    used
};

/// Whether a handle has the form of one; the bits beside.
pub(crate) const fn marked(bits: u64, kind: Kind) -> u64 {
    MARK << MARK_AT | bits << KIND_BITS | kind as u64
}

/// Bits that a handle has between the mark and the kind.
pub(crate) const FREE_BITS: u32 = MARK_AT - KIND_BITS;

const fn entry_of(handle: usize) -> &'static Entry {
    &TABLE[handle >> KIND_BITS & (ENTRIES - 1)]
}

/// The upper part of an entry's state that goes with a handle.
const fn state_of(handle: u64) -> u64 {
    let generation = handle >> GENERATION_AT & u32::MAX as u64;
    (generation << KIND_BITS | handle & ((1 << KIND_BITS) - 1)) << PIN_BITS
}

/// Puts an object into the table; returns its handle.
///
/// # Errors
/// The table is full.
pub(crate) fn insert<T: Object>(object: T) -> Result<*mut T, Fault> {
    let Some(at) = reserve() else { return Err(full()) };
    let entry = &TABLE[at];
    // Nobody else changes it: it is reserved, and has no kind.
    let generation = (entry.state.load(Ordering::Relaxed) >> (PIN_BITS + KIND_BITS)) + 1;
    let handle = marked(generation << ENTRY_BITS | at as u64, T::KIND);
    let object = Box::new(object);
    let single = object.single().map_or(ptr::null_mut(), |single| ptr::from_ref(single).cast_mut());
    entry.object.store(Box::into_raw(object).cast(), Ordering::Relaxed);
    // Release: a thread that finds this state (`pin`) sees the object.
    entry.state.store(state_of(handle), Ordering::Release);
    entry.at_hand.store(handle as usize, Ordering::Relaxed);
    // Release: a thread that finds the endpoint (`at_hand`) sees what is in it.
    entry.single.store(single, Ordering::Release);
    Ok(ptr::without_provenance_mut(handle as usize))
}

/// A free entry, now in use. Those whose generations are used up are never free again.
fn reserve() -> Option<usize> {
    for (at, word) in USED.iter().enumerate() {
        let mut used = word.load(Ordering::Relaxed);
        while used != u64::MAX {
            let bit = used.trailing_ones();
            // Acquire: what the last user of the entry wrote (`Pinned::take`) comes before what this one writes.
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
    let text = format!("{ENTRIES} endpoints and configurations exist, and no more are possible: close some");
    Fault::new(NEMESIA_ERR_HANDLE, text)
}

/// The endpoint of a handle, if it belongs to one thread at a time, is open and sound. For the critical path.
///
/// # Safety
/// Only one thread at a time uses the endpoint, to its end: the caller's promise for an endpoint of this sort.
#[inline(always)]
pub(crate) unsafe fn at_hand<'a, T: Object>(handle: *const T) -> Option<&'a Single> {
    let entry = entry_of(handle.addr());
    // Acquire: see `insert`. Before the handle is compared: with the endpoint of a later use of the entry comes the
    // handle of that use, so a handle that was closed never finds another thread's new endpoint.
    let single = entry.single.load(Ordering::Acquire);
    if entry.at_hand.load(Ordering::Relaxed) != handle.addr() {
        return None;
    }
    // SAFETY: null, or the endpoint of this handle. Only `Pinned::take` takes that out, which the same thread calls
    // later.
    unsafe { single.as_ref() }
}

/// Takes an endpoint from the critical path: a panic went through it.
#[cold]
pub(crate) fn withdraw<T: Object>(handle: *const T) {
    let entry = entry_of(handle.addr());
    if entry.at_hand.load(Ordering::Relaxed) == handle.addr() {
        entry.single.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

/// The object of a handle, kept in the table until the result is dropped.
///
/// # Errors
/// NEMESIA_ERR_ARGUMENT for NULL; NEMESIA_ERR_HANDLE for what is no handle of an object of this kind.
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

/// An object that stays in the table as long as this lives.
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
        // What remains of the state is the generation, which the next user of the entry counts up.
        let next = state >> (PIN_BITS + KIND_BITS) << (PIN_BITS + KIND_BITS);
        // The critical path first: its thread is the one that calls this.
        let single = entry.single.swap(ptr::null_mut(), Ordering::Relaxed);
        // AcqRel: what other calls did to the object before they dropped their pins comes before what is done now.
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
        // SAFETY: `insert` made it from a box of this type, as the kind says. The state had this pin only, and now has
        // no kind, so no other call has the object or will have it.
        Ok(unsafe { Box::from_raw(object) })
    }
}

impl<T: Object> Deref for Pinned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the kind says that it is a `T`; it stays in the table while it is pinned, and is only shared there.
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

/// What is wrong with a handle that is not of this kind.
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
            let text = format!("{name} is {handle:#x}, which is no {expected} that this library has made");
            Fault::new(NEMESIA_ERR_HANDLE, text)
        }
    }
}

#[cold]
fn closed<T: Object>(name: &str) -> Fault {
    let how = match T::KIND {
        Kind::Config => "was destroyed",
        _ => "was closed",
    };
    Fault::new(NEMESIA_ERR_HANDLE, format!("{name} {how} before: do not use it after that"))
}

#[cold]
pub(crate) fn in_use(name: &str) -> Fault {
    let text = format!("another call is using the {name}: let it return first, then try again");
    Fault::new(NEMESIA_ERR_THREADS, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::endpoint::Endpoint;
    use crate::status::NEMESIA_ERR_ARGUMENT;
    use std::sync::atomic::AtomicUsize;

    /// Counts how many of its kind there are. It is a configuration to the table.
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
        // The next object is likely to have the same entry.
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
    fn what_is_no_handle_is_refused_without_being_read() {
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
            // SAFETY: there is no such endpoint.
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
