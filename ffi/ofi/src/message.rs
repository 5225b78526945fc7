//! The calls for messages without a tag.

use std::ffi::c_void;

use crate::bindings::{self as fi, fi_msg, fi_ops_msg, fid_ep};
use crate::object::{Constant, Errno, call_now, object};
use crate::port::{Kind, Receiving, Runs, Sending};
use crate::state::EndpointObject;
use libc::iovec;

const KIND: Kind = Kind::Plain;
const COMPLETION: u64 = fi::FI_COMPLETION as u64;
const INJECT: u64 = fi::FI_INJECT as u64;
/// The flags that a receive may have.
const RECEIVE_FLAGS: u64 = COMPLETION | fi::FI_MORE as u64 | fi::FI_FENCE as u64 | RECEIVE_MORE;
const RECEIVE_MORE: u64 = fi::FI_MULTI_RECV as u64;
/// The flags that a send may have.
const SEND_FLAGS: u64 = COMPLETION
    | INJECT
    | fi::FI_MORE as u64
    | fi::FI_REMOTE_CQ_DATA as u64
    | fi::FI_INJECT_COMPLETE as u64
    | fi::FI_TRANSMIT_COMPLETE as u64
    | fi::FI_DELIVERY_COMPLETE as u64;

pub(crate) static OPS: Constant<fi_ops_msg> = Constant(fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
    recv: Some(receive),
    recvv: Some(receive_list),
    recvmsg: Some(receive_message),
    send: Some(send),
    sendv: Some(send_list),
    sendmsg: Some(send_message),
    inject: Some(inject),
    senddata: Some(send_data),
    injectdata: Some(inject_data),
});

unsafe extern "C" fn receive(
    endpoint: *mut fid_ep,
    buffer: *mut c_void,
    len: usize,
    _descriptor: *mut c_void,
    from: u64,
    context: *mut c_void,
) -> isize {
    call_now(|| {
        // SAFETY: the application's endpoint.
        let it: &EndpointObject = unsafe { object(endpoint) }?;
        let run = iovec { iov_base: buffer, iov_len: len };
        it.with(|port, around| {
            let (flags, context) = (port.default_flags(false), context as usize);
            let receiving = Receiving { kind: KIND, from, tag: 0, ignore: u64::MAX, flags, context };
            // SAFETY: the application's buffer, until the completion.
            unsafe { port.receive_one(&run, &receiving, around) }
        })?;
        Ok(0)
    })
}

unsafe extern "C" fn receive_list(
    endpoint: *mut fid_ep,
    list: *const iovec,
    _descriptors: *mut *mut c_void,
    count: usize,
    from: u64,
    context: *mut c_void,
) -> isize {
    call_now(|| {
        // SAFETY: the application's endpoint.
        let it: &EndpointObject = unsafe { object(endpoint) }?;
        it.with(|port, around| {
            let (flags, context) = (port.default_flags(false), context as usize);
            let receiving = Receiving { kind: KIND, from, tag: 0, ignore: u64::MAX, flags, context };
            // SAFETY: the application's buffers, until the completion.
            unsafe { port.receive(Runs { first: list, count }, &receiving, around) }
        })?;
        Ok(0)
    })
}

unsafe extern "C" fn receive_message(endpoint: *mut fid_ep, message: *const fi_msg, flags: u64) -> isize {
    call_now(|| {
        // SAFETY: the application's endpoint.
        let it: &EndpointObject = unsafe { object(endpoint) }?;
        // SAFETY: the application's structure, null or valid.
        let message = unsafe { message.as_ref() }.ok_or(Errno::INVALID)?;
        if flags & !RECEIVE_FLAGS != 0 {
            return Err(Errno::BAD_FLAGS);
        }
        let context = message.context as usize;
        let receiving =
            Receiving { kind: KIND, from: message.addr, tag: 0, ignore: u64::MAX, flags, context };
        let runs = Runs { first: message.msg_iov, count: message.iov_count };
        // SAFETY: the application's buffers, until the completion.
        it.with(|port, around| unsafe { port.receive(runs, &receiving, around) })?;
        Ok(0)
    })
}

/// Sends one run.
///
/// # Safety
/// The application's promise for a call of this kind.
#[inline]
unsafe fn send_run(
    endpoint: *mut fid_ep,
    (buffer, len): (*const c_void, usize),
    describe: impl FnOnce(u64) -> Sending,
) -> isize {
    call_now(|| {
        // SAFETY: the application's endpoint.
        let it: &EndpointObject = unsafe { object(endpoint) }?;
        it.with(|port, around| {
            let sending = describe(port.default_flags(true));
            // SAFETY: the application's bytes, until the completion or, with FI_INJECT, during the call.
            unsafe { port.send(buffer.cast(), len, &sending, around) }
        })?;
        Ok(0)
    })
}

unsafe extern "C" fn send(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    len: usize,
    _descriptor: *mut c_void,
    to: u64,
    context: *mut c_void,
) -> isize {
    let context = context as usize;
    // SAFETY: the same contract.
    unsafe {
        send_run(endpoint, (buffer, len), |flags| Sending {
            kind: KIND,
            to,
            tag: 0,
            data: None,
            flags,
            context,
            is_silent: false,
        })
    }
}

unsafe extern "C" fn send_data(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    len: usize,
    _descriptor: *mut c_void,
    data: u64,
    to: u64,
    context: *mut c_void,
) -> isize {
    let (data, context) = (Some(data), context as usize);
    // SAFETY: the same contract.
    unsafe {
        send_run(endpoint, (buffer, len), |flags| Sending {
            kind: KIND,
            to,
            tag: 0,
            data,
            flags,
            context,
            is_silent: false,
        })
    }
}

unsafe extern "C" fn inject(endpoint: *mut fid_ep, buffer: *const c_void, len: usize, to: u64) -> isize {
    // SAFETY: the same contract.
    unsafe {
        send_run(endpoint, (buffer, len), |_| Sending {
            kind: KIND,
            to,
            tag: 0,
            data: None,
            flags: INJECT,
            context: 0,
            is_silent: true,
        })
    }
}

unsafe extern "C" fn inject_data(
    endpoint: *mut fid_ep,
    buffer: *const c_void,
    len: usize,
    data: u64,
    to: u64,
) -> isize {
    // SAFETY: the same contract.
    unsafe {
        send_run(endpoint, (buffer, len), |_| Sending {
            kind: KIND,
            to,
            tag: 0,
            data: Some(data),
            flags: INJECT,
            context: 0,
            is_silent: true,
        })
    }
}

unsafe extern "C" fn send_list(
    endpoint: *mut fid_ep,
    list: *const iovec,
    _descriptors: *mut *mut c_void,
    count: usize,
    to: u64,
    context: *mut c_void,
) -> isize {
    call_now(|| {
        // SAFETY: the application's endpoint.
        let it: &EndpointObject = unsafe { object(endpoint) }?;
        it.with(|port, around| {
            let (flags, context) = (port.default_flags(true), context as usize);
            let sending = Sending { kind: KIND, to, tag: 0, data: None, flags, context, is_silent: false };
            // SAFETY: the application's buffers, until the completion.
            unsafe { port.send_runs(Runs { first: list, count }, &sending, around) }
        })?;
        Ok(0)
    })
}

unsafe extern "C" fn send_message(endpoint: *mut fid_ep, message: *const fi_msg, flags: u64) -> isize {
    call_now(|| {
        // SAFETY: the application's endpoint.
        let it: &EndpointObject = unsafe { object(endpoint) }?;
        // SAFETY: the application's structure, null or valid.
        let message = unsafe { message.as_ref() }.ok_or(Errno::INVALID)?;
        if flags & !SEND_FLAGS != 0 {
            return Err(Errno::BAD_FLAGS);
        }
        let data = (flags & u64::from(fi::FI_REMOTE_CQ_DATA) != 0).then_some(message.data);
        let (to, tag, context) = (message.addr, 0, message.context as usize);
        let sending = Sending { kind: KIND, to, tag, data, flags, context, is_silent: false };
        let runs = Runs { first: message.msg_iov, count: message.iov_count };
        // SAFETY: the application's buffers, until the completion or, with FI_INJECT, during the call.
        it.with(|port, around| unsafe { port.send_runs(runs, &sending, around) })?;
        Ok(0)
    })
}
