//! Atomic operations that return the old values.

use std::ffi::c_void;

use nemesia::{Comparison, Datatype, Endpoint as Inner, Reduction};

use crate::boundary::{Out, check_buffer, guard};
use crate::endpoint::{Endpoint, on};
use crate::request::number;
use crate::rma::{RemoteKey, datatype_of, key_of, reduction_of, value_of};
use crate::status::{Fault, NEMESIA_OK};

/// Compare and swap: if the bits of the expected value and of the value in memory are equal.
pub const NEMESIA_COMPARE_EQUAL: u32 = 16;
/// Compare and swap: if the bits of the expected value and of the value in memory differ.
pub const NEMESIA_COMPARE_NOT_EQUAL: u32 = 17;
/// Compare and swap: if the expected value is less than the value in memory, or equal. A NaN is in no order.
pub const NEMESIA_COMPARE_LESS_OR_EQUAL: u32 = 18;
/// Compare and swap: if the expected value is less than the value in memory.
pub const NEMESIA_COMPARE_LESS: u32 = 19;
/// Compare and swap: if the expected value is greater than the value in memory, or equal.
pub const NEMESIA_COMPARE_GREATER_OR_EQUAL: u32 = 20;
/// Compare and swap: if the expected value is greater than the value in memory.
pub const NEMESIA_COMPARE_GREATER: u32 = 21;
/// Compare and swap: always, but only the bits that are set in the expected value; integers only.
pub const NEMESIA_COMPARE_MASKED: u32 = 22;

/// Writes whether an atomic operation is defined for a type. All that are defined are supported, with every kind of
/// memory and by every path.
///
/// - `datatype`: NEMESIA_TYPE_...
/// - `op`: NEMESIA_OP_... of an accumulate or a fetch, or NEMESIA_COMPARE_... of a compare and swap.
/// - `out_supported`: written on success; false also for a number that this version has no type or operation for.
///
/// Returns: NEMESIA_OK; NEMESIA_ERR_ARGUMENT or _PANIC.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_atomic_supported(datatype: u32, op: u32, out_supported: *mut bool) -> i32 {
    let work = || {
        // SAFETY: the caller's pointer, null or valid.
        let out = unsafe { Out::required(out_supported, "out_supported") }?;
        out.write(datatype_of(datatype).is_ok_and(|datatype| supports(datatype, op)));
        Ok(NEMESIA_OK)
    };
    guard(work, || ())
}

fn supports(datatype: Datatype, op: u32) -> bool {
    match (reduction_of(op), comparison_of(op)) {
        (Ok(reduction), _) => datatype.allows(reduction),
        (_, Ok(comparison)) => datatype.allows_comparison(comparison),
        _ => false,
    }
}

pub(crate) fn comparison_of(op: u32) -> Result<Comparison, Fault> {
    let found = op.checked_sub(NEMESIA_COMPARE_EQUAL).and_then(|at| Comparison::ALL.get(at as usize));
    found
        .copied()
        .ok_or_else(|| Fault::argument(format!("op is {op}: it must be one of NEMESIA_COMPARE_...")))
}

/// Starts to combine one operand into one value of another process, atomically, and to fetch the old value.
///
/// - `endpoint`, `key`, `offset`, `datatype`, `op`: as for `nemesia_endpoint_iaccumulate`.
/// - `operand`: one value of that type. NEMESIA_OP_NOTHING ignores it, but it must not be NULL.
/// - `out_old`: receives one value of that type; written when the request is complete.
/// - `out_request`: written on success.
///
/// Returns: as `nemesia_endpoint_iaccumulate`.
/// Ownership: the operand is copied. The request holds `out_old` as the request of `nemesia_endpoint_iget`
/// holds its buffer.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_ifetch(
    endpoint: *mut Endpoint,
    key: *const RemoteKey,
    offset: u64,
    datatype: u32,
    op: u32,
    operand: *const c_void,
    out_old: *mut c_void,
    out_request: *mut u64,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointers, null or valid.
        let (key, out) = unsafe { (key_of(key)?, Out::required(out_request, "out_request")?) };
        let what = (datatype_of(datatype)?, reduction_of(op)?);
        check_buffer(out_old.cast::<u8>(), what.0.bytes(), "out_old")?;
        // SAFETY: the caller's pointer, null or to a value of that type.
        let operand = unsafe { value_of(what.0, operand, "operand") }?;
        // SAFETY: the caller's promise: `out_old` stays valid until the request is complete.
        let request = unsafe { endpoint.ifetch(&key, offset, what, operand, out_old.cast()) }?;
        out.write(number(request));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Starts to combine an array of operands into an array of values of another process, and to fetch the old
/// values (as MPI_Get_accumulate). Atomic for each value.
///
/// - `endpoint`, `key`, `offset`, `datatype`, `op`: as for `nemesia_endpoint_iaccumulate`.
/// - `operands`, `count`: `count` values of that type. NEMESIA_OP_NOTHING ignores them, and they may be NULL.
/// - `out_old`: receives `count` values; must not overlap `operands` (MPI 4.1, section 12.3.4), because the
///   first old values may arrive before the last operands have left. Written when the request is complete.
///   After an error its contents are unspecified, and a part of the operation may have been executed.
/// - `out_request`: written on success.
///
/// Returns: as `nemesia_endpoint_iaccumulate`; NEMESIA_ERR_ARGUMENT if `operands` and `out_old` overlap.
/// Ownership: the request holds `operands` as the request of `nemesia_endpoint_iput` holds its buffer, and
/// `out_old` as that of `nemesia_endpoint_iget`.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_ifetch_accumulate(
    endpoint: *mut Endpoint,
    key: *const RemoteKey,
    offset: u64,
    datatype: u32,
    op: u32,
    operands: *const c_void,
    count: usize,
    out_old: *mut c_void,
    out_request: *mut u64,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointers, null or valid.
        let (key, out) = unsafe { (key_of(key)?, Out::required(out_request, "out_request")?) };
        let what = (datatype_of(datatype)?, reduction_of(op)?);
        let len = count.saturating_mul(what.0.bytes());
        check_buffer(out_old.cast::<u8>(), len, "out_old")?;
        if what.1 != Reduction::Nothing {
            check_buffer(operands.cast::<u8>(), len, "operands")?;
            if operands.addr().abs_diff(out_old.addr()) < len {
                return Err(Fault::argument(
                    "operands and out_old overlap: old values would be written over operands that have not left yet; \
                    give \
                     them memory apart",
                ));
            }
        }
        let (operands, old) = (operands.cast(), out_old.cast());
        // SAFETY: the caller's promise: both arrays stay valid until the request is complete.
        let request = unsafe { endpoint.ifetch_accumulate(&key, offset, what, operands, old, len) }?;
        out.write(number(request));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}

/// Starts to replace one value of another process if it compares with the expected one as stated, atomically, and to
/// fetch the old value.
///
/// - `endpoint`, `key`, `offset`, `datatype`, `out_old`, `out_request`: as for `nemesia_endpoint_ifetch`.
/// - `op`: NEMESIA_COMPARE_...
/// - `expected`, `value`: one value of that type each.
///
/// Returns: as `nemesia_endpoint_ifetch`.
/// Ownership: as for `nemesia_endpoint_ifetch`.
/// Threads: one at a time, or any number with NEMESIA_THREADS_MULTIPLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nemesia_endpoint_icompare_swap(
    endpoint: *mut Endpoint,
    key: *const RemoteKey,
    offset: u64,
    datatype: u32,
    op: u32,
    expected: *const c_void,
    value: *const c_void,
    out_old: *mut c_void,
    out_request: *mut u64,
) -> i32 {
    let work = |endpoint: &mut Inner| {
        // SAFETY: the caller's pointers, null or valid.
        let (key, out) = unsafe { (key_of(key)?, Out::required(out_request, "out_request")?) };
        let (datatype, comparison) = (datatype_of(datatype)?, comparison_of(op)?);
        check_buffer(out_old.cast::<u8>(), datatype.bytes(), "out_old")?;
        // SAFETY: the caller's pointers, null or to a value of that type each.
        let values =
            unsafe { [value_of(datatype, expected, "expected")?, value_of(datatype, value, "value")?] };
        let what = (datatype, comparison);
        // SAFETY: the caller's promise: `out_old` stays valid until the request is complete.
        let request = unsafe { endpoint.icompare_swap(&key, offset, what, values, out_old.cast()) }?;
        out.write(number(request));
        Ok(NEMESIA_OK)
    };
    // SAFETY: the caller's endpoint, or null.
    unsafe { on(endpoint, work) }
}
