//! The caller's own bootstrap exchange, in place of a launcher's.

use std::ffi::{CStr, CString, c_char, c_void};
use std::num::NonZeroU64;

use nemesia::bootstrap::{BootstrapError, Exchange as BootstrapExchange, Member};

use crate::boundary::{Versioned, missing};
use crate::status::Fault;

/// The size in bytes of the buffer that `nemesia_exchange.get` receives, including the terminating 0. The
/// library puts no longer value.
pub const NEMESIA_EXCHANGE_VALUE_BYTES: usize = 1024;

/// A key-value store, provided by the caller, through which the processes of a world find each other. A
/// runtime that already connects its processes embeds Nemesia with it.
///
/// Keys and values are terminated texts of printable ASCII without spaces. A key has at most 63 bytes, and is
/// put once in a world. The functions may block. They return 0 for success; any other number becomes part of
/// the text of NEMESIA_ERR_BOOTSTRAP, which says that the caller's own function refused.
///
/// Ranks that are started again: `incarnation`, `restarts`, `join` and `member` are all NULL if there are none.
/// Otherwise none of them is NULL, and each process calls `join` once, after the barrier. What the first processes
/// have put stays readable. A process that was started again enters no barrier and puts nothing.
///
/// Lifetime: the structure is copied. The library calls the functions only during
/// `nemesia_endpoint_open_with`, and does not use the target of `context` after it. But if `restarts` returns a
/// number other than 0, the library calls `member` until `nemesia_endpoint_close` has returned, and `context` stays
/// valid until then.
///
/// Threads: the thread that opens the endpoint calls the functions, and later calls of `member` come from a thread
/// that is in a call on the endpoint. They must not throw, must not jump out (longjmp), and must not call functions
/// of Nemesia on this endpoint.
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
    /// A prefix of all keys, so that one key space carries several worlds: printable ASCII without spaces and `=`,
    /// at most 32 bytes. NULL: none. All processes of a world have the same one. The worlds share the barriers, so all
    /// processes open them in the same order.
    pub key_prefix: *const c_char,
    /// Returns how often the rank of this process was started before: 0 for a process that was started with its
    /// world. May be NULL.
    pub incarnation: Option<unsafe extern "C" fn(context: *mut c_void) -> u64>,
    /// Returns 1 if a rank that dies may be started again, else 0; the same in all processes. May be NULL.
    pub restarts: Option<unsafe extern "C" fn(context: *mut c_void) -> i32>,
    /// Makes this process the present member for its rank, with the address at which others reach it (a terminated
    /// text of less than NEMESIA_EXCHANGE_VALUE_BYTES bytes). Writes a number greater than that of every member that
    /// joined before, in the whole world; at least 1. May be NULL.
    pub join:
        Option<unsafe extern "C" fn(context: *mut c_void, address: *const c_char, out_turn: *mut u64) -> i32>,
    /// Writes the present member for a rank: its incarnation, the number that its `join` wrote, and its address,
    /// terminated, to `out_address`, which has `bytes` bytes. Writes the number 0 if the last process of the rank has
    /// ended, or the next one has not joined; the other outputs are then ignored. May be NULL.
    pub member: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            rank: i32,
            out_incarnation: *mut u64,
            out_turn: *mut u64,
            bytes: usize,
            out_address: *mut c_char,
        ) -> i32,
    >,
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
    restart: Option<Restart>,
}

type Join = unsafe extern "C" fn(*mut c_void, *const c_char, *mut u64) -> i32;
type FindMember = unsafe extern "C" fn(*mut c_void, i32, *mut u64, *mut u64, usize, *mut c_char) -> i32;

/// The part for ranks that are started again.
#[derive(Clone, Copy, Debug)]
struct Restart {
    incarnation: u64,
    join: Join,
    member: FindMember,
}

impl Restart {
    /// Returns this part if ranks may be started again.
    ///
    /// # Safety
    /// As for [`Foreign::new`].
    unsafe fn of(exchange: &Exchange) -> Result<Option<Self>, Fault> {
        let Exchange { context, incarnation, restarts, join, member, .. } = *exchange;
        let Some(restarts) = restarts else { return Ok(None) };
        // SAFETY: the caller's promise.
        if unsafe { restarts(context) } == 0 {
            return Ok(None);
        }
        let missing = |name: &str| missing(&format!("nemesia_exchange.{name}"));
        let incarnation = incarnation.ok_or_else(|| missing("incarnation"))?;
        let join = join.ok_or_else(|| missing("join"))?;
        let member = member.ok_or_else(|| missing("member"))?;
        // SAFETY: the caller's promise.
        Ok(Some(Self { incarnation: unsafe { incarnation(context) }, join, member }))
    }
}

// SAFETY: `context` is passed only to the caller's functions. The thread that opens the endpoint calls those while it
// opens it, and a thread that is in a call on the endpoint calls `member`; the caller has promised that each of them
// may, one at a time. Otherwise the value lies unused in an endpoint, which may move between threads.
unsafe impl Send for Foreign {}

impl Foreign {
    /// Checks that no function is NULL, and that rank and size are consistent.
    ///
    /// # Safety
    /// The functions meet the requirements of `nemesia_exchange` until the endpoint is open, or until it is closed if
    /// ranks may be started again.
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
        // SAFETY: the caller's promise.
        let restart = unsafe { Restart::of(exchange) }?;
        Ok(Self { context, rank: rank as usize, size: size as usize, put, get, barrier, restart })
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
        text_of("get", &value)
    }

    fn barrier(&mut self) -> Result<(), BootstrapError> {
        // SAFETY: the promise of `new`.
        check("barrier", unsafe { (self.barrier)(self.context) })
    }

    fn finalize(&mut self) -> Result<(), BootstrapError> {
        Ok(())
    }

    fn incarnation(&self) -> u64 {
        self.restart.map_or(0, |restart| restart.incarnation)
    }

    fn restarts(&self) -> bool {
        self.restart.is_some()
    }

    fn join(&mut self, address: &str) -> Result<NonZeroU64, BootstrapError> {
        let Some(restart) = self.restart else { return Err(BootstrapError::NoRestart) };
        let (address, mut turn) = (terminated("join", address)?, 0);
        // SAFETY: the promise of `new`; the text and the number outlive the call.
        check("join", unsafe { (restart.join)(self.context, address.as_ptr(), &raw mut turn) })?;
        NonZeroU64::new(turn).ok_or_else(|| refused("join", "it wrote the number 0"))
    }

    fn member(&mut self, rank: usize) -> Result<Option<Member>, BootstrapError> {
        let Some(restart) = self.restart else { return Err(BootstrapError::NoRestart) };
        let rank = i32::try_from(rank).map_err(|_| refused("member", "there is no such rank"))?;
        let (mut incarnation, mut turn, mut value) = (0, 0, [0; NEMESIA_EXCHANGE_VALUE_BYTES]);
        let outputs = (&raw mut incarnation, &raw mut turn, value.as_mut_ptr().cast::<c_char>());
        // SAFETY: the promise of `new`; the numbers and the buffer outlive the call.
        let code =
            unsafe { (restart.member)(self.context, rank, outputs.0, outputs.1, value.len(), outputs.2) };
        check("member", code)?;
        let Some(turn) = NonZeroU64::new(turn) else { return Ok(None) };
        Ok(Some(Member { incarnation, turn, address: text_of("member", &value)? }))
    }
}

/// Returns the prefix of the keys: empty for NULL.
///
/// # Safety
/// The prefix is NULL or a terminated text.
pub(crate) unsafe fn prefix_of(exchange: &Exchange) -> Result<String, Fault> {
    if exchange.key_prefix.is_null() {
        return Ok(String::new());
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(exchange.key_prefix) };
    text.to_str()
        .map(str::to_owned)
        .map_err(|_| Fault::argument("nemesia_exchange.key_prefix is not printable ASCII"))
}

/// Returns the text that the caller wrote to a buffer.
fn text_of(during: &'static str, value: &[u8]) -> Result<String, BootstrapError> {
    let text = CStr::from_bytes_until_nul(value).ok().and_then(|text| text.to_str().ok());
    text.map(str::to_owned).ok_or_else(|| refused(during, "its value is not a terminated text"))
}

fn terminated(during: &'static str, text: &str) -> Result<CString, BootstrapError> {
    CString::new(text).map_err(|_| refused(during, "a text has a 0 in it"))
}

fn check(during: &'static str, code: i32) -> Result<(), BootstrapError> {
    if code == 0 {
        Ok(())
    } else {
        Err(refused(during, &format!("its function in nemesia_exchange returned code {code}")))
    }
}

fn refused(during: &'static str, reason: &str) -> BootstrapError {
    BootstrapError::caller(during, reason)
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
            key_prefix: ptr::null(),
            incarnation: None,
            restarts: None,
            join: None,
            member: None,
        }
    }

    unsafe extern "C" fn five(_context: *mut c_void) -> u64 {
        5
    }

    unsafe extern "C" fn turn_0(_: *mut c_void, _: *const c_char, turn: *mut u64) -> i32 {
        // SAFETY: the number that the library promises.
        unsafe { turn.write(0) };
        0
    }

    unsafe extern "C" fn nobody_but_1(
        _: *mut c_void,
        rank: i32,
        incarnation: *mut u64,
        turn: *mut u64,
        bytes: usize,
        address: *mut c_char,
    ) -> i32 {
        assert_eq!(bytes, NEMESIA_EXCHANGE_VALUE_BYTES);
        // SAFETY: the outputs that the library promises.
        unsafe {
            incarnation.write(3);
            turn.write(if rank == 1 { 9 } else { 0 });
            address.copy_from(c"there".as_ptr(), 6);
        }
        if rank == 2 { -3 } else { 0 }
    }

    #[test]
    fn members_come_from_the_caller_if_ranks_are_restarted() {
        let all = Exchange {
            incarnation: Some(five),
            restarts: Some(two),
            join: Some(turn_0),
            member: Some(nobody_but_1),
            ..exchange()
        };
        for incomplete in [Exchange { join: None, ..all }, Exchange { member: None, ..all }] {
            assert!(format!("{:?}", foreign(&incomplete).unwrap_err()).contains("is NULL"));
        }
        let mut it = foreign(&all).unwrap();
        assert_eq!((it.incarnation(), it.restarts()), (5, true));
        assert!(it.join("here").unwrap_err().to_string().contains("number 0"));
        let member = Member { incarnation: 3, turn: NonZeroU64::new(9).unwrap(), address: "there".into() };
        assert_eq!((it.member(1).unwrap(), it.member(0).unwrap()), (Some(member), None));
        let error = it.member(2).unwrap_err().to_string();
        assert!(error.contains("member") && error.contains("code -3"), "{error}");
        // Without restarts the others are not needed.
        let mut it = foreign(&Exchange { restarts: Some(zero), join: None, ..all }).unwrap();
        assert_eq!((it.incarnation(), it.restarts()), (0, false));
        assert!(matches!(it.join("here"), Err(BootstrapError::NoRestart)));
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
        let error = foreign.put("key", "value").unwrap_err().to_string();
        assert!(error.contains("code 42") && error.contains("caller's own exchange"), "{error}");
        assert!(foreign.put("k\0", "value").is_err());
        assert!(foreign.barrier().is_ok());
    }

    #[test]
    fn a_value_without_an_end_is_refused() {
        let error = foreign(&exchange()).unwrap().get("key").unwrap_err().to_string();
        assert!(error.contains("not a terminated text"), "{error}");
    }
}
