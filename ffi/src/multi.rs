//! Buffers that receive one message after the other.

use nemesia::{Endpoint as Inner, MultiReceiveOptions, Request, Tag};

use crate::boundary::check_buffer;
use crate::operation::Operation;
use crate::status::Fault;
use crate::transfer::source;

/// A buffer that receives one message after the other, each behind the one before: `context`, `rank`, `tag`, `ignore`,
/// `buffer` and `len`, with NEMESIA_OPERATION_COMPLETION in `flags`. The messages are those that one receive for each
/// would get. Each makes an entry in the completion queue, NEMESIA_COMPLETION_MULTI_RECEIVE, with its offset in the
/// buffer. The last entry, NEMESIA_COMPLETION_MULTI_RECEIVE_END, follows when the buffer is used up or withdrawn
/// (`nemesia_endpoint_cancel`) and all its messages are complete: the buffer is free. `user_context` is that of all.
///
/// `offset` is the alignment: messages begin at multiples of it from the beginning of the buffer. A power of two, or 0
/// for 8. `operand` is the minimum: the buffer ends when fewer bytes are left.
///
/// No message is truncated. One that is longer than what is left ends the buffer, and goes to the next receive that
/// matches, in the order of posting. One that is longer than the whole buffer passes it by, as if it did not match. If no
/// receive takes a message, it waits as unexpected. Each message takes a request until its completion is taken.
pub const NEMESIA_OPERATION_MULTI_RECEIVE: u32 = 12;

/// Posts such a buffer.
///
/// # Safety
/// The buffer is the caller's, and stays valid until the completion of its end was taken.
pub(crate) unsafe fn start(
    endpoint: &mut Inner,
    operation: &Operation,
    number: Option<u64>,
) -> Result<Request, Fault> {
    let Operation { rank, tag, ignore, buffer, len, offset, operand, .. } = *operation;
    let number = number.ok_or_else(|| {
        Fault::argument(
            "flags lack NEMESIA_OPERATION_COMPLETION: the messages of the buffer have no requests",
        )
    })?;
    check_buffer(buffer.cast::<u8>(), len, "buffer")?;
    let align = if offset == 0 { Some(8) } else { usize::try_from(offset).ok() };
    let options = MultiReceiveOptions::default().least(usize::try_from(operand).unwrap_or(usize::MAX));
    let options = align.and_then(|align| options.align(align)).ok_or_else(|| {
        Fault::argument(format!("offset is {offset}: the alignment must be a power of two, or 0 for 8"))
    })?;
    let (from, tag) = (source(endpoint, rank)?, Tag::Masked { value: tag, ignore });
    let place = (buffer.cast(), len);
    // SAFETY: the caller's promise.
    Ok(unsafe { endpoint.in_context(operation.context).irecv_many(number, from, tag, place, options) }?)
}
