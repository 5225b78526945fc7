//! Event queues. Nothing that this provider does ends later than its call, so they only carry the events that the
//! application writes.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::bindings::{self as fi, fi_eq_attr, fi_eq_err_entry, fi_ops_eq, fid, fid_eq, fid_fabric};
use crate::object::{Constant, Errno, FidOps, call, call_int, fid_of, lend, object, reclaim};

/// The most events that wait.
const MOST: usize = 1 << 16;
/// The pause between two looks of a wait.
const PAUSE: Duration = Duration::from_millis(1);

#[repr(C)]
struct EventQueue {
    queue: fid_eq,
    events: Mutex<VecDeque<(u32, Box<[u8]>)>>,
}

static FID: FidOps = FidOps::closed_by(close);
static OPS: Constant<fi_ops_eq> = Constant(fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: Some(read),
    readerr: Some(read_error),
    write: Some(write),
    sread: Some(wait_and_read),
    strerror: Some(text),
});

pub(crate) unsafe extern "C" fn open(
    _fabric: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    out: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    call_int(|| {
        // SAFETY: the application's structure, null or valid.
        let wait = unsafe { attr.as_ref() }.map_or(fi::FI_WAIT_NONE, |attr| attr.wait_obj);
        if !matches!(wait, fi::FI_WAIT_NONE | fi::FI_WAIT_UNSPEC) {
            return Err(Errno::NO_SYSTEM);
        }
        let queue = fid_eq { fid: fid_of(fi::FI_CLASS_EQ, context, &FID), ops: OPS.get() };
        lend(EventQueue { queue, events: Mutex::default() }, out)
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the application closes what `open` returned, once.
    drop(unsafe { reclaim::<EventQueue, _>(fid) });
    0
}

unsafe extern "C" fn read(
    queue: *mut fid_eq,
    event: *mut u32,
    to: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    call(|| {
        // SAFETY: the application's queue.
        let it: &EventQueue = unsafe { object(queue) }?;
        let mut events = it.events.lock().unwrap_or_else(PoisonError::into_inner);
        let (kind, bytes) = events.front().ok_or(Errno::AGAIN)?;
        if event.is_null() || to.is_null() || len < bytes.len() {
            return Err(Errno::TOO_SMALL);
        }
        let count = bytes.len();
        // SAFETY: the application's places, of so many bytes.
        unsafe {
            event.write(*kind);
            to.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), count);
        }
        if flags & u64::from(fi::FI_PEEK) == 0 {
            events.pop_front();
        }
        Ok(count as isize)
    })
}

unsafe extern "C" fn read_error(_: *mut fid_eq, _: *mut fi_eq_err_entry, _: u64) -> isize {
    -(fi::FI_EAGAIN as isize)
}

unsafe extern "C" fn write(
    queue: *mut fid_eq,
    event: u32,
    from: *const c_void,
    len: usize,
    _flags: u64,
) -> isize {
    call(|| {
        // SAFETY: the application's queue.
        let it: &EventQueue = unsafe { object(queue) }?;
        if from.is_null() || len > isize::MAX as usize {
            return Err(Errno::INVALID);
        }
        let mut events = it.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() == MOST {
            return Err(Errno::AGAIN);
        }
        // SAFETY: the application's bytes.
        events.push_back((event, unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len) }.into()));
        Ok(len as isize)
    })
}

unsafe extern "C" fn wait_and_read(
    queue: *mut fid_eq,
    event: *mut u32,
    to: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
    let begun = Instant::now();
    loop {
        // SAFETY: the same contract.
        let count = unsafe { read(queue, event, to, len, flags) };
        if count != -(fi::FI_EAGAIN as isize) || limit.is_some_and(|limit| begun.elapsed() >= limit) {
            return count;
        }
        std::thread::sleep(PAUSE);
    }
}

unsafe extern "C" fn text(
    _: *mut fid_eq,
    _: c_int,
    _: *const c_void,
    _: *mut c_char,
    _: usize,
) -> *const c_char {
    c"no error".as_ptr()
}
