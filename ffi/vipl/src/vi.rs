//! VIs and their descriptors.

use std::ffi::{c_char, c_int, c_ulong, c_void};

use nemesia::internals::via::{Callback, CompletedDescriptor, ViTransport};
use nemesia_core::via::ViaError;
use nemesia_core::via::vi::ViQueue;

use crate::boundary::{c_attributes, call, give, handle, number, require, take, vi_attributes};
use crate::types::{CViAttributes, Handle};

/// The callback of `VipSendNotify` and `VipRecvNotify`.
type DescriptorCallback = extern "C" fn(*mut c_void, Handle, Handle, *mut c_void);

/// Creates a VI. The completion queues may be null.
///
/// # Safety
/// The pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCreateVi(
    nic: Handle,
    attributes: *const CViAttributes,
    send: Handle,
    receive: Handle,
    vi: *mut Handle,
) -> i32 {
    call(|provider| {
        require(vi)?;
        // SAFETY: the caller's promise.
        let attributes = vi_attributes(&unsafe { take(attributes) }?)?;
        let queue = |queue: Handle| (!queue.is_null()).then(|| number(queue));
        let created = provider.create_vi(number(nic), attributes, [queue(send), queue(receive)])?;
        // SAFETY: the caller's promise.
        unsafe { give(vi, handle(created)) }
    })
}

/// Destroys an idle VI without descriptors.
#[unsafe(no_mangle)]
pub extern "C" fn VipDestroyVi(vi: Handle) -> i32 {
    call(|provider| provider.destroy_vi(number(vi)))
}

/// Changes the attributes of an idle VI.
///
/// # Safety
/// The pointer is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipSetViAttributes(vi: Handle, attributes: *const CViAttributes) -> i32 {
    call(|provider| {
        // SAFETY: the caller's promise.
        let attributes = vi_attributes(&unsafe { take(attributes) }?)?;
        provider.set_vi_attributes(number(vi), attributes)
    })
}

/// Returns the state of a VI. Each place may be null.
///
/// # Safety
/// The pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipQueryVi(
    vi: Handle,
    state: *mut c_int,
    attributes: *mut CViAttributes,
    send_empty: *mut c_int,
    receive_empty: *mut c_int,
) -> i32 {
    call(|provider| {
        let found = provider.query_vi(number(vi))?;
        if !state.is_null() {
            // SAFETY: not null, so valid.
            unsafe { state.write(found.state as c_int) };
        }
        if !attributes.is_null() {
            // SAFETY: not null, so valid.
            unsafe { attributes.write(c_attributes(&found.attributes)) };
        }
        for (place, is_empty) in [(send_empty, found.is_send_empty), (receive_empty, found.is_receive_empty)]
        {
            if !place.is_null() {
                // SAFETY: not null, so valid.
                unsafe { place.write(is_empty.into()) };
            }
        }
        Ok(())
    })
}

/// Posts a descriptor to the send queue.
#[unsafe(no_mangle)]
pub extern "C" fn VipPostSend(vi: Handle, descriptor: *mut c_void, memory: u32) -> i32 {
    call(|provider| provider.post(number(vi), ViQueue::Send, descriptor.cast(), memory))
}

/// Posts a descriptor to the receive queue.
#[unsafe(no_mangle)]
pub extern "C" fn VipPostRecv(vi: Handle, descriptor: *mut c_void, memory: u32) -> i32 {
    call(|provider| provider.post(number(vi), ViQueue::Receive, descriptor.cast(), memory))
}

/// Passes a finished descriptor to the program. If there is none, the program gets a null pointer.
///
/// # Safety
/// The pointer is valid.
unsafe fn finish(
    place: *mut *mut c_void,
    result: Result<CompletedDescriptor, ViaError>,
) -> Result<(), ViaError> {
    let (address, result) = match result {
        Ok(done) if done.has_failed => (done.address, Err(ViaError::DescriptorError)),
        Ok(done) => (done.address, Ok(())),
        Err(error) => (0, Err(error)),
    };
    // SAFETY: the caller's promise.
    unsafe { give(place, std::ptr::with_exposed_provenance_mut(address as usize)) }?;
    result
}

/// As `finish`, for a call that takes a descriptor of a queue.
///
/// # Safety
/// The pointer is null or valid.
unsafe fn done(vi: Handle, queue: ViQueue, limit: Option<c_ulong>, place: *mut *mut c_void) -> i32 {
    call(|provider| {
        require(place)?;
        let result = match limit {
            None => provider.done(number(vi), queue),
            Some(limit) => provider.wait(number(vi), queue, limit),
        };
        // SAFETY: not null, so valid.
        unsafe { finish(place, result) }
    })
}

/// Takes the oldest descriptor of the send queue, if it has ended.
///
/// # Safety
/// The pointer is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipSendDone(vi: Handle, descriptor: *mut *mut c_void) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { done(vi, ViQueue::Send, None, descriptor) }
}

/// Takes the oldest descriptor of the receive queue, if it has ended.
///
/// # Safety
/// The pointer is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipRecvDone(vi: Handle, descriptor: *mut *mut c_void) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { done(vi, ViQueue::Receive, None, descriptor) }
}

/// Waits for the oldest descriptor of the send queue, and takes it.
///
/// # Safety
/// The pointer is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipSendWait(vi: Handle, limit: c_ulong, descriptor: *mut *mut c_void) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { done(vi, ViQueue::Send, Some(limit), descriptor) }
}

/// Waits for the oldest descriptor of the receive queue, and takes it.
///
/// # Safety
/// The pointer is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipRecvWait(vi: Handle, limit: c_ulong, descriptor: *mut *mut c_void) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { done(vi, ViQueue::Receive, Some(limit), descriptor) }
}

fn notify(vi: Handle, queue: ViQueue, context: *mut c_void, callback: Option<DescriptorCallback>) -> i32 {
    call(|provider| {
        let callback = callback.ok_or(ViaError::InvalidParameter)?;
        provider.notify_descriptor(number(vi), queue, context, Callback::Descriptor(callback))
    })
}

/// Registers a callback for the next finished descriptor of the send queue.
#[unsafe(no_mangle)]
pub extern "C" fn VipSendNotify(
    vi: Handle,
    context: *mut c_void,
    callback: Option<DescriptorCallback>,
) -> i32 {
    notify(vi, ViQueue::Send, context, callback)
}

/// Registers a callback for the next finished descriptor of the receive queue.
#[unsafe(no_mangle)]
pub extern "C" fn VipRecvNotify(
    vi: Handle,
    context: *mut c_void,
    callback: Option<DescriptorCallback>,
) -> i32 {
    notify(vi, ViQueue::Receive, context, callback)
}

/// Returns how a VI reaches the other side, and a line that explains it.
///
/// # Safety
/// The pointers are null or valid, and the explanation has the given room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipQueryViTransport(
    vi: Handle,
    transport: *mut c_int,
    explanation: *mut c_char,
    len: c_ulong,
) -> i32 {
    call(|provider| {
        let (found, text) = provider.transport(number(vi))?;
        let code = match found {
            ViTransport::None => 0,
            ViTransport::SharedMemory => 1,
            ViTransport::Tcp => 2,
            ViTransport::Verbs => 3,
        };
        // SAFETY: the caller's promise.
        unsafe { give(transport, code) }?;
        let room = usize::try_from(len).unwrap_or(usize::MAX);
        if explanation.is_null() || room == 0 {
            return Ok(());
        }
        let bytes = text.as_bytes();
        let count = bytes.len().min(room - 1);
        // SAFETY: the caller's promise: room for these bytes and a zero.
        unsafe {
            explanation.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), count);
            explanation.add(count).write(0);
        }
        Ok(())
    })
}
