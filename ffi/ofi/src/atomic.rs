//! The calls for atomic operations.

use std::ffi::{c_int, c_void};

use nemesia::{Comparison, Datatype, Reduction, Segment};

use crate::bindings::{
    self as fi, fi_atomic_attr, fi_datatype, fi_ioc, fi_msg_atomic, fi_op, fi_ops_atomic, fid_domain, fid_ep,
};
use crate::info::{ATOMIC_BYTES, MOST_RUNS};
use crate::object::{Constant, Errno, call_int, call_now, object};
use crate::port::{AtomicAction, AtomicCall, AtomicRuns};
use crate::state::EndpointObject;

/// The flags that an operation may have.
const FLAGS: u64 = fi::FI_COMPLETION as u64
    | fi::FI_MORE as u64
    | fi::FI_INJECT as u64
    | fi::FI_INJECT_COMPLETE as u64
    | fi::FI_TRANSMIT_COMPLETE as u64
    | fi::FI_DELIVERY_COMPLETE as u64;
const INJECT: u64 = fi::FI_INJECT as u64;

pub(crate) static OPS: Constant<fi_ops_atomic> = Constant(fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write: Some(change),
    writev: Some(change_list),
    writemsg: Some(change_message),
    inject: Some(inject),
    readwrite: Some(fetch),
    readwritev: Some(fetch_list),
    readwritemsg: Some(fetch_message),
    compwrite: Some(swap),
    compwritev: Some(swap_list),
    compwritemsg: Some(swap_message),
    writevalid: Some(can_change),
    readwritevalid: Some(can_fetch),
    compwritevalid: Some(can_swap),
});

/// The three kinds of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallKind {
    Change,
    Fetch,
    Swap,
}

/// The peer's memory, and what is done with it, as the application names them.
#[derive(Clone, Copy)]
struct Wanted {
    kind: CallKind,
    of: u64,
    offset: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
    /// `None`: those of the endpoint.
    flags: Option<u64>,
    is_silent: bool,
}

/// Runs of values, as the application names them.
type Ioc = (*const fi_ioc, usize);

const NONE: Ioc = (std::ptr::null(), 0);

fn datatype_of(datatype: fi_datatype) -> Result<Datatype, Errno> {
    Ok(match datatype {
        fi::FI_INT8 => Datatype::I8,
        fi::FI_UINT8 => Datatype::U8,
        fi::FI_INT16 => Datatype::I16,
        fi::FI_UINT16 => Datatype::U16,
        fi::FI_INT32 => Datatype::I32,
        fi::FI_UINT32 => Datatype::U32,
        fi::FI_INT64 => Datatype::I64,
        fi::FI_UINT64 => Datatype::U64,
        fi::FI_FLOAT => Datatype::F32,
        fi::FI_DOUBLE => Datatype::F64,
        _ => return Err(Errno::NO_SUPPORT),
    })
}

fn reduction_of(op: fi_op) -> Option<Reduction> {
    Some(match op {
        fi::FI_MIN => Reduction::Min,
        fi::FI_MAX => Reduction::Max,
        fi::FI_SUM => Reduction::Sum,
        fi::FI_PROD => Reduction::Product,
        fi::FI_LOR => Reduction::LogicalOr,
        fi::FI_LAND => Reduction::LogicalAnd,
        fi::FI_BOR => Reduction::Or,
        fi::FI_BAND => Reduction::And,
        fi::FI_LXOR => Reduction::LogicalXor,
        fi::FI_BXOR => Reduction::Xor,
        fi::FI_ATOMIC_READ => Reduction::Nothing,
        fi::FI_ATOMIC_WRITE => Reduction::Replace,
        _ => return None,
    })
}

fn comparison_of(op: fi_op) -> Option<Comparison> {
    Some(match op {
        fi::FI_CSWAP => Comparison::Equal,
        fi::FI_CSWAP_NE => Comparison::NotEqual,
        fi::FI_CSWAP_LE => Comparison::LessOrEqual,
        fi::FI_CSWAP_LT => Comparison::Less,
        fi::FI_CSWAP_GE => Comparison::GreaterOrEqual,
        fi::FI_CSWAP_GT => Comparison::Greater,
        fi::FI_MSWAP => Comparison::Masked,
        _ => return None,
    })
}

/// Returns the type and the action of an operation, or -FI_EOPNOTSUPP.
fn action_of(kind: CallKind, datatype: fi_datatype, op: fi_op) -> Result<(Datatype, AtomicAction), Errno> {
    let datatype = datatype_of(datatype)?;
    let action = match kind {
        CallKind::Change => reduction_of(op).map(AtomicAction::Change),
        CallKind::Fetch => reduction_of(op).map(AtomicAction::Fetch),
        CallKind::Swap => comparison_of(op).map(AtomicAction::Swap),
    };
    let action = action.filter(|action| action.is_defined(datatype)).ok_or(Errno::NO_SUPPORT)?;
    Ok((datatype, action))
}

/// Writes the application's runs into `place`, in bytes.
///
/// # Safety
/// The list is null, or has so many runs.
unsafe fn runs_of(
    (first, count): Ioc,
    datatype: Datatype,
    place: &mut [Segment; MOST_RUNS],
) -> Result<&[Segment], Errno> {
    if count > MOST_RUNS || count > 0 && first.is_null() {
        return Err(Errno::INVALID);
    }
    for (at, run) in place[..count].iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        let ioc = unsafe { first.add(at).read() };
        let len = ioc.count.checked_mul(datatype.bytes()).filter(|len| *len <= ATOMIC_BYTES);
        *run = Segment { base: ioc.addr.cast(), len: len.ok_or(Errno::INVALID)? };
        if run.base.is_null() && run.len > 0 {
            return Err(Errno::INVALID);
        }
    }
    Ok(&place[..count])
}

/// Starts an operation.
///
/// # Safety
/// The application's promise for a call of this kind.
unsafe fn start(endpoint: *mut fid_ep, wanted: &Wanted, operands: Ioc, compared: Ioc, results: Ioc) -> isize {
    call_now(|| {
        // SAFETY: the application's endpoint.
        let it: &EndpointObject = unsafe { object(endpoint) }?;
        let (datatype, action) = action_of(wanted.kind, wanted.datatype, wanted.op)?;
        // The operands of a read are ignored, whatever they are.
        let reads_nothing = matches!(action, AtomicAction::Fetch(Reduction::Nothing));
        let operands = if reads_nothing { NONE } else { operands };
        let mut places = [[Segment { base: std::ptr::null_mut(), len: 0 }; MOST_RUNS]; 3];
        let [first, second, third] = &mut places;
        // SAFETY: the application's lists.
        let runs = unsafe {
            AtomicRuns {
                operands: runs_of(operands, datatype, first)?,
                compared: runs_of(compared, datatype, second)?,
                results: runs_of(results, datatype, third)?,
            }
        };
        let Wanted { of, offset, key, is_silent, .. } = *wanted;
        it.with(|port, around| {
            let flags = wanted.flags.unwrap_or(port.default_flags(true));
            let context = wanted.context as usize;
            let atomic = AtomicCall { action, datatype, of, offset, key, flags, context, is_silent };
            // SAFETY: the application's memory, until the completion.
            unsafe { port.atomic(runs, &atomic, around) }
        })?;
        Ok(0)
    })
}

/// Returns what the application's structure describes.
///
/// # Safety
/// The structure and its list are null or valid.
unsafe fn described(
    kind: CallKind,
    message: *const fi_msg_atomic,
    flags: u64,
) -> Result<(Wanted, Ioc), Errno> {
    // SAFETY: the caller's promise.
    let it = unsafe { message.as_ref() }.ok_or(Errno::INVALID)?;
    if flags & !FLAGS != 0 {
        return Err(Errno::BAD_FLAGS);
    }
    // SAFETY: the caller's promise.
    let place = unsafe { it.rma_iov.as_ref() }.filter(|_| it.rma_iov_count == 1).ok_or(Errno::INVALID)?;
    let wanted = Wanted {
        kind,
        of: it.addr,
        offset: place.addr,
        key: place.key,
        datatype: it.datatype,
        op: it.op,
        context: it.context,
        flags: Some(flags),
        is_silent: false,
    };
    Ok((wanted, (it.msg_iov, it.iov_count)))
}

/// Starts the operation of a structure.
///
/// # Safety
/// The application's promise for a call of this kind.
unsafe fn start_message(
    endpoint: *mut fid_ep,
    (kind, message, flags): (CallKind, *const fi_msg_atomic, u64),
    compared: Ioc,
    results: Ioc,
) -> isize {
    // SAFETY: the application's structure.
    match unsafe { described(kind, message, flags) } {
        // SAFETY: the same contract.
        Ok((wanted, operands)) => unsafe { start(endpoint, &wanted, operands, compared, results) },
        Err(Errno(error)) => -(error as isize),
    }
}

const fn ioc(addr: *const c_void, count: usize) -> fi_ioc {
    fi_ioc { addr: addr.cast_mut(), count }
}

unsafe extern "C" fn change(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    count: usize,
    _descriptor: *mut c_void,
    of: u64,
    offset: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let (kind, operands) = (CallKind::Change, ioc(buffer, count));
    let wanted = Wanted { kind, of, offset, key, datatype, op, context, flags: None, is_silent: false };
    // SAFETY: the same contract.
    unsafe { start(endpoint, &wanted, (&raw const operands, 1), NONE, NONE) }
}

unsafe extern "C" fn change_list(
    endpoint: *mut fid_ep,
    list: *const fi_ioc,
    _descriptors: *mut *mut c_void,
    count: usize,
    of: u64,
    offset: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let kind = CallKind::Change;
    let wanted = Wanted { kind, of, offset, key, datatype, op, context, flags: None, is_silent: false };
    // SAFETY: the same contract.
    unsafe { start(endpoint, &wanted, (list, count), NONE, NONE) }
}

unsafe extern "C" fn change_message(
    endpoint: *mut fid_ep,
    message: *const fi_msg_atomic,
    flags: u64,
) -> isize {
    // SAFETY: the same contract.
    unsafe { start_message(endpoint, (CallKind::Change, message, flags), NONE, NONE) }
}

unsafe extern "C" fn inject(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    count: usize,
    of: u64,
    offset: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
) -> isize {
    let (kind, operands, context) = (CallKind::Change, ioc(buffer, count), std::ptr::null_mut());
    let wanted =
        Wanted { kind, of, offset, key, datatype, op, context, flags: Some(INJECT), is_silent: true };
    // SAFETY: the same contract.
    unsafe { start(endpoint, &wanted, (&raw const operands, 1), NONE, NONE) }
}

unsafe extern "C" fn fetch(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    count: usize,
    _descriptor: *mut c_void,
    result: *mut c_void,
    _result_descriptor: *mut c_void,
    of: u64,
    offset: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let (kind, operands, results) = (CallKind::Fetch, ioc(buffer, count), ioc(result, count));
    let wanted = Wanted { kind, of, offset, key, datatype, op, context, flags: None, is_silent: false };
    // SAFETY: the same contract.
    unsafe { start(endpoint, &wanted, (&raw const operands, 1), NONE, (&raw const results, 1)) }
}

unsafe extern "C" fn fetch_list(
    endpoint: *mut fid_ep,
    list: *const fi_ioc,
    _descriptors: *mut *mut c_void,
    count: usize,
    results: *mut fi_ioc,
    _result_descriptors: *mut *mut c_void,
    result_count: usize,
    of: u64,
    offset: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let kind = CallKind::Fetch;
    let wanted = Wanted { kind, of, offset, key, datatype, op, context, flags: None, is_silent: false };
    // SAFETY: the same contract.
    unsafe { start(endpoint, &wanted, (list, count), NONE, (results, result_count)) }
}

unsafe extern "C" fn fetch_message(
    endpoint: *mut fid_ep,
    message: *const fi_msg_atomic,
    results: *mut fi_ioc,
    _result_descriptors: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let results = (results.cast_const(), result_count);
    // SAFETY: the same contract.
    unsafe { start_message(endpoint, (CallKind::Fetch, message, flags), NONE, results) }
}

unsafe extern "C" fn swap(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    count: usize,
    _descriptor: *mut c_void,
    compare: *const c_void,
    _compare_descriptor: *mut c_void,
    result: *mut c_void,
    _result_descriptor: *mut c_void,
    of: u64,
    offset: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let kind = CallKind::Swap;
    let [operands, compared, results] = [buffer, compare, result.cast_const()].map(|base| ioc(base, count));
    let wanted = Wanted { kind, of, offset, key, datatype, op, context, flags: None, is_silent: false };
    // SAFETY: the same contract.
    unsafe {
        start(endpoint, &wanted, (&raw const operands, 1), (&raw const compared, 1), (&raw const results, 1))
    }
}

unsafe extern "C" fn swap_list(
    endpoint: *mut fid_ep,
    list: *const fi_ioc,
    _descriptors: *mut *mut c_void,
    count: usize,
    compared: *const fi_ioc,
    _compare_descriptors: *mut *mut c_void,
    compare_count: usize,
    results: *mut fi_ioc,
    _result_descriptors: *mut *mut c_void,
    result_count: usize,
    of: u64,
    offset: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let kind = CallKind::Swap;
    let wanted = Wanted { kind, of, offset, key, datatype, op, context, flags: None, is_silent: false };
    // SAFETY: the same contract.
    unsafe { start(endpoint, &wanted, (list, count), (compared, compare_count), (results, result_count)) }
}

unsafe extern "C" fn swap_message(
    endpoint: *mut fid_ep,
    message: *const fi_msg_atomic,
    compared: *const fi_ioc,
    _compare_descriptors: *mut *mut c_void,
    compare_count: usize,
    results: *mut fi_ioc,
    _result_descriptors: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let (compared, results) = ((compared, compare_count), (results.cast_const(), result_count));
    // SAFETY: the same contract.
    unsafe { start_message(endpoint, (CallKind::Swap, message, flags), compared, results) }
}

/// Writes the most values of one operation, or returns -FI_EOPNOTSUPP.
///
/// # Safety
/// The place is null or valid.
unsafe fn answer(kind: CallKind, datatype: fi_datatype, op: fi_op, count: *mut usize) -> Result<(), Errno> {
    let (datatype, action) = action_of(kind, datatype, op)?;
    // SAFETY: the caller's promise.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = action.most(datatype);
    }
    Ok(())
}

unsafe extern "C" fn can_change(
    _: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: the application's place.
    call_int(|| unsafe { answer(CallKind::Change, datatype, op, count) })
}

unsafe extern "C" fn can_fetch(_: *mut fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize) -> c_int {
    // SAFETY: the application's place.
    call_int(|| unsafe { answer(CallKind::Fetch, datatype, op, count) })
}

unsafe extern "C" fn can_swap(_: *mut fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize) -> c_int {
    // SAFETY: the application's place.
    call_int(|| unsafe { answer(CallKind::Swap, datatype, op, count) })
}

/// Writes what the domain can do with values of a type.
pub(crate) unsafe extern "C" fn query(
    _: *mut fid_domain,
    datatype: fi_datatype,
    op: fi_op,
    attr: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    call_int(|| {
        let kind = match flags {
            0 => CallKind::Change,
            fi::FI_FETCH_ATOMIC => CallKind::Fetch,
            fi::FI_COMPARE_ATOMIC => CallKind::Swap,
            _ => return Err(Errno::BAD_FLAGS),
        };
        let (datatype_, action) = action_of(kind, datatype, op)?;
        // SAFETY: the application's place, null or valid.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::INVALID)?;
        (attr.count, attr.size) = (action.most(datatype_), datatype_.bytes());
        Ok(())
    })
}
