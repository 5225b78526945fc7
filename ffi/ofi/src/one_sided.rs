//! The calls for one-sided operations.

use std::ffi::c_void;

use libc::iovec;

use crate::bindings::{self as fi, fi_msg_rma, fi_ops_rma, fid_ep};
use crate::object::{Constant, Errno, call_now, object};
use crate::port::{Accessing, Runs};
use crate::state::EndpointObject;

/// The flags that an operation may have.
const FLAGS: u64 = fi::FI_COMPLETION as u64
    | fi::FI_MORE as u64
    | fi::FI_INJECT as u64
    | fi::FI_INJECT_COMPLETE as u64
    | fi::FI_TRANSMIT_COMPLETE as u64
    | fi::FI_DELIVERY_COMPLETE as u64
    | DATA;
const DATA: u64 = fi::FI_REMOTE_CQ_DATA as u64;
const INJECT: u64 = fi::FI_INJECT as u64;

pub(crate) static OPS: Constant<fi_ops_rma> = Constant(fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read: Some(read),
    readv: Some(read_list),
    readmsg: Some(read_message),
    write: Some(write),
    writev: Some(write_list),
    writemsg: Some(write_message),
    inject: Some(inject),
    writedata: Some(write_data),
    injectdata: Some(inject_data),
});

/// Starts an operation, whose flags are those of the endpoint or `flags`.
///
/// # Safety
/// The application's promise for a call of this kind.
unsafe fn access(
    endpoint: *mut fid_ep,
    runs: Runs,
    flags: Option<u64>,
    describe: impl FnOnce(u64) -> Accessing,
) -> Result<isize, Errno> {
    // SAFETY: the application's endpoint.
    let it: &EndpointObject = unsafe { object(endpoint) }?;
    it.with(|port, around| {
        let accessing = describe(flags.unwrap_or(port.default_flags(true)));
        // SAFETY: the application's memory, until the completion or, with FI_INJECT, during the call.
        unsafe { port.access(runs, &accessing, around) }
    })?;
    Ok(0)
}

unsafe extern "C" fn read(
    endpoint: *mut fid_ep,
    buffer: *mut c_void,
    len: usize,
    _descriptor: *mut c_void,
    of: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let run = iovec { iov_base: buffer, iov_len: len };
    let (runs, context) = (Runs { first: &raw const run, count: 1 }, context as usize);
    let describe =
        |flags| Accessing { is_read: true, of, offset, key, data: None, flags, context, is_silent: false };
    // SAFETY: the same contract.
    call_now(|| unsafe { access(endpoint, runs, None, describe) })
}

unsafe extern "C" fn read_list(
    endpoint: *mut fid_ep,
    list: *const iovec,
    _descriptors: *mut *mut c_void,
    count: usize,
    of: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let context = context as usize;
    let describe =
        |flags| Accessing { is_read: true, of, offset, key, data: None, flags, context, is_silent: false };
    // SAFETY: the same contract.
    call_now(|| unsafe { access(endpoint, Runs { first: list, count }, None, describe) })
}

unsafe extern "C" fn write(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    len: usize,
    _descriptor: *mut c_void,
    of: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let run = iovec { iov_base: buffer.cast_mut(), iov_len: len };
    let (runs, context) = (Runs { first: &raw const run, count: 1 }, context as usize);
    let describe =
        |flags| Accessing { is_read: false, of, offset, key, data: None, flags, context, is_silent: false };
    // SAFETY: the same contract.
    call_now(|| unsafe { access(endpoint, runs, None, describe) })
}

unsafe extern "C" fn write_list(
    endpoint: *mut fid_ep,
    list: *const iovec,
    _descriptors: *mut *mut c_void,
    count: usize,
    of: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let context = context as usize;
    let describe =
        |flags| Accessing { is_read: false, of, offset, key, data: None, flags, context, is_silent: false };
    // SAFETY: the same contract.
    call_now(|| unsafe { access(endpoint, Runs { first: list, count }, None, describe) })
}

unsafe extern "C" fn inject(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    len: usize,
    of: u64,
    offset: u64,
    key: u64,
) -> isize {
    let run = iovec { iov_base: buffer.cast_mut(), iov_len: len };
    let runs = Runs { first: &raw const run, count: 1 };
    let describe = |flags| Accessing {
        is_read: false,
        of,
        offset,
        key,
        data: None,
        flags: flags | INJECT,
        context: 0,
        is_silent: true,
    };
    // SAFETY: the same contract.
    call_now(|| unsafe { access(endpoint, runs, None, describe) })
}

/// Starts the operation of a structure.
///
/// # Safety
/// The application's promise for a call of this kind.
unsafe fn access_message(
    endpoint: *mut fid_ep,
    message: *const fi_msg_rma,
    flags: u64,
    is_read: bool,
) -> isize {
    call_now(|| {
        // SAFETY: the application's structure, null or valid.
        let it = unsafe { message.as_ref() }.ok_or(Errno::INVALID)?;
        if flags & !FLAGS != 0 {
            return Err(Errno::BAD_FLAGS);
        }
        // SAFETY: the list in it, null or valid.
        let place = unsafe { it.rma_iov.as_ref() }.filter(|_| it.rma_iov_count == 1).ok_or(Errno::INVALID)?;
        let (of, offset, key) = (it.addr, place.addr, place.key);
        let runs = Runs { first: it.msg_iov, count: it.iov_count };
        let context = it.context as usize;
        let data = (!is_read && flags & DATA != 0).then_some(it.data);
        let describe = |flags| Accessing { is_read, of, offset, key, data, flags, context, is_silent: false };
        // SAFETY: the same contract.
        unsafe { access(endpoint, runs, Some(flags), describe) }
    })
}

unsafe extern "C" fn read_message(endpoint: *mut fid_ep, message: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: the same contract.
    unsafe { access_message(endpoint, message, flags, true) }
}

unsafe extern "C" fn write_message(endpoint: *mut fid_ep, message: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: the same contract.
    unsafe { access_message(endpoint, message, flags, false) }
}

unsafe extern "C" fn write_data(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    len: usize,
    _descriptor: *mut c_void,
    data: u64,
    of: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let run = iovec { iov_base: buffer.cast_mut(), iov_len: len };
    let (runs, context) = (Runs { first: &raw const run, count: 1 }, context as usize);
    let data = Some(data);
    let describe =
        |flags| Accessing { is_read: false, of, offset, key, data, flags, context, is_silent: false };
    // SAFETY: the same contract.
    call_now(|| unsafe { access(endpoint, runs, None, describe) })
}

unsafe extern "C" fn inject_data(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    len: usize,
    data: u64,
    of: u64,
    offset: u64,
    key: u64,
) -> isize {
    let run = iovec { iov_base: buffer.cast_mut(), iov_len: len };
    let (runs, data, context) = (Runs { first: &raw const run, count: 1 }, Some(data), 0);
    let describe = |flags| Accessing {
        is_read: false,
        of,
        offset,
        key,
        data,
        flags: flags | INJECT,
        context,
        is_silent: true,
    };
    // SAFETY: the same contract.
    call_now(|| unsafe { access(endpoint, runs, None, describe) })
}
