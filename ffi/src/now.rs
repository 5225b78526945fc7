//! What is over after some instructions: sends, receives and requests for which no guard against panics is set up, as
//! it hands everything over in memory. Whatever is out of the ordinary is left to the guarded ways, which also tell
//! what it is.

use std::ffi::c_void;
use std::slice;

use nemesia::{Request, Source, Tag};

use crate::boundary::settle;
use crate::endpoint::{Endpoint, at_hand};
use crate::transfer::NEMESIA_ANY_SOURCE;

/// Whether a message has left, without what may panic or needs to be told of. `None` when it was not even tried.
///
/// # Safety
/// As [`at_hand`], and `boundary::bytes`.
#[inline(always)]
pub(crate) unsafe fn send_now(
    endpoint: *mut Endpoint,
    rank: i32,
    tag: u64,
    buffer: *const c_void,
    len: usize,
) -> Option<bool> {
    if buffer.is_null() || len > isize::MAX as usize {
        return None;
    }
    // SAFETY: the caller's promise.
    let endpoint = unsafe { at_hand(endpoint) }?;
    // SAFETY: the caller's buffer, there and no longer than memory.
    let bytes = unsafe { slice::from_raw_parts(buffer.cast::<u8>(), len) };
    // A rank below 0 becomes one that does not exist.
    Some(endpoint.send_now(rank as u32 as usize, tag, bytes))
}

/// Whether a message of 8 bytes has left, as by [`send_now`].
///
/// # Safety
/// As there.
#[inline(always)]
pub(crate) unsafe fn send_word_now(
    endpoint: *mut Endpoint,
    rank: i32,
    tag: u64,
    buffer: *const c_void,
    len: usize,
) -> bool {
    if len != 8 || buffer.is_null() {
        return false;
    }
    // SAFETY: the caller's promise.
    let Some(endpoint) = (unsafe { at_hand(endpoint) }) else { return false };
    // SAFETY: the caller's buffer, of as many bytes.
    let word = unsafe { buffer.cast::<[u8; 8]>().read() };
    endpoint.send_word_now(rank as u32 as usize, tag, word)
}

/// A message that was there, or came at once, without what may panic or needs to be told of.
///
/// # Safety
/// As [`at_hand`], and `boundary::room`.
#[inline(always)]
pub(crate) unsafe fn recv_now(
    endpoint: *mut Endpoint,
    rank: i32,
    (value, ignore): (u64, u64),
    buffer: *mut c_void,
    capacity: usize,
) -> Option<nemesia::Status> {
    if buffer.is_null() || capacity > isize::MAX as usize {
        return None;
    }
    // SAFETY: the caller's promise.
    let endpoint = unsafe { at_hand(endpoint) }?;
    settle(buffer);
    // SAFETY: the caller's buffer, there and no longer than memory; initialised by `settle`.
    let buf = unsafe { slice::from_raw_parts_mut(buffer.cast::<u8>(), capacity) };
    endpoint.recv_soon(source_now(rank), Tag::Masked { value, ignore }, buf)
}

/// A receive that was posted, without what may panic or needs to be told of.
///
/// # Safety
/// As [`at_hand`]; the buffer is the caller's, initialised or not, and stays until the request is complete.
#[inline(always)]
pub(crate) unsafe fn irecv_now(
    endpoint: *mut Endpoint,
    rank: i32,
    (value, ignore): (u64, u64),
    buffer: *mut c_void,
    capacity: usize,
) -> Option<Request> {
    if buffer.is_null() || capacity > isize::MAX as usize {
        return None;
    }
    // SAFETY: the caller's promise.
    let endpoint = unsafe { at_hand(endpoint) }?;
    let tag = Tag::Masked { value, ignore };
    settle(buffer);
    // SAFETY: the caller's promise; initialised by `settle`.
    unsafe { endpoint.irecv_now(source_now(rank), tag, buffer.cast(), capacity) }
}

/// Whom a receive listens to; a rank below 0 becomes one that does not exist.
#[inline(always)]
const fn source_now(rank: i32) -> Source {
    match rank {
        NEMESIA_ANY_SOURCE => Source::Any,
        rank => Source::Rank(rank as u32 as usize),
    }
}
