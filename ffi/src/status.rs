//! The codes that functions return, and the text of the last error.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use nemesia::bootstrap::BootstrapError;
use nemesia::rdma_channel::PipeError;
use nemesia::{Error, PeerError, Refusal};

/// Major version of this header.
pub const NEMESIA_VERSION_MAJOR: u32 = 0;
/// Minor version of this header.
pub const NEMESIA_VERSION_MINOR: u32 = 1;
/// Patch version of this header.
pub const NEMESIA_VERSION_PATCH: u32 = 0;

/// The call succeeded.
pub const NEMESIA_OK: i32 = 0;
/// Not an error: the request is not complete yet.
pub const NEMESIA_PENDING: i32 = 1;
/// Not an error: the call made progress, and there may be more to do.
pub const NEMESIA_BUSY: i32 = 2;
/// An argument is invalid: a NULL pointer, a wrong `struct_size`, a length that no buffer has, a text that is
/// not UTF-8, or one of the contexts 65534 and 65535, which are reserved for barriers and agreements.
pub const NEMESIA_ERR_ARGUMENT: i32 = -1;
/// The configuration, a file or an environment variable is invalid. In strict mode (NEMESIA_STRICT), also: a
/// preference cannot be met.
pub const NEMESIA_ERR_CONFIG: i32 = -2;
/// The launcher or the caller's exchange failed.
pub const NEMESIA_ERR_BOOTSTRAP: i32 = -3;
/// The operating system refused a request.
pub const NEMESIA_ERR_SYSTEM: i32 = -4;
/// The connection to a peer could not be set up.
pub const NEMESIA_ERR_PEER: i32 = -5;
/// A peer has failed; `nemesia_last_error_rank` returns its rank, or its position in the group of a collective call.
pub const NEMESIA_ERR_PEER_FAILED: i32 = -6;
/// The buffer is too small. The part that fits was received, and the status is written. Functions that write
/// a text return this, too.
pub const NEMESIA_ERR_TRUNCATED: i32 = -7;
/// The rank does not exist.
pub const NEMESIA_ERR_RANK: i32 = -8;
/// The limit on requests in progress is reached.
pub const NEMESIA_ERR_REQUESTS: i32 = -9;
/// Unexpected messages have reached their memory limit: receive them first. A request that was waited for is
/// still in progress. From `nemesia_endpoint_close`: a receiver has reached its limit, and messages to it are lost.
pub const NEMESIA_ERR_UNEXPECTED_FULL: i32 = -10;
/// The operation was cancelled before it began.
pub const NEMESIA_ERR_CANCELLED: i32 = -11;
/// The request or probed message does not exist: it was completed before, or never started.
pub const NEMESIA_ERR_STALE: i32 = -12;
/// The wait exceeded its time limit. A request that was waited for is still in progress.
pub const NEMESIA_ERR_TIMEOUT: i32 = -13;
/// The library has an internal error. The endpoint can only be closed.
pub const NEMESIA_ERR_PANIC: i32 = -14;
/// The library reports an error that this version of the header has no code for.
pub const NEMESIA_ERR_UNKNOWN: i32 = -15;

/// A one-sided operation was refused: no region is exposed with the key. With this and the
/// next four codes, `nemesia_last_error_rank` returns the rank that owns the region. A flush reports the
/// first refusal since the last flush.
pub const NEMESIA_ERR_KEY: i32 = -16;
/// A one-sided operation was refused: the bytes are not all in the region.
pub const NEMESIA_ERR_BOUNDS: i32 = -17;
/// A one-sided operation was refused: the region does not allow this access.
pub const NEMESIA_ERR_ACCESS: i32 = -18;
/// A one-sided operation was refused: the address of the value is not a multiple of its size.
pub const NEMESIA_ERR_ALIGNMENT: i32 = -19;
/// A one-sided operation was refused: it is not defined for this type.
pub const NEMESIA_ERR_UNDEFINED: i32 = -20;
/// This process has no such region, or the limit on regions is reached.
pub const NEMESIA_ERR_REGION: i32 = -21;
/// An active message exceeds its maximum length, a reply to one exceeds a packet, or a message exceeds
/// `nemesia_endpoint_inject_bytes`.
pub const NEMESIA_ERR_TOO_LONG: i32 = -22;
/// The limit on replies of handlers that wait to be sent is reached.
pub const NEMESIA_ERR_REPLIES: i32 = -23;
/// The other ranks have agreed to continue without this process.
pub const NEMESIA_ERR_EXCLUDED: i32 = -24;
/// Another thread is in a call on the endpoint, and the endpoint allows one thread at a time. The call had no
/// effect. Open the endpoint with NEMESIA_THREADS_MULTIPLE.
///
/// Do not rely on this code: the check is cheap and does not find every such mistake.
/// `nemesia_endpoint_close` always returns it if the endpoint has NEMESIA_THREADS_MULTIPLE and another thread
/// is in a call.
pub const NEMESIA_ERR_THREADS: i32 = -25;
/// The launcher of this world does not restart ranks; `nemesia run --restart N` does.
pub const NEMESIA_ERR_NO_RESTART: i32 = -26;
/// The rank has not failed, or has not been restarted yet.
pub const NEMESIA_ERR_NOT_RESTARTED: i32 = -27;
/// An agreement is not finished: first call `nemesia_endpoint_agree` or `nemesia_endpoint_shrink` again.
pub const NEMESIA_ERR_AGREEMENT: i32 = -28;
/// The handle is invalid: it was closed or destroyed before, it is of another kind (a configuration in place
/// of an endpoint), its handler has returned, or this library did not make it. The call had no effect.
/// Functions that make a handle return this if the limit on endpoints and configurations is reached.
/// `nemesia_last_error_message` names the cause.
pub const NEMESIA_ERR_HANDLE: i32 = -29;
/// The endpoint belongs to the process that opened it, and this process is a forked child: open another
/// endpoint here. Every function that takes an endpoint may return this.
pub const NEMESIA_ERR_FORKED: i32 = -30;

/// Another region of this process is exposed with the key: unexpose it first, or choose another key.
pub const NEMESIA_ERR_KEY_IN_USE: i32 = -31;
/// No function returns this any more, as every endpoint has an address. Programs that name it still compile.
pub const NEMESIA_ERR_NO_ADDRESS: i32 = -32;
/// The endpoint was opened alone and has no world: name the processes of this call by their addresses
/// (`nemesia_endpoint_barrier_group`).
pub const NEMESIA_ERR_NO_WORLD: i32 = -33;
/// The address cannot be used: it is not one, or it is one of another machine or of this endpoint itself.
pub const NEMESIA_ERR_ADDRESS: i32 = -34;
/// There is no such peer: it was released, or never existed.
pub const NEMESIA_ERR_NO_PEER: i32 = -35;
/// The peer's connection has ended: `nemesia_endpoint_connect` permits another one. Of a channel: the peer has
/// finalized it, and all of its bytes were got.
pub const NEMESIA_ERR_ENDED: i32 = -36;
/// The limit on peers or on connections (NEMESIA_CONNECTIONS) is reached: disconnect from a peer.
pub const NEMESIA_ERR_CONNECTIONS: i32 = -37;
/// There is no memory for the messages of another connection: raise NEMESIA_UNEXPECTED_BYTES, or disconnect from a
/// peer.
pub const NEMESIA_ERR_NO_MEMORY: i32 = -38;

const NAMES: [(i32, &CStr); 41] = [
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
    (NEMESIA_ERR_KEY_IN_USE, c"NEMESIA_ERR_KEY_IN_USE"),
    (NEMESIA_ERR_TOO_LONG, c"NEMESIA_ERR_TOO_LONG"),
    (NEMESIA_ERR_REPLIES, c"NEMESIA_ERR_REPLIES"),
    (NEMESIA_ERR_EXCLUDED, c"NEMESIA_ERR_EXCLUDED"),
    (NEMESIA_ERR_THREADS, c"NEMESIA_ERR_THREADS"),
    (NEMESIA_ERR_NO_RESTART, c"NEMESIA_ERR_NO_RESTART"),
    (NEMESIA_ERR_NOT_RESTARTED, c"NEMESIA_ERR_NOT_RESTARTED"),
    (NEMESIA_ERR_AGREEMENT, c"NEMESIA_ERR_AGREEMENT"),
    (NEMESIA_ERR_HANDLE, c"NEMESIA_ERR_HANDLE"),
    (NEMESIA_ERR_FORKED, c"NEMESIA_ERR_FORKED"),
    (NEMESIA_ERR_NO_ADDRESS, c"NEMESIA_ERR_NO_ADDRESS"),
    (NEMESIA_ERR_NO_WORLD, c"NEMESIA_ERR_NO_WORLD"),
    (NEMESIA_ERR_ADDRESS, c"NEMESIA_ERR_ADDRESS"),
    (NEMESIA_ERR_NO_PEER, c"NEMESIA_ERR_NO_PEER"),
    (NEMESIA_ERR_ENDED, c"NEMESIA_ERR_ENDED"),
    (NEMESIA_ERR_CONNECTIONS, c"NEMESIA_ERR_CONNECTIONS"),
    (NEMESIA_ERR_NO_MEMORY, c"NEMESIA_ERR_NO_MEMORY"),
];

/// Returns the version of the library, which may be later than that of the header.
///
/// Returns: a text such as "0.1.0".
/// Ownership: the text is the library's and stays valid.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nemesia_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Returns the name of a code, for logs.
///
/// - `status`: the return value of a function; any number is allowed.
///
/// Returns: a text such as "NEMESIA_ERR_RANK", or "unknown status".
/// Ownership: the text is the library's and stays valid.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nemesia_status_name(status: i32) -> *const c_char {
    let named = NAMES.iter().find(|(code, _)| *code == status);
    named.map_or(c"unknown status", |(_, name)| name).as_ptr()
}

/// Returns a text of one line about the last call that failed in this thread. It names the peer and the
/// remedy, if there are any. Read it after a negative code: a call that succeeds does not change it.
///
/// Returns: the text, empty if no call has failed yet; never NULL.
/// Ownership: the text is the library's. It is valid until the next call fails in this thread, or the thread
/// ends.
/// Threads: each has its own text.
#[unsafe(no_mangle)]
pub extern "C" fn nemesia_last_error_message() -> *const c_char {
    LAST.try_with(|last| last.borrow().text.as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the rank that the last error in this thread is about. With NEMESIA_ERR_PEER_FAILED it is the
/// failed peer; in a collective call among a group of peers, its position in the group.
///
/// Returns: the rank, or -1 if the error is not about a rank.
/// Threads: each has its own.
#[unsafe(no_mangle)]
pub extern "C" fn nemesia_last_error_rank() -> i32 {
    LAST.try_with(|last| last.borrow().rank).unwrap_or(-1)
}

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last { text: Cow::Borrowed(c""), rank: -1 }) };
}

/// The last error of a thread.
struct Last {
    text: Cow<'static, CStr>,
    rank: i32,
}

/// Reports that a wait with a limit of 0 was in vain. Such calls are frequent, so the text is made only once.
pub(crate) fn timed_out() -> i32 {
    const TEXT: &CStr = c"the operation was not complete within 0ns: it is still under way";
    let last = Last { text: Cow::Borrowed(TEXT), rank: -1 };
    let _ = LAST.try_with(|place| *place.borrow_mut() = last);
    NEMESIA_ERR_TIMEOUT
}

/// A code and its text, before they are reported to the caller.
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

    pub(crate) fn rank(&self) -> i32 {
        self.rank
    }

    /// Keeps the text for `nemesia_last_error_message` and returns the code.
    #[cold]
    pub(crate) fn report(self) -> i32 {
        let Self { code, rank, text } = self;
        let text = Cow::Owned(CString::new(text.replace('\0', " ")).unwrap_or_default());
        // A thread that is ending has dropped its slot, and no later call there can read the text.
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
            Error::Pipe { problem: PipeError::Ended, .. } => NEMESIA_ERR_ENDED,
            Error::Pipe { problem: PipeError::Lost(_) | PipeError::Work(_), .. } => NEMESIA_ERR_PEER_FAILED,
            Error::Pipe { problem: PipeError::List { .. }, .. } => NEMESIA_ERR_ARGUMENT,
            Error::Peer { .. } | Error::Net { .. } | Error::Pipe { .. } => NEMESIA_ERR_PEER,
            Error::Transport { .. } => NEMESIA_ERR_SYSTEM,
            Error::PeerFailed { .. }
            | Error::BarrierBroken { .. }
            | Error::MemberFailed { .. }
            | Error::MemberLost { .. } => NEMESIA_ERR_PEER_FAILED,
            Error::Truncated(_) => NEMESIA_ERR_TRUNCATED,
            Error::Rank { .. } => NEMESIA_ERR_RANK,
            Error::Requests { .. } => NEMESIA_ERR_REQUESTS,
            Error::Unexpected { .. } | Error::Held { .. } => NEMESIA_ERR_UNEXPECTED_FULL,
            Error::Excluded => NEMESIA_ERR_EXCLUDED,
            Error::Forked => NEMESIA_ERR_FORKED,
            Error::Cancelled => NEMESIA_ERR_CANCELLED,
            Error::Stale => NEMESIA_ERR_STALE,
            Error::List | Error::Context | Error::Members => NEMESIA_ERR_ARGUMENT,
            Error::Timeout(_) => NEMESIA_ERR_TIMEOUT,
            Error::Refused { refusal, .. } => match refusal {
                Refusal::Key => NEMESIA_ERR_KEY,
                Refusal::Bounds => NEMESIA_ERR_BOUNDS,
                Refusal::Access => NEMESIA_ERR_ACCESS,
                Refusal::Alignment => NEMESIA_ERR_ALIGNMENT,
                Refusal::Undefined => NEMESIA_ERR_UNDEFINED,
            },
            Error::Region | Error::Regions { .. } => NEMESIA_ERR_REGION,
            Error::KeyInUse { .. } => NEMESIA_ERR_KEY_IN_USE,
            Error::TooLong { .. } | Error::LongInject { .. } | Error::LongReply { .. } => {
                NEMESIA_ERR_TOO_LONG
            }
            Error::Replies { .. } => NEMESIA_ERR_REPLIES,
            Error::NoWorld => NEMESIA_ERR_NO_WORLD,
            Error::Address { .. } | Error::Apart { .. } | Error::NoPeer(PeerError::Itself) => {
                NEMESIA_ERR_ADDRESS
            }
            Error::NoPeer(PeerError::Slots { .. } | PeerError::Connections { .. }) => NEMESIA_ERR_CONNECTIONS,
            Error::NoPeer(PeerError::Ended(_)) => NEMESIA_ERR_ENDED,
            Error::NoPeer(PeerError::Stale | PeerError::InUse | PeerError::Pinned) => NEMESIA_ERR_NO_PEER,
            Error::Unpaid(_) => NEMESIA_ERR_NO_MEMORY,
            _ => NEMESIA_ERR_UNKNOWN,
        };
        let rank = match error {
            Error::Peer { rank, .. }
            | Error::Net { rank, .. }
            | Error::Pipe { rank, .. }
            | Error::PeerFailed { rank, .. }
            | Error::BarrierBroken { rank, .. }
            | Error::MemberFailed { place: rank, .. }
            | Error::MemberLost { place: rank, .. }
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
        // SAFETY: the functions of this module return terminated texts that stay valid long enough.
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
    fn the_context_of_agreements_is_an_invalid_argument() {
        let fault = Fault::from(Error::Context);
        assert_eq!(fault.code(), NEMESIA_ERR_ARGUMENT);
        assert!(fault.text.contains("65535"), "{fault:?}");
    }

    #[test]
    fn the_end_of_a_pipe_has_a_code_of_its_own() {
        let fault = Fault::from(Error::Pipe { rank: 2, problem: PipeError::Ended });
        assert_eq!((fault.code(), fault.rank()), (NEMESIA_ERR_ENDED, 2));
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
