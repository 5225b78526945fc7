//! What all objects of libfabric have in common, and the boundary to C.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use nemesia::internals::os::CancellationOff;
use nemesia::{Error, PeerError, Refusal};

use crate::bindings::{self, fi_ops, fid};
use crate::note;

/// An error number of libfabric, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) u32);

impl Errno {
    /// Returns the number of an argument that is wrong, for this reason.
    #[cold]
    pub(crate) fn invalid(reason: &str) -> Self {
        note::keep(reason);
        Self::INVALID
    }

    pub(crate) const AGAIN: Self = Self(bindings::FI_EAGAIN);
    pub(crate) const INVALID: Self = Self(bindings::FI_EINVAL);
    pub(crate) const NO_DATA: Self = Self(bindings::FI_ENODATA);
    pub(crate) const NO_SYSTEM: Self = Self(bindings::FI_ENOSYS);
    pub(crate) const NO_MEMORY: Self = Self(bindings::FI_ENOMEM);
    pub(crate) const NO_OPTION: Self = Self(bindings::FI_ENOPROTOOPT);
    pub(crate) const NO_MESSAGE: Self = Self(bindings::FI_ENOMSG);
    pub(crate) const BUSY: Self = Self(bindings::FI_EBUSY);
    pub(crate) const TOO_SMALL: Self = Self(bindings::FI_ETOOSMALL);
    pub(crate) const AVAILABLE: Self = Self(bindings::FI_EAVAIL);
    pub(crate) const OTHER: Self = Self(bindings::FI_EOTHER);
    pub(crate) const BAD_FLAGS: Self = Self(bindings::FI_EBADFLAGS);
    pub(crate) const NO_QUEUE: Self = Self(bindings::FI_ENOCQ);
    pub(crate) const NO_ADDRESSES: Self = Self(bindings::FI_ENOAV);
    pub(crate) const BAD_STATE: Self = Self(bindings::FI_EOPBADSTATE);
    pub(crate) const ENDED: Self = Self(bindings::FI_ECONNABORTED);
    pub(crate) const TRUNCATED: Self = Self(bindings::FI_ETRUNC);
    pub(crate) const CANCELLED: Self = Self(bindings::FI_ECANCELED);
    pub(crate) const NO_KEY: Self = Self(bindings::FI_ENOKEY);
    pub(crate) const NO_SUPPORT: Self = Self(bindings::FI_EOPNOTSUPP);
}

impl From<&Error> for Errno {
    fn from(error: &Error) -> Self {
        match error {
            Error::Requests { .. } | Error::NoPeer(PeerError::Connections { .. }) => Self::AGAIN,
            Error::Unpaid(_) => Self::NO_MEMORY,
            Error::PeerFailed { .. } | Error::NoPeer(_) => Self::ENDED,
            Error::Truncated(_) => Self::TRUNCATED,
            Error::Refused { refusal: Refusal::Key, .. } => Self::NO_KEY,
            Error::Refused { refusal: Refusal::Access, .. } => Self(bindings::FI_EACCES),
            Error::Refused { .. } => Self::INVALID,
            Error::Cancelled => Self::CANCELLED,
            Error::Unexpected { .. } => Self(bindings::FI_ENOSPC),
            Error::LongInject { .. } | Error::TooLong { .. } => Self(bindings::FI_EMSGSIZE),
            Error::Address { .. } | Error::Rank { .. } | Error::List => Self::INVALID,
            Error::Config(_) => Self::INVALID,
            Error::Shm(_) | Error::Layout(_) => Self::NO_MEMORY,
            // MPIs print the text of the number: "Network is unreachable".
            Error::Apart { .. } | Error::Transport { .. } | Error::Net { .. } => {
                Self(bindings::FI_ENETUNREACH)
            }
            _ => Self::OTHER,
        }
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        let number = Self::from(&error);
        if number != Self::AGAIN {
            note::keep(&error);
        }
        number
    }
}

/// Runs the body of a call from C that returns 0 or a number. Errors become negative. A panic must not reach C, and
/// becomes an error. The calling thread cannot be cancelled meanwhile.
pub(crate) fn call(work: impl FnOnce() -> Result<isize, Errno>) -> isize {
    let _held = CancellationOff::hold();
    call_now(work)
}

/// As [`call`], for calls that start an operation, or read a queue without waiting. A thread that is cancelled there
/// ends the process: the state of cancellation costs as much as a tenth of such a call.
#[inline]
pub(crate) fn call_now(work: impl FnOnce() -> Result<isize, Errno>) -> isize {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => value,
        Ok(Err(errno)) => {
            // A reason that no caller has taken is not that of a later error. This one has none.
            if errno != Errno::AGAIN {
                note::take();
            }
            -(errno.0 as isize)
        }
        Err(_) => -(bindings::FI_EOTHER as isize),
    }
}

/// As [`call`], for functions that return an `int`.
pub(crate) fn call_int(work: impl FnOnce() -> Result<(), Errno>) -> c_int {
    call(|| work().map(|()| 0)) as c_int
}

/// Returns the object that begins with this part.
///
/// # Safety
/// The pointer is null, or leads to the part of a living `T`, which is its first field and is not moved.
pub(crate) unsafe fn object<'a, T, P>(part: *mut P) -> Result<&'a T, Errno> {
    // SAFETY: the caller's promise.
    unsafe { part.cast::<T>().as_ref() }.ok_or(Errno::INVALID)
}

/// Passes an object to C, which closes it by [`reclaim`].
pub(crate) fn lend<T, P>(object: T, out: *mut *mut P) -> Result<(), Errno> {
    if out.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's place for the pointer.
    unsafe { out.write(Box::into_raw(Box::new(object)).cast()) };
    Ok(())
}

/// Takes an object back from C.
///
/// # Safety
/// The pointer comes from [`lend`] of a `T`, and is used no more.
pub(crate) unsafe fn reclaim<T, P>(part: *mut P) -> Box<T> {
    // SAFETY: the caller's promise.
    unsafe { Box::from_raw(part.cast()) }
}

/// Returns the first part of an object.
pub(crate) const fn fid_of(class: u32, context: *mut c_void, ops: &'static FidOps) -> fid {
    // libfabric does not write to the operations.
    fid { fclass: class as usize, context, ops: (&raw const ops.0).cast_mut() }
}

/// Operations of all objects, as a constant.
pub(crate) struct FidOps(pub(crate) fi_ops);

type Bind = unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int;
type Control = unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int;

impl FidOps {
    /// Returns operations that only close the object.
    pub(crate) const fn closed_by(close: unsafe extern "C" fn(*mut fid) -> c_int) -> Self {
        Self::new(close, no_bind, no_control)
    }

    pub(crate) const fn new(
        close: unsafe extern "C" fn(*mut fid) -> c_int,
        bind: Bind,
        control: Control,
    ) -> Self {
        Self(fi_ops {
            size: size_of::<fi_ops>(),
            close: Some(close),
            bind: Some(bind),
            control: Some(control),
            ops_open: Some(no_ops_open),
            tostr: None,
            ops_set: None,
        })
    }
}

// SAFETY: the structure holds functions and sizes, which no code changes.
unsafe impl Sync for FidOps {}

/// Operations of one kind of objects, as a constant.
pub(crate) struct Constant<T>(pub(crate) T);

// SAFETY: the structures hold functions and sizes, which no code changes.
unsafe impl<T> Sync for Constant<T> {}

impl<T> Constant<T> {
    /// Returns the pointer that objects hold. libfabric does not write to it.
    pub(crate) const fn get(&'static self) -> *mut T {
        (&raw const self.0).cast_mut()
    }
}

const NO_SYSTEM: c_int = -(bindings::FI_ENOSYS as c_int);

pub(crate) unsafe extern "C" fn no_bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
    NO_SYSTEM
}

pub(crate) unsafe extern "C" fn no_control(_: *mut fid, _: c_int, _: *mut c_void) -> c_int {
    NO_SYSTEM
}

unsafe extern "C" fn no_ops_open(
    _: *mut fid,
    _: *const c_char,
    _: u64,
    _: *mut *mut c_void,
    _: *mut c_void,
) -> c_int {
    NO_SYSTEM
}
