//! The codes that functions return, and the text of the last error.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use nemesia::bootstrap::BootstrapError;
use nemesia::{Error, Refusal};

/// Major version of this header.
pub const NEMESIA_VERSION_MAJOR: u32 = 0;
/// Minor version of this header.
pub const NEMESIA_VERSION_MINOR: u32 = 1;
/// Patch version of this header.
pub const NEMESIA_VERSION_PATCH: u32 = 0;

/// Done.
pub const NEMESIA_OK: i32 = 0;
/// Not an error: the request is still under way.
pub const NEMESIA_PENDING: i32 = 1;
/// Not an error: something was done just now, and there may be more to do.
pub const NEMESIA_BUSY: i32 = 2;
/// An argument is not valid: a NULL pointer, a wrong `struct_size`, a length that no buffer has, a text that is not
/// UTF-8, contexts 65534 and 65535, which are reserved for barriers and agreements.
pub const NEMESIA_ERR_ARGUMENT: i32 = -1;
/// The configuration, a file or a variable of the environment can't be used; in strict mode (NEMESIA_STRICT), a wish
/// can't be met.
pub const NEMESIA_ERR_CONFIG: i32 = -2;
/// The launcher or the caller's exchange failed.
pub const NEMESIA_ERR_BOOTSTRAP: i32 = -3;
/// The operating system refused something.
pub const NEMESIA_ERR_SYSTEM: i32 = -4;
/// A peer can't be met, at start.
pub const NEMESIA_ERR_PEER: i32 = -5;
/// A peer is gone; `nemesia_last_error_rank` tells which.
pub const NEMESIA_ERR_PEER_FAILED: i32 = -6;
/// The message was longer than the buffer. What fits was received, and the status is written. The same of a text.
pub const NEMESIA_ERR_TRUNCATED: i32 = -7;
/// No such rank.
pub const NEMESIA_ERR_RANK: i32 = -8;
/// Too many requests are under way.
pub const NEMESIA_ERR_REQUESTS: i32 = -9;
/// Unexpected messages fill their ceiling: receive them first. A request that was waited for is still under way.
pub const NEMESIA_ERR_UNEXPECTED_FULL: i32 = -10;
/// The receive was withdrawn.
pub const NEMESIA_ERR_CANCELLED: i32 = -11;
/// No such request: it was completed before, or never started.
pub const NEMESIA_ERR_STALE: i32 = -12;
/// Waiting took longer than allowed. A request that was waited for is still under way.
pub const NEMESIA_ERR_TIMEOUT: i32 = -13;
/// Nemesia met an error of its own. The endpoint can only be closed.
pub const NEMESIA_ERR_PANIC: i32 = -14;
/// An error that this version of the header has no code for.
pub const NEMESIA_ERR_UNKNOWN: i32 = -15;

/// A one-sided operation was refused: the region is not exposed, or the key is not its key. With this and the next four
/// codes `nemesia_last_error_rank` tells whose region it is; a flush reports the first refusal since the last.
pub const NEMESIA_ERR_KEY: i32 = -16;
/// A one-sided operation was refused: the bytes are not all in the region.
pub const NEMESIA_ERR_BOUNDS: i32 = -17;
/// A one-sided operation was refused: the region does not allow it.
pub const NEMESIA_ERR_ACCESS: i32 = -18;
/// A one-sided operation was refused: the value does not lie at a multiple of its size.
pub const NEMESIA_ERR_ALIGNMENT: i32 = -19;
/// A one-sided operation was refused: it is not defined for that type.
pub const NEMESIA_ERR_UNDEFINED: i32 = -20;
/// No such region of this process, or no more are allowed.
pub const NEMESIA_ERR_REGION: i32 = -21;
/// An active message is longer than one may be, or a reply to one than a packet.
pub const NEMESIA_ERR_TOO_LONG: i32 = -22;
/// Too many replies of handlers wait to leave.
pub const NEMESIA_ERR_REPLIES: i32 = -23;
/// The other ranks have agreed to go on without this process.
pub const NEMESIA_ERR_EXCLUDED: i32 = -24;
/// Another thread is in a call on the endpoint, which belongs to one at a time; nothing was done. Open it with
/// NEMESIA_THREADS_MULTIPLE. Don't rely on this code: it is given when the mistake is seen, and that is not always.
/// From `nemesia_endpoint_close` of an endpoint with NEMESIA_THREADS_MULTIPLE it is always given while another thread
/// is in a call.
pub const NEMESIA_ERR_THREADS: i32 = -25;
/// The launcher of this world starts no rank again: `nemesia run --restart N` does.
pub const NEMESIA_ERR_NO_RESTART: i32 = -26;
/// The rank has not failed, or was not started again yet.
pub const NEMESIA_ERR_NOT_RESTARTED: i32 = -27;
/// An agreement is not finished: call `nemesia_endpoint_agree` or `nemesia_endpoint_shrink` again first.
pub const NEMESIA_ERR_AGREEMENT: i32 = -28;
/// The handle is none: it was closed or destroyed before, it is of another kind (a configuration in place of an
/// endpoint), its handler has returned, or no function of this library has made it. Nothing was done. Or as many
/// endpoints and configurations exist as may, and no more can be made. `nemesia_last_error_message` tells which.
pub const NEMESIA_ERR_HANDLE: i32 = -29;
/// The endpoint belongs to the process that opened it, and this is a forked child: open another one here. Every
/// function that takes an endpoint may return this.
pub const NEMESIA_ERR_FORKED: i32 = -30;

const NAMES: [(i32, &CStr); 33] = [
    (NEMESIA_OK, c"NEMESIA_OK"),
    (NEMESIA_PENDING, c"NEMESIA_PENDING"),
    (NEMESIA_BUSY, c"NEMESIA_BUSY"),
    (NEMESIA_ERR_ARGUMENT, c"NEMESIA_ERR_ARGUMENT"),
    (NEMESIA_ERR_CONFIG, c"NEMESIA_ERR_CONFIG"),
    (NEMESIA_ERR_BOOTSTRAP, c"NEMESIA_ERR_BOOTSTRAP"),
    (NEMESIA_ERR_SYSTEM, c"NEMESIA_ERR_SYSTEM"),
    (NEMESIA_ERR_PEER, c"NEMESIA_ERR_PEER"),
    (NEMESIA_ERR_PEER_FAILED, c"NEMESIA_ERR_PEER_FAILED"),
    (NEMESIA_ERR_TRUNCATED, c"NEMESIA_ERR_TRUNCATED"),
    (NEMESIA_ERR_RANK, c"NEMESIA_ERR_RANK"),
    (NEMESIA_ERR_REQUESTS, c"NEMESIA_ERR_REQUESTS"),
    (NEMESIA_ERR_UNEXPECTED_FULL, c"NEMESIA_ERR_UNEXPECTED_FULL"),
    (NEMESIA_ERR_CANCELLED, c"NEMESIA_ERR_CANCELLED"),
    (NEMESIA_ERR_STALE, c"NEMESIA_ERR_STALE"),
    (NEMESIA_ERR_TIMEOUT, c"NEMESIA_ERR_TIMEOUT"),
    (NEMESIA_ERR_PANIC, c"NEMESIA_ERR_PANIC"),
    (NEMESIA_ERR_UNKNOWN, c"NEMESIA_ERR_UNKNOWN"),
    (NEMESIA_ERR_KEY, c"NEMESIA_ERR_KEY"),
    (NEMESIA_ERR_BOUNDS, c"NEMESIA_ERR_BOUNDS"),
    (NEMESIA_ERR_ACCESS, c"NEMESIA_ERR_ACCESS"),
    (NEMESIA_ERR_ALIGNMENT, c"NEMESIA_ERR_ALIGNMENT"),
    (NEMESIA_ERR_UNDEFINED, c"NEMESIA_ERR_UNDEFINED"),
    (NEMESIA_ERR_REGION, c"NEMESIA_ERR_REGION"),
    (NEMESIA_ERR_TOO_LONG, c"NEMESIA_ERR_TOO_LONG"),
    (NEMESIA_ERR_REPLIES, c"NEMESIA_ERR_REPLIES"),
    (NEMESIA_ERR_EXCLUDED, c"NEMESIA_ERR_EXCLUDED"),
    (NEMESIA_ERR_THREADS, c"NEMESIA_ERR_THREADS"),
    (NEMESIA_ERR_NO_RESTART, c"NEMESIA_ERR_NO_RESTART"),
    (NEMESIA_ERR_NOT_RESTARTED, c"NEMESIA_ERR_NOT_RESTARTED"),
    (NEMESIA_ERR_AGREEMENT, c"NEMESIA_ERR_AGREEMENT"),
    (NEMESIA_ERR_HANDLE, c"NEMESIA_ERR_HANDLE"),
    (NEMESIA_ERR_FORKED, c"NEMESIA_ERR_FORKED"),
];

/// The version of the library, which may be later than that of the header.
///
/// Returns: text like "0.1.0".
/// Ownership: the text is the library's and is always there.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nemesia_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The name of a code, for logs.
///
/// - `status`: what a function returned; any number will do.
///
/// Returns: text like "NEMESIA_ERR_RANK", or "unknown status".
/// Ownership: the text is the library's and is always there.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nemesia_status_name(status: i32) -> *const c_char {
    let named = NAMES.iter().find(|(code, _)| *code == status);
    named.map_or(c"unknown status", |(_, name)| name).as_ptr()
}

/// What the last call that failed in this thread has to say: one line that names the peer and the remedy, where there
/// are any. Meaningful after a negative code; calls that succeed leave it as it is.
///
/// Returns: the text, empty if nothing has failed yet; never NULL.
/// Ownership: the text is the library's, until the next call that fails in this thread, or the thread ends.
/// Threads: each has its own text.
#[unsafe(no_mangle)]
pub extern "C" fn nemesia_last_error_message() -> *const c_char {
    LAST.try_with(|last| last.borrow().text.as_ptr()).unwrap_or(c"".as_ptr())
}

/// Which rank the last error in this thread is about: with NEMESIA_ERR_PEER_FAILED the peer that is gone.
///
/// Returns: the rank, or -1 if the error is about none.
/// Threads: each has its own.
#[unsafe(no_mangle)]
pub extern "C" fn nemesia_last_error_rank() -> i32 {
    LAST.try_with(|last| last.borrow().rank).unwrap_or(-1)
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::new(Last { text: CString::default(), rank: -1 });
}

/// The last error of a thread.
struct Last {
    text: CString,
    rank: i32,
}

/// A code with its text, on the way to the caller.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    code: i32,
    rank: i32,
    text: String,
}

impl Fault {
    pub(crate) fn new(code: i32, text: impl Into<String>) -> Self {
        Self { code, rank: -1, text: text.into() }
    }

    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(NEMESIA_ERR_ARGUMENT, text)
    }

    pub(crate) fn code(&self) -> i32 {
        self.code
    }

    /// Keeps the text for `nemesia_last_error_message`; the code is for the caller.
    #[cold]
    pub(crate) fn report(self) -> i32 {
        let Self { code, rank, text } = self;
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        // In a thread that is ending there is nobody left to read it.
        let _ = LAST.try_with(|last| *last.borrow_mut() = Last { text, rank });
        code
    }
}

impl From<Error> for Fault {
    #[cold]
    fn from(error: Error) -> Self {
        let code = match error {
            Error::Config(_) | Error::Layout(_) => NEMESIA_ERR_CONFIG,
            Error::Bootstrap(BootstrapError::NoRestart) => NEMESIA_ERR_NO_RESTART,
            Error::NotRestarted { .. } => NEMESIA_ERR_NOT_RESTARTED,
            Error::AgreementUnderWay => NEMESIA_ERR_AGREEMENT,
            Error::Bootstrap(_) => NEMESIA_ERR_BOOTSTRAP,
            Error::Shm(_) => NEMESIA_ERR_SYSTEM,
            Error::Peer { .. } => NEMESIA_ERR_PEER,
            Error::PeerFailed { .. } | Error::BarrierBroken { .. } => NEMESIA_ERR_PEER_FAILED,
            Error::Truncated(_) => NEMESIA_ERR_TRUNCATED,
            Error::Rank { .. } => NEMESIA_ERR_RANK,
            Error::Requests { .. } => NEMESIA_ERR_REQUESTS,
            Error::Unexpected { .. } => NEMESIA_ERR_UNEXPECTED_FULL,
            Error::Excluded => NEMESIA_ERR_EXCLUDED,
            Error::Forked => NEMESIA_ERR_FORKED,
            Error::Cancelled => NEMESIA_ERR_CANCELLED,
            Error::Stale => NEMESIA_ERR_STALE,
            Error::List | Error::Context => NEMESIA_ERR_ARGUMENT,
            Error::Timeout(_) => NEMESIA_ERR_TIMEOUT,
            Error::Refused { refusal, .. } => match refusal {
                Refusal::Key => NEMESIA_ERR_KEY,
                Refusal::Bounds => NEMESIA_ERR_BOUNDS,
                Refusal::Access => NEMESIA_ERR_ACCESS,
                Refusal::Alignment => NEMESIA_ERR_ALIGNMENT,
                Refusal::Undefined => NEMESIA_ERR_UNDEFINED,
            },
            Error::Region | Error::Regions { .. } => NEMESIA_ERR_REGION,
            Error::TooLong { .. } | Error::LongReply { .. } => NEMESIA_ERR_TOO_LONG,
            Error::Replies { .. } => NEMESIA_ERR_REPLIES,
            _ => NEMESIA_ERR_UNKNOWN,
        };
        let rank = match error {
            Error::Peer { rank, .. }
            | Error::PeerFailed { rank, .. }
            | Error::BarrierBroken { rank, .. }
            | Error::NotRestarted { rank }
            | Error::Refused { rank, .. } => i32::try_from(rank).unwrap_or(-1),
            _ => -1,
        };
        Self { code, rank, text: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pointer: *const c_char) -> String {
        // SAFETY: the functions of this module return terminated texts that live long enough.
        unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
    }

    #[test]
    fn no_code_is_used_twice_and_each_has_its_name() {
        for (at, (code, name)) in NAMES.iter().enumerate() {
            assert_eq!(text(nemesia_status_name(*code)), name.to_string_lossy());
            assert!(NAMES[..at].iter().all(|(other, _)| other != code), "{code}");
        }
        assert_eq!(text(nemesia_status_name(-99)), "unknown status");
    }

    #[test]
    fn the_context_of_agreements_is_no_argument() {
        let fault = Fault::from(Error::Context);
        assert_eq!(fault.code(), NEMESIA_ERR_ARGUMENT);
        assert!(fault.text.contains("65535"), "{fault:?}");
    }

    #[test]
    fn versions_of_header_and_library_agree() {
        let header = format!("{NEMESIA_VERSION_MAJOR}.{NEMESIA_VERSION_MINOR}.{NEMESIA_VERSION_PATCH}");
        assert_eq!(text(nemesia_version()), header);
    }

    #[test]
    fn each_thread_has_its_own_last_error() {
        let fault = Fault::from(Error::Peer { rank: 3, problem: "a\0b".into() });
        assert_eq!(fault.report(), NEMESIA_ERR_PEER);
        assert!(text(nemesia_last_error_message()).ends_with("a b"));
        assert_eq!(nemesia_last_error_rank(), 3);
        let other = std::thread::spawn(|| (text(nemesia_last_error_message()), nemesia_last_error_rank()));
        assert_eq!(other.join().unwrap(), (String::new(), -1));
    }
}
