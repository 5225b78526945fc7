//! One-sided operations.

use std::ffi::c_void;

use nemesia::{
    CompleteAt, Datatype, Endpoint as Inner, KEY_BYTES, Path, Reduction, Region, RemoteKey as InnerKey,
};

use crate::boundary::{Out, check_buffer, missing};
use crate::endpoint::{Endpoint, blocking_on, on};
use crate::lent::Lent;
use crate::rank::{rank_in, rank_of};
use crate::request::number;
use crate::status::{Fault, NEMESIA_OK};

/// The type int32_t.
pub const NEMESIA_TYPE_I32: u32 = 0;
/// The type int64_t.
pub const NEMESIA_TYPE_I64: u32 = 1;
/// The type uint32_t.
pub const NEMESIA_TYPE_U32: u32 = 2;
/// The type uint64_t.
pub const NEMESIA_TYPE_U64: u32 = 3;
/// The type float of IEEE 754.
pub const NEMESIA_TYPE_F32: u32 = 4;
/// The type double of IEEE 754.
pub const NEMESIA_TYPE_F64: u32 = 5;

/// The type int8_t.
pub const NEMESIA_TYPE_I8: u32 = 6;
/// The type uint8_t.
pub const NEMESIA_TYPE_U8: u32 = 7;
/// The type int16_t.
pub const NEMESIA_TYPE_I16: u32 = 8;
/// The type uint16_t.
pub const NEMESIA_TYPE_U16: u32 = 9;

/// Addition; integers wrap.
pub const NEMESIA_OP_SUM: u32 = 0;
/// Multiplication; integers wrap.
pub const NEMESIA_OP_PRODUCT: u32 = 1;
/// The smaller value; a NaN yields to a number.
pub const NEMESIA_OP_MIN: u32 = 2;
/// The larger value; a NaN yields to a number.
pub const NEMESIA_OP_MAX: u32 = 3;
/// Bitwise and; integers only.
pub const NEMESIA_OP_AND: u32 = 4;
/// Bitwise or; integers only.
pub const NEMESIA_OP_OR: u32 = 5;
/// Bitwise exclusive or; integers only.
pub const NEMESIA_OP_XOR: u32 = 6;
/// The operand itself.
pub const NEMESIA_OP_REPLACE: u32 = 7;
/// The unchanged value: an atomic read.
pub const NEMESIA_OP_NOTHING: u32 = 8;
/// Logical and: 1 if neither is 0, else 0.
pub const NEMESIA_OP_LOGICAL_AND: u32 = 9;
/// Logical or: 1 if one is not 0, else 0.
pub const NEMESIA_OP_LOGICAL_OR: u32 = 10;
/// Logical exclusive or: 1 if exactly one is not 0, else 0.
pub const NEMESIA_OP_LOGICAL_XOR: u32 = 11;

/// In `flags` of a put: the notification count of the region is incremented when the bytes are there.
pub const NEMESIA_RMA_NOTIFY: u32 = 1;
/// In `flags` of a put or an accumulate: the operation is complete when it is done at the owner of the region, and
/// reports a refusal of the owner itself. It needs no flush. If the region is not mapped here, it takes one message
/// of the owner, which must make progress.
pub const NEMESIA_RMA_DELIVERED: u32 = 2;

/// In place of a rank: every rank.
pub const NEMESIA_ALL_RANKS: i32 = -1;

/// `nemesia_endpoint_path`: the region belongs to this process.
pub const NEMESIA_PATH_OWN: i32 = 0;
/// `nemesia_endpoint_path`: the region is mapped here, and operations do not require progress of its owner.
pub const NEMESIA_PATH_DIRECT: i32 = 1;
/// `nemesia_endpoint_path`: operations are sent as packets, which the owner executes when it makes progress.
pub const NEMESIA_PATH_PACKETS: i32 = 2;

/// A region of another process: its owner and its key, which are all that an operation needs. To use a region by
/// its key alone, set `key` and `rank`, and the rest to 0:
///
/// ```c
/// nemesia_remote_key key = {.key = 42, .rank = 3};
/// ```
///
/// `nemesia_endpoint_remote_key` writes all fields. They are plain bytes, which may be sent by any means, for
/// instance in a message. The owner of the region checks each operation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RemoteKey {
    /// The key.
    pub key: u64,
    /// What is known of the region: opaque, or all 0. With it, operations that the owner would refuse are refused
    /// at once, and memory of `nemesia_endpoint_allocate` is mapped.
    pub known: [u8; 24],
    /// The owner's rank, as the process that uses the key numbers it. `nemesia_endpoint_remote_key` writes the rank
    /// of the caller.
    pub rank: i32,
    /// 0.
    pub reserved: u32,
}

impl RemoteKey {
    fn new(key: &InnerKey) -> Self {
        let bytes = key.to_bytes();
        let mut known = [0; KEY_BYTES - 8];
        known[..8].copy_from_slice(&bytes[..8]);
        known[8..].copy_from_slice(&bytes[16..]);
        Self { key: key.key(), known, rank: rank_of(key.rank()), reserved: 0 }
    }

    fn inner(&self) -> Option<InnerKey> {
        // No rank is negative: operations report a rank that does not exist.
        let rank = usize::try_from(self.rank).unwrap_or(usize::MAX);
        if self.known == [0; KEY_BYTES - 8] {
            return Some(InnerKey::new(rank, self.key));
        }
        let mut bytes = [0; KEY_BYTES];
        bytes[..8].copy_from_slice(&self.known[..8]);
        bytes[8..16].copy_from_slice(&self.key.to_le_bytes());
        bytes[16..].copy_from_slice(&self.known[8..]);
        InnerKey::from_bytes(rank, &bytes)
    }
}

/// Writes the key with which other processes use a region, and this process as its owner.
///
/// - `endpoint`: an open endpoint.
/// - `region`: one of its regions.
/// - `out_key`: written on success; the caller may copy and send it.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_REGION, _ARGUMENT or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_remote_key(
    endpoint: *mut Endpoint,
    region: u64,
    out_key: *mut RemoteKey,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_key, "out_key") }?;
        out.write(RemoteKey::new(&endpoint.remote_key(Region::from_bits(region))?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Writes the path of operations on a region.
///
/// - `endpoint`: an open endpoint.
/// - `key`: the key of the region.
/// - `out_path`: NEMESIA_PATH_OWN, _DIRECT or _PACKETS, written on success. With _PACKETS,
///   `nemesia_last_error_message` states why the region is not mapped.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_path(
    endpoint: *mut Endpoint,
    key: *const RemoteKey,
    out_path: *mut i32,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointers, null or valid.
        let (key, out) = unsafe { (key_of(key)?, Out::required(out_path, "out_path")?) };
        out.write(match endpoint.path(&key) {
            Path::Own => NEMESIA_PATH_OWN,
            Path::Direct => NEMESIA_PATH_DIRECT,
            Path::Packets { why } => {
                Fault::new(NEMESIA_OK, why).report();
                NEMESIA_PATH_PACKETS
            }
        });
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Starts to write bytes into a region of another process. `nemesia_endpoint_test` or `nemesia_endpoint_wait`
/// completes it, when the caller may reuse the buffer. NEMESIA_RMA_DELIVERED or a flush ensures that the bytes are
/// in the region.
///
/// - `endpoint`: an open endpoint.
/// - `key`: the key of the region, which may be one of this process.
/// - `offset`: the position in the region, in bytes; if the region is exposed by address, the address in the owner's
///   memory.
/// - `buffer`, `len`: the bytes; `buffer` may be NULL if `len` is 0.
/// - `flags`: NEMESIA_RMA_NOTIFY, NEMESIA_RMA_DELIVERED, both, or 0.
/// - `out_request`: written on success; NEMESIA_REQUEST_NONE if the request is complete already.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_BOUNDS or _ACCESS if the key shows that the owner would refuse it;
/// NEMESIA_ERR_ARGUMENT, _RANK, _PEER_FAILED, _REQUESTS or _PANIC. After an error no operation was started.
/// Ownership: the request holds the buffer. It must not change until the request is complete or the endpoint
/// is closed. The key is copied.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_iput(
    endpoint: *mut Endpoint,
    key: *const RemoteKey,
    offset: u64,
    buffer: *const c_void,
    len: usize,
    flags: u32,
    out_request: *mut u64,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointers, null or valid.
        let (key, out) = unsafe { (key_of(key)?, Out::required(out_request, "out_request")?) };
        check_buffer(buffer.cast::<u8>(), len, "buffer")?;
        let (notify, complete) = how_of(flags, NEMESIA_RMA_NOTIFY | NEMESIA_RMA_DELIVERED)?;
        // SAFETY: the caller's promise: the buffer does not change until the request is complete.
        let request = unsafe { endpoint.iput(&key, offset, buffer.cast(), len, notify, complete) }?;
        out.write(number(request));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Starts to read bytes from a region of another process. `nemesia_endpoint_test` or `nemesia_endpoint_wait`
/// completes it, when the bytes have arrived.
///
/// - `endpoint`, `key`, `offset`: as for `nemesia_endpoint_iput`.
/// - `len`: the number of bytes.
/// - `out_buffer`: receives the bytes; may be NULL if `len` is 0. After an error its contents are
///   unspecified.
/// - `out_request`: written on success.
///
/// Returns: as `nemesia_endpoint_iput`. Refusals that only the owner can detect, such as NEMESIA_ERR_KEY,
/// complete the request.
/// Ownership: the request holds the buffer. It must stay valid and unused until the request is complete or
/// the endpoint is closed.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_iget(
    endpoint: *mut Endpoint,
    key: *const RemoteKey,
    offset: u64,
    len: usize,
    out_buffer: *mut c_void,
    out_request: *mut u64,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointers, null or valid.
        let (key, out) = unsafe { (key_of(key)?, Out::required(out_request, "out_request")?) };
        check_buffer(out_buffer.cast::<u8>(), len, "out_buffer")?;
        // SAFETY: the caller's promise: the buffer stays valid until the request is complete.
        let request = unsafe { endpoint.iget(&key, offset, out_buffer.cast(), len) }?;
        out.write(number(request));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Starts to combine an array of operands into an array of values of another process; atomic for each value.
/// The request is complete when the caller may reuse the operands. NEMESIA_RMA_DELIVERED or a flush ensures that the
/// operation is done. The operations of one process on another are executed in order.
///
/// - `endpoint`, `key`, `offset`, `out_request`: as for `nemesia_endpoint_iput`. The address of the first
///   value must be a multiple of its size.
/// - `datatype`: NEMESIA_TYPE_...
/// - `op`: NEMESIA_OP_...
/// - `operands`, `count`: `count` values of that type; may be NULL if `count` is 0.
/// - `flags`: NEMESIA_RMA_DELIVERED or 0.
///
/// Returns: as `nemesia_endpoint_iput`; NEMESIA_ERR_UNDEFINED if the operation is not defined for the type.
/// Ownership: as for `nemesia_endpoint_iput`.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_iaccumulate(
    endpoint: *mut Endpoint,
    key: *const RemoteKey,
    offset: u64,
    datatype: u32,
    op: u32,
    operands: *const c_void,
    count: usize,
    flags: u32,
    out_request: *mut u64,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointers, null or valid.
        let (key, out) = unsafe { (key_of(key)?, Out::required(out_request, "out_request")?) };
        let what = (datatype_of(datatype)?, reduction_of(op)?);
        let len = count.saturating_mul(what.0.bytes());
        check_buffer(operands.cast::<u8>(), len, "operands")?;
        let (_, complete) = how_of(flags, NEMESIA_RMA_DELIVERED)?;
        // SAFETY: the caller's promise: the operands do not change until the request is complete.
        let request = unsafe { endpoint.iaccumulate(&key, offset, what, operands.cast(), len, complete) }?;
        out.write(number(request));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Starts a flush. It is complete when all earlier one-sided operations on a rank's regions are done there.
///
/// - `endpoint`: an open endpoint.
/// - `rank`: the owner of the regions.
/// - `out_request`: written on success; NEMESIA_REQUEST_NONE if there is nothing to flush. The request
///   reports the first refusal since the last flush: NEMESIA_ERR_KEY, _BOUNDS, _ACCESS, _ALIGNMENT or
///   _UNDEFINED.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _RANK, _PEER_FAILED, _REQUESTS or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_iflush(
    endpoint: *mut Endpoint,
    rank: i32,
    out_request: *mut u64,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_request, "out_request") }?;
        let rank = rank_in(endpoint, rank)?;
        out.write(number(endpoint.iflush(rank)?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Waits until all one-sided operations on the regions of a rank, or of all ranks, are done there.
///
/// - `endpoint`: an open endpoint.
/// - `rank`: the owner of the regions, or NEMESIA_ALL_RANKS.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_KEY, _BOUNDS, _ACCESS, _ALIGNMENT or _UNDEFINED for the first operation
/// that was refused since the last flush; NEMESIA_ERR_ARGUMENT, _RANK, _PEER_FAILED, _REQUESTS or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_flush(endpoint: *mut Endpoint, rank: i32) -> i32 {
    let work = |mut endpoint: Lent<'_>| {
        if rank == NEMESIA_ALL_RANKS {
            endpoint.flush_all()?;
        } else {
            let rank = endpoint.rank_in(rank)?;
            endpoint.flush(rank)?;
        }
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { blocking_on(endpoint, work) }
}

/// Orders one-sided operations: the owner executes later operations on its regions after all earlier ones.
/// Without a fence they are executed in order, too, except for gets: a get may return bytes that an operation
/// started after it has written.
///
/// - `endpoint`: an open endpoint.
/// - `rank`: the owner of the regions.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT, _RANK, _PEER_FAILED, _REQUESTS or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_fence(endpoint: *mut Endpoint, rank: i32) -> i32 {
    let work = |endpoint: &mut Inner| {
        endpoint.fence(rank_in(endpoint, rank)?)?;
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Writes the number of puts with notification that were done in a region since it was exposed.
///
/// - `endpoint`: an open endpoint.
/// - `region`: one of its regions.
/// - `out_count`: written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_REGION, _ARGUMENT or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_notifications(
    endpoint: *mut Endpoint,
    region: u64,
    out_count: *mut u64,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_count, "out_count") }?;
        out.write(endpoint.notifications(Region::from_bits(region))?);
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Starts to wait until a region has had `count` notifications since it was exposed. The request can be
/// cancelled. It fails if a peer dies, as a receive from NEMESIA_ANY_SOURCE does.
///
/// - `endpoint`: an open endpoint.
/// - `region`: one of its regions.
/// - `count`: the number of notifications.
/// - `out_request`: written on success.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_REGION, _ARGUMENT, _PEER_FAILED, _REQUESTS or _PANIC.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_inotified(
    endpoint: *mut Endpoint,
    region: u64,
    count: u64,
    out_request: *mut u64,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_request, "out_request") }?;
        out.write(number(endpoint.inotified(Region::from_bits(region), count)?));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// # Safety
/// `key` is null, or the caller's key.
pub(crate) unsafe fn key_of(key: *const RemoteKey) -> Result<InnerKey, Fault> {
    // SAFETY: the caller's promise.
    let key = unsafe { key.as_ref() }.ok_or_else(|| missing("key"))?;
    key.inner().ok_or_else(|| {
        Fault::argument("key->known was not written by nemesia_endpoint_remote_key, and is not all 0")
    })
}

/// Returns the bits of a value of the caller's.
///
/// # Safety
/// `value` is null, or points to a value of that type.
pub(crate) unsafe fn value_of(datatype: Datatype, value: *const c_void, name: &str) -> Result<u64, Fault> {
    if value.is_null() {
        return Err(missing(name));
    }
    let mut bytes = [0; 8];
    // SAFETY: the caller's promise: the value has as many bytes; no value has more than eight.
    unsafe { value.cast::<u8>().copy_to_nonoverlapping(bytes.as_mut_ptr(), datatype.bytes()) };
    Ok(u64::from_le_bytes(bytes))
}

pub(crate) fn datatype_of(datatype: u32) -> Result<Datatype, Fault> {
    let found = Datatype::ALL.get(datatype as usize).copied();
    found
        .ok_or_else(|| Fault::argument(format!("datatype is {datatype}: it must be one of NEMESIA_TYPE_...")))
}

/// Returns whether a put counts a notification, and when it is complete.
pub(crate) fn how_of(flags: u32, allowed: u32) -> Result<(bool, CompleteAt), Fault> {
    if flags & !allowed != 0 {
        let text =
            format!("flags is {flags:#x}: NEMESIA_RMA_DELIVERED is allowed, and NEMESIA_RMA_NOTIFY in puts");
        return Err(Fault::argument(text));
    }
    let delivered = flags & NEMESIA_RMA_DELIVERED != 0;
    let complete = if delivered { CompleteAt::Target } else { CompleteAt::Origin };
    Ok((flags & NEMESIA_RMA_NOTIFY != 0, complete))
}

pub(crate) fn reduction_of(op: u32) -> Result<Reduction, Fault> {
    let found = Reduction::ALL.get(op as usize).copied();
    found.ok_or_else(|| Fault::argument(format!("op is {op}: it must be one of NEMESIA_OP_...")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_header_are_those_of_the_library() {
        let types = [
            NEMESIA_TYPE_I32,
            NEMESIA_TYPE_I64,
            NEMESIA_TYPE_U32,
            NEMESIA_TYPE_U64,
            NEMESIA_TYPE_F32,
            NEMESIA_TYPE_F64,
            NEMESIA_TYPE_I8,
            NEMESIA_TYPE_U8,
            NEMESIA_TYPE_I16,
            NEMESIA_TYPE_U16,
        ];
        for (number, datatype) in types.into_iter().zip(Datatype::ALL) {
            assert_eq!((number, datatype_of(number)), (datatype as u32, Ok(datatype)));
        }
        let ops = [
            NEMESIA_OP_SUM,
            NEMESIA_OP_PRODUCT,
            NEMESIA_OP_MIN,
            NEMESIA_OP_MAX,
            NEMESIA_OP_AND,
            NEMESIA_OP_OR,
            NEMESIA_OP_XOR,
            NEMESIA_OP_REPLACE,
            NEMESIA_OP_NOTHING,
            NEMESIA_OP_LOGICAL_AND,
            NEMESIA_OP_LOGICAL_OR,
            NEMESIA_OP_LOGICAL_XOR,
        ];
        for (number, reduction) in ops.into_iter().zip(Reduction::ALL) {
            assert_eq!((number, reduction_of(number)), (reduction as u32, Ok(reduction)));
        }
        assert!(datatype_of(10).is_err() && reduction_of(12).is_err());
        assert_eq!(size_of::<RemoteKey>(), KEY_BYTES + 8, "no padding");
    }
}
