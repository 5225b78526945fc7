//! The structure that describes any operation. [`crate::start`] has the calls that take it.

use std::ffi::c_void;

use nemesia::{Endpoint as Inner, RecvOp, Segment, SendOp, Tag};

use crate::boundary::{Versioned, check_buffer};
use crate::list::{Iovec, check_list};
use crate::probe::named_message;
use crate::rank::rank_in;
use crate::rma::RemoteKey;
use crate::status::Fault;
use crate::transfer::source;

/// A send of a tagged message: `mode`, `context`, `rank`, `tag`, the bytes, and `immediate` where wanted.
pub const NEMESIA_OPERATION_SEND: u32 = 1;
/// A receive of a tagged message: `context`, `rank`, `tag`, `ignore`, and the bytes.
pub const NEMESIA_OPERATION_RECEIVE: u32 = 2;
/// A receive of a message that a probe removed: `message`, and the bytes.
pub const NEMESIA_OPERATION_MATCHED_RECEIVE: u32 = 3;
/// An active message: `rank`, `handler`, `header`, `header_len`, and the payload in `buffer` and `len`.
pub const NEMESIA_OPERATION_ACTIVE: u32 = 4;
/// A put: `key`, `offset`, `buffer`, `len`, and NEMESIA_OPERATION_NOTIFY in `flags` where wanted.
pub const NEMESIA_OPERATION_PUT: u32 = 5;
/// A get: `key`, `offset`, `buffer`, `len`.
pub const NEMESIA_OPERATION_GET: u32 = 6;
/// An accumulate: `key`, `offset`, `datatype`, `op`, and the operands in `buffer` and `len`.
pub const NEMESIA_OPERATION_ACCUMULATE: u32 = 7;
/// A fetch of one value: `key`, `offset`, `datatype`, `op`, `operand`; the old value goes to `buffer`.
pub const NEMESIA_OPERATION_FETCH: u32 = 8;
/// A compare and swap: `key`, `offset`, `datatype`, `op` (NEMESIA_COMPARE_..., or 0 for NEMESIA_COMPARE_EQUAL),
/// `expected`, `operand`; the old value goes to `buffer`.
pub const NEMESIA_OPERATION_COMPARE_SWAP: u32 = 9;
/// A flush: `rank`.
pub const NEMESIA_OPERATION_FLUSH: u32 = 10;
/// A wait for notifications: `region`, and their number in `operand`.
pub const NEMESIA_OPERATION_NOTIFIED: u32 = 11;

/// A flag of an operation that `nemesia_endpoint_start` starts: its completion enters the completion queue, with
/// `user_context`.
pub const NEMESIA_OPERATION_COMPLETION: u32 = 1;
/// A flag of a put: the count of notifications of the region grows by one when the bytes are there.
pub const NEMESIA_OPERATION_NOTIFY: u32 = 2;
/// A flag of a put or an accumulate: the operation is complete when its target has executed it.
pub const NEMESIA_OPERATION_DELIVERED: u32 = 4;
/// A flag of a send: the message has immediate data, which are in `immediate`.
pub const NEMESIA_OPERATION_IMMEDIATE: u32 = 8;

/// A send mode: complete when the caller may reuse the buffer. The mode of `nemesia_endpoint_send`.
pub const NEMESIA_SEND_STANDARD: u32 = 0;
/// A send mode: complete when, in addition, the receiver has put the message into the buffer of a receive
/// (MPI_Ssend). Up to NEMESIA_EAGER_BYTES, the message travels at once, and a small packet comes back.
pub const NEMESIA_SEND_SYNCHRONOUS: u32 = 1;
/// A send mode: the caller guarantees that a receive is posted (MPI_Rsend). Treated as NEMESIA_SEND_STANDARD.
pub const NEMESIA_SEND_READY: u32 = 2;

/// An operation of the general form, for `nemesia_endpoint_start` and `nemesia_endpoint_run`. The plain functions,
/// such as `nemesia_endpoint_isend`, serve the plain cases. Set `struct_size` to its size, and all fields that the
/// operation does not use to 0. The structure is copied, and may be reused after the call.
///
/// The bytes of a tagged message lie in `buffer`, or in the runs of `list`: if `list` is not NULL, `buffer` is NULL
/// and `len` is 0. A list takes no memory of the library. A large message takes one copy if it is sent from one run
/// and received into one run or into runs of at least 4 KiB on average; else it may be streamed, which takes two.
///
/// Versions: later headers have more fields at the end, for which 0 means what the library does today. A program of
/// an older header may use a newer library. A program of a newer header may use an older library as long as it leaves
/// the fields that the library does not know at 0; otherwise it gets NEMESIA_ERR_ARGUMENT.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The size of this structure in bytes: `sizeof(nemesia_operation)`.
    pub struct_size: u64,
    /// With NEMESIA_OPERATION_COMPLETION: any number, which comes back in the completion. For instance the
    /// address of the caller's own request.
    pub user_context: u64,
    /// NEMESIA_OPERATION_SEND, _RECEIVE, and so on.
    pub kind: u32,
    /// NEMESIA_OPERATION_COMPLETION, _NOTIFY, _DELIVERED and _IMMEDIATE, or 0.
    pub flags: u32,
    /// A send: NEMESIA_SEND_STANDARD, _SYNCHRONOUS or _READY.
    pub mode: u32,
    /// The receiver, which may be this process itself; the sender or NEMESIA_ANY_SOURCE; or the rank of a flush.
    pub rank: i32,
    /// The matching context. A message is received and probed only in the context in which it was sent, whatever
    /// its tag, as with the context id of a communicator. The plain functions use 0.
    pub context: u16,
    /// The number of the handler of an active message.
    pub handler: u16,
    /// The type of the values of an atomic operation.
    pub datatype: u32,
    /// The operation of an accumulate or a fetch, or the comparison of a compare and swap.
    pub op: u32,
    /// 0.
    pub reserved: u32,
    /// A send: the value that the receiver matches. A receive: see `ignore`.
    pub tag: u64,
    /// A receive: the message's tag must equal `tag` in every bit that is 0 in `ignore`.
    pub ignore: u64,
    /// With NEMESIA_OPERATION_IMMEDIATE: 64 bits that travel with the message, beside its tag. They are not
    /// matched. Receives and probes write them into `nemesia_status`. A message without them costs nothing more.
    pub immediate: u64,
    /// The bytes to send, or the buffer that receives; may be NULL if `len` is 0. A send does not change them.
    pub buffer: *mut c_void,
    /// The number of bytes.
    pub len: usize,
    /// The bytes of a tagged message in several runs instead, any number; NULL if they are in `buffer`. The runs of
    /// a receive do not overlap.
    pub list: *const Iovec,
    /// The number of runs.
    pub count: usize,
    /// The header of an active message.
    pub header: *const c_void,
    /// Its number of bytes.
    pub header_len: usize,
    /// The message of a matched receive, from `nemesia_endpoint_improbe` or `nemesia_endpoint_mprobe`.
    pub message: u64,
    /// The key of a one-sided operation. It is copied.
    pub key: *const RemoteKey,
    /// The offset of the first byte in the region.
    pub offset: u64,
    /// The operand or the new value, as bits; types of four bytes use the low half. Or the number of
    /// notifications.
    pub operand: u64,
    /// The expected value of a compare and swap, as bits.
    pub expected: u64,
    /// The region of a wait for notifications.
    pub region: u64,
}

// SAFETY: `repr(C)`, numbers and pointers only; the fields of less than eight bytes fill whole words, as the sum of
// the sizes shows; and it begins with its size.
unsafe impl Versioned for Operation {
    const NAME: &'static str = "nemesia_operation";
    const FIRST: usize = size_of::<Self>();
    const UNSET: u8 = 0;
}

const _: () = assert!(
    size_of::<Operation>() == 21 * size_of::<u64>()
        && std::mem::offset_of!(Operation, tag) == 6 * size_of::<u64>()
);

impl Operation {
    /// Returns whether all of these flags are set.
    pub(crate) const fn has(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }

    /// Checks the flags against those of the operation, and the fields that depend on a flag.
    pub(crate) fn check_flags(&self) -> Result<(), Fault> {
        let known = NEMESIA_OPERATION_COMPLETION
            | match self.kind {
                NEMESIA_OPERATION_SEND => NEMESIA_OPERATION_IMMEDIATE,
                NEMESIA_OPERATION_PUT => NEMESIA_OPERATION_NOTIFY | NEMESIA_OPERATION_DELIVERED,
                NEMESIA_OPERATION_ACCUMULATE => NEMESIA_OPERATION_DELIVERED,
                _ => 0,
            };
        if self.flags & !known != 0 {
            let flags = self.flags;
            return Err(Fault::argument(format!("flags are {flags:#x}: the operation has no such flag")));
        }
        if self.immediate != 0 && !self.has(NEMESIA_OPERATION_IMMEDIATE) {
            return Err(Fault::argument("immediate is set, but flags lack NEMESIA_OPERATION_IMMEDIATE"));
        }
        Ok(())
    }

    /// Returns the send that the caller describes.
    ///
    /// # Safety
    /// The bytes, and the list if there is one, are readable and do not change until the operation is complete.
    #[inline]
    pub(crate) unsafe fn send(&self, endpoint: &Inner) -> Result<SendOp<'static>, Fault> {
        if self.ignore != 0 {
            return Err(Fault::argument("ignore is set: a send has no ignore mask"));
        }
        let (to, tag) = (rank_in(endpoint, self.rank)?, self.tag);
        let op = match self.place()? {
            // SAFETY: the caller's promise.
            BytesPlace::Run => unsafe { SendOp::from_raw(to, tag, self.buffer.cast(), self.len) },
            // SAFETY: the caller's promise.
            BytesPlace::List(list) => unsafe { SendOp::from_raw_list(to, tag, list, self.count) },
        };
        let op = op.context(self.context);
        let op = if self.has(NEMESIA_OPERATION_IMMEDIATE) { op.immediate(self.immediate) } else { op };
        match self.mode {
            NEMESIA_SEND_STANDARD => Ok(op),
            NEMESIA_SEND_SYNCHRONOUS => Ok(op.synchronous()),
            NEMESIA_SEND_READY => Ok(op.ready()),
            mode => Err(no_such_mode(mode)),
        }
    }

    /// Returns the receive that the caller describes, of a message that matches or that a probe removed.
    ///
    /// # Safety
    /// The buffers count as initialised (as all memory of C does). They and the list, if there is one, stay valid,
    /// and no other code uses them, until the operation is complete.
    #[inline]
    pub(crate) unsafe fn recv(&self, endpoint: &Inner) -> Result<RecvOp<'static>, Fault> {
        if self.mode != 0 {
            return Err(Fault::argument(format!("mode is {}: a receive has mode 0", self.mode)));
        }
        let is_matched = self.kind == NEMESIA_OPERATION_MATCHED_RECEIVE;
        let from = if is_matched { nemesia::Source::Any } else { source(endpoint, self.rank)? };
        let tag = Tag::Masked { value: self.tag, ignore: self.ignore };
        let op = match self.place()? {
            // SAFETY: the caller's promise.
            BytesPlace::Run => unsafe { RecvOp::from_raw(from, tag, self.buffer.cast(), self.len) },
            BytesPlace::List(list) => {
                if is_matched {
                    // A list that is refused does not take the message.
                    // SAFETY: the caller's list.
                    unsafe { check_list(self.list, self.count) }?;
                }
                // SAFETY: the caller's promise.
                unsafe { RecvOp::from_raw_list(from, tag, list, self.count) }
            }
        };
        Ok(if is_matched {
            op.matched(named_message(endpoint, self.message))
        } else {
            op.context(self.context)
        })
    }

    /// Checks where the bytes lie.
    #[inline]
    fn place(&self) -> Result<BytesPlace, Fault> {
        if self.list.is_null() && self.count == 0 {
            check_buffer(self.buffer.cast::<u8>(), self.len, "buffer")?;
            return Ok(BytesPlace::Run);
        }
        check_buffer(self.list, self.count, "list")?;
        if !self.buffer.is_null() || self.len != 0 {
            return Err(Fault::argument("the operation has a buffer and a list: set one of them"));
        }
        Ok(BytesPlace::List(self.list.cast()))
    }
}

/// The place of a message's bytes.
enum BytesPlace {
    /// The buffer.
    Run,
    /// The runs of the list.
    List(*const Segment),
}

#[cold]
fn no_such_mode(mode: u32) -> Fault {
    Fault::argument(format!("mode is {mode}: it must be NEMESIA_SEND_STANDARD, _SYNCHRONOUS or _READY"))
}
