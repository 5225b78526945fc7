//! The caller's own bootstrap exchange, in place of a launcher's.

use std::ffi::{CStr, CString, c_char, c_void};

use nemesia::bootstrap::{BootstrapError, Exchange as BootstrapExchange};

use crate::boundary::{Versioned, missing};
use crate::status::{Fault, NEMESIA_OK};

/// The size in bytes of the buffer that `nemesia_exchange.get` receives, including the terminating 0. The
/// library puts no longer value.
pub const NEMESIA_EXCHANGE_VALUE_BYTES: usize = 1024;

/// A key-value store, provided by the caller, through which the processes of a world find each other. A
/// runtime that already connects its processes embeds Nemesia with it.
///
/// Keys and values are terminated texts of printable ASCII without spaces. A key has at most 63 bytes, and is
/// put once in a world. The functions may block. They return 0 for success; any other number becomes part of
/// the text of NEMESIA_ERR_BOOTSTRAP.
///
/// Lifetime: the structure is copied. The library calls the functions only during
/// `nemesia_endpoint_open_with`, and does not use the target of `context` after it.
///
/// Threads: the thread that opens the endpoint calls the functions. They must not throw, must not jump out
/// (longjmp), and must not call functions of Nemesia on the endpoint that is being opened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// sizeof(nemesia_exchange); later versions have more fields at the end.
    pub struct_size: u64,
    /// The first argument of each function; may be NULL.
    pub context: *mut c_void,
    /// Returns the number of this process, from 0.
    pub rank: Option<unsafe extern "C" fn(context: *mut c_void) -> i32>,
    /// Returns the number of processes in the world, at least 1.
    pub size: Option<unsafe extern "C" fn(context: *mut c_void) -> i32>,
    /// Stores `value` under `key` for all processes, visible after the next barrier. Both texts belong to the
    /// library and are valid only during the call.
    pub put:
        Option<unsafe extern "C" fn(context: *mut c_void, key: *const c_char, value: *const c_char) -> i32>,
    /// Copies the value that a process put under `key` before the last barrier to `out_value`, which has
    /// `bytes` bytes, and terminates it with a 0.
    pub get: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            key: *const c_char,
            bytes: usize,
            out_value: *mut c_char,
        ) -> i32,
    >,
    /// Waits until all processes have called it.
    pub barrier: Option<unsafe extern "C" fn(context: *mut c_void) -> i32>,
}

// SAFETY: a number and pointers of one size each, for which NULL is `None`. No other pattern is read as a
// value before the caller has promised that it is a function.
unsafe impl Versioned for Exchange {
    const NAME: &'static str = "nemesia_exchange";
    const FIRST: usize = size_of::<u64>() + 6 * size_of::<*const ()>();
    const UNSET: u8 = 0;
}

type Get = unsafe extern "C" fn(*mut c_void, *const c_char, usize, *mut c_char) -> i32;

/// The caller's functions, none of them NULL.
#[derive(Debug)]
pub(crate) struct Foreign {
    context: *mut c_void,
    rank: usize,
    size: usize,
    put: unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> i32,
    get: Get,
    barrier: unsafe extern "C" fn(*mut c_void) -> i32,
}

// SAFETY: `context` is passed only to the caller's functions. Only the thread that opens the endpoint calls
// those, and only while it opens it. The value then lies unused in an endpoint, which may move between
// threads.
unsafe impl Send for Foreign {}

impl Foreign {
    /// Checks that no function is NULL, and that rank and size are consistent.
    ///
    /// # Safety
    /// The functions meet the requirements of `nemesia_exchange` until the endpoint is open.
    pub(crate) unsafe fn new(exchange: &Exchange) -> Result<Self, Fault> {
        let Exchange { context, rank, size, put, get, barrier, .. } = *exchange;
        let missing = |name: &str| missing(&format!("nemesia_exchange.{name}"));
        let rank = rank.ok_or_else(|| missing("rank"))?;
        let size = size.ok_or_else(|| missing("size"))?;
        let put = put.ok_or_else(|| missing("put"))?;
        let get = get.ok_or_else(|| missing("get"))?;
        let barrier = barrier.ok_or_else(|| missing("barrier"))?;
        // SAFETY: the caller's promise.
        let rank = unsafe { rank(context) };
        // SAFETY: the caller's promise.
        let size = unsafe { size(context) };
        if !(0..size).contains(&rank) {
            return Err(Fault::argument(format!("nemesia_exchange returned rank {rank} of {size}")));
        }
        Ok(Self { context, rank: rank as usize, size: size as usize, put, get, barrier })
    }
}

impl BootstrapExchange for Foreign {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), BootstrapError> {
        let (key, value) = (terminated("put", key)?, terminated("put", value)?);
        // SAFETY: the promise of `new`; both texts outlive the call.
        check("put", unsafe { (self.put)(self.context, key.as_ptr(), value.as_ptr()) })
    }

    fn get(&mut self, key: &str) -> Result<String, BootstrapError> {
        let key = terminated("get", key)?;
        let mut value = [0; NEMESIA_EXCHANGE_VALUE_BYTES];
        let room = value.as_mut_ptr().cast::<c_char>();
        // SAFETY: the promise of `new`; the key and the buffer outlive the call.
        check("get", unsafe { (self.get)(self.context, key.as_ptr(), value.len(), room) })?;
        let text = CStr::from_bytes_until_nul(&value).ok().and_then(|text| text.to_str().ok());
        text.map(str::to_owned)
            .ok_or_else(|| refused("get", NEMESIA_OK, "its value is not a terminated text"))
    }

    fn barrier(&mut self) -> Result<(), BootstrapError> {
        // SAFETY: the promise of `new`.
        check("barrier", unsafe { (self.barrier)(self.context) })
    }

    fn finalize(&mut self) -> Result<(), BootstrapError> {
        Ok(())
    }
}

fn terminated(during: &'static str, text: &str) -> Result<CString, BootstrapError> {
    CString::new(text).map_err(|_| refused(during, NEMESIA_OK, "a text has a 0 in it"))
}

fn check(during: &'static str, code: i32) -> Result<(), BootstrapError> {
    if code == 0 { Ok(()) } else { Err(refused(during, code, "the caller's nemesia_exchange returned it")) }
}

fn refused(during: &'static str, code: i32, reason: &str) -> BootstrapError {
    BootstrapError::Refused { during, code, reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    unsafe extern "C" fn zero(_context: *mut c_void) -> i32 {
        0
    }

    unsafe extern "C" fn two(_context: *mut c_void) -> i32 {
        2
    }

    unsafe extern "C" fn refuse(_context: *mut c_void, _key: *const c_char, _value: *const c_char) -> i32 {
        42
    }

    /// Fills the whole buffer and does not terminate it.
    unsafe extern "C" fn overflow(_: *mut c_void, _: *const c_char, bytes: usize, value: *mut c_char) -> i32 {
        // SAFETY: the buffer that the library promises.
        unsafe { ptr::write_bytes(value, b'x', bytes) };
        0
    }

    fn exchange() -> Exchange {
        Exchange {
            struct_size: size_of::<Exchange>() as u64,
            context: ptr::null_mut(),
            rank: Some(zero),
            size: Some(two),
            put: Some(refuse),
            get: Some(overflow),
            barrier: Some(zero),
        }
    }

    fn foreign(exchange: &Exchange) -> Result<Foreign, Fault> {
        // SAFETY: the functions above meet the requirements.
        unsafe { Foreign::new(exchange) }
    }

    #[test]
    fn a_missing_function_is_named() {
        let fault = foreign(&Exchange { get: None, ..exchange() }).unwrap_err();
        assert!(format!("{fault:?}").contains("nemesia_exchange.get is NULL"));
    }

    #[test]
    fn a_rank_beyond_the_size_is_refused() {
        assert!(foreign(&Exchange { rank: Some(two), ..exchange() }).is_err());
        assert!(foreign(&Exchange { size: Some(zero), ..exchange() }).is_err());
    }

    #[test]
    fn the_code_that_the_caller_returns_is_in_the_text() {
        let mut foreign = foreign(&exchange()).unwrap();
        assert!(foreign.put("key", "value").unwrap_err().to_string().contains("code 42"));
        assert!(foreign.put("k\0", "value").is_err());
        assert!(foreign.barrier().is_ok());
    }

    #[test]
    fn a_value_without_an_end_is_refused() {
        let error = foreign(&exchange()).unwrap().get("key").unwrap_err().to_string();
        assert!(error.contains("not a terminated text"), "{error}");
    }
}
